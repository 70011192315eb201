"""Determine the cause of an exception: the framework's own ``raise``, a mistake in its code, or Sentinel's code."""

from __future__ import annotations

import builtins
import dis
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from sentinel.worker.tensors import PASSED_ON, from_torch, observe

_ERRORS = (NameError, TypeError, IndexError, ArithmeticError, RuntimeError, ValueError)
_CALL = re.compile(r"([\w.]+)\(\) (?:got|missing|takes)\b")
_RAISE = dis.opmap["RAISE_VARARGS"]


def programming_error(error: BaseException, roots: tuple[str, ...]) -> str:
    """Return an exception's type if a mistake in the framework's own code caused it; an empty string otherwise.

    Errors about missing attributes, keys, files or packages, or about an unexpected ``None``, do not count: the
    caller's objects or this machine may have caused them."""
    kind = next((each.__name__ for each in _ERRORS if isinstance(error, each)), "")
    traces = list(_traces(error))
    if not kind or not traces or isinstance(error, NotImplementedError):
        return ""
    trace = traces[-1]
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    code = trace.tb_frame.f_code
    if not code.co_filename.startswith(inside) or code.co_code[trace.tb_lasti] == _RAISE:
        return ""
    return kind if not isinstance(error, TypeError) or _is_own(str(error), inside) else ""


#: Sentinel's folder. Sentinel counts as the cause of an exception that its code (a contract, the kit) raises.
_SENTINEL = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

#: Functions that convert returned values to data. If one of them fails, the target is the cause, because it returned
#: the value.
_READERS = (observe.__code__, from_torch.__code__)

#: Files of torch that run a backward pass. If it fails, the target is the cause, because it built the graph.
_BACKWARD = ("torch/autograd/", "torch/_tensor.py")


def harness_place(error: BaseException, roots: tuple[str, ...], files: Sequence[str]) -> TracebackType | None:
    """Return the place in Sentinel or the adapter that raised an exception; None if the framework raised it.

    Third-party frames are skipped, because the caller of torch counts as the cause of an error in torch. The framework
    also counts as the cause if a stand-in that it called raises on purpose, or if a backward pass fails.

    :param files: the adapter and the contract, which may be in another package.
    """
    if isinstance(error, RecursionError):  # the framework returned a value that contains itself
        return None
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    harness = (_SENTINEL, *(file.removesuffix("__init__.py") for file in files))
    called_by_target, place, backward = False, None, False
    for trace in _traces(error):
        code = trace.tb_frame.f_code
        if code in _READERS:
            return None
        if code.co_filename.startswith(inside):
            called_by_target, place = True, None
        elif code.co_filename.startswith(harness):
            on_purpose = trace.tb_next is None and code.co_code[trace.tb_lasti] == _RAISE
            place, backward = None if called_by_target and on_purpose else trace, False
        else:
            backward = backward or any(part in code.co_filename for part in _BACKWARD)
    return None if backward else place


def _traces(error: BaseException) -> Iterator[TracebackType]:
    """Yield the places of a traceback, outermost first, without the frames of :data:`PASSED_ON`."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is not PASSED_ON:
            yield trace
        trace = trace.tb_next


def _is_own(message: str, inside: tuple[str, ...]) -> bool:
    """Return True if the message of a TypeError names one of the framework's own functions, or only built-in types."""
    match = _CALL.match(message)
    if match is None:
        kinds = re.findall(r"'(\w+)'", message)
        return bool(kinds) and all(isinstance(getattr(builtins, kind, None), type) for kind in kinds)
    for module in list(sys.modules.values()):
        names: dict[str, Any] = vars(module) if isinstance(module, ModuleType) else {}
        if not str(names.get("__file__")).startswith(inside):
            continue
        member: Any = None
        for part in match[1].split("."):
            member = names.get(part)
            names = dict(vars(member)) if inspect.isclass(member) else {}
        member = getattr(member, "__func__", member)
        member = inspect.unwrap(member) if callable(member) else None
        if isinstance(member, FunctionType) and member.__code__.co_filename.startswith(inside):
            return True
    return False
