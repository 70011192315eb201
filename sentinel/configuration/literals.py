"""Code that is read and not run: a file's syntax, and what an expression says where it is a literal."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from sentinel.recipes.affects import in_text


def parsed(file: Path) -> ast.Module:
    """The syntax of a file. What the compiler has to say about its style is for whoever wrote it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(file.read_bytes())


def text_of(node: ast.expr | None) -> str | None:
    """The text of a literal, None where the value is computed."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, (dict, set, bytes)):
        return "" if not value else None
    return in_text(value)


def choices_of(node: ast.expr | None) -> tuple[str, ...]:
    """The members of a literal list, or of ``Literal[...]``; nothing where one of them is computed."""
    if isinstance(node, ast.Subscript):
        node = node.slice
    members = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node] if node is not None else []
    texts = [text_of(member) for member in members]
    return tuple(text for text in texts if text is not None) if None not in texts else ()
