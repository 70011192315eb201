"""Known bugs that are still present are expected failures; with a base, so are bugs that both revisions have."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, write_recipe

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home")

TITLES = [MASKED_TOKENS["title"], REJECTED_ROW["title"]]
#: Two recipes of one bug, and a worse bug.
ROOTED = [
    {**MASKED_TOKENS, "bug_id": "DEMO-A-LOSS", "severity": "low"},
    {**MASKED_TOKENS, "bug_id": "DEMO-C-LOSS", "severity": "medium", "title": "the same bug", "root": "DEMO-A-LOSS"},
    {**REJECTED_ROW, "bug_id": "DEMO-B-ROW", "severity": "high"},
]


@pytest.fixture
def mine(pytester: pytest.Pytester, refs: dict[str, str]) -> Path:
    """A folder with both demo recipes, whose recorded verdict at one commit is reproduced."""
    for recipe in (MASKED_TOKENS, REJECTED_ROW):
        write_recipe(pytester.path / "mine", recipe, pins=[{"ref": refs["broken"], "expect": "reproduced"}])
    return pytester.path / "mine"


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    options = ("--sentinel-target=demo", "--sentinel-recipes=mine", "--sentinel-laws=off")
    return pytester.runpytest_inprocess(*options, *arguments)


def evidence(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in (pytester.path / "sentinel-reports" / "demo").rglob("*.json")]


@pytest.mark.parametrize("options", [(), ("-W", "error"), ("-o", "xfail_strict=true"), ("-x", "--pdb")], ids=str)
def test_a_known_bug_is_xfailed_with_its_title(options, pytester, mine):
    result = run(pytester, "-rx", *options)
    result.assert_outcomes(xfailed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"XFAIL mine/demo/DEMO-*.yaml::git:* - {title}" for title in TITLES])
    result.stdout.re_match_lines([r"demo git:\w+: present: 2 bugs \(2 recipes\)$", r"    DEMO-MASKED-TOKENS: "])
    totals = json.loads((pytester.path / "sentinel-reports" / "run.json").read_text())["totals"]
    assert totals["outcomes"] == {"xfailed": 2}
    assert [document["verdict"] for document in evidence(pytester)] == ["reproduced", "reproduced"]


@pytest.mark.parametrize("option", [("--runxfail",), ("-p", "no:skipping")], ids=str)
def test_runxfail_shows_a_known_bug_as_a_failure(option, pytester, mine):
    result = run(pytester, *option)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "DEMO-MASKED-TOKENS at git:*: reproduced, as expected",
            "loss*26.0*26.0*1.0*unpatched",
            "repeat: pytest mine/*",
        ]
    )


def test_a_pin_that_differs_from_its_record_fails(pytester, mine, refs):
    write_recipe(mine, MASKED_TOKENS, pins=[{"ref": refs["fixed"], "expect": "reproduced"}])
    write_recipe(mine, REJECTED_ROW, pins=[{"ref": refs["broken"], "expect": "fixed"}])
    result = run(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["DEMO-MASKED-TOKENS at git:*: expected reproduced, got fixed"])
    result.stdout.re_match_lines([r"demo +DEMO-REJECTED-ROW +git:\w+ +reproduced +failed +expected fixed; .*"])


@pytest.mark.slow
def test_a_known_bug_that_a_baseline_records_is_xfailed(pytester, mine, refs):
    run(pytester, f"--sentinel-ref={refs['broken']}", "--sentinel-report-dir=kept").assert_outcomes(failed=2)
    run(pytester, f"--sentinel-ref={refs['broken']}", "--sentinel-baseline=kept").assert_outcomes(xfailed=2)


@pytest.mark.slow
def test_last_failed_does_not_repeat_expected_failures(pytester, mine, refs):
    run(pytester, "--runxfail").assert_outcomes(failed=2)
    run(pytester, "--lf").assert_outcomes(xfailed=2)
    write_recipe(mine, MASKED_TOKENS, pins=[{"ref": refs["fixed"], "expect": "reproduced"}])
    run(pytester).assert_outcomes(failed=1, xfailed=1)
    run(pytester, "--lf").assert_outcomes(failed=1)


def test_junit_and_sarif_mark_expected_failures(pytester, mine):
    run(pytester, "--junitxml=junit.xml", "--sentinel-sarif=run.sarif").assert_outcomes(xfailed=2)
    skipped = list(ElementTree.parse(pytester.path / "junit.xml").iter("skipped"))
    assert [(item.get("type"), item.get("message")) for item in skipped] == [
        ("pytest.xfail", title) for title in TITLES
    ]
    (log,) = json.loads((pytester.path / "run.sarif").read_text())["runs"]
    assert [[each["kind"] for each in result["suppressions"]] for result in log["results"]] == [["external"]] * 2
    assert {result["properties"]["verdict"] for result in log["results"]} == {"reproduced"}


def test_known_bugs_without_a_base_fail_by_root_cause_the_worst_first(pytester, refs):
    for recipe in ROOTED:
        write_recipe(pytester.path / "mine", recipe)
    result = run(pytester, f"--sentinel-ref={refs['broken']}")
    result.assert_outcomes(failed=3)
    lines = result.outlines
    start = lines.index("known bugs that fail, by root cause, the worst first:") + 1
    commands = [f"    pytest mine/demo/DEMO-{name}.yaml::git:*" for name in ("B-ROW", "C-LOSS", "A-LOSS")]
    expected = [f"  {TITLES[1]} (high)", commands[0], "  the same bug (medium)", *commands[1:]]
    assert [line.partition("::git:")[0] for line in lines[start : start + 5]] == [
        line.partition("::git:")[0] for line in expected
    ]
    assert [line.split("/")[2].split(".")[0] for line in lines if line.startswith("FAILED")] == [
        "DEMO-B-ROW",
        "DEMO-C-LOSS",
        "DEMO-A-LOSS",
    ]


def test_undecidable_recipes_take_one_line_per_cause(pytester, mine, broken_tree):
    """Both functions are in a package that does not import."""
    (broken_tree / "demo_rl" / "__init__.py").write_text("raise ImportError('no such thing')\n")
    result = run(pytester, f"--sentinel-repo={broken_tree}")
    result.assert_outcomes(failed=1, skipped=1)
    section = result.stdout.str().partition(" sentinel =")[2].partition(" short test summary info =")[0]
    told = [line.split()[0] for line in section.splitlines() if "no such thing" in line]
    assert told == ["demo", "2:"]


def test_with_a_base_common_bugs_are_expected(pytester, mine, refs, broken_tree):
    result = run(pytester, f"--sentinel-repo={broken_tree}", f"--sentinel-against={refs['broken']}", "-k", "yaml")
    result.assert_outcomes(xfailed=2)
    assert result.ret == 0


@pytest.mark.slow
def test_with_a_base_a_new_bug_fails_and_names_the_earlier_verdict(pytester, mine, refs):
    result = run(pytester, f"--sentinel-ref={refs['broken']}", f"--sentinel-against={refs['fixed']}", "-k", "yaml")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["DEMO-MASKED-TOKENS at git:*: reproduced, and fixed at git:*"])


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("-p", "no:terminal")], ids=str)
def test_with_a_base_a_fix_passes_and_is_named(option, pytester, mine, refs):
    result = run(
        pytester, f"--sentinel-ref={refs['fixed']}", f"--sentinel-against={refs['broken']}", "-k", "yaml", *option
    )
    assert result.ret == 0
    told = result.stderr if option else result.stdout
    told.fnmatch_lines([f"fixed: DEMO-MASKED-TOKENS, reproduced at {refs['broken'][:11]}: {TITLES[0]}"])


@pytest.mark.slow
def test_with_a_base_common_changed_or_undecided_verdicts_pass(pytester, mine, refs, broken_tree):
    values = {"expected_unpatched": {"loss": 7.0}, "expected_fixed": {"loss": 8.0}}
    write_recipe(mine, MASKED_TOKENS, **values)
    (broken_tree / "demo_rl" / "advantages.py").write_text("raise ImportError('no such thing')\n")
    both = (f"--sentinel-repo={broken_tree}", "-k", "yaml", "-rs")
    result = run(pytester, *both, f"--sentinel-against=path:{broken_tree}")
    result.assert_outcomes(xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*inconclusive here and at path:*: *no such thing*"])
    worse = run(pytester, *both, f"--sentinel-against={refs['fixed']}", "-k", "REJECTED")
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(["DEMO-REJECTED-ROW at path:*: inconclusive, and fixed at git:*"])


@pytest.mark.slow
def test_a_law_broken_by_an_expected_bug_is_skipped(pytester, mine, refs):
    when = [{"response_mask": "a rejected row"}, {"token_level_rewards": "non-zero where masked"}]
    write_recipe(mine, REJECTED_ROW, also_breaks=["the_oracle_agrees"], when=when)
    select = ("-k", "DEMO-REJECTED-ROW or group_advantage and the_oracle_agrees")
    refs_of = (f"--sentinel-ref={refs['broken']}", f"--sentinel-against={refs['broken']}")
    result = run(pytester, *refs_of, "--sentinel-laws=quick", *select, "-rs")
    result.assert_outcomes(xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*known bugs that were already reported: DEMO-REJECTED-ROW; the law holds on 30 *"]
    )
