"""Which third-party packages there are beside the target's code: one that is installed may change a verdict too."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import metadata

from sentinel.worker import interpreters

#: Top-level module -> the distribution that has it and its version; ``-`` where it cannot be imported.
Surroundings = Callable[[str], str]

_LISTED = """
import json, platform
from importlib import metadata
owners = {name: several[0] for name, several in metadata.packages_distributions().items()}
found = {name: [owner, metadata.version(owner)] for name, owner in owners.items()}
print(json.dumps({**found, "python": ["python", platform.python_version()]}))
"""


def surroundings(python: str | None) -> Surroundings:
    """Say what an interpreter has; None: this one.

    :raises SentinelError: where the interpreter does not run.
    """
    if python is None:
        return _here
    listed = _listed(python)
    return lambda name: " ".join(listed.get(name, ("-",)))


def third_party(name: str) -> bool:
    """Say whether a top-level module is nobody's own: neither Python's nor a built-in one."""
    return name not in sys.stdlib_module_names and name not in sys.builtin_module_names


@cache
def _here(name: str) -> str:
    if name == "python":
        return f"python {platform.python_version()}"
    try:
        if importlib.util.find_spec(name) is None:
            return "-"
    except (ImportError, ValueError):
        return "-"
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        owners = _owners().get(name, [])
        return f"{owners[0]} {metadata.version(owners[0])}" if owners else name


@cache
def _owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@cache
def _listed(python: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(found) for name, found in interpreters.ask(python, "-c", _LISTED).items()}
