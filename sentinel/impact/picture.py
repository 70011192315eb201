"""The learning curves, and what the gradient is off by, as one vector picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sentinel.impact.report import Report, series
from sentinel.impact.toy import Array
from sentinel.reports.escaping import visible
from sentinel.site.pictures import COLOURS, INK, settings, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIDES = {"base": (COLOURS["reproduced"], "-"), "head": (COLOURS["fixed"], "--")}


def picture(report: Report) -> str:
    """Above the rewards, below the angle and the ratio of norms: the seeds' middle as a line, their range as a band.

    :raises ImportError: where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(7.2, 6.4), layout="constrained")
        rewards, angle, ratio = figure.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
        figure.suptitle(
            visible(f"{report.recipe.bug_id}: a toy policy trained through the real boundary"), fontsize=9.5
        )
        for side, (colour, line) in _SIDES.items():
            place = getattr(report, side)
            _band(rewards, series(report.moments, f"{side}_reward"), colour, line, f"{side} ({place.short})")
        rewards.set_ylabel("expected reward")
        rewards.set_ylim(0, 1)
        rewards.legend(frameon=False, loc="upper left")
        _middle(angle, series(report.moments, "angle"))
        _not_finite(angle, report)
        angle.set_ylabel("angle (degrees)")
        angle.set_ylim(0, max(angle.get_ylim()[1], 1))
        _middle(ratio, series(report.moments, "ratio"))
        ratio.axhline(1, color=INK, linewidth=0.5, alpha=0.5)
        ratio.set_ylabel("norm, base / head")
        ratio.set_ylim(0, max(ratio.get_ylim()[1], 1.2))
        ratio.set_xlabel("step")
        ratio.set_xlim(0, len(report.moments) + 1)
        for axes in (rewards, angle, ratio):
            for edge in ("top", "right"):
                axes.spines[edge].set_visible(False)
        return svg(figure)


def _band(axes: Axes, curves: Sequence[Sequence[float | None]], colour: str, line: str, label: str) -> None:
    numbers = _numbers(curves)
    steps = np.arange(1, numbers.shape[1] + 1)
    there = np.isfinite(numbers).any(0)
    shown = numbers[:, there]
    axes.fill_between(steps[there], np.nanmin(shown, 0), np.nanmax(shown, 0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps[there], np.nanmean(shown, 0), color=colour, linestyle=line, linewidth=1.6, label=label)
    for curve in numbers:  # a cross: its parameters are NaN from here on
        last = int(np.isfinite(curve).sum())
        if 0 < last < len(curve):
            axes.plot([last], [curve[last - 1]], marker="x", color=colour, markersize=7, markeredgewidth=1.6)


def _middle(axes: Axes, curves: Sequence[Sequence[float | None]]) -> None:
    numbers = _numbers(curves)
    steps = np.arange(1, numbers.shape[1] + 1)
    there = np.isfinite(numbers).any(0)
    shown = numbers[:, there]
    if not there.any():
        axes.text(0.5, 0.5, "not to be had: a gradient is zero or not finite", transform=axes.transAxes, ha="center")
        return
    axes.fill_between(steps[there], np.nanmin(shown, 0), np.nanmax(shown, 0), color=INK, alpha=0.15, linewidth=0)
    axes.plot(steps[there], np.nanmedian(shown, 0), color=INK, linewidth=1, clip_on=False)


def _not_finite(axes: Axes, report: Report) -> None:
    """A line at each step at which the gradient is no number, in some seed."""
    for side, (colour, line) in _SIDES.items():
        steps = [
            number
            for number, moments in enumerate(report.moments, 1)
            if not all(getattr(moment, f"{side}_finite") for moment in moments)
        ]
        for step in steps:
            label = f"{side}'s gradient is not finite" if step == steps[0] else None
            axes.axvline(step, color=colour, linestyle=line, linewidth=1, label=label)
        if steps:
            axes.legend(frameon=False, loc="upper right")


def _numbers(curves: Sequence[Sequence[float | None]]) -> Array:
    return np.array([[np.nan if value is None else value for value in curve] for curve in curves], dtype=np.float64)
