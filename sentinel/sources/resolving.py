"""From a name (sha, short sha, tag, branch, ``pull/N/head``) to a commit."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.sources import git_objects, gitrefs
from sentinel.sources.gitbinary import GitError

#: Fetches a refspec into the mirror; the clause that says why that failed, or None.
Fetch = Callable[[str], str | None]

_PULL = re.compile(r"(?:refs/)?pull/([1-9][0-9]*)(?:/head)?")
_HEX = re.compile(r"[0-9a-f]{4,40}")
#: Where a short name is looked for, in this order; ``{}`` is the name.
_PLACES = ("refs/heads/{}", "refs/remotes/origin/{}", "refs/tags/{}", "refs/remotes/{}", "refs/pins/{}", "refs/{}")


def resolve(mirror: Path, target: str, name: str, pull: int | None, fetch: Fetch) -> str:
    """Give the full sha of the commit that a name stands for.

    Only what names a pull request is fetched: ``pull/N/head`` itself where the mirror does not have it, and, for a
    full sha that is absent, ``pull``, the pull request that the pin is said to come from."""
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
        raise Unavailable(f"{target}: {name} names {sha}, which is not a commit of the mirror")
    return commit


def _pull_head(mirror: Path, target: str, pull: int, fetch: Fetch) -> str:
    ref = f"refs/pull/{pull}/head"
    refs = gitrefs.read_refs(mirror)
    if ref not in refs:
        problem = fetch(f"+{ref}:{ref}")
        if problem:
            raise Unavailable(f"{target}: pull/{pull}/head is not in the mirror and {problem}")
        refs = gitrefs.read_refs(mirror)
    return _peel(mirror, target, f"pull/{pull}/head", refs[ref])


def _sha_of_pull(mirror: Path, target: str, sha: str, pull: int | None, fetch: Fetch) -> str:
    if pull is None:
        raise Unavailable(
            f"{target}: commit {sha} is not in the mirror; run `sentinel mirror update {target}`, "
            "or give the pull request it belongs to (git:pull/N/head)"
        )
    problem = fetch(f"+refs/pull/{pull}/head:refs/pull/{pull}/head")
    if problem is None and git_objects.commit_of(mirror, sha) is None:
        # The pull request was rebased since: hosts still give a commit that is asked for by its name.
        problem = fetch(f"+{sha}:refs/pins/{sha}")
    if problem is None and git_objects.commit_of(mirror, sha) == sha:
        return sha
    raise Unavailable(
        f"{target}: commit {sha} is not in the mirror, and looking for it under pull request {pull}, "
        f"{problem or 'it was not there either'}"
    )


def _unknown(target: str, name: str, refs: dict[str, str]) -> str:
    short = {re.sub(r"^refs/(heads|tags|remotes/origin|remotes)/", "", ref) for ref in refs}
    near = difflib.get_close_matches(name, sorted(n for n in short if not n.startswith("refs/")), n=3)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    update = f"`sentinel mirror update {target}` fetches what is new"
    return f"{target}: the mirror has no branch, tag or commit {name!r}{hint} ({update})"
