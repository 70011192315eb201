"""Every law of every boundary at older commits holds, or a recipe explains why not."""

from functools import cache

import pytest
from commits import COMMITS
from shipped import RECIPES, runner

from sentinel.deciding.runner import Job
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.discovery import is_about
from sentinel.search.survey import Survey, law_jobs
from sentinel.targets.refs import Ref

#: Reading upstream's source causes these warnings.
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore:invalid escape sequence")]


#: Commits at which a loss has other inputs, averages or metrics than before and after. No recipe pins them.
ODD = [
    ("areal", "d1b297adc9bbb72ec5b0a55233f729c0f6218460"),  # one clip bound for both sides
    ("skyrl", "05fdea7df10ed7dc6ce822d1eb4ca1c532de3e7e"),  # importance sampling with an average, at this commit only
    ("openrlhf", "f372a2d41e26c3c47a0f6653fb94c31f5c257942"),  # IcePop; a microbatch without a token is NaN
    ("trl", "722847abbc9de2a6a34d11bc0f416239f85ec1d6"),  # the parent of a fix of the logged clip ratio
]


@pytest.mark.parametrize(
    "commit", [*COMMITS, *(pytest.param(commit, id=f"{commit[0]}-{commit[1][:7]}") for commit in ODD)]
)
def test_every_broken_law_is_explained_by_a_recipe(commit):
    target, ref = bundled_catalog().targets[commit[0]], Ref("git", commit[1])
    recipes = [recipe for recipe in RECIPES.values() if recipe.target == target.name]
    searching = runner()
    survey = Survey(bundled_catalog(), searching, "quick", recipes_of=lambda _: recipes)

    @cache
    def verdict(bug: str) -> str:
        return searching.decide(Job(RECIPES[bug], ref)).verdict.name

    def there(recipe: Recipe) -> bool:
        """Return True if the bug is reproduced, or its own scenario breaks its law with other numbers."""
        shown = any(
            recipe.bug_id in finding.examples and each.law == recipe.invariant
            for each in jobs
            for finding in survey.findings(each)
        )
        told = verdict(recipe.bug_id)
        return told == "reproduced" or (shown and told != "fixed")

    jobs = law_jobs(bundled_catalog(), target.name, [ref])
    unexplained, verdicts, why = {}, set(), ""
    try:
        survey.plan(jobs)
        for job in jobs:
            told = survey.decide(job).verdict
            verdicts.add(told.name)
            why = told.reason if told.kind in ("ref", "python") else why
        for job in jobs:
            for finding in survey.findings(job):
                if not any(is_about(recipe, finding, target) and there(recipe) for recipe in recipes):
                    unexplained[job.boundary, job.law, finding.symptom] = finding.violations[0].detail
    finally:
        searching.close()
        survey.close()
    if not verdicts & {"reproduced", "fixed"}:
        assert why
        pytest.skip(why)
    assert not unexplained, "\n".join(f"{' '.join(what)}: {detail}" for what, detail in unexplained.items())
