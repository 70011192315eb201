"""Discovery: order, budget, stored examples, grouping, and recipes that run at the same time."""

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml
from toy import TOY

from sentinel.deciding.law_session import Subject
from sentinel.deciding.open_target import OpenTarget
from sentinel.laws.law import Law
from sentinel.recipes import load_recipe
from sentinel.search import discovery
from sentinel.search.boundary_search import Finding
from sentinel.search.decisions import stale_dialects
from sentinel.search.discovery import Discovery, Memory, grouped
from sentinel.search.saving import decisive_document, recipe_document, save
from sentinel.search.scenarios import narrow
from sentinel.targets import Dialect
from sentinel.worker.client import Session


@pytest.fixture(autouse=True)
def _little_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "SHRINKING", 50)


def every(law: Law) -> bool:
    return True


def discover(
    open_target: OpenTarget, found: dict[str, Subject], memory: Memory | None = None, seed: int = 0, **length: Any
) -> Discovery:
    found_so_far = Discovery(open_target, list(found.values()), every, seed, memory)
    found_so_far.run(**length)
    return found_so_far


def names(progress: Discovery) -> list[str]:
    return [finding.subject.boundary.rpartition(".")[2] for finding in progress.findings]


@pytest.mark.slow
def test_every_boundary_is_searched_in_turn(open_toys):
    open_target, found = open_toys("right", "rough", "unmasked")
    progress = discover(open_target, found, examples=60)
    assert progress.tried == 60
    assert [search.tried for search in progress.searches] == [20, 20, 20]
    assert names(progress) == ["unmasked"]


def test_a_budget_of_time_is_a_prefix_of_the_sequence(open_toys, monkeypatch):
    open_target, found = open_toys("right", "unmasked")
    clock = iter(range(10_000))
    monkeypatch.setattr("sentinel.search.discovery.time.monotonic", lambda: float(next(clock)))
    timed = discover(open_target, found, seed=4, seconds=70.0)
    monkeypatch.undo()
    assert 0 < timed.tried < 70
    counted = discover(open_target, found, seed=4, examples=timed.tried)
    assert [search.tried for search in counted.searches] == [search.tried for search in timed.searches]
    assert [finding.trial.variants for finding in counted.findings] == [f.trial.variants for f in timed.findings]


@pytest.mark.slow
def test_a_session_works_after_an_interrupted_call(open_toys, monkeypatch):
    """The answer to the interrupted call arrives late, and must not be used as the answer to the next call."""
    open_target, found = open_toys("unmasked")
    receive, asked = Session.receive, iter(range(100_000))

    def interrupted(session: Session) -> dict[str, Any]:
        if next(asked) == 150:
            raise KeyboardInterrupt
        return receive(session)

    monkeypatch.setattr(Session, "receive", interrupted)
    progress = discover(open_target, found, examples=4000)
    assert progress.stopped
    (finding,) = progress.findings
    [again] = open_target.law_session.try_(finding.subject, [(finding.law, finding.trial.variants)])
    assert [item.observed for item in again.violations] == [item.observed for item in finding.trial.violations]


@pytest.mark.slow
def test_stored_findings_are_tried_first(open_toys, tmp_path):
    open_target, found = open_toys("unmasked")
    memory = Memory(tmp_path / "found")
    (first,) = discover(open_target, found, memory, examples=30).findings
    assert not first.replayed
    (again,) = discover(open_target, found, memory, seed=9, examples=1).findings
    assert again.replayed
    assert again.trial.variants == first.trial.variants


@pytest.mark.slow
def test_a_fixed_finding_is_removed(open_toys, tmp_path):
    memory = Memory(tmp_path / "found")
    open_target, found = open_toys("unmasked")
    discover(open_target, found, memory, examples=30)
    (law,) = found["unmasked"].laws
    assert memory.of("toys", found["unmasked"], law)
    fixed = "import torch\ndef unmasked(values, response_mask, scale):\n" + (
        "    return scale * torch.where(response_mask != 0, values, 0.0).sum(-1)\n"
    )
    open_target, found = open_toys("unmasked", code=fixed)
    assert discover(open_target, found, memory, examples=10).findings == []
    assert memory.of("toys", found["unmasked"], law) == []


#: Changes of the adapter after which the boundary no longer accepts the scenario.
NARROWER: list[dict[str, Any]] = [
    {"accepts": {"response_mask": ("full",)}},
    {"fixed": {"scale": 3.0}},
    {"accepts": {"scale": (3.0,)}},
    {"dtypes": ("bfloat16",)},
    {"dialects": (Dialect("shifted", True, "it counts from 1", "https://example.invalid"),)},
]


@pytest.mark.slow
def test_a_stored_scenario_that_is_no_longer_accepted_is_removed(open_toys, tmp_path):
    open_target, found = open_toys("unmasked")
    discover(open_target, found, Memory(tmp_path / "found"), examples=30)
    subject = found["unmasked"]
    for number, now in enumerate(NARROWER):
        memory = Memory(shutil.copytree(tmp_path / "found", tmp_path / f"{number}"))
        assert memory.of("toys", subject, subject.laws[0])
        binding = replace(subject.binding, **now)
        narrower = replace(subject, binding=binding, contract=narrow(TOY, binding))
        assert discover(open_target, {"unmasked": narrower}, memory, examples=0).findings == [], now
        assert memory.of("toys", subject, subject.laws[0]) == [], now


def test_nothing_was_searched_when_every_call_raises(open_toys):
    open_target, found = open_toys("refuses", "right")
    progress = discover(open_target, found, examples=40)
    assert [search.subject.boundary for search in progress.searches] == ["pkg.toys.right"]
    ((boundary, reason),) = [(item.boundary, item.reason) for item in progress.not_searched]
    assert boundary == "pkg.toys.refuses"
    assert reason.startswith("every call raised: ")
    assert "not on this machine" in reason


def test_a_boundary_without_a_turn_was_not_searched(open_toys):
    open_target, found = open_toys("right", "unmasked")
    progress = discover(open_target, found, examples=5)
    assert [(item.boundary, item.reason) for item in progress.not_searched] == [
        ("pkg.toys.unmasked", "the search ended before this boundary's turn")
    ]


@pytest.mark.slow
def test_a_caller_that_breaks_the_same_law_is_named_with_it(open_toys):
    open_target, found = open_toys("calls_unmasked", "unmasked", "right")
    progress = discover(open_target, found, examples=120)
    assert sorted(names(progress)) == ["calls_unmasked", "unmasked"]
    (one,) = grouped(progress.findings)
    assert one.subject.boundary == "pkg.toys.unmasked"
    assert one.also == ("pkg.toys.calls_unmasked",)


@pytest.mark.slow
def test_a_stale_dialect_is_reported(open_toys, monkeypatch):
    monkeypatch.setattr("sentinel.search.discovery.stale_dialects", partial(stale_dialects, chances=30))
    open_target, found = open_toys("meant", "stale")
    progress = discover(open_target, found, examples=80)
    assert [subject.boundary for subject, _ in progress.stale] == ["pkg.toys.stale"]


@pytest.mark.slow
def test_a_saved_finding_is_a_complete_recipe(open_toys, runners, toys, tmp_path):
    open_target, found = open_toys("unmasked")
    (finding,) = discover(open_target, found, examples=30).findings
    document = decisive_document(finding, open_target, runners[-1], toys)
    place = save(tmp_path / "recipes", document)
    assert place.name == "TOYS-UNMASKED-THE-ORACLE-AGREES.yaml"
    again = save(tmp_path / "recipes", document)
    assert again.name == "TOYS-UNMASKED-THE-ORACLE-AGREES-2.yaml"
    assert yaml.safe_load(again.read_text())["bug_id"] == "TOYS-UNMASKED-THE-ORACLE-AGREES-2"
    recipe = load_recipe(place, toys)
    (loaded,), (drawn,) = recipe.variants.values(), finding.trial.variants.values()
    assert loaded == drawn
    assert recipe.invariant == "the_oracle_agrees"
    assert recipe.upstream == {"status": "unreported"}
    assert {key: item.value for key, item in recipe.expected_unpatched.items()} == {
        "sums": finding.violations[0].observed.nested()
    }


def test_a_scenario_of_a_satisfied_law_gives_a_recipe_without_values(open_toys, toys, tmp_path):
    open_target, found = open_toys("right")
    (search,) = discover(open_target, found, examples=5).searches
    ((law, outcome),) = search.outcomes.items()
    held = Finding(search.subject, law, outcome.sample)
    document = recipe_document(held, "toys", open_target.checkout, "TOYS-HELD")
    recipe = load_recipe(save(tmp_path, document), toys)
    assert (recipe.expected_unpatched, recipe.pins) == ({}, ())
