"""Run the calls of a search in pytest's own process, with the same code that runs in workers."""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from sentinel.contracts.contract import Contract
from sentinel.deciding.law_session import LawSession, References
from sentinel.testing.binding import Bound
from sentinel.worker import answers, calling, probe, serving


class _Server(serving.Server):
    """Executes requests as the worker's server does. Calls the user's function, or the oracle if ``bound`` is None."""

    def __init__(self, contract: Contract, bound: Bound | None, device: str) -> None:
        self._own_contract = contract
        if bound is None:
            super().__init__((), None)
            return
        function = bound.function
        file, line, signature = calling.source_of(function.f)
        super().__init__((os.path.dirname(file) or function.name,), None)
        self.boundary = calling.Boundary(
            function.name, bound.module, function, None, bound.binding, frozenset(bound.names), device
        )
        origin = {"module_file": file, "file": file, "line": line, "signature": signature}
        self._mine = probe.Preparation(
            self.boundary, {"boundary": function.name, "module": bound.module.__name__, **origin}
        )

    def _contract(self, request: Mapping[str, Any]) -> Contract:
        return self._own_contract

    def _prepare(self, request: Mapping[str, Any], boundary: str) -> probe.Preparation:
        return self._mine


class _Session:
    """Executes calls in this process, with the interface of :class:`sentinel.worker.client.Session`."""

    dead = ""
    hangs = False
    slowest = 0.0

    def __init__(self, server: _Server, bound: Bound | None, device: str) -> None:
        self._server, self._bound, self._device = server, bound, device

    def send(self, request: Mapping[str, Any]) -> None:
        self._calls = list(request["calls"])
        self._answer = self._server.answer({**request, "device": self._device})
        if self._bound is not None and self._bound.function.interrupted:
            self._bound.function.interrupted = False
            raise KeyboardInterrupt

    def receive(self, limit: float = math.inf) -> answers.Replies | answers.Failed:
        """Return the answer. The limit is ignored, because a call in this process cannot be stopped."""
        return answers.of_session(self._answer, self._calls)

    def close(self) -> None:
        """Do nothing: a session in this process has nothing to close."""


class _Target:
    def __init__(self, contract: Contract, bound: Bound | None, device: str) -> None:
        self._contract, self._bound, self._device = contract, bound, device

    def session(self) -> Any:
        return _Session(_Server(self._contract, self._bound, self._device), self._bound, self._device)


def open_session(bound: Bound, device: str) -> LawSession:
    """Return a law session that calls the function in this process."""
    references = References(lambda: _Target(bound.contract, None, "cpu"))  # type: ignore[arg-type,return-value]
    return LawSession(lambda: _Target(bound.contract, bound, device), references)  # type: ignore[arg-type,return-value]


def call_once(bound: Bound, inputs: Mapping[str, Any], device: str) -> None:
    """Call the function once, so that ``bound`` records what it reads. Exceptions are ignored."""
    server = _Server(bound.contract, bound, device)
    probe.reseed()
    with contextlib.suppress(Exception):
        probe.observe(bound.contract, server.boundary, inputs, server._roots, device)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Restore global state at the end of the ``with`` block: the states of random generators, the number of threads,
    the CUDA device and torch's deterministic mode."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    cuda = (torch.cuda.current_device(), torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_device(cuda[0])
            torch.cuda.set_rng_state_all(cuda[1])
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
