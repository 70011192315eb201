"""Contains another interpreter from its first instruction on, in bubblewrap.

Processes of the worker contain themselves (:mod:`~sentinel.worker.containment`), but not before their interpreter has
started, and an environment has code of its own that runs then: ``.pth`` files, a ``sitecustomize``, the packages that a
zygote imports once for all. Ours runs in the controller anyhow; another one, of ``--sentinel-python``, starts in
bubblewrap: a read-only root with that environment and what is named, without a network or another process to see, and
as an unprivileged user. Target processes contain themselves further there, as everywhere.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.worker import containment
from sentinel.worker.environments import places_of
from sentinel.worker.limits import USERS

#: Sentinel itself: the worker's own code is in it, that of any interpreter.
_PACKAGE = str(Path(__file__).resolve().parent.parent)

#: Of the user's environment.
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TZ", "SYSTEMROOT")

#: Seconds in which an interpreter answers a question about itself.
_PATIENCE = 60

#: What root does in bubblewrap before it becomes another user. bubblewrap would cover parts of this /proc, and the
#: kernel gives nobody a new one in a namespace below then.
_BECOME = (
    'mount -t proc -o nosuid,nodev,noexec proc /proc && exec setpriv --reuid "$0" --regid "$0" --clear-groups '
    '--inh-caps=-all --ambient-caps=-all --bounding-set=-all --no-new-privs -- "$@"'
)


class InterpreterError(SentinelError):
    """An interpreter that does not run, or cannot be put in bubblewrap."""


@cache
def reason_against() -> str | None:
    """Say why bubblewrap cannot be used here; None where it can. Tried for real, with namespaces below it."""
    if sys.platform != "linux":
        return "it needs Linux"
    lacking = [name for name in _programs() if shutil.which(name) is None]
    if lacking:
        return f"no {lacking[0]} on PATH"
    below = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"]
    try:
        process = subprocess.run(
            _in_bubblewrap(below, (), (), (), ()), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not run: {error}"
    return (process.stderr.strip().splitlines() or ["bwrap fails"])[-1] if process.returncode else None


def user() -> int | None:
    """Choose who is in bubblewrap; None where that is who is in front of it."""
    return USERS[os.getpid() % len(USERS)] if containment.may_be_others() else None


def wrap(
    command: Sequence[str],
    readable: Iterable[str] = (),
    hidden: Iterable[str] = (),
    writable: Iterable[str] = (),
    devices: Iterable[str] = (),
) -> list[str]:
    """Give the command that runs a Python interpreter in bubblewrap; the same command where none can be had.

    :param command: begins with the path of the interpreter.
    :param readable: what it may read beside its own environment and Sentinel's code.
    :param hidden: folders below those that are empty there.
    :param writable: folders that it may write; :func:`user` has to be able to.
    :param devices: what to have of ``/dev`` beside the harmless ones.
    :raises InterpreterError: where the interpreter is a script, which may start whatever it likes.
    """
    python = shutil.which(command[0]) or command[0]
    if not os.path.isfile(python) or reason_against() is not None:
        return list(command)
    with open(python, "rb") as file:
        if file.read(2) == b"#!":
            raise InterpreterError(
                f"{python} is a script; name the interpreter that it starts, as "
                f"`{python} -c 'import sys; print(sys.executable)'` prints it"
            )
    python = os.path.abspath(python)
    own = [os.path.join(environment()["PYTHONUSERBASE"], "lib"), *places_of(python)]
    return _in_bubblewrap([python, *command[1:]], [*own, *readable], hidden, writable, devices)


def gpus() -> list[str]:
    """Give the GPUs of this machine, below ``/dev``."""
    return glob.glob("/dev/nvidia*")


def ask(python: str | None, *words: str, devices: Iterable[str] = ()) -> Any:
    """Give the JSON on the last line that an interpreter prints, run in bubblewrap where it is another one than
    ours."""
    name = python or sys.executable
    try:
        process = subprocess.run(
            [name, *words] if python is None else wrap([name, *words], devices=devices),
            env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE, check=False,
        )  # fmt: skip
        if process.returncode == 0:
            return json.loads(process.stdout.splitlines()[-1])
        reason = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_PATIENCE} s"
    except (ValueError, IndexError, RecursionError):
        reason = "it printed something else"
    raise InterpreterError(f"cannot run {name}: {reason}")


def environment() -> dict[str, str]:
    """Give what an interpreter may know of the user's environment."""
    user_base = os.environ.get("PYTHONUSERBASE") or site.getuserbase()  # goes by HOME otherwise
    return {**{name: os.environ[name] for name in _PASSED if name in os.environ}, "PYTHONUSERBASE": user_base}


def _programs() -> tuple[str, ...]:
    return ("bwrap", "sh", "mount", "setpriv") if user() is not None else ("bwrap",)


def _in_bubblewrap(
    command: Sequence[str],
    readable: Iterable[str],
    hidden: Iterable[str],
    writable: Iterable[str],
    devices: Iterable[str],
) -> list[str]:
    other = user()
    own = [place for name in (*_programs(), "true") if (place := shutil.which(name))]
    visible = containment.outermost(
        place for place in (*containment.SYSTEM, _PACKAGE, *own, *readable) if os.path.exists(place)
    )
    words = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--dev", "/dev", "--tmpfs", "/tmp"]
    words += ["--unshare-user", "--proc", "/proc"] if other is None else ["--dir", "/proc"]
    # The folders above these would be for nobody but who makes them.
    above = {str(folder): None for place in (*visible, *writable) for folder in reversed(Path(place).parents)}
    words += [word for folder in above if folder != "/" for word in ("--dir", folder)]
    for place in visible:
        words += ["--ro-bind", place, place]
    for folder in filter(os.path.isdir, hidden):
        words += ["--tmpfs", folder, "--remount-ro", folder]
    for folder in writable:
        words += ["--bind", folder, folder]
    for device in devices:
        words += ["--dev-bind", device, device]
    become = [] if other is None else ["sh", "-c", _BECOME, str(other)]
    return ["bwrap", *words, "--", *become, *command]
