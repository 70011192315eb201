"""Collect a run's results, and write its evidence, ``run.json``, ``gate.json`` and the summary."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.deciding.outcomes import UNDECIDED, Decision
from sentinel.errors import SentinelError
from sentinel.reports.escaping import message
from sentinel.reports.evidence import evidence
from sentinel.reports.store import RunItem, load, prepare, write, write_atomically, write_run
from sentinel.reports.summary import causes, outline, summary, undecided
from sentinel.settings import Settings

if TYPE_CHECKING:
    from sentinel.run.gate import Gate

#: Name of the property of an item that passes because a known bug is fixed. The value names the base that has the bug.
FIXES = "sentinel_fixes"


class Results:
    """Collects the results of one run.

    :ivar items: (evidence file, outcome, seconds, item id) of each reported item.
    :ivar gate: the results of comparisons; None if there are none.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self.items: list[tuple[Path, str, float, str]] = []
        self.gate: Gate | None = None
        #: target without a mirror -> the number of its revisions that were deselected for this reason.
        self.without_mirror: Mapping[str, int] = {}
        self._documents: dict[Path, dict[str, Any]] = {}
        self._examined: dict[str, bool] = {}
        #: A line that lists the settings that a settings file sets; empty if there are none.
        self.from_file = ""
        self._last_line = ""
        self._unwritten: list[str] = []
        self._fixes: list[tuple[Path, str]] = []
        self._start = time.monotonic()
        self._when = datetime.now(timezone.utc)

    def begin(self) -> None:
        """Write a ``run.json`` without items, to replace the file of an earlier run in case this run is killed."""
        with suppress(SentinelError):  # `finish` reports the error
            self._write_run(())

    def record(self, decision: Decision) -> Path:
        """Write the evidence of a decision, and pass the decision to ``pytest_sentinel_decided``."""
        document = evidence(decision)
        place = write(self._settings.report_dir, decision, document)
        self._documents[place] = document
        self._config.hook.pytest_sentinel_decided(decision=decision)
        return place

    def compared(self, nodeid: str, row: dict[str, Any]) -> None:
        """Store the result of comparing one boundary with the base, and update ``gate.json``."""
        from sentinel.run.gate import Gate

        self.gate = self.gate or Gate()
        self.gate.add(nodeid, row)
        if not hasattr(self._config, "workerinput"):
            with suppress(SentinelError):  # `finish` reports the error
                self._write_gate(self.gate)

    def count(self, nodeid: str, examined: bool) -> None:
        """Record that an item finished. ``examined`` is True if its verdict is conclusive."""
        self._examined[nodeid] = examined or self._examined.get(nodeid, False)

    def collect(self, report: pytest.TestReport, evidence: Path) -> None:
        """Store pytest's report of an item together with the path of the item's evidence."""
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self.items.append((evidence, outcome, report.duration, report.nodeid))
        self._fixes += [(evidence, str(where)) for name, where in report.user_properties if name == FIXES]

    def documents(self) -> list[tuple[dict[str, Any], str]]:
        """Return the evidence and the outcome of each item."""
        for place, _, _, _ in self.items:
            if place not in self._documents:
                self._documents[place] = load(place)
        return [(self._documents[place], outcome) for place, outcome, _, _ in self.items]

    def finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write ``run.json`` and ``gate.json``, and set pytest's exit status to 5 if no verdict is conclusive."""
        self._require_an_examination(session, exitstatus)
        documents = self.documents()
        if not self._config.pluginmanager.hasplugin("terminalreporter") and (self._examined or self._last_line):
            lines = ["sentinel:", *(outline(documents) if documents else []), *self._describe_fixed_bugs()]
            lines.append(self._last_line.rstrip("\n"))
            print("\n".join(filter(None, lines)), file=sys.stderr)
        try:
            if self.gate is not None:
                self._write_gate(self.gate)
        except SentinelError as error:
            self.could_not_write(session, error)
        if not self.items:
            return
        items = [
            RunItem(nodeid, outcome, document["verdict"], duration, self._below_reports(evidence))
            for (document, _), (evidence, outcome, duration, nodeid) in zip(documents, self.items)
        ]
        try:
            self._write_run(items, undecided(documents))
        except SentinelError as error:
            self.could_not_write(session, error)

    def could_not_write(self, session: pytest.Session, error: SentinelError) -> None:
        """Store an error for the summary, and make pytest exit with status 4. Raising the error would hide the
        verdicts."""
        self._unwritten.append(str(error))
        session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _require_an_examination(self, session: pytest.Session, exitstatus: int) -> None:
        """If items finished and none has a conclusive verdict, set pytest's exit status to 5."""
        if self.without_mirror and not self._examined:  # then pytest's exit status is already 5
            self._last_line = "".join(f"nothing was decided: {line}\n" for line in self._describe_missing_mirrors())
        if exitstatus != pytest.ExitCode.OK or not self._examined or any(self._examined.values()):
            return
        reasons = [message(document["reason"]) for document, _ in self.documents() if document["verdict"] in UNDECIDED]
        count = len(self._examined)
        why = f"none of the {count} items could be decided" if count > 1 else "the only item could not be decided"
        why += f" ({'; '.join(causes(reasons))})" if reasons else ""
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        self._last_line = f"nothing was decided: {why}; this run is not a success\n"

    def _below_reports(self, evidence: Path) -> str:
        return evidence.resolve().relative_to(self._settings.report_dir.resolve()).as_posix()

    def _write_run(self, items: Sequence[RunItem], undecided: Mapping[str, int] | None = None) -> None:
        write_run(
            self._settings.report_dir,
            items,
            started=self._when,
            duration=time.monotonic() - self._start,
            command=["pytest", *map(str, self._config.invocation_params.args)],
            undecided=undecided,
        )

    def _write_gate(self, gate: Gate) -> None:
        """Write ``gate.json``. This is done after each item, so that the results of a killed run are kept."""
        prepare(self._settings.report_dir)
        text = json.dumps(gate.document(), indent=1, ensure_ascii=False)
        write_atomically(self._settings.report_dir / "gate.json", f"{text}\n")

    # -- the terminal -------------------------------------------------------------------------------------------------

    def header(self) -> list[str]:
        targets = ", ".join(self._settings.targets) or "of the given paths"
        lines = [f"sentinel: targets {targets}; evidence in {self._settings.report_dir}"]
        owner = other_owner_of_the_name()
        return [*lines, *filter(None, [self.from_file, f"sentinel: {owner}" if owner else ""])]

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """Print the summary below pytest's own results."""
        for sentence in self._unwritten:
            reporter.write_line(f"sentinel: {sentence}", red=True)
        if self.from_file and self._config.get_verbosity() < 0:  # pytest shows no header
            reporter.write_line(self.from_file)
        if self.gate is not None and self._config.get_verbosity() >= -1:
            reporter.section("sentinel: compared with the base")
            for line in self.gate.lines():
                reporter.write_line(line)
        if not self.items or self._config.get_verbosity() < -1:
            reporter.write(self._last_line)
            return
        reporter.section("sentinel")
        writer = reporter._tw
        text = summary(
            self.documents(),
            str(self._settings.report_dir),
            terminal=writer.hasmarkup,
            width=writer.fullwidth,
            every=self._config.get_verbosity() > 0,
            commands=[self.command(nodeid) for _, _, _, nodeid in self.items],
        )
        lines = [text.rstrip("\n"), *self._describe_fixed_bugs(), *self._describe_missing_mirrors()]
        writer.write("\n".join(lines) + "\n" + self._warn_about_sandbox() + self._last_line, flush=True)

    def _describe_missing_mirrors(self) -> list[str]:
        add = "can be decided after `sentinel mirror add"
        return [
            f"{target}: {count} more revision{'' if count == 1 else 's'} {add} {target}`"
            for target, count in self.without_mirror.items()
        ]

    def _describe_fixed_bugs(self) -> list[str]:
        about = [(self._documents[place], where) for place, where in self._fixes]
        return sorted(message(f"fixed: {each['bug_id']}, {where}: {each['title']}") for each, where in about)

    def command(self, nodeid: str) -> str:
        """Return the pytest command that repeats one item."""
        alone = replace(
            self._settings,
            targets=(),
            bugs=(),
            named_refs=self._settings.refs,
            trees=(),
            report_dir=Settings().report_dir,
            sarif=None,
            laws="deep" if self._settings.laws == "deep" else "",
        )
        return shlex.join(["pytest", nodeid, *alone.words()])

    def _warn_about_sandbox(self) -> str:
        levels = {document["environment"]["sandbox"] for document, _ in self.documents()}
        if self._settings.sandbox or self._settings.device != "cpu" or "basic" not in levels:
            return ""
        return (
            "sandbox: basic, which does not contain malicious code; `sentinel doctor` explains why strict is not "
            "available\n"
        )


def other_owner_of_the_name() -> str | None:
    """Return a warning if another project's distribution ``sentinel`` is also installed. Otherwise, return None."""
    try:
        other = distribution("sentinel")
    except PackageNotFoundError:
        return None
    return (
        f"another distribution, sentinel {other.version}, also installs a package `sentinel`, and either may have "
        "overwritten the other's files; uninstall it, then reinstall rl-sentinel"
    )
