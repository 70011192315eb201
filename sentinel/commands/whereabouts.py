"""Whether a ref can be had on this machine right now. Nothing is fetched, made or marked as used to find out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import Home, MirrorStore, checkouts
from sentinel.sources.home import read_json

if TYPE_CHECKING:
    from sentinel.targets import Target
    from sentinel.targets.refs import Ref

#: Whether it is here, and where, or what would bring it here.
Answer = tuple[bool, str]


class Whereabouts:
    """Looks refs up in one ``SENTINEL_HOME``."""

    def __init__(self, store: MirrorStore | None = None) -> None:
        self._store = store or MirrorStore()

    def find(self, target: Target, ref: Ref) -> Answer:
        if ref.kind == "git":
            return self._git(target, ref)
        if ref.kind == "pypi":
            return self._release(target, ref)
        return False, "only where it lies"

    def _git(self, target: Target, ref: Ref) -> Answer:
        checked_out = ref.immutable and _made(self._store.home, target, f"git-{ref.name}")
        try:
            commit = self._commit(target, ref.name)
        except SentinelError as error:
            return (True, "checkout") if checked_out else (False, str(error))
        if ref.immutable:
            return True, "mirror, checkout" if checked_out else "mirror"
        return True, f"mirror, at {commit[:12]}"

    def _commit(self, target: Target, name: str) -> str:
        pull = re.fullmatch(r"pull/[0-9]+/head", name)
        if pull:  # the store would fetch one that it does not have
            from sentinel.sources import gitrefs

            commit = gitrefs.read_refs(self._store.path(target.name)).get(f"refs/{name}")
            if commit is None:
                raise Unavailable("fetched when it is asked for")
            return commit
        try:
            return self._store.resolve(target, name)
        except Unavailable:
            self._store.path(target.name)  # without a mirror that is the reason
            raise Unavailable(
                f"not in the mirror; `sentinel mirror update {target.name}` fetches what is new"
            ) from None

    def _release(self, target: Target, ref: Ref) -> Answer:
        if target.pypi is None:
            return False, "the target has no releases"
        home = self._store.home
        if ref.name == "latest":
            return False, "the index is asked each time"
        wheel = any(path.name.split("-")[1] == ref.name.lower() for path in (home.wheels / target.pypi).glob("*-*.whl"))
        checked_out = _made(home, target, f"pypi-{target.pypi}-{ref.name}")
        found = ", ".join(name for name, there in (("wheel", wheel), ("checkout", checked_out)) if there)
        return (True, found) if found else (False, "downloaded when it is asked for")


def _made(home: Home, target: Target, ref: str) -> bool:
    """Whether the checkout of an immutable ref was made before and is still there."""
    folder = home.checkouts / target.name
    key = checkouts.index_key(target, re.sub("[^A-Za-z0-9._-]", "_", ref))
    tree = (read_json(folder / "refs" / f"{key}.json") or {}).get("tree")
    return isinstance(tree, str) and (folder / tree / "tree").is_dir()
