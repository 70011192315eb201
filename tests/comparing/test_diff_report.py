"""Sentences that describe a difference with numbers."""

from types import SimpleNamespace

import pytest

from sentinel.comparing.observations import AFTER, BEFORE
from sentinel.comparing.report import (
    describe_difference,
    split_by_law,
    summarise,
    write_difference,
    write_scenario,
)
from sentinel.comparing.results import BoundaryDiff, Broken, Difference
from sentinel.recipes.catalog import bundled_catalog
from sentinel.values.literals import tensor

TWO = tensor([1.0, 2.0], "float32")


@pytest.mark.parametrize(
    ("symptom", "before", "after", "said"),
    [
        (
            "dtype",
            tensor([1.0], "bfloat16"),
            tensor([1.0], "float32"),
            "has the same numbers with dtype float32; it was bfloat16",
        ),
        ("answer", None, TWO, "is [1.0, 2.0]; it was null"),
        ("masked", TWO, tensor([1.0, 0.0], "float32"), "is now 0 in the elements that changed, only where"),
        ("value", TWO, tensor([2.0, 4.0], "float32"), "is 2 times the previous value"),
        ("shape", TWO, tensor([1.0], "float32"), ": shape [2] before, [1] after"),
    ],
)
def test_a_difference_is_described_with_both_values(symptom, before, after, said):
    details = {"loss": "shape [2] before, [1] after" if symptom == "shape" else "element [0]"}
    difference = Difference(symptom, {}, {"before": {"loss": before}, "after": {"loss": after}}, details)
    assert describe_difference(difference).startswith(f"loss{'' if said[0] == ':' else ' '}{said}")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("returned has", "`agg_loss` returns 5 values; it returned 4"),
        ("tiny.losses.f(0a1b2c3d): returned has", "`f` returns 5 values; it returned 4"),
        ("returned.1 has", "returned.1 has 5 values; it had 4"),
        ("tiny.losses.f(0a1b2c3d): returned.0", "`f` returned.0 is 5; it was 4"),
        ("save 2: given.step", "the argument step of a stand-in is 5; it was 4"),
    ],
)
def test_a_part_outside_the_contract_is_named_by_its_function(key, said):
    answers = {"before": {key: 4}, "after": {key: 5}}
    assert describe_difference(Difference("beside", {}, answers, {key: ""}), "agg_loss") == said


def test_parts_of_several_calls_with_one_name_share_a_line():
    details = {"given.step": "", "2: given.step": ""}
    answers = {side: dict.fromkeys(details, value) for side, value in (("before", "a"), ("after", "b"))}
    lines = list(write_scenario(Difference("beside", {}, answers, details), (), "f"))
    assert [line for line in lines if "given.step" in line] == ['given.step: "a" before, "b" after']


def test_a_law_is_either_newly_broken_or_broken_by_both_revisions():
    """A law that the base breaks too is not called broken by the change. One new symptom makes it new."""
    new = Broken("order", "order does not matter", "value", "", {})
    both = Broken("oracle", "as defined", "value", "", {})
    further = [Broken(each.law, each.statement, "masked", "", {}, already=True) for each in (new, both)]
    newly, older = split_by_law([new, *further])
    assert ([each.law for each in newly], [each.law for each in older]) == (["order"], ["oracle"])
    said = summarise(BoundaryDiff("f", "call", "differs", broken={"after": (new, *further)}))
    assert said == 'breaks order ("order does not matter"); breaks oracle more than before ("as defined")'


def _shown(**parts):
    """Return the report of a boundary as lines."""
    comparison = SimpleNamespace(cause_of=lambda name: "", catalog=bundled_catalog())
    return list(write_difference(comparison, BoundaryDiff("v.f", "loss_aggregation", "differs", **parts)))


def test_a_violation_is_written_with_its_own_scenario():
    answers = {BEFORE: {"loss": 1.0}, AFTER: {"loss": 2.0}}
    first, second = ({"loss_agg_mode": mode} for mode in ("token-mean", "seq-mean-token-sum"))
    broken = [Broken(f"law_{place}", "s", "value", f"loss: {place}", {"": each}) for place, each in
              enumerate((first, second, {"loss_agg_mode": "x"}))]  # fmt: skip
    lines = _shown(differences=(Difference("value", first, answers, {"loss": ""}),), broken={AFTER: tuple(broken)})
    text = "\n".join(line.strip() for line in lines)
    assert "breaks now: law_0: loss: 0\nbreaks now, in another scenario: law_1: loss: 1\n" in text
    assert text.index("law_1: loss") < text.index('loss_agg_mode = "seq-mean-token-sum"')
    assert "loss: 2" not in text
    assert "in further scenarios: law_2" in text


def test_a_scenario_is_left_out_only_directly_after_itself():
    answers = {BEFORE: {"loss": 1.0}, AFTER: {"loss": 2.0}}
    first, second = ({"loss_agg_mode": mode} for mode in ("token-mean", "seq-mean-token-sum"))
    each = [Difference("value", inputs, answers, {"loss": ""}) for inputs in (first, first, second, first)]
    lines = _shown(differences=tuple(each))
    assert [line.split()[-1] for line in lines if "loss_agg_mode" in line] == [
        '"token-mean"', '"seq-mean-token-sum"', '"token-mean"',
    ]  # fmt: skip


def test_the_option_that_decides_is_named():
    answers = {BEFORE: {"loss": 1.0}, AFTER: {"loss": 2.0}}
    inputs = {"loss_agg_mode": "seq-mean-token-sum"}
    difference = Difference("value", inputs, answers, {"loss": ""}, decides=frozenset(inputs))
    told = summarise(BoundaryDiff("v.f", "loss_aggregation", "differs", differences=(difference,)))
    assert told == "loss is 2 times the previous value, if loss_agg_mode = 'seq-mean-token-sum'"


def test_the_values_with_which_nothing_differs_are_named():
    answers = {BEFORE: {"advantages": 1.0}, AFTER: {"advantages": 2.0}}
    inputs = {"gamma": 0.9, "lam": 1.0}
    unless = {"gamma": (0.0,), "lam": (0.0, 0.5)}
    difference = Difference("value", inputs, answers, {"advantages": ""}, unless=unless)
    told = summarise(BoundaryDiff("v.f", "group_advantage", "differs", differences=(difference,)))
    assert told == "advantages is 2 times the previous value, unless gamma = 0.0 or lam = 0.0 or 0.5"
