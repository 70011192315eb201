"""``sentinel impact`` from end to end, through the demo framework's real functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, copy_demo
from impact_kit import Impact, Told

from sentinel.impact.training import Training

SHORT = ("--seeds", "2", "--steps", "4")

#: What a recipe says whose reward on a masked token is not finite; only where is of interest here.
NOT_FINITE = {
    "invariant": "masked_values_have_no_influence",
    "expected_unpatched": {"advantages": [[0.0, 0.0], [0.0, 0.0]]},
    "expected_fixed": {"advantages": [[0.5, 0.0], [-0.5, -0.5]]},
}


def _rows(told: Told) -> dict[str, dict[str, str]]:
    return {row["what"]: row for row in told.document["training"]["rows"]}


def test_a_bug_that_trains_on_masked_tokens_is_visible(impact: Impact) -> None:
    told = impact(MASKED_TOKENS, "--seeds", "2", "--steps", "40")
    assert told.status == 0
    assert "on its scenario per_token_gradient is off by 45.00°, and 1.41 times as long as head's" in told.out
    assert "an effect is visible where" in told.out, "the rule stands beside it"
    assert told.document["training"]["visible"]
    assert _rows(told)["gradients that differ"]["base"] == "80 of 80"
    gradient = next(row for row in told.document["scenario"] if row["address"] == "per_token_gradient")
    assert (gradient["is_gradient"], gradient["not_finite"]) == (True, [0, 0])
    assert gradient["angle"] == pytest.approx(45)
    assert (told.document["base"]["verdict"], told.document["head"]["verdict"]) == ("reproduced", "fixed")


def test_a_nan_ends_learning_and_is_told(impact: Impact) -> None:
    scenario = {
        "token_level_rewards": [[1.0, float("inf")], [0.0, 1.0]],
        "response_mask": [[1, 0], [1, 1]],
        "group": ["p", "p"],
    }
    told = impact(
        REJECTED_ROW, "--seeds", "2", "--steps", "12", bug_id="DEMO-NAN", scenario=scenario, variants=None, **NOT_FINITE
    )
    assert told.status == 0, told.err
    assert "every 10th batch has the scenario's own rows" in told.out
    assert "visible: learning stops in 2 of 2 seeds at base, in 0 of 2 seeds at head" in told.out
    rows = _rows(told)
    assert (rows["seeds that stopped"]["base"], rows["gradients not finite"]["base"]) == ("2, from step 10", "2")
    curve = told.document["training"]["curves"]["base"][0]
    assert [value == "NaN" for value in curve] == [False] * 9 + [True] * 3


def test_the_reference_stands_in_where_no_revision_is_right(impact: Impact) -> None:
    told = impact(MASKED_TOKENS, *SHORT, "--head", "reference")
    assert told.status == 0, told.err
    assert "head the contract's reference\n" in told.out
    assert told.document["head"] == {"ref": "reference", "revision": "", "verdict": ""}
    assert _rows(told)["gradients that differ"]["base"] == "8 of 8"


def test_a_call_has_numbers_and_is_not_trained(impact: Impact) -> None:
    arguments = {
        "loss_mat": {"tensor": [[1.0, 3.0]], "dtype": "float32", "requires_grad": True},
        "loss_mask": {"tensor": [[1, 0]], "dtype": "int64"},
        "loss_agg_mode": "token-mean",
    }
    values = {
        "scenario": {"arguments": arguments},
        "expected_unpatched": {"returned": 4.0},
        "expected_fixed": {"returned": 1.0},
    }
    other = {"contract": "call", "boundary": "demo_rl.losses.agg_loss", "invariant": None, "variants": None, **values}
    told = impact(REJECTED_ROW, bug_id="DEMO-CALL", **other)
    assert told.status == 0, told.err
    assert told.document["training"] is None
    assert "on its scenario gradients.loss_mat is off by 45.00°, and 1.41 times as long as head's" in told.out
    assert "not trained: its boundary computes neither a loss of log-probs nor advantages" in told.out
    assert not (told.folder / "impact.svg").exists()


@pytest.mark.nightly
def test_several_bugs_have_a_line_each_and_a_sum(impact: Impact) -> None:
    impact(MASKED_TOKENS, "--steps", "0")
    told = impact(REJECTED_ROW, "DEMO-*", "--steps", "0")
    assert told.status == 0, told.err
    lines = told.out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [MASKED_TOKENS["bug_id"], REJECTED_ROW["bug_id"]]
    assert lines[-1] == "2 of 2 bugs measured, 1 with a gradient, 0 trained"


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--steps", "-1"], ["--steps", "x"], ["--seeds", "-3"]])
def test_bad_numbers(impact: Impact, arguments: list[str]) -> None:
    told = impact(MASKED_TOKENS, *arguments)
    assert told.status == 2
    assert f"{arguments[1]!r} is no number from" in told.err


def test_a_revision_that_cannot_be_decided_is_told(impact: Impact, demo_repository: Repository) -> None:
    told = impact(MASKED_TOKENS, *SHORT, "--base", f"git:{demo_repository.commits['syntax']}")
    assert told.status == 2
    assert f"{MASKED_TOKENS['bug_id']} at git:" in told.err


def test_ctrl_c_keeps_what_is_there(impact: Impact, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Training.step

    def interrupted(training: Training) -> None:
        if len(training.steps) == 3:
            raise KeyboardInterrupt
        step(training)

    monkeypatch.setattr(Training, "step", interrupted)
    told = impact(MASKED_TOKENS, *SHORT)
    assert told.status == 130
    assert "interrupted after 3 of 4 steps" in told.err
    assert len(told.document["training"]["curves"]["head"][0]) == 3
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
    assert told.document["impact_version"] == 2
    assert not (told.folder / "impact.svg").exists()


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
    assert _rows(told)["gradients that differ"]["base"] == "8 of 8", "padding is left"


def test_a_boundary_that_refuses_every_batch_has_its_numbers(impact: Impact, tmp_path: Path) -> None:
    tree = copy_demo(tmp_path / "tree")
    (tree / "demo_rl" / "losses.py").write_text(
        "def agg_loss(loss_mat, loss_mask, loss_agg_mode):\n"
        "    assert loss_mat.shape[0] < 9\n"
        "    return loss_mat.sum()\n"
    )
    told = impact(MASKED_TOKENS, *SHORT, "--base", f"path:{tree}", "--head", f"path:{tree}")
    assert told.status == 0, told.err
    assert "on its scenario no number differs" in told.out
    assert "not trained: demo_rl.losses.agg_loss at path:" in told.out
    assert "does not take a batch of training" in told.out
