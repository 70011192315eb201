"""Saved findings: what a scenario holds, in the recipe language; what decides, and that it was tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_ground import TOYS, OpenGround

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.hunt import Finding, Hunt
from sentinel.search.saving import Untried, save, tried_document, written
from sentinel.values.literals import tensor

#: The toys with the sum over all values made one over those that count.
MENDED = TOYS.replace("scale * values.sum(-1)", "right(values, response_mask, scale)")


def found(open_ground: OpenGround, name: str) -> tuple[Any, Finding]:
    ground, subjects = open_ground(name)
    hunt = Hunt(ground.bench, subjects[name], 0)
    hunt.run(30)
    [tally] = hunt.tallies.values()
    return ground, tally.findings[0]


@pytest.mark.parametrize("name", ["unmasked", "leaking"])
def test_a_saved_recipe_tells_the_mended_boundary_from_the_broken_one(
    name: str, open_ground: OpenGround, runners: list[Runner], toys: Catalog, tmp_path: Path
) -> None:
    ground, finding = found(open_ground, name)
    recipe = load_recipe(save(tmp_path, tried_document(finding, ground, runners[-1], toys)), toys)
    assert recipe.has_values is (name == "unmasked")  # the other one has no reference: its law decides
    assert runners[-1].decide(Job(recipe, ground.ref)).verdict.name == "reproduced"
    mended, _ = open_ground(name, code=MENDED)
    assert runners[-1].decide(Job(recipe, mended.ref)).verdict.name == "fixed"


def test_what_the_code_at_hand_does_not_show_is_not_saved(open_ground: OpenGround, toys: Catalog) -> None:
    ground, finding = found(open_ground, "leaking")
    told: Any = SimpleNamespace(decide=lambda job: SimpleNamespace(verdict=SimpleNamespace(name="fixed", reason="so")))
    with pytest.raises(Untried, match="the recipe says fixed of the code that shows it: so"):
        tried_document(finding, ground, told, toys)


def test_what_no_answer_can_mend_is_not_saved(open_ground: OpenGround, runners: list[Runner], toys: Catalog) -> None:
    ground, finding = found(open_ground, "leaking")
    stubborn = finding.__class__(
        finding.subject,
        finding.law.__class__(finding.law.name, finding.law.statement, lambda case: list(finding.violations)),
        finding.trial,
        finding.violations,
    )
    with pytest.raises(Untried, match="no answer that a mended boundary might give keeps the law"):
        tried_document(stubborn, ground, runners[-1], toys)


def test_tensors_inside_of_other_values_stay_tensors() -> None:
    value = {"ids": tensor([1, 2], "int64"), "rows": [{"weights": tensor([[0.5]], "float32")}], "name": "a"}
    assert written(value) == {
        "ids": {"tensor": [1, 2], "dtype": "int64"},
        "rows": [{"weights": {"tensor": [[0.5]], "dtype": "float32"}}],
        "name": "a",
    }
