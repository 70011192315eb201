"""Find out whether an import failed because the code needs a newer Python or a package that is not installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import ModuleType

from sentinel.worker import codes, stubs

#: Newer syntax: (first Python version, pattern of the line, pattern of an older parser's message).
_SYNTAX: tuple[tuple[tuple[int, int], str, str], ...] = (
    ((3, 11), r"\bexcept\s*\*", ""),
    ((3, 12), r"^\s*type\s+\w+\s*(\[.*\])?\s*=", ""),
    ((3, 12), r"\b(def|class)\s+\w+\s*\[", ""),
    ((3, 12), r"", r"f-string"),  # PEP 701: quotes and backslashes inside the braces
    ((3, 11), r"\[[^\]]*\*\w+", ""),  # PEP 646: a star in an index
    ((3, 13), r"\b(def|class|type)\s+\w+\s*\[\w+\s*=", ""),
)

#: Names that newer standard libraries added and that frameworks import without a fallback.
_GAINED = {
    (3, 11): """
        LiteralString Never NotRequired ReprEnum Required Runner Self StrEnum TaskGroup TypeVarTuple UTC Unpack
        assert_never chdir dataclass_transform timeout tomllib
    """,
    (3, 12): "batched override",
    (3, 13): "ReadOnly TypeIs deprecated",
}
_NAMES = {name: version for version, names in _GAINED.items() for name in names.split()}


def needed_version(error: BaseException) -> tuple[int, int] | None:
    """Return the first Python version with the missing syntax or name; None if Python's version is not the cause.

    Only known newer syntax counts, so a broken file is not mistaken for newer code.
    """
    version: tuple[int, int] | None = None
    if isinstance(error, SyntaxError):
        line = error.text or ""
        version = max(
            (v for v, shape, message in _SYNTAX if re.search(shape, line) and re.search(message, error.msg or "")),
            default=None,
        )
    elif isinstance(error, ModuleNotFoundError):
        version = _NAMES.get(error.name or "")
    elif isinstance(error, ImportError) and (error.name or "").partition(".")[0] in sys.stdlib_module_names:
        match = re.search(r"cannot import name '(\w+)'", str(error))
        version = _NAMES.get(match.group(1)) if match else None
    elif isinstance(error, AttributeError) and _is_standard(error.obj):
        version = _NAMES.get(error.name or "")
    return version if version and sys.version_info[:2] < version else None


def names_newer(source: bytes) -> bool:
    """Return True if a source file uses a standard-library name that this Python does not have."""
    return not _NAMES.keys().isdisjoint(re.findall(r"\w+", source.decode(errors="replace")))


def needed_import(error: BaseException, file: str) -> str:
    """Return ``package.name`` if an import failed because an optional package is missing; an empty string otherwise."""
    packages = missing_origins(error, file)
    return f"{packages[0]}.{getattr(error, 'name', '')}" if packages else ""


def missing_origins(error: BaseException, file: str) -> list[str]:
    """Return the missing packages from which a file imports the undefined name of a NameError; empty otherwise."""
    if not isinstance(error, NameError) or not error.name:
        return []
    packages = origins(error.name, codes.describe(file)["names"])
    return [package for package in dict.fromkeys(packages) if not stubs.installed(package)]


def origins(name: str, names: Iterable[str]) -> list[str]:
    """Return the packages from which a module imports a name, according to its definitions (see ``codes.describe``)."""
    packages = (
        item.partition("=")[2].partition(".")[0].partition(":")[0] for item in names if item.startswith(f"{name}=")
    )
    return list(filter(None, packages))


def _is_standard(module: object) -> bool:
    return isinstance(module, ModuleType) and module.__name__.partition(".")[0] in sys.stdlib_module_names
