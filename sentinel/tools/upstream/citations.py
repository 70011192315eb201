"""Check the pull requests and hashes that recipes, fixes and pages cite. Only mirrors are read, without the network.

A mirror has every pull request (``refs/pull/N/head``) and no issues. If a cited number is not a pull request, the text
must therefore call it an issue, and the person who sends the page looks it up.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

from sentinel.sources import gitbinary
from sentinel.targets import Target

_HASH = r"(?<![\w/:#=-])(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}(?![\w-])"
_CITATION = re.compile(
    r"https://github\.com/(?P<site>[\w.-]+/[\w.-]+)/(?P<folder>pull|issues|commit|blob)/(?P<what>\w+)"
    r"|(?:(?P<name>[A-Za-z][\w.-]*(?:/[\w.-]+)??)(?:'s)?(?P<kind>,? (?:issues?|pull requests?))? ?)?"
    r"(?<!&)#(?P<number>\d+)\b"
    rf"|(?P<at>@)?(?P<hash>(?<=@)[0-9a-f]{{7,40}}\b|(?<=git:)[0-9a-f]{{40}}|{_HASH})"
)
_JOINED = re.compile(rf"({_HASH}) \((?:#(\d+)\b)?(?:, )?(\d{{4}}-\d\d-\d\d)?")

#: Lines whose hashes are not checked: digests, and the header lines of a patch.
_OTHER_HASHES = re.compile(r"sha256|digest|^index |^From ")


@dataclass(frozen=True)
class Citation:
    """A pull request, issue or hash that a text cites.

    :ivar place: ``file:line``.
    :ivar where: the target whose mirror was searched; if no mirror was searched, the repository as the text names it.
    :ivar what: ``#N`` or a hash.
    :ivar problem: why the citation is wrong; empty if it is right, or if no mirror can resolve it.
    :ivar subject: the subject line of the commit or pull request.
    :ivar unknown: why no mirror can resolve it: the number is an issue, is newer than the mirror, or belongs to
        another repository; otherwise empty.
    """

    place: str
    where: str
    what: str
    problem: str = ""
    subject: str = ""
    unknown: str = ""


class Numbers:
    """The pull requests and git objects of one mirror.

    :param mirror: the mirror's git directory.
    :param branch: the default branch.
    """

    def __init__(self, mirror: Path, branch: str) -> None:
        self._mirror, self._branch = mirror, branch
        self._objects: dict[str, tuple[str, str, str]] = {}

    @cached_property
    def pulls(self) -> Mapping[int, str]:
        """Return pull request -> subject of its merged commit or, if it was not merged, of its head."""
        heads = self._git("for-each-ref", "--format=%(refname) %(subject)", "refs/pull/*/head").splitlines()
        subjects = {int(line.split("/")[2]): line.partition(" ")[2] for line in heads}
        for line in reversed(self._git("log", "--format=%s", f"refs/heads/{self._branch}").splitlines()):
            for number in re.findall(r"\(#(\d+)\)$|^Merge pull request #(\d+)", line):
                subjects[int(number[0] or number[1])] = line
        return subjects

    def object(self, name: str) -> tuple[str, str, str]:
        """Return type, dates and subject of a git object. All three are empty if the mirror lacks it.

        The dates are the committer date and the author date, separated by a space. Only commits have dates and a
        subject; for other objects these strings are empty.
        """
        if name not in self._objects:
            found = gitbinary.run(self._mirror, "cat-file", "-t", name)
            kind, day, subject = found.out.decode().strip() if not found.status else "", "", ""
            if kind == "commit":
                day, _, subject = self._git("log", "-1", "--format=%cs %as%x09%s", name).strip().partition("\t")
            self._objects[name] = kind, day, subject
        return self._objects[name]

    def belongs(self, name: str, number: int) -> bool:
        """Return True if a commit is one of a pull request's own, or the commit in which it was merged."""
        subject = self.object(name)[2]
        if re.search(rf"\(#{number}\)|pull request #{number}\b", subject):
            return True
        head = f"refs/pull/{number}/head"
        return not gitbinary.run(self._mirror, "merge-base", "--is-ancestor", name, head).status

    def _git(self, *arguments: str) -> str:
        return gitbinary.run_checked(self._mirror, *arguments).decode("utf-8", "replace")


def citations(
    file: str, text: str, own: str, targets: Mapping[str, Target], numbers: Mapping[str, Numbers]
) -> Iterator[Citation]:
    """Resolve each citation in a text.

    :param file: the name of the text's file, for :attr:`Citation.place`.
    :param own: the target to which a number without a repository belongs.
    :param numbers: maps each target that has a mirror to the mirror.
    """
    by_name = {_plain(name): target.name for target in targets.values() for name in _names(target)}
    for count, line in enumerate(map(html.unescape, text.splitlines()), 1):
        place = f"{file}:{count}"
        if _OTHER_HASHES.search(line):
            continue
        before, end = own, -1
        for match in _CITATION.finditer(line):
            written = match["site"] or match["name"] or ""
            target = by_name.get(_plain(written)) or ("" if "/" in written else own)
            if match["hash"] and line[end : match.start()] == " (":  # as in: verl#2377 (5cbad8379)
                target = before
            before, end = target, match.end()
            if target in numbers:
                yield from _resolved(place, target, match, numbers[target])
            else:
                what = f"#{match['number']}" if match["number"] else match["what"] or match["hash"]
                yield Citation(place, target or written, what, unknown="of another repository")
        if own in numbers:
            yield from _joined(place, own, line, numbers[own])


def _resolved(place: str, target: str, match: re.Match[str], mirror: Numbers) -> Iterator[Citation]:
    name = match["what"] or match["hash"]
    if match["number"] or match["folder"] in ("pull", "issues"):
        number = int(match["number"] or name)
        subject = mirror.pulls.get(number)
        is_issue = match["folder"] == "issues" or "issue" in (match["kind"] or match["name"] or "").lower()
        what = f"#{number}"
        if subject is not None:
            problem = f"{what} is a pull request, not an issue: {subject}" if is_issue else ""
            yield Citation(place, target, what, problem, subject)
        elif is_issue or number > max(mirror.pulls, default=0):
            yield Citation(place, target, what, unknown="an issue" if is_issue else "newer than the mirror")
        else:
            problem = f"{what} is not a pull request of {target}; if it is an issue, write `issue {what}`"
            yield Citation(place, target, what, problem)
    elif match["hash"] or match["folder"] == "commit" or re.fullmatch(r"[0-9a-f]{7,40}", name):
        kind, _, subject = mirror.object(name)
        yield Citation(place, target, name, "" if kind else f"the mirror of {target} has no {name}", subject or kind)


def _joined(place: str, own: str, line: str, mirror: Numbers) -> Iterator[Citation]:
    """Check citations of the form ``HASH (#N, DATE)``.

    The commit must belong to the pull request. The date may be one day off, because it depends on the time zone.
    """
    for name, number, day in _JOINED.findall(line):
        kind, when, subject = mirror.object(name)
        if kind != "commit":
            continue
        if number and not mirror.belongs(name, int(number)):
            yield Citation(place, own, name, f"{name} does not belong to #{number}: {subject}")
        days = [abs((date.fromisoformat(day) - date.fromisoformat(one)).days) for one in when.split() if day]
        if days and min(days) > 1:
            yield Citation(
                place, own, name, f"{name} is from {' or '.join(dict.fromkeys(when.split()))}, not from {day}"
            )


def _names(target: Target) -> Iterable[str]:
    repository = target.repository.removesuffix(".git").partition("github.com/")[2]
    return filter(None, (target.name, repository, repository.rpartition("/")[2]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9/]", "", name.lower())
