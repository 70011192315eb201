"""Define the law ``a_sequence_decision_is_one_decision``: a decision about a sequence is the same for all its
tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import address, like, valid_tokens
from sentinel.values.literals import Tensor


@law("a decision about a sequence is the same for all its valid tokens")
def a_sequence_decision_is_one_decision(case: Case) -> Iterator[Violation]:
    """Check that a mask that keeps or rejects whole sequences has one value on all valid tokens of each row.

    Catches a sequence-level statistic compared with a token-level sign (slime #1917).
    """
    applies = False
    for variant, observed in case.observation.items():
        valid = valid_tokens(case.contract, case.inputs[variant])
        for key in _decisions(case):
            decision = observed.get(key)
            if not isinstance(decision, Tensor) or valid is None or decision.shape != valid.shape:
                continue
            applies = True
            kept = decision.array().copy()
            split = []
            for row, counts in enumerate(valid):
                values = kept[row][counts]
                if values.size and (values != values[0]).any():
                    split.append(row)
                    kept[row][counts] = values.min()
            if split:
                detail = f"row {split[0]} is rejected for some of its valid tokens and kept for others"
                yield Violation(address(variant, key), decision, like(decision, kept), detail)
    if not applies:
        raise DoesNotApply("the observation has no decision mask")


def _decisions(case: Case) -> Iterable[str]:
    if case.contract is None:
        return ("opsm_mask",)
    return [item.key for item in case.contract.observes if item.role == "decision"]
