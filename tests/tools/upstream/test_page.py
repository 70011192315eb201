"""The page of a bug: its content, and attempts to inject text."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS

from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports.numbers import distinguish
from sentinel.tools.upstream.contribution import ABSENT, Contribution, documented
from sentinel.tools.upstream.page import MOST_WORDS, checks, code, count_words, fenced, page, prose, trial_lines

SECTIONS = ("Cause", "Fix", "Who is affected", "Reproduce", "What was checked")


def made_of(export: Any, broken_tree: Path, fixed_tree: Path, **changes: Any) -> Contribution:
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, **changes)
    target = bundled_catalog().targets[bundle.recipe.target]
    return Contribution((bundle.recipe,), target, None, documented([bundle], None, None, ()))


def text_of(export: Any, broken_tree: Path, fixed_tree: Path, **changes: Any) -> str:
    return page(made_of(export, broken_tree, fixed_tree, **changes))


def test_the_page_has_every_section_without_placeholders(export, broken_tree, fixed_tree):
    text = text_of(export, broken_tree, fixed_tree, root_cause="the sum forgets the mask", fix="multiply by it")
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert "the sum forgets the mask." in text
    assert "multiply by it." in text
    assert "by a person" not in text
    assert count_words(text) <= MOST_WORDS


def test_two_lines_show_the_numbers_that_differ(export, broken_tree, fixed_tree):
    text = text_of(export, broken_tree, fixed_tree)
    assert "before: loss = 26.0, masked_token_gradient_abs_sum = 1.0\n" in text
    assert "right:  loss = 1.0, masked_token_gradient_abs_sum = 0.0\n" in text


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (26.0, 1.0, ["26.0", "1.0"]),
        (1 / 3, 0.3333333333, ["0.33333333333333331", "0.33333333329999998"]),
        (-3.0, 0.0, ["-3.0", "0.0"]),
        ("NaN", 0.5, ["NaN", "0.5"]),
        (True, False, ["True", "False"]),
        (1.0, 0, ["1.0", "0.0"]),
        ({"type": "AssertionError", "message": "no indices"}, None, ["AssertionError: no indices", "none"]),
    ],
)
def test_two_values_that_differ_never_look_alike(one, other, told):
    assert distinguish(one, other) == told


def test_the_affected_runs_are_described(export, broken_tree, fixed_tree):
    entry = {"when": {"actor.loss": ["ppo", "sapo"], "actor.clip": "set"}, "where": "a token is masked"}
    text = text_of(export, broken_tree, fixed_tree, affects=["everybody", entry])
    assert "\n* everybody\n* actor.loss=ppo or sapo, actor.clip set, if a token is masked\n" in text


def test_hostile_prose_is_inert(export, broken_tree, fixed_tree):
    text = text_of(
        export,
        broken_tree,
        fixed_tree,
        title="<img src=x onerror=alert(1)> @everyone fixes #1 | ```",
        story="</details>",
    )
    outside = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<img" not in outside
    assert "@everyone" not in outside
    assert outside.count("<details>") == outside.count("</details>")


def test_fragments_of_markdown_are_escaped():
    assert prose("see `a|b` and *c*") == "see <code>a&#124;b</code> and &#42;c&#42;"
    assert code("a`b<c>") == "<code>a&#96;b&#60;c&#62;</code>"
    assert code("clip_fraction[1,0]") == "`clip_fraction[1,0]`"
    assert fenced("```\ninside", "json").startswith("````json\n")


def test_folded_parts_and_code_do_not_count_as_words():
    text = "# one two\n\n```sh\nnot counted\n```\n\n<details><summary>no</summary>\n\nno\n\n</details>\n\n[three](http://no.no)\n"
    assert count_words(text) == 4  # with the sign of the heading


NOTHING = {"others": {}, "boundaries": {}, "problems": [], "elsewhere": {}, "regression": {}, "tests": {}}


def test_fixed_bugs_and_side_effects_are_distinguished():
    others = {"C": ["reproduced", "reproduced"], "B": ["unavailable", "reproduced"], "A": ["reproduced", "fixed"]}
    tried = {**NOTHING, "others": others | {"D": ["unavailable", "fixed"]}}
    told = next(trial_lines("demo", tried))
    assert told == "4 other known bugs of demo: also fixed: `A`; " + (
        "absent from the new code: `D`; the other verdicts are unchanged."
    )


@pytest.mark.parametrize(
    ("differences", "told"),
    [
        ([0.0, 0.0], "every output is the same."),
        ([0.0, 1e-7], "no output differs by more than 1e-07."),
        (["inf", 1e-7], "every output is the same, except for the problems above."),
    ],
)
def test_results_of_other_functions_are_stated_once(differences, told):
    rest = {f"m.f{n}": {"scenarios": 6, "largest_difference": value} for n, value in enumerate(differences)}
    assert list(trial_lines("demo", {**NOTHING, "elsewhere": rest}))[1:] == [
        f"12 generated inputs of 2 other functions: {told}"
    ]


def test_upstreams_tests_that_did_not_run_share_a_line():
    ran = {"outcomes": {"passed": [2, 3], "failed": [1, 1]}, "worse": [], "option": "--noconftest"}
    tests = {"tests/a.py": {"not_runnable": "no ray"}, "tests/b.py": ran, "tests/c.py": {"not_runnable": "no ray"}}
    assert list(trial_lines("demo", {**NOTHING, "tests": tests}))[2:] == [
        "`tests/b.py`: 1 failed, 2 passed, 3 with the fix and its tests, run with `--noconftest`.",
        "`tests/a.py` and `tests/c.py` could not run in this environment: `no ray`.",
    ]


def test_a_log_of_a_test_that_the_sandbox_cannot_run_is_named(export, broken_tree, fixed_tree):
    made = made_of(export, broken_tree, fixed_tree)
    made = replace(made, document={**made.document, "tried": NOTHING})
    line = "* The new test failed before and passed after.\n"
    assert line not in page(made)
    assert line in page(replace(made, logged=True))


def test_pull_request_heads_are_grouped_by_verdict():
    said = {5: "reproduced", 4: ABSENT, 3: "inconclusive", 2: "reproduced"}
    related = [{"pull": pull, "commit": "", "verdict": verdict} for pull, verdict in said.items()]
    made = SimpleNamespace(document={"bugs": {}, "runner": None, "tried": None, "related": related}, fix=None)
    assert list(checks(made)) == [
        "The 4 pull requests that change lines of this function were run at their heads: fixed at none; the bug is "
        "present at #5 and #2; the bug was absent from the base of #4; undecided at #3."
    ]
