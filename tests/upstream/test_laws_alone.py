"""Laws alone, recipes switched off: every buggy base is flagged by a search; at the fix, the recipe's own scenario
breaks no law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from shipped import PINS, RECIPES, pin_id, runner

from sentinel.catalog import bundled_catalog
from sentinel.errors import Unavailable
from sentinel.invariants.invariant import Inputs, Violation
from sentinel.runner import Ground, Job, Runner
from sentinel.search.bench import Subject
from sentinel.search.checks import subjects
from sentinel.search.examples import example
from sentinel.search.hunt import Hunt

#: Scenarios that may be needed to flag a bug; most need fewer than thirty.
ENOUGH = 400

GIT = [job for job in PINS if job.ref.kind == "git"]
BUGGY = [next(job for job in GIT if job.recipe is recipe and job.expect == "reproduced") for recipe in RECIPES.values()
         if any(job.recipe is recipe and job.expect == "reproduced" for job in GIT)]  # fmt: skip
FIXED = [job for job in GIT if job.expect == "fixed"]

#: What a recipe's own scenario shows at a fix of its bug: another bug, in a line.
OTHER_BUGS = {
    "SKYRL-PADDING-": "the loss mask of a padding microbatch is int64 where that of real rows is a float",
}


@pytest.fixture(scope="module")
def searching() -> Iterator[Runner]:
    warm = runner()
    yield warm
    warm.close()


def subject_of(job: Job) -> Subject:
    recipe = job.recipe
    found = subjects(bundled_catalog(), recipe.target)[0]
    binding = bundled_catalog().targets[recipe.target].binding(recipe.boundary, recipe.contract)
    return next(item for item in found if item.binding is binding)


def ground_of(searching: Runner, job: Job, subject: Subject) -> Ground:
    try:
        return searching.ground(job.recipe.target, job.ref, [subject.binding])
    except Unavailable as error:
        pytest.skip(error.reason)


@pytest.mark.parametrize("job", BUGGY, ids=pin_id)
def test_a_search_flags_every_buggy_base(job: Job, searching: Runner) -> None:
    subject = subject_of(job)
    ground = ground_of(searching, job, subject)
    # Where the recipe names a law, that one must be broken; any will do where it names none.
    laws = [law for law in subject.laws if job.recipe.invariant in (None, law.name)]
    hunt = Hunt(ground.bench, subject, 0, laws, shrinking=20)
    while hunt.tried < ENOUGH and not any(tally.findings for tally in hunt.tallies.values()):
        hunt.run(25)
    assert any(tally.findings for tally in hunt.tallies.values()), {
        law.name: vars(t) for law, t in hunt.tallies.items()
    }


@pytest.mark.parametrize("job", FIXED, ids=pin_id)
def test_at_a_fix_the_recipes_scenario_breaks_no_law(job: Job, searching: Runner) -> None:
    subject = subject_of(job)
    ground = ground_of(searching, job, subject)
    scenarios = example(subject, job.recipe).variants
    broken: dict[str, list[str]] = {}
    for law in subject.laws:
        plans: list[Mapping[str, Inputs]] = [scenarios] if law.vary else [{"": item} for item in scenarios.values()]
        for plan in plans:
            if law.twin:
                continue
            trial = ground.bench.try_(subject, {law: plan})[law]
            assert not trial.refused, trial.refused
            found = [item.detail for item in trial.violations if not meant(subject, law.name, item, plan)]
            if found:
                broken[law.name] = found
    others = [reason for name, reason in OTHER_BUGS.items() if job.recipe.bug_id.startswith(name)]
    assert not broken or others, broken


def meant(subject: Subject, law: str, violation: Violation, plan: Mapping[str, Inputs]) -> bool:
    scenario = next(iter(plan.values()))
    return any(
        dialect.name == law and dialect.symptom in ("", violation.symptom) and dialect.holds(scenario)
        for dialect in subject.binding.dialects
    )
