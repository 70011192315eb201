"""Decide whether known bugs explain a broken law. They do if the law holds on scenarios that do not trigger them.

A known bug can hide another bug that breaks the same law. So before known bugs excuse a violation, the law is checked
again on scenarios that trigger none of them. In such a scenario, no ``when:`` of their recipes applies
(:mod:`sentinel.recipes.triggers`). A violation there is due to another bug.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sentinel.contracts.contract import Contract, Inputs
from sentinel.deciding.law_session import LawSession, Subject
from sentinel.laws.law import Law
from sentinel.recipes import Recipe
from sentinel.recipes.triggers import Explained
from sentinel.search.boundary_search import EXPLAINED, BoundarySearch, Finding, LawOutcome, cheap_scenarios
from sentinel.values.literals import Tensor

Key = TypeVar("Key")

#: Known bugs excuse a law's violations only if the law holds on this many scenarios that do not trigger the bugs.
ENOUGH = 30

#: Maximum number of scenarios that are drawn to find :data:`ENOUGH` that do not trigger the known bugs.
_MOST = 2000

#: The search ends after this many scenarios if the law has judged none of them, and at least one was left out because
#: it triggers a bug.
_PATIENCE = 100

#: Two numbers n, m: if the law judged no scenario, :attr:`Others.none` concludes that every scenario that the law can
#: judge triggers a bug, but only if n of the first m drawn scenarios trigger no bug. Otherwise, such scenarios may just
#: be rare.
_PLAIN = (5, 100)

#: Reasons for leaving out a scenario. Scenarios in float64 are left out because there an epsilon of 1e-8 in a divisor
#: changes the result, but not at the precision of training.
TRIGGERS, TOO_FINE = "it triggers a known bug", "it is in float64"


@dataclass(frozen=True)
class Excuse:
    """Whether known bugs explain a broken law, and why. One of ``holds``, ``hidden``, ``doubt`` and ``unknown`` is set.

    :ivar bugs: ids of the known bugs.
    :ivar holds: a sentence that the law holds on scenarios that do not trigger the bugs, with their number; empty if
        the bugs do not explain the broken law.
    :ivar hidden: the reason why every scenario that the law can judge triggers the bugs, which may then hide another
        bug.
    :ivar doubt: the reason why the law judged too few scenarios that do not trigger the bugs.
    :ivar unknown: a finding that the bugs do not explain.
    """

    bugs: tuple[str, ...]
    holds: str = ""
    hidden: str = ""
    doubt: str = ""
    unknown: Finding | None = None


@dataclass(frozen=True)
class Others:
    """The results of a law on scenarios that trigger none of its known bugs.

    :ivar plain: how many of the first ``_PLAIN[1]`` drawn scenarios trigger none of the bugs.
    """

    outcome: LawOutcome
    plain: int

    @property
    def none(self) -> str:
        """Return why every scenario that the law can judge triggers the bugs.

        Return an empty string if the law judged other scenarios, or if such scenarios may just be rare.
        """
        if self.outcome.judged or self.plain < _PLAIN[0]:
            return ""
        if self.outcome.not_judged[EXPLAINED]:
            return "it explains every key that the law compares"
        return "it is triggered in every scenario that the law compares" if self.outcome.not_judged[TRIGGERS] else ""


def covers(recipes: Sequence[Recipe], finding: Finding) -> bool:
    """Return True if a finding is from the scenario of one of these recipes, or its scenario triggers their bugs."""
    if any(recipe.bug_id in finding.examples for recipe in recipes):
        return True
    explained = _explain(recipes, finding.law, finding.subject.contract, finding.trial.variants)
    return explained.whole or all(item.key.rpartition(".")[2] in explained.keys for item in finding.violations)


def _explain(recipes: Sequence[Recipe], law: Law, contract: Contract, variants: Mapping[str, Inputs]) -> Explained:
    every = [recipe.trigger(law.name).explain(contract, list(variants.values())) for recipe in recipes]
    return Explained(any(each.whole for each in every), frozenset().union(*(each.keys for each in every)))


def search_others(
    law_session: LawSession, subject: Subject, seed: int, bugs: Mapping[Law, Sequence[Recipe]], shrinking: int
) -> dict[Law, Others]:
    """Check each law on scenarios that do not trigger its known bugs, until it has judged :data:`ENOUGH`.

    :param bugs: law -> recipes of the bugs that are known to break it.
    :param shrinking: maximum number of calls for shrinking one finding.
    :raises Undecidable: if the boundary cannot be called at this revision.
    """

    # Scenarios in float64 are left out only if the boundary also takes float32.
    coarser = not subject.binding.dtypes or "float32" in subject.binding.dtypes
    coarser = coarser and all(item.dtype != "float64" for item in subject.contract.inputs)

    def left_out(law: Law, variants: Mapping[str, Inputs]) -> str:
        scenario = next(iter(variants.values()))
        if coarser and any(isinstance(value, Tensor) and value.dtype == "float64" for value in scenario.values()):
            return TOO_FINE
        return TRIGGERS if _explain(bugs[law], law, subject.contract, variants).whole else ""

    def excused(law: Law, variants: Mapping[str, Inputs]) -> Collection[str]:
        return _explain(bugs[law], law, subject.contract, variants).keys

    search = BoundarySearch(
        law_session,
        subject,
        seed,
        list(bugs),
        shrinking,
        shrink_further=False,
        left_out=left_out,
        excused=excused,
        most=ENOUGH,
        cheap=True,
    )

    drawn = 0

    def tick() -> None:
        nonlocal drawn
        drawn += 1

    def over() -> bool:
        return all(
            item.judged >= ENOUGH
            or (drawn >= _PATIENCE and not item.judged and (item.not_judged[TRIGGERS] or item.not_judged[EXPLAINED]))
            for item in search.outcomes.values()
        )

    search.run(_MOST if bugs else 0, tick=tick, enough=over)
    scenarios = cheap_scenarios(subject, seed, 0, _PLAIN[1])
    return {
        law: Others(outcome, sum(1 for scenario in scenarios if not left_out(law, {"": scenario.inputs})))
        for law, outcome in search.outcomes.items()
    }


def excuse(findings: Sequence[Finding], recipes: Sequence[Recipe], others: Others | None) -> Excuse:
    """Return whether known bugs explain why a law is broken.

    :param recipes: the recipes that are about the findings and whose bugs are reproduced at this revision.
    :param others: the result of :func:`search_others` for the law; None if the search failed.
    """
    bugs = tuple(recipe.bug_id for recipe in recipes)
    unknown = next((item for item in findings if not covers(recipes, item)), None)
    if unknown is None and others is not None and others.outcome.findings:
        unknown = others.outcome.findings[0]
    if unknown is not None:
        return Excuse(bugs, unknown=unknown)
    if others is None:
        return Excuse(bugs, doubt="the search of scenarios that do not trigger it failed")
    judged = others.outcome.judged
    if judged >= ENOUGH:
        return Excuse(bugs, holds=f"the law holds on {judged} scenarios that do not trigger it")
    if others.none:
        return Excuse(bugs, hidden=f"{others.none}, where another bug could hide")
    few = f"of the scenarios that do not trigger it, the law judged only {judged}; {ENOUGH} are needed"
    return Excuse(bugs, doubt=few)


def explain(
    findings: Mapping[Key, Sequence[Finding]],
    about: Callable[[Finding], Sequence[Recipe]],
    search: Callable[[Mapping[Key, Sequence[Recipe]]], Mapping[Key, Others]],
) -> dict[Key, tuple[Excuse, list[Finding]]]:
    """Return, for each broken law, whether known bugs explain it, and the findings that they do not explain.

    The search leaves out scenarios that trigger the known bugs. If it finds the bug of a further recipe, it is repeated
    without the scenarios that trigger this bug.

    :param findings: law -> its findings.
    :param about: returns the recipes that are about a finding and whose bugs are reproduced at this revision.
    :param search: checks laws on scenarios that trigger none of their known bugs.
    """
    known = {key: _unite(about(finding) for finding in items) for key, items in findings.items()}
    explained: dict[Key, tuple[Excuse, list[Finding]]] = {}
    while known:
        others = search({key: recipes for key, recipes in known.items() if recipes})
        again: dict[Key, list[Recipe]] = {}
        for key, recipes in known.items():
            excused = excuse(findings[key], recipes, others.get(key))
            unknown = others[key].outcome.findings if key in others else []
            explained[key] = excused, unknown
            for finding in {id(each): each for each in (excused.unknown, *unknown) if each is not None}.values():
                more = _unite([recipes, about(finding)])
                if recipes and len(more) > len(recipes) and covers(more, finding):
                    again[key] = _unite([again.get(key, []), more])
        known = again
    return explained


def _unite(recipes: Iterable[Sequence[Recipe]]) -> list[Recipe]:
    return [*{recipe.bug_id: recipe for each in recipes for recipe in each}.values()]
