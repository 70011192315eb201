"""Find calls that swap two arguments, by comparing their names with the function's parameters or with other calls.

The name of an argument is the last name in its expression: both ``batch["ref_log_prob"]`` and ``self.ref_log_prob``
have the name ``ref_log_prob``. A finding may be intended code, so a person must check it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Words in the names of arguments and parameters that are ignored, because they do not distinguish arguments.
_FILLERS = frozenset(("the", "of", "all", "per", "token", "seq", "batch", "mini", "micro", "tensor", "list"))


@dataclass(frozen=True)
class SwappedCall:
    """A call with two arguments in the opposite order of the function's parameters, or of another call.

    :ivar other: the place of the other call or of the definition.
    """

    function: str
    place: str
    arguments: tuple[str, str]
    other: str


def swapped_calls(sources: Iterable[tuple[str, ast.Module]]) -> list[SwappedCall]:
    """Return the calls with two swapped arguments.

    Functions are matched by name. Names that are defined several times with different parameters are left out.

    :param sources: file and syntax tree of each module.
    """
    trees = list(sources)
    definitions: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    places: dict[str, str] = {}
    calls: dict[str, list[tuple[str, int, tuple[str, ...]]]] = defaultdict(list)
    for file, tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names = [item.arg for item in (*node.args.posonlyargs, *node.args.args)]
                definitions[node.name].add(tuple(names[names[:1] in (["self"], ["cls"]) :]))
                places[node.name] = f"{file}:{node.lineno}"
            elif isinstance(node, ast.Call) and not any(isinstance(each, ast.Starred) for each in node.args):
                calls[_last_name(node.func)].append((file, node.lineno, tuple(map(_last_name, node.args))))
    found = []
    for name, parameters in definitions.items():
        if len(parameters) == 1 and name in calls:
            declared = next(iter(parameters))
            against = list(_compare_with_definition(name, places[name], declared, calls[name]))
            found += against or list(_compare_calls(name, declared, calls[name]))
    unique = {(each.function, each.place): each for each in reversed(found)}
    return sorted(unique.values(), key=lambda each: each.place)


def _compare_with_definition(
    name: str, place: str, parameters: tuple[str, ...], calls: Iterable[tuple[str, int, tuple[str, ...]]]
) -> Iterator[SwappedCall]:
    """Yield calls in which two arguments have each other's parameter names."""
    for file, line, arguments in calls:
        for i, j in _pairs(arguments):
            if j < len(parameters):
                fits = [[_share_of_common_words(arguments[a], parameters[p]) for p in (i, j)] for a in (i, j)]
                if fits[0][1] == fits[1][0] == 1.0 and fits[0][0] < 1.0 and fits[1][1] < 1.0:
                    yield SwappedCall(name, f"{file}:{line}", (arguments[i], arguments[j]), place)


def _compare_calls(
    name: str, parameters: tuple[str, ...], calls: list[tuple[str, int, tuple[str, ...]]]
) -> Iterator[SwappedCall]:
    """Yield the calls that pass two arguments in the opposite order of most other calls."""
    orders: dict[frozenset[str], dict[tuple[int, str, int, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for file, line, arguments in calls:
        for i, j in _pairs(arguments):
            if j < len(parameters):
                key = frozenset((arguments[i], arguments[j]))
                orders[key][i, arguments[i], j, arguments[j]].append(f"{file}:{line}")
    for by_order in orders.values():
        for (i, one, j, two), sites in by_order.items():
            others = by_order.get((i, two, j, one), [])
            if len(sites) < len(others) or (len(sites) == len(others) and sites[0] > others[0]):
                for site in sites:
                    yield SwappedCall(name, site, (one, two), others[0])


def _pairs(arguments: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    named = [place for place, argument in enumerate(arguments) if argument]
    for number, i in enumerate(named):
        for j in named[number + 1 :]:
            if arguments[i] != arguments[j]:
                yield i, j


def _share_of_common_words(one: str, other: str) -> float:
    first, second = ({word.removesuffix("s") for word in name.lower().split("_")} - _FILLERS for name in (one, other))
    return len(first & second) / max(len(first | second), 1)


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression, or "" if it is not a name, an attribute or an item with a constant key."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    return ""
