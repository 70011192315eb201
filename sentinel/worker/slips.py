"""Tells whose an exception is: the target's, which raises it on purpose or by a slip, or the harness's own."""

from __future__ import annotations

import builtins
import dis
import inspect
import os
import re
import sys
from collections.abc import Sequence
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from sentinel.worker.tensors import from_torch, observe

_SLIPS = (NameError, TypeError, IndexError, ArithmeticError, RuntimeError, ValueError)
_CALL = re.compile(r"([\w.]+)\(\) (?:got|missing|takes)\b")
_RAISE = dis.opmap["RAISE_VARARGS"]


def slip(error: BaseException, roots: tuple[str, ...]) -> str:
    """Name the exception with which Python or a library refuses a line of the target's own code; empty where a
    ``raise`` or ``assert`` says it, where it comes from other code, and where it may be about what the caller
    gave.

    An attribute, a key, a file or a package that is not there may be missing in the caller's objects or on this
    machine, and so may whatever ``None`` stands for."""
    kind = next((each.__name__ for each in _SLIPS if isinstance(error, each)), "")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not kind or trace is None or isinstance(error, NotImplementedError):
        return ""
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    code = trace.tb_frame.f_code
    if not code.co_filename.startswith(inside) or code.co_code[trace.tb_lasti] == _RAISE:
        return ""
    return kind if not isinstance(error, TypeError) or _is_own(str(error), inside) else ""


#: Sentinel's own code: contracts, the kit, stand-ins.
_SENTINEL = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

#: Reads what was returned as data: a value that cannot be read is the target's.
_READERS = (observe.__code__, from_torch.__code__)

#: Where a backward pass begins: what fails in it is the graph that the target has built.
_BACKWARD = ("torch/autograd/", "torch/_tensor.py")


def harness_place(error: BaseException, roots: tuple[str, ...], files: Sequence[str]) -> TracebackType | None:
    """Return the place in the harness that an exception comes from; None if it comes from the target.

    Frames of third parties decide nothing: an error of torch's belongs to whoever called torch. What a stand-in raises
    on purpose when the target calls it is an answer to the target. A backward pass that fails is the target's.

    :param files: the adapter and the contract, which may lie in another package.
    """
    if isinstance(error, RecursionError):  # a value without end, which the harness has followed
        return None
    inside = tuple(f"{root.rstrip('/')}/" for root in roots)
    harness = (_SENTINEL, *(file.removesuffix("__init__.py") for file in files))
    called_by_target, place, backward = False, None, False
    trace = error.__traceback__
    while trace is not None:
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
        trace = trace.tb_next
    return None if backward else place


def _is_own(message: str, inside: tuple[str, ...]) -> bool:
    """Whether a function of the target is called as it cannot be, or an operator is given plain values."""
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
