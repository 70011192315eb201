"""``sentinel impact`` from end to end, through the demo framework's real functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, copy_demo
from impact_kit import Impact

from sentinel.impact.training import Course

SHORT = ("--seeds", "2", "--steps", "12")

#: What a recipe says whose reward on a masked token is not finite; only where is of interest here.
NOT_FINITE = {
    "invariant": "masked_values_have_no_influence",
    "expected_unpatched": {"advantages": [[0.0, 0.0], [0.0, 0.0]]},
    "expected_fixed": {"advantages": [[0.5, 0.0], [-0.5, -0.5]]},
}


def test_a_bug_that_trains_on_masked_tokens_is_visible(impact: Impact) -> None:
    told = impact(MASKED_TOKENS, "--seeds", "3", "--steps", "60")
    assert told.status == 0
    assert "visible: final reward 0." in told.out or "visible while it learns" in told.out
    assert "an effect is visible where" in told.out, "the rule stands beside it"
    effect = told.document["effect"]
    assert effect["visible"]
    assert effect["differing"] == effect["compared"] == 3 * 60
    assert effect["angle"]["middle"] > 5
    assert effect["base"]["final"]["high"] < effect["head"]["final"]["low"]


def test_a_right_pair_has_the_same_curves_bit_for_bit(impact: Impact, demo_repository: Repository) -> None:
    fixed = f"git:{demo_repository.commits['fixed']}"
    told = impact(MASKED_TOKENS, *SHORT, "--base", fixed, "--head", fixed)
    curves = told.document["curves"]
    assert curves["base"] == curves["head"]
    assert "bit for bit the same" in told.out
    assert "the gradient is the same bit for bit" in told.out
    assert not told.document["effect"]["visible"]


def test_the_same_seeds_say_the_same_again(impact: Impact) -> None:
    first, second = (impact(REJECTED_ROW, *SHORT) for _ in range(2))
    assert first.out == second.out
    assert first.document == second.document
    for name in ("impact.json", "impact.svg"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


def test_a_nan_ends_learning_and_is_told(impact: Impact) -> None:
    scenario = {
        "token_level_rewards": [[1.0, float("inf")], [0.0, 1.0]],
        "response_mask": [[1, 0], [1, 1]],
        "group": ["p", "p"],
    }
    told = impact(REJECTED_ROW, *SHORT, bug_id="DEMO-NAN", scenario=scenario, variants=None, **NOT_FINITE)
    assert told.status == 0, told.err
    assert "every 10th batch has, as the recipe's scenario has: token_level_rewards inf at a masked token" in told.out
    assert "at base the policy stops learning at step 10 in 2 of 2 seeds: its parameters are NaN" in told.out
    assert "base's gradient is not finite at 2 of 24 steps" in told.out
    curve = told.document["curves"]["base"][0]
    assert curve[8:10] == [pytest.approx(curve[8]), None]
    assert told.document["effect"]["visible"] == "stopped"


def test_the_reference_stands_in_where_no_revision_is_right(impact: Impact) -> None:
    told = impact(MASKED_TOKENS, *SHORT, "--head", "reference")
    assert told.status == 0, told.err
    assert "head is no revision, but the contract's own reference in float64" in told.out
    assert told.document["head"] == {"ref": "reference", "revision": ""}
    assert told.document["effect"]["differing"] == 24


def test_the_reference_agrees_with_what_is_right(impact: Impact, demo_repository: Repository) -> None:
    fixed = f"git:{demo_repository.commits['fixed']}"
    told = impact(MASKED_TOKENS, *SHORT, "--base", fixed, "--head", "reference")
    assert "the gradient is the same at every step, but for rounding" in told.out


def test_what_the_toy_cannot_be_trained_through(impact: Impact) -> None:
    values = {
        "scenario": {"arguments": {}},
        "expected_unpatched": {"returned": 1.0},
        "expected_fixed": {"returned": 2.0},
    }
    other = {"contract": "call", "boundary": "demo_rl.losses.agg_loss", "invariant": None, "variants": None, **values}
    told = impact(REJECTED_ROW, bug_id="DEMO-CALL", **other)
    assert told.status == 2
    assert "cannot be trained through call: any function can be bound to it, " in told.err


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--steps", "0"], ["--steps", "x"], ["--seeds", "-3"]])
def test_bad_numbers(impact: Impact, arguments: list[str]) -> None:
    told = impact(MASKED_TOKENS, *arguments)
    assert told.status == 2
    assert f"{arguments[1]!r} is no number from" in told.err


def test_a_boundary_that_takes_no_batch_is_told(impact: Impact, demo_repository: Repository) -> None:
    told = impact(MASKED_TOKENS, *SHORT, "--base", f"git:{demo_repository.commits['syntax']}")
    assert told.status == 2
    assert "does not take a batch of training" in told.err


def test_ctrl_c_keeps_what_is_there(impact: Impact, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Course.step

    def interrupted(course: Course) -> None:
        if len(course.moments) == 3:
            raise KeyboardInterrupt
        step(course)

    monkeypatch.setattr(Course, "step", interrupted)
    told = impact(MASKED_TOKENS, *SHORT)
    assert told.status == 130
    assert "interrupted after 3 of 12 steps" in told.err
    assert told.document["training"]["steps"] == 3
    assert len(told.document["curves"]["head"][0]) == 3
    assert (told.folder / "impact.svg").exists()


def test_without_matplotlib_there_are_numbers(impact: Impact, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    told = impact(MASKED_TOKENS, *SHORT)
    assert told.status == 0
    assert "pip install 'rl-sentinel[site]'" in told.err
    assert told.document["impact_version"] == 1
    assert not (told.folder / "impact.svg").exists()


def test_json_is_what_is_written(impact: Impact) -> None:
    import json

    told = impact(MASKED_TOKENS, *SHORT, "--json")
    assert json.loads(told.out) == told.document


def test_a_boundary_that_refuses_rejected_responses_trains_without_them(impact: Impact, tmp_path: Path) -> None:
    trees = []
    for side, loss in (("base", "loss_mat.sum()"), ("head", "(loss_mat * loss_mask).sum()")):
        trees.append(copy_demo(tmp_path / side))
        (trees[-1] / "demo_rl" / "losses.py").write_text(
            "def agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean', logger=None):\n"
            "    assert (loss_mask.sum(-1) > 0).all(), 'a response without tokens'\n"
            f"    return {loss} / loss_mask.sum()\n"
        )
    base, head = (f"path:{tree}" for tree in trees)
    told = impact(MASKED_TOKENS, *SHORT, "--base", base, "--head", head)
    assert told.status == 0, told.err
    assert "no response is rejected: the boundary refuses a batch with one that is" in told.out
    assert told.document["effect"]["differing"] == 24  # padding is left


def test_a_boundary_that_refuses_groups_of_different_sizes_trains_without_them(impact: Impact, tmp_path: Path) -> None:
    trees = []
    for side, counted in (("base", "1"), ("head", "(response_mask.sum(-1) > 0)")):
        trees.append(copy_demo(tmp_path / side))
        (trees[-1] / "demo_rl" / "advantages.py").write_text(
            "def group_advantage(token_level_rewards, response_mask, index):\n"
            "    assert len({list(index).count(label) for label in index}) == 1, 'groups of different sizes'\n"
            f"    scores = token_level_rewards.sum(-1) * {counted}\n"
            "    return ((scores - scores.mean())[:, None] * response_mask,) * 2\n"
        )
    base, head = (f"path:{tree}" for tree in trees)
    told = impact(REJECTED_ROW, *SHORT, "--base", base, "--head", head)
    assert told.status == 0, told.err
    assert "prompts have as many responses each: the boundary refuses a batch in which they have not" in told.out
    assert told.document["effect"]["differing"] == 24


def test_a_boundary_that_refuses_every_batch_says_so(impact: Impact, tmp_path: Path) -> None:
    tree = copy_demo(tmp_path / "tree")
    (tree / "demo_rl" / "losses.py").write_text(
        "def agg_loss(loss_mat, loss_mask, loss_agg_mode):\n    raise OSError\n"
    )
    told = impact(MASKED_TOKENS, *SHORT, "--base", f"path:{tree}", "--head", f"path:{tree}")
    assert told.status == 2
    assert "does not take a batch of training" in told.err
