"""Build bindings for the kinds of functions that most frameworks have, such as policy losses.

Each function returns a :class:`~sentinel.targets.Binding`. ``more`` sets further fields of the binding.
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
    apply_count,
    apply_rule,
    call_with,
    cut_parts,
    fill_rows,
    iterate_minibatches,
    join_parts,
    make_container,
    operate,
    pack_by_length,
    read_columns_and_meta,
    reorder_rows,
    request_sampling,
)
from sentinel.contracts.aggregation import aggregated as aggregated
from sentinel.contracts.aggregation import row_mean as row_mean
from sentinel.contracts.contract import REQUIRED
from sentinel.contracts.conversations import ChatTokenizer as ChatTokenizer
from sentinel.contracts.conversations import chat as chat
from sentinel.contracts.conversations import skipped_turn as skipped_turn
from sentinel.contracts.group_advantage import GROUP_ADVANTAGE
from sentinel.contracts.importance_weight import IMPORTANCE_WEIGHT as IMPORTANCE_WEIGHT
from sentinel.contracts.loop_updates import LOWEST_RATE as LOWEST_RATE
from sentinel.contracts.normalisation import MASKED_STATISTICS as MASKED_STATISTICS
from sentinel.contracts.normalisation import REWARD_NORMALISATION as REWARD_NORMALISATION
from sentinel.contracts.policy_loss import POLICY_LOSS
from sentinel.contracts.returns import DISCOUNTED_RETURN as DISCOUNTED_RETURN
from sentinel.contracts.rollouts import LOG_PROB_STEP as LOG_PROB_STEP
from sentinel.contracts.rollouts import SAMPLING_REQUEST as SAMPLING_REQUEST
from sentinel.contracts.rollouts import WeightEngine as WeightEngine
from sentinel.contracts.schedule import LEARNING_RATE as LEARNING_RATE
from sentinel.contracts.step_losses import PREFERENCE_LOSS as PREFERENCE_LOSS
from sentinel.contracts.surgery import LAYOUTS as LAYOUTS
from sentinel.contracts.table_engine import ROLLOUT
from sentinel.contracts.table_engine import ROW as ROW
from sentinel.contracts.table_engine import TableEngine as TableEngine
from sentinel.contracts.table_engine import experts_beside as experts_beside
from sentinel.contracts.table_engine import in_sglangs_words as in_sglangs_words
from sentinel.contracts.updates import POLICY_UPDATE as POLICY_UPDATE
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

    :param algorithm: the algorithm that the loss computes, or a sequence of algorithms if it has several.
    :param knobs: the contract's options that the loss has; all other options are fixed to their defaults.
    :param mode: the only aggregation mode of the loss; empty if it has several.
    :param weights: if True, the loss accepts importance weights of off-policy tokens.
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
    """Bind a group-based advantage estimator such as GRPO. Options that are not in ``knobs`` have their defaults."""
    fixed = {"estimator": estimator, **GROUP_ADVANTAGE.lacking(*knobs), **more.pop("fixed", {})}
    outputs = more.pop("outputs", ("advantages", "returns"))
    return Binding(path, "group_advantage", outputs=outputs, call=call, fixed=fixed, dialects=dialects, **more)


def normalised_rewards(path: str, call: BoundaryCall, *knobs: str, **more: Any) -> Binding:
    """Bind a function that normalises rewards by group. Options that are not in ``knobs`` have their defaults."""
    fixed = {"mean_level": "group", **more.pop("fixed", {})}
    constants = {**REWARD_NORMALISATION.lacking(*knobs), **fixed}
    return Binding(path, "reward_normalisation", call=call, fixed=constants, **more)


def masked_statistic(path: str, statistic: str, *knobs: str, **more: Any) -> Binding:
    """Bind a statistic over valid tokens, such as a masked mean. Its ``axis`` is numbered as in torch.

    Options that are not in ``knobs`` have their defaults.
    """
    fixed = {"statistic": statistic, **MASKED_STATISTICS.lacking(*knobs), **more.pop("fixed", {})}
    call = partial(call_with, values_of={"axis": AXIS})
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
#: Common answer normalisers -> the notations that they accept:
#:
#: * ``numbers``: plain numbers
#: * ``math``: MATH (arXiv:2103.03874)
#: * ``minerva``: Minerva (arXiv:2206.14858); ``integers``: its variant for integers
#: * ``sympy``: sympy without a LaTeX parser
#: * ``values`` and ``expressions``: MATH followed by sympy (arXiv:2305.20050), without a LaTeX parser;
#:   ``expressions`` also accepts a different expression of the same value
#: * ``questions``: words, as in SQuAD (arXiv:1606.05250)
#: * ``choices``: multiple choice
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
#: A wording of a response with two LaTeX boxes. The last box contains the answer.
BOXES = ("boxed", "At first \\boxed{{1}}, then \\boxed{{{answer}}}.")
#: The unchanged answer is repeated, so that a search draws it eight times as often as each notation.
_AS_IS = ("as_is",) * 8


def rule_reward(
    path: str,
    *wordings: str,
    notations: str = "",
    call: BoundaryCall = apply_rule,
    accepts: Mapping[str, tuple[Any, ...]] | None = None,
    **more: Any,
) -> Binding:
    """Bind a reward rule, which scores a response by comparing its text with the ground truth.

    :param wordings: templates of a response's text, from which a search draws.
    :param notations: the answer formats that the rule accepts: a key of :data:`NORMALISERS`, or names from the
        contract's ``NOTATIONS``, separated by spaces.
    """
    choices: dict[str, tuple[Any, ...]] = {"wording": wordings} if wordings else {}
    choices["notation"] = (*_AS_IS, *NORMALISERS.get(notations, notations).split())
    return Binding(path, "rule_reward", call=call, accepts={**choices, **(accepts or {})}, **more)


def sampling_request(
    path: str,
    made_by: str,
    ask: Callable[[Any, Any], Mapping[str, Any]],
    fields: Mapping[str, Any],
    *stand_ins: StandIn,
    imports: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    parsed: bool = False,
    **more: Any,
) -> Binding:
    """Bind the code that turns a framework's configuration into a sampling request for an inference engine.

    :param made_by: the dotted path of the configuration's class.
    :param ask: ``ask(boundary, configuration) -> request``; the request has the engine's parameter names.
    :param fields: option -> its field, in the form that :func:`~sentinel.binding.kit.with_options` accepts.
    :param extra: further fields of the configuration.
    :param parsed: if True, ``made_by`` names a function without parameters. It returns another function, which adds the
        framework's arguments to a parser.
    """
    module, _, name = made_by.rpartition(".")
    call = partial(request_sampling, ask, module, name, fields, extra or {}, parsed)
    lacks = SAMPLING_REQUEST.lacking(*fields)
    modules = (module, *imports)
    return Binding(path, "sampling_request", call=call, imports=modules, stand_ins=stand_ins, fixed=lacks, **more)


#: Declares the replacement that :func:`~sentinel.binding.kit.with_base64` makes.
BASE64 = StandIn("pybase64", "Python's own base64 returns the same as the faster package")
WEIGHTS = StandIn("engine", "records the version of its weights, and has the memory levels of vLLM's sleep mode")
_ENGINE = StandIn("engine", "replaces the inference engine and returns the scenario's tokens")
WORDS = StandIn("tokenizer", "treats each word as a token, with a chat template in ChatML format")
#: Declares the replacement that :func:`~sentinel.binding.kit.on_ranks` makes.
RANKS = StandIn("ranks", "ranks are threads of one process, and torch.distributed's functions are replaced")
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
    """Bind a rollout loop, in which an inference engine and an environment alternate.

    :param takes: names of the inputs that a search draws, separated by spaces, in addition to ``options``, ``heard``
        and ``system``. All other inputs have their defaults, with which the model answers once.
    :param role: the role of the messages between two answers of the model.
    """
    plain = {item.name: item.default for item in ROLLOUT.inputs if item.default is not REQUIRED and item.name != "end"}
    constants = {**plain, "options": None, "turns": 1, "after_an_answer": (role,), **(fixed or {})}
    free = ("options", "heard", "system", *takes.split())
    constants = {name: value for name, value in constants.items() if name not in free or name in (fixed or {})}
    return Binding(path, "rollout", call=call, stand_ins=(_ENGINE, WORDS, *stand_ins), fixed=constants, **more)


def balanced_partition(path: str, *leading: str, **more: Any) -> Binding:
    """Bind a function that distributes sequences over workers. The ``leading`` inputs are passed by position."""
    free = () if "equal_size" in more.get("fixed", {}) else ("equal_size",)
    call = more.pop("call", None) or partial(call_with, leading=leading or ("lengths", "parts"), takes=free)
    fixed = {"grouped": False, "keep_minibatches": False, **more.pop("fixed", {})}
    return Binding(path, "balanced_partition", outputs=("parts",), call=call, fixed=fixed, **more)


def microbatch_packing(path: str, call: BoundaryCall | None = None, **more: Any) -> Binding:
    """Bind a function that packs sequences into microbatches with a token limit.

    Without ``call``, the function is called with the lengths and the limit.
    """
    fields = {name: more.pop(name) for name in ("formerly", "imports", "requires", "stand_ins") if name in more}
    packing = call or partial(pack_by_length, **more)
    accepts = {"attention_mask": ("full", "right")}
    return Binding(path, "microbatch_packing", call=packing, accepts=accepts, **fields)


@dataclass(frozen=True)
class Container:
    """The class in which a framework stores the rows of a batch, such as verl's DataProto.

    :ivar make: see :data:`sentinel.binding.kit.Make`.
    :ivar read: see :data:`sentinel.binding.kit.Read`.
    :ivar common: fields that all its bindings have in common, such as ``fixed``.
    """

    make: Make
    read: Read = read_columns_and_meta
    common: Mapping[str, Any] = field(default_factory=dict)

    def surgery(self, path: str, kind: str, do: Surgery, **more: Any) -> Binding:
        """Bind an operation on the rows of a batch container, such as splitting, reordering, repeating or padding."""
        fixed = {"surgery": kind, **self.common.get("fixed", {}), **more.pop("fixed", {})}
        call = partial(operate, self.make, self.read, do)
        return Binding(path, "row_surgery", call=call, **{**self.common, **more, "fixed": fixed})

    def joining(self, path: str, **more: Any) -> Binding:
        """Bind a function that joins several batch containers."""
        return self.surgery(path, "join", partial(join_parts, self.make), **more)

    def iteration(self, path: str, **more: Any) -> Binding:
        """Bind an iterator over the minibatches of a batch container."""
        call = partial(iterate_minibatches, self.make, self.read)
        return Binding(path, "minibatch_iteration", call=call, **{**self.common, **more})


def data_proto(protocol: str, **chunks: Any) -> tuple[Binding, ...]:
    """Bind the operations of the ``DataProto`` class that a module defines. ``chunks`` are additional fields of the
    binding of its method ``chunk``.
    """
    data = f"{protocol}.DataProto"
    proto = Container(partial(make_container, data), common={"imports": (protocol,)})
    return (
        proto.surgery(f"{data}.chunk", "cut", cut_parts, **chunks),
        proto.joining(f"{data}.concat"),
        proto.surgery(f"{data}.reorder", "reorder", reorder_rows),
        proto.surgery(f"{data}.repeat", "repeat", apply_count, requires=(f"{data}.repeat",)),
        proto.surgery(f"{protocol}.pad_dataproto_to_divisor", "fill", fill_rows),
        proto.surgery(f"{protocol}.unpad_dataproto", "shorten", apply_count),
        proto.iteration(f"{data}.make_iterator"),
    )
