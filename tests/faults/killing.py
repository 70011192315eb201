"""Kill an action before its n-th effect, with SIGKILL.

An action runs in its own process. An effect is a system call that changes something in a folder: it creates, writes,
renames, removes or locks a file. ptrace counts the effects, so those of git and pip are included, and ``sentinel/``
needs no code for this. The kernel stops a process *before* the call, so a process is killed between two effects.
"""

import ctypes
import json
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Call:
    """A system call with an effect, and the positions of its arguments for a path or a descriptor.

    :ivar flags: the argument that must contain one of :data:`_WRITES`; opening a file to read it is not an effect.
    """

    name: str
    path: int | None = None
    base: int | None = None
    file: int | None = None
    flags: int | None = None


_AT = {
    "openat": Call("open", path=1, base=0, flags=2),
    "mkdirat": Call("mkdir", path=1, base=0),
    "unlinkat": Call("unlink", path=1, base=0),
    "symlinkat": Call("symlink", path=2, base=1),
    "linkat": Call("link", path=3, base=2),
    "renameat": Call("rename", path=3, base=2),
    "renameat2": Call("rename", path=3, base=2),
    "fchmodat": Call("chmod", path=1, base=0),
    "utimensat": Call("utime", path=1, base=0),
    "truncate": Call("truncate", path=0),
    "write": Call("write", file=0),
    "pwrite64": Call("write", file=0),
    "writev": Call("write", file=0),
    "sendfile": Call("write", file=0),
    "copy_file_range": Call("write", file=2),
    "fallocate": Call("write", file=0),
    "ftruncate": Call("truncate", file=0),
    "fchmod": Call("chmod", file=0),
    "flock": Call("lock", file=0),
}
_PLAIN = {
    "open": Call("open", path=0, flags=1),
    "creat": Call("open", path=0),
    "mkdir": Call("mkdir", path=0),
    "rmdir": Call("rmdir", path=0),
    "unlink": Call("unlink", path=0),
    "symlink": Call("symlink", path=1),
    "link": Call("link", path=1),
    "rename": Call("rename", path=1),
    "chmod": Call("chmod", path=0),
}
#: The numbers of the calls, by architecture.
_NUMBERS = {
    "x86_64": """
        write 1 open 2 pwrite64 18 writev 20 sendfile 40 flock 73 truncate 76 ftruncate 77 rename 82 mkdir 83 rmdir 84
        creat 85 link 86 unlink 87 symlink 88 chmod 90 fchmod 91 openat 257 mkdirat 258 unlinkat 263 renameat 264
        linkat 265 symlinkat 266 fchmodat 268 utimensat 280 fallocate 285 renameat2 316 copy_file_range 326
    """,
    "aarch64": """
        flock 32 mkdirat 34 unlinkat 35 symlinkat 36 linkat 37 renameat 38 truncate 45 ftruncate 46 fallocate 47
        fchmod 52 fchmodat 53 openat 56 write 64 writev 66 pwrite64 68 sendfile 71 utimensat 88 renameat2 276
        copy_file_range 285
    """,
}
_WORDS = _NUMBERS.get(platform.machine(), "").split()
CALLS = {int(number): {**_AT, **_PLAIN}[name] for name, number in zip(_WORDS[::2], _WORDS[1::2])}

_TRACEME, _CONT_TO_CALL, _SET_OPTIONS, _CALL_INFO = 0, 24, 0x4200, 0x420E
#: Mark stops at calls; follow fork, vfork and clone; report exec; kill every process when the tracer ends.
_FOLLOW = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
#: Only x86-64: the registers of a stopped process for the call's number, third argument and result.
_SET_REGISTER, _NUMBER, _THIRD, _ANSWER = 6, 15 * 8, 12 * 8, 10 * 8
#: Only x86-64: the calls whose third argument is the number of bytes to write.
_COUNTED = (1, 18)
_ANY_THREAD = 0x40000000


class CallInfo(ctypes.Structure):
    _fields_ = [
        ("op", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 3),
        ("machine", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64 * 4),
    ]


@dataclass(frozen=True)
class Error:
    """An error that a call returns instead of having its effect.

    :ivar number: from :mod:`errno`.
    :ivar calls: the names of calls that fail.
    :ivar once: True if only one call fails; otherwise all further calls fail, as on a full disk.
    :ivar partly: if the first failing call is a write, it writes half of its data and reports no error.
    """

    number: int
    calls: frozenset[str]
    once: bool = False
    partly: bool = False


@dataclass(frozen=True)
class Run:
    """The result of an action.

    :ivar effects: the effects in order, such as ``rename mirrors/demo.git``.
    :ivar status: the returned status; None if it was killed.
    :ivar said: its output.
    :ivar failed: True if a call failed as requested.
    """

    effects: tuple[str, ...]
    status: int | None
    said: str
    failed: bool = False

    @property
    def killed(self) -> bool:
        return self.status is None


def possible() -> str:
    """Return why ptrace does not work here; empty if it does."""
    if not sys.platform.startswith("linux") or not CALLS:
        return f"the system calls of {sys.platform} on {platform.machine()} are not known"
    try:
        return "" if _forked(lambda: 0, Path("/nowhere"), None).status == 0 else "no process can be traced here"
    except (OSError, ValueError) as error:
        return f"no process can be traced here: {error}"


def run(action: Callable[[], int], folder: Path, before: int | None = None, error: Error | None = None) -> Run:
    """Run an action in a fork of this process.

    :param before: the effect, counted from 0, before which all its processes are killed; None for no kill.
    :param error: from that effect on, calls fail with this error, and nothing is killed.
    """
    return _forked(action, folder.resolve(), before, error)


def _forked(action: Callable[[], int], folder: Path, before: int | None, error: Error | None = None) -> Run:
    read, write = os.pipe()
    tracer = os.fork()  # a separate process, because it waits for any child, and pytest has others
    if not tracer:
        try:
            os.close(read)
            with open(write, "w", encoding="utf-8") as answer:
                json.dump(_Tracer(folder, before, error).trace(action), answer)
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(tracer, 0)
    told = json.loads(text)
    return Run(tuple(told["effects"]), told["status"], told["said"], told["failed"])


def ptrace() -> Any:
    """Return the C library's function, with argument types that keep pointers whole."""
    function = ctypes.CDLL(None, use_errno=True).ptrace
    function.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    function.restype = ctypes.c_long
    return function


class _Tracer:
    def __init__(self, folder: Path, before: int | None, error: Error | None) -> None:
        self._folder = str(folder)
        self._before = before
        self._effects: list[str] = []
        self._error = error
        self._failing: set[int] = set()
        self._ended = False
        self._pids: set[int] = set()
        self._ptrace = ptrace()

    def trace(self, action: Callable[[], int]) -> dict[str, object]:
        said = os.memfd_create("said")
        self._first = os.fork()
        if not self._first:
            _act(action, said, self._stop)
        os.waitpid(self._first, 0)  # it has stopped itself
        if self._ptrace(_SET_OPTIONS, self._first, None, _FOLLOW) < 0:
            raise OSError(ctypes.get_errno(), "ptrace")
        self._go(self._first, 0)
        status = None
        while True:
            try:
                pid, state = os.waitpid(-1, _ANY_THREAD)
            except ChildProcessError:
                break
            if os.WIFSTOPPED(state):
                self._stopped(pid, state)
            else:
                self._pids.discard(pid)
                if pid == self._first and os.WIFEXITED(state):
                    status = os.WEXITSTATUS(state)
        return {
            "effects": self._effects,
            "status": None if self._ended and self._error is None else status,
            "said": _text(said),
            "failed": self._ended and self._error is not None,
        }

    def _stop(self) -> None:
        self._ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _stopped(self, pid: int, state: int) -> None:
        self._pids.add(pid)
        number, pass_on = os.WSTOPSIG(state), 0
        if self._ended and self._error is None:
            os.kill(pid, signal.SIGKILL)
        elif number == signal.SIGTRAP | 0x80:
            effect = self._effect(pid)
            if self._error is not None:
                self._fail(pid, effect)
            elif effect and len(self._effects) == self._before and not self._ended:
                self._end()
            elif effect:
                self._effects.append(effect)
        elif number not in (signal.SIGTRAP, signal.SIGSTOP):  # these two signals belong to the tracing
            pass_on = number
        self._go(pid, pass_on)

    def _go(self, pid: int, pass_on: int) -> None:
        self._ptrace(_CONT_TO_CALL, pid, None, pass_on)  # fails for a process that was killed meanwhile

    def _fail(self, pid: int, effect: str) -> None:
        """Let a call fail: replace its number by an invalid one, and set the result on return. Or let it write half."""
        if pid in self._failing:
            self._failing.discard(pid)
            self._ptrace(_SET_REGISTER, pid, _ANSWER, ctypes.c_void_p(-self._error.number))
        elif effect:
            reached = self._before is not None and len(self._effects) >= self._before
            if reached and effect.split()[0] in self._error.calls and not (self._error.once and self._ended):
                info = self._info(pid)
                if self._error.partly and not self._ended and info.number in _COUNTED:
                    self._ptrace(_SET_REGISTER, pid, _THIRD, ctypes.c_void_p(info.arguments[2] // 2))
                else:
                    self._failing.add(pid)
                    self._ptrace(_SET_REGISTER, pid, _NUMBER, ctypes.c_void_p(-1))
                self._ended = True
            self._effects.append(effect)

    def _end(self) -> None:
        self._ended = True
        for pid in list(self._pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _info(self, pid: int) -> CallInfo:
        info = CallInfo()
        self._ptrace(_CALL_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info))
        return info

    def _effect(self, pid: int) -> str:
        """Return the effect that a process is about to have on the folder; empty if it has none."""
        info = self._info(pid)
        call = CALLS.get(info.number) if info.op == 1 else None  # 1: before the call, 2: after it
        if call is None or (call.flags is not None and not info.arguments[call.flags] & _WRITES):
            return ""
        try:
            place = self._place(pid, call, info.arguments)
        except OSError:
            return ""  # the call will fail: the descriptor is not open, or the path does not exist
        if place != self._folder and not place.startswith(self._folder + "/"):
            return ""
        return f"{call.name} {place[len(self._folder) + 1 :]}"

    def _place(self, pid: int, call: Call, arguments: ctypes.Array[ctypes.c_uint64]) -> str:
        if call.file is not None:
            return os.readlink(f"/proc/{pid}/fd/{arguments[call.file]}")
        assert call.path is not None
        if not arguments[call.path]:  # utime and similar calls with a descriptor instead of a path
            return os.readlink(f"/proc/{pid}/fd/{arguments[call.base or 0]}")
        name = self._text(pid, arguments[call.path])
        base = ctypes.c_int32(arguments[call.base]).value if call.base is not None else -100
        return os.path.normpath(os.path.join(os.readlink(f"/proc/{pid}/{'cwd' if base < 0 else f'fd/{base}'}"), name))

    def _text(self, pid: int, address: int) -> str:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            found = b""
            while b"\0" not in found and len(found) < 4096:
                # At most to the end of a page, because the next one may not be mapped.
                found += memory.read(min(256, 4096 - (address + len(found)) % 4096))
        return os.fsdecode(found.split(b"\0")[0])


def _act(action: Callable[[], int], said: int, first: Callable[[], None] = lambda: None) -> NoReturn:
    """Run the action in the child of a fork. Its output goes to a file."""
    status = 99
    try:
        for stream in (1, 2):
            os.dup2(said, stream)
        sys.stdout = sys.stderr = open(said, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - pytest has the usual ones
        first()
        status = action()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _text(said: int) -> str:
    return os.pread(said, os.lseek(said, 0, os.SEEK_END), 0).decode("utf-8", "replace")


def apart(action: Callable[[], int]) -> Run:
    """Run an action in a fork of this process, without disturbing it."""
    said = os.memfd_create("said")
    pid = os.fork()
    if not pid:
        _act(action, said)
    _, state = os.waitpid(pid, 0)
    text = _text(said)
    os.close(said)
    return Run((), os.waitstatus_to_exitcode(state), text)
