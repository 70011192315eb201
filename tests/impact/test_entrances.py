"""Each way in means what it says: a boundary that answers rightly gives the gradient of the plain formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from sentinel.catalog import bundled_catalog
from sentinel.errors import SentinelError
from sentinel.impact import toy
from sentinel.impact.batches import Batch, advantages, k3, ppo, token_mean
from sentinel.impact.entrances import ENTRANCES, entrance
from sentinel.impact.toy import Array
from sentinel.values import from_array

_KL = 0.02


def _right(batch: Batch) -> Mapping[str, Mapping[str, Array]]:
    """What a right boundary of each contract observes."""
    ones = np.ones(batch.mask.shape)
    of_tokens = {"advantages": advantages(batch)}
    return {
        "loss_aggregation": {"per_token_gradient": token_mean(batch, ones)},
        "policy_loss": {"per_token_gradient": token_mean(batch, ppo(batch, advantages(batch))[1])},
        "kl_estimate": {"per_token_gradient": k3(batch)[1]},
        "group_advantage": of_tokens,
        "generalised_advantage": of_tokens,
        "advantage_normalisation": {"normalised": advantages(batch)},
        "reward_normalisation": {"normalised": advantages(batch)[:, 0]},
        "penalised_advantage": of_tokens,
        "discounted_return": of_tokens,
        "prompt_loss": {"per_token_gradient": token_mean(batch, ones)},
        "decoupled_loss": {"gradient": token_mean(batch, ppo(batch, advantages(batch))[1])},
        "policy_update": {"gradient": token_mean(batch, ppo(batch, advantages(batch))[1])},
        "sequence_rejection": {"opsm_mask": ones},
        "importance_weight": {"weights": np.exp(batch.log_probs - batch.old_log_probs), "kept": ones},
        "token_reward": {"token_level_rewards": batch.token_rewards},
        "response_masks": {"response_mask": batch.mask},
        "overlong_filter": {"kept": batch.mask},
        "group_filter": {"kept": ones[:, 0]},
        "rollout_baseline": {"normalised": advantages(batch)[np.nonzero(batch.mask[:, ::2])[0], 0]},
        "advantage_step": {
            name: _ahead(of) for name, of in (("advantages", advantages(batch)), ("loss_mask", batch.mask))
        },
        "masked_statistics (mean of the batch)": {"statistic": np.array(_mean_reward(batch))},
        "masked_statistics (sum of the batch)": {"statistic": np.array(_mean_reward(batch) * batch.mask.sum())},
        "masked_statistics (whiten of the batch)": {"whitened": advantages(batch)},
        "masked_statistics (sum of a row)": {"row_statistic": batch.rewards},
        "masked_statistics (mean of a row)": {"row_statistic": _mean_log_ratio(batch)},
        "rollout_kl": {"per_token_gradient": 0.3 * k3(batch)[1]},
        "context_parallel_loss": {"loss": np.array(1.0)},
        "token_log_probs": {"log_probs": batch.log_probs, "logits_gradient": _jacobian(batch)},
        "supervised_update": {"gradient": -token_mean(batch, ones), "gradient_after": np.zeros(len(ones))},
        "preference_loss": {f"{side}_gradient": sign * ones[:5] for side, sign in (("chosen", -1), ("rejected", 1))},
        "value_loss": {"per_token_gradient": ones},
        "critic_values": {"values": batch.old_values[:, :-1], "outside": np.zeros(len(ones))},
    }


def _ahead(values: Array) -> Array:
    """At the position that predicts it."""
    return np.pad(values.astype(np.float64), ((0, 0), (0, 1)))


def _mean_reward(batch: Batch) -> float:
    return float(np.repeat(batch.rewards, batch.mask.sum(-1)).mean())


def _mean_log_ratio(batch: Batch) -> Array:
    ratios = np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0.0)
    return np.asarray(ratios.sum(-1) / np.maximum(batch.mask.sum(-1), 1))


def _jacobian(batch: Batch) -> Array:
    """``d log p_a / d z_b = [a = b] - p_b``."""
    odds = np.exp(batch.logits)
    return np.asarray(np.eye(toy.VOCABULARY)[batch.tokens] - odds / odds.sum(-1, keepdims=True))


def _plain(batch: Batch, name: str) -> Array:
    """The slopes that the plain formulas have, where they are not PPO's with GRPO's advantages alone."""
    rewards = np.repeat(batch.rewards[:, None], batch.mask.shape[1], axis=1)
    slopes = ppo(batch, advantages(batch))[1]
    if name in ("loss_aggregation", "prompt_loss", "kl_estimate"):
        slopes = slopes + _KL * k3(batch)[1]
    if name == "importance_weight":  # it has no clip range
        slopes = -advantages(batch) * np.exp(batch.log_probs - batch.old_log_probs)
    if name in ("masked_statistics (mean of the batch)", "masked_statistics (sum of the batch)"):
        slopes = ppo(batch, rewards - _mean_reward(batch))[1]
    if name in ("value_loss", "critic_values"):
        slopes = ppo(batch, rewards - batch.old_values[:, :-1])[1]
    found = token_mean(batch, slopes)
    if name == "rollout_kl":
        found = found + 0.3 * k3(batch)[1]
    if name == "token_log_probs":
        found = found[..., None] * _jacobian(batch)
    if name == "masked_statistics (mean of a row)":
        found = _of_sequences(batch)
    if name == "supervised_update":
        found = np.pad(-token_mean(batch, np.ones(batch.mask.shape)), ((0, 0), (0, 1)))
    if name == "preference_loss":
        found = _of_pairs(batch)
    return found


def _of_sequences(batch: Batch) -> Array:
    """The slopes of ``- mean_i A_i s_i`` over the accepted responses, by finite differences."""

    def loss(moved: Batch) -> Array:
        return np.asarray(-advantages(batch)[:, 0] * np.exp(_mean_log_ratio(moved)) / batch.mask.any(-1).sum())

    found = np.zeros(batch.mask.shape)
    for column in range(found.shape[1]):
        step = np.zeros(found.shape)
        step[:, column] = 1e-6
        up, down = (replace(batch, log_probs=batch.log_probs + sign * step) for sign in (1, -1))
        found[:, column] = (loss(up) - loss(down)) / 2e-6
    return found


def _of_pairs(batch: Batch) -> Array:
    """Up for the best accepted response to each prompt, down for the worst."""
    found = np.zeros(batch.mask.shape)
    for prompt in np.unique(batch.prompts):
        rows = [row for row in np.flatnonzero(batch.prompts == prompt) if batch.mask[row].any()]
        found[max(rows, key=lambda row: batch.rewards[row])] -= 1
        found[min(rows, key=lambda row: batch.rewards[row])] += 1
    return found


def _answer(values: Mapping[str, Array]) -> dict[str, object]:
    """As it is observed: a scalar that is no tensor of torch's is a number."""
    return {
        key: float(value) if key == "loss" else from_array(np.asarray(value, dtype=np.float64), "float64")
        for key, value in values.items()
    }


@pytest.mark.parametrize("contract", sorted(ENTRANCES))
def test_a_right_answer_gives_the_plain_gradient(batch: Batch, contract: str) -> None:
    found = ENTRANCES[contract].slopes(batch, _answer(_right(batch)[contract]))
    assert np.allclose(found, _plain(batch, contract), atol=1e-9)


@pytest.mark.parametrize("contract", sorted(ENTRANCES))
def test_a_batch_has_what_the_contract_asks_for(batch: Batch, contract: str) -> None:
    has = ENTRANCES[contract].inputs(batch)
    behind_a_prompt, of_pairs = contract == "advantage_step", contract == "preference_loss"
    sizes = {
        "batch": 5 if of_pairs else len(batch.mask),
        "tokens": batch.mask.shape[1] + behind_a_prompt,
        "vocabulary": toy.VOCABULARY,
    }
    for item in bundled_catalog().contracts[contract.split()[0]].inputs:
        if item.domain or item.kind == "labels":
            assert item.name in has or item.domain == "mask", item.name
        if item.name in has and item.shape:
            assert has[item.name].shape == tuple(sizes[name] for name in item.shape)


def test_what_is_masked_reaches_the_gradient_only_through_the_boundary(batch: Batch) -> None:
    leaking = token_mean(batch, np.ones(batch.mask.shape))
    leaking = np.where(batch.mask, leaking, 1.0)
    slopes = ENTRANCES["loss_aggregation"].slopes(batch, {"per_token_gradient": from_array(leaking, "float64")})
    assert np.abs(slopes[~batch.mask]).max() > 0


def test_a_nan_that_a_boundary_gives_to_a_token_that_counts_is_in_the_gradient(batch: Batch) -> None:
    """The clip range compares, and no comparison with NaN holds."""
    row, column = np.argwhere(batch.mask)[3]
    broken = advantages(batch).copy()
    broken[row, column] = np.nan
    slopes = ENTRANCES["group_advantage"].slopes(batch, {"advantages": from_array(broken, "float32")})
    assert np.argwhere(np.isnan(slopes)).tolist() == [[row, column]]


def test_tokens_that_are_not_kept_do_not_count(batch: Batch) -> None:
    kept = np.arange(len(batch.mask)) % 2 == 0
    answer = {"kept": from_array(np.repeat(kept[:, None], batch.mask.shape[1], axis=1), "float32"), "weights": None}
    slopes = ENTRANCES["importance_weight"].slopes(batch, answer)
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    assert np.allclose(slopes[kept], token_mean(batch, -advantages(batch) * ratio)[kept] * batch.mask.sum()
                       / batch.mask[kept].sum())  # fmt: skip
    assert not slopes[~kept].any()


def test_an_answer_of_another_form_is_told(batch: Batch) -> None:
    with pytest.raises(SentinelError, match=r"advantages should be \[40, 6\], and is \[2\]"):
        ENTRANCES["group_advantage"].slopes(batch, {"advantages": from_array(np.zeros(2), "float32")})
    with pytest.raises(SentinelError, match=r"advantages should be \[40, 6\], and is NoneType"):
        ENTRANCES["group_advantage"].slopes(batch, {})


@pytest.mark.parametrize(
    ("contract", "signal", "why"),
    [
        ("truncation", "data", "truncation: it makes or moves samples before a step has its batch"),
        ("weight_report", "metric", "weight_report: what it computes is only reported, and no gradient comes of it"),
        ("configuration_check", "setup", "configuration_check: it is gone through before a training begins"),
        ("rule_reward", "reward", "rule_reward: it judges answers that are text"),
        ("call", "gradient", "call: any function can be bound to it"),
        ("learning_rate", "gradient", "learning_rate: no part of the toy's step is what it does"),
    ],
)
def test_what_does_not_enter_is_told_and_why(contract: str, signal: str, why: str) -> None:
    with pytest.raises(SentinelError, match=f"cannot be trained through {why}"):
        entrance(bundled_catalog().contracts[contract], {}, signal)


def test_a_statistic_that_nothing_is_made_of_is_told() -> None:
    variance = {"statistic": "var", "axis": None}
    with pytest.raises(SentinelError, match=r"through masked_statistics \(var of the batch\): "):
        entrance(bundled_catalog().contracts["masked_statistics"], variance, "gradient")
