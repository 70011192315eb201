"""Find the arguments that a Python script declares for its command line. The script is not executed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.tools.audit.files import spelled
from sentinel.tools.audit.options import called, name_of


@dataclass(frozen=True)
class Argument:
    """An argument that a script declares, or a field of the script's class of arguments.

    :ivar default: the expression of its default; None if the default is not known.
    :ivar flags: name on the command line -> False if this flag turns the argument off, otherwise True.
    """

    default: ast.expr | None
    flags: Mapping[str, bool] = field(default_factory=dict)


def declared_arguments(nodes: Iterable[ast.AST]) -> dict[str, Argument]:
    """Return the arguments that calls of ``add_argument`` declare: attribute name -> argument.

    An argument's default is not known if several calls declare the argument, or if ``set_defaults`` may change it.
    """
    found: dict[str, Argument] = {}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for call in (call for call in calls if called(call) == "add_argument"):
        names = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        given = {item.arg: item.value for item in call.keywords if item.arg}
        dest = given.get("dest")
        long = [name for name in names if name.startswith("--")]
        name = str(dest.value) if isinstance(dest, ast.Constant) else spelled([*long, *names, ""][0])
        if not name or len(names) < len(call.args):
            continue
        action = given.get("action")
        kind = str(action.value) if isinstance(action, ast.Constant) else name_of(action) if action else "store"
        flags = {spelled(each): kind != "store_false" for each in names}
        if kind == "BooleanOptionalAction":
            flags |= {spelled(f"no-{each.lstrip('-')}"): False for each in long}
        simple = kind in ("store", "store_true", "store_false", "BooleanOptionalAction")
        known = simple and len(given) == len(call.keywords) and "required" not in given and names[0].startswith("-")
        default = given.get("default") or ast.Constant(kind == "store_false" if "store_" in kind else None)
        found[name] = Argument(default if known and name not in found else None, flags if simple else {})
    for call in (call for call in calls if called(call) == "set_defaults"):
        names = [item.arg for item in call.keywords if item.arg]
        changed = names if len(names) == len(call.keywords) and not call.args else list(found)
        found |= {name: Argument(None, found[name].flags) for name in changed if name in found}
    return found


def declared_fields(node: ast.ClassDef) -> dict[str, Argument]:
    """Return the fields of a class with their defaults. If a method assigns a field, its default is not known."""
    found: dict[str, Argument] = {}
    for statement in (each for each in node.body if isinstance(each, ast.AnnAssign)):
        value = statement.value
        if isinstance(value, ast.Call) and called(value) in ("field", "Field", "Option", "Argument"):
            value = next((item.value for item in value.keywords if item.arg == "default"), None)
        if isinstance(statement.target, ast.Name):
            found[statement.target.id] = Argument(value, {statement.target.id: True})
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and part.attr in found:
            found[part.attr] = Argument(None, found[part.attr].flags)
    return found
