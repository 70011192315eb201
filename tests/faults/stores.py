"""Actions on a ``SENTINEL_HOME``, and its content afterwards."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from demo_kit import Repository
from walking import listing

from sentinel.cli import main
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.sources.gitbinary import run_checked
from sentinel.targets import Target
from sentinel.targets.refs import Ref


def target() -> Target:
    return replace(bundled_catalog().targets["demo"], pypi="demo-dist")


def opened(ref: str) -> Callable[[], int]:
    """Open a checkout, as a run does."""

    def action() -> int:
        made = open_checkout(target(), Ref.parse(ref), store=MirrorStore())
        assert (made.path / "demo_rl" / "losses.py").read_text()
        return 0

    return action


def said(*arguments: str) -> Callable[[], int]:
    return lambda: main(list(arguments))


def contents(home: Path) -> Callable[[], Any]:
    """Return the store's files and what git reads there.

    Lock files, time stamps and names of packs are left out. Of the digest of a checkout's inodes and times, only the
    form is compared.
    """

    def same(name: str, content: bytes) -> Any:
        if "objects/pack/" in name or "/.users/" in name or name.endswith(".lock"):
            return None if content == b"" or name.endswith((".pack", ".idx", ".rev", ".promisor")) else content
        if name.endswith("sentinel.json"):
            return {key: value for key, value in json.loads(content).items() if key != "updated"}
        if name.endswith("/checkout.json"):
            return re.sub(rb'"stamp": "[0-9a-f]{64}"', b'"stamp": "..."', content)
        return content

    def outcome() -> Any:
        found: dict[str, Any] = {
            re.sub(r"pack-[0-9a-f]{40}", "pack", name): kept for name, kept in listing(home, same).items()
        }
        for mirror in (home / "mirrors").glob("*.git"):
            run_checked(mirror, "fsck", "--strict", "--no-dangling")
            found[f"objects of {mirror.name}"] = run_checked(mirror, "rev-list", "--all", "--objects")
        return found

    return outcome


PRUNE = said("cache", "prune")


def add(repository: Repository) -> Callable[[], int]:
    return said("mirror", "add", "demo", "--from", str(repository.path))
