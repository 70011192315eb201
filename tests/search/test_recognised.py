"""Which recipe explains a finding: where the code was called something else, and where the recipe cannot be decided."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.recipes import Expected
from sentinel.search.discovery import is_about, is_there
from sentinel.targets import Binding, PackageRoot, Target

LAW = "masked_values_have_no_influence"
MEAN = Binding("pkg.statistics.mean", "statistics", formerly=("pkg.old.mean",))
LOSS = Binding("pkg.old.loss", "losses")
TARGET = Target("toys", "https://example.invalid/toys.git", (PackageRoot("pkg"),), bindings=(MEAN, LOSS))


def finding(
    binding: Binding,
    ran: tuple[str, ...] = (),
    examples: tuple[str, ...] = (),
    law: str = LAW,
    symptom: str = "non-finite",
) -> Any:
    return SimpleNamespace(
        symptom=symptom,
        subject=SimpleNamespace(binding=binding),
        law=SimpleNamespace(name=law, twin=""),
        trial=SimpleNamespace(answer=SimpleNamespace(functions=ran)),
        examples=examples,
    )


def recipe(boundary: str, contract: str, wrong: Any = 0.0) -> Any:
    return SimpleNamespace(
        bug_id="BUG",
        target="toys",
        boundary=boundary,
        contract=contract,
        laws=(LAW,),
        invariant=LAW,
        expected_unpatched={"statistic": Expected(wrong)},
        expected_fixed={"statistic": Expected([1.0, 2.0])},
    )


def test_a_function_that_ran_is_known_by_the_name_that_it_had_then() -> None:
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_about(mean, finding(LOSS, ran=("pkg.statistics.mean",)), TARGET)
    assert is_about(mean, finding(LOSS, ran=("pkg.old.mean",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.sum",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.mean",), law="parts_add_up"), TARGET)
    assert not is_about(recipe("pkg.old.sum", "statistics"), finding(LOSS, ran=("pkg.old.mean",)), TARGET)


def test_a_finding_is_about_the_recipe_whose_scenario_it_is_and_of_no_other_that_shows_it() -> None:
    mean = recipe("pkg.old.sum", "statistics")
    assert is_about(mean, finding(LOSS, examples=("BUG", "OTHER")), TARGET)
    assert not is_about(mean, finding(LOSS, examples=("OTHER", "BUG")), TARGET)


@pytest.mark.parametrize(
    ("wrong", "explains"),
    [([math.nan, 2.0], False), ([1.0, math.inf], False), ([math.nan, 3.0], True), ([1.0], True), ("none", True)],
)
def test_a_bug_that_makes_nan_alone_explains_a_wrong_number_only_where_its_scenario_shows_it(
    wrong: Any, explains: bool
) -> None:
    mean = recipe("pkg.statistics.mean", "statistics", wrong)
    assert is_about(mean, finding(MEAN, symptom="value"), TARGET) == explains
    assert is_about(mean, finding(MEAN, symptom="value", examples=("OTHER", "BUG")), TARGET)
    assert is_about(mean, finding(MEAN), TARGET)


@pytest.mark.parametrize("verdict", ["changed", "inconclusive", "unavailable"])
def test_a_scenario_that_breaks_its_law_speaks_for_a_recipe_that_cannot(verdict: str) -> None:
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_there(mean, verdict, [finding(LOSS), finding(LOSS, examples=("OTHER", "BUG"))])
    assert not is_there(mean, verdict, [finding(LOSS), finding(LOSS, examples=("OTHER",))])
    assert not is_there(mean, verdict, [finding(LOSS, examples=("OTHER", "BUG"), law="parts_add_up")])


def test_what_is_reproduced_is_there_and_what_is_fixed_is_not() -> None:
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_there(mean, "reproduced", [])
    assert not is_there(mean, "fixed", [finding(LOSS, examples=("OTHER", "BUG"))])
