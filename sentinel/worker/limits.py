"""What one process may take of the machine, under every level of containment but ``off``."""

from __future__ import annotations

import math
import os
import re
import resource
from functools import cache
from pathlib import Path

#: Processes of one strictly contained target process, threads included: a probe needs a handful.
MOST_PROCESSES = 256

#: Processes that the user may have beside those at the start, where they cannot be told apart: a fork bomb ends there.
SPARE_PROCESSES = 4096

#: The users that root becomes under strict containment: as systemd has them for services without a user of their own.
USERS = range(61184, 65520)

#: Bytes of one file.
LARGEST_FILE = 1 << 30

#: Open files of one process.
MOST_FILES = 1024

#: Seconds of CPU beyond those that a probe could use on every core in the time that it has by the clock.
_GRACE = 5


def limit(memory: int, contained: bool, patience: float) -> None:
    """Bind this process and all that come from it.

    :param memory: bytes of address space of each, 0 for no limit.
    :param patience: seconds that are waited for one answer: each may compute for a hundred such, its imports included.
    :param contained: whether it is alone with its user, or in a user namespace.
    """
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, LARGEST_FILE)
    _lower(resource.RLIMIT_NOFILE, MOST_FILES)
    limit_time(patience * 100)
    if memory:
        _lower(resource.RLIMIT_AS, memory)
    # Before Linux 5.14 all of a user's processes counted, those outside of a user namespace too.
    alone = contained and (os.geteuid() in USERS or _kernel() >= (5, 14))
    _lower(resource.RLIMIT_NPROC, MOST_PROCESSES if alone else tasks() + SPARE_PROCESSES)


def limit_time(seconds: float) -> None:
    """End this process when it has computed for so long, should nobody else end it."""
    _lower(resource.RLIMIT_CPU, math.ceil(seconds * (os.cpu_count() or 1)) + _GRACE)


def _lower(name: int, most: int) -> None:
    _, hard = resource.getrlimit(name)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(name, (most, most))


@cache
def tasks() -> int:
    """Say how many processes and threads this user had when it was asked first."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            count += len(os.listdir(folder / "task")) if folder.stat().st_uid == os.getuid() else 0
        except OSError:  # it has ended
            continue
    return count


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
