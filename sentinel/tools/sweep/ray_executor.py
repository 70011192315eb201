"""Run probes on many machines with Ray: ``--executor ray`` (a local cluster) or ``ray://HOST:PORT``.

A lane is an actor with one core. The mirror is sent through Ray's object store, so each node receives and unpacks it
once. If a node with an actor is lost, another actor repeats the work, which is idempotent.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentinel.errors import INSTALL, SentinelError
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.records.executors import Local, ProbeResult, Work
from sentinel.sources.locks import locked
from sentinel.worker.client import Options

#: Number of actors that try a piece of work before the sweep fails.
_TRIES = 5


class RayExecutor:
    """Runs probes on the machines of a Ray cluster.

    :param address: ``ray`` for a local cluster (or the cluster that ``ray.init`` has joined), or ``ray://…``.

    :raises SentinelError: if Ray is not installed, or the cluster cannot be joined.
    """

    def __init__(
        self,
        catalog: Catalog,
        mirrors: Mapping[str, Path],
        options: Options,
        address: str = "ray",
        lanes: int | None = None,
    ) -> None:
        self._ray = _ray()
        self._own = not self._ray.is_initialized()
        if self._own:
            try:
                self._ray.init(
                    address=None if address == "ray" else address, log_to_driver=False, include_dashboard=False
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise SentinelError(f"cannot join the Ray cluster {address}: {error}") from error
        self.lanes = lanes or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._options = options
        self._adapters = {name: (str(a.file), a.digest) for name, a in catalog.adapters.items() if name in mirrors}
        self._mirrors = {name: self._ray.put(_pack(path)) for name, path in mirrors.items()}
        self._actors: dict[int, Any] = {}
        self._lost: set[int] = set()
        self._closed = threading.Event()
        self._pools = [ThreadPoolExecutor(1, f"sentinel-ray-{lane}") for lane in range(self.lanes)]

    def submit(self, lane: int, work: Work) -> Future[tuple[ProbeResult, ...]]:
        return self._pools[lane].submit(self._perform, lane, work)

    def close(self) -> None:
        self._closed.set()
        for actor in list(self._actors.values()):
            with suppress(Exception):
                self._ray.kill(actor)
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._own:
            self._ray.shutdown()

    def _perform(self, lane: int, work: Work) -> tuple[ProbeResult, ...]:
        last: Exception | None = None
        for _ in range(_TRIES):
            if self._closed.is_set():
                break
            try:
                results: tuple[ProbeResult, ...] = self._ray.get(self._actor(lane).perform.remote(work))
                return results
            except self._ray.exceptions.RayActorError as error:  # the node was lost, or the actor ran out of memory
                last = error
                self._lost.add(lane)
                self._actors.pop(lane, None)
        raise SentinelError(f"commit {work.commit[:9]}: {_TRIES} actors were lost: {last}")

    def _actor(self, lane: int) -> Any:
        if lane not in self._actors:
            # The core of a lost actor may not come back, so its successor requests none.
            cores = 0 if lane in self._lost else 1
            actor = self._ray.remote(num_cpus=cores, scheduling_strategy="SPREAD")(_Lane)
            self._actors[lane] = actor.remote(self._adapters, self._mirrors, self._options)
        return self._actors[lane]


class _Lane:
    """A Ray actor with a local executor."""

    def __init__(self, adapters: Mapping[str, tuple[str, str]], mirrors: Mapping[str, Any], options: Options) -> None:
        catalog = _catalog(adapters)
        folder = Path(tempfile.gettempdir()) / f"sentinel-ray-{os.getuid()}"
        ray = _ray()
        places = {name: _unpack(folder, name, ray.get(packed)) for name, packed in mirrors.items()}
        self._local = Local(catalog, folder / "copies", lambda name: places[name], options, 1)

    def perform(self, work: Work) -> tuple[ProbeResult, ...]:
        return self._local.submit(0, work).result()


def _catalog(adapters: Mapping[str, tuple[str, str]]) -> Catalog:
    """Return the catalog of this machine.

    :raises SentinelError: if an adapter on this machine differs from the controller's.
    """
    catalog = bundled_catalog()
    missing = [Path(file) for name, (file, _) in adapters.items() if name not in catalog.adapters]
    catalog = catalog.with_(adapters=missing)
    for name, (_, digest) in adapters.items():
        if catalog.adapters[name].digest != digest:
            raise SentinelError(f"this node has a different adapter of {name}; install the same Sentinel on every node")
    return catalog


def _pack(mirror: Path) -> bytes:
    """Return a git directory as a tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(mirror, arcname=".")
    return packed.getvalue()


def _unpack(folder: Path, name: str, content: bytes) -> Path:
    """Unpack a mirror on this machine, unless another actor has done it, and return its path."""
    place = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.git"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{place.name}.lock"):
        if not place.is_dir():
            part = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
            with tarfile.open(fileobj=io.BytesIO(content)) as tar:
                tar.extractall(part, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(part)
            part.rename(place)
    return place


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise SentinelError(f"Ray is not installed; {INSTALL.format('ray')}") from error
    return ray
