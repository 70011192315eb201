"""The report of a comparison with a base, made from its rows: order, patch coverage, annotations, SARIF."""

from typing import Any

import pytest

from sentinel.comparing.report import SIZES
from sentinel.run.gate import Gate, announce

FILE = "verl/core.py"


def line(name: str, first: int, ran: bool, guard: str = "", bound: bool = True, side: str = "after") -> list[Any]:
    return [FILE, name, side, first, first, bound, guard, ran]


def row(
    boundary: str, outcome: str, sentence: str = "", lines: tuple[list[Any], ...] = (), **more: Any
) -> dict[str, Any]:
    places = [[FILE, each[1], each[3], each[4]] for each in lines[:1]]
    changed = sorted({(each[0], each[1]) for each in lines})
    return {
        "target": "verl", "base": "git:main (1)", "head": "path:. (2)", "boundary": boundary, "outcome": outcome,
        "sentence": sentence, "places": places, "changed": [list(each) for each in changed], "lines": list(lines),
        "scenario": [], "idle": [], "beyond": [], "undecided": [], "blind": [], "names": [boundary] if boundary else [],
        "cause": "", "here": [each[:5] for each in lines if each[-1]], "agrees": outcome in ("same", "not examined"),
        **more,
    }  # fmt: skip


def written(*rows: dict[str, Any]) -> tuple[Gate, list[str]]:
    gate = Gate()
    for number, each in enumerate(rows):
        gate.add(str(number), each)
    return gate, list(gate.lines())


def test_worse_functions_come_first_with_their_changed_line():
    changed = (line("grpo", 321, True),)
    _, lines = written(
        row("v.better", "better", "mends VERL-X", (line("other", 9, True),)),
        row("v.grpo", "worse", "advantages is 1.41421 times the previous value", changed),
        row("v.caller", "worse", "advantages is 1.41421 times the previous value", changed),
        row("v.shape", "other", "loss is the previous value +1", (line("shape", 5, True),)),
    )
    assert lines == [
        "verl: path:. (2) compared with git:main (1)",
        "worse: v.grpo (changed: verl/core.py:321 grpo): advantages is 1.41421 times the previous value",
        "  and v.caller",
        "warning: other: v.shape (changed: verl/core.py:5 shape): loss is the previous value +1",
        "better: v.better (changed: verl/core.py:9 other): mends VERL-X",
        "3 signal lines changed (3 added, 0 deleted); 3 ran (added lines at the head, deleted lines at the base)",
        SIZES,
    ]


def test_patch_coverage_counts_lines_once_and_names_unreached_ones():
    here = [line("f", 1, False), line("f", 2, False, "mode == 'x'"), line("f", 3, False, "mode == 'x'")]
    unbound = line("compute_log_prob", 7, False, bound=False)
    ran = [line("f", 1, True), *here[1:]]
    idle = "not examined", "its numbers agree, but changed lines were not examined"
    _, lines = written(row("v.f", *idle, (*here, unbound)), row("v.g", *idle, (*ran, unbound)))
    assert lines[-2] == (
        "4 signal lines changed (4 added, 0 deleted); 1 ran (added lines at the head, deleted lines at the base); "
        "2 not reached (core.py:2-3 f, guarded by mode == 'x'); 1 not bound (core.py:7 compute_log_prob)"
    )
    assert lines[1:3] == ["not examined: v.f: its numbers agree, but changed lines were not examined", "  and v.g"]


def test_a_boundary_is_examined_if_another_one_ran_its_changed_lines():
    late = row(
        "v.f",
        "not examined",
        "its numbers agree, but changed lines were not examined",
        (line("f", 1, True), line("f", 2, False)),
    )
    gate, lines = written(late, row("v.g", "same", "", (line("f", 1, False), line("f", 2, True))))
    assert not [text for text in lines if "not examined" in text]
    [one, other] = gate.document()["comparisons"][0]["boundaries"]
    share = "its scenarios examined 1 of 2 changed lines; the others were examined in scenarios of v."
    assert (one["sentence"], other["sentence"]) == (f"{share}g", f"{share}f")


def test_a_caller_that_does_not_run_the_changed_lines_is_not_examined():
    """They were judged at the function itself. It does not matter which of the two is compared first."""
    idle = row(
        "v.caller", "not examined", "its numbers agree, but changed lines were not examined", (line("f", 1, False),)
    )
    after = row("v.late", "same", "", (line("f", 1, True),), here=[])
    gate, lines = written(idle, row("v.f", "same", "", (line("f", 1, True),)), after)
    found = {each["boundary"]: each for each in gate.document()["comparisons"][0]["boundaries"]}
    where = "its scenarios did not examine the changed lines; they were examined in scenarios of v.f"
    assert (found["v.f"]["outcome"], found["v.f"]["sentence"]) == ("same", "")
    for name in ("v.caller", "v.late"):
        assert (found[name]["outcome"], found[name]["sentence"]) == ("not examined", where)
    assert lines[1:3] == [f"not examined: v.caller: {where}", "  and v.late"]
    assert announce(found["v.late"] | {"agrees": True, "cause": ""}) == ""


@pytest.mark.parametrize(("outcome", "level"), [("worse", "error"), ("other", "warning")])
def test_annotations_and_sarif_are_at_the_changed_lines(outcome, level, tmp_path):
    gate, _ = written(row("v.grpo", outcome, "differs", (line("grpo", 321, True),)), row("v.f", "better"))
    [command] = gate.annotations({"verl": tmp_path / "head"}, {"GITHUB_WORKSPACE": str(tmp_path)})
    assert command == f"::{level} file=head/verl/core.py,line=321,endLine=321,title={outcome}%3A grpo::v.grpo: differs"
    [run] = gate.sarif()
    [result] = run["results"]
    assert result["level"] == level
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (FILE, 321)


def test_non_finite_parts_and_unreached_changes_are_listed():
    _, lines = written(row("v.f", "worse", "loss moved", undecided=["clip_fraction", "pg_loss"], blind=["pg_loss"]),
                       row("", "same", beyond=["removed, and not called any more: v.g"]))  # fmt: skip
    where = "are NaN or infinite at both revisions, in every scenario that runs changed lines"
    assert f"undecided: v.f: some values of pg_loss {where}" in lines
    assert "removed, and not called any more: v.g" in lines


def test_the_summary_begins_with_worse_functions():
    gate, _ = written(row("v.f", "better", "mends X"), row("v.grpo", "worse", "<b>", (line("grpo", 321, True),)))
    text = gate.markdown()
    assert text.index("worse") < text.index("better")
    assert "<b>" not in text


def test_an_interrupted_run_names_the_missing_boundaries():
    changed = (line("grpo", 321, True), line("grpo", 325, False, "norm"))
    gate, lines = written(row("v.grpo", "worse", "loss moved", changed, names=["v.grpo", "v.caller"]))
    assert "not compared, because the run ended first: v.caller" in lines
    [compared] = gate.document()["comparisons"]
    assert [(each["boundary"], each["outcome"]) for each in compared["boundaries"]] == [("v.grpo", "worse")]
    assert compared["not_compared"] == ["v.caller"]
    assert (compared["patch"]["changed"], compared["patch"]["ran"]) == (2, 1)
    [idle] = compared["patch"]["not_run"]
    assert (idle["function"], idle["lines"], idle["guard"]) == ("grpo", [325, 325], "norm")


def test_a_result_is_announced_by_its_sentence_or_its_callee():
    assert announce(row("v.grpo", "worse", "loss moved")) == "worse: v.grpo: loss moved"
    assert announce(row("v.caller", "worse", "loss moved", cause="v.grpo")) == "worse: v.caller: it calls v.grpo"
    assert announce(row("v.grpo", "same")) == ""


def test_the_numbers_of_an_item_that_passes_have_their_scenario():
    scenario = ["scenario:", '  loss_agg_mode = "seq-mean"']
    _, lines = written(row("v.grpo", "other", "loss is 2 times the previous value", scenario=scenario))
    place = next(place for place, line in enumerate(lines) if "loss is 2 times" in line)
    assert lines[place + 1 : place + 3] == [f"  {line}" for line in scenario]


def test_a_line_that_did_not_run_is_announced_with_its_guard():
    idle = ["core.py:3 grpo (guarded by norm)"]
    told = row("v.grpo", "not examined", "its numbers agree, but changed lines were not examined", idle=idle)
    assert announce(told).endswith(", but changed lines were not examined: core.py:3 grpo (guarded by norm)")
