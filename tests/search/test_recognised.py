"""Which recipe explains a finding: where the code was called something else, and where the recipe cannot be decided."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from demo_kit import write_recipe
from toy_target import TOYS

from sentinel.deciding.runner import Job
from sentinel.recipes import Expected, load_recipe
from sentinel.search.boundary_search import BoundarySearch
from sentinel.search.discovery import is_about, is_there, recognised
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
        subject=SimpleNamespace(binding=binding, contract=SimpleNamespace(input={"scale": "an option"}.get)),
        law=SimpleNamespace(name=law, twin=""),
        trial=SimpleNamespace(answer=SimpleNamespace(functions=ran)),
        examples=examples,
        laws=(),
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


def test_a_function_that_ran_is_known_by_the_name_that_it_had_then():
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_about(mean, finding(LOSS, ran=("pkg.statistics.mean",)), TARGET)
    assert is_about(mean, finding(LOSS, ran=("pkg.old.mean",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.sum",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.mean",), law="parts_add_up"), TARGET)
    assert not is_about(recipe("pkg.old.sum", "statistics"), finding(LOSS, ran=("pkg.old.mean",)), TARGET)


def test_a_finding_is_about_the_recipe_whose_scenario_it_is_and_of_no_other_that_shows_it():
    mean = recipe("pkg.old.sum", "statistics")
    assert is_about(mean, finding(LOSS, examples=("BUG", "OTHER")), TARGET)
    assert not is_about(mean, finding(LOSS, examples=("OTHER", "BUG")), TARGET)


@pytest.mark.parametrize(
    ("wrong", "explains"),
    [([math.nan, 2.0], False), ([1.0, math.inf], False), ([math.nan, 3.0], True), ([1.0], True), ("none", True)],
)
def test_a_bug_that_makes_nan_alone_explains_a_wrong_number_only_where_its_scenario_shows_it(wrong, explains):
    mean = recipe("pkg.statistics.mean", "statistics", wrong)
    assert is_about(mean, finding(MEAN, symptom="value"), TARGET) == explains
    assert is_about(mean, finding(MEAN, symptom="value", examples=("OTHER", "BUG")), TARGET)
    assert is_about(mean, finding(MEAN), TARGET)


def test_one_option_that_is_ignored_explains_no_other():
    mean = recipe("pkg.statistics.mean", "statistics")
    assert not is_about(mean, finding(MEAN, symptom="scale"), TARGET)
    mean.expected_unpatched["baseline.scale"] = Expected(1.0)
    assert is_about(mean, finding(MEAN, symptom="scale"), TARGET)


@pytest.mark.parametrize("verdict", ["changed", "inconclusive", "unavailable"])
def test_a_scenario_that_breaks_its_law_speaks_for_a_recipe_that_cannot(verdict):
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_there(mean, verdict, [finding(LOSS), finding(LOSS, examples=("OTHER", "BUG"))])
    assert not is_there(mean, verdict, [finding(LOSS), finding(LOSS, examples=("OTHER",))])
    assert not is_there(mean, verdict, [finding(LOSS, examples=("OTHER", "BUG"), law="parts_add_up")])


def test_what_is_reproduced_is_there_and_what_is_fixed_is_not():
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_there(mean, "reproduced", [])
    assert not is_there(mean, "fixed", [finding(LOSS, examples=("OTHER", "BUG"))])


def test_where_a_recipe_cannot_be_decided_its_scenario_is_tried(open_toys, runners, toys, tmp_path):
    """As at an old commit, whose numbers are others: what a search drew by itself is no proof of whose bug it is."""
    document = {
        "recipe_version": 1, "bug_id": "TOYS-UNMASKED", "title": "x", "target": "toys", "contract": "toy_sum",
        "boundary": "pkg.toys.unmasked", "invariant": "the_oracle_agrees", "upstream": {"status": "unreported"},
        "scenario": {"values": [[1.0, 2.0]], "response_mask": [[1, 0]], "scale": 1.0},
        "expected_unpatched": {"sums": [7.0]}, "expected_fixed": {"sums": [8.0]},
    }  # fmt: skip
    bug = load_recipe(write_recipe(tmp_path, document), toys)
    other = TOYS.replace("values.sum(-1)", "(values if len(values) > 1 else values * response_mask).sum(-1)")
    for code, known in ((TOYS, ("TOYS-UNMASKED",)), (other, ())):
        open_target, subjects = open_toys("unmasked", code=code)
        assert runners[-1].decide(Job(bug, open_target.ref)).verdict.name == "changed"
        search = BoundarySearch(open_target.law_session, subjects["unmasked"], 0)
        search.run(30)
        [outcome] = search.outcomes.values()
        found, where = outcome.findings[:1], list(subjects.values())
        [told] = recognised(runners[-1], toys.targets["toys"], open_target, found, [bug], where)
        assert told.known_as == known
