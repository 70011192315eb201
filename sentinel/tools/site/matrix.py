"""Build the table of bugs on the start page, with each bug's verdicts by version."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from sentinel.recipes.affects import in_text, read_affected
from sentinel.recipes.grades import count_bugs, grade, order, realism, root
from sentinel.records.history import state_of
from sentinel.tools.site.material import Bug, Evidence, Material
from sentinel.tools.site.story import chips

#: The letter in :attr:`Row.versions` for each state: ``x`` if the bug is present, ``-`` if not.
_LETTERS = {"reproduced": "x", "fixed": "-", "absent": "-"}
_PREFIX = re.compile(r"^(?:.*-)?v(?=\d)")


@dataclass(frozen=True)
class Row:
    """One bug in the table on the start page.

    :ivar chips: (label, evidence) pairs, with the labels of :func:`sentinel.tools.site.story.chips`.
    :ivar now: the verdict at upstream's main; empty if there is none.
    :ivar versions: one letter for each version of the table: ``x`` (present), ``-`` (absent) or ``?`` (unknown).
    """

    bug: Bug
    chips: tuple[tuple[str, Evidence], ...]
    now: str
    versions: str

    @property
    def severity(self) -> str:
        return str(self.bug.document.get("severity") or "")

    @property
    def realism(self) -> str:
        return realism(self.bug.document)

    @property
    def root(self) -> str:
        return root(self.bug.document)

    @property
    def grade(self) -> str:
        return grade(self.bug.document)

    @property
    def signal(self) -> str:
        return str(self.bug.document.get("signal") or "")

    @property
    def affects(self) -> str:
        """Return the recipe's ``affects`` as JSON, for the script of the page."""
        entries = [read_affected(entry) for entry in self.bug.document.get("affects") or ()]
        conditions = [[{name: _condition(of) for name, of in e.when.items()}, e.besides] for e in entries]
        return json.dumps(conditions, separators=(",", ":"))


@dataclass(frozen=True)
class Table:
    """The bugs of one target.

    :ivar versions: upstream's main, then the releases, with the newest first.
    :ivar commit: the short hash of the commit of main at which the recipes were run.
    """

    target: str
    versions: tuple[str, ...]
    commit: str
    rows: tuple[Row, ...]

    @property
    def now(self) -> Counter[str]:
        """Count the bugs with each verdict at upstream's main."""
        return Counter(row.now or "unknown" for row in self.rows)

    @property
    def counted(self) -> str:
        """Return the number of bugs as text, with the number of recipes in brackets."""
        return counted_rows(self.rows)


def counted_rows(rows: Sequence[Row]) -> str:
    """Return the number of bugs in rows as text, as :func:`~sentinel.recipes.grades.count_bugs` does."""
    return count_bugs({"target": row.bug.target, "root": row.root, "realism": row.realism} for row in rows)


def ranked(tables: Sequence[Table]) -> list[Row]:
    """Return all bugs, the most severe first. Bugs with equal severity are sorted by realism, and by whether they are
    present today."""
    rows = [row for table in tables for row in table.rows]
    return sorted(rows, key=lambda row: (*order(row.bug.document), row.now != "reproduced", row.bug.bug_id))


def tables(material: Material) -> list[Table]:
    return [_table(material, target) for target in material.targets if material.bugs_of(target)]


def _table(material: Material, target: str) -> Table:
    bugs, branch = material.bugs_of(target), material.branch(target)
    by_bug = {bug.bug_id: dict(_verdicts(bug, branch)) for bug in bugs}
    newest = branch.partition(":")[2]
    names = sorted({name for verdicts in by_bug.values() for name in verdicts} - {newest}, key=_release, reverse=True)
    versions = (newest, *names)
    commits = [
        str((evidence.document["checkout"] or {}).get("commit") or "") for bug in bugs if (evidence := bug.at(branch))
    ]
    rows = []
    for bug in bugs:
        today = bug.at(branch)
        letters = "".join(by_bug[bug.bug_id].get(name, "?") for name in versions)
        named = tuple((name, evidence) for name, evidence in chips(bug, branch) if name)
        rows.append(Row(bug, named, today.verdict if today else "", letters))
    return Table(target, versions, max(commits, default="")[:7], tuple(rows))


def _verdicts(bug: Bug, branch: str) -> Iterator[tuple[str, str]]:
    """Yield (version, letter) for each version with a verdict. A later pair replaces an earlier one."""
    # Histories of git come first, so that the verdict in a PyPI release replaces the verdict at its tag.
    for record in sorted(bug.histories, key=lambda record: str(record["source"]["kind"])):
        for release in record["releases"]:
            letter = _LETTERS.get(state_of(release["verdict"], release["kind"]) or "")
            if letter:
                yield _PREFIX.sub("", release["name"]), letter
    for evidence in bug.evidence:
        kind, _, name = evidence.ref.partition(":")
        letter = _LETTERS.get(state_of(evidence.verdict, evidence.document["kind"]) or "")
        if letter and (kind == "pypi" or evidence.ref == branch):
            yield name, letter


def _release(name: str) -> tuple[Any, ...]:
    try:
        return True, Version(name)
    except InvalidVersion:
        return False, name


def _condition(condition: Any) -> Any:
    return [_condition(each) for each in condition] if isinstance(condition, list) else in_text(condition)
