"""Start another Python interpreter in strict containment.

Worker processes contain themselves (:mod:`~sentinel.worker.containment`) after their interpreter has started. An
interpreter of another environment runs code before that: ``.pth`` files, ``sitecustomize``, and packages that the
preloader imports. So Sentinel's own interpreter is started first. It contains itself and then executes the other one,
which sees only the named folders, read-only, has no network, cannot see other processes, and runs as an unprivileged
user. Its target processes contain themselves once more.
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

#: Sentinel's folder, with the worker's code for every interpreter.
_PACKAGE = Path(__file__).resolve().parent.parent

#: Environment variables of the user that are passed on to interpreters.
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "TZ", "SYSTEMROOT")

#: Maximum bytes of a file that describes an environment.
_LARGEST_FILE = 1 << 16

#: Maximum seconds of a script that :func:`ask` runs, and maximum CPU seconds of a contained command.
_PATIENCE, _MOST_SECONDS = 60, 600

#: Exit status of a command that was not started because it could not be contained.
REFUSED = 125

#: A script that runs in containment and checks whether containment can be nested.
_NESTED = """
import sys
sys.path.insert(0, sys.argv[1])
from sentinel.worker import containment
print(containment.reason_against() or "")
"""


class InterpreterError(SentinelError):
    """Raised if an interpreter does not run, or cannot be contained."""


@cache
def reason_against() -> str | None:
    """Return why another interpreter cannot be contained here; None if it can be.

    The test starts a contained process, which tries to contain itself again."""
    with tempfile.TemporaryDirectory(prefix="sentinel-") as scratch:
        command = _contained([sys.executable, "-c", _NESTED, str(_PACKAGE.parent)], scratch, [str(_PACKAGE)])
        try:
            process = _run(command)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = (process.stderr if process.returncode else process.stdout).strip().splitlines()
    return lines[-1] if lines else "it ended without output" if process.returncode else None


def wrap(
    command: Sequence[str],
    scratch: str,
    readable: Iterable[str] = (),
    hidden: Sequence[str] = (),
    devices: Sequence[str] = (),
    packages: Iterable[str] = (),
) -> list[str]:
    """Return a command that starts a Python interpreter in containment; the original command if that is impossible.

    :param command: starts with the path of the interpreter.
    :param scratch: the only writable folder, in memory.
    :param readable: folders that the interpreter may read besides its environment and Sentinel's code.
    :param hidden: subfolders of ``readable`` that must appear empty.
    :param devices: files of ``/dev`` to expose besides the harmless ones.
    :param packages: packages whose folders the interpreter may read if they are editable installs. torch and numpy are
        always included.
    :raises InterpreterError: if ``command`` starts with a script, because a script may start any program.
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
    """Return a command that runs another command in strict containment, with time and memory limits.

    :param command: starts with the path of a Python interpreter.
    :param folder: a folder of the caller, which the command may read. Its subfolder ``scratch`` is writable, in memory.
    :param readable: other readable folders besides the interpreter's.
    :param memory: address space of each process in bytes, 0 for no limit.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    for place in (folder, *folder.rglob("*")):  # the command may run as another user
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
    """Replace this process by a command that can read only the folders named in ``settings``."""
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
    """Return the GPU devices of this machine below ``/dev``."""
    return glob.glob("/dev/nvidia*")


def ask(python: str | None, *words: str, devices: Sequence[str] = (), packages: Iterable[str] = ()) -> Any:
    """Run a Python script, and return the JSON on the last line of its output. The script is contained unless it runs
    in Sentinel's own interpreter.

    :param packages: as in :func:`wrap`.
    """
    name = python or sys.executable
    try:
        with tempfile.TemporaryDirectory(prefix="sentinel-") as scratch:
            process = _run(
                [name, *words] if python is None else wrap([name, *words], scratch, devices=devices, packages=packages)
            )
        if process.returncode == 0:
            return json.loads(process.stdout.splitlines()[-1])
        reason = (process.stderr.strip().splitlines() or ["no output"])[-1]
    except OSError as error:
        reason = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_PATIENCE} s"
    except (ValueError, IndexError, RecursionError):
        reason = "it did not print JSON"
    raise InterpreterError(f"cannot run {name}: {reason}")


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=_PATIENCE, check=False,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment variables for an interpreter."""
    user_base = os.environ.get("PYTHONUSERBASE") or site.getuserbase()  # otherwise derived from HOME
    return {**{name: os.environ[name] for name in _PASSED if name in os.environ}, "PYTHONUSERBASE": user_base}


# -- folders of another interpreter and its packages, found without running it -----------------------------------------


def _places_of(python: str, named: Iterable[str]) -> Iterator[str]:
    """Yield the folders of an interpreter and its packages, without starting the interpreter.

    :param named: packages to look for among editable installs.
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
            for project in _editable_installs(folder):
                yield from _packages_in(project, named)


def _libraries() -> Iterator[str]:
    """Yield additional folders in which shared libraries are looked up, because torch may need them."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for file in ("/etc/ld.so.conf", *glob.glob("/etc/ld.so.conf.d/*.conf")):
        folders += [line.strip() for line in _text(file).splitlines()]
    yield from (folder for folder in folders if os.path.isabs(folder) and glob.glob(f"{glob.escape(folder)}/*.so*"))


def _hops(python: str) -> Iterator[str]:
    """Yield an interpreter, the targets of its symbolic links, and the interpreter of its base environment."""
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


def _editable_installs(packages: str) -> Iterator[str]:
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
    """Yield the folders of the named packages of an editable install. Its other files stay hidden."""
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
