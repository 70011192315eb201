"""Train at base and at head: one policy each a seed, with the same random numbers, all seeds step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sentinel.contracts.contract import Inputs
from sentinel.impact import toy
from sentinel.impact.batches import Batch, draw
from sentinel.impact.scenario import angle_and_ratio
from sentinel.impact.setup import EVERY, Setup
from sentinel.impact.toy import Adam, Array

#: name -> what a boundary is given; name -> what it did.
Observe = Callable[[Mapping[str, Inputs]], Mapping[str, Mapping[str, Any]]]

SIDES = ("base", "head")

#: After so many steps the policy that generates is brought up to date; until then it is one and two steps behind.
_STALENESS = 3


class Training:
    """Train for as many steps as are asked for; what is done stays, also where the user interrupts.

    :param seeds: how many.
    :ivar steps: of each step an array [seeds, 6]: the rewards that base's and head's policy earn on average after it
        (NaN where its parameters are); the norms of base's and head's gradient at head's parameters and on head's
        batch (infinite where a number of it is not finite), the angle between these two in degrees, and the ratio of
        their norms. All four are NaN where head has stopped; the last two also where a norm is zero or infinite.
    """

    def __init__(self, setup: Setup, base: Observe, head: Observe, seeds: int) -> None:
        self.setup, self.seeds = setup, seeds
        self._observe = {"base": base, "head": head}
        self._policies = {side: [_Policy(setup, seed) for seed in range(seeds)] for side in SIDES}
        self.steps: list[Array] = []

    def step(self) -> None:
        """Take one more step of every seed at both sides."""
        batches = {side: [policy.batch(len(self.steps)) for policy in self._policies[side]] for side in SIDES}
        record = np.full((self.seeds, 6), np.nan)
        with np.errstate(invalid="ignore", over="ignore"):  # that a gradient is not finite is in its norm
            own = self._gradients("base", "base", batches)
            # Base's boundary also sees head's batch: the one place where both are asked the same.
            pairs = zip(self._gradients("base", "head", batches), self._gradients("head", "head", batches))
            for seed, (base, head) in enumerate(pairs):
                for column, side, gradient in ((0, "base", own[seed]), (1, "head", head)):
                    record[seed, column] = self._policies[side][seed].learn(gradient)
                if base is not None and head is not None:
                    norms = [np.nan_to_num(np.sqrt((of**2).sum()), nan=np.inf) for of in (base, head)]
                    record[seed, 2:] = [*norms, *angle_and_ratio(base, head)]  # None becomes NaN
        self.steps.append(record)

    def _gradients(self, at: str, side: str, batches: Mapping[str, Sequence[Batch | None]]) -> list[Array | None]:
        """Return each seed's gradient, of one exchange with the boundary; None where the policy has stopped.

        :param at: whose boundary computes its part; the batches and parameters are those of ``side``.
        """
        going = {str(seed): batch for seed, batch in enumerate(batches[side]) if batch is not None}
        calls = {name: self.setup.inputs(batch, _has_rows(len(self.steps))) for name, batch in going.items()}
        answers = self._observe[at](calls) if calls else {}
        gradients: list[Array | None] = [None] * self.seeds
        for name, batch in going.items():
            parameters = self._policies[side][int(name)].adam.parameters
            slopes = self.setup.slopes(batch, answers[name])
            gradients[int(name)] = toy.gradient(parameters, batch.prompts, batch.tokens, slopes)
        return gradients


class _Policy:
    """Learn, and keep the older state that generates."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self._setup, self._seed = setup, seed
        self.adam = Adam(toy.untrained())
        self._generating = self.adam.parameters

    def batch(self, step: int) -> Batch | None:
        if not np.isfinite(self.adam.parameters).all():
            return None
        if step % _STALENESS == 0:
            self._generating = self.adam.parameters
        setup, parameters = self._setup, self.adam.parameters
        batch = draw(self._seed, step, self._generating, parameters, setup.group_sizes, setup.rejecting)
        return setup.with_rows(batch) if _has_rows(step) else batch

    def learn(self, gradient: Array | None) -> float:
        """Take a step; return the reward that the policy earns then."""
        if gradient is not None:
            self.adam.step(gradient)
        return toy.expected_reward(self.adam.parameters)


def _has_rows(step: int) -> bool:
    return (step + 1) % EVERY == 0
