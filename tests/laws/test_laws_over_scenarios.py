"""An honest function breaks no law in any scenario. Each law is broken by a function with the matching fault."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from law_kit import CONTRACT, HONEST, Choices, Dice, ask, batch, scenario, scoring

from sentinel.contracts.contract import BASELINE, DoesNotApply
from sentinel.laws.law import Law
from sentinel.recipes.catalog import bundled_catalog

LAWS = bundled_catalog().laws

#: Laws that compare two calls, or one call with the oracle.
ASKED = sorted(set(LAWS) - {"fields_survive_surgery"})


def law(name: str) -> Law:
    return LAWS[name]


@pytest.mark.parametrize("name", ASKED)
@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_right_function_breaks_no_law(name, generator):
    choose = Dice(generator)
    try:
        violations = ask(law(name), scoring(), scenario(choose), choose)
    except DoesNotApply:
        return
    assert violations == []


#: law -> deviations that break it, with their symptoms.
BROKEN: list[tuple[str, Choices, set[str]]] = [
    ("masked_values_have_no_influence", Choices(masked="counted"), {"value", "non-finite"}),
    ("masked_values_have_no_influence", Choices(masked="multiplied"), {"value", "non-finite"}),
    ("masked_values_have_no_influence", Choices(gradient="everywhere"), {"value"}),
    ("masked_values_have_no_influence", Choices(share_over="all"), {"value"}),
    ("a_rejected_row_is_an_absent_row", Choices(rejected="counted"), {"value"}),
    ("groups_are_isolated", Choices(baseline="batch"), {"value"}),
    ("order_does_not_matter", Choices(position=1.0), {"value"}),
    ("padding_is_invisible", Choices(columns=True), {"value"}),
    ("padding_is_invisible", Choices(share_over="all"), {"value"}),
    ("parts_add_up", Choices(own_count=True), {"value"}),
    ("a_sequence_decision_is_one_decision", Choices(decided="by token"), {"value"}),
    ("the_oracle_agrees", Choices(baseline="batch"), {"value"}),
    ("the_oracle_agrees", Choices(lone=float("nan")), {"non-finite"}),
    ("representation_is_invisible", Choices(integer_mask="an index"), {"value"}),
    ("every_knob_counts", Choices(scale="ignored", own_count=True), {"no effect of scale"}),
    ("metrics_tell_the_truth", Choices(share_over="all"), {"value"}),
    ("finite_in_finite_out", Choices(lone=float("inf")), {"non-finite"}),
    ("normalisation_laws", Choices(shrink=0.5), {"value"}),
    ("gradients_stay_where_they_belong", Choices(gradient="everywhere"), {"value"}),
    ("gradients_stay_where_they_belong", Choices(gradient="nowhere"), {"value"}),
    ("twins_agree", Choices(precision="float16"), {"precision", "value"}),
]


def found(name: str, function: Callable[..., object], twin: Callable[..., object] | None = None) -> set[str]:
    """Return the symptoms in a hundred scenarios."""
    symptoms: set[str] = set()
    for seed in range(100):
        choose = Dice(random.Random(seed))
        try:
            violations = ask(law(name), function, scenario(choose), choose, twin)  # type: ignore[arg-type]
        except DoesNotApply:
            continue
        symptoms |= {item.symptom for item in violations}
        for item in violations:
            assert item.key.split(".")[-1] in CONTRACT.keys
            assert item.detail
    return symptoms


@pytest.mark.parametrize(("name", "choices", "symptoms"), BROKEN)
def test_a_law_detects_its_broken_twin(name, choices, symptoms):
    seen = found(name, scoring(choices))
    assert seen
    assert seen <= symptoms


def test_each_law_has_a_broken_twin():
    elsewhere = {"fields_survive_surgery", "nothing_else_is_touched"}  # in the other files
    assert {name for name, _, _ in BROKEN} | elsewhere == set(LAWS)


def test_a_twin_with_another_formula_is_detected():
    assert found("twins_agree", scoring(), scoring(Choices(rejected="counted"))) == {"value"}


def test_a_different_second_result_is_detected():
    calls = iter(range(10**6))

    def forgetful(inputs: object) -> object:
        return scoring(replace(HONEST, position=float(next(calls) % 2)))(inputs)  # type: ignore[arg-type]

    assert found("nothing_else_is_touched", forgetful) == {"not-repeatable"}


FULL = batch([[1.0, 2.0], [3.0, 4.0]], [[1, 1], [1, 1]], "pq")
GAP = batch([[1.0, 2.0], [3.0, 4.0], [0.5, 0.5]], [[1, 0], [0, 0], [1, 1]], "ppq")


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("masked_values_have_no_influence", FULL, "masked token"),
        ("a_rejected_row_is_an_absent_row", FULL, "rejected row"),
        ("groups_are_isolated", batch([[1.0], [2.0]], [[1], [1]], "pp"), "one group"),
        ("groups_are_isolated", batch([[0.0], [0.0]], [[1], [1]], "pq"), "are 0"),
        ("order_does_not_matter", batch([[1.0]], [[1]], "p"), "one row"),
        ("parts_add_up", batch([[1.0], [2.0]], [[1], [1]], "pp"), "cannot be cut"),
        ("every_knob_counts", batch([[1.0]], [[1]], "p", "bfloat16"), "16 bits"),
        ("every_knob_counts", batch([[0.0]], [[0]], "p"), "by definition, the option has no effect in this scenario"),
    ],
)
def test_laws_do_not_apply_without_their_premise(name, inputs, said):
    with pytest.raises(DoesNotApply) as raised:
        ask(law(name), scoring(), inputs, Dice(random.Random(0)))
    assert said in str(raised.value)


@pytest.mark.parametrize("name", [name for name in ASKED if LAWS[name].vary is not None])
@given(st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_first_variant_is_the_scenario_itself(name, generator):
    choose = Dice(generator)
    inputs = scenario(choose)
    before = dict(inputs)
    vary = LAWS[name].vary
    try:
        variants = vary(CONTRACT, inputs, choose)
    except DoesNotApply:
        return
    assert next(iter(variants)) == BASELINE
    assert variants[BASELINE] is inputs
    assert inputs == before
    assert len(variants) > 1
    assert all(variant.isidentifier() for variant in variants)
    assert all(set(given) == set(inputs) for given in variants.values())


def test_padding_is_added_only_on_accepted_sides():
    contract = replace(
        CONTRACT,
        inputs=tuple(
            replace(item, choices=("full", "left")) if item.name == "response_mask" else item
            for item in CONTRACT.inputs
        ),
    )
    vary = law("padding_is_invisible").vary
    for seed in range(20):
        padded = vary(contract, batch([[9.0, 1.0]], [[0, 1]], "p"), Dice(random.Random(seed)))["padded"]
        assert padded["response_mask"].nested()[0][-2:] == [0.0, 1.0]
        assert padded["scores"].nested()[0][-2:] == [9.0, 1.0]
    full = replace(CONTRACT, inputs=tuple(replace(item, choices=("full",)) for item in CONTRACT.inputs))
    with pytest.raises(DoesNotApply, match="no padding on either side"):
        vary(full, FULL, Dice(random.Random(0)))


def test_reordering_keeps_adjacent_groups_adjacent():
    vary = law("order_does_not_matter").vary
    inputs = batch([[float(n)] for n in range(5)], [[1]] * 5, "ppqqr")
    for seed in range(20):
        order = vary(CONTRACT, inputs, Dice(random.Random(seed)))["permuted"]
        labels = "".join(order["group"])
        assert labels.count("pp") == labels.count("qq") == 1
        assert order["scores"].nested() != inputs["scores"].nested()


def test_a_group_that_must_keep_its_size_loses_no_row():
    vary = law("a_rejected_row_is_an_absent_row").vary
    assert list(vary(CONTRACT, GAP, Dice(random.Random(0)))) == [BASELINE, "without", "changed"]
    assert list(vary(CONTRACT, {**GAP, "group_layout": "equal"}, Dice(random.Random(0)))) == [BASELINE, "changed"]
