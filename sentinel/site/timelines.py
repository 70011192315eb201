"""Lives of bugs as bars over time, with the releases that carried them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

from sentinel.reports.escaping import visible
from sentinel.site.lifetimes import Life
from sentinel.site.pictures import COLOURS, INK, settings, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE = 0.24
_MARKED = 24


def timeline(lives: Sequence[Life], names: bool = True) -> str:
    """A picture of bugs of one target.

    :param lives: those with at least one span or release date.
    :param names: write the bugs beside their bars.
    """
    import matplotlib.dates as dates
    from matplotlib.figure import Figure

    height = len(lives) * _LINE + 0.9
    with settings():
        figure = Figure(figsize=(12.4, height))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.3 if names else 0.02, right=0.97, top=1 - 0.5 / height, bottom=0.3 / height)
        for index, life in enumerate(lives):
            _bar(axes, index, life)
        _tags(axes, lives)
        since = min(_day(life.since) for life in lives)
        until = max(_day(life.until) for life in lives)
        room = max((until - since) * 0.02, timedelta(days=2))
        axes.set_xlim(dates.date2num(since - room), dates.date2num(until + room))
        axes.set_ylim(len(lives) - 0.4, -0.6)
        axes.set_yticks(range(len(lives)), [life.bug.bug_id if names else "" for life in lives], fontsize=7.5)
        axes.tick_params(axis="y", length=0)
        axes.xaxis_date()
        locator = dates.AutoDateLocator(maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, show_offset=False))
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        return svg(figure)


def drawable(life: Life) -> bool:
    return bool(life.since and life.until)


def _bar(axes: Axes, index: int, life: Life) -> None:
    import matplotlib.dates as dates

    def at(day: str) -> float:
        return float(dates.date2num(_day(day)))

    for part in life.stretches:
        begin, end = at(part.start), max(at(part.end), at(part.start) + 0.5)
        axes.plot(
            [begin, end],
            [index, index],
            color=COLOURS[part.state],
            linewidth=2,
            linestyle="-" if part.state else ":",
            zorder=1,
        )
    for span in life.spans:
        axes.barh(
            index, max(at(span.end) - at(span.start), 0.5), left=at(span.start), height=0.56,
            color=COLOURS["reproduced"], zorder=2,
        )  # fmt: skip
        if not span.over:  # an arrow: it goes on
            axes.plot([at(span.end)], [index], marker=">", color=COLOURS["reproduced"], markersize=6, zorder=3)
        if span.open_start:
            axes.plot([at(span.start)], [index], marker="<", color=COLOURS["reproduced"], markersize=6, zorder=3)
    for release in life.releases:
        if release.date and life.since <= release.date <= life.until and release.verdict in ("reproduced", "fixed"):
            face = INK if release.verdict == "reproduced" else "none"
            axes.plot(
                [at(release.date)], [index], marker="o", markersize=3, markerfacecolor=face, markeredgecolor=INK,
                markeredgewidth=0.6, zorder=4,
            )  # fmt: skip


def _tags(axes: Axes, lives: Sequence[Life]) -> None:
    """Names of releases above the bars, the newest first, as many as there is room for."""
    import matplotlib.dates as dates

    named = {release.name: release.date for life in lives for release in life.releases if release.date}
    room = (max(_day(life.until) for life in lives) - min(_day(life.since) for life in lives)) / _MARKED
    last: date | None = None
    for name, day in sorted(named.items(), key=lambda item: (item[1], item[0]), reverse=True):
        if last is not None and last - _day(day) < room:
            continue
        last = _day(day)
        x = dates.date2num(last)
        axes.axvline(x, color=INK, linewidth=0.4, alpha=0.35, zorder=0)
        axes.annotate(
            visible(name),
            (x, -0.6),
            (0, 3),
            textcoords="offset points",
            rotation=28,
            fontsize=6.5,
            annotation_clip=True,
        )


def _day(text: str) -> date:
    return date.fromisoformat(text[:10])
