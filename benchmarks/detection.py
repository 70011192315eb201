"""Measure how many known bugs laws detect without recipes: `python benchmarks/detection.py`.

The bugs are those that upstream has fixed: a recipe has one git pin with the bug and one without it. At the buggy
revision, a search checks the laws of the recipe's contract at the recipe's boundary, without using the recipe's
scenario. A bug counts as flagged if any law breaks in a confirmed scenario.

With `--corpus FILE` (JSON lines: parent, fix) only the bugs of that list count, and the search uses every contract to
which the boundary is bound. A bug counts as flagged if a law is broken at the parent and holds at the fix, in the same
shrunk scenario.

This needs the targets' mirrors (`sentinel mirror add TARGET`). The generic contract `call` has no laws, so bugs of its
boundaries count as missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel.deciding.law_session import LawSession, Subject, Undecidable
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.boundary_search import BoundarySearch, Finding
from sentinel.search.checks import subjects
from sentinel.sources import open_checkout
from sentinel.worker.client import Options

CATALOG = bundled_catalog()

#: Number of scenarios of one search, and maximum number of calls to shrink a finding.
ENOUGH, SHRINKING = 400, 20

#: Number of scenarios of one search with `--corpus`.
SEEN = 50


@dataclass(frozen=True)
class Case:
    """The result for one bug.

    :ivar laws: the laws that broke in a confirmed scenario.
    :ivar tried: number of scenarios until the first law broke; number of all scenarios if none did.
    :ivar missed: why no law broke; empty if one did.
    """

    bug: str
    ref: str
    laws: tuple[str, ...]
    tried: int
    missed: str = ""


def fixed_bugs() -> list[Job]:
    """Return a job at the buggy revision of every recipe that has git pins both with and without the bug."""
    jobs = []
    for recipe in find_recipes(CATALOG):
        pins = {pin.expect: pin.ref for pin in reversed(recipe.pins) if pin.ref.kind == "git"}
        if {"reproduced", "fixed"} <= set(pins):
            jobs.append(Job(recipe, pins["reproduced"]))
    return jobs


def subject_of(recipe: Recipe) -> Subject | None:
    binding = CATALOG.targets[recipe.target].binding(recipe.boundary, recipe.contract)
    found, _ = subjects(CATALOG, recipe.target)
    return next((item for item in found if item.binding is binding), None)


def search_until_broken(runner: Runner, job: Job) -> Case:
    """Search at the buggy revision until a law breaks or all scenarios were tried."""
    bug, ref = job.recipe.bug_id, job.ref
    subject = subject_of(job.recipe)
    if subject is None:
        return Case(bug, ref.short, (), 0, f"the contract {job.recipe.contract} has no laws here")
    try:
        open_target = runner.open_target(job.recipe.target, ref, [subject.binding])
        search = BoundarySearch(open_target.law_session, subject, 0, shrinking=SHRINKING)
        while search.tried < ENOUGH and not any(outcome.findings for outcome in search.outcomes.values()):
            before = search.tried
            search.run(25)
            if search.tried == before:
                break
    except (Unavailable, Undecidable) as error:
        return Case(bug, ref.short, (), 0, str(error))
    broken = tuple(law.name for law, outcome in search.outcomes.items() if outcome.findings)
    return Case(bug, ref.short, broken, search.tried, "" if broken else why(search))


def search_and_compare(runner: Runner, job: Job) -> Case:
    """Search at the parent for scenarios that break a law. Run each shrunk scenario again at the fix."""
    recipe, missed = job.recipe, f"the contract {job.recipe.contract} has no laws here"
    fix = next(pin.ref for pin in recipe.pins if pin.expect == "fixed")
    for subject in subjects(CATALOG, recipe.target)[0]:
        if subject.binding.boundary != recipe.boundary:
            continue
        try:
            before, after = (
                runner.open_target(recipe.target, ref, [subject.binding]).law_session for ref in (job.ref, fix)
            )
            search = BoundarySearch(before, subject, 0, shrinking=SHRINKING)
            search.run(SEEN)
            found = {law: outcome.findings for law, outcome in search.outcomes.items() if outcome.findings}
            held = [law.name for law, each in found.items() if any(holds(after, one) for one in each)]
        except (Unavailable, Undecidable) as error:
            missed = str(error)
            continue
        if held:
            return Case(recipe.bug_id, job.ref.short, tuple(held), search.tried)
        missed = f"breaks at the fix too: {', '.join(law.name for law in found)}" if found else why(search)
    return Case(recipe.bug_id, job.ref.short, (), 0, missed)


def holds(session: LawSession, finding: Finding) -> bool:
    """Return True if the finding's law holds for its scenario in this session, False if it breaks or does not apply."""
    [trial] = session.try_(finding.subject, [(finding.law, finding.trial.variants)])
    return trial.case is not None and not trial.violations


def of_corpus(file: Path) -> set[tuple[str, str]]:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {(line["parent"], line["fix"]) for line in lines}


def why(search: BoundarySearch) -> str:
    """Return why no law broke: every law held, or every call raised."""
    outcomes = search.outcomes.values()
    refused = sum((outcome.refused for outcome in outcomes), Counter[str]())
    if any(outcome.judged for outcome in outcomes) or not refused:
        return "every law held"
    return f"every call raised: {refused.most_common(1)[0][0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted(CATALOG.targets), help="only bugs of this target")
    parser.add_argument("--corpus", metavar="FILE", type=Path, help="use the bugs of this list")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the result of every bug to this file")
    arguments = parser.parse_args()
    jobs = [job for job in fixed_bugs() if arguments.target in (None, job.recipe.target)]
    if arguments.corpus:
        pairs = of_corpus(arguments.corpus)
        jobs = [job for job in jobs if any((job.ref.name, pin.ref.name) in pairs for pin in job.recipe.pins)]
    ask = search_and_compare if arguments.corpus else search_until_broken
    runner = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options())
    cases, began = [], time.monotonic()
    try:
        for number, job in enumerate(jobs, 1):
            case = ask(runner, job)
            cases.append(case)
            said = f"{', '.join(case.laws)} after {case.tried}" if case.laws else f"MISSED: {case.missed}"
            print(f"[{number}/{len(jobs)}] {case.bug} at {case.ref}: {said}", file=sys.stderr, flush=True)
    finally:
        runner.close()
    flagged = sum(1 for case in cases if case.laws)
    for case in cases:
        if not case.laws:
            print(f"missed  {case.bug}: {case.missed}")
    share = 100 * flagged / max(1, len(cases))
    print(f"{flagged} of {len(cases)} flagged by laws alone ({share:.0f}%), in {time.monotonic() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(case) for case in cases], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
