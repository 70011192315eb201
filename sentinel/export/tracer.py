"""A tracer: watches one measurement and writes down the calls and the tensor operations of which it consists.

A program is a list of statements and, for each observation key, an expression over them, all as plain data:

* ``{"input": [name, ...]}``: a canonical input, or a part of one;
* ``{"value": scalar}``, ``{"list": [...]}``, ``{"tuple": [...]}``, ``{"dict": [[key, node], ...]}``,
  ``{"namespace": [[name, node], ...]}``, ``{"array": [...], "dtype": name}``, ``{"slice": [node, node, node]}``;
* ``{"torch": dotted name}``, ``{"name": [module, path]}`` of the target, ``{"source": text}`` of an adapter's function;
* ``{"var": n}`` (what statement n gave), ``{"attr": [node, name]}``, ``{"item": [node, node]}``,
  ``{"binary": [operator, node, node]}``, ``{"unary": [operator, node]}``;
* ``{"unknown": reason}``: only in the observation.

Statements are ``{"op": "torch" | "call" | "method" | "new" | "property" | "invoke" | "set", ...}``.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Mapping
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from sentinel.export.recognising import MISSING, found, functions_of, owner_of, parameters_of, runs, torch_name
from sentinel.export.tagging import number_type, tagged

Node = dict[str, Any]

_SCALARS = (bool, int, float, str, type(None))
#: Frames in which a target answers a question of Python itself; they are no calls of the program.
_SILENT = frozenset({"<module>", "__getattr__", "__repr__", "__hash__", "__eq__", "__bool__", "__instancecheck__"})


class UntraceableError(Exception):
    """What was done cannot be written down as a program; says what."""


class Tracer:
    """Use as a context manager around one measurement.

    :param packages: the target's top-level packages; the outermost call of a function of theirs is a statement.
    :param inputs: the live canonical inputs.
    """

    def __init__(self, packages: frozenset[str], inputs: Mapping[str, Any]) -> None:
        self.packages = packages
        self.statements: list[Node] = []
        self.modules: dict[tuple[str, str], None] = {}
        self._nodes: dict[int, Node] = {}
        self._alive: list[Any] = []  # an id is only good while its object lives
        self._scalars: list[tuple[Any, Node]] = []
        self._writing: set[int] = set()
        self._depth = 0
        self._busy = 0
        self._open: Node | None = None
        self._error: str | None = None
        self._before: dict[str, dict[str, Any]] = {}
        self._patched: dict[tuple[str, str], Any] = {}
        self._mode: Any = None
        self.float_type = number_type(float, self)
        self.int_type = number_type(int, self)
        for name, value in inputs.items():
            self._register(value, {"input": [name]}, inside=True)

    # -- watching -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tracer:
        import torch

        self._factories: dict[CodeType, str] = {
            torch.nn.Parameter.__new__.__code__: "torch.nn.Parameter",
            torch.autograd.backward.__code__: "torch.autograd.backward",
        }
        self._before = {name: dict(vars(module)) for name, module in self._modules()}
        self._mode = _mode(self)
        self._mode.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        self._mode.__exit__(*error)

    def _modules(self) -> list[tuple[str, ModuleType]]:
        return [
            (name, module)
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in self.packages and isinstance(module, ModuleType)
        ]

    @property
    def outside(self) -> bool:
        """Whether what runs now is the binding's or the contract's own code."""
        return self._depth == 0 and self._busy == 0

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return") or self._busy:
            return
        code = frame.f_code
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in self.packages:
            if event == "call":
                self._depth += 1
                if self._depth == 1:
                    self._quietly(self._begin, frame)
            else:
                if self._depth == 1:
                    self._quietly(self._end, argument)
                self._depth -= 1
        elif self._depth == 0 and code in self._factories:
            if event == "call":
                given = dict(frame.f_locals)
                given.pop("cls", None)
                self._quietly(self._factory, self._factories[code], given)
            elif self._open is not None:
                self._quietly(self._end, argument)

    def _quietly(self, work: Any, *arguments: Any) -> None:
        """Writing down must not be watched, and what goes wrong in it must not be the target's exception."""
        self._busy += 1
        try:
            work(*arguments)
        except UntraceableError as error:
            self._error = self._error or str(error)
        except Exception as error:  # a strange object's own code
            self._error = self._error or f"{type(error).__name__} while a call was written down: {error}"
        finally:
            self._busy -= 1

    def _factory(self, name: str, given: Mapping[str, Any]) -> None:
        defaults = inspect.signature(found(name)).parameters
        arguments = [
            [key, self.node(value)]
            for key, value in given.items()
            if key not in defaults or value is not defaults[key].default
        ]
        self._open = {"op": "torch", "name": name, "args": [], "kwargs": arguments}

    def _begin(self, frame: FrameType) -> None:
        code = frame.f_code
        if code.co_name in _SILENT:
            self._open = None
            return
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise UntraceableError(f"{code.co_name} is a generator or a coroutine")
        self._note_patches()
        self._open = self._call(frame)

    def _call(self, frame: FrameType) -> Node:
        """The statement that a frame of the target is."""
        code = frame.f_code
        module = str(frame.f_globals["__name__"])
        values = dict(frame.f_locals)
        names = list(code.co_varnames[: code.co_argcount])
        first: Any = values.get(names[0]) if names else None
        head: Node
        rest = names[1:]
        function: Any = None
        if code.co_name == "__init__" and names:
            cls = type(first)
            self._use(cls.__module__, cls.__qualname__)
            head = {"op": "new", "function": [cls.__module__, cls.__qualname__], "object": id(first)}
            self._alive.append(first)
            function = inspect.getattr_static(cls, "__init__")
        else:
            owner = owner_of(first, code) if names else None
            known = self._known_function(code)
            if known is not None:
                function, node = known
                head, rest = {"op": "invoke", "function": node}, names
            elif owner is not None:
                cls, attribute, kind, function = owner
                mine = self._nodes.get(id(first))
                if kind == "property":
                    return {"op": "property", "self": self.node(first), "attribute": attribute}
                if kind == "classmethod":
                    self._use(first.__module__, first.__qualname__)
                    target = f"{first.__qualname__}.{attribute}"
                    head = {"op": "call", "function": [first.__module__, target]}
                elif mine is not None:
                    head = {"op": "method", "self": mine, "attribute": attribute}
                else:
                    self._use(cls.__module__, cls.__qualname__)
                    head = {"op": "call", "function": [cls.__module__, f"{cls.__qualname__}.{attribute}"]}
                    rest = names
            else:
                module, path, function = self._named(frame)
                self._use(module, path)
                head, rest = {"op": "call", "function": [module, path]}, names
        return {**head, **self._arguments(code, values, names, rest, function)}

    def _named(self, frame: FrameType) -> tuple[str, str, Any]:
        """Where the function of a frame stands: (module, path in it, function). A decorator's wrapper has one code for
        all that it decorates; what it has closed over tells them apart."""
        own = str(frame.f_globals["__name__"])
        modules = [(own, sys.modules.get(own)), *self._modules()]
        for name, module in modules:
            for path, value in functions_of(module, name):
                if runs(value, frame):
                    return name, path, value
        raise UntraceableError(f"{own}.{frame.f_code.co_name} has no name by which it could be called")

    def _arguments(
        self, code: CodeType, values: Mapping[str, Any], names: list[str], rest: list[str], function: Any
    ) -> Node:
        defaults = {p.name: p.default for p in parameters_of(function)}
        only = code.co_posonlyargcount
        args: list[Node] = []
        kwargs: list[Any] = []
        extra = code.co_argcount + code.co_kwonlyargcount
        variadic: tuple[Any, ...] = ()
        if code.co_flags & inspect.CO_VARARGS:
            variadic = values.get(code.co_varnames[extra], ())
            extra += 1
        for name in rest:
            positional = bool(variadic) or names.index(name) < only
            if positional or not _same(values[name], defaults.get(name, inspect.Parameter.empty)):
                node = self._argument(values[name], name)
                (args.append(node) if positional else kwargs.append([name, node]))
        args += [self._argument(item, f"args[{index}]") for index, item in enumerate(variadic)]
        for name in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]:
            if not _same(values[name], defaults.get(name, inspect.Parameter.empty)):
                kwargs.append([name, self._argument(values[name], name)])
        if code.co_flags & inspect.CO_VARKEYWORDS:
            for name, value in values.get(code.co_varnames[extra], {}).items():
                kwargs.append([str(name), self._argument(value, str(name))])
        given = [values[name] for name in names if name in values]
        return {"args": args, "kwargs": kwargs, "given": [id(item) for item in given if not isinstance(item, _SCALARS)]}

    def _argument(self, value: Any, name: str) -> Node:
        """An argument; a container with tensors in it becomes a variable of its own, as the call may put more in."""
        node = self.node(value)
        if isinstance(value, (dict, list, SimpleNamespace)) and id(value) not in self._nodes and value:
            node = self._state({"op": "make", "value": node, "hint": name}, value)
        return node

    def _known_function(self, code: CodeType) -> tuple[Any, Node] | None:
        """A function that a call has returned, and that has no name of its own."""
        for value in self._alive:
            inner = getattr(value, "__func__", value)
            if isinstance(inner, FunctionType) and inner.__code__ is code and id(value) in self._nodes:
                return value, self._nodes[id(value)]
        return None

    def _end(self, returned: Any) -> None:
        statement, self._open = self._open, None
        if statement is None:
            return
        made = statement.pop("object", None)
        given = statement.pop("given", [])
        if made is not None:
            returned = next(item for item in reversed(self._alive) if id(item) == made)
        number = len(self.statements)
        self.statements.append(statement)
        if made is not None or not isinstance(returned, _SCALARS):
            self._register(returned, {"var": number}, inside=True)
        elif returned is not None:
            self._scalars.append((returned, {"var": number}))
            self._alive.append(returned)
        for identity in given:  # what the call has put into its arguments
            if identity in self._nodes:
                value = next((item for item in self._alive if id(item) == identity), None)
                self._register_inside(value, self._nodes[identity], 0)

    def _state(self, statement: Node, value: Any) -> Node:
        node: Node = {"var": len(self.statements)}
        self.statements.append(statement)
        self._nodes[id(value)] = node
        self._alive.append(value)
        return node

    def _note_patches(self) -> None:
        """What the binding has put in the place of something in the target's modules, since the last call."""
        for name, module in self._modules():
            before = self._before.get(name)
            if before is None:
                continue
            for attribute, value in list(vars(module).items()):
                last = self._patched.get((name, attribute), before.get(attribute, MISSING))
                if value is not last and not attribute.startswith("__") and not _loaded(value, before, attribute):
                    self._patched[name, attribute] = value
                    self._use(name, "")
                    self.statements.append({"op": "set", "function": [name, attribute], "value": self.node(value)})

    def torch_call(self, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """An operation on tensors by the binding or the contract: done, and written down."""
        import torch

        name = torch_name(function)
        self._busy += 1
        try:
            if name == "torch.Tensor.__iter__":  # an iterator cannot be named; its tensors can
                name, function = "torch.Tensor.unbind", torch.Tensor.unbind
                result = function(*arguments)
                self._note(name, arguments, {}, result)
                return iter(result)
            result = function(*arguments, **keywords)
            if name in self._factories.values():  # written down when it is left, as it was called
                return result
            return self._note(name, arguments, keywords, result, function)
        finally:
            self._busy -= 1

    def _note(
        self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any], result: Any, function: Any = None
    ) -> Any:
        """Write an operation down where it is part of a computation; its result, which may be a number that knows."""
        import numpy
        import torch

        short = name.rpartition(".")[2]
        try:
            if name.endswith(".__get__"):
                if isinstance(result, torch.Tensor):
                    node = {"attr": [self.node(arguments[0]), name.split(".")[-2]]}
                    self._register(result, self._nodes.get(id(result), node))
            elif name.endswith(".__set__"):
                mine, value = self.node(arguments[0]), self.node(arguments[1])
                self.statements.append(
                    {"op": "setattr", "self": mine, "attribute": name.split(".")[-2], "value": value}
                )
            elif short in ("item", "tolist", "numpy") or _has(result, (torch.Tensor, numpy.ndarray)):
                return self._write(name, arguments, keywords, result, function)
            elif short.startswith("__set") or short == "backward":
                self._write(name, arguments, keywords, None)
        except UntraceableError as error:
            self._error = self._error or str(error)
        return result

    def _write(self, name: str, arguments: Any, keywords: Mapping[str, Any], result: Any, function: Any = None) -> Any:
        statement = {
            "op": "torch",
            "name": name,
            "args": [self.node(item) for item in arguments],
            "kwargs": [[key, self.node(item)] for key, item in _needed(function, keywords).items()],
        }
        node: Node = {"var": len(self.statements)}
        self.statements.append(statement)
        if type(result) is float:
            return tagged(self.float_type, float, result, node)
        if type(result) is int:
            return tagged(self.int_type, int, result, node)
        if result is not None:
            self._register(result, node, inside=True)
        return result

    def number(self, kind: Any, base: type, value: Any) -> Any:
        """``float(value)`` or ``int(value)``, with where it comes from, if anything is known of that."""
        import torch

        if isinstance(value, torch.Tensor) and self.outside:
            self._busy += 1
            try:
                plain = base(value.item())
                return self._write("torch.Tensor.item", (value,), {}, plain)
            finally:
                self._busy -= 1
        if isinstance(value, base) and hasattr(value, "node"):
            return value
        plain = base(value)
        node = getattr(value, "node", None)
        return plain if node is None else tagged(kind, base, plain, {"cast": [base.__name__, node]})

    # -- naming -------------------------------------------------------------------------------------------------------

    def _use(self, module: str, path: str) -> None:
        self.modules[module, path] = None

    def _register(self, value: Any, node: Node, inside: bool = False) -> None:
        if isinstance(value, _SCALARS):
            return
        self._nodes[id(value)] = node
        self._alive.append(value)
        if inside:
            self._register_inside(value, node, 0)

    def _register_inside(self, value: Any, node: Node, depth: int) -> None:
        """Name what a returned (or given) object holds, by the way that leads to it."""
        if depth > 4:
            return
        for step, item in _parts(value):
            place: Node = {"attr": [node, step[1]]} if step[0] == "attr" else {"item": [node, _scalar(step[1])]}
            if "input" in node and step[0] == "item" and isinstance(value, (dict, list, tuple)):
                place = {"input": [*node["input"], step[1]]}
            if isinstance(item, _SCALARS):
                if item is not None and "input" not in node:
                    self._scalars.append((item, place))
                    self._alive.append(item)
            else:
                if id(item) not in self._nodes:
                    self._nodes[id(item)] = place
                    self._alive.append(item)
                self._register_inside(item, self._nodes[id(item)], depth + 1)  # there may be new things in old ones

    def node(self, value: Any) -> Node:
        """How to write a value: by the name it has, or by what it is made of.

        :raises UntraceableError: for an object that nothing is known of, or that refers to itself.
        """
        known = getattr(value, "node", None) if isinstance(value, (float, int)) else self._nodes.get(id(value))
        if known is not None:
            return known
        if id(value) in self._writing and not isinstance(value, _SCALARS):
            raise UntraceableError(f"it takes a {type(value).__name__} that refers to itself")
        self._writing.add(id(value))
        try:
            return self._written(value)
        finally:
            self._writing.discard(id(value))

    def _written(self, value: Any) -> Node:
        """A value that has no name yet."""
        import numpy
        import torch

        if isinstance(value, enum.Enum):
            self._use(type(value).__module__, type(value).__qualname__)
            return {"name": [type(value).__module__, f"{type(value).__qualname__}.{value.name}"]}
        if isinstance(value, _SCALARS):
            return _scalar(value)
        if value is Ellipsis:
            return {"source": "..."}
        if isinstance(value, torch.Tensor):
            raise UntraceableError(f"a tensor of shape {list(value.shape)} comes from code that is not watched")
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return {"torch": str(value)}
        if isinstance(value, torch.device):
            return {"source": f'torch.device("{value}")'}
        if isinstance(value, slice):
            return {"slice": [self.node(item) for item in (value.start, value.stop, value.step)]}
        if isinstance(value, numpy.ndarray):
            return {"array": [self.node(item) for item in value.tolist()], "dtype": str(value.dtype)}
        if isinstance(value, numpy.generic):
            return self.node(value.item())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._constructed(type(value), zip(value._fields, value))
        if isinstance(value, (list, tuple)):
            return {("tuple" if isinstance(value, tuple) else "list"): [self.node(item) for item in value]}
        if isinstance(value, (set, frozenset)):
            return {"set": [self.node(item) for item in sorted(value, key=repr)]}
        if type(value) in (dict,) or type(value).__name__ in ("OrderedDict", "defaultdict"):
            return {"dict": [[self.node(key), self.node(item)] for key, item in value.items()]}
        if isinstance(value, SimpleNamespace) and any(_refers(item, value) for item in vars(value).values()):
            return self._of_itself(value)
        if isinstance(value, SimpleNamespace) or type(value).__qualname__ == "Namespace":
            return {"namespace": [[name, self.node(item)] for name, item in vars(value).items()]}
        return self._object(value)

    def _of_itself(self, value: SimpleNamespace) -> Node:
        """A namespace with itself, or methods bound to it, among its attributes: made first, and given those then."""
        rest = {name: item for name, item in vars(value).items() if not _refers(item, value)}
        made = {"namespace": [[name, self.node(item)] for name, item in rest.items()]}
        mine = self._state({"op": "make", "value": made, "hint": "stand_in"}, value)
        for name, item in vars(value).items():
            if name not in rest:
                node = {"bound": [self.node(item.__func__), mine]} if isinstance(item, MethodType) else mine
                self.statements.append({"op": "setattr", "self": mine, "attribute": name, "value": node})
        return mine

    def _unconstructed(self, value: Any) -> Node:
        """An object of the target's of which no constructor was seen: the binding has made it without one."""
        cls = type(value)
        self._use(cls.__module__, cls.__qualname__)
        mine = self._state({"op": "bare", "function": [cls.__module__, cls.__qualname__]}, value)
        for name, item in list(vars(value).items()):
            self.statements.append({"op": "setattr", "self": mine, "attribute": name, "value": self.node(item)})
        return mine

    def _object(self, value: Any) -> Node:
        module = getattr(value, "__module__", None) or getattr(type(value), "__module__", "")
        if isinstance(value, ModuleType):
            self._use(value.__name__, "")
            return {"name": [value.__name__, ""]}
        named = isinstance(value, (type, FunctionType)) and "<" not in value.__qualname__
        if named and str(module).partition(".")[0] == "torch":
            return {"torch": f"{module}.{value.__qualname__}"}
        if named and str(module).partition(".")[0] in self.packages:
            self._use(str(module), value.__qualname__)
            return {"name": [module, value.__qualname__]}
        if isinstance(value, type) and value.__module__ == "builtins":
            return {"source": value.__name__}
        if isinstance(value, (FunctionType, MethodType)):
            return self._function(value)
        cls = type(value)
        if cls.__module__.partition(".")[0] in self.packages and hasattr(value, "__dict__"):
            return self._unconstructed(value)
        if cls.__module__.startswith("tensordict") and hasattr(value, "batch_size"):
            items = {str(key): value[key] for key in value.keys()}  # noqa: SIM118 - no mapping
            return {"tensordict": self.node(items), "size": [int(size) for size in value.batch_size]}
        if cls.__module__.startswith("omegaconf"):
            from omegaconf import OmegaConf

            return {"omegaconf": self.node(OmegaConf.to_container(value, resolve=False))}
        if cls.__module__.startswith("sentinel_file_"):
            return self._stand_in(value)
        raise UntraceableError(
            f"it takes a {cls.__module__}.{cls.__qualname__} of which it is not known how it was made"
        )

    def _constructed(self, cls: type, fields: Any) -> Node:
        self._use(cls.__module__, cls.__qualname__)
        return {
            "construct": [cls.__module__, cls.__qualname__],
            "kwargs": [[name, self.node(value)] for name, value in fields],
        }

    def _function(self, value: Any) -> Node:
        """A function of the adapter that the target calls: its own source, free variables filled in."""
        from sentinel.export.sources import SourceError, function_source

        if isinstance(value, MethodType):
            return {"attr": [self.node(value.__self__), value.__name__]}
        try:
            return {"source": function_source(value, self.node)}
        except SourceError as error:
            raise UntraceableError(str(error)) from None

    def _stand_in(self, value: Any) -> Node:
        """An object of a class of the adapter's own: the class's source, and the object's attributes."""
        from sentinel.export.sources import SourceError, class_source

        cls = type(value)
        if not hasattr(value, "__dict__"):
            raise UntraceableError(f"the stand-in {cls.__qualname__} has no plain attributes")
        try:
            text = class_source(cls, self.node)
        except SourceError as error:
            raise UntraceableError(str(error)) from None
        node = {
            "stand_in": cls.__name__.lstrip("_"),
            "class": text,
            "attributes": [[name, self.node(item)] for name, item in vars(value).items()],
        }
        return self._state({"op": "make", "value": node, "hint": cls.__name__.lstrip("_").lower()}, value)

    # -- the end ------------------------------------------------------------------------------------------------------

    def program(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """The program, once the measurement is over.

        :raises UntraceableError: where a part could not be written down.
        """
        if self._error is not None:
            raise UntraceableError(self._error)
        if not any(item["op"] in ("call", "method", "invoke", "new") for item in self.statements):
            raise UntraceableError("no call into the target was seen")
        return {
            "statements": self.statements,
            "observation": [[key, self._observed(value, key)] for key, value in observation.items()],
            "modules": [list(item) for item in self.modules],
        }

    def _observed(self, value: Any, key: str) -> Node:
        if isinstance(value, _SCALARS) and getattr(value, "node", None) is None:
            return self._observed_scalar(value, key)
        if type(value) is dict and id(value) not in self._nodes:
            if key == "raised":
                return {"raised": True}
            return {"dict": [[_scalar(name), self._observed(item, str(name))] for name, item in value.items()]}
        if type(value) in (list, tuple) and id(value) not in self._nodes:
            return {"list": [self._observed(item, key) for item in value]}
        try:
            return self.node(value)
        except UntraceableError as error:
            return {"unknown": str(error)}

    def _observed_scalar(self, value: Any, key: str) -> Node:
        """A plain number that a call returned. Small integers and the like are one object for the whole process, so
        they are looked for by value, and only one place may have it."""
        if value is None:
            return {"value": None}
        same = [node for known, node in self._scalars if known is value]
        if not same:
            same = [node for known, node in self._scalars if type(known) is type(value) and known == value]
        named = [node for node in same if _last_step(node) == key]
        unique = {repr(node): node for node in (named or same)}
        if len(unique) == 1:
            return next(iter(unique.values()))
        return {"unknown": "it is computed from the answer in Python, beside the tensors"}


def _mode(tracer: Tracer) -> Any:
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not tracer.outside:
                return function(*args, **(kwargs or {}))
            return tracer.torch_call(function, args, kwargs or {})

    return Watch()


def _refers(item: Any, value: Any) -> bool:
    return item is value or (isinstance(item, MethodType) and item.__self__ is value)


def _scalar(value: Any) -> Node:
    return {"value": value if isinstance(value, (bool, str, type(None))) else +value}


def _needed(function: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a torch function that say something: not its defaults, and not that it is on the CPU."""
    defaults = {p.name: p.default for p in parameters_of(function)} if isinstance(function, FunctionType) else {}
    return {
        key: value
        for key, value in keywords.items()
        if not _same(value, defaults.get(key, inspect.Parameter.empty)) and str(value) != "cpu"
    }


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, _SCALARS) and type(value) is type(default) and value == default)


def _has(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds):
        return True
    return isinstance(value, (list, tuple)) and any(_has(item, kinds) for item in value)


def _last_step(node: Node) -> Any:
    if "item" in node:
        return node["item"][1].get("value")
    return node["attr"][1] if "attr" in node else None


def _parts(value: Any) -> list[tuple[tuple[str, Any], Any]]:
    """What an object holds, with the step that leads there."""
    import torch

    if isinstance(value, (torch.Tensor, str, bytes, type, ModuleType, FunctionType)):
        return []
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(("attr", name), getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple)):
        return [(("item", index), item) for index, item in enumerate(value)]
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return [(("item", key), value[key]) for key in list(value.keys()) if isinstance(key, (str, int))]
    held = getattr(value, "__dict__", None)
    return [(("attr", name), item) for name, item in held.items() if name.isidentifier()] if held else []


def _loaded(value: Any, before: Mapping[str, Any], attribute: str) -> bool:
    """Whether a module's new attribute is a submodule that was imported meanwhile."""
    return isinstance(value, ModuleType) and attribute not in before
