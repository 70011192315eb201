"""What a contract is: the framework-independent meaning of a kind of boundary.

A contract is read by the controller (which never imports torch) and by the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

from sentinel.values.lazy import torch

InputKind = Literal["tensor", "number", "integer", "boolean", "string", "labels", "mapping", "any"]


#: Canonical inputs of one call, as literals.
Inputs = Mapping[str, Any]

#: What a search calls the scenario that the other variants are compared with.
BASELINE = "baseline"


class DoesNotApply(Exception):
    """The scenario does not meet the law's premise, so the law says nothing about it."""


class Choose(Protocol):
    """How laws and contracts make the free choices of a scenario; a search records, repeats and shrinks them.

    Everything shrinks towards its first or smallest choice, so the plainest one comes first.
    """

    def integer(self, low: int, high: int) -> int:
        """Choose an integer from ``low`` to ``high``, both included; shrinks towards ``low``."""

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Choose one of these; shrinks towards the first."""

    def integers(self, count: int, low: int, high: int) -> list[int]:
        """Choose ``count`` integers, as :meth:`integer` each, at less cost."""

    def permutation(self, count: int) -> list[int]:
        """Choose an order of ``range(count)``; shrinks towards the identity."""


class Required:
    """The default of an input that a scenario must give."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True)
class Input:
    """One canonical input of a contract.

    :ivar name: the field's term for it.
    :ivar kind: ``tensor``; ``labels`` (one string or number a row);
        ``mapping`` (configuration, plain data); ``any`` (a typed literal of the recipe language); or a scalar kind.
    :ivar meaning: one sentence, with the unit.
    :ivar dtype: the dtype that a bare list takes.
    :ivar shape: symbolic dimensions, such as ``("batch", "tokens")``.
    :ivar default: what a scenario that leaves it out gets: a plain value, or a function of the scenario so far (inputs
        are filled in the order of declaration) that returns a literal; evidence lists it as a default.
    :ivar differentiable: whether gradients with respect to it are meaningful.
    :ivar domain: what a search draws for a tensor: a key of :data:`sentinel.search.scenarios.DOMAINS` (``log_prob``,
        ``reward``, ``mask``, ...). Empty: a search leaves the input at its default.
    :ivar choices: what a search draws for anything that is no tensor: configuration values, the simplest first.
        Empty: a search leaves the input at its default.
    :ivar dtypes: the other dtypes in which callers may hand over the same values (a mask as bool, int64, float32).
    :ivar knob: whether another choice must change the result wherever it changes the oracle's (*every knob counts*).
    :ivar dialect: a statement about the boundary rather than an input of the step: a choice on which papers and
        frameworks honestly differ. Only the oracle reads it; a boundary that has no such parameter is not given it.
        An adapter states it for a binding, with a reason (:class:`sentinel.targets.Dialect`).
    :ivar problem: returns what is wrong with a value that a scenario gives, and an empty string if nothing is.
    """

    name: str
    kind: InputKind
    meaning: str
    dtype: str = "float32"
    shape: tuple[str, ...] = ()
    default: Any = REQUIRED
    differentiable: bool = False
    domain: str = ""
    choices: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    knob: bool = False
    dialect: bool = False
    problem: Callable[[Any], str] | None = None


TOKENS = ("batch", "tokens")


def per_token(name: str, meaning: str, domain: str = "", **more: Any) -> Input:
    """Declare one number a token, ``[batch, tokens]``."""
    return Input(name, "tensor", meaning, shape=TOKENS, domain=domain, **more)


def per_row(name: str, meaning: str, domain: str = "", **more: Any) -> Input:
    """Declare one number a response, ``[batch]``."""
    return Input(name, "tensor", meaning, shape=("batch",), domain=domain, **more)


def token_mask(
    meaning: str = "1 where a token counts", dtypes: tuple[str, ...] = ("bool", "int64"), **more: Any
) -> Input:
    """Declare which tokens count."""
    return per_token("response_mask", meaning, "mask", dtypes=dtypes, **more)


#: Which rows belong together.
GROUP = Input("group", "labels", "the prompt that each row answers", shape=("batch",))
GROUP_LAYOUT = Input(
    "group_layout",
    "string",
    "which labels the boundary can be given: any, consecutive (the rows of a group stand together), equal "
    "(consecutive, and every group has the same number of rows)",
    default="any",
)

_FIRST = object()
_KINDS: Mapping[type, InputKind] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def drawn(
    name: str, meaning: str, choices: tuple[Any, ...], default: Any = _FIRST, kind: InputKind | None = None
) -> Input:
    """Declare a setting of which a search draws one of these; what a scenario leaves out is the first of them."""
    first = next(choice for choice in choices if choice is not None)
    default = choices[0] if default is _FIRST else default
    return Input(name, kind or _KINDS[type(first)], meaning, default=default, choices=choices)


def knob(
    name: str, meaning: str, choices: tuple[Any, ...], default: Any = _FIRST, kind: InputKind | None = None
) -> Input:
    """Declare one each choice of which must count."""
    return replace(drawn(name, meaning, choices, default, kind), knob=True)


def dialect(name: str, default: Any, meaning: str, kind: InputKind | None = None) -> Input:
    """Declare a choice on which papers and frameworks honestly differ, with what the papers say."""
    return Input(name, kind or _KINDS.get(type(default), "number"), meaning, default=default, dialect=True)


ObservedRole = Literal["output", "gradient", "metric", "decision", "other"]


@dataclass(frozen=True)
class Observed:
    """One observation key that a contract declares.

    :ivar shape: symbolic dimensions, those of the inputs: ``("batch", "tokens")`` is one number a token, of which only
        those at valid tokens mean anything; ``("batch",)`` one a row; empty a scalar of the whole batch.
    :ivar role: ``output``; ``gradient`` (of the loss, with respect to a differentiable input, of its shape);
        ``metric`` (reported, not trained on); ``decision`` (0 or 1 a token: kept or rejected); ``other`` (not looked
        at by laws that compare calls).
    """

    key: str
    meaning: str
    shape: tuple[str, ...] = ()
    role: ObservedRole = "output"


#: ``measure(call, inputs) -> observation``: runs in the worker. ``call(**canonical_inputs)`` is the real boundary
#: behind its adapter and returns the canonical outputs as a mapping.
Measure = Callable[[Callable[..., Mapping[str, Any]], Mapping[str, Any]], Mapping[str, Any]]


def returned(**forms: str) -> Measure:
    """Measure what ``call`` returns by these names, and nothing beside it.

    :param forms: for each name ``as_is``; ``counted`` (a tensor, 0 at tokens that do not count: what stands there is
        nobody's meaning, and left out on both sides); ``number`` or ``truth``; a list as a tensor of ``integers`` or
        ``numbers``. None stays None.
    """
    return partial(_returned, forms=forms)


def _returned(
    call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any], forms: Mapping[str, str]
) -> dict[str, Any]:
    of: Mapping[str, Callable[[Any], Any]] = {
        "as_is": lambda value: value,
        "counted": lambda value: torch.where(inputs["response_mask"] != 0, value, 0.0),
        "number": float,
        "truth": bool,
        "integers": lambda values: torch.as_tensor(list(values), dtype=torch.int64),
        "numbers": lambda values: torch.tensor([float(value) for value in values], dtype=torch.float64),
    }
    outputs = call(**inputs)
    return {name: None if outputs[name] is None else of[form](outputs[name]) for name, form in forms.items()}


@dataclass(frozen=True)
class Contract:
    """:ivar name: what recipes and adapters call it.
    :ivar summary: one sentence.
    :ivar source: the paper or definition it is written from.
    :ivar observes: every key that :attr:`measure` returns; a recipe that expects another key is wrong.
    :ivar oracle: the reference in float64: canonical inputs to canonical outputs, written from :attr:`source`.
    :ivar law: the name of the law that decides a recipe without expected values; where a contract names none, its
        oracle decides.
    :ivar open_keys: whether boundaries of this contract may add keys of their own (only the generic ``call``).
    :ivar laws: the names of the laws that every boundary of the contract must obey; a search checks these.
    :ivar mask: the input that says which tokens count; empty where there is none.
    :ivar group: the input whose label says which rows belong together; empty where every row stands for itself.
    :ivar arrange: ``arrange(inputs, choose) -> inputs``: makes a drawn scenario a sensible one (a reward on the last
        token only, global token counts that agree with the mask). Runs in the controller, on literals.
    :ivar parts: ``parts(inputs, choose) -> [inputs, ...]``: one batch cut into microbatches (or ranks), each with the
        global normalisers given, whose losses and gradients add up to the whole's (*parts add up*). Runs in the
        controller. Raises :class:`~sentinel.laws.law.DoesNotApply` where the scenario cannot be cut.
    """

    name: str
    summary: str
    source: str
    inputs: tuple[Input, ...]
    observes: tuple[Observed, ...]
    measure: Measure
    oracle: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    law: str | None = None
    open_keys: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    laws: tuple[str, ...] = ()
    mask: str = "response_mask"
    group: str = ""
    arrange: Callable[[dict[str, Any], Choose], dict[str, Any]] | None = None
    parts: Callable[[Mapping[str, Any], Choose], list[dict[str, Any]]] | None = None

    def __post_init__(self) -> None:
        if self.law is None and self.oracle is not None:
            object.__setattr__(self, "law", "the_oracle_agrees")

    @cached_property
    def _named(self) -> Mapping[str, Input]:
        return {item.name: item for item in self.inputs}

    @property
    def of_its_module(self) -> Any:
        """Give a function of the module that defines it."""
        return self.oracle if isinstance(self.measure, partial) else self.measure

    @property
    def file(self) -> str:
        """Give the path of the file that defines it: the worker loads it from there."""
        return str(self.of_its_module.__code__.co_filename)

    def input(self, name: str) -> Input | None:
        return self._named.get(name)

    def lacking(self, *has: str) -> dict[str, Any]:
        """Name the knobs that a boundary does not have, each at its default: what the boundary's binding fixes."""
        return {item.name: item.default for item in self.inputs if item.knob and item.name not in has}

    def reference(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the oracle; an input that is left out has its default."""
        assert self.oracle is not None
        return self.oracle({**{item.name: item.default for item in self.inputs}, **inputs})

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(item.key for item in self.observes)


#: What every boundary must do: agree with its contract's reference, and change nothing that is not its own.
AS_DEFINED = ("the_oracle_agrees", "nothing_else_is_touched")

_OF_TOKENS = (
    "masked_values_have_no_influence",
    "a_rejected_row_is_an_absent_row",
    "groups_are_isolated",
    "order_does_not_matter",
    "padding_is_invisible",
    "parts_add_up",
    "a_sequence_decision_is_one_decision",
    "twins_agree",
    "the_oracle_agrees",
    "nothing_else_is_touched",
    "representation_is_invisible",
    "every_knob_counts",
    "metrics_tell_the_truth",
    "finite_in_finite_out",
    "normalisation_laws",
    "gradients_stay_where_they_belong",
)


def laws(names: str, *more: str) -> tuple[str, ...]:
    """Name laws, with a blank between two of them."""
    return (*names.split(), *more)


def laws_of_tokens(*without: str) -> tuple[str, ...]:
    """Name the laws of what takes tokens with a mask to tokens or a loss, without those that mean nothing there."""
    assert set(without) <= set(_OF_TOKENS)
    return tuple(law for law in _OF_TOKENS if law not in without)


def rule(
    name: str,
    summary: str,
    source: str,
    inputs: tuple[Input, ...],
    observes: tuple[Observed, ...],
    measure: Measure,
    oracle: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    laws: tuple[str, ...] = AS_DEFINED,
    **more: Any,
) -> Contract:
    """Define what has no mask of tokens: a rule over plain values, of which the reference gives the answer."""
    return Contract(name, summary, source, inputs, observes, measure, oracle, **{"laws": laws, "mask": "", **more})
