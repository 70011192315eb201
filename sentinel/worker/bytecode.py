"""Store the byte code (``.pyc``) of a checkout in a folder next to it.

A checkout is read-only, so its byte code needs another place. ``sys.pycache_prefix`` alone would also move the byte
code of third-party packages, and each checkout would compile them again.

A contained process cannot write to that folder either, so it reports the files that it had to compile. A second
contained process compiles the reported files once more, if they belong to the checkout, without running them. The
parent of the second process is not contained, and writes the byte code.
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

#: Limits for compiling the files of one import: CPU seconds, bytes of address space, and bytes of one file's byte code.
_PATIENCE, _MEMORY, _LARGEST = 120, 4 << 30, 64 << 20


def use_folder(roots: tuple[str, ...], folder: str) -> list[str]:
    """Make imports from these directories read their byte code from ``folder``.

    :return: a list to which later imports append the files that had no byte code.
    """
    compiled: list[str] = []

    class CheckoutLoader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            before, sys.pycache_prefix = sys.pycache_prefix, folder
            try:
                return super().get_code(fullname)
            except (EOFError, ValueError, TypeError):
                # Before 3.14, Python does not notice that a full disk has truncated a .pyc file, so compile the source.
                # If the error is in the source, compiling raises it again.
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
            raise ImportError("not in the checkout")
        return CheckoutFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (CheckoutLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
    return compiled


def write_byte_code(tree: str, names: Sequence[str], folder: str, contain: Callable[[bool], None]) -> None:
    """Compile files of a checkout in a contained process, and write the byte code to ``folder``.

    The source is untrusted, so the contained process only sends bytes, and this process chooses where to write them.

    :param names: the checkout's own files, relative to ``tree``.
    :param contain: called in the forked process to contain it. Its argument is True if that process is the first of a
        PID namespace.
    """
    os.nice(10)
    os.umask(0o022)  # contained processes may belong to another user
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    os.chdir(folder)  # paths are relative to it, so nothing is created if the folder is removed meanwhile
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
                break  # the process has ended, or it sends more than one file's limit
            if code:
                _put(cache_from_source(os.path.join(tree, name)), code)


def _byte_code(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            source = stream.read()
        code = marshal.dumps(compile(source, file, "exec", dont_inherit=True))
    except (SyntaxError, OSError, ValueError, MemoryError, RecursionError):
        return b""
    # A .pyc with the source's time and size could match another version of the source, because a working copy may move
    # to another commit meanwhile. So this .pyc has the source's hash, which Python checks (PEP 552).
    return MAGIC_NUMBER + (0b11).to_bytes(4, "little") + source_hash(source) + code


def _put(place: str, code: bytes) -> None:
    part = f"{place}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(part, "xb") as stream:
            stream.write(code)
        os.replace(part, place)
