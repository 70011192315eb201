"""Byte code of a checkout is kept beside it; everybody else's stays where Python keeps it.

A checkout is read-only, so its byte code needs another place. ``sys.pycache_prefix`` alone would move that of the
third-party packages too, and every checkout would compile them anew.

A contained process cannot write there either. It tells what it had to compile, and a process that only compiles, and
never runs what it has compiled, does it again for those to come.
"""

from __future__ import annotations

import os
import py_compile
import resource
import sys
from collections.abc import Iterable
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import CodeType, ModuleType
from typing import Any

from sentinel.worker import trace

#: Seconds of CPU and bytes of address space for compiling what one import needed.
_PATIENCE, _MEMORY = 120, 4 << 30


def keep_beside(roots: tuple[str, ...], folder: str) -> list[str]:
    """Make modules below these directories load with their byte code in ``folder``.

    :return: the files that had none there: it grows with each import.
    """
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


def compile_beside(files: Iterable[str], folder: str) -> None:
    """Put the byte code of these files into ``folder``; what does not compile is left out."""
    os.nice(10)
    os.umask(0o022)  # contained processes may be another user's
    resource.setrlimit(resource.RLIMIT_CPU, (_PATIENCE, _PATIENCE))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.pycache_prefix = folder
    for file in files:
        try:
            # By time and size it would be taken for that of whatever is in the file's place when it is done: a copy
            # may have moved to another commit in the meantime.
            py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        except (py_compile.PyCompileError, OSError, MemoryError, RecursionError):
            continue
