"""Define the result of comparing one boundary at two revisions. A *side* is ``before`` (base) or ``after`` (head)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.comparing.observations import AFTER, BEFORE, BESIDE
from sentinel.comparing.patch import Unexamined
from sentinel.contracts.contract import Inputs


@dataclass(frozen=True)
class Difference:
    """A difference between the two revisions, with the smallest scenario on which it was found.

    :ivar symptom: ``value``, ``non-finite``, ``masked`` (only where the mask is 0), ``shape``, ``dtype``, ``answer`` (a
        value without numbers), ``raises``, ``no longer raises``, or ``beside`` if only values that the contract does
        not observe differ.
    :ivar details: key -> where the values differ and by how much.
    :ivar double: side -> the observation in float64; None if the scenario was not repeated in float64.
    :ivar recipes: the known bugs that have this scenario; empty for a drawn scenario.
    :ivar idle: the inputs whose value does not change the result of either side.
    :ivar decides: the options on which the difference depends: for every other value that was tried, both sides return
        the same.
    :ivar unless: option -> the values for which both sides return the same. Only options for which the sides also
        differ with another value are included.
    :ivar programming_error: the name of an exception that one side raises because of a mistake in its own code; see
        :func:`sentinel.worker.attribution.programming_error`.
    """

    symptom: str
    inputs: Inputs
    answers: Mapping[str, Mapping[str, Any] | str]
    details: Mapping[str, str]
    double: Mapping[str, Mapping[str, Any]] | None = None
    recipes: tuple[str, ...] = ()
    programming_error: str = ""
    idle: frozenset[str] = frozenset()
    decides: frozenset[str] = frozenset()
    unless: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    @property
    def confirmed(self) -> bool:
        """Return True if the difference also appeared in fresh processes."""
        raised = any(isinstance(answer, str) for answer in self.answers.values())
        return raised or self.symptom not in ("raises", "no longer raises")


@dataclass(frozen=True)
class Broken:
    """A law that one revision breaks and the other satisfies, on the same variants.

    :ivar defined: whether only the contract's definition is violated. A change may do so intentionally.
    :ivar came: whether the scenario needs an option or choice that the other revision lacks.
    :ivar already: whether the other revision breaks the law on the same variants too, but by a smaller amount.
    :ivar choice: a change of the definition under which this revision satisfies the law, as text; empty if unknown.
    """

    law: str
    statement: str
    symptom: str
    detail: str
    variants: Mapping[str, Inputs]
    defined: bool = False
    came: bool = False
    already: bool = False
    choice: str = ""


#: Name and statement of the law that a revision breaks if its call fails and the other revision's call returns.
ANSWERED, ANSWERED_STATEMENT = "a_call_is_answered", "a call with valid inputs returns a result"


def break_answered(reason: str, inputs: Inputs) -> Broken:
    """Return the law :data:`ANSWERED` as broken, for a revision that raises, hangs or crashes on a scenario."""
    return Broken(ANSWERED, ANSWERED_STATEMENT, "raises", reason, {"": inputs})


@dataclass(frozen=True)
class BoundaryDiff:
    """The result of comparing one boundary at two revisions.

    :ivar state: one of these texts; empty until the boundary has been compared:

        * ``same code``: it reaches no changed code;
        * ``same numbers``: no number differs, and all changed lines that it reaches ran;
        * ``not examined``: no number differs, but some changed lines did not run at any boundary, or none ran at this
          boundary, or no number was finite;
        * ``differs``, ``new``, ``gone`` or ``not compared``.
    :ivar failed: the side that cannot be called although the other side can; empty if there is none.
    :ivar places: side -> ``dotted.path (file:line)``.
    :ivar parameters: side -> the names of its parameters; empty if both sides have the same.
    :ivar changed: the changed definitions that it reaches.
    :ivar unreached: the changed lines of these definitions that no scenario ran.
    :ivar answered: the number of calls from which both revisions returned, including the variants of laws and the
        scenarios tried while shrinking.
    :ivar undecided: part of the result -> in how many of these calls some of its numbers were NaN or infinite at both
        revisions.
    :ivar blind: the parts of the result that may hide a difference: in every scenario that ran changed lines, some of
        their numbers were NaN or infinite at both revisions.
    :ivar share: a text about the changed lines that only the scenarios of other boundaries ran; empty if the boundary's
        own scenarios ran all of them, or if some line did not run at any boundary.
    :ivar bugs: side -> the known bugs that only this side has.
    :ivar lookup: a text about a registry key that refers to the boundary at the base and to another function at the
        head; empty if there is none.
    :ivar lost: why its removal counts as worse; empty if it was not removed, or was removed together with all its
        callers.
    """

    name: str
    contract: str
    state: str
    reason: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    renamed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unreached: tuple[Unexamined, ...] = ()
    failed: str = ""
    answered: int = 0
    undecided: Mapping[str, int] = field(default_factory=dict)
    blind: tuple[str, ...] = ()
    share: str = ""
    scenarios: int = 0
    rounding: float = 0.0
    differences: tuple[Difference, ...] = ()
    broken: Mapping[str, tuple[Broken, ...]] = field(default_factory=dict)
    bugs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lookup: str = ""
    lost: str = ""

    @property
    def judgement(self) -> str:
        """Return ``worse`` if a law, a known bug or a removal makes the head worse, else ``better`` if the base is
        worse.

        Otherwise return ``other`` if observed values differ, ``beside`` if only values outside the contract differ, and
        an empty string if nothing differs.
        """
        worse, better = (bool(self.broken.get(side) or self.bugs.get(side)) for side in (AFTER, BEFORE))
        worse = worse or bool(self.lost)
        if worse or better:
            return "worse" if worse else "better"
        beside = {each.symptom for each in self.differences} == {BESIDE}
        return ("beside" if beside else "other") if self.state == "differs" else ""

    @property
    def redefines(self) -> bool:
        """Return True if the change contradicts the contract's definition and nothing else is worse."""
        broken = self.broken.get(AFTER, ())
        return bool(broken) and not self.bugs.get(AFTER) and all(each.defined for each in broken)
