"""Byte code of a checkout is kept beside it; everybody else's stays where Python keeps it.

A checkout is read-only, so its byte code needs another place. ``sys.pycache_prefix`` alone would move that of the
third-party packages too, and every checkout would compile them anew.
"""

from __future__ import annotations

import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from types import CodeType, ModuleType

from sentinel.worker import trace


def keep_beside(roots: tuple[str, ...], folder: str) -> None:
    """Make modules below these directories load with their byte code in ``folder``."""

    class CheckoutLoader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            before, sys.pycache_prefix = sys.pycache_prefix, folder
            try:
                return super().get_code(fullname)
            finally:
                sys.pycache_prefix = before

    class CheckoutFinder(FileFinder):
        def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
            trace.module(str(self.path), fullname.rpartition(".")[2])
            return super().find_spec(fullname, target)

    def hook(path: str) -> FileFinder:
        if not any(path == root or path.startswith(f"{root}/") for root in roots):
            raise ImportError("not of the checkout")
        return CheckoutFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (CheckoutLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
