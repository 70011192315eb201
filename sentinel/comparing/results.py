"""Define the result of comparing one boundary at two revisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.comparing.observations import AFTER, BEFORE, BESIDE
from sentinel.comparing.patch import Unexamined
from sentinel.contracts.contract import Inputs


@dataclass(frozen=True)
class Difference:
    """One way in which the two revisions differ, shown by the smallest scenario that was found.

    :ivar symptom: ``value``, ``non-finite``, ``masked`` (only where the mask is 0), ``shape``, ``dtype``, ``answer``,
        ``raises``, ``no longer raises``, or ``beside`` if everything that the contract observes is equal.
    :ivar details: key -> where the values differ and by how much.
    :ivar double: by side, the observation in float64 if the scenario has a coarser dtype.
    :ivar recipes: the known bugs whose scenario this is; empty for a drawn scenario.
    :ivar idle: the inputs that do not matter: changing such an input changes the result of neither side.
    :ivar decides: the options that decide whether the sides differ: with each other value that was tried, both sides
        return the same.
    :ivar unless: option -> the values for which both sides return the same. An option is included only if the sides
        differ for another value that was tried.
    :ivar programming_error: the name of the exception, if one side raises it because of a mistake in its own code; see
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
        """Return True if fresh processes showed the difference again."""
        raised = any(isinstance(answer, str) for answer in self.answers.values())
        return raised or self.symptom not in ("raises", "no longer raises")


@dataclass(frozen=True)
class Broken:
    """A law that one revision breaks and the other keeps, on the same variants.

    :ivar defined: whether only the contract's definition is violated. A change may do so intentionally.
    :ivar came: whether the scenario needs an option or choice that the other revision lacks.
    :ivar already: whether the other revision breaks the law on the same variants too, but by a smaller amount.
    :ivar choice: a change of the definition under which this revision keeps the law, as text; empty if none is known.
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


#: Name and statement of the law that is broken if a call returns at only one revision.
ANSWERED, ANSWERED_STATEMENT = "a_call_is_answered", "a call with valid inputs returns a result"


def break_answered(reason: str, inputs: Inputs) -> Broken:
    """Return the broken law of a revision that raises, hangs or crashes on a scenario."""
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
    :ivar places: by side: ``dotted.path (file:line)``.
    :ivar parameters: by side, the names of its parameters; empty if they are the same.
    :ivar changed: the changed definitions that it reaches.
    :ivar unreached: the lines of these definitions that changed and that no scenario ran.
    :ivar answered: the number of calls from which both revisions returned, including the variants of laws and the
        scenarios tried while shrinking.
    :ivar undecided: part of the result -> number of these calls in which one of its numbers was finite at neither
        revision.
    :ivar blind: the parts of the result that may hide a difference, because in every scenario that ran changed lines
        some of their numbers were finite at neither revision.
    :ivar share: a text about the changed lines that only the scenarios of other boundaries ran; empty if the boundary's
        own scenarios ran all of them, or if some line did not run at any boundary.
    :ivar bugs: by side: the known bugs that only this side has.
    :ivar lookup: a text about the registry key that led to the boundary at the base and leads elsewhere at the head;
        empty if there is none.
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
        """Return whether the change is ``worse`` or ``better``. A single worse symptom makes it worse.

        It is ``other`` if only numbers differ, ``beside`` if only values outside the contract differ, and empty if
        nothing differs.
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
