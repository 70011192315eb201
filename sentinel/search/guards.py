"""Read source code to find values for scenarios: constants near which to draw, and options that make more lines run."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from sentinel.search.bindings import Definitions, Name, absolute, names_of, span_of, syntax_of
from sentinel.sources.gittrees import Folder
from sentinel.sources.trees import FILE
from sentinel.targets import PackageRoot, module_of
from sentinel.worker.answers import NUMBERS, TEXTS
from sentinel.worker.codes import read_source

#: A placeholder for any value other than None. The worker uses the value of the argument with the most similar name.
SOME = {"some": True}

#: Values in a setting: NESTED replaces each item of a list by a list, and LISTED replaces a single value by a list.
NESTED, LISTED = {"nested": True}, {"listed": True}

#: Option -> its value; the value ``{"dims": n}`` means a tensor with n dimensions. The value of :data:`SIZE` is a
#: number of rows or tokens, that of :data:`DTYPE` a float dtype.
Setting = dict[str, Any]
SIZE, DTYPE = "#size", "#dtype"

#: Maximum number of tokens or rows of a scenario whose size is a length in the code.
LONGEST = 120

#: Methods whose result is a property of a tensor, not an option.
_NO_OPTION = ("any", "all", "item", "numel", "size", "sum")

#: Limits of one condition: number of ways to make it true or false, and number of its characters in a report.
_WAYS, _GUARD = 4, 60

_Function = ast.FunctionDef | ast.AsyncFunctionDef

#: File and qualified name of a function.
Place = tuple[str, str]


@dataclass(frozen=True)
class Constants:
    """The constants in some functions, near which values of scenarios are drawn.

    :ivar numbers: thresholds, bounds and defaults, without 0, 1 and small integers.
    :ivar lengths: numbers that are compared with a size, and bounds of slices.
    :ivar texts: strings that the code searches for in a text; for a regular expression, the literal text before its
        first group.
    """

    numbers: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def near(self) -> tuple[float, ...]:
        """Return each number, and the number minus and plus an eighth of its value."""
        steps = ((number, number - abs(number) / 8, number + abs(number) / 8) for number in self.numbers)
        return tuple(dict.fromkeys(each for several in steps for each in several))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of rows or tokens to try: each length in the code, one more, and twice as many."""
        lengths = [each for each in self.lengths if each <= LONGEST][:_LENGTHS]
        return tuple(size for each in lengths for size in (each, each + 1, 2 * each))


def functions_of(body: Iterable[ast.AST], owner: str = "") -> Iterator[tuple[str, _Function]]:
    """Yield the functions of a module and of its classes, with their qualified names. Nested functions are left out."""
    for node in body:
        if isinstance(node, _Function):
            yield f"{owner}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node.body, f"{owner}{node.name}.")
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from functions_of(getattr(node, part, ()), owner)


def constants(functions: Iterable[_Function], values: Mapping[str, ast.expr] = {}) -> Constants:
    """Return the constants in functions: numbers in comparisons, clipping, slices and defaults, and searched strings.

    :param values: module-level name -> the assigned expression.
    """
    numbers: dict[float, None] = {}
    lengths: dict[int, None] = {}
    texts: dict[str, None] = {}
    scopes = ((function, {**values, **_locals_assigned_once(function)}) for function in functions)
    for node, scope in ((each, scope) for function, scope in scopes for each in ast.walk(function)):
        if isinstance(node, ast.Slice):
            found = [_number(side, scope) for side in (node.lower, node.upper) if side is not None]
            lengths |= {abs(each): None for each in found if isinstance(each, int)}
            continue
        texts |= dict.fromkeys(filter(None, map(_clean_string, _searched(node, scope))))
        sides: list[ast.expr] = []
        sized = False
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            sized = any(_is_element_count(side) for side in sides)
        elif isinstance(node, ast.Call) and _method_name(node) in _BOUNDING:
            sides = [*node.args, *(each.value for each in node.keywords)]
        elif isinstance(node, ast.arguments):
            sides = [each for each in (*node.defaults, *node.kw_defaults) if each is not None]
        for number in filter(None, (_number(side, scope) for side in sides)):
            if sized and isinstance(number, int):
                lengths[abs(number)] = None
            elif isinstance(number, float) or abs(number) > _FEW:
                numbers[float(number)] = None
    usable = [each for each in numbers if math.isfinite(each) and abs(each) not in (0.0, 1.0)]
    sizes = [each for each in lengths if _FEW < each <= _LONGEST_TEXT]
    return Constants(tuple(usable[:_NUMBERS]), tuple(sizes[:_NUMBERS]), tuple(texts)[:_TEXTS])


def merge(several: Iterable[Constants]) -> Constants:
    """Return the constants of several functions, without duplicates."""
    all_ = list(several)
    kinds = ("numbers", "lengths", "texts")
    numbers, lengths, texts = (dict.fromkeys(value for each in all_ for value in getattr(each, kind)) for kind in kinds)
    return Constants(tuple(numbers)[:_NUMBERS], tuple(lengths)[:_NUMBERS], tuple(texts)[:_TEXTS])


def _searched(node: ast.AST, values: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the strings that code searches for in a text, such as ``x`` for ``"x" in text``."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        if not isinstance(node.comparators[0], (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            yield from _string(node.left, values)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        searches = node.func.attr in _SEARCHING
        if searches or node.func.attr in _MATCHING:
            for side in [*node.args[:1], *([node.func.value] if not searches else [])]:
                for text in _string(side, values):
                    plain = searches and getattr(node.func.value, "id", "") not in ("re", "regex")
                    yield text if plain else _literal(text)


def _string(node: ast.expr, values: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the string that an expression stands for, directly, by a module-level name or by ``re.compile``."""
    node = values.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.Call) and _method_name(node) == "compile" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _literal(pattern: str) -> str:
    """Return the literal text at the start of a regular expression, up to its first group."""
    plain = ""
    for token in re.findall(r"\\.|\[[^\]]*\]|\(\?[a-zA-Z]+\)|.", pattern):
        if token == "(":
            break
        if len(token) == 1:
            plain += "" if token in "^$.*+?" else token
        elif token[0] == "\\" and token[1] not in "AbBdDsSwWZ":
            plain += token[1]
    return plain


def _clean_string(text: str) -> str:
    usable = text.strip() and len(text) <= _LONGEST_STRING and not re.fullmatch(r"\w|[\d.,\s]*|.*[\0-\x08].*", text)
    return text.strip() if usable and not re.fullmatch(r"\w+", text.strip()) else ""


class Code:
    """The functions of a checkout's files. Files are read when needed and are never run.

    :param base: the folder of the checkout.
    """

    def __init__(self, base: str, roots: Sequence[PackageRoot]) -> None:
        self._base, self._roots = Path(base), roots
        self._definitions = Definitions(self, roots, lambda file: self._file(file)[2])
        self._file = lru_cache(maxsize=256)(self._parse)
        # Many boundaries reach the same files and functions.
        self._has, self._constants = cache(self._is_inside), cache(self._constants_of)
        self._calls = cache(lambda file, name: tuple(self._called(file, name)))

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        return (FILE, path) if self._has(path) else None

    def _is_inside(self, path: str) -> bool:
        file = self._base / path
        return file.is_file() and file.resolve().is_relative_to(self._base.resolve())

    def folder(self, tree: str) -> Folder:
        return {}

    def blob(self, name: str) -> bytes:
        return read_source(str(self._base / name))

    def _parse(self, file: str) -> tuple[dict[str, _Function], dict[str, ast.expr], Mapping[str, Name]]:
        with suppress(SyntaxError):
            body = syntax_of(self.blob(file)).body
            return dict(functions_of(body)), dict(_assignments(body)), names_of(body)
        return {}, {}, {}

    def part(self, file: str, name: str) -> Part:
        """Return the function with this qualified name in a file."""
        return Part(name, self._file(file)[0][name])

    def reached(self, file: str, line: int) -> list[Place]:
        """Return the places of a function and of the functions that it calls, nearest first.

        Calls are followed by name, up to :data:`CALLS_AWAY` calls away, also to other files of the packages.
        """
        functions = self._file(file)[0]
        found = {(file, name): None for name, each in functions.items() if span_of(each)[0] <= line <= each.lineno}
        nearest = list(found)
        for _ in range(CALLS_AWAY):
            nearest = [place for each in nearest for place in self._calls(*each) if place not in found]
            found |= dict.fromkeys(nearest)
            if len(found) > _FUNCTIONS:
                break
        return list(found)[:_FUNCTIONS]

    def constants(self, file: str, line: int) -> Constants:
        """Return the constants of the functions that :meth:`reached` returns."""
        return merge(self._constants(*place) for place in self.reached(file, line))

    def _constants_of(self, file: str, name: str) -> Constants:
        functions, values, _ = self._file(file)
        return constants([functions[name]], values)

    def _called(self, file: str, name: str) -> Iterator[Place]:
        """Yield the functions that a function may call, as places."""
        functions, _, names = self._file(file)
        own, owner = functions[name], name.rpartition(".")[0]
        chains = dict.fromkeys(filter(None, map(_chain, ast.walk(own))))
        last = {chain.rpartition(".")[2] for chain in chains}
        yield from ((file, other) for other in functions if other.rpartition(".")[2] in last and other != name)
        module, local = module_of(self._roots, file), names_of(own.body)
        for chain in chains:
            first, _, rest = chain.partition(".")
            path = ""
            if first in ("self", "cls") and owner:
                path = f"{module}.{owner}" if rest else ""
            elif (imported := local.get(first, names.get(first))) is not None and imported.kind == "import":
                path = absolute(imported.leads[0], module, file)
            path = f"{path}.{rest}" if path and rest else path
            definition = self._definitions.find("", path) if path else None
            if definition is None or definition.name.kind != "function":
                continue
            for other, each in self._file(definition.file)[0].items():
                if span_of(each) == definition.name.span:
                    yield definition.file, other


@lru_cache(maxsize=2)
def code_in(base: str, roots: tuple[PackageRoot, ...]) -> Code:
    """Return the code of a checkout, from a cache of two checkouts."""
    return Code(base, roots)


def constants_at(base: str, roots: tuple[PackageRoot, ...], file: str, line: int) -> Constants:
    """Return the literal constants of the function that begins at this line, and of the functions that it calls."""
    return code_in(base, roots).constants(file, line)


def _chain(node: ast.AST) -> str:
    """Return ``a.b.c`` for a chain of attributes or a name, and "" for any other expression."""
    if isinstance(node, ast.Attribute):
        start = _chain(node.value)
        return f"{start}.{node.attr}" if start else ""
    return node.id if isinstance(node, ast.Name) else ""


def parse_values(texts: Iterable[str]) -> dict[str, ast.expr]:
    """Parse assignments, and return the assigned expression of each name."""
    values: dict[str, ast.expr] = {}
    for text in texts:
        with suppress(SyntaxError):
            values |= _assignments(syntax_of(textwrap.dedent(text)).body)
    return values


def function_of(text: str) -> _Function | None:
    """Return the syntax tree of a function's source, or None if it does not parse."""
    with suppress(SyntaxError, StopIteration):
        return next(each for _, each in functions_of(syntax_of(textwrap.dedent(text)).body))
    return None


_BOUNDING = ("clamp", "clip", "clamp_", "clip_", "min", "max", "minimum", "maximum", "where", "masked_fill")

#: Integers up to this number are left out. Most are dimensions and counts, which drawn scenarios have anyway.
_FEW = 5

#: Maximum numbers of numbers, of tensor sizes and of strings that are used for one boundary.
_NUMBERS, _LENGTHS, _TEXTS = 12, 2, 6

#: Maximum lengths of a text, and of a string that the code searches for in a text.
_LONGEST_TEXT, _LONGEST_STRING = 10_000, 40

#: Limits of the functions that are read for a boundary: distance in calls, and number.
CALLS_AWAY, _FUNCTIONS = 3, 40

#: Methods of strings that search for their first argument; methods that change a string; functions of regular
#: expressions.
_SEARCHING = (
    "find",
    "rfind",
    "index",
    "rindex",
    "split",
    "rsplit",
    "partition",
    "rpartition",
    "startswith",
    "endswith",
    "count",
    "removeprefix",
    "removesuffix",
    "replace",
)
_CHANGING = ("strip", "lstrip", "rstrip", "lower", "upper", "casefold", "splitlines", "join")
_MATCHING = ("search", "match", "fullmatch", "findall", "finditer", "sub")


def options(source: str) -> dict[str, list[Any]]:
    """Return the options that branches in the source of functions test (:func:`options_in`)."""
    with suppress(SyntaxError):  # text that cannot be dedented has no options
        return options_in(syntax_of(textwrap.dedent(source)))
    return {}


def options_in(tree: ast.AST, parameters: Collection[str] = ()) -> dict[str, list[Any]]:
    """Return the options that branches in a syntax tree test, each with values that may select another branch.

    An option is an attribute, a key, or one of these parameters of the function.

    * A flag has the values True and False.
    * An option in a comparison has these values: the comparison's constants, each constant number plus 1, and 0.5 if
      one of the constants is None.
    * An argument of ``range`` has the values 2, 3 and 1.
    """
    values_of: dict[str, list[Any]] = defaultdict(list)
    for node in ast.walk(tree):
        values: list[Any] = [True, False]
        sides = _tested_conditions(node)
        if isinstance(node, ast.Compare):
            sides = [each for side in (node.left, *node.comparators) for each in getattr(side, "elts", [side])]
            values = [side.value for side in sides if isinstance(side, ast.Constant)]
            values += [value + 1 for value in values if type(value) in (int, float)]
            values += [0.5] if None in values else []
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
            sides, values = node.args, [2, 3, 1]
        own = [side.id for side in sides if isinstance(side, ast.Name) and side.id in parameters]
        for name in (*own, *filter(None, map(_option_name, sides))):
            values_of[name] += [value for value in values if value not in values_of[name]]
    return values_of


def other_kinds(function: _Function, values: Mapping[str, ast.expr] = {}) -> list[Setting]:
    """Return settings that vary the strings of a function, or the types of its numbers.

    Strings vary if the function works on strings, and types vary if it tests types.

    :param values: module-level name -> the assigned expression.
    """
    attributes = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    found = constants([function], values)
    texts = ["blanks", "case", "empty"] if attributes & {*_SEARCHING, *_MATCHING, *_CHANGING} else []
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    numbers = ["tensor", "numpy"] if "isinstance" in names else []
    return [{TEXTS: each} for each in (*texts, *found.lengths[:_LENGTHS])] + [{NUMBERS: each} for each in numbers]


def ways_to(function: _Function, line: int) -> list[Setting]:
    """Return settings that may make a line of a function run, the most likely settings first.

    To reach a later branch of an ``elif`` chain, an option must differ from all strings that earlier branches test. The
    setting then gives the option a string that this branch or a later one tests.
    """
    steps = list(steps_to(function.body, line))
    return _ways([*steps, *_others(function, line, steps)], _locals_assigned_once(function))


def ways_inside(function: _Function, line: int) -> list[Setting]:
    """Return settings under which optional parts of a line may run: the branches of a conditional expression, and
    operands of ``and`` and ``or``."""
    steps, scope = list(steps_to(function.body, line)), _locals_assigned_once(function)
    inner = (each for node in ast.walk(function) if getattr(node, "lineno", 0) == line for each in steps_inside(node))
    return [way for each in inner for way in _ways([*steps, *each], scope)[:1]]


def steps_inside(node: ast.AST) -> list[list[_Step]]:
    """Return the conditions under which the optional parts of an expression are evaluated, one list per part."""
    if isinstance(node, ast.IfExp):
        return [[(node.test, True)], [(node.test, False)]]
    if isinstance(node, ast.BoolOp):
        return [[(each, isinstance(node.op, ast.And)) for each in node.values[:-1]]]
    return []


def _others(function: _Function, line: int, steps: Sequence[_Step]) -> Iterator[_Step]:
    """Yield a test of another string if a line runs only when tests such as ``x == "a"`` fail.

    This is the first test, at or after the line, that compares ``x`` with a string that need not fail. Yield nothing if
    there is no such test.
    """
    excluded: dict[str, set[str]] = defaultdict(set)
    for test in (test for test, truth in steps if not truth):
        for left, right in _equalities(test):
            excluded[ast.dump(left)].add(right)
    tests = (node for node in ast.walk(function) if isinstance(node, ast.Compare))
    later = sorted((node for node in tests if node.lineno >= line), key=lambda node: node.lineno)
    for test in later:
        for left, right in _equalities(test):
            if right not in excluded.get(ast.dump(left), {right}):
                yield test, True
                return


def _equalities(test: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield ``(x, "string")`` for a test ``x == "string"``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1:
        value = test.comparators[0]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield test.left, value.value


@dataclass(frozen=True)
class Part:
    """A function of a file.

    :ivar name: its qualified name in the module.
    :ivar start: the line number in the file at which the parsed source begins.
    """

    name: str
    node: _Function
    start: int = 1

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def inside(self) -> range:
        """Return the line numbers of the function's body."""
        return range(self.node.body[0].lineno + self.start - 1, (self.node.end_lineno or 0) + self.start)

    @cached_property
    def uses(self) -> Mapping[str, list[int]]:
        """Return the line numbers at which the function uses each name or attribute."""
        uses: dict[str, list[int]] = defaultdict(list)
        for node in ast.walk(self.node):
            if isinstance(node, (ast.Name, ast.Attribute)):
                uses[node.id if isinstance(node, ast.Name) else node.attr].append(node.lineno + self.start - 1)
        return {name: sorted({*places}) for name, places in uses.items()}


def ways_from(
    part: Part, line: int, callers: Sequence[Part], ran: Collection[str], calls: int, inside: bool = False
) -> list[Setting]:
    """Return settings that may make a line run, in a function that may not have run either.

    They meet the conditions under which the line runs. If the line's function did not run, they also meet the
    conditions of the calls that lead to the function.

    :param callers: the functions that may call the line's function.
    :param ran: the names of functions that ran, without class and module.
    :param calls: the maximum number of calls between a function that ran and the line's function.
    :param inside: True if the line ran and only parts of it did not.
    """
    inner = (ways_inside if inside else ways_to)(part.node, line - part.start + 1)
    if part.last in ran or not calls:
        return inner
    found: list[Setting] = []
    for caller in callers:
        if caller is part or part.last not in caller.uses or (caller.last not in ran and calls == 1):
            continue
        for place in caller.uses[part.last]:
            outer = ways_from(caller, place, callers, ran, calls - 1)
            found += [{**one, **other} for one in outer or [{}] for other in inner or [{}]]
    return [way for way in found if way] or inner


def statements(part: Part) -> list[int]:
    """Return the lines at which a function's statements begin. Definitions and ``raise`` statements are left out."""
    nodes = (node for node in ast.walk(part.node) if isinstance(node, ast.stmt) and node is not part.node)
    lines = {node.lineno + part.start - 1 for node in nodes if not isinstance(node, (ast.Raise, *_DEFINING))}
    return sorted(lines & {*part.inside})


_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal)


def guard_of(part: Part, line: int) -> str:
    """Return the innermost condition under which a function's line runs, or "" if there is none."""
    steps = list(steps_to(part.node.body, line - part.start + 1))
    if not steps:
        return ""
    text = ast.unparse(steps[-1][0])
    return cut(text if steps[-1][1] else f"not ({text})")


def cut(text: str) -> str:
    """Shorten the text of a condition for a report."""
    return text if len(text) <= _GUARD else f"{text[:_GUARD]}…"


#: A condition, and the truth value that it must have.
_Step = tuple[ast.expr, bool]

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def steps_to(body: Sequence[ast.stmt], line: int) -> Iterator[_Step]:
    """Yield each condition that must be true or false for a line to run.

    These are the conditions of the blocks around the line, and the negations of earlier conditions that leave the
    function or the loop.
    """
    for node in body:
        around = node.lineno <= line <= (node.end_lineno or 0)
        if isinstance(node, (ast.If, ast.While)):
            for block, truth in ((node.body, True), (node.orelse, False)):
                if around and block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                    yield node.test, truth
                elif not around and node.lineno < line and block and isinstance(block[-1], _ENDS):
                    yield node.test, not truth
        if around:
            for part in ("body", "orelse", "finalbody"):
                yield from steps_to(getattr(node, part, ()), line)
            for handler in getattr(node, "handlers", ()):
                yield from steps_to(handler.body, line)
            return


def _locals_assigned_once(function: _Function) -> dict[str, ast.expr]:
    several: dict[str, list[ast.expr]] = defaultdict(list)
    for name, value in _assignments(ast.walk(function)):
        several[name].append(value)
    return {name: values[0] for name, values in several.items() if len(values) == 1}


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((each.id, node.value) for each in targets if isinstance(each, ast.Name))


def _ways(steps: Sequence[_Step], scope: Mapping[str, ast.expr]) -> list[Setting]:
    """Return settings that meet all conditions. Conditions that contradict earlier ones are left out."""
    whole: list[Setting] = [{}]
    for test, truth in steps:
        ways = solve(test, truth, scope)
        merged = [{**one, **way} for way in ways for one in whole[:2] if not _conflict(one, way)]
        whole = merged[:_WAYS] if merged else whole
    return [way for way in whole if way]


def _conflict(one: Setting, other: Setting) -> bool:
    return any(name in other and other[name] != value for name, value in one.items())


def solve(test: ast.expr, truth: bool, scope: Mapping[str, ast.expr], depth: int = 3) -> list[Setting]:
    """Return settings that may give an expression this truth value; an empty list if the source determines none.

    :param scope: local name -> the assigned expression.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return solve(test.operand, not truth, scope, depth)
    if isinstance(test, ast.BoolOp):
        parts = [solve(each, truth, scope, depth) for each in test.values]
        if isinstance(test.op, ast.And) is not truth:
            return [way for several in parts for way in several[:2]][:_WAYS]
        whole: list[Setting] = [{}]
        for ways in parts:
            whole = [{**one, **way} for one in whole for way in ways if not _conflict(one, way)][:_WAYS] or whole
        return [way for way in whole if way]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compare(test, truth, scope)
    if truth and isinstance(test, ast.Call) and _method_name(test) == "isinstance" and len(test.args) == 2:
        return _make_instance(test.args[0], test.args[1], scope)
    if isinstance(test, ast.Call) and (isinstance(test.func, ast.Name) or _method_name(test) in _NO_OPTION):
        return []
    if isinstance(test, ast.Name) and test.id in scope and depth:
        inner = scope[test.id]
        if isinstance(inner, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            return solve(inner, truth, scope, depth - 1)
    values = [True, SOME] if truth else [False, None]
    return [{name: value} for value in values for name in _names(test, scope)][:_WAYS]


def _make_instance(value: ast.expr, kind: ast.expr, scope: Mapping[str, ast.expr]) -> list[Setting]:
    """Return settings under which ``isinstance(value, kind)`` is true, or none if ``kind`` includes no lists.

    If ``value`` is the first item of a list, the settings replace the items by lists.
    """
    if {"list", "List", "Sequence"}.isdisjoint(map(ast.unparse, getattr(kind, "elts", [kind]))):
        return []
    if isinstance(value, ast.Subscript) and _number(value.slice) == 0:
        return _each(_names(value.value, scope), [NESTED])
    return _each(_names(value, scope), [LISTED])


def _compare(test: ast.Compare, truth: bool, scope: Mapping[str, ast.expr]) -> list[Setting]:
    [operator], left, right = test.ops, test.left, test.comparators[0]
    if _value(left) is not _UNKNOWN and _value(right) is _UNKNOWN and type(operator) in _MIRRORED:
        left, right, operator = right, left, _MIRRORED[type(operator)]()
    holds = truth if type(operator) not in _NEGATED else not truth
    operator = _NEGATED.get(type(operator), type(operator))()
    if isinstance(left, ast.Attribute) and left.attr == "dtype":
        dtypes = [each.attr for each in ast.walk(right) if isinstance(each, ast.Attribute) and each.attr in _DTYPES]
        others = [each for each in _DTYPES if each not in dtypes]
        return [{DTYPE: each} for each in (dtypes if holds else others)][:2]
    value = _value(right)
    if value is _UNKNOWN and isinstance(operator, ast.In) and isinstance(right, (ast.Tuple, ast.List, ast.Set)):
        members = [_value(each) for each in right.elts]
        known = [each for each in members if each is not _UNKNOWN]
        return _each(_names(left, scope), known if holds else [])
    if value is _UNKNOWN and isinstance(left, ast.Constant) and isinstance(operator, ast.In):  # "key" in mapping
        return _each([left.value] if isinstance(left.value, str) else [], [SOME] if holds else [None])
    if value is _UNKNOWN:
        return []
    if type(value) is int and (tensor := _counted_dimensions(left)) is not None:
        dims = [each for each in _values(operator, value, holds) if isinstance(each, int) and each > 0]
        return _each(_names(tensor, scope), [{"dims": each} for each in dims])
    if _is_element_count(left):
        return [{SIZE: each} for each in _sizes(operator, value, holds)]
    return _each(_names(left, scope), _values(operator, value, holds))


def _each(names: Sequence[str], values: Sequence[Any]) -> list[Setting]:
    return [{name: value} for value in values for name in names][:_WAYS]


def _values(operator: ast.cmpop, value: Any, holds: bool) -> list[Any]:
    """Return values of ``x`` for which ``x operator value`` is true or, if ``holds`` is False, false."""
    if value is None:
        return [None] if holds else [SOME, 0.5, True]
    if isinstance(value, (bool, str, dict)):
        other = [not value] if isinstance(value, bool) else []
        return [value] if holds else other
    above, below = (value + 1, value - 1) if math.isfinite(value) else (2.0, 2.0)
    if isinstance(operator, (ast.Eq, ast.Is)):
        return [value] if holds else [above, 0.5]
    if isinstance(operator, (ast.Gt, ast.GtE)):
        return [above, value + 0.5] if holds else [value if isinstance(operator, ast.Gt) else below]
    return [below, value - 0.5] if holds else [value if isinstance(operator, ast.Lt) else above]


def _sizes(operator: ast.cmpop, value: Any, holds: bool) -> list[int]:
    sizes = [each for each in _values(operator, value, holds) if isinstance(each, int)] if type(value) is int else []
    return [each for each in sizes if 0 < each <= LONGEST]


_NEGATED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}
_MIRRORED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq, ast.NotEq: ast.NotEq, ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE
}  # fmt: skip
_DTYPES = ("float32", "bfloat16", "float16", "float64")

_UNKNOWN = object()


def _value(node: ast.expr) -> Any:
    """Return the value of a constant, ``{"member": NAME}`` for a member of an enum, and otherwise ``_UNKNOWN``."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and _number(node) is not None:
        return _number(node)
    if isinstance(node, ast.Attribute) and node.attr.isupper() and isinstance(node.value, (ast.Name, ast.Attribute)):
        return {"member": node.attr}
    if isinstance(node, ast.Attribute) and node.attr == "value" and isinstance(node.value, ast.Attribute):
        return _value(node.value)
    if isinstance(node, ast.Attribute) and node.attr in ("inf", "nan"):
        return float(node.attr)
    return _UNKNOWN


def _names(node: ast.expr, scope: Mapping[str, ast.expr]) -> list[str]:
    """Return the options that an expression reads, directly or through local variables."""
    names: list[str] = []
    if isinstance(node, ast.Name):
        names.append(node.id)
        inner = scope.get(node.id)
        if isinstance(inner, ast.BoolOp):
            inner = inner.values[0]
        if inner is not None:
            names += [_option_name(inner), *_texts(inner)]
    elif isinstance(node, ast.Call) and _method_name(node) in ("lower", "upper", "strip", "item"):
        assert isinstance(node.func, (ast.Attribute, ast.Name))
        return _names(node.func.value, scope) if isinstance(node.func, ast.Attribute) else []
    else:
        names += [_option_name(node), *(_texts(node) if isinstance(node, ast.Call) else [])]
    return [name for name in dict.fromkeys(names) if name and name not in ("self", "True", "False")]


def _texts(node: ast.expr) -> list[str]:
    """Return the string arguments of a call, which may be names of options."""
    if not isinstance(node, ast.Call):
        return []
    sides = [*node.args, *(each.value for each in node.keywords)]
    return [text for text in (_text([side]) for side in sides) if text]


def _counted_dimensions(node: ast.expr) -> ast.expr | None:
    """Return ``x`` for ``x.dim()``, ``x.ndim`` or ``len(x.shape)``, and None for any other expression."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len":
        shape = node.args[0] if node.args else None
        return shape.value if isinstance(shape, ast.Attribute) and shape.attr == "shape" else None
    node = node.func if isinstance(node, ast.Call) else node
    return node.value if isinstance(node, ast.Attribute) and node.attr in ("dim", "ndim") else None


def _is_element_count(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Call):
        return _method_name(node) in ("size", "numel") or getattr(node.func, "id", "") == "len"
    return False


def _number(node: ast.expr, values: Mapping[str, ast.expr] = {}) -> Any:
    """Return the number that an expression or a module-level name stands for, or None."""
    node = values.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand, values)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) in (int, float) else None


def _option_name(node: ast.expr) -> str:
    """Return the option that an expression reads: an attribute, a key or an argument of ``getattr``; otherwise ""."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _text(node.args[:1] if _method_name(node) == "get" else node.args[1:2])
    return _text([node.slice]) if isinstance(node, ast.Subscript) else ""


def _tested_conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    return node.values if isinstance(node, ast.BoolOp) else []


def _method_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(nodes: list[ast.expr]) -> str:
    value = nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else ""
    return value if isinstance(value, str) and re.fullmatch(r"[\w/.-]{1,60}", value) else ""
