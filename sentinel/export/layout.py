"""Python that is read: what ``ast.unparse`` writes, as people write it; and plain data as literals."""

from __future__ import annotations

import ast
import copy
import io
import re
import tokenize
from collections.abc import Mapping
from typing import Any

from sentinel.export.literals import scalar
from sentinel.export.wrapping import WIDTH, wrapped

#: Types that are written as one word of data.
SCALARS = (bool, int, float, str, type(None))


def is_data(value: Any) -> bool:
    """Whether a value can be written as a literal."""
    if isinstance(value, Mapping):
        return all(map(is_data, value)) and all(map(is_data, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        return all(map(is_data, value))
    return type(value) in SCALARS


def data(value: Any) -> str:
    """A value that :func:`is_data` as Python."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{data(key)}: {data(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(map(data, sorted(value, key=repr))) + "}" if value else "set()"
    if isinstance(value, tuple):
        return f"({', '.join(map(data, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(data, value))}]"
    return scalar(value)


def reference(text: str) -> ast.expr:
    """A name, with dots or without, to be read."""
    return expression(text) if "." in text or "(" in text else ast.Name(text, ast.Load())


def expression(text: str) -> ast.expr:
    """An expression."""
    return ast.parse(text, mode="eval").body


def written(tree: ast.AST) -> str:
    """A definition as text of the usual width."""
    return formatted(ast.unparse(ast.fix_missing_locations(tree)))


def height(tree: ast.AST) -> int:
    """How many lines something takes."""
    return written(copy.deepcopy(tree)).count("\n") + 1


def formatted(text: str) -> str:
    """Python as ``ast.unparse`` writes it, with double quotes and without long lines."""
    lines = [_without_brackets(line) for line in _double_quoted(_single_brackets(text)).split("\n") if line.strip()]
    rows: list[str] = []
    for before, line in zip(["", *lines], lines):
        # A method stands by itself; a function in a function need not.
        if re.match(r"    (async )?def |    @", line) and not before.startswith(("    @", "class", "def", "@")):
            rows += [""] if text.startswith(("class", "@dataclass")) else []
        rows += laid_out(line)
    return "\n".join(rows)


def _single_brackets(text: str) -> str:
    """``any(x for x in y)``, where ``ast.unparse`` brackets the generator too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            (argument,) = node.args
            if isinstance(argument, ast.GeneratorExp) and (old := ast.unparse(node)) in text:
                text = text.replace(old, f"{ast.unparse(node.func)}{ast.unparse(argument)}")
    return text


_TUPLE = re.compile(r"(\s*(?:return|[\w., ]+ =) )\((.*,.*)\)")


def _without_brackets(line: str) -> str:
    """``return (a, b)`` as people write it."""
    found = _TUPLE.fullmatch(line)
    if found is None or len(line) > WIDTH:
        return line
    try:
        alone = ast.parse(found[2], mode="eval").body
    except SyntaxError:  # the brackets are not a pair
        return line
    return f"{found[1]}{found[2]}" if isinstance(alone, ast.Tuple) and len(alone.elts) > 1 else line


def laid_out(line: str) -> list[str]:
    """A line, on several where it is long."""
    if len(line) <= WIDTH:
        return [line]
    bare = line.lstrip()
    indent = len(line) - len(bare)
    if bare.startswith(("with ", "async with ")) and (items := _context_managers(bare)):
        inner = [row for item in items for row in laid_out(f"{' ' * indent}    {item},")]
        return [f"{' ' * indent}{bare[: bare.index('with ')]}with (", *inner, f"{' ' * indent}):"]
    return [" " * indent + row for row in wrapped(bare, indent).split("\n")]


def _context_managers(line: str) -> list[str]:
    """The items of a ``with`` line, where there are several."""
    whole = f"async def f():\n {line} pass"
    (function,) = ast.parse(whole).body
    assert isinstance(function, ast.AsyncFunctionDef)
    (statement,) = function.body
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    named = [(item.context_expr, item.optional_vars) for item in statement.items]
    texts = [(ast.get_source_segment(whole, what), name and ast.unparse(name)) for what, name in named]
    return [f"{what} as {name}" if name else f"{what}" for what, name in texts] if len(texts) > 1 else []


def _double_quoted(text: str) -> str:
    """Strings in double quotes, as these projects write them; one that has such quotes in it stays."""
    lines = text.split("\n")
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        (row, start), (last, end) = token.start, token.end
        string = token.string
        if token.type == tokenize.STRING and row == last and '"' not in string and not string.endswith("'''"):
            quote = string.index("'")
            new = f'{string[:quote]}"{string[quote + 1 : -1]}"'
            lines[row - 1] = lines[row - 1][:start] + new + lines[row - 1][end:]
    return "\n".join(lines)
