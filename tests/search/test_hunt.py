"""Hunts: what is wrong is found, shrunk and confirmed; what is rounding, meant or loud is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_ground import OpenGround

from sentinel.deciding.bench import Bench, Plan, Undecidable
from sentinel.laws.law import Law
from sentinel.recipes.catalog import Catalog
from sentinel.search.decisions import of_tally
from sentinel.search.examples import Example
from sentinel.search.hunt import Hunt, Tally, glimpses
from sentinel.values.literals import tensor


def hunted(open_ground: OpenGround, name: str, examples: int = 60, seed: int = 0) -> tuple[Hunt, Tally]:
    ground, found = open_ground(name)
    hunt = Hunt(ground.bench, found[name], seed)
    hunt.run(examples)
    (tally,) = hunt.tallies.values()
    return hunt, tally


def test_a_right_function_gives_no_finding(open_ground: OpenGround) -> None:
    hunt, tally = hunted(open_ground, "right")
    assert (hunt.tried, tally.spoken, tally.findings) == (60, 60, [])
    assert tally.sample is not None


def test_a_wrong_one_is_found_shrunk_and_confirmed(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "unmasked")
    (finding,) = tally.findings
    (inputs,) = finding.trial.variants.values()
    assert inputs["values"].array().size <= 2
    assert inputs["values"].dtype == "float32"
    assert (inputs["response_mask"].array() == 0).sum() == 1
    assert finding.violations[0].observed.nested() == inputs["values"].array().sum(-1).tolist()
    assert finding.trial.answer is not None
    assert finding.trial.answer.provenance.boundary == "pkg.toys.unmasked"


def test_a_reference_that_was_taken_away_is_asked_again(open_ground: OpenGround) -> None:
    ground, found = open_ground("right")
    Hunt(ground.bench, found["right"], 0).run(3)
    [consulting] = ground.bench._references._idle
    consulting._leader.kill()
    hunt = Hunt(ground.bench, found["right"], 1)
    hunt.run(3)
    assert [tally.spoken for tally in hunt.tallies.values()] == [3]
    assert consulting.dead
    assert consulting not in ground.bench._references._idle


def test_a_references_process_that_was_taken_away_is_asked_again(open_ground: OpenGround) -> None:
    ground, found = open_ground("right")
    oracle = ground.bench._references._oracle()
    oracle._leader.kill()
    hunt = Hunt(ground.bench, found["right"], 1)
    hunt.run(3)
    assert [tally.spoken for tally in hunt.tallies.values()] == [3]
    assert oracle.dead is not None


def test_a_known_scenario_is_looked_at_first_and_not_shrunk(open_ground: OpenGround) -> None:
    ground, found = open_ground("unmasked")
    subject = found["unmasked"]
    values, mask = tensor([[1.0, 2.0, 3.0]], "float32"), tensor([[1.0, 1.0, 0.0]], "float32")
    known = {"values": values, "response_mask": mask, "scale": 1.0, "shifted": False}
    hunt = Hunt(ground.bench, subject, 0)
    hunt.begin([Example({"": known})])
    (tally,) = hunt.tallies.values()
    (finding,) = tally.findings
    assert dict(finding.trial.variants[""]) == known
    hunt.run(20)
    assert tally.findings == [finding]


def known_scenario(values: list[float], mask: list[float]) -> dict[str, object]:
    counted = {"values": tensor([values], "float32"), "response_mask": tensor([mask], "float32")}
    return {**counted, "scale": 1.0, "shifted": False}


def test_a_known_scenario_may_have_an_option_that_this_version_has_not(open_ground: OpenGround) -> None:
    ground, found = open_ground("plain_wrong")
    subject = found["plain_wrong"]
    hunt = Hunt(ground.bench, subject, 0)
    assert hunt.narrowed(subject) is None
    hunt.begin([Example({"": {**known_scenario([1.0, 2.0], [1.0, 0.0]), "offset": 1.0}})])
    (tally,) = hunt.tallies.values()
    assert not tally.findings
    narrower = hunt.narrowed(subject)
    assert narrower is not None
    assert [item.name for item in subject.contract.inputs if item not in narrower.contract.inputs] == ["offset"]
    assert hunt.narrowed(narrower) is None
    hunt.begin([Example({"": {**known_scenario([1.0, 2.0], [1.0, 0.0]), "offset": None}})])
    assert tally.findings


def test_a_twin_that_is_not_there_concerns_its_own_law_alone(open_ground: OpenGround, toys: Catalog) -> None:
    ground, found = open_ground("unmasked")
    subject = found["unmasked"]
    binding = replace(subject.binding, twins=("pkg.toys.elsewhere",))
    hunt = Hunt(ground.bench, replace(subject, binding=binding, laws=(*subject.laws, toys.laws["twins_agree"])), 0)
    hunt.run(20)
    oracle, twins = hunt.tallies.values()
    assert oracle.findings
    assert (twins.spoken, set(twins.kinds.values())) == (0, {"not-in-this-version"})


def test_known_scenarios_are_confirmed_in_one_fresh_process(
    open_ground: OpenGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground, found = open_ground("torn")
    fresh: list[Bench] = []
    make = Bench.fresh
    monkeypatch.setattr(Bench, "fresh", lambda bench: fresh.append(make(bench)) or fresh[-1])
    hunt = Hunt(ground.bench, found["torn"], 0)
    large = Example({"": known_scenario([1.0, 100.0], [1.0, 0.0])}, name="LARGE")
    small = Example({"": known_scenario([1.0, 2.0], [1.0, 0.0])}, name="SMALL")
    hunt.begin([small, large, small])
    (tally,) = hunt.tallies.values()
    assert [(item.symptom, item.examples) for item in tally.findings] == [
        ("value", ("SMALL",)),
        ("non-finite", ("LARGE",)),
    ]
    assert len(fresh) == 1


def test_a_finding_names_each_known_scenario_that_is_said_to_show_it_and_does(open_ground: OpenGround) -> None:
    ground, found = open_ground("torn")
    (law,) = found["torn"].laws
    leak, hold = known_scenario([1.0, 2.0], [1.0, 0.0]), known_scenario([1.0, 2.0], [1.0, 1.0])
    hunt = Hunt(ground.bench, found["torn"], 0)
    hunt.begin(
        [
            Example({"": leak}, name="FIRST"),
            Example({"": dict(leak)}, (law.name,), "SECOND"),
            Example({"": hold}, (law.name,), "HOLDS"),
            Example({"": dict(leak)}, ("another_law",), "OF-ANOTHER-LAW"),
        ]
    )
    (tally,) = hunt.tallies.values()
    assert [item.examples for item in tally.findings] == [("FIRST", "SECOND")]


def test_a_scenario_that_ends_the_process_takes_no_others_answer_along(open_ground: OpenGround) -> None:
    ground, found = open_ground("fragile")
    hunt = Hunt(ground.bench, found["fragile"], 0)
    deadly = Example({"": known_scenario([1.0, 2.0, 3.0], [1.0, 1.0, 0.0])}, name="DEADLY")
    hunt.begin([deadly, Example({"": known_scenario([1.0, 2.0], [1.0, 0.0])}, name="WRONG")])
    (tally,) = hunt.tallies.values()
    assert [item.examples for item in tally.findings] == [("WRONG",)]


@pytest.mark.parametrize("further", [False, True])
def test_what_a_law_shows_beside_its_first_symptom_need_not_be_shrunk(
    further: bool, open_ground: OpenGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk: list[str] = []
    shrink = Hunt._shrink

    def counted(hunt: Hunt, law: Law, symptom: str, place: int) -> None:
        shrunk.append(symptom)
        shrink(hunt, law, symptom, place)

    monkeypatch.setattr(Hunt, "_shrink", counted)
    ground, found = open_ground("torn")
    hunt = Hunt(ground.bench, found["torn"], 0, shrink_further=further)
    hunt.run(200)
    (tally,) = hunt.tallies.values()
    assert {finding.symptom for finding in tally.findings} == {"value", "non-finite"}
    assert len(shrunk) == (2 if further else 1)


def test_searches_share_the_sessions_of_references(open_ground: OpenGround) -> None:
    ground, found = open_ground("right")
    for seed in range(2):
        Hunt(ground.bench.fresh(), found["right"], seed).run(3)
    assert len(ground.bench._references._idle) == 1


def test_a_known_scenario_that_shows_nothing_leaves_the_search_as_it_is(open_ground: OpenGround) -> None:
    ground, found = open_ground("unmasked")
    values, mask = tensor([[1.0]], "float32"), tensor([[1.0]], "float32")
    hunt = Hunt(ground.bench, found["unmasked"], 0)
    hunt.begin([Example({"": {"values": values, "response_mask": mask, "scale": 1.0, "shifted": False}})])
    (tally,) = hunt.tallies.values()
    assert tally.findings == []
    hunt.run(60)
    _, alone = hunted(open_ground, "unmasked")
    assert [item.trial.variants for item in tally.findings] == [item.trial.variants for item in alone.findings]


def test_what_vanishes_in_float64_is_rounding(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "rough")
    assert tally.findings == []
    assert tally.rounding > 0


def test_what_a_fresh_process_does_not_show_is_no_finding(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "remembers", 40)
    assert tally.findings == []
    assert tally.unconfirmed > 0


@pytest.mark.parametrize(("name", "kind"), [("refuses", "raised"), ("lacks", "not-in-this-version")])
def test_what_a_version_refuses_or_lacks_is_unavailable_to_a_law(open_ground: OpenGround, name: str, kind: str) -> None:
    ground, found = open_ground(name)
    hunt = Hunt(ground.bench, found[name], 0)
    hunt.run(5)
    ((law, tally),) = hunt.tallies.items()
    verdict = of_tally(ground, found[name], law, tally, hunt.tried, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", kind)


def test_a_law_that_says_nothing_once_an_input_is_left_out_has_nothing_to_look_at(open_ground: OpenGround) -> None:
    ground, found = open_ground("right")
    law, tally = found["right"].laws[0], Tally()
    tally.refused["no parameter for 'weights'"] = 1
    tally.kinds["no parameter for 'weights'"] = "drift"
    tally.silent["nothing to compare"] = 11
    assert of_tally(ground, found["right"], law, tally, 12, 0).verdict.name == "inconclusive"
    tally.unknown = 1
    verdict = of_tally(ground, found["right"], law, tally, 12, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", "law")
    assert verdict.reason.endswith("nothing to compare")
    tally.refused["another version"] = 1
    tally.kinds["another version"] = "not-in-this-version"
    verdict = of_tally(ground, found["right"], law, tally, 13, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", "not-in-this-version")
    assert verdict.reason.endswith("another version")


def test_a_refusal_is_loud_and_no_finding(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "refuses")
    assert tally.findings == []
    assert tally.spoken == 0
    assert list(tally.refused) == ["the boundary raised NotImplementedError: not on this machine"]


def test_the_oracle_knows_a_declared_dialect(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "shifted")
    assert (tally.spoken, tally.findings) == (60, [])


def test_a_law_that_the_framework_means_to_break_is_shown_and_no_finding(open_ground: OpenGround) -> None:
    _, tally = hunted(open_ground, "meant")
    assert tally.findings == []
    assert tally.dialects[0] > 0


def test_a_boundary_that_is_not_there_cannot_be_decided(open_ground: OpenGround) -> None:
    with pytest.raises(Undecidable, match="elsewhere"):
        hunted(open_ground, "elsewhere")


def shown(hunt: Hunt) -> list[object]:
    return [finding.trial.variants for tally in hunt.tallies.values() for finding in tally.findings]


def test_the_same_seed_gives_the_same_finding(open_ground: OpenGround) -> None:
    first, _ = hunted(open_ground, "unmasked", 30, seed=5)
    second, _ = hunted(open_ground, "unmasked", 30, seed=5)
    assert shown(first) == shown(second) != []


@pytest.mark.parametrize("parts", [(10, 20), (1, 29), (25, 5)])
def test_a_hunt_in_parts_is_the_hunt_at_once(parts: tuple[int, ...], open_ground: OpenGround) -> None:
    ground, found = open_ground("right")
    seen: list[list[object]] = []
    for lengths in ((sum(parts),), parts):
        calls: list[object] = []
        bench = ground.bench.fresh()
        asked = bench.try_

        def record(subject: object, plans: Sequence[Plan], asked=asked, calls=calls, **more: object) -> object:  # type: ignore[no-untyped-def]
            calls.append([variants for _, variants in plans])
            return asked(subject, plans, **more)

        bench.try_ = record  # type: ignore[method-assign]
        hunt = Hunt(bench, found["right"], 3)
        for length in lengths:
            hunt.run(length)
        bench.close()
        assert hunt.tried == sum(parts)
        seen.append(calls)
    assert seen[0] == seen[1]


def test_a_short_hunt_has_a_glimpse_of_each_choice(open_ground: OpenGround) -> None:
    ground, found = open_ground("unheard")
    for glimpse, offsets in ((False, []), (True, [7.0])):
        hunt = Hunt(ground.bench, found["unheard"], 0, glimpse=glimpse)
        hunt.run(6)
        (tally,) = hunt.tallies.values()
        assert [next(iter(f.trial.variants.values()))["offset"] for f in tally.findings] == offsets


def test_glimpses_are_for_laws_that_look_at_one_call(open_ground: OpenGround) -> None:
    _, found = open_ground("unheard")
    subject = found["unheard"]
    (law,) = subject.laws
    plans = glimpses(subject, 0, [law, replace(law, vary=lambda contract, inputs, choose: {})])
    assert [item for item, _ in plans] == [law] * len(plans)
    offset = subject.contract.input("offset")
    assert offset is not None
    assert {variants[""]["offset"] for _, variants in plans} == set(offset.choices)
    assert plans == glimpses(subject, 0, [law]) != glimpses(subject, 1, [law])


def test_an_input_that_a_revision_does_not_have_is_left_out(open_ground: OpenGround) -> None:
    hunt, tally = hunted(open_ground, "plain")
    assert hunt.tried == 60
    assert tally.findings == []
    assert 0 < tally.refused.total() <= 2
    assert tally.spoken == 60 - tally.refused.total()
    offset = hunt.subject.contract.input("offset")
    assert offset is not None
    assert (offset.choices, offset.knob) == ((), False)


def test_what_it_does_have_is_drawn(open_ground: OpenGround) -> None:
    hunt, tally = hunted(open_ground, "adding")
    assert (tally.spoken, tally.findings, tally.refused.total()) == (60, [], 0)
    offset = hunt.subject.contract.input("offset")
    assert offset is not None
    assert offset.choices == (None, 1.0)


def test_what_is_wrong_is_found_without_the_input_and_a_shorter_hunt_is_a_prefix(open_ground: OpenGround) -> None:
    ground, found = open_ground("plain_wrong")
    lengths = (20, 60)
    hunts = [Hunt(ground.bench, found["plain_wrong"], 0) for _ in lengths]
    for hunt, length in zip(hunts, lengths):
        hunt.run(length)
    one, other = (next(iter(hunt.tallies.values())) for hunt in hunts)
    (finding,) = one.findings
    assert finding.trial.variants == other.findings[0].trial.variants
    (inputs,) = finding.trial.variants.values()
    assert inputs["offset"] is None
    assert one.refused == other.refused
