"""Limit the resources of a process, at every level of containment except ``off``."""

from __future__ import annotations

import math
import os
import re
import resource
from functools import cache
from pathlib import Path

#: Maximum processes and threads of one strictly contained target process. A probe needs few.
MOST_PROCESSES = 256

#: Maximum number of new processes of the user. It stops a fork bomb where all processes of a user count together.
SPARE_PROCESSES = 4096

#: User ids to one of which root changes in strict containment. systemd uses the same ids for services without a user.
USERS = range(61184, 65520)

#: Maximum bytes of one file.
LARGEST_FILE = 1 << 30

#: Maximum open files of one process.
MOST_FILES = 1024

#: CPU seconds that a process may use in addition to its time limit multiplied by the number of cores.
_GRACE = 5


def limit(memory: int, contained: bool, patience: float) -> None:
    """Limit the memory, processes and files of this process and its children.

    :param memory: address space of each process in bytes, 0 for no limit.
    :param patience: seconds for one answer. Each process may use a hundred times as many CPU seconds, including
        imports.
    :param contained: True if this process has its own user or user namespace.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, LARGEST_FILE)
    _lower(resource.RLIMIT_NOFILE, MOST_FILES)
    limit_time(patience * 100)
    if memory:
        _lower(resource.RLIMIT_AS, memory)
    # Before Linux 5.14, this limit also counts the user's processes outside the user namespace, so it must be larger.
    alone = contained and (os.geteuid() in USERS or _kernel() >= (5, 14))
    _lower(resource.RLIMIT_NPROC, MOST_PROCESSES if alone else tasks() + SPARE_PROCESSES)


def limit_time(seconds: float) -> None:
    """Limit the CPU time of this process to this many seconds on every core."""
    _lower(resource.RLIMIT_CPU, math.ceil(seconds * (os.cpu_count() or 1)) + _GRACE)


def _lower(name: int, most: int) -> None:
    _, hard = resource.getrlimit(name)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(name, (most, most))


@cache
def tasks() -> int:
    """Return the number of processes and threads that this user had at the first call."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            count += len(os.listdir(folder / "task")) if folder.stat().st_uid == os.getuid() else 0
        except OSError:  # the process has ended
            continue
    return count


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
