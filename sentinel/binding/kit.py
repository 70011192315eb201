"""Build the objects with which adapters call upstream functions: stand-ins, configurations, models, tokenizers and
ranks.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any
from unittest import mock

from sentinel.binding.drift import AbsentError, Bookkeeping, DriftError, RanksDisagreeError, StandInNamespace
from sentinel.values.lazy import torch as torch


def stand_in(**attributes: Any) -> Any:
    """Make a stand-in object with these attributes. Reading any other attribute raises :class:`StandInMissingError`."""
    return StandInNamespace(**attributes)


def bookkeeping(**attributes: Any) -> Any:
    """Make a stand-in for a counter, logger or progress bar. Any attribute that is not given is a :class:`Neutral`
    object, and its use is recorded.
    """
    return Bookkeeping(**attributes)


def make_unbuilt(owner: Any, **attributes: Any) -> Any:
    """Make an instance of a class without calling its constructor, and set these attributes."""
    instance = object.__new__(owner)
    vars(instance).update(attributes)
    return instance


class Named(dict[str, Any]):
    """A mapping whose keys are also attributes, like the outputs of transformers models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def nest_options(options: Mapping[str, Any]) -> Any:
    """Make a namespace of options. A name with dots becomes nested namespaces."""
    namespace, groups = stand_in(), dict[str, dict[str, Any]]()
    for name, value in options.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
        else:
            setattr(namespace, name, value)
    for group, inside in groups.items():
        setattr(namespace, group, nest_options(inside))
    return namespace


def keep_accepted(kind: Any, options: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options that a class accepts in this version.

    :param usual: option -> the value that equals the behaviour of versions without the option.
    :raises AbsentError: if the class lacks an option whose value differs from ``usual``.
    """
    names: set[str] = set()
    with suppress(ValueError):  # a typed dictionary has no signature
        names.update(inspect.signature(kind).parameters)
    names.update(name for base in kind.__mro__ for name in getattr(base, "__annotations__", {}))
    for name, value in options.items():
        if name not in names and (usual is None or value != usual.get(name)):
            raise AbsentError(f"not in this version: {kind.__name__} has no option {name!r}")
    return {name: value for name, value in options.items() if name in names}


def return_first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def swap(owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Return a context manager that replaces an attribute of an object, or does nothing if the object lacks it."""
    return mock.patch.object(owner, name, value) if hasattr(owner, name) else nullcontext()


@contextmanager
def swap_all(owner: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of an object during a ``with`` block. Attributes that the object lacks are left out."""
    with ExitStack() as swaps:
        for name, value in values.items():
            swaps.enter_context(swap(owner, name, value))
        yield


def make_silent_logger(*_: Any, **__: Any) -> Any:
    """Make a logger without output."""
    return bookkeeping(**dict.fromkeys(("debug", "info", "warning"), partial(return_first, None)))


def take_inputs(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def group_size(inputs: Mapping[str, Any]) -> int:
    """Return the number of rows per group. It must be the same for all groups."""
    return len(inputs["group"]) // len(set(inputs["group"]))


def join_both_sides(inputs: Mapping[str, Any], name: str, value: float = 0.0) -> Any:
    """Concatenate the chosen and the rejected rows of a preference-pair column, padded to the same length."""
    sides = [inputs[f"{side}_{name}"] for side in ("chosen", "rejected")]
    longest = max(side.shape[1] for side in sides)
    return torch.cat([torch.nn.functional.pad(side, (0, longest - side.shape[1]), value=value) for side in sides])


def prepend_prompt(values: Any) -> Any:
    """Prepend a column of zeros to a tensor with one value per response token. The column stands for a one-token
    prompt."""
    return torch.nn.functional.pad(values, (1, 0))


def rows_of_groups(labels: Sequence[Any]) -> list[list[int]]:
    """Return the row indices of each group, in the order of the groups' first rows."""
    groups: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return [*groups.values()]


def two_token_logits(log_probs: Any) -> Any:
    """Make logits [rows, tokens, 2] that give token 1 these log-probs [rows, tokens]."""
    return torch.stack([torch.zeros_like(log_probs), log_probs - torch.log(-torch.expm1(log_probs))], -1)


# -- calls that several frameworks share -------------------------------------------------------------------------------


def call_with(
    boundary: Any,
    inputs: Mapping[str, Any],
    *,
    leading: Sequence[str] = (),
    takes: Sequence[str] | None = None,
    values_of: Mapping[str, Mapping[Any, Any]] | None = None,
    since: Mapping[str, Any] | None = None,
    reads: Mapping[str, Any] | None = None,
    tokens_first: bool = False,
    sums: Mapping[str, str] | None = None,
    bools: Sequence[str] = (),
    group: str = "",
    row_names: Sequence[str] = (),
    **upstream: Any,
) -> Any:
    """Call a function that differs from the contract only in the names, values, order or layout of its arguments and
    results.

    :param leading: the inputs that are passed by position, before the others.
    :param takes: the inputs that are passed by name; by default all others.
    :param values_of: input -> the contract's value -> the function's value.
    :param since: input that older versions lack -> the value that equals their behaviour.
    :param reads: output -> its place in the result: an index, a key, or a tuple of them for nested results; by default
        the binding's ``outputs``.
    :param tokens_first: whether the function's tensors are ``[tokens, batch]``.
    :param sums: input of ``[batch, tokens]`` -> its mask, if the function takes the sum over each row's valid tokens.
    :param bools: the inputs that the function takes as booleans.
    :param group: the parameter that takes the number of rows in each group.
    :param row_names: parameters that take another name for each row.
    :param upstream: further arguments under their upstream names.
    :raises AbsentError: if the function has no equivalent of a value in the scenario.
    """
    arguments = dict(inputs)
    for name, words in (values_of or {}).items():
        if arguments[name] not in words:
            raise AbsentError(f"not in this version: {boundary.path} has no {name} {arguments[name]}")
        arguments[name] = words[arguments[name]]
    for name, usual in (since or {}).items():
        if not takes_input(boundary, name) and arguments.pop(name) != usual:
            raise AbsentError(f"not in this version: {boundary.path} has no {name}")
    for name, mask in (sums or {}).items():
        arguments[name] = torch.where(arguments[mask] != 0, arguments[name], 0.0).sum(-1)
    for name in bools:
        arguments[name] = arguments[name].bool()
    if tokens_first:
        arguments = {name: _transposed(value) for name, value in arguments.items()}
    if group:
        upstream[group] = group_size(inputs)
    if row_names:
        rows = len(next(value for value in inputs.values() if getattr(value, "ndim", 0)))
        upstream |= {name: [str(row) for row in range(rows)] for name in row_names}
    before = [arguments.pop(name) for name in leading]
    arguments = arguments if takes is None else {name: arguments[name] for name in takes if name in arguments}
    answer = boundary.invoke(arguments, *before, **upstream)
    if tokens_first:
        answer = tuple(map(_transposed, answer)) if isinstance(answer, tuple) else _transposed(answer)
    return answer if reads is None else {name: part_of(answer, place) for name, place in reads.items()}


def _transposed(value: Any) -> Any:
    return value.T if isinstance(value, torch.Tensor) and value.ndim == 2 else value


def takes_input(boundary: Any, name: str) -> bool:
    """Return True if the function has a parameter for an input."""
    return any(candidate in boundary.parameters for candidate in boundary.binding.arguments.get(name, (name,)))


def call_estimator(
    switches: Mapping[str, Mapping[str, Any]], names: Sequence[str], boundary: Any, inputs: Mapping[str, Any]
) -> Any:
    """Call a KL estimator, selected by its name or, in older versions, by the switches for it."""
    if takes_input(boundary, "kl_estimator"):
        return boundary.invoke(take_inputs(inputs, *names, "kl_estimator"))
    if inputs["kl_estimator"] not in switches:
        raise AbsentError(f"not in this version: the estimator {inputs['kl_estimator']}")
    return boundary.invoke(take_inputs(inputs, *names), **switches[inputs["kl_estimator"]])


def with_options(
    make: Callable[..., Any], fields: Mapping[str, Any], inputs: Mapping[str, Any], **extra: Any
) -> tuple[Any, dict[str, Any]]:
    """Make a framework's configuration object, with the scenario's options and the framework's defaults for all others.

    :param make: the configuration's class, or a function that returns it. Each field is a parameter.
    :param fields: option -> its field, or the field and a mapping of the option's values.
    :param extra: further fields, which are ignored if this version lacks them.
    :return: the configuration, and a mapping of the options that it has to their values.
    :raises AbsentError: if the scenario has an option that the configuration lacks.
    """
    parameters = inspect.signature(make).parameters
    values, words = {name: value for name, value in extra.items() if name in parameters}, {}
    for option, field in fields.items():
        name, values_of = (field, None) if isinstance(field, str) else field
        if name in parameters:
            words[option] = (name, values_of)
        if inputs[option] is not None:
            if name not in parameters:
                raise AbsentError(f"not in this version: the option {name}")
            values[name] = values_of[inputs[option]] if values_of else inputs[option]
    configuration = make(**values)
    readings = {}
    for option, (name, values_of) in words.items():
        value = getattr(configuration, name)
        readings[option] = next(word for word in values_of if values_of[word] == value) if values_of else value
    return configuration, readings


def fields(same: str, **others: Any) -> dict[str, Any]:
    """Map each option of the contract to the field of the framework's configuration. ``same`` lists the options
    whose field has the same name.
    """
    return {**{name: name for name in same.split()}, **others}


#: The field of a configuration that turns sampling on, for :func:`with_options`.
DRAWS = ("do_sample", {True: False, False: True})


def run_async(way: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in an event loop in which ``sleep`` takes no time."""
    at_once = asyncio.sleep

    with swap(asyncio, "sleep", lambda *_, **__: at_once(0)):
        return asyncio.run(way)


@contextmanager
def with_base64(*modules: Any) -> Iterator[None]:
    """Replace the package pybase64 by Python's base64 during a ``with`` block."""
    with ExitStack() as alone:
        alone.enter_context(mock.patch.dict(sys.modules, pybase64=base64))
        for module in modules:
            alone.enter_context(swap(module, "pybase64", base64))
        yield


def record_maker(owner: Any) -> Callable[..., Any]:
    """Return a function that makes stand-ins for an annotated class that cannot be instantiated here. The stand-ins
    have the class's fields."""
    defaults = {name: getattr(owner, name, None) for name in owner.__annotations__}
    return lambda **values: stand_in(
        **{**copy.deepcopy(defaults), **{name: values[name] for name in defaults if name in values}}
    )


def read_list(owner: Any, name: str) -> Any:
    """Return the value of a field that holds a list: None if the field does not exist, [] if its value is None."""
    if not hasattr(owner, name):
        return None
    value = getattr(owner, name)
    return [] if value is None else value


class EngineRequest(Exception):
    """Raised in place of a call to an inference engine; carries the request that the engine would receive."""


def engine_request(generation: Coroutine[Any, Any, Any]) -> Any:
    """Run code until it calls its inference engine, and return the request."""
    try:
        asyncio.run(generation)
    except EngineRequest as request:
        return request.args[0]
    raise DriftError("no request reached the engine")


def parser_options(adds: Callable[[Any], Any], **extra: Any) -> Callable[..., Any]:
    """Return a function that makes a framework's command-line namespace from option values. Other options have their
    defaults.

    :param adds: adds the framework's arguments to a parser.
    :param extra: defaults of the arguments that an uninstalled package would add.
    """
    parser = argparse.ArgumentParser()
    with suppress(Exception):
        adds(parser)
    for action in parser._actions:
        action.required = False
    plain = {**extra, **vars(parser.parse_args([]))}

    def make(**values: Any) -> Any:
        return stand_in(**{**copy.deepcopy(plain), **values})

    fields = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=plain[name]) for name in plain]
    make.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
    return make


def request_sampling(
    ask: Callable[[Any, Any], Mapping[str, Any]],
    module: str,
    name: str,
    fields: Mapping[str, Any],
    extra: Mapping[str, Any],
    parsed: bool,
    boundary: Any,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the engine request for a configuration; see ``families.sampling_request`` for the parameters."""
    if not hasattr(boundary.imported[module], name):
        raise AbsentError(f"not in this version: {module} has no {name}")
    make = getattr(boundary.imported[module], name)
    make = parser_options(make(), **extra) if parsed else make
    configuration, configured = with_options(make, fields, inputs, **extra)
    return {"request": ask(boundary, configuration), "configured": configured}


def part_of(answer: Any, place: Any) -> Any:
    """Return the item of a result at an index or key. A tuple of indices and keys leads to an item in nested
    containers.
    """
    for step in place if isinstance(place, tuple) else (place,):
        answer = answer[step]
    return answer


#: The contract's axis -> the axis number in torch.
AXIS: Mapping[Any, Any] = {None: None, "token": -1}


#: Parameters for flags of the steps at which an episode ends, instead of a mask; and those for what follows the last
#: step, or for episodes that were cut, whose values must not count. A flag for the step after the last one means that
#: the flags are of the steps at which an episode begins.
ENDS = ["dones", "done", "terminated", "terminateds", "terminations", "terminals", "terminal"]
AFTER_ENDS = ["next_value", "last_value", "last_values", "bootstrap_value", "next_done", "next_dones", "last_done"]
AFTER_ENDS += ["truncated", "truncations"]


def flag_ends(mask: Any) -> Any:
    """Return flags that are True at each row's last valid token, where the row's episode ends."""
    valid = mask != 0
    return valid & (valid.flip(-1).cumsum(-1).flip(-1) == 1)


def arguments_of_ends(names: Iterable[str], ends: Any, like: Any) -> dict[str, Any]:
    """Return the arguments for the parameters that take the ends of episodes (:data:`ENDS`) or the state after them
    (:data:`AFTER_ENDS`).

    :param ends: flags, [batch, tokens] or [tokens].
    :param like: a tensor with the dtype of values.
    """
    names = list(names)
    last = ends[..., -1:].any(-1).to(ends.dtype)
    begins = torch.cat([torch.ones_like(ends[..., :1]), ends[..., :-1]], -1)
    flags = begins if any("done" in name for name in names if name in AFTER_ENDS) else ends
    given = {}
    for name in names:
        if name in ENDS:
            given[name] = flags
        elif "value" in name:
            given[name] = torch.full(last.shape, 3.0, dtype=like.dtype, device=like.device)
        else:
            given[name] = torch.zeros_like(ends) if "trunc" in name else last
    return given


def with_ends(inputs: Mapping[str, Any], mask: Any, as_bools: bool, stream: bool) -> dict[str, Any]:
    """Add the flags ``ends`` to the inputs, for a function that takes the ends of episodes instead of a mask of valid
    tokens.

    The tokens behind an end are those of another episode, so they are finite.

    :param stream: whether the function takes the valid tokens of all rows one after another, [tokens].
    """
    tensors = {name: value for name, value in inputs.items() if getattr(value, "shape", ()) == mask.shape}
    finite = {name: torch.where((mask != 0) | value.isfinite(), value, 1) for name, value in tensors.items()}
    ends = flag_ends(mask)
    changed = {**inputs, **finite, "ends": ends if as_bools else ends.to(torch.get_default_dtype())}
    if not stream:
        return changed
    return {name: value[mask != 0] if name in (*tensors, "ends") else value for name, value in changed.items()}


def split_rows(value: Any, mask: Any) -> Any:
    """Convert one value per valid token, [tokens], to a value per token, [batch, tokens], with 0 at masked tokens."""
    if not isinstance(value, torch.Tensor) or value.ndim != 1:
        return value
    return torch.zeros(mask.shape, dtype=value.dtype, device=value.device).masked_scatter(mask != 0, value)


def call_each(
    boundary: Any,
    inputs: Mapping[str, Any],
    *,
    each: str,
    reads: Mapping[str, Any],
    form: str = "tensor",
    ends: Sequence[str] = (),
    sums: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Call a function that takes vectors or lists of vectors instead of padded tensors, through :func:`call_with`.

    :param each: ``row`` (one call for each response, with its valid tokens), ``rows`` (one call, with a vector for each
        response), ``group`` and ``groups`` (the same with the responses to a prompt, for inputs of [batch] or ``sums``;
        responses without a valid token are left out), ``batch`` (one call with the whole tensors), ``stream`` (one call
        with the valid tokens of all rows, [tokens]).
    :param reads: output -> its place in the result of a call.
    :param form: a vector is a ``tensor``, an ``array`` or a ``list``; whole tensors are nested lists.
    :param ends: parameters for the ends of episodes: :data:`ENDS`, :data:`AFTER_ENDS`.
    :param options: further options of :func:`call_with`.
    """
    of_groups, mask = each in ("group", "groups"), inputs.get("response_mask")
    for name, by in (sums or {}).items():
        inputs = {**inputs, name: torch.where(inputs[by] != 0, inputs[name], 0.0).sum(-1)}
    tensors = {name: value for name, value in inputs.items() if getattr(value, "ndim", 0) == (1 if of_groups else 2)}
    some = next(iter(tensors.values()))
    valid = torch.ones_like(some, dtype=torch.bool) if mask is None else mask != 0
    if each in ("batch", "stream"):
        if ends:
            inputs = with_ends(inputs, valid, False, each == "stream")
            options |= arguments_of_ends(ends, inputs["ends"], inputs[next(iter(tensors))])
        told = {name: _formed(value, form) for name, value in inputs.items() if name != "ends"}
        answer = call_with(boundary, told, reads=reads, **options)
        found = {name: _tensor_of(value) for name, value in answer.items()}
        return {name: split_rows(value, valid) for name, value in found.items()} if each == "stream" else found
    there = [row for row in range(len(some)) if valid[row].any()]
    places: list[Any] = [(row, valid[row]) for row in there]
    if of_groups:
        places = [[there[row] for row in rows] for rows in rows_of_groups([inputs["group"][row] for row in there])]
    parts = {name: [_formed(value[place], form) for place in places] for name, value in tensors.items()}
    if each in ("rows", "groups"):
        answer = call_with(boundary, {**inputs, **parts}, reads=reads, **options) if places else {}
    else:
        answers = [
            call_with(boundary, {**inputs, **{name: of[part] for name, of in parts.items()}}, reads=reads, **options)
            for part in range(len(places))
        ]
        answer = {name: [each[name] for each in answers] for name in reads}
    found = {}
    for name in reads:
        if isinstance(answer.get(name), float) or getattr(answer.get(name), "ndim", None) == 0:
            found[name] = answer[name]  # a number of the whole batch
            continue
        found[name] = torch.zeros(some.shape, dtype=torch.float64)
        for place, value in zip(places, answer.get(name, ()), strict=True):
            found[name][place] = _tensor_of(value).to(torch.float64)
        if sums and of_groups:
            found[name] = torch.where(valid, found[name][:, None], 0.0)
    return found


def call_rates(boundary: Any, inputs: Mapping[str, Any], *, step: str, **options: Any) -> dict[str, Any]:
    """Call, for each step of a run, a function that returns the step's learning rate or its ratio to the peak rate.

    :param step: the parameter that takes the step.
    :param options: further options of :func:`call_with`.
    """
    steps = range(inputs["first_step"], inputs["first_step"] + inputs["training_steps"])
    return {"rates": [inputs["peak"] * float(call_with(boundary, inputs, **{**options, step: each})) for each in steps]}


def _formed(value: Any, form: str) -> Any:
    if not isinstance(value, torch.Tensor) or form == "tensor":
        return value
    value = value.detach()
    if form == "list":
        return value.tolist()
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def _tensor_of(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def call_entropy(log_probs: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call an entropy function, and the log-probs function of the same module, because the contract needs gradients
    of log-probs.
    """
    logits = inputs["logits"]
    values = getattr(boundary.module, log_probs)(logits, inputs["token_ids"])
    return {"log_probs": values, "entropy": boundary.function(logits)}


def call_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function that computes log-probs from logits and tokens."""
    return {"log_probs": boundary.function(inputs["logits"], inputs["token_ids"]), "entropy": None}


def call_sums_of_log_probs(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Call a function of logits and labels that returns the sum of the log-probs of each row. Logits at a position
    predict the next label.

    The function gets every row once for each token, with labels up to this token. A token's log-prob is the difference
    of two sums.
    """
    logits, ids, valid = inputs["logits"], inputs["token_ids"], inputs["response_mask"] != 0
    (rows, tokens), pad = ids.shape, torch.nn.functional.pad
    until = torch.ones(tokens, tokens, dtype=torch.bool, device=ids.device).tril()
    labels = torch.where(until & valid[:, None], ids[:, None], -100).reshape(rows * tokens, tokens)
    whole = pad(logits, (0, 0, 0, 1)).repeat_interleave(tokens, 0)
    sums = boundary.invoke({}, whole, pad(labels, (1, 0), value=-100), **upstream).reshape(rows, tokens)
    return {"log_probs": sums.diff(dim=-1, prepend=sums.new_zeros(rows, 1)), "entropy": None}


def mean_of_tokens(values: Any, mask: Any) -> Any:
    """Return the mean over valid tokens. Adapters use it for functions that return a value per token, which their
    callers average.
    """
    return torch.where(mask != 0, values, 0.0).sum() / max(int((mask != 0).sum()), 1)


def call_divergence(boundary: Any, inputs: Mapping[str, Any], *, of_logits: bool, **upstream: Any) -> dict[str, Any]:
    """Call a function that returns the divergence of each token, or of each token and vocabulary entry.

    :param of_logits: whether the function takes logits; otherwise log-probs.
    """
    mask = inputs["response_mask"]
    both = [torch.where(mask[..., None] != 0, inputs[name], 0.0) for name in ("logits", "teacher_logits")]
    both = both if of_logits else [values.log_softmax(-1) for values in both]
    told = boundary.invoke(take_inputs(inputs, "beta"), *both, **upstream)
    return {"loss": mean_of_tokens(told.sum(-1) if told.ndim == 3 else told, mask)}


def call_padding(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Call a function that pads a list of rows to the longest row. The adapter adds a row of the length that the
    scenario wants.
    """
    values = inputs["values"]
    rows = [*values, values.new_zeros(inputs["length"])]
    return {"padded": boundary.invoke(take_inputs(inputs, "pad_value", "side"), rows, **upstream)[:-1]}


def call_padding_to_multiple(
    pads: Callable[[Any, Any, int], Any], boundary: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Call a function that pads rows to the next multiple of a number: ``pads(boundary, values, number)``."""
    if inputs["values"].shape[1] > inputs["length"]:
        raise AbsentError("the function pads longer rows to the next multiple")
    return {"padded": pads(boundary, inputs["values"], inputs["length"])}


def lay_out(rows: Sequence[Any], left: bool = False) -> tuple[Any, Any]:
    """Return rows of tokens as a padded tensor, and its mask. The tensor has one column more than the longest row."""
    width = 1 + max(map(len, rows))
    beside = [(width - len(row), 0) if left else (0, width - len(row)) for row in rows]
    values = [torch.nn.functional.pad(row, extra) for row, extra in zip(rows, beside)]
    mask = [torch.nn.functional.pad(torch.ones_like(row), extra) for row, extra in zip(rows, beside)]
    return torch.stack(values), torch.stack(mask)


def lengths_of(inputs: Mapping[str, Any], mask: str = "attention_mask") -> list[int]:
    """Return the number of valid tokens in each row."""
    return [int(length) for length in (inputs[mask] != 0).sum(-1)]


def pack_by_length(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Split rows into microbatches by their lengths."""
    return {"parts": boundary.function(lengths_of(inputs), inputs["max_tokens_per_microbatch"], **upstream)}


def score_of(answer: Any) -> Any:
    """Return the score from a reward rule's result: a number, a record, or a tuple that begins with a number."""
    answer = answer["score"] if isinstance(answer, Mapping) else answer
    return answer[0] if isinstance(answer, tuple) else answer


def apply_rule(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"score": score_of(boundary.function(inputs["response"], inputs["ground_truth"]))}


def apply_normaliser(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with a function that normalises an answer: 1 if the normal forms of the response and of the
    ground truth are equal, otherwise 0.
    """
    return {"score": float(boundary.function(inputs["response"]) == boundary.function(inputs["ground_truth"]))}


def apply_extractor(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Score a response with a function that extracts an answer: 1 if the extracted answer equals the ground truth,
    otherwise 0.
    """
    return {"score": float(boundary.function(inputs["response"]) == inputs["ground_truth"])}


def apply_rule_to_answers(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a reward rule that accepts a list of right answers."""
    return {"score": boundary.function(inputs["response"], {"target": [inputs["ground_truth"], "another"]})}


def read_rates(inputs: Mapping[str, Any], schedule: Callable[[Any], Any]) -> dict[str, Any]:
    """Return an optimiser's learning rate after each update. ``schedule(optimizer)`` makes the scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=inputs["peak"])
    scheduler = schedule(optimizer)
    values = []
    for _ in range(inputs["training_steps"]):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"rates": values}


def read_coefficients(controller: Any, inputs: Mapping[str, Any], argument: str = "current") -> dict[str, Any]:
    """Return a KL controller's coefficient at the start and after each step."""
    values = [controller.value]
    for kl in inputs["kls"]:
        controller.update(**{argument: kl, "n_steps": inputs["samples_per_step"]})
        values.append(controller.value)
    return {"coefficients": values}


# -- containers of rows ------------------------------------------------------------------------------------------------

#: ``make(boundary, fields, meta) -> container``, ``read(container, inputs) -> columns, meta`` and
#: ``do(boundary, inputs, container) -> containers``.
Make = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], Any]
Read = Callable[[Any, Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]
Surgery = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def make_container(path: str, boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    """Make a batch container of the framework's class at ``path``. Non-tensor columns become object arrays."""
    import numpy

    tensors = {name: column for name, column in fields.items() if isinstance(column, torch.Tensor)}
    objects = {}
    for name in fields.keys() - tensors.keys():
        objects[name] = numpy.empty(len(fields[name]), dtype=object)
        objects[name][:] = fields[name]
    module, _, owner = path.rpartition(".")
    kind = getattr(boundary.imported[module], owner)
    return kind.from_dict(tensors=tensors, non_tensors=objects, meta_info=dict(meta))


def read_columns(data: Any) -> dict[str, Any]:
    return {**dict(data.batch.items()), **{name: list(column) for name, column in data.non_tensor_batch.items()}}


def read_columns_and_meta(data: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return read_columns(data), data.meta_info


def operate(make: Make, read: Read, do: Surgery, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make a batch container from the rows of the scenario, run one operation on it, and return the rows of each
    resulting container.
    """
    data = make(boundary, inputs["fields"], inputs["meta"])
    parts = [read(part, inputs) for part in do(boundary, inputs, data)]
    return {"parts": [part for part, _ in parts], "metas": [meta for _, meta in parts]}


def iterate_minibatches(make: Make, read: Read, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Iterate over the minibatches of a batch container."""
    batches = boundary.function(
        make(boundary, inputs["fields"], {}),
        mini_batch_size=inputs["minibatch_size"],
        epochs=inputs["epochs"],
        seed=inputs["seed"],
        dataloader_kwargs={"shuffle": inputs["shuffle"]},
    )
    return {"parts": [read(part, inputs)[0] for part in batches]}


def join_parts(make: Make, boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Make several batch containers, as workers do, and join them."""
    parts, start = [], 0
    for size in inputs["sizes"]:
        rows = {name: column[start : start + size] for name, column in inputs["fields"].items()}
        parts.append(make(boundary, rows, inputs["meta"]))
        start += size
    return [boundary.function(parts)]


def cut_parts(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return list(boundary.function(data, inputs["count"]))


def apply_count(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return [boundary.function(data, inputs["count"])]


def reorder_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    boundary.function(data, torch.tensor(inputs["order"]))
    return [data]


def fill_rows(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Pad a batch container to a size. If the operation reports a wrong number of added rows, return no rows."""
    longer, added = boundary.function(data, inputs["count"])
    return [longer] if added == len(longer) - len(data) else []


def numbered_rows(lengths: Sequence[int]) -> dict[str, Any]:
    """Make rows of these lengths. Each contains its row number twice: in a tensor and in a list."""
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return {"attention_mask": mask.long(), "row": torch.arange(len(lengths)), "label": [*range(len(lengths))]}


def read_dealt_rows(data: Any, parts: int) -> dict[str, Any]:
    """Split the rows of a container into equal, consecutive parts, and return the row numbers of each part.

    A row that has another row's label is left out.
    """
    fields = read_columns(data)
    rows = [row if row == label else -1 for row, label in zip(fields["row"].tolist(), fields["label"])]
    size = len(rows) // parts
    return {"parts": [[row for row in rows[rank * size :][:size] if row >= 0] for rank in range(parts)]}


class Rows(list[dict[str, Any]]):
    """Rows of a dataset, with the interface of Hugging Face's ``Dataset``."""

    @property
    def column_names(self) -> list[str]:
        return [*self[0]] if self else []

    def map(
        self,
        function: Callable[..., Any],
        fn_kwargs: Mapping[str, Any] | None = None,
        remove_columns: Any = None,
        batched: bool = False,
        with_indices: bool = False,
        **_: Any,
    ) -> Rows:
        outdated = {remove_columns} if isinstance(remove_columns, str) else {*(remove_columns or ())}
        keywords = fn_kwargs or {}
        rest = [{name: value for name, value in row.items() if name not in outdated} for row in self]
        if batched:
            columns = function({name: self[name] for name in self.column_names}, **keywords)
            rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        else:
            rows = [function(dict(row), *[place] * with_indices, **keywords) for place, row in enumerate(self)]
        whole = [{**before, **after} for before, after in zip(rest, rows)] if len(rest) == len(rows) else rows
        return type(self)(whole)

    def filter(self, function: Callable[..., bool], fn_kwargs: Mapping[str, Any] | None = None, **_: Any) -> Rows:
        return type(self)([row for row in self if function(dict(row), **(fn_kwargs or {}))])

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def named_tokens(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make rows with a one-token prompt, and a response that ends where the mask ends.

    Each token has its own id: its index in a table whose first column is unused. The row's reward is on its last token.
    """
    mask = (inputs["response_mask"] != 0).long()
    rows, width = mask.shape
    ends = (mask * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    there = torch.arange(width + 1)[None] <= ends
    rewards = torch.zeros(rows, width)
    if "rewards" in inputs:
        rewards = rewards.scatter(1, ends - 1, inputs["rewards"][:, None].float())
    ids = torch.arange(rows * (width + 1)).reshape(rows, width + 1)
    return {"number": torch.arange(rows), "input_ids": ids, "attention_mask": there, "rewards": rewards}


def remove_padding(values: Any, mask: Any, *_: Any, **__: Any) -> Any:
    """Return the attended tokens of all rows as one sequence, as flash-attention's ``unpad_input`` does."""
    lengths, counts = mask.sum(-1), mask.bool()
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    return values[counts], counts.flatten().nonzero().flatten(), ends, int(lengths.max())


def restore_padding(values: Any, places: Any, rows: int, columns: int) -> Any:
    """Return packed tokens as padded rows, as flash-attention's ``pad_input`` does."""
    whole = values.new_zeros(rows * columns, *values.shape[1:])
    return whole.index_put((places,), values).reshape(rows, columns, *values.shape[1:])


def tables_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat tables of log-probs and entropies, from which a stand-in model reads. The first column of each
    table is for the prompt.
    """
    there = [name for name in ("log_probs", "entropies") if inputs[name] is not None]
    return {name: prepend_prompt(inputs[name]).flatten() for name in there}


def gradients_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of the log-probs and entropies after an update."""
    log_probs, entropies = inputs["log_probs"], inputs["entropies"]
    arrived = torch.zeros_like(log_probs) if log_probs.grad is None else log_probs.grad
    return {"gradient": arrived, "entropy_gradient": None if entropies is None else entropies.grad}


def gradient_of_ranks(tables: Sequence[Any]) -> Any:
    """Return the average, over the ranks, of the gradients of their log-prob tables."""
    return sum(torch.zeros_like(table) if table.grad is None else table.grad for table in tables) / len(tables)


# -- ranks -------------------------------------------------------------------------------------------------------------


class _Collectives:
    """Replaces torch.distributed's collectives for simulated ranks, which are threads.

    All ranks of a group must call the same collective, because a training run would hang otherwise. One rank runs at a
    time: the lowest one that does not wait for others. This makes the order of calls and results deterministic.

    :ivar failure: the first error, which a rank raised or which says that the ranks disagree; None without an error.
    """

    def __init__(self, count: int) -> None:
        self._count, self._changed = count, threading.Condition()
        self._calls: dict[Sequence[int], dict[int, tuple[str, str, Any]]] = {}
        self._returned: set[int] = set()
        self._ready = set(range(count))
        self._running: int | None = 0
        self.failure: BaseException | None = None

    def ranks_of(self, group: Any) -> Sequence[int]:
        """Return the ranks of a process group. A tuple lists them; any other value stands for all ranks."""
        return group if isinstance(group, tuple) else tuple(range(self._count))

    def begin(self, rank: int) -> None:
        """Wait until this rank may run.

        :raises RanksDisagreeError: if another rank has failed.
        """
        with self._changed:
            self._wait(lambda: self._running == rank)

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.failure is not None or condition())
        if self.failure is not None:
            raise RanksDisagreeError("another rank has failed")

    def _pause(self, rank: int) -> None:
        """Mark this rank as waiting, and let the next rank run."""
        self._ready.discard(rank)
        self._running = min(self._ready, default=None)

    def exchange(self, rank: int, name: str, value: Any, group: Any) -> list[Any]:
        """Wait until every rank of the group calls this collective; return the values of all ranks.

        :raises RanksDisagreeError: if a rank called another collective, or no rank can continue.
        """
        caller, ranks = sys._getframe(2), self.ranks_of(group)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        with self._changed:
            calls = self._calls.setdefault(ranks, {})  # a reference: the last rank to arrive drops this exchange
            calls[rank] = name, place, value
            if len(calls) == len(ranks):
                del self._calls[ranks]
                self._ready.update(ranks)
            else:
                self._pause(rank)
            self._compare(calls)
            self._wait(lambda: len(calls) == len(ranks) and self._running == rank)
        return [calls[each][2] for each in ranks]

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Record that a rank has returned or raised, so that no rank waits for it."""
        with self._changed:
            self._pause(rank)
            if error is not None:
                self._fail(error)
            else:
                self._returned.add(rank)
                self._compare({})

    def _compare(self, group: Mapping[int, tuple[str, str, Any]]) -> None:
        calls = {rank: call for each in (*self._calls.values(), group) for rank, call in each.items()}
        waiting = {rank for each in self._calls.values() for rank in each}
        stuck = waiting and len(waiting) + len(self._returned) == self._count
        if stuck or len({name for name, _, _ in group.values()}) > 1:
            ranks = [
                f"rank {rank} called {calls[rank][0]} ({calls[rank][1]})" if rank in calls else f"rank {rank} returned"
                for rank in range(self._count)
                if rank in calls or rank in self._returned
            ]
            self._fail(RanksDisagreeError(f"the ranks do not call the same collectives: {', '.join(ranks)}"))
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._changed.notify_all()


def on_ranks(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(rank)`` in one thread per rank, with ``torch.distributed`` replaced. Return each rank's result.

    A group is a tuple of ranks; any other value stands for all ranks.

    :raises RanksDisagreeError: if a rank calls a collective that another rank of its group does not call.
    """
    dist = torch.distributed
    collectives, own = _Collectives(count), threading.local()
    answers: list[Any] = [None] * count
    reductions: dict[str, Callable[[list[Any]], Any]] = {
        "sum": sum,
        "avg": lambda parts: sum(parts) / len(parts),
        "max": lambda parts: torch.stack(parts).amax(0),
        "min": lambda parts: torch.stack(parts).amin(0),
    }

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, *_: Any, **__: Any) -> None:
        name = next(name for name in reductions if op == getattr(dist.ReduceOp, name.upper()))
        tensor.copy_(reductions[name](collectives.exchange(own.rank, "all_reduce", tensor.detach().clone(), group)))

    def all_gather(into: list[Any], value: Any, group: Any = None, *_: Any, **__: Any) -> None:
        into[:] = collectives.exchange(own.rank, "all_gather", value, group)

    def all_gather_object(into: list[Any], value: Any, group: Any = None, *_: Any, **__: Any) -> None:
        into[:] = collectives.exchange(own.rank, "all_gather_object", value, group)

    def barrier(group: Any = None, *_: Any, **__: Any) -> None:
        collectives.exchange(own.rank, "barrier", None, group)

    answered = {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "all_gather_object": all_gather_object,
        "barrier": barrier,
        "get_rank": lambda group=None, *_, **__: collectives.ranks_of(group).index(own.rank),
        "get_world_size": lambda group=None, *_, **__: len(collectives.ranks_of(group)),
        "is_initialized": lambda: True,
        "is_available": lambda: True,
    }
    profile, trace = sys.getprofile(), sys.gettrace()

    def run(rank: int) -> None:
        own.rank = rank
        sys.setprofile(profile)
        sys.settrace(trace)
        try:
            collectives.begin(rank)
            answers[rank] = work(rank)
        except BaseException as error:
            collectives.end(rank, error)
        else:
            collectives.end(rank)

    with ExitStack() as alone:
        for name, answer in answered.items():
            alone.enter_context(mock.patch.object(dist, name, answer))
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if collectives.failure is not None:
        raise collectives.failure
    return answers


def score_by_vocabulary(logits: Any, score: Callable[[Any, int], Any]) -> list[Any]:
    """Compute scores [rows, tokens] of logits [rows, tokens, choices] whose vocabulary is split over ranks.

    There are two ranks if the vocabulary is even, otherwise one. Each rank computes the gradient of its own part,
    because that calls collectives. The gradient of the first score reaches ``logits``.

    :param score: called with a rank's part of the logits and its number; returns one or more scores.
    """
    size = logits.shape[-1]
    ranks = 1 if size % 2 else 2

    def work(rank: int) -> Any:
        own = logits.detach()[..., rank * size // ranks : (rank + 1) * size // ranks].clone().requires_grad_()
        made = score(own, rank)
        made = made if isinstance(made, tuple) else (made,)
        return [one.detach() for one in made], torch.autograd.grad(made[0].sum(), own)[0]

    answers = on_ranks(ranks, work)
    slopes = torch.cat([slope for _, slope in answers], -1)
    first, *others = answers[0][0]
    return [first + (slopes * (logits - logits.detach())).sum(-1)[:, : first.shape[1]], *others]


def make_single_rank_mpu(**answers: Any) -> Any:
    """Make Megatron's ``mpu`` (parallel state) for one process: every axis has size 1, rank 0 and no group.

    :param answers: function -> the value that it returns instead of the default.
    """
    axes = ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
    kinds = {"world_size": 1, "rank": 0, "group": None}
    said = {f"get_{axis}_{kind}": answer for axis in axes for kind, answer in kinds.items()}
    said |= dict.fromkeys(("is_pipeline_first_stage", "is_pipeline_last_stage"), True)
    return stand_in(**{name: partial(return_first, answer) for name, answer in {**said, **answers}.items()})


class _OnCpu:
    """torch, whose CUDA functions do nothing and whose tensors are on the CPU."""

    cuda = StandInNamespace(
        **dict.fromkeys(("empty_cache", "reset_peak_memory_stats", "synchronize"), lambda: None),
        **dict.fromkeys(("max_memory_reserved", "max_memory_allocated"), lambda: 0),
        mem_get_info=lambda: (1 << 30, 1 << 31),
        get_device_name=lambda *_: "cpu",
        nvtx=StandInNamespace(range_push=lambda _: None, range_pop=lambda: None),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, value: Any, device: Any = None, **options: Any) -> Any:
        return torch.tensor(value, **options)

    def empty(self, *size: Any, device: Any = None, **options: Any) -> Any:
        return torch.empty(*size, **options)

    def autocast(self, **_: Any) -> Any:
        return nullcontext()


@contextmanager
def on_cpu(*modules: Any) -> Iterator[None]:
    """Replace CUDA by the CPU during a ``with`` block, for code in these modules and for the methods of tensors."""
    move = torch.Tensor.to

    def to(tensor: Any, *place: Any, **options: Any) -> Any:
        return tensor if place[:1] == ("cuda",) else move(tensor, *place, **options)

    with ExitStack() as alone:
        for module in modules:
            alone.enter_context(swap(module, "torch", _OnCpu()))
        alone.enter_context(swap_all(torch.Tensor, cuda=return_first, to=to))
        yield


# -- models and trainers of transformers -------------------------------------------------------------------------------

#: The ids of padding, end of text and any other token. The ids of a table's tokens start at ``_FIRST``.
_PADDING, _END, _ELSE, _FIRST = range(4)


def token_table(table: Any, after: Any = None, trains: bool = True, scores: bool = False) -> Any:
    """Make a causal language model whose outputs come from a table of logits, which is its only parameter.

    The model adds a first token before each row of ``table``, and one position after it. Each token of each row has its
    own id (:func:`token_ids`), from which the model looks up the output of the position before the token. A trainer may
    therefore cut, pad, pack and reorder the sequences. An end token is read as the next token of the row.

    :param table: [rows, tokens]: log-probs, or [rows, tokens, choices]: logits.
    :param after: [rows]: log-probs of the position after the last token; by default 0.
    :param trains: if True, the table is copied into a parameter; if False, gradients reach the given tensor.
    :param scores: if True, make a reward model, which returns the sum of the table over a row's tokens.
    """
    import torch

    transformers: Any = importlib.import_module("transformers")
    outputs: Any = importlib.import_module("transformers.modeling_outputs")

    certain = torch.zeros_like(table[:, :1])
    whole = torch.cat([certain, table, certain if after is None else after[:, None]], dim=1)
    rows, width = table.shape[0], table.shape[1] + 2
    size = _FIRST + rows * width

    class Body(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(whole.detach()) if trains else whole

        def forward(self, input_ids: Any, *_: Any, **__: Any) -> Any:
            following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1), value=_PADDING)
            own = (input_ids - _FIRST + 1).clamp(min=0)
            entries = self.table.flatten(0, 1)[torch.where(following < _FIRST, own, following - _FIRST)]
            if scores:
                return entries
            if self.table.ndim == 3:
                logits = torch.nn.functional.pad(entries, (0, size - entries.shape[-1]), value=-1000.0)
            else:
                other = torch.where(
                    entries < 0, torch.log(-torch.expm1(torch.where(entries < 0, entries, -1.0))), -1000.0
                )
                logits = entries.new_full((*entries.shape, size), -1000.0)
                logits = logits.scatter(-1, torch.full_like(following, _ELSE)[..., None], other[..., None])
                logits = logits.scatter(-1, following[..., None], entries[..., None])
            return outputs.BaseModelOutputWithPast(last_hidden_state=logits)

    class TokenTable(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig
        base_model_prefix = "model"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.model = Body()
            # a fused loss multiplies by this matrix
            self.lm_head = torch.nn.Linear(size, size, bias=False, dtype=table.dtype)
            self.lm_head.weight = torch.nn.Parameter(torch.eye(size, dtype=table.dtype), requires_grad=False)

        def get_output_embeddings(self) -> Any:
            return self.lm_head

        def resize_token_embeddings(self, *_: Any, **__: Any) -> None:
            """Do nothing, because the vocabulary already has the size of the tokenizer's."""

        def forward(
            self,
            input_ids: Any,
            attention_mask: Any = None,
            labels: Any = None,
            logits_to_keep: int = 0,
            **options: Any,
        ) -> Any:
            if scores:
                counted = self.model(input_ids)[:, :-1] * attention_mask[:, 1:]
                return outputs.SequenceClassifierOutput(logits=counted.sum(-1, keepdim=True))
            hidden = self.model(input_ids).last_hidden_state
            logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
            loss = None
            if labels is not None:
                count = {name: options[name] for name in ("num_items_in_batch",) if name in options}
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **count)
            return outputs.CausalLMOutputWithPast(loss=loss, logits=logits)

    sizes = {
        "vocab_size": size,
        "hidden_size": size,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_labels": 2 - scores,
    }
    with keep_random_state():  # layers draw random weights, which are replaced
        model = TokenTable(transformers.PretrainedConfig(pad_token_id=_PADDING, eos_token_id=_END, **sizes))
    model.loss_type, model.warnings_issued = "ForCausalLM", {}  # models had warnings_issued until transformers 5
    return model


def token_ids(mask: Any, ended: bool = False) -> list[list[int]]:
    """Return the token ids that select the entries of a :func:`token_table`, for the valid tokens of each row.

    With ``ended`` the last id of each row is that of the end token.
    """
    width = mask.shape[1] + 2
    numbers = []
    for row, counts in enumerate(mask.tolist()):
        places = [0, *(place + 1 for place, is_token in enumerate(counts) if is_token)]
        ids = [_FIRST + row * width + place for place in places]
        numbers.append([*ids[:-1], _END] if ended and len(ids) > 1 else ids)
    return numbers


def token_words(ids: Sequence[int]) -> str:
    """Return token ids as a string for :func:`table_tokenizer`."""
    return " ".join(f"w{token}" for token in ids)


def table_tokenizer(model: Any) -> Any:
    """Make a tokenizer for a :func:`token_table`: each word is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers: Any = importlib.import_module("transformers")

    words = {"<pad>": _PADDING, "<end>": _END, "<else>": _ELSE}
    words.update({f"w{token}": token for token in range(_FIRST, model.config.vocab_size)})
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<else>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<else>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def one_step(rows: int, micro_batch_size: int | None) -> dict[str, Any]:
    """Return training arguments for one optimiser step with learning rate 0 on these rows."""
    size = micro_batch_size or rows
    return {
        "output_dir": "unused",
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "gradient_checkpointing": False,
        "max_steps": 1,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": rows // size,
    }


def train(trainer: Any, model: Any) -> tuple[float, Any]:
    """Train a :func:`token_table` with a Hugging Face trainer. Return the reported loss and the table's gradient."""
    table = model.model.table
    total = torch.zeros_like(table)

    def add(gradient: Any) -> None:
        total.add_(gradient)

    table.register_hook(add)
    with keep_random_state():
        return trainer.train().training_loss, total


def config_class_of(boundary: Any) -> Any:
    """Return the configuration class of a Hugging Face trainer, such as ``DPOConfig`` for ``DPOTrainer``."""
    return getattr(boundary.module, boundary.owner.__name__.replace("Trainer", "Config"))


def build_trainer(
    boundary: Any,
    table: Any,
    micro: int | None,
    rows: list[dict[str, Any]],
    options: Mapping[str, Any],
    after: Any = None,
    scores: bool = False,
    **parts: Any,
) -> tuple[Any, Any]:
    """Build a :func:`token_table`, and a Hugging Face trainer that trains it on these rows."""
    datasets: Any = importlib.import_module("datasets")

    datasets.disable_progress_bars()
    configuration = config_class_of(boundary)
    args = configuration(**{**one_step(len(rows), micro), **keep_accepted(configuration, options)})
    model = token_table(table, after, scores=scores)
    tokenizer = table_tokenizer(model)
    by_name = stand_in(from_pretrained=partial(return_first, tokenizer))
    silent = swap(boundary.owner, "_send_telemetry", lambda *_: None)
    with silent, swap(boundary.module, "AutoTokenizer", by_name), keep_random_state():
        trainer = boundary.owner(
            model=model, args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer, **parts
        )
    return trainer, model


class TypedProcessor:
    """A processor like a vision model's. Each word of its input is a token's id and type: ``id:type``."""

    tokenizer = stand_in(pad_token_id=0, eos_token_id=0)

    def __call__(self, text: Any, images: Any = None, padding_side: str = "right", **_: Any) -> Any:
        rows = [torch.tensor([[*map(int, token.split(":")), 1] for token in one.split()]) for one in text]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=padding_side)
        return dict(zip(("input_ids", "mm_token_type_ids", "attention_mask"), padded.unbind(-1)))


def make_one_process(device: str) -> Any:
    """Make an accelerator for one process: gathering and reducing return their input."""
    whole = dict.fromkeys(("gather", "gather_for_metrics", "reduce", "unwrap_model"), return_first)
    ranks = {"num_processes": 1, "process_index": 0, "is_main_process": True}
    state = bookkeeping(deepspeed_plugin=None)
    return bookkeeping(sync_gradients=True, device=torch.device(device), state=state, **ranks, **whole)


@contextmanager
def keep_random_state() -> Iterator[None]:
    """Restore the global random generators after a ``with`` block, because trainers seed them."""
    import random

    import numpy

    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])


def attach_gradient(loss: float, table: Any, gradient: Any) -> Any:
    """Return the loss as a tensor whose gradient with respect to the table is ``gradient``."""
    return loss + (gradient * (table - table.detach())).sum()


#: Prompt tokens before each response of :func:`make_sequences`.
PROMPT = 2


def make_sequences(mask: Any) -> dict[str, Any]:
    """Make a batch as collators return it: prompt tokens, then the response."""
    mask = mask.long()
    prompt = torch.ones(len(mask), PROMPT, dtype=torch.long, device=mask.device)
    ids = torch.tensor(token_ids(mask * 0 + 1), device=mask.device)
    ids = torch.cat([2 * prompt[:, 1:], ids], dim=1)
    whole, attention = torch.cat([prompt * 0, mask], dim=1), torch.cat([prompt, mask], dim=1)
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "labels": ids.masked_fill(whole == 0, -100),
        "completion_mask": whole,
        "prompts": ids[:, :PROMPT],
        "prompt_attention_mask": prompt,
    }


def generate_answers(by_prompt: Mapping[int, Any], input_ids: Any, *_: Any, **options: Any) -> Any:
    """Replace a model's ``generate`` method: return the next answer of each prompt."""
    left = {prompt: list(answers) for prompt, answers in by_prompt.items()}
    answers = [left[prompt].pop(0) for prompt in input_ids[:, -1].tolist()]
    width = max(map(len, answers))
    padded = torch.tensor([answer + [0] * (width - len(answer)) for answer in answers])
    whole = torch.cat([input_ids, padded.to(input_ids)], dim=1)
    return stand_in(sequences=whole) if options.get("return_dict_in_generate") else whole


def make_prompted_batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch of one-token prompts, each followed by a completion."""
    prompts = torch.tensor([[row["first"]] for row in rows])
    completions = torch.nn.utils.rnn.pad_sequence([torch.tensor(row["rest"]) for row in rows], batch_first=True)
    counts, ones = (completions != 0).long(), torch.ones_like(prompts)
    labels = torch.cat([ones * -100, completions.masked_fill(counts == 0, -100)], dim=1)
    return {
        "input_ids": torch.cat([prompts, completions], dim=1),
        "attention_mask": torch.cat([ones, counts], dim=1),
        "labels": labels,
        "prompts": prompts,
        "prompt_attention_mask": ones,
    }
