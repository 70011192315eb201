from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from contract_kit import measured

from sentinel.contracts.surgery import taken
from sentinel.laws.fields_survive_surgery import fields_survive_surgery
from sentinel.laws.law import Case

FIELDS: dict[str, Any] = {
    "number": torch.tensor([10, 11, 12]),
    "weights": torch.tensor([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]),
    "label": ["a", "b", "c"],
    "prompt": [[1, 2], [3], [4, 5]],
    "pixels": [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5])],
}
KEPT = {"dropped": [], "dtype_changed": [], "shape_changed": []}


def _rows(surgery: str, count: int, **more: Any) -> tuple[list[int], list[int]]:
    seen = measured("row_surgery", surgery=surgery, count=count, fields=FIELDS, meta={"split": ["train"]}, **more)
    assert seen == {
        **KEPT,
        "rows": seen["rows"],
        "sizes": seen["sizes"],
        "intact": 5 * len(seen["rows"]),
        "meta_kept": True,
    }
    return seen["rows"], seen["sizes"]


@pytest.mark.parametrize(
    ("surgery", "count", "rows", "sizes"),
    [
        ("cut", 3, [0, 1, 2], [1, 1, 1]),
        ("cut", 2, [0, 1, 2], [2, 1]),
        ("split", 2, [0, 1, 2], [2, 1]),
        ("join", 2, [0, 1, 2], [3]),
        ("reorder", 2, [2, 0, 1], [3]),
        ("fill", 2, [0, 1, 2, 0], [4]),
        ("fill", 8, [0, 1, 2, 0, 1, 2, 0, 1], [8]),
        ("fill", 3, [0, 1, 2], [3]),
        ("shorten", 2, [0], [1]),
        ("repeat", 2, [0, 0, 1, 1, 2, 2], [6]),
        ("tile", 2, [0, 1, 2, 0, 1, 2], [6]),
        ("repeat_each", 2, [0, 2, 2], [3]),
    ],
)
def test_row_surgery_equals_hand_made_results(surgery, count, rows, sizes):
    assert _rows(surgery, count, order=[2, 0, 1], sizes=[1, 0, 2]) == (rows, sizes)


def _broken(twin: Callable[[dict[str, Any]], Mapping[str, Any]], meta: Sequence[Any] = ({},)) -> dict[str, Any]:
    def call(fields: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"parts": [twin(dict(fields))], "metas": list(meta)}

    return measured("row_surgery", call, surgery="join", fields=FIELDS, meta={})


@pytest.mark.parametrize(
    ("twin", "seen"),
    [
        (lambda f: {**f, "label": ["b", "a", "c"]}, {"intact": 13}),
        (lambda f: {**f, "weights": f["weights"].flip(0)}, {"intact": 13}),
        (lambda f: {**f, "prompt": [tuple(p) for p in f["prompt"]]}, {"intact": 12}),
        (lambda f: {**f, "pixels": [p[:1] for p in f["pixels"]]}, {"intact": 13}),
        (lambda f: {n: c for n, c in f.items() if n != "label"}, {"intact": 12, "dropped": ["label"]}),
        (lambda f: {**f, "weights": f["weights"].double()}, {"dtype_changed": ["weights"]}),
        (lambda f: {**f, "weights": f["weights"][:, :1]}, {"intact": 12, "shape_changed": ["weights"]}),
        (lambda f: {n: c[1:] for n, c in f.items()}, {"rows": [1, 2], "sizes": [2], "intact": 10}),
    ],
)
def test_a_surgery_that_loses_data_is_detected(twin, seen):
    whole = {**KEPT, "rows": [0, 1, 2], "sizes": [3], "intact": 15, "meta_kept": True}
    found = _broken(twin)
    assert found == {**whole, **seen}
    assert bool(fields_survive_surgery(Case({"": {}}, {"": found}))) == bool(seen.keys() & KEPT.keys())


def test_lost_metadata_is_detected():
    assert not _broken(lambda fields: fields, meta=[{"split": ["test"]}])["meta_kept"]


BATCH = {"number": torch.tensor([10, 11, 12, 13]), "label": ["a", "b", "c", "d"]}


def _epochs(*orders: Sequence[int], shuffle: bool = True) -> dict[str, Any]:
    """Return the observation of these orders, in minibatches of two."""

    def call(**_: Any) -> dict[str, Any]:
        rows = [row for order in orders for row in order]
        cuts = [rows[start : start + 2] for start in range(0, len(rows), 2)]
        return {"parts": [taken(BATCH, cut) for cut in cuts]}

    return measured("minibatch_iteration", call, fields=BATCH, minibatch_size=2, epochs=2, shuffle=shuffle)


ONCE = {**KEPT, "times": [[1] * 4] * 2, "sizes": [2] * 4, "in_order": True, "intact": 16}


def test_each_epoch_has_every_row_once():
    given = {"fields": BATCH, "minibatch_size": 2, "epochs": 2}
    assert measured("minibatch_iteration", **given) == measured("minibatch_iteration", **given, shuffle=True) == ONCE
    assert _epochs([3, 1, 0, 2], [0, 1, 3, 2]) == ONCE


@pytest.mark.parametrize(
    ("orders", "shuffle", "seen"),
    [
        (([3, 1, 0, 2], [0, 1, 2, 3]), False, {"in_order": False}),
        (([0, 0, 1, 2], [0, 1, 2, 3]), True, {"times": [[2, 1, 1, 0], [1] * 4]}),
        (([0, 1, 2, 3],), True, {"times": [[0] * 4] * 2, "sizes": [2, 2], "intact": 8}),
    ],
)
def test_an_iteration_that_loses_rows_or_order_is_detected(orders, shuffle, seen):
    assert _epochs(*orders, shuffle=shuffle) == {**ONCE, **seen}
