"""Which known bugs explain the laws that break in this run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.survey import LawJob, Survey
from sentinel.targets.refs import Ref

if TYPE_CHECKING:
    from sentinel.search.boundary_search import Finding
    from sentinel.search.known import Excuse


class Excuses:
    """Explains broken laws by recipes that are reproduced at the same ref.

    :param recipes_of: returns a target's recipes.
    :param verdict_of: decides a recipe at a ref and returns the name of the verdict.
    """

    def __init__(
        self,
        catalog: Catalog,
        survey: Survey,
        recipes_of: Callable[[str], Sequence[Recipe]],
        verdict_of: Callable[[Recipe, Ref], str],
    ) -> None:
        self._catalog, self._survey = catalog, survey
        self._recipes_of, self._verdict_of = recipes_of, verdict_of
        self._excuses: dict[LawJob, Excuse] = {}

    def of(self, job: LawJob) -> Excuse:
        """Return whether known bugs explain a broken law."""
        if job not in self._excuses:
            self._excuses |= self._explain_boundary(job)
        return self._excuses[job]

    def _explain_boundary(self, job: LawJob) -> dict[LawJob, Excuse]:
        """Explain every broken law of a job's boundary, because one search serves them all.

        If that search shows a bug of another recipe, it is repeated without the scenarios that trigger that recipe.
        """
        from sentinel.search.known import excuse, more_bugs

        known = {each: self._recipes_about(job, self._survey.findings(each)) for each in self._survey.beside(job)}
        excuses: dict[LawJob, Excuse] = {}
        while known:
            others = self._survey.search_others(
                job.place, {each.law: recipes for each, recipes in known.items() if recipes}
            )
            again: dict[LawJob, list[Recipe]] = {}
            for each, recipes in known.items():
                excuses[each] = excuse(self._survey.findings(each), recipes, others.get(each))
                unknown = excuses[each].unknown
                if recipes and unknown is not None:
                    more = more_bugs(recipes, self._recipes_about(job, [unknown]), unknown)
                    if more:
                        again[each] = [*recipes, *more]
            known = again
        return excuses

    def _recipes_about(self, job: LawJob, findings: Sequence[Finding]) -> list[Recipe]:
        """Return the recipes about these findings that are reproduced at the job's ref."""
        from sentinel.search.discovery import is_about

        target = self._catalog.targets[job.target]
        return [
            recipe
            for recipe in self._recipes_of(job.target)
            if any(is_about(recipe, finding, target) for finding in findings)
            and self._verdict_of(recipe, job.ref) == "reproduced"
        ]
