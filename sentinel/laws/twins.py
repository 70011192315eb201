"""Define the law ``twins_agree``: two implementations of one computation give the same result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sentinel.contracts.contract import BASELINE, Choose, Contract, DoesNotApply, Inputs
from sentinel.laws.agreement import same
from sentinel.laws.law import Case, Violation, law
from sentinel.laws.layout import equal, equal_numbers, first_two, like
from sentinel.values.literals import FLOATS, Tensor


def _vary(contract: Contract, inputs: Inputs, choose: Choose) -> dict[str, Inputs]:
    """Make two variants: one that calls the second implementation, and one with float32 inputs converted to float64."""
    variants: dict[str, Inputs] = {BASELINE: inputs, "twin": inputs}
    floats = [
        name
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.dtype in FLOATS and name != contract.mask
    ]
    if all(inputs[name].dtype in ("float32", "float64") for name in floats):
        wide = {name: like(inputs[name], inputs[name].array(), "float64") for name in floats}
        if not all(equal(inputs[name], value) for name, value in wide.items()):
            variants["wide"] = {**inputs, **wide}
    return variants


@law("two implementations of the same computation agree", vary=_vary, twin="twin")
def twins_agree(case: Case) -> Iterator[Violation]:
    """Check that two implementations of the same computation, f and g, return the same values.

    The first implementation must also return the same values for float32 and float64 inputs, up to the rounding of
    float32. Half precision is not compared, because its rounding can move a ratio across a threshold.

    Catches a packed mode and a padded mode that truncate at opposite ends (verl #6372), log-probs that are recomputed
    without the temperature of the loss (AReaL #581), and a loss that is computed in a lower precision than that of its
    inputs (ROLL's).
    """
    first, others = first_two(case)
    for other in others:
        one, two = case.inputs[first], case.inputs[other]
        if set(one) != set(two) or not all(
            equal(value, two[name]) or equal_numbers(value, two[name]) for name, value in one.items()
        ):
            raise DoesNotApply(f"the inputs of variant {other!r} have different values from those of {first!r}")
        if all(equal(value, two[name]) for name, value in one.items()):
            yield from same(case, first, other, prefix="the two implementations disagree: ")
            continue
        for item in same(case, first, other, prefix="in another precision, ", roles=("output", "gradient")):
            # A search repeats a violation with the symptom `value` in float64, and drops it as rounding if it vanishes.
            # This violation would always vanish, because the two variants differ only in precision.
            yield replace(item, symptom="precision") if item.symptom == "value" else item
