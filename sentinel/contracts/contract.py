"""Define contracts: each defines one kind of function, independent of the framework.

The controller, which never imports torch, and the worker import the same contracts.
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

#: The name of the variant that the other variants are compared with.
BASELINE = "baseline"


class DoesNotApply(Exception):
    """Raised if a scenario does not meet the conditions of a law. The law is then not checked."""


class Choose(Protocol):
    """Makes random choices for laws and contracts. A search can record, repeat and shrink the choices.

    A choice shrinks towards the first option or the smallest number, so list the simplest option first.
    """

    def integer(self, low: int, high: int) -> int:
        """Choose an integer from ``low`` to ``high`` inclusive; shrinks towards ``low``."""

    def one_of(self, choices: Sequence[Any]) -> Any:
        """Choose one option; shrinks towards the first."""

    def integers(self, count: int, low: int, high: int) -> list[int]:
        """Choose ``count`` integers at once, which is faster than repeated calls of :meth:`integer`."""

    def permutation(self, count: int) -> list[int]:
        """Choose an order of ``range(count)``; shrinks towards the identity."""


class Required:
    """Marks an input without a default: every scenario must set it."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True)
class Input:
    """An input of a contract.

    :ivar name: the name that is most common in papers and frameworks.
    :ivar kind: ``tensor``; ``labels`` (one string or number per row); ``mapping`` (configuration, plain data); ``any``
        (a typed literal of the recipe language); or a scalar kind.
    :ivar meaning: one sentence, with the unit.
    :ivar dtype: the tensor's dtype if the scenario contains a plain list.
    :ivar shape: symbolic dimensions, such as ``("batch", "tokens")``.
    :ivar default: the value if a scenario omits the input: a plain value, or ``default(inputs)``, which returns a
        literal computed from the inputs that are declared before this one. Evidence lists the value as a default.
    :ivar differentiable: whether gradients with respect to this input are meaningful.
    :ivar domain: the values that a search draws for a tensor: a key of :data:`sentinel.search.scenarios.DOMAINS`
        (``log_prob``, ``reward``, ``mask``, ...). Empty: a search leaves the input at its default.
    :ivar choices: the values that a search draws if the input is not a tensor, the simplest first. Empty: a search
        leaves the input at its default.
    :ivar dtypes: other dtypes in which frameworks pass the same values (a mask as bool, int64, float32).
    :ivar knob: True if the option must have an effect: when a change of its value changes the oracle's result, it must
        change the boundary's result too (``every_knob_counts``).
    :ivar dialect: True if this is a property of the boundary instead of an input: a choice on which papers and
        frameworks legitimately differ. Only the oracle reads it. An adapter declares it for a binding, with a reason
        (:class:`sentinel.targets.Dialect`).
    :ivar problem: ``problem(value)`` returns why a scenario's value is invalid; empty if it is valid.
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

#: The shape of the inputs and keys in :data:`PER_ACTION` if a step has several actions (``actions_per_step``).
ACTIONS = (*TOKENS, "actions")
#: The inputs and observed keys with one number per action. All other inputs and keys have one number per step.
PER_ACTION = ("log_probs", "old_log_probs", "rollout_log_probs", "per_token_gradient")


def per_token(name: str, meaning: str, domain: str = "", **more: Any) -> Input:
    """Declare an input with one number per token, ``[batch, tokens]``."""
    return Input(name, "tensor", meaning, shape=TOKENS, domain=domain, **more)


def per_row(name: str, meaning: str, domain: str = "", **more: Any) -> Input:
    """Declare an input with one number per response, ``[batch]``."""
    return Input(name, "tensor", meaning, shape=("batch",), domain=domain, **more)


def token_mask(
    meaning: str = "1 for tokens that count", dtypes: tuple[str, ...] = ("bool", "int64"), **more: Any
) -> Input:
    """Declare the mask of valid tokens, ``response_mask`` [batch, tokens]."""
    return per_token("response_mask", meaning, "mask", dtypes=dtypes, **more)


GROUP = Input("group", "labels", "prompt id of each row", shape=("batch",))
GROUP_LAYOUT = Input(
    "group_layout",
    "string",
    "labels that the boundary accepts: any, consecutive (the rows of a group are adjacent), equal "
    "(consecutive, and all groups have the same size)",
    default="any",
)

_FIRST = object()
_KINDS: Mapping[type, InputKind] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def drawn(
    name: str, meaning: str, choices: tuple[Any, ...], default: Any = _FIRST, kind: InputKind | None = None
) -> Input:
    """Declare an option of which a search draws one of ``choices``. The default is ``default``, or else the first
    choice."""
    first = next(choice for choice in choices if choice is not None)
    default = choices[0] if default is _FIRST else default
    return Input(name, kind or _KINDS[type(first)], meaning, default=default, choices=choices)


def knob(
    name: str, meaning: str, choices: tuple[Any, ...], default: Any = _FIRST, kind: InputKind | None = None
) -> Input:
    """Declare an option that must have an effect (:attr:`Input.knob`); otherwise the same as :func:`drawn`."""
    return replace(drawn(name, meaning, choices, default, kind), knob=True)


def dialect(name: str, default: Any, meaning: str, kind: InputKind | None = None) -> Input:
    """Declare a choice on which papers and frameworks legitimately differ. The default is that of the papers."""
    return Input(name, kind or _KINDS.get(type(default), "number"), meaning, default=default, dialect=True)


ObservedRole = Literal["output", "gradient", "metric", "decision", "other"]


@dataclass(frozen=True)
class Observed:
    """An output, gradient, metric or other value that a contract observes.

    :ivar shape: symbolic dimensions, as for inputs: ``("batch", "tokens")`` is one number per token, and only valid
        tokens count; ``("batch",)`` is one per row; empty is a scalar of the whole batch.
    :ivar role: ``output``; ``gradient`` (of the loss, with respect to a differentiable input, in the shape of that
        input); ``metric`` (reported, not trained on); ``decision`` (0 or 1 per token: rejected or kept); ``other``
        (ignored by laws that compare calls).
    """

    key: str
    meaning: str
    shape: tuple[str, ...] = ()
    role: ObservedRole = "output"


#: ``measure(call, inputs) -> observation``: runs in the worker. ``call(**canonical_inputs)`` is the real boundary
#: behind its adapter and returns the canonical outputs as a mapping.
Measure = Callable[[Callable[..., Mapping[str, Any]], Mapping[str, Any]], Mapping[str, Any]]


def returned(**forms: str) -> Measure:
    """Return a ``measure`` function that observes outputs of the boundary.

    :param forms: output -> form. ``as_is``: unchanged. ``counted``: a tensor, set to 0 on masked tokens. ``number``: a
        float. ``truth``: a bool. ``integers``, ``numbers`` and ``singles``: a list, converted to an int64, float64 or
        float32 tensor. None stays None. A ``?`` after a form means that a boundary may lack this output.
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
        "singles": lambda values: torch.tensor([float(value) for value in values], dtype=torch.float32),
    }
    outputs = dict(call(**inputs))
    for name, form in forms.items():
        if form.endswith("?"):
            outputs.setdefault(name, None)
    return {
        name: None if outputs[name] is None else of[form.rstrip("?")](outputs[name]) for name, form in forms.items()
    }


@dataclass(frozen=True)
class Contract:
    """The definition of one kind of function: inputs, observed keys, oracle and laws.

    :ivar name: the name that recipes and adapters use.
    :ivar summary: one sentence.
    :ivar source: the paper or definition that the contract follows.
    :ivar observes: every key that :attr:`measure` returns; a recipe that expects any other key is invalid.
    :ivar oracle: the reference in float64: ``oracle(inputs) -> outputs`` with canonical names, as :attr:`source` says.
    :ivar law: the name of the law that gives the verdict of a recipe without expected values. The default is
        ``the_oracle_agrees`` if there is an oracle.
    :ivar open_keys: whether recipes may expect keys that are not in :attr:`observes` (only the contract ``call``).
    :ivar aliases: another name, used by frameworks or recipes -> the input or observed key.
    :ivar laws: the names of the laws that every boundary of the contract must satisfy; a search checks them.
    :ivar mask: the input that masks tokens; empty if there is none.
    :ivar group: the input with the group label of each row; empty if rows have no groups.
    :ivar arrange: ``arrange(inputs, choose) -> inputs``: makes a drawn scenario realistic (a reward on the last token
        only, global token counts that agree with the mask). Runs in the controller, on literals.
    :ivar parts: ``parts(inputs, choose) -> [inputs, ...]``: splits a batch into microbatches or ranks, with the global
        normalisers. The parts' losses and gradients must add up to those of the batch (``parts_add_up``). Runs in the
        controller. Raises :class:`~sentinel.laws.law.DoesNotApply` if the scenario cannot be split.
    :ivar put_text: ``put_text(inputs, text, length) -> [(inputs, defined), ...]``: makes scenarios whose text contains
        ``text``, a string literal of the boundary's code; or, if ``text`` is empty, has ``length`` characters.
        ``defined`` is False if the contract does not define the result.
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
    put_text: Callable[[Inputs, str, int], list[tuple[Inputs, bool]]] | None = None

    def __post_init__(self) -> None:
        if self.law is None and self.oracle is not None:
            object.__setattr__(self, "law", "the_oracle_agrees")

    @cached_property
    def _named(self) -> Mapping[str, Input]:
        return {item.name: item for item in self.inputs}

    @property
    def of_its_module(self) -> Any:
        """Return a function that is defined in the contract's own module."""
        return self.oracle if isinstance(self.measure, partial) else self.measure

    @property
    def file(self) -> str:
        """Return the path of the file that defines the contract. The worker loads the contract from this file."""
        return str(self.of_its_module.__code__.co_filename)

    def input(self, name: str) -> Input | None:
        return self._named.get(name)

    def with_actions(self) -> Contract:
        """Return a copy of the contract in which each step consists of several actions. Inputs and keys in
        :data:`PER_ACTION` have the shape :data:`ACTIONS`."""
        return replace(
            self,
            inputs=tuple(replace(item, shape=ACTIONS) if item.name in PER_ACTION else item for item in self.inputs),
            observes=tuple(replace(item, shape=ACTIONS) if item.key in PER_ACTION else item for item in self.observes),
        )

    def lacking(self, *has: str) -> dict[str, Any]:
        """Return option -> default for each knob that is not in ``has``. A binding fixes these inputs if its function
        has only the options in ``has``."""
        return {item.name: item.default for item in self.inputs if item.knob and item.name not in has}

    def reference(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call the oracle with the defaults of omitted inputs."""
        assert self.oracle is not None
        return self.oracle({**{item.name: item.default for item in self.inputs}, **inputs})

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(item.key for item in self.observes)


#: The laws of every boundary: its result agrees with the oracle, and the call changes nothing else.
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
    """Return the law names in ``names``, which are separated by spaces, followed by ``more``."""
    return (*names.split(), *more)


def laws_of_tokens(*without: str) -> tuple[str, ...]:
    """Return the laws for functions of masked tokens, except for those in ``without``."""
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
    """Define a contract that has an oracle and no token mask."""
    return Contract(name, summary, source, inputs, observes, measure, oracle, **{"laws": laws, "mask": "", **more})
