"""The known relations of bundled recipes are found in mirrors with pull requests."""

import pytest
from shipped import MIRRORS, RECIPES

from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.fixes import fix_of
from sentinel.tools.upstream.duplicates import duplicates

RELATIONS = [
    ("VERL-REJECTED-ROW-GRPO", "#6375"),
    ("VERL-REJECTED-ROW-ADVANTAGE-STEP", "#6452"),
    ("SKYRL-PADDING-ROLLOUT-LOGPROBS", "#1815"),
    ("SKYRL-PADDING-ROLLOUT-LOGPROBS", "#1908"),
    ("TRL-GKD-ON-POLICY-COUNTS-DATASET", "#5669"),
    ("VERL-REPETITION-PENALTY-IGNORED", "#3309"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "pull"), RELATIONS)
def test_a_known_duplicate_is_found(bug, pull):
    recipe = RECIPES[bug]
    catalog = bundled_catalog()
    fix = fix_of(catalog, recipe.target, bug)
    target = catalog.targets[recipe.target]
    sources = duplicates(recipe, list(RECIPES.values()), target, MIRRORS, fix)
    unsearched = [
        item.note for item in sources[1:3] if not item.searched or "does not have the whole history" in item.note
    ]
    if unsearched:
        pytest.skip(unsearched[0])
    told = " ".join(f"{item.what} {item.why}" for source in sources for item in source.found)
    assert pull in told
