"""Define a law: a statement that every boundary of a contract must satisfy, checked on inputs and observed values.

A law is decided from inputs and observations alone, so it applies to the variants of a recipe and of a search. A search
also needs :attr:`Law.vary`, which makes the variants that the law compares from one scenario.
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
    :ivar oracle: variant -> key -> value of the contract's float64 reference, if the law needs it.
    :ivar contract: its symbolic shapes define rows and tokens.
    :ivar effects: variant -> the side effects of the call, if the law needs them
        (:attr:`Law.watches`): ``mutated`` (names of inputs), ``globals`` (what global state changed), ``again``
        (the observation of a second call with the same inputs).
    :ivar coarsest: a float dtype that rounding is measured by even if no number has it: the scenario's own dtype, when
        a violation in single precision is checked again in double. A boundary may compute in single precision itself.
    """

    inputs: Mapping[str, Inputs]
    observation: Mapping[str, Mapping[str, Any]]
    oracle: Mapping[str, Mapping[str, Any]] | None = None
    contract: Contract | None = None
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    coarsest: str = ""

    def without(self, keys: Collection[str]) -> Case:
        """Return a copy without these keys in its observations."""
        observation = {
            variant: {key: value for key, value in values.items() if key not in keys}
            for variant, values in self.observation.items()
        }
        return replace(self, observation=observation)


@dataclass(frozen=True)
class Violation:
    """One observed value that breaks a law.

    :ivar demanded: the right value; None if the law does not define it (two outputs disagree, and either may be wrong).
    :ivar symptom: ``value`` (a wrong number), ``non-finite`` (a NaN or infinity where a number belongs), or a
        word of the law's own. Findings of one law with different symptoms are reported separately.
    :ivar apart: how far apart the two outputs are, per element, if the law compares outputs.
    """

    key: str
    observed: Any
    demanded: Any
    detail: str
    symptom: str = "value"
    apart: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Law:
    """:ivar name: the law as an identifier: ``masked_values_have_no_influence``.
    :ivar statement: the law as a sentence.
    :ivar check: returns the violations; empty if the law holds.
    :ivar needs_oracle: whether :attr:`Case.oracle` must be there.
    :ivar oracle_optional: whether the law also applies, to less, if the contract has no oracle.
    :ivar vary: ``vary(contract, inputs, choose) -> {variant: inputs}``: the variants to compare, the first of them the
        scenario itself, named :data:`BASELINE`. None if the law needs a single call (the variant ``""``).
    :ivar watches: whether :attr:`Case.effects` must be there.
    :ivar twin: for a law about two boundaries: the variant whose call goes to the binding's twin.
    :ivar by_algorithm: whether the definition of some algorithms of a family excludes it.
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
        """Return 1 if an oracle gives the right value for a violation of this law, else 2."""
        return 1 if self.needs_oracle and not self.oracle_optional else 2

    def violations(self, case: Case) -> list[Violation]:
        """Check the law on a case whose observations may not have the contract's keys and shapes.

        :raises DoesNotApply: also if they lack it.
        """
        try:
            return self.check(case)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise DoesNotApply(f"the observation does not have this contract's form ({error!r:.200})") from error


def law(statement: str, **flags: Any) -> Callable[[Callable[[Case], Iterable[Violation]]], Law]:
    """Return a decorator that turns a function that yields violations into a law with the function's name."""

    def record(function: Callable[[Case], Iterable[Violation]]) -> Law:
        @wraps(function)
        def check(case: Case) -> list[Violation]:
            return list(function(case))

        return Law(function.__name__, statement, check, **flags)

    return record
