"""Fixtures for bad input: run pytest or a command, and compare the files before and after."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from answers import Answer, Run, Snapshot
from demo_kit import MASKED_TOKENS, write_recipe

from sentinel.cli import main


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. The folder ``good`` in it has a recipe of the demo framework."""
    monkeypatch.setenv("COLUMNS", "500")
    write_recipe(pytester.path / "good", MASKED_TOKENS)
    return pytester.path


@pytest.fixture
def run_pytest(here: Path, pytester: pytest.Pytester, warm_runs: Any) -> Run:
    """Run pytest in the current folder, in this process."""

    def run(*arguments: object) -> Answer:
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *map(str, arguments))
        return Answer(int(result.ret), result.stdout.str(), result.stderr.str())

    return run


@pytest.fixture
def demo(run_pytest: Run) -> Run:
    """Run pytest on the demo framework's recipe."""
    base = ("--sentinel-target=demo", "--sentinel-recipes=good", "--sentinel-laws=off")
    return lambda *arguments: run_pytest(*base, *arguments)


@pytest.fixture
def run_sentinel(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(status, out, err)

    return run


@pytest.fixture
def snapshot(tmp_path: Path, pytester: pytest.Pytester) -> Callable[[], Snapshot]:
    """Return the content of every file in the current folder and in ``SENTINEL_HOME``."""

    def take() -> Snapshot:
        return {str(path): _content(path) for folder in {tmp_path, pytester.path} for path in _below(folder)}

    return take


def _below(folder: Path) -> Sequence[Path]:
    return [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else None
