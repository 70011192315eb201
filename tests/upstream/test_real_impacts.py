"""A toy policy trained through real code: a few steps, enough to see that the boundary is the one at each revision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from shipped import MIRRORS, RECIPES, runner

from sentinel.deciding.runner import Runner
from sentinel.impact.places import REFERENCE, at_reference, at_revision
from sentinel.impact.report import Curves, Report
from sentinel.impact.setup import setups
from sentinel.impact.training import Training
from sentinel.recipes.catalog import bundled_catalog


@pytest.fixture(scope="module")
def warm() -> Iterator[Runner]:
    made = runner()
    yield made
    made.close()


def _measured(warm: Runner, bug: str, steps: int = 0) -> Report:
    recipe, catalog = RECIPES[bug], bundled_catalog()
    if MIRRORS.get(recipe.target) is None:
        pytest.skip(f"no mirror of {recipe.target}: `sentinel mirror add {recipe.target}`")
    base, head = recipe.revisions()
    first = at_revision(warm, catalog, recipe, base)
    second = at_revision(warm, catalog, recipe, head) if head else at_reference(warm, catalog, recipe, base)
    contract = catalog.contracts[recipe.contract]
    if not steps:
        return Report(recipe, contract, first, second)
    training = Training(setups(recipe, contract, second.variants)[0], first.observe, second.observe, seeds=2)
    for _ in range(steps):
        training.step()
    return Report(recipe, contract, first, second, training)


def test_ranks_that_are_divided_by_twice_shrink_the_gradient(warm: Runner) -> None:
    curves = Curves(_measured(warm, "VERL-AGGLOSS-RANKS-TWICE", 3).steps)
    assert curves.differs.all()
    assert curves.ratio == pytest.approx(0.25)
    assert curves.angle.max() < 1e-3


def test_a_rejected_response_turns_the_gradient(warm: Runner) -> None:
    assert Curves(_measured(warm, "VERL-REJECTED-ROW-GRPO", 3).steps).angle.min() > 1


def test_microbatches_turn_a_supervised_gradient(warm: Runner) -> None:
    report = _measured(warm, "VERL-SFT-ENGINE-MEAN-OF-MICROBATCH")
    gradient = next(row for row in report.rows if row.is_gradient and not row.same)
    assert gradient.angle is not None
    assert gradient.angle > 5


def test_a_recipe_knows_better_than_the_adapter_how_its_boundary_means_it(warm: Runner) -> None:
    """It says that masked steps are none, which this boundary takes for some: that is the bug."""
    report = _measured(warm, "ROLL-AGENTIC-GAE-UNMASKED-VALUES")
    assert (report.base.verdict, report.head.ref) == ("reproduced", REFERENCE)
    assert "value_8.advantages differs by up to 4.00" in report.sentences[0]


def test_a_nan_ends_learning_where_no_revision_is_right(warm: Runner) -> None:
    curves = Curves(_measured(warm, "VERL-PPO-MASKED-NAN-GRADIENT", 11).steps)
    assert curves.visible == "stopped"
    assert curves.stopped("base").tolist() == [10, 10]
    assert not curves.stopped("head").any()
    assert curves.differs.sum() == np.isinf(curves.norms["base"]).sum() == 2, "but for one batch they agree"
