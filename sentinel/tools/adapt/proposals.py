"""Propose a binding for each function whose signature fits a contract, with questions about uncertain choices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.binding import kit
from sentinel.contracts.contract import REQUIRED, TOKENS, Contract, Input
from sentinel.contracts.names import Matching, fits, match_names, suggest_names
from sentinel.targets import Target
from sentinel.testing.alternatives import other_settings
from sentinel.tools.adapt.signatures import Classes, Parameter, Signature


class Code(str):
    """Code to write into an adapter as an expression. Other values are written as literals."""


#: Names of parameters for the number of responses to a prompt.
_GROUP_SIZE = re.compile(
    r"(group_size|num_generations|(n|num)_samples(_per_prompt)?|rollout_n|n_rollouts|num_responses)"
)
#: The code in the adapter that maps the axis of a statistic to torch's ``dim``.
AXIS = Code("kit.AXIS")
#: Names of functions that prepare or log values and do not compute a training signal.
_HELPER = re.compile(
    r"_?(pre|post)_?process|_?(update|log|get|collect|build|reduce|gather|prepare)_\w*(metrics?|stats|logs)|__init__"
)
#: Annotation -> the value for a required parameter that matches no input. It makes the function callable.
_PLACEHOLDERS = {"bool": False, "int": 1, "float": 1.0, "str": ""}
_TENSORS = re.compile(r"tensor|Sequence|List|list\[|ndarray|Batch|Dict|dict", re.I)
#: (pattern, value): a parameter whose name contains the pattern is a bound; it gets this value, which is never reached.
_BOUNDS = ((r"ratio|frac", 0.0), (r"min|lower|floor", -1e4), (r"max|upper|cap|limit", 1e4))
#: Names of parameters: for the step of a learning-rate schedule, and for the response and the correct answer of a
#: reward rule.
_STEP = re.compile(r"(current_|cur_|global_|train(ing)?_)?(step|it|iter|iteration|t)(_num|_idx)?")
_RESPONSE = re.compile(
    r"((model|llm|given|student|predicted|generated)_)?"
    r"(response|completion|output|prediction|pred|solution|answer|text|generation|guess)(_(str|text))?"
)
_TRUTH = re.compile(
    r"ground_truth|gt|gold|golden|target|label|reference|ref|expected|((correct|true|gold|ref)_)?answer"
)
#: Names of parameters for an identifier of each row.
_ROW_NAMES = re.compile(r"(\w+_)?(uuids?|(traj|trajectory|row|sample|request|response)_ids?)")
#: (pattern of an annotation, (layout, form)): whether a function takes numbers as one vector (``row``) or as a list of
#: vectors (``rows``), and the type of a vector.
_VECTORS = (
    (r"(list|Sequence|Iterable|tuple)\[(list|Sequence)\[(float|int|bool)", ("rows", "list")),
    (r"(list|Sequence|Iterable|tuple)\[(np\.|numpy\.)?(nd)?array", ("rows", "array")),
    (r"(list|Sequence|Iterable|tuple)\[(torch\.)?Tensor", ("rows", "tensor")),
    (r"(list|Sequence|Iterable|tuple)\[(float|int|bool|SupportsFloat)", ("row", "list")),
    (r"ndarray|NDArray", ("row", "array")),
)


@dataclass(frozen=True)
class Layout:
    """How a function takes a contract's tensors, for example row by row (see ``kit.call_each``).

    :ivar each: the argument ``each`` of ``kit.call_each``; empty if the function takes whole tensors.
    :ivar form: the type of a vector; for a reward rule, the wording of the response.
    """

    each: str = ""
    form: str = "tensor"

    @property
    def of_groups(self) -> bool:
        return self.each in ("group", "groups")


@dataclass(frozen=True)
class Kind:
    """A rule by which ``sentinel adapt`` recognises from names that a function fits a contract.

    :ivar about: a pattern that must occur in the function's name.
    :ivar outputs: the contract's outputs. If a function returns a single value, it is the first output.
    :ivar settings: required input that may have no parameter -> (pattern, value) pairs. The input gets the value of the
        first pair whose pattern occurs in the function's name. An empty pattern occurs in every name.
    :ivar sums: input of shape ``[batch, tokens]`` that a function may take as one number per row -> the mask over which
        it is summed.
    :ivar aside: a pattern that must not occur in the function's name.
    :ivar alone: whether the last unmatched parameter and the last unmatched input are matched regardless of their
        names.
    """

    contract: str
    about: str
    outputs: tuple[str, ...]
    settings: Mapping[str, Sequence[tuple[str, Any]]] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    aside: str = "$^"
    alone: bool = False


_SIDES = ("chosen", "rejected")
_ALGORITHMS = "gspo_token gspo cispo sapo gmpo icepop topr kimi dro clip_cov kl_cov dppo_kl dppo_tv gpg"
_ESTIMATORS = "rloo opo gpg passk maxrl gdpo remax"


def _names(words: str, *others: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [*((word, word) for word in words.split()), *others]


#: The contracts, from the most to the least specific. Of contracts that fit equally well, the first one is tried.
KINDS = (
    Kind(
        "policy_loss", r"polic|actor|pg_|_pg|ppo|grpo|loss",
        ("loss", "clip_fraction", "approx_kl", "dual_clip_fraction"),
        {"algorithm": _names(_ALGORITHMS, ("reinforce|vanilla", "reinforce"), ("", "ppo"))},
        aside="value|critic|advantage|dpo|mask|metric",
    ),
    Kind("value_loss", r"value|critic|vf", ("loss", "clip_fraction")),
    Kind("generalised_advantage", r"gae|adv|return", ("advantages", "returns")),
    Kind(
        "group_advantage", r"adv|grpo|rloo|outcome|baseline", ("advantages", "returns"),
        {"estimator": _names(_ESTIMATORS, ("", "grpo"))},
        {"token_level_rewards": "response_mask"},
    ),
    Kind(
        "discounted_return", r"return|discount|reinforce|reinpp|reward_?to_?go|future_sum", ("returns", "advantages"),
        alone=True,
    ),
    Kind("advantage_normalisation", r"norm|whiten|adv", ("normalised",), aside="loss"),
    Kind(
        "reward_normalisation", r"norm|adv|reward|baseline|score", ("normalised",),
        {
            "std_level": [("rloo|loo|center", None), ("", "group")],
            "leave_one_out": [("rloo|loo|leave", True), ("", False)],
            "mean_level": [("batch|global", "batch"), ("", "group")],
        },
        aside="loss|metric",
    ),
    Kind("kl_estimate", r"kl|log_?ratio", ("kl",), aside="loss|metric|jsd"),
    Kind("importance_weight", r"importance|(^|_)is_|weight|tis|correction|ratio", ("weights", "kept"), aside="loss"),
    Kind("loss_aggregation", r"agg|reduce|seq_mean|token_mean|token_sum", ("loss",), aside="metric", alone=True),
    Kind(
        "masked_statistics", r"mean|sum|var|whiten|normali", ("result",),
        {"statistic": [("var", "var"), ("whiten|normali", "whiten"), ("mean", "mean"), ("sum", "sum")]},
        aside="loss|adv|ratio|summar|seq_mean", alone=True,
    ),
    Kind("distillation_loss", r"jsd|distil|gkd|kl_div|loss", ("loss",)),
    Kind("token_log_probs", r"log_?p|log_?prob|entropy", ("log_probs", "entropy")),
    Kind(
        "preference_loss", r"dpo|preference|ipo|loss", ("loss",), {"loss_type": [("ipo", "ipo"), ("", "sigmoid")]},
        {f"{side}_{name}log_probs": f"{side}_mask" for side in _SIDES for name in ("", "ref_")},
    ),
    Kind(
        "rule_reward", r"reward|score|grade|verif|correct|equiv|match|check", ("score",),
        {"wording": [(r"", "boxed")]}, aside="normali|extract|parse|compute_group",
    ),
    Kind("learning_rate", r"lr|learning_rate|schedul|warmup", ("rates",), {"warmup_steps": [("", 0)]}),
    Kind("overlong_penalty", r"overlong|length|long|penalty", ("rewards",)),
)  # fmt: skip

#: (pattern, output): a returned variable whose name contains the pattern is that output.
_RETURNED = (
    (r"adv", "advantages"),
    (r"ret", "returns"),
    (r"dual.*frac|frac.*lower", "dual_clip_fraction"),
    (r"clip.*frac|frac", "clip_fraction"),
    (r"kl", "approx_kl"),
    (r"per_token_loss|token_loss|loss_mat", "per_token_loss"),
    (r"loss", "loss"),
    (r"weight", "weights"),
    (r"mask|keep|kept", "kept"),
    (r"log_?p", "log_probs"),
    (r"entrop", "entropy"),
    (r"score|reward", "score"),
)
#: The wordings of a response that are tried for a reward rule, from a whole response to the bare answer.
_WORDINGS = ("boxed", "<answer>{answer}</answer>", "The answer is {answer}", "#### {answer}", "bare")


@dataclass(frozen=True)
class Proposal:
    """A binding that may be right for a function, with the guesses that it contains.

    :ivar score: how well the contract matches the parameters. The proposal with the highest score is tried first.
    :ivar arguments: input -> its parameter, if their names differ.
    :ivar takes: the inputs that are passed to the function.
    :ivar fixed: input without a parameter -> the value that corresponds to the function's behaviour.
    :ivar accepts: input -> the values that the function accepts.
    :ivar reads: output -> its index or key in the function's result; ``()`` is the result itself.
    :ivar options: further options of ``kit.call_with``.
    :ivar constants: parameter that matches no input -> its value.
    :ivar objects: parameter that is an object -> the attributes and keys that the body reads -> the code of their
        values.
    :ivar questions: the guesses that a person has to confirm.
    :ivar dtypes: the float dtypes that the function accepts; empty for all.
    :ivar formerly: former paths of the function.
    :ivar earlier: input -> former names of its parameter.
    """

    signature: Signature
    contract: str
    score: int
    arguments: Mapping[str, str]
    takes: tuple[str, ...]
    fixed: Mapping[str, Any]
    accepts: Mapping[str, tuple[Any, ...]]
    reads: Mapping[str, Any]
    options: Mapping[str, Any]
    constants: Mapping[str, Any]
    objects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    layout: Layout = Layout()
    dtypes: tuple[str, ...] = ()
    formerly: tuple[str, ...] = ()
    earlier: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.signature.path


@dataclass(frozen=True)
class NearMiss:
    """A function that nearly fits a contract, and why it does not: for example, an input has no parameter."""

    signature: Signature
    contract: str
    reason: str


#: The maximum number of proposals for one function. They differ in contract or layout; that with the best results of
#: the laws is chosen.
_MOST = 5


def propose(
    signature: Signature, contracts: Mapping[str, Contract], classes: Classes | None = None
) -> list[Proposal] | NearMiss | None:
    """Return the proposals for a function, the best first. If there are none, return a near miss or None.

    :param classes: the project's classes. Their defaults become the values of attributes that the function reads.
    """
    name = signature.about
    aside = signature.is_async or "property" in str(signature.decorators) or _HELPER.match(name)
    if aside or not signature.own or "overload" in str(signature.decorators):
        return None
    kinds = [kind for kind in KINDS if re.search(kind.about, name) and not re.search(kind.aside, name)]
    found = [
        each
        for kind in kinds
        for layout in _possible_layouts(signature, contracts[kind.contract])
        if (each := _proposal(signature, kind, contracts[kind.contract], layout, classes or {})) is not None
    ]
    proposals = [each for each in found if isinstance(each, Proposal)]
    misses = [each for each in found if isinstance(each, NearMiss)]
    if proposals:
        return sorted(proposals, key=lambda each: -each.score)[:_MOST]
    return min(misses, key=lambda each: each.reason.count(";"), default=None)


#: Contracts whose functions may take one response at a time, as a vector with one entry per step.
_OF_STEPS = ("generalised_advantage", "discounted_return", "kl_estimate")


def _possible_layouts(signature: Signature, contract: Contract) -> list[Layout]:
    if any("_mask" in item.name and item.shape == TOKENS and item.name != contract.mask for item in contract.inputs):
        return [Layout()]  # with a mask for each tensor, rows cannot be cut with one mask
    if contract.name == "rule_reward":
        bare = any(re.search("answer|pred|guess", each.name) for each in signature.own[:1])
        return [Layout(form=each) for each in (reversed(_WORDINGS) if bare else _WORDINGS)]
    if contract.name == "learning_rate":
        return [Layout("steps")]
    of_rows = any(item.shape == ("batch",) and item.default is REQUIRED for item in contract.inputs)
    labels = [each.name for each in signature.own if fits(contract, "group", each.name) is not None]
    names = [each.name for each in signature.own if _ROW_NAMES.fullmatch(each.name)]
    notes = [each.annotation for each in signature.own if each.name not in (*labels, *names)]
    found = next(
        (how for words, how in _VECTORS for note in notes if re.match(rf"(Optional\[)?(\w+\.)?{words}", note, re.I)),
        None,
    )
    ends = contract.input("gamma") is not None and any(each.name in kit.ENDS for each in signature.own)
    if ends:
        form = found[1] if found else "tensor"
        return [Layout("batch", form), Layout("stream", form)]
    grouped = contract.name in ("group_advantage", "reward_normalisation") and not any(
        fits(contract, "group", each.name) is not None or _GROUP_SIZE.fullmatch(each.name) for each in signature.own
    )
    if found is None:
        masked = any(fits(contract, contract.mask, each.name) is not None for each in signature.own)
        vectors = contract.name in _OF_STEPS and not masked
        groups = [Layout("group", "tensor"), Layout("group", "array")] if grouped else []
        return [Layout(), *groups, *([Layout("row")] if vectors else [])]
    each, form = found
    if grouped:
        return [Layout("groups" if each == "rows" else "group", form)]
    if of_rows:
        return [Layout("batch", form)]
    whole = [Layout("batch", form), Layout()] if each == "row" and form == "array" else []
    return [*whole, Layout(each, form)]


def _proposal(
    signature: Signature, kind: Kind, contract: Contract, layout: Layout, classes: Classes
) -> Proposal | NearMiss | None:
    parameters = {parameter.name: parameter for parameter in signature.own}
    size = next((name for name in parameters if _GROUP_SIZE.fullmatch(name)), "")
    objects = {name: signature.reads[name] for name in signature.reads if _is_object(parameters.get(name))}
    leaves = {_leaf(path): name for name, paths in objects.items() for path in paths}
    inner_size = "" if size else next((leaf for leaf in leaves if _GROUP_SIZE.fullmatch(leaf)), "")
    ends = [name for name in parameters if layout.each in ("batch", "stream") and name in kit.ENDS]
    ends += [name for name in parameters if ends and name in kit.AFTER_ENDS]
    known = {*kind.settings, *({"group"} if size or inner_size or layout.of_groups else ())}
    known |= {contract.mask} if ends else set()
    apart = {size, *objects, *ends}
    required = [name for name, parameter in parameters.items() if parameter.required and name not in apart]
    names = [name for name in parameters if name not in apart and not _fits_no_word(signature, name, contract)]
    rows = [name for name in required if _ROW_NAMES.fullmatch(name) and fits(contract, "group", name) is None]
    names = [name for name in names if name not in rows]
    given: dict[str, str] = {}
    if contract.name == "rule_reward":
        given = _of_rule(signature)
        if not given:
            return None
        names = [name for name in names if name != given["response"]]
        required = [name for name in required if name != given["response"]]
    step = next((name for name in parameters if _STEP.fullmatch(name)), "")
    if layout.each == "steps":
        if not step:
            return None
        apart |= {step}
        names, required = ([name for name in each if name != step] for each in (names, required))
    forced = {"ground_truth": given["ground_truth"]} if given else {}
    match, guess = match_names(contract, names, required, forced, known), dict[str, str]()
    knobs = [item.name for item in contract.inputs if item.knob and item.name not in match.names]
    guess |= {name: each for name in knobs for each in match.unknown if each.endswith(f"_{name}")}
    if guess:  # for example, dpo_beta is a beta
        match = match_names(contract, names, required, {**forced, **guess}, known)
    for again in (True, False):
        missing = [item for item in match.missing if not _is_optional(contract, item)]
        foreign = [name for name in match.unknown if _placeholder(parameters[name]) is None]
        unread = [name for name in foreign if name not in signature.names]
        foreign = [name for name in foreign if name not in unread]
        if again and len(missing) == 1 and foreign and missing[0] != "group":
            alone = kind.alone and len(foreign) == 1
            guess |= {missing[0]: foreign[0]} if alone else suggest_names(contract, foreign, missing, 0.6)
            match = match_names(contract, names, required, {**forced, **guess}, known)
    inner = _inner(contract, match, leaves, objects, signature, known)
    missing = [name for name in missing if name not in inner]
    reads = _reads(signature, kind, contract)
    known_otherwise = 2 * layout.of_groups + (layout.each == "steps")
    if reads is None or len({**match.names, **inner, **given}) + known_otherwise < 2:
        return None
    lacks = [f"no parameter matches the input {item}" for item in missing]
    lacks += [f"no input of the contract matches the parameter {name}" for name in foreign]
    if contract.group and "group" not in {*match.names, *known, *inner}:
        lacks.append("no parameter specifies which rows form a group")
    if lacks:
        near = len(missing) < 2 and any(contract.input(name).shape for name in match.names)  # type: ignore[union-attr]
        return NearMiss(signature, contract.name, "; ".join(lacks)) if near else None
    draft = _Draft(
        leading=tuple(sorted(given, key=lambda name: list(parameters).index(given[name]))),
        step=step if layout.each == "steps" else "",
        unread=unread,
        layout=layout,
        ends=ends,
        rows=rows,
        inner=inner,
        size=size,
        inner_size=inner_size,
    )
    draft.objects = _objects(signature, objects, inner, inner_size, classes)
    return _written(draft, signature, kind, contract, match, parameters, reads, guess)


def _of_rule(signature: Signature) -> dict[str, str]:
    """Return which parameters are the response and the ground truth, or none unless both are strings."""
    texts = [each.name for each in signature.own if each.required and re.search(r"^$|\bstr\b|Any", each.annotation)]
    texts = [name for name in texts if not signature.reads.get(name)]
    truth = next((name for name in reversed(texts) if _TRUTH.fullmatch(name)), "")
    response = next((name for name in texts if name != truth and _RESPONSE.fullmatch(name)), "")
    first = {each.name for each in signature.own[:2]}  # both are passed by position
    return {"response": response, "ground_truth": truth} if first == {truth, response} else {}


def _is_object(parameter: Parameter | None) -> bool:
    """Return True for ``self`` and for a parameter that is not annotated as a tensor, number or string."""
    return parameter is None or not re.search(r"tensor|ndarray|\b(int|float|bool|str)\b", parameter.annotation, re.I)


def _leaf(path: str) -> str:
    """Return ``beta`` for ``args.beta`` and for ``args["beta"]``."""
    return re.split(r"[.\[]", path)[-1].strip("]'\"")


def _inner(
    contract: Contract,
    match: Matching,
    leaves: Mapping[str, str],
    objects: Mapping[str, Sequence[str]],
    signature: Signature,
    known: Collection[str],
) -> dict[str, str]:
    """Return input -> the attribute or key of an object parameter that has the input's name.

    Attributes of ``self`` are matched with options only, because they do not contain the data of a batch.
    """
    names = match_names(contract, list(leaves), (), dict(match.names), known).names
    found = {}
    for name, leaf in names.items():
        item = contract.input(name)
        own = leaf in leaves and leaves[leaf] not in {each.name for each in signature.own}
        is_data = item is not None and bool(item.shape or item.kind == "labels")
        if name in match.names or leaf not in leaves or item is None or item.kind == "string" or (own and is_data):
            continue
        found[name] = leaf
    return found


def _objects(
    signature: Signature,
    objects: Mapping[str, Sequence[str]],
    inner: Mapping[str, str],
    inner_size: str,
    classes: Classes,
) -> dict[str, dict[str, str]]:
    """Return object parameter -> path that is read from it -> code of the value to put there.

    The value is an input, the group size, a default of the object's class, or otherwise ``None``.
    """
    given = {leaf: f'inputs["{name}"]' for name, leaf in reversed(list(inner.items()))}
    if inner_size:
        given[inner_size] = "kit.group_size(inputs)"
    notes = {each.name: re.sub(r".*\.|[^\w.].*", "", each.annotation.strip("'\"")) for each in signature.own}
    found: dict[str, dict[str, str]] = {}
    for name, paths in objects.items():
        defaults = _literals(classes, notes.get(name, signature.owner))
        found[name] = {path: given.get(_leaf(path)) or defaults.get(path) or "None" for path in paths}
    return found


def _literals(classes: Classes, name: str, far: int = 4) -> dict[str, str]:
    bases, own = classes.get(name, ((), {}))
    found: dict[str, str] = {}
    for base in bases if far else ():
        found |= _literals(classes, re.sub(r"\[.*|.*\.", "", base), far - 1)
    return {**found, **own}


def _fits_no_word(signature: Signature, name: str, contract: Contract) -> bool:
    """Return True for a parameter named like a tensor of the contract that the body compares with strings."""
    kinds = {item.kind for item in contract.inputs if fits(contract, item.name, name) is not None}
    return name in signature.words and kinds == {"tensor"}


def _is_optional(contract: Contract, name: str) -> bool:
    """Return True if a function may lack an input: an option can be guessed, and without a mask only valid tokens are
    passed."""
    item = contract.input(name)
    return item is not None and (bool(item.choices) or item.domain == "mask")


def _placeholder(parameter: Parameter) -> Any:
    """Return a constant of the annotated type. Return None without an annotation, or for a tensor or a collection."""
    if not parameter.annotation or _TENSORS.search(parameter.annotation):
        return None
    value: Any = next(
        (value for kind, value in _PLACEHOLDERS.items() if re.search(rf"\b{kind}\b", parameter.annotation)), None
    )
    bound = next((bound for words, bound in _BOUNDS if re.search(words, parameter.name)), value)
    return bound if type(value) is float else value


def _reads(signature: Signature, kind: Kind, contract: Contract) -> dict[str, Any] | None:
    """Return output -> its index or key in the function's result; ``()`` if the output is the whole result.

    Return None if the function returns no output of the contract.
    """
    returns = [names for names in signature.returns if names != ("None",)]
    if not returns:
        return None
    longest = max(returns, key=lambda names: (len(names), -names.count("None")))
    if all(name.startswith("[") for name in longest):  # a dictionary
        keys = {_output(name[1:-1], kind): name[1:-1] for name in longest}
        return {output: keys[output] for output in kind.outputs if output in keys} or None
    if len(longest) == 1:
        output = _output(longest[0], kind) if longest[0] else ""
        return {output if output == "per_token_loss" else kind.outputs[0]: ()}
    reads: dict[str, Any] = {}
    for place, name in enumerate(longest):
        output = _output(name, kind) if name not in ("", "None") else ""
        if output and output not in reads and any(len(other) > place and other[place] != "None" for other in returns):
            reads[output] = place
    if kind.outputs[0] not in reads and "per_token_loss" not in reads and longest[0] != "None":
        reads = {kind.outputs[0]: 0, **{name: place for name, place in reads.items() if place}}
    return reads


def _output(name: str, kind: Kind) -> str:
    outputs = (*kind.outputs, *(("per_token_loss",) if kind.contract == "policy_loss" else ()))
    return next((output for words, output in _RETURNED if output in outputs and re.search(words, name.lower())), "")


@dataclass
class _Draft:
    fixed: dict[str, Any] = field(default_factory=dict)
    accepts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    questions: list[str] = field(default_factory=list)
    objects: dict[str, dict[str, str]] = field(default_factory=dict)
    layout: Layout = Layout()
    ends: Sequence[str] = ()
    rows: Sequence[str] = ()
    inner: Mapping[str, str] = field(default_factory=dict)
    size: str = ""
    inner_size: str = ""
    unread: Sequence[str] = ()
    leading: Sequence[str] = ()
    step: str = ""


def _written(
    draft: _Draft,
    signature: Signature,
    kind: Kind,
    contract: Contract,
    match: Matching,
    parameters: Mapping[str, Parameter],
    reads: Mapping[str, Any],
    guess: Mapping[str, str],
) -> Proposal:
    names, layout, size = dict(match.names), draft.layout, draft.size
    draft.questions += [f"is {parameter} the contract's {name}?" for name, parameter in guess.items()]
    if "kl_coef" in names and "kl" not in names and contract.input("kl"):
        draft.fixed["kl_coef"] = 0.0
        draft.questions.append(f"the function computes the KL, so {names.pop('kl_coef')} is left at its default.")
    for item in contract.inputs:
        if not item.dialect and item.name not in {**names, **draft.inner}:
            _choose_fixed_value(draft, item, signature, kind, contract)
    for name, leaf in draft.inner.items():
        first = next(each for each, other in draft.inner.items() if other == leaf)
        if first != name:
            draft.fixed[name] = Code(f'lambda inputs: inputs["{first}"]')
    for name, alike in match.ambiguous.items():
        draft.questions.append(f"{' or '.join(alike)} may be the contract's {name}; {names[name]} is a guess.")
    if len(clips := {names.get("eps_clip_low"), names.get("eps_clip_high")}) == 1 and clips != {None}:
        draft.questions.append(
            f"{clips.pop()} sets both clip bounds, so scenarios with two different bounds are left out."
        )
    _words(draft, signature, contract, names)
    draft.constants |= dict.fromkeys(draft.unread)
    if draft.step:
        draft.options["step"] = draft.step
    if kind.contract == "rule_reward":
        draft.fixed["wording"] = layout.form
        draft.options |= {"leading": draft.leading, "takes": ()}
        draft.questions.append(f"which answer format is expected? The wording {layout.form!r} is tried.")
    responses = {each.name for each in signature.own[:2]} if draft.leading else set()
    apart = {*responses, *names.values(), size, draft.step, *draft.objects, *draft.ends, *draft.rows}
    left = _other_parameters(draft, signature, contract, match, parameters, apart, size)
    _layout(draft, signature, kind, names)
    masks = [name for name, several in draft.accepts.items() if several == ("full",)]
    partly = masks or layout.each or draft.objects or (contract.input("group") and "group" not in names)
    if partly and "takes" not in draft.options:
        draft.options["takes"] = tuple(names)
    if draft.ends:
        draft.options["ends"] = tuple(draft.ends)
    if draft.rows:
        draft.options["row_names"] = tuple(draft.rows)
        draft.questions.append(f"{' and '.join(draft.rows)}: each row gets a different name. Is that right?")
    if layout.of_groups:
        if contract.mask:
            draft.options["sums"] = {"token_level_rewards": contract.mask}
        draft.questions.append(_OF_GROUPS[layout.each])
    elif layout.each in _OF_LAYOUT:
        draft.questions.append(_OF_LAYOUT[layout.each])
    for name, paths in draft.objects.items():
        if unknown := [path for path, value in paths.items() if value == "None"]:
            what = "the object" if name not in parameters else name
            draft.questions.append(f"which values do these members of {what} have in a real run: {', '.join(unknown)}?")
    return Proposal(
        signature,
        contract.name,
        3 * (len(match.names) + len(draft.inner) - len(guess)) - len(match.unknown) - len(left) + 2 * (len(reads) > 1),
        {name: parameter for name, parameter in names.items() if name != parameter},
        tuple(names),
        draft.fixed,
        draft.accepts,
        reads,
        draft.options,
        draft.constants,
        draft.objects,
        tuple(draft.questions),
        layout,
        ("float32",) if re.search(r"assert [^\n]*dtype (==|is) torch\.float32", signature.body) else (),
    )


#: Layout -> the question whether the function takes tensors in this layout.
_OF_GROUPS = {
    "group": "the function takes no groups, so it is called once for each group. Is that right?",
    "groups": "the function takes a list, so it gets one vector for each group. Is that right?",
}
_OF_LAYOUT = {
    "row": "the function is called once for each response, with the response's valid tokens. Is that right?",
    "rows": "the function gets a list with a vector for each response. Is that right?",
    "stream": "the function gets the tokens of all responses one after another. Is that right?",
}


def _choose_fixed_value(draft: _Draft, item: Input, signature: Signature, kind: Kind, contract: Contract) -> None:
    if item.name in kind.settings:
        values = (value for word, value in kind.settings[item.name] if re.search(word, signature.about))
        draft.fixed[item.name] = next(values)
    elif item.name == "group":
        if not draft.layout.of_groups:
            draft.fixed["group_layout"] = "equal"
        if draft.size:
            draft.options["group"] = draft.size
    elif item.domain == "mask" and (draft.ends or draft.layout.each):
        if draft.layout.each == "batch":
            draft.accepts[item.name] = ("full", "right") if draft.ends else ("full",)
    elif item.domain == "mask" and item.default is not None:
        draft.accepts[item.name] = ("full",)
        if item.name == contract.mask:
            draft.questions.append("the function takes no mask, so all tokens count. Where are masked tokens removed?")
    elif item.choices and item.name not in draft.fixed:
        draft.fixed[item.name] = item.choices[0] if item.default is REQUIRED else item.default
        if item.default is REQUIRED or item.name == "loss_agg_mode":
            draft.questions.append(f"it has no parameter for {item.name}; {draft.fixed[item.name]!r} is a guess.")
    elif item.domain and item.default is None:
        draft.accepts[item.name] = (None,)


def _words(draft: _Draft, signature: Signature, contract: Contract, names: Mapping[str, str]) -> None:
    """Map the contract's choices to the function's own strings, with which its body compares a parameter."""
    if "axis" in names:
        draft.options["values_of"] = {"axis": AXIS}
    for name, parameter in names.items():
        item, words = contract.input(name), signature.words.get(parameter, ())
        if item is not None and (values := _vocabulary(item, words)):
            draft.accepts[name] = tuple(values)
            draft.options.setdefault("values_of", {})[name] = values
            if left := [word for word in words if word not in values.values()]:
                others = ", ".join(map(repr, left))
                draft.questions.append(f"{parameter} can also be {others}, but the contract's {name} cannot.")


def _other_parameters(
    draft: _Draft,
    signature: Signature,
    contract: Contract,
    match: Matching,
    parameters: Mapping[str, Parameter],
    given: set[str],
    size: str,
) -> list[str]:
    """Choose constants for required parameters that are not inputs of the contract.

    Return the parameters that keep a default other than None and False, because such a default may affect results.
    """
    for name in match.unknown:
        if name in draft.constants:
            continue
        value = _placeholder(parameters[name])
        draft.constants[name] = signature.words.get(name, (value,))[0] if value == "" else value
        guess = f"{draft.constants[name]!r} is a guess."
        draft.questions.append(f"what is {name}? No input of {contract.name} has this name; {guess}")
    if size and "group" not in draft.options:
        draft.constants[size] = 1
        draft.questions.append(f"{contract.name} has no groups, so {size} is 1. Does another contract fit better?")
    usual = ("None", "False", None)
    left = [name for name in parameters if name not in {*given, *draft.constants}]
    left = [name for name in left if parameters[name].default not in usual]
    if left:
        several = ", ".join(f"{name}={parameters[name].default}" for name in left)
        draft.questions.append(f"left at their defaults: {several}.")
    return left


def _layout(draft: _Draft, signature: Signature, kind: Kind, names: Mapping[str, str]) -> None:
    """Set the options that the body suggests: tokens first, boolean masks, one number per row."""
    if signature.tokens_first:
        draft.options["tokens_first"] = True
        draft.questions.append(
            f"{signature.tokens_first}, so the tensors are passed as [tokens, batch]. Is that right?"
        )
    bools = tuple(name for name, parameter in names.items() if _is_used_as_boolean(signature.body, parameter))
    if bools:
        draft.options["bools"] = bools
    for parameter in names.values():
        if step := re.search(rf"\b{parameter}\[(\w+) \+ 1\]", signature.body):
            question = "Does it have one more step than the rewards?"
            draft.questions.append(f"{parameter} is read at {step[1]} + 1. {question}")
    sums = {name: mask for name, mask in kind.sums.items() if name in names and _per_row(signature, names[name], kind)}
    if sums:
        draft.options["sums"] = sums
        several = ", ".join(names[name] for name in sums)
        draft.questions.append(f"{several}: passed as one number per row. Is that right?")


def _is_used_as_boolean(body: str, parameter: str) -> bool:
    return bool(re.search(rf"~{parameter}\b|\[{parameter}\]|where\({parameter},|logical_and\({parameter}\)", body))


def _vocabulary(item: Input, words: Sequence[str]) -> dict[Any, str]:
    """Return contract's choice -> function's string, for choices whose spelling is similar."""

    def plain(text: Any) -> str:
        return re.sub(r"[^a-z0-9]", "", str(text).lower())

    return {choice: word for choice in item.choices for word in reversed(words) if plain(word) == plain(choice)}


def _per_row(signature: Signature, parameter: str, kind: Kind) -> bool:
    if kind.contract == "preference_loss":
        return not re.search(rf"\b{parameter}\b[^\n]*sum\((dim=)?-1", signature.body)
    return bool(re.search(rf"\b{parameter}\.((view|reshape)\(-1, |(un)?squeeze\()", signature.body))


#: Settings for which no other values are tried, because they do not define what a function computes.
_COUNTS = {"batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor", "group_layout", "with_entropy"}


def alternatives(proposal: Proposal, contract: Contract, targets: Iterable[Target]) -> list[dict[str, Any]]:
    """Return settings to try instead of a proposal's guesses: those without a parameter, then dialects.

    :param targets: other frameworks, whose declared dialects are tried.
    """
    kind = next(each for each in KINDS if each.contract == contract.name)
    taken = {item.name for item in contract.inputs if f'inputs["{item.name}"]' in str(proposal.objects)}
    taken |= {name for name, value in proposal.fixed.items() if isinstance(value, Code)}
    skip = {*proposal.takes, *_COUNTS, *taken} - {"group"}
    skip |= {item.name for item in contract.inputs if not item.dialect and item.name not in proposal.fixed}
    more = {name: [value for _, value in values] for name, values in kind.settings.items()}
    for item in contract.inputs:
        more.setdefault(item.name, []).extend(
            value for name, value in proposal.constants.items() if fits(contract, item.name, name) is not None
        )
    return other_settings(contract, targets, proposal.fixed, skip, proposal.signature.numbers, more)


#: The error for an attribute that the proposal's stand-in object lacks.
_LACKS = re.compile(r"object has no attribute '(\w+)'")
#: (pattern of an error, part of the proposal to change if every call fails with this error): the option ``bools`` of
#: ``kit.call_with``, or the float dtypes.
_MENDS = (
    (r"operator.invert|boolean tensor|must be long, int, byte or bool|bool.* Float", "bools"),
    (r"must be float32|expected .*float32|dtype Double", "dtypes"),
)


def mended(proposal: Proposal, contract: Contract, failure: str) -> Proposal | None:
    """Return a proposal that is changed as the error of its failed calls suggests. Return None if the error suggests no
    change, or one that was already made."""
    lacks, signature = _LACKS.search(failure), proposal.signature
    if lacks and signature.owner and lacks[1] not in (own := proposal.objects.get(signature.parameters[0].name, {})):
        objects = {**proposal.objects, signature.parameters[0].name: {**own, lacks[1]: "None"}}
        question = f"which value does {lacks[1]} have in a real run?"
        return replace(proposal, objects=objects, questions=(*proposal.questions, question))
    for pattern, what in _MENDS:
        if re.search(pattern, failure):
            if what == "dtypes" and not proposal.dtypes:
                return replace(proposal, dtypes=("float32",))
            if what == "bools" and "bools" not in proposal.options and contract.mask in proposal.takes:
                return replace(proposal, options={**proposal.options, "bools": (contract.mask,)})
    return None
