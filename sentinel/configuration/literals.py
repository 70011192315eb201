"""What an expression in the code says where it is a literal."""

from __future__ import annotations

import ast

from sentinel.recipes.affects import in_text


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
