"""Every binding of the demo adapter reproduces its bug, and shows it fixed in the fixed revision."""

from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW

from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.settings import settle

MIXED_SIGNS: dict[str, Any] = {
    "recipe_version": 1,
    "bug_id": "DEMO-MIXED-SIGNS",
    "title": "a rejected sequence keeps some of its tokens",
    "target": "demo",
    "contract": "sequence_rejection",
    "boundary": "demo_rl.rejection.reject_sequences",
    "scenario": {
        "log_probs": [[0.0, 0.0, 0.0]],
        "old_log_probs": [[1.0, 1.0, 1.0]],
        "advantages": [[-0.5, 0.25, -0.25]],
        "opsm_delta": 0.1,
    },
    "expected_unpatched": {"opsm_mask": [[0, 1, 0]], "leaked_positions": [1]},
    "expected_fixed": {"opsm_mask": [[0, 0, 0]], "leaked_positions": []},
}


@pytest.mark.parametrize("recipe", [MASKED_TOKENS, REJECTED_ROW, MIXED_SIGNS], ids=lambda recipe: recipe["bug_id"])
def test_each_bug_is_present_only_in_the_broken_revision(recipe, decide, broken_tree, fixed_tree):
    assert decide(recipe, broken_tree).verdict.name == "reproduced"
    assert decide(recipe, fixed_tree).verdict.name == "fixed"


def test_the_evidence_names_stub_modules_and_stand_ins(decide, broken_tree):
    masked, mixed = decide(MASKED_TOKENS, broken_tree), decide(MIXED_SIGNS, broken_tree)
    assert masked.measurement.ghosts == ("demo_missing_tracker",)
    assert [item.name for item in mixed.measurement.stand_ins] == ["options"]
    assert mixed.measurement.ghosts == ()


def test_the_demo_is_not_among_all_targets():
    known = list(bundled_catalog().adapters)
    assert "demo" in known
    assert "demo" not in settle({"target": ["all"]}, {}, known, Path()).targets
    assert not list((bundled("recipes")).glob("demo/*"))


@pytest.mark.parametrize(
    ("revision", "verdict", "kind"),
    [
        ("early", "reproduced", ""),
        ("broken", "reproduced", ""),
        ("fixed", "fixed", ""),
        ("drifted", "unavailable", "drift"),
        ("syntax", "inconclusive", "import"),
    ],
)
def test_the_history_of_the_demo_is_swept(revision, verdict, kind, decide, demo_repository, demo_home):
    decision = decide(MASKED_TOKENS, f"git:{demo_repository.commits[revision]}")
    assert (decision.verdict.name, decision.verdict.kind) == (verdict, kind), decision.verdict.reason
