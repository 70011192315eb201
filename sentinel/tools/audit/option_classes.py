"""Read options from the source of nested dataclasses or pydantic models, which are not imported.

A default that code computes, in ``__post_init__`` or with a function, counts as unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property, lru_cache
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.tools.audit.options import (
    Option,
    assigned_in,
    called,
    choices_of,
    is_trainer,
    name_of,
    parsed,
    text_of,
)
from sentinel.values.files import regular_bytes

_DEEPEST = 12

#: Maximum number of sections that are read. Without a limit, twelve classes, each with ten fields of the next class's
#: type, would lead to 10^12 sections.
_MOST = 2000

#: A function that returns the file of a dotted module, or None if the file is not found.
Find = Callable[[str], "Path | None"]


#: Packages whose classes declare no options of their own.
_NO_OPTIONS = frozenset({"abc", "enum", "omegaconf", "pydantic", "pydantic_config", "pydantic_settings", "typing"})


def options_of_class(
    file: Path, name: str, find: Find, read: dict[Path, _Module] | None = None
) -> tuple[dict[str, Option], dict[str, str]]:
    """Return the fields of a configuration class and of its sections: dotted name -> option.

    :param find: finds the modules from which the class or its sections are imported.
    :param read: the modules that were read so far; the modules of this class are added.
    :return: the options, and :attr:`Options.open`: prefix of a section -> a base class that was not found.
    """
    modules = _Modules(find, {} if read is None else read)
    owner = modules.class_named(modules.read(file), name)
    return (dict(modules.options(owner)) if owner else {}), modules.open


@dataclass(frozen=True)
class Checked:
    """The code in a configuration class that may reject values.

    :ivar methods: the methods of the class and of its base classes, by name; the class itself comes first.
    :ivar constants: the names at the top level of the modules of these classes, with their values.
    :ivar attributes: the names that the bodies of the classes assign without an annotation, with their values; base
        classes come first.
    :ivar starts: the names of the methods that run when an object is created.
    """

    methods: tuple[Mapping[str, ast.FunctionDef], ...]
    constants: Mapping[str, ast.expr]
    attributes: tuple[tuple[str, ast.expr], ...]
    starts: tuple[str, ...]


def checks_of_class(file: Path, name: str, find: Find) -> dict[str, Checked]:
    """Return the code that checks the fields of a class and of its sections: section's prefix -> code."""
    modules = _Modules(find)
    owner = modules.class_named(modules.read(file), name)
    for _ in modules.options(owner) if owner else ():
        pass  # iterating reads the sections
    return {prefix: _checked(modules.lineage(one)) for prefix, one in modules.owners.items()}


def _checked(classes: list[_Class]) -> Checked:
    methods = [{node.name: node for node in one.node.body if isinstance(node, ast.FunctionDef)} for one in classes]
    starts: dict[str, None] = {}
    for own in methods:
        for name, node in own.items():
            after = any(
                isinstance(each, ast.Call) and called(each) == "model_validator" for each in node.decorator_list
            )
            if name == "__post_init__" or (after and [each.arg for each in node.args.args] == ["self"]):
                starts[name] = None
    constants = {name: value for one in reversed(classes) for name, value in one.module.values.items()}
    assigned = [node for one in reversed(classes) for node in one.node.body if isinstance(node, ast.Assign)]
    attributes = tuple((name_of(target), node.value) for node in assigned for target in node.targets)
    return Checked(tuple(methods), constants, attributes, tuple(starts))


def lineage_of(path: str, find: Find) -> dict[str, Path]:
    """Return a class and its base classes: name -> file. The result is empty if the source is not found.

    :param path: the dotted path of the class, or of a module's name for a class that it imports.
    """
    prefix, _, name = path.rpartition(".")
    file = find(prefix) if prefix else None
    return lineage_in(file, name, find) if file is not None else {}


def lineage_in(file: Path, name: str, find: Find) -> dict[str, Path]:
    """Return a class that a file defines or imports, and its base classes: name -> file; empty if it is not found.

    The file is the one that defines the class, or, if this file is not found, the file that names the class as a base.
    """
    modules = _Modules(find)
    owner = modules.class_named(modules.read(file), name)
    names: dict[str, Path] = {}
    for one in modules.lineage(owner) if owner is not None else ():
        names |= dict.fromkeys(map(name_of, one.node.bases), one.module.file) | names
        names[one.node.name] = one.module.file
    return {name: file for name, file in names.items() if name}


def trainers_with(classes: Collection[str], files: Iterable[Path], find: Find) -> dict[str, Path]:
    """Return the trainers that accept one of the configuration classes, and their base classes: name -> file.

    A trainer is left out if its constructor's annotations name only other configuration classes. A subclass counts as
    its base class, because it has the options of the base class.
    """
    modules, found = _Modules(find), dict[str, Path]()
    for file in files:
        with suppress(SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
            if not _A_TRAINER.search(regular_bytes(file, _LARGEST)):
                continue
            module = modules.read(file)
            for name in filter(is_trainer, module.classes):
                taken = modules.configurations(_Class(module.classes[name], module))
                if not taken or not taken.isdisjoint(classes):
                    found |= lineage_in(file, name, find)
    return found


_A_TRAINER = re.compile(rb"^class \w+Trainer\b", re.MULTILINE)

#: Skip files larger than this, in bytes: nobody writes so much Python by hand.
_LARGEST = 4_000_000


def trainer_next_to(boundary: str, used: Collection[str], callers: Iterable[Path], find: Find) -> str:
    """Return the trainer in the same module as a function if the run uses neither of the two; otherwise "".

    :param boundary: the dotted path of the function or class.
    :param used: the trainers that the run uses, and their base classes.
    :param callers: the script and the files of these trainers. If one of them contains the function's name, the run
        counts as using the function.
    """
    parts = boundary.split(".")
    found = ((find(".".join(parts[:size])), parts[size]) for size in range(len(parts) - 1, 0, -1))
    file, name = next(((file, name) for file, name in found if file is not None), (None, ""))
    with suppress(SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError):
        trainers = [each for each in _module(file, parsed(file)).classes if is_trainer(each)] if file else []
        if trainers and not {*trainers} & {*used}:
            texts = (caller.read_text(encoding="utf-8", errors="replace") for caller in {*callers} - {file})
            return "" if any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts) else trainers[0]
    return ""


@dataclass(frozen=True)
class _Module:
    tree: ast.Module
    file: Path

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def values(self) -> dict[str, ast.expr]:
        """Return name -> value for the assignments at the module's top level."""
        return assigned_in(self.tree.body)

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Return imported name -> (module, name in that module). A relative module begins with one dot per level."""
        return {
            alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def relative(self, module: str) -> Path | None:
        """Return the file of a relatively imported module, or None if it is not found."""
        name = module.lstrip(".")
        folder = self.file.parent
        for _ in range(len(module) - len(name) - 1):
            folder = folder.parent
        base = folder.joinpath(*name.split(".")) if name else folder
        places = (base.with_suffix(".py") if name else base / "__init__.py", base / "__init__.py")
        inside = (folder / "__init__.py").is_file()
        return next((place for place in places if inside and place.is_file()), None)


@lru_cache(maxsize=512)
def _module(file: Path, tree: ast.Module) -> _Module:
    """Return the module of a parsed file, from a cache."""
    return _Module(tree, file)


@dataclass(frozen=True)
class _Class:
    node: ast.ClassDef
    module: _Module


@dataclass(frozen=True)
class _Field:
    annotation: ast.expr
    value: ast.expr | None
    module: _Module


@dataclass(frozen=True)
class _Modules:
    find: Find
    by_file: dict[Path, _Module] = dataclass_field(default_factory=dict)
    open: dict[str, str] = dataclass_field(default_factory=dict)
    left: Iterator[int] = dataclass_field(default_factory=lambda: iter(range(_MOST)))
    #: The class of each section, by its prefix.
    owners: dict[str, _Class] = dataclass_field(default_factory=dict)

    def lineage(self, owner: _Class) -> list[_Class]:
        """Return a class, its base classes, and their base classes, as far as they are found."""
        found, left = dict[int, _Class](), [owner]
        while left and len(found) < _MOST:
            one = left.pop(0)
            if id(one.node) not in found:  # the class may be found as its own base: `class Config(Config)`
                found[id(one.node)] = one
                bases = (self.class_named(one.module, name_of(base)) for base in one.node.bases)
                left += [base for base in bases if base is not None]
        return list(found.values())

    def configurations(self, owner: _Class) -> set[str]:
        """Return the configuration classes that a class's constructor accepts by its annotations, and their base
        classes. If there is none, use the inherited constructor."""
        for one in self.lineage(owner):
            made = next((node for node in one.node.body if getattr(node, "name", "") == "__init__"), None)
            if isinstance(made, ast.FunctionDef):
                notes = [each.annotation for each in (*made.args.args, *made.args.kwonlyargs) if each.annotation]
                names = {name for note in notes for name in _named(note) if name.endswith("Config")}
                bases = [self.lineage(found) for name in names if (found := self.class_named(one.module, name))]
                if bases:
                    return {each.node.name for several in bases for each in several}
        return set()

    def read(self, file: Path) -> _Module:
        if file not in self.by_file:
            self.by_file[file] = _module(file, parsed(file))
        return self.by_file[file]

    def class_named(self, module: _Module, name: str) -> _Class | None:
        home, _, name = self._home(module, name)
        return _Class(home.classes[name], home) if home is not None and name in home.classes else None

    def foreign(self, module: _Module, base: ast.expr) -> str:
        """Return name and package of a base class that was not found, or "" if it cannot declare options."""
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            source, name = base.value.id, base.attr
        elif isinstance(base, ast.Name):
            _, source, name = self._home(module, base.id)
        else:
            return ""
        package = source.lstrip(".").partition(".")[0]
        known = not source or package in _NO_OPTIONS
        return "" if known else f"{name} of {package}" if package and not source.startswith(".") else name

    def _home(self, module: _Module, name: str) -> tuple[_Module | None, str, str]:
        """Follow the imports of a name to its definition. Return (module, "", name in the module).

        If the source of a module is missing, return (None, dotted path of the missing module, name in that module).
        """
        source = ""
        for _ in range(_DEEPEST):  # a name may be imported through several modules
            if name in module.classes or name not in module.imports:
                return module, "", name
            source, name = module.imports[name]
            if source.partition(".")[0] in _NO_OPTIONS:
                return None, source, name
            file = module.relative(source) if source.startswith(".") else self.find(source) if source else None
            try:
                found = self.read(file) if file is not None else None
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                found = None  # another package may be written for a newer Python
            if found is None:
                return None, source, name
            module = found
        return None, source, name

    def options(self, owner: _Class, prefix: str = "", values: Mapping[str, ast.expr] | None = None) -> Iterator[Named]:
        """Yield the options of a class and of its sections with their dotted names.

        :param values: field -> value, for the fields that a call of the class sets.
        """
        if prefix.count(".") > _DEEPEST or next(self.left, None) is None:
            return
        self.owners.setdefault(prefix, owner)
        for name, item in self._fields(owner, prefix).items():
            value = (values or {}).get(name)
            written = _Field(item.annotation, value, owner.module) if value is not None else item
            yield from self._field(f"{prefix}{name}", written)

    def _fields(self, owner: _Class, prefix: str, above: frozenset[ast.ClassDef] = frozenset()) -> dict[str, _Field]:
        fields: dict[str, _Field] = {}
        above |= {owner.node}
        for base in reversed(owner.node.bases):
            inherited = self.class_named(owner.module, base.id) if isinstance(base, ast.Name) else None
            if (
                inherited
                and inherited.node not in above
                and len(above) < _DEEPEST
                and next(self.left, None) is not None
            ):
                fields |= self._fields(inherited, prefix, above)
            elif inherited is None and (name := self.foreign(owner.module, base)):
                self.open.setdefault(prefix, name)
        for node in owner.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields[node.target.id] = _Field(node.annotation, node.value, owner.module)
        return fields

    def _field(self, name: str, item: _Field) -> Iterator[Named]:
        value, choices = item.value, _choices(item.annotation) or self._members(item)
        if isinstance(value, ast.Call) and called(value) in ("field", "Field"):
            keywords = {keyword.arg: keyword.value for keyword in value.keywords}
            choices = _declared_choices(keywords.get("metadata")) or choices
            default = value.args[0] if value.args else keywords.get("default")
            value = default if default is not None else _expression_of_factory(keywords.get("default_factory"))
        if isinstance(value, ast.Name) and value.id in item.module.values:
            value = item.module.values[value.id]
        call = _without_copy(value)
        made = self.class_named(item.module, called(call)) if call is not None else None
        sections = self._sections(item)
        text = "" if call is not None and called(call) in ("list", "dict", "set", "tuple") else text_of(value)
        if made is not None and call is not None:
            values = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
            found = dict(self.options(made, f"{name}.", values))
        else:
            found = {name: Option(text, choices)}
        for section in (section for section in sections if made is None or section.node is not made.node):
            for member, option in self.options(section, f"{name}."):
                known = found.setdefault(member, option)
                if known.choices and option.choices:  # a union of types, whose choices are joined
                    found[member] = Option(known.default, tuple(dict.fromkeys((*known.choices, *option.choices))))
                elif known.default != option.default:  # the default depends on the type
                    found[member] = Option(None)
        yield from found.items()

    def _sections(self, item: _Field) -> list[_Class]:
        """Return the classes with annotated fields that an annotation names, alone or in a union."""
        named = [self.class_named(module, name) for module, name in self._named(item.module, item.annotation)]
        return [
            owner
            for owner in named
            if owner is not None and any(isinstance(node, ast.AnnAssign) for node in owner.node.body)
        ]

    def _members(self, item: _Field) -> tuple[str, ...]:
        """Return the members' values and names if an annotation is an enumeration; otherwise ()."""
        names = [name for name in self._named(item.module, item.annotation) if name[1] != "None"]
        owner = self.class_named(*names[0]) if len(names) == 1 else None
        if owner is None or not any(name_of(base).endswith("Enum") for base in owner.node.bases):
            return ()
        assigned = [node for node in owner.node.body if isinstance(node, ast.Assign) and len(node.targets) == 1]
        texts = [text for node in assigned for text in (text_of(node.value), name_of(node.targets[0])) if text]
        return tuple(dict.fromkeys(texts))

    def _named(self, module: _Module, annotation: ast.expr, depth: int = 0) -> Iterator[tuple[_Module, str]]:
        """Yield the names in an annotation, and in type aliases such as ``Optim = SGD | AdamW``."""
        for name in _named(annotation):
            yield module, name
            home, _, own = self._home(module, name)
            if home is not None and own in home.values and depth < _DEEPEST:
                yield from self._named(home, home.values[own], depth + 1)


Named = tuple[str, Option]


def _expression_of_factory(factory: ast.expr | None) -> ast.expr | None:
    if isinstance(factory, ast.Lambda):
        return factory.body
    return ast.Call(factory, [], []) if isinstance(factory, ast.Name) else None


def _without_copy(value: ast.expr | None) -> ast.Call | None:
    if not isinstance(value, ast.Call):
        return None
    return _without_copy(value.args[0]) if called(value) in ("deepcopy", "copy") and value.args else value


def _named(annotation: ast.expr) -> Iterator[str]:
    """Yield the names in an annotation: a name, or a union such as ``Optional[A]`` or ``A | B``."""
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            yield from _named(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return
    elif isinstance(annotation, ast.BinOp):
        yield from _named(annotation.left)
        yield from _named(annotation.right)
    elif isinstance(annotation, ast.Subscript) and name_of(annotation.value) in ("Optional", "Union", "Annotated"):
        inner = annotation.slice
        for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
            yield from _named(part)


def _choices(annotation: ast.expr) -> tuple[str, ...]:
    literals = [
        node
        for node in ast.walk(annotation)
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal"
    ]
    others = {*_named(annotation)} - {"None"}  # int | Literal["disabled"]
    return choices_of(literals[0]) if len(literals) == 1 and not others else ()


def _declared_choices(metadata: ast.expr | None) -> tuple[str, ...]:
    if not isinstance(metadata, ast.Dict):
        return ()
    for key, value in zip(metadata.keys, metadata.values):
        if isinstance(key, ast.Constant) and key.value == "choices":
            return choices_of(value)
    return ()
