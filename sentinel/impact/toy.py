"""The toy: a softmax policy that is a table, the task that it learns, and the optimiser.

Every token's logits are a row of the table, chosen by prompt, position and previous token, plus a little of one row
that all share: through that one a token meets every other one, as it does through the weights of a network. So what a
masked token wrongly gives to the gradient has somewhere to go. The last column of the table is a critic: what it says
of a state is a number of the same row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The tokens are 0 to 7; the first ends a response, pads it, and stands before its first token.
EOS = 0
VOCABULARY = 8
COLUMNS = 6

#: The right response to each prompt, before its end.
TARGETS = ((3, 1), (5, 2, 7), (4, 4, 6), (1, 6, 2, 5), (7, 3, 5, 1, 2))

#: A token is chosen in the states before it; there is one more, which follows the last token.
_PLACES = COLUMNS + 1

_SHARED = 0
_SHARE = 0.1
_SHAPE = (1 + len(TARGETS) * _PLACES * VOCABULARY, VOCABULARY + 1)

#: How many numbers are learnt.
PARAMETERS = _SHAPE[0] * _SHAPE[1]


def untrained() -> Array:
    """The parameters at which every token is as likely as any other, and every value 0."""
    return np.zeros(_SHAPE)


def endless(parameters: Array) -> Array:
    """Parameters that are the same but for the end of a response, which is never sampled."""
    found = parameters.copy()
    found[_SHARED + 1 :, EOS] = -1e9
    return np.asarray(found)


def sample(parameters: Array, prompts: Array, uniforms: Array) -> Array:
    """Responses, [batch, tokens], one uniform number a token; what follows the end is padding."""

    def draw(column: int, logs: Array) -> Array:
        drawn = (uniforms[:, column, None] > np.exp(logs).cumsum(-1)).sum(-1)
        return np.asarray(drawn.clip(max=VOCABULARY - 1))

    return _generated(parameters, prompts, draw)


def distributions(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """The log-probs of every token that could stand at each place, [batch, tokens, vocabulary]."""
    return _log_softmax(parameters, _states(prompts, tokens))


def logits(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """What the distributions are the softmax of, [batch, tokens, vocabulary]."""
    return _heads(parameters, _states(prompts, tokens))[..., :VOCABULARY]


def values(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """What the critic says of the state before each token, and at last of that after them all, [batch, tokens + 1]."""
    return _heads(parameters, _states(prompts, with_next(tokens)))[..., VOCABULARY]


def with_next(tokens: Array) -> Array:
    """The tokens, and the one with which another sequence begins behind them."""
    return np.concatenate([tokens, np.full((len(tokens), 1), EOS)], axis=1)


def log_probs(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """Of the tokens, [batch, tokens]; padding has some too, as it has in a network."""
    return of_tokens(distributions(parameters, prompts, tokens), tokens)


def of_tokens(distributions: Array, tokens: Array) -> Array:
    """What distributions, [batch, tokens, vocabulary], say of the tokens, [batch, tokens]."""
    return np.take_along_axis(distributions, tokens[..., None], -1)[..., 0]


def gradient(parameters: Array, prompts: Array, tokens: Array, slopes: Array) -> Array:
    """Of a loss with respect to the parameters, from its slopes with respect to the tokens' log-probs.

    With logits z, ``d log p_a / d z_b = [a = b] - p_b``.

    :param slopes: [batch, tokens]; or [batch, tokens + 1], the last one of the token of :func:`with_next`; or [batch,
        tokens, vocabulary], with respect to the logits themselves.
    """
    if slopes.ndim == 3:
        return _gradient(prompts, tokens, slopes, slice(VOCABULARY))
    tokens = tokens if slopes.shape == tokens.shape else with_next(tokens)
    chosen = np.eye(VOCABULARY)[tokens]
    of_logits = slopes[..., None] * (chosen - np.exp(distributions(parameters, prompts, tokens)))
    return _gradient(prompts, tokens, of_logits, slice(VOCABULARY))


def value_gradient(prompts: Array, tokens: Array, slopes: Array) -> Array:
    """Likewise, from its slopes with respect to the critic's values, [batch, tokens]."""
    return _gradient(prompts, tokens, slopes[..., None], slice(VOCABULARY, None))


def _gradient(prompts: Array, tokens: Array, slopes: Array, columns: slice) -> Array:
    """Likewise, from its slopes with respect to what these columns say at each place."""
    found = np.zeros(_SHAPE)
    np.add.at(found[:, columns], _states(prompts, tokens), slopes)
    found[_SHARED, columns] = _SHARE * slopes.sum((0, 1))
    return found


def rewards(prompts: Array, tokens: Array) -> Array:
    """The share of the places of the right response, its end included, that have the right token."""
    right = _RIGHT[prompts]
    return np.asarray(((tokens == right) & (right >= 0)).sum(-1) / (right >= 0).sum(-1))


def expected_reward(parameters: Array) -> float:
    """What the policy earns on the average: exactly, for there are few enough states."""
    earned = []
    for prompt in range(len(TARGETS)):
        places = _RIGHT[prompt][_RIGHT[prompt] >= 0]
        reached = np.eye(VOCABULARY)[EOS]  # how likely each previous token is
        hits = 0.0
        for column, right in enumerate(places):
            rows = 1 + (prompt * _PLACES + column) * VOCABULARY + np.arange(VOCABULARY)
            moves = np.exp(_log_softmax(parameters, rows))
            if column:
                moves[EOS] = np.eye(VOCABULARY)[EOS]  # it has ended
            reached = reached @ moves
            hits += reached[right]
        earned.append(hits / len(places))
    return float(np.mean(earned))


def greedy(parameters: Array) -> Array:
    """The likeliest response to each prompt, token by token."""
    return _generated(parameters, np.arange(len(TARGETS)), lambda column, logs: np.asarray(logs.argmax(-1)))


def _generated(parameters: Array, prompts: Array, choose: Callable[[int, Array], Array]) -> Array:
    """Responses, [batch, tokens], of which ``choose`` gives a column from its log-probs, [batch, vocabulary]."""
    tokens = np.full((len(prompts), COLUMNS), EOS)
    ended = np.zeros(len(prompts), dtype=bool)
    for column in range(COLUMNS):
        chosen = choose(column, _log_softmax(parameters, _states(prompts, tokens)[:, column]))
        tokens[:, column] = np.where(ended, EOS, chosen)
        ended |= tokens[:, column] == EOS
    return tokens


def _right() -> Array:
    right = np.full((len(TARGETS), COLUMNS), -1)
    for prompt, target in enumerate(TARGETS):
        right[prompt, : len(target) + 1] = (*target, EOS)
    return right


_RIGHT = _right()


def _states(prompts: Array, tokens: Array) -> Array:
    """The row of the table that each place has; of tokens, or of :func:`with_next`."""
    previous = np.concatenate([np.full((len(tokens), 1), EOS), tokens[:, :-1]], axis=1)
    return np.asarray(1 + (prompts[:, None] * _PLACES + np.arange(tokens.shape[1])) * VOCABULARY + previous)


def _heads(parameters: Array, rows: Array) -> Array:
    return np.asarray(parameters[rows] + _SHARE * parameters[_SHARED])


def _log_softmax(parameters: Array, rows: Array) -> Array:
    logits = _heads(parameters, rows)[..., :VOCABULARY]
    logits = logits - logits.max(-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


@dataclass
class Adam:
    """Adam (arXiv:1412.6980) with the gradient's norm cut, as trainers have it.

    Adam divides a gradient by its own size: a loss that is wrong by a constant factor alone costs as little here as it
    does in training.
    """

    parameters: Array
    rate: float = 0.1
    longest: float = 1.0

    def __post_init__(self) -> None:
        self._mean, self._square = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        self._count = 0

    def step(self, gradient: Array) -> None:
        """One NaN in a gradient makes its norm NaN, and with it every parameter."""
        gradient = gradient * np.minimum(1.0, self.longest / (np.sqrt((gradient**2).sum()) + 1e-6))
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.999**self._count)
        self.parameters = self.parameters - self.rate * mean / (np.sqrt(square) + 1e-8)
