"""Find the conditions that keep a changed line from running, and force them to be true or false while the code runs.

A scenario rarely meets a condition that depends on another package, on several processes or on an object that the
adapter does not make. If both revisions test the same condition, its branch can be compared anyway. Different numbers
in such a branch are reported as a difference. Equal numbers do not count as an examination, because perhaps no caller
reaches the branch with these values.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice

from sentinel.comparing.patch import Span, function_in, span_in, statements
from sentinel.comparing.reached import Place
from sentinel.comparing.units import Unit
from sentinel.search.guards import Part, cut, function_of, steps_inside, steps_to

#: Maximum number of call chains to one line that are tried.
_CHAINS = 2

#: Calls that lead to a line: the place and line of each call, and then the line itself.
Chain = list[tuple[Place, int]]


@dataclass(frozen=True)
class Condition:
    """A condition in a function, and the truth value that it must have.

    :ivar number: the number of earlier conditions in the function with the same text.
    """

    place: Place
    text: str
    number: int
    truth: bool

    def __str__(self) -> str:
        return f"{cut(self.text)} is {'true' if self.truth else 'false'}"


@lru_cache(maxsize=1024)
def _tests(unit: Unit) -> tuple[tuple[str, ast.expr, int], ...]:
    """Return the conditions of a function that can be forced to be true or false.

    Each item is a condition's text, its syntax and the number of earlier conditions with the same text. A condition
    before a ``break`` is left out if the function has a ``while`` loop, because the loop might never end.
    """
    parsed = function_in(unit)
    nodes = list(ast.walk(parsed[0])) if parsed is not None else []
    loops = any(isinstance(node, ast.While) for node in nodes)
    found: list[tuple[str, ast.expr, int]] = []
    for node in nodes:
        tests = [node.test] if isinstance(node, (ast.If, ast.IfExp)) else []
        if isinstance(node, ast.If) and loops and isinstance(node.body[-1], ast.Break):
            tests = []
        tests = node.values[:-1] if isinstance(node, ast.BoolOp) else tests
        texts = [each[0] for each in found]
        found += [(text := ast.unparse(test), test, texts.count(text)) for test in tests]
    return tuple(found)


def _conditions(place: Place, unit: Unit, steps: Sequence[tuple[ast.expr, bool]]) -> list[Condition]:
    return [
        Condition(place, text, number, truth)
        for step, truth in steps
        for text, test, number in _tests(unit)
        if span_in(test, 0) == span_in(step, 0)
    ]


def conditions_around(place: Place, unit: Unit, line: int, name: str = "") -> list[Condition]:
    """Return the conditions that must be met for a line of a function to run, the outermost first.

    :param line: counted from the first line of the function.
    :param name: a name that the line must use. If only an optional part of the line uses the name, such as a branch of
        a conditional expression, the conditions of this part are added.
    """
    parsed = function_in(unit)
    if parsed is None:
        return []
    steps = list(steps_to(parsed[0].body, line + parsed[1]))
    for node in ast.walk(parsed[0]) if name else ():
        if isinstance(node, ast.expr) and node.lineno <= line + parsed[1] <= (node.end_lineno or 0):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else getattr(node, "values", [])[1:]
            inside = [name in names_of_expression(part) for part in parts]
            ways = steps_inside(node)
            if any(inside) and ways:
                steps += ways[inside.index(True)] if isinstance(node, ast.IfExp) else ways[0][: inside.index(True) + 1]
    return _conditions(place, unit, steps)


def names_of_expression(node: ast.AST) -> set[str]:
    """Return the names and attributes that an expression uses."""
    nodes = [each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))]
    return {each.id if isinstance(each, ast.Name) else each.attr for each in nodes}


def conditions_inside(place: Place, unit: Unit, line: int) -> list[list[Condition]]:
    """Return, for each optional part of a statement, the conditions under which it is evaluated.

    Optional parts are the branches of a conditional expression and the later operands of ``and`` and ``or``.

    :param line: the first line of the statement, counted from the first line of the function.
    """
    parsed = function_in(unit)
    lines = next((each.lines for each in statements(unit) if each.lines[0] == line), (0, -1))
    steps: list[list[tuple[ast.expr, bool]]] = []
    for node in ast.walk(parsed[0]) if parsed is not None else ():
        if isinstance(node, ast.expr) and lines[0] <= node.lineno - parsed[1] <= lines[1]:  # type: ignore[index]
            steps += steps_inside(node)
    return [_conditions(place, unit, each) for each in steps]


def locate(condition: Condition, unit: Unit | None) -> Span | None:
    """Return the position of a condition in a function's file; None if the function does not have the condition.

    :param unit: the function at one of the revisions; None if the revision does not have the function.
    """
    parsed = None if unit is None else function_in(unit)
    if unit is None or parsed is None:
        return None
    tests = (test for text, test, number in _tests(unit) if (text, number) == (condition.text, condition.number))
    spans = [span_in(test, parsed[1]) for test in tests]
    return next(((a + unit.span[0], b, c + unit.span[0], d) for a, b, c, d in spans), None)


def called_name(place: Place) -> str:
    """Return the name by which a function is called. A constructor is called by the name of its class."""
    owner, _, last = place[1].rpartition(".")
    return owner.rpartition(".")[2] if last == "__init__" else last


class Calls:
    """The calls between the functions that a boundary reaches, found by the names in their code.

    :ivar units: the definitions that the boundary reaches at one revision.
    """

    def __init__(self, units: Mapping[Place, Unit]) -> None:
        self.units = units

    @cached_property
    def _users(self) -> Mapping[str, Sequence[Place]]:
        users: dict[str, list[Place]] = defaultdict(list)
        for place, unit in self.units.items():
            for name in unit.names | unit.attributes if unit.kind == "function" else ():
                users[name].append(place)
        return users

    def callers(self, place: Place, calls: int) -> list[Part]:
        """Return the functions from which a chain of at most ``calls`` calls may lead to a function."""
        found, nearest = {place}, {place}
        for _ in range(calls):
            names = {name for each in nearest for name in (called_name(each), _last_part(each))}
            nearest = {user for name in names for user in self._users.get(name, ())} - found
            found |= nearest
        near = (unit for each, unit in self.units.items() if each in found and each != place)
        return [part for unit in near if (part := part_of(unit)) is not None]

    def chains(self, place: Place, line: int, ran: Collection[str], calls: int) -> list[Chain]:
        """Return chains of calls that lead from a function that ran to a line, the shortest chain first.

        :param line: counted from the first line of the function.
        :param ran: the names of functions that ran, without class and module.
        :param calls: the maximum number of calls in a chain.
        """
        return list(islice(self._chains(place, line, ran, calls), _CHAINS))

    def _chains(self, place: Place, line: int, ran: Collection[str], calls: int) -> Iterator[Chain]:
        chains: deque[Chain] = deque([[(place, line)]])
        seen = {place}  # each function is followed once: a common name such as `forward` would lead to endless chains
        while chains:
            chain = chains.popleft()
            first = chain[0][0]
            if _last_part(first) in ran:
                yield chain
            elif len(chain) <= calls:
                name = called_name(first)
                callers = [each for each in self._users.get(name, ()) if each not in seen]
                seen.update(callers)
                for caller in callers:
                    part = part_of(self.units[caller])
                    for use in part.uses.get(name, ()) if part is not None else ():
                        chains.append([(caller, use - self.units[caller].span[0]), *chain])


@lru_cache(maxsize=2048)  # the searches of many boundaries read the same functions
def part_of(unit: Unit) -> Part | None:
    """Parse a function definition; return None if the definition is not a function or cannot be parsed."""
    node = function_of(unit.text) if unit.kind == "function" else None
    return None if node is None else Part(unit.name, node, unit.span[0])


def _last_part(place: Place) -> str:
    return place[1].rpartition(".")[2]
