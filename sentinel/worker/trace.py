"""Record the modules, files and folders of a checkout that a process looks up.

A worker is deterministic: it has a fixed hash seed, one thread and no network. So if all of these lookups have the same
result at two revisions, both revisions run the same code with the same result. Sweeps over history rely on that.
Lookups of missing files are recorded too, because a file that a later revision adds could shadow another one.

Each lookup is recorded as a line, ``<kind>:<path below the checkout>``:

``m:pkg/name``
    the import system looked for a module ``name`` in the folder ``pkg``: ``name.py``, ``name/__init__.py``, an
    extension module, or a folder
``f:pkg/data.json``
    the file (or folder) was opened, or checked for existence
``d:pkg``
    the folder was listed
``t:``
    the lookups are unknown; two revisions then count as equal only if their trees are identical
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: Recorded instead of all lookups if they are unknown.
EVERYTHING = "t:"

_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.chdir")


class Trace:
    """Records lookups of modules, files and folders.

    :param base: the checkout's folder; only paths below it are recorded.
    """

    def __init__(self, base: str) -> None:
        self._base = os.path.normpath(base)
        self._below = self._base + os.sep
        self._questions: set[str] = set()
        self.paused = False

    def install(self) -> None:
        """Start to record. A process can do this for only one checkout, because an audit hook cannot be removed."""
        sys.addaudithook(self._audit)
        for name in ("stat", "lstat", "access", "readlink"):  # these functions raise no audit events
            setattr(os, name, self._watch(getattr(os, name)))
        if sys.version_info < (3, 11):  # before Python 3.11, pathlib keeps its own reference to os.stat
            vars(pathlib)["_NormalAccessor"].stat = staticmethod(os.stat)

    def questions(self) -> list[str]:
        """Return all recorded lookups of modules, files and folders. A source file is left out if the lookup of its
        module is listed."""
        questions = set(self._questions)  # another thread may still add lookups
        if EVERYTHING in questions:
            return [EVERYTHING]
        modules = {question[2:] for question in questions if question[0] == "m"}
        return sorted(q for q in questions if q[0] != "f" or _module_of(q[2:]) not in modules)

    def ask(self, kind: str, path: str) -> None:
        path = os.path.normpath(path)
        if path.startswith(self._below) and not self.paused:
            self._questions.add(f"{kind}:{path[len(self._below) :]}")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event == "ctypes.dlopen":
            self._name("f", arguments[0])
        elif event in ("os.listdir", "os.scandir"):
            # Not recorded if the import system lists a folder to find one name: `module` has recorded that lookup.
            if sys._getframe(1).f_code.co_filename != _IMPORT_SYSTEM:
                self._name("d", "." if arguments[0] is None else arguments[0])
        elif event in _PROCESSES and self._base in repr(arguments):
            self._questions.add(EVERYTHING)  # files that another process reads are not visible here

    def _name(self, kind: str, path: Any) -> None:
        if isinstance(path, int):
            return  # a file descriptor: opening it was recorded
        try:
            text = os.fsdecode(path)
        except TypeError:
            return
        self.ask(kind, text if os.path.isabs(text) else os.path.join(os.getcwd(), text))

    def _watch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(path: Any, *arguments: Any, **options: Any) -> Any:
            self._name("f", path)
            return function(path, *arguments, **options)

        for support in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
            if function in support:
                support.add(watched)
        return watched


def _module_of(path: str) -> str:
    """Return the path of a Python file's module, without suffix, as recorded lookups of modules have it; empty for
    other files."""
    stem = path.removesuffix(".py")
    return stem.removesuffix("/__init__") if stem != path else ""


_TRACE: Trace | None = None


def begin(base: str) -> None:
    """Start to record what this process and its forks look up in the checkout at ``base``."""
    global _TRACE
    _TRACE = Trace(base)
    _TRACE.install()


def module(folder: str, name: str) -> None:
    """Record that the import system looks for a module in a folder."""
    if _TRACE is not None:
        _TRACE.ask("m", f"{folder}{os.sep}{name}")


@contextmanager
def paused() -> Iterator[None]:
    """Stop recording for the duration of a ``with`` block."""
    if _TRACE is None:
        yield
        return
    before, _TRACE.paused = _TRACE.paused, True
    try:
        yield
    finally:
        _TRACE.paused = before


def with_questions(work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Run a probe, and return its answer; if lookups are recorded, the answer has them under the key ``asked``."""
    answer = dict(work())
    if _TRACE is not None:
        answer["asked"] = _TRACE.questions()
    return answer
