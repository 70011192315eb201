"""A toy policy trained through real code: a few steps, enough to see that the boundary is the one at each revision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shipped import MIRRORS, RECIPES, runner

from sentinel.catalog import bundled_catalog
from sentinel.export.exporting import revisions
from sentinel.impact.effects import Effect, effect
from sentinel.impact.places import at_reference, at_revision, subject_of, variants_of
from sentinel.impact.scenes import scene
from sentinel.impact.training import Course
from sentinel.runner import Runner


@pytest.fixture(scope="module")
def warm() -> Iterator[Runner]:
    made = runner()
    yield made
    made.close()


def _trained(warm: Runner, bug: str, steps: int) -> Effect:
    recipe, catalog = RECIPES[bug], bundled_catalog()
    if MIRRORS.get(recipe.target) is None:
        pytest.skip(f"no mirror of {recipe.target}: `sentinel mirror add {recipe.target}`")
    subject = subject_of(recipe, catalog)
    base, head = revisions(recipe)
    first = at_revision(warm, subject, recipe, base)
    second = at_revision(warm, subject, recipe, head) if head else at_reference(subject, first.bench)
    variants = variants_of(recipe, subject, head is None)
    course = Course(scene(recipe, subject.contract, variants), first.observe, second.observe, seeds=2)
    for _ in range(steps):
        course.step()
    return effect(course.moments)


def test_ranks_that_are_divided_by_twice_shrink_the_gradient(warm: Runner) -> None:
    found = _trained(warm, "VERL-AGGLOSS-RANKS-TWICE", 3)
    assert found.differing == 2 * 3
    assert found.ratio is not None
    assert found.ratio.low == pytest.approx(0.25)
    assert found.ratio.high == pytest.approx(0.25)
    assert found.angle is not None
    assert found.angle.high < 1e-3


def test_a_rejected_response_turns_the_gradient(warm: Runner) -> None:
    found = _trained(warm, "VERL-REJECTED-ROW-GRPO", 3)
    assert found.differing == 2 * 3
    assert found.angle is not None
    assert found.angle.low > 1


def test_a_baseline_that_has_seen_its_token_turns_the_gradient(warm: Runner) -> None:
    """A critic is learnt first: at the first two steps it says 0 everywhere."""
    found = _trained(warm, "ROLL-CRITIC-VALUES-ONE-LATE", 5)
    assert 0 < found.differing < 2 * 5
    assert found.angle is not None
    assert found.angle.low > 1


def test_microbatches_of_one_row_turn_a_supervised_gradient(warm: Runner) -> None:
    found = _trained(warm, "VERL-SFT-ENGINE-MEAN-OF-MICROBATCH", 2)
    assert found.differing == 2 * 2
    assert found.angle is not None
    assert found.angle.low > 5


def test_a_nan_ends_learning_where_no_revision_is_right(warm: Runner) -> None:
    found = _trained(warm, "VERL-PPO-MASKED-NAN-GRADIENT", 11)
    assert found.visible == "stopped"
    assert found.base.stopped == {0: 10, 1: 10}
    assert not found.head.stopped
    assert found.differing == found.not_finite[0] == 2, "but for the one batch they agree, the reference is right"
