"""Traced programs: what of them matters, and several of one shape as one with parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.values import Array, Literal, Namespace, New, Tensor

Node = dict[str, Any]


class ProgramError(Exception):
    """The program cannot be written as a file of its own; says why."""


@dataclass(frozen=True)
class Program:
    """What one variant of a scenario does.

    :ivar statements: in order; ``{"var": n}`` in a node is what the n-th of them gave.
    :ivar observation: observation key -> node.
    :ivar stubs: third-party packages that the modules it imports name and that were not installed.
    """

    statements: tuple[Node, ...]
    observation: Mapping[str, Node]
    stubs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """Something that is otherwise in each variant.

    :ivar values: one node or literal a variant, in their order.
    """

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Merged:
    """Variants of one shape.

    :ivar inputs: canonical inputs (by path) that are the same in all variants.
    """

    program: Program
    parameters: tuple[Parameter, ...] = ()
    inputs: Mapping[tuple[Any, ...], Any] = field(default_factory=dict)


def parsed(traced: Mapping[str, Any]) -> Program:
    """A program as the worker sent it.

    :raises ProgramError: where it could not be traced.
    """
    if "untraceable" in traced:
        raise ProgramError(str(traced["untraceable"]))
    return Program(tuple(traced["statements"]), dict(traced["observation"]), tuple(traced["stubs"]))


def reaching(program: Program, key: str) -> Node:
    """The node of an observation key, which may reach into what was observed (``returned.advantages``).

    :raises ProgramError: where it is not known how it comes about.
    """
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        node = program.observation.get(".".join(parts[:end]))
        if node is None:
            continue
        rest = parts[end:]
        while rest:
            node, rest = _step(node, rest)
        if _has(node, "unknown"):
            break
        return node
    raise ProgramError(f"{key} is computed in Python from what the boundary answers")


def _step(node: Node, rest: list[str]) -> tuple[Node, list[str]]:
    if "dict" in node:
        entries = {str(name.get("value")): value for name, value in node["dict"]}
        for end in range(len(rest), 0, -1):
            if (found := entries.get(".".join(rest[:end]))) is not None:
                return found, rest[end:]
        raise ProgramError(f"{'.'.join(rest)} is not among what was observed")
    if "list" in node or "tuple" in node:
        items = node["list"] if "list" in node else node["tuple"]
        return items[int(rest[0])], rest[1:]
    index: Any = int(rest[0]) if rest[0].isdigit() else rest[0]
    return {"item": [node, {"value": index}]}, rest[1:]


def only(program: Program, observation: Mapping[str, Node]) -> Program:
    """The program with this observation, and without the operations on tensors that it does not need."""
    needed: set[int] = set()
    queue = [number for node in observation.values() for number in variables(node)]
    queue += [n for n, statement in enumerate(program.statements) if not _pure(statement)]
    while queue:
        number = queue.pop()
        if number not in needed:
            needed.add(number)
            queue += list(variables(program.statements[number]))
    program = _tidied(program, needed)
    order = {old: new for new, old in enumerate(sorted(needed))}
    statements = tuple(_renumbered(program.statements[old], order) for old in order)
    return Program(statements, {key: _renumbered(node, order) for key, node in observation.items()}, program.stubs)


def _tidied(program: Program, needed: set[int]) -> Program:
    """The program with a copy written as one, where the contract makes a tensor of the same strides and fills it."""
    statements = list(program.statements)
    for number in sorted(needed):
        statement = statements[number]
        if statement["op"] == "torch" and statement["name"] == "torch.Tensor.copy_":
            made = next(variables(statement["args"][0]), -1)
            if made >= 0 and statements[made].get("name") == "torch.empty_strided":
                statements[number] = {
                    "op": "torch",
                    "name": "torch.Tensor.clone",
                    "args": statement["args"][1:],
                    "kwargs": [],
                }
                needed.discard(made)
    return Program(tuple(statements), program.observation, program.stubs)


#: Operations that change what they are given, and those that torch marks by an underscore.
_CHANGING = ("backward", "__setitem__")


def _pure(statement: Node) -> bool:
    """Whether leaving it out changes nothing but its result."""
    if statement["op"] == "torch":
        short = statement["name"].rpartition(".")[2]
        return short not in _CHANGING and not (short.endswith("_") and not short.endswith("__"))
    if statement["op"] == "method":
        return str(statement["attribute"]) in ("__getitem__", "__len__", "__contains__", "keys", "items")
    return statement["op"] in ("make", "property")


def variables(node: Any) -> Iterator[int]:
    """The statements that a node or statement reads."""
    if isinstance(node, dict):
        if "var" in node:
            yield node["var"]
        else:
            for value in node.values():
                yield from variables(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from variables(value)


def inputs(node: Any) -> Iterator[tuple[Any, ...]]:
    """The canonical inputs that a node or statement reads, as paths."""
    if isinstance(node, dict):
        if "input" in node:
            yield tuple(node["input"])
        else:
            for value in node.values():
                yield from inputs(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from inputs(value)


def _renumbered(node: Any, order: Mapping[int, int]) -> Any:
    if isinstance(node, dict):
        if "var" in node:
            return {"var": order[node["var"]]}
        return {key: _renumbered(value, order) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_renumbered(value, order) for value in node]
    return node


def _has(node: Any, key: str) -> bool:
    if isinstance(node, dict):
        return key in node or any(_has(value, key) for value in node.values())
    return isinstance(node, (list, tuple)) and any(_has(value, key) for value in node)


# -- several variants --------------------------------------------------------------------------------------------------


def merged(programs: Sequence[Program], scenarios: Sequence[Mapping[str, Any]]) -> Merged:
    """One program with parameters for what differs between variants.

    :param scenarios: canonical input -> literal, of each variant.
    :raises ProgramError: where the variants differ in more than values.
    """
    merge = _Merge(scenarios)
    first = programs[0]
    if any(len(item.statements) != len(first.statements) for item in programs):
        raise ProgramError("the variants do not do the same steps")
    statements = [merge.nodes([item.statements[n] for item in programs], "") for n in range(len(first.statements))]
    observation = {key: merge.nodes([item.observation[key] for item in programs], key) for key in first.observation}
    program = Program(tuple(statements), observation, tuple(sorted({s for item in programs for s in item.stubs})))
    return Merged(program, tuple(merge.parameters.values()), merge.shared)


def joined(base: Merged, head: Merged) -> Merged:
    """What two revisions do, where they differ in nothing but the names of parameters.

    :raises ProgramError: where they differ in more.
    """
    if repr(base.parameters) != repr(head.parameters) or base.inputs != head.inputs:
        raise ProgramError("the two revisions take different inputs")
    before, after = base.program, head.program
    if len(before.statements) != len(after.statements) or before.observation.keys() != after.observation.keys():
        raise ProgramError("the two revisions are not called in the same way")
    observation = {key: _one(node, after.observation[key]) for key, node in before.observation.items()}
    statements = tuple(_renamed(*pair) for pair in zip(before.statements, after.statements))
    stubs = tuple(sorted({*before.stubs, *after.stubs}))
    return Merged(Program(statements, observation, stubs), head.parameters, head.inputs)


def _one(before: Node, after: Node) -> Node:
    """One node for both revisions."""
    raised = _raised((before, after))
    if raised is None and repr(before) != repr(after):
        raise ProgramError("the two revisions are not called in the same way")
    return raised or after


def _raised(nodes: Sequence[Any]) -> Node | None:
    """An exception, where one of these is one and the others that there was none."""
    raised = [node for node in nodes if node == {"raised": True}]
    return raised[0] if raised and all(node in ({"raised": True}, {"value": None}) for node in nodes) else None


def _renamed(before: Node, after: Node) -> Node:
    """One statement for both revisions."""
    same = ("op", "function", "name", "args", "self", "attribute", "value")
    if any(repr(before.get(key)) != repr(after.get(key)) for key in same):
        raise ProgramError("the two revisions are not called in the same way")
    old, new = dict(before.get("kwargs", ())), dict(after.get("kwargs", ()))
    if repr(old) == repr(new):
        return after
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    pairs = {name: former for name in come for former in gone if repr(new[name]) == repr(old[former])}
    kept = all(repr(new[name]) == repr(old[name]) for name in new if name in old)
    if not kept or after["op"] != "call" or len(pairs) != len(come) or len(come) != len(gone):
        raise ProgramError("the two revisions are not called with the same arguments")
    return {**after, "renamed": pairs}


class _Merge:
    def __init__(self, scenarios: Sequence[Mapping[str, Any]]) -> None:
        self._scenarios = scenarios
        self.parameters: dict[str, Parameter] = {}
        self.shared: dict[tuple[Any, ...], Any] = {}

    def nodes(self, nodes: Sequence[Any], hint: str) -> Any:
        if (raised := _raised(nodes)) is not None:
            return raised
        first = nodes[0]
        if all(isinstance(node, dict) and "input" in node for node in nodes):
            if any(node != first for node in nodes):
                raise ProgramError("the variants do not use the same inputs")
            return self._input(tuple(first["input"]))
        if all(node == first for node in nodes) and not any(True for _ in inputs(first)):
            return first
        if all(isinstance(node, dict) for node in nodes):
            if _plain(first) and all(_plain(node) for node in nodes):
                return {"parameter": self._parameter(hint or "value", tuple(nodes))}
            if all(node.keys() == first.keys() for node in nodes):
                told = str(first.get("hint") or hint)
                return {key: self.nodes([node[key] for node in nodes], told) for key in first}
        elif all(isinstance(node, (list, tuple)) and len(node) == len(first) for node in nodes):
            if len(first) == 2 and all(isinstance(node[0], str) for node in nodes):  # a keyword and its value
                return [self.nodes([n[0] for n in nodes], ""), self.nodes([n[1] for n in nodes], str(first[0]))]
            return [self.nodes(group, hint) for group in zip(*nodes)]
        elif all(node == first or (node != node and first != first) for node in nodes):
            return first
        raise ProgramError("the variants do not do the same steps")

    def _input(self, path: tuple[Any, ...]) -> Node:
        values = tuple(literal(scenario, path) for scenario in self._scenarios)
        if all(value == values[0] for value in values):
            self.shared[path] = values[0]
            return {"input": list(path)}
        return {"parameter": self._parameter(str(_name_of(path)), tuple({"literal": value} for value in values))}

    def _parameter(self, hint: str, values: tuple[Any, ...]) -> str:
        for parameter in self.parameters.values():
            if repr(parameter.values) == repr(values):
                return parameter.name
        name, count = hint, 2
        while name in self.parameters:
            name, count = f"{hint}_{count}", count + 1
        self.parameters[name] = Parameter(name, values)
        return name


def _name_of(path: tuple[Any, ...]) -> Any:
    return next((step for step in reversed(path) if isinstance(step, str)), "value")


def _plain(node: Any) -> bool:
    """Whether a node is a value that depends on nothing."""
    if not isinstance(node, dict) or len(set(node) - {"dtype"}) != 1:
        return False
    if "value" in node:
        return True
    items = node.get("list", node.get("tuple", node.get("array")))
    if items is not None:
        return all(_plain(item) for item in items)
    return "dict" in node and all(_plain(item) for pair in node["dict"] for item in pair)


def literal(scenario: Mapping[str, Any], path: Sequence[Any]) -> Any:
    """The literal at a path of a scenario.

    :raises ProgramError: where the path goes through an object that was made.
    """
    value: Any = scenario
    for step in path:
        if isinstance(value, Namespace):
            value = value.attributes[step]
        elif isinstance(value, New):
            raise ProgramError(f"the scenario's {path[0]} is an object of the target's own")
        elif isinstance(value, Array):
            value = value.values[step]
        elif hasattr(value, "items") and isinstance(value.items, tuple):
            value = value.items[step]
        else:
            value = value[step]
    return value


__all__ = [
    "Literal",
    "Merged",
    "Parameter",
    "Program",
    "ProgramError",
    "Tensor",
    "inputs",
    "joined",
    "literal",
    "merged",
    "only",
    "parsed",
    "reaching",
    "variables",
]
