"""Batches as training has them: groups of unequal size, padding, rejected responses, a policy that is a step ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.impact import toy
from sentinel.impact.toy import Array

#: Responses to each prompt; they take turns.
GROUP_SIZES = (4, 6, 8, 10, 12)

#: After so many steps the policy that generates is brought up to date; until then it is one and two steps behind.
STALENESS = 3

_CLIP = 0.2

#: What stands for the temperature 0, which takes the likeliest token; tokens that are as likely take turns.
_COLD = 1e-6


@dataclass(frozen=True)
class Batch:
    """:ivar prompts: [batch], as numbers; the group of each row.
    :ivar mask: [batch, tokens]: up to the end of the response; nowhere in a response that does not end, which is
        rejected, as DAPO's overlong filtering does (arXiv:2503.14476, section 3.4).
    :ivar log_probs: [batch, tokens], of the policy that is trained; ``old_log_probs`` of the one that generated,
        ``ref_log_probs`` of the untrained one.
    :ivar logits: [batch, tokens, vocabulary], of the policy that is trained.
    :ivar next_log_probs: [batch], what it says after the last column of the token with which another row begins.
    :ivar values: [batch, tokens + 1], of the critic that is trained: of the state before each token, and of that after
        the last column; ``old_values`` of the one there was when the batch was generated.
    :ivar sum_squared_probs: [batch, tokens], over the vocabulary, of the policy that generated.
    :ivar rewards: [batch], one a response; that of a response that does not end is noise, 0 or 1, which is why it is
        rejected. ``greedy_rewards`` are those of the likeliest response to the row's prompt.
    """

    prompts: Array
    tokens: Array
    mask: Array
    log_probs: Array
    old_log_probs: Array
    ref_log_probs: Array
    logits: Array
    next_log_probs: Array
    values: Array
    old_values: Array
    sum_squared_probs: Array
    rewards: Array
    greedy_rewards: Array

    @property
    def counts(self) -> dict[str, int]:
        """The global counts that losses divide by; 1 where there is nothing to count."""
        return {
            "batch_num_tokens": max(int(self.mask.sum()), 1),
            "global_batch_size": max(int(self.mask.any(-1).sum()), 1),
        }

    @property
    def labels(self) -> Array:
        """[batch], the name of each row's prompt."""
        return np.array([f"prompt {number}" for number in self.prompts])

    @property
    def token_rewards(self) -> Array:
        """The reward on the last token of its response: that which ends it, or the last there is."""
        placed = np.zeros(self.mask.shape)
        ends = np.where(self.mask.any(-1), self.mask.sum(-1), self.mask.shape[1]) - 1
        placed[np.arange(len(ends)), ends] = self.rewards
        return placed


def draw(
    seed: int,
    step: int,
    generating: Array,
    trained: Array,
    rejected: bool = False,
    group_sizes: Sequence[int] = GROUP_SIZES,
    rejecting: bool = True,
    temperature: float = 1.0,
    endless: bool = False,
) -> Batch:
    """The batch of a step: the same random numbers whatever the parameters are.

    :param rejected: whether every response is.
    :param rejecting: whether responses that do not end are rejected; else all of their tokens count.
    :param temperature: of the policy that generates. With 0 its log-probs are those without one.
    :param endless: whether no response ends.
    """
    sizes = np.roll(group_sizes, step)
    prompts = np.repeat(np.arange(len(sizes)), sizes)
    uniforms = np.random.default_rng([seed, step]).random((len(prompts), toy.COLUMNS + 1))
    sampled = toy.endless(generating) if endless else generating / (temperature or _COLD)
    tokens = toy.sample(sampled, prompts, uniforms[:, 1:])
    ends = tokens == toy.EOS
    scores = np.where(ends.any(-1), toy.rewards(prompts, tokens), uniforms[:, 0] < 0.5)
    mask = (ends.cumsum(-1) - ends == 0) & (ends.any(-1, keepdims=True) | (not rejecting)) & (not rejected)
    everything = toy.distributions(generating / (temperature or 1.0), prompts, tokens)
    return Batch(
        prompts,
        tokens,
        mask,
        toy.log_probs(trained, prompts, tokens),
        toy.of_tokens(everything, tokens),
        toy.log_probs(toy.untrained(), prompts, tokens),
        toy.logits(trained, prompts, tokens),
        toy.log_probs(trained, prompts, toy.with_next(tokens))[:, -1],
        toy.values(trained, prompts, tokens),
        toy.values(generating, prompts, tokens),
        (np.exp(everything) ** 2).sum(-1),
        scores,
        toy.rewards(np.arange(len(sizes)), toy.greedy(generating))[prompts],
    )


def lone(batch: Batch) -> Batch:
    """The batch of which only the first token that counts still does."""
    counted = batch.mask.cumsum().reshape(batch.mask.shape)
    return replace(batch, mask=batch.mask & (counted == 1))


def advantages(batch: Batch) -> Array:
    """GRPO's (arXiv:2402.03300, section 4.1.2), [batch, tokens]: of a response, over the accepted ones to its prompt.

    A rejected response and padding have one too: it is the mask that must keep them out of what follows.
    """
    mean = over_prompt(batch, batch.rewards, np.mean)
    std = over_prompt(batch, batch.rewards, lambda scores: np.ptp(scores) and scores.std(ddof=1))
    # Equal scores teach nothing. So asked, NaN stays NaN.
    found = np.where(std == 0, 0.0, (batch.rewards - mean) / np.where(std == 0, 1.0, std))
    return over_tokens(batch, found)


def over_tokens(batch: Batch, values: Array) -> Array:
    """One value a response, at each of its tokens."""
    return np.repeat(values[:, None], batch.mask.shape[1], axis=1)


def over_prompt(batch: Batch, values: Array, statistic: Callable[[Array], Any]) -> Array:
    """A statistic of the values of a row's prompt, over its accepted rows; 0 where there is none."""
    found = np.zeros(len(values))
    accepted = batch.mask.any(-1)
    for prompt in np.unique(batch.prompts):
        rows = batch.prompts == prompt
        if (rows & accepted).any():
            found[rows] = statistic(values[rows & accepted])
    return found


def ppo(batch: Batch, advantages: Array) -> tuple[Array, Array]:
    """The loss of each token (arXiv:1707.06347), and its slope with respect to the token's log-prob."""
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    plain, cut = -advantages * ratio, -advantages * ratio.clip(1 - _CLIP, 1 + _CLIP)
    return np.maximum(plain, cut), np.where(plain < cut, 0.0, plain)  # so asked, NaN stays NaN


def k3(batch: Batch) -> tuple[Array, Array]:
    """The estimate of the KL to the untrained policy of each token, and its slope likewise."""
    log_r = batch.ref_log_probs - batch.log_probs
    return np.exp(log_r) - 1 - log_r, 1 - np.exp(log_r)


def token_mean(batch: Batch, slopes: Array) -> Array:
    """The slopes of the mean over the tokens that count."""
    return np.where(batch.mask, slopes, 0.0) / batch.counts["batch_num_tokens"]
