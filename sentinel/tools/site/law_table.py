"""Build tables of known bugs and findings, with one row per boundary and one column per law."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sentinel.reports.store import file_name
from sentinel.search.checks import subjects
from sentinel.targets import Dialect
from sentinel.tools.site.material import Bug, Material


def law_tables(material: Material) -> Iterator[dict[str, Any]]:
    """Yield a table for each target, with one row per boundary and one cell per law."""
    for name in material.targets:
        if name in material.catalog.targets:
            yield _law_table(material, name)


def _law_table(material: Material, name: str) -> dict[str, Any]:
    catalog = material.catalog
    target = catalog.targets[name]
    searchable, omitted = subjects(catalog, name)
    names = {id(subject.binding): subject.name for subject in searchable}
    searched = {id(subject.binding): {law.name for law in subject.laws} for subject in searchable}
    reasons = {item.boundary: item.reason for item in omitted if not item.law}
    laws = [law for law in catalog.laws if any(law in of for of in searched.values())]
    findings = {(bug.where, bug.law): bug for bug in material.laws if bug.target == name}
    boundaries: list[dict[str, Any]] = []
    for binding in target.bindings:
        bugs = [b for b in material.bugs_of(name) if b.boundary in binding.paths and b.contract == binding.contract]
        where = file_name(names.get(id(binding), binding.boundary))
        cells = []
        for law in laws:
            breaking, finding = [bug for bug in bugs if law in bug.laws], findings.get((where, law))
            checked = law in searched.get(id(binding), ())
            state = _state(law, checked, breaking, finding, binding.dialects, material.branch(name))
            cells.append({"law": law, "state": state, "bugs": breaking, "finding": finding})
        note = "" if id(binding) in searched else reasons.get(binding.boundary, "")
        boundaries.append({"name": binding.boundary, "contract": binding.contract, "cells": cells, "note": note})
    checks = sum(cell["state"] != "none" for boundary in boundaries for cell in boundary["cells"])
    return {"target": name, "laws": laws, "boundaries": boundaries, "checks": checks}


def _state(
    law: str, searched: bool, bugs: list[Bug], finding: Bug | None, dialects: tuple[Dialect, ...], branch: str
) -> str:
    """Return the state of a cell: ``bug`` (present today), ``mended`` (known bugs, none present today), ``dialect``,
    ``checked`` (no known bug) or ``none`` (not checked)."""
    there = any((evidence := bug.at(branch)) is not None and evidence.verdict == "reproduced" for bug in bugs)
    broken = finding is not None and any(evidence.verdict == "reproduced" for evidence in finding.evidence)
    return (
        "bug" if there or broken
        else "dialect" if any(dialect.name == law for dialect in dialects)
        else "mended" if bugs
        else "checked" if searched
        else "none"
    )  # fmt: skip
