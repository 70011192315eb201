"""Starts to watch where the environment says so, when a package of the target is imported first.

The file ``sentinel_watch.pth`` beside the package has every Python process import this module that has
``SENTINEL_WATCH=TARGET[:EVENTS]`` in its environment; launchers, shells and tools import no target, and nothing starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _First:
    """A finder that finds nothing: it waits for the name of a package."""

    def __init__(self, target: str, events: str, packages: tuple[str, ...]) -> None:
        self._target, self._events, self._packages = target, events, packages

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name in self._packages and self in sys.meta_path:
            sys.meta_path.remove(self)
            self._start()
        return None

    def _start(self) -> None:
        try:
            from sentinel.tools.watch.link import Watching
            from sentinel.tools.watch.wrapping import Budget

            every = int(os.environ.get("SENTINEL_WATCH_EVERY", Budget.every))
            without = os.environ.get("SENTINEL_WATCH_WITHOUT", "").split()
            capture = os.environ.get("SENTINEL_WATCH_CAPTURE", "numbers")
            Watching(self._target, self._packages, Path(self._events), Budget(every=every), capture, without)
        except Exception as error:  # nothing of ours ends a run
            _say(f"this run is not watched: {type(error).__name__}: {error}")


def begin(setting: str) -> None:
    """Watch as a setting says; a wrong one is said, and stops nothing."""
    from sentinel.recipes.catalog import bundled_catalog

    target, _, events = setting.partition(":")
    targets = bundled_catalog().targets
    if target not in targets:
        _say(f"SENTINEL_WATCH names no target {target!r}; it knows {', '.join(targets)}")
        return
    packages = targets[target].packages
    sys.meta_path.insert(0, _First(target, events or "sentinel-events.jsonl", packages))


def _say(text: str) -> None:
    print(f"sentinel watch: {text}", file=sys.stderr)


if os.environ.get("SENTINEL_WATCH"):
    try:
        begin(os.environ["SENTINEL_WATCH"])
    except Exception as error:  # an interpreter that lacks what is needed: a tool's, which imports no target
        _say(f"this process is not watched: {type(error).__name__}: {error}")
