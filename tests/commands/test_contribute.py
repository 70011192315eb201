import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from demo_kit import git

from sentinel.recipes.fixes import Fix
from sentinel.tools.upstream import upstream_tests
from sentinel.tools.upstream.upstream_tests import UpstreamTests

FIX = """\
fix_version: 1
bugs: [TINY-MEAN]
commit: {commit}
subject: "[loss] fix: mask the numerator of the mean"
wrong: The losses of masked tokens are summed, though only the others are counted.
cause: The numerator forgets the mask that the denominator has.
guilty: [{{file: tiny/losses.py, lines: [3, 3]}}]
fix: Multiply the losses by the mask before they are summed.
reach: "Every run whose responses have padding gets there, see #7."
limits: ["none is known"]
numbers: {{loss: the loss of two tokens}}
edits:
  - {{file: tiny/losses.py, blob: {blob}, lines: [3, 3], new: "    return {mended}\\n"}}
  - {{file: tests/test_losses.py, new: "def test_mean():\\n    assert True\\n"}}
"""
RIGHT = "(loss_mat * loss_mask).sum() / loss_mask.sum()"


@pytest.fixture
def fixed_by(tiny: Any, mirrored: None) -> Iterator[Callable[..., Path]]:
    """Return a function that adds a fix to the recipe; with the fix, the function returns ``expression``."""
    file = Path(tiny.recipe).with_name("TINY-MEAN.fix.yaml")

    def write(mended: str = RIGHT, blob: str = "") -> Path:
        blob = blob or git(tiny.upstream, "rev-parse", f"{tiny.buggy}:tiny/losses.py")
        file.write_text(FIX.format(commit=tiny.buggy, blob=blob, mended=mended))
        return file

    yield write
    file.unlink(missing_ok=True)


@pytest.fixture
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.tools.upstream.trying.OWN", 12)


@pytest.fixture
def clone(tiny: Any, tmp_path: Path) -> Path:
    """A clone of upstream at the commit with the bug."""
    git(tmp_path, "clone", "-q", str(tiny.upstream), "clone")
    (tmp_path / "user" / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    git(tmp_path / "clone", "update-ref", "refs/remotes/origin/main", tiny.buggy)
    return tmp_path / "clone"


def test_a_fix_is_shown_as_a_diff_that_git_accepts(run_sentinel, fixed_by, tiny, clone, tmp_path):
    fixed_by()
    patch = tmp_path / "patch"
    patch.write_text(run_sentinel("fix", "show", "TINY-MEAN").out)
    git(clone, "checkout", "-q", tiny.buggy)
    git(clone, "apply", str(patch))
    assert RIGHT in (clone / "tiny" / "losses.py").read_text()
    assert (clone / "tests" / "test_losses.py").is_file()


def test_a_fix_file_is_not_loaded_as_a_recipe(run_sentinel, fixed_by):
    fixed_by()
    answer = run_sentinel("list", "recipes")
    assert (answer.status, answer.out.count("TINY-MEAN")) == (0, 1)


@pytest.mark.slow
def test_a_fix_that_changes_only_the_bug_passes(run_sentinel, fixed_by):
    fixed_by()
    answer = run_sentinel("fix", "check", "TINY-MEAN", "--no-tests", "--json")
    told = answer.json()["TINY-MEAN"]
    assert (answer.status, told["problems"]) == (0, []), answer.err
    assert told["bugs"] == {"TINY-MEAN": ["reproduced", "fixed"]}
    [said] = told["boundaries"].values()
    assert said["scenarios"] >= 50
    assert said["mended"] > 0
    assert said["largest_difference"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "option"),
    [
        ("config.option.color = 'yes'", {}),
        pytest.param("open('/no/cluster')", {"option": "--noconftest"}, marks=pytest.mark.nightly),
    ],
)
def test_upstreams_tests_run_without_and_with_the_fix(run_sentinel, few_scenarios, fixed_by, does, option):
    """This includes a conftest that colours the output, and a conftest that fails here, which is then disabled."""
    file = fixed_by()
    told = """\
  - {file: tests/conftest.py, new: "def pytest_configure(config):\\n    DOES\\n"}
  - file: tests/test_mean.py
    new: |
      from tiny import losses
      def test_mask():
          assert "* loss_mask" in open(losses.__file__).read()
regression: [tests/test_mean.py::test_mask]
"""
    file.write_text(file.read_text() + told.replace("DOES", does))
    answer = run_sentinel("fix", "check", "TINY-MEAN", "--json")
    found = answer.json()["TINY-MEAN"]["regression"]
    assert found == {"tests/test_mean.py::test_mask": {"without": "failed", "with": "passed", **option}}, answer.out


def test_a_hanging_conftest_is_disabled_for_later_tests(monkeypatch):
    """Both test files run with the conftest once, and then without it, both before and after the fix."""
    ran: list[bool] = []

    def output_of(command: list[str], *_: Any) -> str | None:
        ran.append("--noconftest" in command)
        files = [Path(item).name for item in command if item.endswith(".py")]
        return "\n".join(f"PASSED {file}::test" for file in files) if ran[-1] else None

    monkeypatch.setattr(upstream_tests, "output_of", output_of)
    monkeypatch.setattr(UpstreamTests, "_tree", lambda *_: Path("tree"))
    monkeypatch.setattr(UpstreamTests, "files", ["a.py", "b.py"])
    with UpstreamTests(Path(), cast(Fix, None), {}, None) as upstream:
        found = upstream.compared()
    assert ran == [False, True, True]
    told = {"outcomes": {"passed": [1, 1]}, "worse": [], "option": "--noconftest"}
    assert found == {"a.py": told, "b.py": told}


def test_tests_that_do_not_finish_with_the_fix_do_not_count_against_it(monkeypatch):
    def output_of(command: list[str], *_: Any) -> str | None:
        return "PASSED a.py::test" if "without/a.py" in command[-1] else None

    monkeypatch.setattr(upstream_tests, "output_of", output_of)
    monkeypatch.setattr(UpstreamTests, "_tree", lambda _, side, own_tests: Path(side))
    monkeypatch.setattr(UpstreamTests, "files", ["a.py"])
    with UpstreamTests(Path(), cast(Fix, None), {}, None) as upstream:
        assert upstream.compared() == {"a.py": {"not_runnable": "not finished within 240 s with the fix"}}


def test_tests_with_spaces_in_their_names_are_counted_separately(monkeypatch):
    out = "PASSED a.py::test[two words-1]\nFAILED a.py::test[two words-2] - [0] - no\nPASSED a.py::T::test\n"
    monkeypatch.setattr(upstream_tests, "output_of", lambda *_: out)
    monkeypatch.setattr(UpstreamTests, "_tree", lambda *_: Path("tree"))
    monkeypatch.setattr(UpstreamTests, "files", ["a.py"])
    with UpstreamTests(Path(), cast(Fix, None), {}, None) as upstream:
        assert upstream.compared()["a.py"]["outcomes"] == {"passed": [2, 2], "failed": [1, 1]}


def test_test_files_that_a_fix_edits_run_completely(tmp_path):
    """This includes a test that imports the function from its package instead of its module."""
    for name, text in (("losses.py", ""), ("tests/test_all.py", "from tiny import f\ndef test_f(): ...\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "tests")
    commit = git(tmp_path, "rev-parse", "HEAD")
    for files, found in ((["losses.py"], []), (["losses.py", "tests/test_all.py"], ["tests/test_all.py"])):
        fix = cast(Fix, SimpleNamespace(edits=files, files=files, commit=commit))
        with UpstreamTests(tmp_path / ".git", fix, {}, None) as upstream:
            assert upstream.files == found


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("import tiny.losses", True),
        ("losses = importlib.import_module('tiny.losses')", True),
        ("patch('tiny.losses.f')", True),
        ("sys.modules['tiny.losses'] = MagicMock()", False),
    ],
)
def test_a_test_that_replaces_the_edited_module_does_not_use_it(tmp_path, text, uses):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_f.py").write_text(f"{text}\ndef test_f(): ...\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-qm", "tests")
    files = ["tiny/losses.py"]
    fix = cast(Fix, SimpleNamespace(edits=files, files=files, commit=git(tmp_path, "rev-parse", "HEAD")))
    with UpstreamTests(tmp_path / ".git", fix, {}, None) as upstream:
        assert upstream.files == (["tests/test_f.py"] if uses else [])


@pytest.mark.parametrize(
    ("without", "after", "proven"),
    [
        ("1 failed, 2 passed", "==== 3 passed, 2 warnings ====", True),
        ("2 passed", "2 passed", False),
        ("1 failed", "==== 1 error ====\nERROR: found no collectors for test_f.py::test_f", False),
        ("1 failed", "1 skipped", False),
        ("1 failed", "1 failed, 2 passed", False),
        ("1 error", "1 passed", False),
    ],
)
def test_a_log_proves_a_fix_if_its_test_failed_without_it_and_passed_with_it(without, after, proven):
    log = f"# by hand\n$ pytest tests/test_f.py::test_f  # without the fix\n{without}\n\n"
    log += f"$ pytest --noconftest tests/test_f.py::test_f  # with the fix\n{after}\n"
    assert upstream_tests.proves(log, ["tests/test_f.py::test_f"]) == proven
    assert not upstream_tests.proves(log, ["tests/test_f.py::test_f", "tests/test_g.py::test_g"])
    assert not upstream_tests.proves(log, [])


def test_a_log_without_a_passing_run_is_rejected(run_sentinel, fixed_by):
    fixed_by()
    run_sentinel("contribute", "TINY-MEAN", "--no-check", "--out", "out")
    Path("out", "TINY-MEAN", "tests.log").write_text("1 passed\n")
    answer = run_sentinel("contribute", "--rewrite", "out")
    assert answer.status == 1
    assert "does not show that the new test failed without the fix and passed with it" in answer.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mended", "told"),
    [
        ("loss_mat.sum() / loss_mask.sum()", "TINY-MEAN is reproduced with the fix"),
        (f"2 * {RIGHT}", "TINY-MEAN is changed with the fix"),
        ("loss_mat[:1].sum() * 0 + 1", "tiny.losses.agg_loss: with the fix"),
    ],
)
def test_a_failing_fix_is_reported(run_sentinel, few_scenarios, fixed_by, mended, told):
    """The fix has no effect, gives a new wrong value, or is right only for the recipe's scenario."""
    fixed_by(mended)
    answer = run_sentinel("fix", "check", "TINY-MEAN", "--no-tests")
    assert answer.status == 1
    assert f"Problem: {told}" in answer.out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("", "differ on 6 drawn scenarios that do not trigger the bug"),
        ("changes: [tiny.losses.agg_loss]", ""),
        ("changes: [tiny.losses.agg_loss, tiny.other]", "tiny.other: no drawn scenario shows that the fix changes it"),
    ],
)
def test_a_function_that_runs_the_fixed_code_may_change_if_the_fix_says_so(
    run_sentinel, few_scenarios, fixed_by, monkeypatch, changes, told
):
    file = fixed_by()
    file.write_text(file.read_text() + changes)
    # This simulates a bug in another function that breaks no law of this one.
    monkeypatch.setattr("sentinel.tools.upstream.trying._decide", lambda *_: [])
    monkeypatch.setattr("sentinel.tools.upstream.trying._broken", lambda *_: set())
    problems = run_sentinel("fix", "check", "TINY-MEAN", "--no-tests", "--json").json()["TINY-MEAN"]["problems"]
    assert [told in problem for problem in problems] == [True] * bool(told), problems


def test_an_edit_for_another_blob_is_rejected(run_sentinel, fixed_by):
    file = fixed_by(blob="a" * 40)
    answer = run_sentinel("fix", "show", "TINY-MEAN")
    assert answer.status == 2
    assert f"{file}:13:5: tiny/losses.py is blob" in answer.err
    assert "the edit was written for blob aaaaaaaaaaaa" in answer.err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("fix_version: 1", "fix_version: 2", ":1:14: 2 is not one of 1;"),
        ("lines: [3, 3], new", "new", ":13:5: write both `blob` and `lines`, or neither"),
        ("lines: [3, 3], new", "lines: [3, 33], new", "lines 3 to 33: tiny/losses.py has 3 lines"),
        ("bugs: [TINY-MEAN]", "bugs: [TINY-MEAN]\nhead: " + "a" * 40, "write either `edits` or upstream's own `head`"),
    ],
)
def test_errors_in_a_fix_are_reported_with_their_place(run_sentinel, fixed_by, old, new, told):
    file = fixed_by()
    file.write_text(file.read_text().replace(old, new))
    answer = run_sentinel("fix", "show", "TINY-MEAN")
    assert answer.status == 2
    assert f"{file}:" in answer.err
    assert told in answer.err


def test_a_bug_without_a_fix_names_the_expected_file(run_sentinel, mirrored):
    answer = run_sentinel("fix", "check", "TINY-MEAN")
    assert answer.status == 2
    assert "recipes/tiny/TINY-MEAN.fix.yaml" in answer.err


@pytest.mark.slow
def test_contribute_writes_the_patch_and_the_pages(run_sentinel, few_scenarios, fixed_by, tiny, clone):
    fixed_by()
    answer = run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-tests")
    assert answer.status == 0, answer.out + answer.err
    folder = Path("out") / "TINY-MEAN"
    page = (folder / "PULL_REQUEST.md").read_text()
    for told in (
        "before: the loss of two tokens = 26.0\nafter:  the loss of two tokens = 1.0\n",
        f"+    return {RIGHT}",
        "+def test_mean():",
        "* The numbers above were measured on a CPU, with Python ",
        "see #7",
    ):
        assert told in page, page
    assert "issues?q=agg_loss>" in (folder / "SENDER.md").read_text()
    git(clone, "checkout", "-q", tiny.buggy)
    git(clone, "am", "-q", "--keep-non-patch", str((folder / "fix.patch").absolute()))
    assert git(clone, "log", "-1", "--format=%s") == "[loss] fix: mask the numerator of the mean"
    assert "The numerator" not in git(clone, "log", "-1", "--format=%b")  # not the cause
    assert git(clone, "diff", "--name-only", tiny.buggy).split() == ["tests/test_losses.py", "tiny/losses.py"]


@pytest.mark.slow
def test_the_verdicts_of_a_contribution_are_decided_again(run_sentinel, few_scenarios, fixed_by):
    """Other files next to the evidence are neither read nor run."""
    fixed_by()
    assert run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-tests").status == 0
    folder = Path("out") / "TINY-MEAN"
    evidence = folder / "evidence.json"
    (folder / "run_validation.py").write_text(f"open({str(Path('ran').absolute())!r}, 'w')")
    (folder / "PULL_REQUEST.md").unlink()
    answer = run_sentinel("verify", evidence)
    assert answer.status == 0, answer.out + answer.err
    assert answer.out.count("every number is identical") == 2
    assert not Path("ran").exists()
    document = json.loads(evidence.read_text())
    document["bugs"]["TINY-MEAN"]["base"]["observation"][""]["loss"]["tensor"] = 27.0
    evidence.write_text(json.dumps(document))
    answer = run_sentinel("verify", evidence)
    assert (answer.status, answer.out.count("27.0 recorded, 26.0 now")) == (1, 2), answer.out


def test_verify_rejects_a_contribution_whose_fix_has_changed(run_sentinel, fixed_by):
    fixed_by()
    assert run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-check").status == 0
    fixed_by(f"{RIGHT} + 0")
    answer = run_sentinel("verify", Path("out") / "TINY-MEAN" / "evidence.json")
    assert answer.status == 2
    assert "code with a fix, but no fix of this catalog has its digest" in answer.out


def test_rewrite_updates_a_page_when_only_prose_has_changed(run_sentinel, fixed_by):
    file = fixed_by()
    assert run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-check").status == 0
    page = Path("out") / "TINY-MEAN" / "PULL_REQUEST.md"
    file.write_text(file.read_text().replace("none is known", "it is slow"))
    answer = run_sentinel("contribute", "--rewrite", "out")
    assert (answer.status, answer.out.strip()) == (0, "1 page written again")
    assert "* it is slow." in page.read_text()
    before = page.read_text()
    fixed_by(f"{RIGHT} + 0")
    answer = run_sentinel("contribute", "--rewrite", "out")
    assert (answer.status, page.read_text()) == (1, before)
    assert "has changed since the contribution was written; run `sentinel contribute` again" in answer.out
    assert run_sentinel("contribute", "--rewrite", "nowhere").status == 2


@pytest.mark.slow
def test_an_existing_pull_request_gets_a_comment_instead_of_a_page(run_sentinel, fixed_by):
    file, folder = fixed_by(), Path("out") / "TINY-MEAN"
    assert run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-check").status == 0
    assert {"PULL_REQUEST.md", "fix.patch"} <= {path.name for path in folder.iterdir()}
    file.write_text(file.read_text().replace("edits:", "comment: 'We measured this too, see issue #7.'\nedits:"))

    assert run_sentinel("contribute", "--rewrite", "out").status == 0
    assert {path.name for path in folder.iterdir()} == {"SENDER.md", "evidence.json"}
    sender = (folder / "SENDER.md").read_text()
    assert "already, #7. Open no other; comment there:\n\n> We measured this too, see issue #7.\n" in sender
    assert "* tiny issue &#35;7\n" in sender  # no mirror has issues; the word lets `report citations` know it
    assert "gh pr create" not in sender

    answer = run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-check")
    assert answer.status == 0
    assert "SENDER.md contains a comment for it" in answer.out
    assert "gh pr" not in answer.out


def test_contribute_writes_every_file_and_prints_the_next_step(run_sentinel, mirrored):
    answer, folder = run_sentinel("contribute", "TINY-MEAN", "--no-check", "--out", "out"), Path("out") / "TINY-MEAN"
    names = {path.name for path in folder.iterdir()}
    assert names == {"PULL_REQUEST.md", "evidence.json", "run_validation.py"}
    assert "gh pr create --repo" in answer.out
    assert "gh pr comment 7 --repo" in answer.out
    assert "base reproduced, head fixed" in answer.out
    assert "the runner was not tested" in answer.out
    document = json.loads((folder / "evidence.json").read_text())
    assert [side["verdict"] for side in document["bugs"]["TINY-MEAN"].values()] == ["reproduced", "fixed"]
    assert (document["fix"], document["tried"]) == (None, None)


def test_the_page_states_which_part_was_not_exported(run_sentinel, mirrored, tiny):
    """One of the revisions is not available."""
    answer = run_sentinel("contribute", "TINY-MEAN", "--base", f"git:{'0' * 40}", "--no-check", "--out", "out")
    folder = Path("out") / "TINY-MEAN"
    assert answer.status == 1
    assert "the bug could not be decided at git:" in answer.out
    assert not (folder / "run_validation.py").exists()
    assert "No script is attached" in (folder / "PULL_REQUEST.md").read_text()


@pytest.mark.parametrize("named", [False, True])
def test_a_bug_that_no_revision_has_is_rejected(run_sentinel, mirrored, tiny, named):
    """The recipe's only pin, or the given base, does not have the bug."""
    file = Path(tiny.recipe)
    written = file.read_text()
    try:
        if not named:
            file.write_text("".join(line for line in written.splitlines(True) if "expect: reproduced" not in line))
        base = ["--base", f"git:{tiny.fixed}"] if named else []
        answer = run_sentinel("contribute", "TINY-MEAN", *base, "--no-check", "--out", "out")
    finally:
        file.write_text(written)
    assert (answer.status, answer.out) == (2, "")
    assert "so there is nothing to report upstream; name a revision that has" in " ".join(answer.err.split())
    assert not Path("out").exists()


def test_contribute_does_not_write_through_links(run_sentinel, mirrored, tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "COMMENT.md").write_text("mine")
    Path("out").mkdir()
    (Path("out") / "TINY-MEAN").symlink_to(tmp_path / "mine")
    answer = run_sentinel("contribute", "TINY-MEAN", "--no-check", "--out", "out")
    assert (answer.status, "is a symbolic link, which is not followed" in answer.err) == (2, True)
    assert [file.read_text() for file in (tmp_path / "mine").iterdir()] == ["mine"]


def test_contribute_reports_invalid_input(run_sentinel):
    for arguments, told in (
        (["contribute"], "give either bug ids or --all"),
        (["contribute", "TINY-MEAN", "--all"], "give either bug ids or --all"),
        (["contribute", "TINY-MEAN", "--repo", ".", "--head", "git:main"], "--repo"),
        (["contribute", "NO-SUCH-BUG"], "no recipe matches"),
    ):
        answer = run_sentinel(*arguments)
        assert answer.status == 2
        assert told in answer.err


def test_an_unknown_key_in_numbers_is_named_with_the_known_keys(run_sentinel, fixed_by):
    file = fixed_by()
    file.write_text(file.read_text().replace("numbers: {loss:", "numbers: {los:"))
    answer = run_sentinel("contribute", "TINY-MEAN", "--out", "out", "--no-check")
    assert (answer.status, answer.out) == (2, ""), answer.out
    assert f"{file}: 'numbers' names 'los', which was not measured; measured values: loss" in answer.err
