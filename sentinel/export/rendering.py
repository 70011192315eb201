"""A program as readable Python: one function body, and the imports that it needs."""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.export.literals import UNIFORM, dtype_name, everywhere, nested, scalar, sequence, shortest
from sentinel.export.program import Merged, Node, ProgramError, inputs, variables
from sentinel.export.wrapping import bare, wrapped
from sentinel.values import FLOATS, Array, Attribute, Device, Namespace, New, Tensor, Tuple

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "true_divide": "/",
    "pow": "**",
    "matmul": "@",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "and": "&",
    "or": "|",
    "truediv": "/",
}
_UNARY = {"neg": "-", "bitwise_not": "~", "invert": "~"}


def variable(text: str, otherwise: str) -> str:
    """A variable's name for a text: no keyword of Python's, and no module that a program may use."""
    name = re.sub(r"\W", "_", text) or otherwise
    return f"{name}_" if keyword.iskeyword(name) or name in ("torch", "numpy", "json", "os", "sys", "pytest") else name


def mentioned(name: str, text: str) -> bool:
    """Whether a program's text has this name, and not as an attribute of something."""
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", text) is not None


@dataclass
class Imports:
    """What a file must import: ``module -> names``, and modules by themselves."""

    names: dict[str, set[str]] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    #: Modules that are known under a name of one word.
    short: Mapping[str, str] = field(default_factory=dict)

    def of(self, module: str, path: str) -> str:
        """How to write something of a module, once it is imported."""
        if not path:
            self.modules.add(module)
            return module
        head = path.partition(".")[0]
        if any(head in names for other, names in self.names.items() if other != module):
            self.modules.add(module)  # another module's is known by that name
            return f"{module}.{path}"
        self.names.setdefault(module, set()).add(head)
        return path

    def read_by(self, text: str) -> Imports:
        """Those that a program reads."""
        kept: dict[str, set[str]] = {}
        for module, names in self.names.items():
            if found := {name for name in names if mentioned(name, text)}:
                kept[module] = found
        words = {module: self.short.get(module, module) for module in self.modules}
        modules = {module for module, word in words.items() if mentioned(word, text)}
        return Imports(kept, modules, self.short)

    def lines(self) -> list[str]:
        plain = [f"import {m} as {self.short[m]}" if m in self.short else f"import {m}" for m in sorted(self.modules)]
        return plain + [wrapped(f"from {m} import {', '.join(sorted(n))}") for m, n in sorted(self.names.items())]


class Body:
    """Writes one program's statements as lines of a function body.

    :param values: parameter -> how it is written where there is nothing to choose from.
    """

    def __init__(self, subject: Merged, imports: Imports) -> None:
        self.imports = imports
        self.standard: set[str] = set()
        self.third: set[str] = set()
        self.classes: dict[str, str] = {}
        self.lines: list[str] = []
        self._subject = subject
        self._names: dict[int, str] = {}
        self._pending: dict[int, str] = {}
        self._taken: set[str] = {parameter.name for parameter in subject.parameters}
        self._paths: dict[tuple[Any, ...], str] = {}
        raised = any("raised" in node for node in subject.program.observation.values())
        self._raising = len(subject.program.statements) - 1 if raised else -1
        self._uses = Counter(
            number
            for item in (*subject.program.statements, *subject.program.observation.values())
            for number in variables(item)
        )

    def write(self) -> dict[str, str]:
        """Fill :attr:`lines`; the expression of each observation key."""
        program = self._subject.program
        self._inputs()
        for number, statement in enumerate(program.statements):
            self._statement(number, statement)
        return {key: bare(self.text(node)) for key, node in program.observation.items()}

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        """Each shared input as a variable; those inside one of them by the way that leads there."""
        program = self._subject.program
        used = {path for item in (*program.statements, *program.observation.values()) for path in inputs(item)}
        for path in sorted(used, key=lambda path: (len(path), str(path))):
            prefix = next((path[:end] for end in range(len(path) - 1, 0, -1) if path[:end] in self._paths), None)
            value = self._subject.inputs[path]
            if prefix is not None:
                self._paths[path] = self._paths[prefix] + "".join(f"[{scalar(step)}]" for step in path[len(prefix) :])
            elif isinstance(value, (bool, int, float, str, type(None))):
                self._paths[path] = scalar(value)
            else:
                name = self._name(next((step for step in reversed(path) if isinstance(step, str)), "value"))
                self._paths[path] = name
                self.lines.append(wrapped(f"{name} = {self.literal(value)}"))

    def literal(self, value: Any) -> str:
        """A literal of the recipe language as Python."""
        if isinstance(value, Tensor):
            if not value.contiguous:
                raise ProgramError("the scenario has a tensor whose elements do not lie side by side")
            grad = ", requires_grad=True" if value.requires_grad else ""
            values = shortest(value.nested(), value.dtype)
            if 0 in value.shape:
                return f"torch.zeros({list(value.shape)}, dtype=torch.{value.dtype}{grad})"
            same = everywhere(values)
            if same is not None and math.prod(value.shape) >= UNIFORM:
                return f"torch.full({list(value.shape)}, {scalar(same)}, dtype=torch.{value.dtype}{grad})"
            return f"torch.tensor({nested(values, short=value.dtype in FLOATS)}, dtype=torch.{value.dtype}{grad})"
        if isinstance(value, Array):
            self.third.add("numpy")
            return f"numpy.array({nested(list(value.values))}, dtype={dtype_name(value.dtype)})"
        if isinstance(value, Tuple):
            return sequence([self.literal(item) for item in value.items])
        if isinstance(value, Namespace):
            self.standard.add("from types import SimpleNamespace")
            return f"SimpleNamespace({self._keywords(value.attributes)})"
        if isinstance(value, New):
            return f"{self._imported(value.path)}({self._keywords(value.arguments)})"
        if isinstance(value, Attribute):
            return self._imported(value.path)
        if isinstance(value, Device):
            return f'torch.device("{value.name}")'
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{scalar(key)}: {self.literal(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(self.literal(item) for item in value) + "]"
        return scalar(value)

    def _keywords(self, items: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={self.literal(item)}" for name, item in items.items())

    def _imported(self, path: str) -> str:
        """Something that a recipe names by its whole path: the class or function is the part that begins a name."""
        parts = path.split(".")
        cut = next((n for n, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
        return self.imports.of(".".join(parts[:cut]), ".".join(parts[cut:]))

    # -- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, number: int, statement: Node) -> None:
        text = getattr(self, f"_{statement['op']}")(statement)
        uses = self._uses[number]
        if statement["op"] in ("set", "setattr") or _changes(statement):
            self._settle()
            if statement["op"] == "torch" and uses:
                text = self._assigned(number, statement, text)
            self.lines.append(wrapped(text))
        elif _inlined(statement) and uses == 1:
            self._pending[number] = text
        else:
            if not _inlined(statement):
                self._settle()
            if number == self._raising and statement["op"] in _CALLS and not uses:
                self._catch(text)
            else:
                self.lines.append(wrapped(self._assigned(number, statement, text) if uses else text))

    def _catch(self, call: str) -> None:
        """What the last call raises is observed, in the place of its answer."""
        tried = "    " + wrapped(call, 8).replace("\n", "\n    ")
        caught = '    raised = {"type": type(error).__name__, "message": str(error)}'
        self.lines += ["raised = None", "try:", tried, "except Exception as error:", caught]

    def _assigned(self, number: int, statement: Node, text: str) -> str:
        name = self._name(_hint(statement))
        self._names[number] = name
        return f"{name} = {text}"

    def _settle(self) -> None:
        """Operations that wait for their one use must not be moved behind what may change their inputs."""
        for number, text in list(self._pending.items()):
            name = self._name(_hint(self._subject.program.statements[number]))
            self._names[number] = name
            self.lines.append(wrapped(f"{name} = {text}"))
        self._pending.clear()

    def _make(self, statement: Node) -> str:
        return self.text(statement["value"])

    def _set(self, statement: Node) -> str:
        module, attribute = statement["function"]
        return f"{self.imports.of(module, '')}.{attribute} = {self.text(statement['value'])}"

    def _setattr(self, statement: Node) -> str:
        return f"{self.text(statement['self'])}.{statement['attribute']} = {self.text(statement['value'])}"

    def _call(self, statement: Node) -> str:
        module, path = statement["function"]
        return f"{self.imports.of(module, path)}({self._given(statement)})"

    _new = _call

    def _bare(self, statement: Node) -> str:
        name = self.imports.of(*statement["function"])
        return f"{name}.__new__({name})"

    def _method(self, statement: Node) -> str:
        attribute = statement["attribute"]
        if attribute == "__getitem__":
            return f"{self.text(statement['self'])}[{self._given(statement)}]"
        called = "" if attribute == "__call__" else f".{attribute}"
        return f"{self.text(statement['self'])}{called}({self._given(statement)})"

    def _property(self, statement: Node) -> str:
        return f"{self.text(statement['self'])}.{statement['attribute']}"

    def _invoke(self, statement: Node) -> str:
        return f"{self.text(statement['function'])}({self._given(statement)})"

    def _given(self, statement: Node) -> str:
        positional = [self.text(node) for node in statement["args"]]
        named = [self._named(statement, name, node) for name, node in statement["kwargs"]]
        return ", ".join([*map(bare, positional), *named])

    def _named(self, statement: Node, name: str, node: Node) -> str:
        """A keyword argument; where the revisions call the parameter otherwise, under the name that is there."""
        text, former = bare(self.text(node)), statement.get("renamed", {}).get(name)
        if former is None:
            return f"{name}={text}"
        self.standard.add("import inspect")
        there = f"inspect.signature({statement['function'][1]}).parameters"
        return f"**{{{scalar(name)} if {scalar(name)} in {there} else {scalar(former)}: {text}}}"

    def _torch(self, statement: Node) -> str:
        name = statement["name"]
        short = name.rpartition(".")[2]
        if name == "torch.autograd.grad":  # a tuple of one says no more than the one
            statement = {**statement, "args": [_alone(node) for node in statement["args"]]}
        if ".Tensor." not in name:
            return f"{_public(name)}({self._given(statement)})"
        args = [self.text(node) for node in statement["args"]]
        symbol = _BINARY.get(short.strip("_").removeprefix("r") if _reversed(short) else short.strip("_"))
        if symbol and len(args) == 2 and not statement["kwargs"] and not _in_place(short):
            left, right = args if not _reversed(short) else args[::-1]
            return f"({left} {symbol} {right})"
        if short.strip("_") in _UNARY and len(args) == 1:
            return f"{_UNARY[short.strip('_')]}{args[0]}"
        if short == "__getitem__":
            index = args[1]
            return f"{args[0]}[{index[1:-1].rstrip(',') if _is_tuple(statement['args'][1]) else index}]"
        if short == "__setitem__":
            index = args[1]
            return f"{args[0]}[{index[1:-1].rstrip(',') if _is_tuple(statement['args'][1]) else index}] = {args[2]}"
        named = [f"{key}={self.text(node)}" for key, node in statement["kwargs"]]
        return f"{args[0]}.{short}({', '.join([*args[1:], *named])})"

    # -- expressions --------------------------------------------------------------------------------------------------

    def text(self, node: Any) -> str:
        """A node as Python."""
        kind = next(iter(node))
        if kind == "var":
            number = node["var"]
            return self._pending.pop(number) if number in self._pending else self._names[number]
        if kind == "input":
            return self._paths[tuple(node["input"])]
        if kind == "parameter":
            return str(node["parameter"])
        if kind == "literal":
            return self.literal(node["literal"])
        if kind == "value":
            return scalar(node["value"])
        if kind == "list":
            return "[" + ", ".join(self.text(item) for item in node["list"]) + "]"
        if kind == "tuple":
            return sequence([self.text(item) for item in node["tuple"]])
        if kind == "set":
            return "{" + ", ".join(self.text(item) for item in node["set"]) + "}" if node["set"] else "set()"
        if kind == "dict":
            return "{" + ", ".join(f"{self.text(key)}: {self.text(item)}" for key, item in node["dict"]) + "}"
        if kind == "namespace":
            self.standard.add("from types import SimpleNamespace")
            return f"SimpleNamespace({', '.join(f'{name}={self.text(item)}' for name, item in node['namespace'])})"
        return str(getattr(self, f"_{kind}_node")(node))

    def _array_node(self, node: Node) -> str:
        self.third.add("numpy")
        items = ", ".join(self.text(item) for item in node["array"])
        return f"numpy.array([{items}], dtype={dtype_name(node['dtype'])})"

    def _slice_node(self, node: Node) -> str:
        start, stop, step = ("" if item == {"value": None} else self.text(item) for item in node["slice"])
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def _torch_node(self, node: Node) -> str:
        return _public(str(node["torch"]))

    def _name_node(self, node: Node) -> str:
        module, path = node["name"]
        return self.imports.of(module, path)

    def _source_node(self, node: Node) -> str:
        return f"({node['source']})" if node["source"].startswith("lambda") else str(node["source"])

    def _attr_node(self, node: Node) -> str:
        return f"{self.text(node['attr'][0])}.{node['attr'][1]}"

    def _item_node(self, node: Node) -> str:
        return f"{self.text(node['item'][0])}[{self.text(node['item'][1])}]"

    def _binary_node(self, node: Node) -> str:
        symbol, left, right = node["binary"]
        return f"({self.text(left)} {symbol} {self.text(right)})"

    def _unary_node(self, node: Node) -> str:
        symbol, operand = node["unary"]
        return f"abs({self.text(operand)})" if symbol == "abs" else f"-{self.text(operand)}"

    def _cast_node(self, node: Node) -> str:
        kind, operand = node["cast"]
        return f"{kind}({self.text(operand)})"

    def _construct_node(self, node: Node) -> str:
        module, path = node["construct"]
        given = ", ".join(f"{name}={self.text(item)}" for name, item in node["kwargs"])
        return f"{self.imports.of(module, path)}({given})"

    def _omegaconf_node(self, node: Node) -> str:
        self.third.add("omegaconf")
        return f"omegaconf.OmegaConf.create({self.text(node['omegaconf'])})"

    def _bound_node(self, node: Node) -> str:
        self.standard.add("import types")
        return f"types.MethodType({', '.join(self.text(item) for item in node['bound'])})"

    def _tensordict_node(self, node: Node) -> str:
        self.third.add("tensordict")
        return f"tensordict.TensorDict({self.text(node['tensordict'])}, batch_size={node['size']})"

    def _stand_in_node(self, node: Node) -> str:
        name = str(node["stand_in"])
        self.classes[name] = str(node["class"])
        parameters = _constructor(self.classes[name])
        values = dict(node["attributes"])
        if parameters is None or set(parameters) != set(values):
            raise ProgramError(f"the stand-in {name} is not made from its attributes")
        return f"{name}({', '.join(self.text(values[key]) for key in parameters)})"

    def _raised_node(self, node: Node) -> str:
        if "raised = None" not in self.lines:
            raise ProgramError("an exception of the boundary is observed, and what it answers")
        return "raised"

    def _unknown_node(self, node: Node) -> str:
        raise ProgramError(str(node["unknown"]))

    def _name(self, hint: str) -> str:
        base = variable(hint, "value")
        taken = self._taken | {name for names in self.imports.names.values() for name in names}
        name, count = base, 2
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name


#: Statements that call the target.
_CALLS = ("call", "new", "method", "invoke")


def _constructor(source: str) -> list[str] | None:
    """The parameters of a class's ``__init__`` where all that it does is keep them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [argument.arg for argument in node.args.args[1:]]
    return []


def _changes(statement: Node) -> bool:
    if statement["op"] != "torch":
        return False
    short = str(statement["name"].rpartition(".")[2])
    return short in ("backward", "__setitem__") or (_in_place(short) and short != "requires_grad_")


def _in_place(short: str) -> bool:
    return short.endswith("_") and not short.endswith("__")


def _inlined(statement: Node) -> bool:
    """Whether it may be written where it is used: it computes something and does nothing."""
    if statement["op"] == "torch":
        return not _changes(statement)
    return statement["op"] in ("property", "make")


def _reversed(short: str) -> bool:
    return short.startswith("__r") and short.strip("_").removeprefix("r") in _BINARY


def _alone(node: Node) -> Node:
    return node["tuple"][0] if "tuple" in node and len(node["tuple"]) == 1 else node


def _is_tuple(node: Node) -> bool:
    return "tuple" in node and len(node["tuple"]) > 0


def _hint(statement: Node) -> str:
    if statement["op"] == "make":
        return str(statement["hint"]).partition("[")[0]
    if statement["op"] in ("call", "new", "bare"):
        last = str(statement["function"][1]).rpartition(".")[2]
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower()
        return snake.removeprefix("_") if statement["op"] != "call" else "answer"
    if statement["op"] in ("method", "property"):
        return "answer" if statement["op"] == "method" else str(statement["attribute"])
    if statement["op"] == "torch":
        short = str(statement["name"].rpartition(".")[2]).strip("_")
        return {"grad": "gradient", "Parameter": "theta", "requires_grad": "leaf", "unbind": "rows"}.get(
            short, f"{short}_of"
        )
    return "answer"


def _public(name: str) -> str:
    """torch's public spelling of what lives in a private module."""
    name = re.sub(r"^torch\._C\._nn\.", "torch.nn.functional.", name)
    name = re.sub(r"^torch\._C\.(_VariableFunctions\.|_VariableFunctionsClass\.)?", "torch.", name)
    return re.sub(r"^torch\.functional\.", "torch.", name)
