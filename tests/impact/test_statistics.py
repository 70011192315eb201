"""What comes before a loss: a broken boundary makes another gradient, and the one that it must."""

from __future__ import annotations

import numpy as np
import pytest
from impact_kit import float64

from sentinel.impact import toy
from sentinel.impact.batches import Batch, draw, lone
from sentinel.impact.entrances import ENTRANCES
from sentinel.impact.toy import Array


def _slopes(batch: Batch, name: str, **answer: object) -> Array:
    return ENTRANCES[name].slopes(batch, {key: float64(value) for key, value in answer.items()})


@pytest.mark.parametrize("name", ["mean of the batch", "sum of the batch"])
def test_a_baseline_that_is_nan_is_in_the_whole_gradient(batch: Batch, name: str) -> None:
    """At tokens that do not count too, which are multiplied by 0: so a batch of which none counts is no way out."""
    empty = draw(0, 0, toy.untrained(), toy.untrained(), rejected=True)
    for some in (batch, empty):
        assert np.isnan(_slopes(some, f"masked_statistics ({name})", statistic=np.nan)).all()
        assert np.isfinite(_slopes(some, f"masked_statistics ({name})", statistic=0.0)).all()


def test_a_baseline_that_is_too_low_is_another_gradient(batch: Batch) -> None:
    low, right = (_slopes(batch, "masked_statistics (mean of the batch)", statistic=value) for value in (0.0, 0.4))
    assert not np.allclose(low, right)
    assert not low[~batch.mask].any()


def test_a_score_that_is_nan_is_in_the_advantages_of_its_whole_group(batch: Batch) -> None:
    scores = batch.rewards.copy()
    row = np.flatnonzero(batch.mask.any(-1))[0]
    scores[row] = np.nan
    broken = np.isnan(_slopes(batch, "masked_statistics (sum of a row)", row_statistic=scores)).any(-1)
    assert broken.tolist() == (batch.prompts == batch.prompts[row]).tolist()


def test_a_sequence_ratio_that_is_nan_is_in_its_row(batch: Batch) -> None:
    means = np.zeros(len(batch.rewards))
    means[~batch.mask.any(-1)] = np.nan
    slopes = _slopes(batch, "masked_statistics (mean of a row)", row_statistic=means)
    assert np.isnan(slopes).any(-1).tolist() == (~batch.mask.any(-1)).tolist()


def test_whitened_rewards_that_are_nan_at_masked_tokens_are_in_the_gradient(batch: Batch) -> None:
    whitened = np.where(batch.mask, 1.0, 0.0)
    assert np.isfinite(_slopes(batch, "masked_statistics (whiten of the batch)", whitened=whitened)).all()
    broken = np.where(batch.mask, 1.0, np.nan)
    slopes = _slopes(batch, "masked_statistics (whiten of the batch)", whitened=broken)
    assert np.isnan(slopes).tolist() == (~batch.mask).tolist()


def test_a_piece_that_is_its_own_baseline_teaches_nothing(batch: Batch) -> None:
    given = ENTRANCES["rollout_baseline"].inputs(batch)
    of_its_rollout = np.array([given["rewards"][given["rollout"] == rollout].mean() for rollout in given["rollout"]])
    of_its_prompt = np.array([given["rewards"][given["group"] == group].mean() for group in given["group"]])
    lost = _slopes(batch, "rollout_baseline", normalised=given["rewards"] - of_its_rollout)
    assert np.allclose(lost, 0.0, atol=1e-12), "but for the rounding of a mean"
    slopes = _slopes(batch, "rollout_baseline", normalised=given["rewards"] - of_its_prompt)
    assert not np.allclose(slopes[batch.mask], 0.0, atol=1e-3)
    assert not slopes[~batch.mask].any()


def test_an_advantage_that_leaks_into_a_response_without_an_end_is_in_its_gradient(batch: Batch) -> None:
    ended = (batch.tokens == toy.EOS).any(-1)
    generated = ENTRANCES["advantage_step"].inputs(batch)["loss_mask"]
    leak = np.where(ended[:, None], 0.0, np.ones(generated.shape))
    right = np.zeros(generated.shape)
    # What stands at a position is of the token after it.
    shifted = np.roll(generated, -1, axis=-1)
    slopes = {
        name: _slopes(batch, "advantage_step", advantages=values, loss_mask=shifted)
        for name, values in (("leak", leak), ("right", right))
    }
    assert not slopes["right"].any()
    assert slopes["leak"].any(-1).tolist() == (~ended).tolist()


def test_pieces_have_their_rollouts_reward(batch: Batch) -> None:
    given = ENTRANCES["rollout_baseline"].inputs(batch)
    assert len(set(given["rollout"].tolist())) == batch.mask.any(-1).sum()
    assert len(given["rollout"]) == ((batch.mask.sum(-1) + 1) // 2).sum()
    assert (given["rewards"] == batch.rewards[given["rollout"]]).all()
    assert (given["group"] == batch.prompts[given["rollout"]]).all()


def test_a_sequence_has_a_prompt_and_ends_or_fills_its_columns(batch: Batch) -> None:
    given = ENTRANCES["advantage_step"].inputs(batch)
    ended = (batch.tokens == toy.EOS).any(-1)
    assert given["attention_mask"][~ended].all()
    assert not given["loss_mask"][:, 0].any()
    assert (given["loss_mask"][ended, 1:] == batch.mask[ended]).all()
    assert (given["input_ids"][:, 1:] == batch.tokens).all()


def test_responses_that_do_not_come_out_do_not_count(batch: Batch) -> None:
    kept = batch.prompts != 2
    slopes = _slopes(batch, "group_filter", kept=kept)
    everything = _slopes(batch, "group_filter", kept=np.ones(len(kept)))
    assert not slopes[~kept].any()
    share = batch.mask.sum() / batch.mask[kept].sum()
    assert np.allclose(slopes[kept], everything[kept] * share)


def test_a_score_that_is_lost_teaches_nothing(batch: Batch) -> None:
    assert not _slopes(batch, "token_reward", token_level_rewards=np.zeros(batch.mask.shape)).any()


def test_an_end_that_is_masked_out_has_no_gradient(batch: Batch) -> None:
    without = batch.mask & (batch.tokens != toy.EOS)
    slopes = _slopes(batch, "response_masks", response_mask=without)
    assert not slopes[batch.tokens == toy.EOS].any()
    assert _slopes(batch, "response_masks", response_mask=batch.mask)[batch.tokens == toy.EOS].any()


def test_what_an_engine_returns_ends_with_the_end(batch: Batch) -> None:
    given = ENTRANCES["response_masks"].inputs(batch)
    responses = given["response_token_ids"].tolist()
    assert len(given["prompt_token_ids"]) == len(responses) == len(batch.tokens)
    for response, tokens in zip(responses, batch.tokens.tolist()):
        assert response == tokens[: len(response)]
        assert toy.EOS not in response[:-1]
        assert response[-1] == toy.EOS or len(response) == toy.COLUMNS


def test_a_filter_that_keeps_what_was_cut_off_trains_on_it() -> None:
    endless = draw(0, 0, toy.untrained(), toy.untrained(), rejecting=False, endless=True)
    assert endless.mask.all()
    assert not (endless.tokens == toy.EOS).any()
    assert not _slopes(endless, "overlong_filter", kept=np.zeros(endless.mask.shape)).any()
    assert _slopes(endless, "overlong_filter", kept=np.ones(endless.mask.shape)).any()


def test_a_lone_token_is_the_first_that_counts(batch: Batch) -> None:
    assert np.argwhere(lone(batch).mask).tolist() == np.argwhere(batch.mask)[:1].tolist()
