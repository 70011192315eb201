"""Define the law ``the_oracle_agrees``: outputs and gradients equal the oracle's."""

from __future__ import annotations

from sentinel.contracts.contract import Contract, DoesNotApply
from sentinel.laws.agreement import disagreements
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import address
from sentinel.values.closeness import mismatch
from sentinel.values.literals import Tensor


@law("the framework equals the contract's float64 reference", needs_oracle=True)
def the_oracle_agrees(case: Case) -> list[Violation]:
    """Check that outputs and gradients at valid positions equal the oracle's values within the rounding bound.

    The oracle computes in float64 from the values that the framework received, with the dialects that the adapter
    declares. If the oracle's value overflows the framework's dtype, an infinity is accepted. Catches any wrong formula:
    a wrong sign (verl #179), a missing normaliser (verl #5417), a dual clip of positive advantages (slime's).
    """
    if case.contract is None:
        return _all_keys(case)
    return [*_misshapen(case, case.contract), *disagreements(case, ("output", "gradient", "decision"))]


def _misshapen(case: Case, contract: Contract) -> list[Violation]:
    """Return a violation for each output whose number of dimensions differs from the contract's."""
    violations = []
    for variant, observation in case.observation.items():
        for item in contract.observes:
            value = observation.get(item.key)
            declared = item.role in ("output", "gradient", "decision") and bool(item.shape)
            if declared and isinstance(value, Tensor) and len(value.shape) != len(item.shape):
                detail = f"expected [{', '.join(item.shape)}], observed the shape {list(value.shape)}"
                violations.append(Violation(address(variant, item.key), value, None, detail, "shape"))
    return violations


def _all_keys(case: Case) -> list[Violation]:
    """Compare every key of a case without a contract, within the tolerance of its dtype."""
    if not any((case.oracle or {}).values()):
        raise DoesNotApply("the contract has no oracle")
    assert case.oracle is not None
    violations: list[Violation] = []
    for variant, reference in case.oracle.items():
        for key, demanded in reference.items():
            observed = case.observation[variant].get(key)
            value = demanded.nested() if isinstance(demanded, Tensor) else demanded
            if detail := mismatch(observed, value):
                violations.append(Violation(address(variant, key), observed, demanded, detail))
    return violations
