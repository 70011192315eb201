"""Define the law ``every_knob_counts``: a configuration option has an effect if its definition has one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import aligned, counted, scale_of
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import address, equal, first_two, observed_keys
from sentinel.values.literals import HALVES, Tensor


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make a variant in which one configuration option has a different value."""
    if any(isinstance(value, Tensor) and value.dtype in HALVES for value in inputs.values()):
        raise DoesNotApply("rounding to 16 bits may hide the effect of an option")
    knobs = [item for item in contract.inputs if item.knob and item.name in inputs]
    options = [(item.name, value) for item in knobs for value in item.choices if not equal(value, inputs[item.name])]
    if not options:
        raise DoesNotApply("the boundary has no option with a second value")
    name, value = choose.one_of(options)
    return {BASELINE: inputs, "turned": {**inputs, name: value}}


@law(
    "a configuration value that the code accepts has an effect if its definition has one",
    needs_oracle=True,
    vary=_vary,
)
def every_knob_counts(case: Case) -> Iterator[Violation]:
    """Check that changing a configuration option changes the result, if it changes the oracle's result.

    An option has no effect if all outputs and gradients stay equal bit by bit. If the effect is wrong, the law
    ``the_oracle_agrees`` reports it instead. Catches sampling parameters that are ignored (ROLL's), a length check that
    is never executed (SkyRL #81), and a divisor that an aggregation mode ignores (verl #5417).
    """
    first, others = first_two(case)
    if not case.oracle:
        raise DoesNotApply("the contract has no oracle")
    applies = False
    for other in others:
        name, knobs = _turned(case.inputs[first], case.inputs[other])
        scale = scale_of(case, [case.inputs[first]], [case.observation[first], case.observation[other]])
        moves: dict[str, str] = {}  # key -> the variant whose value is further from the oracle's
        still = True
        for item in observed_keys(case, first):
            pair = aligned(case.observation, first, other, item)
            reference = aligned(case.oracle, first, other, item)
            if item.role not in ("output", "gradient") or pair is None or reference is None:
                continue
            counts = counted(case.contract, case.inputs[first], item)
            left, right = (np.where(True if counts is None else counts, values, 0.0) for values in pair[:2])
            if not (np.isfinite(left).all() and np.isfinite(right).all()):
                raise DoesNotApply("a value is not finite, so it cannot show whether the option has an effect")
            still = still and np.array_equal(left, right)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(reference[1] - reference[0])
            counting = np.isfinite(gap) & (True if counts is None else counts)
            moved = np.where((gap > scale.bound(pair[2])) & counting, gap, 0.0)
            if moved.any():
                place = tuple(int(n) for n in np.unravel_index(np.argmax(moved), moved.shape))
                off = [abs(left[place] - numbers[place]) for numbers in reference[:2]]
                moves[item.key] = other if off[1] > off[0] else first
        applies = applies or bool(moves)
        if moves and still:
            key, variant = next(iter(moves.items()))
            values = (case.observation[variant][key], case.oracle[variant][key])
            detail = f"{knobs} has no effect; by definition it changes {', '.join(moves)}"
            yield Violation(address(variant, key), *values, detail, f"no effect of {name}")
    if not applies:
        raise DoesNotApply("by definition, the option has no effect in this scenario")


def _turned(one: Inputs, other: Inputs) -> tuple[str, str]:
    """Return two texts about the options that differ between two variants: their names, and their names with both
    values."""
    names = [name for name, value in one.items() if not equal(value, other.get(name))]
    if not names or set(one) != set(other) or any(isinstance(one[name], (Tensor, list)) for name in names):
        raise DoesNotApply("the variants must differ in configuration options, and in nothing else")
    return ", ".join(names), ", ".join(f"{name} ({one[name]!r} -> {other[name]!r})" for name in names)
