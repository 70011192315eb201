"""Asking again: what is sent the second time, how its answer is made out, and what counts as the same."""

from __future__ import annotations

import pytest

from sentinel.repetition import SEED, Repetition, same
from sentinel.values import Tensor
from sentinel.worker import probe

REQUEST = {"boundary": "a.b", "variants": {"one": {"x": 1}, "two": {"x": 2}, "three": {"x": 3}}}


def test_nobody_could_know_the_names() -> None:
    first, second = Repetition(REQUEST), Repetition(REQUEST)
    assert not set(first.request["variants"]) & (set(REQUEST["variants"]) | set(second.request["variants"]))
    assert first.request["boundary"] == "a.b"
    assert first.request["seed"] == SEED != probe.SEED


def test_every_order_comes() -> None:
    orders = {tuple(each["x"] for each in Repetition(REQUEST).request["variants"].values()) for _ in range(200)}
    assert len(orders) == 6


def test_an_answer_is_made_out() -> None:
    repetition = Repetition(REQUEST)
    told = {name: {"loss": inputs["x"] * 10} for name, inputs in repetition.request["variants"].items()}
    assert list(repetition.made_out(told).items()) == [
        ("one", {"loss": 10}), ("two", {"loss": 20}), ("three", {"loss": 30}),
    ]  # fmt: skip
    told.popitem()
    with pytest.raises(KeyError):
        repetition.made_out(told)


def test_what_is_the_same() -> None:
    nan = float("nan")
    assert same({"": {"loss": nan}}, {"": {"loss": nan}})
    assert not same({"": {"loss": 0.0}}, {"": {"loss": -0.0}})
    assert not same({"": {"loss": 1.0}}, {"": {"loss": 1.0 + 2**-52}})
    one, other = (Tensor("float32", (1,), bytes([0, 0, 128, last])) for last in (63, 64))
    assert same({"": {"loss": one}}, {"": {"loss": one}})
    assert not same({"": {"loss": one}}, {"": {"loss": other}})
