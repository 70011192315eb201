"""Say what a boundary does in a training step: what it is given of a batch, what its answer means for the gradient.

There are two kinds of part: a loss over the policy's log-probs, and the advantages. Which one a contract's boundaries
do is read off the contract. All else of the step is the plain formulas of :mod:`sentinel.impact.batches`: PPO's clipped
loss, averaged over the tokens that count, with GRPO's advantages and, in an aggregated loss, a little KL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.impact.batches import Batch, advantages, centred, k3, over_prompt, over_tokens, ppo, token_mean
from sentinel.impact.toy import Array

#: Coefficient of the KL to the untrained policy, where there is one.
_KL = 0.02

#: Canonical input of a loss -> its values in a batch. A mask is the batch's, a configuration value the scenario's.
_LOSS_INPUTS: Mapping[str, Callable[[Batch], Array]] = {
    "log_probs": lambda batch: batch.log_probs,
    # The policy that generated is the proximal one too: there is no other to correct for.
    **dict.fromkeys(
        ("old_log_probs", "rollout_log_probs", "proximal_log_probs", "behaviour_log_probs"),
        lambda batch: batch.old_log_probs,
    ),
    "ref_log_probs": lambda batch: batch.ref_log_probs,
    "advantages": advantages,
    "scores": lambda batch: advantages(batch)[:, 0],
    "importance_weights": lambda batch: np.ones(batch.mask.shape),
    "loss_mat": lambda batch: _losses(batch)[0],
    "weights": lambda batch: np.ones(len(batch.rewards)),
    "group": lambda batch: batch.labels,
}

#: Likewise of what computes advantages, or rewards that are the advantages of their responses.
_ADVANTAGE_INPUTS: Mapping[str, Callable[[Batch], Array]] = {
    "token_level_rewards": lambda batch: batch.token_rewards,
    "rewards": lambda batch: batch.rewards,
    "advantages": lambda batch: over_tokens(batch, centred(batch)),
    # The critic knows the mean reward of each prompt, and says it at every token; a baseline is the same.
    "reward_baselines": lambda batch: over_prompt(batch, np.mean),
    "values": lambda batch: over_tokens(batch, over_prompt(batch, np.mean)),
    **dict.fromkeys(("log_probs", "old_log_probs"), lambda batch: batch.old_log_probs),
    "ref_log_probs": lambda batch: batch.ref_log_probs,
    "kl": lambda batch: batch.old_log_probs - batch.ref_log_probs,
    "sum_squared_probs": lambda batch: batch.sum_squared_probs,
    "group": lambda batch: batch.labels,
}


@dataclass(frozen=True)
class Part:
    """Hold what a boundary does in a training step.

    :ivar name: ``loss`` or ``advantages``.
    :ivar key: the observation that the gradient comes of.
    :ivar is_per_row: whether that is one number a response; else it is one a token.
    :ivar inputs: canonical input -> its values in a batch.
    :ivar slopes: (batch, what was observed) -> the slope of the loss with respect to each token's log-prob.
    """

    name: str
    key: str
    is_per_row: bool
    inputs: Mapping[str, Callable[[Batch], Array]]
    slopes: Callable[[Batch, Array], Array]


def part_of(contract: Contract) -> Part | None:
    """Return the part of a step that the contract's boundaries do; None where it is neither a loss nor advantages."""
    names = {item.name for item in contract.inputs}
    tensors = {item.name for item in contract.inputs if item.shape} - {contract.mask}
    differentiable = next((item.name for item in contract.inputs if item.differentiable), "")
    tokens = ("batch", "tokens")
    for item in contract.observes:
        if differentiable in ("log_probs", "loss_mat") and item.role == "gradient" and item.shape == tokens:
            slopes = _chained if differentiable == "loss_mat" else _as_they_are
            if not names & {"advantages", "loss_mat"}:  # a term beside the policy loss: alone it teaches nothing
                slopes = _added if "loss" in contract.keys else _averaged_and_added
            return Part("loss", item.key, False, _LOSS_INPUTS, slopes) if tensors <= _LOSS_INPUTS.keys() else None
        if item.key in ("advantages", "normalised") and item.role == "output" and item.shape in (tokens, ("batch",)):
            known = tensors <= _ADVANTAGE_INPUTS.keys()
            part = Part("advantages", item.key, item.shape != tokens, _ADVANTAGE_INPUTS, _of_advantages)
            return part if known else None
    return None


def _losses(batch: Batch) -> tuple[Array, Array]:
    """Return the loss of each token, whether it counts or not, and its slope."""
    (loss, slope), (kl, kl_slope) = ppo(batch, advantages(batch)), k3(batch)
    return loss + _KL * kl, slope + _KL * kl_slope


def _as_they_are(batch: Batch, gradient: Array) -> Array:
    return gradient


def _chained(batch: Batch, gradient: Array) -> Array:
    """Apply the chain rule to the gradient with respect to the tokens' losses."""
    return np.asarray(gradient * _losses(batch)[1])


def _added(batch: Batch, gradient: Array) -> Array:
    """Add the policy loss to a loss that stands beside it."""
    return np.asarray(token_mean(batch, ppo(batch, advantages(batch))[1]) + gradient)


def _averaged_and_added(batch: Batch, gradient: Array) -> Array:
    """Add the mean over the tokens that count; what is at others is multiplied by 0, so that NaN stays NaN."""
    return _added(batch, _KL * gradient * token_mean(batch, np.ones(batch.mask.shape)))


def _of_advantages(batch: Batch, values: Array) -> Array:
    return token_mean(batch, ppo(batch, over_tokens(batch, values) if values.ndim == 1 else values)[1])
