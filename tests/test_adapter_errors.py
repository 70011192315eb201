"""A mistake in an adapter fails the run; an outdated adapter is drift. Each cause is reported once."""

import textwrap
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, Repository, copy_demo, write_recipe

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home")

ADAPTER = """
from sentinel import Binding, PackageRoot, Target
from sentinel.binding.kit import bookkeeping

def call(boundary, inputs):
    {body}

without = dict.fromkeys(
    ("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor", "weights"), (None,))
TARGET = Target(
    name="wrong", repository="https://example.invalid/wrong.git", roots=(PackageRoot("demo_rl"),),
    bindings=(Binding("demo_rl.losses.agg_loss", "loss_aggregation", call=call,
                      accepts={{"loss_agg_mode": ("token-mean",), **without}}),),
)
"""
CALL = "boundary.function(loss_mat=inputs['loss_mat'], loss_mask=inputs['response_mask'], loss_agg_mode='token-mean')"


def run_with(pytester: pytest.Pytester, body: str, tree: Path, *arguments: str) -> pytest.RunResult:
    (pytester.path / "wrong.py").write_text(ADAPTER.format(body=body))
    pytester.makeconftest(
        "from pathlib import Path\ndef pytest_sentinel_adapters():\n    return [Path(__file__).parent / 'wrong.py']\n"
    )
    options = ("--sentinel-target=wrong", f"--sentinel-repo={tree}", "--sentinel-against=none", *arguments)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs", *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            f"return {{'los': {CALL}}}",
            "adapter error: the contract loss_aggregation needs 'loss', which the adapter did not return; it returned "
            "los (contracts/*.py:*)",
        ),
        (f"return {{'loss': {CALL}, 'ratio': inputs['ratio']}}", "adapter error: KeyError: 'ratio', in *wrong.py:6)"),
        ("import torch; torch.where(inputs['response_mask'] != 0, None, 0.0)", "adapter error: TypeError: where()*"),
        (
            "boundary.function(inputs['loss_mat'])",  # invalid arguments for the framework's function
            "adapter error: TypeError: agg_loss() missing 1 required positional argument: *",
        ),
    ],
)  # fmt: skip
def test_a_harness_error_fails_once_and_names_the_contract(body, said, pytester, fixed_tree):
    result = run_with(pytester, body, fixed_tree)
    assert result.parseoutcomes()["failed"] == 1
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["not decided: *", f"*inconclusive: {said}"])
    result.stdout.fnmatch_lines(
        ["SKIPPED * another item has already failed for the same cause (adapter): adapter error: *"]
    )


@pytest.mark.slow
def test_a_boundary_that_raises_on_every_call_fails(pytester, fixed_tree):
    losses = fixed_tree / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text() + "\n\ndef agg_loss(**_):\n    raise ValueError('no batch')\n")
    result = run_with(pytester, f"return {{'loss': {CALL}}}", fixed_tree)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["*the adapter supports this revision, but every call of the boundary raised: *ValueError: no batch"]
    )


@pytest.mark.slow
def test_a_boundary_that_raises_on_some_calls_is_not_an_adapter_error(pytester, fixed_tree):
    losses = fixed_tree / "demo_rl" / "losses.py"
    text = losses.read_text().replace("def agg_loss(", "def _agg_loss(")
    refusing = "def agg_loss(**given):\n    if len(given['loss_mask']) > 1:\n        raise ValueError('one row')\n"
    losses.write_text(f"{text}\n\n{refusing}    return _agg_loss(**given)\n")
    result = run_with(pytester, f"return {{'loss': {CALL}}}", fixed_tree)
    assert "failed" not in result.parseoutcomes()


@pytest.mark.slow
def test_unknown_bookkeeping_attributes_are_neutral_and_recorded(pytester, fixed_tree):
    body = "counter = bookkeeping(step=1)\n    assert not counter.bar.update(3) and counter.step == 1\n"
    result = run_with(pytester, f"{body}    return {{'loss': {CALL}}}", fixed_tree)
    assert "failed" not in result.parseoutcomes()
    assert result.parseoutcomes()["passed"]
    evidence = "".join(file.read_text() for file in (pytester.path / "sentinel-reports").rglob("*.json"))
    assert '"bar"' in evidence
    assert "a counter or logger that the adapter does not define: a neutral value" in evidence


@pytest.mark.slow
@pytest.mark.parametrize("use", ["inputs['loss_mat'].sum() * counter.scale", "counter.scale"])
def test_a_result_that_contains_a_neutral_object_is_drift(use, pytester, fixed_tree):
    result = run_with(pytester, f"counter = bookkeeping()\n    return {{'loss': {use}}}", fixed_tree)
    assert result.parseoutcomes()["failed"] == 1
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        ["*older than this revision: the result contains 'scale', which the adapter does not handle*"]
    )


def moved_tree(folder: Path, change: str = "") -> Path:
    """Return a tree in which the losses are in another module; with a change, they have other code there."""
    tree = copy_demo(folder / "moved", "fixed")
    losses = tree / "demo_rl" / "losses.py"
    text = losses.read_text()
    if change:
        head, body = text[: text.index("def agg_loss(")], text[text.index("def agg_loss(") :]
        text = f"{head}{body.partition(':')[0]}:\n{textwrap.indent(change, '    ')}"
    (tree / "demo_rl" / "aggregation.py").write_text(text)
    losses.unlink()
    return tree


def run_moved(pytester: pytest.Pytester, tree: Path, repository: Repository) -> pytest.RunResult:
    pins = [{"ref": f"git:{repository.commits['fixed']}", "expect": "fixed"}]
    write_recipe(pytester.path / "mine", {**MASKED_TOKENS, "pins": pins})
    arguments = ("--sentinel-target=demo", "--sentinel-recipes=mine", f"--sentinel-repo={tree}")
    return pytester.runpytest_inprocess(*arguments, "--sentinel-against=none", "-p", "no:cacheprovider", "-rs")


@pytest.mark.slow
def test_a_moved_function_is_followed_by_name_and_body(pytester, tmp_path, demo_repository):
    result = run_moved(pytester, moved_tree(tmp_path), demo_repository)
    outcomes = result.parseoutcomes()
    assert "failed" not in outcomes
    assert outcomes["passed"] > 5
    evidence = "".join(file.read_text() for file in (pytester.path / "sentinel-reports").rglob("*.json"))
    assert evidence.count('"demo_rl/aggregation.py"') > 5


def test_a_function_with_another_body_is_not_followed(pytester, tmp_path, demo_repository):
    tree = moved_tree(tmp_path, "total = loss_mat.sum()\nreturn total\n")
    result = run_moved(pytester, tree, demo_repository)
    assert "failed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(
        [
            "not decided: *",
            "*unavailable: demo_rl.losses.agg_loss has moved to demo_rl.aggregation.agg_loss, "
            "with different code; update the adapter for this revision",
        ]
    )


@pytest.mark.slow
def test_a_removed_function_is_reported_once_with_its_items(pytester, fixed_tree, demo_repository):
    (fixed_tree / "demo_rl" / "losses.py").write_text("X = 1\n")
    result = run_moved(pytester, fixed_tree, demo_repository)
    assert "failed" not in result.parseoutcomes()
    told = [line for line in result.stdout.lines if "has no demo_rl.losses.agg_loss (removed upstream" in line]
    assert [line.split()[0] for line in told if not line.startswith("SKIPPED")] == ["14:"]  # of 13 laws and a bug
