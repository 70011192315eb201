"""Find the values that a framework's code accepts for an option, by reading its source.

Nothing is imported or executed. Three forms are recognised: an ``if``/``elif`` chain whose ``else`` raises, ``if x not
in […]: raise``, and ``assert x in […]``. ``x`` may be ``self.loss_type``, ``config["loss_type"]`` or ``loss_type``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.tools.audit.options import assigned_in, called, choices_of, name_of, parsed, text_of
from sentinel.values.files import regular_bytes

#: Maximum size of a file that is read, in bytes, and maximum number of files that are parsed.
_LARGEST, _MOST = 2_000_000, 200


def accepted_values(folders: Iterable[Path], options: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return option -> accepted values, for options that the code in the folders checks.

    A check that does not accept the default is ignored, because it concerns another variable of the same name. If
    several checks differ, all their values are returned.

    :param options: dotted name of an option -> the text of its default.
    """
    by_last: dict[str, list[str]] = {}
    for name in options:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    found: dict[str, dict[str, None]] = {}
    for tree in _parse_relevant_files(folders, by_last):
        constants = _module_constants(tree)
        for last, values in _checks(tree, constants):
            for name in by_last.get(last, ()):
                if options[name] in values:
                    found.setdefault(name, {}).update(dict.fromkeys(values))
    return {name: tuple(values) for name, values in found.items()}


def _parse_relevant_files(folders: Iterable[Path], names: Iterable[str]) -> Iterator[ast.Module]:
    listed = "|".join(map(re.escape, names))
    pattern = re.compile(rf"\b({listed})\b[^\n]*(==|\bin\b)".encode())
    left = _MOST
    for file in (file for folder in folders for file in sorted(folder.rglob("*.py"))):
        with suppress(OSError, SentinelError, SyntaxError, ValueError, RecursionError, MemoryError):
            source = regular_bytes(file, _LARGEST)
            if re.search(rb"\braise\b|\bassert\b", source) and pattern.search(source):
                left -= 1
                if left < 0:
                    return
                yield parsed(file)


def _module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    members = {
        f"{node.name}.{each.targets[0].id}": each.value
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
    }
    return assigned_in(tree.body) | members


def _checks(tree: ast.Module, constants: Mapping[str, ast.expr]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (checked name, accepted values) for each check in a module."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.Assert))]
    inner = {id(node.orelse[0]) for node in nodes if isinstance(node, ast.If) and _is_elif(node)}
    for node in nodes:
        if isinstance(node, ast.Assert):
            name, values = _compared(node.test, constants, ast.In)
        elif id(node) in inner:
            continue
        else:
            name, values = _compared(node.test, constants, ast.NotIn) if _raises(node.body) else ("", ())
            if not values:
                name, values = _chain(node, constants)
        if name and values:
            yield name, values


def _chain(node: ast.If, constants: Mapping[str, ast.expr]) -> tuple[str, tuple[str, ...]]:
    """Return the name that an ``elif`` chain compares, and the values for which its ``else`` does not raise. Both are
    empty for other statements."""
    subject, found = "", dict[str, None]()
    while True:
        name, values = _compared(node.test, constants, ast.In)
        if not values or subject not in ("", name):
            return "", ()
        subject = name
        found |= dict.fromkeys(values)
        if not _is_elif(node):
            return (subject, tuple(found)) if _raises(node.orelse) and len(found) > 1 else ("", ())
        node = node.orelse[0]  # type: ignore[assignment]


def _is_elif(node: ast.If) -> bool:
    return len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)


def _raises(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise)


def _compared(
    test: ast.expr, constants: Mapping[str, ast.expr], several: type[ast.cmpop]
) -> tuple[str, tuple[str, ...]]:
    """Return the name that a test compares with constants, and the constants. Both are empty for other tests.

    :param several: the operator between the name and a list of constants: ``in`` or ``not in``.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and several is ast.In:
        parts = [_compared(part, constants, several) for part in test.values]
        names = {name for name, _ in parts}
        return (names.pop(), tuple(value for _, each in parts for value in each)) if len(names) == 1 else ("", ())
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return "", ()
    right = test.comparators[0]
    if isinstance(test.ops[0], several):
        right = constants.get(getattr(right, "id", ""), right)
        if isinstance(right, ast.Dict):
            right = ast.List([key for key in right.keys if key is not None], ast.Load())
        elements = right.elts if isinstance(right, (ast.List, ast.Tuple, ast.Set)) else []
    elif isinstance(test.ops[0], ast.Eq) and several is ast.In:
        elements = [right]
    else:
        return "", ()
    resolved = [
        constants.get(ast.unparse(each), each) if isinstance(each, ast.Attribute) else each for each in elements
    ]
    values = choices_of(ast.List(resolved, ast.Load())) if resolved else ()
    return (_option(test.left), values) if values else ("", ())


def _option(node: ast.expr) -> str:
    """Return ``name`` for ``name``, ``config.name``, ``config["name"]`` or ``config.get("name")``; otherwise ""."""
    if isinstance(node, ast.Subscript):
        return text_of(node.slice) or ""
    if isinstance(node, ast.Call):
        if called(node) == "get" and node.args:
            return text_of(node.args[0]) or ""
        return (
            _option(node.func.value)
            if called(node) in ("lower", "strip") and isinstance(node.func, ast.Attribute)
            else ""
        )
    return name_of(node)
