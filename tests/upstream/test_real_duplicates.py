"""The known relations of shipped recipes are found, in mirrors that hold the pull requests."""

import pytest
from shipped import MIRRORS, RECIPES

from sentinel.recipes.catalog import bundled_catalog
from sentinel.tools.upstream.duplicates import duplicates

RELATIONS = [
    ("VERL-REJECTED-ROW-GRPO", "#6375"),
    ("VERL-REJECTED-ROW-ADVANTAGE-STEP", "#6452"),
    ("SKYRL-PADDING-ROLLOUT-LOGPROBS", "#1815"),
    ("SKYRL-PADDING-ROLLOUT-LOGPROBS", "#1908"),
]


@pytest.mark.parametrize(("bug", "pull"), RELATIONS)
def test_a_known_relation_is_found(bug, pull):
    recipe = RECIPES[bug]
    sources = duplicates(recipe, list(RECIPES.values()), bundled_catalog().targets[recipe.target], MIRRORS, environ={})
    unsearched = [
        item.note for item in sources[1:3] if not item.searched or "does not have the whole history" in item.note
    ]
    if unsearched:
        pytest.skip(unsearched[0])
    told = " ".join(f"{item.what} {item.why}" for source in sources for item in source.found)
    assert pull in told
