"""Define the toy: a softmax policy that is a table, the task that it learns, and the optimiser.

Every token's logits are a row of the table, chosen by prompt, position and previous token, plus a little of one row
that all share: through that one a token meets every other one, as it does through the weights of a network. So what a
masked token wrongly gives to the gradient has somewhere to go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The tokens are 0 to 7; the first ends a response, pads it, and stands before its first token.
EOS = 0
VOCABULARY = 8
COLUMNS = 6

#: The right response to each prompt, before its end; below it with the end, and -1 behind that.
TARGETS = ((3, 1), (5, 2, 7), (4, 4, 6), (1, 6, 2, 5), (7, 3, 5, 1, 2))
_RIGHT = np.array([[*target, EOS, *[-1] * (COLUMNS - 1 - len(target))] for target in TARGETS])

_SHARED = 0
_SHARE = 0.1
_SHAPE = (1 + len(TARGETS) * COLUMNS * VOCABULARY, VOCABULARY)

#: How many numbers the policy learns.
PARAMETERS = _SHAPE[0] * _SHAPE[1]


def untrained() -> Array:
    """Return the parameters at which every token is as likely as any other."""
    return np.zeros(_SHAPE)


def sample(parameters: Array, prompts: Array, uniforms: Array) -> Array:
    """Sample responses, [batch, tokens], by one uniform number a token; what follows the end is padding."""
    tokens = np.full((len(prompts), COLUMNS), EOS)
    ended = np.zeros(len(prompts), dtype=bool)
    for column in range(COLUMNS):
        odds = np.exp(_log_softmax(parameters, _states(prompts, tokens)[:, column]))
        drawn = (uniforms[:, column, None] > odds.cumsum(-1)).sum(-1).clip(max=VOCABULARY - 1)
        tokens[:, column] = np.where(ended, EOS, drawn)
        ended |= tokens[:, column] == EOS
    return tokens


def distributions(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """Return the log-probs of every token at each place, [batch, tokens, vocabulary]."""
    return _log_softmax(parameters, _states(prompts, tokens))


def log_probs(parameters: Array, prompts: Array, tokens: Array) -> Array:
    """Return the tokens' log-probs, [batch, tokens]; padding has some too, as it has in a network."""
    return of_tokens(distributions(parameters, prompts, tokens), tokens)


def of_tokens(distributions: Array, tokens: Array) -> Array:
    """Pick the tokens, [batch, tokens], from distributions, [batch, tokens, vocabulary]."""
    return np.take_along_axis(distributions, tokens[..., None], -1)[..., 0]


def gradient(parameters: Array, prompts: Array, tokens: Array, slopes: Array) -> Array:
    """Return the gradient of a loss with respect to the parameters.

    With logits z, ``d log p_a / d z_b = [a = b] - p_b``.

    :param slopes: [batch, tokens], of the loss with respect to the tokens' log-probs.
    """
    chosen = np.eye(VOCABULARY)[tokens]
    of_logits = slopes[..., None] * (chosen - np.exp(distributions(parameters, prompts, tokens)))
    total = np.zeros(_SHAPE)
    np.add.at(total, _states(prompts, tokens), of_logits)
    total[_SHARED] = _SHARE * of_logits.sum((0, 1))
    return total


def rewards(prompts: Array, tokens: Array) -> Array:
    """Return each response's share of right tokens, the end included, [batch]."""
    right = _RIGHT[prompts]
    return np.asarray(((tokens == right) & (right >= 0)).sum(-1) / (right >= 0).sum(-1))


def expected_reward(parameters: Array) -> float:
    """Return what the policy earns on average: exactly, for there are few enough states. NaN stays NaN."""
    earned = []
    for prompt in range(len(TARGETS)):
        places = _RIGHT[prompt][_RIGHT[prompt] >= 0]
        reached = np.eye(VOCABULARY)[EOS]  # how likely each previous token is
        hits = 0.0
        for column, right in enumerate(places):
            rows = 1 + (prompt * COLUMNS + column) * VOCABULARY + np.arange(VOCABULARY)
            moves = np.exp(_log_softmax(parameters, rows))
            if column:
                moves[EOS] = np.eye(VOCABULARY)[EOS]  # it has ended
            reached = reached @ moves
            hits += reached[right]
        earned.append(hits / len(places))
    return float(np.mean(earned))


def _states(prompts: Array, tokens: Array) -> Array:
    """Return the row of the table that each token's logits are, [batch, tokens]."""
    previous = np.concatenate([np.full((len(tokens), 1), EOS), tokens[:, :-1]], axis=1)
    return np.asarray(1 + (prompts[:, None] * COLUMNS + np.arange(COLUMNS)) * VOCABULARY + previous)


def _log_softmax(parameters: Array, rows: Array) -> Array:
    logits = parameters[rows] + _SHARE * parameters[_SHARED]
    logits = logits - logits.max(-1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


@dataclass
class Adam:
    """Update parameters by Adam (arXiv:1412.6980) with the gradient's norm cut, as trainers have it.

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
        """Take one step. One NaN in a gradient makes its norm NaN, and with it every parameter."""
        gradient = gradient * np.minimum(1.0, self.longest / (np.sqrt((gradient**2).sum()) + 1e-6))
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.999**self._count)
        self.parameters = self.parameters - self.rate * mean / (np.sqrt(square) + 1e-8)
