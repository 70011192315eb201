"""List a branch's commits and the release tags of a mirror."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.sources.gitbinary import run, run_checked

_FORMAT = "%H%x00%T%x00%P%x00%at%x00%s%x00"
_RELEASE = re.compile(r"(?:[A-Za-z]+[-_/])?v?\d+(\.\d+)+([._-]?(a|b|rc|alpha|beta|post)?[._-]?\d*)*")
_PULL = re.compile(r"\(#(\d{1,9})\)\s*$|^Merge pull request #(\d{1,9}) ", re.ASCII)
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
#: Time limit in seconds for searching the history of a file.
_PATIENCE = 20
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Commit:
    """A commit of a mirror.

    :ivar tree: the object name of its tree.
    :ivar date: the author date in UTC, ISO 8601. Dates along a branch need not be in order.
    :ivar pull: the number of the pull request that the subject names, or None.
    """

    sha: str
    tree: str
    parents: tuple[str, ...]
    date: str
    subject: str

    @property
    def pull(self) -> int | None:
        match = _PULL.search(self.subject)
        return int(match.group(1) or match.group(2)) if match else None


@dataclass(frozen=True)
class Tag:
    """A tag whose name is a version."""

    name: str
    commit: Commit


def history(mirror: Path, head: str, since: str | None = None, until: str | None = None) -> list[Commit]:
    """Return the commits of a branch along first parents, oldest first.

    :param head: the branch, or its last commit.
    :param since: the full hash of the commit to begin with, or a day: begin with the first commit on or after this day.
    :param until: a day: end with the last commit on or before this day.
    """
    span = [head, f"^{since}"] if since and not _DAY.fullmatch(since) else [head]
    commits = _read(mirror, "--topo-order", "--reverse", "--first-parent", *span)
    if len(span) == 2:
        commits = [*_read(mirror, "--no-walk", span[1][1:]), *commits]
    elif since:
        commits = commits[next((n for n, commit in enumerate(commits) if commit.date[:10] >= since), len(commits)) :]
    if until:
        commits = commits[: max((n + 1 for n, commit in enumerate(commits) if commit.date[:10] <= until), default=0)]
    return commits


class Lineage:
    """Decides whether a verdict that was measured at one commit may be reused at another.

    A commit's code runs in the process that reports the observation, so it could forge the report. Only upstream's own
    branch is trusted: a verdict from a commit of this branch may be reused at every commit. A verdict from any other
    commit, such as the head of a pull request, may be reused only at descendants of this commit that are not on
    upstream's branch and have the same files in all packages.
    """

    def __init__(self, mirror: Path, head: str | None) -> None:
        """List the commits of upstream's own branch, whose head is ``head`` (None if the mirror lacks the branch)."""
        self._mirror = mirror
        self._outside = (f"^{head}",) if head else ()
        self._own = self._listed(head) if head else frozenset()
        self._apart: dict[str, frozenset[str]] = {}

    def is_own(self, commit: str) -> bool:
        """Return True if a commit is on upstream's main branch, or if that branch is unknown."""
        return commit in self._own or not self._own

    def vouches(self, source: str, commit: str) -> bool:
        """Return True if a verdict that was measured at ``source`` may be reused at ``commit``."""
        if source == commit or source in self._own:
            return True
        if commit in self._own:
            return False
        if commit not in self._apart:
            self._apart[commit] = self._listed(commit, *self._outside)
        return source in self._apart[commit]

    def _listed(self, *span: str) -> frozenset[str]:
        return frozenset(run_checked(self._mirror, "rev-list", *span, "--").decode("ascii", "replace").split())


def is_day(text: str) -> bool:
    """Return True if a text is a date such as ``2026-08-21``, False if it has another form.

    :raises SentinelError: if the text has the form of a date but is not a valid one.
    """
    if not _DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        raise SentinelError(f"not a valid day: {text!r}; write it as 2026-08-21") from None
    return True


def commit(mirror: Path, sha: str) -> Commit:
    """Return the commit with this full hash."""
    return _read(mirror, "--no-walk", sha)[0]


def releases(mirror: Path) -> list[Tag]:
    """Return the tags that are version numbers, sorted by commit date, without development builds."""
    shape = "%(refname)%00%(objecttype) %(objectname)%00%(*objecttype) %(*objectname)"
    out = run_checked(mirror, "for-each-ref", f"--format={shape}", "refs/tags")
    sha_of: dict[str, str] = {}
    for line in out.decode("utf-8", "replace").split("\n"):
        if line.count("\0") != 2:
            continue
        name, tag, peeled = line.split("\0")
        name = name.removeprefix("refs/tags/")
        kind, _, sha = (peeled.strip() or tag).partition(" ")
        if _RELEASE.fullmatch(name) and kind == "commit":
            sha_of[name] = sha
    if not sha_of:
        return []
    by_sha = {commit.sha: commit for commit in _read(mirror, "--no-walk=unsorted", *sorted(set(sha_of.values())))}
    tags = [Tag(name, by_sha[sha]) for name, sha in sha_of.items() if sha in by_sha]
    return sorted(tags, key=lambda tag: (tag.commit.date, tag.name))


def _read(mirror: Path, *arguments: str) -> list[Commit]:
    out = run_checked(mirror, "log", f"--format=tformat:{_FORMAT}", *arguments, "--")
    fields = out.decode("utf-8", "replace").split("\0")
    commits = []
    for sha, tree, parents, seconds, subject in (fields[n : n + 5] for n in range(0, len(fields) - 5, 5)):
        commits.append(Commit(sha.strip(), tree, tuple(parents.split()), _utc(seconds), subject))
    return commits


def _utc(seconds: str) -> str:
    try:
        text = datetime.fromtimestamp(int(seconds), timezone.utc).strftime(_MOMENT)
    except (ValueError, OverflowError, OSError):  # git accepts every number as a date
        text = ""
    return text if is_moment(text) else datetime.fromtimestamp(0, timezone.utc).strftime(_MOMENT)


def is_moment(text: str) -> bool:
    """Return True if a text is a date and time as in :attr:`Commit.date`, between the years 1970 and 2199."""
    try:
        moment = datetime.strptime(text, _MOMENT)
    except ValueError:
        return False
    return 1970 <= moment.year < 2200 and moment.strftime(_MOMENT) == text


def existed(mirror: Path, commit: str, paths: Sequence[str], name: str = "") -> bool | None:
    """Return True if this commit or one of its ancestors changed one of these files.

    :param name: the name of a function, class, import or variable. If it is given, only changes count that add or
        remove its definition.
    :returns: None if git fails (for example because the mirror lacks the commit) or exceeds the time limit.
    """
    bound = f"(def|class) +{name}[^a-zA-Z0-9_]|import.*[^a-zA-Z0-9_]{name}|^ *{name} *[:=]"
    pickaxe = ["--pickaxe-regex", "-S", bound] if name else []
    finished = run(mirror, "log", "-1", "--format=%H", *pickaxe, commit, "--", *paths, seconds=_PATIENCE)
    return bool(finished.out.strip()) if finished.status == 0 else None


def merge_base(mirror: Path, one: str, other: str) -> str | None:
    """Return the merge base of two commits, or None if they have no common history in this mirror."""
    finished = run(mirror, "merge-base", one, other)
    return finished.out.decode().split()[0] if finished.status == 0 else None
