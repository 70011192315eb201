"""Fixtures: records for a site with a few bugs; tests change them and add histories."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.tools.site.building import build, write
from sentinel.tools.site.material import read

DATA = Path(__file__).parent / "data"
BUGS = ("roll/ROLL-AGGLOSS-TOKENMEAN-MASK", "slime/SLIME-OPSM-MIXED-ADVANTAGE-LEAK", "verl/VERL-REJECTED-ROW-GRPO")

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return few_reports(tmp_path / "reports")


def few_reports(folder: Path) -> Path:
    """A report folder with a few published bugs and one violated law, in the old form."""
    shutil.copytree(DATA, folder)
    return folder


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return few_recipes(tmp_path / "recipes")


def few_recipes(folder: Path) -> Catalog:
    """The bundled catalog with only the recipes of these bugs."""
    shipped = bundled_catalog()
    for place in BUGS:
        copy = folder / f"{place}.yaml"
        copy.parent.mkdir(parents=True)
        shutil.copy(shipped.recipe_folders[0] / f"{place}.yaml", copy)
    return replace(shipped, recipe_folders=(folder,))


@pytest.fixture(scope="session")
def few_records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Catalog]:
    """A report folder with a history, and the catalog, shared by the tests that do not change them."""
    folder = tmp_path_factory.mktemp("few")
    add_history(few_reports(folder / "reports"))
    return folder / "reports", few_recipes(folder / "recipes")


@pytest.fixture
def changed(reports: Path) -> Callable[[str, Change], Path]:
    """Return a function that writes a change over an evidence file."""

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
    """Add a history: introduced, released, fixed."""

    def commit(sha: str, day: str, subject: str = "", **pull: int) -> dict[str, Any]:
        return {"sha": sha * 40, "date": f"{day}T12:00:00Z", "subject": subject, **pull}

    first, newest = commit("a", "2025-01-01"), commit("e", "2026-01-01")
    begun, last = commit("b", "2025-03-01", "Aggregate <b>losses</b>", pull=12), commit("c", "2025-08-01")
    mended = commit("d", "2025-09-01", "Mask the loss")
    days = {"v0.1": "2025-02-01", "v0.2": "2025-05-01", "v0.3": "2025-12-01"}
    line = {
        "bug_id": "ROLL-AGGLOSS-TOKENMEAN-MASK", "recipe": "", "closures": 3, "basis": "0", "tags": "0",
        "source": {"kind": "git", "ref": "main", "head": "e" * 40, "walk": "first-parent"},
        "runs": [{"verdict": "fixed", "commits": 5, "first": first},
                 {"verdict": "reproduced", "commits": 5, "first": begun, "last": last},
                 {"verdict": "fixed", "commits": 5, "first": mended, "last": newest}],
        "releases": {"fixed": ["v0.1", "v0.3"], "reproduced": ["v0.2"]},
    }  # fmt: skip
    tags = [[name, "f" * 40, f"{day}T00:00:00Z"] for name, day in days.items()]
    file = reports / "history" / "roll.jsonl"
    file.parent.mkdir(parents=True)
    lines = ({"shared": "0", "basis": {}}, {"shared": "0", "tags": tags}, line)
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def site(reports: Path, catalog: Catalog, tmp_path: Path) -> Callable[[], Path]:
    """Return a function that builds the site of the report folder."""

    def made() -> Path:
        write(tmp_path / "site", build(read(reports, catalog)))
        return tmp_path / "site"

    return made
