"""Entrances of what comes before a loss: statistics of rewards, baselines, and the choice of what is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.impact import toy
from sentinel.impact.batches import Batch, advantages, over_tokens, ppo, token_mean
from sentinel.impact.entering import Entrance, Observation, observed, of_tokens
from sentinel.impact.toy import Array

#: Tokens of a piece that a response is cut into.
_PIECE = 2


def chained(batch: Batch, slopes: Array) -> Array:
    """As :func:`sentinel.impact.batches.token_mean`; but what is at tokens that do not count is multiplied by 0, as the
    chain rule does: NaN stays NaN."""
    return slopes * token_mean(batch, np.ones(batch.mask.shape))


# -- masked statistics -------------------------------------------------------------------------------------------------


def statistic(settings: Mapping[str, Any]) -> str:
    """Which entrance a statistic has: by its own name, and by what it is taken over."""
    return f"masked_statistics ({settings.get('statistic')} of {'a row' if settings.get('axis') else 'the batch'})"


def _reward_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"values": over_tokens(batch, batch.rewards)}


def _token_reward_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"values": batch.token_rewards}


def _log_ratio_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"values": batch.log_probs - batch.old_log_probs}


def _relative(batch: Batch, baseline: float) -> Array:
    return chained(batch, ppo(batch, over_tokens(batch, batch.rewards) - baseline)[1])


def _mean_slopes(batch: Batch, observation: Observation) -> Array:
    return _relative(batch, observed(observation, "statistic", ()).item())


def _sum_slopes(batch: Batch, observation: Observation) -> Array:
    return _relative(batch, observed(observation, "statistic", ()).item() / batch.counts["batch_num_tokens"])


def _whitened_slopes(batch: Batch, observation: Observation) -> Array:
    return chained(batch, ppo(batch, of_tokens(observation, "whitened", batch))[1])


def _row_sum_slopes(batch: Batch, observation: Observation) -> Array:
    """GRPO's advantages are made of the sums."""
    scored = replace(batch, rewards=observed(observation, "row_statistic", batch.rewards.shape))
    return chained(batch, ppo(batch, advantages(scored))[1])


def _row_mean_slopes(batch: Batch, observation: Observation) -> Array:
    """GSPO's (arXiv:2507.18071, equations 5 and 7), within its clip range: of ``mean_i s_i A_i`` over the responses,
    ``s_i`` the exponential of the mean log-ratio of a response, ``d s_i / d log p_it = s_i / n_i``."""
    ratio = np.exp(observed(observation, "row_statistic", batch.rewards.shape))
    weights = batch.mask / np.maximum(batch.mask.sum(-1, keepdims=True), 1) / batch.counts["global_batch_size"]
    return np.asarray(-advantages(batch) * ratio[:, None] * weights)


# -- baselines ---------------------------------------------------------------------------------------------------------


def _pieces(batch: Batch) -> tuple[Array, Array]:
    """The row of each piece, and its place in the row."""
    rows, places = np.nonzero(batch.mask[:, ::_PIECE])
    return rows, places


def _piece_inputs(batch: Batch) -> Mapping[str, Array]:
    rows, _ = _pieces(batch)
    return {"group": batch.prompts[rows], "rollout": rows, "rewards": batch.rewards[rows]}


def _piece_slopes(batch: Batch, observation: Observation) -> Array:
    rows, places = _pieces(batch)
    found = np.zeros(batch.mask.shape)
    for offset in range(_PIECE):
        found[rows, places * _PIECE + offset] = observed(observation, "normalised", rows.shape)
    return token_mean(batch, ppo(batch, found)[1])


def _sequences(batch: Batch) -> tuple[Array, Array]:
    """What of a prompt of one token and a response is there, and what was generated, [batch, 1 + tokens]: up to the end
    of a response, or to the last column of one that does not end."""
    ends = batch.tokens == toy.EOS
    response = ends.cumsum(-1) - ends == 0
    prompt = np.ones((len(response), 1), dtype=bool)
    return np.concatenate([prompt, response], axis=1), np.concatenate([~prompt, response], axis=1)


def _step_inputs(batch: Batch) -> Mapping[str, Array]:
    there, generated = _sequences(batch)
    return {
        "attention_mask": there,
        "loss_mask": generated,
        "rewards": batch.rewards,
        "input_ids": _behind_a_prompt(batch.tokens),
        "logprobs": _behind_a_prompt(batch.old_log_probs),
        "group": batch.labels,
    }


def _behind_a_prompt(values: Array) -> Array:
    return np.pad(values, ((0, 0), (1, 0)))


def _step_slopes(batch: Batch, observation: Observation) -> Array:
    """What stands at a position is of the token after it; at the last one nothing is."""
    shape = (len(batch.rewards), batch.mask.shape[1] + 1)
    found, counting = (observed(observation, key, shape)[:, :-1] for key in ("advantages", "loss_mask"))
    return token_mean(replace(batch, mask=counting != 0), ppo(batch, found)[1])


def _score_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"rewards": batch.rewards}


def _scored_slopes(batch: Batch, observation: Observation) -> Array:
    """GRPO's advantages are made of what the rewards of a response's tokens add up to."""
    rewards = np.where(batch.mask, of_tokens(observation, "token_level_rewards", batch), 0.0)
    return token_mean(batch, ppo(batch, advantages(replace(batch, rewards=rewards.sum(-1))))[1])


# -- choices -----------------------------------------------------------------------------------------------------------


def _filter_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"rewards": batch.rewards, "group": batch.labels}


def _filtered_slopes(batch: Batch, observation: Observation) -> Array:
    """GRPO's, of the responses that come out; the others do not count."""
    kept = observed(observation, "kept", batch.rewards.shape) != 0
    counting = replace(batch, mask=batch.mask & kept[:, None])
    return token_mean(counting, ppo(batch, advantages(batch))[1])


def _engine_inputs(batch: Batch) -> Mapping[str, Array]:
    """A prompt of one token, and a response up to its end or to the last column."""
    _, generated = _sequences(batch)
    responses = [row[:length].tolist() for row, length in zip(batch.tokens, generated.sum(-1))]
    prompts = [[toy.VOCABULARY + int(number)] for number in batch.prompts]
    return {"prompt_token_ids": _ragged(prompts), "response_token_ids": _ragged(responses)}


def _ragged(rows: Sequence[Sequence[int]]) -> Array:
    found = np.empty(len(rows), dtype=object)
    found[:] = rows
    return found


def _masked_slopes(batch: Batch, observation: Observation) -> Array:
    """GRPO's, of the tokens that the mask has of responses that are not rejected."""
    mask = of_tokens(observation, "response_mask", batch) != 0
    counting = replace(batch, mask=mask & batch.mask.any(-1, keepdims=True))
    return token_mean(counting, ppo(batch, advantages(batch))[1])


def _uncut_slopes(batch: Batch, observation: Observation) -> Array:
    counting = replace(batch, mask=batch.mask & (of_tokens(observation, "kept", batch) != 0))
    return token_mean(counting, ppo(batch, advantages(batch))[1])


_BASELINE = "of the tokens' rewards, less which they are the advantages"

STATISTICS: Mapping[str, Entrance] = {
    statistic({"statistic": "mean"}): Entrance(f"computes the mean {_BASELINE}", _reward_inputs, _mean_slopes),
    statistic({"statistic": "sum"}): Entrance(
        f"computes the sum {_BASELINE}, divided by their number", _reward_inputs, _sum_slopes
    ),
    statistic({"statistic": "whiten"}): Entrance(
        "whitens the tokens' rewards, which are the advantages then", _reward_inputs, _whitened_slopes
    ),
    statistic({"statistic": "sum", "axis": "token"}): Entrance(
        "sums up the rewards of each response, which its advantage is computed from",
        _token_reward_inputs,
        _row_sum_slopes,
    ),
    statistic({"statistic": "mean", "axis": "token"}): Entrance(
        "computes the mean log-ratio of each response, which is that of GSPO's sequence",
        _log_ratio_inputs,
        _row_mean_slopes,
    ),
    "rollout_baseline": Entrance(
        f"computes the advantages of responses that are cut into samples of {_PIECE} tokens",
        _piece_inputs,
        _piece_slopes,
    ),
    "advantage_step": Entrance(
        "computes the advantages of whole sequences", _step_inputs, _step_slopes, every_response=True
    ),
    "token_reward": Entrance(
        "gives a token of each response its reward, which the advantage is computed from",
        _score_inputs,
        _scored_slopes,
    ),
    "response_masks": Entrance("says which tokens the policy chose", _engine_inputs, _masked_slopes),
    "overlong_filter": Entrance(
        "leaves out the responses that were cut off", lambda _: {}, _uncut_slopes, every_response=True
    ),
    "group_filter": Entrance("chooses what is trained on", _filter_inputs, _filtered_slopes),
}
