import enum
import sys

import pytest

from sentinel.worker import versions


@pytest.fixture
def on_python_310(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0, "final", 0))


def syntax_error(line: str, message: str = "invalid syntax") -> SyntaxError:
    return SyntaxError(message, ("x.py", 1, 1, line))


@pytest.mark.usefixtures("on_python_310")
@pytest.mark.parametrize(
    ("error", "version"),
    [
        (syntax_error("type Rows = list[int]"), (3, 12)),
        (syntax_error("def first[T](rows: list[T]) -> T:"), (3, 12)),
        (syntax_error("except* ValueError:"), (3, 11)),
        (syntax_error("f'{d['k']}'", "f-string: expecting '}'"), (3, 12)),
        (ImportError("cannot import name 'StrEnum' from 'enum'", name="enum"), (3, 11)),
        (ModuleNotFoundError("No module named 'tomllib'", name="tomllib"), (3, 11)),
        (AttributeError("module 'enum' has no attribute 'StrEnum'", name="StrEnum", obj=enum), (3, 11)),
    ],
)
def test_names_of_a_newer_python_are_recognised(error, version):
    assert versions.needed_version(error) == version


@pytest.mark.usefixtures("on_python_310")
@pytest.mark.parametrize(
    "error",
    [
        syntax_error("def f(:"),
        ImportError("cannot import name 'agg_los' from 'pkg.algos'", name="pkg.algos"),
        ModuleNotFoundError("No module named 'ray'", name="ray"),
        AttributeError("'Actor' object has no attribute 'timeout'", name="timeout", obj=object()),
        ValueError("no"),
    ],
)
def test_broken_code_is_not_attributed_to_the_python_version(error):
    assert versions.needed_version(error) is None


def test_a_python_with_the_name_needs_no_newer_one(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 13, 0, "final", 0))
    assert versions.needed_version(syntax_error("type Rows = list[int]")) is None
