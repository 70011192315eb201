"""Open the source code of a target (git mirror, PyPI release, working tree, installed package) as a checkout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.sources.gitbinary import GitMissingError
from sentinel.sources.gitsource import open_git
from sentinel.sources.home import Home, Progress
from sentinel.sources.mirrors import MirrorStore
from sentinel.sources.path import open_installed, open_path
from sentinel.sources.pypi import open_pypi
from sentinel.sources.urls import fork
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

__all__ = ["Home", "MirrorStore", "Progress", "open_checkout"]


def open_checkout(
    target: Target,
    ref: Ref,
    *,
    store: MirrorStore | None = None,
    pull: int | None = None,
    python: str | None = None,
    url: str | None = None,
    progress: Progress | None = None,
) -> Checkout:
    """Return the checkout of a target at a ref. Reuse the checkout of an earlier run if the store has one.

    This function never clones a repository. If a git ref needs a mirror, the error names the command that creates it.

    :param store: the mirrors and their ``SENTINEL_HOME``; None for the user's own.
    :param pull: the number of the pull request to fetch if the mirror lacks the commit of a pin.
    :param python: the interpreter whose environment ``installed`` refers to; None for the running one.
    :param url: the repository of a fork, whose history is used instead of upstream's.
    :param progress: called with one line of text at each slow step.
    :raises Unavailable: if the revision cannot be read on this machine.
    :raises SentinelError: if ``SENTINEL_HOME`` is not writable or its disk is full.
    """
    store = store or MirrorStore()
    if ref.kind == "pypi":
        return open_pypi(target, ref, store.home, progress)
    if ref.kind == "path":
        return replace(open_path(target, ref, store.home), source=Path(ref.name).expanduser().absolute())
    if ref.kind == "installed":
        return open_installed(target, ref, store.home, python)
    origin = fork(target, url)
    try:
        if origin is not target and not ref.clone and not store.has(origin.name):
            raise Unavailable(f"no mirror of {url}; run `sentinel mirror add {target.name} --repo-url {url}`")
        checkout = open_git(origin, ref, store, pull, progress)
        git_dir = Path(ref.clone) if ref.clone else store.home.mirror(origin.name)
        # A checkout that already exists needs no mirror.
        return replace(checkout, target=target.name, source=git_dir if git_dir.is_dir() else None)
    except GitMissingError as error:
        raise Unavailable(f"{target.name}: {error}") from error
