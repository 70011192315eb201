from types import SimpleNamespace
from typing import Any

import pytest
from toy_target import TOYS, OpenToys

from sentinel.deciding.runner import Job
from sentinel.recipes import load_recipe
from sentinel.search.boundary_search import BoundarySearch, Finding
from sentinel.search.saving import CannotDistinguish, as_written, decisive_document, save
from sentinel.values.literals import tensor

#: The toys, with the sum over all values changed to one over valid values.
MENDED = TOYS.replace("scale * values.sum(-1)", "right(values, response_mask, scale)")


def found(open_toys: OpenToys, name: str) -> tuple[Any, Finding]:
    open_target, subjects = open_toys(name)
    search = BoundarySearch(open_target.law_session, subjects[name], 0)
    search.run(30)
    [outcome] = search.outcomes.values()
    return open_target, outcome.findings[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unmasked", "leaking"])
def test_a_saved_recipe_distinguishes_fixed_from_broken_code(name, open_toys, runners, toys, tmp_path):
    open_target, finding = found(open_toys, name)
    recipe = load_recipe(save(tmp_path, decisive_document(finding, open_target, runners[-1], toys)), toys)
    assert recipe.has_values is (name == "unmasked")  # the other contract has no reference, so its law decides
    assert runners[-1].decide(Job(recipe, open_target.ref)).verdict.name == "reproduced"
    mended, _ = open_toys(name, code=MENDED)
    assert runners[-1].decide(Job(recipe, mended.ref)).verdict.name == "fixed"


@pytest.mark.slow
def test_a_scenario_that_the_current_code_passes_is_not_saved(open_toys, toys):
    open_target, finding = found(open_toys, "leaking")
    told: Any = SimpleNamespace(decide=lambda job: SimpleNamespace(verdict=SimpleNamespace(name="fixed", reason="so")))
    with pytest.raises(
        CannotDistinguish, match="on the code with the bug, the verdict is fixed instead of reproduced: so"
    ):
        decisive_document(finding, open_target, told, toys)


@pytest.mark.slow
def test_a_scenario_that_no_output_can_satisfy_is_not_saved(open_toys, runners, toys):
    open_target, finding = found(open_toys, "leaking")
    stubborn = finding.__class__(
        finding.subject,
        finding.law.__class__(finding.law.name, finding.law.statement, lambda case: list(finding.violations)),
        finding.trial,
        finding.violations,
    )
    with pytest.raises(CannotDistinguish, match="no simulated correct output satisfies the law"):
        decisive_document(stubborn, open_target, runners[-1], toys)


def test_tensors_inside_other_values_stay_tensors():
    value = {"ids": tensor([1, 2], "int64"), "rows": [{"weights": tensor([[0.5]], "float32")}], "name": "a"}
    assert as_written(value) == {
        "ids": {"tensor": [1, 2], "dtype": "int64"},
        "rows": [{"weights": {"tensor": [[0.5]], "dtype": "float32"}}],
        "name": "a",
    }
