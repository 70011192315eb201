"""Measure which injected bugs a framework's own CPU tests detect, for comparison with the gate.

    python benchmarks/own_tests.py verl --python VENV/bin/python --tests 'tests/**/*_on_cpu.py' --mutants 30

VENV needs the framework's requirements, pytest and pytest-timeout. The mutants are those that gate.py draws first and
whose function is bound, or was reached according to gate.jsonl. For each mutant, a test runs if three conditions hold:
its file imports the changed module (directly or through one other module), it does not start Ray, and it passes in the
unchanged tree. The mutant is *worse* if one of these tests fails, *same* if all pass, and *not examined* if there is no
such test. Results are appended to gate.jsonl.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gate import CATALOG, DATA, STORE, draw_mutants, inventory, key, read


def imports(source: str, module: str) -> set[str]:
    """Return the modules and names that a file imports, anywhere in it."""
    found = set[str]()
    with suppress(SyntaxError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = module.split(".")[: -node.level] if node.level else []
                start = ".".join([*above, *filter(None, [node.module])])
                found |= {start, *(f"{start}.{each.name}" for each in node.names)}
    return found


class OwnTests:
    """Runs the tests of a framework's main branch in a folder, in which a mutant temporarily replaces one file."""

    def __init__(self, name: str, python: str, patterns: list[str], folder: Path, seconds: float) -> None:
        self._folder, self._seconds, self._target = folder, seconds, CATALOG.targets[name]
        archive = subprocess.run(["git", "-C", STORE.path(name), "archive", inventory(name)[0]], capture_output=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        tests = {str(file.relative_to(folder)): file.read_text() for each in patterns for file in folder.glob(each)}
        # Skip tests with Ray, because it starts twenty processes, which outlive the tests.
        self._uses = {test: imports(text, "") for test, text in sorted(tests.items()) if "ray.init(" not in text}
        roots = [folder / root.path for root in self._target.roots]
        self._inside = {self.module_of(file): self._imports_of(file) for root in roots for file in root.rglob("*.py")}
        self._command = [
            python,
            "-m",
            "pytest",
            "-q",
            "-rfEp",
            "--tb=no",
            "--timeout=120",
            "--continue-on-collection-errors",
        ]
        self._command += ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
        self._known: dict[str, list[str] | None] = {}

    def module_of(self, file: Path) -> str:
        return self._target.module_of(str(file.relative_to(self._folder)))

    def _imports_of(self, file: Path) -> set[str]:
        module = self.module_of(file)
        return imports(file.read_text(), f"{module}.__init__" if file.stem == "__init__" else module)

    def _run(self, *arguments: str) -> tuple[list[str], list[str]]:
        """Run pytest and return (passed tests, failed tests)."""
        path = ":".join(str(self._folder / root.import_root) for root in self._target.roots)
        offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment = {**os.environ, **offline, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile("w+") as out:  # processes that outlive a test would keep a pipe open
            command = ["timeout", str(self._seconds), *self._command, *arguments]
            code = subprocess.run(command, cwd=self._folder, stdout=out, stderr=out, env=environment).returncode
            out.seek(0)
            ends = re.findall(r"^(PASSED|FAILED|ERROR) (.+?)(?: - .*)?$", out.read(), re.MULTILINE)
        failed = [name for end, name in ends if end != "PASSED"]
        return [name for end, name in ends if end == "PASSED"], failed or [f"pytest ended with {code}"][
            : code not in (0, 5)
        ]

    def _learn(self, files: list[str]) -> None:
        """Run test files in the unchanged tree. For each, store the tests that fail; None if no test passes."""
        passed, failed = self._run(*files) if files else ([], [])
        for file in files:
            broken = [name for name in failed if name.startswith(file)]
            self._known[file] = broken if any(name.startswith(f"{file}::") for name in passed) else None

    def judge(self, file: str, source: str) -> dict[str, Any]:
        """Run the tests with a mutant. The outcome is *worse* if a test fails that passes in the unchanged tree."""
        module = self.module_of(self._folder / file)
        users = {module, *(each for each, used in self._inside.items() if module in used)}
        several = [test for test, used in self._uses.items() if used & users]
        self._learn([test for test in several if test not in self._known])
        files = [test for test in several if self._known[test] is not None]
        if not files:
            return {"outcome": "not examined", "by": "", "files": 0, "seconds": 0.0}
        broken = [f"--deselect={each}" for test in files for each in self._known[test] or ()]
        whole, began = (self._folder / file).read_text(), time.monotonic()
        (self._folder / file).write_text(source)
        try:
            _, failed = self._run("-x", *broken, *files)
        finally:
            (self._folder / file).write_text(whole)
        seconds = round(time.monotonic() - began, 1)
        outcome = "worse" if failed else "same"
        return {"outcome": outcome, "by": "".join(failed[:1]), "files": len(files), "seconds": seconds}


def drawn(name: str, count: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the first mutants of a target whose function is bound or reached."""
    rows = [row for row in read(DATA) if row["kind"] == "mutant"]
    reached = {row["number"] for row in rows if row["bound"] or row["ran"]}
    bound = {(each.file, each.name) for each in inventory(name)[2] if each.state == "bound"}
    seed = rows[0]["seed"] if rows else 1
    for row, source in draw_mutants(seed, sys.maxsize):
        if row["target"] == name and (row["number"] in reached or (row["file"], row["function"]) in bound):
            yield {**row, "kind": "own tests"}, source
            count -= 1
        if not count:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--python", required=True, help="the interpreter that has the framework's requirements")
    parser.add_argument("--tests", action="append", required=True, help="glob of test files in the framework's tree")
    parser.add_argument("--mutants", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=900.0, help="time limit of one run of the tests")
    parser.add_argument("--to", type=Path, default=DATA)
    options = parser.parse_args()
    done = {key(row) for row in read(options.to)}
    with tempfile.TemporaryDirectory() as folder:
        tests = OwnTests(options.target, options.python, options.tests, Path(folder), options.seconds)
        for row, source in drawn(options.target, options.mutants):
            if key(row) not in done:
                line = json.dumps({**row, **tests.judge(row["file"], source)})
                print(line, flush=True)
                with options.to.open("a", encoding="utf-8") as out:
                    out.write(f"{line}\n")


if __name__ == "__main__":
    main()
