"""How a boundary enters a training step: what it is given of a batch, and what its answer means for the gradient.

One entrance a contract. The boundary does its part of the step, and the plain formulas of
:mod:`sentinel.impact.batches` the rest: PPO's clipped loss, averaged over the tokens that count, with GRPO's advantages
and a little KL to the untrained policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError
from sentinel.impact.batches import Batch, advantages, k3, over_prompt, over_tokens, ppo, token_mean
from sentinel.impact.entering import Entrance, Observation, observed, of_tokens
from sentinel.impact.learners import LEARNERS
from sentinel.impact.statistics import STATISTICS, statistic
from sentinel.impact.toy import Array

#: Coefficient of the KL, where there is one.
_KL = 0.02


# -- the contracts -----------------------------------------------------------------------------------------------------


def _losses(batch: Batch) -> tuple[Array, Array]:
    """Of each token, whether it counts or not, and its slope."""
    (loss, slope), (kl, kl_slope) = ppo(batch, advantages(batch)), k3(batch)
    return loss + _KL * kl, slope + _KL * kl_slope


def _aggregation_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"loss_mat": _losses(batch)[0], "weights": np.ones(len(batch.rewards)), "group": batch.labels}


def _aggregation_slopes(batch: Batch, observation: Observation) -> Array:
    return of_tokens(observation, "per_token_gradient", batch) * _losses(batch)[1]


def _policy_inputs(batch: Batch) -> Mapping[str, Array]:
    return {
        "log_probs": batch.log_probs,
        "old_log_probs": batch.old_log_probs,
        "rollout_log_probs": batch.old_log_probs,
        "advantages": advantages(batch),
        "importance_weights": np.ones(batch.mask.shape),
        "scores": advantages(batch)[:, 0],
    }


def _policy_slopes(batch: Batch, observation: Observation) -> Array:
    return of_tokens(observation, "per_token_gradient", batch)


def _decoupled_inputs(batch: Batch) -> Mapping[str, Array]:
    """The policy that generated is the proximal one too: nothing is to be corrected."""
    old = {"proximal_log_probs": batch.old_log_probs, "behaviour_log_probs": batch.old_log_probs}
    return {"log_probs": batch.log_probs, "advantages": advantages(batch), **old}


def _update_inputs(batch: Batch) -> Mapping[str, Array]:
    return {**_policy_inputs(batch), "ref_log_probs": batch.ref_log_probs}


def _gradient(batch: Batch, observation: Observation) -> Array:
    return of_tokens(observation, "gradient", batch)


def _rejection_inputs(batch: Batch) -> Mapping[str, Array]:
    return {**_policy_inputs(batch), "ppo_kl": batch.old_log_probs - batch.log_probs}


def _kept_slopes(batch: Batch, observation: Observation) -> Array:
    """PPO's, of the sequences that are not rejected; the others have no loss, and count."""
    return token_mean(batch, of_tokens(observation, "opsm_mask", batch) * ppo(batch, advantages(batch))[1])


def _kl_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"log_probs": batch.log_probs, "ref_log_probs": batch.ref_log_probs}


def _kl_slopes(batch: Batch, observation: Observation) -> Array:
    """What is at tokens that do not count is multiplied by 0, as the chain rule does: NaN stays NaN."""
    kl = of_tokens(observation, "per_token_gradient", batch) * token_mean(batch, np.ones(batch.mask.shape))
    return token_mean(batch, ppo(batch, advantages(batch))[1]) + _KL * kl


def _advantage_inputs(batch: Batch) -> Mapping[str, Array]:
    return {
        "token_level_rewards": batch.token_rewards,
        "reward_baselines": batch.greedy_rewards,
        "old_log_probs": batch.old_log_probs,
        "sum_squared_probs": batch.sum_squared_probs,
        "group": batch.labels,
    }


def _advantage_slopes(batch: Batch, observation: Observation) -> Array:
    return token_mean(batch, ppo(batch, of_tokens(observation, "advantages", batch))[1])


def _gae_inputs(batch: Batch) -> Mapping[str, Array]:
    """The critic is one that knows the mean reward to each prompt, and says it at every token."""
    values = over_tokens(batch, over_prompt(batch, batch.rewards, np.mean))
    return {"token_level_rewards": batch.token_rewards, "values": values}


def _return_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"token_level_rewards": batch.token_rewards, "kl": batch.old_log_probs - batch.ref_log_probs}


def _penalised_inputs(batch: Batch) -> Mapping[str, Array]:
    log_probs = {"log_probs": batch.old_log_probs, "ref_log_probs": batch.ref_log_probs}
    return {**log_probs, "values": _gae_inputs(batch)["values"], "rewards": batch.rewards}


def _unscaled(batch: Batch) -> Array:
    """The rewards of responses less the mean of their prompt's, [batch]."""
    return batch.rewards - over_prompt(batch, batch.rewards, np.mean)


def _normalisation_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"advantages": over_tokens(batch, _unscaled(batch)), "rewards": batch.rewards, "group": batch.labels}


def _normalised_slopes(batch: Batch, observation: Observation) -> Array:
    return token_mean(batch, ppo(batch, of_tokens(observation, "normalised", batch))[1])


def _reward_slopes(batch: Batch, observation: Observation) -> Array:
    """The normalised reward of a response is the advantage of each of its tokens."""
    rewards = observed(observation, "normalised", batch.rewards.shape)
    return token_mean(batch, ppo(batch, over_tokens(batch, rewards))[1])


def _weight_inputs(batch: Batch) -> Mapping[str, Array]:
    return {"old_log_probs": batch.log_probs, "rollout_log_probs": batch.old_log_probs}


def _weight_slopes(batch: Batch, observation: Observation) -> Array:
    """The weighted policy gradient, in the place of PPO's, of the tokens that are kept; the others do not count."""
    kept, weights = np.ones(batch.mask.shape), np.exp(batch.log_probs - batch.old_log_probs)
    if observation.get("kept") is not None:
        kept = of_tokens(observation, "kept", batch)
    if observation.get("weights") is not None:
        weights = of_tokens(observation, "weights", batch)
    counting = replace(batch, mask=batch.mask & (kept != 0))
    return token_mean(counting, -advantages(batch) * weights)


ENTRANCES: Mapping[str, Entrance] = {
    "loss_aggregation": Entrance("makes one loss of those of the tokens", _aggregation_inputs, _aggregation_slopes),
    "prompt_loss": Entrance("makes one loss of those of the tokens", _aggregation_inputs, _aggregation_slopes),
    "policy_loss": Entrance("computes the policy loss", _policy_inputs, _policy_slopes),
    "decoupled_loss": Entrance("computes the policy loss", _decoupled_inputs, _gradient),
    "policy_update": Entrance("cuts the batch, and computes the gradient", _update_inputs, _gradient, whole=True),
    "sequence_rejection": Entrance("rejects what is too far off policy", _rejection_inputs, _kept_slopes),
    "kl_estimate": Entrance(
        f"estimates the KL to the untrained policy, which has the coefficient {_KL}", _kl_inputs, _kl_slopes
    ),
    "group_advantage": Entrance("computes the advantages", _advantage_inputs, _advantage_slopes),
    "generalised_advantage": Entrance("computes the advantages", _gae_inputs, _advantage_slopes),
    "penalised_advantage": Entrance(
        "takes the KL from the rewards and computes the advantages", _penalised_inputs, _advantage_slopes
    ),
    "discounted_return": Entrance("computes the returns, which are the advantages", _return_inputs, _advantage_slopes),
    "advantage_normalisation": Entrance("normalises the advantages", _normalisation_inputs, _normalised_slopes),
    "reward_normalisation": Entrance("normalises the rewards", _normalisation_inputs, _reward_slopes),
    "importance_weight": Entrance("weighs the tokens", _weight_inputs, _weight_slopes),
    **STATISTICS,
    **LEARNERS,
}


#: What a recipe says to be wrong where no gradient of the toy's comes of it -> why none does.
_OUTSIDE = {
    "metric": "what it computes is only reported, and no gradient comes of it",
    "setup": "it is gone through before a training begins, and is no part of a step",
    "data": "it makes or moves samples before a step has its batch, and the toy draws its batches itself",
    "reward": "it judges answers that are text, and the toy's are numbers",
}


def entrance(contract: Contract, settings: Mapping[str, Any], signal: str = "") -> Entrance:
    """:param settings: a scenario's.
    :param signal: what of the training signal is wrong, as the recipe says.
    :raises SentinelError: for a contract that the toy cannot be trained through.
    """
    name = statistic(settings) if contract.name == "masked_statistics" else contract.name
    if name in ENTRANCES:
        return ENTRANCES[name]
    why = _OUTSIDE.get(signal, "no part of the toy's step is what it does")
    if contract.open_keys:
        why = "any function can be bound to it, and it says of no answer what it means for a gradient"
    raise SentinelError(f"a toy policy cannot be trained through {name}: {why}")
