"""A search finds, shrinks and confirms violations; rounding errors, intended differences and exceptions are not
violations.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_target import BETWEEN, CUT, TOYS, OpenToys

from sentinel.deciding import law_session
from sentinel.deciding.law_session import SETTINGS, AlteredSession, LawSession, LineSession, Plan, Undecidable
from sentinel.laws.law import Law
from sentinel.search.boundary_search import BoundarySearch, Example, LawOutcome, draw_around, glimpses
from sentinel.search.decisions import of_outcome
from sentinel.search.guards import Constants
from sentinel.search.scenarios import Around
from sentinel.search.survey import constants_of, parser_process
from sentinel.values.literals import tensor
from sentinel.worker.answers import Failed


def searched(open_toys: OpenToys, name: str, examples: int = 60, seed: int = 0) -> tuple[BoundarySearch, LawOutcome]:
    open_target, found = open_toys(name)
    search = BoundarySearch(open_target.law_session, found[name], seed)
    search.run(examples)
    (outcome,) = search.outcomes.values()
    return search, outcome


def test_scenarios_use_the_given_choices(open_toys):
    _, found = open_toys("right")
    around = Around(choices={"scale": 2.0, "response_mask": "full"})
    drawn = [draw_around(found["right"], 0, f"{place}", around) for place in range(5)]
    assert [inputs["scale"] for inputs in drawn] == [2.0] * 5
    assert len({inputs["response_mask"].shape for inputs in drawn}) > 1


def test_a_right_function_gives_no_finding(open_toys):
    search, outcome = searched(open_toys, "right")
    assert (search.tried, outcome.judged, outcome.findings) == (60, 60, [])
    assert outcome.sample is not None


@pytest.mark.slow
def test_a_violation_is_found_shrunk_and_confirmed(open_toys):
    _, outcome = searched(open_toys, "unmasked")
    (finding,) = outcome.findings
    (inputs,) = finding.trial.variants.values()
    assert inputs["values"].array().size <= 2
    assert inputs["values"].dtype == "float32"
    assert (inputs["response_mask"].array() == 0).sum() == 1
    assert finding.violations[0].observed.nested() == inputs["values"].array().sum(-1).tolist()
    assert finding.trial.answer.provenance.boundary == "pkg.toys.unmasked"


def test_a_killed_oracle_session_is_replaced(open_toys):
    open_target, found = open_toys("right")
    BoundarySearch(open_target.law_session, found["right"], 0).run(3)
    [consulting] = open_target.law_session._references._idle
    consulting._leader.kill()
    search = BoundarySearch(open_target.law_session, found["right"], 1)
    search.run(3)
    assert [outcome.judged for outcome in search.outcomes.values()] == [3]
    assert consulting.dead
    assert consulting not in open_target.law_session._references._idle


def test_a_known_scenario_is_tried_first_and_not_shrunk(open_toys):
    open_target, found = open_toys("unmasked")
    subject = found["unmasked"]
    values, mask = tensor([[1.0, 2.0, 3.0]], "float32"), tensor([[1.0, 1.0, 0.0]], "float32")
    known = {"values": values, "response_mask": mask, "scale": 1.0, "shifted": False}
    search = BoundarySearch(open_target.law_session, subject, 0)
    search.begin([Example({"": known})])
    (outcome,) = search.outcomes.values()
    (finding,) = outcome.findings
    assert dict(finding.trial.variants[""]) == known
    search.run(20)
    assert outcome.findings == [finding]


def known_scenario(values: list[float], mask: list[float]) -> dict[str, object]:
    counted = {"values": tensor([values], "float32"), "response_mask": tensor([mask], "float32")}
    return {**counted, "scale": 1.0, "shifted": False}


def test_a_known_scenario_may_have_an_option_that_this_version_lacks(open_toys):
    open_target, found = open_toys("plain_wrong")
    subject = found["plain_wrong"]
    search = BoundarySearch(open_target.law_session, subject, 0)
    assert search.without_rejected(subject) is None
    search.begin([Example({"": {**known_scenario([1.0, 2.0], [1.0, 0.0]), "offset": 1.0}})])
    (outcome,) = search.outcomes.values()
    assert not outcome.findings
    narrower = search.without_rejected(subject)
    assert [item.name for item in subject.contract.inputs if item not in narrower.contract.inputs] == ["offset"]
    assert search.without_rejected(narrower) is None
    search.begin([Example({"": {**known_scenario([1.0, 2.0], [1.0, 0.0]), "offset": None}})])
    assert outcome.findings


@pytest.mark.slow
def test_a_missing_twin_affects_only_its_law(open_toys, toys):
    open_target, found = open_toys("unmasked")
    subject = found["unmasked"]
    binding = replace(subject.binding, twins=("pkg.toys.elsewhere",))
    search = BoundarySearch(
        open_target.law_session, replace(subject, binding=binding, laws=(*subject.laws, toys.laws["twins_agree"])), 0
    )
    search.run(20)
    oracle, twins = search.outcomes.values()
    assert oracle.findings
    assert (twins.judged, set(twins.kinds.values())) == (0, {"not-in-this-version"})


def test_known_scenarios_are_confirmed_in_one_fresh_process(open_toys, monkeypatch):
    open_target, found = open_toys("torn")
    fresh: list[LawSession] = []
    make = LawSession.fresh
    monkeypatch.setattr(LawSession, "fresh", lambda law_session: fresh.append(make(law_session)) or fresh[-1])
    search = BoundarySearch(open_target.law_session, found["torn"], 0)
    large = Example({"": known_scenario([1.0, 100.0], [1.0, 0.0])}, name="LARGE")
    small = Example({"": known_scenario([1.0, 2.0], [1.0, 0.0])}, name="SMALL")
    search.begin([small, large, small])
    (outcome,) = search.outcomes.values()
    assert [(item.symptom, item.examples) for item in outcome.findings] == [
        ("value", ("SMALL",)),
        ("non-finite", ("LARGE",)),
    ]
    assert len(fresh) == 1


def test_a_finding_names_each_recipe_whose_scenario_shows_it(open_toys):
    open_target, found = open_toys("torn")
    (law,) = found["torn"].laws
    leak, hold = known_scenario([1.0, 2.0], [1.0, 0.0]), known_scenario([1.0, 2.0], [1.0, 1.0])
    search = BoundarySearch(open_target.law_session, found["torn"], 0)
    search.begin(
        [
            Example({"": leak}, name="FIRST"),
            Example({"": dict(leak)}, (law.name,), "SECOND"),
            Example({"": hold}, (law.name,), "HOLDS"),
            Example({"": dict(leak)}, ("another_law",), "OF-ANOTHER-LAW"),
        ]
    )
    (outcome,) = search.outcomes.values()
    assert [item.examples for item in outcome.findings] == [("FIRST", "SECOND")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("further", "lesser", "expected"), [(False, (), 1), (True, (), 2), (False, ("value", "non-finite"), 2)]
)
def test_further_symptoms_of_a_law_need_not_be_shrunk(further, lesser, expected, open_toys, monkeypatch):
    shrunk: list[str] = []
    shrink = BoundarySearch._shrink

    def counted(search: BoundarySearch, law: Law, symptom: str, *more: int) -> None:
        shrunk.append(symptom)
        shrink(search, law, symptom, *more)

    monkeypatch.setattr(BoundarySearch, "_shrink", counted)
    open_target, found = open_toys("torn")
    search = BoundarySearch(open_target.law_session, found["torn"], 0, shrink_further=further, lesser=lesser)
    search.run(200)
    (outcome,) = search.outcomes.values()
    assert {finding.symptom for finding in outcome.findings} == {"value", "non-finite"}
    assert len(shrunk) == expected


@pytest.mark.parametrize(
    ("name", "counted"), [("rough", "rounding"), ("remembers", "unconfirmed"), ("meant", "dialects")]
)
def test_rounding_unconfirmed_and_intended_violations_are_not_findings(open_toys, name, counted):
    _, outcome = searched(open_toys, name, 40)
    assert outcome.findings == []
    assert getattr(outcome, counted) not in (0, {})


@pytest.mark.parametrize(("name", "kind"), [("refuses", "raised"), ("lacks", "not-in-this-version")])
def test_a_law_is_unavailable_when_the_version_lacks_the_option(open_toys, name, kind):
    open_target, found = open_toys(name)
    search = BoundarySearch(open_target.law_session, found[name], 0)
    search.run(5)
    ((law, outcome),) = search.outcomes.items()
    verdict = of_outcome(open_target, found[name], law, outcome, search.tried, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", kind)


def test_a_law_without_its_input_judges_nothing(open_toys):
    open_target, found = open_toys("right")
    law, outcome = found["right"].laws[0], LawOutcome()
    outcome.refused["no parameter for 'weights'"] = 1
    outcome.kinds["no parameter for 'weights'"] = "drift"
    outcome.not_judged["nothing to compare"] = 11
    assert of_outcome(open_target, found["right"], law, outcome, 12, 0).verdict.name == "inconclusive"
    outcome.unknown = 1
    verdict = of_outcome(open_target, found["right"], law, outcome, 12, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", "law")
    assert verdict.reason.endswith("nothing to compare")
    outcome.refused["another version"] = 1
    outcome.kinds["another version"] = "not-in-this-version"
    verdict = of_outcome(open_target, found["right"], law, outcome, 13, 0).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", "not-in-this-version")
    assert verdict.reason.endswith("another version")


def test_the_oracle_uses_declared_dialects(open_toys):
    _, outcome = searched(open_toys, "shifted")
    assert (outcome.judged, outcome.findings) == (60, [])


@pytest.mark.parametrize("parts", [(10, 20)])
def test_a_search_in_parts_equals_one_search(parts, open_toys):
    open_target, found = open_toys("right")
    seen: list[list[object]] = []
    for lengths in ((sum(parts),), parts):
        calls: list[object] = []
        law_session = open_target.law_session.fresh()
        asked = law_session.try_

        def record(subject: object, plans: Sequence[Plan], asked=asked, calls=calls, **more: object) -> object:  # type: ignore[no-untyped-def]
            calls.extend(variants for _, variants in plans)
            return asked(subject, plans, **more)

        law_session.try_ = record  # type: ignore[method-assign]
        search = BoundarySearch(law_session, found["right"], 3)
        for length in lengths:
            search.run(length)
        law_session.close()
        assert search.tried == sum(parts)
        seen.append(calls)
    assert seen[0] == seen[1]


def test_a_short_search_tries_each_choice_once(open_toys):
    open_target, found = open_toys("unheard")
    for glimpse, offsets in ((False, []), (True, [7.0])):
        search = BoundarySearch(open_target.law_session, found["unheard"], 0, glimpse=glimpse)
        search.run(6)
        (outcome,) = search.outcomes.values()
        assert [next(iter(f.trial.variants.values()))["offset"] for f in outcome.findings] == offsets


def test_glimpses_are_tried_only_for_single_call_laws(open_toys):
    _, found = open_toys("unheard")
    subject = found["unheard"]
    (law,) = subject.laws
    plans = glimpses(subject, 0, [law, replace(law, vary=lambda contract, inputs, choose: {})])
    assert [item for item, _ in plans] == [law] * len(plans)
    offset = subject.contract.input("offset")
    assert {variants[""]["offset"] for _, variants in plans} == set(offset.choices)
    assert plans == glimpses(subject, 0, [law]) != glimpses(subject, 1, [law])


def test_an_input_that_a_revision_lacks_is_not_drawn(open_toys):
    search, outcome = searched(open_toys, "plain")
    assert search.tried == 60
    assert outcome.findings == []
    assert 0 < outcome.refused.total() <= 2
    assert outcome.judged == 60 - outcome.refused.total()
    offset = search.subject.contract.input("offset")
    assert (offset.choices, offset.knob) == ((), False)


@pytest.mark.slow
def test_a_boundary_that_hangs_costs_its_timeout_once(open_toys):
    """No session calls the boundary again; other boundaries are still searched."""
    open_target, found = open_toys("hangs", "right", timeout=2.0)
    with pytest.raises(Undecidable, match="the boundary hangs: no answer within 2 s"):
        BoundarySearch(open_target.law_session, found["hangs"], 0).run(60)
    for session in (open_target.law_session, open_target.law_session.fresh(), LineSession(open_target.law_session)):
        with pytest.raises(
            Undecidable, match="the boundary hung earlier in this run and is not called again: no answer within 2 s"
        ):
            BoundarySearch(session, found["hangs"], 1).run(60)
    search = BoundarySearch(open_target.law_session, found["right"], 0)
    search.run(10)
    assert [outcome.judged for outcome in search.outcomes.values()] == [10]


WAITING = f"""{TOYS}
def hangs(values, response_mask, scale, patient=False):
    while patient:
        signal.pause()
    return right(values, response_mask, scale)
"""


def test_a_setting_that_makes_a_boundary_hang_costs_its_timeout_once(open_toys):
    """The boundary is still called without settings."""
    open_target, found = open_toys("hangs", code=WAITING, timeout=1.0)
    session, subject = open_target.law_session, found["hangs"]
    drawn = draw_around(subject, 0, "", Around())
    asked = {"one": {**drawn, SETTINGS: {"patient": True}}, "other": {**drawn, SETTINGS: {"patient": 1}}}
    for name, inputs in asked.items():
        refused = session.answers(subject, {name: inputs}, {"lines": None}).answers[name].refused
        assert refused == Failed("timeout", "the boundary hangs: no answer within 1 s")
    search = BoundarySearch(session, subject, 0)
    search.run(10)
    assert [outcome.judged for outcome in search.outcomes.values()] == [10]


def test_a_setting_that_makes_a_fast_boundary_hang_does_not_cost_the_whole_timeout(open_toys, monkeypatch):
    monkeypatch.setattr(law_session, "_LIMIT", 0.2)
    open_target, found = open_toys("hangs", code=WAITING, timeout=600.0)
    session, subject = open_target.law_session, found["hangs"]
    drawn = draw_around(subject, 0, "", Around())
    assert session.answers(subject, {"": drawn}).answers[""].observation
    patient = {"": {**drawn, SETTINGS: {"patient": True}}}
    refused = session.answers(subject, patient, {"lines": None}).answers[""].refused
    assert refused.reason.startswith("the boundary hangs: no answer within")
    altered = AlteredSession(session, {"conditions": [], "values": []})
    assert altered._hangs.limit(subject.boundary) < 600


@pytest.mark.slow
def test_ranks_that_deadlock_are_reported_and_cost_no_timeout(open_toys):
    """If ranks deadlock in some scenarios, the law does not count as holding."""
    open_target, found = open_toys("whitens")
    search = BoundarySearch(open_target.law_session, found["whitens"], 0)
    search.run(60)
    [(law, outcome)] = search.outcomes.items()
    assert outcome.judged > 0
    told = (
        "a training run hangs here: the ranks do not call the same collectives: rank 0 called all_reduce (pkg/toys.py:"
    )
    assert search.deadlocks.startswith(told)
    assert search.deadlocks.endswith("rank 1 returned")
    verdict = of_outcome(open_target, found["whitens"], law, outcome, search.tried, 0).verdict
    assert (verdict.name, verdict.kind) == ("inconclusive", "deadlock")
    assert search.deadlocks in verdict.reason


@pytest.mark.parametrize("code", [BETWEEN, CUT], ids=["between", "cut"])
def test_scenarios_are_drawn_around_the_constants_of_the_code(open_toys, code):
    open_target, found = open_toys("right", code=code)
    session, subject = open_target.law_session, found["right"]
    with parser_process() as parser:
        constants = constants_of(parser, session, subject, open_target.checkout, open_target.sources)
    assert constants.numbers + constants.lengths in ((16.5, 19.0), (20,))
    broken = {}
    for known in (Constants(), constants):
        search = BoundarySearch(session, subject, 0, shrinking=0, glimpse=True, constants=known)
        search.run(6)
        (outcome,) = search.outcomes.values()
        broken[bool(known.numbers or known.lengths)] = bool(outcome.findings)
    assert broken == {False: False, True: True}
