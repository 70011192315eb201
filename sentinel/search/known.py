"""Which known bugs explain a broken law. They do if the law holds on scenarios that trigger none of them.

A bug that breaks a law hides every other one that breaks it, too. So a law whose violation is to be excused is searched
once more, on scenarios that no ``when:`` of those bugs is met by (:mod:`sentinel.recipes.triggers`). What breaks it
there is another bug.
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

#: Scenarios on which a law must hold before known bugs excuse that it is broken on others.
ENOUGH = 30

#: Scenarios that are drawn to find so many.
_MOST = 2000

#: Scenarios after which a law is said to compare none that does not trigger a bug, if it has not.
_PATIENCE = 100

#: How many of so many scenarios must not trigger a bug before a law is said to compare only those that do.
_PLAIN = (5, 100)

#: Why a law does not look at a scenario. Nobody trains in float64, where a 1e-8 in a divisor is a difference.
TRIGGERS, TOO_FINE = "it triggers a known bug", "it is in float64"


@dataclass(frozen=True)
class Excuse:
    """Whether known bugs explain a broken law.

    :ivar bugs: their ids.
    :ivar holds: on how many scenarios without the bugs the law holds; empty if that is not known.
    :ivar hidden: why the law compares nothing without the bugs, so that another bug could hide; empty if it does.
    :ivar doubt: why too few scenarios without the bugs were found; empty if there were enough.
    :ivar unknown: a violation that they do not explain.
    """

    bugs: tuple[str, ...]
    holds: str = ""
    hidden: str = ""
    doubt: str = ""
    unknown: Finding | None = None


@dataclass(frozen=True)
class Others:
    """What a law says of scenarios that trigger none of the bugs.

    :ivar plain: how many of the first scenarios that are drawn trigger none, before the law varies them.
    """

    outcome: LawOutcome
    plain: int

    @property
    def none(self) -> str:
        """Why the law compares nothing without the bugs, although drawn scenarios do not trigger them; else empty."""
        if self.outcome.spoken or self.plain < _PLAIN[0]:
            return ""
        if self.outcome.silent[EXPLAINED]:
            return "it explains every key that the law compares"
        return "it is triggered in every scenario that the law compares" if self.outcome.silent[TRIGGERS] else ""


def covers(recipes: Sequence[Recipe], finding: Finding) -> bool:
    """Say whether the scenario of a finding is a recipe's own, or triggers bugs that explain all that is wrong."""
    if any(recipe.bug_id in finding.examples for recipe in recipes):
        return True
    explained = _explained(recipes, finding.law, finding.subject.contract, finding.trial.variants)
    return explained.whole or all(item.key.rpartition(".")[2] in explained.keys for item in finding.violations)


def _explained(recipes: Sequence[Recipe], law: Law, contract: Contract, variants: Mapping[str, Inputs]) -> Explained:
    every = [recipe.trigger(law.name).explained(contract, list(variants.values())) for recipe in recipes]
    return Explained(any(each.whole for each in every), frozenset().union(*(each.keys for each in every)))


def search_others(
    law_session: LawSession, subject: Subject, seed: int, bugs: Mapping[Law, Sequence[Recipe]], shrinking: int
) -> dict[Law, Others]:
    """Search scenarios that trigger none of the bugs that are known to break a law, until :data:`ENOUGH` are judged.

    :raises Undecidable: where the boundary cannot be called here at all.
    """

    # Most boundaries take any precision; of some, the rewards say, every number is float64.
    coarser = not subject.binding.dtypes or "float32" in subject.binding.dtypes
    coarser = coarser and all(item.dtype != "float64" for item in subject.contract.inputs)

    def left_out(law: Law, variants: Mapping[str, Inputs]) -> str:
        scenario = next(iter(variants.values()))
        if coarser and any(isinstance(value, Tensor) and value.dtype == "float64" for value in scenario.values()):
            return TOO_FINE
        return TRIGGERS if _explained(bugs[law], law, subject.contract, variants).whole else ""

    def excused(law: Law, variants: Mapping[str, Inputs]) -> Collection[str]:
        return _explained(bugs[law], law, subject.contract, variants).keys

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
            item.spoken >= ENOUGH
            or (drawn >= _PATIENCE and not item.spoken and (item.silent[TRIGGERS] or item.silent[EXPLAINED]))
            for item in search.outcomes.values()
        )

    search.run(_MOST if bugs else 0, tick=tick, enough=over)
    scenarios = cheap_scenarios(subject, seed, 0, _PLAIN[1])
    return {
        law: Others(outcome, sum(1 for scenario in scenarios if not left_out(law, {"": scenario.inputs})))
        for law, outcome in search.outcomes.items()
    }


def excuse(findings: Sequence[Finding], recipes: Sequence[Recipe], others: Others | None) -> Excuse:
    """Say whether recipes explain what broke a law.

    :param recipes: those about the findings, whose bugs are reproduced at this revision.
    :param others: what :func:`search_others` found.
    """
    bugs = tuple(recipe.bug_id for recipe in recipes)
    unknown = next((item for item in findings if not covers(recipes, item)), None)
    if unknown is None and others is not None and others.outcome.findings:
        unknown = others.outcome.findings[0]
    if unknown is not None:
        return Excuse(bugs, unknown=unknown)
    if others is None:
        return Excuse(bugs, doubt="other scenarios could not be searched")
    spoken = others.outcome.spoken
    if spoken >= ENOUGH:
        return Excuse(bugs, holds=f"the law holds on {spoken} scenarios that do not trigger it")
    if others.none:
        return Excuse(bugs, hidden=f"{others.none}, where another bug could hide")
    few = f"only {spoken} of the scenarios that the law judges do not trigger it; it takes {ENOUGH}"
    return Excuse(bugs, doubt=few)


def explain(
    findings: Mapping[Key, Sequence[Finding]],
    about: Callable[[Finding], Sequence[Recipe]],
    search: Callable[[Mapping[Key, Sequence[Recipe]]], Mapping[Key, Others]],
) -> dict[Key, tuple[Excuse, list[Finding]]]:
    """Return whether known bugs explain each broken law, and what else breaks it where they do not apply.

    If a search without the scenarios of some bugs shows a bug of another recipe, it is repeated without that recipe's
    scenarios, too.

    :param findings: what broke each law.
    :param about: returns the recipes about a finding whose bugs are reproduced at this revision.
    :param search: searches scenarios that trigger none of the bugs that are known to break each law.
    """
    known = {key: _united(about(finding) for finding in items) for key, items in findings.items()}
    explained: dict[Key, tuple[Excuse, list[Finding]]] = {}
    while known:
        others = search({key: recipes for key, recipes in known.items() if recipes})
        again: dict[Key, list[Recipe]] = {}
        for key, recipes in known.items():
            excused = excuse(findings[key], recipes, others.get(key))
            unknown = others[key].outcome.findings if key in others else []
            explained[key] = excused, unknown
            for finding in {id(each): each for each in (excused.unknown, *unknown) if each is not None}.values():
                more = _united([recipes, about(finding)])
                if recipes and len(more) > len(recipes) and covers(more, finding):
                    again[key] = _united([again.get(key, []), more])
        known = again
    return explained


def _united(recipes: Iterable[Sequence[Recipe]]) -> list[Recipe]:
    return [*{recipe.bug_id: recipe for each in recipes for recipe in each}.values()]
