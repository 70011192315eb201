"""Laws as pytest items: selection, names, outcomes."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from demo_kit import REJECTED_ROW, write_recipe

from sentinel.cli import main
from sentinel.targets import Binding

pytestmark = pytest.mark.usefixtures("warm_runs", "demo_home")

AGG_LOSS = "laws/demo/demo_rl.losses.agg_loss"
GROUPS = "laws/demo/demo_rl.advantages.group_advantage"


#: The trigger of :data:`REJECTED_ROW`'s bug, and the other laws that it breaks.
WHEN = {
    "also_breaks": ["the_oracle_agrees", "normalisation_laws", "masked_values_have_no_influence"],
    "when": [{"response_mask": "a rejected row"}, {"token_level_rewards": "non-zero where masked"}],
}


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.fixture
def known(pytester: pytest.Pytester, refs: dict[str, str]) -> tuple[str, ...]:
    """Return arguments of a run at the broken revision, with a recipe in ``mine`` for one of its bugs."""
    write_recipe(pytester.path / "mine", {**REJECTED_ROW, **WHEN})
    return ("--sentinel-target=demo", "--sentinel-recipes=mine", f"--sentinel-ref={refs['broken']}")


@pytest.mark.slow
def test_laws_run_by_default_on_a_working_tree_and_hold_on_the_fixed_one(pytester, fixed_tree):
    result = run(pytester, "--sentinel-target=demo", f"--sentinel-repo={fixed_tree}", "--sentinel-against=none")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["demo: * laws hold*"])
    assert len(result.parseoutcomes()) == 2  # passed and skipped


def test_laws_are_off_on_request_and_for_pins(pytester, fixed_tree):
    off = run(pytester, "--sentinel-target=demo", f"--sentinel-repo={fixed_tree}", "--sentinel-laws=off")
    off.stderr.fnmatch_lines(
        ["*there is no recipe of demo; name a folder of recipes with --sentinel-recipes=DIR, or *"]
    )
    pins = run(pytester, "--sentinel-target=demo", "--collect-only", "-q")
    pins.stdout.no_fnmatch_line("laws/*")
    wrong = run(pytester, "--sentinel-target=demo", "--sentinel-laws=quik")
    wrong.stderr.fnmatch_lines(["*unknown level of laws 'quik' — did you mean 'quick'?*"])


@pytest.mark.slow
def test_a_broken_law_fails_with_its_scenario(pytester, refs):
    item = f"{AGG_LOSS}::masked_values_have_no_influence[{refs['broken'][:11]}]"
    result = run(pytester, item)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "demo_rl.losses.agg_loss: masked_values_have_no_influence at git:*: reproduced",
            "reason: the law is broken (a value where the mask is 0 changes neither output nor gradient)*",
            "repeat: pytest 'laws/demo/demo_rl.losses.agg_loss::masked_values_have_no_influence*",
        ]
    )


def test_law_items_have_xdists_mark_only_with_xdist(pytester, refs):
    item = f"{AGG_LOSS}::masked_values_have_no_influence[{refs['fixed'][:11]}]"
    marked = ("--collect-only", "-m", "xdist_group")
    assert run(pytester, item, *marked, "-p", "xdist").ret == pytest.ExitCode.OK
    assert run(pytester, item, *marked, "-p", "no:xdist").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.slow
def test_a_broken_law_names_the_recipe_that_explains_it(pytester, known):
    result = run(pytester, *known, "-k", "group_advantage and rejected_row_is")
    result.stdout.fnmatch_lines(["*a_rejected_row_is_an_absent_row*(known: DEMO-REJECTED-ROW; it is triggered in*"])


@pytest.mark.slow
@pytest.mark.parametrize("selected", [True, False])
def test_a_known_bug_fails_once_when_its_recipe_runs_too(selected, pytester, known):
    """If the run does not have the recipe's item, the law's item fails, because a broken law must never pass."""
    law = "the_oracle_agrees and group_advantage"
    result = run(pytester, *known, "-rs", "-k", f"({law}) or DEMO-REJECTED-ROW" if selected else law)
    result.assert_outcomes(failed=1, skipped=int(selected))
    if selected:
        result.stdout.fnmatch_lines(["demo: 0 laws hold, 1 broken by known bugs that are listed"])
    evidence = json.loads(next((pytester.path / "sentinel-reports").rglob("laws/**/*.json")).read_text())
    assert evidence["verdict"] == "reproduced"


@pytest.mark.slow
def test_a_law_with_only_triggering_scenarios_is_not_decided(pytester, known):
    """Each variant has a rejected row, so another bug of rejected rows could not be seen."""
    result = run(pytester, *known, "-k", "a_rejected_row_is and group_advantage or DEMO-REJECTED-ROW")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["not decided: 1 of 2", "  inconclusive: law: broken by DEMO-REJECTED-ROW; it is triggered in every scenario *"]
    )
    evidence = json.loads(next((pytester.path / "sentinel-reports").rglob("laws/**/*.json")).read_text())
    assert (evidence["verdict"], evidence["kind"]) == ("inconclusive", "law")


@pytest.mark.slow
def test_an_unexplained_violation_fails_next_to_an_explained_one(pytester, known, monkeypatch):
    """The law is broken in two ways, and a recipe explains only one of them."""
    from sentinel.search.survey import Survey

    found = Survey.findings
    stranger = SimpleNamespace(
        examples=(),
        law=SimpleNamespace(name="parts_add_up", twin=""),
        subject=SimpleNamespace(binding=Binding("demo_rl.losses.agg_loss", "loss_aggregation")),
        trial=SimpleNamespace(answer={}),
    )
    monkeypatch.setattr(Survey, "findings", lambda self, job: [*found(self, job), stranger])
    result = run(pytester, *known, "-k", "a_rejected_row_is and group_advantage or DEMO-REJECTED-ROW")
    result.assert_outcomes(failed=2)


@pytest.mark.slow
def test_a_changed_recipe_explains_nothing(pytester, known):
    """The recipe's scenario still breaks the law, but perhaps for another reason than the recipe's bug."""
    values = {
        "expected_unpatched": {"reward_9.advantages": [[0, 0], [8, 8], [8, 8]]},
        "expected_fixed": {"reward_9.advantages": [[0, 0], [7, 7], [7, 7]]},
    }
    write_recipe(pytester.path / "mine", {**REJECTED_ROW, **WHEN, **values})
    result = run(pytester, *known, "-k", "group_advantage and rejected_row_is or DEMO-REJECTED-ROW")
    result.stdout.fnmatch_lines(["*DEMO-REJECTED-ROW at git:*: changed*"])
    result.stdout.no_fnmatch_line("*(known: DEMO-REJECTED-ROW*")
    result.assert_outcomes(failed=2)


ORACLE = ("-rs", "-k", "group_advantage and the_oracle_agrees or DEMO-REJECTED-ROW")


@pytest.mark.slow
def test_a_known_bug_excuses_a_law_that_holds_on_30_scenarios_that_do_not_trigger_it(pytester, known):
    result = run(pytester, *known, *ORACLE)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*DEMO-REJECTED-ROW; the law holds on 30 scenarios that do not trigger it"])


@pytest.mark.slow
@pytest.mark.parametrize("when", [None, {"response_mask": "a lone token"}, {"token_level_rewards": ">= -1000"}])
def test_a_known_bug_does_not_excuse_indistinguishable_violations(pytester, known, when):
    """The recipe states no trigger, an incomplete one, or one that every scenario meets."""
    write_recipe(pytester.path / "mine", {**REJECTED_ROW, **WHEN, "when": when})
    result = run(pytester, *known, *ORACLE)
    result.assert_outcomes(failed=2)


@pytest.mark.slow
def test_a_new_bug_does_not_hide_behind_a_known_one(pytester, broken_tree):
    """Both bugs break the same law. The item reports a scenario that does not trigger the known bug."""
    file = broken_tree / "demo_rl" / "advantages.py"
    file.write_text(file.read_text().replace("- scores[rows].mean()", "- scores[rows].median()"))
    write_recipe(pytester.path / "mine", {**REJECTED_ROW, **WHEN})
    tree = ("--sentinel-target=demo", "--sentinel-recipes=mine", f"--sentinel-repo={broken_tree}")
    tree += ("--sentinel-against=none",)
    result = run(pytester, *tree, *ORACLE)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*the_oracle_agrees at path:*: reproduced, in a scenario that triggers none of the known bugs*ROW*"]
    )
    evidence = json.loads(next((pytester.path / "sentinel-reports").rglob("laws/**/*oracle*/**/*.json")).read_text())
    mask = evidence["scenario"]["variants"][""]["response_mask"]["tensor"]
    assert all(any(row) for row in mask), "no row of what is shown is rejected"


@pytest.mark.slow
def test_a_bug_found_by_the_second_search_may_be_known(pytester, known, monkeypatch):
    """The other bug's recipe explains none of the violations that were found first."""
    from sentinel.search import discovery

    about = discovery.is_about
    write_recipe(pytester.path / "mine", {**REJECTED_ROW, **WHEN, "when": WHEN["when"][0]})
    other = {**REJECTED_ROW, **WHEN, "bug_id": "DEMO-MASKED-REWARD", "when": WHEN["when"][1]}
    write_recipe(pytester.path / "mine", other)
    monkeypatch.setattr(
        discovery,
        "is_about",
        lambda recipe, finding, target: (
            about(recipe, finding, target) and (recipe.bug_id == "DEMO-REJECTED-ROW" or not _rejects_a_row(finding))
        ),
    )
    result = run(pytester, *known, *ORACLE[:-1], f"{ORACLE[-1]} or DEMO-MASKED-REWARD")
    result.stdout.fnmatch_lines(["SKIPPED*DEMO-REJECTED-ROW, DEMO-MASKED-REWARD; the law holds on 30 scenarios*"])
    result.assert_outcomes(failed=2, skipped=1)


def _rejects_a_row(finding: Any) -> bool:
    return any(not row.any() for inputs in finding.trial.variants.values() for row in inputs["response_mask"].array())


@pytest.mark.slow
def test_a_recipe_that_explains_several_laws_is_decided_once(pytester, known, monkeypatch):
    from sentinel.deciding.runner import Runner

    decided: list[str] = []
    monkeypatch.setattr(Runner, "_decide", _counting(Runner._decide, decided))
    result = run(pytester, *known, "-v", "-rs", "--sentinel-laws=quick")
    assert re.search(r"SKIPPED \[[2-9]\].*known bugs that were already reported: DEMO-REJECTED-ROW", str(result.stdout))
    assert decided.count("DEMO-REJECTED-ROW") == 1
    last_recipe = max(
        n for n, line in enumerate(result.outlines) if "DEMO-REJECTED-ROW.yaml::" in line and "%]" in line
    )
    first_law = min(n for n, line in enumerate(result.outlines) if line.startswith("laws/") and "%]" in line)
    assert last_recipe < first_law  # the explanation uses the recipes' verdicts


def _counting(decide: Any, decided: list[str]) -> Any:
    def counted(self: Any, job: Any, *given: Any) -> Any:
        decided.append(job.recipe.bug_id)
        return decide(self, job, *given)

    return counted


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("laws/demo", "*is not the id of a law; write laws/TARGET/DOTTED.BOUNDARY::LAW*"),
        ("laws/dem/demo_rl.losses.agg_loss", "*unknown target 'dem'*"),
        (f"{AGG_LOSS}::no_such_law", "*has no law 'no_such_law'; `sentinel list boundaries demo` lists*"),
    ],
)
def test_an_unknown_law_id_gives_advice(name, said, pytester):
    result = run(pytester, name, "--sentinel-ref=git:main")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(said.strip("*").split("*")[0] in line for line in (*result.errlines, *result.outlines))


@pytest.mark.slow
def test_evidence_of_laws_is_reproducible_verifiable_and_a_baseline(pytester, refs, capsys):
    base = (GROUPS, f"--sentinel-ref={refs['broken']}")
    for folder in ("one", "two"):
        run(pytester, *base, f"--sentinel-report-dir={folder}")
    files = sorted((pytester.path / "one").rglob("laws/**/*.json"))
    assert files
    assert {file.parts[-3] for file in files} == {"demo_rl.advantages.group_advantage"}
    for file in files:
        assert file.read_bytes() == (pytester.path / "two" / file.relative_to(pytester.path / "one")).read_bytes()
    broken = [file for file in files if json.loads(file.read_text())["verdict"] == "reproduced"]
    assert broken
    assert main(["verify", *map(str, broken)]) == 0, capsys.readouterr().out
    (pytester.path / "baseline").mkdir()
    empty = run(pytester, *base, "--sentinel-baseline=baseline")
    empty.stderr.fnmatch_lines(["*--sentinel-baseline=baseline: the folder contains no evidence*"])
    assert main(["report", "accept", "--from", "one", "--to", "baseline"]) == 0
    lines = pytester.path / "baseline" / "demo.jsonl"
    text = lines.read_text().splitlines(keepends=True)
    assert {json.loads(line)["verdict"] for line in text if '"shared"' not in line} == {"reproduced"}
    assert "failed" not in run(pytester, *base, "--sentinel-baseline=baseline").parseoutcomes()
    lines.write_text("".join(text[:-1]))
    new = run(pytester, *base, "--sentinel-baseline=baseline")
    assert new.parseoutcomes()["failed"] == 1
    new.stdout.fnmatch_lines(["*baseline has no verdict for this item; record one with `sentinel report accept`*"])
