"""Draw batches as training has them: groups of unequal size, padding, rejected responses, a policy a step ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentinel.impact import toy
from sentinel.impact.toy import Array

#: Responses to each prompt; the sizes take turns.
GROUP_SIZES = (4, 6, 8, 10, 12)

_CLIP = 0.2


@dataclass(frozen=True)
class Batch:
    """Hold the responses of one step.

    :ivar prompts: [batch], as numbers; the group of each row.
    :ivar mask: [batch, tokens]: up to the end of the response; nowhere in a response that does not end, which is
        rejected, as DAPO's overlong filtering does (arXiv:2503.14476, section 3.4).
    :ivar log_probs: [batch, tokens], of the policy that is trained; ``old_log_probs`` of the one that generated,
        ``ref_log_probs`` of the untrained one.
    :ivar sum_squared_probs: [batch, tokens], over the vocabulary, of the policy that generated.
    :ivar rewards: [batch], one a response; that of a response that does not end is noise, 0 or 1, which is why it is
        rejected.
    """

    prompts: Array
    tokens: Array
    mask: Array
    log_probs: Array
    old_log_probs: Array
    ref_log_probs: Array
    sum_squared_probs: Array
    rewards: Array

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
        """[batch, tokens]: the reward on the token that ends its response, or on the last column."""
        placed = np.zeros(self.mask.shape)
        ends = np.where(self.mask.any(-1), self.mask.sum(-1), self.mask.shape[1]) - 1
        placed[np.arange(len(ends)), ends] = self.rewards
        return placed


def draw(
    seed: int,
    step: int,
    generating: Array,
    trained: Array,
    group_sizes: Sequence[int] = GROUP_SIZES,
    rejecting: bool = True,
) -> Batch:
    """Draw the batch of a step: by the same random numbers whatever the parameters are.

    :param rejecting: whether responses that do not end are rejected; else all of their tokens count.
    """
    sizes = np.roll(group_sizes, step)
    prompts = np.repeat(np.arange(len(sizes)), sizes)
    uniforms = np.random.default_rng([seed, step]).random((len(prompts), toy.COLUMNS + 1))
    tokens = toy.sample(generating, prompts, uniforms[:, 1:])
    ends = tokens == toy.EOS
    rewards = np.where(ends.any(-1), toy.rewards(prompts, tokens), uniforms[:, 0] < 0.5)
    mask = (ends.cumsum(-1) - ends == 0) & (ends.any(-1, keepdims=True) | (not rejecting))
    distributions = toy.distributions(generating, prompts, tokens)
    return Batch(
        prompts,
        tokens,
        mask,
        toy.log_probs(trained, prompts, tokens),
        toy.of_tokens(distributions, tokens),
        toy.log_probs(toy.untrained(), prompts, tokens),
        (np.exp(distributions) ** 2).sum(-1),
        rewards,
    )


def advantages(batch: Batch) -> Array:
    """Return GRPO's advantages (arXiv:2402.03300, section 4.1.2), [batch, tokens], over each prompt's accepted rows.

    A rejected response and padding have one too: it is the mask that must keep them out of what follows.
    """
    std = over_prompt(batch, lambda rewards: np.ptp(rewards) and rewards.std(ddof=1))
    scaled = np.where(std == 0, 0.0, centred(batch) / np.where(std == 0, 1.0, std))  # equal rewards teach nothing
    return over_tokens(batch, scaled)


def centred(batch: Batch) -> Array:
    """Return the rewards less the mean of their prompt's accepted rows, [batch]."""
    return np.asarray(batch.rewards - over_prompt(batch, np.mean))


def over_tokens(batch: Batch, values: Array) -> Array:
    """Repeat one value a response at each of its tokens."""
    return np.repeat(values[:, None], batch.mask.shape[1], axis=1)


def over_prompt(batch: Batch, statistic: Callable[[Array], Any]) -> Array:
    """Return a statistic of the rewards of each row's prompt, over its accepted rows; 0 where there is none."""
    result = np.zeros(len(batch.rewards))
    accepted = batch.mask.any(-1)
    for prompt in np.unique(batch.prompts):
        rows = batch.prompts == prompt
        if (rows & accepted).any():
            result[rows] = statistic(batch.rewards[rows & accepted])
    return result


def ppo(batch: Batch, advantages: Array) -> tuple[Array, Array]:
    """Return the clipped loss of each token (arXiv:1707.06347), and its slope with respect to the log-prob."""
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    plain, cut = -advantages * ratio, -advantages * ratio.clip(1 - _CLIP, 1 + _CLIP)
    return np.maximum(plain, cut), np.where(plain < cut, 0.0, plain)  # so compared, NaN stays NaN


def k3(batch: Batch) -> tuple[Array, Array]:
    """Return the estimated KL to the untrained policy of each token, and its slope likewise."""
    log_r = batch.ref_log_probs - batch.log_probs
    return np.exp(log_r) - 1 - log_r, 1 - np.exp(log_r)


def token_mean(batch: Batch, slopes: Array) -> Array:
    """Return the slopes of the mean over the tokens that count."""
    return np.where(batch.mask, slopes, 0.0) / batch.counts["batch_num_tokens"]
