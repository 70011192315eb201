"""From two sets of learning curves to words: what the bug costs, and the rule by which that is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from sentinel.impact.training import Moment

RULE = (
    "an effect is visible where learning stops in more seeds at one side than at the other, or else where the ranges "
    "of the seeds' rewards, over the last tenth of the steps or over all, do not overlap"
)

#: An angle in degrees that is none.
_STRAIGHT = 0.01


@dataclass(frozen=True)
class Spread:
    """Numbers of several seeds or steps."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_short(self.middle)} ({_short(self.low)} to {_short(self.high)})"

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Side:
    """How the seeds of base, or of head, came out.

    :ivar stopped: seed -> the step (the first is 1) after which its parameters were no numbers.
    :ivar final: the rewards over the last tenth of the steps, of the seeds that went on; None where none did.
    :ivar whole: those over all steps.
    """

    stopped: dict[int, int]
    final: Spread | None
    whole: Spread | None


@dataclass(frozen=True)
class Effect:
    """:ivar angle: in degrees, ``ratio`` of the norms (base by head): over the steps and seeds at which they differ.
    :ivar compared: at how many steps, over all seeds, both gradients were there; ``differing`` of them differed.
    :ivar same: whether they were the same bit for bit throughout.
    :ivar not_finite: at how many of these the gradient was not, at base and at head; ``outputs_not_finite`` likewise.
    :ivar zero: at how many of these it was 0 at base and not at head, and the other way round.
    :ivar lower: in how many of the seeds that went on at both base ended lower than head.
    """

    base: Side
    head: Side
    steps: int
    seeds: int
    compared: int
    differing: int
    same: bool
    angle: Spread | None
    ratio: Spread | None
    not_finite: tuple[int, int]
    outputs_not_finite: tuple[int, int]
    zero: tuple[int, int]
    lower: int
    higher: int

    @property
    def visible(self) -> str:
        """``stopped``, ``final`` or ``speed``, where one is; else empty."""
        if len(self.base.stopped) != len(self.head.stopped):
            return "stopped"
        for name in ("final", "whole"):
            base, head = getattr(self.base, name), getattr(self.head, name)
            if base is not None and head is not None and not base.overlaps(head):
                return "speed" if name == "whole" else "final"
        return ""


def effect(moments: Sequence[Sequence[Moment]]) -> Effect:
    """:param moments: a step -> one a seed; at least one step."""
    seeds = len(moments[0])
    curves = {
        side: [[getattr(step[seed], f"{side}_reward") for step in moments] for seed in range(seeds)]
        for side in ("base", "head")
    }
    every = [moment for step in moments for moment in step]
    compared = [moment for moment in every if moment.compared]
    differing = [moment for moment in compared if moment.differs]
    angles = [moment.angle for moment in differing if moment.angle is not None]
    ratios = [moment.ratio for moment in differing if moment.ratio is not None]
    ends = [_ends(curves["base"][seed], curves["head"][seed]) for seed in range(seeds)]
    return Effect(
        _side(curves["base"]),
        _side(curves["head"]),
        len(moments),
        seeds,
        len(compared),
        len(differing),
        all(moment.same for moment in compared),
        _of(angles, median),
        _of(ratios, median),
        (sum(not m.base_finite for m in every), sum(not m.head_finite for m in every)),
        (sum(not m.base_output_finite for m in every), sum(not m.head_output_finite for m in every)),
        (sum(m.zero == "base" for m in every), sum(m.zero == "head" for m in every)),
        sum(end < 0 for end in ends),
        sum(end > 0 for end in ends),
    )


def _ends(base: Sequence[float | None], head: Sequence[float | None]) -> float:
    """How far base ends above head; 0 where either has stopped."""
    ends = _last(base), _last(head)
    return 0.0 if ends[0] is None or ends[1] is None else ends[0] - ends[1]


def _last(curve: Sequence[float | None]) -> float | None:
    """The reward over the last tenth."""
    tail = curve[-max(len(curve) // 10, 1) :]
    return None if None in tail else fmean(value for value in tail if value is not None)


def _side(curves: Sequence[Sequence[float | None]]) -> Side:
    stopped = {seed: curve.index(None) + 1 for seed, curve in enumerate(curves) if None in curve}
    going = [[value for value in curve if value is not None] for curve in curves if None not in curve]
    finals = [value for curve in going if (value := _last(curve)) is not None]
    return Side(stopped, _of(finals, fmean), _of([fmean(curve) for curve in going], fmean))


def _of(values: Sequence[float], middle: Callable[[Sequence[float]], float]) -> Spread | None:
    return Spread(middle(values), min(values), max(values)) if values else None


# -- words -------------------------------------------------------------------------------------------------------------


def words(found: Effect) -> list[str]:
    """What a person is told, one sentence a line."""
    return [*_learning(found), *_gradients(found), *_outputs(found)]


def _learning(found: Effect) -> list[str]:
    kind = found.visible
    stops = [_stop("base", found.base, found), _stop("head", found.head, found)]
    lines = [line for line in stops if line]
    if kind == "stopped":
        lines += [_goes_on(name, side) for name, side in (("base", found.base), ("head", found.head)) if side.final]
        return lines
    if found.base.final is None or found.head.final is None:
        return [*lines, "no visible effect: it stops at both"]
    final = f"final reward {found.base.final} at base, {found.head.final} at head"
    paired = f"base ends lower in {found.lower} of {found.seeds} seeds, higher in {found.higher}"
    if kind == "final":
        return [*lines, f"visible: {final}"]
    if kind == "speed":
        return [*lines, f"visible while it learns: reward over all steps {found.base.whole} at base, "
                        f"{found.head.whole} at head; {final}"]  # fmt: skip
    if found.same:
        return [*lines, f"no effect on learning: {final}, bit for bit the same"]
    return [*lines, f"no visible effect on learning: {final}; {paired}"]


def _stop(name: str, side: Side, found: Effect) -> str:
    if not side.stopped:
        return ""
    steps = sorted(set(side.stopped.values()))
    when = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return (
        f"at {name} the policy stops learning at {when} in {len(side.stopped)} of {found.seeds} seeds: its parameters "
        "are NaN"
    )


def _goes_on(name: str, side: Side) -> str:
    return f"at {name} it goes on{' in the others' if side.stopped else ''}: final reward {side.final}"


def _gradients(found: Effect) -> list[str]:
    if not found.compared:
        return []
    if found.same:
        return [
            "the gradient is the same bit for bit at every step: what the bug changes is not trained on, or these "
            "batches do not meet it"
        ]
    if not found.differing:
        return ["the gradient is the same at every step, but for rounding"]
    lines = []
    if found.angle is not None and found.ratio is not None:
        lines.append(
            f"the gradient differs at {found.differing} of {found.compared} steps (all seeds): there it is off by "
            f"{_degrees(found.angle)}, and its norm is {found.ratio} times head's; medians, with lowest and highest"
        )
        if found.angle.high < _STRAIGHT:
            lines.append("only its length is another: Adam divides that out, but not among other terms of a loss")
    lines += [
        f"{name}'s gradient is 0 at {count} of {found.compared} steps at which the other's is not"
        for name, count in zip(("base", "head"), found.zero)
        if count
    ]
    for name, count in zip(("base", "head"), found.not_finite):
        if count:
            lines.append(
                f"{name}'s gradient is not finite at {count} of {found.compared} steps: a trainer that skips such "
                "steps loses these"
            )
    return lines


def _degrees(spread: Spread) -> str:
    return f"{_short(spread.middle)}° ({_short(spread.low)}° to {_short(spread.high)}°)"


def _outputs(found: Effect) -> list[str]:
    return [
        f"what the boundary returns at {name} is not finite at {count} of {found.compared} steps"
        for name, count in zip(("base", "head"), found.outputs_not_finite)
        if count
    ]


def _short(value: float) -> str:
    """Two digits behind the point; a small number as it is."""
    if value == 0 or abs(value) >= 0.005:
        return f"{value:.2f}" if abs(value) < 1000 else f"{value:.3g}"
    return f"{value:.1g}"
