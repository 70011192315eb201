"""Functions that are called once, or are hardly longer than their calls, written where they are called."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import Any

from sentinel.export.expressions import Substituted, is_known, is_pure, is_simple
from sentinel.export.folding import Folded
from sentinel.export.giving import FEW, Placed, by_parts, given_by, same_everywhere
from sentinel.export.scopes import (
    SCOPES,
    STATEMENTS,
    Block,
    Function,
    Renamed,
    at_once,
    bound,
    earlier,
    every,
    free,
    is_name,
    own,
    read,
    straight,
)

#: A few calls of a function are written out where each takes no more text than that.
_TEXT = 50


def inlined(module: ast.Module) -> bool:
    """Write one function where it is called, if there is one of which that can be said.

    :returns: whether there was.
    """
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    reads = read(module)
    for function in functions.values():
        calls = [n for n in ast.walk(module) if isinstance(n, ast.Call) and _calls(n, function.name)]
        if len(calls) != reads[function.name]:
            continue
        if len(calls) == 1 and _around(module, function, calls[0]):
            module.body.remove(function)
            return True
        if not _plain(function):
            continue
        if _known_at(module, function, calls):
            return True
        once = len(calls) == 1 and not any(node is calls[0] for node in ast.walk(function))
        if once and (_as_expression(module, function, calls[0]) or _as_statements(module, function, calls[0])):
            module.body.remove(function)
            return True
        if _short(module, function, calls) or same_everywhere(function, calls) or by_parts(function, calls):
            return True
    return _inner(module)


def _inner(module: ast.Module) -> bool:
    """The same for a function in a function."""
    for outer in [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]:
        counts, reads = bound(outer), read(outer)
        for block in straight(outer.body):
            for function in [node for node in block if isinstance(node, ast.FunctionDef) and _plain(node)]:
                calls = [n for n in ast.walk(outer) if isinstance(n, ast.Call) and _calls(n, function.name)]
                if not len(calls) == counts[function.name] == reads[function.name] == 1:
                    continue
                others = [n for n in ast.walk(outer) if isinstance(n, SCOPES) and n not in (outer, function)]
                around = [node for node in others if any(part is calls[0] for part in ast.walk(node))]
                shadowed = any(_globals(function) & {*bound(node)} for node in around)
                alone = around and not shadowed and not any(node is calls[0] for node in ast.walk(function))
                if alone and _as_statements(ast.Module([outer], []), function, calls[0]):
                    block.remove(function)
                    return True
    return False


def _calls(node: ast.Call, name: str) -> bool:
    return is_name(node.func, name)


def _plain(function: ast.FunctionDef) -> bool:
    """Whether it is no generator, and nothing is put around it."""
    inside = [node for item in function.body for node in ast.walk(item)]
    jumps = (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.Await)
    return not function.decorator_list and not any(isinstance(node, jumps) for node in inside)


# -- as an expression --------------------------------------------------------------------------------------------------


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    """What a function gives of which that is all that there is to say."""
    (first, *rest) = function.body
    return first.value if not rest and isinstance(first, ast.Return) else None


def _expression(function: ast.FunctionDef, call: ast.Call) -> ast.expr | None:
    """What a call is, written out, where that means the same."""
    value, given = _returned(function), given_by(function, call)
    if value is None or given is None:
        return None
    reads, inner = read(value), bound(value)
    late = read(node for node in ast.walk(value) if isinstance(node, SCOPES))
    for name, item in given.items():
        if (reads[name] > 1 or late[name]) and not is_simple(item):
            return None
        if (reads[name] == 0 and not is_pure(item)) or inner[name] or any(inner[other] for other in every(item)):
            return None
    return Substituted(given).visit(copy.deepcopy(value))  # type: ignore[no-any-return]


def _known_at(module: ast.Module, function: ast.FunctionDef, calls: list[ast.Call]) -> bool:
    """Calls whose answer is known before the program runs."""
    for call in calls:
        told = _expression(function, call)
        if told is not None and is_known(told := Folded().visit(told)):
            Placed(call, told).visit(module)
            return True
    return False


def _as_expression(module: ast.Module, function: ast.FunctionDef, call: ast.Call) -> bool:
    told = _expression(function, call)
    where = next((node for node in module.body if any(part is call for part in ast.walk(node))), None)
    if told is None or where is None or (_globals(function) & {*bound(where)}):
        return False
    Placed(call, told).visit(module)
    return True


def _short(module: ast.Module, function: ast.FunctionDef, calls: list[ast.Call]) -> bool:
    """A few calls of what is hardly longer written out."""
    if not 1 < len(calls) <= FEW or any(node in calls for node in ast.walk(function)):
        return False
    told = [_expression(function, call) for call in calls]
    where = [node for node in module.body if any(part in calls for part in ast.walk(node))]
    if any(text is None or len(ast.unparse(text)) > _TEXT for text in told):
        return False
    if any(_globals(function) & {*bound(node)} for node in where):
        return False
    for call, text in zip(calls, told):
        assert text is not None
        Placed(call, text).visit(module)
    module.body.remove(function)
    return True


def _globals(function: ast.FunctionDef) -> set[str]:
    """The names that a function reads of its module."""
    return {*read(function)} - {*bound(function)}


# -- as statements -----------------------------------------------------------------------------------------------------


def _as_statements(module: ast.Module, function: ast.FunctionDef, call: ast.Call) -> bool:
    """A function's body before the statement that calls it."""
    place = _place(module, call)
    given = given_by(function, call)
    if place is None or given is None:
        return False
    caller, block, index = place
    before = earlier(_head(block[index]) or block[index], call)
    if _globals(function) & {*bound(caller)} or not all(map(is_pure, before)):
        return False
    body, names = written_in(function, given, caller)
    if body is None:
        return False
    answer = _answer(body, free("answer", {*every(caller), *names}))
    if answer is None:
        return False
    Placed(call, answer).visit(block[index])
    statement = block[index]
    gone = isinstance(statement, ast.Expr) and is_simple(statement.value)
    block[index : index + 1] = body if gone else [*body, statement]
    return True


def _place(module: ast.Module, call: ast.Call) -> tuple[Function, Block, int] | None:
    """The function that makes a call, and where in it the statement stands that always makes it."""
    callers = [node for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for caller in reversed(callers):  # an inner function comes behind the one that it stands in
        for node in ast.walk(caller):
            if node is not caller and isinstance(node, SCOPES):
                continue
            blocks: list[Any] = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
            for block in (block for block in blocks if isinstance(block, list)):
                for index, statement in enumerate(block):
                    head = _head(statement)
                    if head is not None and any(part is call for part in at_once(head)):
                        return caller, block, index
    return None


def _head(statement: ast.AST) -> ast.AST | None:
    """What a statement evaluates first, once."""
    if isinstance(statement, STATEMENTS):
        return statement
    if isinstance(statement, ast.If):
        return statement.test
    if isinstance(statement, ast.For):
        return statement.iter
    return statement.items[0].context_expr if isinstance(statement, ast.With) else None


def written_in(
    function: ast.FunctionDef, given: Mapping[str, ast.expr], caller: ast.AST
) -> tuple[Block | None, set[str]]:
    """A function's statements with what a call gives, and the names that they use."""
    changed, counts, taken = bound(ast.Module(function.body, [])), read(function), every(caller)
    outer = bound(caller)
    values: dict[str, ast.expr] = {}
    first: list[tuple[str, ast.expr]] = []
    for name, value in given.items():
        constant = is_known(value) or (isinstance(value, ast.Name) and outer[value.id] <= 1)
        if not changed[name] and (constant or (counts[name] == 0 and is_pure(value))):
            values[name] = value
        else:
            first.append((name, value))
    mine = own(ast.Module(function.body, [])) | {name for name, _ in first}
    names: dict[str, str] = {}
    for name in sorted(mine):
        names[name] = free(name, {*taken, *names.values(), *(_globals(function) - mine)})
    inner = bound(ast.Module(function.body, []))
    foreign = {part for value in values.values() for part in every(value)}
    scopes = [node for item in function.body for node in ast.walk(item) if isinstance(node, SCOPES)]
    scoped = {name for node in scopes for name in bound(node)}
    if scoped & (foreign | {name for name, new in names.items() if new != name and inner[name] > 1}):
        return None, set()
    tree = ast.Module(copy.deepcopy(function.body), [])
    tree = Renamed({name: new for name, new in names.items() if new != name}).visit(Substituted(values).visit(tree))
    made: Block = [ast.Assign([ast.Name(names[name], ast.Store())], value) for name, value in first]
    return [*made, *tree.body], set(names.values())


def _around(module: ast.Module, function: ast.FunctionDef, call: ast.Call) -> bool:
    """A context manager that is written as a generator, in the place of the ``with`` that enters it."""
    if [ast.unparse(item) for item in function.decorator_list] != ["contextlib.contextmanager"]:
        return False
    yields = [node for node in ast.walk(function) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    place, given = _place(module, call), given_by(function, call)
    if place is None or given is None or len(yields) != 1 or isinstance(yields[0], ast.YieldFrom):
        return False
    caller, block, index = place
    entering = block[index]
    returns = [n for n in ast.walk(entering) if isinstance(n, (ast.Return, ast.Break, ast.Continue))]
    if not isinstance(entering, ast.With) or entering.items[0].context_expr is not call or returns:
        return False
    if _globals(function) & {*bound(caller)}:
        return False
    body, _ = written_in(function, given, caller)
    held = None if body is None else _holding(body)
    if body is None or held is None:
        return False
    inside: Block = [ast.With(entering.items[1:], entering.body)] if entering.items[1:] else entering.body
    if entering.items[0].optional_vars is not None:
        (yielded,) = [node.value for node in ast.walk(held[0][held[1]]) if isinstance(node, ast.Yield)]
        inside = [ast.Assign([entering.items[0].optional_vars], yielded or ast.Constant(None)), *inside]
    held[0][held[1] : held[1] + 1] = inside
    block[index : index + 1] = body
    return True


def _holding(body: Block) -> tuple[Block, int] | None:
    """Where a statement that is a ``yield`` stands, where it is passed once."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Yield):
            return body, index
        if isinstance(statement, (ast.With, ast.Try)) and (found := _holding(statement.body)) is not None:
            return found
    return None


def _answer(body: Block, name: str) -> ast.expr | None:
    """Take the one ``return`` at the end of a body out of it; how what it gives is written. None where more are."""
    returns = [node for item in body for node in _inside(item) if isinstance(node, ast.Return)]
    if not returns:
        return ast.Constant(None)
    block = body
    while block and isinstance(block[-1], ast.With):
        block = block[-1].body
    if len(returns) != 1 or not block or block[-1] is not returns[0]:
        return None
    last = returns[0].value or ast.Constant(None)
    if block is body:
        block.pop()
        return last
    block[-1] = ast.Assign([ast.Name(name, ast.Store())], last)
    return ast.Name(name, ast.Load())


def _inside(statement: ast.AST) -> list[ast.AST]:
    """A statement's nodes without those of functions in it."""
    if isinstance(statement, SCOPES):
        return []
    return [statement, *(node for child in ast.iter_child_nodes(statement) for node in _inside(child))]
