"""The life of a finding: each state from its facts, kept once, and back again where a bug comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.errors import SentinelError
from sentinel.findings.life import STATES, advanced, load, page, place, save, state_of
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog


def at(ref: str, verdict: str) -> dict[str, str]:
    return {"ref": ref, "verdict": verdict}


def test_each_state_follows_from_a_fact(loaded_recipe: Recipe) -> None:
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
    assert found[1] == ("confirmed", "reproduced at git:aaaaaaa")
    gone = replace(loaded_recipe, upstream={"status": "removed"})
    assert state_of(gone, [buggy]) == ("fixed upstream", "its code was removed")
    assert state_of(reported, [buggy, at("git:main", "reproduced"), release])[0] == "reported"


def test_a_step_is_kept_once_and_a_bug_that_comes_back_goes_back(loaded_recipe: Recipe, tmp_path: Path) -> None:
    file = place(tmp_path, loaded_recipe)
    assert load(file) is None
    first = advanced(None, loaded_recipe, "fixed upstream", "fixed at git:main", "2026-01-01")
    assert save(file, first)
    same = advanced(load(file), loaded_recipe, "fixed upstream", "fixed at git:main", "2026-01-02")
    assert same == first
    assert not save(file, same)
    back = advanced(same, loaded_recipe, "reported", "pull #9", "2026-01-03")
    assert [(step.state, step.on) for step in back.steps] == [
        ("fixed upstream", "2026-01-01"),
        ("reported", "2026-01-03"),
    ]


def test_a_file_that_is_none_is_told(loaded_recipe: Recipe, tmp_path: Path) -> None:
    file = place(tmp_path, loaded_recipe)
    file.parent.mkdir(parents=True)
    for text in (
        "{}",
        "no",
        '{"bug_id": "x", "target": "t", "title": "", "upstream": {}, "steps": [{"state": "done"}]}',
    ):
        file.write_text(text)
        with pytest.raises(SentinelError, match="is no finding"):
            load(file)


def test_the_page_counts_and_escapes(loaded_recipe: Recipe) -> None:
    hostile = replace(loaded_recipe, title="a | b <script> @everyone")
    text = page([advanced(None, hostile, "confirmed", "reproduced", "2026-01-01")])
    assert "1 finding: 1 confirmed" in text
    assert "<script>" not in text
    assert "@everyone" not in text


def test_the_committed_findings_are_those_of_the_shipped_recipes_and_the_page_is_theirs() -> None:
    folder = Path(__file__).resolve().parents[2] / "findings"
    kept = {}
    for recipe in find_recipes(bundled_catalog()):
        finding = load(place(folder, recipe))
        if finding is not None:  # a recipe has no life yet before `sentinel report findings` has looked at it
            kept[place(folder, recipe)] = finding
    assert set(folder.glob("*/*.json")) == set(kept), "findings of recipes that are no more"
    assert (folder / "BUG_FINDINGS.md").read_text(encoding="utf-8") == page(list(kept.values()))
