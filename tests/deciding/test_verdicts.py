from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.contracts.contract import DoesNotApply
from sentinel.deciding.outcomes import Failure, Measurement, Provenance
from sentinel.deciding.verdicts import by_expectation, by_law, of_failure, read
from sentinel.laws.law import Law, Violation
from sentinel.recipes import Expected, Recipe
from sentinel.values.literals import tensor
from sentinel.values.tolerance import Tolerance

PROVENANCE = Provenance("pkg.f", "pkg", "pkg.py", 1, "0" * 40, "()")


@pytest.fixture
def recipe(loaded_recipe: Recipe) -> Recipe:
    """The loss is 26 unpatched and 1 fixed. Only the fixed values have a gradient."""
    return replace(
        loaded_recipe,
        expected_unpatched={"loss": Expected(26.0)},
        expected_fixed={"loss": Expected(1.0), "gradient": Expected([0.5, 0.0])},
    )


def observed(loss: Any, gradient: Any = (0.5, 0.0)) -> dict[str, Any]:
    return {"": {"loss": tensor(loss, "float32"), "gradient": tensor(list(gradient), "float32")}}


def test_each_value_set_gives_its_verdict(recipe):
    assert by_expectation(recipe, observed(26.0))[0].name == "reproduced"
    assert by_expectation(recipe, observed(1.0))[0].name == "fixed"


@pytest.mark.parametrize("seen", [observed(2.0), observed(1.0, (0.5, 0.5)), observed(float("nan"))], ids=repr)
def test_a_value_of_neither_set_is_changed(recipe, seen):
    verdict, comparisons = by_expectation(recipe, seen)
    assert verdict.name == "changed"
    assert "expected" in verdict.reason
    assert [item.key for item in comparisons] == ["loss", "gradient"]
    assert any(item.detail for item in comparisons)


def test_every_key_is_compared_with_both_sets(recipe):
    _, (loss, gradient) = by_expectation(recipe, observed(26.0, (0.5, 0.5)))
    assert (loss.unpatched, loss.fixed, loss.matches_unpatched, loss.matches_fixed) == (26.0, 1.0, True, False)
    assert (gradient.unpatched, gradient.matches_unpatched, gradient.matches_fixed) == (None, None, False)


def test_a_missing_key_is_drift(recipe):
    verdict, comparisons = by_expectation(recipe, {"": {"loss": tensor(1.0, "float32")}})
    assert (verdict.name, verdict.kind, comparisons) == ("inconclusive", "drift", ())
    assert "'gradient' was not observed; the function returned loss" in verdict.reason


def test_an_observation_that_matches_both_sets_is_inconclusive(recipe):
    loose = replace(recipe, tolerance=Tolerance(absolute=100.0))
    assert by_expectation(loose, observed(5.0))[0].kind == "ambiguous"


def test_a_tolerance_of_an_expectation_takes_precedence(recipe):
    tight = replace(
        recipe,
        tolerance=Tolerance(absolute=1.0),
        expected_fixed={"loss": Expected(1.0, Tolerance(exact=True)), "gradient": Expected([0.5, 0.5])},
    )
    assert by_expectation(tight, observed(1.5))[0].name == "changed"
    assert by_expectation(tight, observed(1.0))[0].name == "fixed"


def test_a_wrong_dtype_or_shape_is_changed(recipe):
    typed = replace(recipe, expected_fixed={"loss": Expected(tensor(1.0, "float64"))})
    assert by_expectation(typed, observed(1.0))[0].name == "changed"
    assert by_expectation(recipe, {"": {**observed(1.0)[""], "loss": tensor([1.0], "float32")}})[0].name == "changed"


VARIANTS: dict[str, Any] = {
    "baseline": {
        "advantages": tensor([1.0, 2.0], "float32"),
        "returned": {"a": [1, {"b": 2}], "x.y": 5, "x.y.z": {"w.0": 6}},
    },
    "outlier": {"advantages": tensor([-1.0, 2.0], "float32"), "returned": {"a": [1, {"b": 7}], "x.y": 5}},
}


@pytest.mark.parametrize(
    ("address", "value"),
    [
        ("baseline.advantages", tensor([1.0, 2.0], "float32")),
        ("difference(outlier, baseline).advantages", tensor([-2.0, 0.0], "float32")),
        ("outlier.returned.a.1.b", 7),
        ("outlier.returned.a.0", 1),
        ("baseline.returned.x.y", 5),  # the name of a nested argument's gradient in the contract `call`
        ("baseline.returned.x.y.z.w.0", 6),
        ("difference(outlier, baseline).returned.a.1.b", 5),
    ],
)
def test_addresses_select_observed_values(address, value):
    assert read(address, VARIANTS) == value


@pytest.mark.parametrize(
    "address",
    ["baseline.returned.a.7", "baseline.returned.c", "baseline.nothing", "difference(outlier, baseline).returned"],
)
def test_invalid_addresses_are_rejected(address):
    with pytest.raises(Exception, match=r"not observed|cannot be subtracted"):
        read(address, VARIANTS)


@pytest.mark.parametrize("kind", ["ref", "not-in-this-version", "python"])
def test_failures_of_this_machine_are_unavailable(kind):
    verdict = of_failure(Failure(kind, "because"))
    assert (verdict.name, verdict.kind, verdict.reason) == ("unavailable", kind, "because")


@pytest.mark.parametrize(
    "kind", ["drift", "import", "raised", "crash", "exit", "timeout", "memory", "ghost", "harness"]
)
def test_other_failures_are_inconclusive(kind):
    assert of_failure(Failure(kind, "because")).name == "inconclusive"


def law(*violations: Violation) -> Law:
    return Law("a_law", "what must hold", lambda case: list(violations))


def test_a_law_decides_without_expected_values(recipe):
    measurement = Measurement(observed(1.0), PROVENANCE)
    assert by_law(law(), recipe, measurement)[0].name == "fixed"
    verdict, (comparison,) = by_law(law(Violation("loss", 2, 1, "it is 2")), recipe, measurement)
    assert (verdict.name, verdict.reason) == ("reproduced", "the law is broken (what must hold): it is 2")
    assert (comparison.observed, comparison.fixed, comparison.matches_fixed) == (2, 1, False)


def test_a_law_that_does_not_apply_is_inconclusive(recipe):
    def check(case: Any) -> list[Violation]:
        raise DoesNotApply("no mask")

    verdict, _ = by_law(Law("a_law", "s", check), recipe, Measurement(observed(1.0), PROVENANCE))
    assert (verdict.name, verdict.kind) == ("inconclusive", "law")
    assert "a_law does not apply to this scenario: no mask" in verdict.reason


@given(st.floats(width=32), st.floats(width=32), st.floats(width=32))
def test_every_observation_has_exactly_one_verdict(unpatched, fixed, seen):
    recipe = replace(_EMPTY, expected_unpatched={"x": Expected(unpatched)}, expected_fixed={"x": Expected(fixed)})
    verdict, _ = by_expectation(recipe, {"": {"x": tensor(seen, "float32")}})
    only_fixed, _ = by_expectation(replace(recipe, expected_unpatched={}), {"": {"x": tensor(seen, "float32")}})
    only_unpatched, _ = by_expectation(replace(recipe, expected_fixed={}), {"": {"x": tensor(seen, "float32")}})
    names = {only_fixed.name, only_unpatched.name} - {"changed"}
    assert verdict.name == (names.pop() if len(names) == 1 else "inconclusive" if names else "changed")


_EMPTY = Recipe("B", "t", "demo", "loss_aggregation", "demo_rl.losses.agg_loss", {}, Path(), "")
