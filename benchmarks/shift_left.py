"""Would the change that brought a bug have been flagged the day it came? With recipes off.

    python benchmarks/shift_left.py [TARGET ...]

For every recipe that names the commit that introduced it: `sentinel diff` between that commit's parent and the commit,
at the recipe's boundary, with drawn scenarios alone. It counts as flagged where the boundary is then worse (or mixed),
or, where its code came with the commit, where a law breaks there. A difference that no law judges is counted by itself:
a maintainer who reads the numbers would see it, a gate would not.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from contextlib import closing

from sentinel.deciding.runner import Runner, runner_of
from sentinel.diff.comparing import Comparison
from sentinel.diff.pairs import AFTER
from sentinel.errors import SentinelError
from sentinel.history import commits
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref

TARGETS = ("verl", "roll", "areal", "slime", "skyrl")
_SHA = re.compile(r"[0-9a-f]{7,40}")


def main() -> None:
    catalog, store = bundled_catalog(), MirrorStore()
    counts: Counter[str] = Counter()
    for name in sys.argv[1:] or TARGETS:
        with closing(runner_of(catalog, Settings(), store=store)) as runner:
            for recipe in find_recipes(catalog, (name,), ()):
                brought = _SHA.search(str(recipe.document.get("introduced_by", "")))
                if brought is not None:
                    said = flagged(catalog, runner, store, recipe, brought.group())
                    counts[said.partition(":")[0]] += 1
                    print(f"{recipe.bug_id}: {said}", flush=True)
    print(json.dumps(counts))


def flagged(catalog: Catalog, runner: Runner, store: MirrorStore, recipe: Recipe, brought: str) -> str:
    target = catalog.targets[recipe.target]
    refs: tuple[Ref, ...] = ()
    try:
        commit = commits.commit(store.path(target.name), store.resolve(target, brought))
        if not commit.parents:
            return "not had: it is the first commit"
        refs = tuple(Ref("git", sha) for sha in (commit.parents[0], commit.sha))
        comparison = Comparison(catalog, runner, target, (refs[0], refs[1]), boundaries=[recipe.boundary])
        bindings = {subject.name: subject.binding for subject in comparison.subjects}
        found = [
            item
            for item in comparison.run()
            if item.contract == recipe.contract and recipe.boundary in bindings[item.name].paths
        ]
    except SentinelError as error:
        return f"not had: {error}"
    finally:
        for ref in refs:
            runner.discard(target.name, ref)
    if not found:
        return "not bound"
    item = found[0]
    came = "came with its code" if item.state == "new" else "into code that was there"
    if item.broken.get(AFTER):
        return f"flagged, {came}: {', '.join(broken.law for broken in item.broken[AFTER])}"
    if item.state == "differs":
        return f"seen and not judged, {came}: {item.judgement}"
    return f"missed, {came}: {item.state} {item.reason}"


if __name__ == "__main__":
    main()
