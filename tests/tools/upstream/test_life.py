"""The states of a finding: each follows from facts, is stored once, and reverts if the bug returns."""

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.grades import realism
from sentinel.tools.upstream.commands.report_findings import RESULTS, _read_published_results
from sentinel.tools.upstream.findings_page import EDITION, Entry, page, state
from sentinel.tools.upstream.life import (
    STATES,
    Finding,
    Step,
    advanced,
    at_main,
    first_day,
    fixed_by,
    load,
    place,
    save,
    state_of,
)


def at(ref: str, verdict: str) -> dict[str, str]:
    return {"ref": ref, "verdict": verdict}


def test_each_state_follows_from_a_fact(loaded_recipe):
    reported = replace(loaded_recipe, upstream={"pull": 9})
    buggy, main, release = at("git:" + "a" * 40, "reproduced"), at("git:main", "fixed"), at("pypi:1.0", "fixed")
    unreported = replace(loaded_recipe, upstream={"status": "unreported"})
    found = [
        state_of(unreported, []),
        state_of(unreported, [buggy]),
        state_of(reported, [buggy]),
        state_of(reported, [buggy, main]),
        state_of(reported, [buggy, main, release]),
    ]
    assert tuple(state for state, _ in found) == STATES
    assert found[1] == ("reproduced", "reproduced at git:aaaaaaa")
    gone = replace(loaded_recipe, upstream={"status": "removed"})
    assert state_of(gone, [buggy]) == ("fixed upstream", "its code was removed")
    assert state_of(reported, [buggy, at("git:main", "reproduced"), release])[0] == "reported"


@pytest.mark.parametrize(
    ("state", "what", "pull", "said"),
    [
        ("fixed upstream", "fixed", 2238, ", since 7e02052ee #2238"),
        ("released", "fixed", None, ", since 7e02052ee"),
        ("reported", "fixed", 2238, ""),
        ("released", "reproduced", 2238, ""),
    ],
)
def test_the_fixing_commit_comes_from_the_history(state, what, pull, said):
    commit = {"sha": "7e02052ee736454228464f2f167b0e889c44f10c", "pull": pull}
    changes = [{"what": "present", "commit": {}}, {"what": what, "commit": commit}]
    assert fixed_by(state, {"changes": changes}) == said
    assert fixed_by(state, {"changes": []}) == fixed_by(state, None) == ""


def test_a_returning_bug_goes_back_to_an_earlier_state(loaded_recipe, tmp_path):
    def later(state: str, because: str, day: str) -> Finding:
        before = load(tmp_path, loaded_recipe.target).get(loaded_recipe.bug_id)
        finding = advanced(before.steps if before else (), loaded_recipe, state, because, day, "", {})
        save(tmp_path, loaded_recipe.target, [finding])
        return finding

    first = later("fixed upstream", "fixed at git:main", "2026-01-01")
    file = place(tmp_path, loaded_recipe.target)
    text = file.read_text()
    assert len(text.splitlines()) == 1
    assert later("fixed upstream", "fixed at git:main", "2026-01-02") == first
    assert file.read_text() == text
    back = later("reported", "pull #9", "2026-01-03")
    assert [(step.state, step.on) for step in back.steps] == [
        ("fixed upstream", "2026-01-01"),
        ("reported", "2026-01-03"),
    ]


def test_a_damaged_line_is_an_error(tmp_path):
    for text in ("{}", "no", '{"bug_id": "x", "steps": [{"state": "done", "on": "", "because": ""}]}'):
        place(tmp_path, "tiny").write_text(text)
        with pytest.raises(SentinelError, match=r"tiny.jsonl:1: not a valid line.*; restore the file from git"):
            load(tmp_path, "tiny")


def entry(recipe: Recipe, state: str, verdict: str = "", **document: object) -> Entry:
    main = {"verdict": verdict, "commit": "a" * 40, "file": "a/b.py", "line": 3} if verdict else {}
    recipe = replace(recipe, document={**recipe.document, **document})
    finding = advanced((), recipe, state, state, "2026-01-01", "2025-01-01", main)
    return Entry(finding, recipe, "https://github.com/a/b")


def test_the_page_counts_roots_groups_them_and_escapes(loaded_recipe):
    hostile = replace(loaded_recipe, title="a | b <script> @everyone")
    hard = {"producer": "none", "how": "nobody calls it"}
    text = page(
        [
            entry(hostile, "reproduced", "reproduced", root="one", severity="low"),
            entry(replace(hostile, bug_id="SECOND"), "reproduced", "reproduced", root="one", severity="high"),
            entry(replace(hostile, bug_id="GONE"), "reported", "inconclusive", root="gone"),
            entry(replace(hostile, bug_id="HARD"), "reproduced", "reproduced", root="hard", reach=hard),
        ]
    )
    assert "2 bugs (3 recipes) and 1 of hardening (1)." in text
    assert "<script>" not in text
    assert "@everyone" not in text
    first, _, rest = text.partition(f"\n## {hostile.target}\n")
    assert "1 bug (2 recipes) at main" in first
    assert f"[SECOND](../recipes/{hostile.target}/" in first, "the worse of a root stands for it"
    assert "HARD" not in first
    assert "](https://github.com/a/b/blob/" + "a" * 40 + "/a/b.py#L3)" in first
    assert "### at main: 1 (2 recipes)" in rest
    assert "| 2025-01-01 |" in rest
    assert "[GONE]" in rest.partition("### not decided at main: 1 (1 recipe)")[2].partition("###")[0]
    assert "nobody calls it" in rest.partition("### hardening: 1 (1 recipe)")[2]


def test_dates_come_from_revisions_of_the_main_branch(loaded_recipe):
    told = replace(loaded_recipe, document={"introduced_by": "abc (#1, 2025-02-03)"})
    runs = [
        {"verdict": "fixed", "first": {"date": "2024-01-01T00:00:00Z"}},
        {"verdict": "reproduced", "first": {"date": "2025-01-02T00:00:00Z"}},
    ]
    assert first_day(told, {"runs": runs}) == "2025-01-02"
    assert first_day(told, None) == "2025-02-03"
    assert first_day(replace(told, document={}), None) == ""
    document = {"verdict": "reproduced", "checkout": {"commit": "c"}, "boundary": {"file": "f.py", "line": 1}}
    assert at_main([{**document, "ref": "git:" + "a" * 40}]) == {}
    assert at_main([{**document, "ref": "git:main"}])["commit"] == "c"


@pytest.mark.slow
def test_the_committed_findings_and_page_match_the_recipes():
    folder = Path(__file__).resolve().parents[3] / "findings"
    catalog = bundled_catalog()
    kept = {bug: each for target in catalog.targets for bug, each in load(folder, target).items()}
    recipes = {recipe.bug_id: recipe for recipe in find_recipes(catalog)}
    assert kept.keys() <= recipes.keys(), "findings of recipes that are no more"
    entries = [  # before `sentinel report findings`, a recipe has no state
        Entry(
            kept[bug],
            recipe,
            catalog.targets[recipe.target].repository.removesuffix(".git"),
            (folder / recipe.target / bug / "PULL_REQUEST.md").is_file(),
        )
        for bug, recipe in recipes.items()
        if bug in kept
    ]
    results = _read_published_results(folder / RESULTS, {entry.recipe.bug_id for entry in entries})
    assert (folder / "BUG_FINDINGS.md").read_text(encoding="utf-8") == page(entries, results)
    text = (folder.parent / "docs" / "state-of-the-signal.md").read_text(encoding="utf-8")
    edition = EDITION.match(text)
    assert edition, "its first line names no edition"
    assert text == state(entries, results, *edition.groups()), "run sentinel report findings --state"


@pytest.mark.slow
def test_the_state_page_lists_only_recorded_bugs_that_were_fixed_after_the_last_edition():
    recipe = next(recipe for recipe in find_recipes(bundled_catalog()) if realism(recipe.document) == "default")

    def text(*steps):
        finding = Finding(recipe.bug_id, recipe.target, tuple(Step(name, day, "") for name, day in steps))
        return state([Entry(finding, recipe, "")], [], "2026-02-01", "2026-01-01")

    before, now = ("reproduced", "2025-12-01"), ("fixed upstream", "2026-01-15")
    assert f"* {recipe.target}: " in text(before, now)
    assert "None.\n" in text(now)  # fixed before it was recorded
    assert "None.\n" in text(before, ("fixed upstream", "2026-01-01"))
