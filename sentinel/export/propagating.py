"""Names of a function that stand for something known: written as that, where it is read."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Container

from sentinel.export.expressions import Substituted, entries, is_known, is_pure, is_simple
from sentinel.export.folding import Folded
from sentinel.export.items import by_fields, by_places, completed, filled, next_reads
from sentinel.export.layout import height
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
    pairs,
    parameters,
    read,
    straight,
)

#: A statement into which the one before it is written gets no longer than this.
_LINE = 100
#: What is written as an item of a display is no longer than that.
_ITEM = 70


def propagated(function: Function, giving: Container[str] = (), words: Container[str] = ()) -> bool:
    """Write one name of a function as what it stands for, if there is one of which that can be said.

    :param giving: functions that give something and do nothing else.
    :param words: what is written as it is wherever it is read: modules by their whole names, and the like.
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
            if completed(block, index) or filled(block, index) or _copied(block, index):
                return True
            if _apart(block, index, counts):
                return True
            if _twice(block, index, counts) or (block is function.body and _again(function, index)):
                return True
            if _unread(function, block, index, reads, giving):
                return True
            target = statement.targets[-1] if isinstance(statement, ast.Assign) else None
            once = isinstance(target, ast.Name) and counts[target.id] == 1
            name = target.id if once else ""  # type: ignore[union-attr]
            if once and isinstance(statement, ast.Assign) and _dotted(statement.value) in words:
                return _everywhere(function, block, index, name)
            if once and _assigned(function, block, index, name, counts, reads):
                return True
    return _in_loops(function, counts, reads)


def _dotted(node: ast.expr) -> str:
    """How a name with dots is written."""
    return ast.unparse(node) if isinstance(node, ast.Attribute) else ""


def _in_loops(function: Function, counts: Counter[str], reads: Counter[str]) -> bool:
    """The same for what stands in a loop, where the next statement reads it and no other one does."""
    for block in (node.body for node in ast.walk(function) if isinstance(node, ast.For)):
        for index, statement in enumerate(block[:-1]):
            for target, _ in pairs(statement):
                name = target.id if isinstance(target, ast.Name) else ""
                if counts[name] == reads[name] == 1 and _into(block, index, index + 1, name):
                    return True
    return False


def _unread(function: Function, block: Block, index: int, reads: Counter[str], giving: Container[str]) -> bool:
    """Leave out an assignment to names that nothing reads, and with it what is added to them."""
    statement = block[index]
    asked = isinstance(statement, ast.If) and not statement.orelse and is_pure(statement.test, giving)
    inside = statement.body if isinstance(statement, ast.If) and asked else [statement]
    if all(_adds(function, item, reads, giving) for item in inside):
        del block[index]
        return True
    if not isinstance(statement, ast.Assign) or not is_pure(statement.value, giving):
        return False
    targets = [item for one in statement.targets for item in (one.elts if isinstance(one, ast.Tuple) else [one])]
    if any(not isinstance(item, ast.Name) or reads[item.id] for item in targets):
        return False
    if any(_augments(node, item.id) for item in targets for node in ast.walk(function) if isinstance(item, ast.Name)):
        return False
    del block[index]
    return True


def _adds(function: Function, statement: ast.stmt, reads: Counter[str], giving: Container[str]) -> bool:
    """Whether all that a statement does is to add to what nothing reads, under this name or another."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    name = statement.target.id
    values = [
        value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target, value in pairs(node)
        if is_name(target, name)
    ]
    others = bound(function)[name] - len(values) - sum(_augments(node, name) for node in ast.walk(function))
    fresh = bool(values) and not others and all(map(_is_fresh, values))
    return fresh and not reads[name] and is_pure(statement.value, giving)


def _augments(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.AugAssign) and is_name(node.target, name)


def _is_fresh(value: ast.expr) -> bool:
    """Whether an expression makes what nothing else can reach."""
    made = re.match(r"torch\.(zeros|ones|full|empty)(_like)?\(", ast.unparse(value)) is not None
    return made or isinstance(value, (ast.Constant, ast.List, ast.ListComp))


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
    if is_known(value) or (_text(value).startswith("slice(") and not every(value) - {"slice"}):
        return _everywhere(function, block, index, name)
    items = entries(value)
    if items is not None and reads[name] and by_fields(function, block, index, name, items):
        return True
    if items is not None and reads[name] and next_reads(block, index, name, items):
        return True
    if reads[name] and by_places(function, block, index, name):
        return True
    if isinstance(value, (ast.List, ast.Tuple)) and _counted(block, index, name, value):
        return True
    if reads[name] == 2 and _through(block, index, name):
        return True
    if reads[name] != 1:
        return False
    return any(_into(block, index, later, name) for later in _following(block, index, counts))


def _through(block: Block, index: int, name: str) -> bool:
    """``a = None if c else b`` and ``None if a is None else f(a)``: ``None if c else f(b)``, where b is something."""
    value, reader = block[index].value, block[index + 1] if index + 1 < len(block) else None  # type: ignore[attr-defined]
    if not isinstance(value, ast.IfExp) or not isinstance(reader, STATEMENTS) or _text(value.body) != "None":
        return False
    if not isinstance(value.orelse, ast.Call) or _text(value.orelse.func) not in ("float", "int", "str"):
        return False
    for node in ast.walk(reader):
        if isinstance(node, ast.IfExp) and (_text(node.test), _text(node.body)) == (f"{name} is None", "None"):
            inside = [part for part in at_once(node.orelse) if is_name(part, name)]
            if len(inside) != 1 or not is_pure(reader):
                return False
            node.test = value.test
            node.orelse = Folded().visit(Substituted({name: value.orelse}).visit(node.orelse))
            del block[index]
            return True
    return False


def _following(block: Block, index: int, counts: Counter[str]) -> range:
    """The statements before which an assignment may stand as well: the next one, and more as long as nothing between
    them changes anything."""
    value = block[index].value  # type: ignore[attr-defined]
    if not is_pure(value) or any(counts[name] > 1 for name in every(value)):
        return range(index + 1, min(index + 2, len(block)))
    if every(value) <= {"torch"}:
        return range(index + 1, len(block))
    end = index + 1
    while end < len(block) and only_binds(block[end]):
        end += 1
    return range(index + 1, min(end + 1, len(block)))


def only_binds(statement: ast.stmt) -> bool:
    """Whether all that a statement does is to give names a meaning."""
    found = pairs(statement)
    stores = [node for target, _ in found for node in ast.walk(target)]
    return bool(found) and is_pure(statement) and not any(isinstance(n, (ast.Attribute, ast.Subscript)) for n in stores)


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
    if isinstance(new, STATEMENTS):
        new = Folded().visit(new) or ast.Pass()
    turned = isinstance(statement.value, ast.Dict) and f"in {name}.items()" in _text(reader)
    item = len(ast.unparse(statement.value)) <= _ITEM and _is_item(reader, name) and len(_text(reader)) > _LINE
    told = _is_display(statement.value) and height(new) < height(statement) + height(reader)
    if not turned and not item and not told and len(_text(new).split("\n")[0]) > _LINE:
        return False
    block[later] = new
    del block[index]
    return True


def _is_display(value: ast.expr) -> bool:
    """Whether it is a display that is read as an argument."""
    return isinstance(value, ast.Dict) and len(value.keys) > 1


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
    statement, found = block[index], pairs(block[index])
    if not found or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
        return False
    if any(not isinstance(one, ast.Name) or counts[one.id] != 1 or isinstance(it, ast.Starred) for one, it in found):
        return False
    told = [one.id for one, _ in found if isinstance(one, ast.Name)]
    if any(counts[name] and name in told for _, it in found for name in read(it)):
        return False
    alone = [pair for pair in found if isinstance(pair[1], (ast.Constant, ast.Name)) or _is_empty(pair[1])]
    if not alone and len(found) > 1:
        return False
    rest = [pair for pair in found if pair not in alone]
    new: Block = [ast.Assign([one], it) for one, it in alone]
    if len(rest) > 1:
        targets, values = zip(*rest)
        new.append(ast.Assign([ast.Tuple(list(targets), ast.Store())], ast.Tuple(list(values), ast.Load())))
    elif rest:
        new.append(ast.Assign([rest[0][0]], rest[0][1]))
    block[index : index + 1] = new
    return True


def _is_empty(node: ast.expr) -> bool:
    return ast.unparse(node) in ("{}", "[]")


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
                both = zip(names, before.elts)
                block[index : index + 1] = [ast.Assign([new], _read(old)) for new, old in both]
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
