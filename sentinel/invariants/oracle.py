"""The oracle agrees."""

from __future__ import annotations

from sentinel.closeness import agree
from sentinel.invariants.invariant import Case, DoesNotApply, Invariant, Violation
from sentinel.values import Tensor


def the_oracle_agrees(case: Case) -> list[Violation]:
    """``output == oracle(inputs)``, the oracle in float64, within the tolerance of the output's own dtype.

    Catches a wrong formula, whatever the reason.
    """
    if not any((case.oracle or {}).values()):
        raise DoesNotApply("the contract has no oracle")
    assert case.oracle is not None
    violations: list[Violation] = []
    for variant, reference in case.oracle.items():
        for key, demanded in reference.items():
            observed = case.observation[variant].get(key)
            value = demanded.nested() if isinstance(demanded, Tensor) else demanded
            found = agree(observed, value)
            if not found.agrees:
                violations.append(Violation(f"{variant}.{key}" if variant else key, observed, demanded, found.detail))
    return violations


THE_ORACLE_AGREES = Invariant(
    "the_oracle_agrees",
    "the framework equals the contract's float64 reference",
    the_oracle_agrees,
    needs_oracle=True,
)
