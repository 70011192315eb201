"""What an adapter declares: the target, and how contracts bind to its boundaries across its history.

Standard library only: the controller reads these tables without torch, the worker reads the same file beside the
target's code. An adapter module defines ``TARGET = Target(...)``; functions in it that touch tensors take the
kit's torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import PurePosixPath
from typing import Any


@dataclass(frozen=True)
class PackageRoot:
    """A directory of the repository that is (the source of) one importable package, such as ``skyrl-gym/skyrl_gym``;
    and the one that goes on ``sys.path`` so that it imports, ``skyrl-gym`` (empty: the repository's own root)."""

    path: str
    import_root: str = ""

    @property
    def package(self) -> str:
        """The name that ``import`` uses."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class StandIn:
    """A small object put where the boundary would find a big one, and which the boundary does use.

    :ivar reason: why the real one is not available on this machine, and why this one gives the same answer.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Dialect:
    """A difference from the contract that the framework means. It is shown, never skipped in silence, and checked: a
    search reports one that no longer holds.

    :ivar name: a dialect input of the contract, or the name of a law that the boundary does not keep.
    :ivar value: what the boundary takes the dialect input to be; not used for a law.
    :ivar reason: why the framework means it, in one sentence.
    :ivar link: where it says so: a line of its code or documentation, an issue, a paper.
    :ivar where: canonical input -> values: the dialect holds only in scenarios that have one of these.
    :ivar symptom: for a law, the one kind of violation that is meant (``value``, ``non-finite``); empty for any.
    """

    name: str
    value: Any = None
    reason: str = ""
    link: str = ""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    symptom: str = ""

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Say whether a scenario is one of those that the dialect speaks of."""
        return all(inputs.get(name) in values for name, values in self.where.items())


#: The most globs that :attr:`Target.no_signal` may have.
MOST_GLOBS = 12

#: ``call(boundary, inputs) -> outputs``; see :class:`Binding`.
BoundaryCall = Callable[[Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Binding:
    """One boundary of a target, bound to the contract whose meaning it has.

    :ivar boundary: its dotted path today; recipes use this one (or any of ``formerly``).
    :ivar formerly: its other dotted paths in history, tried in this order when the first is not in a checkout, before
        those that :attr:`Target.moved` gives.
    :ivar arguments: canonical input -> the parameter names it has had upstream, newest first. A canonical input not
        named here is passed under its own name, and refused where the boundary has no such parameter: a ``call`` leaves
        out what it must not get. ``group`` is a list of labels; numbers per token or row are tensors.
    :ivar constants: upstream parameter -> value passed whenever the boundary has that parameter.
    :ivar outputs: canonical output names, in the order of the tuple that the boundary returns (a single name: the
        return value itself; a mapping return is read by name).
    :ivar call: for boundaries that need more than names: ``call(boundary, inputs)`` gets a
        :class:`~sentinel.worker.calling.Boundary` (its ``function``, ``module``, ``owner``, and ``invoke``, which
        binds by name as above) and the canonical inputs as tensors, and returns the canonical outputs as a mapping.
    :ivar imports: further target modules that ``call`` needs; they are imported before the probe is forked.
    :ivar requires: dotted paths (a configuration field, an attribute) without which the thing is not in this version,
        as in recipes; a search then has nothing to look at.
    :ivar fixed: canonical inputs that the boundary fixes by being what it is (``{"estimator": "rloo"}``).
    :ivar accepts: canonical input -> the choices that this boundary takes, where they are not all of the contract's;
        for the contract's mask the styles of mask: ``full``, ``right`` (padding), ``left``, ``gaps``.
    :ivar dtypes: the float dtypes in which the framework has these tensors; empty: any.
    :ivar twins: the boundaries (dotted paths of other bindings of the same contract) that must give the same answer.
    :ivar moved: the target's, which gives it to each of its bindings.
    :ivar like: of what a revision registers: the boundary as which it is called; empty where the adapter names it.
    :ivar takes: of what a revision registers: its parameters without a default, and with ``?`` those that may be None.
    """

    boundary: str
    contract: str
    formerly: tuple[str, ...] = ()
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    call: BoundaryCall | None = None
    imports: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    requires: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    accepts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    dialects: tuple[Dialect, ...] = ()
    twins: tuple[str, ...] = ()
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    like: str = ""
    takes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The dotted paths of its boundary in history, today's first."""
        return tuple(dict.fromkeys(name for path in (self.boundary, *self.formerly) for name in self.names(path)))

    def names(self, path: str) -> tuple[str, ...]:
        """Give a dotted path, and what it was before its package or module moved."""
        before = (
            f"{then}{path.removeprefix(today)}"
            for today, several in self.moved.items()
            if f"{path}.".startswith(f"{today}.")
            for then in several
        )
        return (path, *before)


@dataclass(frozen=True)
class Registry:
    """A family of functions that the framework's modules register: policy losses, estimators.

    A registered function without a binding is called like ``like``. It must keep the laws of that contract that need
    no oracle.

    :ivar decorator: the decorator's name, such as ``register_policy_loss``.
    :ivar like: the dotted path of a bound member.
    :ivar table: the table to which a module adds a function without the decorator: ``table.register("name", function)``
        or ``table["name"] = function``.
    :ivar excludes: dotted path of a registered function that must not be called -> the reason, in one line.
    """

    decorator: str
    like: str
    table: str = ""
    excludes: Mapping[str, str] = field(default_factory=dict, hash=False)


def _as_another(boundary: str, like: Binding, family: Sequence[Binding]) -> Binding:
    """Bound as another one; what that one means to do differently holds where an option is chosen, and a law that no
    other member keeps either, such as one about values that the framework never hands to the family, is not asked."""
    always = [{dialect.name for dialect in member.dialects if not dialect.where} for member in family]
    of_all = set.intersection(*always) if len(family) > 1 else set()
    shared = tuple(item for item in like.dialects if item.value is not None or item.where or item.name in of_all)
    return replace(
        like, boundary=boundary, formerly=(), dialects=shared, twins=(), requires=(), moved={}, like=like.boundary
    )


@dataclass(frozen=True)
class Alias:
    """What stands at a dotted path: a later Python's, by way of a package that gives it to earlier ones."""

    path: str


@dataclass(frozen=True)
class Target:
    """An external framework.

    :ivar name: what ``--sentinel-target`` calls it.
    :ivar roots: its package roots; which of them a revision has is decided by looking at its tree.
    :ivar pypi: its distribution's name on PyPI, if upstream publishes one.
    :ivar preload: real third-party packages that are imported before the target, where installed, because boundaries
        use them while they are probed, or because each of its checkouts would import them anew.
    :ivar moved: dotted path of a package, module or class -> what it was called before. All that is bound or imported
        below it is looked for there, too.
    :ivar registries: families whose members need no binding each.
    :ivar ghost_versions: a package that may be a ghost -> the version it says it has: for targets that refuse to import
        beside a version they do not know.
    :ivar arguments: canonical input -> what its functions call it, newest first: of each binding that does not say so
        itself.
    :ivar at_import: dotted path of a function that the target's modules call while they are imported, and that a
        contained process cannot answer -> what it answers there instead; or of what they read there, such as the
        version of a package that is newer than they accept -> a plain value, or an :class:`Alias`.
    :ivar defaults: where its configuration has its defaults, whole: dotted paths of dataclasses or of functions that
        give what adds arguments to a parser, or YAML files below an import root. A stand-in that has two of their
        options has the others.
    :ivar no_signal: globs over dotted paths of code that carries no training signal although its names suggest it,
        such as kernels and servers; at most :data:`MOST_GLOBS`. ``sentinel coverage`` does not list the functions
        that match, but its figures count them.
    """

    name: str
    repository: str
    roots: tuple[PackageRoot, ...]
    pypi: str | None = None
    branch: str = "main"
    preload: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = ()
    no_signal: tuple[str, ...] = ()
    ghost_versions: Mapping[str, str] = field(default_factory=dict)
    at_import: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    registries: tuple[Registry, ...] = ()
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        bindings = tuple(
            replace(binding, moved=self.moved, arguments={**self.arguments, **binding.arguments})
            for binding in self.bindings
        )
        object.__setattr__(self, "bindings", bindings)

    def binding(self, boundary: str, contract: str | None = None) -> Binding | None:
        """Find the binding of a boundary, by today's path or a former one, or as another member of its registered
        family."""
        of_contract = [binding for binding in self.bindings if contract in (None, binding.contract)]
        today = (binding for binding in of_contract if binding.boundary == boundary)
        before = (binding for binding in of_contract if boundary in binding.paths)
        families = {registry.like for registry in self.registries} if contract is not None else set()
        alike = (
            _as_another(boundary, binding, [one for one in of_contract if one.contract == binding.contract])
            for binding in of_contract
            if binding.boundary in families
        )
        return next(chain(today, before, alike), None)

    def reason_excluded(self, path: str) -> str:
        """Return the reason why a registered function must not be called; empty if its registry does not exclude it."""
        return next((registry.excludes[path] for registry in self.registries if path in registry.excludes), "")

    def carries_signal(self, path: str) -> bool:
        """Return False if a function's dotted path, today's or a former one, matches one of ``no_signal``."""
        paths = [path]
        for today, several in self.moved.items():
            paths += (today + path.removeprefix(then) for then in several if f"{path}.".startswith(f"{then}."))
        return not any(fnmatchcase(each, glob) for each in paths for glob in self.no_signal)

    def explain_unbound(self, name: str) -> str:
        """Return a message that a function has no binding, with the reason if a registry excludes it, and the nearest
        function that has one.

        :param name: a dotted path, or its last part.
        """
        last = name.rpartition(".")[2]
        excluded = {path: why for registry in self.registries for path, why in registry.excludes.items()}
        reason = next((why for path, why in excluded.items() if name in (path, path.rpartition(".")[2])), "")
        bound = list(dict.fromkeys(binding.boundary for binding in self.bindings))
        alike = [path for path in bound if path.rpartition(".")[2] == last] or [
            path
            for near in get_close_matches(last, {path.rpartition(".")[2] for path in bound}, 1, 0.5)
            for path in bound
            if path.rpartition(".")[2] == near
        ]
        nearest = get_close_matches(name, alike or bound, 1, 0.0)
        message = f"the adapter of {self.name} does not bind {name!r}"
        message += f", which its registry excludes ({reason})" if reason else ""
        return f"{message}; the nearest bound function is {nearest[0]}" if nearest else message

    def module_of(self, file: str) -> str:
        """Give the dotted name of a file of the package roots, by its repository path."""
        root = max((root for root in self.roots if file.startswith(f"{root.path}/")), key=lambda root: len(root.path))
        parts = PurePosixPath(file).relative_to(root.import_root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(root.package for root in self.roots)
