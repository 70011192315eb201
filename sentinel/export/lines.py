"""Which lines of a binding and its contract ran in a measurement, and what the binding reached for.

What :mod:`~sentinel.export.slicing` needs to know of a probe: branches that no revision takes are left out of a
standalone runner. Runs in the worker, which finds the contracts of this file by their names; see
:func:`sentinel.worker.probe.load_contract`.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.export.contracts import wrapped_contracts
from sentinel.worker.boundaries import Boundary

#: Where a function that is no adapter's may come from: contracts and what they share.
_OURS = str(Path(__file__).resolve().parent.parent)


def _watched(measure: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    def watched(call: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The observation of a followed call: its one key says what ran."""
        own = call.binding.call
        folders = (_OURS, *([str(Path(own.__code__.co_filename).parent)] if own is not None else ()))
        lines: dict[str, set[int]] = {}

        answer = "mapping"

        def begin(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal answer
            file = frame.f_code.co_filename
            if frame.f_code is Boundary._outputs.__code__:
                answer = _kind(frame.f_locals["returned"])
            if not file.startswith(folders):
                return None
            found = lines.setdefault(file, set())
            found.add(frame.f_code.co_firstlineno)

            def step(frame: FrameType, event: str, argument: Any) -> Any:
                found.add(frame.f_lineno)
                return step

            return step

        before = sys.gettrace()
        sys.settrace(begin)
        try:
            measure(call, inputs)
        finally:
            sys.settrace(before)
        recorder = getattr(builtins, "__import__", None)
        modules = [call.module.__name__, *call.binding.imports]
        ghosts_of = getattr(recorder, "ghosts_of", None)
        return {
            "program": {
                "path": call.path,
                "module": call.module.__name__,
                "parameters": list(call.parameters),
                "answer": answer,
                "lines": {file: sorted(found) for file, found in lines.items()},
                "stubs": sorted({ghost for module in modules for ghost in ghosts_of(module)}) if ghosts_of else [],
            }
        }

    return watched


def _kind(returned: Any) -> str:
    """How the boundary's answer becomes the outputs that the contract names."""
    return "mapping" if isinstance(returned, Mapping) else "tuple" if isinstance(returned, tuple) else "single"


CONTRACTS: Mapping[str, Contract] = wrapped_contracts(_watched)
globals().update({f"FOLLOWED_{name}": contract for name, contract in CONTRACTS.items()})
