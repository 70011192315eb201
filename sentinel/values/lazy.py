"""Import torch on first use, because pytest's process reads adapters and contracts without torch."""

from __future__ import annotations

import importlib
from typing import Any


class _Torch:
    _module: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module("torch")
        return getattr(self._module, name)


torch: Any = _Torch()
