"""What a module's syntax defines under which name; it is read, and nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Name:
    """What a module or class has under one name.

    :ivar kind: ``function``, ``class``, ``import`` or ``value``.
    :ivar span: the first line, with decorators, and the last one.
    :ivar leads: dotted paths, as written: what is imported or assigned, or a class's bases.
    :ivar names: of a class.
    :ivar parameters: of a function.
    """

    kind: str
    span: tuple[int, int] = (0, 0)
    leads: tuple[str, ...] = ()
    names: Mapping[str, Name] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()


def syntax_of(content: str | bytes) -> ast.Module:
    """Parse a source.

    :raises SyntaxError: where it is no Python, or is nested deeper than the parser goes.
    """
    try:
        return ast.parse(content)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(f"{type(error).__name__} while it was parsed") from None


def names_of(body: Sequence[ast.stmt]) -> dict[str, Name]:
    """What a body defines, whatever the condition; of two the last, but a definition before a value."""
    found: dict[str, Name] = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            found[node.name] = Name("function", span_of(node), parameters=frozenset(item.arg for item in every))
        elif isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0] for base in node.bases)
            found[node.name] = Name("class", span_of(node), bases, names_of(node.body))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                key = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])
                if isinstance(node, ast.Import):
                    found[key] = Name("import", leads=(alias.name if alias.asname else key,))
                elif alias.name == "*":
                    found[f"*{len(found)}"] = Name("import", leads=("." * node.level + (node.module or ""),))
                else:
                    start = "." * node.level + (f"{node.module}." if node.module else "")
                    found[key] = Name("import", leads=(f"{start}{alias.name}",))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            plain = isinstance(node.value, (ast.Name, ast.Attribute))
            leads = (ast.unparse(node.value),) if plain and node.value else ()
            for item in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(item, ast.Name):
                    found[item.id] = Name("value", span_of(node), leads)
        else:
            blocks = (getattr(node, part, ()) for part in ("body", "orelse", "finalbody"))
            handlers = (handler.body for handler in getattr(node, "handlers", ()))
            for block in (*handlers, *blocks):
                found |= names_of(block)
    return found


def span_of(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorators)]), node.end_lineno or node.lineno
