"""Compute digests of everything except the target's code on which a verdict depends.

A stored verdict is reused only if these digests have not changed. They are computed without a worker, so that a sweep
without new commits does not import torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.digests import recipe_digest
from sentinel.settings import Settings
from sentinel.worker import interpreters
from sentinel.worker.client import flags

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Basis:
    """Digests of everything except the target's code on which a recipe's verdicts depend.

    :ivar recipe: the digest of those parts of the recipe that affect the verdict.
    :ivar adapter: the digest of the adapter.
    :ivar worker: the digest of the contract, and of those modules of Sentinel that affect verdicts.
    :ivar environment: versions and flags that can change numeric results.
    """

    recipe: str
    adapter: str
    worker: str
    environment: Mapping[str, str]

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def basis(catalog: Catalog, recipe: Recipe, settings: Settings) -> Basis:
    """Compute the digests on which a recipe's verdicts depend in this environment.

    :raises SentinelError: if the interpreter of ``--sentinel-python`` cannot run.
    """
    adapter = catalog.adapters[recipe.target]
    version_of = surroundings(settings.python_of(recipe.target))
    # Without submodules, because finding one imports its package.
    packages = [name for name in adapter.target.preload if "." not in name]
    versions = {name: version_of(name).partition(" ")[2] for name in ("python", "torch", "numpy", *packages)}
    return Basis(
        recipe_digest(recipe),
        adapter.digest,
        _digest((*_deciding_files(not recipe.has_values), Path(catalog.contracts[recipe.contract].file))),
        {
            **{name: version for name, version in versions.items() if version},
            "platform": f"{platform.system()}-{platform.machine()}",
            "device": settings.device,
            "sandbox": settings.sandbox or "strictest",
            **flags(),
        },
    )


def deciding_digest(catalog: Catalog, target: str, recipes: Sequence[Recipe]) -> str:
    """Return one digest of everything in Sentinel that affects verdicts: recipes, laws, contracts and modules."""
    others = {catalog.contracts[binding.contract].file for binding in catalog.targets[target].bindings}
    codes = (getattr(law.check, "__code__", None) for law in catalog.laws.values())
    others |= {code.co_filename for code in codes if code is not None}
    own = _digest((*_deciding_files(True), *_sources("comparing"), *map(Path, others)))
    return hashlib.sha256(" ".join([own, *sorted(map(recipe_digest, recipes))]).encode()).hexdigest()[:12]


#: Packages of Sentinel whose code affects verdicts.
_DECIDING = ("binding", "worker", "deciding", "values", "targets", "contracts")


@cache
def _deciding_files(with_laws: bool) -> tuple[Path, ...]:
    names = (*_DECIDING, "laws", "search") if with_laws else _DECIDING
    return tuple(sorted(file for name in names for file in _sources(name)))


def _sources(package: str) -> list[Path]:
    found = list((_PACKAGE / package).glob("*.py"))
    assert found, f"sentinel has no package {package}"  # a renamed package must not drop out of the digest
    return found


def _digest(files: tuple[Path, ...]) -> str:
    lines = [f"{_file_digest(file)}  {file.name}\n" for file in sorted(set(files), key=str)]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


@cache
def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- third-party packages: installing one may change a verdict --

#: Maps a top-level module to its distribution and version, as in ``numpy 2.1.0``; to ``-`` if it is not installed.
Surroundings = Callable[[str], str]


def list_owners() -> dict[str, list[str]]:
    """Return top-level module -> the distributions that contain its files.

    The source of this function also runs in other interpreters, so it uses only the standard library.
    """
    found = dict(metadata.packages_distributions())
    if sys.version_info < (3, 11):  # packages_distributions() misses distributions without a top_level.txt
        for distribution in metadata.distributions():
            for file in distribution.files or ():
                if file.suffix == ".py":
                    found.setdefault(file.parts[0].removesuffix(".py"), []).append(distribution.metadata["Name"])
    return found


owners = cache(list_owners)

#: A program that other interpreters run, after the source of :func:`list_owners`.
_LIST_PACKAGES = """
import json, platform, sys
from importlib import metadata
have = {name: [several[0], metadata.version(several[0])] for name, several in list_owners().items()}
print(json.dumps({**have, "python": ["python", platform.python_version()]}))
"""


def surroundings(python: str | None) -> Surroundings:
    """Return a function that finds the distribution and version of a top-level module.

    :param python: the interpreter; None for the running one.
    """
    if python is None:
        return _running
    distributions = _distributions(python)
    return lambda name: " ".join(distributions.get(name, ("-",)))


def third_party(name: str) -> bool:
    """Return True if a top-level module is neither in the standard library nor built into the interpreter."""
    return name not in sys.stdlib_module_names and name not in sys.builtin_module_names


@cache
def _running(name: str) -> str:
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
        several = owners().get(name)
        return f"{several[0]} {metadata.version(several[0])}" if several else name


@cache
def _distributions(python: str) -> Mapping[str, tuple[str, ...]]:
    program = inspect.getsource(list_owners) + _LIST_PACKAGES
    return {name: tuple(distribution) for name, distribution in interpreters.ask(python, "-c", program).items()}
