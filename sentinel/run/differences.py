"""What a revision changes, as pytest items: one for each boundary that reaches changed code."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.comparing.comparing import BoundaryDiff, Comparison
    from sentinel.run.session import Run


class WorseError(Exception):
    """A boundary differs for the worse."""

    def __init__(self, compared: BoundaryDiff) -> None:
        super().__init__(compared.name)
        self.compared = compared


#: Ranges of lines that a skipped item names.
_SHOWN = 6


class TextItem(pytest.Item):
    """What the text of both trees tells: it passes unless code changed that no boundary reaches."""

    comparison: Comparison
    examined = False

    def runtest(self) -> None:
        from sentinel.comparing.report import beyond

        self.examined = not self.comparison.patch.count and not self.comparison.effects  # the text is a proof
        lines = list(beyond(self.comparison))
        if lines:
            pytest.skip(f"not examined: {'; '.join(lines)}")

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, 0, self.name


class DifferenceItem(pytest.Item):
    """Whether one boundary's numbers are for the worse at one ref, as against another."""

    comparison: Comparison
    boundary: str
    run: Run
    examined = False

    def runtest(self) -> None:
        compared = self.comparison.compared(self.boundary)
        self.examined = compared.state not in ("not compared", "not examined")
        if compared.judgement in ("worse", "mixed") and not self._allowed():
            raise WorseError(compared)
        if compared.state in ("not compared", "not examined") and not compared.lost:
            from sentinel.comparing.report import lines_of

            idle = [lines_of(each) for each in compared.unreached[:_SHOWN]]
            more = f" and {len(compared.unreached) - _SHOWN} more" if len(compared.unreached) > _SHOWN else ""
            pytest.skip(f"{compared.state}: {compared.reason or ', '.join(idle) + more}")

    def _allowed(self) -> bool:
        names = (self.boundary, self.boundary.rpartition(".")[2])
        return any(fnmatchcase(name, glob) for name in names for glob in self.run.settings.allowed_changes)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, WorseError):
            from sentinel.comparing.report import described
            from sentinel.reports.escaping import visible

            text = "\n".join(described(self.comparison, error.compared))
            return visible(f"{text}\n\nmeant so? --sentinel-allow-changes={self.boundary}", lines=True)
        if isinstance(error, SentinelError):
            return f"sentinel: {error}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, 0, f"what changes of {self.name}"


def differences(run: Run, session: pytest.Session) -> Iterator[pytest.Item]:
    """Give the items of ``--sentinel-against``."""
    if not run.settings.named_against:
        return
    try:
        for comparison in run.comparisons():
            pair = "..".join(ref.short for ref in comparison.refs.values())
            for name, (_, compared, _) in comparison.states.items():
                if compared.state in ("", "new") or compared.lost:
                    target = comparison.target.name
                    item: DifferenceItem = DifferenceItem.from_parent(
                        session, name=f"{name}[{pair}]", nodeid=f"diff/{target}/{name}[{pair}]"
                    )
                    item.comparison, item.boundary, item.run = comparison, name, run
                    for marker in ("sentinel", target):
                        item.add_marker(marker)
                    yield item
            text: TextItem = TextItem.from_parent(
                session, name=f"text[{pair}]", nodeid=f"diff/{comparison.target.name}/text[{pair}]"
            )
            text.comparison = comparison
            for marker in ("sentinel", comparison.target.name):
                text.add_marker(marker)
            yield text
    except SentinelError as error:
        raise pytest.UsageError(f"sentinel: {error}") from None
