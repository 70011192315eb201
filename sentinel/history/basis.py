"""What a verdict rests on beside the target's own code; where any of it changes, nothing that was decided before holds.

Established without starting a worker: a sweep that finds nothing new must not have to import torch to say so.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from sentinel.history.surroundings import surroundings
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.settings import Settings
from sentinel.values.literals import typed
from sentinel.worker.client import flags

_PACKAGE = Path(__file__).resolve().parent.parent

#: What takes part in every verdict, beside the contract and the laws.
_JUDGES = (
    *("deciding/verdicts.py", "deciding/proof.py", "deciding/runner.py", "values/closeness.py", "values/literals.py"),
    *("targets/__init__.py", "targets/loading.py"),
)


@dataclass(frozen=True)
class Basis:
    """:ivar recipe, adapter, worker: digests of what decides in the recipe, of the adapter, and of those modules of
        Sentinel's own that decide.
    :ivar environment: versions and switches that numbers may depend on.
    """

    recipe: str
    adapter: str
    worker: str
    environment: Mapping[str, str]

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def basis(catalog: Catalog, recipe: Recipe, settings: Settings) -> Basis:
    """What a recipe's verdicts rest on here and now.

    :raises SentinelError: where the interpreter of ``--sentinel-python`` does not run.
    """
    adapter = catalog.adapters[recipe.target]
    beside = surroundings(settings.python_of(recipe.target))
    versions = {name: beside(name).partition(" ")[2] for name in ("python", "torch", "numpy", *adapter.target.preload)}
    contract = Path(catalog.contracts[recipe.contract].file)
    return Basis(
        _meaning(recipe),
        adapter.digest,
        _digest((*_worker_files(), *_reached(contract), *(_laws() if not recipe.has_values else ()))),
        {
            **{name: version for name, version in versions.items() if version},
            "platform": f"{platform.system()}-{platform.machine()}",
            "device": settings.device,
            "sandbox": settings.sandbox or "strictest",
            **flags(),
        },
    )


def _meaning(recipe: Recipe) -> str:
    """A digest of what decides: a recipe's story and pins may be mended without probing history anew."""
    parts = (
        recipe.target,
        recipe.contract,
        recipe.boundary,
        typed(recipe.variants),
        sorted(recipe.defaulted),
        [(key, typed(item.value), item.tolerance) for key, item in sorted(recipe.expected_unpatched.items())],
        [(key, typed(item.value), item.tolerance) for key, item in sorted(recipe.expected_fixed.items())],
        recipe.tolerance,
        recipe.invariant,
        recipe.requires,
    )
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"


@cache
def _worker_files() -> tuple[Path, ...]:
    own = (_PACKAGE / "worker").glob("*.py")
    return tuple(sorted([*own, *(_PACKAGE / name for name in _JUDGES), *_reached(_PACKAGE / "contracts/contract.py")]))


@cache
def _laws() -> tuple[Path, ...]:
    return tuple(sorted([file for name in ("laws", "search", "deciding") for file in (_PACKAGE / name).glob("*.py")]))


@cache
def _reached(file: Path) -> tuple[Path, ...]:
    """A contract's file and Sentinel's other modules of contracts that it imports, at any depth."""
    found: set[Path] = set()
    queue = [file]
    while queue:
        current = queue.pop()
        if current in found or not current.is_file():
            continue
        found.add(current)
        for node in ast.walk(ast.parse(current.read_bytes())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            queue += [
                _PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
                for name in names
                if name.startswith("sentinel.contracts.")
            ]
    return tuple(sorted(found))


def _digest(files: tuple[Path, ...]) -> str:
    lines = [f"{_file_digest(file)}  {file.name}\n" for file in sorted(set(files), key=str)]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


@cache
def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
