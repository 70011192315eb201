"""Manage the worker processes of a run: a preloader per Python, a process per checkout, an oracle per target."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from sentinel.deciding.law_session import Hangs, References
from sentinel.deciding.outcomes import Environment, Failure
from sentinel.deciding.proof import Sources
from sentinel.errors import INSTALL
from sentinel.recipes.catalog import Catalog
from sentinel.sources import Home
from sentinel.sources.checkouts import files
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Failed, Measured
from sentinel.worker.client import Options, Places, Preloader, TargetProcess, WorkerError, flags

_Failure = TypeVar("_Failure", Failed, Failure)


class Processes:
    """The worker processes of a run. Each is started when it is first needed, and reused. All methods are thread-safe.

    :param options_for: target -> its own options (``--sentinel-python``). All other targets use ``options``.
    """

    def __init__(self, catalog: Catalog, options: Options, options_for: Mapping[str, Options] | None = None) -> None:
        self._catalog = catalog
        self._options = options
        self._options_for = dict(options_for or {})
        self._preloaders: dict[str | None, Preloader] = {}
        self._loaded: dict[tuple[str, Ref], Loaded] = {}
        self._hangs: dict[tuple[str, Ref], Hangs] = {}
        self._oracles: dict[str, TargetProcess] = {}
        self._references: dict[str, References] = {}
        self._sources: dict[str, Sources] = {}
        self._searches: set[tuple[str, Ref]] = set()
        self._closed = False
        self._lock = Lock()
        # A separate lock, because starting a process may wait until torch is imported, and :meth:`close` must not wait.
        self._making = Lock()

    def preloader(self, target: str, targets: Iterable[str] = ()) -> Preloader:
        """Return the preloader for a target's Python. If it is new, it also preloads the packages of ``targets``."""
        options = self._options_for.get(target, self._options)
        with self._lock:
            if self._closed:
                raise WorkerError("the run has ended")  # otherwise a job that still runs could start another worker
            if options.python not in self._preloaders:
                names = dict.fromkeys([*targets, target])
                preload = [name for item in names for name in self._catalog.adapters[item].target.preload]
                self._preloaders[options.python] = Preloader(options, preload, contained_places(self._catalog, preload))
            return self._preloaders[options.python]

    def environment(self, target: str) -> Environment:
        """Return the versions and settings of the environment in which a target's probes run."""
        options = self._options_for.get(target, self._options)
        preload = self._catalog.adapters[target].target.preload
        preloader = self.preloader(target)
        hello = preloader.require(preload)
        words = {name: hello[name] for name in ("python", "torch", "numpy", "platform")}
        versions = {name: hello["packages"].get(name) for name in preload if "." not in name}
        packages = {name: version for name, version in versions.items() if version}
        return Environment(**words, device=options.device, sandbox=preloader.sandbox, flags=flags(), packages=packages)

    def explain(self, target: str, failure: _Failure) -> _Failure:
        """Add the missing packages, and how to install them, to the reason of an import failure. Return any other
        failure unchanged."""
        if failure.kind not in ("import", "ghost"):
            return failure
        preload, there = self._catalog.adapters[target].target.preload, self.environment(target).packages
        # Dotted names are left out: they are modules of torch, which is installed.
        wanted: list[str] = [name for name in preload if name not in there and "." not in name]
        lacking = list(dict.fromkeys([*failure.packages, *wanted]))
        if not lacking:
            return failure
        how = _how_to_install(lacking, target, self._catalog.adapters)
        advice = f"{target} needs {' and '.join(lacking)}, not installed here: {how}"
        if self.preloader(target).options.python is None and (elsewhere := _found_elsewhere(lacking)):
            advice += f"; {', '.join(elsewhere)} can be imported here, but workers do not read PYTHONPATH"
        return replace(failure, reason=f"{failure.reason}; {advice}")

    def loaded(self, target: Target, ref: Ref, checkout: Checkout) -> Loaded:
        """Return the process that has imported a target's modules at a ref."""
        with self._making:
            loaded = self._loaded.get((target.name, ref))
            if loaded is None:
                preloader = self.preloader(target.name)
                # A release may lack a package root that is released separately. Such a root does not count as the
                # target's own package, so that a stub module may replace it.
                packages = [root.package for root in target.roots if root.path in checkout.roots]
                loaded = Loaded(
                    lambda: preloader.target(checkout, packages, target.stub_versions, target.preload),
                    lambda sources: preloader.compile(checkout, files(checkout), sources) if sources else None,
                    target,
                    self._catalog,
                    self._hangs.setdefault((target.name, ref), Hangs()),
                    ahead=preloader.options.device == "cpu",
                )
                with self._lock:
                    self._loaded[target.name, ref] = loaded
            return loaded

    def hold(self, target: str, ref: Ref) -> None:
        """Keep the process of a target at a ref running until :meth:`release`, because a search uses its sessions."""
        with self._lock:
            self._searches.add((target, ref))

    def discard(self, target: str, ref: Ref) -> None:
        """End the process of a target at a ref, unless :meth:`hold` keeps it running."""
        with self._lock:
            loaded = None if (target, ref) in self._searches else self._loaded.pop((target, ref), None)
        if loaded is not None:
            loaded.process.close()

    def release(self, target: str, ref: Ref) -> None:
        """End the process of a target at a ref, even if :meth:`hold` has kept it running."""
        with self._lock:
            self._searches.discard((target, ref))
        self.discard(target, ref)

    def references(self, target: str) -> References:
        """Return the oracle sessions of a target."""
        with self._lock:
            return self._references.setdefault(target, References(partial(self._oracle, target)))

    def sources(self, target: str) -> Sources:
        """Return an object that parses a target's untrusted source files in a worker process with the target's
        Python."""
        with self._lock:
            return self._sources.setdefault(target, Sources(partial(self._oracle, target)))

    def _oracle(self, target: str) -> TargetProcess:
        with self._making:
            process = self._oracles.get(target)
            if process is None or process.dead is not None:
                process = self.preloader(target).oracle()
                with self._lock:
                    self._oracles[target] = process
            return process

    def close(self) -> None:
        """End every process. It is safe to call at any time, even after a signal."""
        with self._lock:
            self._closed = True
            loaded, self._loaded = list(self._loaded.values()), {}
            references, self._references = list(self._references.values()), {}
            oracles, self._oracles = list(self._oracles.values()), {}
            preloaders, self._preloaders = list(self._preloaders.values()), {}
        for sessions in references:
            sessions.close()
        for process in (*(item.process for item in loaded), *oracles):
            process.close()
        for preloader in preloaders:
            preloader.stop()


def _how_to_install(packages: Sequence[str], target: str, targets: Iterable[str]) -> str:
    """Return the pip commands that install these packages. One command installs the extra of Sentinel that contains
    most of them, the other command installs the rest."""
    extras: dict[str, set[str]] = {}
    own = {"targets", *targets}
    with suppress(metadata.PackageNotFoundError):  # Sentinel runs from its sources, without being installed
        for requirement in metadata.requires("rl-sentinel") or []:
            match = re.match(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)", requirement)
            if match is not None and match[1] != "rl-sentinel" and match[2] in own:
                extras.setdefault(match[2], set()).add(match[1].replace("-", "_"))

    def fit(name: str) -> tuple[int, bool, int]:
        return len(extras[name].intersection(packages)), name == target, -len(extras[name])

    extra = max(extras, key=fit, default="")
    others = [package for package in packages if package not in extras.get(extra, ())]
    ways = [INSTALL.format(extra)] if len(others) < len(packages) else []
    return "; ".join([*ways, *([f"pip install {' '.join(others)}"] if others else [])])


def _found_elsewhere(packages: Sequence[str]) -> list[str]:
    """Return the packages that this process can import from a folder outside its Python installation."""
    found = {name: find_spec(name) for name in packages if "." not in name}
    inside = (sys.prefix, sys.base_prefix)
    return [name for name, spec in found.items() if spec and spec.origin and not spec.origin.startswith(inside)]


def contained_places(catalog: Catalog, packages: Iterable[str] = ()) -> Places:
    """Return the files that worker processes may read, and the folders that they must not see.

    :param packages: packages that the targets preload. If such a package is an editable install, its folder is
        readable. The folders of all other editable installs are not.
    """
    contracts = [Path(contract.file) for contract in catalog.contracts.values()]
    files = (*catalog.adapter_files.values(), *contracts)
    readable = [_package_of(file) for file in files]
    return Places(
        tuple(map(str, dict.fromkeys(readable))),
        tuple(map(str, catalog.recipe_folders)),
        (str(Home.default().checkouts),),
        tuple(sorted(set(packages))),
    )


def _package_of(file: Path) -> Path:
    place = file
    while (place.parent / "__init__.py").is_file():
        place = place.parent
    return place


class Loaded:
    """A worker process, and the modules that it has imported. If an import ends the process, a new one is started."""

    def __init__(
        self,
        fork: Callable[[], TargetProcess],
        keep: Callable[[Sequence[str]], object],
        target: Target,
        catalog: Catalog,
        hangs: Hangs,
        ahead: bool = True,
    ) -> None:
        """Start the process with ``fork``.

        :param keep: called with the files that importing the modules compiled.
        :param hangs: the boundaries of this revision that hung. This record outlives the process.
        :param ahead: whether modules are imported before probes are forked. It must be False with a GPU: if importing a
            module initialises the GPU, forks of the process cannot use the GPU. Each probe then imports the modules
            itself.
        """
        self._fork = fork
        self._keep = keep
        self._target = target
        self._adapter = str(catalog.adapters[target.name].file)
        self._ahead, self.hangs = ahead, hangs
        self._imports: dict[tuple[str, str], Failed | None] = {}
        self._moved: dict[str, str] = {}
        self.process = fork()

    def load(self, boundary: str, contract: str, contract_file: str) -> Failed | None:
        """Import the modules of a boundary, unless an earlier call has imported them. Return a failure if an import
        ended the process; otherwise None."""
        key = boundary, contract
        if self._ahead and key not in self._imports and self.hangs.failure(boundary) is None:
            binding = self._target.binding(boundary, contract)
            imports = [path for name in binding.imports for path in binding.names(name)] if binding else []
            paths = [*binding.paths, *imports] if binding else [boundary]
            failed = self._imports[key] = self._load(paths, contract, contract_file)
            if failed is not None and failed.kind == "timeout":
                self.hangs.note(boundary, failed.reason, imported=True)
        return self._imports.get(key)

    def follow(self, moved: Mapping[str, str], contract: str, contract_file: str) -> None:
        """Make later calls use the new dotted paths of functions and modules that have moved."""
        self._moved.update(moved)
        self._load([*moved.values()], contract, contract_file)

    def _load(self, paths: Sequence[str], contract: str, contract_file: str) -> Failed | None:
        sources = self.alive().load(paths, self._adapter, contract_file, contract, self._moved)
        if isinstance(sources, Failed):
            return sources
        self._keep(sources)
        return None

    def alive(self) -> TargetProcess:
        """Return the process; if an import has ended it, start a new process, whose next probe reports the reason."""
        if self.process.dead is not None:
            self.process = self._fork()
        return self.process

    def probes(self, requests: Sequence[Mapping[str, Any]], timeout: float) -> Sequence[Measured | Failed]:
        """Run several probes in one process, and return their results; empty if the process ended before the last
        result."""
        for request in requests:
            self.load(request["boundary"], request["contract"], request["contract_file"])
        return self.alive().probes(requests, timeout)

    def probe(self, boundary: str, request: Mapping[str, Any]) -> Measured | Failed:
        """Run one probe in its own process."""
        self.load(boundary, request["contract"], request["contract_file"])
        if hung := self.hangs.failure(boundary):
            return hung
        answer = self.alive().probe(request)
        if self.process.dead is not None and self.process.dead.kind == "crash":
            # Tried once more, because code of another ref may have killed the preloader and this process. If the
            # process crashes again, the boundary is the cause.
            self.process = self._fork()
            answer = self.process.probe(request)
        if isinstance(answer, Failed) and answer.kind == "timeout":
            self.hangs.note(boundary, answer.reason)
        return answer
