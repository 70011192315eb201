"""Read the arguments of configuration classes from a Python script, which is not executed.

A value is read if it is a literal, simple arithmetic of literals, or a name that the script binds exactly once to such
a value. ``**name`` and ``**dict(...)`` are read under the same conditions. The fields of the script's own subclasses
are read too. An argument of the script itself has the value that the user gives, or otherwise its default.
``config.beta = 0.1``, ``setattr(config, "beta", 0.1)`` and ``config = replace(config, beta=0.1)`` are read if the
statement runs unconditionally and no other statement sets the option. All other values are reported as not read.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes.affects import in_text
from sentinel.tools.audit.effective import is_reference
from sentinel.tools.audit.options import called, is_trainer, name_of
from sentinel.tools.audit.script_arguments import Argument, declared_arguments, declared_fields
from sentinel.values.files import read_text

_DEEPEST = 20
#: Maximum number of configurations of one class that a script may create.
_MOST = 20
#: Maximum number of characters of the script's code in a message.
_LONGEST = 80
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass
class Call:
    """A call that creates an object of a configuration class.

    :ivar name: the class.
    :ivar settings: the values of the arguments that could be read, by dotted name.
    :ivar unread: the dotted names of the other arguments; ``**name`` and ``*name`` for unpacked arguments.
    :ivar later: the options that other statements than the call set.
    :ivar silent: the options in ``later`` that are assigned as attributes. This raises no error if the class has no
        such option.
    :ivar lines: option -> the line that sets it.
    :ivar own: if the script calls its own subclass of the class, the fields that this subclass declares.
    """

    name: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    later: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    lines: dict[str, int] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Parser:
    """A parser that fills dataclasses from the command line: ``HfArgumentParser((Arguments, GRPOConfig))``.

    :ivar name: its class.
    :ivar strict: the sources, ``command`` or (configuration) ``file``, in which an unknown option certainly makes the
        parser raise an error.
    :ivar keys: keys of the file that the parser itself reads. They are not options.
    """

    name: str = ""
    strict: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Script:
    """The configuration of a training run that a script creates or changes.

    :ivar calls: the calls of configuration classes, starting with the one that has the most arguments.
    :ivar assigned: option that the script sets on any object (``args.beta = 0.1``) -> line.
    :ivar parsed: the configuration classes that the script fills from its command line.
    :ivar also_parsed: the other classes that the script fills from its command line.
    :ivar parser: the parser that fills these classes.
    :ivar references: the reward functions and data that the script uses.
    :ivar trainers: the dotted paths of the trainer classes that the script uses, without the module if the script does
        not import the class by name.
    :ivar fields: the fields that the script's own subclasses of configuration classes declare.
    :ivar assumed: ``name=default``, for each argument of the script that was read as its default.
    :ivar taken: the names of the given arguments that were read.
    """

    calls: list[Call]
    assigned: Mapping[str, int]
    parsed: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    also_parsed: tuple[str, ...] = ()
    parser: Parser = field(default_factory=Parser)
    fields: frozenset[str] = frozenset()
    assumed: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()


def read_script(file: Path, classes: Collection[str], given: Mapping[str, Any] = MappingProxyType({})) -> Script:
    """Read the configuration of a training run that a script creates or changes.

    :param classes: the names of the configuration classes; a script may import them under other names.
    :param given: name -> value of the arguments that the user passes to the script. Other arguments have their default.
    :raises SentinelError: if the file cannot be read, or is not Python.
    """
    with parsing(file):
        script = parse_script(file, classes, given)
        tree = script.tree
        calls, parsed, references = script.calls(), tuple(script.parsed()), tuple(dict.fromkeys(script.references()))
        trainers, others = tuple(dict.fromkeys(script.trainers())), tuple(dict.fromkeys(script.parsed(others=True)))
        parser = script.parser()
        assigned = dict(script.assigned())
        assigned |= dict([*script.other_configurations(), *script.given_classes()])
        for trainer in ast.walk(tree):  # methods of a trainer use its copy of an option, as in self.beta
            if isinstance(trainer, ast.ClassDef) and any(is_trainer(name_of(base)) for base in trainer.bases):
                own = [node for node in ast.walk(trainer) if isinstance(node, ast.stmt)]
                written = [(option, node) for node in own for option, _ in _assigned(node, _is_self, script.positions)]
                assigned |= {option: node.lineno for option, node in written}
    fields, taken = _fields(tree), frozenset(script.taken)
    return Script(calls, assigned, parsed, references, trainers, others, parser, fields, script.defaults(), taken)


def parse_script(file: Path, classes: Collection[str], given: Mapping[str, Any]) -> ParsedScript:
    """Parse a script. :func:`read_script` documents the parameters."""
    text = read_text(file)
    with parsing(file), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ParsedScript(ast.parse(text), frozenset(classes), given)


@contextmanager
def parsing(file: Path) -> Iterator[None]:
    """Raise a SentinelError that names the file instead of an error of Python's parser."""
    try:
        yield
    except SyntaxError as error:
        raise SentinelError(f"{file}:{error.lineno or 1}:{error.offset or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SentinelError(f"{file}: not Python that can be parsed: {error or type(error).__name__}") from None
    except SentinelError as error:
        named = str(error).startswith(f"{file}:")  # by `parsing` within `parsing`
        raise SentinelError(str(error) if named else f"{file}: {error}") from None


#: Base classes that have options.
_CONFIGURATION = re.compile(r".*(Config|Args|Arguments|Options|Settings|Params|Parameters)")


def _fields(tree: ast.Module) -> frozenset[str]:
    """Return the fields that the script's own configuration classes add.

    A field whose type is another of these classes is left out, because it is an existing section with an extended
    class.
    """
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    own = {node.name: node for node in classes if any(map(_CONFIGURATION.fullmatch, map(name_of, node.bases)))}
    declared = (node for each in own.values() for node in each.body if isinstance(node, ast.AnnAssign))
    named = ((name_of(node.target), name_of(node.annotation)) for node in declared)
    return frozenset(name for name, section in named if section not in own)


#: Method with which a parser fills dataclasses -> the sources that it reads, and the keys of the file for the parser.
_PARSING: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "parse_args_and_config": (("command", "file"), ("env",)),
    "parse_args_into_dataclasses": (("command",), ()),
    "parse_json_file": (("file",), ()),
    "parse_yaml_file": (("file",), ()),
}
#: Keyword argument of these methods -> the value with which unknown options raise an error, and the sources concerned.
_STRICT: Mapping[str | None, tuple[bool | None, tuple[str, ...]]] = {
    "allow_extra_keys": (False, ("file",)),
    "fail_with_unknown_args": (True, ("file",)),
    "json_file": (None, ()),
    "return_remaining_strings": (False, ("command", "file")),
    "separate_remaining_strings": (None, ()),
    "yaml_file": (None, ()),
}


def _tolerated(call: ast.Call) -> tuple[str, ...]:
    """Return the sources (``command``, ``file``) in which a call of a parsing method may accept unknown options."""
    found = [] if not call.args or "file" in called(call) else ["command", "file"]  # other arguments than the script's
    for item in call.keywords:
        strict, sources = _STRICT.get(item.arg, (True, ("command", "file")))
        known = item.arg in _STRICT and isinstance(item.value, ast.Constant) and item.value.value is strict
        found += [] if known else sources
    return tuple(found)


#: Methods that change a dictionary or a list.
_CHANGES = frozenset({"append", "clear", "extend", "pop", "popitem", "setdefault", "update"})


#: The value of an expression that cannot be read.
_UNREADABLE = object()

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _Table:
    """A dictionary in a script: the statement that creates it, and (key, statement) for each key that is set later."""

    made: ast.Assign | ast.AnnAssign
    changes: Sequence[tuple[str, ast.Assign]]


@dataclass
class ParsedScript:
    """A script whose configuration can be read.

    :ivar once: name that the script binds exactly once -> its value.
    :ivar aliases: name under which the script imports an object -> the object's original name.
    :ivar derived: the script's own subclasses of configuration classes, with their fields as settings.
    :ivar positions: the names that are bound only by loops over ``range`` or ``enumerate``. Their values are numbers,
        so they cannot be the names of options.
    :ivar arguments: name of a variable with the script's parsed arguments -> these arguments.
    :ivar assumed: the arguments that were read as their defaults.
    :ivar taken: the names of the given arguments that were read.
    """

    tree: ast.Module
    classes: frozenset[str]
    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = list(ast.walk(self.tree))
        bound = Counter(name for node in nodes for name in _bound_names(node))
        counted = Counter(name for node in nodes for name in _loop_counters(node))
        self.positions = frozenset(name for name, times in counted.items() if times == bound[name])
        bound.subtract(_replaced(node) for node in nodes)  # config = replace(config, …) counts as a change
        assigned = [node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None]
        self.once: dict[str, ast.expr] = {}
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            only = targets[0] if len(targets) == 1 and not _replaced(node) else None
            if isinstance(only, ast.Name) and bound[only.id] == 1:
                self.once[only.id] = node.value  # type: ignore[assignment]
        self.nodes = nodes
        self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self.functions = {node.name: node for node in nodes if isinstance(node, _FUNCTIONS)}
        self.uses: dict[str, list[ast.expr]] = {}
        for use in nodes:
            if isinstance(use, (ast.Name, ast.Attribute)) and isinstance(use.ctx, ast.Load):
                self.uses.setdefault(_key(use), []).append(use)
        self.assumed: dict[str, Any] = {}
        self.taken: set[str] = set()
        self.arguments: dict[str, Mapping[str, Argument]] = {}
        self.tables = self._tables(assigned, bound)
        for name, value in list(self.once.items()):
            made = isinstance(value, ast.Call) and called(value) == "dict"
            if (made or isinstance(value, (ast.Dict, ast.List))) and not self._is_only_read(name):
                del self.once[name]
        self.imported: dict[str, str] = {}  # name -> the dotted path of the imported object
        self.aliases: dict[str, str] = {}
        for line in (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))):
            module = f"{'.' * line.level}{line.module or ''}." if isinstance(line, ast.ImportFrom) else ""
            for alias in line.names:
                name = alias.asname or (alias.name if module else alias.name.partition(".")[0])
                self.imported[name] = f"{module}{alias.name}" if module or alias.asname else name
                self.aliases |= {name: alias.name} if module and alias.asname else {}
        self.aliases |= {name: name_of(value) for name, value in self.once.items() if name_of(value) in self.classes}
        self.derived: dict[str, Call] = {}
        for own in sorted((node for node in nodes if isinstance(node, ast.ClassDef)), key=lambda node: node.lineno):
            bases = [name_of(base) for base in own.bases]
            roots = [self.derived[base].name if base in self.derived else self._class(base) for base in bases]
            if any(roots):
                call = Call(next(filter(None, roots)), own.lineno)
                for above in (self.derived[base] for base in reversed(bases) if base in self.derived):
                    call.settings |= above.settings
                    call.unread += above.unread
                    call.lines |= above.lines
                    call.own |= above.own
                self._read_declared_defaults(own, call)
                self.derived[own.name] = call
        self.arguments |= dict(self._parsed_arguments())

    def defaults(self) -> tuple[str, ...]:
        """Return ``name=default`` for each argument that was read as its default."""
        return tuple(f"{name}={in_text(value)}" for name, value in self.assumed.items())

    def _parsed_arguments(self) -> Iterator[tuple[str, Mapping[str, Argument]]]:
        """Yield each variable that has the script's parsed arguments, and these arguments.

        Such a variable is ``args`` in ``args = parser.parse_args()``, or a parameter whose annotation is a class of the
        script that the script never calls.
        """
        made = {called(node) for node in self.nodes if isinstance(node, ast.Call)}
        own = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef) and node.name not in made}
        for node in self.nodes:
            if isinstance(node, ast.arg) and node.annotation is not None and name_of(node.annotation) in own:
                yield from self._unchanged({node.arg}, declared_fields(own[name_of(node.annotation)]))
            elif isinstance(node, ast.Call) and called(node) in ("parse_args", "parse_known_args"):
                names, others = self._follow(node)
                if not others:
                    yield from self._unchanged(names, declared_arguments(self.nodes))

    def _unchanged(
        self, names: Collection[str], arguments: Mapping[str, Argument]
    ) -> Iterator[tuple[str, Mapping[str, Argument]]]:
        """Yield each name with the arguments that no statement (``args.beta = 1``) changes."""
        written = {
            option
            for statement, _ in _statements(self.tree)
            for option, _ in _assigned(statement, lambda owner: _key(owner) in names, self.positions)
        }
        if not any(option.startswith(ANY) for option in written):
            kept = {name: argument for name, argument in arguments.items() if name not in written}
            yield from ((name, kept) for name in names)

    def _argument(self, node: ast.Attribute, depth: int) -> Any:
        """Return the value of ``args.beta``: the user's value or, without it, the default.

        :raises ValueError: if the value is not known.
        """
        owner = _key(node.value)
        argument = self.arguments.get(owner, {}).get(node.attr)
        if argument is None or not self._holds_arguments(node.value):
            raise ValueError
        flag = next((flag for flag in argument.flags if flag in self.given), None)
        if flag is not None:
            self.taken.add(flag)
            return self.given[flag] if argument.flags[flag] else not self.given[flag]
        value = self.literal(argument.default, depth + 1)
        self.assumed[node.attr] = value
        return value

    def _holds_arguments(self, node: ast.expr) -> bool:
        """Return False for a parameter to which the script may pass something else than its arguments."""
        function: ast.AST | None = self._enclosing_function(node)
        while function is not None and isinstance(node, ast.Name):
            assert isinstance(function, _FUNCTIONS)
            given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            parameter = next((each for each in given if each.arg == node.id), None)
            if parameter is not None:
                return parameter.annotation is not None or self._receives(function.name, node.id)
            function = self._enclosing_function(self.parents[function])
        return True

    def _receives(self, function: str, parameter: str) -> bool:
        """Return True if a function is only called, and always with the script's arguments for the parameter."""
        uses = [*self.uses.get(function, ()), *self.uses.get(f".{function}", ())]
        for use in uses:
            call = self.parents[use]
            if not isinstance(call, ast.Call) or call.func is not use:
                return False
            passed = [item for item in (*call.args, *call.keywords) if parameter in self._parameters(call, item)]
            values = [item.value if isinstance(item, ast.keyword) else item for item in passed]
            parses = ("parse_args", *(name for name in self.functions if name.startswith("parse")))
            if not values or not all(
                _key(each) in self.arguments or (isinstance(each, ast.Call) and called(each) in parses)
                for each in values
            ):
                return False
        return bool(uses)

    def _tables(self, assigned: Sequence[ast.Assign | ast.AnnAssign], bound: Mapping[str, int]) -> dict[str, _Table]:
        """Return the dictionaries that have one name, are bound once, and change only by ``name["key"] = value``."""
        changes: dict[str, list[tuple[str, ast.Assign]]] = {}
        for node in assigned:
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                key = target.slice.value if isinstance(target.slice, ast.Constant) else None
                if isinstance(key, str) and isinstance(node, ast.Assign):
                    changes.setdefault(target.value.id, []).append((key, node))
        found = {}
        for node in assigned:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name = getattr(targets[0], "id", "") if len(targets) == 1 else ""
            later = changes.get(name, [])
            if name and bound[name] == 1 + len(later) and _items(node.value) is not None and self._is_only_read(name):
                found[name] = _Table(node, later)
        return found

    def assigned(self) -> Iterator[tuple[str, int]]:
        """Yield (option, line) for each statement such as ``config.lr = 1e-6``.

        Assignments to the script's own dictionaries and lists are skipped if they never leave their variable, because
        the framework then cannot read them.
        """
        stored = [node for node in self.nodes if isinstance(node, (ast.Name, ast.Attribute))]
        bound = Counter(_key(node) for node in stored if isinstance(node.ctx, ast.Store))
        bound.update(name for node in self.nodes if not isinstance(node, _NAMED) for name in _bound_names(node))
        made: Counter[str] = Counter()
        for node in (node for node in self.nodes if isinstance(node, (ast.Assign, ast.AnnAssign))):
            targets, value = node.targets if isinstance(node, ast.Assign) else [node.target], node.value
            if isinstance(value, _CONTAINERS) or (isinstance(value, ast.Call) and called(value) in _MAKERS):
                made.update(map(_key, targets))
        own = {name for name, times in made.items() if name and times == bound[name] and self._stays(name)}

        def is_it(owner: ast.expr) -> bool:
            return _is_any(owner) and _key(owner) not in own

        for statement, _ in _statements(self.tree):
            yield from ((option, statement.lineno) for option, _ in _assigned(statement, is_it, self.positions))

    def _stays(self, name: str) -> bool:
        """Return True if a variable's value is never passed to a function, returned or bound to another name."""
        for node in self.uses.get(name, ()):
            above = self.parents[node]
            part = isinstance(above, (ast.Attribute, ast.Compare)) or getattr(above, "iter", None) is node
            part = part or (isinstance(above, ast.Subscript) and above.value is node)
            if not (part or (isinstance(above, ast.Call) and _HARMLESS.fullmatch(called(above)))):
                return False
        return True

    def _is_only_read(self, name: str) -> bool:
        """Return True if a dictionary or list cannot change after its creation: it has one name, and no function
        receives it that may change it."""
        for node in self.uses.get(name, ()):
            above = self.parents[node]
            call = self.parents[above] if isinstance(above, ast.keyword) and above.arg else above
            named = call.func is not node and called(call) if isinstance(call, ast.Call) else ""
            if named and not (named[:1].isupper() or named == "dict" or _HARMLESS.fullmatch(named)):
                return False
            if isinstance(above, (ast.Assign, ast.AnnAssign, ast.Return, ast.List, ast.Tuple)):
                return False
        return True

    def parsed(self, others: bool = False) -> Iterator[str]:
        """Yield the configuration classes that a parser fills: ``GRPOConfig`` for ``TrlParser((GRPOConfig,))``.

        :param others: yield the other classes that a parser fills instead.
        """
        for node in self._parsers():
            for part in (part for item in (*node.args, *node.keywords) for part in self._parts(item)):
                name = name_of(part) if isinstance(part, (ast.Name, ast.Attribute)) else ""
                if name in self.derived or self._class(name):
                    if not others:
                        yield self.derived[name].name if name in self.derived else self._class(name)
                elif others and name[:1].isupper():
                    yield name

    def _parsers(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call) and called(node).endswith("Parser")]

    def parser(self) -> Parser:
        """Return the parser that fills the script's configuration classes.

        Its ``strict`` is empty if the script has several parsers or defines the parser's class itself, because it is
        then not known whether unknown options raise an error.
        """
        parsers = [node for node in self._parsers() if node.args or node.keywords]
        own = {node.name for node in self.nodes if isinstance(node, ast.ClassDef)}
        name = called(parsers[0]) if parsers else ""
        calls = [node for node in self.nodes if isinstance(node, ast.Call) and called(node) in _PARSING]
        keys = tuple(key for node in calls for key in _PARSING[called(node)][1])
        if len(parsers) != 1 or name in own:
            return Parser(name, keys=keys)
        reads = {source for node in calls for source in _PARSING[called(node)][0]}
        return Parser(name, frozenset(reads.difference(*map(_tolerated, calls))), keys)

    def _parts(self, node: ast.AST, depth: int = 0) -> Iterator[ast.AST]:
        """Yield the parts of an expression, and of the values of variables in it."""
        for part in ast.walk(node):
            yield part
            if isinstance(part, ast.Name) and part.id in self.once and depth < _DEEPEST:
                yield from self._parts(self.once[part.id], depth + 1)

    def trainers(self) -> Iterator[str]:
        """Yield the dotted paths of the trainer classes that the script uses, if it creates an object of one.

        For a class that the script itself defines, its base classes are yielded instead.
        """
        own = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        named: dict[ast.expr, str] = {}
        for use in (use for uses in self.uses.values() for use in uses):
            root, _, rest = ast.unparse(use).partition(".")
            path = ".".join(filter(None, [self.imported.get(root, root), rest]))
            known = root in self.imported or not rest
            if known and is_trainer(path) and path.rpartition(".")[2][:1].isupper():
                named[use] = path
        calls = (node.func for node in self.nodes if isinstance(node, ast.Call))
        if any(function in named or name_of(function) in own for function in calls):
            yield from (path for path in named.values() if path not in own)

    def other_configurations(self) -> Iterator[tuple[str, int]]:
        """Yield (code, line) of each configuration that a trainer receives and that cannot be read."""
        for node in (node for node in self.nodes if isinstance(node, ast.Call) and is_trainer(called(node))):
            for given in (item.value for item in node.keywords if item.arg == "args"):
                value = self.once.get(given.id) if isinstance(given, ast.Name) else given
                while isinstance(value, ast.Subscript):  # parser.parse_args_into_dataclasses()[0]
                    value = value.value
                if value is None and isinstance(given, ast.Name) and given.id not in self.imported:
                    continue  # a parameter, or one of several results of a parser
                own = called(value) if isinstance(value, ast.Call) else ""
                parsed = own.startswith("parse_args") and any(self.parsed())
                if not (own in self.derived or self._class(own) or own == "replace" or parsed):
                    yield _any(given), node.lineno

    def given_classes(self) -> Iterator[tuple[str, int]]:
        """Yield (code, line) of each call or decorator that receives a configuration class, because it may change
        defaults."""
        for own in (node for node in self.nodes if isinstance(node, ast.ClassDef) and node.name in self.derived):
            for each in (*own.decorator_list, *(item.value for item in own.keywords)):  # and its metaclass
                if not _READS_A_CLASS.fullmatch(called(each) if isinstance(each, ast.Call) else name_of(each)):
                    yield _any(each), each.lineno
        for use in (use for name, uses in self.uses.items() if self._class(name.lstrip(".")) for use in uses):
            inner: ast.AST = use
            while isinstance(self.parents[inner], _CARRIERS):
                inner = self.parents[inner]
            call = self.parents[inner]
            if isinstance(call, ast.Call) and call.func is not inner:
                name = called(call)
                reads = (
                    name in _WRITES or name[:1].isupper() or _HARMLESS.fullmatch(name) or _READS_A_CLASS.fullmatch(name)
                )
                if not (reads or (name in self.functions and self._parameters(call, inner) not in (["self"], ["cls"]))):
                    yield _any(call), call.lineno

    def references(self) -> Iterator[str]:
        """Yield the code of reward functions and data that a trainer receives, and of loaded datasets."""
        listed: list[ast.AST] = []
        for node in (node for node in self.nodes if isinstance(node, ast.Call)):
            if is_trainer(called(node)):
                given = [item for item in node.keywords if item.arg and is_reference(item.arg)]
                values = [self.once.get(getattr(item.value, "id", ""), item.value) for item in given]
                yield from (f"{item.arg}={_shortened(value)}" for item, value in zip(given, values))
                listed += [part for value in values for part in ast.walk(value)]
        for node in (node for node in self.nodes if isinstance(node, ast.Call) and node not in listed):
            if called(node) == "load_dataset" and node.args:
                yield f"load_dataset({_shortened(node.args[0])})"

    def _class(self, name: str) -> str:
        name = self.aliases.get(name, name)
        return name if name in self.classes else ""

    def _read_declared_defaults(self, node: ast.ClassDef, call: Call) -> None:
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and called(value) in ("field", "Field"):
                value = next((item.value for item in value.keywords if item.arg == "default"), value)
            for target in targets:
                if isinstance(target, ast.Name):
                    call.own.add(target.id)
                if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                    self._value(target.id, value, call)
        for child in ast.walk(node):
            if isinstance(child, ast.stmt):
                for option, _ in _assigned(child, _is_self, self.positions):
                    self._value(option, None, call)

    def calls(self) -> list[Call]:
        """Return the calls of configuration classes, the call with the most arguments first.

        :raises SentinelError: if the script creates too many configurations of one class.
        """
        made = sorted(self._calls(), key=lambda item: -len(item[1].settings) - len(item[1].unread))
        followed = [(node, call) for node, call in made if call.name == made[0][1].name]
        if len(followed) > _MOST:
            raise SentinelError(f"the script creates {len(followed)} configurations; at most {_MOST} are read")
        for node, call in followed:
            self._apply_later_assignments(node, call)
        return [call for _, call in made]

    def _calls(self) -> Iterator[tuple[ast.Call, Call]]:
        arguments = {
            id(child) for node in self.nodes if self._made(node) for child in ast.walk(node) if child is not node
        }
        for node in self.nodes:
            name = self._made(node)
            if name and id(node) not in arguments:  # a section of another configuration is read as part of it
                assert isinstance(node, ast.Call)
                declared = self.derived.get(called(node), Call(name, 0))
                call = Call(name, node.lineno, dict(declared.settings), [*declared.unread])
                call.lines, call.own = {**declared.lines}, declared.own
                self._read(node, call)
                yield node, call

    def _made(self, node: ast.AST) -> str:
        """Return the configuration class of which a call makes an object, or "" for other nodes."""
        if not isinstance(node, ast.Call):
            return ""
        name = called(node)
        return self.derived[name].name if name in self.derived else self._class(name)

    def _read(self, node: ast.Call, call: Call, prefix: str = "", depth: int = 0) -> None:
        for argument in node.args:
            text = _shortened(argument)
            starred = isinstance(argument, ast.Starred)
            call.unread.append(f"{prefix}{text}" if starred else f"{prefix}(argument without a name: {text})")
        for keyword in node.keywords:
            if keyword.arg is None:
                self._unpack(keyword.value, call, prefix)
            else:
                self._value(f"{prefix}{keyword.arg}", keyword.value, call, depth)

    def _value(self, name: str, node: ast.expr | None, call: Call, depth: int = 0) -> None:
        """Store the value of an option, which replaces an earlier value. It is unknown if the expression is None."""
        call.settings.pop(name, None)
        call.lines[name] = node.lineno if node is not None else call.line
        if name in call.unread:
            call.unread.remove(name)
        value = self.once.get(node.id, node) if isinstance(node, ast.Name) else node
        if isinstance(value, ast.Call) and called(value)[:1].isupper() and depth < _DEEPEST:
            before = len(call.settings)
            if value.keywords and not value.args:  # a section: ActorConfig(lr=1e-6)
                self._read(value, call, f"{name}.", depth + 1)
            if len(call.settings) > before:
                return
        read = self._read_literal(node)
        if read is _UNREADABLE:
            call.unread.append(name)
        else:
            call.settings[name] = read

    def _unpack(self, node: ast.expr, call: Call, prefix: str, depth: int = 0) -> None:
        """Read each item of ``**{"beta": 0.1}`` or ``**name`` like a keyword argument."""
        table = self.tables.get(node.id) if isinstance(node, ast.Name) else None
        items = _items(table.made.value if table else node)
        if items is None or depth > _DEEPEST:
            call.unread.append(f"{prefix}**{_shortened(node)}")
            return
        for key, value in items:
            if key is None:
                self._unpack(value, call, prefix, depth + 1)
            else:
                self._value(f"{prefix}{key}", value, call)
        for key, change in table.changes if table else ():
            certain = self.in_order(table.made, change, node) if table else False
            self._value(f"{prefix}{key}", change.value if certain else None, call)

    def in_order(self, first: ast.stmt, change: ast.stmt, use: ast.AST) -> bool:
        """Return True if ``change`` certainly runs after ``first`` and before ``use`` is evaluated."""
        blocks = [block for _, block in ast.iter_fields(self.parents[first]) if isinstance(block, list)]
        return any(first in block and change in block for block in blocks) and (
            first.lineno < change.lineno < getattr(use, "lineno", 0)
            and self._enclosing_function(use) is self._enclosing_function(first)
        )

    def _follow(self, made: ast.Call) -> tuple[set[str], list[ast.AST]]:
        """Return the variables that contain a configuration, and the code that may change it.

        Such code is a call that passes the configuration to a function from outside the script, a call of one of its
        methods, a container that includes it, or a statement that rebinds one of its names. Calls of classes, calls of
        functions that only read, and writes that :func:`_assigned` finds are left out.
        """
        names: set[str] = set()
        found: list[ast.AST] = []
        left: list[ast.expr] = [made]
        while left:
            use = left.pop()
            inner: ast.AST = use
            above = self.parents[use]
            more: list[str] = []
            while isinstance(above, _CARRIERS) or _is_dict_of(above, inner.__eq__):
                more += [above.target.id] if isinstance(above, ast.NamedExpr) else []
                inner, above = above, self.parents[above]
            if isinstance(above, (ast.Assign, ast.AnnAssign)):
                targets = above.targets if isinstance(above, ast.Assign) else [above.target]
                more += [_key(part) for target in targets for part in getattr(target, "elts", [target])]
                found += [above] if isinstance(inner, (ast.List, ast.Dict, ast.Set)) or "" in more else []
            elif isinstance(above, ast.Return):
                maker = getattr(self._enclosing_function(use), "name", "")
                calls = [self.parents[name] for name in self.uses.get(maker, ())]
                left += [call for call in calls if isinstance(call, ast.Call) and call is not use]
            elif isinstance(above, ast.Call) and above.func is not inner:
                name = called(above)
                logs = isinstance(above.func, ast.Attribute) and _LOGS.fullmatch(name)
                if name in self.functions:
                    more += self._parameters(above, inner)
                elif not (name in (*_WRITES, "update") or _HARMLESS.fullmatch(name) or logs or name[:1].isupper()):
                    found.append(above)
            elif isinstance(above, ast.Attribute):
                call = self.parents[above]
                fields = inner is not use and above.attr in _CHANGES
                known = _READS.fullmatch(above.attr) or above.attr in _WRITES or fields
                found += [call] if isinstance(call, ast.Call) and call.func is above and not known else []
            elif isinstance(above, (ast.For, ast.comprehension, ast.Yield, ast.Lambda)):
                found.append(above)
            for name in more:
                if name and name not in names:
                    names.add(name)
                    left += self.uses.get(name, ())
        for node in self.nodes:
            if isinstance(node, ast.Assign) and any(_key(target) in names for target in node.targets):
                value = node.value
                same = _key(value) in names or isinstance(value, (ast.Constant, ast.IfExp)) or _replaced(node)
                if not (same or self._made(value) or (isinstance(value, ast.Call) and called(value) in self.functions)):
                    found.append(node)
        return names, found

    def _parameters(self, call: ast.Call, given: ast.AST) -> list[str]:
        """Return, in a list, the parameter that receives an argument of a call. Return none if the script does not
        define the function."""
        arguments = self.functions[called(call)].args
        named = [*arguments.posonlyargs, *arguments.args]
        if isinstance(given, ast.keyword):
            return [given.arg or ""]
        first = 1 if isinstance(call.func, ast.Attribute) and named and named[0].arg in ("self", "cls") else 0
        place = first + next((place for place, item in enumerate(call.args) if item is given), len(named))
        return [named[place].arg] if place < len(named) else []

    def _enclosing_function(self, node: ast.AST) -> ast.AST | None:
        above: ast.AST | None = node
        while above is not None and not isinstance(above, _FUNCTIONS):
            above = self.parents.get(above)
        return above

    def _apply_later_assignments(self, node: ast.Call, call: Call) -> None:
        found: dict[str, list[ast.expr | None]] = {}
        names, others = self._follow(node)
        passed = {*call.settings, *call.unread}
        for statement, certain in _statements(self.tree, self._enclosing_function(node)):
            for option, value in _assigned(statement, lambda owner: _key(owner) in names, self.positions):
                found.setdefault(option, []).append(value if certain else None)
                replaces = any(isinstance(part, ast.Call) and called(part) == "replace" for part in ast.walk(statement))
                call.silent |= set() if replaces else {option} - passed
        for code in others:
            found[_any(code)] = [None]
        call.later = set(found)
        for option, values in found.items():
            self._value(option, values[0] if len(values) == 1 else None, call)
        if any(option.startswith(ANY) for option in found):
            for option in list(call.settings):
                self._value(option, None, call)

    def _read_literal(self, node: ast.expr | None) -> Any:
        try:
            return self.literal(node)
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            return _UNREADABLE

    def literal(self, node: ast.expr | None, depth: int = 0) -> Any:
        """Return the value of an expression, if its source determines it.

        :raises ArithmeticError, TypeError, ValueError, RecursionError: if the value is not known.
        """
        if depth > _DEEPEST:
            raise ValueError
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bool, type(None))):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.once:
            return self.literal(self.once[node.id], depth + 1)
        if isinstance(node, ast.Attribute):
            return self._argument(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.literal(node.operand, depth + 1)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self.literal(node.left, depth + 1), self.literal(node.right, depth + 1)
            if all(isinstance(side, (int, float)) for side in (left, right)):
                return _ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
            if not any(isinstance(part, ast.FormattedValue) and part.format_spec for part in node.values):
                return "".join(str(self.literal(part, depth + 1)) for part in parts)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.literal(item, depth + 1) for item in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            keys = [str(key.value) for key in node.keys if isinstance(key, ast.Constant)]
            return dict(zip(keys, (self.literal(value, depth + 1) for value in node.values)))
        if isinstance(node, ast.Call) and called(node) == "dict" and not node.args:  # noqa: SIM102
            if all(keyword.arg for keyword in node.keywords):
                return {str(keyword.arg): self.literal(keyword.value, depth + 1) for keyword in node.keywords}
        raise ValueError


def _items(node: ast.expr | None) -> list[tuple[str | None, ast.expr]] | None:
    """Return the (key, value) pairs of a dictionary expression, or None if a key is not a literal string. The key of
    ``**other`` is None."""
    if isinstance(node, ast.Call) and called(node) == "dict" and not node.args:
        return [(item.arg, item.value) for item in node.keywords]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [(None, node.left), (None, node.right)]
    if not isinstance(node, ast.Dict):
        return None
    items: list[tuple[str | None, ast.expr]] = []
    for key, value in zip(node.keys, node.values):
        if key is None:
            items.append((None, value))
        elif isinstance(key, ast.Constant) and isinstance(key.value, str):
            items.append((key.value, value))
        else:
            return None
    return items


def _replaced(node: ast.AST) -> str:
    """Return ``name`` for the statement ``name = dataclasses.replace(name, …)``, and "" for any other."""
    value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    name = name_of(node.targets[0]) if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) else ""
    if not isinstance(value, ast.Call) or called(value) != "replace" or not value.args:
        return ""
    return name if name and getattr(value.args[0], "id", "") == name else ""


#: Beginning of the name of a write that may set any option. The text of the code follows.
ANY = "any option ("
_HARMLESS = re.compile("asdict|copy|deepcopy|getattr|hasattr|id|isinstance|len|p?print|repr|str|type|vars")
#: Functions and methods that set or delete an option; :func:`_called` interprets their calls.
_WRITES = frozenset({"setattr", "delattr", "replace", "__setattr__", "__delattr__", "__setitem__", "__ior__"})
_NAMED = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
#: Expressions and functions that create a new container.
_CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_MAKERS = frozenset({"Counter", "OrderedDict", "defaultdict", "dict", "list", "set"})
_LOGS = re.compile("debug|dumps?|error|info|log|warning|write")
_CARRIERS = (ast.keyword, ast.Starred, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.IfExp, ast.BoolOp, ast.NamedExpr)
_READS_A_CLASS = re.compile("cast|dataclass|fields|get_type_hints|issubclass|signature|super")
#: Attributes of a class that determine the defaults of all its options, and attributes of a field that determine its
#: default.
_DEFAULTS = re.compile(
    "default|default_factory|__(class|code|dataclass_fields|defaults|init|kwdefaults|new|post_init|setattr)__"
)
_READS = re.compile(r"(get|is|has|to)_\w+|items|keys|values|get|copy|main_process_first")


def _assigned(
    node: ast.stmt, is_it: Callable[[ast.expr], bool], positions: Collection[str]
) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield (option, value) for each option that a statement sets on an object. The value is None if it is unknown.

    Nested statements are left out. If a write may set any option, the option's name begins with :data:`ANY`.

    :param is_it: returns True if an expression is the object.
    :param positions: see :class:`ParsedScript`.
    """
    direct = [] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [getattr(node, "target", None)])
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) and len(direct) == 1 else None
    for part in _own_expressions(node):
        plain = value if part in direct else None
        if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            option = _dotted(part, is_it, positions)
            if option:
                yield option, None if option.startswith(ANY) else plain
        elif isinstance(part, ast.Call):
            yield from _called(part, node, is_it)


def _called(call: ast.Call, node: ast.stmt, is_it: Callable[[ast.expr], bool]) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield (option, value) for each option that a call sets on an object. The value is None if it is unknown."""
    name, arguments = called(call), call.args
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
        if owner is not None and len(arguments) == (2 if "set" in name else 1):  # args.__setattr__("beta", 1)
            arguments = [owner, *arguments]
        if len(arguments) < 2 or is_it(arguments[0]):
            option = _named(arguments[1], call) if len(arguments) > 1 else _any(call)
            sure = getattr(node, "value", None) is call and len(arguments) == 3
            yield option, arguments[2] if sure and not option.startswith(ANY) else None
    elif name == "replace" and arguments and is_it(arguments[0]):
        for keyword in call.keywords:
            known = keyword.arg is not None and _replaced(node) != ""
            yield keyword.arg or _any(keyword.value), keyword.value if known else None
    elif name == "update" and len(arguments) > 1 and is_it(arguments[0]):  # OmegaConf.update(config, "a.b", 1)
        yield _named(arguments[1], call), None
    elif owner is not None and name in (*_CHANGES, *_WRITES) and _is_dict_of(owner, is_it):
        for keyword in call.keywords:
            yield keyword.arg or _any(call), None
        for argument in arguments[:1] if name in ("setdefault", "pop", "__setitem__") else arguments:
            for key in argument.keys if isinstance(argument, ast.Dict) else [argument]:
                yield (_named(key, call) if isinstance(key, ast.Constant) else _any(call)), None
        if not call.keywords and not arguments:
            yield _any(call), None
    elif name in ("exec", "eval") and owner is None:
        yield _any(call), None


def _own_expressions(node: ast.stmt) -> Iterator[ast.AST]:
    left: list[ast.AST] = [node]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if not isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                yield child
                left.append(child)


def _dotted(node: ast.expr, is_it: Callable[[ast.expr], bool], positions: Collection[str]) -> str:
    """Return ``actor.lr`` for ``config.actor.lr`` or ``config.actor["lr"]``, and "" if the object is another one.

    The name is empty if the expression is not an option of the object. An element (``rewards[i]``) counts as the whole
    list.
    """
    parts, whole = list[str](), node
    while not (parts and is_it(node)):
        if isinstance(node, ast.Attribute):
            parts += [node.attr] if node.attr != "__dict__" or not parts else []
            node = node.value
        elif isinstance(node, ast.Subscript):
            parts += [] if _cannot_name(node.slice, positions) else [_named(node.slice, node)]
            node = node.value
        elif isinstance(node, ast.Call) and called(node) == "vars" and len(node.args) == 1:
            node = node.args[0]
        else:
            return ""
    if parts[0].startswith(ANY):
        return parts[0]
    if parts[0] == "__dict__" or any(map(_DEFAULTS.fullmatch, parts)):
        return _any(whole)
    return ".".join(part for part in reversed(parts) if not part.startswith(ANY))


def _cannot_name(index: ast.expr, positions: Collection[str]) -> bool:
    """Return True if an index cannot name an option: a number, a slice, a mask, or text such as ``a/b``."""
    if isinstance(index, ast.Constant):
        return not isinstance(index.value, str)
    if isinstance(index, ast.Name):
        return index.id in positions
    if isinstance(index, ast.JoinedStr):
        texts = [str(part.value) for part in index.values if isinstance(part, ast.Constant)]
        return not all(re.fullmatch(r"[\w.]*", text) for text in texts)
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.Add):
        return any(_cannot_name(side, positions) for side in (index.left, index.right))
    return isinstance(index, (ast.Slice, ast.Tuple, ast.Compare, ast.UnaryOp)) or (
        isinstance(index, ast.BinOp) and isinstance(index.op, (ast.Sub, ast.FloorDiv))
    )


def _loop_counters(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and isinstance(node.iter, ast.Call):
        numbers = {"range": [node.target], "enumerate": getattr(node.target, "elts", [])[:1]}
        yield from (each.id for each in numbers.get(name_of(node.iter.func), ()) if isinstance(each, ast.Name))


def _is_dict_of(node: ast.AST | None, is_it: Callable[[ast.expr], bool]) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return is_it(node.value)
    return isinstance(node, ast.Call) and called(node) == "vars" and len(node.args) == 1 and is_it(node.args[0])


def _key(node: ast.AST) -> str:
    """Return ``name`` for a variable, ``.name`` for an attribute, and "" for anything else."""
    return f".{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_self(node: ast.expr) -> bool:
    return name_of(node) == "self"


def _is_any(node: ast.expr) -> bool:
    """Return True for any object except ``self``."""
    if isinstance(node, ast.Name):
        return node.id not in ("self", "cls")
    return (isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self") or isinstance(node, ast.Call)


def _named(key: ast.expr, code: ast.AST) -> str:
    known = isinstance(key, ast.Constant) and isinstance(key.value, str) and not _DEFAULTS.fullmatch(key.value)
    return str(key.value) if known and isinstance(key, ast.Constant) else _any(code)


def _any(code: ast.AST) -> str:
    return f"{ANY}{_shortened(code)})"


def _shortened(code: ast.AST) -> str:
    text = " ".join(ast.unparse(code).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
        yield node.value.id  # kwargs["beta"] = 0.1
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):  # noqa: SIM102
        if node.func.attr in _CHANGES:
            yield node.func.value.id


def _statements(tree: ast.Module, home: ast.AST | None = None) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield each statement of ``home`` (a function, or None for the module), and whether it always runs there."""
    left: list[tuple[ast.AST, ast.AST, bool]] = [(child, tree, True) for child in tree.body]
    while left:
        node, function, sure = left.pop()
        if isinstance(node, ast.stmt):
            yield node, sure and function is (home or tree)
        if isinstance(node, _FUNCTIONS):
            function, sure = node, True
        elif not isinstance(node, (ast.With, ast.AsyncWith)):
            sure = sure and isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                left.append((child, function, sure and child not in getattr(node, "orelse", ())))
