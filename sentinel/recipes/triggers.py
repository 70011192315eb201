"""Determine from a recipe's ``when:`` whether a scenario triggers the bug. This does not need torch.

A trigger is a list of alternatives, of which one is enough. An alternative is ``{input: condition}``, and all its
conditions must hold. Its key ``only`` lists the observation keys whose values the bug makes wrong; all other keys must
be right. ``always`` is the trigger of a bug that occurs in every scenario. The condition of

* an option is a condition of ``affects`` (:mod:`sentinel.recipes.affects`): a value, a list of values, ``set``,
  ``unset``, or a bound such as ``"> 1"``;
* a tensor, or labels, is one of :data:`WORDS`, a bound that some element meets, or a dtype;
* a list is one of :data:`LIST_WORDS`; ``longer than NAME``, for a list with more items than the value of the input
  ``NAME``; or a condition as for an option.

The input ``any`` stands for all float tensors, of which one must meet the condition. It is for bugs in shared helpers,
which also occur in functions whose inputs have different names. ``a - b`` is the difference of two tensors. The mask
and the group labels have their names in the recipe's contract, even if the function has another contract.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import Contract, Input, Inputs
from sentinel.recipes.affects import condition_in_words, holds, in_text
from sentinel.values.literals import FLOATS, STORAGE, Tensor, from_array

#: Stands for all float tensors of a scenario, of which one must meet the condition.
ANY = "any"

ALWAYS = "always"

#: The key of an alternative whose value lists the observed keys that the bug makes wrong.
ONLY = "only"

#: Stands between the names of two tensors to name their difference.
MINUS = " - "

#: Input -> condition.
Alternative = Mapping[str, Any]

_Array = npt.NDArray[Any]

_BOUND = re.compile(r"(?:>=|<=|!=|>|<) \S+")


@dataclass(frozen=True)
class _Values:
    """The values of one input in a scenario, with the scenario's mask and group labels."""

    array: _Array
    valid: _Array | None
    labels: list[Any] | None
    dtype: str = "float64"

    @property
    def masked(self) -> _Array:
        """Return booleans that are True for masked tokens and for all elements of rows without a valid token."""
        if self.valid is None or not self.array.shape:
            return np.zeros(self.array.shape, bool)
        if self.array.shape[: self.valid.ndim] == self.valid.shape:
            extra = (1,) * (self.array.ndim - self.valid.ndim)
            return np.broadcast_to(~self.valid.reshape(self.valid.shape + extra), self.array.shape)
        if self.array.shape == self.valid.shape[:1]:
            return np.asarray(~self.valid.any(axis=-1))
        return np.zeros(self.array.shape, bool)

    def groups(self, counted: bool) -> Iterator[list[int]]:
        """Yield the rows of each group as indices.

        :param counted: True to leave out rows without a valid token.
        """
        labels = self.labels or []
        there = (
            np.asarray(self.valid.any(axis=-1)) if counted and self.valid is not None else np.ones(len(labels), bool)
        )
        for label in dict.fromkeys(labels):
            rows = [row for row, other in enumerate(labels) if other == label and there[row : row + 1].all()]
            if rows:
                yield rows


def _constant_group(values: _Values) -> bool:
    """Return True if some group has several rows and all have the same score, the sum of a row's valid values."""
    scores = np.where(values.masked, 0.0, values.array.astype(np.float64))
    scores = scores.reshape(len(scores), -1).sum(-1)
    return any(len(rows) > 1 and np.ptp(scores[rows]) == 0 for rows in values.groups(counted=True))


def _overflows(values: _Array) -> bool:
    """Return True if a value or its square overflows its dtype.

    Masking such a value by a multiplication by 0 gives NaN.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return not np.isfinite(values * values).all()


def _exp_overflows(values: _Array, dtype: str) -> bool:
    """Return True if the exponential of an element overflows: above 11.09 in float16, otherwise above 88.7.

    The limit for float64 is that of float32, because frameworks compute float64 inputs in single precision too.
    """
    return bool((values.astype(np.float64) > (11.089 if dtype == "float16" else 88.722)).any())


def _votes(values: _Values) -> bool:
    """Return True if a group has a rejected row, which has no valid token, and an accepted row."""
    there = (values.array != 0).any(-1)
    return any(0 < there[rows].sum() < len(rows) for rows in values.groups(counted=False))


def _gap(values: _Values) -> bool:
    rows = values.array != 0
    first, last = rows.argmax(-1), rows.shape[-1] - 1 - rows[..., ::-1].argmax(-1)
    return bool(((last - first + 1 > rows.sum(-1)) & rows.any(-1)).any())


#: A property of a tensor or of labels, in words -> a predicate.
WORDS: Mapping[str, Callable[[_Values], bool]] = {
    "non-zero where masked": lambda it: bool((it.array[it.masked] != 0).any()),
    "non-finite where masked": lambda it: _overflows(it.array[it.masked]),
    "exp overflows": lambda it: _exp_overflows(it.array, it.dtype),
    "exp overflows where masked": lambda it: _exp_overflows(it.array[it.masked], it.dtype),
    "non-finite": lambda it: not np.isfinite(it.array).all(),
    "equal in a group": _constant_group,
    # properties of a mask
    "a masked token": lambda it: bool((it.array == 0).any()),
    "a rejected row": lambda it: bool((it.array == 0).all(-1).any()),
    "a rejected row in an accepted group": _votes,
    "a lone token": lambda it: bool((it.array != 0).sum() == 1),
    "no token": lambda it: not (it.array != 0).any(),
    "a gap": _gap,
    "several tokens": lambda it: bool(((it.array != 0).sum(-1) > 1).any()),
    # properties of labels
    "a group of one": lambda it: any(len(rows) == 1 for rows in it.groups(counted=True)),
    "one group": lambda it: len(set(map(str, it.labels or ()))) == 1,
    "unequal groups": lambda it: len({len(rows) for rows in it.groups(counted=False)}) > 1,
    "groups apart": lambda it: any(rows[-1] - rows[0] >= len(rows) for rows in it.groups(counted=False)),
}

#: A property of a list, in words -> a predicate.
LIST_WORDS: Mapping[str, Callable[[list[Any]], bool]] = {
    "unequal lengths": lambda parts: len({len(part) for part in parts if isinstance(part, list)}) > 1,
    "a missing value": lambda parts: any(None in part if isinstance(part, list) else part is None for part in parts),
}

_LONGER = "longer than "

_OF_LABELS = ("a group of one", "one group", "unequal groups", "groups apart")


@dataclass(frozen=True)
class Explained:
    """The violations in a scenario that a known bug explains.

    :ivar whole: True if the bug explains every violation. Otherwise it explains only violations of the keys in
        ``keys``.
    """

    whole: bool
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Trigger:
    """The condition under which a scenario triggers a recipe's bug.

    :ivar alternatives: the alternatives; empty if the recipe has no ``when:``. Only the recipe's own scenario is then
        known to trigger the bug.
    :ivar mask: name of the mask in the recipe's contract; ``group`` is the name of the labels.
    """

    alternatives: tuple[Alternative, ...] = ()
    mask: str = ""
    group: str = ""

    def explain(self, contract: Contract, variants: Iterable[Inputs]) -> Explained:
        """Return which violations in a scenario the bug can explain."""
        keys: set[str] = set()
        for alternative in self.alternatives:
            conditions = [(name, condition) for name, condition in alternative.items() if name != ONLY]
            if any(all(self._meets(contract, inputs, *each) for each in conditions) for inputs in variants):
                if ONLY not in alternative:
                    return Explained(True)
                keys.update(alternative[ONLY])
        return Explained(False, frozenset(keys))

    def _meets(self, contract: Contract, inputs: Inputs, name: str, condition: Any) -> bool:
        dtype = ""
        if name == ANY:
            tensors = [key for key, value in inputs.items() if isinstance(value, Tensor) and value.dtype in FLOATS]
            return any(self._meets(contract, inputs, key, condition) for key in tensors if key != contract.mask)
        if MINUS in name:
            one, other = (inputs.get(each) for each in name.split(MINUS))
            if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
                return False
            with np.errstate(invalid="ignore"):
                apart = one.array().astype(np.float64) - other.array().astype(np.float64)
            inputs = {**inputs, name: from_array(apart, "float64")}
            dtype = one.dtype if one.dtype == other.dtype else "float32"
        elif name not in inputs:
            name = {self.mask: contract.mask, self.group: contract.group}.get(name, name)
        value = inputs.get(name)
        mask, labels = inputs.get(contract.mask), inputs.get(contract.group)
        if isinstance(value, Tensor) and isinstance(condition, str):
            valid = mask.array() != 0 if isinstance(mask, Tensor) else None
            values = _Values(value.array(), valid, labels if isinstance(labels, list) else None, dtype or value.dtype)
            if condition in STORAGE:
                return value.dtype == condition
            if condition in WORDS:
                return bool(value.array().size) and WORDS[condition](values)
            return any(holds(condition, in_text(item)) for item in np.ravel(value.array()).tolist())
        item = contract.input(name)
        if isinstance(value, list) and item is not None and item.kind == "labels":
            valid = mask.array() != 0 if isinstance(mask, Tensor) else None
            return condition in _OF_LABELS and WORDS[condition](_Values(np.arange(len(value)), valid, value))
        if isinstance(value, list) and condition in LIST_WORDS:
            return LIST_WORDS[condition](value)
        if isinstance(value, list) and str(condition).startswith(_LONGER):
            limit = inputs.get(condition.removeprefix(_LONGER))
            return isinstance(limit, int) and len(value) > limit
        if item is not None and item.kind == "tensor" and condition not in ("set", "unset"):
            return False  # an omitted tensor has no elements
        return name in inputs and not isinstance(value, Tensor) and holds(condition, in_text(value))

    def __str__(self) -> str:
        sentences = [
            " and ".join(
                f"{name}: {condition}" if isinstance(condition, str) else condition_in_words(name, condition)
                for name, condition in alternative.items()
            )
            or ALWAYS
            for alternative in self.alternatives
        ]
        return ", or ".join(sentences)


def alternatives(written: Any) -> tuple[Alternative, ...]:
    """Convert a ``when:`` condition, which matches the schema, to its alternatives."""
    if written is None:
        return ()
    if written == ALWAYS:
        return ({},)
    return tuple(written) if isinstance(written, list) else (written,)


def also_broken_laws(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the laws that ``also_breaks`` names, with or without a condition."""
    entries = document.get("also_breaks") or ()
    return tuple(str(item.get("law") if isinstance(item, Mapping) else item) for item in entries)


def unfit(item: Input | None, condition: Any) -> str:
    """Return why no value of an input can meet a condition, or an empty string if some value can.

    :param item: the input; None stands for :data:`ANY`.
    """
    if item is None:
        item = Input(ANY, "tensor", "")
    if item.kind == "labels":
        return "" if condition in _OF_LABELS else f"a condition on labels is one of: {', '.join(_OF_LABELS)}"
    if item.kind != "tensor":
        return f"{item.name} is an option, not a tensor" if condition in WORDS else ""
    words = [word for word in WORDS if word not in _OF_LABELS]
    fits = isinstance(condition, str) and (condition in words or condition in STORAGE or _BOUND.fullmatch(condition))
    return "" if fits else f'a condition on a tensor is one of: {", ".join(words)}; a dtype; a bound such as "> 1"'
