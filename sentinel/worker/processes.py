"""The few Linux calls that keep forked processes together: who dies with whom, who inherits orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_prctl: Any
try:
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
except (OSError, AttributeError):  # not Linux: fresh processes are the rule there, and nothing is inherited
    _prctl = None


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that forked it is gone."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none can slip away by a double fork."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Leader:
    """The leader of a process group, which somebody else reaps.

    Its number alone is not enough to end it by: once it was reaped and its group is empty, the kernel gives the number
    to another process, of another run perhaps. A descriptor, where the kernel has them, is of one process for ever.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._own: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # it is gone already; not Linux
            self._own = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it and its group. Safe to call twice."""
        own, self._own = self._own, None
        if own is not None:
            try:
                if not self._is_the_one(own):
                    return
            finally:
                os.close(own)
        for kill in (os.killpg, os.kill):  # it may not lead its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def _is_the_one(self, own: int) -> bool:
        """Whether the number is still this process's, or at least its group's: while a group has members, no new
        process is given its number."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(own, 0)
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return False
        return True


def children() -> list[int]:
    """The pids of this process's children (empty where the kernel does not say)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                found += [int(pid) for pid in file.read().split()]
    return found


def kill_children(spare: frozenset[int] = frozenset()) -> None:
    """Kill and reap every child, and those it leaves behind, until none is left but those to spare."""
    for _ in range(64):
        pids = [pid for pid in children() if pid not in spare]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
