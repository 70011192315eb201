"""Search a mirror's pull requests for the names that identify a bug, in their subjects and changed lines."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.fixes import Fix
from sentinel.sources import git_objects, gitbinary

#: A name that occurs in more than this many pull requests is ignored.
_MOST_PULLS = 400

#: The maximum number of search queries that are suggested to a person.
_MOST_SEARCHES = 6

#: The number of digits of a commit hash.
_SHA = 40


@dataclass(frozen=True)
class Similar:
    """A pull request that names what a bug names.

    :ivar state: ``open``, ``merged`` or ``closed``.
    """

    number: int
    state: str
    subject: str
    names: tuple[str, ...]


def terms(recipes: Sequence[Recipe], fix: Fix | None) -> list[str]:
    """Return the names that identify a bug: functions, settings, and names in backticks in its texts."""
    texts = [f"`{part}`" for recipe in recipes for part in recipe.boundary.split(".")[-2:] if not part.startswith("__")]
    if fix:
        texts += [fix.subject, fix.wrong, fix.cause, fix.fix, fix.reach]
    else:
        texts += [str(recipe.document.get(key) or "") for recipe in recipes for key in ("story", "title", "root_cause")]
    settings = (
        key for recipe in recipes for entry in recipe.affects if isinstance(entry, dict) for key in entry["when"]
    )
    texts += [f"`{key}`" for key in settings]
    quoted = (word for text in texts for part in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", part))
    subject = re.findall(r"\b(?=\w*[A-Z]\w*[A-Z])\w{3,}", " ".join([*texts[:1], *([fix.subject] if fix else [])]))
    found = dict.fromkeys([*subject, *quoted])
    return [word for word in found if len(word) > 2 and ("_" in word.strip("_") or not word.islower())]


def similar(git_dir: Path, branch: str, words: Sequence[str], files: Sequence[str], most: int) -> list[Similar]:
    """Return the pull requests with these names in changed lines or in the subject, the best match first.

    A rare name counts more than a frequent one, and a small change more than a large one.

    :param files: names of files without their folders. A change of such a file counts like a name.
    :param most: the maximum number of pull requests.
    """
    commits = _own_commits(git_dir, branch)
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b")
    changed: dict[int, Counter[str]] = defaultdict(Counter)
    pulls: Sequence[int] = ()
    for line in _patches(git_dir, commits, f"({'|'.join(words)})"):
        if len(line) == _SHA and line in commits:
            pulls = commits[line][0]
        elif line.startswith("+++ ") and (name := line.rpartition("/")[2]) in files:
            for number in pulls:
                changed[number][name] = 3
        elif line[:1] in ("+", "-") and line[:3] not in ("+++", "---"):
            names = dict.fromkeys(pattern.findall(line), 1)
            for number in pulls:
                changed[number].update({"": 1, **names})
    subjects: dict[int, list[str]] = defaultdict(list)
    for numbers, subject in commits.values():
        for number in numbers:
            subjects[number].append(subject)
    return _ranked(git_dir, branch, [*words, *files], changed, subjects)[:most]


def _own_commits(git_dir: Path, branch: str) -> dict[str, tuple[list[int], str]]:
    """Return commit -> (numbers of its pull requests, subject), for commits that are not on the branch."""
    heads = gitbinary.run_checked(git_dir, "for-each-ref", "--format=%(objectname) %(refname)", "refs/pull/*/head")
    by_sha: dict[str, list[int]] = defaultdict(list)
    by_ref: dict[str, str] = {}
    for sha, ref in map(str.split, heads.decode().splitlines()):
        by_sha[sha].append(int(ref.split("/")[2]))
        by_ref[ref] = sha
    outside = ["--glob=refs/pull/*/head", "--not", f"refs/heads/{branch}"]
    log = gitbinary.run_checked(git_dir, "log", "--no-merges", "--format=%H%x09%S%x09%s", *outside)
    rows = (line.split("\t", 2) for line in log.decode("utf-8", "replace").split("\n")[:-1])
    return {sha: (by_sha[by_ref[ref]], subject) for sha, ref, subject in rows if ref in by_ref}


def _patches(git_dir: Path, commits: Iterable[str], wanted: str) -> list[str]:
    """Return changed lines of Python files in these commits.

    Commits whose blobs the mirror lacks are left out.

    :param wanted: a pattern; files without a changed line that matches it are left out.
    """
    wild = {"GIT_LITERAL_PATHSPECS": "0"}

    def diff_trees(of: Iterable[str], *arguments: str) -> list[str]:
        command = ["diff-tree", "--stdin", "-r", "--root", "--no-renames", *arguments, "--", "*.py"]
        done = gitbinary.run(git_dir, *command, data="".join(f"{sha}\n" for sha in of).encode(), environment=wild)
        if done.status:
            raise Unavailable(done.reason)
        return done.out.decode("utf-8", "replace").split("\n")

    blobs: dict[str, set[str]] = defaultdict(set)
    commit = ""
    for line in diff_trees(commits, "--raw", "--no-abbrev"):
        if line.startswith(":"):
            blobs[commit].update(line.split(" ")[2:4])
        else:
            commit = line
    sizes = git_objects.sizes(git_dir, {blob for each in blobs.values() for blob in each})
    absent = {blob for blob, size in sizes.items() if size is None and blob.strip("0")}
    return diff_trees((sha for sha, each in blobs.items() if not each & absent), "-p", "-U0", f"-G{wanted}")


def _ranked(
    git_dir: Path, branch: str, words: Sequence[str], changed: dict[int, Counter[str]], subjects: dict[int, list[str]]
) -> list[Similar]:
    titles = {number: " ".join(dict.fromkeys(lines)) for number, lines in subjects.items()}
    named = {n: {w for w in words if re.search(rf"\b{re.escape(w)}\b", title, re.I)} for n, title in titles.items()}
    spread = Counter(word for number in titles for word in {*changed[number], *named[number]})
    weight = {word: math.log(len(titles) / spread[word]) for word in words if 0 < spread[word] <= _MOST_PULLS}
    scores = {}
    for number in titles:
        lines = changed[number]
        small = min(1.0, 300 / (lines[""] + 1))
        scores[number] = sum(
            weight[word] * (3 * (word in named[number]) + min(1.0, lines[word] / 3) * small) for word in weight
        )
    merged = _merged(git_dir, branch)
    open_ = set(_numbers(gitbinary.run_checked(git_dir, "for-each-ref", "--format=%(refname)", "refs/pull/*/merge")))
    found = []
    for number in sorted(scores, key=lambda number: (-scores[number], -number)):
        if not scores[number]:
            break
        state = "merged" if number in merged else "open" if number in open_ else "closed"
        own = tuple(word for word in weight if word in named[number] or changed[number][word])
        found.append(Similar(number, state, merged.get(number) or subjects[number][-1], own))
    return found


def _merged(git_dir: Path, branch: str) -> dict[int, str]:
    out = gitbinary.run_checked(git_dir, "log", "--format=%s", f"refs/heads/{branch}").decode("utf-8", "replace")
    pairs = ((re.search(r"\(#(\d+)\)$|^Merge pull request #(\d+)", line), line) for line in out.splitlines())
    return {int(match[1] or match[2]): line for match, line in pairs if match}


def _numbers(out: bytes) -> Iterable[int]:
    return (int(line.split("/")[2]) for line in out.decode().splitlines())


def searches(recipes: Sequence[Recipe], fix: Fix | None) -> list[str]:
    """Return queries for GitHub's search of issues and pull requests."""
    return terms(recipes, fix)[:_MOST_SEARCHES]
