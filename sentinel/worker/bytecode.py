"""Byte code of a checkout is kept beside it; everybody else's stays where Python keeps it.

A checkout is read-only, so its byte code needs another place. ``sys.pycache_prefix`` alone would move that of the
third-party packages too, and every checkout would compile them anew.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from types import CodeType


def keep_beside(roots: tuple[str, ...], folder: str) -> None:
    """Make modules below these directories load with their byte code in ``folder``."""

    class CheckoutLoader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            before, sys.pycache_prefix = sys.pycache_prefix, folder
            try:
                return super().get_code(fullname)
            finally:
                sys.pycache_prefix = before

    def hook(path: str) -> FileFinder:
        if not any(path == root or path.startswith(f"{root}/") for root in roots):
            raise ImportError("not of the checkout")
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (CheckoutLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
