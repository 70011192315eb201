from typing import Any

import pytest
import torch
from contract_kit import measured


@pytest.mark.parametrize(
    ("side", "room", "kept"), [("left", 2, [8, 9]), ("right", 2, [6, 7]), ("left", 4, [6, 7, 8, 9]), ("right", 9, None)]
)
def test_truncation_removes_tokens_at_one_side(side, room, kept):
    tokens = [6, 7, 8, 9]
    seen = measured("truncation", token_ids=tokens, loss_mask=[0, 0, 1, 1], max_length=room, side=side)
    kept = kept or tokens
    assert seen == {"token_ids": kept, "loss_mask": [int(token > 7) for token in kept]}


def test_a_truncation_that_ignores_the_side_is_detected():
    def right_alone(token_ids: list[int], max_length: int, **_: Any) -> dict[str, Any]:
        return {"token_ids": token_ids[:max_length]}

    given: dict[str, Any] = {"token_ids": [6, 7, 8, 9], "max_length": 2}
    assert measured("truncation", right_alone, side="left", **given) != measured("truncation", side="left", **given)
    assert measured("truncation", right_alone, side="right", **given) == measured("truncation", side="right", **given)


@pytest.mark.parametrize(
    ("side", "longer", "length", "padded"),
    [
        ("right", "kept", 3, [[1, 2, 7]]),
        ("left", "kept", 3, [[7, 1, 2]]),
        ("right", "kept", 1, [[1, 2]]),
        ("right", "cut", 1, [[1]]),
        ("left", "cut", 1, [[2]]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_padding_adds_columns(side, longer, length, padded, dtype):
    values = torch.tensor([[1, 2]], dtype=dtype)
    seen = measured("column_padding", values=values, length=length, pad_value=7, side=side, longer=longer)
    assert seen == {"padded": padded, "dtype": str(dtype).removeprefix("torch."), "dtype_kept": True}


def test_padding_that_changes_the_dtype_is_detected():
    def wide(values: Any, **_: Any) -> dict[str, Any]:
        return {"padded": torch.nn.functional.pad(values.long(), (0, 1))}

    seen = measured("column_padding", wide, values=torch.tensor([[True, False]]), length=3, pad_value=0)
    assert (seen["dtype"], seen["dtype_kept"]) == ("int64", False)


SAMPLES = [{"text": "a", "ids": torch.tensor([1, 2])}, {"text": "b", "ids": torch.tensor([3])}]


def test_collation_keeps_samples_unchanged():
    assert measured("collation", samples=SAMPLES) == {"count": 2, "dropped": [], "altered": [], "intact": 4}


@pytest.mark.parametrize(
    ("twin", "seen"),
    [
        (lambda s: {"text": s["text"]}, {"dropped": ["ids"], "altered": [], "intact": 2}),
        (lambda s: {**s, "text": None}, {"dropped": [], "altered": ["text"], "intact": 2}),
        (lambda s: {**s, "ids": s["ids"].float()}, {"dropped": [], "altered": ["ids"], "intact": 2}),
        (lambda s: {**s, "ids": s["ids"][None]}, {"dropped": [], "altered": ["ids"], "intact": 2}),
    ],
)
def test_a_collation_that_loses_data_is_detected(twin, seen):
    found = measured("collation", lambda samples, **_: {"samples": list(map(twin, samples))}, samples=SAMPLES)
    assert found == {"count": 2, **seen}


def test_every_epoch_has_its_own_order():
    seen = measured("epoch_order", size=8, epochs=3, seed=0)
    assert seen["distinct_orders"] == 3
    assert [sorted(order) for order in seen["orders"]] == [list(range(8))] * 3
    # torch.utils.data.DistributedSampler: randperm from seed + epoch
    generator = torch.Generator().manual_seed(2)
    assert seen["orders"][2] == torch.randperm(8, generator=generator).tolist()


def test_a_repeated_order_is_detected():
    seen = measured(
        "epoch_order", lambda size, epochs, **_: {"drawn": [*range(size)] * epochs}, size=4, epochs=3, seed=0
    )
    assert seen["distinct_orders"] == 1
