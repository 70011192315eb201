"""Call functions whose arguments and results differ from those of a contract in name, order or layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sentinel.binding.drift import AbsentError
from sentinel.values.lazy import torch

_read_source = lru_cache(maxsize=1024)(inspect.getsource)


def source_of(thing: Any) -> str:
    """Return the source text of a function or module, as ``inspect.getsource`` does. The text is cached."""
    # The cache keeps its keys alive. A bound method or a wrapper may be a new object each time and refer to large ones.
    return _read_source(inspect.unwrap(getattr(thing, "__func__", thing)))


def take_inputs(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def group_size(inputs: Mapping[str, Any]) -> int:
    """Return the number of rows per group. All groups must have the same size."""
    return len(inputs["group"]) // len(set(inputs["group"]))


def join_both_sides(inputs: Mapping[str, Any], name: str, value: float = 0.0) -> Any:
    """Return one tensor with the rows of ``chosen_NAME``, then those of ``rejected_NAME``. Shorter rows are padded on
    the right with ``value``."""
    sides = [inputs[f"{side}_{name}"] for side in ("chosen", "rejected")]
    longest = max(side.shape[1] for side in sides)
    return torch.cat([torch.nn.functional.pad(side, (0, longest - side.shape[1]), value=value) for side in sides])


def prepend_prompt(values: Any) -> Any:
    """Prepend a column of zeros, which stands for a one-token prompt, to a tensor [rows, response tokens]."""
    return torch.nn.functional.pad(values, (1, 0))


def rows_of_groups(labels: Sequence[Any]) -> list[list[int]]:
    """Return the row indices of each group, in the order of the groups' first rows."""
    groups: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return [*groups.values()]


def two_token_logits(log_probs: Any) -> Any:
    """Return logits [rows, tokens, 2] of a vocabulary of two tokens. Token 1 has the given log-probs [rows, tokens]."""
    return torch.stack([torch.zeros_like(log_probs), log_probs - torch.log(-torch.expm1(log_probs))], -1)


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
    :param takes: the inputs that are passed by name; by default all that are not in ``leading``.
    :param values_of: input -> (value in the contract -> value for the function).
    :param since: input that older versions lack -> the value with which newer versions behave like the older ones.
    :param reads: output -> its place in the result: an index, a key, or a tuple of them for nested results; by default
        the binding's ``outputs``.
    :param tokens_first: whether the function's tensors are ``[tokens, batch]``.
    :param sums: input of ``[batch, tokens]`` -> its mask. The function receives the input's sum over each row's valid
        tokens, ``[batch]``.
    :param bools: the inputs that are converted to booleans.
    :param group: the function's parameter for the number of rows in each group.
    :param row_names: the function's parameters for a list of row names, which must be distinct.
    :param upstream: further arguments under their upstream names.
    :raises AbsentError: if the function has no equivalent of a value in the scenario.
    """
    arguments = dict(inputs)
    for name, words in (values_of or {}).items():
        if arguments[name] not in words:
            raise AbsentError(f"{boundary.path} does not support {name}={arguments[name]} in this version")
        arguments[name] = words[arguments[name]]
    for name, usual in (since or {}).items():
        if not takes_input(boundary, name) and arguments.pop(name) != usual:
            raise AbsentError(f"{boundary.path} has no parameter for {name} in this version")
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
    """Return True if the function has a parameter for the contract's input ``name``."""
    return any(candidate in boundary.parameters for candidate in boundary.binding.arguments.get(name, (name,)))


def call_estimator(
    switches: Mapping[str, Mapping[str, Any]], names: Sequence[str], boundary: Any, inputs: Mapping[str, Any]
) -> Any:
    """Call a function that computes a KL estimate.

    :param switches: estimator -> the arguments that select it in versions without a parameter for the estimator's name.
    :param names: the inputs that are passed in addition to the estimator.
    """
    if takes_input(boundary, "kl_estimator"):
        return boundary.invoke(take_inputs(inputs, *names, "kl_estimator"))
    if inputs["kl_estimator"] not in switches:
        raise AbsentError(f"this version has no KL estimator {inputs['kl_estimator']}")
    return boundary.invoke(take_inputs(inputs, *names), **switches[inputs["kl_estimator"]])


def part_of(answer: Any, place: Any) -> Any:
    """Return the item of ``answer`` at an index or key. A tuple of indices and keys selects an item of nested
    containers.
    """
    for step in place if isinstance(place, tuple) else (place,):
        answer = answer[step]
    return answer


#: The contract's ``axis`` -> torch's ``dim``.
AXIS: Mapping[Any, Any] = {None: None, "token": -1}

#: Parameter names of functions that have the ends of episodes as input instead of a mask. ``ENDS``: booleans that mark
#: the last step of each episode. ``AFTER_ENDS``: the state after the last step, or flags of truncated episodes; these
#: values must not affect the result. If a function also has a parameter such as ``next_done``, ``ENDS`` mark the first
#: step of each episode instead of the last.
ENDS = ["dones", "done", "terminated", "terminateds", "terminations", "terminals", "terminal"]
AFTER_ENDS = ["next_value", "last_value", "last_values", "bootstrap_value", "next_done", "next_dones", "last_done"]
AFTER_ENDS += ["truncated", "truncations"]


def flag_ends(mask: Any) -> Any:
    """Return booleans [batch, tokens] that are True at the last valid token of each row, where its episode ends."""
    valid = mask != 0
    return valid & (valid.flip(-1).cumsum(-1).flip(-1) == 1)


def arguments_of_ends(names: Iterable[str], ends: Any, like: Any) -> dict[str, Any]:
    """Return the arguments for parameters that mark the ends of episodes (:data:`ENDS`, :data:`AFTER_ENDS`).

    :param names: the parameters.
    :param ends: flags that mark the ends of episodes, [batch, tokens] or [tokens].
    :param like: a tensor whose dtype and device the values after the end of an episode get.
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
    """Return the inputs and ``ends``, which marks the ends of episodes, for a function without a mask.

    Such a function also computes with masked tokens, as if they belonged to other episodes. So non-finite values at
    masked tokens are replaced by 1.

    :param as_bools: whether ``ends`` contains booleans or floats.
    :param stream: whether to concatenate the valid tokens of all rows to tensors [tokens].
    """
    tensors = {name: value for name, value in inputs.items() if getattr(value, "shape", ()) == mask.shape}
    finite = {name: torch.where((mask != 0) | value.isfinite(), value, 1) for name, value in tensors.items()}
    ends = flag_ends(mask)
    changed = {**inputs, **finite, "ends": ends if as_bools else ends.to(torch.get_default_dtype())}
    if not stream:
        return changed
    return {name: value[mask != 0] if name in (*tensors, "ends") else value for name, value in changed.items()}


def split_rows(value: Any, mask: Any) -> Any:
    """Return a tensor [batch, tokens] with the values [tokens] at valid tokens, and 0 at masked tokens."""
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

    :param each: how the function is called:

        * ``row``: once for each response, with its valid tokens;
        * ``rows``: once, with a vector of valid tokens for each response;
        * ``group`` and ``groups``: like ``row`` and ``rows``, but a vector has one number for each response to a
          prompt. Use them for inputs [batch] and for ``sums``. Responses without a valid token are left out;
        * ``batch``: once, with the whole tensors;
        * ``stream``: once, with the valid tokens of all rows, [tokens].
    :param reads: output -> its place in the result of a call.
    :param form: the type of a vector: ``tensor``, ``array`` or ``list``. With ``list``, whole tensors are nested lists.
    :param ends: the function's parameters that are in :data:`ENDS` or :data:`AFTER_ENDS`.
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
            found[name] = answer[name]  # one number for the whole batch
            continue
        found[name] = torch.zeros(some.shape, dtype=torch.float64)
        for place, value in zip(places, answer.get(name, ()), strict=True):
            found[name][place] = _tensor_of(value).to(torch.float64)
        if sums and of_groups:
            found[name] = torch.where(valid, found[name][:, None], 0.0)
    return found


def call_rates(boundary: Any, inputs: Mapping[str, Any], *, step: str, **options: Any) -> dict[str, Any]:
    """Call a schedule function once for each step of a run, and return the learning rates: the peak rate times each
    result.

    :param step: the function's parameter for the step.
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
    """Call an entropy function, and the function of the same module with the name ``log_probs``.

    The contract observes gradients of both results.
    """
    logits = inputs["logits"]
    values = getattr(boundary.module, log_probs)(logits, inputs["token_ids"])
    return {"log_probs": values, "entropy": boundary.function(logits)}


def call_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function that computes log-probs from logits and tokens."""
    return {"log_probs": boundary.function(inputs["logits"], inputs["token_ids"]), "entropy": None}


def call_sums_of_log_probs(boundary: Any, inputs: Mapping[str, Any], **upstream: Any) -> dict[str, Any]:
    """Return the log-prob of each token from a function that returns only the sum of each row's log-probs.

    The logits at a position predict the next label. Each row is passed once per token, with the labels up to this
    token; later labels are -100. The difference of two consecutive sums is the log-prob of a token.
    """
    logits, ids, valid = inputs["logits"], inputs["token_ids"], inputs["response_mask"] != 0
    (rows, tokens), pad = ids.shape, torch.nn.functional.pad
    until = torch.ones(tokens, tokens, dtype=torch.bool, device=ids.device).tril()
    labels = torch.where(until & valid[:, None], ids[:, None], -100).reshape(rows * tokens, tokens)
    whole = pad(logits, (0, 0, 0, 1)).repeat_interleave(tokens, 0)
    sums = boundary.invoke({}, whole, pad(labels, (1, 0), value=-100), **upstream).reshape(rows, tokens)
    return {"log_probs": sums.diff(dim=-1, prepend=sums.new_zeros(rows, 1)), "entropy": None}


def mean_of_tokens(values: Any, mask: Any) -> Any:
    """Return the mean over valid tokens. Adapters use it if a function returns one value per token and its caller
    computes the mean.
    """
    return torch.where(mask != 0, values, 0.0).sum() / max(int((mask != 0).sum()), 1)


def call_divergence(boundary: Any, inputs: Mapping[str, Any], *, of_logits: bool, **upstream: Any) -> dict[str, Any]:
    """Return the mean over valid tokens of a function's divergences: one per token, or one per token and vocabulary
    entry.

    :param of_logits: whether the function's arguments are logits or log-probs.
    """
    mask = inputs["response_mask"]
    both = [torch.where(mask[..., None] != 0, inputs[name], 0.0) for name in ("logits", "teacher_logits")]
    both = both if of_logits else [values.log_softmax(-1) for values in both]
    told = boundary.invoke(take_inputs(inputs, "beta"), *both, **upstream)
    return {"loss": mean_of_tokens(told.sum(-1) if told.ndim == 3 else told, mask)}


def read_rates(inputs: Mapping[str, Any], schedule: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the learning rate of each update. ``schedule(optimizer)`` makes the framework's scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=inputs["peak"])
    scheduler = schedule(optimizer)
    values = []
    for _ in range(inputs["training_steps"]):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return {"rates": values}


def read_coefficients(controller: Any, inputs: Mapping[str, Any], argument: str = "current") -> dict[str, Any]:
    """Return a KL controller's coefficient before the first update and after each update.

    :param argument: the parameter of ``update`` for the KL."""
    values = [controller.value]
    for kl in inputs["kls"]:
        controller.update(**{argument: kl, "n_steps": inputs["samples_per_step"]})
        values.append(controller.value)
    return {"coefficients": values}
