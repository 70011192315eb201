import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract_kit import scenario
from demo_kit import Decide, Lab

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import DoesNotApply
from sentinel.deciding.outcomes import Decision
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.scenarios import draw
from sentinel.targets import Binding
from sentinel.values.literals import Tensor

LN2 = math.log(2)


def near(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [near(row) for row in value]
    return pytest.approx(value, rel=1e-6, abs=1e-8)


#: Rows of 3, 1 and no valid tokens; the loss of a masked token is 1000.
THREE_ROWS: dict[str, Any] = {
    "loss_mat": [[1.0, 2.0, 3.0], [1000.0, 4.0, 1000.0], [1000.0] * 3],
    "response_mask": [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0] * 3],
}


@pytest.mark.parametrize(
    ("mode", "given", "loss"),
    [
        ("token-mean", {}, 10 / 4),
        ("token-sum", {}, 10.0),
        ("seq-mean-token-sum", {}, (6 + 4) / 2),
        ("seq-mean-token-mean", {}, (2 + 4) / 2),
        ("seq-mean-token-sum-norm", {}, (6 + 4) / 2 / 3),
        ("seq-mean-token-sum-norm", {"loss_scale_factor": 10}, (6 + 4) / 2 / 10),
        ("seq-mean-token-sum-norm", {"sequence_norm": "sum"}, (6 + 4) / 3),
        ("seq-mean-token-mean", {"empty_rows": "counted"}, (2 + 4) / 3),
        ("token-mean", {"batch_num_tokens": 8, "dp_size": 2}, 2 * 10 / 8),
        ("token-sum", {"dp_size": 2}, 20.0),
        ("seq-mean-token-mean", {"global_batch_size": 4, "dp_size": 2}, 2 * (2 + 4) / 4),
        ("token-mean", {"weights": [2.0, 0.5, 9.0]}, (2 * 6 + 0.5 * 4) / 4),
        ("seq-mean-token-mean", {"weights": [2.0, 0.5, 9.0]}, (2 * 2 + 0.5 * 4) / 2),
    ],
)
def test_aggregation_equals_hand_computed_losses(mode, given, loss, oracle):
    seen = oracle("loss_aggregation", **THREE_ROWS, loss_agg_mode=mode, **given)
    assert seen["loss"] == near(loss)
    assert seen["theta_gradient"] == near(loss)
    assert seen["masked_token_gradient_abs_sum"] == 0


def test_aggregation_gradients_are_token_weights(oracle):
    seen = oracle("loss_aggregation", **THREE_ROWS, loss_agg_mode="seq-mean-token-mean")
    assert seen["per_token_gradient"] == near([[1 / 6, 1 / 6, 1 / 6], [0, 1 / 2, 0], [0, 0, 0]])


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_an_empty_batch_has_loss_zero(mode, oracle):
    seen = oracle("loss_aggregation", loss_mat=[[math.nan]], response_mask=[[0.0]], loss_agg_mode=mode)
    assert (seen["loss"], seen["per_token_gradient"]) == (0, [[0]])


def test_an_unknown_aggregation_mode_has_no_oracle(oracle):
    with pytest.raises(DoesNotApply, match="token-median"):
        oracle("loss_aggregation", **THREE_ROWS, loss_agg_mode="token-median")


#: One token, whose probability is twice or half the old probability 1/4.
TWICE, HALF = math.log(0.5), math.log(0.125)
OLD = math.log(0.25)


@pytest.mark.parametrize(
    ("algorithm", "log_prob", "advantage", "given", "loss", "gradient"),
    [
        ("ppo", TWICE, 1.0, {}, -1.2, 0.0),  # clipped from above, so no gradient
        ("ppo", TWICE, -1.0, {}, 2.0, 2.0),  # moves back: never clipped
        ("ppo", HALF, 1.0, {}, -0.5, -0.5),
        ("ppo", HALF, -1.0, {}, 0.8, 0.0),
        ("ppo", TWICE, -1.0, {"dual_clip": 1.5}, 1.5, 0.0),
        ("ppo", TWICE, 1.0, {"dual_clip": 1.5}, -1.2, 0.0),
        ("ppo", TWICE, 1.0, {"eps_clip_high": 1.5}, -2.0, -2.0),
        ("ppo", TWICE, -1.0, {"log_ratio_clamp": 0.5}, math.exp(0.5), 0.0),
        ("ppo", TWICE, -2.0, {"importance_weights": [[0.5]]}, 2.0, 2.0),
        ("ppo", TWICE, -1.0, {"rollout_log_probs": [[HALF]]}, 4.0, 4.0),
        ("ppo", TWICE, -1.0, {"rollout_log_probs": [[HALF]], "importance_weight_cap": 1.5}, 3.0, 3.0),
        ("gspo", TWICE, 1.0, {}, -1.2, 0.0),
        ("cispo", TWICE, 1.0, {}, -1.2 * TWICE, -1.2),
        ("cispo", HALF, -1.0, {}, 0.8 * HALF, 0.8),
        ("cispo_unified", TWICE, 1.0, {}, 0.0, 0.0),
        ("cispo_unified", TWICE, -1.0, {}, 1.2 * TWICE, 1.2),
        ("cispo_unified", HALF, -1.0, {}, 0.0, 0.0),
        ("cispo_unified", HALF, 1.0, {}, -0.8 * HALF, -0.8),
        ("icepop", TWICE, 1.0, {}, 0.0, 0.0),
        ("icepop", TWICE, 1.0, {"eps_clip_high": 1.5}, -2 * TWICE, -2.0),
        ("icepop", HALF, -1.0, {}, 0.0, 0.0),
        ("icepop", HALF, -1.0, {"eps_clip_low": 0.6}, 0.5 * HALF, 0.5),
        ("importance_sampling", TWICE, 3.0, {}, -6.0, -6.0),
        ("reinforce", TWICE, 3.0, {}, -3 * TWICE, -3.0),
        ("gpg", TWICE, 3.0, {}, -3 * TWICE, -3.0),
        ("cross_entropy", TWICE, 3.0, {}, -TWICE, -1.0),
        # sigmoid(tau (2 - 1)) 4 / tau, and its slope in log p: 4 s (1 - s) r
        ("sapo", TWICE, 1.0, {}, -4 * 0.7310585786300049, -4 * 0.19661193324148185 * 2),
        ("sapo", TWICE, -1.0, {"tau_neg": 2.0}, 2 * 0.8807970779778823, 4 * 0.10499358540350662 * 2),
        ("gmpo", TWICE, 1.0, {}, -math.exp(0.2), 0.0),
        ("gmpo", TWICE, -1.0, {}, 2.0, 2.0),
        ("gmpo", TWICE, -1.0, {"importance_weights": [[0.5]]}, 1.0, 1.0),
        # |1/2 - 1/4| = 0.25 is between the thresholds 0.2 and 0.3
        ("dppo_tv", TWICE, 1.0, {}, 0.0, 0.0),
        ("dppo_tv", TWICE, 1.0, {"eps_clip_high": 0.3}, -2.0, -2.0),
        ("dppo_tv", TWICE, 1.0, {"eps_clip_high": 0.3, "ratio_cap": 1.5}, -1.5, -1.5),
        ("dppo_tv", TWICE, 1.0, {"eps_clip_high": 0.3, "surrogate": "log_prob"}, -2 * TWICE, -2.0),
        ("dppo_tv", TWICE, -1.0, {}, 2.0, 2.0),  # moving back is never clipped
        ("dppo_tv", HALF, 1.0, {}, -0.5, -0.5),
        ("dppo_tv", HALF, -1.0, {}, 0.5, 0.5),  # |1/8 - 1/4| = 0.125
        ("dppo_tv", HALF, -1.0, {"eps_clip_low": 0.1}, 0.0, 0.0),
        # 1/4 log(1/2) + 3/4 log((3/4) / (1/2)) = 0.13081
        ("dppo_kl", TWICE, 1.0, {"eps_clip_high": 0.13}, 0.0, 0.0),
        ("dppo_kl", TWICE, 1.0, {"eps_clip_high": 0.131}, -2.0, -2.0),
        ("dro", TWICE, 1.0, {"beta": 0.5}, -TWICE + 0.25 * LN2**2, -1 + 0.5 * LN2),
        ("kimi", TWICE, 1.0, {"beta": 0.5}, -TWICE + 0.25 * LN2**2, -1 + 0.5 * LN2),
        ("topr", TWICE, 1.0, {"positive_weight": 0.5}, -0.5 * TWICE, -0.5),
        ("topr", TWICE, -1.0, {}, TWICE, 1.0),  # tapered at 1
        ("topr", HALF, -1.0, {"negative_weight": 0.5}, 0.25 * HALF, 0.25),
        ("topr", HALF, -1.0, {"scores": [1.0]}, HALF, 1.0),
    ],
)
def test_losses_of_one_token_equal_hand_computed_ones(algorithm, log_prob, advantage, given, loss, gradient, oracle):
    """Three times the advantage gives three times the loss, unless the loss has a term without the advantage."""
    token = {"log_probs": [[log_prob]], "old_log_probs": [[OLD]], "response_mask": [[1.0]]}
    for times in (1, *([] if algorithm in ("cross_entropy", "dro", "kimi") else [3])):
        seen = oracle("policy_loss", algorithm=algorithm, **token, advantages=[[times * advantage]], **given)
        assert (seen["loss"], seen["per_token_gradient"]) == (near(times * loss), near([[times * gradient]]))
        assert seen["per_token_loss"] == near([[times * loss]])


#: Ratios 2 and 1/2, whose product is 1. The third token, with ratio 4, is invalid.
TWO_TOKENS: dict[str, Any] = {
    "log_probs": [[math.log(0.5), math.log(0.125), math.nan]],
    "old_log_probs": [[math.log(0.25), math.log(0.25), math.inf]],
    "response_mask": [[1.0, 1.0, 0.0]],
}


def test_gspo_clips_responses_and_ppo_tokens(oracle):
    inputs = {**TWO_TOKENS, "advantages": [[1.0, 1.0, math.nan]]}
    responses = oracle("policy_loss", algorithm="gspo", **inputs)
    assert (responses["loss"], responses["clip_fraction"]) == (near(-1.0), 0)
    assert responses["per_token_gradient"] == near([[-0.5, -0.5, 0]])
    tokens = oracle("policy_loss", algorithm="ppo", **inputs)
    assert (tokens["loss"], tokens["clip_fraction"]) == (near(-(1.2 + 0.5) / 2), 0.5)
    assert tokens["per_token_gradient"] == near([[0, -0.25, 0]])
    assert tokens["approx_kl"] == near(0.0)


def test_segment_ratios_average_over_runs_of_tokens(oracle):
    """The ratios are 2, 8, a masked token and 1/2, so the geometric means of the two runs are 4 and 1/2."""
    seen = oracle(
        "policy_loss",
        algorithm="importance_sampling",
        ratio_level="segment",
        log_probs=[[math.log(0.5), math.log(0.5), math.nan, math.log(0.25)]],
        old_log_probs=[[math.log(0.25), math.log(0.0625), 0.0, math.log(0.5)]],
        advantages=[[1.0] * 4],
        response_mask=[[1.0, 1.0, 0.0, 1.0]],
        loss_agg_mode="token-sum",
    )
    assert seen["per_token_loss"] == near([[-4, -4, 0, -0.5]])
    assert seen["per_token_gradient"] == near([[-4, -4, 0, -0.5]])


def test_metrics_count_valid_tokens(oracle):
    """The ratios are 2, 2, 1 and 1. The first is clipped (A > 0), the second is cut by the dual clip (A < 0)."""
    seen = oracle(
        "policy_loss",
        algorithm="ppo",
        dual_clip=1.5,
        log_probs=[[TWICE, TWICE, OLD, OLD, TWICE]],
        old_log_probs=[[OLD] * 5],
        advantages=[[1.0, -1.0, 1.0, -1.0, 1.0]],
        response_mask=[[1.0, 1.0, 1.0, 1.0, 0.0]],
    )
    assert (seen["clip_fraction"], seen["dual_clip_fraction"]) == (0.25, 0.25)
    assert seen["approx_kl"] == near(-2 * LN2 / 4)


@pytest.mark.parametrize(("given", "kl"), [({}, -0.5), ({"reported_log_ratio": "whole"}, -LN2)])
def test_the_reported_kl_is_clamped_like_the_ratio(given, kl, oracle):
    one = {"log_probs": [[TWICE]], "old_log_probs": [[OLD]], "advantages": [[1.0]], "response_mask": [[1.0]]}
    assert oracle("policy_loss", algorithm="ppo", log_ratio_clamp=0.5, **one, **given)["approx_kl"] == near(kl)


#: Ratios of 2; the covariances of log-probs and advantages are 2, -2, -1 and 1. The fifth token is invalid.
FOUR_TOKENS: dict[str, Any] = {
    "log_probs": [[-1.0, -1.0, -3.0, -3.0, math.nan]],
    "old_log_probs": [[-1.0 - LN2, -1.0 - LN2, -3.0 - LN2, -3.0 - LN2, math.inf]],
    "advantages": [[2.0, -2.0, 1.0, -1.0, 9.0]],
    "response_mask": [[1.0, 1.0, 1.0, 1.0, 0.0]],
    "loss_agg_mode": "token-sum",
}


def test_clip_cov_drops_unclipped_tokens_by_covariance(oracle):
    """PPO clips tokens 0 and 2, at -1.2 A. Of the other tokens, only token 3 has a covariance between the bounds."""
    bounds = {"cov_low": 0.5, "cov_high": 1.5}
    seen = oracle("policy_loss", algorithm="clip_cov", **FOUR_TOKENS, cov_share=1.0, **bounds)
    assert seen["per_token_loss"] == near([[-2.4, 4.0, -1.2, 0.0, 0.0]])
    assert seen["per_token_gradient"] == near([[0.0, 4.0, 0.0, 0.0, 0.0]])
    assert seen["clip_fraction"] == 0.25
    one = oracle("policy_loss", algorithm="clip_cov", **FOUR_TOKENS, cov_share=0.01, **bounds)
    assert one["loss"] == seen["loss"]  # at least one token


def test_kl_cov_penalises_the_tokens_with_the_largest_covariance(oracle):
    for share, penalised in ((0.01, [0.5, 0, 0, 0, 0]), (0.5, [0.5, 0, 0, 0.5, 0]), (1.0, [0.5, 0.5, 0.5, 0.5, 0])):
        seen = oracle("policy_loss", algorithm="kl_cov", **FOUR_TOKENS, cov_share=share, cov_kl_coef=0.5)
        assert seen["loss"] == near(LN2 * sum(penalised))
        plain = [-4.0, 4.0, -2.0, 2.0, 0.0]
        assert seen["per_token_gradient"] == near([[a + b for a, b in zip(plain, penalised)]])


@pytest.mark.parametrize(
    ("algorithm", "given", "why"),
    [
        ("clip_cov", {}, "only if cov_share is set"),
        ("kl_cov", {}, "only if cov_share is set"),
        ("clip_cov", {"cov_share": 0.25, "cov_low": -3.0}, "drops random tokens"),
        ("clip_cov", {"cov_share": 1.0, "cov_low": 1.0}, "so close to a bound"),
        ("kl_cov", {"cov_share": 0.5, "advantages": [[1.0] * 5]}, "so close to a bound"),
    ],
)
def test_random_or_rounding_dependent_results_have_no_oracle(algorithm, given, why, oracle):
    with pytest.raises(DoesNotApply, match=why):
        oracle("policy_loss", algorithm=algorithm, **{**FOUR_TOKENS, **given})


@pytest.mark.parametrize("algorithm", ["clip_cov", "kl_cov"])
def test_a_batch_without_tokens_has_no_covariance(algorithm, oracle):
    empty = {**FOUR_TOKENS, "response_mask": [[0.0] * 5]}
    assert oracle("policy_loss", algorithm=algorithm, **empty, cov_share=0.3)["loss"] == 0


#: Ratios beyond every bound, with advantages of both signs.
CROSSING: dict[str, Any] = {
    "log_probs": [[-0.5, -1.5, -0.2], [-0.5, -1.5, -0.2]],
    "old_log_probs": [[-1.5, -0.5, -0.25], [-1.5, -0.5, -0.25]],
    "advantages": [[1.0] * 3, [-2.0] * 3],
    "response_mask": [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
    "loss_agg_mode": "seq-mean-token-mean",
}


def test_gspo_token_equals_gspo_when_a_response_has_one_advantage(oracle):
    tokens, whole = (oracle("policy_loss", algorithm=name, **CROSSING) for name in ("gspo_token", "gspo"))
    for key in ("loss", "per_token_gradient", "clip_fraction"):
        assert tokens[key] == near(whole[key]), key


def test_gmpo_uses_the_geometric_mean_of_clipped_ratios(oracle):
    """The log-ratios are 1 and 0.05 where A = 1: the first is clipped at 0.2. They are 1 and -1 where A = -2: the
    second is clipped at -0.2.
    """
    seen = oracle("policy_loss", algorithm="gmpo", **CROSSING)
    first, second = math.exp((0.2 + 0.05) / 2), 2 * math.exp((1 - 0.2) / 2)
    assert seen["loss"] == near((second - first) / 2)
    assert seen["per_token_gradient"] == near([[0, 0, -first / 4], [second / 4, 0, 0]])


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("cut", [1, 2])
def test_losses_of_microbatches_add_up(mode, cut, oracle):
    contract = bundled_catalog().contracts["policy_loss"]
    whole = scenario(
        "policy_loss",
        algorithm="ppo",
        log_probs=[[-0.5, -1.0], [-2.0, -0.25], [-1.0, -3.0]],
        old_log_probs=[[-1.0, -1.5], [-1.0, -0.5], [-1.25, -2.0]],
        advantages=[[1.0, -1.0], [2.0, 0.5], [-2.0, 1.0]],
        response_mask=[[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]],
        importance_weights=[[1.0, 0.5], [2.0, 2.0], [0.5, 1.0]],
        loss_agg_mode=mode,
        batch_num_tokens=7,
        global_batch_size=5,
        dp_size=2,
    )
    parts = contract.parts(whole, Choices(bytes([cut - 1])))
    assert [part["log_probs"].shape[0] for part in parts] == [cut, 3 - cut]
    together = oracle("policy_loss", **plain(whole))
    apart = [oracle("policy_loss", **plain(part)) for part in parts]
    assert sum(part["loss"] for part in apart) == near(together["loss"])
    rows = [row for part in apart for row in part["per_token_gradient"]]
    assert rows == near(together["per_token_gradient"])


def plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.nested() if isinstance(value, Tensor) else value for key, value in inputs.items()}


def test_a_batch_that_cannot_be_split_is_reported():
    contract = bundled_catalog().contracts["policy_loss"]
    assert contract.parts is not None
    rows = scenario("policy_loss", algorithm="ppo", **{**CROSSING, "loss_agg_mode": "token-mean"})
    one = scenario("policy_loss", algorithm="ppo", **TWO_TOKENS, advantages=[[1.0] * 3])
    ranked = {**rows, "algorithm": "clip_cov", "batch_num_tokens": 4}
    for inputs, reason in ((rows, "batch_num_tokens"), (one, "one row"), (ranked, "whole batch")):
        with pytest.raises(DoesNotApply, match=reason):
            contract.parts(inputs, Choices(b""))


def test_a_drawn_ratio_is_converted_to_log_probs():
    contract = bundled_catalog().contracts["policy_loss"]
    drawn = {
        **CROSSING,
        "log_probs": [[-1.0, -2.0, -0.5]] * 2,
        "old_log_probs": [[0.5, -0.25, 110.0]] * 2,  # log-ratios
        "batch_num_tokens": 3,
        "global_batch_size": 0,
    }
    inputs = contract.arrange(scenario("policy_loss", algorithm="gspo", **drawn), Choices(b""))
    assert inputs["log_probs"].nested() == [[-1.0, -2.25, -0.5]] * 2
    assert inputs["old_log_probs"].nested() == [[-1.5, -2.0, -110.5]] * 2
    assert (inputs["batch_num_tokens"], inputs["global_batch_size"]) == (4 + 3, 2)


#: A critic that moved from 0 to 1 (return 0.8) and from 0 to 0.25 (return 1), and an invalid token.
VALUES: dict[str, Any] = {
    "vpreds": [[1.0, 0.25, math.nan]],
    "values": [[0.0, 0.0, math.inf]],
    "returns": [[0.8, 1.0, math.nan]],
    "response_mask": [[1.0, 1.0, 0.0]],
}


@pytest.mark.parametrize(
    ("given", "loss", "gradient", "clipped"),
    [
        ({}, (0.04 + 0.5625) / 2, [0.2, -0.75, 0], 0),
        # clip(1, +-0.5) = 0.5 is further from 0.8 than 1
        ({"cliprange_value": 0.5}, (0.09 + 0.5625) / 2, [0, -0.75, 0], 0.5),
        ({"cliprange_value": 0.5, "factor": 0.5}, (0.09 + 0.5625) / 4, [0, -0.375, 0], 0.5),
        ({"kind": "huber", "huber_delta": 0.5}, (0.04 + 2 * 0.5 * 0.75 - 0.25) / 2, [0.2, -0.5, 0], 0),
        ({"loss_agg_mode": "token-sum"}, 0.04 + 0.5625, [0.4, -1.5, 0], 0),
    ],
)
def test_value_losses_equal_hand_computed_ones(given, loss, gradient, clipped, oracle):
    seen = oracle("value_loss", **VALUES, **given)
    assert (seen["loss"], seen["per_token_gradient"]) == (near(loss), near([gradient]))
    assert seen["clip_fraction"] == clipped


def test_a_clip_fraction_can_count_sequences(oracle):
    """One of three tokens is clipped in the first row, the only token in the second, and the third row has none."""
    inputs = {
        "vpreds": [[1.0, 0.0, 0.0], [1.0, 9.0, 9.0], [9.0] * 3],
        "values": [[0.0] * 3] * 3,
        "returns": [[1.0] * 3] * 3,
        "response_mask": [[1.0] * 3, [1.0, 0.0, 0.0], [0.0] * 3],
        "cliprange_value": 0.5,
        "clip_fraction_over": "sequences",
    }
    assert oracle("value_loss", **inputs)["clip_fraction"] == near((1 / 3 + 1) / 2)
    assert oracle("value_loss", **inputs, empty_rows="counted")["clip_fraction"] == near((1 / 3 + 1) / 3)


#: Ratios 4 and 1/2 in the first response (product 2, mean sqrt 2), 1 in the second; one token is invalid.
WEIGHTS: dict[str, Any] = {
    "old_log_probs": [[math.log(0.5), math.log(0.25)], [math.log(0.5), math.nan]],
    "rollout_log_probs": [[math.log(0.125), math.log(0.5)], [math.log(0.5), 7.0]],
    "response_mask": [[1.0, 1.0], [1.0, 0.0]],
}
ROOT = math.sqrt(2)


@pytest.mark.parametrize(
    ("given", "weights", "kept", "clipped"),
    [
        ({}, [[2, 0.5], [1, 0]], [[1, 1], [1, 0]], 1 / 3),
        ({"threshold_low": 0.75}, [[2, 0.75], [1, 0]], [[1, 1], [1, 0]], 2 / 3),
        ({"mode": "mask"}, [[0, 0.5], [1, 0]], [[0, 1], [1, 0]], 1 / 3),
        ({"mode": "mask", "threshold_low": 0.75}, [[0, 0], [1, 0]], [[0, 0], [1, 0]], 2 / 3),
        ({"level": "sequence", "threshold_high": 1.5}, [[1.5, 1.5], [1, 0]], [[1, 1], [1, 0]], 2 / 3),
        ({"level": "sequence", "threshold_high": 1.5, "mode": "mask"}, [[0, 0], [1, 0]], [[0, 0], [1, 0]], 2 / 3),
        ({"level": "geometric", "threshold_high": 1.5, "mode": "mask"}, [[ROOT] * 2, [1, 0]], [[1, 1], [1, 0]], 0),
        ({"level": "every_token", "mode": "mask"}, [[0, 0], [1, 0]], [[0, 0], [1, 0]], 2 / 3),
        ({"log_ratio_clamp": LN2 / 2, "threshold_high": 5.0}, [[ROOT, 1 / ROOT], [1, 0]], [[1, 1], [1, 0]], 0),
        # k3 = r - 1 - log r is 1.614 at 4, 0.193 at 1/2: 1.807 together, 0.904 on average
        ({"statistic": "k3", "mode": "mask", "threshold_high": 1.0}, [[0, 0.5], [1, 0]], [[0, 1], [1, 0]], 1 / 3),
        # of the inverse 0.636 and 0.307
        (
            {"statistic": "k3", "statistic_of": "inverse", "mode": "mask", "threshold_high": 1.0},
            [[4, 0.5], [1, 0]],
            [[1, 1], [1, 0]],
            0,
        ),
        (
            {"statistic": "k3", "mode": "mask", "threshold_high": 1.0, "level": "geometric"},
            [[ROOT] * 2, [1, 0]],
            [[1, 1], [1, 0]],
            0,
        ),
        (
            {"statistic": "k3", "mode": "mask", "threshold_high": 1.8, "level": "sequence"},
            [[0, 0], [1, 0]],
            [[0, 0], [1, 0]],
            2 / 3,
        ),
        ({"normalise": True}, [[2 * 3 / 3.5, 0.5 * 3 / 3.5], [3 / 3.5, 0]], [[1, 1], [1, 0]], 1 / 3),
        ({"normalise": True, "level": "sequence"}, [[4 / 3, 4 / 3], [2 / 3, 0]], [[1, 1], [1, 0]], 0),
    ],
)
def test_importance_weights_equal_hand_computed_ones(given, weights, kept, clipped, oracle):
    seen = oracle("importance_weight", **WEIGHTS, **given)
    assert (seen["weights"], seen["kept"]) == (near(weights), near(kept))
    assert seen["sequence_kept"] == (None if given.get("level", "token") == "token" else seen["kept"])
    assert seen["clip_fraction"] == near(clipped)
    assert seen["weight_gradient"] == [[0, 0], [0, 0]]


def test_undetached_importance_weights_are_detected(oracle):
    seen = oracle("importance_weight", **WEIGHTS, detached=False)
    assert seen["weight_gradient"] == near([[0, 0.5], [1, 0]])


#: Mean log(p_old / p) of each row's valid tokens: 0.5, 0.5, -0.5. The first two rows have negative advantages.
REJECTION: dict[str, Any] = {
    "log_probs": [[-1.0, -2.0, -9.0], [-1.5, math.nan, math.nan], [-0.5, -1.0, -9.0]],
    "old_log_probs": [[-0.75, -1.25, 0.0], [-1.0, 0.0, 0.0], [-1.0, -1.5, 0.0]],
    "advantages": [[-1.0] * 3, [1.0] * 3, [-1.0] * 3],
    "response_mask": [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
}


def test_sequences_are_rejected_as_a_whole(oracle):
    seen = oracle("sequence_rejection", **REJECTION, opsm_delta=0.4)
    assert seen["opsm_mask"] == [[0] * 3, [1] * 3, [1] * 3]
    assert (seen["opsm_clipfrac"], seen["leaked_token_count"]) == (1, 0)
    assert oracle("sequence_rejection", **REJECTION, opsm_delta=0.6)["opsm_clipfrac"] == 0


def test_drawn_thresholds_distinguish_a_mean_from_a_sum():
    contract, apart = bundled_catalog().contracts["sequence_rejection"], 0
    for seed in range(60):
        inputs = draw(contract, Binding("", contract.name), Choices(random.Random(seed).randbytes(4096)))
        old, current, advantages, mask = (
            inputs[name].array().astype(float) for name in ("old_log_probs", "log_probs", "advantages", "response_mask")
        )
        valid = mask != 0
        sums = ((old - current) * valid).sum(-1)
        means = sums / np.maximum(valid.sum(-1), 1)
        judged = ((advantages < 0) & valid).any(-1)
        apart += bool((judged & ((sums > inputs["opsm_delta"]) != (means > inputs["opsm_delta"]))).any())
    assert apart >= 4


def test_mixed_advantages_in_a_sequence_have_no_definition(oracle):
    mixed = {**REJECTION, "advantages": [[-1.0, 1.0, 0.0]] * 3}
    with pytest.raises(DoesNotApply, match="both signs"):
        oracle("sequence_rejection", **mixed, opsm_delta=0.4)
    beyond = {**REJECTION, "advantages": [[-1.0, -1.0, 5.0]] * 3}  # invalid tokens have no influence
    assert oracle("sequence_rejection", **beyond, opsm_delta=0.4)["opsm_clipfrac"] == 2


ADAPTER = """
from sentinel.targets import Binding, PackageRoot, Target

TARGET = Target(
    name="clipper", repository="https://example.invalid/clipper", roots=(PackageRoot("pkg"),),
    bindings=(
        Binding("pkg.mod.tokens", "policy_loss", outputs=("per_token_loss", "clip_fraction", "dual_clip_fraction",
                "approx_kl"), fixed={"algorithm": "ppo", "loss_agg_mode": "token-sum"}),
    ),
)
"""

MOD = """
import torch

def tokens(log_probs, old_log_probs, advantages, response_mask, eps_clip_low, eps_clip_high):
    ratio = torch.exp(log_probs - old_log_probs)
    plain, bounded = -ratio * advantages, -ratio.clamp(1 - eps_clip_low, 1 + eps_clip_high) * advantages
    losses = torch.{choice}(plain, bounded)
    return losses, (bounded > plain).float(), torch.zeros_like(losses), old_log_probs - log_probs
"""


def decide_tokens(module: str, decide: Decide, lab: Lab, folder: Path) -> Decision:
    (folder / "clipper.py").write_text(ADAPTER)
    recipe = {
        "recipe_version": 1,
        "bug_id": "CLIPPER-1",
        "title": "tokens",
        "target": "clipper",
        "contract": "policy_loss",
        "boundary": "pkg.mod.tokens",
        "scenario": {
            "algorithm": "ppo",
            "loss_agg_mode": "token-sum",
            "log_probs": [[TWICE, TWICE, HALF, 0.0]],
            "old_log_probs": [[OLD, OLD, OLD, 0.0]],
            "advantages": [[1.0, -1.0, -1.0, 1.0]],
            "response_mask": [[1.0, 1.0, 1.0, 0.0]],
        },
    }
    catalog = bundled_catalog().with_(adapters=[folder / "clipper.py"])
    return decide(recipe, lab.write({"mod.py": module}), catalog=catalog)


@pytest.mark.parametrize(("choice", "verdict"), [("maximum", "fixed"), ("minimum", "reproduced")])
def test_a_loss_may_return_one_number_per_token(choice, verdict, decide, lab, tmp_path):
    decision = decide_tokens(MOD.replace("{choice}", choice), decide, lab, tmp_path)
    assert decision.verdict.name == verdict, decision.verdict.reason


def test_an_independent_loss_has_gradient_zero(decide, lab, tmp_path):
    constant = MOD.replace("torch.{choice}(plain, bounded)", "bounded.detach()")
    decision = decide_tokens(constant, decide, lab, tmp_path)
    assert decision.verdict.name == "reproduced"
    seen = decision.measurement.observation[""]
    assert seen["per_token_gradient"].nested() == [[0, 0, 0, 0]]
    assert seen["clip_fraction"] == near(2 / 3)


@pytest.mark.parametrize(("contract", "key"), [("policy_loss", "loss"), ("importance_weight", "weights")])
def test_a_single_precision_ratio_differs_by_its_rounding(contract, key, oracle):
    policy = {"log_probs": [[-1.0]], "old_log_probs": [[-1.1]], "advantages": [[-1.0]]}
    weight = {"old_log_probs": [[-1.0]], "rollout_log_probs": [[-1.1]]}
    inputs = {**(policy if key == "loss" else weight), "response_mask": [[1.0]]}
    inputs |= {"algorithm": "importance_sampling"} if key == "loss" else {}
    single = oracle(contract, **inputs, ratio_precision="float32")[key]
    double = oracle(contract, **inputs)[key]
    (off,) = [single - double] if key == "loss" else [single[0][0] - double[0][0]]
    assert 1e-10 < abs(off) < 1e-6
