import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from demo_kit import git

from sentinel.deciding.runner import Runner
from sentinel.laws.law import Law
from sentinel.recipes import find_recipes
from sentinel.records import basis
from sentinel.tools.pulls.pulls import Radar, open_heads
from sentinel.worker.answers import Failed
from sentinel.worker.client import TargetProcess

pytestmark = pytest.mark.usefixtures("warm_runs")

LOSSES = "tiny/losses.py"
FEW = ("--examples", "3")
Git = Callable[..., str]


@pytest.fixture(name="git")
def _git(tiny: Any, tmp_path: Path) -> Git:
    """Run git in a clone of the framework, which becomes the mirror."""
    git(tmp_path, "clone", "-q", str(tiny.upstream), "clone")
    return partial(git, tmp_path / "clone")


@pytest.fixture
def pull(git: Git, tmp_path: Path) -> Callable[..., str]:
    """Return a function that opens a pull request which changes files of a commit (None removes a file)."""

    def made(number: int, base: str, files: dict[str, str | None]) -> str:
        git("checkout", "-q", *(["--orphan", f"new-{number}"] if not base else ["--detach", base]))
        for name, text in files.items():
            path = tmp_path / "clone" / name
            if text is None:
                git("rm", "-rq", name)
            else:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        git("add", "--all")
        git("commit", "-q", "--allow-empty", "-m", f"change {number}")
        sha = git("rev-parse", "HEAD")
        for kind in ("head", "merge"):
            git("update-ref", f"refs/pull/{number}/{kind}", sha)
        git("checkout", "-qf", "main")
        return sha

    return made


@pytest.fixture
def mirror(run_sentinel: Any, tmp_path: Path) -> Callable[[], None]:
    def made() -> None:
        assert run_sentinel("mirror", "add", "tiny", "--from", tmp_path / "clone").status == 0

    return made


@pytest.mark.slow
def test_a_hostile_head_spoils_only_its_own_result(run_sentinel, tiny, git, pull, mirror, monkeypatch):
    fixed = git("show", f"{tiny.fixed}:{LOSSES}")
    pull(1, tiny.fixed, {LOSSES: f"{fixed}\n# said better\n"})
    pull(2, tiny.fixed, {LOSSES: fixed.replace("loss_mat * loss_mask", "loss_mat")})
    pull(3, tiny.buggy, {LOSSES: fixed})
    pull(4, tiny.fixed, {LOSSES: None, "tiny/__init__.py": None, "README": "moved away"})
    pull(5, "", {"tiny/losses.py": fixed})
    pull(6, tiny.fixed, {LOSSES: f"{fixed}\nraise SystemExit('\\x1b[2J')\n"})
    pull(7, tiny.fixed, {LOSSES: fixed.replace("return ", "return 2 * ")})
    pull(8, tiny.fixed, {LOSSES: fixed.replace("return ", "return 0 * ")})
    pull(9, tiny.fixed, {LOSSES: fixed.replace("loss_mask.sum()", "mask.sum()")})
    mirror()
    answer = run_sentinel("pulls", "tiny", "--json", *FEW)
    assert answer.status == 1
    found = {each["number"]: each for each in answer.json()}
    assert {number: each["answer"] for number, each in found.items()} == {
        1: "nothing",
        2: "introduces",
        3: "fixes",
        4: "cannot be decided",
        5: "cannot be decided",
        6: "introduces",
        7: "redefines",
        8: "introduces",
        9: "introduces",
    }
    assert found[1]["compared"] == 0
    assert "the head has none of the package roots: tiny" in found[4]["findings"]
    assert any("no common history" in said for said in found[5]["findings"])
    assert "introduces TINY-MEAN" in found[2]["findings"][0]

    # Results that were stored earlier are printed without another run.
    monkeypatch.setattr("sentinel.tools.pulls.pulls.Comparison", None)
    again = run_sentinel("pulls", "tiny", "--json", *FEW)
    assert again.out == answer.out
    shown = run_sentinel("pulls", "tiny", *FEW).out
    assert "introduces: #2 change 2" in shown
    assert shown.endswith(
        "9 of 9 open pull requests: 4 introduces, 1 redefines, 1 fixes, 1 nothing, 2 cannot be decided\n"
    )
    assert "\x1b" not in shown
    comment = run_sentinel("pulls", "tiny", "--comment", "2", *FEW).out
    assert comment.startswith("## What changes in tiny\n")
    table = run_sentinel("pulls", "tiny", "--markdown", *FEW, "--save", "changes.json").out
    assert table.startswith("## Open pull requests of tiny\n\n9 of 9 open pull requests: 4 introduces, ")
    assert table.count("\n| ") == 2 + 8
    told = json.loads(Path("changes.json").read_text())["pulls"]["tiny"]
    assert [row["number"] for row in told["rows"]] == [9, 8, 6, 2, 7, 3, 5, 4]
    assert (told["answers"]["introduces"], told["compared"]) == (4, 6)
    only = run_sentinel("pulls", "tiny", "--json", *FEW, "--since", "4").json()
    assert [each["number"] for each in only] == [9, 8, 7, 6, 5, 4]


MORE = """

def registered(name):
    return lambda function: function


@registered("mean")
def mean_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return (loss_mat * loss_mask).sum() / loss_mask.sum()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ('raise RuntimeError("x")', "after: the module does not import: RuntimeError: x"),
        ("import os; os._exit(3)", "after: the target process ended while its modules were imported"),
        ("import time; time.sleep(99)", "after: the target process did not answer within 2 s"),
    ],
)
def test_a_head_that_no_longer_imports_fails_once(run_sentinel, tiny, git, pull, mirror, monkeypatch, ending, said):
    """Two boundaries are in the module that fails; it is imported once."""
    base = pull(9, tiny.fixed, {LOSSES: git("show", f"{tiny.fixed}:{LOSSES}") + MORE})
    git("update-ref", "-d", "refs/pull/9/merge")
    code = git("show", f"{base}:{LOSSES}").replace("loss_mat * loss_mask", "loss_mat")
    git("reset", "-q", "--hard", base)
    pull(1, base, {LOSSES: f"{code}\n{ending}\n"})
    mirror()
    asked, load = [], TargetProcess.load

    def noted(self: Any, paths: Any, *rest: Any) -> Any:
        asked.append(answer := load(self, paths, *rest))
        return answer

    monkeypatch.setattr(TargetProcess, "load", noted)
    comment = run_sentinel("pulls", "tiny", "--comment", "1", *FEW, "--timeout", "2")
    assert (comment.status, "Nothing that" in comment.out) == (1, False)
    assert "| worse | " in comment.out
    assert said in comment.out
    assert sum(isinstance(answer, Failed) for answer in asked) <= 1
    [found] = run_sentinel("pulls", "tiny", "--json", *FEW).json()
    assert found["answer"] == "introduces"
    assert any("it fails for the same reason as tiny.losses.agg_loss" in line for line in found["findings"])


def test_a_changed_function_that_is_not_signal_code_is_listed(run_sentinel, tiny, git, pull, mirror):
    helper = "class {}:\n    def update(self, current, steps):\n        self.value = {}\n"
    files = {
        "tiny/views.py": helper.format("View", 1),
        "tiny/kl.py": helper.format("KL", 1),
        "train.py": "import tiny\n",
    }
    base = pull(9, tiny.fixed, files)
    git("update-ref", "-d", "refs/pull/9/merge")
    git("reset", "-q", "--hard", base)
    pull(1, base, {"tiny/views.py": helper.format("View", 2)})
    pull(2, base, {"tiny/kl.py": helper.format("KL", 2)})
    pull(3, base, {"train.py": "import tiny\n\ntiny.train()\n"})
    mirror()
    comments = {number: run_sentinel("pulls", "tiny", "--comment", str(number)).out for number in (1, 2, 3)}
    assert "No function that was examined returns different numbers" in comments[1]
    harmless = "1 changed function without training signal by the inventory's rule: tiny/views.py:2 View.update"
    assert harmless in comments[1]
    for number, place in ((2, "tiny/kl.py:2 KL.update"), (3, "train.py")):
        assert "It cannot be decided whether anything changes." in comments[number]
        assert f"not examined: 1 change that no boundary reads: {place}" in comments[number]


def test_a_flipped_sign_next_to_an_unchanged_boundary_is_not_examined_by_pulls(
    run_sentinel, tiny, git, pull, mirror, tmp_path
):
    git("checkout", "-qf", tiny.fixed)
    code = (tmp_path / "clone" / "tiny" / "losses.py").read_text()
    flipped = "\n\ndef compute_advantages(rewards):\n    return {}rewards\n"
    base = pull(9, tiny.fixed, {"tiny/losses.py": code + flipped.format("")})
    git("update-ref", "-d", "refs/pull/9/merge")
    git("reset", "-q", "--hard", base)
    pull(1, base, {"tiny/losses.py": code + flipped.format("-")})
    mirror()
    comment = run_sentinel("pulls", "tiny", "--comment", "1").out
    assert "Nothing" not in comment
    assert "compute_advantages" in comment


def test_a_head_that_lacks_the_boundary_is_not_decided(run_sentinel, tiny, git, pull, mirror):
    fixed = git("show", f"{tiny.fixed}:{LOSSES}")
    pull(1, tiny.fixed, {LOSSES: fixed.replace("def agg_loss", "def aggregate")})
    mirror()
    comment = run_sentinel("pulls", "tiny", "--comment", "1", *FEW)
    assert comment.out.startswith("It cannot be decided whether anything changes.")
    assert comment.status == 2


@pytest.mark.nightly
def test_each_of_six_hundred_heads_has_a_result(run_sentinel, tiny, git, pull, mirror, tmp_path):
    """Heads without a change of bound code start no process. Six heads that exit, crash, flood the output, raise or are
    invalid Python affect only their own result.
    """
    fixed = git("show", f"{tiny.fixed}:{LOSSES}")
    hostile = (
        f"{fixed}\nraise SystemExit(0)\n",
        f"{fixed}\nimport os\nos._exit(0)\n",
        f"{fixed}\nimport os\nos.abort()\n",
        f"{fixed}\nprint('x' * 10_000_000)\nraise KeyboardInterrupt\n",
        f"{fixed}\ndef agg_loss(*_, **__): raise MemoryError\n",
        f"\x00{fixed}",
    )
    for number, code in enumerate(hostile, 1001):
        pull(number, tiny.fixed, {LOSSES: code})
    commits = "".join(
        f"commit refs/pull/{number}/head\nmark :{number}\ncommitter a <a@b> {1767225600 + number} +0000\n"
        f"data 1\nx\nfrom {tiny.fixed}\nM 100644 inline notes.txt\ndata 4\n{number:4}\n"
        f"reset refs/pull/{number}/merge\nfrom :{number}\n\n"
        for number in range(1, 601)
    )
    subprocess.run(["git", "-C", "clone", "fast-import", "--quiet"], cwd=tmp_path, input=commits, text=True, check=True)
    mirror()
    answer = run_sentinel("pulls", "tiny", "--json", *FEW)
    found = {each["number"]: each for each in answer.json()}
    assert [(found[number]["answer"], found[number]["compared"]) for number in range(1, 601)] == [("nothing", 0)] * 600
    answers = [*["introduces"] * 4, "cannot be decided", "introduces"]
    assert [found[number]["answer"] for number in range(1001, 1007)] == answers
    assert all(found[number]["findings"] for number in range(1001, 1007))
    assert "the module does not import" in found[1006]["findings"][0]
    assert answer.status == 1


@pytest.mark.slow
def test_heads_are_compared_again_only_when_a_deciding_part_has_changed(
    run_sentinel, tiny, git, pull, mirror, monkeypatch
):
    fixed = git("show", f"{tiny.fixed}:{LOSSES}")
    pull(1, tiny.fixed, {LOSSES: f"{fixed}\n# said better\n"})
    pull(2, tiny.fixed, {LOSSES: fixed.replace("loss_mat * loss_mask", "loss_mat")})
    mirror()
    decided, looked = Radar._decide, []

    def noted(self: Any, number: int, *rest: Any) -> Any:
        looked.append(number)
        return decided(self, number, *rest)

    monkeypatch.setattr(Radar, "_decide", noted)
    run_sentinel("pulls", "tiny", *FEW)
    run_sentinel("pulls", "tiny", *FEW)
    assert looked == [2, 1]
    monkeypatch.setattr("sentinel.tools.pulls.pulls.deciding_digest", lambda *_: "another law")
    run_sentinel("pulls", "tiny", *FEW)
    assert looked == [2, 1, 2]


def test_stored_results_record_the_recipes_laws_and_contracts(tiny, tiny_catalog, tmp_path):
    """A changed law, also of another package, makes a stored result stale. A recipe's story does not."""

    def digest(change: tuple[str, str] = ("", ""), law: str = "return []") -> str:
        folder, file = tmp_path / "recipes" / "tiny", tmp_path / "law.py"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / tiny.recipe.name).write_text(tiny.recipe.read_text().replace(*change))
        file.write_text(f"def check(case):\n    {law}\n")
        names: dict[str, Any] = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        catalog = tiny_catalog.with_(laws=[Law("another_law", "another", names["check"])])
        catalog = replace(catalog, recipe_folders=(folder.parent,))
        basis._file_digest.cache_clear()
        return basis.deciding_digest(catalog, "tiny", find_recipes(catalog, ("tiny",), ()))

    now = digest()
    assert digest(("story: |", "story: |\n  More is told.")) == now
    assert digest(("{loss: 1.0}", "{loss: 1.5}")) != now
    assert digest(law="return list(case.inputs)") != now
    assert digest() == now


def test_a_run_after_ctrl_c_continues(run_sentinel, tiny, git, pull, mirror, monkeypatch):
    for number in (1, 2, 3):
        pull(number, tiny.fixed, {"notes.md": f"{number}"})
    mirror()
    decided, looked = Radar._decide, []

    def stopping(self: Any, number: int, *rest: Any) -> Any:
        looked.append(number)
        if looked == [3, 2]:
            raise KeyboardInterrupt
        return decided(self, number, *rest)

    monkeypatch.setattr(Radar, "_decide", stopping)
    stopped = run_sentinel("pulls", "tiny")
    assert (stopped.status, looked) == (130, [3, 2])
    assert "results are stored" in stopped.err
    assert run_sentinel("pulls", "tiny").status == 0
    assert looked == [3, 2, 2, 1]
    [file] = Path(os.environ["SENTINEL_HOME"]).glob("history/tiny/pulls/*.jsonl")
    with open(file, "a") as stream:
        stream.write('{"number": 9, "head": "cut of')
    assert run_sentinel("pulls", "tiny").status == 0
    assert len(looked) == 4
    assert [json.loads(line).get("number") for line in file.read_text().splitlines()[1:4]] == [3, 2, 1]


@pytest.mark.slow
def test_heads_with_one_base_share_its_process(run_sentinel, tiny, git, pull, mirror, monkeypatch):
    fixed, base = git("show", f"{tiny.fixed}:{LOSSES}"), tiny.fixed
    for number, name in enumerate(("lost", "found", "gone"), 1):  # the bases differ, but have the same code
        base = pull(10 + number, base, {"notes.txt": name})
        git("reset", "-q", "--hard", base)
        git("update-ref", "-d", f"refs/pull/{10 + number}/merge")
        pull(number, base, {LOSSES: fixed.replace("loss_mat * loss_mask", f"loss_mat * {number}")})
    mirror()
    opened, ended = [], []
    open_target, discard = Runner.open_target, Runner.discard

    def opening(self: Any, target: str, ref: Any, *rest: Any) -> Any:
        opened.append(ref)
        return open_target(self, target, ref, *rest)

    def ending(self: Any, target: str, ref: Any) -> None:
        ended.append(ref)
        discard(self, target, ref)
        assert (target, ref) not in self._processes._loaded

    monkeypatch.setattr(Runner, "open_target", opening)
    monkeypatch.setattr(Runner, "discard", ending)
    found = run_sentinel("pulls", "tiny", "--json", *FEW).json()
    assert [each["answer"] for each in found] == ["introduces"] * 3
    assert len({each["base"] for each in found}) == 3
    assert len({*opened}) == 4  # three heads, and one process for all bases
    assert {ref.name for ref in ended} == {each["head"] for each in found}


@pytest.mark.nightly  # it waits for a timeout of ten seconds
def test_a_hanging_head_takes_only_its_own_time(run_sentinel, tiny, git, pull, mirror):
    fixed = git("show", f"{tiny.fixed}:{LOSSES}")
    hanging = fixed.replace("    return", "    import time\n    time.sleep(99)\n    return", 1)
    pull(1, tiny.fixed, {LOSSES: fixed.replace("loss_mat * loss_mask", "loss_mat")})
    pull(2, tiny.fixed, {LOSSES: hanging})
    mirror()
    found = run_sentinel("pulls", "tiny", "--json", "--examples", "50", "--timeout", "10").json()
    assert [each["answer"] for each in found] == ["introduces", "introduces"]
    assert found[0]["seconds"] < 20, "it waited for a second timeout"


def test_a_merge_base_that_a_shallow_mirror_lacks_is_reported(run_sentinel, tiny, git, pull, mirror):
    pull(1, tiny.buggy, {"notes.txt": "1"})
    mirror()
    [place] = Path(os.environ["SENTINEL_HOME"]).glob("mirrors/tiny.git")
    (place / "shallow").write_text(f"{git('rev-parse', 'main')}\n")
    [found] = run_sentinel("pulls", "tiny", "--json").json()
    assert found["answer"] == "cannot be decided"
    assert found["findings"][0].endswith(" have no common history in this mirror, which is shallow")


@pytest.mark.slow
def test_revisions_without_a_common_history_are_compared(run_sentinel, tiny, git, pull, mirror):
    sha = pull(1, "", {LOSSES: git("show", f"{tiny.buggy}:{LOSSES}")})
    mirror()
    [found] = run_sentinel("diff", "tiny", "git:main", f"git:{sha}", "--json", *FEW).json()["boundaries"]
    assert found["judgement"] == "worse"


def test_without_merge_refs_unmerged_heads_count_as_open(tiny, git, pull, tmp_path):
    first = pull(1, tiny.fixed, {"a": "1"})
    git("update-ref", "-d", "refs/pull/1/merge")
    git("update-ref", "refs/pull/2/head", tiny.buggy)
    assert open_heads(tmp_path / "clone" / ".git", "main") == [(1, first)]


@pytest.mark.parametrize("arguments", [["--since", "8"], ["--comment", "8"]])
def test_a_pull_request_that_is_not_open_is_reported(run_sentinel, tiny, pull, mirror, arguments):
    pull(1, tiny.fixed, {"a": "1"})
    mirror()
    answer = run_sentinel("pulls", "tiny", *arguments)
    assert answer.status == 2
    assert "the mirror has no open pull request" in answer.err
