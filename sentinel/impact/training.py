"""Training at base and at head: one policy each a seed, with the same random numbers, all seeds step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sentinel.impact import toy
from sentinel.impact.batches import STALENESS, Batch, draw, lone
from sentinel.impact.scenes import Scene
from sentinel.impact.toy import Adam, Array
from sentinel.invariants.invariant import Inputs
from sentinel.values import Tensor

#: A scenario's rarities are in every batch of this number.
EVERY = 10

#: name -> what a boundary is given; name -> what it did.
Observe = Callable[[Mapping[str, Inputs]], Mapping[str, Mapping[str, object]]]

_SIDES = ("base", "head")

#: What single precision may do to a gradient of some hundred tokens: to its norm, and to its angle in degrees.
_ROUNDING = 1e-5
_ROUNDING_ANGLE = 1e-3


@dataclass(frozen=True)
class Moment:
    """One step of one seed.

    :ivar base_reward, head_reward: what each policy earns on the average after the step; None where it has parameters
        that are no numbers.
    :ivar compared: whether the gradients of base and head, both at head's parameters and on head's batch, could be
        compared; where not, head has stopped, and what follows says nothing.
    :ivar angle: in degrees, between them; None where one of them is zero or not finite.
    :ivar ratio: base's norm by head's, likewise.
    :ivar same: whether they are the same bit for bit.
    :ivar base_finite, head_finite: whether these gradients are.
    :ivar base_output_finite, head_output_finite: whether what the boundary returned is.
    :ivar zero: the side whose gradient is 0, where the other's is not; else empty.
    """

    base_reward: float | None
    head_reward: float | None
    compared: bool = False
    angle: float | None = None
    ratio: float | None = None
    same: bool = True
    base_finite: bool = True
    head_finite: bool = True
    base_output_finite: bool = True
    head_output_finite: bool = True
    zero: str = ""

    @property
    def differs(self) -> bool:
        """Whether they differ by more than rounding in single precision does."""
        if self.angle is None or self.ratio is None:
            return not self.same
        return self.angle > _ROUNDING_ANGLE or abs(self.ratio - 1) > _ROUNDING


@dataclass
class Course:
    """Trains as long as it is asked to; what is done is done, and an interruption takes nothing of it.

    :ivar seeds: how many.
    :ivar moments: a step -> one a seed.
    """

    scene: Scene
    base: Observe
    head: Observe
    seeds: int
    moments: list[tuple[Moment, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._policies = {side: [_Policy() for _ in range(self.seeds)] for side in _SIDES}

    def step(self) -> None:
        """One more step of every seed at both sides."""
        number = len(self.moments)
        batches = {
            side: [policy.batch(seed, number, self.scene) for seed, policy in enumerate(self._policies[side])]
            for side in _SIDES
        }
        rare = [_rare(seed, number, self.scene) for seed in range(self.seeds)]
        own = self._gradients(self.base, "base", batches["base"], rare)
        # Base's boundary also looks at what head does: the one place where both are asked the same.
        base = self._gradients(self.base, "head", batches["head"], rare)
        head = self._gradients(self.head, "head", batches["head"], rare)
        for side, found in (("base", own), ("head", head)):
            for policy, gradient in zip(self._policies[side], found):
                policy.learn(gradient)
        self.moments.append(tuple(self._moment(seed, base[seed], head[seed]) for seed in range(self.seeds)))

    def _gradients(
        self, observe: Observe, side: str, batches: Sequence[Batch | None], rare: Sequence[Array | None]
    ) -> list[_Found | None]:
        """Of each seed, in one exchange with the boundary; None where the policy has stopped."""
        calls = {
            f"{seed}.{part}": inputs
            for seed, batch in enumerate(batches)
            if batch is not None
            for part, inputs in enumerate(self.scene.calls(batch, rare[seed]))
        }
        answers = observe(calls) if calls else {}
        outputs = [item.key for item in self.scene.contract.observes if item.role == "output"]
        found: list[_Found | None] = []
        for seed, batch in enumerate(batches):
            if batch is None:
                found.append(None)
                continue
            parts = [answers[name] for name in calls if name.startswith(f"{seed}.")]
            parameters = self._policies[side][seed].adam.parameters
            with np.errstate(invalid="ignore", over="ignore"):  # that a gradient is not finite is told in words
                gradient = toy.gradient(parameters, batch.prompts, batch.tokens, self.scene.slopes(batch, parts))
                of_values = self.scene.value_slopes(batch, parts)
                if of_values is not None:
                    gradient += toy.value_gradient(batch.prompts, batch.tokens, of_values)
            found.append(_Found(gradient, all(_finite(part.get(key)) for part in parts for key in outputs)))
        return found

    def _moment(self, seed: int, base: _Found | None, head: _Found | None) -> Moment:
        earned = (self._policies["base"][seed].reward(), self._policies["head"][seed].reward())
        if base is None or head is None:
            return Moment(*earned)
        angle, ratio = _apart(base.gradient, head.gradient)
        return Moment(
            *earned,
            True,
            angle,
            ratio,
            bool(np.array_equal(base.gradient, head.gradient, equal_nan=True)),
            bool(np.isfinite(base.gradient).all()),
            bool(np.isfinite(head.gradient).all()),
            base.output_finite,
            head.output_finite,
            _zero(base.gradient, head.gradient),
        )


@dataclass(frozen=True)
class _Found:
    gradient: Array
    output_finite: bool


class _Policy:
    """One that learns, and the older state of it that generates."""

    def __init__(self) -> None:
        self.adam = Adam(toy.untrained())
        self._generating = self.adam.parameters

    def batch(self, seed: int, step: int, scene: Scene) -> Batch | None:
        if not np.isfinite(self.adam.parameters).all():
            return None
        if step % STALENESS == 0:
            self._generating = self.adam.parameters
        rejected = scene.all_rejected and _is_rare(step)
        batch = draw(
            seed,
            step,
            self._generating,
            self.adam.parameters,
            rejected,
            scene.group_sizes,
            scene.rejecting,
            scene.temperature,
            scene.cut_off and _is_rare(step),
        )
        return lone(batch) if scene.lone and _is_rare(step) else batch

    def learn(self, found: _Found | None) -> None:
        if found is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                self.adam.step(found.gradient)

    def reward(self) -> float | None:
        finite = np.isfinite(self.adam.parameters).all()
        return toy.expected_reward(self.adam.parameters) if finite else None


def _is_rare(step: int) -> bool:
    return (step + 1) % EVERY == 0


def _rare(seed: int, step: int, scene: Scene) -> Array | None:
    """Where the rarities of a step go, as uniform numbers; the same at base and at head."""
    if not _is_rare(step):
        return None
    return np.random.default_rng([seed, step, EVERY]).random(len(scene.rarities))


def _zero(base: Array, head: Array) -> str:
    sides = [side for side, gradient in zip(_SIDES, (base, head)) if not gradient.any()]
    return sides[0] if len(sides) == 1 else ""


def _apart(base: Array, head: Array) -> tuple[float | None, float | None]:
    """The angle in degrees and the ratio of the norms."""
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.sqrt((base**2).sum())), float(np.sqrt((head**2).sum()))
    if not (all(np.isfinite(norms)) and all(norms)):
        return None, None
    # By way of the difference of the directions: an arc cosine loses half the digits of a small angle.
    apart = float(np.linalg.norm(base / norms[0] - head / norms[1]))
    return float(np.degrees(2 * np.arcsin(min(apart / 2, 1.0)))), norms[0] / norms[1]


def _finite(value: object) -> bool:
    """Whether every number of something observed is; what is no number is none that is not."""
    if isinstance(value, Tensor):
        return bool(np.isfinite(value.array()).all())
    return not isinstance(value, float) or bool(np.isfinite(value))
