"""Find the recipe that explains a finding, even if the code has moved or the recipe cannot be decided."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_kit import write_recipe
from toy_target import TOYS

from sentinel.recipes import Expected, load_recipe
from sentinel.search.boundary_search import BoundarySearch
from sentinel.search.discovery import is_about, match_known_bugs
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


def test_a_function_that_ran_is_recognised_by_its_former_name():
    mean = recipe("pkg.statistics.mean", "statistics")
    assert is_about(mean, finding(LOSS, ran=("pkg.statistics.mean",)), TARGET)
    assert is_about(mean, finding(LOSS, ran=("pkg.old.mean",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.sum",)), TARGET)
    assert not is_about(mean, finding(LOSS, ran=("pkg.old.mean",), law="parts_add_up"), TARGET)
    assert not is_about(recipe("pkg.old.sum", "statistics"), finding(LOSS, ran=("pkg.old.mean",)), TARGET)


def test_a_finding_belongs_to_the_recipe_of_its_scenario():
    mean = recipe("pkg.old.sum", "statistics")
    assert is_about(mean, finding(LOSS, examples=("BUG", "OTHER")), TARGET)
    assert not is_about(mean, finding(LOSS, examples=("OTHER", "BUG")), TARGET)


@pytest.mark.parametrize(
    ("wrong", "explains"),
    [([math.nan, 2.0], False), ([1.0, math.inf], False), ([math.nan, 3.0], True), ([1.0], True), ("none", True)],
)
def test_a_nan_bug_explains_wrong_numbers_only_in_its_own_scenario(wrong, explains):
    mean = recipe("pkg.statistics.mean", "statistics", wrong)
    assert is_about(mean, finding(MEAN, symptom="value"), TARGET) == explains
    assert is_about(mean, finding(MEAN, symptom="value", examples=("OTHER", "BUG")), TARGET)
    assert is_about(mean, finding(MEAN), TARGET)


def test_an_ignored_option_does_not_explain_another():
    mean = recipe("pkg.statistics.mean", "statistics")
    assert not is_about(mean, finding(MEAN, symptom="scale"), TARGET)
    mean.expected_unpatched["baseline.scale"] = Expected(1.0)
    assert is_about(mean, finding(MEAN, symptom="scale"), TARGET)


@pytest.fixture
def told(open_toys: Any, runners: Any, toys: Any, tmp_path: Path) -> Any:
    """Return a function that searches `unmasked`, which counts masked values. It returns, for each finding, the known
    bugs that explain it, and the mask of its scenario.

    :param own: whether to begin with the recipe's own scenario.
    :param more: fields of a second recipe.
    """

    hidden: list[str] = []

    def tell(expected: list[float], when: Any, code: str = TOYS, own: bool = False, more: Any = None) -> list[Any]:
        document = {
            "recipe_version": 1, "bug_id": "TOYS-UNMASKED", "title": "x", "target": "toys", "contract": "toy_sum",
            "boundary": "pkg.toys.unmasked", "invariant": "the_oracle_agrees", "upstream": {"status": "unreported"},
            "scenario": {"values": [[1.0, 2.0]], "response_mask": [[1, 0]], "scale": 1.0},
            "expected_unpatched": {"sums": expected}, "expected_fixed": {"sums": [8.0]}, **when,
        }  # fmt: skip
        bugs = [
            load_recipe(write_recipe(tmp_path, {**document, **fields}), toys)
            for fields in ({}, more)
            if fields is not None
        ]
        open_target, subjects = open_toys("unmasked", code=code)
        laws = [law for law in subjects["unmasked"].laws if law.name == "the_oracle_agrees"]
        search = BoundarySearch(open_target.law_session, subjects["unmasked"], 0, laws)
        search.try_recipes(bugs[:1] if own else [])
        search.run(60)
        [outcome] = search.outcomes.values()
        found, where = outcome.findings[:1], list(subjects.values())
        items = list(match_known_bugs(runners[-1], toys.targets["toys"], open_target, found, bugs, where))
        hidden.extend(item.hidden for item in items)
        return [(item.known_as, item.trial.variants[""]["response_mask"].nested()) for item in items]

    tell.hidden = hidden  # type: ignore[attr-defined]
    return tell


MASKED = {"when": {"values": "non-zero where masked"}}


@pytest.mark.slow
def test_a_triggered_bug_explains_a_law_that_holds_otherwise(told):
    [(known, mask)] = told([3.0], MASKED)
    assert known == ("TOYS-UNMASKED",)
    assert any(0 in row for row in mask)


@pytest.mark.slow
def test_a_changed_bug_or_one_without_a_trigger_explains_nothing(told):
    assert [known for known, _ in told([7.0], MASKED)] == [()]
    assert [known for known, _ in told([3.0], {})] == [()]


@pytest.mark.slow
def test_a_violation_without_the_trigger_is_another_finding(told):
    """The known bug's scenario is tried first. It must not hide that the law is also broken in another scenario."""
    two = TOYS.replace("values.sum(-1)", "values.sum(-1) * (2 if len(values) > 2 else 1)")
    (known, _), (new, mask) = told([3.0], MASKED, two, own=True)
    assert (known, new) == (("TOYS-UNMASKED",), ())
    assert all(0 not in row for row in mask)


@pytest.mark.slow
def test_a_bug_that_explains_every_key_that_a_law_compares_leaves_the_law_undecided(told):
    """The law compares only the sums, so no scenario could show another bug."""
    two = TOYS.replace("values.sum(-1)", "values.sum(-1) * (2 if len(values) > 2 else 1)")
    [(known, _)] = told([3.0], {"when": {"only": ["sums"]}}, two)
    assert known == ("TOYS-UNMASKED",)
    assert told.hidden == ["it explains every key that the law compares, where another bug could hide"]


@pytest.mark.slow
def test_a_violation_explained_by_another_known_bug_is_not_a_finding(told):
    """The second bug causes NaN, which the first finding does not have. Only a second search shows that it is known."""
    two = TOYS.replace("values.sum(-1)", "values.sum(-1) * (float('nan') if scale > 1 else 1)")
    scenario = {"values": [[1.0]], "response_mask": [[1]], "scale": 2.0}
    nan = {"bug_id": "TOYS-NAN", "when": {"scale": "> 1"}, "expected_unpatched": {"sums": [math.nan]}}
    [(known, _)] = told([3.0], MASKED, two, own=True, more={**nan, "scenario": scenario})
    assert known == ("TOYS-UNMASKED", "TOYS-NAN")
