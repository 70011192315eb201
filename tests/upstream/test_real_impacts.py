"""Real bugs in numbers, on the scenarios of their recipes."""

from collections.abc import Iterator

import pytest
from shipped import MIRRORS, RECIPES, runner

from sentinel.deciding.runner import Runner
from sentinel.impact import REFERENCE, Impact, Row, impact_of
from sentinel.recipes.catalog import bundled_catalog

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def warm() -> Iterator[Runner]:
    made = runner()
    yield made
    made.close()


def _measured(warm: Runner, bug: str) -> Impact:
    recipe = RECIPES[bug]
    if MIRRORS.get(recipe.target) is None:
        pytest.skip(f"no mirror of {recipe.target}: `sentinel mirror add {recipe.target}`")
    return impact_of(warm, bundled_catalog(), recipe, None, None)


def _gradient(impact: Impact) -> Row:
    return next(row for row in impact.differing if row.is_gradient)


def test_ranks_that_are_divided_by_twice_shrink_the_gradient(warm):
    row = _gradient(_measured(warm, "VERL-AGGLOSS-RANKS-TWICE"))
    assert row.ratio is not None
    assert row.ratio < 0.6
    assert row.angle == pytest.approx(0, abs=1e-3)


def test_microbatches_turn_a_supervised_gradient(warm):
    row = _gradient(_measured(warm, "VERL-SFT-ENGINE-MEAN-OF-MICROBATCH"))
    assert row.angle is not None
    assert row.angle > 5


def test_a_recipe_knows_better_than_the_adapter_how_its_boundary_means_it(warm):
    """It says that masked steps are none, which this boundary takes for some: that is the bug."""
    impact = _measured(warm, "ROLL-AGENTIC-GAE-UNMASKED-VALUES")
    assert (impact.base.verdict, impact.head.ref) == ("reproduced", REFERENCE)
    assert "output behind_8.advantages" in impact.summary
    assert "largest difference 4.00" in impact.summary


def test_a_nan_is_counted_where_no_revision_is_right(warm):
    row = _gradient(_measured(warm, "VERL-PPO-MASKED-NAN-GRADIENT"))
    assert row.not_finite[0] > row.not_finite[1] == 0
