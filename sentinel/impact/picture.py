"""Draw the learning curves, and what the gradient is off by, as one vector picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sentinel.impact.report import Curves, Report
from sentinel.impact.toy import Array
from sentinel.reports.escaping import visible
from sentinel.site.pictures import COLOURS, INK, settings, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDES = {"base": (COLOURS["reproduced"], "-"), "head": (COLOURS["fixed"], "--")}


def picture(report: Report) -> str:
    """Draw above the rewards, below the angle and the ratio of norms: the seeds' middle as a line, their range as a
    band.

    :raises ImportError: where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    curves = Curves(report.steps)
    with settings():
        figure = Figure(figsize=(7.2, 6.4), layout="constrained")
        rewards, angle, ratio = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
        figure.suptitle(
            visible(f"{report.recipe.bug_id}: a toy policy trained through the real boundary"), fontsize=9.5
        )
        for side, (colour, line) in _SIDES.items():
            label = f"{side} ({getattr(report, side).short})"
            _band(rewards, curves.rewards[side], np.nanmean, colour, line, 1.6, 0.2, label)
            for seed, stopped in enumerate(curves.stopped(side)):  # a cross: its parameters are NaN from here on
                if stopped > 1:
                    last = [curves.rewards[side][stopped - 2, seed]]
                    rewards.plot([stopped - 1], last, marker="x", color=colour, markersize=7, markeredgewidth=1.6)
            steps = np.flatnonzero(np.isinf(curves.norms[side]).any(1)) + 1
            for step in steps:
                named = f"{side}'s gradient is not finite" if step == steps[0] else None
                angle.axvline(step, color=colour, linestyle=line, linewidth=1, label=named)
            if len(steps):
                angle.legend(frameon=False, loc="upper right")
        rewards.set_ylabel("expected reward")
        rewards.set_ylim(0, 1)
        rewards.legend(frameon=False, loc="upper left")
        ratio.axhline(1, color=INK, linewidth=0.5, alpha=0.5)
        ratio.set_xlabel("step")
        ratio.set_xlim(0, len(report.steps) + 1)
        for axes, values, label, least in (
            (angle, curves.angle, "angle (degrees)", 1.0),
            (ratio, curves.ratio, "norm, base / head", 1.2),
        ):
            _band(axes, values, np.nanmedian, INK, "-", 1, 0.15)
            if np.isnan(values).all():
                axes.text(0.5, 0.5, "none: a gradient is zero or not finite", transform=axes.transAxes, ha="center")
            axes.set_ylabel(label)
            axes.set_ylim(0, max(axes.get_ylim()[1], least))
        for axes in (rewards, angle, ratio):
            axes.spines[["top", "right"]].set_visible(False)
        return svg(figure)


def _band(
    axes: Axes,
    values: Array,
    middle: Callable[[Array, int], Array],
    colour: str,
    line: str,
    width: float,
    alpha: float,
    label: str | None = None,
) -> None:
    """Draw the range of the seeds, [steps, seeds], and their middle."""
    there = np.isfinite(values).any(1)
    steps, shown = np.flatnonzero(there) + 1, values[there]
    if there.any():
        axes.fill_between(steps, np.nanmin(shown, 1), np.nanmax(shown, 1), color=colour, alpha=alpha, linewidth=0)
        axes.plot(
            *(steps, middle(shown, 1)), color=colour, linestyle=line, linewidth=width, label=label, clip_on=bool(label)
        )
