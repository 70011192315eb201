"""Loops of which each turn is known, as what they do."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from sentinel.export.expressions import Substituted, entries, is_pure, is_simple, value_of
from sentinel.export.folding import FEW_TURNS, Folded, turns
from sentinel.export.knowing import Held, Known, known
from sentinel.export.layout import height
from sentinel.export.locating import FUNCTIONS
from sentinel.export.propagating import emptied, only_binds, propagated
from sentinel.export.scopes import SCOPES, Block, Function, bound, every, free, is_name, parameters, read, straight

#: So many steps are enough for one turn.
_STEPS = 50
#: What is in these runs when the loop may be over.
_LATE = (*FUNCTIONS, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
_NOTHING = ast.arguments([], [], None, [], [], None, [])
#: What may be asked of a mapping that is not to get other keys.
_ASKED = ("get", "items", "keys", "values")


def unrolled(function: Function, held: Held | None = None) -> bool:
    """Write one loop of a function out: one of a single turn, or one of a few turns where that is no longer.

    :returns: whether there was one.
    """
    for block in straight(function.body):
        for index, loop in enumerate(block):
            plain = isinstance(loop, ast.For) and not loop.orelse and not _jumps(loop.body)
            if plain and _unrolled(function, block, index, known(function, held)):
                return True
    return False


def _unrolled(function: Function, block: Block, index: int, told: Known) -> bool:
    loop = block[index]
    assert isinstance(loop, ast.For)
    source, before = _source(function, block, index)
    found = _turns(loop.target, source, told)
    if found is None:
        return False
    if len(found) == 1 and before is None and is_pure(source):
        first: Block = [ast.Assign([ast.Name(name, ast.Store())], value) for name, value in found[0].items()]
        block[index : index + 1] = [*first, *loop.body]
        return True
    if not _substitutable(function, loop, found):
        return False
    gone = [loop] if before is None else [block[before], loop]
    made: Block = []
    for place, turn in enumerate(found):
        values = {name: value for name, value in turn.items() if not is_simple(value) and _read(loop)[name] > 1}
        words = {name: free(f"{name}_{place}", every(function)) for name in values}
        made += [ast.Assign([ast.Name(words[name], ast.Store())], value) for name, value in values.items()]
        turn |= {name: ast.Name(word, ast.Load()) for name, word in words.items()}
    told = replace(told, some=told.some | known(ast.FunctionDef("made", _NOTHING, made, [])).some)
    new = [*made, *(statement for turn in found for statement in _turn(turn, loop.body, told))]
    if sum(map(height, new)) > sum(map(height, gone)):
        return False
    block[index : index + 1] = new
    if before is not None:
        del block[before]
    return True


def _source(function: Function, block: Block, index: int) -> tuple[ast.expr, int | None]:
    """What a loop goes through; with the place of the assignment to the name of that which nothing else reads."""
    loop = block[index]
    assert isinstance(loop, ast.For)
    asked = isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Attribute) and not loop.iter.args
    name = loop.iter.func.value if asked and loop.iter.func.attr == "items" else loop.iter  # type: ignore[attr-defined]
    made = None if not isinstance(name, ast.Name) else _made(function, block[:index], name.id)
    if made is None or not isinstance(name, ast.Name):
        return loop.iter, None
    statement = block[made]
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Dict)
    still = all(map(only_binds, block[made + 1 : index]))
    if asked and read(function)[name.id] == 1 and is_pure(statement.value) and still:
        return ast.Call(ast.Attribute(statement.value, "items", ast.Load()), [], []), made
    if not asked and not _may_grow(function, name.id):
        return ast.Tuple([key for key in statement.value.keys if key is not None], ast.Load()), None
    return loop.iter, None


def _made(function: Function, before: Block, name: str) -> int | None:
    """Where a name is given a mapping with keys that are known."""
    for place, statement in enumerate(before):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and is_name(statement.targets[0], name):
            return place if bound(function)[name] == 1 and entries(statement.value) is not None else None
    return None


def _may_grow(function: Function, name: str) -> bool:
    """Whether a mapping may get other keys: where more is done with it than that its items are read or added to."""
    nodes = list(ast.walk(function))
    plain = [n.target for n in nodes if isinstance(n, ast.AugAssign)]
    plain += [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]
    plain += [n for n in nodes if isinstance(n, ast.Attribute) and n.attr in _ASKED]
    fine = {id(n.value) for n in plain if isinstance(n, (ast.Subscript, ast.Attribute))}
    fine |= {id(n.iter) for n in nodes if isinstance(n, (ast.For, ast.comprehension))}
    return any(is_name(n, name) and isinstance(n.ctx, ast.Load) and id(n) not in fine for n in nodes)  # type: ignore[attr-defined]


def _turns(target: ast.expr, source: ast.expr, told: Known) -> list[dict[str, ast.expr]] | None:
    """What a loop's names stand for at each turn."""
    if isinstance(source, ast.Call) and is_name(source.func, "range") and not source.keywords:
        if any(not isinstance(item, ast.Constant) for item in source.args):
            return None
        numbers = range(*map(value_of, source.args))
        if len(numbers) > FEW_TURNS:
            return None
        source = ast.List([ast.Constant(number) for number in numbers], ast.Load())
    return turns([ast.comprehension(target, source, [], 0)], told)


def _turn(turn: dict[str, ast.expr], body: Block, told: Known) -> Block:
    """What a loop does at one turn."""
    new = [Substituted(turn).visit(copy.deepcopy(statement)) for statement in body]
    function = ast.FunctionDef("turn", _NOTHING, new, [])
    for _ in range(_STEPS):
        before = ast.dump(function)
        inside = known(function, told.held)
        Folded(replace(inside, some=inside.some | told.some, tuples=told.tuples)).visit(function)
        emptied(function)
        if not propagated(function, words=told.held) and ast.dump(function) == before:
            break
    return [statement for statement in function.body if not isinstance(statement, ast.Pass)]


def _substitutable(function: Function, loop: ast.For, found: list[dict[str, ast.expr]]) -> bool:
    """Whether the turns can stand for themselves: what they bind is read in them alone, and what they are given may be
    written where they read it."""
    body, counts = ast.Module(loop.body, []), bound(function)
    reads, everywhere = _read(body), _read(function)
    late = read(node for node in ast.walk(body) if isinstance(node, _LATE))
    names = bound(loop.target)
    for other in (node for node in ast.walk(function) if isinstance(node, ast.For) and node is not loop):
        if not any(node is other for node in ast.walk(body)):  # what it gives a value itself
            everywhere.subtract({name: _read(ast.Module(other.body, []))[name] for name in bound(other.target)})
    if any(reads[name] != everywhere[name] for name in (*names, *bound(body))):
        return False
    if any(bound(body)[name] or late[name] for name in names) or {*bound(body)} & {*parameters(function)}:
        return False
    for turn in found:
        for value in turn.values():
            if any(counts[other] > 1 for other in {*read(value)} - {*bound(value)}):
                return False
    return True


def _read(tree: ast.AST) -> Counter[str]:
    """How often each name is read, where it is none that an inner function has itself."""
    found: Counter[str] = Counter()
    for child in ast.iter_child_nodes(tree):
        inside = _read(child)
        if isinstance(child, (*FUNCTIONS, ast.Lambda)):
            inside = Counter({name: count for name, count in inside.items() if name not in bound(child)})
        found.update(inside)
    found.update(read([tree]) if isinstance(tree, ast.Name) else ())
    return found


def _jumps(body: Iterable[ast.stmt]) -> bool:
    """Whether a loop may leave a turn early; what an inner function or loop does is its own."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Continue)):
            return True
        if isinstance(statement, (*SCOPES, ast.For, ast.While)):
            continue
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        handlers = [handler.body for handler in getattr(statement, "handlers", [])]
        if any(_jumps(item) for item in (*inner, *handlers)):
            return True
    return False
