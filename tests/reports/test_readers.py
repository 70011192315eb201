import html
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sentinel.deciding.outcomes import Comparison, Failure, Verdict
from sentinel.reports import summary as table
from sentinel.reports.evidence import evidence
from sentinel.reports.explain import distinct, explain, row_cells
from sentinel.reports.markdown import LIMIT, markdown
from sentinel.targets.refs import Ref
from sentinel.values.literals import tensor

Build = Callable[..., Any]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def summary(results: Iterable[tuple[Any, str]], *arguments: Any, **options: Any) -> str:
    """Return the table of decisions, read from their evidence."""
    return table.summary([(evidence(decision), outcome) for decision, outcome in results], *arguments, **options)


@pytest.fixture
def results(decide: Build) -> list[tuple[Any, str]]:
    return [
        (decide("inconclusive"), "failed"),
        (decide("fixed", ref=Ref("pypi", "0.9.1")), "failed"),
        (decide(), "passed"),
    ]


def test_the_summary_is_a_plain_table(results):
    assert summary(results, "sentinel-reports").split("\n") == [
        "target  bug                          ref          verdict               reason",
        "roll    ROLL-AGGLOSS-TOKENMEAN-MASK  git:c09bc8b  inconclusive  failed  expected reproduced; "
        "timeout: took longer than 60 s",
        "roll    ROLL-AGGLOSS-TOKENMEAN-MASK  git:c09bc8b  reproduced    passed",
        "roll    ROLL-AGGLOSS-TOKENMEAN-MASK  pypi:0.9.1   fixed         failed  expected reproduced",
        "1 reproduced, 1 inconclusive, 1 fixed",
        "not decided: 1 of 3",
        "  inconclusive: expected reproduced; timeout: took longer than 60 s",
        "reproduced: the bug is present, fixed: it is absent, changed: neither the buggy nor the fixed values, "
        "inconclusive: could not be decided, unavailable: not available",
        "evidence: sentinel-reports",
    ]


def test_equal_items_share_a_line(decide, recipe):
    absent = Verdict("unavailable", "no mirror of roll", "ref")
    many = [
        (
            decide(recipe=recipe(bug_id=f"ROLL-{n}"), verdict=absent, failure=Failure("ref", "no mirror of roll")),
            "skipped",
        )
        for n in range(9)
    ]
    failed = [(decide("fixed", recipe=recipe(bug_id=f"BAD-{n}")), "failed") for n in range(9)]
    undecided = [(decide("inconclusive", recipe=recipe(bug_id=f"OPEN-{n}")), "failed") for n in range(2)]
    text = summary([*many, *failed, *undecided], every=False)
    assert "roll    9 recipes  git:c09bc8b  unavailable   skipped  no mirror of roll\n" in text
    assert sum("BAD-" in line for line in text.splitlines()) == 9, "each failure has its line"
    assert "roll    2 recipes  git:c09bc8b  inconclusive  failed   expected reproduced; timeout: " in text
    assert "-v lists each item" in text
    assert "ROLL-8" in summary(many, every=True)
    assert "ROLL-1" in summary(many[:3], every=False), "a few are no table that nobody reads"


def test_an_expected_unavailable_item_has_its_reason(decide):
    why = Verdict("unavailable", "kl_loss is not in this version", "not-in-this-version")
    decision = decide(verdict=why, expect="unavailable")
    assert "kl_loss is not in this version; as the recipe's pin expects\n" in summary([(decision, "passed")])
    assert "pin expects" not in summary([(decision, "skipped")])


def test_a_reason_is_printed_only_when_something_is_wrong(decide):
    decision = decide(verdict=Verdict("reproduced", "the law is broken: [0][1]"))
    assert "the law is broken" not in summary([(decision, "passed")])
    assert "the law is broken" in summary([(decision, "failed")])


def test_a_broken_law_shows_the_required_value(decide):
    broken = Comparison("outlier.advantages", [1.0], None, [0.0], None, False, "[0]: 1.0 beside 0.0")
    text = explain(decide(comparisons=(broken,), law="masked_values_have_no_influence"))
    assert "unpatched" not in text
    assert "law: masked_values_have_no_influence" in text


def test_laws_that_hold_are_counted_and_not_listed(decide, recipe):
    law = {"law": "order_does_not_matter", "comparisons": ()}
    silent = {**law, "verdict": Verdict("unavailable", "nothing to say", "law")}
    holds = decide("fixed", recipe=recipe(bug_id="", boundary="roll.holds"), **law)
    mute = decide("unavailable", recipe=recipe(bug_id="", boundary="roll.mute"), **silent)
    broken = decide("reproduced", recipe=recipe(bug_id="", boundary="roll.broken"), **law)
    pairs = [(evidence(holds), "passed"), (evidence(mute), "skipped"), (evidence(broken), "failed")]
    text = markdown(pairs)
    assert "roll: 1 law holds, 1 not applicable" in text
    assert "roll.broken" in text
    assert "roll.holds" not in text
    assert "roll.mute" not in text
    assert "law" in text
    assert "roll.holds" not in markdown(pairs[:1])


def test_a_terminal_shows_colours_and_whole_ids(results):
    text = summary(results, terminal=True, width=110, environ={})
    assert ANSI.search(text)
    assert "ROLL-AGGLOSS-TOKENMEAN-MASK" in ANSI.sub("", text)
    assert all(len(ANSI.sub("", line)) <= 110 for line in text.split("\n")[:-2])


@pytest.mark.parametrize(
    "how", [{"environ": {"NO_COLOR": "1"}}, {"environ": {"TERM": "dumb"}}, {"environ": {}, "width": 40}]
)
def test_the_table_is_plain_without_colours_or_space(results, how):
    assert summary(results, terminal=True, **how) == summary(results)


def test_a_failure_shows_values_and_the_command(decide):
    text = explain(decide("fixed"), "pytest 'recipes/roll/X.yaml::git:c09bc8b'")
    assert text.split("\n") == [
        "roll ROLL-AGGLOSS-TOKENMEAN-MASK at git:c09bc8b: fixed (it is absent), expected reproduced",
        "token-mean sums masked tokens",
        "",
        "boundary: roll.utils.functionals.agg_loss (roll/utils/functionals.py:312 at commit c09bc8bc9f43)",
        "          (loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None)",
        "",
        "key                 observed                  unpatched                 fixed                     matches",
        "loss                1.0                       26.0                      1.0                       fixed",
        "per_token_gradient  [[0.5, 0.0], [0.5, 0.0]]  [[0.5, 0.5], [0.5, 0.5]]  [[0.5, 0.0], [0.5, 0.0]]  fixed",
        "",
        "loss: 24 too small",
        "per_token_gradient: element [0][1]: 0.5 beside 0.0",
        "",
        "repeat: pytest 'recipes/roll/X.yaml::git:c09bc8b'",
    ]


def test_paths_of_the_user_are_shown_in_the_terminal(decide, tmp_path):
    assert explain(decide(), f"pytest {tmp_path}/x").endswith(f"repeat: pytest {tmp_path}/x")
    assert summary([(decide(), "passed")], str(tmp_path)).endswith(f"evidence: {tmp_path}")


def test_an_exception_shows_upstreams_traceback(decide):
    failure = Failure("raised", "KeyError: 'x'", "Traceback\n  File \"roll/a.py\", line 3, in f\nKeyError: 'x'")
    text = explain(decide("inconclusive", failure=failure, verdict=Verdict("inconclusive", failure.reason, "raised")))
    assert "reason: raised: KeyError: 'x'" in text
    assert '\n  Traceback\n    File "roll/a.py", line 3, in f\n' in text


def test_a_large_tensor_is_shortened(decide):
    text = explain(
        decide(comparisons=(Comparison("x", tensor([[0.0] * 100] * 100, "float32"), 1.0, 2.0, False, False),))
    )
    assert "float32[100, 100] [[0.0, 0.0" in text
    assert max(map(len, text.split("\n"))) < 200


def test_a_long_value_shows_only_differing_elements(decide):
    values = [tensor([[0.5] * 9 + [last]] * 2, "float32") for last in (26.0, 26.0, 1.0)]
    broken = Comparison("gradient", *values, True, False, "20 is not shown")
    text = explain(decide("reproduced", comparisons=(broken,)))
    assert [line.split() for line in text.split("\n") if line.startswith(("key", "gradient[", "2 of"))] == [
        ["key", "observed", "unpatched", "fixed", "matches"],
        ["gradient[0,9]", "26.0", "26.0", "1.0"],
        ["gradient[1,9]", "26.0", "26.0", "1.0"],
        ["2", "of", "20", "differ", "unpatched"],
    ]
    alone = Comparison("gradient", values[0], None, values[2], None, False, "")
    text = explain(decide("reproduced", comparisons=(alone,), law="parts_add_up"))
    assert "..." not in text


def test_values_outside_the_schema_are_shown_too(decide, hostile):
    """Outcomes come from ``run.json``, which has no schema."""
    document = {**evidence(decide("fixed")), "verdict": f"fixed{hostile}"}
    text = table.summary([(document, f"passed{hostile}")], f"reports{hostile}")
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert text.count("\\x1b[31m<script>") == 3


def test_markdown_lists_failures_first(decide, recipe):
    failed = [(evidence(decide(recipe=recipe(document={"severity": each}))), "failed") for each in ("low", "high")]
    text = markdown([(evidence(decide("fixed")), "passed"), *failed])
    assert "json" not in text
    assert text.index("(high)") < text.index("(low)") < text.index("| <code>roll</code> |")
    told = html.unescape(re.sub("</?(code|b)>", "", text[text.index("* **") : text.index("(low)")]))
    assert told.split("<br>")[:5] == [
        "* **token-mean sums masked tokens**",
        "ROLL-AGGLOSS-TOKENMEAN-MASK at git:c09bc8b: reproduced (high)",
        "roll/utils/functionals.py:312",
        "loss: 26.0, right 1.0; 3 of 5 differ",
        "pytest recipes/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.yaml::git:c09bc8b\n* **token-mean sums masked tokens**",
    ]


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_markdown_stays_under_githubs_limit(decide, recipe, outcome):
    usual = evidence(decide())
    documents = [({**usual, "bug_id": f"B{index:05}"}, outcome) for index in range(600)]
    documents.append((evidence(decide("fixed", recipe=recipe(bug_id="ZZZ"))), "failed"))
    text = markdown(documents)
    assert len(text) < LIMIT
    assert "left out here" in text
    assert ("<code>ZZZ</code>" in text) == (outcome == "passed"), "a failure is not left out for what passed"
    assert ("more, see the table" in text) == (outcome == "failed")


def test_values_that_differ_late_are_cut_at_the_beginning():
    one, other = ([[0.25] * 30 + [last]] for last in (1.0, 2.0))
    left, right = distinct(tensor(one, "float32"), tensor(other, "float32"))
    assert left != right
    assert ("1.0" in left, "2.0" in right) == (True, True)
    assert max(len(left), len(right)) < 60
    assert distinct(1.0, 1.0) == ["1.0", "1.0"]  # equal numbers need not be distinguished


def test_a_value_that_is_right_with_the_bug_is_not_paired():
    assert row_cells(-1.0, -1, -1.0) == ["-1.0", "as fixed", "-1"]
    assert row_cells(..., 2.0, 1.0) == ["1.0", "", "2.0"]
    assert row_cells(1.0, None) == ["1.0", "null"]
