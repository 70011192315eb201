"""The page of a bug: what a maintainer sees, and what nobody may smuggle into it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from demo_kit import MASKED_TOKENS

from sentinel.export.page import LIMIT, TO_WRITE, code, comment, fenced, page, prose
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.check import check_files

SECTIONS = (
    *("Summary", "Concrete triggering example", "Wrong value, right value", "Reproduction recipe", "Validation runner"),
    *("Observed output", "Effect on training", "Root cause", "Fix", "Tests and checks", "Duplicate checks"),
    *("Related work", "Evidence"),
)


def text_of(export: Any, broken_tree: Path, fixed_tree: Path, **changes: Any) -> str:
    return page(export(MASKED_TOKENS, broken_tree, fixed_tree, **changes), bundled_catalog())


def test_it_has_every_section_and_marks_what_a_person_must_write(
    export: Any, broken_tree: Path, fixed_tree: Path
) -> None:
    text = text_of(export, broken_tree, fixed_tree)
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == SECTIONS
    assert text.count(TO_WRITE) >= 3
    assert "26.0" in text
    assert len(text) < LIMIT
    written = text_of(export, broken_tree, fixed_tree, root_cause="the sum forgets the mask", fix="multiply by it")
    assert "the sum forgets the mask." in written
    assert written.count(TO_WRITE) == text.count(TO_WRITE) - 2


def test_the_recipe_cut_out_of_the_page_is_a_recipe(
    export: Any, broken_tree: Path, fixed_tree: Path, tmp_path: Path, decide: Any
) -> None:
    text = text_of(export, broken_tree, fixed_tree)
    block = text.partition("## Reproduction recipe")[2].partition("```json\n")[2].partition("\n```")[0]
    file = tmp_path / "DEMO-MASKED-TOKENS.json"
    file.write_text(block)
    assert [str(problem) for problem in check_files([file], bundled_catalog()) if problem.severity == "error"] == []
    assert decide(file, broken_tree).verdict.name == "reproduced"


def test_whom_it_concerns_is_said_in_words(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    entry = {"when": {"actor.loss": ["ppo", "sapo"], "actor.clip": "set"}, "where": "a token is masked"}
    text = text_of(export, broken_tree, fixed_tree, affects=["everybody", entry], until={"actor.clip": None})
    assert "\n* everybody\n* actor.loss=ppo or sapo, actor.clip set, where a token is masked\n" in text
    assert "\nUntil it is mended, <code>actor.clip=null</code> avoids it.\n" in text


def test_a_page_with_long_values_is_cut_to_what_github_takes(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    text = text_of(export, broken_tree, fixed_tree, story="word " * 20_000)
    assert len(text) < LIMIT


def test_hostile_prose_is_inert(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
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


def test_pieces_of_markdown() -> None:
    assert prose("see `a|b` and *c*") == "see <code>a&#124;b</code> and &#42;c&#42;"
    assert code("a`b<c>") == "<code>a&#96;b&#60;c&#62;</code>"
    assert fenced("```\ninside", "json").startswith("````json\n")


def test_a_comment_has_table_evidence_digest_and_command(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    text = comment(export(MASKED_TOKENS, broken_tree, fixed_tree))
    assert re.search(r"sha256 `[0-9a-f]{64}`", text)
    assert "--sentinel-bug=DEMO-MASKED-TOKENS" in text
    assert text.count("<details>") == 2
