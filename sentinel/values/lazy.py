"""Import torch on first use, because pytest's process reads adapters and contracts without torch."""

from __future__ import annotations

import importlib
from typing import Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()
