"""Values that leak or differ between variants, and the results before and after."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sentinel.recipes.catalog import Catalog
from sentinel.tools.site.material import Bug, Material, read
from sentinel.tools.site.story import Outcome, Story, Variant, story


@pytest.fixture
def told(reports: Any, catalog: Catalog) -> Callable[..., Story]:
    material: Material = read(reports, catalog)

    def of(bug_id: str, **changes: Any) -> Story:
        bug: Bug = replace(next(bug for bug in material.bugs if bug.bug_id == bug_id), **changes)
        found = story(bug, catalog)
        assert found is not None
        return found

    return of


def marked(variant: Variant, mark: str) -> dict[str, list[tuple[int, int, str]]]:
    found = {
        drawn.name: [
            (i, j, cell.text)
            for i, line in enumerate(drawn.lines)
            for j, cell in enumerate(line.cells)
            if cell.mark == mark
        ]
        for drawn in variant.grids
    }
    return {name: cells for name, cells in found.items() if cells}


def test_in_a_single_scenario_all_masked_nonzero_values_leak(told):
    found = told("ROLL-AGGLOSS-TOKENMEAN-MASK")
    assert marked(found.scenario, "leak") == {"loss_mat": [(0, 1, "100"), (1, 1, "-50")]}
    assert found.variants == ()
    assert found.leaks


def test_masked_values_that_differ_between_variants_leak(told):
    found = told("VERL-REJECTED-ROW-GRPO")
    (leaking,) = [variant for variant in found.variants if marked(variant, "leak")]
    assert marked(leaking, "leak").keys() == {"token_level_rewards"}
    assert len(marked(leaking, "leak")["token_level_rewards"]) == 1
    assert any(line.rejected for drawn in leaking.grids for line in drawn.lines)


def test_variants_and_inputs_keep_the_recipes_order(told, catalog):
    found = told("VERL-REJECTED-ROW-GRPO")
    recipe = next(iter(read_recipes(catalog, "VERL-REJECTED-ROW-GRPO")))
    assert [found.scenario.name, *(variant.name for variant in found.variants)] == list(recipe.variants)
    order = [item.name for item in catalog.contracts["group_advantage"].inputs]
    names = [drawn.name for drawn in found.scenario.grids]
    assert names == sorted(names, key=order.index)
    assert found.defaults
    assert not {name for name, _ in found.defaults} & set(names)


def read_recipes(catalog: Catalog, bug: str) -> Any:
    from sentinel.recipes import find_recipes

    return find_recipes(catalog, (), [bug])


def test_before_and_after_are_the_first_pins_of_each_verdict(told):
    found = told("ROLL-AGGLOSS-TOKENMEAN-MASK")
    assert (found.before.key, found.after.key) == ("git-c09bc8bc9f43", "git-f67f5d31074b")
    loss = next(outcome for outcome in found.outcomes if outcome.key == "loss")
    assert (loss.before.plain, loss.after.plain, loss.same) == ("26", "1", False)
    gradient = next(outcome for outcome in found.outcomes if outcome.key == "per_token_gradient")
    assert [[cell.mark for cell in line.cells] for line in gradient.before.lines] == [["", "wrong"]] * 2
    assert [[cell.mark for cell in line.cells] for line in gradient.after.lines] == [["", "mended"]] * 2


def test_without_a_fixed_revision_the_recipe_has_the_right_values(told, reports, catalog):
    bug = next(bug for bug in read(reports, catalog).bugs if bug.bug_id == "ROLL-AGGLOSS-TOKENMEAN-MASK")
    found = told(bug.bug_id, evidence=tuple(seen for seen in bug.evidence if seen.verdict == "reproduced"))
    assert found.after is None
    assert next(outcome for outcome in found.outcomes if outcome.key == "loss").after.plain == "1"


def test_without_the_bug_no_value_is_marked_wrong(told, reports, catalog):
    bug = next(bug for bug in read(reports, catalog).bugs if bug.bug_id == "ROLL-AGGLOSS-TOKENMEAN-MASK")
    found = told(bug.bug_id, evidence=tuple(seen for seen in bug.evidence if seen.verdict == "fixed"))
    assert found.before is None
    assert found.wrong == ()


def test_equal_numbers_are_never_shown_as_wrong_and_right(reports, catalog, changed):
    """Old evidence has a law that was reported broken at a variant with the right result."""

    def equal(document: dict[str, Any]) -> None:
        for item in document["comparison"]:
            item["fixed"], item["matches_fixed"] = item["observed"], False

    def near(document: dict[str, Any]) -> None:
        for item in document["comparison"]:
            item.update(observed=0.1, fixed=0.1000000001, matches_fixed=False)

    for change, count in ((equal, 0), (near, 1)):
        changed("*/laws/*/*/*.json", change)
        (law,) = read(reports, catalog).laws
        found = story(law, catalog)
        assert len(found.wrong) == count
        for outcome in found.wrong:
            assert (outcome.before.plain, outcome.after.plain) == ("0.1", "0.1000000001")


def test_a_value_without_evidence_is_left_out(told):
    """A law that holds has evidence only without the bug, and no right value for some keys."""
    found = told("VERL-REJECTED-ROW-GRPO")
    empty = Outcome("loss", "", None, None, same=True)
    assert replace(found, outcomes=(*found.outcomes, empty)).unmoved == found.unmoved
