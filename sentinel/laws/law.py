"""Define a law: a statement that every boundary of a contract must satisfy, checked on inputs and observed values.

A law needs only inputs and observations, so it can be checked on the variants of a recipe and on those of a search. For
a search it also has :attr:`Law.vary`, which takes one scenario and makes the variants that the law compares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Inputs


@dataclass(frozen=True)
class Case:
    """The inputs and observed values that a law is checked on.

    :ivar inputs: variant -> canonical input -> literal.
    :ivar observation: variant -> key -> value, from the real boundary.
    :ivar oracle: variant -> key -> value of the contract's float64 reference; None if the law does not need it.
    :ivar contract: the boundary's contract, whose symbolic shapes define rows and tokens; None for a published recipe.
    :ivar effects: variant -> the side effects of the call, if the law needs them (:attr:`Law.watches`): ``mutated``
        (names of changed inputs), ``globals`` (changed global state), ``again`` (the observation of a repeated call).
    :ivar coarsest: a float dtype. The rounding bound is at least that of this dtype, even if no input or output has it.
        A search sets it when it repeats a single-precision violation in double precision, because the boundary may
        still compute in single precision.
    """

    inputs: Mapping[str, Inputs]
    observation: Mapping[str, Mapping[str, Any]]
    oracle: Mapping[str, Mapping[str, Any]] | None = None
    contract: Contract | None = None
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    coarsest: str = ""

    def without(self, keys: Collection[str]) -> Case:
        """Return a copy of the case without these observed keys."""
        observation = {
            variant: {key: value for key, value in values.items() if key not in keys}
            for variant, values in self.observation.items()
        }
        return replace(self, observation=observation)


@dataclass(frozen=True)
class Violation:
    """One observed value that breaks a law.

    :ivar demanded: the correct value; None if it is unknown, because the law compares two outputs of which either may
        be wrong.
    :ivar symptom: ``value`` (a wrong number), ``non-finite`` (a NaN or infinity where a number belongs), or a word that
        the law defines. Violations of one law with different symptoms are reported separately.
    :ivar apart: the difference per element between two outputs, if the law compares outputs; None otherwise.
    """

    key: str
    observed: Any
    demanded: Any
    detail: str
    symptom: str = "value"
    apart: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Law:
    """A law, with the function that checks it.

    :ivar name: an identifier, such as ``masked_values_have_no_influence``.
    :ivar statement: the law as a sentence.
    :ivar check: returns the violations; empty if the law holds.
    :ivar needs_oracle: True if the check needs :attr:`Case.oracle`.
    :ivar oracle_optional: True if the law also applies without an oracle, but then checks less.
    :ivar vary: ``vary(contract, inputs, choose) -> {variant: inputs}``: returns the variants to compare. The first is
        the scenario itself, named :data:`BASELINE`. None if the law needs only one call, whose variant is named ``""``.
    :ivar watches: True if the check needs the side effects of the call (:attr:`Case.effects`).
    :ivar twin: for a law about two implementations, the name of the variant that calls the second one.
    :ivar by_algorithm: True if some algorithms break the law by definition. It is not checked on registered functions.
    :raises DoesNotApply: ``check`` and ``vary`` raise it if the law does not apply to the scenario.
    """

    name: str
    statement: str
    check: Callable[[Case], list[Violation]]
    needs_oracle: bool = False
    vary: Callable[[Contract, Inputs, Choose], dict[str, Inputs]] | None = None
    watches: bool = False
    oracle_optional: bool = False
    twin: str = ""
    by_algorithm: bool = False

    def __call__(self, case: Case) -> list[Violation]:
        return self.check(case)

    @property
    def rank(self) -> int:
        """Return 1 if the oracle gives the right value for every violation of this law; 2 otherwise."""
        return 1 if self.needs_oracle and not self.oracle_optional else 2

    def violations(self, case: Case) -> list[Violation]:
        """Check the law on a case, and return the violations.

        :raises DoesNotApply: if the law does not apply, or if the observations do not have the contract's keys and
            shapes.
        """
        try:
            return self.check(case)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise DoesNotApply(f"the observation lacks keys or shapes of its contract ({error!r:.200})") from error


def law(statement: str, **flags: Any) -> Callable[[Callable[[Case], Iterable[Violation]]], Law]:
    """Return a decorator that makes a law from a function that yields violations. The law has the function's name."""

    def record(function: Callable[[Case], Iterable[Violation]]) -> Law:
        @wraps(function)
        def check(case: Case) -> list[Violation]:
            return list(function(case))

        return Law(function.__name__, statement, check, **flags)

    return record
