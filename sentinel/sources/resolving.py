"""From a name (sha, short sha, tag, branch, ``pull/N/head``) to a commit."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import gitrefs, objects
from sentinel.sources.gitbinary import GitError
from sentinel.sources.home import Progress
from sentinel.sources.urls import redacted
from sentinel.targets import Target

if TYPE_CHECKING:
    from sentinel.sources.mirrors import MirrorStore

_PULL = re.compile(r"(?:refs/)?pull/([1-9][0-9]*)(?:/head)?")
_HEX = re.compile(r"[0-9a-f]{4,40}")
#: Where a short name is looked for, in this order; ``{}`` is the name.
_PLACES = ("refs/heads/{}", "refs/remotes/origin/{}", "refs/tags/{}", "refs/remotes/{}", "refs/pins/{}", "refs/{}")


def resolve(
    store: MirrorStore, target: Target, name: str, *, pull: int | None = None, progress: Progress | None = None
) -> str:
    """The full sha of the commit that a name stands for.

    Only what names a pull request is fetched: ``pull/N/head`` itself where the mirror does not have it, and, for a
    full sha that is absent, the pull request that it is said to come from.

    :param pull: the pull request that a pin's sha comes from.
    :raises Unavailable: where there is no mirror, the name is unknown, or the network fails.
    """
    mirror = store.path(target.name)
    refs = gitrefs.read_refs(mirror)
    match = _PULL.fullmatch(name)
    if match:
        return _pull_head(store, target, int(match.group(1)), progress)
    for full in (name, *(place.format(name) for place in _PLACES)):
        if full in refs:
            return _peeled(store, target, name, refs[full])
    if name == "HEAD":
        head = gitrefs.head_branch(mirror)
        if head in refs:
            return _peeled(store, target, name, refs[head])
    if _HEX.fullmatch(name):
        try:
            commit = objects.commit_of(mirror, name)
        except GitError as error:
            raise Unavailable(f"{target.name}: {error}") from error
        if commit is None and gitrefs.is_sha(name):
            return _sha_of_pull(store, target, name, pull, progress)
        if commit is not None:
            return commit
    raise Unavailable(_unknown(target.name, name, refs))


def _peeled(store: MirrorStore, target: Target, name: str, sha: str) -> str:
    commit = objects.commit_of(store.path(target.name), sha)
    if commit is None:
        raise Unavailable(f"{target.name}: {name} names {sha}, which is not a commit of the mirror")
    return commit


def _pull_head(store: MirrorStore, target: Target, pull: int, progress: Progress | None) -> str:
    ref = f"refs/pull/{pull}/head"
    refs = gitrefs.read_refs(store.path(target.name))
    if ref not in refs:
        problem = _fetched(store, target, f"+{ref}:{ref}", progress)
        if problem:
            raise Unavailable(f"{target.name}: pull/{pull}/head is not in the mirror and {problem}")
        refs = gitrefs.read_refs(store.path(target.name))
    return _peeled(store, target, f"pull/{pull}/head", refs[ref])


def _sha_of_pull(store: MirrorStore, target: Target, sha: str, pull: int | None, progress: Progress | None) -> str:
    if pull is None:
        raise Unavailable(
            f"{target.name}: commit {sha} is not in the mirror; run `sentinel mirror update {target.name}`, "
            "or give the pull request it belongs to (git:pull/N/head)"
        )
    problem = _fetched(store, target, f"+refs/pull/{pull}/head:refs/pull/{pull}/head", progress)
    mirror = store.path(target.name)
    if problem is None and objects.commit_of(mirror, sha) is None:
        # The pull request was rebased since: hosts still give a commit that is asked for by its name.
        problem = _fetched(store, target, f"+{sha}:refs/pins/{sha}", progress)
    if problem is None and objects.commit_of(mirror, sha) == sha:
        return sha
    raise Unavailable(
        f"{target.name}: commit {sha} is not in the mirror, and looking for it under pull request {pull}, "
        f"{problem or 'it was not there either'}"
    )


def _fetched(store: MirrorStore, target: Target, refspec: str, progress: Progress | None) -> str | None:
    """Fetch; the clause that says why it failed, or None."""
    try:
        store.fetch(target.name, [refspec], progress)
    except SentinelError as error:
        what = refspec.split(":")[0].lstrip("+")
        return f"{what} could not be fetched from {redacted(store.url(target.name))}: {error}"
    return None


def _unknown(target: str, name: str, refs: dict[str, str]) -> str:
    short = {re.sub(r"^refs/(heads|tags|remotes/origin|remotes)/", "", ref) for ref in refs}
    near = difflib.get_close_matches(name, sorted(n for n in short if not n.startswith("refs/")), n=3)
    hint = f"; the nearest names are {', '.join(near)}" if near else ""
    update = f"`sentinel mirror update {target}` fetches what is new"
    return f"{target}: the mirror has no branch, tag or commit {name!r}{hint} ({update})"
