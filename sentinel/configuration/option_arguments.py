"""Options that are declared on an ``argparse`` parser, read off the code; nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path

from sentinel.configuration.files import spelled
from sentinel.configuration.literals import choices_of, parsed, text_of
from sentinel.configuration.options import Option

_FLAGS = {"store_true": "false", "store_false": "true"}


def options_of_parser(file: Path) -> dict[str, Option]:
    """Every call in the file that names an option ``--name``: ``add_argument``, or a function around it."""
    found: dict[str, Option] = {}
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call):
            continue
        words = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        names = [word for word in words if word.startswith("--")]
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if names:
            name = text_of(given["dest"]) if "dest" in given else names[0]
            found.setdefault(spelled(name), Option(_default(given), choices_of(given.get("choices"))))
    return found


def _default(given: dict[str, ast.expr]) -> str | None:
    if "default" in given:
        return text_of(given["default"])
    action = text_of(given["action"]) if "action" in given else ""
    if given.get("required") is not None:
        return None
    return _FLAGS.get(action or "", "null")
