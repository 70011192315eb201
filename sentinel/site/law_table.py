"""Which law is checked at which boundary, and what is known against it: bugs and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sentinel.reports.store import file_name
from sentinel.search.checks import subjects
from sentinel.site.material import Bug, Material
from sentinel.targets import Dialect

#: ``bug``: a recipe or a search shows it broken at upstream's newest; ``mended``: known bugs, none of them there now;
#: ``dialect``: the framework means it; ``checked``: nothing is recorded against it; ``none``: the law is not about it.
State = Literal["bug", "mended", "dialect", "checked", "none"]


@dataclass(frozen=True)
class Checked:
    """One law at one boundary.

    :ivar bugs: the known bugs there that break it.
    :ivar finding: what a search found there, where that is recorded.
    """

    law: str
    state: State
    bugs: tuple[Bug, ...] = ()
    finding: Bug | None = None


@dataclass(frozen=True)
class Boundary:
    """:ivar note: why no law is checked there."""

    name: str
    contract: str
    cells: tuple[Checked, ...]
    note: str = ""


@dataclass(frozen=True)
class Coverage:
    """:ivar unbound: function -> why the adapter leaves it out."""

    target: str
    laws: tuple[str, ...]
    boundaries: tuple[Boundary, ...]
    unbound: Mapping[str, str]

    @property
    def checks(self) -> int:
        return sum(cell.state != "none" for boundary in self.boundaries for cell in boundary.cells)


def coverages(material: Material) -> list[Coverage]:
    """Give the coverage of each target that has an adapter."""
    return [_coverage(material, target) for target in material.targets if target in material.catalog.targets]


def _coverage(material: Material, name: str) -> Coverage:
    catalog = material.catalog
    target = catalog.targets[name]
    found, omitted = subjects(catalog, name)
    names = {id(subject.binding): subject.name for subject in found}
    searched = {id(subject.binding): {law.name for law in subject.laws} for subject in found}
    reasons = {item.boundary: item.reason for item in omitted if not item.law}
    laws = tuple(law for law in catalog.laws if any(law in of for of in searched.values()))
    findings = {(bug.where, bug.law): bug for bug in material.laws if bug.target == name}
    boundaries = []
    for binding in target.bindings:
        bugs = [b for b in material.bugs_of(name) if b.boundary in binding.paths and b.contract == binding.contract]
        where = file_name(names.get(id(binding), binding.boundary))
        cells = tuple(
            _checked(
                law,
                law in searched.get(id(binding), ()),
                [bug for bug in bugs if law in bug.laws],
                findings.get((where, law)),
                binding.dialects,
                material.branch(name),
            )
            for law in laws
        )
        note = "" if id(binding) in searched else reasons.get(binding.boundary, "")
        boundaries.append(Boundary(binding.boundary, binding.contract, cells, note))
    return Coverage(name, laws, tuple(boundaries), dict(sorted(target.unbound.items())))


def _checked(
    law: str, searched: bool, bugs: list[Bug], finding: Bug | None, dialects: tuple[Dialect, ...], branch: str
) -> Checked:
    there = any((seen := bug.at(branch)) is not None and seen.verdict == "reproduced" for bug in bugs)
    broken = finding is not None and any(seen.verdict == "reproduced" for seen in finding.seen)
    state: State = (
        "bug" if there or broken
        else "dialect" if any(dialect.name == law for dialect in dialects)
        else "mended" if bugs
        else "checked" if searched
        else "none"
    )  # fmt: skip
    return Checked(law, state, tuple(bugs), finding)
