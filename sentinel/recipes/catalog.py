"""Collect the targets, contracts, laws and recipe folders of a run, from Sentinel and from plugins."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError, nearest
from sentinel.laws.law import Law
from sentinel.targets import MOST_GLOBS, Target
from sentinel.targets.loading import load_file

_T = TypeVar("_T")

_PACKAGE = Path(__file__).resolve().parent.parent


def bundled(folder: str) -> Path:
    """Return the folder ``adapters`` or ``recipes`` that comes with Sentinel, in the installed package or the source
    tree."""
    inside = _PACKAGE / "_bundled" / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


@dataclass(frozen=True)
class Adapter:
    """A target and the file of its adapter.

    :ivar digest: ``sha256:<hex>`` of the file; for a package, of the names and digests of its modules.
    """

    target: Target
    file: Path
    digest: str


class OnDemand(Mapping[str, _T]):
    """A mapping whose values are created on first access.

    An adapter that cannot be imported therefore affects only its own target, and an unused adapter is never imported.

    :ivar files: key -> the file of its value, if known in advance.
    """

    def __init__(self, makers: Mapping[str, Callable[[], _T]], files: Mapping[str, Path] | None = None) -> None:
        self._makers = dict(makers)
        self.files = dict(files or {})
        self._made: dict[str, _T] = {}

    def __getitem__(self, name: str) -> _T:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


@dataclass(frozen=True)
class Catalog:
    """The targets, contracts, laws and recipe folders of a run.

    :ivar adapters: target -> adapter. Reading a value raises SentinelError if the adapter cannot be imported or uses
        an unknown name.
    """

    adapters: Mapping[str, Adapter]
    contracts: Mapping[str, Contract]
    laws: Mapping[str, Law]
    recipe_folders: tuple[Path, ...]

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        return OnDemand({name: partial(self._target, name) for name in self.adapters})

    def _target(self, name: str) -> Target:
        return self.adapters[name].target

    @property
    def adapter_files(self) -> dict[str, Path]:
        """Return target -> file of its adapter. The adapters are not imported."""
        files = self.adapters.files if isinstance(self.adapters, OnDemand) else {}
        return {name: files.get(name) or self.adapters[name].file for name in self.adapters}

    def with_(
        self,
        adapters: Iterable[Path] = (),
        contracts: Iterable[Contract] = (),
        laws: Iterable[Law] = (),
        recipe_folders: Iterable[Path] = (),
    ) -> Catalog:
        """Return a copy of the catalog with additional adapters, contracts, laws and recipe folders.

        :raises SentinelError: if an addition has the name of an existing entry.
        """
        more_contracts, more_laws, files = dict(self.contracts), dict(self.laws), self.adapter_files
        for contract in contracts:
            _add(more_contracts, contract.name, contract, "contract")
        for law in laws:
            _add(more_laws, law.name, law, "law")
        makers = {name: partial(self.adapters.__getitem__, name) for name in self.adapters}
        for file in adapters:
            # Absolute, because workers run in another folder.
            adapter = load_adapter(Path(file).absolute(), more_contracts)
            name = adapter.target.name
            _add(makers, name, partial({name: adapter}.__getitem__, name), f"adapter {file}")
            files[name] = adapter.file
        folders = (*self.recipe_folders, *map(Path, recipe_folders))
        return Catalog(OnDemand(makers, files), more_contracts, more_laws, folders)


def _require_names(adapter: Adapter, contracts: Mapping[str, Contract]) -> None:
    """Check that an adapter names only contracts, inputs and boundaries that exist.

    :raises SentinelError: if a binding names an unknown contract or input, or a registry names an unknown boundary.
    """
    for binding in adapter.target.bindings:
        where = f"{adapter.file}: the binding of {binding.boundary}"
        if binding.contract not in contracts:
            near = nearest(binding.contract, contracts, "the contracts are")
            raise SentinelError(f"{where}: unknown contract {binding.contract!r}{near}")
        inputs = [item.name for item in contracts[binding.contract].inputs]
        for field in ("arguments", "fixed", "accepts"):
            for name in getattr(binding, field):
                if name not in inputs and not (field == "arguments" and name in adapter.target.arguments):
                    which = nearest(name, inputs, "its inputs are")
                    raise SentinelError(f"{where}: {field}: {binding.contract} has no input {name!r}{which}")
    every = {item.name for contract in contracts.values() for item in contract.inputs}
    for name in adapter.target.arguments.keys() - every:
        raise SentinelError(f"{adapter.file}: arguments: no contract has an input {name!r}{nearest(name, every)}")
    bound = [binding.boundary for binding in adapter.target.bindings]
    for registry in adapter.target.registries:
        if registry.like not in bound:
            which = nearest(registry.like, bound)
            raise SentinelError(
                f"{adapter.file}: {registry.decorator}: `like` names {registry.like!r}, which is not bound{which}"
            )
    if len(adapter.target.no_signal) > MOST_GLOBS:
        raise SentinelError(
            f"{adapter.file}: no_signal has {len(adapter.target.no_signal)} globs; write at most {MOST_GLOBS}"
        )


def _add(table: dict[str, _T], name: str, value: _T, what: str) -> None:
    if name in table:
        raise SentinelError(f"duplicate {what} {name!r}; rename one")
    table[name] = value


def load_adapter(file: Path, contracts: Mapping[str, Contract]) -> Adapter:
    """Load an adapter from its file, or from the ``__init__.py`` of its package.

    :raises SentinelError: if it cannot be imported, has no ``TARGET`` or uses an unknown name.
    """
    digest = _digest(file)
    try:
        module = load_file(file)
    except Exception as error:
        raise SentinelError(f"{file}: the adapter cannot be imported: {type(error).__name__}: {error}") from error
    target = getattr(module, "TARGET", None)
    if not isinstance(target, Target):
        raise SentinelError(f"{file}: an adapter must define TARGET = Target(...)")
    adapter = Adapter(target, file, digest)
    _require_names(adapter, contracts)
    return adapter


def _digest(file: Path) -> str:
    if file.name != "__init__.py":
        return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    modules = sorted(file.parent.glob("*.py"))
    lines = [f"{hashlib.sha256(module.read_bytes()).hexdigest()}  {module.name}\n" for module in modules]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _bundled_adapters() -> dict[str, Path]:
    """Return target -> file of its adapter, which is ``__init__.py`` for a package."""
    folder = bundled("adapters")
    packages = {file.parent.name: file for file in folder.glob("*/__init__.py")}
    return dict(sorted({**{file.stem: file for file in folder.glob("*.py")}, **packages}.items()))


def _members(package: str, kind: type[_T]) -> list[_T]:
    members: dict[int, _T] = {}
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for info in pkgutil.iter_modules(spec.submodule_search_locations):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, kind):
                members[id(value)] = value
    return list(members.values())


@cache
def bundled_catalog() -> Catalog:
    """Return the catalog of Sentinel's own targets, contracts, laws and recipes, without plugins."""
    contracts, files = _members("sentinel.contracts", Contract), _bundled_adapters()
    by_name = {contract.name: contract for contract in contracts}
    adapters = OnDemand({name: partial(load_adapter, file, by_name) for name, file in files.items()}, files)
    return Catalog(adapters, {}, {}, (bundled("recipes"),)).with_(
        contracts=contracts, laws=_members("sentinel.laws", Law)
    )
