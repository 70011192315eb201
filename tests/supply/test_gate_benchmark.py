"""`benchmarks/gate.py`: refactorings keep values, a mutant changes one line, and the README has the results."""

import random
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A module."""

FACTOR = 2.0


class Loss:
    @staticmethod
    def step(values, weight, low=0, high=9):
        total = 0.0
        for value in values:
            scaled = max(value * weight, low)
            total = total + min(scaled, high) if scaled > low else total
        kept = dict(total=total, weight=weight)
        return kept["total"] * FACTOR, kept
'''


@pytest.fixture(scope="module", autouse=True)
def _benchmarks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


def run(source: str) -> Any:
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope["Loss"].step([1.0, -2.0, 30.0], 1.5)


@pytest.mark.parametrize(
    "kind", ["renamed local", "extracted helper", "reordered keywords", "comment", "type hint", "equivalent arithmetic"]
)
def test_a_refactoring_changes_no_value(kind):
    refactorings = import_module("refactorings")
    sources = {refactorings.refactor(SOURCE, "Loss.step", kind, random.Random(seed))[0] for seed in range(8)}
    assert SOURCE not in sources
    assert [run(source) for source in sources] == [run(SOURCE)] * len(sources)


def test_a_mutant_changes_one_line_of_the_whole_source():
    line = SOURCE[: SOURCE.index("max(")].count("\n") + 1
    several = import_module("gate").line_mutants(SOURCE, "loss.py", "Loss.step", line)
    assert several
    for _, changed in several:
        pairs = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        assert [place for place, (one, other) in enumerate(pairs, 1) if one != other] == [line]


def test_the_readme_has_the_recorded_results():
    gate, readme = import_module("gate"), (ROOT / "README.md").read_text()
    rows = gate.read(gate.DATA)
    assert gate.rewritten(readme) == readme, "python benchmarks/gate.py"
    assert all(title in readme for title in gate.results(rows))
    alike = [row for row in rows if row["outcome"] == "same" and row["kind"] == "mutant"]
    assert all(row["verdict"] in ("equivalent", "miss") and row["note"] for row in alike)


def test_new_fixes_are_the_first_drawn_and_each_miss_has_a_cause():
    gate = import_module("gate")
    rows = [row for row in gate.read(gate.DATA) if row["kind"] == "new fix"]
    drawn = list(gate.draw_new_fixes(len(rows)))
    assert len(rows) == 80
    assert [(row["target"], row["after"]) for row in rows] == [(row["target"], row["after"]) for row in drawn]
    assert all(row["outcome"] in ("worse", "other", "better") or row["cause"] for row in rows)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b as c", {"a.b"}),
        ("def f():\n    from a import b, c", {"a", "a.b", "a.c"}),
        ("from . import b", {"top.inner", "top.inner.b"}),
        ("from ..b import c", {"top.b", "top.b.c"}),
        ("def (", set()),
    ],
)
def test_the_imports_of_a_file_are_absolute_names(source, names):
    assert import_module("own_tests").imports(source, "top.inner.module") == names
