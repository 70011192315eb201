"""Define slips: common mistakes in formulas and arguments, each with an oracle that makes this mistake.

If a function returns wrong numbers and one of these oracles returns the same numbers, the slip is the probable cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from sentinel.contracts.contract import Contract, Input
from sentinel.values.lazy import torch

#: A description of a slip, and a contract whose oracle makes this slip.
Slip = tuple[str, Contract]

_Inputs = dict[str, Any]


def slips(contract: Contract, names: Mapping[str, str], choices: Mapping[str, Any], factor: float) -> Iterator[Slip]:
    """Yield common mistakes (slips) that a function of this contract may contain, the most likely ones first.

    :param names: input -> parameter of the user's function.
    :param choices: the settings that the user has chosen.
    :param factor: the observed number divided by the expected number, or 0 if they are not numbers.
    """

    def called(item: Input) -> str:
        return names.get(item.name, item.name)

    tensors = [item for item in contract.inputs if item.kind == "tensor" and item.domain and item.domain != "mask"]
    yield "minimum and maximum swapped", _in_torch(contract, _swapped)
    numbers = [item for item in contract.inputs if item.knob and item.kind == "number"]
    for one, other in combinations(numbers, 2):
        if _alike(one.name, other.name):
            yield f"{called(one)} and {called(other)} swapped", _of_inputs(contract, _swap((one.name, other.name)))
            for first, second in ((one, other), (other, one)):
                yield f"{called(first)} used as {called(second)}", _of_inputs(contract, _copy(first.name, second.name))
    trained = contract.input("log_probs") is not None
    for item in tensors:
        if trained and item.domain == "log_ratio":
            text = f"the opposite sign of the log-ratio of {names.get('log_probs', 'log_probs')} and {called(item)}"
            yield text, _of_inputs(contract, _reflect(item.name))
    for one, other in combinations(tensors, 2):
        if one.shape == other.shape and not (trained and "log_ratio" in (one.domain, other.domain)):
            yield f"{called(one)} and {called(other)} swapped", _of_inputs(contract, _swap((one.name, other.name)))
    sides = [(f"chosen{name[8:]}", name) for name in map(str, names) if name.startswith("rejected")]
    if sides:
        yield "chosen and rejected swapped", _of_inputs(contract, _swap(*sides))
    for item in numbers:
        if "eps" not in item.name:
            yield f"{called(item)} ignored (as if it were 1)", _of_inputs(contract, _set(item.name, 1.0))
            yield f"the inverse of {called(item)}", _of_inputs(contract, _invert(item.name))
    for item in tensors:
        if item.domain in ("advantage", "reward"):
            yield f"the opposite sign of {called(item)}", _of_inputs(contract, _negate(item.name))
    for item in numbers:
        if re.search("coef|beta", item.name):
            yield f"the opposite sign of {called(item)}", _of_inputs(contract, _negate(item.name))
    yield "the opposite sign of the result", _scaled(contract, -1.0)
    yield "no clipping", _in_torch(contract, _unclipped)
    yield "a gradient through a value that must be detached", _in_torch(contract, _attached)
    if contract.mask and contract.input(contract.mask) is not None:
        mask = called(contract.input(contract.mask))  # type: ignore[arg-type]
        yield f"{mask} not applied", _of_inputs(contract, _unmasked(contract.mask))
        if contract.input("batch_num_tokens") is not None:
            for text, of in (
                ("padding counted in the denominator", lambda shape: shape[0] * shape[1]),
                ("the number of rows as the denominator", lambda shape: shape[0]),
                ("the number of columns as the denominator", lambda shape: shape[1]),
            ):
                yield text, _of_inputs(contract, _divided_by(contract.mask, of))
    for item in contract.inputs:
        if item.name in choices and not isinstance(choices[item.name], tuple):
            for value in item.choices:
                if value != choices[item.name]:
                    yield (
                        f"{item.name}={value!r}, not {choices[item.name]!r}",
                        _of_inputs(contract, _set(item.name, value)),
                    )
    group = contract.input(contract.group) if contract.group else None
    if group is not None:
        yield "all rows in one group", _of_inputs(contract, lambda inputs: {contract.group: [0] * _rows(inputs, group)})
        yield "groups along the wrong axis (every n-th row)", _of_inputs(contract, _interleaved(contract.group))
    if factor not in (0.0, 1.0, -1.0):
        yield f"the factor {factor:.6g}", _scaled(contract, factor)


def _alike(one: str, other: str) -> bool:
    """Return True if two names of several words differ in one word, or are the discounts ``gamma`` and ``lam``."""
    words = one.split("_"), other.split("_")
    differing = [pair for pair in zip(*words) if pair[0] != pair[1]]
    return {one, other} == {"gamma", "lam"} or (
        len(words[0]) == len(words[1]) > 1 and len(differing) == 1 and not re.search("coef|beta", one + other)
    )


# -- slips in the inputs -----------------------------------------------------------------------------------------------


def _of_inputs(contract: Contract, change: Callable[[_Inputs], _Inputs]) -> Contract:
    """Return a contract whose oracle receives inputs in which ``change`` has replaced some values."""
    oracle = contract.oracle
    assert oracle is not None
    return replace(contract, oracle=lambda inputs: oracle({**inputs, **change(dict(inputs))}))


def _swap(*pairs: tuple[str, str]) -> Callable[[_Inputs], _Inputs]:
    both = {**dict(pairs), **{other: one for one, other in pairs}}
    return lambda inputs: {name: inputs[other] for name, other in both.items()}


def _copy(one: str, other: str) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {other: inputs[one]}


def _reflect(name: str) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {} if inputs[name] is None else {name: 2 * inputs["log_probs"] - inputs[name]}


def _negate(name: str) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {} if inputs[name] is None else {name: -inputs[name]}


def _invert(name: str) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {name: 1 / inputs[name]} if inputs[name] else {}


def _unmasked(mask: str) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {mask: torch.ones_like(inputs[mask])}


def _divided_by(mask: str, count: Callable[[Any], int]) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {"batch_num_tokens": count(inputs[mask].shape)}


def _set(name: str, value: Any) -> Callable[[_Inputs], _Inputs]:
    return lambda inputs: {name: value}


def _rows(inputs: _Inputs, group: Input) -> int:
    return len(inputs[group.name])


def _interleaved(group: str) -> Callable[[_Inputs], _Inputs]:
    def change(inputs: _Inputs) -> _Inputs:
        count = len({str(label) for label in inputs[group]})
        return {group: [row % count for row in range(len(inputs[group]))]}

    return change


# -- slips in the formula ----------------------------------------------------------------------------------------------


def _in_torch(contract: Contract, change: Callable[[Any, Any, Any], Any]) -> Contract:
    """Return a contract whose oracle runs with some torch functions replaced.

    :param change: ``change(function, arguments, options)`` is called instead of each torch function. If it returns
        NotImplemented, the torch function is called.
    """
    oracle = contract.oracle
    assert oracle is not None

    def slipped(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        from torch.overrides import TorchFunctionMode

        class Mode(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
                result = change(function, arguments, options or {})
                return function(*arguments, **(options or {})) if result is NotImplemented else result

        with Mode():
            return oracle(inputs)

    return replace(contract, oracle=slipped)


def _swapped(function: Any, arguments: Any, options: Any) -> Any:
    pair = {torch.maximum: torch.minimum, torch.minimum: torch.maximum}
    return pair[function](*arguments, **options) if function in pair else NotImplemented


def _unclipped(function: Any, arguments: Any, options: Any) -> Any:
    clips = function in (torch.clamp, torch.Tensor.clamp) and arguments[0].is_floating_point()
    return arguments[0] if clips and len(arguments) + len(options) == 3 else NotImplemented


def _attached(function: Any, arguments: Any, options: Any) -> Any:
    return arguments[0] if function in (torch.detach, torch.Tensor.detach) else NotImplemented


def _scaled(contract: Contract, factor: float) -> Contract:
    """Return a contract whose oracle multiplies all outputs except metrics by a factor."""
    oracle = contract.oracle
    assert oracle is not None
    outputs = [item.key for item in contract.observes if item.role == "output"]

    def slipped(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            key: value * factor if key in outputs and isinstance(value, torch.Tensor) else value
            for key, value in oracle(inputs).items()
        }

    return replace(contract, oracle=slipped)
