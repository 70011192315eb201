import math
import random
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from contract_kit import measured, scenario
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import Choose, DoesNotApply
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.drawing import Draws
from sentinel.search.scenarios import draw, narrow
from sentinel.targets import Binding, Dialect
from sentinel.values.literals import Tensor, tensor

Rows = list[list[float]]
Inputs = Mapping[str, Any]

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def drawn(name: str, choose: Choose, fixed: Inputs, **dialects: Any) -> dict[str, Any]:
    """Return a scenario that a search draws."""
    contract = bundled_catalog().contracts[name]
    stated = tuple(Dialect(key, value) for key, value in dialects.items())
    binding = Binding("none", name, fixed=fixed, dialects=stated)
    return draw(narrow(contract, binding), binding, choose)


def listed(inputs: Inputs) -> dict[str, Any]:
    return {key: value.nested() if isinstance(value, Tensor) else value for key, value in inputs.items()}


def near(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [near(row) for row in value]
    return pytest.approx(value, rel=1e-8, abs=1e-9)


def valid(rows: Rows, mask: Rows) -> list[float]:
    return [x for row, counts in zip(rows, mask) for x, count in zip(row, counts) if count]


def white(rows: Rows, mask: Rows) -> Rows:
    """Whiten numbers in plain Python."""
    tokens = valid(rows, mask)
    spread = stdev(tokens) if len(tokens) > 1 else 0.0
    scale = math.sqrt(spread**2 + 1e-8)
    return [
        [(x - fmean(tokens)) / scale if count else 0.0 for x, count in zip(row, counts)]
        for row, counts in zip(rows, mask)
    ]


#: The scenario of verl #6452: row 0 is rejected, and its reward must not matter.
SIX_ROWS: dict[str, Any] = {
    "token_level_rewards": [[0, 0, 10.0], [0, 0, 1.0], [0, 0, 0], [0, 0, 2.0], [0, 0, 1.0], [0, 3.0, 0]],
    "response_mask": [[0.0, 0, 0], [1.0, 1, 1], [1.0, 1, 0], [1.0, 1, 1], [1.0, 1, 1], [1.0, 1, 0]],
    "group": ["p", "p", "p", "p", "q", "q"],
}
HALF = 1 / math.sqrt(2)
WHITE = math.sqrt(1.2)  # variance 10 / 12
BY_HAND: list[tuple[str, dict[str, Any], list[float]]] = [
    ("grpo", {"epsilon": 0.0}, [0, -1, 1, -HALF, HALF]),
    ("grpo", {"epsilon": 0.0, "std": "biased"}, [0, -math.sqrt(1.5), math.sqrt(1.5), -1, 1]),
    ("grpo", {"epsilon": 1.0}, [0, -0.5, 0.5, -1 / (1 + math.sqrt(2)), 1 / (1 + math.sqrt(2))]),
    ("grpo", {"epsilon": 1.0, "epsilon_placement": "inside"}, [0, -HALF, HALF, -1 / math.sqrt(3), 1 / math.sqrt(3)]),
    ("grpo", {"norm_by_std": False}, [0, -1, 1, -1, 1]),
    ("grpo", {"norm_by_std": False, "rejected": "counted"}, [-2.25, -3.25, -1.25, -1, 1]),
    ("grpo", {"norm_by_std": False, "rejected": "counted", "masked_rewards": "counted"}, [-2.25, -3.25, -1.25, -1, 1]),
    ("passk", {}, [0, 0, 1, 0, 2]),
    ("passk", {"norm_by_std": True, "epsilon": 0.0}, [0, 0, 1, 0, math.sqrt(2)]),
    ("reinforce_plus_plus_baseline", {}, [0, -WHITE, WHITE, -WHITE, WHITE]),
    ("reinforce_plus_plus_baseline", {"whiten": False}, [0, -1, 1, -1, 1]),
    # Five responses are 0 or ±1, four of them not 0, so the variance is 4 / 4 for any lengths.
    ("gdpo", {"norm_by_std": False}, [0, -1, 1, -1, 1]),
    ("rloo", {}, [0, -1.5, 1.5, -2, 2]),
    ("gpg", {}, [0, -1, 1, -1, 1]),
    ("gpg", {"zero_gradient": "zero_scores"}, [0, -1.25, 1.25, -1.25, 1.25]),
    # Lengths 3, 2 and 3 weigh 1, 0 and 2 to 9 / 8; lengths 3 and 2 weigh 1 and 3 to 9 / 5.
    ("opo", {}, [1 - 9 / 8, -9 / 8, 2 - 9 / 8, 1 - 9 / 5, 3 - 9 / 5]),
    ("maxrl", {"epsilon": 0.0}, [0, -1, 1, -0.5, 0.5]),
]


@pytest.mark.parametrize(("estimator", "more", "first"), BY_HAND)
def test_group_advantages_equal_hand_computed_ones(estimator, more, first, oracle):
    inputs = {**SIX_ROWS, **more}
    if more.get("rejected") == "counted" and "masked_rewards" not in more:
        # Without its reward, the rejected row has the score 0, as in the table's column R = 0.
        first = [0.25, -0.75, 1.25, -1, 1]
    seen = oracle("group_advantage", scenario("group_advantage", **inputs, estimator=estimator))
    rows = [[0.0] * 3] + [
        [a if count else 0.0 for count in mask] for a, mask in zip(first, SIX_ROWS["response_mask"][1:])
    ]
    assert seen["advantages"] == near(rows)
    assert seen["returns"] == near(rows)


def test_remax_equals_hand_computed_advantages(oracle):
    inputs = scenario(
        "group_advantage",
        token_level_rewards=[[1.0, 0, 2.0], [9.0, 5.0, 9.0]],
        response_mask=[[1.0, 1, 1], [0.0, 1, 0]],
        group=["p", "q"],
        reward_baselines=[0.5, 2.0],
        estimator="remax",
    )
    seen = oracle("group_advantage", inputs)
    assert seen == {"advantages": near([[2.5, 1.5, 1.5], [0, 3, 0]]), "returns": near([[3, 2, 2], [0, 5, 0]])}


#: Tokens of probability 1/2, with one alternative (squared gradient norm 1/2) or with many (1/4).
TOKEN_BASELINE: dict[str, Any] = {
    "estimator": "optimal_token_baseline",
    "token_level_rewards": [[0, 0, 3.0], [math.nan, 1.0, 1.0], [2.0, 9.0, 9.0], [0, 4.0, 0]],
    "response_mask": [[1.0, 1, 1], [0.0, 1, 1], [0.0, 0, 0], [1.0, 1, 0]],
    "group": ["p", "p", "p", "q"],
    "old_log_probs": [[math.log(0.5)] * 3, [math.nan, math.log(0.5), math.log(0.5)], [0.0] * 3, [-1.0] * 3],
    "sum_squared_probs": [[0.5, 0.25, 0.5], [math.inf, 0.25, 0.25], [1.0] * 3, [0.5] * 3],
    "epsilon": 0.0,
}


def test_token_baselines_equal_hand_computed_ones(oracle):
    """With weights 1/2, 3/4, 5/4 and 1/4, 1/2, the baselines are (3/2 + 2/4) / (3/4) and (9/4 + 1/2) / (5/4)."""
    seen = oracle("group_advantage", scenario("group_advantage", **TOKEN_BASELINE, group_of_one="score"))
    first, second = 2 / 0.75, 2.75 / 1.25
    assert seen["advantages"] == near([[3 - first, 3 - second, 3.0], [0, 2 - first, 1 - second], [0.0] * 3, [4, 4, 0]])
    assert seen["returns"] == near([[3, 3, 3], [0, 2, 1], [0.0] * 3, [4, 4, 0]])
    zero = oracle("group_advantage", scenario("group_advantage", **TOKEN_BASELINE))
    assert zero["advantages"] == near([[3 - first, 3 - second, 0.0], [0, 2 - first, 1 - second], [0.0] * 3, [0.0] * 3])


def test_a_token_baseline_without_probabilities_has_no_oracle(oracle):
    blind = {**TOKEN_BASELINE, "sum_squared_probs": None}
    with pytest.raises(DoesNotApply, match="probabilities"):
        oracle("group_advantage", scenario("group_advantage", **blind))


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "gpg", "passk", "maxrl", "gdpo"])
def test_a_group_of_one_has_advantage_zero_or_its_score(estimator, oracle):
    alone = {"token_level_rewards": [[5.0]], "response_mask": [[1.0]], "group": ["p"], "whiten": False}
    zero = scenario("group_advantage", **alone, estimator=estimator)
    assert oracle("group_advantage", zero)["advantages"] == [[0.0]]
    score = {**zero, "group_of_one": "score", "epsilon": 1.0}
    expected = 2.5 if estimator in ("grpo", "gdpo") else 5.0  # a standard deviation of 1 and the epsilon
    assert oracle("group_advantage", score)["advantages"] == [[expected]]


def test_an_unknown_estimator_has_no_oracle(oracle):
    for estimator in (None, "foo"):
        with pytest.raises(DoesNotApply):
            oracle("group_advantage", scenario("group_advantage", **SIX_ROWS, estimator=estimator))


THREE_STEPS: dict[str, Any] = {
    "token_level_rewards": [[1.0, 9.0, 2.0, 4.0], [0, 0, 0, 8.0]],
    "response_mask": [[1.0, 0, 1, 1], [1.0, 1, 1, 1]],
}


@pytest.mark.parametrize(
    ("more", "returns"),
    [
        ({}, [[7, 0, 6, 4], [8, 8, 8, 8]]),
        ({"gamma": 0.5}, [[3, 0, 4, 4], [1, 2, 4, 8]]),
        ({"gamma": 0.0}, [[1, 0, 2, 4], [0, 0, 0, 8]]),
        ({"gamma": 0.5, "masked_steps": "counted"}, [[6.5, 0, 4, 4], [1, 2, 4, 8]]),
        ({"gamma": 0.5, "masked_steps": "end"}, [[1, 0, 4, 4], [1, 2, 4, 8]]),
        ({"gamma": 0.5, "credit": "response"}, [[7, 0, 7, 7], [8, 8, 8, 8]]),
        ({"gamma": 0.5, "credit": "segment"}, [[4, 0, 6, 6], [8, 8, 8, 8]]),
        ({"kl": None, "kl_coef": 0.5}, [[7, 0, 6, 4], [8, 8, 8, 8]]),
        ({"kl": [[2.0, 9, 4, 0], [0.0, 0, 0, 2]], "kl_coef": 0.5}, [[4, 0, 4, 4], [7, 7, 7, 7]]),
        ({"kl": [[2.0, 9, 4, 0], [0.0, 0, 0, 2]], "kl_coef": 0.5, "credit": "response"}, [[6, 0, 5, 7], [8, 8, 8, 7]]),
    ],
)
def test_returns_equal_hand_computed_ones(more, returns, oracle):
    seen = oracle("discounted_return", scenario("discounted_return", **THREE_STEPS, **more))
    assert seen == {"returns": near(returns), "advantages": near(returns)}


def test_returns_are_whitened_over_the_batch(oracle):
    seen = oracle("discounted_return", scenario("discounted_return", **THREE_STEPS, whiten=True))
    assert seen["returns"] == near([[7, 0, 6, 4], [8, 8, 8, 8]])
    assert seen["advantages"] == near(white(seen["returns"], THREE_STEPS["response_mask"]))
    tokens = valid(seen["advantages"], THREE_STEPS["response_mask"])
    assert (fmean(tokens), stdev(tokens)) == (pytest.approx(0, abs=1e-9), pytest.approx(1))


def test_masked_steps_can_be_counted(oracle):
    """With the masked step, the TD errors are 0.5, -1 and 1. The discount per step is a quarter."""
    inputs = scenario(
        "generalised_advantage",
        token_level_rewards=[[0.0, 0.0, 1.0]],
        values=[[0.5, 2.0, 2.0]],
        response_mask=[[1.0, 0.0, 1.0]],
        gamma=0.5,
        lam=0.5,
        masked_steps="counted",
    )
    assert oracle("generalised_advantage", inputs)["advantages"] == near([[0.5 - 1 / 4 - 1 / 16, 0, -1.0]])


FIVE = {"rewards": [1.0, 0.0, 2.0, 1.0, 3.0], "group": ["p", "p", "p", "q", "q"], "epsilon": 0.0}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"std_level": None}, [0, -1, 1, -1, 1]),
        ({}, [0, -1, 1, -HALF, HALF]),
        ({"std": "biased"}, [0, -math.sqrt(1.5), math.sqrt(1.5), -1, 1]),
        ({"std_level": None, "leave_one_out": True}, [0, -1.5, 1.5, -2, 2]),
        ({"mean_level": "batch", "std_level": None}, [-0.4, -1.4, 0.6, -0.4, 1.6]),
        ({"mean_level": "batch", "std_level": None, "leave_one_out": True}, [-0.5, -1.75, 0.75, -0.5, 2.0]),
        ({"mean_level": None, "std_level": None}, [1, 0, 2, 1, 3]),
        ({"mean_level": None}, [1, 0, 2, HALF, 3 * HALF]),
        ({"std_level": None, "clip": 0.25}, [0, -0.25, 0.25, -0.25, 0.25]),
        # Four of five are one away from the mean of their group: variance 4 / 4.
        ({"std_level": "batch", "std_about": "subtracted"}, [0, -1, 1, -1, 1]),
        ({"std_level": "batch"}, [x / math.sqrt(1.3) for x in (0, -1, 1, -1, 1)]),
        ({"std_level": "batch", "epsilon": 1.0}, [x / (1 + math.sqrt(1.3)) for x in (0, -1, 1, -1, 1)]),
        (
            {"std_level": "batch", "epsilon": 1.0, "epsilon_placement": "inside"},
            [x / math.sqrt(2.3) for x in (0, -1, 1, -1, 1)],
        ),
    ],
)
def test_normalised_rewards_equal_hand_computed_ones(more, expected, oracle):
    seen = oracle("reward_normalisation", scenario("reward_normalisation", **{**FIVE, **more}))
    assert seen["normalised"] == near(expected)


@pytest.mark.parametrize(("group_of_one", "expected"), [("zero", 0.0), ("score", 2.0)])
@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("std", ["unbiased", "biased"])
def test_a_single_reward_is_normalised(group_of_one, expected, leave_one_out, std, oracle):
    more = {"group_of_one": group_of_one, "leave_one_out": leave_one_out, "epsilon": 1.0, "std": std}
    inputs = scenario("reward_normalisation", rewards=[4.0], group=["p"], **more)
    assert oracle("reward_normalisation", inputs)["normalised"] == [expected]


def test_advantages_are_normalised_over_valid_tokens(oracle):
    """One group has 1, 3 and 8, the other has 5. Invalid tokens are 0 and do not affect the mean."""
    inputs = scenario(
        "advantage_normalisation",
        advantages=[[1.0, 99.0, 3.0], [8.0, 99.0, 99.0], [99.0, 5.0, 99.0]],
        response_mask=[[1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        group=["p", "p", "q"],
        mean_level="group",
        std_level=None,
    )
    assert oracle("advantage_normalisation", inputs)["normalised"] == near([[-3, 0, -1], [4, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("layout", ["equal", "consecutive"])
@EXAMPLES
@given(data=st.data())
def test_rows_are_arranged_in_the_required_group_layout(layout, data):
    labels = drawn("reward_normalisation", Draws(data.draw), {"group_layout": layout})["group"]
    starts = [i for i, label in enumerate(labels) if i == 0 or labels[i - 1] != label]
    assert len(starts) == len(set(labels))
    if layout == "equal":
        assert len({labels.count(label) for label in labels}) == 1


def test_drawn_equal_groups_often_have_several_rows():
    layouts = [
        drawn("reward_normalisation", Choices(random.Random(seed).randbytes(4096)), {"group_layout": "equal"})["group"]
        for seed in range(100)
    ]
    assert sum(1 < len(set(labels)) < len(labels) for labels in layouts) >= 25


TWO_ROWS: dict[str, Any] = {
    "values": [[1.0, math.nan, 3.0, 8.0], [math.inf] * 4],
    "response_mask": [[1.0, 0, 1, 1], [0.0] * 4],
}
THIRTEEN = math.sqrt(13)  # 1, 3 and 8: mean 4, variance (9 + 1 + 16) / 2


@pytest.mark.parametrize(
    ("more", "key", "expected"),
    [
        ({"statistic": "sum"}, "statistic", 12.0),
        ({"statistic": "mean"}, "statistic", 4.0),
        ({"statistic": "mean", "count_epsilon": 1.0}, "statistic", 3.0),
        ({"statistic": "var"}, "statistic", 13.0),
        ({"statistic": "var", "response_mask": [[1.0, 0, 1, 0], [0.0] * 4]}, "statistic", 2.0),
        # A mean of 3 with one token more: (4 + 0 + 25) / 4, times 3 / 2.
        ({"statistic": "var", "count_epsilon": 1.0}, "statistic", 29 / 4 * 3 / 2),
        # The count is a float32 sum of a mask, which 1e-8 does not change.
        ({"statistic": "whiten", "count_epsilon": 1e-8, "values": [[3e4] * 4] * 2}, "whitened", [[0.0] * 4] * 2),
        ({"statistic": "var", "unbiased": False}, "statistic", 26 / 3),
        ({"statistic": "mean", "axis": "token"}, "row_statistic", [4.0, 0.0]),
        ({"statistic": "sum", "axis": "token"}, "row_statistic", [12.0, 0.0]),
        ({"statistic": "segment_mean"}, "whitened", [[1, 0, 5.5, 5.5], [0] * 4]),
        ({"statistic": "whiten"}, "whitened", [[-3 / THIRTEEN, 0, -1 / THIRTEEN, 4 / THIRTEEN], [0] * 4]),
        (
            {"statistic": "whiten", "shift_mean": False},
            "whitened",
            [[4 - 3 / THIRTEEN, 0, 4 - 1 / THIRTEEN, 4 + 4 / THIRTEEN], [0] * 4],
        ),
        ({"statistic": "whiten", "epsilon": 3.0}, "whitened", [[-0.75, 0, -0.25, 1], [0] * 4]),
        (
            {"statistic": "whiten", "epsilon": 16.0, "epsilon_placement": "floor"},
            "whitened",
            [[-0.75, 0, -0.25, 1], [0] * 4],
        ),
        (
            {"statistic": "whiten", "epsilon": 4 - THIRTEEN, "epsilon_placement": "outside"},
            "whitened",
            [[-0.75, 0, -0.25, 1], [0] * 4],
        ),
        ({"statistic": "whiten", "epsilon": 3.0, "axis": "token"}, "whitened", [[-0.75, 0, -0.25, 1], [0] * 4]),
    ],
)
def test_masked_statistics_equal_hand_computed_ones(more, key, expected, oracle):
    seen = oracle("masked_statistics", scenario("masked_statistics", **{**TWO_ROWS, **more}))
    assert seen.pop(key) == near(expected)
    assert set(seen.values()) == {None}


MEAN_OF_THE_BATCH = {"mean_level": "batch", "std_level": None}
#: The second row is full; all tokens of the third are rejected.
STEP: dict[str, Any] = {
    "attention_mask": [[1.0, 1, 1, 0], [1.0, 1, 1, 1], [1.0, 1, 0, 0], [1.0, 1, 1, 0]],
    "loss_mask": [[0.0, 1, 1, 0], [0.0, 0, 1, 1], [0.0] * 4, [0.0, 0, 1, 0]],
    "rewards": [1.0, 100.0, 50.0, 4.0],
    "group": ["p", "p", "q", "q"],
}


@pytest.mark.parametrize(
    ("more", "advantages"),
    [
        ({}, [[1, 1, 0, 0], [0, 100, 100, 0], [0] * 4, [0, 4, 0, 0]]),
        ({"mask_no_eos_with_zero": True}, [[1, 1, 0, 0], [0] * 4, [0] * 4, [0, 4, 0, 0]]),
        ({"discount": 0.5}, [[0.5, 1, 0, 0], [0, 50, 100, 0], [0] * 4, [0, 4, 0, 0]]),
        ({"gae_lambda": 0.5}, [[0.5, 1, 0, 0], [0, 50, 100, 0], [0] * 4, [0, 4, 0, 0]]),
        ({"reward_bias": 1.0, "reward_scaling": 2.0}, [[4, 4, 0, 0], [0, 202, 202, 0], [0] * 4, [0, 10, 0, 0]]),
        ({"reward_clip": 2.0}, [[1, 1, 0, 0], [0, 2, 2, 0], [0] * 4, [0, 2, 0, 0]]),
        ({"reward_norm": MEAN_OF_THE_BATCH}, [[-34, -34, 0, 0], [0, 65, 65, 0], [0] * 4, [0, -31, 0, 0]]),
        (
            {"reward_norm": MEAN_OF_THE_BATCH, "mask_no_eos_with_zero": True},
            [[-1.5, -1.5, 0, 0], [0] * 4, [0] * 4, [0, 1.5, 0, 0]],
        ),
        (
            {"reward_norm": MEAN_OF_THE_BATCH, "mask_no_eos_with_zero": True, "rejected": "counted"},
            [[-37.75, -37.75, 0, 0], [0] * 4, [0] * 4, [0, -34.75, 0, 0]],
        ),
        (
            {"reward_norm": {"mean_level": "group", "std_level": None}},
            [[-49.5, -49.5, 0, 0], [0, 49.5, 49.5, 0], [0] * 4, [0] * 4],
        ),
        # 1, 1, 100, 100 and 4: mean 41.2.
        ({"adv_norm": MEAN_OF_THE_BATCH}, [[-40.2, -40.2, 0, 0], [0, 58.8, 58.8, 0], [0] * 4, [0, -37.2, 0, 0]]),
    ],
)
def test_the_advantage_step_equals_hand_computed_values(more, advantages, oracle):
    seen = oracle("advantage_step", scenario("advantage_step", **STEP, **more))
    assert seen["advantages"] == near(advantages)
    assert seen["loss_mask"] == [[1, 1, 0, 0], [0, 1, 1, 0], [0] * 4, [0, 1, 0, 0]]


@EXAMPLES
@given(data=st.data())
def test_drawn_advantage_steps_are_valid(data, oracle):
    try:
        inputs = drawn("advantage_step", Draws(data.draw), {})
    except DoesNotApply:
        return
    plain = listed(inputs)
    for attention, generated in zip(plain["attention_mask"], plain["loss_mask"]):
        length = sum(attention)
        assert attention == [1] * length + [0] * (len(attention) - length)
        assert not generated[0]
        assert not any(generated[length:])
        assert generated[length - 1]
    seen = oracle("advantage_step", inputs)
    assert all(math.isfinite(x) for row in seen["advantages"] for x in row)


@pytest.mark.parametrize(
    ("contract", "fixed"),
    [
        *(("group_advantage", {"estimator": name}) for name in sorted({row[0] for row in BY_HAND})),
        ("group_advantage", {"estimator": "optimal_token_baseline", "epsilon": None, "norm_by_std": None}),
        *((name, {}) for name in ("discounted_return", "generalised_advantage", "advantage_normalisation")),
    ],
)
def test_the_oracle_computes_every_drawn_scenario(contract, fixed, oracle):
    for seed in range(4):
        inputs = drawn(contract, Choices(random.Random(seed).randbytes(4096)), fixed)
        rows = next(iter(oracle(contract, inputs).values()))
        assert all(math.isfinite(x) for row in rows for x in row)


def test_outcome_rewards_are_on_the_last_valid_token():
    """The smallest scenario has one token; a larger one shows the place of rewards for each mask style."""
    from sentinel.contracts.normalisation import REWARD_STYLES, place_rewards

    class Chosen:
        def __init__(self, style: str) -> None:
            self.style = style

        def one_of(self, choices: Sequence[Any]) -> Any:
            assert tuple(choices) == REWARD_STYLES
            return self.style

    mask = [[0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
    expected = {
        "outcome": [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]],
        "rejected": [[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]],
        "masked": [[1, 0, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]],
        "every": [[1] * 4] * 3,
    }
    assert set(expected) == set(REWARD_STYLES)
    for style, places in expected.items():
        inputs = {
            "token_level_rewards": tensor([[1.0] * 4] * 3, "bfloat16"),
            "response_mask": tensor(mask, "float32"),
            "reward_layout": "any",
        }
        place_rewards(inputs, Chosen(style))  # type: ignore[arg-type]
        assert inputs["token_level_rewards"] == tensor(places, "bfloat16")


def test_a_boundary_may_lack_returns_but_not_advantages():
    rows = {"token_level_rewards": torch.ones(1, 2), "response_mask": torch.ones(1, 2)}
    for name, more in (
        ("group_advantage", {"group": ["p"]}),
        ("generalised_advantage", {"values": torch.ones(1, 2), "gamma": 1.0, "lam": 1.0}),
        ("discounted_return", {}),
    ):
        seen = measured(name, lambda **_: {"advantages": torch.zeros(1, 2)}, **rows, **more)
        assert seen == {"advantages": [[0.0, 0.0]], "returns": None}
        with pytest.raises(KeyError):
            measured(name, lambda **_: {"advantage": torch.zeros(1, 2)}, **rows, **more)


@EXAMPLES
@given(st.data())
def test_drawn_groups_have_equal_sizes_when_required(data):
    inputs = drawn("group_advantage", Draws(data.draw), {"estimator": "grpo", "group_layout": "equal"})
    sizes = [len(list(rows)) for _, rows in groupby(inputs["group"])]
    assert len(set(sizes)) == 1
    assert len(sizes) == len(set(inputs["group"]))
    assert inputs["response_mask"].shape[0] == len(inputs["group"])


@pytest.mark.parametrize(
    ("choices", "scale"),
    [
        ({}, math.sqrt(1.0 + 1e-8)),  # of 1, 2 and 3: variance 2 / 2
        ({"std": "biased"}, math.sqrt(2 / 3 + 1e-8)),
        ({"epsilon": 0.5}, math.sqrt(1.5)),
        ({"epsilon": 0.5, "epsilon_placement": "outside"}, 1.5),
        ({"epsilon": 2.0, "epsilon_placement": "floor"}, math.sqrt(2.0)),
    ],
)
def test_whitening_supports_several_divisors(choices, scale, oracle):
    rows = {"token_level_rewards": [[1.0, 1.0, 1.0]], "response_mask": [[1.0, 1.0, 1.0]], "gamma": 1.0}
    for name, more in (("discounted_return", {}), ("generalised_advantage", {"values": [[0.0] * 3], "lam": 1.0})):
        seen = oracle(name, scenario(name, **rows, **more, whiten=True, **choices))
        assert seen["advantages"] == near([[1 / scale, 0.0, -1 / scale]])


def test_a_reported_estimate_has_no_gradient():
    inputs = {"log_probs": torch.tensor([[-1.0]]), "ref_log_probs": torch.tensor([[-2.0]]), "kl_estimator": "k1"}
    assert measured("kl_estimate", **inputs) == {"kl": [[1.0]], "per_token_gradient": [[1.0]]}
    assert measured("kl_estimate", **inputs, reported=True) == {"kl": [[1.0]], "per_token_gradient": [[0.0]]}


def test_teachers_reduce_advantages_by_their_weighted_kl(oracle):
    """The KL estimates are 0.5 and -1 for the first teacher, and 0.25 and 0.5 for the second one."""
    inputs = scenario(
        "distilled_advantage",
        token_level_rewards=[[0.0, 1.0], [0.0, 2.0]],
        log_probs=[[-1.0, -2.0], [-1.0, -2.0]],
        teacher_log_probs=[[-1.5, -1.0], [-1.5, -1.0]],
        second_teacher_log_probs=[[-1.25, -2.5], [-1.25, -2.5]],
        response_mask=[[1.0, 1.0], [1.0, 1.0]],
        teacher=["p", "q"],
        second_coefficient=2.0,
    )
    assert oracle("distilled_advantage", inputs)["advantages"] == near([[0.0, 1.0], [1.0, 2.0]])
    own = oracle("distilled_advantage", {**inputs, "routed": True})
    assert own["advantages"] == near([[0.5, 2.0], [1.5, 1.0]])
    assert own["returns"] == near([[1.0, 1.0], [2.0, 2.0]])
    clipped = oracle("distilled_advantage", {**inputs, "routed": True, "pure": True, "advantage_clip": 0.75})
    assert clipped["advantages"] == near([[-0.5, 0.75], [-0.5, -0.75]])
