"""Read what the website is built from: evidence, recipes and histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel.errors import NothingExamined
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.triggers import also_broken_laws
from sentinel.records import history
from sentinel.reports.evidence import dumps
from sentinel.reports.lines import Recipes
from sentinel.reports.store import HISTORY, file_name, recorded
from sentinel.sources.home import read_json
from sentinel.targets.refs import Ref

Document = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Evidence:
    """One evidence document and the path of its file.

    :ivar place: the path of the document's file, relative to the report folder and to ``evidence/`` in the site.
    :ivar key: the file's stem, derived from the ref: ``git-f7d10f3dcb11``, ``git-main``, ``pypi-0.9.1``.
    :ivar text: the document as JSON.
    """

    document: Document
    place: str
    text: str

    @property
    def ref(self) -> str:
        return str(self.document["ref"])

    @property
    def key(self) -> str:
        return self.place.rpartition("/")[2].removesuffix(".json")

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def short(self) -> str:
        """Return the ref as pytest's item ids abbreviate it."""
        kind, _, name = self.ref.partition(":")
        return Ref("git", name).short if kind == "git" else self.ref

    @property
    def unexpected(self) -> bool:
        return self.document["expect"] not in (None, self.verdict)


def moves(ref: str) -> bool:
    """Return True if the code at a ref can change, as for a branch, a working tree or an environment."""
    kind, colon, name = ref.partition(":")
    return not colon or not Ref("pypi" if kind == "pypi" else "git", name).immutable


def brief(ref: str) -> str:
    """Format a ref as a column heading: a short hash, a version, or a branch."""
    kind, _, name = ref.partition(":")
    return Ref("git", name).short.removeprefix("git:") if kind == "git" else name or ref


@dataclass(frozen=True)
class Bug:
    """A known bug or a finding, with its evidence.

    :ivar bug_id: empty for a finding.
    :ivar recipe: the bug's recipe; None if it no longer exists, and for a finding.
    :ivar evidence: the evidence at the recipe's pins, in their order, followed by the evidence at other refs.
    :ivar histories: the bug's recorded histories, see :mod:`sentinel.records.history`.
    :ivar law: the law that a finding breaks; empty for a bug.
    :ivar where: the name of the evidence folder of a finding, which identifies the binding; empty for a bug.
    """

    target: str
    bug_id: str
    recipe: Recipe | None
    evidence: tuple[Evidence, ...] = ()
    histories: tuple[Document, ...] = ()
    law: str = ""
    where: str = ""

    @property
    def name(self) -> str:
        return self.bug_id or self.law.replace("_", " ")

    @property
    def page(self) -> str:
        """Return the path of the bug's page in the site."""
        if self.bug_id:
            return f"bugs/{file_name(self.target)}/{file_name(self.bug_id)}.html"
        return f"laws/{file_name(self.target)}/{file_name(self.where)}/{file_name(self.law)}.html"

    @property
    def document(self) -> Mapping[str, Any]:
        """Return the recipe as a document. If the recipe no longer exists, return its copy in the last evidence."""
        if self.recipe is not None:
            return self.recipe.document
        document: Mapping[str, Any] = self.evidence[-1].document["recipe"]["document"]
        return document

    @property
    def title(self) -> str:
        return self.recipe.title if self.recipe else str(self.evidence[-1].document["title"])

    @property
    def contract(self) -> str:
        return self.recipe.contract if self.recipe else str(self.evidence[-1].document["contract"])

    @property
    def boundary(self) -> str:
        return self.recipe.boundary if self.recipe else str(self.evidence[-1].document["boundary"]["written"])

    @property
    def laws(self) -> tuple[str, ...]:
        if self.recipe is not None:
            return self.recipe.laws
        written = self.document
        return tuple(name for name in (written.get("invariant") or self.law, *also_broken_laws(written)) if name)

    @property
    def upstream(self) -> Mapping[str, Any]:
        value: Mapping[str, Any] = self.recipe.upstream if self.recipe else self.evidence[-1].document["upstream"]
        return value

    def note(self, ref: str) -> str:
        """Return the recipe's note about the pin at a ref, or "" if there is none."""
        return next((pin.note for pin in (self.recipe.pins if self.recipe else ()) if str(pin.ref) == ref), "")

    def at(self, ref: str) -> Evidence | None:
        return next((evidence for evidence in self.evidence if evidence.ref == ref), None)


@dataclass(frozen=True)
class Material:
    """Everything from which a site is built.

    :ivar bugs: the known bugs of all targets with evidence, sorted. A bug itself may have no evidence.
    :ivar laws: the findings of searches.
    :ivar exports: bug for which ``sentinel contribute`` wrote a folder -> the text of its runner, or empty if there is
        none.
    :ivar notes: a line for each history that could not be read.
    :ivar changes: the results of ``sentinel diff --save`` and ``sentinel pulls --save``.
    :ivar coverage: the result of ``sentinel coverage --save``.
    """

    catalog: Catalog
    bugs: tuple[Bug, ...]
    laws: tuple[Bug, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    changes: Document = field(default_factory=dict)
    coverage: Document = field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        return sorted({bug.target for bug in (*self.bugs, *self.laws)})

    def branch(self, target: str) -> str:
        """Return the ref of the target's default branch, such as ``git:main``."""
        entry = self.catalog.targets.get(target)
        return f"git:{entry.branch if entry else 'main'}"

    def bugs_of(self, target: str) -> list[Bug]:
        return [bug for bug in self.bugs if bug.target == target]


def read(reports: Path, catalog: Catalog, exports: Path | None = None) -> Material:
    """Read all data for a site: evidence, recipes, histories and runners.

    :param reports: the folder of the evidence.
    :param exports: the folder that ``sentinel contribute`` wrote; None for no runners.
    :raises NothingExamined: if the folder does not exist or has no evidence.
    """
    if not reports.is_dir():
        raise NothingExamined(
            f"no such folder: {reports}; run pytest with --sentinel-target first, or name a folder with --reports DIR"
        )
    groups: dict[tuple[str, ...], list[Evidence]] = {}
    for path, document in recorded(reports, Recipes(catalog)).items():
        place = path.as_posix()
        alone = not document["bug_id"]
        about = ("laws", place.rpartition("/")[0]) if alone else ("bugs", document["target"], document["bug_id"])
        groups.setdefault(about, []).append(Evidence(document, place, dumps(document)))
    if not groups:
        raise NothingExamined(
            f"{reports} has no evidence; run pytest with --sentinel-target first, or name a folder with --reports DIR"
        )
    targets = {str(evidence.document["target"]) for group in groups.values() for evidence in group}
    recipes = {(recipe.target, recipe.bug_id): recipe for recipe in find_recipes(catalog) if recipe.target in targets}
    histories, notes = _read_histories(reports / HISTORY)
    bugs = {about: Bug(about[0], about[1], recipe) for about, recipe in recipes.items()}
    laws = []
    for (kind, *rest), group in sorted(groups.items()):
        if kind == "laws":
            first, folders = group[0].document, group[0].place.split("/")
            # If a boundary has several bindings, their folders have different names.
            where = folders[-3] if len(folders) > 3 else first["boundary"]["written"]
            laws.append(Bug(str(first["target"]), "", None, tuple(group), law=str(first["law"]), where=where))
            continue
        key = (rest[0], rest[1])
        bug = bugs.get(key) or Bug(*key, None)
        bugs[key] = replace(bug, evidence=_sort_by_pins(group, bug.recipe))
    placed = [replace(bug, histories=tuple(histories.get(about, ()))) for about, bug in sorted(bugs.items())]
    # these files are optional
    beside = (read_json(reports / f"{name}.json") or {} for name in ("changes", "coverage"))
    return Material(catalog, tuple(placed), tuple(laws), _exports(exports, placed), tuple(notes), *beside)


def _sort_by_pins(group: Sequence[Evidence], recipe: Recipe | None) -> tuple[Evidence, ...]:
    pins = [str(pin.ref) for pin in recipe.pins] if recipe else []

    def order(evidence: Evidence) -> tuple[int, str]:
        return (pins.index(evidence.ref) if evidence.ref in pins else len(pins), evidence.place)

    return tuple(sorted(group, key=order))


def _read_histories(folder: Path) -> tuple[dict[tuple[str, str], list[Document]], list[str]]:
    histories: dict[tuple[str, str], list[Document]] = {}
    notes: list[str] = []
    for document in history.load_all(folder, on_error=notes.append):
        histories.setdefault((document["target"], document["bug_id"]), []).append(document)
    return histories, notes


def _exports(folder: Path | None, bugs: Sequence[Bug]) -> dict[str, str]:
    """Return bug id -> text of the runner, for bugs with a folder of ``sentinel contribute``. The text may be empty."""
    runners: dict[str, str] = {}
    if folder is None:
        return runners
    for bug in bugs:
        own = folder / file_name(bug.bug_id)
        if own.is_dir() and not own.is_symlink():
            file = own / "run_validation.py"
            there = file.is_file() and not file.is_symlink()
            runners[bug.bug_id] = file.read_text(encoding="utf-8", errors="replace") if there else ""
    return runners
