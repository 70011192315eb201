"""Define the pytest items that compare two revisions. Each bound function that the change can affect has one item. The
item named ``text`` is about changed code that no bound function runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.errors import SentinelError, nearest

if TYPE_CHECKING:
    from sentinel.comparing.comparison import Comparison
    from sentinel.comparing.results import BoundaryDiff
    from sentinel.run.session import Run


class WorseError(Exception):
    """Raised if a function's results are worse at the head revision than at the base revision."""

    def __init__(self, result: BoundaryDiff) -> None:
        super().__init__(result.name)
        self.result = result


#: Maximum number of ranges of lines that a skipped item lists.
_SHOWN = 6


class Differences(pytest.Collector):
    """Collects the items that compare one head revision with its base revision."""

    items: list[pytest.Item]

    def collect(self) -> list[pytest.Item]:
        return self.items


class TextItem(pytest.Item):
    """Checks changed code that no bound function runs. The item is skipped if any of this code may affect training."""

    comparison: Comparison
    examined = False
    row: dict[str, Any] | None = None

    def runtest(self) -> None:
        from sentinel.comparing.report import list_beyond
        from sentinel.run.gate import row_of

        self.row = row_of(self.comparison, None)
        self.examined = self.comparison.selection.proves_equality()
        lines = list(list_beyond(self.comparison))
        if lines:
            pytest.skip(f"not examined: {'; '.join(lines)}")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, 0, self.name


class DifferenceItem(pytest.Item):
    """Fails if a boundary's results are worse at the head than at the base."""

    comparison: Comparison
    boundary: str
    run: Run
    examined = False
    row: dict[str, Any] | None = None

    def runtest(self) -> None:
        from sentinel.run.gate import row_of

        result = self.comparison.compare(self.boundary)
        row = self.row = row_of(self.comparison, result)
        decided = row["outcome"] != "not examined"
        # The item counts as examined if changed lines were compared, even if other changed lines did not run.
        changed = set(map(tuple, row["changed"]))
        compared = self.comparison.selection.patch.is_compared_at(result.name, changed)
        self.examined = decided or (row["agrees"] and compared)
        fails = ("worse", "other") if self.config.getoption("--sentinel-strict") else ("worse",)
        if row["outcome"] in fails and not self._allowed():
            raise WorseError(result)
        if row["outcome"] == "worse":
            row |= {"outcome": "other", "sentence": f"allowed: {row['sentence']}"}
        if not decided and not result.lost:
            from sentinel.comparing.report import format_lines

            idle = ", ".join(format_lines(each) for each in result.unreached[:_SHOWN])
            idle += f" and {len(result.unreached) - _SHOWN} more" if len(result.unreached) > _SHOWN else ""
            why = "; ".join(filter(None, [result.reason or result.share, idle]))
            state = "not examined" if result.state == "new" else result.state
            pytest.skip(f"{state}: {why}")

    def _allowed(self) -> bool:
        globs = self.run.settings.allowed_changes
        return any(fnmatchcase(name, glob) for name in _names(self.boundary) for glob in globs)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, WorseError):
            from sentinel.comparing.report import summarise, write_difference
            from sentinel.reports.escaping import visible

            assert self.row is not None
            # Print only one line for a caller, so that the function that changed stays on the first screen.
            if self.row["cause"]:
                sentence = summarise(error.result)
                cause = f"worse, because it calls {self.row['cause']} (above)"
                return visible(f"{cause}. Its own results: {sentence}", lines=True)
            places = [f"{file}:{first} {name}" for file, name, first, _ in self.row["places"]]
            text = "\n".join([f"changed: {', '.join(places)}", *write_difference(self.comparison, error.result)])
            return visible(f"{text}\nif this is intended: --sentinel-allow-changes={self.boundary}", lines=True)
        if isinstance(error, SentinelError):
            return f"sentinel: {error}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, 0, f"comparison of {self.name}"


def _names(boundary: str) -> tuple[str, str]:
    return boundary, boundary.rpartition(".")[2]


def differences(run: Run, session: pytest.Session) -> Iterator[pytest.Item]:
    """Yield the items of all comparisons that ``--sentinel-against`` requests."""
    if run.questions.is_restricted:
        return
    try:
        comparisons = run.comparisons()
        bound = {subject.name for each in comparisons for subject in each.selection.subjects}
        called = {name for each in comparisons for name in each.selection.candidates}
        names = {name for boundary in bound | called for name in _names(boundary)}
        for glob in run.settings.allowed_changes:
            if not any(fnmatchcase(name, glob) for name in names):
                near = nearest(glob, sorted(names))
                raise SentinelError(f"--sentinel-allow-changes={glob}: no boundary has this name{near}")
        for comparison in comparisons:
            target, pair = comparison.target.name, "..".join(ref.short for ref in comparison.refs.values())
            node: Differences = Differences.from_parent(
                session, name="diff", nodeid=f"diff/{target}", path=session.path
            )
            node.items = []
            candidates = comparison.selection.candidates
            lost = [name for name, each in candidates.items() if each.result.lost]
            for name in dict.fromkeys([*comparison.to_call(), *lost]):
                item: DifferenceItem = DifferenceItem.from_parent(
                    node, name=f"{name}[{pair}]", nodeid=f"diff/{target}/{name}[{pair}]"
                )
                item.comparison, item.boundary, item.run = comparison, name, run
                node.items.append(_mark(item, target))
            text: TextItem = TextItem.from_parent(node, name=f"text[{pair}]", nodeid=f"diff/{target}/text[{pair}]")
            text.comparison = comparison
            node.items.append(_mark(text, target))
            yield from session.genitems(node)
    except SentinelError as error:
        raise pytest.UsageError(f"sentinel: {error}") from None


def note_planned(run: Run, items: Sequence[pytest.Item]) -> None:
    """Record which boundaries will be compared, because an interrupted run must report those without a result."""
    chosen = [item for item in items if isinstance(item, DifferenceItem)]
    for comparison in {id(item.comparison): item.comparison for item in chosen}.values():
        from sentinel.run.gate import planned_row

        names = [item.boundary for item in chosen if item.comparison is comparison]
        run.results.compared(f"diff/{comparison.target.name}", planned_row(comparison, names))


def _mark(item: pytest.Item, target: str) -> pytest.Item:
    for marker in ("sentinel", target):
        item.add_marker(marker)
    return item
