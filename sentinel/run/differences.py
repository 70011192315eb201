"""What a revision changes, as pytest items: one for each boundary that reaches changed code."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.diff.comparing import BoundaryDiff, Comparison
    from sentinel.run.session import Run


class WorseError(Exception):
    """A boundary differs for the worse."""

    def __init__(self, compared: BoundaryDiff) -> None:
        super().__init__(compared.name)
        self.compared = compared


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
        if compared.state == "not compared" and not compared.lost:
            pytest.skip(compared.reason)

    def _allowed(self) -> bool:
        names = (self.boundary, self.boundary.rpartition(".")[2])
        return any(fnmatchcase(name, glob) for name in names for glob in self.run.settings.allowed_changes)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, WorseError):
            from sentinel.diff.report import described
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
    except SentinelError as error:
        raise pytest.UsageError(f"sentinel: {error}") from None
