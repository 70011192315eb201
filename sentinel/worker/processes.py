"""Wrap the Linux calls for child processes: die with the parent, adopt orphans, kill process groups."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_prctl: Any
try:
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
except (OSError, AttributeError):  # only Linux has prctl
    _prctl = None


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that none can escape by forking twice."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def await_end(pid: int, seconds: float | None = None) -> None:
    """Wait, at most this many seconds, until a process has ended and its children have a new parent."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:  # the kernel has already reaped the process
        return
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(None if seconds is None else seconds * 1000)
    finally:
        os.close(handle)


class Leader:
    """The leader of a process group. It is reaped by a process other than this one.

    A pid is not enough to kill the leader: after the leader is reaped and its group is empty, the kernel may reuse the
    pid. A pidfd always refers to the same process, so it is used where the kernel supports it.
    """

    def __init__(self, pid: int) -> None:
        """Open a pidfd of the process, if the kernel supports it.

        :param pid: a descendant of this process; any other pid counts as reaped.
        """
        self.pid = pid
        self._own: int | None = None
        self._is_gone = False
        try:
            self._own = os.pidfd_open(pid)
        except ProcessLookupError:
            self._is_gone = True
        except (OSError, AttributeError):  # no pidfd: use the pid
            return
        # The pid may have been reused before the pidfd was opened. If the pid is a descendant's and the pidfd's process
        # still runs, the pidfd refers to that descendant.
        if self._own is not None and not (_comes_from_here(pid) and _signal(self._own, 0)):
            os.close(self._own)
            self._own, self._is_gone = None, True

    def __del__(self) -> None:
        """Close the pidfd. A leader that was not killed ends when its channel closes."""
        if self._own is not None:
            try:  # noqa: SIM105 - the interpreter may be ending, and every global be None
                os.close(self._own)
            except Exception:  # noqa: S110
                pass

    def kill(self) -> None:
        """Kill the leader and its process group. This method may be called repeatedly."""
        own, self._own = self._own, None
        if own is not None:
            try:
                if _signal(own, signal.SIGKILL, _PROCESS_GROUP):
                    self._is_gone = True
                    _signal(own, signal.SIGKILL)  # the process may not lead a group yet
                    return
                self._is_gone = not _signal(own, signal.SIGKILL)
            finally:
                os.close(own)
        if self._is_gone and _is_used(self.pid):
            return  # It was reaped elsewhere. The kernel does not reuse the pid as long as its group has members.
        self._is_gone = True
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)


#: From <linux/pidfd.h>, since Linux 6.9: signal the group that the process leads.
_PROCESS_GROUP = 4


def _signal(own: int, number: int, flags: int = 0) -> bool:
    try:
        signal.pidfd_send_signal(own, number, None, flags)
    except OSError:
        return False
    return True


def _comes_from_here(pid: int) -> bool:
    """Return True if a process is a descendant of this one, or if ``/proc`` does not show its parents."""
    here = os.getpid()
    while pid not in (here, 0):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (ProcessLookupError, FileNotFoundError):
            return False
        except OSError:  # the process is hidden
            return True
    return pid == here


def _is_used(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def children() -> list[int]:
    """Return the pids of this process's children; empty if the kernel does not list them."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as file:
                pids += [int(pid) for pid in file.read().split()]
    return pids


def kill_children(spare: frozenset[int] = frozenset()) -> None:
    """Kill all children and orphans of this process, except ``spare``, and wait for their end."""
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
