from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sentinel.deciding.outcomes import Failure, Measurement, Verdict
from sentinel.errors import SentinelError
from sentinel.recipes import Expected
from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports import store
from sentinel.reports.baseline import circumstances, difference, is_unavailable_here, update, verify_report
from sentinel.reports.evidence import evidence
from sentinel.reports.lines import Recipes
from sentinel.values.literals import tensor
from sentinel.values.tolerance import Tolerance

Build = Callable[..., Any]


def observing(decide: Build, value: Any, **changes: Any) -> dict[str, Any]:
    decision = decide("fixed", **changes)
    measurement: Measurement = replace(decision.measurement, observation={"": {"x": value}})
    return evidence(replace(decision, measurement=measurement, comparisons=()))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("fixed", "reproduced", "newly broken: fixed -> reproduced"),
        ("reproduced", "fixed", "newly fixed: reproduced -> fixed"),
        ("inconclusive", "fixed", "newly fixed: inconclusive (timeout) -> fixed"),
        ("unavailable", "reproduced", "newly broken: unavailable (timeout) -> reproduced"),
        ("fixed", "changed", "drifted: fixed -> changed (timeout)"),
        ("fixed", "inconclusive", "newly inconclusive: fixed -> inconclusive (timeout): took longer than 60 s"),
        ("fixed", "unavailable", "no longer available: fixed -> unavailable (timeout): took longer than 60 s"),
    ],
)
def test_a_change_is_better_worse_or_drifted(decide, before, after, says):
    assert difference(evidence(decide(before)), evidence(decide(after)))[0] == says


def test_a_new_kind_of_reason_is_a_difference_but_new_wording_is_not(decide):
    recorded = evidence(decide("inconclusive"))
    other = Verdict("inconclusive", "signal 11", "crash")
    now = evidence(decide("inconclusive", verdict=other, failure=Failure("crash", "signal 11")))
    assert difference(recorded, now) == ["other reason: inconclusive (timeout) -> inconclusive (crash): signal 11"]
    assert difference(recorded, evidence(decide("inconclusive", verdict=replace(other, kind="timeout")))) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (True, False),
        (1, True),
        (1, 1.0),
        ("a", "b"),
        (None, 0),
        ([1.0], [1.0, 2.0]),
        ({"a": 1.0}, {"b": 1.0}),
        (float("nan"), 1.0),
        (float("inf"), float("-inf")),
        (tensor([1, 2], "int64"), tensor([1, 3], "int64")),
        (tensor([1, 2], "int64"), tensor([1, 2], "int32")),
        (tensor([True], "bool"), tensor([False], "bool")),
        (tensor([[1.0, 2.0]], "float32"), tensor([1.0, 2.0], "float32")),
        (tensor([1.0], "float32"), [1.0]),
    ],
)
def test_a_changed_value_is_one_difference(decide, before, after):
    recorded = observing(decide, before)
    assert difference(recorded, recorded) == []
    assert len(difference(recorded, observing(decide, after))) == 1
    assert len(difference(observing(decide, after), recorded)) == 1


def test_the_recipes_tolerance_takes_precedence(decide, recipe):
    loose = recipe(expected_fixed={"x": Expected(1.0, Tolerance(relative=0.1))})
    exact = recipe(tolerance=Tolerance(exact=True))
    assert difference(observing(decide, 1.0, recipe=loose), observing(decide, 1.05, recipe=loose)) == []
    assert difference(observing(decide, 1.0, recipe=exact), observing(decide, 1.0 + 1e-12, recipe=exact)) != []


def test_another_bug_cannot_be_compared(decide, recipe):
    assert difference(evidence(decide()), evidence(decide(recipe=recipe(bug_id="OTHER"))))[0].startswith(
        "different bugs"
    )


def test_a_different_environment_is_reported_but_not_judged(decide):
    other = evidence(decide(environment=replace(decide().environment, torch="2.9.0", flags={})))
    assert difference(evidence(decide()), other) == []
    assert circumstances(evidence(decide()), other) == [
        "flag TORCHDYNAMO_DISABLE: 1 recorded, none now",
        "torch: 2.13.0 recorded, 2.9.0 now",
    ]


def test_verify_reports_whether_all_numbers_agree(decide):
    recorded = evidence(decide())
    same = verify_report(recorded, evidence(decide()))
    assert same.same
    assert str(same).startswith("the same: every number is identical")
    near = verify_report(observing(decide, 1.0), observing(decide, 1.0 + 1e-6))
    assert near.same
    assert [item.outcome for item in near.agreements] == ["within tolerance"]
    other = verify_report(recorded, evidence(decide("fixed")))
    assert not other.same
    assert str(other).startswith("NOT the same")
    assert [item.outcome for item in other.agreements] == ["different", "different"]
    nothing = verify_report(evidence(decide("inconclusive")), evidence(decide("inconclusive")))
    assert "no numbers to compare" in str(nothing)


PLACE = PurePosixPath("roll/ROLL-AGGLOSS-TOKENMEAN-MASK/git-c09bc8bc9f43.json")
RECIPES = Recipes(bundled_catalog())


def folders(tmp_path: Path, decision: Any) -> tuple[Path, Path, Path]:
    fresh, baseline = tmp_path / "sentinel-reports", tmp_path / "reports"
    store.write(fresh, decision)
    return fresh, baseline, baseline / "roll.jsonl"


def test_a_second_update_changes_nothing(decide, tmp_path):
    fresh, baseline, lines = folders(tmp_path, decide())
    assert update(fresh, baseline, RECIPES).changed == (f"{PLACE}: new: reproduced",)
    (document,) = store.recorded(baseline).values()
    assert document["observation"] == evidence(decide())["observation"]
    assert [file.name for file in baseline.iterdir()] == ["roll.jsonl"]
    before = lines.stat().st_mtime_ns
    assert update(fresh, baseline, RECIPES).changed == ()
    assert lines.stat().st_mtime_ns == before


def test_update_leaves_noise_alone(decide, tmp_path, measurement):
    fresh, baseline, lines = folders(tmp_path, decide())
    update(fresh, baseline, RECIPES)
    before = lines.read_bytes()
    noisy = measurement(26.0 + 2e-6, [[0.5, 0.5], [0.5, 0.5]])
    store.write(fresh, decide(measurement=noisy, environment=replace(decide().environment, torch="2.9")))
    assert update(fresh, baseline, RECIPES).changed == ()
    assert lines.read_bytes() == before


def test_update_stores_changed_values_but_not_prose(decide, recipe, tmp_path):
    fresh, baseline, _ = folders(tmp_path, decide())
    update(fresh, baseline, RECIPES)
    store.write(fresh, decide("fixed"))
    assert "newly fixed: reproduced -> fixed" in update(fresh, baseline, RECIPES).changed[0]
    store.write(fresh, decide("fixed", recipe=recipe(title="a better title")))
    assert update(fresh, baseline, RECIPES).changed == ()


def test_accept_turns_single_files_into_lines(decide, recipe, tmp_path):
    fresh, baseline, lines = folders(tmp_path, decide())
    for name in ("ROLL-AGGLOSS-TOKENMEAN-MASK", "OTHER"):
        store.write(baseline, decide(recipe=recipe(bug_id=name)))
    before = {place: document["observation"] for place, document in store.recorded(baseline).items()}
    update(fresh, baseline, RECIPES)
    assert lines.is_file()
    assert list(baseline.rglob("*.json")) == []
    assert {place: document["observation"] for place, document in store.recorded(baseline).items()} == before


@pytest.mark.parametrize(
    ("kind", "python", "absent"), [("ref", "3.11.7", True), ("python", "3.13.5", True), ("python", "3.11.9", False)]
)
def test_a_revision_that_is_missing_here_is_not_a_difference(decide, kind, python, absent):
    recorded = evidence(decide("fixed", environment=replace(decide().environment, python=python)))
    now = evidence(decide(verdict=Verdict("unavailable", "", kind), failure=Failure(kind, "not here")))
    assert is_unavailable_here(recorded, now) is absent


@pytest.mark.parametrize(("kind", "stays"), [("ref", True), ("python", True), ("not-in-this-version", False)])
def test_update_keeps_verdicts_that_cannot_be_decided_here(kind, stays, decide, tmp_path):
    fresh, baseline, _ = folders(tmp_path, decide())
    update(fresh, baseline, RECIPES)
    store.write(
        fresh, decide("unavailable", verdict=Verdict("unavailable", "away", kind), failure=Failure(kind, "away"))
    )
    done = update(fresh, baseline, RECIPES)
    assert (store.recorded(baseline)[PLACE]["verdict"] == "reproduced") == stays
    assert done.kept == ((f"{PLACE}: reproduced; away",) if stays else ())
    assert len(done.changed) == (not stays)


def test_update_removes_entries_only_with_prune(decide, recipe, tmp_path):
    fresh, baseline, _ = folders(tmp_path, decide())
    for target in ("roll", "verl"):
        store.write(baseline, decide(recipe=recipe(bug_id="GONE", target=target)))
    (baseline / "roll" / "README.md").write_text("mine")
    assert len(update(fresh, baseline, RECIPES).changed) == 1
    assert update(fresh, baseline, RECIPES, prune=True).changed == ("roll/GONE/git-c09bc8bc9f43.json: removed",)
    left = [str(place.parent) for place in store.recorded(baseline)]
    assert left == [str(PLACE.parent), "verl/GONE"], "a target that the run does not cover is not judged"
    assert (baseline / "roll" / "README.md").exists()


def test_update_reads_everything_before_it_writes(decide, tmp_path):
    fresh, baseline, _ = folders(tmp_path, decide())
    (fresh / "verl" / "X").mkdir(parents=True)
    (fresh / "verl" / "X" / "git-main.json").write_text("{")
    with pytest.raises(SentinelError, match="not JSON"):
        update(fresh, baseline, RECIPES)
    assert not baseline.exists()


def test_an_unavailable_verdict_is_recorded_once(decide, tmp_path):
    fresh, baseline, _ = folders(tmp_path, decide("unavailable"))
    update(fresh, baseline, RECIPES)
    assert update(fresh, baseline, RECIPES).changed == ()
