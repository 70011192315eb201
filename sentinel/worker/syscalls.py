"""The system calls that strictly contained code has no business with, as a filter for the kernel.

The filter is built here, in the controller, by libseccomp, and travels to the worker as the program that the kernel
runs: the worker's interpreter may be one that has no libseccomp.

Numerical code needs many calls, so this lists what is refused, and everything else is let through. The list is what
Docker's default profile and Flatpak's refuse, as far as it concerns code that has neither capabilities nor a terminal.
"""

from __future__ import annotations

import errno
import signal
import tempfile
from functools import cache

_THE_MACHINE = """
    acct adjtimex bpf clock_adjtime clock_settime create_module delete_module finit_module init_module ioperm iopl
    kexec_file_load kexec_load lookup_dcookie migrate_pages move_pages nfsservctl perf_event_open quotactl quotactl_fd
    reboot setdomainname sethostname settimeofday swapoff swapon syslog uselib userfaultfd vhangup
"""
_OTHER_PROCESSES = "kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"
#: What one process does to a file, another one hears: the files of a checkout are the same in both.
_WATCHES = "fanotify_init fanotify_mark inotify_add_watch inotify_init inotify_init1"
_KEYRINGS = "add_key keyctl request_key"  # which no namespace divides
_NAMES_AND_MOUNTS = """
    chroot fsconfig fsmount fsopen fspick mknod mknodat mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree pivot_root setns umount umount2 unshare
"""

#: Refused with EPERM.
REFUSED = tuple(" ".join((_THE_MACHINE, _OTHER_PROCESSES, _KEYRINGS, _NAMES_AND_MOUNTS, _WATCHES)).split())

#: Said not to exist: their arguments lie in memory, where no filter looks, and callers fall back to older calls.
ABSENT = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup")

#: The kinds of sockets that namespaces contain: AF_UNIX, AF_INET, AF_INET6. AF_VSOCK, for one, is not among them: it
#: reaches the host of a virtual machine from any namespace.
_FAMILIES = (1, 2, 10)

#: Of these, a pair can be made of AF_UNIX alone.
_PAIRS = (1,)

#: fcntl's requests for locks on files: F_SETLK, F_SETLKW, F_OFD_SETLK and F_OFD_SETLKW; and those that ask about locks
#: or take leases: F_GETLK, F_OFD_GETLK, F_SETLEASE and F_GETLEASE.
_LOCKS, _QUESTIONS_ABOUT_LOCKS = (6, 7, 37, 38), (5, 36, 1024, 1025)

#: personality's argument that only asks.
_ASK = 0xFFFFFFFF

#: CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS and NEWTIME.
_NEW_NAMESPACES = (0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x00000080)

#: ioctl's requests that put words into a terminal's input.
_TERMINAL_INPUT = (0x5412, 0x541C)

_WORD = 0xFFFFFFFF


class NoFilterError(Exception):
    """Why there is no filter on this machine."""


@cache
def program() -> bytes:
    """Give the filter as an array of ``struct sock_filter``, for this machine's architecture.

    :raises NoFilterError: where libseccomp is not available.
    """
    try:
        import pyseccomp
    except ImportError:
        raise NoFilterError("pyseccomp is not installed") from None
    except RuntimeError as error:
        raise NoFilterError(f"libseccomp is not installed: {error}") from None
    filter_ = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    refuse = pyseccomp.ERRNO(errno.EPERM)
    rules = [(refuse, name) for name in REFUSED] + [(pyseccomp.ERRNO(errno.ENOSYS), name) for name in ABSENT]
    for action, name in rules:
        try:
            filter_.add_rule(action, name)
        except (OSError, ValueError):  # this libseccomp, or this architecture, has no such call
            continue
    for flag in _NEW_NAMESPACES:
        filter_.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL_INPUT:  # the kernel looks at 32 bits of it, and so must the filter
        filter_.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _WORD, request))
    # Who is to end with its parent stays so: prctl(PR_SET_PDEATHSIG) with anything but SIGKILL.
    death = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _WORD, 1)
    filter_.add_rule(refuse, "prctl", death, pyseccomp.Arg(1, pyseccomp.NE, signal.SIGKILL))
    filter_.add_rule(refuse, "personality", pyseccomp.Arg(0, pyseccomp.NE, _ASK))
    # Files of a checkout are shared, read-only, by all processes that probe it: a lock would tell one about another.
    # Locks succeed and do nothing, as libraries take them on files of their own.
    nothing = pyseccomp.ERRNO(0)
    filter_.add_rule(nothing, "flock")
    for action, requests in ((nothing, _LOCKS), (refuse, _QUESTIONS_ABOUT_LOCKS)):
        for request in requests:
            filter_.add_rule(action, "fcntl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _WORD, request))
    unsupported = pyseccomp.ERRNO(errno.EAFNOSUPPORT)
    for call, families in (("socket", _FAMILIES), ("socketpair", _PAIRS)):
        for family in sorted(set(range(max(families))) - set(families)):
            filter_.add_rule(unsupported, call, pyseccomp.Arg(0, pyseccomp.EQ, family))
        filter_.add_rule(unsupported, call, pyseccomp.Arg(0, pyseccomp.GT, max(families)))
    with tempfile.TemporaryFile() as file:
        filter_.export_bpf(file)
        file.seek(0)
        return file.read()


def hexadecimal() -> str | None:
    """Give the filter as it travels to whoever is contained; None where there is none."""
    try:
        return program().hex()
    except NoFilterError:
        return None
