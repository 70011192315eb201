"""Packages of ``sentinel/`` import in the order of docs/architecture.md."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "sentinel"

#: Modules next to the packages.
LOOSE = {"__init__", "cli", "errors", "hookspecs", "interruption", "plugin"}


def _order() -> list[str]:
    """Return the packages in the order of the table in docs/architecture.md, the lowest first."""
    return _first_column("package")


def _first_column(heading: str) -> list[str]:
    """Return the first column of the table under this heading of docs/architecture.md."""
    table = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8").partition(f"| {heading} |")[2]
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def _tools() -> list[str]:
    return sorted(path.name for path in (PACKAGE / "tools").iterdir() if (path / "__init__.py").is_file())


@cache
def _modules() -> dict[str, Path]:
    files = [file for file in PACKAGE.rglob("*.py") if "_bundled" not in file.parts]
    named = {file: list(file.relative_to(REPOSITORY).with_suffix("").parts) for file in files}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): file for file, parts in named.items()}


@cache
def _imports(module: str) -> list[tuple[str, int]]:
    """Yield every module of Sentinel that a module imports, with the line."""
    modules, found = _modules(), []
    for node in ast.walk(ast.parse(modules[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sentinel":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole if whole in modules else node.module, node.lineno))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "sentinel"]
    return found


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_packages_import_in_one_direction():
    order = _order()
    floors = {name: number for number, name in enumerate(order)}
    modules = _modules()
    wrong = []
    for module in modules:
        here = _package(module)
        for imported, line in _imports(module):
            there = _package(imported)
            if here in floors and there != here and floors.get(there, -1 if there == "__init__" else 99) > floors[here]:
                wrong.append(f"{modules[module].relative_to(REPOSITORY)}:{line} imports {imported}")
    assert wrong == []


def test_a_tool_imports_no_other_tool():
    modules = _modules()
    wrong = []
    for module in modules:
        if module.startswith("sentinel.tools."):
            own = f"sentinel.tools.{module.split('.')[2]}"
            for imported, line in _imports(module):
                if imported.startswith("sentinel.tools.") and not f"{imported}.".startswith(f"{own}."):
                    wrong.append(f"{modules[module].relative_to(REPOSITORY)}:{line} imports {imported}")
    assert wrong == []


def test_adapters_import_public_names_and_the_binding_package():
    imported = {
        f"{file.relative_to(REPOSITORY)}: {node.module}"
        for file in (REPOSITORY / "adapters").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("sentinel.")
    }
    assert len(imported) > 40
    assert [each for each in imported if not re.search(r": sentinel(\.binding(\.\w+)?)?$", each)] == []


def test_the_architecture_page_names_exactly_the_packages():
    assert _first_column("tool") == _tools()
    assert len(_tools()) > 1
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert packages - {"_bundled"} == set(_order()) - LOOSE
    assert {file.stem for file in PACKAGE.glob("*.py")} == LOOSE


@pytest.mark.slow
@pytest.mark.parametrize("removed", [*_tools(), "*"])
def test_the_core_works_without_a_tool(tmp_path: Path, removed: str):
    """Delete a tool in a copy, and start every other command. If all tools are deleted, also import every module."""
    for name in ("sentinel", "adapters", "recipes/areal"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)  # with the byte code
    gone = set()
    for folder in (tmp_path / "sentinel" / "tools").glob(f"{removed}/"):
        if (folder / "commands").is_dir():
            gone |= {file.stem for file in (folder / "commands").glob("*.py")} - {"__init__"}
            shutil.rmtree(folder)
    assert gone
    script = f"""
import importlib, pathlib, sys
from sentinel.cli import _parser, main
from sentinel.commands.discovery import find_commands, report_kinds
names = {{*find_commands(), *(kind.__name__.rpartition(".")[2] for kind in report_kinds())}}
assert not names & {gone!r}
assert {{"list", "diff", "report", "report_changes"}} <= names
if {removed == "*"}:
    for file in pathlib.Path("sentinel").rglob("*.py"):
        importlib.import_module(".".join(file.with_suffix("").parts).removesuffix(".__init__"))
assert pathlib.Path(importlib.import_module("sentinel").__file__).is_relative_to(pathlib.Path.cwd())
_parser(["every command"])
sys.exit(main(["list", "targets"]))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "areal" in done.stdout


def test_no_modules_import_each_other_in_a_circle():
    modules = _modules()
    graph = {module: {other for other, _ in _imports(module)} & modules.keys() - {module} for module in modules}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle
