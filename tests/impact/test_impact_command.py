"""``sentinel impact`` from end to end, through the demo framework's real functions."""

import json

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW


def test_a_bug_that_trains_on_masked_tokens_turns_the_gradient(impact):
    told = impact(MASKED_TOKENS)
    assert told.status == 0
    assert "45.00°" in told.out
    gradient = next(row for row in told.document["scenario"] if row["address"] == "per_token_gradient")
    assert (gradient["is_gradient"], gradient["not_finite"], gradient["same"]) == (True, [0, 0], False)
    assert gradient["angle"] == pytest.approx(45)
    assert gradient["ratio"] == pytest.approx(2**0.5)
    assert (told.document["base"]["verdict"], told.document["head"]["verdict"]) == ("reproduced", "fixed")


def test_the_reference_stands_in_where_no_revision_is_right(impact):
    told = impact(MASKED_TOKENS, "--head", "reference")
    assert told.status == 0, told.err
    assert "head the contract's reference\n" in told.out
    assert told.document["head"] == {"ref": "reference", "revision": "", "verdict": ""}
    assert not all(row["same"] for row in told.document["scenario"])


def test_the_reference_agrees_with_what_is_right(impact, demo_repository):
    fixed = f"git:{demo_repository.commits['fixed']}"
    told = impact(MASKED_TOKENS, "--base", fixed, "--head", "reference")
    assert told.document["scenario"]
    assert all(row["same"] for row in told.document["scenario"])


def test_a_call_has_numbers_too(impact):
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
    assert "gradients.loss_mat" in told.out
    assert "45.00°" in told.out


@pytest.mark.nightly
def test_several_bugs_have_a_line_each_and_a_sum(impact):
    impact(MASKED_TOKENS)
    told = impact(REJECTED_ROW, "DEMO-*")
    assert told.status == 0, told.err
    lines = told.out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [MASKED_TOKENS["bug_id"], REJECTED_ROW["bug_id"]]
    assert lines[-1] == "2 of 2 bugs measured, 1 with a gradient"


def test_a_revision_that_cannot_be_decided_is_told(impact, demo_repository):
    told = impact(MASKED_TOKENS, "--base", f"git:{demo_repository.commits['syntax']}")
    assert told.status == 2
    assert f"{MASKED_TOKENS['bug_id']} at git:" in told.err


def test_json_is_what_is_written(impact):
    told = impact(MASKED_TOKENS, "--json")
    assert json.loads(told.out) == told.document
