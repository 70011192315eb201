"""Records to make a site of: evidence of a few bugs, changed and with a history where a test asks for it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.records.record import SCHEMA_VERSION
from sentinel.tools.site.building import build, write
from sentinel.tools.site.material import read

DATA = Path(__file__).parent / "data"
BUGS = ("roll/ROLL-AGGLOSS-TOKENMEAN-MASK", "slime/SLIME-OPSM-MIXED-ADVANTAGE-LEAK", "verl/VERL-REJECTED-ROW-GRPO")

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return few_reports(tmp_path / "reports")


def few_reports(folder: Path) -> Path:
    """A report folder with a few published bugs, and one law that a search found broken: as once committed."""
    shutil.copytree(DATA, folder)
    return folder


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return few_recipes(tmp_path / "recipes")


def few_recipes(folder: Path) -> Catalog:
    """What is shipped, with the recipes of these few bugs alone."""
    shipped = bundled_catalog()
    for place in BUGS:
        copy = folder / f"{place}.yaml"
        copy.parent.mkdir(parents=True)
        shutil.copy(shipped.recipe_folders[0] / f"{place}.yaml", copy)
    return replace(shipped, recipe_folders=(folder,))


@pytest.fixture(scope="session")
def few_records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Catalog]:
    """For tests that change nothing: the report folder, with a history, and the catalog."""
    folder = tmp_path_factory.mktemp("few")
    add_history(few_reports(folder / "reports"))
    return folder / "reports", few_recipes(folder / "recipes")


@pytest.fixture
def changed(reports: Path) -> Callable[[str, Change], Path]:
    """``changed(place, change)``: the evidence with a change written over it."""

    def over(place: str, change: Change) -> Path:
        file = next(iter(sorted(reports.glob(place))))
        document = json.loads(file.read_text())
        change(document)
        file.write_text(json.dumps(document))
        return file

    return over


@pytest.fixture
def history(reports: Path) -> Path:
    return add_history(reports)


def add_history(reports: Path) -> Path:
    """A record of a history beside the evidence: introduced, shipped, mended."""

    def commit(sha: str, day: str, subject: str = "", pull: int | None = None) -> dict[str, Any]:
        return {"sha": sha * 40, "date": f"{day}T12:00:00Z", "subject": subject, "pull": pull}

    code = {"begins": False, "origin": None}

    def change(what: str, at: dict[str, Any], after: dict[str, Any] | None) -> dict[str, Any]:
        return {"what": what, "commit": at, "after": after, "undecided": 0, "why": "", **code}

    first, begun = commit("a", "2025-01-01"), commit("b", "2025-03-01", "Aggregate <b>losses</b>", 12)
    last, mended, newest = (
        commit("c", "2025-08-01"),
        commit("d", "2025-09-01", "Mask the loss"),
        commit("e", "2026-01-01"),
    )
    introduced, fixed = change("introduced", begun, first), change("fixed", mended, last)

    def run(verdict: str, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return {"verdict": verdict, "kind": "", "reason": "", "commits": 5, "first": one, "last": other}

    def release(name: str, day: str, verdict: str) -> dict[str, Any]:
        return {"name": name, "commit": "f" * 40, "date": f"{day}T00:00:00Z", "verdict": verdict, "kind": ""}

    record = {
        "schema_version": SCHEMA_VERSION, "target": "roll", "bug_id": "ROLL-AGGLOSS-TOKENMEAN-MASK", "title": "",
        "laws": [],
        "boundary": "roll.utils.functionals.agg_loss", "basis": {}, "packages": {}, "commits": 15, "closures": 3,
        "source": {"kind": "git", "ref": "main", "head": "e" * 40, "walk": "first-parent", "since": "", "until": "",
                   "begins": []},
        "runs": [run("fixed", first, first), run("reproduced", begun, last), run("fixed", mended, newest)],
        "changes": [introduced, fixed],
        "spells": [{"introduced": introduced, "ended": fixed, "last": last, "days": 184,
                    "clock_went_backwards": False}],
        "releases": [release("v0.1", "2025-02-01", "fixed"), release("v0.2", "2025-05-01", "reproduced"),
                     release("v0.3", "2025-12-01", "fixed")],
    }  # fmt: skip
    file = reports / "history" / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK" / "git-main.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(record))
    return file


@pytest.fixture
def site(reports: Path, catalog: Catalog, tmp_path: Path) -> Callable[[], Path]:
    """``site()``: the site of the report folder as it is now."""

    def made() -> Path:
        write(tmp_path / "site", build(read(reports, catalog)))
        return tmp_path / "site"

    return made
