"""Count the alarms that `sentinel pulls` would have raised on commits that were merged, with recipes off.

    python benchmarks/alarms.py TARGET COUNT [--to FILE] [--before DATE]

This compares commits of the target's branch with their parents, as an open pull request is compared with its base. It
takes the newest COUNT commits that change code which a boundary reaches. Recipes are not run, so only laws raise
alarms. If a recipe names a commit as the one that introduced its bug, the output names this bug. A person has to judge
the other alarms.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from sentinel.deciding.runner import runner_of
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, commits
from sentinel.tools.pulls.pulls import Radar

EXAMPLES = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("count", type=int)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--before", default="9999")
    options = parser.parse_args()
    catalog, store = bundled_catalog(), MirrorStore()
    target, mirror = catalog.targets[options.target], store.path(options.target)
    brought = {r.bug_id: str(r.document.get("introduced_by", "")) for r in find_recipes(catalog, (target.name,), ())}
    with closing(runner_of(catalog, Settings(), store=store)) as runner:
        radar = Radar(catalog, runner, target, store, (), EXAMPLES, lambda line: None)
        taken = 0
        for commit in reversed(commits.history(mirror, store.resolve(target, target.branch))):
            if taken == options.count:
                break
            if not commit.parents or commit.date >= options.before:
                continue
            parent = commits.commit(mirror, commit.parents[0])
            if not radar.touches(parent.tree, commit.tree):
                continue
            taken += 1
            pull = radar.compare(0, commit, parent, time.monotonic())
            known = [bug for bug, text in brought.items() if commit.sha[:7] in text]
            row: dict[str, Any] = {
                "target": target.name,
                "commit": commit.sha[:12],
                "date": commit.date[:10],
                "answer": pull.answer,
            }
            row |= {"subject": commit.subject, "findings": pull.findings, "compared": pull.compared, "brought": known}
            print(json.dumps(row), flush=True)
            if options.to is not None:
                with options.to.open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps(row)}\n")
        radar.close()


if __name__ == "__main__":
    main()
