"""Find the expressions that differ between two versions of a function, and check whether a compared result depends on
them.

If no result depends on a changed expression, equal numbers prove nothing about it. So the scenarios that ran its line
are repeated with another value of the expression. If no compared result changes, the values of the changed statements
are compared between the revisions (:func:`pair_values`). If these are equal too, the expression counts as not examined.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, TypeGuard

from sentinel.comparing.branches import names_of_expression
from sentinel.comparing.observations import AFTER, BEFORE, NUMBERS_STAY, SIDES
from sentinel.comparing.patch import BLOCKS, Span, Statement, function_in, pair_statements, span_in, statements
from sentinel.comparing.sessions import Log, Pair
from sentinel.comparing.units import Unit
from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import AlteredSession, LawSession, Subject, Undecidable
from sentinel.search.bindings import parameters_of
from sentinel.search.guards import cut
from sentinel.worker.answers import READ, WAYS

#: Ranges of scenarios in which an expression's value is changed. The second is used if the first shows no effect.
_SCENARIOS = ((0, 2), (2, 8))


@dataclass(frozen=True)
class Site:
    """A changed expression.

    :ivar number: the changed statement that counts as unexamined if no result depends on the expression, as a pair: its
        side, and its index in :func:`~sentinel.comparing.patch.statements`.
    :ivar own: the statement that contains the expression, as the same kind of pair.
    :ivar span: the position of the expression, counted from the first line of its function.
    :ivar keep: at most one value: the constant that replaces the expression at the other revision, or the empty result
        of a comprehension. If the expression has this value, the value is not changed, because the effect would not
        concern the changed code.
    :ivar inner: the position of a part of the expression, if the other revision has only this part; otherwise empty.
        For example, the part is ``x`` in ``x.float()`` if the other revision has only ``x``. The expression's value is
        then changed only if it differs from the part's value.
    :ivar alone: whether the expression is an argument or item that the other revision does not have.
    """

    number: tuple[str, int]
    own: tuple[str, int]
    span: Span
    keep: tuple[Any, ...] = ()
    inner: tuple[Span, ...] = ()
    alone: bool = False


#: An expression that differs: the index of its side in ``SIDES``, its syntax, and then ``keep``, ``inner`` (as syntax)
#: and ``alone`` of :class:`Site`.
_Part = tuple[int, ast.expr, tuple[Any, ...], list[ast.expr], bool]


def find_sites(one: Unit | None, other: Unit | None) -> list[Site]:
    """Return the expressions that differ between two versions of a function.

    If only one revision has the function, return the expressions of its ``return`` statements. The rest is not needed,
    because the call of the function is a changed expression of its caller.
    """
    both = [statements(unit) if unit is not None and unit.kind == "function" else () for unit in (one, other)]
    if one is None or other is None or not all(both):
        numbers = [(side, number) for side, each in zip(SIDES, both) for number in range(len(each))]
        lone = [(key, both[SIDES.index(key[0])][key[1]]) for key in numbers]
        return [site for key, each in lone if isinstance(each.node, ast.Return) for site in _sites((key, each), None)]
    names = [{node.id for each in half for node in ast.walk(each.node) if isinstance(node, ast.Name)} for half in both]
    new_name: dict[str, str] = {}

    def renamed(before: str, after: str) -> bool:
        return before not in names[1] and after not in names[0] and new_name.setdefault(before, after) == after

    found: list[Site] = []
    for before, after in pair_statements(one, other):
        left = None if before is None else ((BEFORE, before), both[0][before])
        right = None if after is None else ((AFTER, after), both[1][after])
        found += _sites(left, right, renamed)
    return found


_Numbered = tuple[tuple[str, int], Statement]


def _sites(
    one: _Numbered | None, other: _Numbered | None, renamed: Callable[[str, str], bool] = lambda one, other: False
) -> Iterator[Site]:
    """Yield the expressions that differ between two versions of a statement. Either version may be missing."""
    nodes = [None if each is None else each[1].node for each in (one, other)]
    if any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise)) for node in nodes):
        return
    found = None if None in nodes else _differing(nodes[0], nodes[1], renamed)
    # Without pairs of expressions, all expressions that the statements compute count as different.
    if found is None:
        found = [
            (side, each, (), _inside(each, _assignment_target(node)), False)
            for side, node in enumerate(nodes)
            if node is not None
            for each in _computed(node)
        ]
    for side, node, keep, inner, alone in found:
        own = (one, other)[side]
        assert own is not None
        spans = tuple(map(own[1].span_of, inner))
        yield Site((other or own)[0], own[0], own[1].span_of(node), keep or _EMPTY.get(type(node), ()), spans, alone)


#: Kind of comprehension -> its empty result. An empty result is not changed, because it does not depend on how the
#: comprehension computes its items.
_EMPTY: Mapping[type[ast.expr], tuple[Any, ...]] = {ast.ListComp: ([],), ast.DictComp: ({},)}


def _computed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of a statement whose values are used.

    If the statement is only a call, its result is not used. Then yield the call's arguments and, for a method, its
    object.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        children: list[Any] = [*receiver, *call.args, *(each.value for each in call.keywords)]
    else:
        fields = (value for name, value in ast.iter_fields(node) if name not in BLOCKS)
        children = [each for value in fields for each in (value if isinstance(value, list) else [value])]
        children += [each.context_expr for each in getattr(node, "items", ())]
    yield from filter(_has_value, children)


def _has_value(node: Any) -> TypeGuard[ast.expr]:
    """Return True for an expression whose value can be replaced."""
    if not isinstance(node, ast.expr) or isinstance(node, (ast.Starred, ast.Slice, ast.FormattedValue)):
        return False
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _differing(one: Any, other: Any, renamed: Callable[[str, str], bool]) -> list[_Part] | None:
    """Return the smallest expressions that differ between two versions; None if other syntax differs too."""
    if isinstance(one, list) and isinstance(other, list):
        return _differing_items(one, other, renamed)
    if not isinstance(one, ast.AST) or not isinstance(other, ast.AST):
        return [] if one == other and type(one) is type(other) else None
    if ast.dump(other) in (ast.dump(one), ast.dump(_swap_operands(one))):
        return []
    if isinstance(one, ast.Name) and isinstance(other, ast.Name) and renamed(one.id, other.id):
        return []
    found: list[_Part] | None = None
    # Do not compare the parts of formatted strings, because their positions are wrong before Python 3.12. Do not
    # compare the arguments of calls of different functions, because their parameters differ.
    if type(one) is type(other) and not isinstance(one, ast.JoinedStr) and _called(one) == _called(other):
        found = []
        for name, value in ast.iter_fields(one):
            if name in BLOCKS and not isinstance(one, ast.expr):
                continue
            inner = _differing(value, getattr(other, name), renamed)
            if inner is None:
                found = None
                break
            found += inner
    if found is None and _has_value(one) and _has_value(other):
        if isinstance(other, ast.Constant) and not isinstance(one, ast.Constant):
            return [(0, one, (other.value,), [], False)]
        if isinstance(one, ast.Constant) and not isinstance(other, ast.Constant):
            return [(1, other, (one.value,), [], False)]
        for side, (whole, part) in enumerate(((one, other), (other, one))):
            if part_of_it := _inside(whole, part):
                return [(side, whole, (), part_of_it, False)]
        return [(0, one, (), [], False), (1, other, (), [], False)]
    return found


@dataclass(frozen=True)
class Value:
    """A value that a changed statement computes at both revisions.

    :ivar name: the variable to which the value is assigned; if there is none, the expression at the base.
    :ivar part: if the value is an argument of a call in the expression, the argument's text at the base; otherwise
        empty.
    :ivar numbers: the indices of the statement at the base and at the head
        (:func:`~sentinel.comparing.patch.statements`).
    :ivar spans: the positions of the value's expression at the base and at the head, counted from the function's first
        line.
    """

    name: str
    part: str
    numbers: tuple[int, int]
    spans: tuple[Span, Span]


def pair_values(one: Unit | None, other: Unit | None) -> list[Value]:
    """Return the values that changed statements of a function compute at both revisions."""
    if one is None or other is None or {one.kind, other.kind} != {"function"}:
        return []
    both, found = (statements(one), statements(other)), list[Value]()
    for before, after in pair_statements(one, other):
        if before is None or after is None:
            continue
        left, right = both[0][before], both[1][after]
        if isinstance(left.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Raise)):
            continue
        computed = [[*_computed(each.node)] for each in (left, right)]
        if len(computed[0]) != len(computed[1]):
            continue
        target, numbers = _assignment_target(left.node), (before, after)
        for one_whole, other_whole in zip(*computed):
            name = _name(one_whole if target is None else target)
            found.append(Value(name, "", numbers, (left.span_of(one_whole), right.span_of(other_whole))))
            for one_part, other_part in _pair_arguments(one_whole, other_whole):
                spans = left.span_of(one_part), right.span_of(other_part)
                found.append(Value(name, _name(one_part), numbers, spans))
    return found


def _name(node: ast.expr) -> str:
    """Return an expression as text without ``": "``, because this separator marks the end of a label."""
    return cut(ast.unparse(node).replace(": ", ":"))


def _pair_arguments(one: ast.expr, other: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    calls = [[each for each in ast.walk(node) if isinstance(each, ast.Call)] for node in (one, other)]
    if len(calls[0]) != len(calls[1]):
        return
    for before, after in zip(*calls):
        named = [{each.arg: each.value for each in call.keywords if each.arg} for call in (before, after)]
        pairs = [*zip(before.args, after.args), *((each, named[1].get(name)) for name, each in named[0].items())]
        for left, right in pairs:
            if right is not None and _has_value(left) and _has_value(right) and ast.dump(left) != ast.dump(right):
                yield left, right


def names_read(one: Unit | None, other: Unit | None) -> list[str]:
    """Return the names and attributes that the differing expressions of a function read.

    Parameters that only one revision has are left out, because the other revision cannot be called with them.
    """
    found: set[str] = set()
    for site in find_sites(one, other):
        parsed = function_in(unit) if (unit := (one, other)[SIDES.index(site.own[0])]) is not None else None
        for node in ast.walk(parsed[0]) if parsed is not None else ():
            if isinstance(node, ast.expr) and span_in(node, parsed[1]) == site.span:  # type: ignore[index]
                found |= names_of_expression(node)
    return sorted(found - {"self"} - (parameters_in(one) ^ parameters_in(other)))


def parameters_in(unit: Unit | None) -> frozenset[str]:
    """Return the names of a function's parameters; an empty set if the definition is not a function."""
    parsed = function_in(unit) if unit is not None and unit.kind == "function" else None
    return frozenset(parameters_of(parsed[0]) if parsed is not None else ())


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "attr", "") or getattr(function, "id", "")


def _inside(whole: ast.AST, part: ast.AST | None) -> list[ast.expr]:
    """Return a list with the first part of an expression that equals ``part``; an empty list if there is none.

    The list is also empty if ``whole`` is arithmetic with a constant, such as ``x * 1``. In this case, comparing the
    values of both revisions already shows whether the expression equals ``x``.
    """
    if part is None or (isinstance(whole, ast.BinOp) and {ast.Constant} & {type(whole.left), type(whole.right)}):
        return []
    text = ast.unparse(part)
    inner = (each for each in ast.walk(whole) if each is not whole and _has_value(each) and ast.unparse(each) == text)
    return list(islice(inner, 1))


def _assignment_target(node: ast.AST) -> ast.expr | None:
    return node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None


def _swap_operands(node: ast.AST) -> ast.AST:
    """Return a product or a comparison with swapped operands, which has the same value; return any other node
    unchanged."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TURNED:
        return ast.Compare(node.comparators[0], [_TURNED[type(node.ops[0])]()], [node.left])
    return node


_TURNED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE
}  # fmt: skip


def _differing_items(one: list[Any], other: list[Any], renamed: Callable[[str, str], bool]) -> list[_Part] | None:
    """Return the expressions that differ between two lists of arguments, keywords or elements. An item of only one list
    counts as a whole."""
    if all(isinstance(each, ast.keyword) and each.arg for each in (*one, *other)):
        named = [{each.arg: each.value for each in items} for items in (one, other)]
        pairs = [(named[0].get(name), named[1].get(name)) for name in {**named[0], **named[1]}]
    elif len(one) == len(other):
        pairs = list(zip(one, other))
    else:
        keys = [
            [ast.dump(each) if isinstance(each, ast.AST) else repr(each) for each in items] for items in (one, other)
        ]
        pairs = []
        for tag, start, end, begin, stop in SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_opcodes():
            if tag != "equal":
                pairs += [(each, None) for each in one[start:end]] + [(None, each) for each in other[begin:stop]]
    found: list[_Part] = []
    for before, after in pairs:
        if before is not None and after is not None:
            inner = _differing(before, after, renamed)
        else:
            side, node = (0, before) if after is None else (1, after)
            node = node.value if isinstance(node, (ast.keyword, ast.Starred)) else node
            # A part of a formatted string has no value.
            inner = [(side, node, (), [], True)] if _has_value(node) else None
        if inner is None:
            return None
        found += inner
    return found


class Influence:
    """Repeats scenarios at one revision of a boundary, with another value of one expression.

    :param log: the log of the boundary's earlier scenarios.
    """

    def __init__(self, session: LawSession, subject: Subject, log: Log) -> None:
        self._subject = subject
        self._altered = AlteredSession(session, {})
        self._pair = Pair(session.fresh(), self._altered, {subject.name: Log(steady=log.steady)}, [])

    def close(self) -> None:
        self._pair.close()

    def of(self, site: Site, file: str, first: int, scenarios: Sequence[Inputs]) -> bool:
        """Return True if changing the value of an expression changes a compared result.

        A call that raises because of the changed value does not count, because other wrong values may raise nothing and
        go unnoticed. There is one exception: a value that cannot be varied is replaced by an object that raises when
        the code reads it. A call that raises this object's message (:data:`READ`) counts, except if only this revision
        has the argument (:attr:`Site.alone`). For example, code may read a process group in a single process, where all
        groups give the same result.

        :param first: the first line of the expression's function.
        :param scenarios: scenarios that ran the expression's line.
        """
        line, column, last, end = site.span
        altered = {"file": file, "span": [line + first, column, last + first, end], "keep": list(site.keep)}
        inner = [(place[0] + first, place[1], place[2] + first, place[3]) for place in site.inner]
        altered["inner"] = list(inner[0]) if inner else []
        try:
            for start, stop in _SCENARIOS:
                chosen = [scenarios[at * len(scenarios) // stop] for at in range(start, min(stop, len(scenarios)))]
                for way in range(WAYS):
                    self._altered.altered = {**altered, "way": way}
                    if self._shows(chosen, not site.alone):
                        return True
            return False
        finally:
            self._altered.close()  # so that the next expression starts in an unchanged process

    def _shows(self, scenarios: Sequence[Inputs], reading_counts: bool) -> bool:
        try:
            trials = self._pair.try_(self._subject, [(NUMBERS_STAY, {"": inputs}) for inputs in scenarios])
        except Undecidable:
            return False
        violations = [each for trial in trials for each in trial.violations]
        raised = [*(each.detail for each in violations), *(trial.refused for trial in trials)] if reading_counts else []
        return any(not each.symptom.endswith("raises") for each in violations) or any(READ in each for each in raised)
