"""Scenarios: from a contract's declared inputs and what a boundary accepts to concrete canonical inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import REQUIRED, Choose, Contract, DoesNotApply, Input
from sentinel.targets import Binding
from sentinel.values.literals import FLOATS, Tensor, from_array, tensor

#: Styles of mask, the plainest first. ``right`` and ``left`` are padding on that side; ``gaps`` is anything.
MASK_STYLES = ("full", "right", "left", "gaps")

#: What float tensors are made of; single precision is what these functions meet most, so it comes up most.
PRECISIONS = ("float32", "float32", "float32", "float64", "float32", "bfloat16", "float32", "float16")

#: Rows and tokens of a scenario: every bug in the collection shows in fewer.
MOST_ROWS, MOST_TOKENS = 5, 5

_LABELS = ("p", "q", "r")

#: What is drawn for a tensor of a domain: what a training step meets every day (the plainest first, as everything
#: shrinks towards that; the differences are so small that no honest float32 sum loses them), and what it meets once a
#: month, and still must get right: extremes, ties that floats cannot represent, log-ratios beyond ±89.
DOMAINS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # log-prob of a token, and difference of two, in nats
    "log_prob": (
        (-1.0, -0.5, -2.0, -0.75, -1.25, -0.25, -1.5, -0.125, -3.0, -0.625), (-1e-6, -20.0, -45.0, -100.0, -120.0)
    ),
    "log_ratio": (
        (0.0, 0.25, -0.25, 0.5, -0.5, 0.125, 1.0, -1.0, 1.5, -1.5),
        (10.0, -10.0, 25.0, -25.0, 90.0, -90.0, 110.0, -110.0),
    ),
    # of a response
    "reward": ((0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.5, 0.25), (0.1, 0.3, 0.7, 10.0, -10.0, 1000.0)),
    # of a token
    "advantage": ((1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 2.0, -2.0, 0.0, 1.5), (1e-6, 10.0, -10.0, 100.0)),
    "value": ((0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 0.25, -2.0, 1.5, 0.75), (10.0, -10.0, 1000.0)),
    "loss": ((1.0, 2.0, 0.5, -1.0, 3.0, 0.25, -0.5, 4.0, 0.0, 5.0), (100.0, -100.0, 1e4)),
    "weight": ((1.0, 0.5, 2.0, 0.25, 1.5, 0.75), (0.0, 1e-4, 5.0, 100.0)),
    "entropy": ((1.0, 0.5, 2.0, 0.25, 1.5, 0.75), (0.0, 1e-4, 11.0)),
    "token_id": ((1, 2, 3, 4, 5, 6, 7, 0), ()),
}  # fmt: skip

#: Decimals of a captured number, of which all are kept.
_EXACT = 4


#: The places that are there in one dimension.
Places = tuple[int, ...]
Sizes = dict[str, Places]


class NotSearchable(Exception):
    """Nothing says how to draw an input of the contract for this boundary."""


def narrowed(contract: Contract, binding: Binding) -> Contract:
    """Narrow the contract to this boundary: choices it accepts, inputs it fixes.

    :raises NotSearchable: where a required input has nothing to be drawn from.
    """
    inputs = []
    for item in contract.inputs:
        if item.name in binding.fixed:
            item = replace(item, default=binding.fixed[item.name], choices=(), domain="", knob=False)
        elif item.domain and binding.accepts.get(item.name) == (None,):
            item = replace(item, domain="", default=None)
        elif item.domain == "mask":
            item = replace(item, choices=binding.accepts.get(item.name, MASK_STYLES))
        elif item.name in binding.accepts:
            accepted = binding.accepts[item.name]
            if not item.domain:
                item = replace(item, choices=accepted, knob=item.knob and len(accepted) > 1)
        if item.default is REQUIRED and not (item.domain or item.choices or item.kind == "labels"):
            raise NotSearchable(f"nothing says what to draw for {item.name!r}")
        inputs.append(item)
    return replace(contract, inputs=tuple(inputs))


def draw(contract: Contract, binding: Binding, choose: Choose) -> dict[str, Any]:
    """Draw one scenario: a literal for every input of the (narrowed) contract.

    :raises DoesNotApply: from the contract's ``arrange``, where what was drawn makes no sense.
    """
    sizes = {"batch": _places(MOST_ROWS, choose), "tokens": _places(MOST_TOKENS, choose)}
    layout = contract.input("group_layout")
    if layout is not None and layout.default == "equal" and choose.integer(0, 1):
        sizes["batch"] = tuple(range(4))  # hardly another number of rows makes several groups of several
    precision = choose.one_of([name for name in PRECISIONS if not binding.dtypes or name in binding.dtypes])
    wild = choose.integer(0, 3) == 3
    inputs: dict[str, Any] = {}
    for item in contract.inputs:
        inputs[item.name] = _input(item, inputs, sizes, precision, wild, choose)
    if contract.arrange is not None:
        inputs = contract.arrange(inputs, choose)
    return with_dialects(contract, binding, inputs)


def sizes_of(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Say how long each dimension of a scenario is."""
    return {
        dimension: size
        for item in contract.inputs
        if isinstance(inputs[item.name], Tensor) and len(item.shape) == len(inputs[item.name].shape)
        for dimension, size in zip(item.shape, inputs[item.name].shape)
    }


def cut_to(
    contract: Contract, inputs: Mapping[str, Any], places: Mapping[str, Sequence[int]], decimals: int | None = None
) -> dict[str, Any]:
    """Cut a scenario to these places of its dimensions, its numbers rounded to so many decimals."""
    cut, batch = dict(inputs), sizes_of(contract, inputs).get("batch")
    for item in contract.inputs:
        value = inputs[item.name]
        if isinstance(value, Tensor) and len(item.shape) == len(value.shape):
            array = value.array()
            for axis, dimension in enumerate(item.shape):
                if dimension in places:
                    array = array.take(places[dimension], axis)
            rounded = array if decimals is None or value.dtype not in FLOATS else array.round(decimals)
            cut[item.name] = from_array(rounded, value.dtype, value.requires_grad, value.contiguous)
        elif item.kind == "labels" and isinstance(value, list) and len(value) == batch and "batch" in places:
            cut[item.name] = [value[row] for row in places["batch"]]
    return cut


def part(contract: Contract, inputs: Mapping[str, Any], choose: Choose) -> dict[str, Any]:
    """Choose some rows (whole groups, or as many rows of each) and tokens of a captured scenario, and how exact its
    numbers are. It shrinks towards none, and whole numbers.

    :raises DoesNotApply: where nothing is left.
    """
    sizes, labels = sizes_of(contract, inputs), inputs.get(contract.group)
    places: dict[str, list[int]] = {
        dimension: [place for place, choice in enumerate(choose.integers(sizes[dimension], 0, 1)) if choice]
        for dimension in ("batch", "tokens")
        if dimension in sizes
    }
    if isinstance(labels, list) and len(labels) == sizes.get("batch"):
        groups = list(dict.fromkeys(labels))
        choice = {label for label, one in zip(groups, choose.integers(len(groups), 0, 1)) if one}
        most = choose.integer(1, max(map(labels.count, groups)))
        places["batch"] = [
            row for row, label in enumerate(labels) if label in choice and labels[:row].count(label) < most
        ]
    if not all(places.values()):
        raise DoesNotApply("nothing is left of the scenario")
    decimals = choose.integer(0, _EXACT)
    return cut_to(contract, inputs, places, None if decimals == _EXACT else decimals)


def takes(contract: Contract, binding: Binding, variants: Mapping[str, Mapping[str, Any]]) -> bool:
    """Say whether a boundary, as its adapter has it today, takes a scenario that was drawn for it once, perhaps by
    another Sentinel: these inputs, with the values that are fixed, in the choices and styles of mask that are accepted.
    """
    first = next(iter(variants.values()), {})
    if not first or any(set(inputs) != {item.name for item in contract.inputs} for inputs in variants.values()):
        return False
    stated = all(with_dialects(contract, binding, dict(inputs)) == inputs for inputs in variants.values())
    return stated and all(accepts(contract, binding, item, first) for item in contract.inputs)


def accepts(contract: Contract, binding: Binding, item: Input, inputs: Mapping[str, Any]) -> bool:
    """Say whether a boundary takes a scenario's value of one input."""
    value = inputs[item.name]
    if item.name in binding.fixed:
        fixed = binding.fixed[item.name]
        return callable(fixed) or item.dialect or fixed == value
    if isinstance(value, Tensor):
        if item.domain == "mask":
            return bool(_styles(value) & set(item.choices))
        drawn = item.domain and item.dtype == "float32" and value.dtype in FLOATS
        return not drawn or not binding.dtypes or value.dtype in binding.dtypes
    accepted = binding.accepts.get(item.name)
    if accepted is None or value in accepted:
        return True
    # A count that the contract makes agree with the rest of the scenario, whichever was drawn.
    arrangements = (
        [contract.arrange({**inputs, item.name: choice}, Choices(b"")) for choice in accepted]
        if contract.arrange
        else []
    )
    return any(other[item.name] == value for other in arrangements)


def _styles(mask: Tensor) -> set[str]:
    """Give the styles that a mask is of; a row of zeros is of any."""
    rows = mask.array() != 0
    rows = rows[rows.any(axis=-1)]
    steps = np.diff(rows.astype(int), axis=-1)
    styles = {"full": rows.all(), "right": (steps <= 0).all(), "left": (steps >= 0).all(), "gaps": True}
    return {style for style, holds in styles.items() if holds}


def with_dialects(contract: Contract, binding: Binding, inputs: dict[str, Any]) -> dict[str, Any]:
    """Give the scenario with the dialect inputs that the adapter states for it."""
    for dialect in binding.dialects:
        if contract.input(dialect.name) is not None and dialect.holds(inputs):
            inputs[dialect.name] = dialect.value
    return inputs


def _input(item: Input, inputs: Mapping[str, Any], sizes: Sizes, precision: str, wild: bool, choose: Choose) -> Any:
    if item.domain == "mask":
        return _mask(item, sizes, choose)
    if item.domain:
        if item.default is None and choose.integer(0, 1) == 0:
            return None
        return _tensor(item, sizes, precision, wild, choose)
    if item.kind == "labels":
        return [_LABELS[n] for n in _grid((sizes["batch"],), len(_LABELS), choose)]
    if item.choices:
        return choose.one_of(item.choices)
    return item.default(inputs) if callable(item.default) else item.default


def _places(most: int, choose: Choose) -> Places:
    """Say which of so many rows (or tokens) there are. All are drawn, and those that are not there cut away: an
    example that loses one keeps the numbers of the others, so that shrinking can take them out one by one."""
    there = [place for place, bit in enumerate(choose.integers(most, 0, 1)) if bit]
    return tuple(there) or (0,)


def _shape(item: Input, sizes: Sizes, choose: Choose) -> tuple[Places, ...]:
    for name in item.shape:
        if name not in sizes:
            sizes[name] = _places(MOST_TOKENS, choose)
    return tuple(sizes[name] for name in item.shape)


def _grid(shape: tuple[Places, ...], count: int, choose: Choose) -> npt.NDArray[np.int64]:
    """Give numbers below ``count``, at these places of each dimension."""
    whole = tuple(MOST_ROWS if axis == 0 else MOST_TOKENS for axis in range(len(shape)))
    numbers = np.array(choose.integers(int(np.prod(whole)), 0, count - 1), np.int64).reshape(whole)
    return numbers[np.ix_(*shape)] if shape else numbers


def _mask(item: Input, sizes: Sizes, choose: Choose) -> Tensor:
    shape = _shape(item, sizes, choose)
    rows, tokens = map(len, shape)
    style = choose.one_of(item.choices or MASK_STYLES)
    mask: npt.NDArray[Any]
    if style == "full":
        mask = np.ones((rows, tokens))
    elif style == "gaps":
        mask = 1 - _grid(shape, 2, choose)
    else:
        missing = _grid(shape[:1], MOST_TOKENS + 1, choose).clip(max=tokens)[:, None]
        at = np.arange(tokens)[None, :]
        mask = at < tokens - missing if style == "right" else at >= missing
    if choose.integer(0, 2) == 2:  # a fully rejected row is rare among random masks, and much goes wrong with it
        mask = mask * (np.arange(rows) != choose.integer(0, rows - 1))[:, None]
    return tensor(mask.astype(int).tolist(), item.dtype)


def _tensor(item: Input, sizes: Sizes, precision: str, wild: bool, choose: Choose) -> Tensor:
    calm, rare = DOMAINS[item.domain]
    pool = calm + rare if wild else calm
    shape = _shape(item, sizes, choose)
    values = np.array(pool)[_grid(shape, len(pool), choose)]
    return tensor(values.tolist(), precision if item.dtype == "float32" else item.dtype)
