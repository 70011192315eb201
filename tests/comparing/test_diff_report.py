"""What a difference is called: one sentence that says what has changed, in numbers."""

import pytest

from sentinel.comparing.comparing import Difference
from sentinel.comparing.report import of_difference
from sentinel.values.literals import tensor

TWO = tensor([1.0, 2.0], "float32")


@pytest.mark.parametrize(
    ("symptom", "before", "after", "said"),
    [
        ("dtype", tensor([1.0], "bfloat16"), tensor([1.0], "float32"), "has the same numbers in float32, and had them"),
        ("answer", None, TWO, "is [1.0, 2.0]; it was null"),
        ("masked", TWO, tensor([1.0, 0.0], "float32"), "is now 0 where it was not, only where the mask is 0"),
        ("value", TWO, tensor([2.0, 4.0], "float32"), "is 2 times what it was"),
        ("shape", TWO, tensor([1.0], "float32"), ": the shape: [2] before, [1] after"),
    ],
)
def test_a_difference_is_said_with_what_was_and_what_is(symptom, before, after, said):
    details = {"loss": "the shape: [2] before, [1] after" if symptom == "shape" else "element [0]"}
    difference = Difference(symptom, {}, {"before": {"loss": before}, "after": {"loss": after}}, details)
    assert of_difference(difference).startswith(f"loss{'' if said[0] == ':' else ' '}{said}")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("returned has", "`agg_loss` returns 5 values; it returned 4"),
        ("tiny.losses.f(0a1b2c3d): returned has", "`f` returns 5 values; it returned 4"),
        ("returned.1 has", "returned.1 has 5 values; it had 4"),
        ("tiny.losses.f(0a1b2c3d): returned.0", "`f` returned.0 is 1.25 times what it was"),
        ("save 2: given.step", "what a stand-in is given, step, is 1.25 times what it was"),
    ],
)
def test_a_part_besides_the_contract_is_named_by_its_function(key, said):
    answers = {"before": {key: 4}, "after": {key: 5}}
    assert of_difference(Difference("beside", {}, answers, {key: ""}), "agg_loss") == said
