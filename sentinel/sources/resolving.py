"""Find the commit for a name: full or short hash, tag, branch, or ``pull/N/head``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.sources import git_objects, gitrefs
from sentinel.sources.gitbinary import GitError

#: A function that fetches a refspec into the mirror. Returns None, or the reason of a failure as a clause.
Fetch = Callable[[str], str | None]

_PULL = re.compile(r"(?:refs/)?pull/([1-9][0-9]*)(?:/head)?")
_HEX = re.compile(r"[0-9a-f]{4,40}")
#: The refs that a short name may mean, in this order; ``{}`` is the name.
_PLACES = ("refs/heads/{}", "refs/remotes/origin/{}", "refs/tags/{}", "refs/remotes/{}", "refs/pins/{}", "refs/{}")


def resolve(mirror: Path, target: str, name: str, pull: int | None, fetch: Fetch) -> str:
    """Return the full hash of the commit that a name refers to.

    If the mirror lacks the name ``pull/N/head``, this ref is fetched. If the mirror lacks a full hash, the pull request
    with the number ``pull`` is fetched. Nothing else is fetched.

    :raises Unavailable: if the mirror has no such commit; the message suggests similar names.
    """
    refs = gitrefs.read_refs(mirror)
    match = _PULL.fullmatch(name)
    if match:
        return _pull_head(mirror, target, int(match.group(1)), fetch)
    for full in (name, *(place.format(name) for place in _PLACES)):
        if full in refs:
            return _peel(mirror, target, name, refs[full])
    if name == "HEAD":
        head = gitrefs.head_branch(mirror)
        if head in refs:
            return _peel(mirror, target, name, refs[head])
    if _HEX.fullmatch(name):
        try:
            commit = git_objects.commit_of(mirror, name)
        except GitError as error:
            raise Unavailable(f"{target}: {error}") from error
        if commit is None and gitrefs.is_sha(name):
            return _sha_of_pull(mirror, target, name, pull, fetch)
        if commit is not None:
            return commit
    raise Unavailable(_unknown(target, name, refs))


def _peel(mirror: Path, target: str, name: str, sha: str) -> str:
    commit = git_objects.commit_of(mirror, sha)
    if commit is None:
        raise Unavailable(f"{target}: {name} refers to {sha}, which is not a commit in the mirror")
    return commit


def _pull_head(mirror: Path, target: str, pull: int, fetch: Fetch) -> str:
    ref = f"refs/pull/{pull}/head"
    refs = gitrefs.read_refs(mirror)
    if ref not in refs:
        problem = fetch(f"+{ref}:{ref}")
        if problem:
            raise Unavailable(f"{target}: pull/{pull}/head is not in the mirror, and {problem}")
        refs = gitrefs.read_refs(mirror)
    return _peel(mirror, target, f"pull/{pull}/head", refs[ref])


def _sha_of_pull(mirror: Path, target: str, sha: str, pull: int | None, fetch: Fetch) -> str:
    if pull is None:
        raise Unavailable(
            f"{target}: commit {sha} is not in the mirror; run `sentinel mirror update {target}`, "
            "or name its pull request (git:pull/N/head)"
        )
    problem = fetch(f"+refs/pull/{pull}/head:refs/pull/{pull}/head")
    if problem is None and git_objects.commit_of(mirror, sha) is None:
        # The pull request was rebased, but hosts still serve a commit that is requested by its full hash.
        problem = fetch(f"+{sha}:refs/pins/{sha}")
    if problem is None and git_objects.commit_of(mirror, sha) == sha:
        return sha
    raise Unavailable(
        f"{target}: commit {sha} is not in the mirror, and was not found in pull request {pull}"
        f"{f': {problem}' if problem else ''}"
    )


def _unknown(target: str, name: str, refs: dict[str, str]) -> str:
    short = {re.sub(r"^refs/(heads|tags|remotes/origin|remotes)/", "", ref) for ref in refs}
    near = difflib.get_close_matches(name, sorted(n for n in short if not n.startswith("refs/")), n=3)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    update = f"`sentinel mirror update {target}` fetches new ones"
    return f"{target}: the mirror has no branch, tag or commit {name!r}{hint} ({update})"
