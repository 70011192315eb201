"""Would the change that brought a bug have been flagged the day it came? With recipes off.

    python benchmarks/shift_left.py [TARGET ...] [--bug GLOB ...] [--share 0.5] [--seed 0] [--seconds 120] [--to FILE]
    python benchmarks/shift_left.py --table FILE

For every recipe that names the commit that introduced it (or a share of them, drawn with a seed): `sentinel diff`
between that commit's parent and the commit, at the recipe's boundary, with drawn scenarios alone, for so many seconds.
It counts as flagged where the boundary is then worse (or mixed), or, where its code came with the commit, where a law
breaks there. A difference that no law judges is counted by itself: a maintainer who reads the numbers would see it, a
gate would not. Beside it stands whether the parent breaks the recipe's law on the recipe's own scenario in the same way
(without the options that it has not): then the commit is the first to give the recipe's numbers, and brought nothing
that was not broken before. What is written to FILE is not asked again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sentinel.deciding.law_session import Undecidable
from sentinel.deciding.runner import Runner, runner_of
from sentinel.diff.comparing import Comparison
from sentinel.diff.pairs import AFTER, BEFORE, SIDES
from sentinel.errors import SentinelError
from sentinel.history import commits
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.search.boundary_search import BoundarySearch
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.targets.refs import Ref

TARGETS = ("verl", "roll", "areal", "slime", "skyrl")
_SHA = re.compile(r"[0-9a-f]{7,40}")

#: What a change may be, and what may be said of it.
KINDS = ("into code that was there", "came with its code")
SAID = ("flagged", "seen and not judged", "missed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--bug", action="append", default=[])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table is not None:
        print("\n".join(table(_kept(options.table))))
        return
    known = {row["bug"] for row in _kept(options.to)}
    for row in rows(options, known):
        line = json.dumps(row)
        print(line, flush=True)
        if options.to is not None:
            with options.to.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def _kept(file: Path | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []


def rows(options: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    catalog, store = bundled_catalog(), MirrorStore()
    brought = [
        (recipe, found.group())
        for recipe in sorted(find_recipes(catalog, options.targets, options.bug), key=_place)
        if (found := _SHA.search(str(recipe.document.get("introduced_by", ""))))
    ]
    drawn = random.Random(options.seed).sample(brought, round(options.share * len(brought)))
    drawn.sort(key=lambda each: _place(each[0]))
    for name in dict.fromkeys(recipe.target for recipe, _ in drawn):
        with closing(runner_of(catalog, Settings(), store=store)) as runner:
            for recipe, sha in drawn:
                if recipe.target == name and recipe.bug_id not in known:
                    began = time.process_time()
                    row = flagged(catalog, runner, store, recipe, sha, options.seconds)
                    yield {"bug": recipe.bug_id, **row, "seconds": round(time.process_time() - began, 1)}


def _place(recipe: Recipe) -> int:
    return TARGETS.index(recipe.target)


def flagged(
    catalog: Catalog, runner: Runner, store: MirrorStore, recipe: Recipe, brought: str, seconds: float
) -> dict[str, Any]:
    target = catalog.targets[recipe.target]
    told: dict[str, Any] = {"target": target.name, "boundary": recipe.boundary}
    refs: tuple[Ref, ...] = ()
    try:
        commit = commits.commit(store.path(target.name), store.resolve(target, brought))
        if not commit.parents:
            return {**told, "said": "not had", "why": "it is the first commit"}
        refs = tuple(Ref("git", sha) for sha in (commit.parents[0], commit.sha))
        until = time.monotonic() + seconds
        comparison = Comparison(catalog, runner, target, (refs[0], refs[1]), boundaries=[recipe.boundary], until=until)
        bindings = {subject.name: subject.binding for subject in comparison.subjects}
        found = [
            item
            for item in comparison.run()
            if item.contract == recipe.contract and recipe.boundary in bindings[item.name].paths
        ]
        if found and found[0].state != "new":
            told["was_broken"] = was_broken(comparison, found[0].name, recipe)
    except SentinelError as error:
        return {**told, "said": "not had", "why": str(error)}
    finally:
        for ref in refs:
            runner.discard(target.name, ref)
    if not found:
        return {**told, "said": "not bound", "why": "no boundary of this contract is there"}
    item = found[0]
    told |= {"kind": KINDS[item.state == "new"], "state": item.state, "judgement": item.judgement}
    told["redefines"] = item.redefines
    told |= {"laws": {side: sorted({each.law for each in broken}) for side, broken in item.broken.items()}}
    if item.broken.get(AFTER):
        return {**told, "said": "flagged", "why": ", ".join(told["laws"][AFTER])}
    if item.state == "differs":
        return {**told, "said": "seen and not judged", "why": item.judgement}
    return {**told, "said": "missed", "why": f"{item.state} {item.reason}".strip()}


def was_broken(comparison: Comparison, name: str, recipe: Recipe) -> bool:
    """Whether all that the recipe's own scenario shows of its law is to be seen at the parent, too."""
    subject = next(each for each in comparison.subjects if each.name == name)
    shown: dict[str, set[str]] = {}
    for side in SIDES:
        session = comparison.place(side, subject).law_session.fresh()
        try:
            search = BoundarySearch(session, subject, 0)
            search.try_recipes([recipe])
        except Undecidable:
            return False
        finally:
            session.close()
        outcomes = {law.name: outcome for law, outcome in search.outcomes.items()}
        shown[side] = outcomes[recipe.invariant].symptoms if recipe.invariant in outcomes else set()
    return bool(shown[AFTER]) and shown[AFTER] <= shown[BEFORE]


def table(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in found:
        said = counts[row["target"], row.get("kind", "")]
        said[row["said"]] += 1
        said[f"{row['said']}, broken before"] += bool(row.get("was_broken"))
    yield "| target | the bug came | flagged | seen and not judged | missed | flagged of what was not broken before |"
    yield "|" + " --- |" * 6
    for kind in KINDS:
        total: Counter[str] = Counter()
        for name in TARGETS:
            if counts[name, kind]:
                total += counts[name, kind]
                yield _row(name, kind, counts[name, kind])
        yield _row("all", kind, total)
    yield f"not compared: {json.dumps(sum((+each for (_, kind), each in counts.items() if not kind), Counter()))}"


def _row(name: str, kind: str, counts: Counter[str]) -> str:
    fresh = {word: counts[word] - counts[f"{word}, broken before"] for word in SAID}
    cells = [_share(counts), *(str(counts[word]) for word in SAID[1:]), _share(fresh)]
    return f"| {name} | {kind} | {' | '.join(cells)} |"


def _share(counts: Mapping[str, int]) -> str:
    every = sum(counts[word] for word in SAID)
    return f"{counts['flagged']} of {every} ({100 * counts['flagged'] / max(every, 1):.0f}%)"


if __name__ == "__main__":
    main()
