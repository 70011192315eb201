"""Define the declarations of an adapter: the framework, and how its functions are bound to contracts.

An adapter module defines ``TARGET = Target(...)``. Its functions use ``torch`` from :mod:`sentinel.binding.kit`.

This module imports only the standard library, because the controller imports adapters without torch. The worker imports
the same adapters in the process that has the framework's code.
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
    """One importable package: its directory in the repository (``skyrl-gym/skyrl_gym``), and its ``sys.path`` entry."""

    path: str
    import_root: str = ""

    @property
    def package(self) -> str:
        """Return the package's name in import statements."""
        return self.path.rsplit("/", 1)[-1]


def module_of(roots: Sequence[PackageRoot], file: str) -> str:
    """Return the dotted module name of a file in one of the package roots."""
    root = max((root for root in roots if file.startswith(f"{root.path}/")), key=lambda root: len(root.path))
    parts = PurePosixPath(file).relative_to(root.import_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True)
class StandIn:
    """A small object that an adapter passes in place of a large one (engine, model, dataset).

    :ivar reason: why the real object is not available here, and why the result is the same with the stand-in.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Dialect:
    """An intended difference between a framework and a contract. Reports list it, and mark it if it has disappeared.

    :ivar name: an input of the contract that is declared with ``dialect``, or a law that the boundary does not satisfy.
    :ivar value: the boundary's value of this input; not used for a law.
    :ivar reason: why the framework intends it, in one sentence.
    :ivar link: the source: a line of code or documentation, an issue, a paper.
    :ivar where: input of the contract -> values. The dialect applies only to scenarios with one of these values.
    :ivar symptom: for a law, the intended kind of violation (``value``, ``non-finite``); empty for any.
    :ivar since: a dotted path, or ``function(parameter)``. The dialect applies only to revisions that have it.
    :ivar until: a path like ``since``. The dialect applies only to revisions that lack it.
    """

    name: str
    value: Any = None
    reason: str = ""
    link: str = ""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    symptom: str = ""
    since: str = ""
    until: str = ""

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Return True if the dialect applies to a scenario with these inputs (:attr:`where`)."""
        return all(inputs.get(name) in values for name, values in self.where.items())


#: Maximum number of globs in :attr:`Target.no_signal`.
MOST_GLOBS = 12

#: ``call(boundary, inputs) -> outputs``; see :class:`Binding`.
BoundaryCall = Callable[[Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Binding:
    """A function of a framework that is bound to a contract. *Canonical* names are those of the contract.

    :ivar boundary: its current dotted path; recipes use this path or one of ``formerly``.
    :ivar formerly: its earlier dotted paths. If a checkout lacks the current path, these are tried in order, and then
        those that follow from :attr:`Target.moved`.
    :ivar arguments: canonical input -> the function's parameter names, newest first. Inputs that are not listed are
        passed under their canonical names. If a scenario sets an input without a parameter, the call fails; a ``call``
        must drop such inputs. ``group`` is a list of labels; numbers per token or row are tensors.
    :ivar constants: upstream parameter -> value that is passed if the boundary has the parameter.
    :ivar outputs: canonical output names, in the order of the returned tuple. A single name stands for the returned
        value itself. A returned mapping is read by name.
    :ivar call: for boundaries that need more than renamed arguments: ``call(boundary, inputs)`` returns the canonical
        outputs as a mapping. ``boundary`` is a :class:`~sentinel.worker.calling.Boundary`, whose ``invoke`` passes
        inputs by name as described above; ``inputs`` are the canonical inputs, as tensors.
    :ivar imports: further modules of the framework that ``call`` needs; they are imported before the probe is forked.
    :ivar requires: dotted paths, for example of a configuration field or an attribute. If a checkout lacks one, the
        boundary counts as absent from this version, and a search skips it.
    :ivar fixed: canonical input -> the only value that the boundary supports (``{"estimator": "rloo"}``).
    :ivar accepts: canonical input -> the choices that this boundary accepts, if they are fewer than the contract's. For
        the contract's mask, they are mask styles: ``full``, ``right`` (padding), ``left``, ``gaps``.
    :ivar dtypes: the float dtypes that the framework uses for these tensors; empty for any dtype.
    :ivar twins: dotted paths of other bindings of the same contract that must give the same result.
    :ivar moved: :attr:`Target.moved`, which the target sets on each binding.
    :ivar like: the boundary whose binding a registered function uses; empty for a function with its own binding.
    :ivar takes: the parameters of a registered function that have no default. A ``?`` marks those that may be None.
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
        """Return the function's dotted paths, the current one first."""
        return tuple(dict.fromkeys(name for path in (self.boundary, *self.formerly) for name in self.names(path)))

    def names(self, path: str) -> tuple[str, ...]:
        """Return a dotted path, followed by its former paths."""
        before = (
            f"{then}{path.removeprefix(today)}"
            for today, several in self.moved.items()
            if f"{path}.".startswith(f"{today}.")
            for then in several
        )
        return (path, *before)


@dataclass(frozen=True)
class Registry:
    """A group of functions that the framework registers by name, such as policy losses or advantage estimators.

    A registered function without a binding of its own is called with the binding of ``like``. It must satisfy those
    laws of its contract that need no oracle.

    :ivar decorator: the decorator's name, such as ``register_policy_loss``.
    :ivar like: the dotted path of a registered function that has a binding.
    :ivar table: the variable of the registry, if modules add functions without the decorator: ``table.register("name",
        function)``, or ``table["name"] = function``.
    :ivar excludes: dotted path of a registered function that must not be called -> the reason, in one line.
    """

    decorator: str
    like: str
    table: str = ""
    excludes: Mapping[str, str] = field(default_factory=dict, hash=False)


def _as_another(boundary: str, like: Binding, family: Sequence[Binding]) -> Binding:
    """Return a binding for a registered function, with the arguments and the shared dialects of another binding."""
    always = [{dialect.name for dialect in member.dialects if not dialect.where} for member in family]
    of_all = set.intersection(*always) if len(family) > 1 else set()
    shared = tuple(item for item in like.dialects if item.value is not None or item.where or item.name in of_all)
    return replace(
        like, boundary=boundary, formerly=(), dialects=shared, twins=(), requires=(), moved={}, like=like.boundary
    )


@dataclass(frozen=True)
class Steps:
    """The training steps of a trainer as its documentation defines them, for ``sentinel watch``.

    Unless stated otherwise below, the argument of each function is a micro-batch: an object with the trainer's
    ``facts``, ``options`` and ``attributes``, the ``batch``, and the model's ``forwards`` (``_micro`` in
    ``sentinel/tools/watch/invariants.py``). If a value that a function needs is unknown, the function raises
    :class:`~sentinel.contracts.contract.DoesNotApply` with a reason.

    :ivar trainer: dotted path of the trainer's class.
    :ivar methods: ``loss``, ``advantages``, ``samples``, ``rewards``, ``prompts`` or ``tokens`` -> the methods that
        compute them, the main one first. If the user overrides one, the value is not checked.
    :ivar knows: the options that the functions take into account. If another option is not at its default, a step is
        not checked.
    :ivar settings: dotted attribute of a new trainer -> the option whose value it must have, or a function that
        computes this value from the options.
    :ivar splits: options that only divide a batch, so that their effect is a factor of the loss.
    :ivar loss: returns the documented loss of a micro-batch, and the sum of its terms' absolute values.
    :ivar advantages: returns the documented advantages of rewards, and a bound of their rounding.
    :ivar references: returns log-probs of the policy and of the reference for the same tokens or rows.
    :ivar batch: returns a description of the error in a batch; empty for a correct batch.
    :ivar samples: raises an exception if the tokens were not sampled from the trained policy.
    :ivar prompts: returns the prompt tokens of the dataset's rows. Unlike the functions above, this and ``completions``
        run inside the training, and their first arguments are the trainer and the rows.
    :ivar completions: returns the completions that reward functions receive for the completion tokens of each row.
    :ivar tokens: returns how prepared rows of a dataset differ from the tokens and labels of their own text; empty if
        they agree. Its arguments are the trainer and the rows. It runs inside the training, too.
    :ivar synchronized: returns the weight of the policy's parameters when a step mixes them into the reference model: 0
        if the step leaves the reference unchanged, None if the options do not define it. Its arguments are the
        configuration and the number of the step, from 1. It runs inside the training.
    :ivar epoch: returns the maximum number of a dataset's rows that an epoch leaves out, and how often an epoch loads
        each of the remaining rows. Its argument is the options. By default, an epoch loads each row once.
    :ivar unwatched: returns descriptions of what a trainer does under these options that no invariant can check.
    :ivar lacks: attributes of this class that do not apply to this trainer; also ``labels`` and ``items`` (the number
        of trained tokens) if its batches do not have them. Other attributes without a value are reported as
        undocumented.
    :ivar collators: dotted path of a collator's method -> a function that runs inside the training. Its arguments are
        the collator, the rows and the batch. It returns a description of the error in the batch; empty for a correct
        batch.
    """

    trainer: str
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    knows: frozenset[str] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    splits: frozenset[str] = frozenset()
    loss: Callable[[Any], tuple[Any, Any]] | None = None
    advantages: Callable[[Any], tuple[Any, Any]] | None = None
    references: Callable[[Any], tuple[Any, Any]] | None = None
    batch: Callable[[Any], str] | None = None
    samples: Callable[[Any], None] | None = None
    prompts: Callable[[Any, Sequence[Mapping[str, Any]]], list[list[int]]] | None = None
    completions: Callable[[Any, Sequence[Mapping[str, Any]], list[list[int]]], list[Any]] | None = None
    tokens: Callable[[Any, Sequence[Mapping[str, Any]]], str] | None = None
    synchronized: Callable[[Any, int], float | None] | None = None
    epoch: Callable[[Mapping[str, Any]], tuple[int, int]] | None = None
    unwatched: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    lacks: frozenset[str] = frozenset()
    collators: Mapping[str, Callable[[Any, Sequence[Mapping[str, Any]], Mapping[str, Any]], str]] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class Alias:
    """A value in :attr:`Target.at_import` that refers to another object, such as a backport, by its dotted path."""

    path: str


@dataclass(frozen=True)
class Target:
    """A framework under test.

    :ivar name: the name for ``--sentinel-target``.
    :ivar roots: its package roots. A revision may have only some of them.
    :ivar pypi: its distribution's name on PyPI, if upstream publishes one.
    :ivar preload: third-party packages that are imported before the framework if they are installed: either boundaries
        use the real package, or every checkout would import it again.
    :ivar moved: dotted path of a package, module or class -> its earlier paths. Names below the path are also looked up
        below the earlier paths.
    :ivar registries: groups of registered functions that need no binding of their own.
    :ivar stub_versions: package -> the version that its stub module reports, for targets that reject unknown versions.
    :ivar arguments: canonical input -> parameter names, newest first, for bindings without their own.
    :ivar at_import: dotted path -> its replacement while the framework is imported. For a function that the isolated
        worker cannot run, the replacement is the function's result. For a value that the framework rejects, such as a
        package version, it is a plain value or an :class:`Alias`.
    :ivar defaults: the sources of the configuration's defaults: the dotted path of a dataclass, a YAML file below an
        import root, or the dotted path of a function that returns another function, which adds arguments to a parser. A
        stand-in that has at least two of a source's options gets the remaining ones.
    :ivar no_signal: globs over dotted paths of code that carries no training signal although its names suggest it,
        such as kernels and servers; at most :data:`MOST_GLOBS`. ``sentinel coverage -v`` does not list matching
        functions, but all figures count them.
    :ivar steps: the documented training steps of its trainers, for ``sentinel watch``.
    """

    name: str
    repository: str
    roots: tuple[PackageRoot, ...]
    pypi: str | None = None
    branch: str = "main"
    preload: tuple[str, ...] = ()
    bindings: tuple[Binding, ...] = ()
    no_signal: tuple[str, ...] = ()
    stub_versions: Mapping[str, str] = field(default_factory=dict)
    at_import: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    registries: tuple[Registry, ...] = ()
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()
    steps: tuple[Steps, ...] = ()

    def __post_init__(self) -> None:
        bindings = tuple(
            replace(binding, moved=self.moved, arguments={**self.arguments, **binding.arguments})
            for binding in self.bindings
        )
        object.__setattr__(self, "bindings", bindings)

    def binding(self, boundary: str, contract: str | None = None) -> Binding | None:
        """Return the binding of the function at a current or former path; None if there is none. A registered function
        without a binding of its own gets the binding that it reuses."""
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
        """Return why a registered function must not be called; empty if it may be."""
        return next((registry.excludes[path] for registry in self.registries if path in registry.excludes), "")

    def carries_signal(self, path: str) -> bool:
        """Return True unless a function's current or former path matches a glob in ``no_signal``."""
        paths = [path]
        for today, several in self.moved.items():
            paths += (today + path.removeprefix(then) for then in several if f"{path}.".startswith(f"{then}."))
        return not any(fnmatchcase(each, glob) for each in paths for glob in self.no_signal)

    def explain_unbound(self, name: str) -> str:
        """Return the error message for a function without a binding. It names the nearest bound function.

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
        message += f", a registered function that must not be called ({reason})" if reason else ""
        return f"{message}; the nearest bound function is {nearest[0]}" if nearest else message

    def module_of(self, file: str) -> str:
        """Return the dotted module name of a file in the package roots."""
        return module_of(self.roots, file)

    @property
    def depends_on_code(self) -> bool:
        """Return True if the bindings may differ between revisions. They may if the target has registries, or dialects
        that apply only to some revisions."""
        dialects = (dialect for binding in self.bindings for dialect in binding.dialects)
        return bool(self.registries) or any(dialect.since or dialect.until for dialect in dialects)

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(root.package for root in self.roots)
