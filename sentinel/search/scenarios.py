"""Draw scenarios from the inputs that a contract declares and the values that a boundary accepts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import REQUIRED, Choose, Contract, DoesNotApply, Input
from sentinel.targets import Binding, Target
from sentinel.values.literals import FLOATS, Tensor, from_array, tensor

#: Mask styles, the simplest first. ``right`` and ``left`` name the side of the padding; ``gaps`` is any mask.
MASK_STYLES = ("full", "right", "left", "gaps")

#: Dtypes of float tensors. float32 is drawn most often because most calls in training use it.
PRECISIONS = ("float32", "float32", "float32", "float64", "float32", "bfloat16", "float32", "float16")

#: Maximum number of rows and of tokens. Every known bug shows in scenarios this small.
MOST_ROWS, MOST_TOKENS = 5, 5

_LABELS = ("p", "q", "r")

#: Domain -> (common values, rare values). The simplest common value comes first, because shrinking moves towards it.
#: Common values differ by amounts that are not lost in a float32 sum. Rare values are valid but extreme: large numbers,
#: decimals that floats cannot represent, and log-ratios beyond ±89, where float32's ``exp`` overflows.
DOMAINS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # in nats: the log-probability of one token, and the difference of two
    "log_prob": (
        (-1.0, -0.5, -2.0, -0.75, -1.25, -0.25, -1.5, -0.125, -3.0, -0.625), (-1e-6, -20.0, -45.0, -100.0, -120.0)
    ),
    "log_ratio": (
        (0.0, 0.25, -0.25, 0.5, -0.5, 0.125, 1.0, -1.0, 1.5, -1.5),
        (10.0, -10.0, 25.0, -25.0, 90.0, -90.0, 110.0, -110.0),
    ),
    # one per response
    "reward": ((0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.5, 0.25), (0.1, 0.3, 0.7, 10.0, -10.0, 1000.0)),
    # one per token
    "advantage": ((1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 2.0, -2.0, 0.0, 1.5), (1e-6, 10.0, -10.0, 100.0)),
    "value": ((0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 0.25, -2.0, 1.5, 0.75), (10.0, -10.0, 1000.0)),
    "loss": ((1.0, 2.0, 0.5, -1.0, 3.0, 0.25, -0.5, 4.0, 0.0, 5.0), (100.0, -100.0, 1e4)),
    "weight": ((1.0, 0.5, 2.0, 0.25, 1.5, 0.75), (0.0, 1e-4, 5.0, 100.0)),
    "entropy": ((1.0, 0.5, 2.0, 0.25, 1.5, 0.75), (0.0, 1e-4, 11.0)),
    "token_id": ((1, 2, 3, 4, 5, 6, 7, 0), ()),
}  # fmt: skip

#: The drawn number of decimals with which recorded numbers are not rounded.
_EXACT = 4


#: The indices of one dimension that are part of a scenario.
Places = tuple[int, ...]
Sizes = dict[str, Places]


class NotSearchable(Exception):
    """Raised if an input cannot be drawn: it has no domain, no choices and no default."""


def narrow(contract: Contract, binding: Binding) -> Contract:
    """Return the contract with only the inputs and choices that a boundary accepts.

    An input that the binding fixes is not drawn, and its default is the fixed value. The choices of the other inputs
    are limited to the values that the binding accepts.

    :raises NotSearchable: if a required input has nothing to draw from.
    """
    inputs = []
    contract = contract.with_actions() if binding.fixed.get("actions_per_step") else contract
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
            raise NotSearchable(f"the input {item.name!r} has no domain, choices or default to draw from")
        inputs.append(item)
    return replace(contract, inputs=tuple(inputs))


def declared(targets: Iterable[Target], contract: Contract, name: str) -> list[Any]:
    """Return the values that adapters declare for an input, in dialects and in bindings of this contract."""
    values: list[Any] = []
    for binding in (binding for target in targets for binding in target.bindings):
        values += [dialect.value for dialect in binding.dialects if dialect.name == name]
        if binding.contract == contract.name:
            values += [binding.fixed[name]] if name in binding.fixed else binding.accepts.get(name, ())
    return [value for value in values if not callable(value) and not isinstance(value, dict)]


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return the values without repetitions, in order. The values may be lists or dictionaries."""
    return list({repr(value): value for value in values}.values())


@dataclass(frozen=True)
class Around:
    """Values for a scenario that constants in the code under test suggest.

    :ivar numbers: further values of float tensors; only those that are valid in a tensor's domain are used.
    :ivar size: the number of tokens, or of rows if the contract has no token mask; 0 to draw it.
    :ivar dtype: the dtype of float tensors; empty to draw it.
    :ivar choices: input -> its value, for inputs with choices; for a mask, its style.
    """

    numbers: tuple[float, ...] = ()
    size: int = 0
    dtype: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)


def draw(contract: Contract, binding: Binding, choose: Choose, around: Around = Around()) -> dict[str, Any]:
    """Draw one scenario: a literal for each input of the narrowed contract.

    Float tensors of one scenario share a dtype. A quarter of the scenarios also use the rare values of :data:`DOMAINS`.

    :raises DoesNotApply: if the contract's ``arrange`` rejects the drawn inputs.
    """
    sizes = {"batch": _places(MOST_ROWS, choose), "tokens": _places(MOST_TOKENS, choose)}
    actions, layout = contract.input("actions_per_step"), contract.input("group_layout")
    if actions is not None and actions.default is not None:
        sizes["actions"] = tuple(range(actions.default))
    if layout is not None and layout.default == "equal" and choose.integer(0, 1):
        sizes["batch"] = tuple(range(4))  # drawn numbers of rows rarely give several groups with several rows
    if around.size:
        sizes["tokens" if contract.mask else "batch"] = tuple(range(around.size))
    precision = choose.one_of([name for name in PRECISIONS if not binding.dtypes or name in binding.dtypes])
    if around.dtype in (binding.dtypes or PRECISIONS):
        precision = around.dtype
    wild = choose.integer(0, 3) == 3
    inputs: dict[str, Any] = {}
    for item in contract.inputs:
        item = replace(item, choices=(around.choices[item.name],)) if item.name in around.choices else item
        inputs[item.name] = _input(item, inputs, sizes, precision, wild, choose, around.numbers)
    if contract.arrange is not None:
        inputs = contract.arrange(inputs, choose)
    return with_dialects(contract, binding, inputs)


def sizes_of(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the length of each dimension of a scenario (``batch``, ``tokens``, ...)."""
    return {
        dimension: size
        for item in contract.inputs
        if isinstance(inputs[item.name], Tensor) and len(item.shape) == len(inputs[item.name].shape)
        for dimension, size in zip(item.shape, inputs[item.name].shape)
    }


def cut_to(
    contract: Contract, inputs: Mapping[str, Any], places: Mapping[str, Sequence[int]], decimals: int | None = None
) -> dict[str, Any]:
    """Return the part of a scenario with the given indices of each dimension. Floats are rounded to ``decimals``
    places."""
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
    """Draw a part of a recorded scenario: some rows, some tokens, and fewer decimals.

    Every group has at most ``n`` rows left, where ``n`` is drawn. Shrinking tends to few rows and whole numbers.

    :raises DoesNotApply: if no row or no token is left.
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
        raise DoesNotApply("the reduced scenario has no rows or no tokens")
    decimals = choose.integer(0, _EXACT)
    return cut_to(contract, inputs, places, None if decimals == _EXACT else decimals)


def takes(contract: Contract, binding: Binding, variants: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if a stored scenario is still valid for a boundary.

    It may be invalid after a change of the adapter or of Sentinel. A valid scenario has exactly the contract's inputs,
    the values that the adapter fixes, and only choices, mask styles and dtypes that the binding accepts.
    """
    first = next(iter(variants.values()), {})
    if not first or any(set(inputs) != {item.name for item in contract.inputs} for inputs in variants.values()):
        return False
    stated = all(with_dialects(contract, binding, dict(inputs)) == inputs for inputs in variants.values())
    return stated and all(accepts(contract, binding, item, first) for item in contract.inputs)


def accepts(contract: Contract, binding: Binding, item: Input, inputs: Mapping[str, Any]) -> bool:
    """Return True if the binding accepts the scenario's value of this input."""
    value = inputs[item.name]
    if item.name in binding.fixed:
        fixed = binding.fixed[item.name]
        return callable(fixed) or item.dialect or fixed == value
    if isinstance(value, Tensor):
        if item.domain == "mask":
            return bool(padding_of(value) & set(item.choices))
        drawn = item.domain and item.dtype == "float32" and value.dtype in FLOATS
        return not drawn or not binding.dtypes or value.dtype in binding.dtypes
    accepted = binding.accepts.get(item.name)
    if accepted is None or value in accepted:
        return True
    # The value may be a count that the contract's `arrange` has computed from a choice and the other inputs.
    arrangements = (
        [contract.arrange({**inputs, item.name: choice}, Choices(b"")) for choice in accepted]
        if contract.arrange
        else []
    )
    return any(other[item.name] == value for other in arrangements)


def padding_of(mask: Tensor) -> set[str]:
    """Return the padding styles that a mask has. A row of zeros fits every style."""
    rows = mask.array() != 0
    rows = rows[rows.any(axis=-1)]
    steps = np.diff(rows.astype(int), axis=-1)
    styles = {"full": rows.all(), "right": (steps <= 0).all(), "left": (steps >= 0).all(), "gaps": True}
    return {style for style, holds in styles.items() if holds}


def with_dialects(contract: Contract, binding: Binding, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario in which the binding's dialects have set the inputs whose values they prescribe."""
    for dialect in binding.dialects:
        if contract.input(dialect.name) is not None and dialect.holds(inputs):
            inputs[dialect.name] = dialect.value
    return inputs


def _input(
    item: Input,
    inputs: Mapping[str, Any],
    sizes: Sizes,
    precision: str,
    wild: bool,
    choose: Choose,
    numbers: Sequence[float],
) -> Any:
    if item.domain == "mask":
        return _mask(item, sizes, choose)
    if item.domain:
        if item.default is None and choose.integer(0, 1) == 0:
            return None
        return _tensor(item, sizes, precision, wild, choose, numbers)
    if item.kind == "labels":
        return [_LABELS[n] for n in _grid((sizes["batch"],), len(_LABELS), choose)]
    if item.choices:
        return choose.one_of(item.choices)
    return item.default(inputs) if callable(item.default) else item.default


#: Number of common values of a domain that are added if a tensor is drawn from values near the code's constants.
_BESIDE = 3

#: Maximum magnitude of constants in the code near which values are drawn.
_LARGEST = 1e4


def _in_domain(domain: str, numbers: Sequence[float]) -> tuple[float, ...]:
    """Return the numbers that are valid in a domain. In the domain of log-ratios, add the logarithms of positive
    numbers."""
    if domain in ("mask", "token_id") or not numbers:
        return ()
    if domain == "reward":  # only multiples of a quarter, so that sums are exact
        numbers = [each for each in numbers if abs(each) <= 1024 and each * 4 == int(each * 4)]
    if domain == "log_ratio":
        numbers = [*numbers, *(-each for each in numbers), *(math.log(each) for each in numbers if each > 0)]
    if domain == "log_prob":
        numbers = [-abs(each) for each in numbers]
    low = 0.0 if domain in ("weight", "entropy") else -_LARGEST
    most = 110.0 if domain in ("log_ratio", "log_prob") else _LARGEST
    return tuple(dict.fromkeys(each for each in numbers if max(low, -most) <= each <= most))


def _places(most: int, choose: Choose) -> Places:
    """Draw which of ``most`` indices a scenario has; at least one.

    Values are drawn for all indices, and the values of other indices are removed afterwards. So a scenario that loses a
    row has the same numbers in its other rows, and shrinking can remove rows one by one.
    """
    there = [place for place, bit in enumerate(choose.integers(most, 0, 1)) if bit]
    return tuple(there) or (0,)


def _shape(item: Input, sizes: Sizes, choose: Choose) -> tuple[Places, ...]:
    for name in item.shape:
        if name not in sizes:
            sizes[name] = _places(MOST_TOKENS, choose)
    return tuple(sizes[name] for name in item.shape)


def _grid(shape: tuple[Places, ...], count: int, choose: Choose) -> npt.NDArray[np.int64]:
    """Draw integers in ``[0, count)`` for a grid. The maximum size is drawn, so that fewer rows do not change the other
    numbers."""
    usual = (MOST_ROWS, *[MOST_TOKENS] * (len(shape) - 1))
    whole = tuple(max([most, *(place + 1 for place in places)]) for most, places in zip(usual, shape))
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
    if choose.integer(0, 2) == 2:  # random masks rarely have a row of zeros, and many bugs need one
        mask = mask * (np.arange(rows) != choose.integer(0, rows - 1))[:, None]
    return tensor(mask.astype(int).tolist(), item.dtype)


def _tensor(
    item: Input, sizes: Sizes, precision: str, wild: bool, choose: Choose, numbers: Sequence[float] = ()
) -> Tensor:
    calm, rare = DOMAINS[item.domain]
    pool = calm + rare if wild else calm
    more = _in_domain(item.domain, numbers)
    pool = (*calm[:_BESIDE], *more) if more else pool
    shape = _shape(item, sizes, choose)
    values = np.array(pool)[_grid(shape, len(pool), choose)]
    return tensor(values.tolist(), precision if item.dtype == "float32" else item.dtype)
