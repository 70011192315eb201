"""Nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case, Law, Violation
from sentinel.laws.layout import address
from sentinel.values.literals import typed


def nothing_else_is_touched(case: Case) -> list[Violation]:
    """After ``y = f(x)``: x is as it was, global state is as it was, and ``f(x) == y`` again, to the last bit, from
    the same seeds.

    Catches rewards that are added to an input in place (slime #2114), a dictionary that is rewritten for its caller
    (slime #1371, SkyRL #1189), and a metric that reseeds the process-wide generator (verl #7260).
    """
    violations, applies = [], False
    for variant, effects in case.effects.items():
        mutated, changed, again = effects.get("mutated"), effects.get("globals"), effects.get("again")
        applies = applies or bool(effects)
        if mutated:
            detail = f"the call changes its arguments: {', '.join(mutated)}"
            violations.append(Violation(address(variant, "mutated"), list(mutated), [], detail, "mutated"))
        if changed:
            detail = f"the call leaves global state changed: {', '.join(changed)}"
            violations.append(Violation(address(variant, "globals"), list(changed), [], detail, "global-state"))
        if again is not None:
            violations += _repeated(variant, case.observation[variant], again)
    if not applies:
        raise DoesNotApply("nobody watched what the call did besides answering")
    return violations


def _repeated(variant: str, observed: Mapping[str, Any], again: Mapping[str, Any]) -> Iterator[Violation]:
    for key, value in observed.items():
        if value != again.get(key) and typed(value) != typed(again.get(key)):  # typed: NaN is NaN
            detail = "a second call with the same inputs answers otherwise"
            yield Violation(address(variant, key), again.get(key), None, detail, "not-repeatable")


NOTHING_ELSE_IS_TOUCHED = Law(
    "nothing_else_is_touched",
    "inputs and global state stay as they are, and a second call gives the same answer",
    nothing_else_is_touched,
    watches=True,
)
