"""Define the law ``order_does_not_matter``: permuting the rows permutes the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import Match, same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import axes, equal, first_two, permutation, pick_rows, row_count


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make a variant with its rows in another order.

    If the rows of each group are adjacent, they stay adjacent, because some boundaries require that: the groups are
    permuted, and the rows within each group.
    """
    count = row_count(contract, inputs)
    if count < 2:
        raise DoesNotApply("the scenario has only one row")
    labels = inputs.get(contract.group) if contract.group else None
    blocks = _blocks(labels) if isinstance(labels, list) else None
    if blocks is None or len(blocks) == count:
        order = choose.permutation(count)
    else:
        order = [blocks[b][row] for b in choose.permutation(len(blocks)) for row in choose.permutation(len(blocks[b]))]
    if order == sorted(order):
        order = order[::-1] if blocks is None or len(blocks) == count else [row for b in blocks[::-1] for row in b]
    if order == sorted(order):
        order = order[::-1]
    return {BASELINE: inputs, "permuted": pick_rows(contract, inputs, np.array(order, dtype=np.intp))}


@law("permuting rows permutes the output", vary=_vary)
def order_does_not_matter(case: Case) -> Iterator[Violation]:
    """Check that permuting the rows of a batch permutes the outputs in the same way and leaves scalars unchanged.

    Rows that are equal in all inputs must have equal outputs. Catches outputs that are returned in packing order (SkyRL
    #1882), and groups that are formed by position instead of label (verl #7150).
    """
    first, others = first_two(case)
    for other in others:
        one, two = case.inputs[first], case.inputs[other]
        for name, value in one.items():
            if not axes(case.contract, one, name) and not equal(value, two.get(name)):
                raise DoesNotApply(f"variants {first!r} and {other!r} differ in {name}, not only in row order")
        order = permutation(case.contract, one, two)
        yield from same(case, first, other, Match(rows=(order, np.arange(len(order)))), "with its rows reordered, ")


def _blocks(labels: list[Any]) -> list[list[int]] | None:
    """Return the rows of each group; None if the rows of some group are not adjacent."""
    rows: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return list(rows.values()) if all(block[-1] - block[0] == len(block) - 1 for block in rows.values()) else None
