"""The kit of adapters: what it swaps it puts back, what it reads it reads whole."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sentinel.worker import kit
from sentinel.worker.drift import StandInMissingError


def test_a_swap_ends_with_its_block_even_where_that_fails() -> None:
    owner = SimpleNamespace(name="own")
    with pytest.raises(KeyError), kit.swapped(owner, "name", "other"):  # noqa: PT012
        assert owner.name == "other"
        raise KeyError
    assert owner.name == "own"


def test_what_is_not_there_is_not_swapped() -> None:
    owner = SimpleNamespace()
    with kit.swapped(owner, "name", "other"):
        assert not hasattr(owner, "name")


def test_a_stand_in_says_what_it_lacks() -> None:
    with pytest.raises(StandInMissingError, match="size"):
        kit.stand_in(rank=0).size  # noqa: B018


@pytest.mark.parametrize(("found", "score"), [(1.0, 1.0), ({"score": 0.5, "acc": True}, 0.5), ((0.0, "said"), 0.0)])
def test_the_score_is_read_of_a_number_a_record_and_a_tuple(found: object, score: float) -> None:
    assert kit.score_of(found) == score


def test_a_row_whose_label_is_not_its_own_is_dealt_to_nobody() -> None:
    import torch

    rows = kit.numbered_rows([2, 1, 3, 1])
    assert rows["attention_mask"].sum(-1).tolist() == [2, 1, 3, 1]
    held = {name: rows[name] for name in ("attention_mask", "row")}
    order = torch.tensor([2, 0, 3, 1])
    moved = {name: column[order] for name, column in held.items()}
    batch = SimpleNamespace(batch=moved, non_tensor_batch={"label": [2, 0, 3, 0]})
    assert kit.dealt(batch, 2) == {"parts": [[2, 0], [3]]}
