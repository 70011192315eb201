"""Laws without recipes: a search detects the bug at every buggy base, and the recipe's scenario breaks no law at the
fix."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pytest
from shipped import PINS, RECIPES, first_of, runner

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import Subject
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.laws.law import Violation
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.boundary_search import EXAMPLE_CHOICES, BoundarySearch, Drawn, example
from sentinel.search.checks import subjects
from sentinel.search.discovery import match_known_bugs

#: The most scenarios for flagging a bug. Most need fewer than thirty, overflows several hundred.
ENOUGH = 1000


def wanted(job: Job) -> str:
    """Return the verdict that a job expects."""
    return str(job.expect)


#: Recipes that laws can judge; the generic contract has no laws.
GIT = [job for job in PINS if job.ref.kind == "git" and bundled_catalog().contracts[job.recipe.contract].laws]
#: Bugs that no law can detect -> the reason.
UNSEEN = {"ROLL-LOGPROBS-IN-BFLOAT16": "what is lost in sixteen bits is rounding to a law: it vanishes in float64"}
#: Further violations in a recipe's scenario -> why they are not bugs.
NO_BUG = {
    ("ROLL-PAD-MASK-EOS-IS-PAD", "nothing_else_is_touched"): "the first call imports a module that sets variables",
    **dict.fromkeys(
        [("SLIME-OPSM-CLIPFRAC-MASKED-TOKENS", "masked_values_have_no_influence")],
        "an infinity behind the mask is NaN times 0, and then no sequence is rejected; no rollout puts one there",
    ),
}
FIRST = {job.recipe.bug_id: job for job in reversed(GIT) if job.expect == "reproduced"}
BUGGY = first_of(reversed(FIRST.values()), wanted)
FIXED = first_of((job for job in GIT if job.expect == "fixed"), wanted)
REPRODUCED = first_of((job for job in GIT if job.expect == "reproduced"), wanted)


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


def opened_for(searching: Runner, job: Job, subject: Subject) -> OpenTarget:
    try:
        return searching.open_target(job.recipe.target, job.ref, [subject.binding])
    except Unavailable as error:
        pytest.skip(error.reason)


@pytest.mark.slow
@pytest.mark.parametrize("job", BUGGY)
def test_a_search_detects_every_buggy_base(job, searching, request):
    if job.recipe.bug_id in UNSEEN:
        request.applymarker(pytest.mark.xfail(reason=UNSEEN[job.recipe.bug_id]))
    subject = subject_of(job)
    open_target = opened_for(searching, job, subject)
    search = BoundarySearch(open_target.law_session, subject, 0, shrinking=20)
    while search.tried < ENOUGH and not any(outcome.findings for outcome in search.outcomes.values()):
        search.run(25)
    assert any(outcome.findings for outcome in search.outcomes.values()), {
        law.name: vars(t) for law, t in search.outcomes.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", REPRODUCED)
def test_each_law_broken_by_a_recipes_scenario_is_listed_in_a_recipe(job, searching):
    """Otherwise a search would report the recipe's bug as new."""
    subject = subject_of(job)
    open_target = opened_for(searching, job, subject)
    search = BoundarySearch(open_target.law_session, subject, 0, shrink_further=False)
    # Each law uses all its variants, as if the recipe named it.
    search.begin([replace(example(subject, job.recipe), laws=tuple(law.name for law in subject.laws))])
    found = [replace(finding, examples=()) for outcome in search.outcomes.values() for finding in outcome.findings]
    target = bundled_catalog().targets[job.recipe.target]
    explained = match_known_bugs(searching, target, open_target, found, list(RECIPES.values()))
    unknown = {item.law.name: item.violations[0].detail for item in explained if not item.known_as}
    assert {law: said for law, said in unknown.items() if (job.recipe.bug_id, law) not in NO_BUG} == {}


@pytest.mark.parametrize("job", FIXED)
def test_at_a_fix_the_recipes_scenario_breaks_no_law(job, searching):
    subject = subject_of(job)
    open_target = opened_for(searching, job, subject)
    scenarios = example(subject, job.recipe).variants
    broken: dict[str, list[str]] = {}
    ran: set[str] = set(subject.binding.paths)
    for law in subject.laws:
        made = [Drawn(subject, inputs, EXAMPLE_CHOICES[0]).variants(law) for inputs in scenarios.values()]
        plans: list[Mapping[str, Inputs]] = [plan for plan in made if not isinstance(plan, str)]
        if law.vary and law.name == job.recipe.invariant:
            plans.append(scenarios)
        for plan in plans:
            if law.twin:
                continue
            [trial] = open_target.law_session.try_(subject, [(law, plan)], describe=True)
            ran.update(trial.answer.functions if trial.answer else ())
            found = [item.detail for item in trial.violations if not meant(subject, law.name, item, plan)]
            if found:
                broken[law.name] = found
    assert [law for law in broken if not other_bugs(searching, job, ran, law)] == [], broken


def other_bugs(searching: Runner, job: Job, ran: Collection[str], law: str) -> list[str]:
    """Return the other recipes that are reproduced at this ref and break the law there."""
    return [
        recipe.bug_id
        for recipe in RECIPES.values()
        if recipe is not job.recipe and recipe.boundary in ran and law in recipe.laws
        and searching.decide(Job(recipe, job.ref)).verdict.name == "reproduced"
    ]  # fmt: skip


def meant(subject: Subject, law: str, violation: Violation, plan: Mapping[str, Inputs]) -> bool:
    scenario = next(iter(plan.values()))
    return any(
        dialect.name == law and dialect.symptom in ("", violation.symptom) and dialect.holds(scenario)
        for dialect in subject.binding.dialects
    )
