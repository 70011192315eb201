"""Read a function's signature from its source: parameters, how the body uses them, and returned values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from sentinel.search.bindings import parameters_of, syntax_of

_Def = ast.FunctionDef | ast.AsyncFunctionDef

#: A shape in a docstring whose first dimension is tokens, as in ``[seq_len, bsz]``.
_TOKENS_FIRST = re.compile(
    r"[\[(]\s*(?:seq\w*|steps?|n_steps|t|l|num_steps)\s*,\s*(?:b|bs|bsz|batch\w*|n)\s*[\])]", re.I
)
#: Calls that suggest that the first axis is tokens: a cumulative sum or a flip along this axis, or ``.view(1, -1)``,
#: which adds the axis to a tensor with one number per row.
_ALONG_THE_FIRST = re.compile(r"(cumsum|flip)\(([^()]*, )?(dims?=)?\[?0\]?\)$|\.view\(1, -1\)$")
#: The largest constant in a function's body that may be part of a definition.
_LARGEST = 64


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    :ivar default: the code of the default; None if the parameter is required.
    """

    name: str
    annotation: str = ""
    default: str | None = None

    @property
    def required(self) -> bool:
        return self.default is None


@dataclass(frozen=True)
class Signature:
    """What is known about a function or method from its source.

    :ivar owner: the class of a method; empty for a function.
    :ivar bases: the code of that class's bases.
    :ivar variadic: whether the function takes ``**kwargs``.
    :ivar returns: for each distinct return statement, the names of the members of the returned tuple, the keys of the
        returned dictionary in brackets, or the name of the single value. An expression without a name is ``""``.
    :ivar words: parameter -> the strings with which the body compares it.
    :ivar numbers: the positive numbers in the body up to 64, except 1.
    :ivar tokens_first: the reason to assume tensors of shape ``[tokens, batch]``; empty if there is none.
    :ivar reads: parameter -> the attributes and keys that the body reads from it, such as ``args.beta`` or
        ``["mask"]``. For ``self``, attributes that are read in called methods of the same class are included.
    :ivar names: the names that the body uses.
    :ivar imports: the dotted paths of the modules that the body imports.
    :ivar body: the statements of the body as text, without comments.
    """

    path: str
    module: str
    file: str
    line: int
    parameters: tuple[Parameter, ...]
    owner: str = ""
    bases: tuple[str, ...] = ()
    variadic: bool = False
    is_async: bool = False
    returns: tuple[tuple[str, ...], ...] = ()
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: tuple[float, ...] = ()
    tokens_first: str = ""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    body: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def about(self) -> str:
        """Return the describing name in lower case: that of the function or, for ``forward`` and ``__call__``, of its
        class."""
        return (self.owner if self.name in ("forward", "__call__") else self.name).lower()

    @property
    def own(self) -> tuple[Parameter, ...]:
        """Return the parameters without ``self``."""
        return self.parameters[1:] if self.owner and "staticmethod" not in self.decorators else self.parameters


def signatures(source: str, module: str, file: str, wanted: Iterable[str]) -> Iterator[Signature]:
    """Read the signatures of the wanted functions and methods from a module's source.

    A function whose code is nested too deeply for Python's recursion limit is left out.

    :param wanted: the qualified names of the functions, without the module.
    :raises SyntaxError: if the source does not parse.
    """
    names = set(wanted)
    for name, owner, node in _definitions(syntax_of(source).body):
        if name in names:
            with suppress(RecursionError):
                yield _signature(node, owner, f"{module}.{name}", module, file)


#: Class -> (its bases, attribute -> default if it is a literal), all as code.
Classes = Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]]


def classes_of(body: Iterable[ast.stmt]) -> dict[str, tuple[tuple[str, ...], dict[str, str]]]:
    """Return the classes in a module's body: name -> (bases, literal defaults of its attributes).

    Defaults are read from annotated fields and from assignments to ``self`` in ``__init__``.
    """
    found = {}
    for node in body:
        if not isinstance(node, ast.ClassDef):
            continue
        literals: dict[str, str] = {}
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and _is_literal(each.value):
                literals[each.target.id] = ast.unparse(each.value)  # type: ignore[arg-type]
            elif isinstance(each, ast.FunctionDef) and each.name == "__init__":
                literals |= _assigned(each)
        found[node.name] = tuple(map(ast.unparse, node.bases)), literals
    return found


def _assigned(init: ast.FunctionDef) -> dict[str, str]:
    defaults = {item.arg: default for item, default in _with_defaults(init.args) if _is_literal(default)}
    literals = {}
    for node in ast.walk(init):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = defaults.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            for target in targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and _is_literal(value):
                    literals[target.attr] = ast.unparse(value)  # type: ignore[arg-type]
    return literals


def _with_defaults(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required: list[None] = [None] * (len(positional) - len(arguments.defaults))
    return [*zip(positional, [*required, *arguments.defaults]), *zip(arguments.kwonlyargs, arguments.kw_defaults)]


def _is_literal(value: ast.expr | None) -> bool:
    inner = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(inner, ast.Constant)


def _definitions(
    body: Iterable[ast.stmt], before: str = "", owner: ast.ClassDef | None = None
) -> Iterator[tuple[str, ast.ClassDef | None, _Def]]:
    for node in body:
        if isinstance(node, _Def):
            yield f"{before}{node.name}", owner, node
        elif isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{before}{node.name}.", node)
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, part, ()), before, owner)
            for handler in getattr(node, "handlers", ()):
                yield from _definitions(handler.body, before, owner)


def _signature(node: _Def, owner: ast.ClassDef | None, path: str, module: str, file: str) -> Signature:
    parameters = tuple(
        Parameter(
            item.arg, ast.unparse(item.annotation) if item.annotation else "", ast.unparse(default) if default else None
        )
        for item, default in _with_defaults(node.args)
    )
    inside = [each for statement in node.body for each in ast.walk(statement)]
    return Signature(
        path, module, file, node.lineno, parameters,
        owner=owner.name if owner else "",
        bases=tuple(map(ast.unparse, owner.bases)) if owner else (),
        variadic=node.args.kwarg is not None,
        is_async=isinstance(node, ast.AsyncFunctionDef),
        returns=tuple(dict.fromkeys(_returned(each.value) for each in _returns(node.body) if each.value is not None)),
        words=_compared(inside, {parameter.name for parameter in parameters}),
        numbers=_numbers(inside),
        tokens_first=_tokens_first(node, inside),
        reads=_reads(node, inside, owner),
        names=frozenset(each.id for each in inside if isinstance(each, ast.Name)),
        imports=tuple(dict.fromkeys(_imported(inside))),
        decorators=tuple(ast.unparse(each) for each in node.decorator_list),
        body="\n".join(ast.unparse(each) for each in node.body),
    )  # fmt: skip


def _returns(body: Iterable[ast.stmt]) -> Iterator[ast.Return]:
    """Yield a function's return statements, without those of nested functions and classes."""
    for node in body:
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (*_Def.__args__, ast.ClassDef)):
            for part in ("body", "orelse", "finalbody", "handlers", "cases"):
                inner = getattr(node, part, ())
                for each in inner:
                    yield from _returns(each.body if isinstance(each, (ast.ExceptHandler, ast.match_case)) else [each])


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _returned(value: ast.expr) -> tuple[str, ...]:
    if isinstance(value, ast.Tuple):
        return tuple(_name_in(each) for each in value.elts)
    if isinstance(value, ast.Dict):
        return tuple(f"[{key.value!s}]" for key in value.keys if isinstance(key, ast.Constant))
    return (_name_in(value),)


def _name_in(value: ast.expr) -> str:
    """Return ``x`` for ``x.sum()``, the ``repr`` of a constant, and "" for any other expression."""
    if isinstance(value, ast.Constant):
        return repr(value.value)
    while isinstance(value, (ast.Call, ast.Attribute)):
        value = value.func if isinstance(value, ast.Call) else value.value
    return value.id if isinstance(value, ast.Name) else ""


def _compared(nodes: Iterable[ast.AST], parameters: set[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            values = (each.pattern for each in node.cases)
            sides = [node.subject, *(each.value for each in values if isinstance(each, ast.MatchValue))]
        else:
            continue
        named = [each.id for each in sides if isinstance(each, ast.Name) and each.id in parameters]
        texts = [each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)]
        for name in named:
            found.setdefault(name, {}).update(dict.fromkeys(text for text in texts if isinstance(text, str)))
    return {name: tuple(texts) for name, texts in found.items() if texts}


def _numbers(nodes: Iterable[ast.AST]) -> tuple[float, ...]:
    values = (each.value for each in nodes if isinstance(each, ast.Constant))
    numbers = (float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool))
    return tuple(dict.fromkeys(number for number in numbers if 0 < number <= _LARGEST and number != 1))


def _tokens_first(node: _Def, nodes: Iterable[ast.AST]) -> str:
    """Return why a function's tensors probably have the shape ``[tokens, batch]``, or "" if nothing suggests it.

    The reason is a shape in the docstring, a loop backwards over the first axis, or a call along the first axis.
    """
    text = ast.get_docstring(node) or ""
    if match := _TOKENS_FIRST.search(text):
        return f"the docstring has the shape {match.group()}"
    for each in nodes:
        if isinstance(each, ast.For) and isinstance(each.target, ast.Name) and "reversed" in ast.unparse(each.iter):
            step = each.target.id
            for inner in ast.walk(each):
                if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Name) and inner.slice.id == step:
                    return f"the loop over {ast.unparse(each.iter)} reads {ast.unparse(inner)}"
    for each in nodes:
        if isinstance(each, ast.Call) and _ALONG_THE_FIRST.search(text := ast.unparse(each)):
            return f"the body has {text if len(text) < 60 else f'{text[:60]}…'}"
    return ""


#: Attributes of tensors and arrays. A parameter from which only these are read is a tensor, not an object.
_OF_TENSORS = {"shape", "dtype", "device", "ndim", "T", "mT", "data", "is_cuda", "requires_grad", "grad", "size"}


def _reads(node: _Def, inside: list[ast.AST], owner: ast.ClassDef | None) -> dict[str, tuple[str, ...]]:
    """Return parameter -> the attributes and keys that are read from it. Tensors are left out."""
    parameters = parameters_of(node)
    found = {name: _attributes(inside, name) for name in parameters}
    if owner is not None and parameters:
        methods = {each.name: each for each in owner.body if isinstance(each, _Def)}
        seen, queue = {node.name}, [(inside, parameters[0])]
        own = set(found[parameters[0]])
        while queue:
            nodes, self = queue.pop()
            called = {
                each.attr for each in nodes if isinstance(each, ast.Attribute) and ast.unparse(each.value) == self
            }
            for name in sorted(called & methods.keys() - seen):
                seen.add(name)
                inner = [each for statement in methods[name].body for each in ast.walk(statement)]
                first = [*methods[name].args.posonlyargs, *methods[name].args.args][:1]
                if first:
                    queue.append((inner, first[0].arg))
                    own |= set(_attributes(inner, first[0].arg))
        found[parameters[0]] = tuple(sorted(own - methods.keys()))
    return {name: paths for name, paths in found.items() if paths and not _OF_TENSORS.issuperset(paths)}


def _attributes(nodes: Iterable[ast.AST], name: str) -> tuple[str, ...]:
    """Return the attributes and constant keys that code reads from a variable. Called methods are left out."""
    paths, nodes = set(), list(nodes)
    methods = {node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            if ast.unparse(node.func.value) == name and node.args and isinstance(node.args[0], ast.Constant):
                paths.add(f"[{node.args[0].value!r}]")
            continue
        parts: list[str] = []
        inner: ast.AST = node.value if node in methods and isinstance(node, ast.Attribute) else node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        key = inner.slice if isinstance(inner, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and ast.unparse(inner.value) == name:  # type: ignore[attr-defined]
            paths.add(f"[{key.value!r}]")
        if (
            parts
            and isinstance(inner, ast.Name)
            and inner.id == name
            and isinstance(getattr(node, "ctx", None), ast.Load)
        ):
            while parts and parts[0] in _OF_TENSORS:
                parts.pop(0)
            paths.add(".".join(reversed(parts)))
    paths -= {""}
    return tuple(sorted(path for path in paths if not any(other.startswith(f"{path}.") for other in paths)))
