"""The pytest plugin: options, collection, items, reporting. Other modules are imported only if a run uses Sentinel."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.interruption import postpone_in_collection
from sentinel.settings import NAMED

if TYPE_CHECKING:
    from sentinel.run.items import RecipeFile
    from sentinel.run.session import Run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sentinel", "sentinel: conformance of LLM reinforcement-learning frameworks")
    for option in NAMED.values():
        action = "append" if option.many else "store"
        group.addoption(f"--sentinel-{option.name}", action=action, metavar=option.metavar, help=option.help)
    text = "in a comparison with a base: also fail if numbers differ and no oracle or law can judge them"
    group.addoption("--sentinel-strict", action="store_true", help=text)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from sentinel import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sentinel: an item of Sentinel; its target and its law are markers, too")
    if not _concerns_sentinel(config):
        return
    from sentinel.errors import SentinelError
    from sentinel.run.session import Run

    options = {name: config.getoption(f"--sentinel-{name}") for name in NAMED}
    try:
        run = Run.configure(config, options)
    except SentinelError as error:
        raise pytest.UsageError(f"sentinel: {error}") from None
    config.pluginmanager.register(_Hooks(run), "sentinel-hooks")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    check = getattr(getattr(item, "callspec", None), "params", {}).get("check")
    tried = getattr(check, "tried", "") if type(check).__module__ == "sentinel.testing.checking" else ""
    if call.when == "call" and tried:
        report.__dict__["sentinel_tried"] = tried  # xdist copies the attribute to the controller
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line per function tested with `parametrize_with_laws`: which scenarios its tests tried."""
    reports = (report for several in terminalreporter.stats.values() for report in several)
    lines = dict.fromkeys(line for each in reports if (line := getattr(each, "sentinel_tried", "")))
    for line in lines:
        terminalreporter.write_line(line)


def _concerns_sentinel(config: pytest.Config) -> bool:
    """Return True if this run uses Sentinel. This must be fast, because it is called in every pytest run of the
    environment."""
    names = ("target", "recipes", "bug", "ref", "repo", "baseline", "laws", "against")
    if any(config.getoption(f"--sentinel-{name}") for name in names):
        return True
    if _names_an_item(config):
        return True
    if (config.rootpath / "sentinel.toml").is_file():
        return True
    project = config.rootpath / "pyproject.toml"
    return project.is_file() and b"[tool.sentinel]" in project.read_bytes()


def _names_an_item(config: pytest.Config) -> bool:
    """Return True if a pytest argument names a recipe or a law. Other projects' YAML files do not count."""
    folder = config.invocation_params.dir
    return any(_is_item(arg.partition("::")[0], folder) for arg in config.args)


def _is_item(name: str, folder: Path) -> bool:
    place = folder / name
    if name.endswith((".yaml", ".yml", ".json")):
        return _reads_as_a_recipe(place) or (name.startswith("recipes/") and not place.exists())
    first, target, boundary = (*name.split("/"), "", "", "")[:3]
    return (
        first == "laws" and "." in boundary and not boundary.endswith(".py") and not (folder / first / target).exists()
    )


def _reads_as_a_recipe(file: Path) -> bool:
    try:
        if not file.is_file():
            return False
        with file.open("rb") as stream:
            head = stream.read(1 << 20)
    except (OSError, ValueError):
        return False
    return b"recipe_version" in head or (b"bug_id" in head and b"boundary" in head)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if postpone_in_collection(number, frame):
        return
    # Ignore a second signal, because a time limit signals both the process and its group.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _without_traceback() -> Iterator[None]:
    try:
        yield
    except pytest.Session.Interrupted:  # a KeyboardInterrupt of pytest itself, for example after collection errors
        raise
    except KeyboardInterrupt:
        raise pytest.exit.Exception("sentinel: the run was interrupted", pytest.ExitCode.INTERRUPTED) from None


class _Hooks:
    """Hooks that are registered only in runs that use Sentinel."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._on_sigterm: Any = None

    def pytest_unconfigure(self) -> None:
        if self._on_sigterm is not None:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._run.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Record the planned comparisons first, so that an interrupted run reports those that are missing."""
        from sentinel.run.differences import note_planned

        if not session.config.option.collectonly:
            note_planned(self._run, session.items)
        with _without_traceback():
            return (yield)

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        run = self._run
        asked = run.questions.recipes or run.questions.law_ids or _names_an_item(config)
        return run.results.header() if asked else []

    def pytest_sessionstart(self) -> None:
        from sentinel.errors import SentinelError

        # SIGTERM has the effect of Ctrl-C, so that verdicts are reported if a time limit ends the run.
        if not self._run.is_worker and threading.current_thread() is threading.main_thread():
            self._on_sigterm = signal.signal(signal.SIGTERM, _interrupt)
        try:
            self._run.require_given()
        except SentinelError as error:
            raise pytest.UsageError(f"sentinel: {error}") from None

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with _without_traceback():
            return (yield)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> RecipeFile | None:
        from sentinel.recipes import SUFFIXES
        from sentinel.run.items import collector

        ours = file_path.suffix in SUFFIXES and parent.session.isinitpath(file_path)
        ours = ours and (self._run.is_asked_for or _reads_as_a_recipe(file_path))
        return collector(self._run, file_path, parent) if ours else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        from sentinel.run.items import deselect_without_mirror, uncollected_items

        items += uncollected_items(self._run, session, tuple(items))
        deselect_without_mirror(self._run, items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        from sentinel.run.items import Item

        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            return  # pytest runs no items after a collection error
        self._run.plan([item.job for item in session.items if isinstance(item, Item)])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        place = getattr(item, "evidence_file", None)
        if call.when == "call" and place is not None:
            item.user_properties += _properties(place)  # JUnit XML and other reporters read this
        report = yield
        known = _known_bug(item, call)
        if known is not None:
            report.outcome, report.wasxfail = "skipped", known
        examined = getattr(item, "examined", None)
        if examined is not None:
            report.__dict__["sentinel_examined"] = examined
        if call.when == "call" and getattr(item, "row", None) is not None:
            report.__dict__["sentinel_row"] = item.row  # type: ignore[attr-defined]
        if call.when == "call" and place is not None:
            report.duration = item.seconds  # type: ignore[attr-defined]
            # xdist copies attributes of a report from worker to controller.
            report.__dict__["sentinel_evidence"] = str(place)
        return report

    @pytest.hookimpl(trylast=True)  # after pytest has written the result of the item
    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "sentinel_examined"):
            self._run.results.count(report.nodeid, report.sentinel_examined)
        if hasattr(report, "sentinel_row"):
            self._run.compared(report.nodeid, report.sentinel_row)
        evidence = getattr(report, "sentinel_evidence", None)
        if evidence is not None:
            self._run.collect(report, Path(evidence))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Keep pytest from writing ``[ 36%]`` on an empty line after an item with a long name."""
        reporter = self._run.config.pluginmanager.get_plugin("terminalreporter")
        if nodeid.startswith("diff/") and reporter is not None and not reporter._tw.width_of_current_line:
            reporter.currentfspath = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self._run.finish(session, exitstatus)
        # Hypothesis's plugin would import Hypothesis to print an empty summary.
        if "hypothesis" not in sys.modules:
            session.config.pluginmanager.unregister(name="hypothesispytest")
        _write_summary_and_sarif(self._run, session)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        run = self._run
        run.results.summarise(terminalreporter)
        if not (run.results.items or run.results.gate) or run.is_worker:
            return
        from sentinel.reports.github import workflow_commands

        trees = {
            target: Path(ref.name)
            for name, ref in run.settings.refs
            for target in ([name] if name else run.settings.targets)
            if ref.kind == "path"
        }
        lines = workflow_commands(run.results.documents(), trees, os.environ)
        if run.results.gate is not None and os.environ.get("GITHUB_ACTIONS") == "true":
            lines = [*run.results.gate.annotations(trees, os.environ), *lines]
        for line in lines:
            terminalreporter.write_line(line)


def _known_bug(item: pytest.Item, call: pytest.CallInfo[None]) -> str | None:
    """Return the bug's title if the item is an expected failure: the known bug is still present. Return None otherwise,
    and always with ``--runxfail``."""
    from sentinel.run.items import ExpectedFailure

    error = call.excinfo.value if call.excinfo is not None else None
    if not isinstance(error, ExpectedFailure):
        return None
    # With `-p no:skipping`, pytest has neither the option nor the outcome xfailed, so the item fails.
    return None if getattr(item.config.option, "runxfail", True) else error.decision.recipe.title


def _properties(evidence: Path) -> list[tuple[str, object]]:
    import json

    from sentinel.deciding.outcomes import UNDECIDED

    document = json.loads(evidence.read_bytes())
    keys = {"target": "target", "bug": "bug_id", "law": "law", "ref": "ref", "verdict": "verdict"}
    if document["verdict"] in UNDECIDED:
        keys["reason"] = "reason"
    return [(f"sentinel_{name}", str(document[key])) for name, key in keys.items() if document[key]]


def _write_summary_and_sarif(run: Run, session: pytest.Session) -> None:
    gate = run.results.gate
    if run.is_worker or not (run.results.items or gate):
        return
    from sentinel.reports.github import add_to_summary, append_to_summary

    results = run.results.documents()
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if gate is not None and summary and os.environ.get("GITHUB_ACTIONS") == "true":
        append_to_summary(gate.markdown(), summary)
    if results:
        add_to_summary(results, os.environ)
    file = run.settings.sarif
    if file is not None:
        from sentinel.errors import SentinelError
        from sentinel.reports.sarif import sarif
        from sentinel.reports.store import write_atomically

        repositories = {name: target.repository for name, target in run.catalog.targets.items()}
        ranks = {name: law.rank for name, law in run.catalog.laws.items()}
        try:
            text = sarif(results, repositories, ranks, gate.sarif() if gate is not None else ())
            write_atomically(file, text, "name another file with --sentinel-sarif")
        except SentinelError as error:
            run.results.could_not_write(session, error)
