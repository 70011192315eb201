"""Measure whether the change that introduced a bug would have been flagged on that day, with recipes off.

    python benchmarks/shift_left.py [TARGET ...] [--bug GLOB ...] [--share 0.5] [--seed 0] [--seconds 120] [--to FILE]
    python benchmarks/shift_left.py --table FILE

For every recipe that names the commit that introduced it (or a share of them, drawn with a seed), `sentinel diff`
compares that commit with its parent at the recipe's boundary, with drawn scenarios, for a limited time. The bug counts
as flagged if the boundary is then worse or, if its code came with the commit, breaks a law. A difference that
no law judges is counted separately: a maintainer who reads the numbers sees it, a gate does not.

If the commit is not flagged and its parent already breaks the recipe's laws in the same way on the recipe's scenario
(without options that it lacks), the commit only made the recipe's numbers appear. Then older commits are tried, from
the recipe's root cause or the history (`reports/history`), until one has a parent that keeps the laws.

Results in FILE are not computed again, so an interrupted run continues.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import AFTER, BEFORE, SIDES
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.runner import Job, Runner, runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.records.history import load_all
from sentinel.search.boundary_search import BoundarySearch, Example, example
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, commits
from sentinel.targets.refs import Ref

TARGETS = ("verl", "roll", "areal", "slime", "skyrl")
_NAMED = re.compile(r"\b([0-9a-f]{7,40}) \((?:#[0-9]+, )?([0-9]{4}-[0-9]{2}-[0-9]{2})\)")

#: The kinds of change, and the possible results.
KINDS = ("into existing code", "came with its code")
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
        (recipe, found[1])
        for recipe in sorted(find_recipes(catalog, options.targets, options.bug), key=_place)
        if (found := _NAMED.search(str(recipe.document.get("introduced_by", ""))))
    ]
    drawn = random.Random(options.seed).sample(brought, round(options.share * len(brought)))
    drawn.sort(key=lambda each: _place(each[0]))
    for name in dict.fromkeys(recipe.target for recipe, _ in drawn):
        with closing(runner_of(catalog, Settings(), store=store)) as runner:
            for recipe, sha in drawn:
                if recipe.target == name and recipe.bug_id not in known:
                    began = time.process_time()
                    row = judge_commit(catalog, runner, store, recipe, sha, options.seconds)
                    yield {"bug": recipe.bug_id, **row, "seconds": round(time.process_time() - began, 1)}


def _place(recipe: Recipe) -> int:
    return TARGETS.index(recipe.target)


def judge_commit(
    catalog: Catalog, runner: Runner, store: MirrorStore, recipe: Recipe, brought: str, seconds: float
) -> dict[str, Any]:
    """Return the result for the commit that the recipe names, or for an older commit.

    An older commit is used if this one is not flagged and its parent broke the law in the same way.
    """
    told: dict[str, Any] = {"target": recipe.target, "boundary": recipe.boundary, "named": brought}
    first: dict[str, Any] = {}
    for sha in (brought, *_before(recipe, brought)):
        row = _asked(catalog, runner, store, recipe, sha, seconds)
        unasked = row.get("state") == "not compared" or "every call raised" in row.get("why", "")
        if not row.get("was_broken") and not (first and unasked):
            return {**told, **row, "asked": sha, "was_broken": bool(first)}
        first = first or row
    return {**told, **first, "asked": brought, "was_broken": True}  # the oldest commit that can be tried


def _before(recipe: Recipe, brought: str) -> list[str]:
    """Return older commits that may have introduced the bug, newest first.

    These are the commits that the recipe's root cause names, and those where its recorded verdict changes.
    """
    histories = load_all(Path("reports/history"), recipe.target)
    lines = (h for h in histories if (h["bug_id"], h["source"]["walk"]) == (recipe.bug_id, "first-parent"))
    runs: list[dict[str, Any]] = next((each["runs"] for each in lines), [])
    days = {run["first"]["sha"]: run["first"]["date"][:10] for run in runs}
    days |= {found[1]: found[2] for found in _NAMED.finditer(str(recipe.document.get("root_cause", "")))}
    named = next(found[2] for found in _NAMED.finditer(str(recipe.document["introduced_by"])) if found[1] == brought)
    return sorted((sha for sha, day in days.items() if day < named), key=lambda sha: days[sha], reverse=True)


def _asked(
    catalog: Catalog, runner: Runner, store: MirrorStore, recipe: Recipe, sha: str, seconds: float
) -> dict[str, Any]:
    target, refs = catalog.targets[recipe.target], tuple[Ref, ...]()
    try:
        commit = commits.commit(store.path(target.name), store.resolve(target, sha))
        if not commit.parents:
            return {"said": "not had", "why": "it is the first commit"}
        refs = tuple(Ref("git", each) for each in (commit.parents[0], commit.sha))
        until = time.monotonic() + seconds
        comparison = Comparison(catalog, runner, target, (refs[0], refs[1]), boundaries=[recipe.boundary], until=until)
        found = [
            each.subject
            for each in comparison.selection.candidates.values()
            if each.result.contract == recipe.contract and recipe.boundary in each.subject.binding.paths
        ]
        if not found:
            return {"said": "not bound", "why": "no boundary of this contract exists there"}
        subject = found[0]
        item = comparison.compare(subject.name)
        flags = bool(item.broken.get(AFTER))
        asked = item.state in ("differs", "same numbers")
        broken = asked and not flags and was_broken(comparison, runner, subject, recipe)
    except SentinelError as error:
        return {"said": "not had", "why": str(error)}
    finally:
        for ref in refs:
            runner.discard(target.name, ref)
    told: dict[str, Any] = {"kind": KINDS[item.state == "new"], "state": item.state, "judgement": item.judgement}
    told |= {"redefines": item.redefines, "was_broken": broken}
    told |= {"laws": {side: sorted({each.law for each in broken}) for side, broken in item.broken.items()}}
    if flags:
        return {**told, "said": "flagged", "why": ", ".join(told["laws"][AFTER])}
    if item.state == "differs":
        return {**told, "said": "seen and not judged", "why": item.judgement}
    return {**told, "said": "missed", "why": f"{item.state} {item.reason}".strip()}


def was_broken(comparison: Comparison, runner: Runner, subject: Subject, recipe: Recipe) -> bool:
    """Return True if the parent already has the bug.

    It has it if it gives the recipe's numbers, or breaks the recipe's laws in all the ways in which the commit does.
    """
    if runner.decide(Job(recipe, comparison.refs[BEFORE])).verdict.name == "reproduced":
        return True
    shown = {side: _shown(comparison, side, subject, recipe) for side in SIDES}
    return bool(shown[AFTER]) and shown[AFTER] <= shown[BEFORE]


def _shown(comparison: Comparison, side: str, subject: Subject, recipe: Recipe) -> set[tuple[str, str]]:
    """Return (law, symptom) of the recipe's laws that its scenario breaks at a side.

    Options that this revision lacks are left out; if it lacks a choice, the next is used.
    """
    session = comparison.processes.open(side, subject).law_session.fresh()
    try:
        for given in _otherwise(subject, example(subject, recipe)):
            search = BoundarySearch(session, subject, 0)
            search.begin([given])
            left_out = search.without_rejected(subject)
            if left_out is not None:
                search = BoundarySearch(session, left_out, 0)
                search.begin([example(left_out, recipe)])
            shown = {(law.name, each) for law, outcome in search.outcomes.items() for each in outcome.symptoms}
            answers = session.answers(subject, given.variants).answers.values()
            if shown or left_out is not None or not any(each.refused for each in answers):
                return {each for each in shown if each[0] in recipe.laws}
    except Undecidable:
        pass
    finally:
        session.close()
    return set()


def _otherwise(subject: Subject, given: Example) -> Iterator[Example]:
    """Yield a scenario, and the same with one of its options changed."""
    yield given
    for item in subject.contract.inputs:
        for choice in item.choices if not item.domain and item.name != subject.contract.mask else ():
            yield replace(given, variants={key: {**each, item.name: choice} for key, each in given.variants.items()})


def table(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in found:
        said = counts[row["target"], row.get("kind", "")]
        said[row["said"]] += 1
        said[f"{row['said']}, older"] += bool(row.get("was_broken"))
    yield "| target | the bug came | flagged | seen and not judged | missed | flagged of those that the recipe names |"
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
    fresh = {word: counts[word] - counts[f"{word}, older"] for word in SAID}
    cells = [_share(counts), *(str(counts[word]) for word in SAID[1:]), _share(fresh)]
    return f"| {name} | {kind} | {' | '.join(cells)} |"


def _share(counts: Mapping[str, int]) -> str:
    every = sum(counts[word] for word in SAID)
    return f"{counts['flagged']} of {every} ({100 * counts['flagged'] / max(every, 1):.0f}%)"


if __name__ == "__main__":
    main()
