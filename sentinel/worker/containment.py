"""Contain a process on Linux: give it its own namespaces, and a file system with only the files that it needs.

The preloader calls :func:`contain` before any of the target's code runs. The calling process becomes the first process
of new mount, PID, IPC, UTS and network namespaces. It sees a root of read-only bind mounts and its scratch folder. It
has no capabilities and cannot gain any. It has no network, not even the loopback device. If it runs as root, it changes
to an unprivileged user. Otherwise, or if root's user namespace has no other users, it enters a user namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import site
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from sentinel.worker.limits import USERS

# From <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>, <linux/seccomp.h> and <linux/capability.h>. Python has
# os.unshare from 3.12 on.
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522

#: The size of a probe's scratch folder in bytes.
SCRATCH_BYTES = 1 << 30

#: Folders of shared libraries, and the loader's cache.
SYSTEM = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

#: The parts of an environment's folder that its interpreter needs. All other files stay hidden, because the folder may
#: also be a project or a home folder.
PARTS = ("bin", "lib", "lib64", "lib32", "include", "share", "pyvenv.cfg")

#: Files that identify this machine.
_OF_THIS_MACHINE = ("/proc/sys/kernel/random/boot_id",)

#: Harmless devices that libraries use: sources of random numbers, and sinks.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class ContainmentError(Exception):
    """Raised if this machine does not permit a namespace, a mount or a limit, which the message names."""


def fork() -> tuple[int, bool]:
    """Fork this process; if it is root, the child becomes the first process of a new PID namespace.

    Other users could create a PID namespace only inside a user namespace, which a process cannot leave.

    :return: what :func:`os.fork` returns, and whether the child is the first process of its PID namespace.
    """
    _interpreter()  # cached before the fork, so that all children have it
    if os.geteuid() != 0 or sys.platform != "linux":
        return os.fork(), False
    own = os.open("/proc/self/ns/pid", os.O_RDONLY)
    try:
        # First try to enter the PID namespace in which this process already is. If that fails, because the process is
        # root only in a user namespace, it could not return from a new one.
        if _libc().setns(own, _CLONE_NEWPID) != 0 or _libc().unshare(_CLONE_NEWPID) != 0:
            return os.fork(), False
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                _call("the worker's PID namespace cannot be used again", _libc().setns(own, _CLONE_NEWPID))
        return pid, True
    finally:
        os.close(own)


def contain(
    readable: Sequence[str],
    hidden: Sequence[str],
    scratch: str,
    ready: Callable[[int], None],
    system_calls: str | None = None,
    devices: Sequence[str] = (),
    first: bool = False,
    wait: bool = False,
) -> None:
    """Restrict this process to its own namespaces and to the given files. If it is not the first of its PID namespace,
    a forked child continues, and the caller exits.

    :param readable: files and folders that stay visible, read-only, at their own paths, besides the interpreter's.
    :param hidden: folders below ``readable`` that must appear empty.
    :param scratch: the only folder that can be written. It starts empty and is removed with the process.
    :param ready: called with the child's process id, as the caller sees it, if a child continues.
    :param system_calls: a filter of system calls from :func:`sentinel.worker.syscalls.program`, in hexadecimal.
    :param devices: files of ``/dev`` to expose besides the harmless ones, such as a GPU's.
    :param first: whether the caller is the first process of a PID namespace; see :func:`fork`.
    :param wait: True if the caller waits for the child and exits with its status; False if it exits at once.
    :raises ContainmentError: in the process that continues, or before the fork.
    """
    if sys.platform != "linux":
        raise ContainmentError("strict containment needs Linux")
    own_user, user, group = not may_be_others(), os.geteuid(), os.getegid()
    outside = int(os.readlink("/proc/self"))  # this /proc has the pid that outer processes see; os.getpid() may be 1
    _unshare(_CLONE_NEWUSER if own_user else 0, 0 if first else _CLONE_NEWPID)
    if own_user:
        _map_to_itself(user, group)
    pid = 0 if first else os.fork()
    if pid:
        ready(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if wait else 0
        os._exit(status if status >= 0 else 128 - status)  # the exit status by which shells report signals
    if not own_user:
        user = USERS[outside % len(USERS)]
    _libc().sethostname(b"sentinel", len(b"sentinel"))
    _build_root([*_interpreter(), *readable], hidden, scratch, user, (*_DEVICES, *devices), innermost=not wait)
    _rule_out_capabilities()
    if not own_user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    _drop_capabilities()
    if system_calls is not None:
        _filter(bytes.fromhex(system_calls))
    _settle_in(scratch)


def reason_against() -> str | None:
    """Return the reason why processes cannot be contained on this machine; None if they can be."""
    needed = [os.path.dirname(__file__), os.__file__, *filter(None, map(_place_of, ("numpy", "torch")))]
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="sentinel-") as scratch:
        pid, first = fork()
        if pid == 0:
            os.close(read)
            try:
                contain(needed, [], scratch, lambda inner: None, first=first)
                for place in needed:
                    if not os.access(place, os.R_OK):
                        raise ContainmentError(
                            f"{place} is not readable by other users, and a contained process runs as another user"
                        )
            except BaseException as error:
                os.write(write, str(error).encode()[:400] or b"unknown")
            finally:
                os._exit(0)
        os.close(write)
        message = b""
        while part := os.read(read, 400):
            message += part
        os.close(read)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return message.decode(errors="replace") or None


def _place_of(package: str) -> str | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None else None


def _settle_in(scratch: str) -> None:
    """Set the environment variables for the home, temporary and cache folders to the scratch folder."""
    before = os.environ.get("TMPDIR", "")
    inner = {name: scratch for name, value in os.environ.items() if before and value.startswith(f"{before}/")}
    os.environ.update(**inner, HOME=scratch, TMPDIR=scratch, USER="sentinel", LOGNAME="sentinel")
    tempfile.tempdir = None
    os.chdir(scratch)


# -- namespaces --------------------------------------------------------------------------------------------------------


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise ContainmentError(f"{what}: {os.strerror(number)}")


def _unshare(user: int, numbers: int) -> None:
    spaces = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNET | user | numbers
    hint = ""
    with contextlib.suppress(OSError):
        if user and Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").read_text().strip() == "1":
            hint = " (sysctl kernel.apparmor_restrict_unprivileged_userns is 1)"
    with contextlib.suppress(OSError):
        if user and Path("/proc/sys/kernel/unprivileged_userns_clone").read_text().strip() == "0":
            hint = " (sysctl kernel.unprivileged_userns_clone is 0)"
    _call(f"namespaces are not available{hint}", _libc().unshare(spaces))


def may_be_others() -> bool:
    """Return True if this process can change to any of ``USERS``, that is, if it is root and its user namespace maps
    them."""
    if os.geteuid() != 0:
        return False
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(first <= USERS.start and USERS.stop <= first + count for first, _, count in ranges)


def _map_to_itself(user: int, group: int) -> None:
    with contextlib.suppress(OSError):  # kernels before 3.19 have no such file
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


# -- the root ----------------------------------------------------------------------------------------------------------


@cache
def _interpreter() -> Sequence[str]:
    """Return the folders that a contained interpreter may read: the standard library, packages, torch and numpy.

    ``sys.path`` is not used, because ``.pth`` files add whole folders of editable installs.
    """
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    environment = [os.path.join(prefix, part) for prefix in prefixes for part in PARTS]
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    packages = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    places = [sys.executable, *environment, *filter(None, library), *packages, *SYSTEM]
    return [place for place in (*places, *folders_of(("numpy", "torch"))) if os.path.exists(place)]


def folders_of(packages: Iterable[str]) -> list[str]:
    """Return the folder (or the file) of each installed package."""
    places = []
    for name in dict.fromkeys(package.partition(".")[0] for package in packages):
        origin = _place_of(name)
        if origin is not None and os.path.isabs(origin):
            places.append(os.path.dirname(origin) if os.path.basename(origin).startswith("__init__.") else origin)
    return places


def _build_root(
    visible: Iterable[str], hidden: Sequence[str], scratch: str, user: int, devices: Iterable[str], innermost: bool
) -> None:
    """Replace the root of this process by a tmpfs with bind mounts, and detach the old root.

    :param innermost: True if no further process will be contained inside this one. If False, leave ``/proc`` uncovered:
        if any part of it is covered, the kernel refuses to mount a new ``/proc`` in a user namespace.
    """
    os.umask(0o022)  # another user must be able to enter the folders
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=64m")
    root = scratch
    # From here on, folders are made relative to the working folder. If the worker is killed, its scratch folder is
    # unmounted and removed. Absolute paths would then create folders on the disk, and nothing would remove them.
    os.chdir(root)
    for folder in ("/tmp", "/proc", "/etc"):
        os.mkdir(f".{folder}")
    # Some code ignores TMPDIR and makes folders in /tmp during import.
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={SCRATCH_BYTES}")
    for place in outermost(visible):
        _bind(place, root)
    for device in devices:
        _bind(device, root, flags=_MS_NOSUID | _MS_NOEXEC)
    for folder in hidden:
        if os.path.isdir(root + folder):
            _mount("tmpfs", root + folder, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "size=4k")
    os.makedirs(f".{scratch}", exist_ok=True)
    _mount("tmpfs", root + scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,size={SCRATCH_BYTES}")
    Path("etc/passwd").write_text(f"sentinel:x:{user}:{user}::{scratch}:/bin/false\n")
    # If a container has covered parts of its /proc, the kernel refuses to mount a new one. Probes work without it.
    with contextlib.suppress(ContainmentError):
        _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        for file in _OF_THIS_MACHINE if innermost else ():
            if os.path.exists(f".{file}"):
                _mount(f"{root}/dev/null", f"{root}{file}", None, _MS_BIND)
    _mount(None, root, None, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "mode=755,size=64m")
    # Both arguments are the same folder, so the old root is mounted over the new one until it is detached.
    _call("the root cannot be changed", _libc().syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
    _call("the old root file system cannot be detached", _libc().umount2(b".", _MNT_DETACH))
    os.chdir("/")


#: The number of the system call pivot_root, for which the C library has no function.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def outermost(places: Iterable[str]) -> list[str]:
    """Return the paths that are not inside another path of the list. A link counts both as its own path and as its
    target."""
    spellings = {spelling for place in places for spelling in (os.path.abspath(place), os.path.realpath(place))}
    return sorted(
        place for place in spellings if not any(place != other and place.startswith(f"{other}/") for other in spellings)
    )


def _bind(place: str, root: str, flags: int = _MS_RDONLY | _MS_NOSUID | _MS_NODEV) -> None:
    """Bind-mount a file or folder at the same path under the new root, so that ``/usr`` appears at ``ROOT/usr``.

    :param root: the path of the new root, which is also the working folder. It is used only in mount calls. Mount
        points are created relative to the working folder, because this path may have been removed meanwhile.
    """
    real, here, target = os.path.realpath(place), f".{place}", root + place
    if os.path.lexists(here):
        return
    if os.path.isdir(real):
        os.makedirs(here, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(here), exist_ok=True)
        Path(here).touch()
    try:
        _mount(real, target, None, _MS_BIND)
        mounts = [target]
    except ContainmentError:
        # Bind the mounts below the folder too: in a user namespace, the kernel refuses to show what they cover.
        _mount(real, target, None, _MS_BIND | _MS_REC)
        mounts = [target, *_mounts_below(target)]
    for place in mounts:
        # A remount must keep the restrictions of the original mount.
        more = os.statvfs(place).f_flag & (_MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        _mount(None, place, None, _MS_BIND | _MS_REMOUNT | flags | more)


def _mounts_below(folder: str) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    # This file has octal escapes for blanks and some other characters.
    places = [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines]
    return [place for place in places if place.startswith(f"{folder}/")]


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    result = _libc().mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _call(f"{source or kind or 'a remount'} on {target} is not permitted", result)


# -- privileges --------------------------------------------------------------------------------------------------------


def _rule_out_capabilities() -> None:
    """Empty the capability bounding set, so that no child process can gain a capability."""
    libc = _libc()
    for number in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # this kernel has no capability with this number


def _drop_capabilities() -> None:
    libc = _libc()
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
    nothing = ctypes.create_string_buffer(24)
    _call("capabilities cannot be dropped", libc.capset(header, nothing))
    _call("PR_SET_NO_NEW_PRIVS failed", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


class _Program(ctypes.Structure):
    """``struct sock_fprog`` of <linux/filter.h>; an instruction has eight bytes."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter(program: bytes) -> None:
    described = _Program(len(program) // 8, program)
    result = _libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(described), 0, 0)
    _call("the kernel rejected the filter of system calls", result)
