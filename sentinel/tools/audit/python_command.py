"""Read the command that a Python script builds from strings or lists. The script is not executed.

Scripts such as ``run(f"--lr {lr} " + more)`` and ``subprocess.run(["python", "-m", "package", "--lr", "1"])`` are read.
Strings are joined as the script joins them. If the script changes a string or list under a condition, its options are
known, but their values are not. An expression that follows an option's name in a string is the option's value.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sentinel.tools.audit.command_line import ANY_NUMBER, ONE, UNKNOWN, CommandLine, Word, doubted, of_words
from sentinel.tools.audit.options import called
from sentinel.tools.audit.python_script import ParsedScript, parse_script, parsing

_DEEPEST = 20
#: Minimum number of options for a string or list to count as a command.
_FEWEST = 3
#: Maximum number of characters: of a script's strings with their variables substituted, and of code in a message.
_MOST_TEXT, _LONGEST = 1 << 20, 80


def read_command(file: Path, classes: Collection[str], given: Mapping[str, Any]) -> CommandLine | None:
    """Return the command with the most settings that a script builds. Return None if it builds no command, or if it
    creates a configuration itself.

    :param classes: the names of the configuration classes.
    :param given: name -> value of the arguments that the user passes to the script.
    """
    with parsing(file):
        script = parse_script(file, classes, given)
        if any(script.parsed()) or script.calls():
            return None
        reader = _Reader(script)
        found = [(of_words(words), node) for node, words in reader.commands()]
    line, node = max(found, key=lambda item: len(item[0].settings), default=(None, None))
    if line is None or len(line.settings) < _FEWEST:
        return None
    return replace(line, where=f"{file}:{getattr(node, 'lineno', 1)}", assumed=script.defaults())


@dataclass
class _Reader:
    script: ParsedScript
    left: int = _MOST_TEXT
    bindings: dict[str, list[ast.stmt | None]] = field(default_factory=dict)
    #: The code of the unknown parts of strings.
    unread: list[ast.expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Record which statements bind a name or append to its value; None for others, such as loops."""
        for node in self.script.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
                        plain = len(targets) == 1 and isinstance(target, ast.Name)
                        self.bindings.setdefault(name, []).append(node if plain else None)
            elif isinstance(node, ast.Expr) and _method(node.value):
                self.bindings.setdefault(_method(node.value), []).append(node)
            elif isinstance(node, (ast.For, ast.comprehension, ast.NamedExpr)):
                names = (part.id for part in ast.walk(node.target) if isinstance(part, ast.Name))
                for name in names:
                    self.bindings.setdefault(name, []).append(None)
            elif isinstance(node, ast.arg):
                self.bindings.setdefault(node.arg, []).append(None)

    def commands(self) -> Iterator[tuple[ast.expr, list[str]]]:
        """Yield each expression that the script passes to a call or returns, with its words."""
        for node in self.script.nodes:
            given = [*node.args, *(item.value for item in node.keywords)] if isinstance(node, ast.Call) else []
            for value in [node.value] if isinstance(node, ast.Return) and node.value else given:
                if isinstance(value, (ast.Name, ast.JoinedStr, ast.List, ast.BinOp, ast.Constant, ast.Call)):
                    yield value, self._words(value)

    def _words(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return the items of a list, or the words of a string."""
        if depth > _DEEPEST:
            return [_unknown(node)]
        if isinstance(node, (ast.List, ast.Tuple)):
            return [word for item in node.elts for word in self._item(item, depth)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and self._is_list(node):
            return [*self._words(node.left, depth + 1), *self._words(node.right, depth + 1)]
        if isinstance(node, ast.Name) and self._is_list(node):
            return self._named(node, depth)
        before = len(self.unread)
        try:
            words = shlex.split(self._text(node, depth))
        except ValueError:  # a quote that is not closed
            return [_unknown(node)]
        unread = _unknown(*(self.unread[before:] or [node]))
        return [unread if word == ANY_NUMBER else word.replace(ANY_NUMBER, UNKNOWN) for word in words]

    def _item(self, node: ast.expr, depth: int) -> list[str]:
        """Return the words of a list's item, which is one word, or several if the item is ``*more``."""
        if isinstance(node, ast.Starred):
            return self._words(node.value, depth + 1)
        text = self._text(node, depth + 1)
        return [ONE if text == ANY_NUMBER else text.replace(ANY_NUMBER, UNKNOWN)]

    def _is_list(self, node: ast.expr, depth: int = 0) -> bool:
        if isinstance(node, ast.BinOp):
            return self._is_list(node.left, depth + 1) or self._is_list(node.right, depth + 1)
        if isinstance(node, ast.Name) and depth < _DEEPEST:
            bound = self.bindings.get(node.id, [])
            values = (each.value for each in bound if isinstance(each, (ast.Assign, ast.AnnAssign)))
            return any(value is not None and self._is_list(value, depth + 1) for value in values)
        return isinstance(node, (ast.List, ast.Tuple))

    def _named(self, node: ast.Name, depth: int) -> list[str]:
        first, *later = self.bindings.get(node.id, [None])
        words: list[str] | None = self._bound(first, depth)
        again = any(isinstance(each, (ast.Assign, ast.AnnAssign)) for each in later)
        if first is None or words is None or isinstance(first, (ast.AugAssign, ast.Expr)):
            return [_unknown(node)]
        words = doubted(words) if again else words
        for each in later:
            more = self._bound(each, depth)
            certain = each is not None and not again and self.script.in_order(first, each, node)
            more = more if certain or more is None else doubted(more)
            words = None if words is None or more is None else [*words, *more]
        return words if words is not None else [_unknown(node)]

    def _bound(self, statement: ast.stmt | None, depth: int) -> list[str] | None:
        """Return the words that a statement assigns or appends to a variable, or None if they are not known."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            added, appends = statement.value.args[0], called(statement.value) == "append"
            return self._item(added, depth + 1) if appends else self._words(added, depth + 1)
        if isinstance(statement, ast.AugAssign) and not isinstance(statement.op, ast.Add):
            return None
        value = getattr(statement, "value", None)
        return self._words(value, depth + 1) if isinstance(value, ast.expr) else None

    def _text(self, node: ast.expr, depth: int) -> str:
        """Return the text of an expression, with ANY_NUMBER for unknown parts and ONE for an unknown word."""
        text = self._unlimited_text(node, depth) if depth <= _DEEPEST and self.left > 0 else self._unread(node)
        self.left -= len(text)
        return text

    def _unlimited_text(self, node: ast.expr, depth: int) -> str:
        if isinstance(node, ast.JoinedStr):
            text, after = "", [*node.values[1:], None]
            for part, following in zip(node.values, after):
                more = self._text(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
                if more == ANY_NUMBER:
                    value = re.search(r"(^|\s)--?[\w.-]+[ =]$", text)
                    next_text = str(following.value) if isinstance(following, ast.Constant) else " "
                    glued = text[-1:].strip() or next_text[:1].strip()  # a part of a word
                    if value or glued:
                        self.unread.pop()
                        more = UNKNOWN if glued else ONE
                text += more
            return text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(node.left, depth + 1) + self._text(node.right, depth + 1)
        if isinstance(node, ast.Call) and called(node) == "join" and len(node.args) == 1:
            return shlex.join(self._words(node.args[0], depth + 1))
        if isinstance(node, ast.Call) and called(node) == "str" and len(node.args) == 1:
            return self._text(node.args[0], depth + 1)
        if isinstance(node, ast.Name) and any(self.bindings.get(node.id, ())):
            bound = self.bindings[node.id]
            only = bound[0] if len(bound) == 1 else None
            if isinstance(only, (ast.Assign, ast.AnnAssign)) and only.value is not None:
                return self._text(only.value, depth + 1)
            words = self._named(node, depth + 1)
            return f" {shlex.join(words)} " if len(words) > 1 else self._unread(node)
        if isinstance(node, ast.IfExp):
            sides = [self._text(side, depth + 1) for side in (node.body, node.orelse)]
            return ONE if all(re.fullmatch(r"[^\s=-][^\s=]*", side) for side in sides) else self._unread(node)
        try:
            value = self.script.literal(node)
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            return ONE if isinstance(node, ast.BinOp) else self._unread(node)  # a number
        return str(value) if isinstance(value, (str, int, float)) else self._unread(node)

    def _unread(self, node: ast.expr) -> str:
        self.unread.append(node)
        return ANY_NUMBER


def _method(node: ast.expr) -> str:
    """Return ``variable`` for ``variable.append(x)`` or ``variable.extend(x)``, and "" for any other expression."""
    if isinstance(node, ast.Call) and called(node) in ("append", "extend") and len(node.args) == 1:
        owner = getattr(node.func, "value", None)
        return owner.id if isinstance(owner, ast.Name) else ""
    return ""


def _unknown(*nodes: ast.AST) -> Word:
    """Return a placeholder for any number of unknown words, whose ``source`` is the code of the nodes."""
    texts = (f"{' '.join(ast.unparse(node).split())[:_LONGEST]} (line {getattr(node, 'lineno', 1)})" for node in nodes)
    return Word.of(ANY_NUMBER, ", ".join(dict.fromkeys(texts)))
