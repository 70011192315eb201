"""Report the impact of a bug as tables, one sentence each, and as a document.

``impact.json``: ``impact_version`` 2; ``bug_id``, ``title``, ``target``, ``contract``, ``boundary``; ``base`` and
``head``: ``ref``, ``revision`` and ``verdict``; ``scenario``: a list of :class:`sentinel.impact.scenario.Row`, a pair
being [base, head]; ``training``: null, or the toy's ``parameters`` and ``seeds``, the boundary's ``part`` of a step,
the ``variant`` of the scenario and its ``configuration``, ``notes`` on the batches, ``rows``, ``visible``, ``curves``
(``base`` and ``head``: a list a seed with the reward after each step; NaN: stopped), and ``angle`` and ``ratio`` of the
gradients likewise (NaN: one is zero or not finite); ``sentences``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sentinel.contracts.contract import Contract
from sentinel.impact import scenario, toy
from sentinel.impact.places import REFERENCE, Place
from sentinel.impact.scenario import Row, compare, short
from sentinel.impact.toy import Array
from sentinel.impact.training import SIDES, Training
from sentinel.recipes import Recipe
from sentinel.reports.summary import aligned
from sentinel.values.literals import plain

RULE = (
    "an effect is visible where learning stops in more seeds at one side, or else where the ranges of the seeds' "
    "rewards, over the last tenth of the steps or over all, do not overlap"
)


#: What single precision may do to a gradient of some hundred tokens: to its norm, and to its angle in degrees.
_ROUNDING = 1e-5
_ROUNDING_ANGLE = 1e-3


class Curves:
    """Summarise the steps of a training, of which there is at least one.

    :ivar rewards: side -> [steps, seeds], NaN once a policy has stopped; ``norms`` likewise (see
        :attr:`sentinel.impact.training.Training.steps`).
    :ivar angle: [steps, seeds]; ``ratio`` likewise.
    :ivar differs: [steps, seeds], where the gradients differ by more than rounding in single precision does.
    """

    def __init__(self, steps: Sequence[Array]) -> None:
        base, head, *norms, self.angle, self.ratio = np.moveaxis(np.array(steps), -1, 0)
        self.rewards, self.norms = dict(zip(SIDES, (base, head))), dict(zip(SIDES, norms))
        apart = (self.angle > _ROUNDING_ANGLE) | (np.abs(self.ratio - 1) > _ROUNDING)
        self.differs = np.where(np.isnan(self.angle), norms[0] != norms[1], apart) & ~np.isnan(norms[1])

    def stopped(self, side: str) -> Array:
        """Return the step (the first is 1) after which each seed's parameters were NaN; 0 where they never were."""
        nan = np.isnan(self.rewards[side])
        return np.where(nan.any(0), nan.argmax(0) + 1, 0)

    def reward(self, side: str, last: bool) -> Array:
        """Return the mean reward over the last tenth of the steps, or over all, of each seed that did not stop."""
        first = -max(len(self.rewards[side]) // 10, 1) if last else 0
        return np.asarray(self.rewards[side][first:, self.stopped(side) == 0].mean(0))

    @property
    def visible(self) -> str:
        """``stopped``, ``final`` or ``speed`` where an effect is visible by :data:`RULE`; else empty."""
        if len({(self.stopped(side) > 0).sum() for side in SIDES}) > 1:
            return "stopped"
        for name, last in (("final", True), ("speed", False)):
            base, head = (self.reward(side, last) for side in SIDES)
            if base.size and head.size and (base.max() < head.min() or head.max() < base.min()):
                return name
        return ""

    @property
    def sentence(self) -> str:
        visible = self.visible
        if visible == "stopped":
            counts = [f"{(self.stopped(side) > 0).sum()} of {self.angle.shape[1]} seeds" for side in SIDES]
            return f"visible: learning stops in {counts[0]} at base, in {counts[1]} at head"
        if visible:
            return f"visible: the ranges of the {'final rewards' if visible == 'final' else 'rewards'} do not overlap"
        same = np.array_equal(self.rewards["base"], self.rewards["head"], equal_nan=True)
        return "no effect on learning: the curves are the same" if same else "no visible effect on learning"

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """What, base, head."""
        stopped = [self.stopped(side)[self.stopped(side) > 0] for side in SIDES]
        compared = (~np.isnan(self.norms["head"])).sum()
        return [
            ("final reward (last tenth)", *(_range(self.reward(side, True)) for side in SIDES)),
            ("reward over all steps", *(_range(self.reward(side, False)) for side in SIDES)),
            ("seeds that stopped", *(f"{len(at)}{f', from step {at.min()}' if len(at) else ''}" for at in stopped)),
            ("gradients not finite", *(str(np.isinf(self.norms[side]).sum()) for side in SIDES)),
            ("gradients zero", *(str((self.norms[side] == 0).sum()) for side in SIDES)),
            ("gradients that differ", f"{self.differs.sum()} of {compared}", ""),
            ("angle between these, degrees", _range(self.angle[self.differs], np.median), ""),
            ("norm, base / head", _range(self.ratio[self.differs], np.median), ""),
        ]


@dataclass(frozen=True)
class Report:
    """Hold all that was measured of a bug.

    :ivar training: None where there was none, which ``untrained`` gives the reason of where one was asked for.
    """

    recipe: Recipe
    contract: Contract
    base: Place
    head: Place
    training: Training | None = None
    untrained: str = ""

    @cached_property
    def rows(self) -> list[Row]:
        return compare(self.contract, self.base.observation, self.head.observation, self.head.ref == REFERENCE)

    @property
    def has_gradient(self) -> bool:
        return any(row.is_gradient for row in self.rows)

    @property
    def steps(self) -> Sequence[Array]:
        return self.training.steps if self.training is not None else ()

    @property
    def sentences(self) -> list[str]:
        """What a person is told: of the scenario, and of the training."""
        trained = Curves(self.steps).sentence if self.steps else self.untrained and f"not trained: {self.untrained}"
        return [f"on its scenario {scenario.sentence(self.rows)}", *filter(None, [trained])]

    @property
    def lines(self) -> list[str]:
        """The tables, with a sentence each."""
        places = [f"{name} {getattr(self, name).short} {getattr(self, name).verdict}".rstrip() for name in SIDES]
        differing = [row for row in self.rows if not row.same]
        table = aligned([_HEADINGS, *map(_cells, differing)]).splitlines() if differing else []
        same = f" ({len(self.rows) - len(differing)} of {len(self.rows)} outputs are the same)" if differing else ""
        first, *second = self.sentences
        lines = [f"{self.recipe.bug_id}: {self.recipe.title}", ", ".join(places), *table, first + same]
        if self.training is not None:
            setup = self.training.setup
            shown = (f"{name}={value}" for name, value in setup.configuration.items())
            what = " ".join([f"{self.training.seeds} seeds, {len(self.steps)} steps", *shown])
            lines += aligned([(what, *SIDES), *Curves(self.steps).rows]).splitlines()
            second += [*setup.notes, f"({RULE})"]
        return lines + second

    def document(self) -> dict[str, Any]:
        training = None
        if self.training is not None:
            setup, curves = self.training.setup, Curves(self.steps)
            training = {
                "parameters": toy.PARAMETERS,
                "seeds": self.training.seeds,
                "part": setup.part.name,
                "variant": setup.variant,
                "configuration": setup.configuration,
                "notes": setup.notes,
                "rows": [dict(zip(("what", *SIDES), row)) for row in curves.rows],
                "visible": curves.visible,
                "curves": {side: curves.rewards[side].T.tolist() for side in SIDES},
                "angle": curves.angle.T.tolist(),
                "ratio": curves.ratio.T.tolist(),
            }
        names = ("bug_id", "title", "target", "contract", "boundary")
        document: dict[str, Any] = plain(
            {
                "impact_version": 2,
                **{name: getattr(self.recipe, name) for name in names},
                **{s: {n: getattr(getattr(self, s), n) for n in ("ref", "revision", "verdict")} for s in SIDES},
                "scenario": [asdict(row) for row in self.rows],
                "training": training,
                "sentences": self.sentences,
            }
        )
        return document


_HEADINGS = ("output", "is", "angle", "norm, base / head", "largest difference", "relative", "not finite")


def _cells(row: Row) -> tuple[str, ...]:
    forms = row.forms[0] if row.forms[0] == row.forms[1] else " / ".join(row.forms)
    angle = "" if row.angle is None or max(row.sizes) == 1 else f"{row.angle:.2f}°"
    numbers = ("" if value is None else short(value) for value in (row.ratio, row.largest, row.relative))
    not_finite = " / ".join(map(str, row.not_finite)) if any(row.not_finite) else ""
    return row.address, forms, angle, *numbers, not_finite


def _range(values: Array, middle: Callable[[Array], Any] = np.mean) -> str:
    numbers = values[np.isfinite(values)]
    if not numbers.size:
        return "none"
    return f"{short(middle(numbers))} ({short(numbers.min())} to {short(numbers.max())})"
