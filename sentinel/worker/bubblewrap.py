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
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sentinel.errors import SentinelError
from sentinel.worker import containment
from sentinel.worker.limits import USERS

#: Sentinel itself: the worker's own code is in it, that of any interpreter.
_PACKAGE = str(Path(__file__).resolve().parent.parent)

#: Of the user's environment.
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TZ", "SYSTEMROOT")

#: What of a prefix an interpreter needs; a home folder may be one too.
_PARTS = ("bin", "lib", "lib64", "lib32", "pyvenv.cfg")

#: Bytes of a file that tells of an environment.
_LARGEST_FILE = 1 << 16

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
    own = [os.path.join(environment()["PYTHONUSERBASE"], "lib"), *_places_of(python)]
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


# -- where another interpreter and its packages lie, read off its files: none of it may run yet ------------------------


def _places_of(python: str) -> Iterator[str]:
    """List where an interpreter and its packages lie, as far as that can be told without starting it."""
    yield from _libraries()
    for place in _hops(python):
        yield place
        prefix = os.path.dirname(os.path.dirname(place))
        packages = glob.glob(f"{glob.escape(prefix)}/lib*/python3*/*-packages")
        if packages or os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
            yield from (os.path.join(prefix, part) for part in _PARTS)
        for folder in packages:
            yield from filter(_is_project, _elsewhere(folder))


def _libraries() -> Iterator[str]:
    """Folders in which the loader looks for shared libraries, beside the usual ones: torch may be built on some."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for file in ("/etc/ld.so.conf", *glob.glob("/etc/ld.so.conf.d/*.conf")):
        folders += [line.strip() for line in _text(file).splitlines()]
    yield from (folder for folder in folders if os.path.isabs(folder) and glob.glob(f"{glob.escape(folder)}/*.so*"))


def _hops(python: str) -> Iterator[str]:
    """Follow an interpreter's links, and go on to that of the environment that it was made from."""
    left, places = [python], set()
    while left:
        place = os.path.normpath(left.pop())
        if place in places:
            continue
        places.add(place)
        yield place
        if os.path.islink(place):
            left.append(os.path.join(os.path.dirname(place), os.readlink(place)))
        left += [os.path.realpath(place)]
        settings = _text(os.path.join(os.path.dirname(os.path.dirname(place)), "pyvenv.cfg"))
        for line in settings.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home" and os.path.isabs(value.strip()):
                left += glob.glob(f"{glob.escape(value.strip())}/python3*")


def _elsewhere(packages: str) -> Iterator[str]:
    """Folders that a folder of packages refers to: what was installed to be edited."""
    for file in glob.glob(f"{glob.escape(packages)}/*.dist-info/direct_url.json"):
        try:
            record = json.loads(_text(file))
            if record["dir_info"]["editable"]:
                yield unquote(urlsplit(record["url"]).path)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    for file in glob.glob(f"{glob.escape(packages)}/*.pth"):
        yield from (line.strip() for line in _text(file).splitlines())


def _is_project(folder: str) -> bool:
    """Whether a folder, or the one above it, holds a project for Python: any release may refer to any folder. Not
    Sentinel's own: recipes and evidence lie in it."""
    if not os.path.isabs(folder) or not os.path.isdir(folder) or containment.holds_sentinel(folder):
        return False
    names = ("pyproject.toml", "setup.py", "setup.cfg")
    return any(os.path.isfile(os.path.join(place, name)) for place in (folder, f"{folder}/..") for name in names)


def _text(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read(_LARGEST_FILE).decode(errors="replace")
    except OSError:
        return ""
