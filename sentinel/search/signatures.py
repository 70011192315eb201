"""Read from a function's syntax what it takes: its parameters, and what its body reads of each of them.

A path says what is read: ``.actor.clip_ratio`` is an attribute of an attribute, ``.batch[advantages]`` a key of one,
``[][input_ids]`` a key of each of several.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

_Def = ast.FunctionDef | ast.AsyncFunctionDef

#: What every tensor or array has: to read it says nothing of what the tensor means.
_OF_TENSORS = re.compile(r"\.(shape|device|dtype|ndim|T|data|is_nested|requires_grad|is_cuda|grad|values)$")

#: Names of methods that put something into what they are called on; and how many are called, at most.
_FILLS = re.compile(r"(add|append|put|push|update|record|register|submit|store|insert|enqueue)(_|$)|on_")
_MOST_FILLS = 3

#: Methods of one class that a method is followed into, at most.
_MOST = 20


@dataclass(frozen=True)
class Parameter:
    """:ivar annotation: as written; empty where there is none.
    :ivar reads: the paths below it that are read; those with a default of the code's own end in ``?``.
    :ivar choices: path -> the constants that it is compared with.
    :ivar flags: the paths that nothing is asked of but whether they are true.
    :ivar whole: whether it is used otherwise too: handed on, returned, computed with.
    """

    name: str
    annotation: str
    required: bool
    reads: tuple[str, ...] = ()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    flags: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Signature:
    """:ivar parameters: with ``self`` where it is a method.
    :ivar odd: why nobody can call it by its signature alone; empty where somebody may.
    :ivar fills: the other methods of its class that put something into it by their names, each with what it takes.
    """

    parameters: tuple[Parameter, ...]
    odd: str = ""
    built: tuple[Parameter, ...] = ()
    fills: tuple[tuple[str, tuple[Parameter, ...]], ...] = ()


def signature(node: _Def, methods: Mapping[str, _Def] | None = None) -> Signature:
    """Give what a function takes.

    :param methods: the methods of its class, where it has one; those that it calls on itself read of it too.
    """
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    bare = len(positional) - len(arguments.defaults)
    required = {argument.arg for argument in positional[:bare]}
    required |= {
        argument.arg for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults) if default is None
    }
    every = [*positional, *arguments.kwonlyargs]
    more = arguments.kwarg.arg if arguments.kwarg else ""
    own = positional[0].arg if methods is not None and positional and not _is_static(node) else ""
    uses = _Uses({*(argument.arg for argument in every), *filter(None, (more,))})
    uses.read(node)
    if own:
        uses.follow(own, methods or {})
    odd = "it is a setter" if _decorated(node, ("setter", "cached_property")) else ""
    odd = "it is abstract" if _decorated(node, ("abstractmethod", "overload")) else odd
    maker = (methods or {}).get("__init__")
    built = signature(maker).parameters[1:] if own and maker is not None and maker is not node else ()
    parameters = tuple(_parameter(argument, argument.arg in required, uses) for argument in every)
    keys = (re.fullmatch(r"\[(\w+)\]", path) for path in sorted(uses.reads.get(more, ())))
    parameters += tuple(Parameter(key[1], "", True) for key in keys if key is not None)
    others = ((name, each) for name, each in (methods or {}).items() if own and each is not node and _FILLS.match(name))
    fills = tuple((name, signature(each).parameters[1:]) for name, each in islice(others, _MOST_FILLS))
    return Signature(parameters, odd, built, fills)


def options(source: str) -> dict[str, list[Any]]:
    """Find what code reads of anything by a name and decides by, with values of it that may decide otherwise: those
    of a flag, what it is compared with, and the next to that, and small numbers where the code counts as far."""
    values_of: dict[str, list[Any]] = defaultdict(list)
    tree = ast.Module([], [])
    with suppress(SyntaxError):  # a method with a text that begins further left
        tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        values: list[Any] = [True, False]
        sides = _conditions(node)
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            values = [side.value for side in sides if isinstance(side, ast.Constant)]
            values += [value + 1 for value in values if type(value) in (int, float)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            sides, values = node.args, [2, 3, 1]
        for name in filter(None, map(_read, sides)):
            values_of[name] += [value for value in values if value not in values_of[name]]
    return values_of


def _read(node: ast.expr) -> str:
    """Give the name by which an expression is read of something; empty where it is not."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _text(node.args[:1] if _called(node) == "get" else node.args[1:2])
    return _text([node.slice]) if isinstance(node, ast.Subscript) else ""


def _parameter(argument: ast.arg, required: bool, uses: _Uses) -> Parameter:
    name = argument.arg
    annotation = ast.unparse(argument.annotation).strip("'\"") if argument.annotation else ""
    choices = tuple((path, tuple(constants)) for path, constants in sorted(uses.choices[name].items()))
    return Parameter(
        name, annotation, required, tuple(sorted(uses.reads[name])), choices, uses.flags(name), name in uses.whole
    )


def is_kernel(node: _Def) -> bool:
    """Say whether a function is compiled for a GPU: whoever launches it is what a framework calls."""
    return _decorated(
        node, ("triton.jit", "triton.autotune", "triton.heuristics", "cute.jit", "cute.kernel", "T.prim_func")
    )


def _is_static(node: _Def) -> bool:
    return _decorated(node, ("staticmethod",))


def _decorated(node: _Def, names: Collection[str]) -> bool:
    decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return any(f".{ast.unparse(each)}".endswith(tuple(f".{name}" for name in names)) for each in decorators)


class _Uses:
    """What is read of the parameters of a function."""

    def __init__(self, names: Collection[str]) -> None:
        self.paths: dict[str, tuple[str, str]] = {name: (name, "") for name in names}
        self.reads: dict[str, set[str]] = defaultdict(set)
        self.choices: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.tests: Counter[tuple[str, str]] = Counter()
        self.times: Counter[tuple[str, str]] = Counter()
        self.called: dict[str, set[str]] = defaultdict(set)
        self.whole: set[str] = set()

    def read(self, node: _Def) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
                part, name = self._path(each.value), each.targets[0].id
                if part is not None and part[1] and name not in self.paths:
                    self.paths[name] = part  # another name of a part: what is read of it is read of the parameter
            elif isinstance(each, (ast.For, ast.AsyncFor, ast.comprehension)):
                target, over = each.target, each.iter
                if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "enumerate" and over.args:
                    target, over = getattr(target, "elts", [target])[-1], over.args[0]
                part = self._path(over)
                if part is not None and not part[1] and isinstance(target, ast.Name) and target.id not in self.paths:
                    self.paths[target.id] = part[0], "[]"  # one of several
        for statement in node.body:
            self._visit(statement)

    def follow(self, own: str, methods: Mapping[str, _Def]) -> None:
        """Read the methods that are called on ``self``, too."""
        methods_read, names = set[str](), list(self.called[own])
        while names and len(methods_read) < _MOST:
            name = names.pop()
            if name in methods_read or name not in methods:
                continue
            methods_read.add(name)
            other = methods[name]
            first = [argument.arg for argument in other.args.args[:1]]
            if first and not _is_static(other):
                inner = _Uses(first)
                inner.read(other)
                self.reads[own] |= inner.reads[first[0]]
                for mine, theirs in ((self.tests, inner.tests), (self.times, inner.times)):
                    mine.update({(own, path): count for (_, path), count in theirs.items()})
                names += inner.called[first[0]]
        self.reads[own] -= {f".{name}" for name in methods}

    def flags(self, name: str) -> tuple[str, ...]:
        return tuple(
            sorted(path for (of, path), times in self.tests.items() if of == name and times == self.times[of, path])
        )

    def _path(self, node: ast.AST) -> tuple[str, str] | None:
        """Give the parameter that an expression is a part of, and which part."""
        if isinstance(node, ast.Name):
            return self.paths.get(node.id)
        if isinstance(node, ast.Attribute):
            base, step = node.value, f".{node.attr}"
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base, step = node.value, f"[{node.slice.value}]" if isinstance(node.slice.value, str) else ""
        elif isinstance(node, ast.Call) and _text(node.args[:1]) and _called(node) in ("get", "pop"):
            assert isinstance(node.func, ast.Attribute)
            base, step = node.func.value, f"[{_text(node.args[:1])}]?"
        elif isinstance(node, ast.Call) and _text(node.args[1:2]) and getattr(node.func, "id", "") == "getattr":
            base, step = node.args[0], f".{_text(node.args[1:2])}" + "?" * (len(node.args) > 2)
        else:
            return None
        part = self._path(base) if step else None
        return (part[0], part[1] + step) if part else None

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare):
            self._compare(node)
        for condition in _conditions(node):
            if (part := self._path(condition)) is not None and part[1]:
                self.tests[part] += 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._path(node) is None:
            part = self._path(node.func.value)
            if part is not None:
                self.called[part[0]] |= {node.func.attr} if not part[1] else set()
                self._note(part, whole=True)
                for each in (*node.args, *node.keywords):
                    self._visit(each)
                return
        part = self._path(node)
        if part is not None:
            stored = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
            if not stored:
                self._note(part, whole=not part[1])
            elif not isinstance(node, ast.Name):
                self._visit(node.value)  # type: ignore[attr-defined]
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _note(self, part: tuple[str, str], whole: bool) -> None:
        self.times[part] += 1
        name, path = part
        path = _OF_TENSORS.sub("", path)
        if path:
            self.reads[name].add(path)
        elif whole:
            self.whole.add(name)

    def _compare(self, node: ast.Compare) -> None:
        part = self._path(node.left)
        if part is None or not isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            return
        other = node.comparators[0]
        elements = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
        words = [each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        constants = self.choices[part[0]][part[1]]
        constants += [word for word in words if word not in constants]


def _conditions(node: ast.AST) -> list[ast.expr]:
    """Give what is asked whether it is true."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return node.values if isinstance(node, ast.BoolOp) else []


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _text(nodes: list[ast.expr]) -> str:
    value = nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else ""
    return value if isinstance(value, str) and re.fullmatch(r"[\w/.-]{1,60}", value) else ""
