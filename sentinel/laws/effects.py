"""Define the law ``nothing_else_is_touched``: a call changes nothing but its outputs, and can be repeated."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import address
from sentinel.values.literals import typed


@law("inputs and global state stay as they are, and a second call gives the same answer", watches=True)
def nothing_else_is_touched(case: Case) -> Iterator[Violation]:
    """Check that a call changes neither its inputs nor global state, and that a second call returns the same values.

    The second call starts from the same seeds and must be equal bit by bit. Catches rewards that are added to an
    input in place (slime #2114), a dictionary that is changed for its caller (slime #1371, SkyRL #1189), and a
    metric that reseeds the process-wide generator (verl #7260).
    """
    if not any(case.effects.values()):
        raise DoesNotApply("the side effects of the call were not recorded")
    for variant, effects in case.effects.items():
        mutated, changed, again = effects.get("mutated"), effects.get("globals"), effects.get("again")
        if mutated:
            detail = f"the call changes its arguments: {', '.join(mutated)}"
            yield Violation(address(variant, "mutated"), list(mutated), [], detail, "mutated")
        if changed:
            detail = f"the call leaves global state changed: {', '.join(changed)}"
            yield Violation(address(variant, "globals"), list(changed), [], detail, "global-state")
        if again is None:
            continue
        for key, value in case.observation[variant].items():
            # NaN is not equal to itself, so the values are compared as `typed` data, too, in which NaN is a string.
            if value != again.get(key) and typed(value) != typed(again.get(key)):
                detail = "a second call with the same inputs returns another value"
                yield Violation(address(variant, key), again.get(key), None, detail, "not-repeatable")
