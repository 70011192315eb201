"""Create a control group for each strictly contained target process, if this machine permits it.

``setrlimit`` limits the memory of each process separately; a group limits the number of its processes and their total
memory. Both versions of control groups are supported: version 2, and version 1 with one folder for each controller.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_PREFIX = "sentinel-"

#: Controller -> the name of the file with its limit, in version 2 and in version 1.
_LIMITS = {"pids": ("pids.max", "pids.max"), "memory": ("memory.max", "memory.limit_in_bytes")}


class Groups:
    """Creates control groups, and removes those whose processes have ended."""

    def __init__(self, root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> None:
        self._places = _places(root, membership)
        self._made: list[Path] = []
        self._count = 0
        self._remove_stale_groups()

    def make(self, processes: int, memory: int) -> Group:
        """Create a group that limits the number of processes (with threads) and the memory in bytes (0: no limit)."""
        self.remove()
        self._count += 1
        limits = {"pids": processes, **({"memory": memory} if memory else {})}
        folders: list[Path] = []
        for controller, most in limits.items():
            for version, parent in self._places.get(controller, ()):
                folder = parent / f"{_PREFIX}{os.getpid()}-{self._count}"
                try:
                    folder.mkdir(exist_ok=True)
                    (folder / _LIMITS[controller][0 if version == 2 else 1]).write_text(str(most))
                except OSError:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                    continue
                folders.append(folder)
                break
        folders = list(dict.fromkeys(folders))  # in version 2 one folder limits both resources
        self._made += folders
        return Group(folders)

    def remove(self) -> None:
        """Remove the groups of this process that are empty."""
        for folder in self._made[:]:
            with contextlib.suppress(OSError):  # the group still has processes
                folder.rmdir()
                self._made.remove(folder)

    def _remove_stale_groups(self) -> None:
        for _, parent in {place for places in self._places.values() for place in places}:
            for folder in parent.glob(f"{_PREFIX}*-*"):
                owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
                if owner.isdigit() and not Path("/proc", owner).exists():
                    with contextlib.suppress(OSError):
                        folder.rmdir()


class Group:
    """A control group, with its folder in each hierarchy. It has no folder if it could not be created."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = tuple(folders)

    @property
    def bounds(self) -> frozenset[str]:
        """Return the resources that are limited: ``pids``, ``memory``, both or none."""
        return frozenset(
            controller
            for controller, files in _LIMITS.items()
            if any((folder / file).exists() for folder in self.folders for file in files)
        )

    def add(self, pid: int) -> None:
        """Move a process into the group. Children that the process forks later belong to the group too."""
        for folder in self.folders:
            with contextlib.suppress(OSError):  # some machines permit creating groups, but not moving processes
                (folder / "cgroup.procs").write_text(str(pid))


def _places(root: Path, membership: Path) -> dict[str, list[tuple[int, Path]]]:
    """Return, for each controller, pairs of a version (1 or 2) and a folder in which groups of this version may be
    created."""
    places: dict[str, list[tuple[int, Path]]] = {name: [] for name in _LIMITS}
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            if not controllers:
                for base in (root, root / "unified"):
                    # A group that has processes cannot contain groups with limits, so its parent is tried too.
                    for folder in dict.fromkeys((base / own[1:], (base / own[1:]).parent)):
                        for name in _controllers(folder):
                            places[name].append((2, folder))
            for name in set(controllers.split(",")) & set(_LIMITS):
                # In a container, ``own`` may be a path on the host, of which only the container's part is mounted.
                folders = (root / name / own[1:], root / name)
                places[name] += [(1, folder) for folder in dict.fromkeys(folders) if folder.is_dir()]
    return places


def _controllers(folder: Path) -> set[str]:
    """Return the controllers that groups in this folder may use (version 2)."""
    try:
        return set((folder / "cgroup.subtree_control").read_text().split()) & set(_LIMITS)
    except OSError:
        return set()
