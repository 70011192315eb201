"""What a binding and its contract do around the real boundary, written down as a straight-line program.

A standalone runner must call the boundary as the probe did: with the same objects, made the same way, and with the same
arithmetic before and after. None of this is known to the controller; it is Python of an adapter. So a probe is run once
more with contracts whose ``measure`` is watched: calls into the target's packages are seen by a profile function,
operations on tensors by torch's function mode. What neither sees (Python that turns numbers into other numbers) is
never filled in from what was observed: it is ``unknown``, and the runner does not print it.

Runs in the worker, which finds the contracts of this file by their names; see
:func:`sentinel.worker.probe.load_contract`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.export.contracts import wrapped_contracts
from sentinel.export.tracer import Tracer, UntraceableError

#: A node of the program, as plain data; see :mod:`sentinel.export.program`.
Node = dict[str, Any]


def _watched(measure: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    def watched(call: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The observation of a traced call: its one key is the program."""
        recorder = getattr(builtins, "__import__", None)
        packages = getattr(recorder, "packages", None) or {call.module.__name__.partition(".")[0]}
        tracer = Tracer(frozenset(packages), inputs)
        try:
            with _numbers(tracer, measure, call), tracer:
                observation = measure(call, inputs)
            program = tracer.program(observation)
        except UntraceableError as error:
            return {"program": {"untraceable": str(error)}}
        modules = {module for module, _ in tracer.modules}
        ghosts_of = getattr(recorder, "ghosts_of", None)
        stubs = sorted({ghost for module in modules for ghost in ghosts_of(module)}) if ghosts_of else []
        return {"program": {**program, "stubs": stubs}}

    return watched


@contextmanager
def _numbers(tracer: Tracer, measure: Callable[..., Any], call: Any) -> Iterator[None]:
    """Let ``float(tensor)`` and ``int(tensor)`` in contracts and adapters give numbers that know where they come from.

    A module's own global is found before the builtin; the target's modules keep theirs.
    """
    own = call.binding.call
    adapter = own.__module__.partition(".")[0] if own is not None else ""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("sentinel.contracts.") or (adapter and name.partition(".")[0] == adapter)
    ]
    kinds = {"float": tracer.float_type, "int": tracer.int_type}
    for module in modules:
        vars(module).update(kinds)
    try:
        yield
    finally:
        for module in modules:
            for name in kinds:
                vars(module).pop(name, None)


CONTRACTS: Mapping[str, Contract] = wrapped_contracts(_watched)
globals().update({f"TRACED_{name}": contract for name, contract in CONTRACTS.items()})
