"""Check recorded histories: `python benchmarks/spot_checks.py --from reports/history --sample 60`.

A sweep calls a function only once for each distinct closure, so it could miss or misplace a change of the verdict. This
benchmark draws random changes from the histories. It decides the two commits next to each change again, each with a
checkout of the whole commit and a new process. Any difference is an error of the sweep. It needs full mirrors.

exit status: 0 if all verdicts agree, 1 if some differ
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records.history import require_all
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

CATALOG = bundled_catalog()
DECIDED = ("reproduced", "fixed", "changed")
RECIPES = {recipe.bug_id: recipe for recipe in find_recipes(CATALOG, tuple(CATALOG.targets))}


def transitions(folder: Path) -> list[tuple[Recipe, dict[str, Any], dict[str, Any]]]:
    """Return (recipe, run, next run) for each change of verdict in the git histories of current recipes.

    A run is a series of commits with the same verdict. At least one of the two verdicts is conclusive.
    """
    found = []
    for record in require_all(folder):
        recipe = RECIPES.get(record["bug_id"])
        if record["source"]["kind"] == "git" and recipe is not None:
            pairs = pairwise(record["runs"])
            found += [(recipe, *pair) for pair in pairs if any(run["verdict"] in DECIDED for run in pair)]
    return found


def decided(runner: Runner, recipe: Recipe, sha: str) -> str:
    """Compute the verdict at a commit without stored results; return it with the kind of its reason, if any."""
    verdict = runner.decide(Job(recipe, Ref("git", sha))).verdict
    runner.discard(recipe.target, Ref("git", sha))
    return _named(verdict.name, verdict.kind)


def _named(verdict: str, kind: str) -> str:
    return f"{verdict} ({kind})" if kind else verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="folder", type=Path, default=Path("reports/history"))
    parser.add_argument("--sample", type=int, default=60, help="number of changes of verdict")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", help="only this target")
    arguments = parser.parse_args()
    every = [item for item in transitions(arguments.folder) if arguments.target in (None, item[0].target)]
    drawn = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
    wrong = 0
    runner = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref), Options())
    for recipe, before, after in sorted(drawn, key=lambda item: item[0].bug_id):
        for run, commit in ((before, before["last"]), (after, after["first"])):
            swept, found = _named(run["verdict"], run["kind"]), decided(runner, recipe, commit["sha"])
            wrong += swept != found
            said = {"bug": recipe.bug_id, "commit": commit["sha"][:12], "swept": swept, "brute_force": found}
            print(json.dumps({**said, "agrees": swept == found}), flush=True)
    runner.close()
    print(json.dumps({"transitions": len(drawn), "of": len(every), "decisions": 2 * len(drawn), "differ": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
