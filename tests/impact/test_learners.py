"""Losses of other kinds: a broken boundary makes another gradient, and the one that it must."""

from __future__ import annotations

import numpy as np
import pytest
from impact_kit import float64

from sentinel.errors import SentinelError
from sentinel.impact import toy
from sentinel.impact.batches import Batch
from sentinel.impact.entrances import ENTRANCES


def test_the_rollout_kl_is_added_to_the_policy_loss(batch: Batch) -> None:
    leak = np.where(batch.mask, 0.0, 1.0)
    slopes = ENTRANCES["rollout_kl"].slopes
    none, leaking = (slopes(batch, {"per_token_gradient": float64(of)}) for of in (np.zeros(leak.shape), leak))
    assert np.array_equal(leaking - none, leak)
    assert none.any()
    assert not none[~batch.mask].any()


def test_log_probs_that_are_half_of_what_they_are_move_the_ratio(batch: Batch) -> None:
    jacobian = np.ones(batch.logits.shape)
    right, half = (
        ENTRANCES["token_log_probs"].slopes(
            batch, {"log_probs": float64(batch.log_probs * by), "logits_gradient": float64(jacobian)}
        )
        for by in (1.0, 0.5)
    )
    assert right.shape == batch.logits.shape
    assert not np.allclose(right, half)


def test_a_gradient_of_logits_is_the_boundarys_own(batch: Batch) -> None:
    """One that is 0 teaches nothing, whatever the log-probs are."""
    answer = {"log_probs": float64(batch.log_probs), "logits_gradient": float64(np.zeros(batch.logits.shape))}
    assert not ENTRANCES["token_log_probs"].slopes(batch, answer).any()


def test_log_probs_without_a_gradient_are_of_nobody_knows_which_policy(batch: Batch) -> None:
    with pytest.raises(SentinelError, match="the boundary takes no gradient: it recomputes log-probs of a policy"):
        ENTRANCES["token_log_probs"].slopes(batch, {"log_probs": float64(batch.log_probs), "logits_gradient": None})


def test_what_is_trained_on_as_given_is_the_best_of_each_prompt(batch: Batch) -> None:
    mask = ENTRANCES["supervised_update"].inputs(batch)["response_mask"]
    accepted = batch.mask.any(-1)
    for prompt in np.unique(batch.prompts):
        rows = accepted & (batch.prompts == prompt)
        best = rows & (batch.rewards == batch.rewards[rows].max())
        assert (mask[best] == batch.mask[best]).all()
        assert not mask[rows & ~best].any()


def test_the_token_after_a_sequence_is_learnt_where_a_boundary_learns_it(batch: Batch) -> None:
    """The model's answer after the last token is of the one with which the next sequence begins."""
    after = np.zeros(len(batch.rewards))
    after[3] = -1.0
    answer = {"gradient": float64(np.zeros(batch.mask.shape)), "gradient_after": float64(after)}
    slopes = ENTRANCES["supervised_update"].slopes(batch, answer)
    found = toy.gradient(toy.untrained(), batch.prompts, batch.tokens, slopes)
    assert np.flatnonzero(found[0]).size == toy.VOCABULARY, "through the row that all share"
    assert found[0].argmin() == toy.EOS, "descent makes it likelier"


def test_the_worst_of_a_prompt_is_never_chosen(batch: Batch) -> None:
    given = ENTRANCES["preference_loss"].inputs(batch)
    assert given["chosen_mask"].any(-1).all()
    assert given["rejected_mask"].any(-1).all()
    swapped = {"chosen_gradient": float64(np.ones((5, 6))), "rejected_gradient": float64(-np.ones((5, 6)))}
    right = {"chosen_gradient": float64(-np.ones((5, 6))), "rejected_gradient": float64(np.ones((5, 6)))}
    slopes = ENTRANCES["preference_loss"].slopes
    assert np.array_equal(slopes(batch, swapped), -slopes(batch, right))


def test_ranks_that_lose_half_of_the_weights_lose_half_of_the_gradient(batch: Batch) -> None:
    slopes = ENTRANCES["context_parallel_loss"].slopes
    assert np.array_equal(slopes(batch, {"loss": 0.5}), 0.5 * slopes(batch, {"loss": 1.0}))
    assert ENTRANCES["context_parallel_loss"].inputs(batch)["losses"].tolist() == [1.0] * int(batch.mask.sum())
    with pytest.raises(SentinelError, match="the boundary's loss should be a number, and is NoneType"):
        slopes(batch, {})


def test_a_critic_that_moves_wrongly_leaves_the_policy_alone(batch: Batch) -> None:
    enters = ENTRANCES["value_loss"]
    assert enters.value_slopes is not None
    broken = {"per_token_gradient": float64(np.full(batch.mask.shape, np.nan))}
    assert np.isfinite(enters.slopes(batch, broken)).all()
    assert np.isnan(enters.value_slopes(batch, broken)).all()


def test_what_a_critic_leaves_behind_the_end_is_in_every_advantage_of_the_row(batch: Batch) -> None:
    values, behind = float64(batch.old_values[:, :-1]), np.zeros(len(batch.rewards))
    behind[np.flatnonzero(batch.mask.any(-1))[0]] = 0.7
    slopes = ENTRANCES["critic_values"].slopes
    none, left = (slopes(batch, {"values": values, "outside": outside}) for outside in (None, float64(behind)))
    assert (none != left).any(-1).tolist() == (behind != 0).tolist()


def test_values_that_are_one_late_make_another_baseline(batch: Batch) -> None:
    late = {"values": float64(batch.old_values[:, 1:])}
    right = {"values": float64(batch.old_values[:, :-1])}
    slopes = ENTRANCES["critic_values"].slopes
    assert not np.allclose(slopes(batch, late), slopes(batch, right))
