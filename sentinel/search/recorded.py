"""Scenarios that a baseline records of laws, for a search to look at again.

What a short search finds is a matter of luck, and of the release of the library that draws. Whether what was found is
still there must not be: a nightly run would call a bug fixed that nobody has touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import Subject
from sentinel.errors import SentinelError
from sentinel.laws.law import Law
from sentinel.recipes import load_copy
from sentinel.recipes.catalog import Catalog
from sentinel.reports.evidence import ref_text
from sentinel.reports.store import below, law_folder, load
from sentinel.targets.refs import Ref


class Recorded:
    """:param baseline: a folder of evidence."""

    def __init__(self, baseline: Path, catalog: Catalog) -> None:
        self._baseline, self._catalog = baseline, catalog

    def variants(self, target: str, subject: Subject, laws: Iterable[Law], ref: Ref) -> dict[Law, Mapping[str, Inputs]]:
        """The scenarios that broke laws at this ref when they were recorded; without the laws of which none is."""
        found = {law: self._scenario(target, subject, law, ref) for law in laws}
        return {law: variants for law, variants in found.items() if variants is not None}

    def _scenario(self, target: str, subject: Subject, law: Law, ref: Ref) -> Mapping[str, Inputs] | None:
        for file in below(self._baseline, law_folder(target, subject.name, law.name)):
            try:
                document = load(file)
                if document["verdict"] == "reproduced" and document["ref"] == ref_text(ref):
                    return load_copy(document["recipe"]["document"], self._catalog).variants
            except SentinelError:  # who compares with the baseline says what is wrong with it
                continue
        return None
