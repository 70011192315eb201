"""Compare the observations of two revisions on one scenario, number by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs, Observed
from sentinel.deciding.law_session import Trial
from sentinel.laws.agreement import (
    COMPARED,
    Numbers,
    Scale,
    against_oracle,
    counted,
    distances,
    gap_between,
    numbers,
    scale_of,
)
from sentinel.laws.law import Case, Law, Violation
from sentinel.laws.layout import Flags
from sentinel.laws.masked_values import masked_values_have_no_influence
from sentinel.values.literals import FLOATS, Tensor
from sentinel.worker import protocol
from sentinel.worker.answers import CUT, PARTS, Reply

BEFORE, AFTER = SIDES = ("before", "after")
OTHER = {BEFORE: AFTER, AFTER: BEFORE}

#: The symptom of a difference in values that the contract does not observe.
BESIDE = "beside"


def numbers_stay(case: Case) -> list[Violation]:
    """Check that numbers change by no more than rounding error, and that finite numbers stay finite."""
    one, other = case.observation[BEFORE], case.observation[AFTER]
    one, other = (flatten(case.contract, each) for each in (one, other))
    scale = scale_of(case, [case.inputs[BEFORE]], [one, other])
    declared = {item.key: item for item in case.contract.observes} if case.contract is not None else {}
    violations: list[Violation] = []
    for key in dict.fromkeys([*one, *other]):
        item = declared.get(key, Observed(key, ""))
        symptom, detail = _compare(case, item, one.get(key), other.get(key), scale)
        if symptom:
            violations.append(Violation(key, other.get(key), one.get(key), detail, symptom))
    return violations


def flatten(contract: Contract | None, observation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace nested values by their innermost values, with one key for each, if the contract allows nested values."""
    if contract is None or not contract.open_keys:
        return observation
    return {path: value for key in observation for path, value in _leaves(observation[key], key)}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Mapping, list)) and value:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{path}.{key}")
    else:
        yield path, value


def _compare(case: Case, item: Observed, one: Any, other: Any, scale: Scale) -> tuple[str, str]:
    """Return the symptom of the difference between two values, and a description. Both are empty if the values
    agree."""
    left, right = numbers(one), numbers(other)
    if left is None or right is None:
        return ("answer", "") if protocol.encode(one) != protocol.encode(other) else ("", "")
    if left[0].shape != right[0].shape:
        return "shape", f"shape {list(left[0].shape)} before, {list(right[0].shape)} after"
    gap = np.where(_neither_finite(left[0], right[0]), 0.0, gap_between(left[0], right[0]))
    coarser = max(left[1], right[1], key=lambda dtype: FLOATS.index(dtype) if dtype in FLOATS else -1)
    wrong = gap > scale.bound(coarser)
    counts = _counted_like(case, item, gap.shape) if wrong.any() else None
    masked = False
    if counts is not None:
        masked = not (wrong & counts).any()
        wrong = wrong if masked else wrong & counts
    if not wrong.any():
        return ("dtype", f"{left[1]} before, {right[1]} after") if left[1] != right[1] else ("", "")
    place = tuple(int(n) for n in np.unravel_index(int(np.argmax(np.where(wrong, gap, -1.0))), gap.shape))
    where = f"element {list(place)}: " if place else ""
    detail = f"{where}{left[0][place].item()!r} before, {right[0][place].item()!r} after"
    finite = np.isfinite(left[0]) == np.isfinite(right[0])
    return ("masked" if masked else "value" if finite[wrong].all() else "non-finite"), detail


def _counted_like(case: Case, item: Observed, shape: tuple[int, ...]) -> Flags | None:
    """Return the scenario's mask, broadcast to a shape: True for elements that count; None if this is impossible."""
    counts = counted(case.contract, case.inputs[BEFORE], item)
    with suppress(ValueError):
        return None if counts is None else np.broadcast_to(counts, shape)
    return None


def _neither_finite(one: Numbers, other: Numbers) -> Flags:
    return ~np.isfinite(one) & ~np.isfinite(other)


def split_by_finiteness(case: Case) -> Iterator[tuple[str, bool, bool]]:
    """Yield each key with two booleans: whether some of its numbers could be compared, and whether some could not.

    A number can be compared if it is finite at one or both revisions. Two numbers that are not finite never count as
    equal.
    """
    one, other = (case.observation[side] for side in SIDES)
    observes = case.contract.observes if case.contract is not None else ()
    for item in (item for item in observes if item.role in COMPARED):
        left, right = numbers(one.get(item.key)), numbers(other.get(item.key))
        if left is None or right is None or left[0].shape != right[0].shape:
            yield item.key, any(side.get(item.key) is not None for side in (one, other)), False
            continue
        unknown = _neither_finite(left[0], right[0])
        counts = _counted_like(case, item, unknown.shape)
        counts = np.ones_like(unknown) if counts is None else counts
        yield item.key, bool((~unknown & counts).any()), bool((unknown & counts).any())


def beside_stays(case: Case, called: Mapping[str, Reply]) -> list[Violation]:
    """Return differences in values that the contract does not observe, first those in the function's result.

    Such values are everything that the boundary returns or mutates, its warnings, the arguments that it passes to
    stand-ins, and the results of the changed functions for equal arguments. If the worker truncated the list of values,
    a value that only one side has is ignored.
    """
    one, other = (called[side].beside for side in SIDES)
    whole = max(len(one), len(other)) < PARTS
    labels = {key.partition(": ")[0] for key in one} & {key.partition(": ")[0] for key in other}
    cut = tuple(f"{key.removesuffix(CUT)}." for key in {*one, *other} if key.endswith(CUT))
    plain = replace(case, contract=None)
    scale = scale_of(plain, [case.inputs[BEFORE]], [one, other])
    violations: list[Violation] = []
    for key in dict.fromkeys([*one, *other]):
        label = key.partition(": ")[0]
        alone = key not in one or key not in other
        if alone and (not whole or key.startswith(cut) or ("(" in label and label not in labels)):
            continue
        if alone and "given.self._" in key and " shares memory " not in key:
            continue  # skip a private attribute that only one revision has
        symptom, detail = _compare(plain, Observed(key, ""), one.get(key), other.get(key), scale)
        if not symptom and _requires_grad(one.get(key)) != _requires_grad(other.get(key)):
            symptom, detail = BESIDE, "requires a gradient only " + (BEFORE if _requires_grad(one.get(key)) else AFTER)
        if symptom and not key.endswith(CUT):
            violations.append(Violation(key, other.get(key), one.get(key), detail, BESIDE))
    return sorted(violations, key=lambda item: _remoteness(item.key))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _remoteness(key: str) -> int:
    """Return a sort key for a part of a call: returned values first, then changed arguments, then other values."""
    label, _, path = key.rpartition(": ")
    of_function = "(" in label
    if path.startswith("returned"):
        return 1 if of_function else 0
    if path.startswith("warnings"):
        return 3
    if label and not of_function and not label.isdecimal():
        return 5
    return 4 if path.startswith("given.self") else 2


NUMBERS_STAY = Law("numbers_stay", "the numbers are equal at both revisions", numbers_stay)


def numbers_stay_for(laws: Sequence[Law]) -> list[Law]:
    """Return the law :data:`NUMBERS_STAY`, and up to two copies of it that compare variants of scenarios.

    One copy compares the variants that change values under the mask, the other the variants of all other laws. A copy
    is left out if no law makes such variants.
    """
    varying = [law for law in laws if law.vary is not None and not law.twin]
    junk = [law for law in varying if law is masked_values_have_no_influence]
    others = [law for law in varying if law not in junk]
    return [NUMBERS_STAY, *(_vary_with(each) for each in (junk, others) if each)]


def _vary_with(varying: Sequence[Law]) -> Law:
    def vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
        first = choose.integer(0, len(varying) - 1)
        for law in (*varying[first:], *varying[:first]):
            with suppress(DoesNotApply):
                variants = law.vary(contract, inputs, choose) if law.vary is not None else {}
                if len(variants) > 1:
                    return {BASELINE: inputs, "varied": list(variants.values())[-1]}
        raise DoesNotApply("no law has a variant of this scenario to compare")

    return replace(NUMBERS_STAY, name=f"numbers_stay_as_{varying[0].name}_varies_them", vary=vary)


def gaps(case: Case) -> Iterator[float]:
    """Yield the largest difference between finite numbers of each key that has the same shape at both revisions."""
    for key, value in case.observation[BEFORE].items():
        other = case.observation[AFTER].get(key)
        if isinstance(value, (Tensor, float)) and isinstance(other, (Tensor, float)):
            left, right = numbers(value), numbers(other)
            if left is not None and right is not None and left[0].shape == right[0].shape and left[0].size:
                finite = np.isfinite(left[0]) & np.isfinite(right[0])
                yield float(np.where(finite, gap_between(left[0], right[0]), 0.0).max())


@dataclass(frozen=True)
class Increased(Violation):
    """A violation at both revisions whose distance from the right value is larger at this revision."""


def violations_ahead(trial: Trial, other: Trial) -> tuple[Violation, ...]:
    """Return the violations that the other revision does not have on the same variants, or has to a smaller degree.

    An element counts only if it is further from the right value than at the other revision, by more than rounding
    error. Elements that are not finite at the other revision are ignored.
    """
    if other.case is None or trial.case is None:
        return ()
    scale = scale_of(trial.case, trial.case.inputs.values(), trial.case.observation.values())
    symptoms = {item.symptom for item in other.violations}
    worse: list[Violation] = []
    for item in trial.violations:
        there = [each for each in other.violations if part(each.key) == part(item.key)]
        mate = next((each for each in there if each.key == item.key), None)
        gap, gap_there = _distances(item), None if mate is None else _distances(mate)
        if gap is not None and gap_there is not None and gap.shape == gap_there.shape:
            bound = scale.bound(getattr(item.observed, "dtype", "float32"))
            further = np.isfinite(gap_there) & (gap > gap_there + bound)
            if further.any():
                place = int(np.argmax(np.where(further, gap, -1.0)))
                off = f"off by {gap.flat[place]:.3g} at this revision, by {gap_there.flat[place]:.3g} at the other"
                worse.append(Increased(**{**vars(item), "detail": f"{item.detail}; {off}"}))
        elif isinstance(item.observed, list) and mate is not None:  # a list of the names that the call changed
            new = [name for name in item.observed if name not in mate.observed]
            worse += [replace(item, observed=new)] if new else []
        elif not any(each.symptom == item.symptom for each in there):
            worse += [item] if item.symptom not in symptoms or _finite(other.case, part(item.key)) else []
    return tuple(worse)


def _distances(item: Violation) -> Numbers | None:
    """Return each element's distance from the right value, or from another output that it must equal.

    Return None if the distance is unknown.
    """
    if item.apart is not None:
        return np.asarray(item.apart)
    actual, right = numbers(item.observed), numbers(item.demanded)
    if actual is None or right is None or actual[0].shape != right[0].shape:
        return None
    return np.asarray(gap_between(actual[0], right[0]))


def nearer_to_oracle(case: Case, other: Case, key: str) -> bool:
    """Return True if at least one element of an output is nearer to the oracle's value than at the other revision, and
    none is further from it."""
    sides = [
        {variant: answer for variant, item, answer in against_oracle(each, COMPARED) if item.key == key}
        for each in (case, other)
    ]
    nearer = False
    if sides[0].keys() != case.inputs.keys():
        return False
    for variant, one in sides[0].items():
        two = sides[1].get(variant)
        here = distances(one.demanded, one.observed, one.counts)
        there = None if two is None else distances(two.demanded, two.observed, two.counts)
        bound = one.scale.bound(one.dtype)
        if here is None or there is None or here.shape != there.shape or (here > there + bound).any():
            return False
        nearer = nearer or bool((there > here + bound).any())
    return nearer


def _finite(case: Case, key: str) -> bool:
    arrays = (numbers(each.get(key)) for each in case.observation.values())
    return all(each is None or bool(np.isfinite(each[0]).all()) for each in arrays)


def part(key: str) -> str:
    """Return the observed key in a violation's key, without the name of the variant."""
    return key.rpartition(".")[2]
