"""Figures as vector pictures that are the same in each build, and follow the reader's light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The colour of words and lines. A picture in an <img> cannot inherit the page's, so it asks the reader's own.
INK = "#010203"
_STYLE = (
    "<style>:root{--ink:#1d2125}@media(prefers-color-scheme:dark){:root{--ink:#e3e6ea}}"
    "@media print{:root{--ink:#000}}</style>"
)

#: Verdicts' colours in pictures, for light and dark alike; what could not be decided has none.
COLOURS = {"reproduced": "#c9524a", "fixed": "#3f9a63", "changed": "#b8860b", "": "#8a929a"}

_SETTINGS = {
    "svg.hashsalt": "sentinel",
    "svg.fonttype": "none",  # words stay words, a tenth of the size of outlines
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,  # a name of somebody's may hold dollar signs
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 9,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
}


@contextmanager
def settings() -> Iterator[None]:
    """matplotlib as it is shipped, with our settings: nothing of the user's own shows in a picture."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def svg(figure: Figure) -> str:
    """The figure's text, without a date. To be called within :func:`settings`."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace(INK, "var(--ink)")
    head, bracket, rest = text.partition(">")
    return f"{head}{bracket}{_STYLE}{rest}"


@dataclass(frozen=True)
class Picture:
    """:ivar file: relative to the page that shows it; width and height in CSS pixels."""

    file: str
    width: int
    height: int


def picture(file: str, text: str) -> Picture:
    """:param text: what :func:`svg` made; it says its size in points."""
    width, height = (re.search(rf'<svg[^>]*? {side}="([\d.]+)pt"', text) for side in ("width", "height"))
    return Picture(file, *(round(float(found[1]) * 4 / 3) if found else 0 for found in (width, height)))
