"""Start watching when the framework is imported, if ``SENTINEL_WATCH`` is set.

The file ``sentinel_watch.pth`` makes every Python process with ``SENTINEL_WATCH=TARGET[:EVENTS]`` in its environment
import this module. In launchers and tools, which do not import the framework, watching does not start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _First:
    """An import finder that starts watching at the first import of a package of the target. It never finds a module."""

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
        except Exception as error:  # an error of Sentinel must not end the run
            _say(f"this run is not watched: {type(error).__name__}: {error}")


def begin(setting: str) -> None:
    """Prepare to watch the target that ``SENTINEL_WATCH`` names. Print an error if the target is unknown."""
    from sentinel.recipes.catalog import bundled_catalog

    target, _, events = setting.partition(":")
    targets = bundled_catalog().targets
    if target not in targets:
        _say(f"SENTINEL_WATCH: unknown target {target!r}; use one of {', '.join(targets)}")
        return
    packages = targets[target].packages
    sys.meta_path.insert(0, _First(target, events or "sentinel-events.jsonl", packages))


def _say(text: str) -> None:
    print(f"sentinel watch: {text}", file=sys.stderr)


if os.environ.get("SENTINEL_WATCH"):
    try:
        begin(os.environ["SENTINEL_WATCH"])
    except Exception as error:  # an interpreter without torch or numpy, such as that of a tool
        _say(f"this process is not watched: {type(error).__name__}: {error}")
