"""Entrances of other losses: from logits, from pairs, towards given tokens, of a critic, and with other terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sentinel.errors import SentinelError
from sentinel.impact.batches import Batch, advantages, over_prompt, over_tokens, ppo, token_mean
from sentinel.impact.entering import Entrance, Observation, observed, of_tokens
from sentinel.impact.toy import Array


def _ppo_mean(batch: Batch) -> Array:
    return token_mean(batch, ppo(batch, advantages(batch))[1])


# -- terms of the policy loss ------------------------------------------------------------------------------------------


def _rollout_kl_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"log_probs": batch.log_probs, "rollout_log_probs": batch.old_log_probs}


def _rollout_kl_slopes(batch: Batch, observation: Observation) -> Array:
    return _ppo_mean(batch) + of_tokens(observation, "per_token_gradient", batch)


def _one_sequence(batch: Batch) -> Mapping[str, Array]:
    """All tokens that count, below one another, each with the loss 1: the loss is what its weights add up to."""
    return {"losses": np.ones(batch.counts["batch_num_tokens"])}


def _weighted_slopes(batch: Batch, observation: Observation) -> Array:
    loss = observation.get("loss")
    if not isinstance(loss, float):
        raise SentinelError(f"the boundary's loss should be a number, and is {type(loss).__name__}")
    return loss * _ppo_mean(batch)


def _logit_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"logits": batch.logits, "token_ids": batch.tokens}


def _logit_slopes(batch: Batch, observation: Observation) -> Array:
    """PPO's of the log-probs that the boundary makes of the logits, and its own gradient of these."""
    if observation.get("logits_gradient") is None:
        raise SentinelError(
            "the boundary takes no gradient: it recomputes log-probs of a policy that is not trained, and the contract "
            "does not say of which one (the policy that generated, or a reference)"
        )
    of_logits = observed(observation, "logits_gradient", batch.logits.shape)
    told = replace(batch, log_probs=of_tokens(observation, "log_probs", batch))
    return _ppo_mean(told)[..., None] * of_logits


# -- towards given tokens ----------------------------------------------------------------------------------------------


def _best(batch: Batch) -> Array:
    """The tokens of the responses that no accepted one to the same prompt is better than."""
    best = batch.rewards >= over_prompt(batch, batch.rewards, np.max)
    return np.asarray(batch.mask & best[:, None])


def _supervised_inputs(batch: Batch) -> Mapping[str, Array]:
    tokens = {"log_probs": batch.log_probs, "response_mask": _best(batch)}
    return {**tokens, "output_after": batch.next_log_probs}


def _supervised_slopes(batch: Batch, observation: Observation) -> Array:
    after = observed(observation, "gradient_after", batch.rewards.shape)
    return np.concatenate([of_tokens(observation, "gradient", batch), after[:, None]], axis=1)


def _pairs(batch: Batch) -> Mapping[str, Array]:
    """The rows of the best and the worst accepted response to each prompt; where all are as good, of one and the same,
    of which nothing is learnt."""
    accepted = batch.mask.any(-1)
    rows = [np.flatnonzero(accepted & (batch.prompts == prompt)) for prompt in np.unique(batch.prompts[accepted])]
    return {
        "chosen": np.array([found[batch.rewards[found].argmax()] for found in rows]),
        "rejected": np.array([found[batch.rewards[found].argmin()] for found in rows]),
    }


def _pair_inputs(batch: Batch) -> Mapping[str, Array]:
    of = {"log_probs": batch.log_probs, "ref_log_probs": batch.ref_log_probs, "mask": batch.mask}
    return {f"{side}_{name}": of[name][rows] for side, rows in _pairs(batch).items() for name in of}


def _pair_slopes(batch: Batch, observation: Observation) -> Array:
    found = np.zeros(batch.mask.shape)
    for side, rows in _pairs(batch).items():
        np.add.at(found, rows, observed(observation, f"{side}_gradient", (len(rows), batch.mask.shape[1])))
    return found


# -- the critic --------------------------------------------------------------------------------------------------------


def _returns(batch: Batch) -> Array:
    """Without discount, the reward of the response is the return of each of its tokens."""
    return over_tokens(batch, batch.rewards)


def _value_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"vpreds": batch.values[:, :-1], "values": batch.old_values[:, :-1], "returns": _returns(batch)}


def _old_advantage_slopes(batch: Batch, observation: Observation) -> Array:
    return token_mean(batch, ppo(batch, _returns(batch) - batch.old_values[:, :-1])[1])


def _critic_slopes(batch: Batch, observation: Observation) -> Array:
    return of_tokens(observation, "per_token_gradient", batch)


def _head_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"outputs": batch.old_values[:, :-1], "output_after": batch.old_values[:, -1]}


def _estimated_slopes(batch: Batch, observation: Observation) -> Array:
    """GAE (arXiv:1506.02438) with gamma and lambda 1 goes back from the end of the row: ``A_t = R + V - V_t``, V what
    is left behind the last token, where there should be 0. Values are of rewards, which are not negative."""
    left = np.zeros(len(batch.rewards))
    if observation.get("outside") is not None:
        left = observed(observation, "outside", left.shape)
    found = _returns(batch) + left[:, None] - of_tokens(observation, "values", batch)
    return token_mean(batch, ppo(batch, found)[1])


def _squared_slopes(batch: Batch, observation: Observation) -> Array:
    """Of the critic's loss, half the mean squared error (PPO, arXiv:1707.06347, equation 9)."""
    return token_mean(batch, batch.values[:, :-1] - _returns(batch))


LEARNERS: Mapping[str, Entrance] = {
    "rollout_kl": Entrance(
        "adds a KL to the policy that generated to the policy loss", _rollout_kl_inputs, _rollout_kl_slopes
    ),
    "context_parallel_loss": Entrance(
        "makes one loss of those of the tokens, which ranks share", _one_sequence, _weighted_slopes
    ),
    "token_log_probs": Entrance(
        "makes the log-probs of the policy loss from logits", _logit_inputs, _logit_slopes, temperature="temperature"
    ),
    "supervised_update": Entrance(
        "trains on the best responses to each prompt as on given ones, as RAFT does (arXiv:2304.06767)",
        _supervised_inputs,
        _supervised_slopes,
        whole=True,
    ),
    "preference_loss": Entrance(
        "computes the loss of pairs of the best and the worst response to each prompt", _pair_inputs, _pair_slopes
    ),
    "value_loss": Entrance(
        "computes the loss of a critic, which shares the policy's optimiser and is the baseline of its advantages",
        _value_inputs,
        _old_advantage_slopes,
        value_slopes=_critic_slopes,
    ),
    "critic_values": Entrance(
        "reads the values of a critic, which are the baseline of the advantages",
        _head_inputs,
        _estimated_slopes,
        value_slopes=_squared_slopes,
        dialects=("outside_the_mask",),
    ),
}
