"""Byte code of a checkout is kept beside it; everybody else's stays where Python keeps it.

A checkout is read-only, so its byte code needs another place. ``sys.pycache_prefix`` alone would move that of the
third-party packages too, and every checkout would compile them anew.

A contained process cannot write there either. It tells what it had to compile; what of that is a file of the checkout
is compiled again for those to come, by a contained process that never runs it.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from types import CodeType, ModuleType
from typing import Any

from sentinel.worker import containment, trace

#: Seconds of CPU and bytes of address space for compiling what one import needed; bytes of one file's byte code.
_PATIENCE, _MEMORY, _LARGEST = 120, 4 << 30, 64 << 20


def keep_beside(roots: tuple[str, ...], folder: str) -> list[str]:
    """Load modules below these directories with their byte code in ``folder``; give a growing list of files without
    any."""
    compiled: list[str] = []

    class CheckoutLoader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            before, sys.pycache_prefix = sys.pycache_prefix, folder
            try:
                return super().get_code(fullname)
            except (EOFError, ValueError, TypeError):
                # Before 3.14 Python takes a write that a full disk has cut short for whole. (What is wrong with the
                # source itself is said again.)
                compiled.append(self.path)
                return self.source_to_code(self.get_data(self.path), self.path)
            finally:
                sys.pycache_prefix = before

        def set_data(self, path: str, data: Any, **how: Any) -> None:
            compiled.append(self.path)
            super().set_data(path, data, **how)

    class CheckoutFinder(FileFinder):
        def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
            trace.module(str(self.path), fullname.rpartition(".")[2])
            return super().find_spec(fullname, target)

    def hook(path: str) -> FileFinder:
        if not any(path == root or path.startswith(f"{root}/") for root in roots):
            raise ImportError("not of the checkout")
        return CheckoutFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (CheckoutLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
    return compiled


def compile_beside(tree: str, names: Sequence[str], folder: str, contain: Callable[[bool], None]) -> None:
    """Have a contained process compile these files of a checkout, and put the byte code into ``folder``.

    :param names: of the checkout's own files, below ``tree``. Their source is a stranger's, so whoever compiles it
        gives bytes and decides about no path.
    :param contain: makes a child a contained process; told whether it is the first of a PID namespace.
    """
    os.nice(10)
    os.umask(0o022)  # contained processes may be another user's
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    os.chdir(folder)  # where the checkout is removed meanwhile, nothing is made in its place
    read, write = os.pipe()
    pid, first = containment.fork()
    if pid == 0:
        os.close(read)
        contain(first)
        resource.setrlimit(resource.RLIMIT_CPU, (_PATIENCE, _PATIENCE))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        with open(write, "wb") as stream:
            for name in names:
                code = _byte_code(os.path.join(tree, name))
                stream.write(len(code).to_bytes(4, "little") + code)
        os._exit(0)
    os.close(write)
    sys.pycache_prefix = "."
    with open(read, "rb") as stream:
        for name in names:
            size = stream.read(4)
            code = stream.read(min(int.from_bytes(size, "little"), _LARGEST))
            if len(size) < 4 or len(code) != int.from_bytes(size, "little"):
                break  # it came to an end, or gives more than a file has
            if code:
                _put(cache_from_source(os.path.join(tree, name)), code)


def _byte_code(file: str) -> bytes:
    """Compile a file to what Python keeps of it; nothing where it does not compile."""
    try:
        with open(file, "rb") as stream:
            source = stream.read()
        code = marshal.dumps(compile(source, file, "exec", dont_inherit=True))
    except (SyntaxError, OSError, ValueError, MemoryError, RecursionError):
        return b""
    # By time and size it would be taken for that of whatever is in the file's place when it is done: a copy may have
    # moved to another commit in the meantime. So it goes by the source's hash, which is checked (PEP 552).
    return MAGIC_NUMBER + (0b11).to_bytes(4, "little") + source_hash(source) + code


def _put(place: str, code: bytes) -> None:
    part = f"{place}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(part, "xb") as stream:
            stream.write(code)
        os.replace(part, place)
