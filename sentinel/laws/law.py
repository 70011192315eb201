"""What a law is: a statement that every boundary of a contract must obey, checked over observations.

A law is decided from inputs and observations alone, so it can judge a recipe's variants as well as a search's. What a
search needs beside that is :attr:`Law.vary`: how to make, from one scenario, the variants that the law compares.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Inputs


@dataclass(frozen=True)
class Case:
    """What a law looks at.

    :ivar inputs: variant -> canonical input -> literal.
    :ivar observation: variant -> key -> value, from the real boundary.
    :ivar oracle: the same from the contract's float64 reference, where the law asked for it.
    :ivar contract: the contract, whose symbolic shapes say what a row and a token is.
    :ivar effects: variant -> what the call did besides answering, where the law asked for it
        (:attr:`Law.watches`): ``mutated`` (names of inputs), ``globals`` (what global state changed), ``again``
        (the observation of a second call with the same inputs).
    :ivar coarsest: a float dtype that rounding is measured by even where no number is of it: the scenario's own, when a
        finding in single precision is looked at again in double. A boundary may compute in single precision itself.
    """

    inputs: Mapping[str, Inputs]
    observation: Mapping[str, Mapping[str, Any]]
    oracle: Mapping[str, Mapping[str, Any]] | None = None
    contract: Contract | None = None
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    coarsest: str = ""

    def without(self, keys: Collection[str]) -> Case:
        """Return a copy whose observations lack some keys."""
        observation = {
            variant: {key: value for key, value in values.items() if key not in keys}
            for variant, values in self.observation.items()
        }
        return replace(self, observation=observation)


@dataclass(frozen=True)
class Violation:
    """One place where a law does not hold: the address, what was observed and what the law demands.

    :ivar demanded: None where the law knows no right value: that two outputs disagree does not tell which is wrong.
    :ivar symptom: ``value`` (a wrong number), ``non-finite`` (a NaN or infinity where a number belongs), or another
        word of the law's own; findings are told apart by it.
    """

    key: str
    observed: Any
    demanded: Any
    detail: str
    symptom: str = "value"


@dataclass(frozen=True)
class Law:
    """:ivar name: the law as an identifier: ``masked_values_have_no_influence``.
    :ivar statement: the law as a sentence.
    :ivar check: returns the violations, none where the law holds.
    :ivar needs_oracle: whether :attr:`Case.oracle` must be there.
    :ivar oracle_optional: whether the law says something, if less, where the contract has no oracle.
    :ivar vary: ``vary(contract, inputs, choose) -> {variant: inputs}``: the variants to compare, the first of them the
        scenario itself, named :data:`BASELINE`. None where the law looks at a single call (the variant ``""``).
    :ivar watches: whether :attr:`Case.effects` must be there.
    :ivar twin: for a law about two boundaries: the variant whose call goes to the binding's twin.
    :ivar by_algorithm: whether it holds of some algorithms of a family alone, by their definition.
    :raises DoesNotApply: from ``check`` and from ``vary``.
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
        """Of a finding: 1 where an oracle says what is right, 2 where the law alone is broken."""
        return 1 if self.needs_oracle and not self.oracle_optional else 2

    def violations(self, case: Case) -> list[Violation]:
        """Check observations, which may not have the contract's form.

        :raises DoesNotApply: where they do not have it, too.
        """
        try:
            return self.check(case)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise DoesNotApply(f"what was observed has not the form of this contract's ({error!r:.200})") from error


def law(statement: str, **flags: Any) -> Callable[[Callable[[Case], Iterable[Violation]]], Law]:
    """Make a law of a function that yields its violations, under the function's own name."""

    def record(function: Callable[[Case], Iterable[Violation]]) -> Law:
        @wraps(function)
        def check(case: Case) -> list[Violation]:
            return list(function(case))

        return Law(function.__name__, statement, check, **flags)

    return record
