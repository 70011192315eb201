"""The histories in ``reports/history`` agree with the recipes, and every command can print them."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attribution
import pytest

from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records import history, timelines
from sentinel.records.history import load_all, save
from sentinel.tools.site.lifetimes import life_of
from sentinel.tools.site.material import Bug
from sentinel.tools.site.rendering import Pages

FOLDER = Path(__file__).parents[2] / "reports" / "history"
RECORDS = load_all(FOLDER)


def test_each_history_is_about_a_shipped_recipe_and_round_trips(tmp_path):
    catalog = bundled_catalog()
    shipped = {recipe.bug_id for recipe in find_recipes(catalog, tuple(catalog.targets))}
    assert {record["bug_id"] for record in RECORDS} <= shipped
    save(tmp_path, RECORDS)
    for file in FOLDER.glob("*.jsonl"):
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
        assert b":null" not in file.read_bytes()


def test_histories_do_not_name_the_machine():
    for file in FOLDER.glob("*.jsonl"):
        assert not re.search(r"(/tmp|/home|/root|/work|site-packages)/", file.read_text(encoding="utf-8")), file


def test_pins_agree_with_sweeps():
    """A pin, decided without a sweep, has the verdict that the sweep has at the same commit."""
    catalog = bundled_catalog()
    compared = 0
    for recipe in find_recipes(catalog, tuple(catalog.targets)):
        swept: dict[str, Any] = {}
        for record in RECORDS:
            if record["bug_id"] == recipe.bug_id and record["source"]["kind"] == "git":
                for run in record["runs"]:
                    swept[run["first"]["sha"]] = swept[run["last"]["sha"]] = run["verdict"]
        for pin in recipe.pins:
            if pin.ref.kind == "git" and pin.ref.name in swept:
                assert swept[pin.ref.name] == pin.expect, (recipe.bug_id, str(pin.ref))
                compared += 1
    assert compared >= 50


@pytest.mark.parametrize(("key", "told"), [("introduced_by", 60), ("fixed_by", 20)])
def test_recipes_name_the_commits_found_by_sweeps(key, told):
    """Only if the sweep found no commit may the recipe name another one."""
    catalog = bundled_catalog()
    said = {r.bug_id: r.document.get(key) for r in find_recipes(catalog, tuple(catalog.targets))}
    of_git = (r for r in RECORDS if r["source"]["kind"] == "git" and r["source"]["walk"] != "tags")
    found = {record["bug_id"]: getattr(attribution, key)(record) for record in of_git}
    known = {bug: commits for bug, commits in found.items() if commits}
    assert {bug: said[bug] for bug in known} == known
    assert len(known) >= told


@pytest.mark.parametrize("line", ["present at a commit", "introduced with their code", "fixed or removed"])
def test_the_committed_table_equals_the_generated_one(line):
    headings, rows = timelines.overview(RECORDS)
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert timelines.markdown(headings, rows) in text
    assert any(line in said and said in text for said in timelines.counts(RECORDS))


WRONG = ("", "x", "2026-13-45T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z", "2026-08-21", 0, 2.0, 10**40)


def changed(document: Any, within: Any) -> Iterator[Any]:
    """Return the document with one leaf or list of a wrong type, size or time."""
    for key in list(within) if isinstance(within, dict) else range(len(within)):
        value = within[key]
        wrong = [[]] if isinstance(value, list) else [None] if isinstance(value, dict) else WRONG
        for within[key] in wrong:
            yield copy.deepcopy(document)
        within[key] = value
        if isinstance(value, (dict, list)):
            yield from changed(document, value)


@pytest.mark.parametrize(
    ("target", "bug", "source"),
    [("roll", "ROLL-PAD-TO-LENGTH-BOOL-TO-INT", "git"), ("verl", "VERL-MASKED-MEAN-EMPTY-NAN", "pypi")],
)
def test_an_untrusted_history_is_rejected_or_shown_safely(target, bug, source, tmp_path):
    """Invalid dates, negative counts and empty lists are either rejected or can be shown."""
    place = tmp_path / f"{target}.jsonl"
    (record,) = (r for r in RECORDS if r["bug_id"] == bug and r["source"]["kind"] == source)
    whole = json.loads(json.dumps(history.fold(record)))
    heads = [f'{{"shared":"0","{name}":{json.dumps(whole.pop(name))}}}' for name in ("basis", "tags")]
    whole |= {"basis": "0", "tags": "0"}
    draw = Pages()._environment.get_template("macros.html").module.timeline  # type: ignore[attr-defined]
    refused = 0
    for document in changed(whole, whole):
        place.write_text("\n".join([*heads, json.dumps(document)]))
        try:
            (document,) = load_all(tmp_path)
        except SentinelError:
            refused += 1
            continue
        timelines.story(document), timelines.heading(document), timelines.row(document)
        timelines.overview([document]), timelines.counts([document])
        if document["releases"]:
            timelines.releases(document)
        life = life_of(Bug(target, "X", None, histories=(document,)))
        assert life is not None
        assert str(draw([life], "life") if life["until"] else "").count("<svg") == bool(life["until"])
    assert refused > 50
