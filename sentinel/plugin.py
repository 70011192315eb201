"""The pytest side: options, collection, items, reporting. All else is imported when Sentinel is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.settings import NAMED

if TYPE_CHECKING:
    from sentinel.run.items import RecipeFile
    from sentinel.run.session import Run

_RUN = pytest.StashKey["Run | None"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sentinel", "sentinel: conformance of LLM reinforcement-learning frameworks")
    for option in NAMED.values():
        action = "append" if option.many else "store"
        group.addoption(f"--sentinel-{option.name}", action=action, metavar=option.metavar, help=option.help)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from sentinel import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sentinel: an item of Sentinel; also marked with its target and its law")
    config.stash[_RUN] = None
    if not _concerns_sentinel(config):
        return
    from sentinel.errors import SentinelError
    from sentinel.run.session import Run

    options = {name: config.getoption(f"--sentinel-{name}") for name in NAMED}
    try:
        run = config.stash[_RUN] = Run.configure(config, options)
    except SentinelError as error:
        raise pytest.UsageError(f"sentinel: {error}") from None
    config.pluginmanager.register(_Reports(run), "sentinel-reports")


def _concerns_sentinel(config: pytest.Config) -> bool:
    """Whether anything in this run is for Sentinel; cheap, because every pytest run of the environment asks."""
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
    """Whether a path argument may be a recipe's."""
    ours = ("recipes/", "laws/")
    return any(".yaml" in arg or ".yml" in arg or ".json" in arg or arg.startswith(ours) for arg in config.args)


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None:
        run.close()


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = config.stash.get(_RUN, None)
    return run.header() if run is not None and (run.recipes or run.law_ids or _names_an_item(config)) else []


def pytest_collection(session: pytest.Session) -> None:
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        run.warm_up()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> RecipeFile | None:
    run = parent.config.stash.get(_RUN, None)
    if run is None or not parent.session.isinitpath(file_path):
        return None
    from sentinel.recipes import SUFFIXES
    from sentinel.run.items import collector

    return collector(run, file_path, parent) if file_path.suffix in SUFFIXES else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None:
        from sentinel.run.items import the_rest

        items += the_rest(run, session, tuple(items))


def pytest_collection_finish(session: pytest.Session) -> None:
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        from sentinel.run.items import Item

        run.plan([item.job for item in session.items if isinstance(item, Item)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    place = getattr(item, "evidence_file", None)
    if call.when == "call" and place is not None:
        item.user_properties += _properties(place)  # pytest's own way into JUnit XML and other reporters
    report = yield
    if call.when == "call" and place is not None:
        report.duration = item.seconds  # type: ignore[attr-defined]
        # As an attribute it travels with the report, from an xdist worker to the controller too.
        report.__dict__["sentinel_evidence"] = str(place)
    return report


def _properties(evidence: Path) -> list[tuple[str, object]]:
    import json

    document = json.loads(evidence.read_bytes())
    keys = {"target": "target", "bug": "bug_id", "law": "law", "ref": "ref", "verdict": "verdict"}
    return [(f"sentinel_{name}", str(document[key])) for name, key in keys.items() if document[key]]


class _Reports:
    """Listens to the reports of one run; the hook itself is given no config to find the run by."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def pytest_runtest_logreport(self, report: Any) -> None:
        evidence = getattr(report, "sentinel_evidence", None)
        if evidence is not None:
            self._run.collect(report, Path(evidence))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    _spare_hypothesis_import(session.config)
    run = session.config.stash.get(_RUN, None)
    if run is not None:
        run.finish(session, exitstatus)
        _for_others(run, session)


def _spare_hypothesis_import(config: pytest.Config) -> None:
    """Hypothesis comes with Sentinel. Its own pytest plugin imports it before the summary of every run, half a second
    in projects that do not use it, to find out that it has nothing to say."""
    distributed = getattr(config.option, "dist", "no") != "no"  # then what it says comes from xdist's workers
    if "hypothesis" not in sys.modules and not distributed:
        config.pluginmanager.unregister(name="hypothesispytest")


def _for_others(run: Run, session: pytest.Session) -> None:
    """What other programs read of the run."""
    if run.is_worker or not run.results:
        return
    from sentinel.reports.github import add_to_summary

    results = run.documents()
    add_to_summary(results, os.environ)
    file = run.settings.sarif
    if file is not None:
        from sentinel.errors import SentinelError
        from sentinel.reports.sarif import sarif
        from sentinel.reports.store import write_atomically

        named = {str(document["target"]) for document, _ in results} & set(run.catalog.targets)
        repositories = {name: run.catalog.targets[name].repository for name in named}
        ranks = {name: law.rank for name, law in run.catalog.laws.items()}
        try:
            write_atomically(file, sarif(results, repositories, ranks), "name another file with --sentinel-sarif")
        except SentinelError as error:
            run.could_not_write(session, error)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    run = terminalreporter.config.stash.get(_RUN, None)
    if run is not None:
        run.summarise(terminalreporter)
    if run is not None and run.results and not run.is_worker:
        from sentinel.reports.github import workflow_commands

        trees = {
            target: Path(ref.name)
            for name, ref in run.settings.refs
            for target in ([name] if name else run.settings.targets)
            if ref.kind == "path"
        }
        for line in workflow_commands(run.documents(), trees, os.environ):
            terminalreporter.write_line(line)
