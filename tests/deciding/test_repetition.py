"""The repetition of a question: the changed request, the restored answer, and equality."""

import numpy as np
import pytest

from sentinel.deciding.repetition import SEED, Repetition, same
from sentinel.values.literals import Tensor
from sentinel.worker import probe

REQUEST = {"boundary": "a.b", "variants": {"one": {"x": 1}, "two": {"x": 2}, "three": {"x": 3}}}


def test_variant_names_are_random():
    first, second = Repetition(REQUEST), Repetition(REQUEST)
    assert not set(first.request["variants"]) & (set(REQUEST["variants"]) | set(second.request["variants"]))
    assert first.request["boundary"] == "a.b"
    assert first.request["seed"] == SEED != probe.SEED


def test_every_order_of_variants_occurs():
    orders = {tuple(each["x"] for each in Repetition(REQUEST).request["variants"].values()) for _ in range(200)}
    assert len(orders) == 6


def test_the_original_variant_names_are_restored():
    repetition = Repetition(REQUEST)
    told = {name: {"loss": inputs["x"] * 10} for name, inputs in repetition.request["variants"].items()}
    assert list(repetition.restore_names(told).items()) == [
        ("one", {"loss": 10}), ("two", {"loss": 20}), ("three", {"loss": 30}),
    ]  # fmt: skip
    told.popitem()
    with pytest.raises(KeyError):
        repetition.restore_names(told)


def test_observations_are_compared_bit_by_bit():
    nan = float("nan")
    assert same({"": {"loss": nan}}, {"": {"loss": nan}})
    assert not same({"": {"loss": 0.0}}, {"": {"loss": -0.0}})
    assert not same({"": {"loss": 1.0}}, {"": {"loss": 1.0 + 2**-52}})
    one, other = (Tensor("float32", (1,), bytes([0, 0, 128, last])) for last in (63, 64))
    assert same({"": {"loss": one}}, {"": {"loss": one}})
    assert not same({"": {"loss": one}}, {"": {"loss": other}})


ROWS = {
    "boundary": "demo_rl.losses.agg_loss",
    "variants": {
        "": {
            "loss_mat": Tensor("float32", (3, 1), np.array([[1], [2], [3]], dtype="<f4").tobytes()),
            "response_mask": Tensor("bool", (3, 1), bytes([1, 1, 1])),
        }
    },
}


@pytest.mark.parametrize("honest", [True, False])
def test_rows_are_sent_in_a_random_order(honest, catalog):
    """An answer that was memorised for the scenario is wrong for permuted rows."""
    repetition = Repetition(ROWS, catalog.contracts["loss_aggregation"])
    seen = [inputs["loss_mat"].array().ravel().tolist() for inputs in repetition.request["variants"].values()]
    assert sorted(map(sorted, seen)) == [[1, 2, 3]] * 2
    assert [1, 2, 3] in seen
    assert seen[0] != seen[1]

    def per_token(order: list[float]) -> Tensor:
        """Return a tenth of each number as its gradient; if memorised, in the order of the scenario."""
        values = order if honest else [1, 2, 3]
        return Tensor("float32", (3, 1), (np.array(values, dtype="<f4") / 10).tobytes())

    answers = {
        name: {"loss": 2.0, "per_token_gradient": per_token(inputs["loss_mat"].array().ravel().tolist())}
        for name, inputs in repetition.request["variants"].items()
    }
    assert repetition.rows_are_a_set(answers, repetition.restore_names(answers)) == honest


def test_a_contract_without_rows_is_not_permuted(catalog):
    assert not Repetition(REQUEST, catalog.contracts["call"]).reordered
