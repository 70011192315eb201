"""Runs that decide nothing exit with status 5, with any reporter; refs that are not available are usage errors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, write_recipe

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home")

#: Commits that no mirror has. Their reasons differ in the hash only, so they count as one cause.
ABSENT = [{"ref": f"git:{number:07x}{'0' * 33}", "expect": "fixed"} for number in range(1, 13)]


@pytest.fixture
def absent(pytester: pytest.Pytester, demo_repository: Repository) -> Path:
    """Twelve pins that are not available, and one that is decided."""
    folder = pytester.path / "mine"
    write_recipe(folder, MASKED_TOKENS, pins=ABSENT)
    write_recipe(folder, REJECTED_ROW, pins=[{"ref": f"git:{demo_repository.commits['fixed']}", "expect": "fixed"}])
    return folder


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("--sentinel-recipes=mine", *arguments)


#: Everything below selects only items that cannot be decided.
WAYS = {
    "alone": ["-k", "MASKED"],
    "quiet": ["-k", "MASKED", "-q", "-q"],
    "quietest": ["-k", "MASKED", "-qqq"],
    "no terminal": ["-k", "MASKED", "-p", "no:terminal"],
    "no skipping": ["-k", "MASKED", "-rs", "--tb=no", "--no-header", "--no-summary"],
    "last failed": ["-k", "MASKED", "--lf"],
    "two workers": ["-k", "MASKED", "-p", "xdist", "-n", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_deciding_nothing_exits_with_5_with_every_reporter(options, pytester, absent):
    if "-n" in options:
        pytest.importorskip("xdist")
        command = [sys.executable, "-m", "pytest", "--sentinel-recipes=mine", *options]
        finished = subprocess.run(
            command, cwd=pytester.path, capture_output=True, text=True, env=os.environ, check=False
        )
        status, text = finished.returncode, finished.stdout + finished.stderr
    else:
        result = run(pytester, *options)
        status, text = int(result.ret), result.stdout.str() + result.stderr.str()
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, text
    if "--no-summary" not in options:
        assert "nothing was decided: " in text


def test_a_project_that_skips_every_item_exits_with_5(pytester, absent):
    pytester.makeconftest(
        "import pytest\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items: item.add_marker(pytest.mark.skip('not today'))\n"
    )
    result = run(pytester)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["nothing was decided: none of the 13 items could be decided; *"])


@pytest.mark.slow
def test_verdicts_are_printed_on_standard_error_without_a_terminal(pytester, absent, broken_tree):
    result = run(pytester, "-p", "no:terminal", "-k", "REJECTED")
    assert (result.ret, result.stdout.str()) == (0, "")
    result.stderr.fnmatch_lines(["sentinel:", "1 fixed"])
    result = run(pytester, "-p", "no:terminal", f"--sentinel-repo={broken_tree}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.fnmatch_lines(["sentinel:", "2 reproduced"])


def test_undecided_items_are_counted_by_cause_in_every_report(pytester, absent):
    result = run(pytester, "--junitxml=junit.xml")
    assert result.ret == 0
    cause = "12: unavailable: demo: commit … is not in the mirror; *"
    result.stdout.fnmatch_lines(["not decided: 12 of 13", f"  {cause}"])
    assert len([line for line in result.outlines if "is not in the mirror" in line]) == 2, "the table and the cause"
    totals = json.loads((pytester.path / "sentinel-reports" / "run.json").read_text())["totals"]
    ((why, count),) = totals["undecided"].items()
    assert (count, why.startswith("unavailable: demo: commit … is not")) == (12, True)
    properties = ElementTree.parse(pytester.path / "junit.xml").iter("property")
    reasons = [item.get("value") or "" for item in properties if item.get("name") == "sentinel_reason"]
    assert len(reasons) == 12
    assert all("is not in the mirror" in reason for reason in reasons)


def test_agreeing_with_an_undecided_baseline_decides_nothing(pytester, absent, demo_repository):
    """`inconclusive` in the baseline and `inconclusive` now confirm nothing."""
    write_recipe(pytester.path / "mine", MASKED_TOKENS, pins=[{"ref": f"git:{demo_repository.commits['syntax']}",
                                                              "expect": "fixed"}])  # fmt: skip
    first = run(pytester, "-k", "MASKED")
    assert first.ret == pytest.ExitCode.TESTS_FAILED
    (pytester.path / "sentinel-reports").rename(pytester.path / "kept")
    second = run(pytester, "-k", "MASKED", "--sentinel-baseline=kept")
    second.assert_outcomes(passed=1)
    assert second.ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_reports_reject_a_run_that_decided_nothing(pytester, absent, capsys):
    """`report run`, `changes`, `accept` and `findings` on the evidence of such a run."""
    from sentinel.cli import main

    run(pytester, "-k", "MASKED")
    (pytester.path / "kept").mkdir()
    for line in ("run", "changes --baseline sentinel-reports", "accept --to kept", "findings --from sentinel-reports"):
        capsys.readouterr()
        assert main(["report", *line.split()]) == 2
        assert "nothing was examined: " in capsys.readouterr().err, line
    assert list((pytester.path / "kept").iterdir()) == []
    assert not (pytester.path / "findings").exists()


@pytest.mark.slow
def test_a_killed_run_leaves_no_run_json_of_an_earlier_run(pytester, absent):
    """`run.json` belongs to this run from its first item on."""
    assert run(pytester).ret == 0
    pytester.makeconftest("import os\ndef pytest_runtest_protocol(): os._exit(9)\n")
    command = [sys.executable, "-m", "pytest", "--sentinel-recipes=mine"]
    finished = subprocess.run(command, cwd=pytester.path, capture_output=True, env=os.environ, check=False)
    assert finished.returncode == 9
    assert json.loads((pytester.path / "sentinel-reports" / "run.json").read_text())["items"] == []


def _bare_python(folder: Path) -> str:
    """Make an interpreter without torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    return str(folder / "bare" / "bin" / "python")


def _empty(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def _other(folder: Path) -> str:
    (folder / "other" / "another_project").mkdir(parents=True)
    (folder / "other" / "another_project" / "__init__.py").touch()
    return str(folder / "other")


def _hollow(folder: Path) -> str:
    (folder / "hollow" / "demo_rl").mkdir(parents=True)
    return str(folder / "hollow")


def _file(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file")


def _none(_: Path) -> str:
    return ""


@pytest.mark.parametrize(
    ("option", "place", "said"),
    [
        ("--sentinel-ref=git:nosuchbranch", _none, "*git:nosuchbranch is not available: *no branch, tag or commit*"),
        ("--sentinel-ref=git:" + "0" * 40, _none, "*is not available: *0000 is not in the mirror*"),
        ("--sentinel-ref=git:pull/99/head", _none, "*git:pull/99/head is not available: *"),
        ("--sentinel-ref=pypi:99.0", _none, "*pypi:99.0 is not available: demo has no releases on PyPI*"),
        ("--sentinel-ref=installed", _none, "*installed is not available: demo is not installed*"),
        ("--sentinel-ref=path:/no/such/folder", _none, "*is not available: demo: /no/such/folder is not a directory*"),
        ("--sentinel-ref=roll=git:main", _none, "*--sentinel-ref=roll=git:main: roll is not a target of this run*"),
        ("--sentinel-repo=roll=", _empty, "*--sentinel-repo=roll=path:*: roll is not a target of this run (demo)*"),
        ("--sentinel-repo=", _empty, "*is not available: *empty has none of its package roots; looked for demo_rl*"),
        ("--sentinel-repo=", _other, "*is not available: *other has none of its package roots; looked for demo_rl*"),
        ("--sentinel-repo=", _hollow, "*is not available: *has none of its package roots; looked for demo_rl*"),
        ("--sentinel-repo=", _file, "*no such folder: *file*"),
        ("--sentinel-python=/no/such/python", _none, "*no such interpreter: /no/such/python; *"),
        ("--sentinel-python=", _bare_python, "*--sentinel-python=*bare/bin/python: *has no numpy; install torch and*"),
        ("--sentinel-python=/bin/true", _none, "*--sentinel-python=/bin/true: *did not start*"),
        (
            "--sentinel-baseline=",
            _empty,
            "*--sentinel-baseline=*empty: the folder contains no evidence; *report accept*",
        ),
        ("--sentinel-report-dir=", _file, "*cannot write reports to *file: *Not a directory*"),
        ("--sentinel-bug=NO-SUCH-*", _none, "*no recipe matches 'NO-SUCH-[*]'*"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else value.__name__,
)
def test_unavailable_refs_of_the_user_are_usage_errors(
    option: str, place: Callable[[Path], str], said: str, pytester: pytest.Pytester, absent: Path,
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """The run ends with one message before any item. Only a recipe's own pins may be unavailable."""
    if "python" in option:
        monkeypatch.undo()  # the session's process has another interpreter than the named one
        monkeypatch.chdir(pytester.path)
        monkeypatch.setenv("SENTINEL_HOME", str(request.getfixturevalue("_demo_home")))
    result = run(pytester, f"{option}{place(pytester.path)}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert len([line for line in result.errlines if line.startswith("ERROR")]) == 1
    assert "Traceback" not in result.stderr.str() + result.stdout.str()
    assert not (pytester.path / "sentinel-reports").exists()


def test_a_ref_for_several_targets_may_be_missing_for_some(pytester, absent, broken_tree):
    """`--sentinel-target=all --sentinel-repo=.` in the clone of one framework."""
    result = run(pytester, "--sentinel-target=demo,slime", "--sentinel-bug=DEMO-*", f"--sentinel-repo={broken_tree}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
