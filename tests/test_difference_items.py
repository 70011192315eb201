"""``--sentinel-against``: what a revision changes, as pytest items that fail on what is for the worse alone."""

import shutil
from functools import partial

import pytest
from demo_kit import Repository

from sentinel.diff.comparing import Comparison

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home", "_few_scenarios")


@pytest.fixture
def _few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.diff.comparing.Comparison", partial(Comparison, examples=3))


def run(pytester: pytest.Pytester, against: str, *arguments: str) -> pytest.RunResult:
    alone = ("-p", "no:cacheprovider", "--sentinel-target=demo", "--sentinel-laws=off", f"--sentinel-against={against}")
    return pytester.runpytest_inprocess(*alone, *arguments)


@pytest.fixture
def refs(demo_repository: Repository) -> dict[str, str]:
    return {name: f"git:{sha}" for name, sha in demo_repository.commits.items()}


def test_what_is_for_the_better_passes(pytester, refs):
    result = run(pytester, refs["broken"], f"--sentinel-ref={refs['fixed']}", "-v", "-k", "agg_loss")
    pair = f"{refs['broken'][:11]}..{refs['fixed'][:11]}"
    result.stdout.fnmatch_lines([f"*diff/demo/demo_rl.losses.agg_loss?{pair}? PASSED*"])
    assert result.ret == 0


def test_what_is_for_the_worse_fails_with_numbers_and_may_be_allowed(pytester, refs, broken_tree):
    result = run(pytester, refs["fixed"], f"--sentinel-repo={broken_tree}", "-k", "agg_loss")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "1. demo_rl.losses.agg_loss: worse",
            "*breaks masked_values_have_no_influence: a value where the mask is 0 changes neither output nor gradient*",
            "meant so? --sentinel-allow-changes=demo_rl.losses.agg_loss",
        ]
    )
    meant = run(
        pytester, refs["fixed"], f"--sentinel-repo={broken_tree}", "-k", "agg_loss", "--sentinel-allow-changes=agg_*"
    )
    meant.assert_outcomes(passed=1)


def test_that_no_code_changed_is_read_from_the_text_and_passes(pytester, refs):
    result = run(pytester, refs["fixed"], f"--sentinel-ref={refs['fixed']}", "-v", "-k", "text")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*diff/demo/text?*? PASSED*"])


def test_lines_that_did_not_run_are_skipped_with_their_place(pytester, refs, fixed_tree, tmp_path):
    """They stand under a condition that no scenario meets; a signal function without a binding is named, too."""
    tree = shutil.copytree(fixed_tree, tmp_path / "head")
    losses = tree / "demo_rl" / "losses.py"
    code = losses.read_text()
    assert "def agg_loss(" in code
    body = code.index(":\n", code.index("def agg_loss(")) + 2
    added = "    if loss_agg_mode == 'no such mode':\n        return None\n"
    unbound = "\n\ndef masked_advantages(rewards, response_mask):\n    return (rewards * response_mask).sum(-1)\n"
    losses.write_text(code[:body] + added + code[body:] + unbound)
    result = run(pytester, refs["fixed"], f"--sentinel-repo={tree}", "-rs", "-k", "agg_loss or text")
    result.stdout.fnmatch_lines(
        ["*not examined: demo_rl/losses.py:* agg_loss (guarded by loss_agg_mode == 'no such mode')*"]
    )
    result.stdout.fnmatch_lines(["*not examined: signal functions that no boundary reaches: *masked_advantages*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["git:main"], "*--sentinel-against needs to know what is compared: add --sentinel-target=NAME, and *"),
        (["git:no-such", "--sentinel-ref=git:main"], "*the mirror has no branch, tag or commit 'no-such'*"),
        (["main", "--sentinel-ref=git:main"], "*not a ref: 'main'*"),
    ],
)
def test_wrong_input_is_named(pytester, arguments, said):
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
