"""Load a Python file by its path, under a module name that cannot conflict with an importable one."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(file: Path) -> ModuleType:
    """Execute a Python file as a module and return the module. A second call returns the same module."""
    package = file.name == "__init__.py"
    stem = file.parent.name if package else file.stem
    name = f"sentinel_file_{stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(file.parent)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module during execution
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for loaded in [item for item in sys.modules if item == name or item.startswith(f"{name}.")]:
            del sys.modules[loaded]
        raise
    return module
