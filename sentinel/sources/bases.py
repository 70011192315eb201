"""Find the base commit of a working tree or pull request: its merge base with upstream's main branch."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.sources import commits
from sentinel.sources.git_objects import commit_named
from sentinel.sources.gitbinary import common_dir, git_dir_of, run, top_of
from sentinel.sources.mirrors import MirrorStore
from sentinel.targets import Target
from sentinel.targets.refs import Ref

#: Seconds for one git command in a clone of the user.
_PATIENCE = 60.0

_OTHERWISE = "or name a base (--sentinel-against=REF), or turn the comparison off (--sentinel-against=none)"


def find_base(target: Target, ref: Ref, store: MirrorStore) -> Ref:
    """Return the merge base of a ref and upstream's main branch.

    For a working tree, the main branch is looked up in the clone that contains the tree, then in the mirror.

    :raises SentinelError: if no merge base is found. The message names the command that fetches it.
    """
    if ref.kind != "path":
        mirror, head = store.path(target.name), store.resolve(target, ref.name)
        base = commits.merge_base(mirror, store.resolve(target, target.branch), head)
        if base is None:
            raise SentinelError(
                f"{ref} has no commit in common with {target.branch} in the mirror; run "
                f"`sentinel mirror update {target.name}`, {_OTHERWISE}"
            )
        return Ref("git", base)
    clone = clone_of(ref)
    commit = "" if clone is None else commit_named(clone, "HEAD", _PATIENCE)
    if clone is None or not commit:
        raise SentinelError(
            f"{ref.name} is not in a git clone, so the commit from which it started is unknown; use a clone, "
            f"{_OTHERWISE}"
        )
    for name in _names_of_main(clone, target):
        base = commits.merge_base(clone, name, commit)
        if base is not None:
            return Ref("git", base, str(clone), _folder_of(ref))
    base = _find_in_mirror(target, clone, commit, store)
    if base:
        return Ref("git", base, str(clone), _folder_of(ref))
    shallow = " --unshallow" if (common_dir(clone) / "shallow").exists() else ""
    place = f"refs/remotes/upstream/{target.branch}"
    command = f"git -C {shlex.quote(ref.name)} fetch{shallow} {target.repository} +{target.branch}:{place}"
    raise SentinelError(
        f"{ref.name} has no commit in common with upstream's {target.branch}, as far as the clone and the mirror have "
        f"its history; run `{command}`, {_OTHERWISE}"
    )


def in_clone(ref: Ref, tree: Ref) -> Ref | None:
    """Return the commit to which a git ref refers in the clone that contains a working tree; None if the clone lacks
    it."""
    if ref.kind != "git" or tree.kind != "path" or (clone := clone_of(tree)) is None:
        return None
    for name in (ref.name, f"refs/remotes/origin/{ref.name}"):
        if commit := commit_named(clone, name, _PATIENCE):
            return Ref("git", commit, str(clone), _folder_of(tree))
    return None


def clone_of(tree: Ref) -> Path | None:
    """Return the git directory of the clone that contains a working tree; None if no clone does."""
    top = top_of(_absolute(tree))
    return None if top is None else git_dir_of(top)


def _absolute(tree: Ref) -> Path:
    return Path(os.path.expanduser(tree.name)).absolute()


def _folder_of(tree: Ref) -> str:
    """Return the path of a working tree inside its clone; empty if it is the clone's top folder."""
    here = _absolute(tree)
    top = top_of(here)
    return "" if top in (None, here) else here.relative_to(top).as_posix()


def _names_of_main(clone: Path, target: Target) -> list[str]:
    """Return the refs that may be upstream's main branch in a clone: the branch of each remote that has upstream's URL
    or the name ``upstream``."""
    listed = run(clone, "config", "--get-regexp", r"^remote\..*\.url$", seconds=_PATIENCE).out.decode(errors="replace")
    remotes = [line.partition(" ") for line in listed.splitlines()]
    upstream = _owner_and_name(target.repository)
    own = [key[len("remote.") : -len(".url")] for key, _, url in remotes if _owner_and_name(url) == upstream]
    return [f"refs/remotes/{name}/{target.branch}" for name in dict.fromkeys([*own, "upstream"])]


def _owner_and_name(url: str) -> str:
    return "/".join(url.strip().removesuffix("/").removesuffix(".git").replace(":", "/").split("/")[-2:]).lower()


def _find_in_mirror(target: Target, clone: Path, commit: str, store: MirrorStore) -> str:
    """Return the newest commit in a clone's history that the mirror's main branch contains, or an empty string."""
    if not store.has(target.name):
        return ""
    mirror = store.path(target.name)
    main = run(mirror, "rev-list", store.resolve(target, target.branch)).out.decode().split()
    known = set(main)
    ours = run(clone, "rev-list", "--topo-order", commit, seconds=_PATIENCE).out.decode().split()
    return next((each for each in ours if each in known), "")
