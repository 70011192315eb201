"""The toy is right by itself: its gradient, its sampling, its reward."""

from __future__ import annotations

import numpy as np

from sentinel.impact import toy
from sentinel.impact.batches import Batch, advantages, draw, k3, ppo
from sentinel.impact.toy import Adam, Array


def _parameters(seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=toy.untrained().shape)


def _batch(parameters: Array, step: int = 0) -> Batch:
    return draw(1, step, parameters, parameters)


def test_the_gradient_is_that_of_finite_differences() -> None:
    parameters = _parameters()
    batch = _batch(parameters)
    weights = np.random.default_rng(4).normal(size=batch.mask.shape)

    def loss(at: Array) -> float:
        return float((weights * toy.log_probs(at, batch.prompts, batch.tokens)).sum())

    found = toy.gradient(parameters, batch.prompts, batch.tokens, weights)
    touched = np.argwhere(np.abs(found) > 1e-3)
    for row, column in [(0, 0), (0, 5), *touched[:: len(touched) // 20]]:
        step = np.zeros_like(parameters)
        step[row, column] = 1e-6
        slope = (loss(parameters + step) - loss(parameters - step)) / 2e-6
        assert np.isclose(found[row, column], slope, rtol=1e-4, atol=1e-6)


def test_the_losses_slopes_are_those_of_finite_differences() -> None:
    parameters = _parameters()
    batch = draw(1, 0, parameters, _parameters(5))
    moved = np.full(batch.mask.shape, 1e-6)
    up, down = (Batch(**{**vars(batch), "log_probs": batch.log_probs + sign * moved}) for sign in (1, -1))
    for formula in (lambda b: ppo(b, advantages(batch)), k3):
        slope = (formula(up)[0] - formula(down)[0]) / 2e-6
        close = np.isclose(slope, formula(batch)[1], rtol=1e-4, atol=1e-4)
        assert close.mean() > 0.99  # a token may stand at the corner of the clip range


def test_the_expected_reward_is_what_many_samples_earn() -> None:
    parameters = _parameters()
    prompts = np.repeat(np.arange(len(toy.TARGETS)), 20_000)
    tokens = toy.sample(parameters, prompts, np.random.default_rng(0).random((len(prompts), toy.COLUMNS)))
    assert abs(toy.rewards(prompts, tokens).mean() - toy.expected_reward(parameters)) < 0.005


def test_batches_are_as_real_ones_are() -> None:
    batch = _batch(toy.untrained())
    sizes = {int((batch.prompts == prompt).sum()) for prompt in np.unique(batch.prompts)}
    accepted = batch.mask.any(-1)
    ends = batch.tokens == toy.EOS
    assert len(sizes) > 1, "groups of unequal size"
    assert (accepted == ends.any(-1)).all(), "rows without an end are rejected"
    assert 0 < accepted.sum() < len(accepted)
    assert (batch.mask.sum(-1)[accepted] == ends.argmax(-1)[accepted] + 1).all(), "a response ends with its end"
    assert not batch.mask.all(-1)[accepted].all(), "there is padding"
    assert (batch.token_rewards.sum(-1) == batch.rewards).all()
    assert set(batch.rewards[~accepted]) == {0.0, 1.0}, "what is rejected has a reward that is noise"


def test_a_gradient_that_is_too_long_is_cut() -> None:
    long, cut = Adam(toy.untrained()), Adam(toy.untrained())
    gradient = np.zeros_like(long.parameters)
    gradient[3, 2] = 1.0
    cut.step(gradient)
    long.step(1000 * gradient)
    assert np.allclose(long.parameters, cut.parameters)
