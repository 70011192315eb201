"""Each way in means what it says: a boundary that answers rightly gives the gradient of the plain formulas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from sentinel.catalog import bundled_catalog
from sentinel.errors import SentinelError
from sentinel.impact import toy
from sentinel.impact.batches import Batch, advantages, draw, k3, ppo, token_mean
from sentinel.impact.entrances import ENTRANCES, entrance
from sentinel.impact.toy import Array
from sentinel.values import from_array

_KL = 0.02


@pytest.fixture(scope="module")
def batch() -> Batch:
    old, new = (np.random.default_rng(seed).normal(size=toy.untrained().shape) / 2 for seed in (1, 2))
    return draw(0, 0, old, 0.9 * old + 0.1 * new)


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
    }


@pytest.mark.parametrize("contract", sorted(ENTRANCES))
def test_a_right_answer_gives_the_plain_gradient(batch: Batch, contract: str) -> None:
    answer = {key: from_array(value, "float64") for key, value in _right(batch)[contract].items()}
    plain = ppo(batch, advantages(batch))[1]
    if contract in ("loss_aggregation", "prompt_loss", "kl_estimate"):
        plain = plain + _KL * k3(batch)[1]
    if contract == "importance_weight":  # it has no clip range
        plain = -advantages(batch) * np.exp(batch.log_probs - batch.old_log_probs)
    assert np.allclose(ENTRANCES[contract].slopes(batch, answer), token_mean(batch, plain), atol=1e-12)


@pytest.mark.parametrize("contract", sorted(ENTRANCES))
def test_a_batch_has_what_the_contract_asks_for(batch: Batch, contract: str) -> None:
    has = ENTRANCES[contract].inputs(batch)
    for item in bundled_catalog().contracts[contract].inputs:
        if item.domain or item.kind == "labels":
            assert item.name in has or item.domain == "mask", item.name
        if item.name in has and item.shape:
            assert has[item.name].shape == batch.mask.shape[: len(item.shape)]


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


def test_an_unknown_contract_is_told() -> None:
    with pytest.raises(SentinelError, match="cannot be trained through truncation; it can through advantage_norm"):
        entrance("truncation")
