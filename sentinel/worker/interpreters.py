"""Starts commands strictly contained from the first instruction of their interpreter on, another environment's too.

Processes of the worker contain themselves (:mod:`~sentinel.worker.containment`), but not before their interpreter has
started, and an environment has code of its own that runs then: ``.pth`` files, a ``sitecustomize``, the packages that a
zygote imports once for all. Ours runs in the controller anyhow. So it is ours that is started: it contains itself, with
what is named, read-only, without a network or another process to see, as an unprivileged user, and becomes the other
one. Target processes contain themselves further there, as everywhere.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from sentinel.errors import SentinelError
from sentinel.worker import containment, limits, processes, syscalls

#: Sentinel itself: the worker's own code is in it, that of any interpreter.
_PACKAGE = Path(__file__).resolve().parent.parent

#: Of the user's environment.
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TZ", "SYSTEMROOT")

#: Bytes of a file that tells of an environment.
_LARGEST_FILE = 1 << 16

#: Seconds in which an interpreter answers a question about itself; and in which a command with limits may compute.
_PATIENCE, _MOST_SECONDS = 60, 600

#: How a command ends that could not be contained, and so was not started.
REFUSED = 125

#: Asks in a contained world whether there can be another one in it.
_NESTED = """
import sys
sys.path.insert(0, sys.argv[1])
from sentinel.worker import containment
print(containment.reason_against() or "")
"""


class InterpreterError(SentinelError):
    """An interpreter that does not run, or cannot be contained from its first instruction on."""


@cache
def reason_against() -> str | None:
    """Say why another interpreter cannot be started contained here; None where it can. Tried for real, with its
    processes contained in it."""
    with tempfile.TemporaryDirectory(prefix="sentinel-") as scratch:
        command = _contained([sys.executable, "-c", _NESTED, str(_PACKAGE.parent)], scratch, [str(_PACKAGE)])
        try:
            process = _run(command)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = (process.stderr if process.returncode else process.stdout).strip().splitlines()
    return lines[-1] if lines else "it ended without a word" if process.returncode else None


def wrap(
    command: Sequence[str],
    scratch: str,
    readable: Iterable[str] = (),
    hidden: Sequence[str] = (),
    devices: Sequence[str] = (),
    packages: Iterable[str] = (),
) -> list[str]:
    """Give the command that starts a Python interpreter contained; the same command where that cannot be done.

    :param command: begins with the path of the interpreter.
    :param scratch: the one folder that it may write: in memory, below this path.
    :param readable: what it may read beside its own environment and Sentinel's code.
    :param hidden: folders below those that are empty there.
    :param devices: what to have of ``/dev`` beside the harmless ones.
    :param packages: the packages whose folders it may read if they are installed to be edited; torch and numpy are
        always among them.
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
    whole = [os.path.abspath(python), *command[1:]]
    visible = [str(_PACKAGE), *readable]
    return _contained(whole, scratch, visible, packages, hidden=list(hidden), devices=list(devices))


def contained_command(command: Sequence[str], folder: Path, *readable: Path, memory: int) -> list[str]:
    """Give the command that runs another one strictly contained, with limits, the standard streams and the environment
    but for ``HOME`` and ``TMPDIR``.

    :param command: beginning with the path of a Python interpreter.
    :param folder: a folder of the caller's, which it may read; it works in memory, at ``scratch`` below it.
    :param readable: what else it may read beside that interpreter.
    :param memory: bytes of address space of each of its processes, 0 for no limit.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    for place in (folder, *folder.rglob("*")):  # it may be another user
        place.chmod(0o755 if place.is_dir() else 0o644)
    visible = [str(place) for place in (folder, *readable)]
    return _contained(command, str(scratch), visible, system_calls=syscalls.hexadecimal(), memory=memory)


def _contained(
    command: Sequence[str], scratch: str, readable: Iterable[str], packages: Iterable[str] = (), **more: Any
) -> list[str]:
    own = [] if command[0] == sys.executable else _places_of(command[0], ("torch", "numpy", *packages))
    visible = [place for place in (*own, *readable) if os.path.exists(place)]
    settings = json.dumps({"readable": visible, "scratch": scratch, **more})
    return [sys.executable, str(_PACKAGE / "worker" / "bootstrap.py"), "--contained", settings, *command]


def run(settings: str, command: Sequence[str]) -> NoReturn:
    """Become a command that sees what its settings name, and nothing else; the caller waits for it."""
    arguments = {"hidden": [], **json.loads(settings)}
    memory = arguments.pop("memory", None)
    try:
        containment.contain(**arguments, ready=lambda pid: None, wait=True)
        processes.die_with_parent()
        if memory is not None:
            limits.limit(memory, True, _MOST_SECONDS)
        os.execv(command[0], list(command))
    except (containment.ContainmentError, OSError) as error:
        print(f"strict containment is not available here: {error}", file=sys.stderr)
        os._exit(REFUSED)


def gpus() -> list[str]:
    """Give the GPUs of this machine, below ``/dev``."""
    return glob.glob("/dev/nvidia*")


def ask(python: str | None, *words: str, devices: Sequence[str] = (), packages: Iterable[str] = ()) -> Any:
    """Give the JSON on the last line that an interpreter prints, contained where it is another one than ours.

    :param packages: as :func:`wrap` has it.
    """
    name = python or sys.executable
    try:
        with tempfile.TemporaryDirectory(prefix="sentinel-") as scratch:
            process = _run(
                [name, *words] if python is None else wrap([name, *words], scratch, devices=devices, packages=packages)
            )
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


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=_PATIENCE, check=False,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """Give what an interpreter may know of the user's environment."""
    user_base = os.environ.get("PYTHONUSERBASE") or site.getuserbase()  # goes by HOME otherwise
    return {**{name: os.environ[name] for name in _PASSED if name in os.environ}, "PYTHONUSERBASE": user_base}


# -- where another interpreter and its packages lie, read off its files: none of it may run yet ------------------------


def _places_of(python: str, named: Iterable[str]) -> Iterator[str]:
    """List where an interpreter and its packages lie, as far as that can be told without starting it.

    :param named: the packages that are looked for among those installed to be edited.
    """
    yield os.path.join(environment()["PYTHONUSERBASE"], "lib")
    yield from _libraries()
    named = list(dict.fromkeys(name.partition(".")[0] for name in named))
    for place in _hops(python):
        yield place
        prefix = os.path.dirname(os.path.dirname(place))
        packages = glob.glob(f"{glob.escape(prefix)}/lib*/python3*/*-packages")
        if packages or os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
            yield from (os.path.join(prefix, part) for part in containment.PARTS)
        for folder in packages:
            for project in _elsewhere(folder):
                yield from _packages_in(project, named)


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


def _packages_in(project: str, named: Iterable[str]) -> Iterator[str]:
    """List those of the named packages that lie in the folder of an editable install; the rest of it is the user's."""
    for name in named if os.path.isabs(project) else ():
        for parent in (project, os.path.join(project, "src")):
            package = os.path.join(parent, name)
            if os.path.isfile(os.path.join(package, "__init__.py")):
                yield package
            elif os.path.isfile(f"{package}.py"):
                yield f"{package}.py"


def _text(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read(_LARGEST_FILE).decode(errors="replace")
    except OSError:
        return ""
