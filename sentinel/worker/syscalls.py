"""Build a seccomp filter that rejects system calls which contained code does not need.

The controller builds the filter with libseccomp and sends it to the worker as a BPF program, because the worker's
interpreter may lack libseccomp.

Numerical code needs many system calls, so the filter lists only those that are rejected. They are the ones that the
default profiles of Docker and Flatpak reject for code without capabilities and without a terminal.
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
#: With these, a process could observe how another process uses the shared files of a checkout.
_WATCHES = "fanotify_init fanotify_mark inotify_add_watch inotify_init inotify_init1"
_KEYRINGS = "add_key keyctl request_key"  # namespaces do not separate these
_NAMES_AND_MOUNTS = """
    chroot fsconfig fsmount fsopen fspick mknod mknodat mount mount_setattr move_mount name_to_handle_at
    open_by_handle_at open_tree pivot_root setns umount umount2 unshare
"""

#: Refused with EPERM.
REFUSED = tuple(" ".join((_THE_MACHINE, _OTHER_PROCESSES, _KEYRINGS, _NAMES_AND_MOUNTS, _WATCHES)).split())

#: Refused with ENOSYS, because their arguments are in memory, which a filter cannot read. Callers then use older calls.
ABSENT = ("clone3", "io_uring_enter", "io_uring_register", "io_uring_setup")

#: Socket families that namespaces contain: AF_UNIX, AF_INET, AF_INET6. AF_VSOCK, for example, reaches the host of a
#: virtual machine from any namespace.
_FAMILIES = (1, 2, 10)

#: Of these families, socketpair supports only AF_UNIX.
_PAIRS = (1,)

#: Requests of fcntl that set file locks (F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW), and requests that read locks or
#: take leases (F_GETLK, F_OFD_GETLK, F_SETLEASE, F_GETLEASE).
_LOCKS, _QUESTIONS_ABOUT_LOCKS = (6, 7, 37, 38), (5, 36, 1024, 1025)

#: The argument with which ``personality`` changes nothing and returns the current value.
_ASK = 0xFFFFFFFF

#: CLONE_NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS and NEWTIME.
_NEW_NAMESPACES = (0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x00000080)

#: Requests of ioctl that write into the input of a terminal.
_TERMINAL_INPUT = (0x5412, 0x541C)

_WORD = 0xFFFFFFFF


class NoFilterError(Exception):
    """Raised if the filter cannot be built on this machine."""


@cache
def program() -> bytes:
    """Return the seccomp filter as an array of ``struct sock_filter``, for this machine's architecture.

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
        except (OSError, ValueError):  # this libseccomp or architecture does not have the call
            continue
    for flag in _NEW_NAMESPACES:
        filter_.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, flag, flag))
    for request in _TERMINAL_INPUT:  # the filter compares 32 bits, because the kernel reads only these
        filter_.add_rule(refuse, "ioctl", pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _WORD, request))
    # A process must end with its parent, so prctl(PR_SET_PDEATHSIG) is rejected with any signal but SIGKILL.
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
    """Return the seccomp filter as hexadecimal text; None if it cannot be built on this machine."""
    try:
        return program().hex()
    except NoFilterError:
        return None
