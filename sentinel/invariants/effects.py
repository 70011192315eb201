"""Nothing else is touched."""

from __future__ import annotations

from sentinel.invariants.invariant import Case, DoesNotApply, Invariant, Violation
from sentinel.invariants.layout import address
from sentinel.values import typed


def nothing_else_is_touched(case: Case) -> list[Violation]:
    """After ``y = f(x)``: x is as it was, global state is as it was, and ``f(x) == y`` again, to the last bit, from
    the same seeds.

    Catches rewards that are added to an input in place (slime #2114), a dictionary that is rewritten for its caller
    (slime #1371, SkyRL #1189), and a metric that reseeds the process-wide generator (verl #7260).
    """
    violations, looked = [], False
    for variant, effects in case.effects.items():
        mutated, changed, again = effects.get("mutated"), effects.get("globals"), effects.get("again")
        looked = looked or mutated is not None or changed is not None or again is not None
        if mutated:
            said = f"the call changes its arguments: {', '.join(mutated)}"
            violations.append(Violation(address(variant, "mutated"), list(mutated), [], said, "mutated"))
        if changed:
            said = f"the call leaves global state changed: {', '.join(changed)}"
            violations.append(Violation(address(variant, "globals"), list(changed), [], said, "global-state"))
        for key, value in case.observation[variant].items() if again is not None else ():
            if value != again.get(key) and typed(value) != typed(again.get(key)):
                said = "a second call with the same inputs answers otherwise"
                violations.append(Violation(address(variant, key), again.get(key), value, said, "not-repeatable"))
    if not looked:
        raise DoesNotApply("nobody watched what the call did besides answering")
    return violations


NOTHING_ELSE_IS_TOUCHED = Invariant(
    "nothing_else_is_touched",
    "inputs and global state stay as they are, and a second call gives the same answer",
    nothing_else_is_touched,
    watches=True,
)
