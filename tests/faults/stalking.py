"""Kill -9 before any system call of a process that runs already, or of one that it forks.

A thread of this process follows them by ptrace from the moment when it is told to. (Nobody in this process may wait
for them meanwhile: it would be told of their stops, and they would stay there.) A process is known by its place in
the tree of forks: ``(1, 2)`` is the second child of the first child. What a process does when it is asked the same
twice is the same, so a place and a count name a moment well enough to come back to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from killing import CallInfo, ptrace

#: Where a process stands in the tree of forks; the one that is followed is ().
Place = tuple[int, ...]

_SEIZE, _INTERRUPT, _CONT_TO_CALL, _DETACH, _MESSAGE, _CALL_INFO = 0x4206, 0x4207, 24, 17, 0x4201, 0x420E
#: Mark stops at calls; follow fork, vfork and clone.
_FOLLOW = 0x1 | 0x2 | 0x4 | 0x8
_FORKS, _STOP = (1, 2, 3), 128
_ANY_OF_THIS_THREAD = 0x40000000 | 0x20000000
#: Nobody sends it, and who is traced stops for it although it does nothing.
_ENOUGH = signal.SIGURG


@dataclass(frozen=True, order=True)
class Moment:
    """:ivar call: counted from 1, of the process at that place."""

    place: Place
    call: int


@dataclass
class Followed:
    """What was seen.

    :ivar calls: how many calls each process has made.
    :ivar pids: those that were followed.
    :ivar killed: the number of the call that somebody was killed before; None: that moment never came.
    """

    calls: Counter[Place] = field(default_factory=Counter)
    pids: set[int] = field(default_factory=set)
    killed: int | None = None


@contextmanager
def following(pid: int, moment: Moment | None = None) -> Iterator[Followed]:
    """Follow a process and its descendants while a block lasts, and beyond it those descendants until they have ended.

    :param moment: when the process that has come so far is killed.
    """
    seen = Followed()
    ready = threading.Event()
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            _Stalker(seen, moment).follow(pid, ready.set)
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=follow, name="stalker", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield seen
    finally:
        if thread.is_alive():
            _send(pid)
        thread.join(30)
    if failed:
        raise failed[0]
    assert not thread.is_alive(), f"these do not end: {[_described(pid) for pid in seen.pids]}"


def _send(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, _ENOUGH)


def _described(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return f"{pid}: gone"
    return "; ".join(line for line in lines if line.startswith(("Name", "State", "Pid", "PPid", "Tgid", "TracerPid")))


def _parent(pid: int) -> int:
    """Of a process; of a thread, the process that it belongs to."""
    try:
        told = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(told["PPid"] if told["Tgid"] == told["Pid"] else told["Tgid"])
    except (OSError, KeyError, ValueError):  # it has ended
        return 0


class _Stalker:
    def __init__(self, seen: Followed, moment: Moment | None) -> None:
        self._seen = seen
        self._moment = moment
        self._places: dict[int, Place] = {}
        self._forks: Counter[Place] = Counter()
        self._ptrace = ptrace()

    def follow(self, pid: int, ready: Callable[[], object]) -> None:
        if self._ptrace(_SEIZE, pid, None, _FOLLOW) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        self._first = pid
        self._name(pid, ())
        self._ptrace(_INTERRUPT, pid, None, None)
        while True:
            try:
                stopped, state = os.waitpid(-1, _ANY_OF_THIS_THREAD)
            except ChildProcessError:
                break
            if os.WIFSTOPPED(state):
                self._stopped(stopped, os.WSTOPSIG(state), state >> 16)
            ready()

    def _stopped(self, pid: int, number: int, event: int) -> None:
        pass_on = 0
        if event in _FORKS:
            message = ctypes.c_ulong()
            self._ptrace(_MESSAGE, pid, None, ctypes.addressof(message))
            self._born(pid, message.value)
        elif event == _STOP:
            if pid not in self._places:  # it was faster than the news of its birth
                self._born(_parent(pid), pid)
        elif number == signal.SIGTRAP | 0x80:
            self._called(pid)
        elif number == _ENOUGH and pid == self._first:
            self._ptrace(_DETACH, pid, None, None)
            return
        else:
            pass_on = number
        self._ptrace(_CONT_TO_CALL, pid, None, pass_on)  # fails for one that was killed meanwhile: nothing is lost

    def _born(self, parent: int, child: int) -> None:
        if child in self._places:
            return
        place = self._places.get(parent, (0,))  # that of one who ended at once, and left it to somebody else
        self._forks[place] += 1
        self._name(child, (*place, self._forks[place]))

    def _name(self, pid: int, place: Place) -> None:
        self._places[pid] = place
        self._seen.pids.add(pid)

    def _called(self, pid: int) -> None:
        info = CallInfo()
        self._ptrace(_CALL_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info))
        if info.op != 1:  # 1: going in, 2: coming out
            return
        place = self._places[pid]
        self._seen.calls[place] += 1
        if self._seen.killed is None and self._moment == Moment(place, self._seen.calls[place]):
            self._seen.killed = int(info.number)
            os.kill(pid, signal.SIGKILL)
