"""Measure how often `sentinel diff` finds known differences without recipes' scenarios, and how often it is wrong.

    python benchmarks/differences.py recipes [TARGET ...]        the base and the head of each recipe that has both
    python benchmarks/differences.py comments [TARGET[=PAIRS] …] commits that change only comments of a bound file
    python benchmarks/differences.py cost TARGET A B [GLOB ...]  the time that the second revision adds

`recipes` counts a recipe as seen if its boundary differs between base and head on random scenarios: in numbers, or
because only one of the two breaks a law. `comments` compares the boundaries that reach the changed file but no changed
code (at most five, sampled with the commit as the seed), with 20 scenarios each; every difference is a false alarm.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import SIDES, numbers_stay_for
from sentinel.comparing.reached import Code
from sentinel.comparing.sessions import Alone, Pair
from sentinel.comparing.units import Modules
from sentinel.deciding.law_session import Undecidable
from sentinel.deciding.runner import Runner, runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.search.boundary_search import BoundarySearch, drawn_scenarios
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, commits
from sentinel.sources.gittrees import GitTrees
from sentinel.targets.refs import Ref

TARGETS = ("verl", "roll", "areal", "slime", "skyrl", "trl", "openrlhf", "nemorl", "primerl")


def recipes(catalog: Catalog, names: Sequence[str]) -> None:
    counts: Counter[str] = Counter()
    for name in names:
        groups: dict[tuple[Ref, Ref], list[Recipe]] = defaultdict(list)
        for recipe in find_recipes(catalog, (name,), ()):
            if any(pin.expect == "reproduced" for pin in recipe.pins):
                base, head = recipe.revisions()
                if head is not None:
                    groups[base, head].append(recipe)
        with closing(runner_of(catalog, Settings())) as runner:
            for refs, several in groups.items():
                for recipe, said in _seen(catalog, runner, name, refs, several):
                    counts[said.partition(":")[0]] += 1
                    print(f"{recipe.bug_id}: {said}", flush=True)
    decided = counts["seen"] + counts["not seen"]
    print(json.dumps({**counts, "share": round(counts["seen"] / max(decided, 1), 3)}))


def _seen(
    catalog: Catalog, runner: Runner, name: str, refs: tuple[Ref, Ref], several: Sequence[Recipe]
) -> Iterator[tuple[Recipe, str]]:
    target = catalog.targets[name]
    try:
        boundaries = sorted({recipe.boundary for recipe in several})
        comparison = Comparison(catalog, runner, target, refs, boundaries=boundaries)
        found = list(comparison.run())
    except SentinelError as error:
        yield from ((recipe, f"not available: {error}") for recipe in several)
        return
    finally:
        for ref in refs:
            runner.discard(name, ref)
    places = {subject.name: subject.binding for subject in comparison.selection.subjects}
    for recipe in several:
        about = [i for i in found if i.contract == recipe.contract and recipe.boundary in places[i.name].paths]
        states = ", ".join(f"{item.state}{f' ({item.reason})' if item.reason else ''}" for item in about)
        if not about:
            yield recipe, f"not bound: {recipe.boundary} ({recipe.contract})"
        elif any(item.state == "differs" for item in about):
            yield recipe, f"seen: {'; '.join(item.judgement for item in about)}"
        else:
            yield recipe, f"not seen: {states}"


def comments(catalog: Catalog, names: Sequence[str]) -> None:
    """Compare the newest commits with their parents. A commit counts if it changes a file that boundaries reach, but no
    code that they reach."""
    store, total, wrong = MirrorStore(), 0, 0
    for name, _, pairs in (each.partition("=") for each in names):
        wanted = int(pairs or 10)
        target, mirror = catalog.targets[name], store.path(name)
        trees, modules = GitTrees(mirror), Modules(name)
        code = Code(target, trees, modules)
        with closing(runner_of(catalog, Settings())) as runner:
            for commit in reversed(commits.history(mirror, store.resolve(target, target.branch))):
                if wanted == 0:
                    break
                if not commit.parents:
                    continue
                before = commits.commit(mirror, commit.parents[0])
                bound = _commented(code, before.tree, commit.tree)
                if not bound:
                    continue
                refs = Ref("git", before.sha), Ref("git", commit.sha)
                bound = random.Random(commit.sha).sample(bound, min(5, len(bound)))
                comparison = Comparison(
                    catalog, runner, target, refs, examples=20, boundaries=bound, unchanged_too=True
                )
                found = list(comparison.run())
                for ref in refs:
                    runner.discard(name, ref)
                differing = [item.name for item in found if item.state == "differs"]
                scenarios = sum(item.scenarios for item in found)
                asked = bool(scenarios or differing)  # if every call raised, the commit does not count
                total, wrong, wanted = total + asked, wrong + bool(differing), wanted - asked
                print(
                    f"{name} {commit.sha[:9]} {commit.subject[:60]!r}: {scenarios} scenarios, {differing}", flush=True
                )
        modules.save()
        trees.close()
    print(json.dumps({"pairs": total, "different": wrong}))


def _commented(code: Code, before: str, after: str) -> list[str]:
    """Return the boundaries that reach a changed file but no changed code. All definitions in the file are the same."""
    one, other = (code.files(tree) for tree in (before, after))
    touched = set()
    for file in one.keys() & other.keys():
        if one[file] != other[file]:
            left, right = (code.module(files[file]).units for files in (one, other))
            if left.keys() == right.keys() and all(left[name].like(right[name]) for name in left):
                touched.add(file)
    found = []
    for binding in code.target.bindings if touched else ():
        here, there = (code.reached(tree, binding) for tree in (before, after))
        if here and there and touched & {file for file, _ in there.units} and not here.changed(there):
            found.append(binding.boundary)
    return found


def cost(catalog: Catalog, name: str, one: str, other: str, *globs: str, examples: int = 20) -> None:
    """Print how much longer a search at both revisions takes than a search at the first, with the same scenarios.

    Boundaries that reach no changed code are left out.
    """
    with closing(runner_of(catalog, Settings())) as runner:
        target, refs = catalog.targets[name], (Ref.parse(one), Ref.parse(other))
        comparison = Comparison(catalog, runner, target, refs, examples=examples, boundaries=globs)
        asked = [each.subject for each in comparison.selection.candidates.values() if not each.result.state]
        seconds: dict[str, float] = defaultdict(float)
        for subject in asked:
            drawn_scenarios(subject, 0, 0, examples)  # drawn here, so that neither measurement includes the drawing
            one_, other_ = (comparison.processes.open(side, subject).law_session for side in SIDES)
            for way, pair in (("alone", Alone(one_.fresh())), ("both", Pair(one_.fresh(), other_.fresh()))):
                search = BoundarySearch(pair, subject, 0, numbers_stay_for(subject.laws))
                began = time.monotonic()
                with suppress(Undecidable):
                    search.run(examples)
                seconds[way] += time.monotonic() - began
                pair.close()
            print(subject.name, dict(seconds), flush=True)
    print(json.dumps({**seconds, "added": seconds["both"] / seconds["alone"] - 1}))


def main() -> None:
    catalog = bundled_catalog()
    mode, *rest = sys.argv[1:] or ["recipes"]
    if mode == "cost":
        cost(catalog, *rest)
    else:
        {"recipes": recipes, "comments": comments}[mode](catalog, rest or TARGETS)


if __name__ == "__main__":
    main()
