"""The toy is right by itself: its gradient, its sampling, its reward."""

from __future__ import annotations

import numpy as np

from sentinel.impact import toy
from sentinel.impact.batches import Batch, advantages, draw, k3, ppo, token_mean
from sentinel.impact.toy import Adam, Array


def _parameters(seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=toy.untrained().shape)


def _batch(parameters: Array, step: int = 0, rejected: bool = False) -> Batch:
    return draw(1, step, parameters, parameters, rejected)


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


def test_slopes_of_logits_are_as_good_as_those_of_log_probs() -> None:
    parameters = _parameters()
    batch = _batch(parameters)
    weights = np.random.default_rng(4).normal(size=batch.mask.shape)
    jacobian = np.eye(toy.VOCABULARY)[batch.tokens] - np.exp(batch.logits) / np.exp(batch.logits).sum(-1, keepdims=True)
    direct = toy.gradient(parameters, batch.prompts, batch.tokens, weights)
    assert np.allclose(toy.gradient(parameters, batch.prompts, batch.tokens, weights[..., None] * jacobian), direct)


def test_the_critics_and_the_next_tokens_gradients_are_those_of_finite_differences() -> None:
    parameters = _parameters()
    batch = _batch(parameters)
    weights = np.random.default_rng(4).normal(size=batch.mask.shape)
    after = np.concatenate([np.zeros(weights.shape), weights[:, :1]], axis=1)

    def value(at: Array) -> float:
        return float((weights * toy.values(at, batch.prompts, batch.tokens)[:, :-1]).sum())

    def following(at: Array) -> float:
        return float((weights[:, 0] * toy.log_probs(at, batch.prompts, toy.with_next(batch.tokens))[:, -1]).sum())

    of_values = toy.value_gradient(batch.prompts, batch.tokens, weights)
    of_next = toy.gradient(parameters, batch.prompts, batch.tokens, after)
    for loss, found in ((value, of_values), (following, of_next)):
        touched = np.argwhere(np.abs(found) > 1e-3)
        for row, column in touched[:: max(len(touched) // 10, 1)]:
            step = np.zeros_like(parameters)
            step[row, column] = 1e-6
            slope = (loss(parameters + step) - loss(parameters - step)) / 2e-6
            assert np.isclose(found[row, column], slope, rtol=1e-4, atol=1e-6)
    assert not of_values[:, : toy.VOCABULARY].any()
    assert not of_next[:, toy.VOCABULARY :].any()


def test_a_cold_policy_says_the_likeliest_and_what_it_says_has_log_probs() -> None:
    parameters = _parameters()
    cold = draw(1, 0, parameters, parameters, temperature=0.0)
    assert (cold.tokens == toy.greedy(parameters)[cold.prompts]).all()
    assert np.allclose(cold.old_log_probs, cold.log_probs)
    warm = draw(1, 0, parameters, parameters, temperature=2.0)
    assert np.allclose(warm.old_log_probs, toy.log_probs(parameters / 2, warm.prompts, warm.tokens))


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


def test_a_right_answer_earns_one() -> None:
    tokens = np.full((len(toy.TARGETS), toy.COLUMNS), toy.EOS)
    for row, target in enumerate(toy.TARGETS):
        tokens[row, : len(target)] = target
    assert (toy.rewards(np.arange(len(tokens)), tokens) == 1).all()


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
    assert not _batch(toy.untrained(), rejected=True).mask.any()


def test_the_random_numbers_do_not_depend_on_the_policy() -> None:
    one, same, other = (_batch(toy.untrained(), step).tokens for step in (2, 2, 5))
    assert (one == same).all()
    assert not (one == other).all()


def test_it_learns() -> None:
    adam = Adam(toy.untrained())
    before = toy.expected_reward(adam.parameters)
    for step in range(30):
        batch = draw(0, step, adam.parameters, adam.parameters)
        slopes = token_mean(batch, ppo(batch, advantages(batch))[1])
        adam.step(toy.gradient(adam.parameters, batch.prompts, batch.tokens, slopes))
    assert toy.expected_reward(adam.parameters) > before + 0.15


def test_one_nan_in_the_gradient_ends_it_all() -> None:
    adam = Adam(toy.untrained())
    gradient = np.zeros_like(adam.parameters)
    gradient[7, 1] = np.nan
    adam.step(gradient)
    assert np.isnan(adam.parameters).all()


def test_a_gradient_that_is_too_long_is_cut() -> None:
    long, cut = Adam(toy.untrained()), Adam(toy.untrained())
    gradient = np.zeros_like(long.parameters)
    gradient[3, 2] = 1.0
    cut.step(gradient)
    long.step(1000 * gradient)
    assert np.allclose(long.parameters, cut.parameters)
