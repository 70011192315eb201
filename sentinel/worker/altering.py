"""Change the values of expressions in the framework's code while it runs.

There are three uses. Changing the value of one expression shows whether any result depends on this value. Forcing
conditions to be true or false runs a branch that no scenario reaches. Recording the values of expressions shows
differences that affect no result.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import functools
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from sentinel.worker.answers import READ
from sentinel.worker.codes import read_source

#: Names of the helpers that are put into ``builtins`` for the changed code to call: they change a value, remember a
#: value, record a value, or force a condition.
_ALTERED, _NOTED, _RECORDED = "__sentinel_altered__", "__sentinel_noted__", "__sentinel_recorded__"
_TRUTHS = {True: "__sentinel_true__", False: "__sentinel_false__"}

#: Maximum number of values that one request changes. Otherwise a loop whose condition is changed might never end.
_MOST = 1000

#: The depth to which nested lists and mappings are changed.
_DEPTH = 3

_DTYPES = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.bool: torch.float32,
}


class Altering:
    """Wraps expressions of the framework's functions in calls that change or record their values.

    :param record: called with the value of an expression and the further arguments that the request lists for this
        expression; returns the value.
    """

    def __init__(self, roots: Sequence[str], record: Callable[..., Any] = lambda value, *words: value) -> None:
        self._roots, self._record = tuple(roots), record
        self._replaced: list[tuple[FunctionType, CodeType]] = []

    def set(self, request: Mapping[str, Any] | None) -> None:
        """Undo the previous change, then change the values of the expressions that the request names.

        :param request: one of these:

            * None, to undo only;
            * ``{"conditions": [...], "values": [...]}``. A condition to force is ``[file, span, truth value]``. An
              expression to record is ``[file, span, *arguments]``, with further arguments for ``record``.
            * a mapping for one expression to change. Its keys are ``file`` (below the checkout), ``span``, ``way`` (the
              number of the way to change the value), ``keep`` (values that are not changed), and ``inner`` (the span of
              a subexpression, or an empty list). The value is not changed if it equals the subexpression's value.
        """
        for function, code in self._replaced:
            function.__code__ = code
        self._replaced = []
        if request is None:
            return
        names: dict[str, dict[tuple[int, ...], _Wrap]] = {}
        if "conditions" in request:
            builtins.__dict__[_RECORDED] = self._record
            for file, span, *words in request.get("values", ()):
                names.setdefault(file, {})[tuple(span)] = (_RECORDED, *words)
            for file, span, truth in request["conditions"]:
                names.setdefault(file, {})[tuple(span)] = (_TRUTHS[truth],)
                builtins.__dict__[_TRUTHS[truth]] = functools.partial(_ignore, truth)
        else:
            noted: list[Any] = []
            builtins.__dict__[_NOTED] = functools.partial(_note, noted)
            builtins.__dict__[_ALTERED] = _changer(request["way"], request["keep"], noted)
            names[request["file"]] = {tuple(request["span"]): (_ALTERED,), tuple(request["inner"]): (_NOTED,)}
        gc.unfreeze()  # the preloader froze the imported objects, and gc.get_objects() does not list frozen ones
        functions = [
            each
            for each in gc.get_objects()
            if type(each) is FunctionType
            and each.__code__.co_filename.startswith(self._roots)
            and each.__code__.co_filename.endswith(tuple(f"/{file}" for file in names))
        ]
        gc.freeze()
        for path in {each.__code__.co_filename for each in functions}:
            codes = _compile(path, names[max((each for each in names if path.endswith(f"/{each}")), key=len)])
            for function in functions:
                old = function.__code__
                new = codes.get((old.co_name, old.co_firstlineno)) if old.co_filename == path else None
                if new is not None and new != old and new.co_freevars == old.co_freevars:
                    self._replaced.append((function, old))
                    function.__code__ = new


#: A call to put around an expression: the function's name, and its arguments after the expression's value.
_Wrap = tuple[str, ...]


def _compile(path: str, names: Mapping[tuple[int, ...], _Wrap]) -> dict[tuple[str, int], CodeType]:
    """Compile a file with calls around some of its expressions. Return the code of its functions, by name and first
    line.

    :param names: span of an expression -> the call around it.
    """
    tree = _Wrapper(names).visit(ast.parse(read_source(path)))
    codes = [compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return {(code.co_name, code.co_firstlineno): code for code in reversed(codes) if not code.co_name.startswith("<")}


class _Wrapper(ast.NodeTransformer):
    def __init__(self, names: Mapping[tuple[int, ...], _Wrap]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> Any:
        wrap: _Wrap = ()
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Starred, ast.Slice)):
            span = node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
            wrap = self._names.get(span, ()) if isinstance(getattr(node, "ctx", ast.Load()), ast.Load) else ()
        inside = super().visit(node)
        if not wrap:
            return inside
        more = [ast.Constant(each) for each in wrap[1:]]
        return ast.copy_location(ast.Call(ast.Name(wrap[0], ast.Load()), [inside, *more], []), node)


def _ignore(truth: bool, value: Any) -> bool:
    return truth


def _note(noted: list[Any], value: Any) -> Any:
    noted[:] = [value]
    return value


def _changer(way: int, keep: Sequence[Any], noted: Sequence[Any]) -> Callable[[Any], Any]:
    left = itertools.repeat(None, _MOST)

    def changed(value: Any) -> Any:
        if any(_equal(value, each) for each in (*keep, *noted)):
            return value
        return value if next(left, way) is way else alter(value, way)

    return changed


def _equal(one: Any, other: Any) -> bool:
    with contextlib.suppress(Exception):  # comparing two objects of the framework may raise
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            alike = [(each.dtype, each.shape, each.device, each.requires_grad) for each in (one, other)]
            return alike[0] == alike[1] and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
        return one is other or (type(one) is type(other) and bool(one == other))
    return False


def alter(value: Any, way: int, depth: int = _DEPTH) -> Any:
    """Return a different value, of the same type where that is possible.

    For an empty list, tuple or dictionary, or an object of an unknown type, return an object that raises when it is
    read.
    """
    if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
        return _alter_tensor(value, way)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _alter_tensor(torch.from_numpy(np.ascontiguousarray(value)), way).numpy()
    if value is None:
        return 1 if way else True
    if isinstance(value, (bool, np.bool_)):
        return not value
    if isinstance(value, enum.Enum):
        members = list(type(value))
        return members[(members.index(value) + 1) % len(members)]
    if isinstance(value, (int, np.integer)):
        return value - 1 if way else value + 1
    if isinstance(value, (float, np.floating)):
        return -value - 1 if way else value * 1.5 + 0.25
    if isinstance(value, str):
        return value[1:] if way else f"{value}x"
    if isinstance(value, torch.dtype):
        return _DTYPES.get(value, torch.float32)
    if isinstance(value, torch.device):
        return torch.device("meta")
    if type(value) is dict and value and depth:
        if way:
            return {f"{key}x" if isinstance(key, str) else key: each for key, each in value.items()}
        return {key: alter(each, way, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and value and depth:
        kind = list if isinstance(value, list) else tuple
        return kind(value[1:]) if way else kind(alter(each, way, depth - 1) for each in value)
    if isinstance(value, (set, frozenset)) and value:
        return type(value)(list(value)[1:])
    if isinstance(value, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        return lambda *args, **more: alter(value(*args, **more), way, depth)
    if hasattr(type(value), "__enter__") and hasattr(type(value), "__exit__"):
        return contextlib.nullcontext()
    if hasattr(type(value), "__next__") or isinstance(value, (range, type({}.items()), type({}.keys()))):
        return _later(value, way)
    return _Unreadable()


def _later(items: Any, way: int) -> Iterator[Any]:
    """Yield the items without the first one (way 0), or with the first one twice (way 1)."""
    for place, item in enumerate(items):
        if place or way:
            yield item
        if not place and way:
            yield item


def _alter_tensor(value: torch.Tensor, way: int) -> torch.Tensor:
    """Return a tensor of the same shape and dtype, with different values.

    Neighbouring elements change by different amounts, because a normalisation would undo a common factor or shift.
    """
    places = torch.arange(value.numel(), device=value.device).reshape(value.shape)
    if value.dtype == torch.bool:
        return places % 2 == 0 if way else ~value
    if value.is_floating_point():
        shift = ((places % 7 + 1) / 4).to(value.dtype)
        return -value - shift if way else value + shift
    if value.dtype.is_complex or value.is_quantized:
        return value
    return torch.zeros_like(value) if way else value + 1


class _Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(READ)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(READ)

    __getitem__ = __iter__ = __len__ = __bool__ = __enter__ = __add__ = __mul__ = __radd__ = __rmul__ = __call__
