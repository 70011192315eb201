"""Names of a function that stand for something known: written as that, where it is read."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Container

from sentinel.export.folding import Substituted, entries, is_known, is_pure, is_simple
from sentinel.export.items import by_fields, completed, next_reads
from sentinel.export.locating import FUNCTIONS
from sentinel.export.scopes import (
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
    parameters,
    read,
    straight,
)

#: A statement into which the one before it is written gets no longer than this.
_LINE = 100
#: What is written as an item of a display is no longer than that.
_ITEM = 70


def propagated(function: Function, giving: Container[str] = (), modules: Container[str] = ()) -> bool:
    """Write one name of a function as what it stands for, if there is one of which that can be said.

    :param giving: functions that give something and do nothing else.
    :param modules: those that are written by their whole names.
    :returns: whether there was.
    """
    counts, reads = bound(function), read(function)
    for block in straight(function.body):
        for index, statement in enumerate(block):
            if isinstance(statement, (ast.Return, ast.Raise)) and block[index + 1 :]:
                del block[index + 1 :]
                return True
            if isinstance(statement, ast.Pass) and len(block) > 1:
                del block[index]
                return True
            if completed(block, index) or _copied(block, index) or _apart(block, index, counts):
                return True
            if _twice(block, index, counts) or (block is function.body and _again(function, index)):
                return True
            if _unread(block, index, reads, giving):
                return True
            target = statement.targets[-1] if isinstance(statement, ast.Assign) else None
            once = isinstance(target, ast.Name) and counts[target.id] == 1
            name = target.id if once else ""  # type: ignore[union-attr]
            if once and isinstance(statement, ast.Assign) and _dotted(statement.value) in modules:
                return _everywhere(function, block, index, name)
            if once and _assigned(function, block, index, name, counts, reads):
                return True
    return _in_loops(function, counts, reads)


def _dotted(node: ast.expr) -> str:
    """How a name with dots is written."""
    return ast.unparse(node) if isinstance(node, ast.Attribute) and is_simple(node) else ""


def _in_loops(function: Function, counts: Counter[str], reads: Counter[str]) -> bool:
    """The same for what stands in a loop, where the next statement reads it and no other one does."""
    for block in (node.body for node in ast.walk(function) if isinstance(node, ast.For)):
        for index, statement in enumerate(block[:-1]):
            for target, _ in _pairs(statement):
                name = target.id if isinstance(target, ast.Name) else ""
                if counts[name] == reads[name] == 1 and _into(block, index, index + 1, name):
                    return True
    return False


def some(function: Function) -> set[str]:
    """The names of a function that stand for tensors or other things made in it: that are not None."""
    found: set[str] = set()
    counts = bound(function)
    for block in straight(function.body):
        for statement in block:
            for target, value in _pairs(statement):
                if isinstance(target, ast.Name) and counts[target.id] == 1 and _makes(value):
                    found.add(target.id)
    return found


def _pairs(statement: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment binds, and to what."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return []
    (target,), value = statement.targets, statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts))
    return [(target, value)]


def _makes(value: ast.expr) -> bool:
    """Whether an expression gives a tensor, whatever it is made of: torch's functions, and comparisons of what is no
    constant, which give a truth value else."""
    if isinstance(value, (ast.Compare, ast.BinOp)):
        return True
    while isinstance(value, (ast.Call, ast.Attribute)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return is_name(value, "torch")


def _unread(block: Block, index: int, reads: Counter[str], giving: Container[str]) -> bool:
    """Leave out an assignment to names that nothing reads."""
    statement = block[index]
    if not isinstance(statement, ast.Assign) or not is_pure(statement.value, giving):
        return False
    targets = [item for one in statement.targets for item in (one.elts if isinstance(one, ast.Tuple) else [one])]
    if any(not isinstance(item, ast.Name) or reads[item.id] for item in targets):
        return False
    del block[index]
    return True


def _assigned(
    function: Function, block: Block, index: int, name: str, counts: Counter[str], reads: Counter[str]
) -> bool:
    statement = block[index]
    assert isinstance(statement, ast.Assign)
    value = statement.value
    if len(statement.targets) > 1:
        return False
    if isinstance(value, ast.Name) and (value.id in counts) and counts[value.id] == 1:
        return _everywhere(function, block, index, name)
    if is_known(value):
        return _everywhere(function, block, index, name)
    items = entries(value)
    if items is not None and reads[name] and by_fields(function, block, index, name, items):
        return True
    if items is not None and reads[name] and next_reads(block, index, name, items):
        return True
    if isinstance(value, (ast.List, ast.Tuple)) and _counted(block, index, name, value):
        return True
    if reads[name] != 1:
        return False
    return any(_into(block, index, later, name) for later in _following(block, index, counts))


def _following(block: Block, index: int, counts: Counter[str]) -> range:
    """The statements before which an assignment may stand as well: the next one, and more as long as nothing between
    them changes anything."""
    value = block[index].value  # type: ignore[attr-defined]
    if not is_pure(value) or any(counts[name] > 1 for name in every(value)):
        return range(index + 1, min(index + 2, len(block)))
    if every(value) <= {"torch"}:
        return range(index + 1, len(block))
    end = index + 1
    while end < len(block) and _only_binds(block[end]):
        end += 1
    return range(index + 1, min(end + 1, len(block)))


def _only_binds(statement: ast.stmt) -> bool:
    """Whether all that a statement does is to give names a meaning."""
    pairs = _pairs(statement)
    stores = [node for target, _ in pairs for node in ast.walk(target)]
    return bool(pairs) and is_pure(statement) and not any(isinstance(n, (ast.Attribute, ast.Subscript)) for n in stores)


def _everywhere(function: Function, block: Block, index: int, name: str) -> bool:
    statement = block.pop(index)
    assert isinstance(statement, ast.Assign)
    Substituted({name: statement.value}).visit(function)
    return True


def _into(block: Block, index: int, later: int, name: str) -> bool:
    """Write a name's value into the statement behind it that reads it, where that stays short."""
    statement, reader = block[index], block[later]
    assert isinstance(statement, ast.Assign)
    head: ast.AST | None = reader if isinstance(reader, STATEMENTS) else None
    if isinstance(reader, ast.With):
        head = reader.items[0].context_expr
    if isinstance(reader, ast.For) and entries(statement.value) == {}:
        head = reader.iter
    place = None if head is None else next((node for node in at_once(head) if is_name(node, name)), None)
    if head is None or place is None or not (is_pure(statement.value) or all(map(is_pure, earlier(head, place)))):
        return False
    new = Substituted({name: statement.value}).visit(copy.deepcopy(reader))
    turned = isinstance(statement.value, ast.Dict) and f"in {name}.items()" in _text(reader)
    item = len(ast.unparse(statement.value)) <= _ITEM and _is_item(reader, name) and len(_text(reader)) > _LINE
    if not turned and not item and len(_text(new).split("\n")[0]) > _LINE:
        return False
    block[later] = new
    del block[index]
    return True


def _text(statement: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(statement))


def _is_item(statement: ast.stmt, name: str) -> bool:
    """Whether a statement reads a name as an item of a display, or as an argument by its name."""
    nodes = list(ast.walk(statement))
    items = [value for node in nodes if isinstance(node, ast.Dict) for value in node.values]
    items += [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg]
    return any(is_name(value, name) for value in items)


def _counted(block: Block, index: int, name: str, value: ast.List | ast.Tuple) -> bool:
    """``len(d)`` where the next statement that uses a list asks for no more than that."""
    later = next((item for item in block[index + 1 :] if name in every(item)), None)
    if not isinstance(later, ast.Assign) or _text(later.value) != f"len({name})" or not all(map(is_known, value.elts)):
        return False
    later.value = ast.Constant(len(value.elts))
    return True


# -- a name that is given another meaning ------------------------------------------------------------------------------


def _again(function: Function, index: int) -> bool:
    """A name that is bound a second time, as another name from there on."""
    block, statement = function.body, function.body[index]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    before = [*parameters(function), *(name for item in block[:index] for name in bound(item))]
    later = [n for n in ast.walk(function) if isinstance(n, (*FUNCTIONS, ast.Lambda)) and n is not function]
    inner = {other for node in later for other in every(node)}
    for name in names:
        plainly = sum(_binds(item, name) for item in block) + parameters(function).count(name)
        if name in before and name not in inner and plainly == bound(function)[name]:
            new = free(name, every(function))
            Renamed({name: new}).visit(target)
            for item in block[index + 1 :]:
                Renamed({name: new}).visit(item)
            return True
    return False


def _binds(statement: ast.stmt, name: str) -> int:
    """How often an assignment binds a name."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return sum(bound(target)[name] for target in targets)


# -- several names at once ---------------------------------------------------------------------------------------------


def _apart(block: Block, index: int, counts: Counter[str]) -> bool:
    """``a, b = c, 1``: what is known already, or a name for another, as a statement of its own."""
    statement, pairs = block[index], _pairs(block[index])
    if not pairs or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
        return False
    if any(not isinstance(one, ast.Name) or counts[one.id] != 1 or isinstance(it, ast.Starred) for one, it in pairs):
        return False
    told = [one.id for one, _ in pairs if isinstance(one, ast.Name)]
    if any(counts[name] and name in told for _, it in pairs for name in read(it)):
        return False
    alone = [pair for pair in pairs if isinstance(pair[1], (ast.Constant, ast.Name))]
    if not alone and len(pairs) > 1:
        return False
    rest = [pair for pair in pairs if pair not in alone]
    new: Block = [ast.Assign([one], it) for one, it in alone]
    if len(rest) > 1:
        targets, values = zip(*rest)
        new.append(ast.Assign([ast.Tuple(list(targets), ast.Store())], ast.Tuple(list(values), ast.Load())))
    elif rest:
        new.append(ast.Assign([rest[0][0]], rest[0][1]))
    block[index : index + 1] = new
    return True


def _twice(block: Block, index: int, counts: Counter[str]) -> bool:
    """``a, b = x.shape`` a second time, under other names."""
    statement = block[index]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
        return False
    names, value = statement.targets[0].elts, statement.value
    stable = isinstance(value, ast.Attribute) and is_simple(value) and all(counts[name] == 1 for name in every(value))
    if not stable or not all(isinstance(name, ast.Name) and counts[name.id] == 1 for name in names):
        return False
    for other in block[:index]:
        before = other.targets[0] if isinstance(other, ast.Assign) else None
        if isinstance(before, ast.Tuple) and len(before.elts) == len(names) and isinstance(other, ast.Assign):
            same = ast.dump(other.value) == ast.dump(value)
            if same and all(isinstance(name, ast.Name) and counts[name.id] == 1 for name in before.elts):
                pairs = zip(names, before.elts)
                block[index : index + 1] = [ast.Assign([new], _read(old)) for new, old in pairs]
                return True
    return False


def _read(name: ast.expr) -> ast.expr:
    assert isinstance(name, ast.Name)
    return ast.Name(name.id, ast.Load())


# -- copies ------------------------------------------------------------------------------------------------------------


def _copied(block: Block, index: int) -> bool:
    """A tensor of another's strides that is filled with it: a copy."""
    made, filled = block[index], block[index + 1] if index + 1 < len(block) else None
    if not isinstance(made, ast.Assign) or not isinstance(filled, ast.Expr):
        return False
    if not isinstance(made.targets[0], ast.Name):
        return False
    called = filled.value
    if not isinstance(made.value, ast.Call) or ast.unparse(made.value.func) != "torch.empty_strided":
        return False
    if not isinstance(called, ast.Call) or ast.unparse(called.func) != f"{made.targets[0].id}.copy_":
        return False
    made.value = ast.Call(ast.Attribute(called.args[0], "clone", ast.Load()), [], [])
    del block[index + 1]
    return True


def emptied(function: Function) -> None:
    """Blocks that nothing is left of say so."""
    for node in ast.walk(function):
        if isinstance(getattr(node, "body", None), list) and not node.body and not isinstance(node, ast.Module):  # type: ignore[attr-defined]
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
