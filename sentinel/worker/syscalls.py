"""Build a seccomp filter that rejects system calls which contained code does not need.

The controller builds the filter with libseccomp and sends it to the worker as a BPF program, because the worker's
interpreter may lack libseccomp.

Numerical code needs many calls, so this is a list of refused calls. It contains what the default profiles of Docker and
Flatpak refuse for code without capabilities and terminal.
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
#: A process would notice another process's use of the shared files of a checkout.
_WATCHES = "fanotify_init fanotify_mark inotify_add_watch inotify_init inotify_init1"
_KEYRINGS = "add_key keyctl request_key"  # not separated by any namespace
_NAMES_AND_MOUNTS = """
    chroot fsconfig fsmount fsopen fspick mknod mknodat mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree pivot_root setns umount umount2 unshare
"""

#: Refused with EPERM.
REFUSED = tuple(" ".join((_THE_MACHINE, _OTHER_PROCESSES, _KEYRINGS, _NAMES_AND_MOUNTS, _WATCHES)).split())

#: Refused with ENOSYS: their arguments are in memory, which a filter cannot read, and callers fall back to older calls.
ABSENT = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup")

#: Socket families that namespaces contain: AF_UNIX, AF_INET, AF_INET6. AF_VSOCK, for example, reaches the host of a
#: virtual machine from any namespace.
_FAMILIES = (1, 2, 10)

#: socketpair supports only AF_UNIX of these.
_PAIRS = (1,)

#: fcntl's requests that set file locks: F_SETLK, F_SETLKW, F_OFD_SETLK and F_OFD_SETLKW; and that read locks or take
#: leases: F_GETLK, F_OFD_GETLK, F_SETLEASE and F_GETLEASE.
_LOCKS, _QUESTIONS_ABOUT_LOCKS = (6, 7, 37, 38), (5, 36, 1024, 1025)

#: Argument of personality that only reads it.
_ASK = 0xFFFFFFFF

#: CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS and NEWTIME.
_NEW_NAMESPACES = (0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x00000080)

#: ioctl's requests that write into a terminal's input.
_TERMINAL_INPUT = (0x5412, 0x541C)

_WORD = 0xFFFFFFFF


class NoFilterError(Exception):
    """Raised if the filter cannot be built on this machine."""


@cache
def program() -> bytes:
    """Return the filter as an array of ``struct sock_filter``, for this machine's architecture.

    :raises NoFilterError: if libseccomp is not available.
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
        except (OSError, ValueError):  # this libseccomp or architecture lacks the call
            continue
    for flag in _NEW_NAMESPACES:
        filter_.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL_INPUT:  # the kernel reads 32 bits of it, and so must the filter
        filter_.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _WORD, request))
    # A process must not undo its end with the parent: prctl(PR_SET_PDEATHSIG) with anything but SIGKILL.
    death = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _WORD, 1)
    filter_.add_rule(refuse, "prctl", death, pyseccomp.Arg(1, pyseccomp.NE, signal.SIGKILL))
    filter_.add_rule(refuse, "personality", pyseccomp.Arg(0, pyseccomp.NE, _ASK))
    # Files of a checkout are shared read-only by all processes that probe it; a lock would be visible to the others.
    # Locks succeed without effect, because libraries lock their own files.
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
    """Return the filter as hexadecimal text; None if there is none."""
    try:
        return program().hex()
    except NoFilterError:
        return None
