"""Where a target's code comes from: git mirror, PyPI release, working tree, installed copy; all become a checkout."""

from __future__ import annotations

from dataclasses import replace

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
    """Give the checkout of a target at a ref, made now or found where an earlier run made it.

    Nothing is cloned here: without a mirror a git ref is unavailable, and the reason says how to get one.

    :param store: the mirrors, and with them the ``SENTINEL_HOME`` that is used; None: the user's own.
    :param pull: the pull request that a pin comes from, for a sha that the mirror does not have.
    :param python: the interpreter whose copy ``installed`` means.
    :param url: the repository of a fork, whose git history is used instead of upstream's.
    :param progress: called with a line where something takes long.
    :raises Unavailable: where the revision cannot be had.
    :raises SentinelError: where ``SENTINEL_HOME`` cannot be written or its disk is full.
    """
    store = store or MirrorStore()
    if ref.kind == "pypi":
        return open_pypi(target, ref, store.home, progress)
    if ref.kind == "path":
        return open_path(target, ref, store.home)
    if ref.kind == "installed":
        return open_installed(target, ref, store.home, python)
    origin = fork(target, url)
    try:
        if origin is not target and not ref.clone and store.get(origin.name) is None:
            raise Unavailable(f"no mirror of {url}; run `sentinel mirror add {target.name} --repo-url {url}`")
        return replace(open_git(origin, ref, store, pull, progress), target=target.name)
    except GitMissingError as error:
        raise Unavailable(f"{target.name}: {error}") from error
