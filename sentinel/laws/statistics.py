"""Define the law ``normalisation_laws``: shifting or scaling scores does not change normalised values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import BASELINE, TOKENS, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Numbers, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import Flags, first_two, float_inputs, like, row_count, valid_tokens

#: Domains of the inputs that are normalised, such as rewards.
_DOMAINS = ("reward", "advantage", "value")


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make variants whose scores are shifted, in one group or in all rows, or scaled in all rows.

    Token rewards are shifted on the last valid token only, so that a response's sum is shifted once.
    """
    names = [name for shape in (TOKENS, ("batch",)) for name in float_inputs(contract, inputs, shape)]
    domains = {item.name: item.domain for item in contract.inputs}
    scores = [name for domain in _DOMAINS for name in names if domains.get(name) == domain]
    if not scores:
        raise DoesNotApply("the scenario has no scores to normalise")
    name = scores[0]
    value, rows = inputs[name].array().astype(np.float64), _rows(contract, inputs, choose)
    where = rows if value.ndim == 1 else _tokens(contract, inputs, name, rows)
    shifted = value + choose.one_of((1.0, -3.0, 10.0)) * where
    scaled = value * choose.one_of((2.0, 0.5, 8.0))
    return {
        BASELINE: inputs,
        "shifted": {**inputs, name: like(inputs[name], shifted)},
        "scaled": {**inputs, name: like(inputs[name], scaled)},
    }


@law(
    "shifting scores does not change a centred estimator, scaling does not change a scaled one",
    needs_oracle=True,
    vary=_vary,
)
def normalisation_laws(case: Case) -> Iterator[Violation]:
    """Check that shifting scores does not change centred advantages, and that scaling does not change normalised ones.

    For an estimator that subtracts a mean, ``f(r + c) == f(r)``. For an estimator that divides by a standard deviation,
    ``f(a r) == f(r)`` if a > 0. The oracle determines which of these equations applies, and whether the mean is over a
    group or the batch: if the oracle's value does not change, the framework's value must not change. If the oracle's
    value changes a little, for example because an epsilon is added to the deviation, the framework's value may change
    as much.

    Catches a mean and a deviation that are computed over different sets of tokens (SkyRL #1782), and rewards that count
    once in the baseline and twice in the score (slime #2302).
    """
    first, others = first_two(case)
    if not case.oracle:
        raise DoesNotApply("the contract has no oracle")
    applies = False
    for other in others:
        if not _same_tokens(case, first, other):
            continue
        try:
            yield from same(case, first, other, prefix="by definition the value stays, ", roles=("output",))
            applies = True
        except DoesNotApply:  # by definition the value changes, for example if scores are scaled but never normalised
            continue
    if not applies:
        raise DoesNotApply("no value can be compared: the definition lets each observed value change in this scenario")


def _same_tokens(case: Case, first: str, other: str) -> bool:
    rows = {row_count(case.contract, case.inputs[name]) for name in (first, other)}
    masks = [valid_tokens(case.contract, case.inputs[name]) for name in (first, other)]
    return len(rows) == 1 and np.array_equal(*masks)  # type: ignore[arg-type]


def _rows(contract: Contract, inputs: Inputs, choose: Choose) -> Flags:
    count = row_count(contract, inputs)
    labels = inputs.get(contract.group) if contract.group else None
    if not isinstance(labels, list):
        return np.ones(count, dtype=bool)
    chosen = choose.one_of([None, *dict.fromkeys(labels)])
    return np.array([chosen is None or label == chosen for label in labels])


def _tokens(contract: Contract, inputs: Inputs, name: str, rows: Flags) -> Numbers:
    """Return an array with 1 for the tokens to shift and 0 for all other tokens. Rewards are shifted at each row's last
    valid token only, other scores at all valid tokens."""
    valid = valid_tokens(contract, inputs)
    counts = np.ones(inputs[name].shape, dtype=bool) if valid is None else valid
    declared = contract.input(name)
    if declared is not None and declared.domain == "reward":
        after = np.cumsum(counts[:, ::-1], axis=-1)[:, ::-1]
        counts = counts & (after == 1)
    return (counts & rows[:, None]).astype(np.float64)
