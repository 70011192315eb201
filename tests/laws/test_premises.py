"""A law does not apply to variants that differ in ways other than the law describes, which recipes may have."""

from typing import Any

import pytest
from law_kit import CONTRACT, batch, part, scoring

from sentinel.contracts.contract import DoesNotApply
from sentinel.laws.law import Case
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import tensor

LAWS = bundled_catalog().laws
ONE = batch([[1.0, 2.0], [3.0, 4.0]], [[1, 0], [1, 1]], "pq")


def with_scores(*scores: list[float], **more: Any) -> dict[str, Any]:
    return {**ONE, "scores": tensor(list(scores), "float32"), **more}


def asked(law: str, other: dict[str, Any], oracle: bool = False) -> Any:
    """Return a law's result for two variants of an honest function."""
    inputs = {"baseline": ONE, "other": other}
    observation = {name: scoring()(given) for name, given in inputs.items()}
    return LAWS[law].check(Case(inputs, observation, observation if oracle else None, CONTRACT))


@pytest.mark.parametrize(
    ("law", "other"),
    [
        ("groups_are_isolated", ONE),
        ("groups_are_isolated", with_scores([5.0, 2.0], [6.0, 4.0])),
        ("groups_are_isolated", {**ONE, "scale": 2.0}),
        ("groups_are_isolated", {**ONE, "response_mask": tensor([[1, 1], [1, 1]], "float32")}),
        ("groups_are_isolated", part(ONE, "p")),
        ("order_does_not_matter", with_scores([5.0, 2.0], [3.0, 4.0])),
        ("order_does_not_matter", {**ONE, "scale": 2.0}),
        ("padding_is_invisible", ONE),
        ("padding_is_invisible", batch([[9.0, 2.0, 0.0], [3.0, 4.0, 0.0]], [[1, 0, 0], [1, 1, 0]], "pq")),
        ("padding_is_invisible", batch([[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]], [[1, 0, 0], [1, 1, 1]], "pq")),
        ("parts_add_up", part(ONE, "p")),
        ("twins_agree", with_scores([5.0, 2.0], [3.0, 4.0])),
        ("representation_is_invisible", with_scores([5.0, 2.0], [3.0, 4.0])),
        ("representation_is_invisible", {**ONE, "group": ["p", "p"]}),
        ("every_knob_counts", with_scores([5.0, 2.0], [3.0, 4.0])),
        ("every_knob_counts", ONE),
        ("normalisation_laws", batch([[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]], [[1, 0, 0], [1, 1, 0]], "pq")),
        ("normalisation_laws", part(ONE, "p")),
    ],
)
def test_a_law_does_not_apply_to_unrelated_variants(law, other):
    with pytest.raises(DoesNotApply):
        asked(law, other, oracle=law in ("every_knob_counts", "normalisation_laws"))


@pytest.mark.parametrize(
    ("law", "other"),
    [
        ("groups_are_isolated", with_scores([5.0, 2.0], [3.0, 4.0])),
        ("order_does_not_matter", batch([[3.0, 4.0], [1.0, 2.0]], [[1, 1], [1, 0]], "qp")),
        ("padding_is_invisible", batch([[1.0, 2.0, 0.0], [3.0, 4.0, 0.0]], [[1, 0, 0], [1, 1, 0]], "pq")),
        ("padding_is_invisible", batch([[0.0, 1.0, 2.0], [0.0, 3.0, 4.0]], [[0, 1, 0], [0, 1, 1]], "pq")),
        ("masked_values_have_no_influence", with_scores([1.0, float("nan")], [3.0, 4.0])),
        ("twins_agree", ONE),
        ("representation_is_invisible", {**ONE, "group": [4, 2]}),
        ("representation_is_invisible", {**ONE, "response_mask": tensor([[1, 0], [1, 1]], "bool")}),
        (
            "representation_is_invisible",
            {**ONE, "scores": tensor([[1.0, 2.0], [3.0, 4.0]], "float32", contiguous=False)},
        ),
        ("every_knob_counts", {**ONE, "scale": 2.0}),
    ],
)
def test_a_law_applies_to_its_own_variants(law, other):
    assert asked(law, other, oracle=law in ("every_knob_counts", "normalisation_laws")) == []


def test_variants_that_differ_outside_the_mask_are_checked_by_gradients_only():
    assert asked("masked_values_have_no_influence", with_scores([5.0, 9.0], [3.0, 4.0])) == []


def test_equal_rows_are_interchangeable():
    alike = batch([[1.0], [2.0], [1.0]], [[1], [1], [1]], "pqp")
    other = batch([[1.0], [1.0], [2.0]], [[1], [1], [1]], "ppq")
    inputs = {"baseline": alike, "permuted": other}
    observation = {name: scoring()(given) for name, given in inputs.items()}
    assert LAWS["order_does_not_matter"].check(Case(inputs, observation, contract=CONTRACT)) == []


@pytest.mark.parametrize(
    ("effects", "symptoms"),
    [
        ({"mutated": [], "globals": []}, []),
        ({"mutated": ["scores"], "globals": []}, ["mutated"]),
        ({"mutated": [], "globals": ["numpy.random"]}, ["global-state"]),
        ({"mutated": [], "globals": [], "again": {"loss": tensor(2.0, "float32")}}, ["not-repeatable"]),
        ({"mutated": [], "globals": [], "again": {"loss": tensor(float("nan"), "float32")}}, []),
    ],
)
def test_changed_inputs_and_state_are_named(effects, symptoms):
    case = Case({"": ONE}, {"": {"loss": tensor(float("nan"), "float32")}}, contract=CONTRACT, effects={"": effects})
    violations = LAWS["nothing_else_is_touched"].check(case)
    assert [item.symptom for item in violations] == symptoms
    assert all(name in violations[0].detail for name in effects["mutated"] + effects["globals"])


def test_an_infinity_of_the_oracle_is_accepted():
    law = LAWS["finite_in_finite_out"]
    for demanded, count in ((float("inf"), 0), (1e39, 0), (1e30, 1), (None, 1)):
        oracle = None if demanded is None else {"": {"loss": demanded}}
        case = Case({"": ONE}, {"": {"loss": tensor(float("inf"), "float32")}}, oracle, CONTRACT)
        assert len(law.check(case)) == count
    infinite = with_scores([float("inf"), 2.0], [3.0, 4.0])
    with pytest.raises(DoesNotApply, match="not finite"):
        law.check(Case({"": infinite}, {"": {"loss": 1.0}}, contract=CONTRACT))


def test_a_non_finite_result_decides_nothing_about_a_knob():
    honest = {name: scoring()(given) for name, given in {"baseline": ONE, "turned": {**ONE, "scale": 2.0}}.items()}
    broken = {name: {**seen, "loss": float("nan")} for name, seen in honest.items()}
    case = Case({"baseline": ONE, "turned": {**ONE, "scale": 2.0}}, broken, honest, CONTRACT)
    with pytest.raises(DoesNotApply, match="not finite"):
        LAWS["every_knob_counts"].check(case)


@pytest.mark.parametrize(("ignored", "wrong"), [(1.0, "turned"), (2.0, "baseline")])
def test_an_ignored_knob_is_shown_on_the_wrong_variant(ignored, wrong):
    inputs = {"baseline": ONE, "turned": {**ONE, "scale": 2.0}}
    honest = {name: scoring()(given) for name, given in inputs.items()}
    stuck = {name: scoring()({**given, "scale": ignored}) for name, given in inputs.items()}
    (violation,) = LAWS["every_knob_counts"].check(Case(inputs, stuck, honest, CONTRACT))
    assert violation.key.startswith(f"{wrong}.")
    assert violation.observed != violation.demanded


def test_nan_on_a_masked_token_is_a_violation():
    seen = {"advantages": tensor([[1.0, float("nan")], [1.0, 1.0]], "float32")}
    (violation,) = LAWS["finite_in_finite_out"].check(Case({"": ONE}, {"": seen}, contract=CONTRACT))
    assert violation.symptom == "masked-nan"
    assert violation.demanded.nested() == [[1.0, 0.0], [1.0, 1.0]]
    inf = {"advantages": tensor([[1.0, float("inf")], [1.0, 1.0]], "float32")}
    assert LAWS["finite_in_finite_out"].check(Case({"": ONE}, {"": inf}, contract=CONTRACT)) == []


def test_a_law_about_the_definition_needs_an_oracle():
    for name in ("the_oracle_agrees", "metrics_tell_the_truth", "gradients_stay_where_they_belong"):
        with pytest.raises(DoesNotApply, match="no oracle"):
            LAWS[name].check(Case({"": ONE}, {"": scoring()(ONE)}, None, CONTRACT))
