"""Run upstream's own tests in two scratch trees of a commit: one without the fix, one with it."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sentinel.recipes.fixes import Fix
from sentinel.reports.escaping import portable
from sentinel.sources import git_objects
from sentinel.sources.trees import LINK, too_large
from sentinel.tools.upstream.checking import output_of
from sentinel.tools.upstream.patch import changed_by

#: Time limit for one test file in seconds.
TIMEOUT = 240.0

_NOT_FINISHED = f"not finished within {TIMEOUT:g} s"

#: The maximum number of test files that are run.
MOST = 6

_TEST = re.compile(r"(^|/)tests?/(.*/)?(test_\w+|\w+_test)\.py$")
_OUTCOME = re.compile(
    r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:\[\d+\] )?"
    r"(\S+?\.py(?:::[\w:]+(?:\[.*?\](?= - |$))?)?)(?:(?: - |:\d+: )(.*))?",  # parameters in brackets may contain spaces
    re.MULTILINE,
)


#: pytest's summary, such as ``1 failed, 2 passed``. Its end may be cut off.
_SUMMARY = re.compile(r"(?m)^=* ?(\d+ [a-z]+(?:, \d+ [a-z]+)*)")

#: A run in a log: the names of the tests, the side, and pytest's output.
_RUN = re.compile(r"(?ms)^\$ pytest ([^\n]*)  # (without|with) the fix\n(.*?)(?=^\$ pytest |\Z)")


class UpstreamTests:
    """Runs upstream's tests without and with a fix, in scratch trees that are removed at the end.

    Tests are untrusted code, so they run in the strict sandbox.

    :param changes: maps each edited file to its content before and after the fix.
    :param python: the interpreter that runs the tests; None for the running one.
    """

    def __init__(self, git_dir: Path, fix: Fix, changes: Mapping[str, tuple[bytes, bytes]], python: str | None) -> None:
        self._git_dir, self._fix, self._changes = git_dir, fix, changes
        self._python = python or sys.executable
        self._folder = tempfile.TemporaryDirectory(prefix="sentinel-", ignore_cleanup_errors=True)
        self._logs: dict[tuple[str, ...], str] = {}
        self._option = ""  # the pytest option that all runs use after a conftest.py did not finish

    def __enter__(self) -> UpstreamTests:
        os.chmod(self._folder.name, 0o755)
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    @cached_property
    def files(self) -> list[str]:
        """Return the test files that the fix edits, or that import an edited module; at most :data:`MOST`.

        The files whose paths are most similar to those of the edited files come first, and tests for a GPU come last.
        """
        listed, _ = git_objects.listing(self._git_dir, self._fix.commit, [])
        tests = {entry.path: entry.blob for entry in listed if _TEST.search(entry.path) and entry.mode != LINK}
        here = git_objects.sizes(self._git_dir, tests.values())
        modules = [_import_of(file) for file in self._changed if not _TEST.search(file) and file.endswith(".py")]
        matches = []
        texts = dict(git_objects.contents(self._git_dir, {blob for blob in tests.values() if here[blob] is not None}))
        for file, blob in tests.items():
            text = texts.get(blob, b"").decode("utf-8", "replace")
            about_it = file in self._changed or any(pattern.search(text) for pattern in modules)
            if about_it and re.search(r"(?m)^\s*(async )?def test", text):
                matches.append(file)
        about = {word for path in self._changed for word in _words(path)}
        matches.sort(key=lambda file: ("gpu" in _words(file), -len(about & _words(file)) / len(_words(file)), file))
        return matches[:MOST]

    @cached_property
    def _changed(self) -> list[str]:
        if self._fix.edits:
            return list(self._fix.files)
        return changed_by(self._git_dir, self._fix)

    @property
    def log(self) -> str:
        """Return pytest's output about the fix's own tests. Durations and local paths are removed."""
        return "\n".join(self._logs.values())

    def compared(self) -> dict[str, dict[str, Any]]:
        """Run upstream's test files without and with the fix: file -> result.

        ``outcomes`` maps each outcome to its counts without and with the fix. ``worse`` lists the tests that passed
        without the fix and do not pass with it. If no test ran, the result has only the reason, ``not_runnable``.
        """
        without = self._run("without", self.files)
        # A file without a passing test cannot show that the fix breaks something.
        ran = [file for file, (outcomes, _, _) in without.items() if "passed" in outcomes.values()]
        results: dict[str, dict[str, Any]] = {
            file: {"not_runnable": reason} for file, (_, reason, _) in without.items() if file not in ran
        }
        for file, (after, reason, option) in self._run("with", ran).items():
            if reason == _NOT_FINISHED:  # on a busy machine, this says nothing about the fix
                results[file] = {"not_runnable": f"{reason} with the fix"}
                continue
            before, counts = without[file][0], dict[str, list[int]]()
            for side, outcomes in enumerate((before, after)):
                for outcome in outcomes.values():
                    counts.setdefault(outcome, [0, 0])[side] += 1
            worse = sorted(name for name, outcome in before.items() if outcome == "passed" != after.get(name, "error"))
            results[file] = {"outcomes": counts, "worse": worse} | ({"option": option} if option else {})
        return results

    def regression(self) -> dict[str, dict[str, Any]]:
        """Run the fix's own tests without and with the fix: test -> outcomes. Both trees have these tests."""
        results: dict[str, dict[str, Any]] = {test: {} for test in self._fix.regression}
        for side in ("without", "with"):
            for test, (outcomes, reason, option) in self._run(side, self._fix.regression, own_tests=True).items():
                distinct = set(outcomes.values())
                sides = results[test]
                sides[side] = (
                    "passed" if distinct == {"passed"} else "failed" if "failed" in distinct else "did not run"
                )
                if option:
                    sides["option"] = option
                if sides[side] == "did not run":
                    sides["reason"] = reason
        return results

    def _run(
        self, side: str, tests: Sequence[str], own_tests: bool = False, option: str = ""
    ) -> dict[str, tuple[dict[str, str], str, str]]:
        """Run test files or single tests with pytest, in one of the two trees.

        If no test runs, run them again without any ``conftest.py``, which may start a service that does not work here.

        :param side: ``without`` or ``with`` the fix.
        :param own_tests: whether these are the tests of the fix.
        :returns: for each file or test, the outcomes of its tests, pytest's explanation if no test ran, and the option
            that disabled ``conftest.py`` (otherwise empty).
        """
        if not tests:
            return {}
        option = option or self._option
        tree = self._tree(side, own_tests)
        projects = [tree, *(file.parent for depth in ("*", "*/*") for file in tree.glob(f"{depth}/pyproject.toml"))]
        roots = [place for project in projects for place in (project, project / "src") if place.is_dir()]
        quiet = "-q -rA --tb=line --color=no -p no:cacheprovider -p no:sentinel -o addopts= -o log_cli=false -W ignore"
        quiet += f" --continue-on-collection-errors {option}"
        command = [self._python, "-m", "pytest", *quiet.split(), f"--rootdir={tree}", *(f"{tree}/{t}" for t in tests)]
        flags = {"TORCHDYNAMO_DISABLE": "1", "COLUMNS": "400", "PYTHONPATH": os.pathsep.join(map(str, roots))}
        with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
            out = output_of(command, Path(folder), [tree], flags, TIMEOUT)
        if out is None and not option:  # a conftest.py or a test waits for a service that is missing here
            alone = self._run(side, tests, own_tests, "--noconftest")
            if any(map(_ran, alone.values())):
                self._option = "--noconftest"
                return alone
        if out is None and len(tests) > 1:
            return {test: self._run(side, [test], own_tests, option)[test] for test in tests}
        out = _NOT_FINISHED if out is None else out
        out = re.sub(r"\x1b\[[\d;]*m", "", out)  # some projects force colours
        out = re.sub(rf"[\w./-]*{re.escape(Path(self._folder.name).name)}/{tree.name}/", "", out)
        if own_tests:
            shown = re.sub(r"(?m) in [\d.]+s( \([\d:]+\))?(?= =*$|$)", "", portable(out)).strip()
            shown = re.sub(r"([=_ ])\1{9,}", r"\1" * 10, shown)
            # The key has no option, so the log of a later attempt without conftest.py replaces that of the first.
            called = f"$ pytest {' '.join([*option.split(), *tests])}  # {side} the fix"
            key = (side, *tests)
            self._logs[key] = f"{called}\n{shown}\n"
        lines = _OUTCOME.findall(out)
        results = {}
        for test in tests:
            own = [
                (outcome.lower(), name, reason)
                for outcome, name, reason in lines
                if re.match(rf"{re.escape(test)}\b", name)
            ]
            whole = sorted(own, key=lambda line: "::" in line[1])  # an error in the file itself comes first
            reason = next((reason for _, _, reason in whole if reason), "") or _why_no_test_ran(out)
            ran = {name: outcome for outcome, name, _ in own if outcome != "skipped"}
            results[test] = ran, portable(reason)[:200], option
        if not option and not any(map(_ran, results.values())):
            alone = self._run(side, tests, own_tests, "--noconftest")
            return {test: alone[test] if _ran(alone[test]) else results[test] for test in tests}
        return results

    def _tree(self, side: str, own_tests: bool) -> Path:
        """Return one of the scratch trees, which is created on first use.

        The tree without the fix exists in two versions: with the fix's own tests, and without them.
        """
        tree = Path(self._folder.name, side + ("-tested" if own_tests and side == "without" else ""))
        if tree.exists():
            return tree
        commit = self._fix.head if self._fix.head and side == "with" else self._fix.commit
        listed, _ = git_objects.entries(self._git_dir, commit, [])
        kept = {
            e.path: e.blob for e in listed if e.mode != LINK and e.size is not None and not too_large(e.path, e.size)
        }
        blobs: dict[str, list[str]] = {}
        for path, blob in kept.items():
            blobs.setdefault(blob, []).append(path)
        for blob, content in git_objects.contents(self._git_dir, blobs):
            for path in blobs[blob]:
                place = tree / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        changes = {path: after for path, (_, after) in self._changes.items()}
        if self._fix.head and own_tests:
            there, _ = git_objects.listing(self._git_dir, self._fix.head, self._changed)
            changes = {e.path: next(git_objects.contents(self._git_dir, [e.blob]))[1] for e in there}
        if side == "without":
            changes = {path: after for path, after in changes.items() if own_tests and _TEST.search(path)}
        for path, content in changes.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        for place in (tree, *tree.rglob("*")):
            place.chmod(0o755 if place.is_dir() else 0o644)
        return tree


def proves(log: str, tests: Sequence[str]) -> bool:
    """Return True if a log states that each test failed without the fix and passed with it.

    :param log: output of pytest, in the form of :attr:`UpstreamTests.log`. A person may have run tests that cannot run
        in the sandbox, and written the log.
    :param tests: the names of the tests; without any, return False.
    """
    runs = _RUN.findall(log)

    def outcomes(test: str, side: str) -> set[str]:
        outs = [out for names, which, out in runs if which == side and any(map(test.startswith, names.split()))]
        return {
            word for out in outs for summary in _SUMMARY.findall(out)[-1:] for word in re.findall("[a-z]+", summary)
        }

    decisive = {"failed", "passed", "error", "errors"}
    return bool(tests) and all(
        "failed" in outcomes(test, "without") and outcomes(test, "with") & decisive == {"passed"} for test in tests
    )


def _ran(result: tuple[Mapping[str, str], str, str]) -> bool:
    return not {"passed", "failed"}.isdisjoint(result[0].values())


def _words(path: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", path.lower())) - {"py", "test", "tests"}


def _import_of(file: str) -> re.Pattern[str]:
    """Return a pattern that matches code which uses a file's module.

    A string with the dotted path is matched only in ``import_module()``, because tests also use it to mock the module.
    """
    parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
    package, name = r"\.".join(map(re.escape, parts[-3:-1])), re.escape(parts[-1])
    imported = rf"import_module\(\s*[\"'][\w.]*{package}\.{name}\b"
    return re.compile(rf"{imported}|{package}\.{name}\b(?![\"'])|from [\w.]*{package} import [^\n]*\b{name}\b")


def _why_no_test_ran(out: str) -> str:
    lines = [re.sub(r"^E? +", "", line) for line in out.splitlines() if re.search(r"Error\b|not available", line)]
    last = re.sub(r"^=* *| in [\d.]+s.*$", "", (out.strip().splitlines() or [""])[-1])
    return (lines or [last or "no output"])[-1][:200]
