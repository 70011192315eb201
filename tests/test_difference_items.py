"""``--sentinel-against``: each changed boundary is a pytest item, which fails only if the change is worse."""

import re
import shutil
from functools import partial

import pytest
from demo_kit import Repository, copy_demo, git

from sentinel.comparing import asking
from sentinel.comparing.asking import Asking
from sentinel.comparing.comparison import Comparison

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home", "_few_scenarios")


@pytest.fixture
def _few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.comparing.comparison.Comparison", partial(Comparison, examples=3))
    monkeypatch.setattr(asking, "_SHRINKING", 20)


def run(pytester: pytest.Pytester, against: str, *arguments: str) -> pytest.RunResult:
    alone = ("-p", "no:cacheprovider", "--sentinel-target=demo", f"--sentinel-against={against}")
    return pytester.runpytest_inprocess(*alone, *arguments)


@pytest.mark.slow
def test_a_better_revision_passes(pytester, refs):
    result = run(pytester, refs["broken"], f"--sentinel-ref={refs['fixed']}", "-v", "-k", "diff and agg_loss")
    pair = f"{refs['broken'][:11]}..{refs['fixed'][:11]}"
    result.stdout.fnmatch_lines([f"*diff/demo/demo_rl.losses.agg_loss?{pair}? PASSED*"])
    result.stdout.re_match_lines([r"collecting ... collected (\d+) items / \d+ deselected / 1 selected"])
    assert result.ret == 0


@pytest.mark.slow
def test_a_worse_revision_fails_unless_allowed(pytester, refs, broken_tree):
    result = run(pytester, refs["fixed"], f"--sentinel-repo={broken_tree}", "-k", "agg_loss")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "1. demo_rl.losses.agg_loss: worse",
            "*loss is 2 times the previous value; breaks the_oracle_agrees (*); breaks gradients_stay_*",
            "*definition: sum over valid tokens / number of valid tokens  ?DAPO, arXiv:2503.14476?",
            "*breaks now: masked_values_have_no_influence: baseline.per_token_gradient: *",
            "if this is intended: --sentinel-allow-changes=demo_rl.losses.agg_loss",
        ]
    )
    meant = run(
        pytester, refs["fixed"], f"--sentinel-repo={broken_tree}", "-k", "agg_loss", "--sentinel-allow-changes=agg_*"
    )
    meant.assert_outcomes(passed=1)
    misspelt = run(pytester, refs["fixed"], f"--sentinel-repo={broken_tree}", "--sentinel-allow-changes=agg_los")
    assert misspelt.ret == pytest.ExitCode.USAGE_ERROR
    misspelt.stderr.fnmatch_lines(
        ["*--sentinel-allow-changes=agg_los: no boundary has this name*did you mean 'agg_loss'?"]
    )


@pytest.fixture
def clone(demo_repository: Repository, tmp_path):
    """A clone of the demo framework on its own branch."""
    folder = tmp_path / "clone"
    demo_repository.git("clone", "-q", str(demo_repository.path), str(folder))
    git(folder, "checkout", "-q", "-b", "topic", "origin/main")
    return folder


def gate(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "--sentinel-target=demo", *arguments)


@pytest.mark.slow
def test_a_branch_is_only_compared_with_its_merge_base(pytester, clone, refs):
    """The mirror, which is of the clone's origin, has the base."""
    same = gate(pytester, f"--sentinel-repo={clone}", "-v")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines([f"diff/demo/text?{refs['fixed'][:11]}..path:* PASSED*"])
    copy_demo(clone)
    worse = gate(pytester, f"--sentinel-repo={clone}", "-v")
    worse.stdout.fnmatch_lines(["*demo_rl.losses.agg_loss?* FAILED*"])
    worse.stdout.no_fnmatch_line("*laws/*")
    assert worse.ret == pytest.ExitCode.TESTS_FAILED
    alone = gate(pytester, f"--sentinel-repo={clone}", "--sentinel-against=none", "--co", "-q")
    alone.stdout.fnmatch_lines(["laws/demo/*"])
    alone.stdout.no_fnmatch_line("diff/*")


@pytest.mark.slow
def test_unjudged_differences_warn_and_fail_with_strict(pytester, clone):
    """The changed value is not covered by the contract, so no oracle or law judges it."""
    losses = clone / "demo_rl" / "losses.py"
    code = losses.read_text()
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    losses.write_text(code[:body] + "    import warnings\n    warnings.warn('new')\n" + code[body:])
    loose = gate(pytester, f"--sentinel-repo={clone}", "-k", "agg_loss")
    loose.assert_outcomes(passed=1)
    loose.stdout.fnmatch_lines(["warning: other: demo_rl.losses.agg_loss (changed: demo_rl/losses.py:* agg_loss): *"])
    loose.stdout.fnmatch_lines(
        ["2 signal lines changed (2 added, 0 deleted); 2 ran (added lines at the head, deleted lines at the base)"]
    )
    strict = gate(pytester, f"--sentinel-repo={clone}", "-k", "agg_loss", "--sentinel-strict")
    strict.assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_changed_constant_counts_as_run_if_its_function_differs(pytester, clone):
    """No other changed code is reached, so the difference proves that the constant is used."""
    losses = clone / "demo_rl" / "losses.py"
    code = losses.read_text()
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    scaled = code[:body] + "    loss_mat = loss_mat * SCALE\n" + code[body:] + "\n\nSCALE = 1.0\n"
    losses.write_text(scaled)
    git(clone, "commit", "-qam", "A factor")
    losses.write_text(scaled.replace("SCALE = 1.0", "SCALE = 2.0"))
    ran = gate(pytester, f"--sentinel-repo={clone}", "--sentinel-against=git:topic", "-k", "agg_loss")
    ran.stdout.fnmatch_lines(["2 signal lines changed (1 added, 1 deleted); 2 ran *"])


@pytest.mark.slow
def test_a_removed_detach_is_not_the_same(pytester, clone):
    """The numbers are equal, and no contract observes a gradient of rewards."""
    advantages = clone / "demo_rl" / "advantages.py"
    code = advantages.read_text()
    advantages.write_text(code.replace("0.0).sum(dim=-1)\n", "0.0).sum(dim=-1).detach()\n"))
    git(clone, "commit", "-qam", "Rewards have no gradient")
    advantages.write_text(code)
    ran = gate(pytester, f"--sentinel-repo={clone}", "--sentinel-against=git:topic", "-k", "group_advantage")
    ran.stdout.fnmatch_lines(
        ["warning: other: *group_advantage (*): the results now have a gradient with respect to token_level_rewards"]
    )


def test_a_commit_that_only_the_clone_has_is_a_base_too(pytester, clone):
    git(clone, "commit", "-q", "--allow-empty", "-m", "mine")
    copy_demo(clone)
    result = gate(pytester, f"--sentinel-repo={clone}", "--sentinel-against=git:topic", "--co", "-q")
    mine = git(clone, "rev-parse", "topic")
    result.stdout.fnmatch_lines([f"diff/demo/demo_rl.losses.agg_loss?git:{mine[:7]}..path:*"])


@pytest.mark.slow
def test_a_folder_of_a_clone_is_compared_with_the_same_folder(pytester, clone):
    """Upstream's main has the code at the top; the clone's own commits have it in the folder."""
    inner = clone / "vendored"
    inner.mkdir()
    git(clone, "mv", "demo_rl", "vendored")
    git(clone, "commit", "-q", "-m", "vendored")
    for against in ([], ["--sentinel-against=git:topic"]):
        same = gate(pytester, f"--sentinel-repo={inner}", *against)
        same.assert_outcomes(passed=1)
        same.stdout.fnmatch_lines(["no signal line changed"])
    copy_demo(inner)
    for against in ([], ["--sentinel-against=git:topic"]):
        worse = gate(pytester, f"--sentinel-repo={inner}", "-k", "agg_loss", *against)
        worse.assert_outcomes(failed=1)


@pytest.mark.slow
def test_a_caller_gets_few_scenarios_when_its_callees_were_searched(pytester, clone, monkeypatch):
    """The changed helper is not a boundary. The first of its callers is searched in full, the second is not."""
    helper = "\n\ndef plain(x):\n    return x\n"
    package = clone / "demo_rl"
    (package / "shared.py").write_text(helper)
    for name in ("losses", "rejection"):
        code = (package / f"{name}.py").read_text()
        [line] = [each for each in code.splitlines() if each.startswith("    return ")][:1]
        called = line.replace("return ", "return plain((", 1) + "))"
        (package / f"{name}.py").write_text(f"from demo_rl.shared import plain\n{code.replace(line, called)}")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "a helper")
    (package / "shared.py").write_text(helper.replace("return x", "return 1 * x"))
    asked, search = [], Asking.search_differences

    def note(self, pair, subject, laws, few=False, glimpse=True):
        asked.append((subject.boundary.rpartition(".")[2], few))
        return search(self, pair, subject, laws, few, glimpse)

    monkeypatch.setattr(Asking, "search_differences", note)
    result = gate(pytester, f"--sentinel-repo={clone}", "--sentinel-against=git:topic", "-k", "agg_loss or sequences")
    result.stdout.fnmatch_lines(["2 signal lines changed (1 added, 1 deleted); 2 ran*"])
    (first, *_), (last, _) = asked[0], asked[-1]
    assert asked == [(first, True), (first, False), (last, True)], asked
    assert first != last


def test_a_tree_without_a_base_names_the_command_to_fetch_it(pytester, broken_tree):
    result = gate(pytester, f"--sentinel-repo={broken_tree}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*is not in a git clone*--sentinel-against=REF*--sentinel-against=none*"])
    git(broken_tree, "init", "-q")
    git(broken_tree, "add", ".")
    git(broken_tree, "commit", "-q", "-m", "unrelated")
    result = gate(pytester, f"--sentinel-repo={broken_tree}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no commit in common with upstream's main*run `git -C * fetch * +main:*`*"])


def test_unchanged_code_passes_without_running(pytester, refs):
    result = run(pytester, refs["fixed"], f"--sentinel-ref={refs['fixed']}", "-v", "-k", "text")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*diff/demo/text?*? PASSED*"])


def test_the_reports_of_a_run_inside_the_clone_are_not_changes_of_the_next(pytester, clone):
    for _ in range(2):
        result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-report-dir={clone / 'sentinel-reports'}")
        result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_no_line_of_the_gate_is_only_a_percentage(pytester, clone):
    """The names of these items are longer than a line of the terminal, which makes pytest break the line."""
    for name in ("losses", "advantages"):
        file = clone / "demo_rl" / f"{name}.py"
        file.write_text(file.read_text().replace("return ", "return 1 * "))
    result = gate(pytester, f"--sentinel-repo={clone}")
    assert result.parseoutcomes()["passed"] > 1
    assert [line for line in result.stdout.lines if re.fullmatch(r"\s*\[ *\d\d?%\]", line)] == []


def test_settings_and_scripts_that_no_boundary_reads_are_not_examined(pytester, clone):
    (clone / "train.py").write_text("from demo_rl import losses\n\nlosses.train()\n")
    (clone / "README.md").write_text("train less\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "train")
    (clone / "sitecustomize.py").write_text("import torch\n")  # which git does not track
    result = gate(pytester, f"--sentinel-repo={clone}", "-rs")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*not examined: changes that no boundary reads: sitecustomize.py, train.py"])
    result.stdout.fnmatch_lines(["not examined: 2 changes that no boundary reads: sitecustomize.py, train.py"])


def test_data_and_submodules_are_not_examined(pytester, clone):
    (clone / "demo_rl" / "units.lst").write_text("# km\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "units")
    base = git(clone, "rev-parse", "HEAD")
    (clone / "demo_rl" / "units.lst").write_text("# m\n")  # no comment, in a file of an unknown kind
    (clone / "run.sbatch").write_text("python train.py --clip 28\n")
    (clone / "Makefile").write_text("train:\n\tpython train.py --clip 28\n")
    (clone / "examples").mkdir()
    (clone / "examples" / "search.py").write_text("import demo_rl\nfrom normal import normalize_answer\n")
    (clone / "examples" / "normal.py").write_text("def normalize_answer(text):\n    return text\n")
    (clone / "examples" / "own.py").write_text("async def reward_func(sample):\n    return 0.0\n")
    (clone / "examples" / "plot.py").write_text("print(1)\n")
    git(clone, "add", ".")
    git(clone, "update-index", "--add", "--cacheinfo", f"160000,{base},recipe")
    git(clone, "commit", "-q", "-m", "recipe")
    result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-against=git:{base}")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        [
            "not examined: 7 changes that no boundary reads: Makefile, demo_rl/units.lst, examples/normal.py, "
            "examples/own.py, examples/search.py, *"
        ]
    )


def test_scripts_and_data_that_git_does_not_track_are_not_examined(pytester, clone):
    (clone / "demo_rl" / "trainer.py").write_text("import settings\n")
    (clone / ".gitignore").write_text("outputs/\nsettings.py\n")
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "settings")
    base = git(clone, "rev-parse", "HEAD")
    (clone / ".git" / "info" / "exclude").write_text("slurm/\n")
    git(clone, "config", "core.excludesFile", str(clone / ".git" / "info" / "exclude"))
    git(clone, "config", "core.worktree", str(clone / "demo_rl"))
    for name in ("outputs/run.sbatch", "slurm/run.sbatch", "staged.sh", "train.jsonl", "settings.py"):
        (clone / name).parent.mkdir(exist_ok=True)
        (clone / name).write_text("CLIP = 28\n")
    git(clone, f"--work-tree={clone}", "add", "staged.sh")
    git(clone, "init", "-q", str(clone / "recipes"))
    result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-against=git:{base}")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    listed = "recipes, settings.py, slurm/run.sbatch, staged.sh, train.jsonl"
    result.stdout.fnmatch_lines([f"not examined: 5 changes that no boundary reads: {listed}"])


def test_a_function_outside_the_rule_whose_changed_lines_name_signal_is_not_examined(pytester, clone):
    setup, code = clone / "demo_rl" / "setup.py", "def build(config):\n    return dict(norm_adv=config.{}.norm_adv)\n"
    setup.write_text(code.format("algorithm"))
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "setup")
    base = git(clone, "rev-parse", "HEAD")
    setup.write_text(code.format("trainer"))
    result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-against=git:{base}")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["not examined: 1 change that no boundary reads: demo_rl/setup.py:* build"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        "max(1, torch.cuda.device_count())",
        "(1 + torch.is_autocast_enabled())",
        "(1 + (time.time() > 1.9e9))",
        '(1 + ("ray" in sys.modules))',
        "(1 + torch.backends.cuda.matmul.allow_tf32)",
        '(1 + Path("/data").exists())',
    ],
    ids=["devices", "autocast", "time", "modules", "flags", "files"],
)
def test_a_changed_line_that_reads_the_machine_or_the_process_is_not_examined(pytester, clone, read):
    losses = clone / "demo_rl" / "losses.py"
    code = losses.read_text()
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    added = f"    import sys, time, torch\n    from pathlib import Path\n    loss_mat = loss_mat / {read}\n"
    losses.write_text(code[:body] + added + code[body:])
    result = gate(pytester, f"--sentinel-repo={clone}", "-k", "agg_loss")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["not examined: *agg_loss: its numbers agree, but changed lines were not examined"])
    result.stdout.fnmatch_lines(["scenarios have at most * rows and * tokens, *on the CPU, in one process: *"])


@pytest.mark.parametrize("answers", [True, False])
def test_a_new_function_passes_only_if_its_lines_ran(pytester, clone, answers):
    losses = clone / "demo_rl" / "losses.py"
    body = "(loss_mat * loss_mask).sum()" if answers else "loss_mat.unknown()"
    losses.write_text(
        f"{losses.read_text()}\n\nAGGREGATIONS = {{}}\n\n\ndef register_aggregation(name):\n"
        "    return lambda function: AGGREGATIONS.setdefault(name, function)\n\n\n"
        f"@register_aggregation('sum')\ndef sum_loss(loss_mat, loss_mask, loss_agg_mode):\n    return {body}\n"
    )
    result = gate(pytester, f"--sentinel-repo={clone}", "-k", "sum_loss", "-rs")
    if answers:
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["new: demo_rl.losses.sum_loss: no law of its contract breaks in 3 scenarios"])
        result.stdout.fnmatch_lines(["4 signal lines changed (4 added, 0 deleted); 2 ran *"])
    else:
        assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
        result.stdout.fnmatch_lines(["*not examined: every call raised: *"])
        result.stdout.fnmatch_lines(["not examined: demo_rl.losses.sum_loss: every call raised: *"])


@pytest.mark.slow
def test_parameters_in_another_order_are_not_examined(pytester, clone):
    """The adapter passes arguments by name, and upstream's own callers may pass them by position."""
    losses = clone / "demo_rl" / "losses.py"
    code = losses.read_text()
    names = "    loss_mat: torch.Tensor,\n", "    loss_mask: torch.Tensor,\n"
    assert "".join(names) in code
    losses.write_text(code.replace("".join(names), "".join(names[::-1]), 1))
    result = gate(pytester, f"--sentinel-repo={clone}", "-k", "agg_loss")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["not examined: *agg_loss*"])


def test_a_flipped_sign_next_to_an_unchanged_boundary_is_not_examined(pytester, clone):
    losses, unbound = clone / "demo_rl" / "losses.py", "\n\ndef compute_advantages(rewards):\n    return {}rewards\n"
    code = losses.read_text()
    losses.write_text(code + unbound.format(""))
    git(clone, "commit", "-q", "-am", "advantages")
    losses.write_text(code + unbound.format("-"))
    base = git(clone, "rev-parse", "HEAD")
    result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-against=git:{base}", "-rs")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*demo_rl/losses.py:* compute_advantages*"])


@pytest.mark.slow
def test_lines_that_did_not_run_are_skipped_with_their_place(pytester, refs, fixed_tree, tmp_path):
    """No scenario makes their condition true. A signal function without a binding is also named."""
    tree = shutil.copytree(fixed_tree, tmp_path / "head")
    losses = tree / "demo_rl" / "losses.py"
    code = losses.read_text()
    assert "def agg_loss(" in code
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    added = "    if loss_mat is loss_mask:\n        return None\n"
    unbound = "\n\ndef masked_advantages(rewards, response_mask):\n    return (rewards * response_mask).sum(-1)\n"
    losses.write_text(code[:body] + added + code[body:] + unbound)
    result = run(pytester, refs["fixed"], f"--sentinel-repo={tree}", "-rs", "-k", "agg_loss or text")
    result.stdout.fnmatch_lines(["*not examined: demo_rl/losses.py:* agg_loss (guarded by loss_mat is loss_mask)*"])
    result.stdout.fnmatch_lines(["*not examined: signal functions that no boundary reaches: *masked_advantages*"])


@pytest.mark.slow
@pytest.mark.parametrize("compared", [True, False], ids=["a result depends on it", "an import"])
def test_a_line_that_cannot_run_does_not_hide_that_the_others_agree(pytester, clone, compared):
    """The line that cannot run is listed. The run passes only if a result depends on the other changed line."""
    losses = clone / "demo_rl" / "losses.py"
    code = losses.read_text()
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    guard, dead = "    if loss_mat is loss_mask:\n", "        return None\n"
    losses.write_text(code[:body] + guard + dead + code[body:])
    git(clone, "commit", "-q", "-am", "dead code")
    base = git(clone, "rev-parse", "HEAD")
    total = "loss_mat, 0.0).sum()"
    assert code.count(total) == 1
    removed = code.replace(total, "loss_mat, 0.0).flatten().sum()")
    changed = code[:body] + "    import math\n" + guard + dead.replace(" None", "") + code[body:]
    losses.write_text(removed if compared else changed)
    result = gate(pytester, f"--sentinel-repo={clone}", f"--sentinel-against=git:{base}", "-k", "agg_loss", "-rs")
    assert result.ret == (pytest.ExitCode.OK if compared else pytest.ExitCode.NO_TESTS_COLLECTED)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*agg_loss (guarded by loss_mat is loss_mask*"])
    if compared:
        result.stdout.no_fnmatch_line("*nothing was decided*")


def _without_losses(tree, callers: bool) -> None:
    """Remove the function. Its caller stays, or is removed too."""
    losses = tree / "demo_rl" / "losses.py"
    losses.write_text("X = 1\n")
    (tree / "demo_rl" / "training.py").write_text("def step(batch):\n    return agg_loss(*batch)\n" if callers else "")


@pytest.fixture
def called(demo_repository: Repository, tmp_path):
    """A working tree in which a function calls the loss."""
    tree = copy_demo(tmp_path / "called", "fixed")
    step = "from demo_rl.losses import agg_loss\n\ndef step(batch):\n    return agg_loss(*batch)\n"
    (tree / "demo_rl" / "training.py").write_text(step)
    return tree


@pytest.mark.parametrize("callers", [True, False])
def test_a_removed_function_is_worse_unless_its_callers_are_removed_too(callers, pytester, called, tmp_path):
    head = tmp_path / "head"
    shutil.copytree(called, head)
    _without_losses(head, callers)
    result = run(pytester, f"path:{called}", f"--sentinel-repo={head}", "-k", "agg_loss")
    if callers:
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*it was removed, but its callers are still there: demo_rl.training.step*"])
    else:
        assert "failed" not in result.parseoutcomes()


def test_a_removed_function_is_not_worse_if_it_did_not_answer_before(pytester, called, tmp_path):
    """At the base, the function exists, but every call raises."""
    losses = called / "demo_rl" / "losses.py"
    losses.write_text(
        losses.read_text() + "\n\ndef agg_loss(loss_mat, loss_mask, loss_agg_mode):\n    raise OSError(7)\n"
    )
    head = tmp_path / "head"
    shutil.copytree(called, head)
    _without_losses(head, callers=True)
    result = run(pytester, f"path:{called}", f"--sentinel-repo={head}", "-rs", "-k", "agg_loss")
    result.stdout.fnmatch_lines(
        ["SKIPPED*not compared: it was removed, *; but its calls fail at the base, too: *OSError*"]
    )
    assert "failed" not in result.parseoutcomes()


@pytest.mark.slow
def test_a_moved_function_is_compared_at_its_new_place(pytester, called, tmp_path):
    head = tmp_path / "head"
    shutil.copytree(called, head)
    losses = head / "demo_rl" / "losses.py"
    (head / "demo_rl" / "aggregation.py").write_text(losses.read_text())
    losses.unlink()
    result = run(pytester, f"path:{called}", f"--sentinel-repo={head}", "-k", "agg_loss", "-v")
    assert "failed" not in result.parseoutcomes()
    wrong = losses.parent / "aggregation.py"
    wrong.write_text(wrong.read_text().replace("return ", "return 2 * ", 1))
    result = run(pytester, f"path:{called}", f"--sentinel-repo={head}", "-k", "agg_loss")
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["git:main"], "*--sentinel-against needs a target and a head: add --sentinel-target=NAME, and *"),
        (["git:no-such", "--sentinel-ref=git:main"], "*the mirror has no branch, tag or commit 'no-such'*"),
        (["main", "--sentinel-ref=git:main"], "*not a ref: 'main'*"),
    ],
)
def test_invalid_input_of_the_gate_is_named(pytester, arguments, said):
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
