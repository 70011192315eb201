"""Evidence has the published fields, describes no machine, and round-trips every value."""

import copy
import getpass
import json
import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.deciding.outcomes import Comparison, Decision, Failure, Kind, Verdict
from sentinel.errors import SentinelError
from sentinel.reports.evidence import dumps, evidence, schema, validate
from sentinel.targets.refs import Ref
from sentinel.values.literals import tensor


def test_a_reproduced_bug_has_the_published_fields(decide):
    document = evidence(decide())
    assert document["status"] == "reproduced"
    assert document["observed_bad_behavior"] == {"loss": 26.0, "per_token_gradient": [[0.5, 0.5], [0.5, 0.5]]}
    assert document["expected_safe_behavior"] == {"loss": 1.0, "per_token_gradient": [[0.5, 0.0], [0.5, 0.0]]}
    assert document["attack_effect"] == {
        "silent": True,
        "crashed": False,
        "loss_difference": 25.0,
        "per_token_gradient_difference": [[0.0, 0.5], [0.0, 0.5]],
    }
    assert "observed_fixed_behavior" not in document


def test_observed_values_are_never_the_expected_ones(decide):
    decision = decide()
    recipe = replace(decision.recipe, expected_unpatched={}, expected_fixed={})
    document = evidence(replace(decision, recipe=recipe, comparisons=(), law="masked_values_have_no_influence"))
    assert document["observed_bad_behavior"] == {"loss": 26.0, "per_token_gradient": [[0.5, 0.5], [0.5, 0.5]]}
    assert document["expected_safe_behavior"] == {}
    validate(document)


def test_evidence_is_self_contained(decide):
    document = evidence(decide())
    assert document["checkout"]["commit"] == decide().checkout.commit
    assert [item["path"] for item in document["checkout"]["left_out"]] == ["roll/a.png", "roll/z.png"]
    assert document["boundary"]["blob"] == "2" * 40
    assert document["boundary"]["line"] == 312
    assert document["environment"]["ghosts"] == ["ray", "tensordict"]
    assert document["environment"]["stand_ins"] == [{"name": "mpu", "reason": "one rank"}]
    assert document["scenario"]["defaulted"] == ["theta"]
    assert document["scenario"]["variants"][""]["loss_mask"] == {
        "dtype": "int64",
        "shape": [2, 2],
        "tensor": [[1, 0], [1, 0]],
    }
    assert document["recipe"]["document"]["scenario"]["loss_mat"][1][1] == "-Infinity"


@pytest.mark.parametrize("name", ["reproduced", "fixed", "changed", "inconclusive", "unavailable"])
def test_every_verdict_makes_valid_evidence(decide, name):
    validate(evidence(decide(name)))


def test_missing_values_are_null(decide):
    document = evidence(decide("unavailable", checkout=None, environment=None, adapter=""))
    validate(document)
    assert document["checkout"] is None
    assert document["adapter"] is None
    assert document["observation"] is None
    assert document["boundary"]["file"] is None


def test_the_reason_of_a_failure_is_used_when_the_verdict_has_none(decide):
    document = evidence(decide("inconclusive", verdict=Verdict("inconclusive", "", "timeout")))
    assert document["reason"] == "took longer than 60 s"


def test_the_same_decision_gives_the_same_bytes(decide):
    decision = decide()
    shuffled = replace(
        decision,
        measurement=replace(
            decision.measurement,
            ghosts=tuple(reversed(decision.measurement.ghosts)),
            observation={"": dict(reversed(list(decision.measurement.observation[""].items())))},
        ),
    )
    text = dumps(evidence(decision))
    assert dumps(evidence(shuffled)) == text
    assert text.endswith("}\n")
    assert text.isascii()
    assert dumps(json.loads(text)) == text


def test_evidence_does_not_name_the_machine(decide, tmp_path):
    decision: Decision = decide("inconclusive")
    traceback = (
        f'Traceback\n  File "{decision.checkout.path}/roll/a.py", line 1\n  File "{tmp_path}/x.py"\n'  # type: ignore[union-attr]
        '  File "/home/bob/lib/python3.11/site-packages/torch/nn.py"\n<X object at 0x7f5b1c2d3e4f>'
    )
    failure = Failure("raised", f"raised in {tmp_path}/x.py", traceback)
    decision = replace(decision, failure=failure, verdict=Verdict("inconclusive", failure.reason, "raised"))
    text = dumps(evidence(decision))
    for word in ("alice", "bob", str(tmp_path), "/home", "0x7f5b"):
        assert word not in text
    assert "<checkout>/roll/a.py" in text
    if getpass.getuser() != "root":
        assert getpass.getuser() not in text


def test_a_working_tree_is_identified_by_its_hash(decide):
    ref = Ref("path", "/srv/alice/verl")
    document = evidence(decide(ref=ref, checkout=replace(decide().checkout, ref=ref, dirty=True, commit=None)))
    validate(document)
    assert document["ref"] == "path"
    assert "alice" not in dumps(document)


@given(st.floats(width=64))
def test_floats_round_trip(decide, value):
    item = Comparison("x", value, value, None, True, None)
    text = dumps(evidence(decide(comparisons=(item,))))
    back = json.loads(text)["comparison"][0]["observed"]
    if math.isfinite(value):
        assert back == value
        assert math.copysign(1, back) == math.copysign(1, value)
    else:
        assert back in ("NaN", "Infinity", "-Infinity")
        assert float(back) == value or math.isnan(value)


@given(st.lists(st.floats(width=32), max_size=5))
def test_tensors_round_trip(decide, measurement, values):
    literal = tensor(values, "float32")
    document = evidence(decide("fixed", measurement=measurement(1.0, [[0.0]], observation={"": {"x": literal}})))
    validate(document)
    kept = json.loads(dumps(document))["observation"][""]["x"]
    again = tensor([float(item) for item in kept["tensor"]], kept["dtype"])
    assert again.array().tobytes() == literal.array().tobytes() or any(map(math.isnan, values))


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
NESTED = st.recursive(PLAIN, lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x), max_leaves=8)


@pytest.mark.slow
@given(NESTED)
def test_any_plain_value_is_kept(decide, recipe, value):
    text = dumps(evidence(decide(recipe=recipe(document={"x": value}))))
    assert json.loads(text)["recipe"]["document"]["x"] == value


def test_a_value_that_json_cannot_represent_is_named(decide):
    with pytest.raises(SentinelError, match=r"cannot contain a object \(at .*\)"):
        evidence(decide(comparisons=(Comparison("x", object()),)))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.pop("verdict"), "verdict"),
        (lambda d: d.update(status="fixed"), "status"),
        (lambda d: d.update(schema_version=2), "schema_version"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.update(observation=None), "observation"),
        (lambda d: d["recipe"].update(digest="sha256:abc"), "digest"),
        (lambda d: d["boundary"].update(file="/abs/x.py"), "file"),
        (lambda d: d["comparison"][0].pop("key"), "key"),
        (lambda d: d["expectation"]["tolerance"].update(relative=-1), "relative"),
        (lambda d: d.update(verdict="inconclusive", status="inconclusive", reason=""), ""),
    ],
)
def test_the_schema_rejects_a_broken_document(decide, change, where):
    document = copy.deepcopy(evidence(decide()))
    validate(document)
    change(document)
    with pytest.raises(SentinelError, match=f"not valid evidence: at .*{where}"):
        validate(document)


def test_the_schema_lists_the_kinds_of_reasons():
    listed = schema()["properties"]
    assert set(listed["failure"]["properties"]["kind"]["enum"]) == set(get_args(Kind))
    assert set(listed["kind"]["enum"]) == {"", *get_args(Kind)}
