"""What a verdict rests on beside the target's own code; where any of it changes, nothing that was decided before holds.

Established without starting a worker: a sweep that finds nothing new must not have to import torch to say so.
"""

from __future__ import annotations

import hashlib
import importlib.util
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
    """Say what a recipe's verdicts rest on here and now.

    :raises SentinelError: where the interpreter of ``--sentinel-python`` does not run.
    """
    adapter = catalog.adapters[recipe.target]
    beside = surroundings(settings.python_of(recipe.target))
    versions = {name: beside(name).partition(" ")[2] for name in ("python", "torch", "numpy", *adapter.target.preload)}
    return Basis(
        recipe_digest(recipe),
        adapter.digest,
        _digest((*_judges(not recipe.has_values), Path(catalog.contracts[recipe.contract].file))),
        {
            **{name: version for name, version in versions.items() if version},
            "platform": f"{platform.system()}-{platform.machine()}",
            "device": settings.device,
            "sandbox": settings.sandbox or "strictest",
            **flags(),
        },
    )


def deciding(catalog: Catalog, target: str, recipes: Sequence[Recipe]) -> str:
    """Give a digest of what decides of a target beside its code: known bugs, laws, contracts, and Sentinel's own. Laws
    and contracts may be other packages'."""
    others = {catalog.contracts[binding.contract].file for binding in catalog.targets[target].bindings}
    codes = (getattr(law.check, "__code__", None) for law in catalog.laws.values())
    others |= {code.co_filename for code in codes if code is not None}
    own = _digest((*_judges(True), *_sources("comparing"), *map(Path, others)))
    return hashlib.sha256(" ".join([own, *sorted(map(recipe_digest, recipes))]).encode()).hexdigest()[:12]


#: Sentinel's own packages that decide.
_JUDGES = ("binding", "worker", "deciding", "values", "targets", "contracts")


@cache
def _judges(with_laws: bool) -> tuple[Path, ...]:
    names = (*_JUDGES, "laws", "search") if with_laws else _JUDGES
    return tuple(sorted(file for name in names for file in _sources(name)))


def _sources(package: str) -> list[Path]:
    """List the modules of one of Sentinel's packages; one without any has moved, and its code would count no more."""
    found = list((_PACKAGE / package).glob("*.py"))
    assert found, f"sentinel has no package {package}"
    return found


def _digest(files: tuple[Path, ...]) -> str:
    lines = [f"{_file_digest(file)}  {file.name}\n" for file in sorted(set(files), key=str)]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


@cache
def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- which third-party packages there are: one that is installed may change a verdict too --

#: Top-level module -> the distribution that has it and its version; ``-`` where it cannot be imported.
Surroundings = Callable[[str], str]

_LISTED = """
import json, platform
from importlib import metadata
owners = {name: several[0] for name, several in metadata.packages_distributions().items()}
have = {name: [owner, metadata.version(owner)] for name, owner in owners.items()}
print(json.dumps({**have, "python": ["python", platform.python_version()]}))
"""


def surroundings(python: str | None) -> Surroundings:
    """Say what an interpreter has; None: this one."""
    if python is None:
        return _here
    distributions = _listed(python)
    return lambda name: " ".join(distributions.get(name, ("-",)))


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
    return {name: tuple(distribution) for name, distribution in interpreters.ask(python, "-c", _LISTED).items()}
