"""Invalid names, refs, URLs and paths are rejected before anything is fetched or run."""

import os
from pathlib import Path

import pytest
from demo_kit import Repository, copy_demo

from sentinel.sources import MirrorStore

USAGE, NOTHING = pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sentinel-target=verll"], "unknown target 'verll' — did you mean 'verl'?; known: areal, demo, "),
        (["--sentinel-target=demo", "--sentinel-bug=DEMO-MASKED-TOKEN"], "did you mean 'DEMO-MASKED-TOKENS'?"),
        (["--sentinel-target=demo", "--sentinel-bug=../../etc/*"], "no recipe matches"),
        (["--sentinel-target=demo", "--sentinel-baseline=nowhere"], "--sentinel-baseline=nowhere: no such folder; "),
        (["--sentinel-ref=git:--upload-pack=touch pwned"], "a git name cannot begin with '-'"),
        (["--sentinel-repo-url=ext::sh -c touch% pwned"], "names a transport that runs a command"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_an_invalid_option_is_a_usage_error(arguments, says, run_pytest, snapshot):
    before = snapshot()
    answer = run_pytest("--sentinel-recipes=good", *arguments).says(says)
    assert answer.status == USAGE
    (line,) = answer.err.split("\n\n")[0].splitlines()
    assert line.startswith("ERROR: sentinel: ")
    assert snapshot() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["recipes/../../../etc/passwd.yaml"],
        ["recipes/verl/../../adapters/demo.yaml::git:main"],
        ["recipes/verl/VERL-REJECTED-ROW-GRPO.yaml::../../x"],
        ["/nowhere/x.yaml", "--sentinel-target=demo"],
    ],
    ids=lambda value: value[0],
)
def test_an_item_id_that_matches_nothing_is_a_usage_error(arguments, run_pytest, snapshot):
    before = snapshot()
    assert run_pytest(*arguments).says("not found: ").status == USAGE
    assert snapshot() == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mirror", "add", "dem"], "unknown target 'dem' — did you mean 'demo'?; known: areal, demo, "),
        (["mirror", "add", "--", "-x"], "unknown target '-x'; known: "),
        (["mirror", "add", "demo", "--from=--upload-pack=touch pwned"], "begins with '-' like an option"),
        (["mirror", "add", "demo", "--from", "ext::sh -c touch% pwned"], "names a transport that runs a command"),
        (["mirror", "add", "demo", "--from", "nowhere;touch pwned"], "no such file or directory"),
        (["recipe", "new", "../../EVIL", "--target", "demo"], "'../../EVIL' is not a valid bug id"),
        (["show", "../../EVIL"], "no recipe matches '../../EVIL'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_command_line_is_a_usage_error(arguments, says, run_sentinel, here):
    answer = run_sentinel(*arguments).says(says)
    assert answer.status == 2
    (line,) = answer.err.splitlines()
    assert line.startswith(("sentinel: ", "nothing was examined: "))
    assert sorted(os.listdir(here)) == ["good"]
    assert MirrorStore().list() == []


@pytest.mark.parametrize("place", ["reports", "reports/below", "reports/../reports/x"])
def test_an_unwritable_report_folder_is_an_error(place, demo, broken_tree, here, snapshot):
    """A file has the folder's name. (Permissions would not stop a test that runs as root.)"""
    (here / "reports").write_text("mine")
    before = snapshot()
    answer = demo(f"--sentinel-repo={broken_tree}", f"--sentinel-report-dir={place}")
    assert (
        answer.says(f"cannot write reports to {place}: ", "choose another with --sentinel-report-dir").status == USAGE
    )
    assert snapshot() == before


@pytest.mark.slow
def test_a_missing_git_is_reported(here, pytester, demo_home, fixed_tree, monkeypatch):
    """A working tree is decided without git; a ref that needs git is a usage error."""
    (here / "bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    options = ["-p", "no:cacheprovider", "--sentinel-target=demo", "--sentinel-recipes=good", "--sentinel-laws=off"]
    pytester.runpytest_subprocess(*options, f"--sentinel-ref=path:{fixed_tree}").assert_outcomes(passed=1)
    result = pytester.runpytest_subprocess(*options, f"--sentinel-ref=git:main,path:{fixed_tree}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "demo: git is not installed (or not on PATH); install git" in result.stderr.str()
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def _with_links(tree: Path, secret: Path) -> Path:
    (tree / "demo_rl" / "losses.py").unlink()
    (tree / "demo_rl" / "losses.py").symlink_to(secret)
    (tree / "demo_rl" / "up.py").symlink_to("../../secret.py")
    return tree


@pytest.mark.parametrize("kind", ["path", "git"])
def test_a_checkout_with_files_outside_of_it_is_rejected(kind, demo, run_sentinel, tmp_path):
    """A link to a file outside the checkout is neither read nor run, so the boundary is missing."""
    ran, secret = tmp_path / "ran", tmp_path / "secret.py"
    secret.write_text(f"open({str(ran)!r}, 'w')\ndef agg_loss(loss_mat, loss_mask): return loss_mat.sum() * 0 + 1\n")
    repository = Repository(tmp_path / "linked")
    repository.path.mkdir()
    _with_links(copy_demo(repository.path), secret)
    ref = f"--sentinel-repo={repository.path}"
    if kind == "git":
        repository.git("init", "--quiet", "--initial-branch=main")
        repository.git("add", "--all")
        repository.git("commit", "--quiet", "--message", "links")
        assert run_sentinel("mirror", "add", "demo", "--from", repository.path).status == 0
        ref = "--sentinel-ref=git:main"
    answer = demo(ref).says("nothing was decided", "demo_rl.losses")
    assert answer.status == NOTHING
    assert not ran.exists()
    copies = [path for path in (tmp_path / "sentinel-home").rglob("*") if path.name in ("losses.py", "up.py")]
    assert copies == []
