"""Oracles, compared with hand-computed numbers and with properties that hold for any distribution."""

import math
from typing import Any

import pytest


def close(value: Any) -> Any:
    return [pytest.approx(row, rel=1e-6, abs=1e-7) for row in value]


#: Two tokens, with twice and half of the reference's probability.
TWICE_AND_HALF = {"log_probs": [[math.log(0.5), math.log(0.25)]], "ref_log_probs": [[math.log(0.25), math.log(0.5)]]}
LN2 = math.log(2)


@pytest.mark.parametrize(
    ("estimator", "kl", "gradient"),
    [
        ("k1", [LN2, -LN2], [1, 1]),
        ("abs", [LN2, LN2], [1, -1]),
        ("k2", [LN2**2 / 2, LN2**2 / 2], [LN2, -LN2]),
        # r = 1/2 and r = 2: (r - 1) - log r, and its slope 1 - r.
        ("k3", [LN2 - 0.5, 1 - LN2], [0.5, -1]),
        ("low_var_kl", [LN2 - 0.5, 1 - LN2], [0.5, -1]),
        ("k3+", [LN2 - 0.5, 1 - LN2], [LN2, -LN2]),
    ],
)
def test_kl_estimates_equal_hand_computed_ones(estimator, kl, gradient, oracle):
    seen = oracle("kl_estimate", **TWICE_AND_HALF, kl_estimator=estimator)
    assert seen == {"kl": close([kl]), "per_token_gradient": close([gradient])}


@pytest.mark.parametrize(
    ("estimator", "kl", "gradient"), [("k3", [LN2 - 0.5, 0.25], [0.5, 0]), ("k1", [0.25, -0.25], [0, 0])]
)
def test_a_clamped_estimate_has_no_gradient_beyond_the_bounds(estimator, kl, gradient, oracle):
    seen = oracle("kl_estimate", **TWICE_AND_HALF, kl_estimator=estimator, clamp=0.25)
    assert seen == {"kl": close([kl]), "per_token_gradient": close([gradient])}


def test_masked_estimates_are_zero(oracle):
    log_probs = [[math.log(0.5), math.nan]]
    inputs = {**TWICE_AND_HALF, "log_probs": log_probs, "kl_estimator": "k1", "response_mask": [[1.0, 0.0]]}
    seen = oracle("kl_estimate", **inputs)
    assert seen == {"kl": close([[LN2, 0]]), "per_token_gradient": close([[1, 0]])}


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator, oracle):
    """The mean of k1 and the mean of k3 under the policy are the KL."""
    policy, other = (0.7, 0.2, 0.1), (0.25, 0.25, 0.5)
    seen = oracle(
        "kl_estimate",
        log_probs=[[math.log(p) for p in policy]],
        ref_log_probs=[[math.log(q) for q in other]],
        kl_estimator=estimator,
    )
    mean = sum(p * k for p, k in zip(policy, seen["kl"][0]))
    assert mean == pytest.approx(sum(p * math.log(p / q) for p, q in zip(policy, other)), rel=1e-6)


THREE_STEPS = {
    "token_level_rewards": [[0.0, 0.0, 1.0]],
    "values": [[0.5, 0.25, 0.75]],
    "response_mask": [[1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize(
    ("gamma", "lam", "advantages"),
    [
        # The TD errors are -0.375, 0.125 and 0.25; each step ahead counts a quarter.
        (0.5, 0.5, [-0.328125, 0.1875, 0.25]),
        # lambda 0: the TD errors. lambda 1: the discounted future rewards (0.25, 0.5, 1) minus the value.
        (0.5, 0.0, [-0.375, 0.125, 0.25]),
        (0.5, 1.0, [-0.25, 0.25, 0.25]),
        (1.0, 1.0, [0.5, 0.75, 0.25]),
    ],
)
def test_advantages_equal_hand_computed_ones(gamma, lam, advantages, oracle):
    seen = oracle("generalised_advantage", **THREE_STEPS, gamma=gamma, lam=lam)
    returns = [advantage + value for advantage, value in zip(advantages, [0.5, 0.25, 0.75])]
    assert seen == {"advantages": close([advantages]), "returns": close([returns])}


def test_masked_tokens_are_not_steps(oracle):
    seen = oracle(
        "generalised_advantage",
        token_level_rewards=[[math.nan, 0.0, 9.0, 0.0, 1.0, 9.0], [9.0] * 6],
        values=[[9.0, 0.5, math.inf, 0.25, 0.75, 9.0], [9.0] * 6],
        response_mask=[[0.0, 1.0, 0.0, 1.0, 1.0, 0.0], [0.0] * 6],
        gamma=0.5,
        lam=0.5,
    )
    assert seen["advantages"] == close([[0, -0.328125, 0, 0.1875, 0.25, 0], [0] * 6])
    assert seen["returns"] == close([[0, 0.171875, 0, 0.4375, 1, 0], [0] * 6])


def test_advantages_are_whitened(oracle):
    seen = oracle(
        "generalised_advantage",
        token_level_rewards=[[3.0, 9.0], [1.0, 9.0]],
        values=[[0.0, 9.0], [0.0, 9.0]],
        response_mask=[[1.0, 0.0], [1.0, 0.0]],
        gamma=0.5,
        lam=0.5,
        whiten=True,
    )
    # 3 and 1: mean 2, variance 2 with n - 1. The returns are not whitened.
    assert seen["advantages"] == close([[math.sqrt(0.5), 0], [-math.sqrt(0.5), 0]])
    assert seen["returns"] == close([[3, 0], [1, 0]])
