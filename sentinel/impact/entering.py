"""What an entrance is: how a boundary's part of a training step is told from the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentinel.errors import SentinelError
from sentinel.impact.batches import Batch
from sentinel.impact.toy import Array
from sentinel.values import Tensor

Observation = Mapping[str, Any]


@dataclass(frozen=True)
class Entrance:
    """:ivar part: what of the step the boundary does, in words.
    :ivar inputs: canonical input -> what the batch has for it; inputs that a contract or a recipe lacks are left out. A
        mask that is not here is the batch's.
    :ivar slopes: from what was observed, what :func:`sentinel.impact.toy.gradient` is made of: mostly one number a
        token, the slope of the loss with respect to its log-prob.
    :ivar value_slopes: likewise with respect to the critic's values, [batch, tokens]; None where there is no critic.
    :ivar whole: whether the boundary takes the whole step itself, over ranks and mini-batches, of which it observes the
        sum: what is trained with is their mean. Another boundary is that of one rank.
    :ivar temperature: the input that says with which temperature responses are sampled; empty: with 1.
    :ivar dialects: those by which the contract measures; no other is told to a boundary that stands beside another
        revision of itself.
    :ivar every_response: whether the boundary decides itself what becomes of responses that do not end.
    """

    part: str
    inputs: Callable[[Batch], Mapping[str, Array]]
    slopes: Callable[[Batch, Observation], Array]
    whole: bool = False
    value_slopes: Callable[[Batch, Observation], Array] | None = None
    temperature: str = ""
    dialects: tuple[str, ...] = ()
    every_response: bool = False


def observed(observation: Observation, key: str, shape: tuple[int, ...]) -> Array:
    """Numbers of this shape, as observed.

    :raises SentinelError: where there is something else.
    """
    value = observation.get(key)
    if not isinstance(value, Tensor) or value.shape != shape:
        found = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SentinelError(f"the boundary's {key} should be {list(shape)}, and is {found}")
    return value.array().astype(np.float64)


def of_tokens(observation: Observation, key: str, batch: Batch) -> Array:
    return observed(observation, key, batch.mask.shape)
