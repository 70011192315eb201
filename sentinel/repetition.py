"""The same question once more, in another process, so that the answer cannot rest on how it was asked.

The second time the variants of a scenario come in another order and under names that nobody could know, and the global
generators have another seed.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from typing import Any

from sentinel.outcomes import Observation
from sentinel.worker import protocol

#: The seed of the repetition; the first time it is :data:`sentinel.worker.probe.SEED`.
SEED = 20260822


class Repetition:
    """A request, disguised, and its answer, made out again.

    :ivar request: what to send.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        variants = list(request["variants"].items())
        self._order = list(request["variants"])
        random.SystemRandom().shuffle(variants)
        self._names = {secrets.token_hex(8): name for name, _ in variants}
        disguised = {made_up: inputs for made_up, (_, inputs) in zip(self._names, variants)}
        self.request = {**request, "variants": disguised, "seed": SEED}

    def made_out(self, observation: Mapping[str, Any]) -> Observation:
        """An observation under the names of the recipe.

        :raises KeyError: where it lacks a variant.
        """
        told = {name: observation[made_up] for made_up, name in self._names.items()}
        return {name: told[name] for name in self._order}


def same(one: Observation, other: Observation) -> bool:
    """Whether two observations are the same to the last bit; NaN is NaN."""
    return protocol.encode(one) == protocol.encode(other)
