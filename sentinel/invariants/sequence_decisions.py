"""A sequence decision is one decision."""

from __future__ import annotations

from sentinel.invariants.invariant import Case, DoesNotApply, Invariant, Violation
from sentinel.values import Tensor, tensor


def a_sequence_decision_is_one_decision(case: Case) -> list[Violation]:
    """For every row *b*: the decision mask takes one value over the row's valid tokens.

    Catches a sequence-level statistic compared with a token-level sign (slime #1917).
    """
    violations: list[Violation] = []
    looked = False
    for variant, observed in case.observation.items():
        decision, valid = observed.get("opsm_mask"), case.inputs[variant].get("response_mask")
        if not isinstance(decision, Tensor) or not isinstance(valid, Tensor):
            continue
        looked = True
        kept, counts = decision.array().copy(), valid.array() != 0
        split = []
        for row in range(kept.shape[0]):
            values = kept[row][counts[row]]
            if values.size and (values != values[0]).any():
                split.append(row)
                kept[row][counts[row]] = values.min()
        if split:
            violations.append(
                Violation(
                    f"{variant}.opsm_mask" if variant else "opsm_mask",
                    decision,
                    tensor(kept.tolist(), decision.dtype),
                    f"row {split[0]} is rejected for some of its valid tokens and kept for others",
                )
            )
    if not looked:
        raise DoesNotApply("the observation has no decision mask")
    return violations


A_SEQUENCE_DECISION_IS_ONE_DECISION = Invariant(
    "a_sequence_decision_is_one_decision",
    "what is decided for a sequence is the same for each of its valid tokens",
    a_sequence_decision_is_one_decision,
)
