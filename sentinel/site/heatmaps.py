"""Gradients as heat maps: before beside after, one scale for all of them, what is masked hatched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sentinel.reports.escaping import visible
from sentinel.site.pictures import INK, settings, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL = 0.46
_NOT_FINITE = "#b4008a"


#: A gradient at one revision: rows of numbers, ``nan`` and infinities among them; and which are masked, or nothing.
Map = tuple[Sequence[Sequence[float]], Sequence[Sequence[bool]]]


def heat_maps(pairs: Sequence[tuple[str, Map, Map]], after: str) -> str:
    """Draw gradients, one line each.

    :param pairs: each gradient's key as recipes address it, with the bug and without.
    :param after: what the maps on the right are, such as ``without the bug``.
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    heights = [max(len(rows) for rows, _ in maps) * _CELL + 0.75 for _, *maps in pairs]
    every = [rows for _, *maps in pairs for rows, _ in maps]
    width = max(max(map(len, rows)) for rows in every) * _CELL + 0.6
    with settings():
        figure = Figure(figsize=(max(2 * width, 4.6), sum(heights)))
        axes = figure.subplots(len(pairs), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
        most = max((abs(x) for rows in every for row in rows for x in row if math.isfinite(x)), default=0.0) or 1.0
        for line, (key, *maps) in zip(axes, pairs, strict=True):
            for place, title, side in zip(line, (f"{visible(key)}\nwith the bug", f"\n{after}"), maps, strict=True):
                _draw(place, *side, Normalize(-most, most))
                place.set_title(title, loc="left")
        figure.subplots_adjust(
            left=0.35 / figure.get_figwidth(), right=0.98, top=1 - 0.42 / sum(heights), bottom=0.05 / sum(heights),
            wspace=0.15, hspace=0.75 / (sum(heights) / len(heights)),
        )  # fmt: skip
        return svg(figure)


def _draw(axes: Axes, rows: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]], norm: Any) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    colours = colormaps["PuOr_r"]  # told apart by people who do not see red and green as two colours
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            finite = math.isfinite(value)
            colour = colours(norm(value)) if finite else _NOT_FINITE
            masked = bool(masks and masks[i][j])
            axes.add_patch(
                Rectangle(
                    (j, i), 1, 1, facecolor=colour, edgecolor="#7a7f85", linewidth=0.6, hatch="///" if masked else ""
                )
            )
            axes.text(j + 0.5, i + 0.5, _short(value), ha="center", va="center", fontsize=7.5, color=_on(colour))
    axes.set_xlim(0, max(map(len, rows)))
    axes.set_ylim(len(rows), 0)
    axes.set_aspect("equal", anchor="NW")
    axes.set_xticks([])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [str(i) for i in range(len(rows))])
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
