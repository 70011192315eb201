"""Provide stub modules: inert replacements for packages that are imported but not installed.

Only import statements in the target's own files get a stub module, and only outside ``try`` blocks that handle a failed
import. Stub modules never enter ``sys.modules``, so ``find_spec``, guarded imports and third-party importers still see
that the module is missing.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.metadata
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

_ONLY_WHERE_NAMED = """
    accelerate anyio beartype datasets dill huggingface_hub jaxtyping msgspec multiprocess pandas psutil pyarrow
    pydantic pydantic_core regex safetensors tokenizers tqdm transformers typer xxhash
"""
#: Packages of which no single version suits all frameworks, and their dependencies. Only a target that names such a
#: package in ``preload`` imports the real one. For all other targets the package counts as missing even if it is
#: installed, so that their verdicts do not depend on it.
ONLY_WHERE_NAMED = frozenset(_ONLY_WHERE_NAMED.split())

_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class StubUsedError(RuntimeError):
    """Raised if the framework's code uses a value of a stub module during a probe."""


class StubState:
    """The state of this process's stub modules: whether using one raises, and which were used.

    :ivar probing: True while a probe runs: using a stub module is then recorded and raises. False during imports,
        including imports of the target's own modules inside a probe.
    :ivar used: the stub modules used while probing, by dotted name.
    :ivar answer: called with a stub module's dotted name when the framework calls the stub during a probe. Returns a
        one-element tuple with the result of this call, or None if the call must raise.
    """

    def __init__(self) -> None:
        self.probing = False
        self.used: list[str] = []
        self.answer: Callable[[str], tuple[Any] | None] = lambda name: None

    def use(self, name: str) -> None:
        if self.probing:
            self.used.append(name)
            raise StubUsedError(
                f"{name} was used but is not installed; install the package, or add a stand-in to the adapter"
            )


_STATE = StubState()


def state() -> StubState:
    return _STATE


class StubModule:
    """Replaces a missing module, and everything that is imported from it.

    Reading an attribute returns another stub. Operations that would produce a value (a call, a truth test, arithmetic,
    iteration) have no effect during import and raise during a probe. ``isinstance(x, stub)`` is false, because nothing
    is an instance of a missing class.
    """

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_stub_name", name)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__version__":
            return "0.0.0"
        if attribute == "__all__":
            return []
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        child = StubModule(f"{self._stub_name}.{attribute}")
        object.__setattr__(self, attribute, child)
        return child

    def __repr__(self) -> str:
        return f"<stub {self._stub_name}>"

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Support ``class X(stub.Base)``: drop the stub if there are other bases, otherwise use an inert base class."""
        found = [base for base in bases if isinstance(base, StubModule)]
        return (_inert_base(self._stub_name),) if len(found) == len(bases) and found[0] is self else ()

    def __get_pydantic_core_schema__(self, *_: Any) -> Any:
        return _any_schema()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _STATE.probing and (answer := _STATE.answer(self._stub_name)) is not None:
            return answer[0]
        _STATE.use(self._stub_name)
        if len(args) == 1 and not kwargs and _decorable(args[0]):
            return args[0]  # used as a decorator: return the target's function or class unchanged
        if len(args) == 3 and isinstance(args[0], str) and isinstance(args[1], tuple) and isinstance(args[2], dict):
            return type(args[0], args[1], args[2])  # used as a metaclass
        return StubModule(f"{self._stub_name}()")

    def __enter__(self) -> StubModule:
        _STATE.use(self._stub_name)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        _STATE.use(self._stub_name)
        return False

    def __hash__(self) -> int:
        return id(self)


def _decorable(value: Any) -> bool:
    if isinstance(value, StubModule):
        return False
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))


@cache
def _inert_base(name: str) -> type:
    """Return a base class that accepts any arguments during import, and raises during a probe."""

    def initialise(self: object, *_: Any, **__: Any) -> None:
        _STATE.use(name)

    def attribute(self: object, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return StubModule(f"{name}.{attribute}")

    members = {
        "__init_subclass__": classmethod(lambda cls, **_: None),  # accepts ``class X(stub.Base, table=True)``
        "__init__": initialise,
        "__getattr__": attribute,
        "__get_pydantic_core_schema__": classmethod(lambda *_: _any_schema()),
    }
    return type(name.rpartition(".")[2], (), members)


def _any_schema() -> Any:
    from pydantic_core import core_schema

    return core_schema.any_schema()


def _operator(name: str) -> Callable[..., Any]:
    def method(self: StubModule, *_: Any) -> Any:
        _STATE.use(self._stub_name)
        return _INERT[name]() if name in _INERT else StubModule(f"{self._stub_name}.{name}")

    return method


class _InertModule(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        return getattr(StubModule(self.__name__), attribute)


class InertModules(MetaPathFinder, Loader):
    """An import finder that returns stub modules for missing packages and everything in them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        inert = any(f"{name}.".startswith(f"{one}.") for one in self._names)
        return ModuleSpec(name, self, is_package=True) if inert else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, _: ModuleType) -> None: ...


#: Special method -> its result during import.
_INERT: dict[str, Callable[[], Any]] = {
    "bool": bool, "int": int, "index": int, "float": float, "len": int, "iter": lambda: iter(()),
    "setitem": lambda: None, "delitem": lambda: None,
}  # fmt: skip
# ``X | None`` and ``X[int]`` occur in annotations; the other operations occur in constants of modules.
_OPERATORS = """
    or ror and rand xor getitem contains add radd sub rsub mul rmul matmul truediv rtruediv floordiv mod pow
    neg pos abs invert lshift rshift lt le gt ge
"""
for _name in (*_INERT, *_OPERATORS.split()):
    setattr(StubModule, f"__{_name}__", _operator(_name))


class ImportRecorder:
    """Replaces ``builtins.__import__``: returns stub modules, and records which module imported which.

    :param roots: absolute directories of the target's packages; only import statements in their files are handled.
    :param packages: the target's own top-level names, which never become stub modules.
    :param versions: package -> the version of its stub module, for a target that rejects other versions. The stub has
        it as ``__version__``, and ``importlib.metadata.version`` returns it to the target's own files.
    :param real: the packages that the target names in ``preload``; they are never replaced if they are installed.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        packages: tuple[str, ...],
        versions: Mapping[str, str] | None = None,
        real: Iterable[str] = (),
    ) -> None:
        self.roots = roots
        self.packages = frozenset(packages)
        self.hidden = ONLY_WHERE_NAMED - {name.partition(".")[0] for name in real}
        self.edges: dict[str, set[str]] = {}
        self.stubs: dict[str, StubModule] = {}
        self.missing: dict[str, set[str]] = {}
        self._versions = dict(versions or {})
        self._closures: dict[str, set[str]] = {}  # the results of `closure` since the last recorded import
        self._import = builtins.__import__
        self._version = importlib.metadata.version

    def install(self) -> None:
        builtins.__import__ = self
        self._version, importlib.metadata.version = importlib.metadata.version, self.version

    def version(self, distribution_name: str) -> str:
        """Return the version of an installed package, or the version that the adapter declares for a missing one."""
        try:
            return self._version(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            name = distribution_name.lower().replace("-", "_")
            if name not in self._versions or not sys._getframe(1).f_code.co_filename.startswith(self.roots):
                raise
            return self._versions[name]

    def __call__(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:  # the signature that the import statement calls
        importer = globals.get("__name__") if isinstance(globals, dict) else None
        if importer is None or importer.partition(".")[0] not in self.packages:
            return self._import(name, globals, locals, fromlist, level)
        self._record(importer, name, globals, fromlist, level)
        probing = _STATE.probing
        try:
            if level or name.partition(".")[0] in self.packages:
                _STATE.probing = False
            elif name.partition(".")[0] in self.hidden:
                raise ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}", name=name.partition(".")[0])
            return self._import(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            top = name.partition(".")[0]
            missing = error.name or ""
            there = missing not in self.hidden and installed(missing)
            if level or {top, missing.partition(".")[0]} & self.packages or not missing or there:
                raise
            # An installed package that lacks a module or needs another package is not replaced by a stub.
            if (missing != top and not fromlist) or self._guarded(sys._getframe(1)):
                raise
            self._link(sys._getframe(1))
            self.missing.setdefault(importer, set()).add(missing)
            return self._stub(name if fromlist else top)
        finally:
            _STATE.probing = probing

    def _stub(self, name: str) -> StubModule:
        parts = name.split(".")
        stub = self.stubs.setdefault(parts[0], StubModule(parts[0]))
        if parts[0] in self._versions:
            object.__setattr__(stub, "__version__", self._versions[parts[0]])
        for part in parts[1:]:
            stub = getattr(stub, part)
        return stub

    def _record(self, importer: str, name: str, globals: Any, fromlist: Any, level: int) -> None:
        absolute = name
        if level:
            package = globals.get("__package__") or importer.rpartition(".")[0]
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            absolute = f"{base}.{name}" if name else base
        if absolute.partition(".")[0] in self.packages:
            edges = self.edges.setdefault(importer, set())
            count = len(edges)
            edges.add(absolute)
            edges.update(f"{absolute}.{item}" for item in fromlist or ())
            if len(edges) > count:
                self._closures.clear()

    def _link(self, frame: FrameType | None) -> None:
        """Record which of the framework's modules caused an import, with an import statement or with ``importlib``."""
        inner = ""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.roots):
                outer = frame.f_globals.get("__name__", "")
                if inner not in ("", outer):
                    self.edges.setdefault(outer, set()).add(inner)
                inner = outer
            frame = frame.f_back
        self._closures.clear()

    def _guarded(self, frame: FrameType | None) -> bool:
        """Return True if an import is inside ``try: … except ImportError:``, so that the code must see the failure."""
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self.roots):
                line = linecache.getline(file, frame.f_lineno)
                # An import at the left margin cannot be in a ``try`` block. Only other imports need parsing.
                outside = line.startswith(("import ", "from ")) or not _handled(frame)
                if not outside and frame.f_lineno in _guarded_lines(file):
                    return True
            frame = frame.f_back
        return False

    def closure(self, module: str) -> set[str]:
        """Return the framework's modules that a module imports, directly or indirectly."""
        if module not in self._closures:
            self._closures[module] = self._reach(module)
        return self._closures[module]

    def _reach(self, module: str) -> set[str]:
        modules: set[str] = set()
        queue = [module]
        while queue:
            current = queue.pop()
            parts = current.split(".")
            for end in range(1, len(parts) + 1):
                name = ".".join(parts[:end])
                if name not in modules and name in sys.modules:
                    modules.add(name)
                    queue.extend(self.edges.get(name, ()))
        return modules

    def stubs_of(self, module: str) -> list[str]:
        """Return the stub modules that a module and its closure import."""
        return sorted({stub for name in self.closure(module) for stub in self.missing.get(name, ())})


@cache
def installed(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


@cache
def _guarded_lines(file: str) -> frozenset[int]:
    """Return the lines inside ``try`` blocks that continue after a failed import."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    lines: set[int] = set()
    for node in ast.walk(tree):
        guards = (isinstance(node, ast.Try) and _goes_on_without(node.handlers)) or (
            isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items)
        )
        if guards:
            for statement in node.body:  # type: ignore[attr-defined]
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(lines)


def _handled(frame: FrameType) -> bool:
    """Return True if the running code would catch an exception that is raised now. Before Python 3.11, return True."""
    entries = getattr(dis.Bytecode(frame.f_code), "exception_entries", None)
    return entries is None or any(entry.start <= frame.f_lasti < entry.end for entry in entries)


def _goes_on_without(handlers: list[ast.ExceptHandler]) -> bool:
    """Return True if the code continues without the package: a handler of the failed import does not raise again."""
    for handler in handlers:
        if _catches(handler.type):
            leaves = any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in ast.walk(handler))
            return leaves or not isinstance(handler.body[-1], ast.Raise)
    return False


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(_catches(item) for item in kind.elts)
    return (kind.id if isinstance(kind, ast.Name) else getattr(kind, "attr", "")) in _GUARDS


def _suppresses(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return name == "suppress" and any(_catches(argument) for argument in call.args)
