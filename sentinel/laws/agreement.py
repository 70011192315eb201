"""Compare two observations: choose the numbers to compare, and bound the difference that rounding explains.

The error bound. A quantity that is computed with n roundings is off by a factor 1 + theta, ``|theta| <= gamma_n = n u /
(1 - n u)``, ``u = eps / 2`` (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, lemma 3.1). A formula
of a contract reads its N numbers in at most :data:`PASSES` passes (log-ratio, mean, deviation, scale; or ratio,
surrogate, row, batch). Each pass is one rounding per number and a pairwise sum of ``ceil(log2 N)`` roundings (section
4.2), so ``n <= PASSES (1 + ceil(log2 N))``. A sum of N numbers whose magnitude is at most S is off by ``gamma_n N S``
(equation 4.4), and exponentiation multiplies the error by the size of its argument, the condition number of exp
(section 1.6). Two evaluations of one formula in different orders are therefore at most ``2 u n N K S`` apart, that is

    ``bound = PASSES (1 + ceil(log2 N)) N K S eps``

with N the size of the largest input, K the largest magnitude of an input in nats (at least 1, and at most the largest
exponent for which exp does not overflow), S the largest finite magnitude among the numbers that count in the inputs and
outputs, and eps of the coarsest float dtype among them. The bound does not cover an ill-conditioned step inside the
formula (a difference divided by a tiny deviation). A search repeats such a violation in float64. If the violation
vanishes there, rounding caused it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.contract import Contract, DoesNotApply, Inputs, Observed, ObservedRole
from sentinel.laws.law import Case, Violation
from sentinel.laws.layout import PER_TOKEN, Flags, Indices, address, axes, mask_name, observed_keys, over, valid_tokens
from sentinel.values.literals import FLOATS, Tensor, from_array

PASSES = 4

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LARGEST = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": float(np.float32(2.0**127 * (2 - 2.0**-7))),
}

LARGEST_EXPONENT = {dtype: math.log(largest) for dtype, largest in LARGEST.items()}

#: Domains of the inputs that are in nats. Formulas exponentiate them.
NATS = ("log_prob", "log_ratio")

#: The dtype assumed for a Python float, which is usually ``tensor.item()`` of a float32 tensor.
BARE = "float32"

Roles = tuple[ObservedRole, ...]

#: Roles of the observed keys that are compared between two calls.
COMPARED: Roles = ("output", "gradient", "metric", "decision")

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The quantities that determine how far rounding can move a result. N, K and S are those of the module's formula.

    :ivar count: N, the size of the largest input.
    :ivar condition: K, the largest magnitude of an input in nats.
    :ivar magnitude: S, the largest finite magnitude in inputs and outputs.
    :ivar inputs: the largest finite magnitude among the inputs alone.
    :ivar dtype: the coarsest float dtype of inputs and outputs; empty if there is no float.
    """

    count: int
    condition: float
    magnitude: float
    inputs: float
    dtype: str

    def bound(self, dtype: str) -> float:
        """Return the largest difference between two values of this dtype that rounding explains; 0 if it is not a float
        dtype."""
        if dtype not in FLOATS:
            return 0.0
        epsilon = max(EPSILON[dtype], EPSILON.get(self.dtype, 0.0))
        roundings = PASSES * (1 + math.ceil(math.log2(self.count)))
        condition = min(self.condition, LARGEST_EXPONENT[dtype])
        return roundings * self.count * condition * epsilon * self.magnitude

    def limit(self, dtype: str) -> float:
        """Return the limit above which an infinite result is accepted as overflow of a correct value.

        If the correct value is smaller, an infinite result is an error. The limit is 0 (every infinite result is
        accepted) if the square of a sum of N inputs overflows, as it easily does in float16.
        """
        if dtype not in FLOATS:
            return math.inf
        largest = min(LARGEST[dtype], LARGEST.get(self.dtype, math.inf))
        total = self.count * self.inputs
        return 0.0 if total * total > largest else largest / self.count


def scale_of(case: Case, inputs: Iterable[Inputs], observations: Iterable[Mapping[str, Any]]) -> Scale:
    """Return the scale of these inputs and of the observations that were computed from them."""
    contract = case.contract
    count, condition, magnitude, dtype = 1, 1.0, 0.0, case.coarsest
    ids: set[int] = set()
    for scenario in inputs:
        valid, mask = valid_tokens(contract, scenario), mask_name(contract, scenario)
        for name, value in scenario.items():
            if not isinstance(value, Tensor) or id(value) in ids:
                continue
            ids.add(id(value))
            if name == mask:  # a mask does not contribute to N and S, because counting tokens is exact
                dtype = _coarser(dtype, value.dtype)
                continue
            size = _largest(value, valid if axes(contract, scenario, name) in PER_TOKEN else None)
            declared = contract.input(name) if contract is not None else None
            count = max(count, math.prod(value.shape))
            # S is at least 1 for logits, because intermediate log-probs are not 0 even if all logits and results are.
            of_a_distribution = declared is not None and "vocabulary" in declared.shape
            magnitude = max(magnitude, size, float(of_a_distribution))
            dtype = _coarser(dtype, value.dtype)
            if declared is None or declared.domain in NATS:
                condition = max(condition, size)
    largest_input = magnitude
    roles = {item.key: item for item in contract.observes} if contract is not None else {}
    for observation in observations:
        for key, value in observation.items():
            if key in roles and roles[key].role not in COMPARED:
                continue
            if isinstance(value, Tensor):
                count = max(count, math.prod(value.shape)) if not roles else count
                magnitude = max(magnitude, _largest(value, None))
                dtype = _coarser(dtype, value.dtype)
            elif isinstance(value, float) and math.isfinite(value):
                magnitude = max(magnitude, abs(value))
    return Scale(count, condition, magnitude, largest_input, dtype)


def _coarser(one: str, other: str) -> str:
    return max((name for name in (one, other) if name in FLOATS), key=lambda name: EPSILON[name], default="")


def _largest(value: Tensor, valid: Flags | None) -> float:
    array = value.array()
    array = array[valid] if valid is not None and valid.shape == array.shape[:2] else array
    if value.dtype not in FLOATS:
        return float(np.abs(array.astype(np.float64)).max(initial=0.0))
    largest = float(np.abs(array).max(initial=0.0))
    return largest if math.isfinite(largest) else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def numbers(value: Any) -> tuple[Numbers, str] | None:
    """Return an observed value as a float64 array, and its original dtype; None if it is not numeric."""
    if isinstance(value, Tensor):
        return value.array().astype(np.float64), value.dtype
    if isinstance(value, (bool, int)):
        return np.array(value, np.float64), "int64"
    if isinstance(value, float):
        return np.array(value), BARE
    return None


@dataclass(frozen=True)
class Match:
    """The rows and tokens of one variant that correspond to rows and tokens of a second variant.

    :ivar rows: indices of the corresponding rows in the first variant and, in the same order, in the second; None if
        all rows correspond.
    :ivar columns: the same for tokens.
    :ivar scalars: True if scalars are compared too. They belong to the whole batch.
    """

    rows: tuple[Indices, Indices] | None = None
    columns: tuple[Indices, Indices] | None = None
    scalars: bool = True


WHOLE = Match()


@dataclass(frozen=True)
class Difference:
    """The largest violation of the rounding bound, and its place.

    :ivar place: the index of the element; empty for a scalar.
    :ivar symptom: ``value``, ``non-finite`` or ``shape``.
    :ivar pair: the right value and the observed value of the element.
    :ivar bound: the difference that rounding explains, in words.
    """

    place: tuple[int, ...]
    symptom: str
    pair: tuple[Any, Any]
    bound: str = ""

    @property
    def text(self) -> str:
        """Return the difference from the right value as text. Use it only if the right value is known."""
        return f"{self._where}expected {self.pair[0]!r}, observed {self.pair[1]!r}{self.bound}"

    def between(self, one: str, other: str) -> str:
        """Return the difference of two outputs as text that does not say which of the two is wrong."""
        return f"{self._where}{self.pair[0]!r} in {one}, {self.pair[1]!r} in {other}{self.bound}"

    @property
    def _where(self) -> str:
        return f"element {list(self.place)}: " if self.place else "the shape: " if self.symptom == "shape" else ""


def difference(
    observed: Numbers,
    demanded: Numbers,
    dtype: str,
    scale: Scale,
    counts: Flags | None = None,
    slack: Numbers | float = 0.0,
) -> Difference | None:
    """Return the largest violation of ``|observed - demanded| <= bound + slack``; None if all elements satisfy it.

    Two kinds of positions are not compared: those whose right value is not finite, and infinities that
    :meth:`Scale.limit` accepts.

    :param counts: the positions that count; None if all do.
    """
    if observed.shape != demanded.shape:
        return Difference((), "shape", (list(demanded.shape), list(observed.shape)))
    bound, limit = scale.bound(dtype), scale.limit(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        demands = np.isfinite(demanded) if counts is None else np.isfinite(demanded) & counts
        broken = demands & ~np.isfinite(observed) & (np.abs(demanded) <= limit)
        gap = np.where(demands & np.isfinite(observed), np.abs(observed - demanded), 0.0)
        wrong = gap > bound + slack
    if broken.any():
        place, symptom, limit_text = tuple(int(n) for n in np.argwhere(broken)[0]), "non-finite", ""
    elif wrong.any():
        place = tuple(int(n) for n in np.unravel_index(int(np.argmax(np.where(wrong, gap, 0.0))), gap.shape))
        symptom, limit_text = "value", f" (rounding explains {bound:.3g})"
    else:
        return None
    return Difference(place, symptom, (demanded[place].item(), observed[place].item()), limit_text)


def same(
    case: Case,
    first: str,
    second: str,
    match: Match = WHOLE,
    prefix: str = "",
    roles: Roles = COMPARED,
) -> list[Violation]:
    """Compare the observations of two variants at corresponding rows and tokens, and return the violations.

    If there is an oracle, its values determine how much each key should change between the variants. If they differ by
    more than rounding error, the key is skipped. Otherwise the observed values may differ by the rounding bound plus
    the difference of the oracle's values.

    :param prefix: the text with which the detail of every violation begins.
    :raises DoesNotApply: if nothing in the observation can be compared.
    """
    contract, applies, violations = case.contract, False, []
    inputs = [case.inputs[first], case.inputs[second]]
    scale = scale_of(case, inputs, [case.observation[first], case.observation[second]])
    for item in observed_keys(case, first):
        if item.role not in roles or (not match.scalars and "batch" not in item.shape):
            continue
        pair = aligned(case.observation, first, second, item, match)
        if pair is None:
            continue
        left, right, dtype = pair
        counts = counted(contract, case.inputs[first], item, match)
        slack = _movement(case, first, second, item, match, counts, scale.bound(dtype))
        if slack is None:
            continue
        applies = applies or _demands(left, counts)
        worst = difference(right, left, dtype, scale, counts, slack)
        if worst is not None:
            text = prefix + worst.between(repr(first), repr(second))
            values = address(second, item.key), literal(right, dtype), None
            violations.append(Violation(*values, text, worst.symptom, distances(left, right, counts)))
    if not applies:
        raise DoesNotApply("nothing in the observation can be compared")
    return violations


def _demands(values: Numbers, counts: Flags | None) -> bool:
    """Return True if at least one value that counts is finite, or if no value counts. Otherwise, nothing can be
    compared."""
    counting = values if counts is None else values[np.broadcast_to(counts, values.shape)]
    return not counting.size or bool(np.isfinite(counting).any())


def literal(values: Numbers, dtype: str) -> Tensor | float:
    return from_array(values, dtype) if values.ndim else values.item()


def aligned(
    observation: Mapping[str, Mapping[str, Any]], first: str, second: str, item: Observed, match: Match = WHOLE
) -> tuple[Numbers, Numbers, str] | None:
    """Return a key's values in both variants at corresponding positions, and the coarser of the two dtypes. Return None
    if one of the variants has no numbers at these positions."""
    values = [numbers(observation[variant].get(item.key)) for variant in (first, second)]
    if values[0] is None or values[1] is None:
        return None
    (left, one), (right, other) = values[0], values[1]
    parts = [_part(left, item.shape, match, 0), _part(right, item.shape, match, 1)]
    if parts[0] is None or parts[1] is None:
        return None
    dtype = _coarser(one, other) or (one if one == other else "int64")
    return parts[0], parts[1], dtype


def _part(values: Numbers, shape: tuple[str, ...], match: Match, side: int) -> Numbers | None:
    if values.ndim != len(shape):
        return values.reshape(()) if not shape and values.size == 1 else None
    for axis, indices in (("batch", match.rows), ("tokens", match.columns)):
        if indices is not None and axis in shape:
            at, wanted = shape.index(axis), indices[side]
            if wanted.size and wanted.max() >= values.shape[at]:
                return None
            values = np.take(values, wanted, axis=at)
    return values


def counted(contract: Contract | None, inputs: Inputs, item: Observed, match: Match = WHOLE) -> Flags | None:
    """Return a mask of the positions in a key's value that are compared, such as the unmasked tokens. Return None if
    all are compared."""
    valid = valid_tokens(contract, inputs)
    if valid is None or item.shape[:1] != ("batch",):
        return None
    if match.rows is not None:
        valid = valid[match.rows[0]]
    if match.columns is not None:
        valid = valid[:, match.columns[0]]
    return over(valid if item.shape in PER_TOKEN else np.asarray(valid.any(axis=-1)), len(item.shape))


def _movement(
    case: Case, first: str, second: str, item: Observed, match: Match, counts: Flags | None, bound: float
) -> Numbers | float | None:
    """Return by how much the oracle's values differ between two variants; None if they differ by more than rounding
    error."""
    if not case.oracle or first not in case.oracle or second not in case.oracle:
        return 0.0
    pair = aligned(case.oracle, first, second, item, match)
    if pair is None or pair[0].shape != pair[1].shape:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        moved = np.abs(pair[1] - pair[0])
    one, other = np.isfinite(pair[0]), np.isfinite(pair[1])
    moved = np.where(one & other, moved, np.where(one == other, 0.0, math.inf))
    moved = moved if counts is None else np.where(counts, moved, 0.0)
    return None if (moved > bound).any() else moved


def each_number(
    case: Case, variant: str, roles: Roles = COMPARED
) -> Iterator[tuple[Observed, Numbers, str, Flags | None]]:
    """Yield the numeric observed keys whose role is in ``roles``. Each item is the key, its values, their dtype, and a
    mask of the positions to compare.
    """
    for item in observed_keys(case, variant):
        pair = numbers(case.observation[variant].get(item.key)) if item.role in roles else None
        values = None if pair is None else _part(pair[0], item.shape, WHOLE, 0)
        if pair is not None and values is not None:
            yield item, values, pair[1], counted(case.contract, case.inputs[variant], item)


def against_oracle(case: Case, roles: Roles) -> Iterator[tuple[str, Observed, Answer]]:
    """Yield each variant and observed key for which both the framework and the oracle returned numbers.

    :raises DoesNotApply: if there is no oracle.
    """
    if not any((case.oracle or {}).values()):
        raise DoesNotApply("the contract has no oracle")
    assert case.oracle is not None
    for variant, reference in case.oracle.items():
        scale = scale_of(case, [case.inputs[variant]], [case.observation[variant], reference])
        for item, values, dtype, counts in each_number(case, variant, roles):
            pair = numbers(reference.get(item.key))
            demanded = None if pair is None else _part(pair[0], item.shape, WHOLE, 0)
            if demanded is not None:
                yield variant, item, Answer(values, demanded, dtype, scale, counts)


@dataclass(frozen=True)
class Answer:
    """The values of one observed key, from the framework and from the oracle.

    :ivar observed: the framework's values.
    :ivar demanded: the oracle's values.
    :ivar dtype: the framework's dtype.
    :ivar counts: the positions that count; None if all do.
    """

    observed: Numbers
    demanded: Numbers
    dtype: str
    scale: Scale
    counts: Flags | None

    @property
    def difference(self) -> Difference | None:
        return difference(self.observed, self.demanded, self.dtype, self.scale, self.counts)


def disagreements(case: Case, roles: Roles) -> list[Violation]:
    """Return where the framework and the oracle differ by more than rounding error.

    :param roles: compare only the observed keys that have one of these roles.
    :raises DoesNotApply: if no such key has numbers from both the framework and the oracle.
    """
    violations, answers = [], list(against_oracle(case, roles))
    if not answers:
        raise DoesNotApply("no observed key has numbers from both the framework and the oracle")
    if not any(_demands(answer.demanded, answer.counts) for _, _, answer in answers):
        raise DoesNotApply("no value of the oracle is finite")
    for variant, item, answer in answers:
        worst = answer.difference
        if worst is not None:
            values = (literal(answer.observed, answer.dtype), literal(answer.demanded, "float64"))
            option = case.contract.input(item.key) if case.contract is not None else None
            # a separate symptom, so that each option is reported
            symptom = item.key if option is not None and option.knob else worst.symptom
            violations.append(Violation(address(variant, item.key), *values, worst.text, symptom))
    return violations


def distances(right: Numbers, observed: Numbers, counts: Flags | None) -> Numbers | None:
    """Return the distance of each element from its right value; None if the shapes differ.

    The distance is 0 at positions that do not count, and NaN where the right value is not finite.
    """
    if right.shape != observed.shape:
        return None
    gap = np.where(np.isfinite(right), gap_between(right, observed), np.nan)
    return gap if counts is None else np.where(counts, gap, 0.0)


def gap_between(one: Numbers, other: Numbers) -> Numbers:
    """Return the absolute difference per element: 0 if both are equal or NaN, infinity if they differ and one is not
    finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        both = np.isfinite(one) & np.isfinite(other)
        return np.where(same, 0.0, np.where(both, np.abs(other - one), np.inf))
