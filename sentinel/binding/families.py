"""Families of bindings: what a kind of boundary has in every framework, said once; adapters say the rest.

A family makes a :class:`~sentinel.targets.Binding`. ``more`` are further fields of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sentinel.binding.kit import (
    AXIS,
    Make,
    Read,
    Surgery,
    columns_and_meta,
    container,
    counted,
    cut,
    filled,
    iterated,
    joined,
    operated,
    packed,
    passed,
    reordered,
    requested,
    ruled,
)
from sentinel.contracts.aggregation import aggregated
from sentinel.contracts.contract import REQUIRED
from sentinel.contracts.group_advantage import GROUP_ADVANTAGE
from sentinel.contracts.normalisation import MASKED_STATISTICS, REWARD_NORMALISATION
from sentinel.contracts.policy_loss import POLICY_LOSS
from sentinel.contracts.rollouts import SAMPLING_REQUEST
from sentinel.contracts.table_engine import ROLLOUT
from sentinel.targets import Binding, BoundaryCall, Dialect, StandIn


def policy_loss(
    path: str,
    call: BoundaryCall,
    algorithm: str | Sequence[str],
    knobs: Sequence[str],
    *dialects: Dialect,
    mode: str = "",
    weights: bool = False,
    fixed: Mapping[str, Any] | None = None,
    accepts: Mapping[str, tuple[Any, ...]] | None = None,
    **more: Any,
) -> Binding:
    """Bind a policy loss.

    :param algorithm: the one that it is, or those that it can be asked for.
    :param knobs: what the contract lets it be told; it lacks the others.
    :param mode: the one way in which it aggregates; empty where it has several.
    :param weights: whether it is given weights of off-policy tokens.
    """
    one = {"algorithm": algorithm} if isinstance(algorithm, str) else {}
    several: dict[str, tuple[Any, ...]] = {} if isinstance(algorithm, str) else {"algorithm": tuple(algorithm)}
    without = {} if weights else {"importance_weights": None}
    constants = {**POLICY_LOSS.lacking(*knobs), **(aggregated(mode) if mode else {}), **without, **one, **(fixed or {})}
    choices = {**several, **(accepts or {})}
    return Binding(path, "policy_loss", call=call, fixed=constants, accepts=choices, dialects=dialects, **more)


def group_advantage(
    path: str, call: BoundaryCall | None, estimator: str, knobs: Sequence[str], *dialects: Dialect, **more: Any
) -> Binding:
    """Bind an estimator that compares the responses to one prompt; it lacks the knobs that are not named."""
    fixed = {"estimator": estimator, **GROUP_ADVANTAGE.lacking(*knobs), **more.pop("fixed", {})}
    outputs = ("advantages", "returns")
    return Binding(path, "group_advantage", outputs=outputs, call=call, fixed=fixed, dialects=dialects, **more)


def normalised_rewards(path: str, call: BoundaryCall, *knobs: str, **more: Any) -> Binding:
    """Bind what makes rewards relative to those of their group; it lacks the knobs that are not named."""
    fixed = {"mean_level": "group", **more.pop("fixed", {})}
    constants = {**REWARD_NORMALISATION.lacking(*knobs), **fixed}
    return Binding(path, "reward_normalisation", call=call, fixed=constants, **more)


def masked_statistic(path: str, statistic: str, *knobs: str, **more: Any) -> Binding:
    """Bind a statistic of the tokens that count, whose axis is torch's number; it lacks the knobs that are not
    named."""
    fixed = {"statistic": statistic, **MASKED_STATISTICS.lacking(*knobs), **more.pop("fixed", {})}
    call = partial(passed, says={"axis": AXIS})
    return Binding(path, "masked_statistics", outputs=("result",), call=call, fixed=fixed, **more)


_INTEGERS = (
    "negative thousands true_thousands spaces dollars price degrees braced_degrees unit true_unit boxed_unit "
    "plain_unit equation true_equation latex_space"
)
_SYMPY = (
    "negative decimal bare_point true_bare_point zeros whole plus thousands true_thousands latex_thousands spaces stop "
    "dollars price percent true_percent plain_percent degrees spread pair longer_pair interval list text true_text "
    "capitals"
)
_BOTH = (
    f"{_SYMPY} braced_degrees unit square_unit slash dfrac tfrac half short_fraction half_short_fraction power "
    "equation true_equation tall_pair thin_space"
)
_SIMPLIFIED = "value mixed terms pair_of_values"
#: The ways to write an answer that normalisers know which many have copied: of numbers, of MATH (arXiv:2103.03874), of
#: Minerva (arXiv:2206.14858) and what reads whole numbers behind it, of sympy and of MATH with sympy behind it
#: (arXiv:2305.20050) as far as they go without a parser of LaTeX, of SQuAD's words (arXiv:1606.05250), and of choices.
NORMALISERS = {
    "numbers": "negative decimal thousands unit plain_unit",
    "math": "negative decimal bare_point true_bare_point spaces price percent true_percent degrees braced_degrees unit "
    "true_unit square_unit slash true_slash dfrac tfrac short_fraction half_short_fraction true_fraction half "
    "true_half true_short_fraction root factored_root spread equation true_equation pair longer_pair tall_pair "
    "interval list set thin_space",
    "minerva": f"{_INTEGERS} decimal true_fraction true_short_fraction root factored_root spread pair longer_pair "
    "interval list set text true_text bold",
    "integers": _INTEGERS,
    "sympy": f"{_SYMPY} {_SIMPLIFIED}",
    "values": _BOTH,
    "expressions": f"{_BOTH} {_SIMPLIFIED}",
    "questions": "spaces stop thousands words capitals article punctuation",
    "choices": "bracketed_letter letter_stop text_letter bracketed_text_letter",
}
#: The last box is the answer.
BOXES = ("boxed", "At first \\boxed{{1}}, then \\boxed{{{answer}}}.")
#: As often as so many of them, an answer as it is.
_AS_IS = ("as_is",) * 8


def rule_reward(
    path: str,
    *wordings: str,
    knows: str = "",
    call: BoundaryCall = ruled,
    accepts: Mapping[str, tuple[Any, ...]] | None = None,
    **more: Any,
) -> Binding:
    """Bind a rule that scores a response; ``wordings`` are the answers that it understands, all where there is none.

    :param knows: the ways to write an answer that it knows: of :data:`NORMALISERS`, or of the contract's ``NOTATIONS``.
    """
    choices: dict[str, tuple[Any, ...]] = {"wording": wordings} if wordings else {}
    choices["notation"] = (*_AS_IS, *NORMALISERS.get(knows, knows).split())
    return Binding(path, "rule_reward", call=call, accepts={**choices, **(accepts or {})}, **more)


def sampling_request(
    path: str,
    made_by: str,
    ask: Callable[[Any, Any], Mapping[str, Any]],
    fields: Mapping[str, Any],
    *stand_ins: StandIn,
    imports: Sequence[str] = (),
    beside: Mapping[str, Any] | None = None,
    parsed: bool = False,
    **more: Any,
) -> Binding:
    """Bind the way from a framework's own configuration to what an engine is asked for.

    :param made_by: the dotted path of the configuration's class.
    :param ask: ``ask(boundary, configuration) -> request``, in the engine's words.
    :param fields: option -> its field, as :func:`~sentinel.binding.kit.with_options` takes them.
    :param beside: further fields of the configuration.
    :param parsed: whether ``made_by`` gives what adds arguments to a parser instead.
    """
    module, _, name = made_by.rpartition(".")
    call = partial(requested, ask, module, name, fields, beside or {}, parsed)
    lacks = SAMPLING_REQUEST.lacking(*fields)
    modules = (module, *imports)
    return Binding(path, "sampling_request", call=call, imports=modules, stand_ins=stand_ins, fixed=lacks, **more)


#: What :func:`~sentinel.binding.kit.with_base64` puts there.
BASE64 = StandIn("pybase64", "the same as Python's own base64, and faster")
_ENGINE = StandIn("engine", "there is none; it answers what the scenario says")
WORDS = StandIn("tokenizer", "a word is a token, in a template of ChatML's form")
#: What :func:`~sentinel.binding.kit.on_ranks` makes.
RANKS = StandIn("ranks", "threads of one process, by functions in the place of torch.distributed's")
MPU = StandIn("mpu", "Megatron's parallel state for one process: every axis of size 1, rank 0, first and last stage")


def rollout(
    path: str,
    call: BoundaryCall,
    *stand_ins: StandIn,
    takes: str = "",
    role: str = "user",
    fixed: Mapping[str, Any] | None = None,
    **more: Any,
) -> Binding:
    """Bind a loop between an engine and what answers it.

    :param takes: the inputs that it is drawn with; of the others each is the contract's default, and there is one turn.
    :param role: what speaks between two answers.
    """
    plain = {item.name: item.default for item in ROLLOUT.inputs if item.default is not REQUIRED and item.name != "end"}
    constants = {**plain, "options": None, "turns": 1, "after_an_answer": (role,), **(fixed or {})}
    free = ("options", "heard", "system", *takes.split())
    constants = {name: value for name, value in constants.items() if name not in free or name in (fixed or {})}
    return Binding(path, "rollout", call=call, stand_ins=(_ENGINE, WORDS, *stand_ins), fixed=constants, **more)


def balanced_partition(path: str, *leading: str, **more: Any) -> Binding:
    """Bind what deals sequences out and knows no minibatches; the ``leading`` inputs are passed by their places."""
    free = () if "equal_size" in more.get("fixed", {}) else ("equal_size",)
    call = more.pop("call", None) or partial(passed, leading=leading or ("lengths", "parts"), takes=free)
    fixed = {"grouped": False, "keep_minibatches": False, **more.pop("fixed", {})}
    return Binding(path, "balanced_partition", outputs=("parts",), call=call, fixed=fixed, **more)


def microbatch_packing(path: str, call: BoundaryCall | None = None, **more: Any) -> Binding:
    """Bind what packs sequences into microbatches of so many tokens; without a ``call`` it takes lengths and that
    number."""
    fields = {name: more.pop(name) for name in ("formerly", "imports", "requires", "stand_ins") if name in more}
    packing = call or partial(packed, **more)
    accepts = {"attention_mask": ("full", "right")}
    return Binding(path, "microbatch_packing", call=packing, accepts=accepts, **fields)


@dataclass(frozen=True)
class Container:
    """A class that holds the rows of a batch.

    :ivar make: see :data:`sentinel.binding.kit.Make`.
    :ivar read: see :data:`sentinel.binding.kit.Read`.
    :ivar common: fields of every binding of it, ``fixed`` among them.
    """

    make: Make
    read: Read = columns_and_meta
    common: Mapping[str, Any] = field(default_factory=dict)

    def surgery(self, path: str, kind: str, do: Surgery, **more: Any) -> Binding:
        """Bind what cuts, joins, orders, repeats, fills or shortens it."""
        fixed = {"surgery": kind, **self.common.get("fixed", {}), **more.pop("fixed", {})}
        call = partial(operated, self.make, self.read, do)
        return Binding(path, "row_surgery", call=call, **{**self.common, **more, "fixed": fixed})

    def joining(self, path: str, **more: Any) -> Binding:
        """Bind what joins several."""
        return self.surgery(path, "join", partial(joined, self.make), **more)

    def iteration(self, path: str, **more: Any) -> Binding:
        """Bind what goes through its minibatches."""
        call = partial(iterated, self.make, self.read)
        return Binding(path, "minibatch_iteration", call=call, **{**self.common, **more})


def data_proto(protocol: str, **chunks: Any) -> tuple[Binding, ...]:
    """Bind DataProto of the module ``protocol``; ``chunks`` are further fields of the binding of ``chunk``."""
    data = f"{protocol}.DataProto"
    proto = Container(partial(container, data), common={"imports": (protocol,)})
    return (
        proto.surgery(f"{data}.chunk", "cut", cut, **chunks),
        proto.joining(f"{data}.concat"),
        proto.surgery(f"{data}.reorder", "reorder", reordered),
        proto.surgery(f"{data}.repeat", "repeat", counted, requires=(f"{data}.repeat",)),
        proto.surgery(f"{protocol}.pad_dataproto_to_divisor", "fill", filled),
        proto.surgery(f"{protocol}.unpad_dataproto", "shorten", counted),
        proto.iteration(f"{data}.make_iterator"),
    )
