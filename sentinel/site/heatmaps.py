"""Gradients as heat maps: before beside after, one scale for all of them, what is masked hatched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sentinel.reports.escaping import visible
from sentinel.site.pictures import INK, settings, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL = 0.46
_NOT_FINITE = "#b4008a"


@dataclass(frozen=True)
class Map:
    """One gradient at one revision.

    :ivar rows: numbers, ``nan`` and infinities among them.
    :ivar masked: of the same rows and columns, or empty.
    """

    rows: Sequence[Sequence[float]]
    masked: Sequence[Sequence[bool]] = ()


@dataclass(frozen=True)
class Pair:
    """:ivar key: as recipes address the gradient."""

    key: str
    before: Map
    after: Map


def heat_maps(pairs: Sequence[Pair], after: str) -> str:
    """A picture of gradients, one line each.

    :param after: what the maps on the right are, such as ``without the bug``.
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    heights = [max(len(pair.before.rows), len(pair.after.rows)) * _CELL + 0.75 for pair in pairs]
    width = max(max(map(len, side.rows)) for pair in pairs for side in (pair.before, pair.after)) * _CELL + 0.6
    with settings():
        figure = Figure(figsize=(max(2 * width, 4.6), sum(heights)))
        axes = figure.subplots(len(pairs), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
        maps = [side for pair in pairs for side in (pair.before, pair.after)]
        most = max((abs(x) for side in maps for row in side.rows for x in row if math.isfinite(x)), default=0.0) or 1.0
        for line, pair in zip(axes, pairs, strict=True):
            for place, (name, side) in zip(line, (("with the bug", pair.before), (after, pair.after)), strict=True):
                _draw(place, side, Normalize(-most, most))
                place.set_title(f"{visible(pair.key)}\n{name}" if name == "with the bug" else f"\n{name}", loc="left")
        figure.subplots_adjust(
            left=0.35 / figure.get_figwidth(), right=0.98, top=1 - 0.42 / sum(heights), bottom=0.05 / sum(heights),
            wspace=0.15, hspace=0.75 / (sum(heights) / len(heights)),
        )  # fmt: skip
        return svg(figure)


def _draw(axes: Axes, drawn: Map, norm: Any) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps["PuOr_r"]  # told apart by people who do not see red and green as two colours
    for i, row in enumerate(drawn.rows):
        for j, value in enumerate(row):
            finite = math.isfinite(value)
            colour = colours(norm(value)) if finite else _NOT_FINITE
            masked = bool(drawn.masked and drawn.masked[i][j])
            axes.add_patch(
                Rectangle(
                    (j, i), 1, 1, facecolor=colour, edgecolor="#7a7f85", linewidth=0.6, hatch="///" if masked else ""
                )
            )
            axes.text(j + 0.5, i + 0.5, _short(value), ha="center", va="center", fontsize=7.5, color=_on(colour))
    columns = max(map(len, drawn.rows))
    axes.set_xlim(0, columns)
    axes.set_ylim(len(drawn.rows), 0)
    axes.set_aspect("equal", anchor="NW")
    axes.set_xticks([])
    axes.set_yticks([i + 0.5 for i in range(len(drawn.rows))], [str(i) for i in range(len(drawn.rows))])
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return "0" if value == 0 else f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e+")


def _on(colour: Any) -> str:
    """Black or white, whichever can be read on a colour."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "#ffffff"
