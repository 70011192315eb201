"""Determine a verdict from observed and expected values. No other module compares numbers with a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sentinel.contracts.contract import Contract, DoesNotApply
from sentinel.deciding.outcomes import Comparison, Failure, Measurement, Observation, Verdict
from sentinel.laws.law import Case, Law
from sentinel.recipes import Expected, Recipe
from sentinel.recipes.addresses import parse_address
from sentinel.values.closeness import minus, mismatch
from sentinel.values.tolerance import Tolerance

#: Kinds of failure that this machine causes, because it does not have the revision or the required Python.
NOT_HERE = ("ref", "python")
#: Kinds of failure for which the verdict is ``unavailable`` instead of ``inconclusive``.
UNAVAILABLE = (*NOT_HERE, "not-in-this-version")


class MissingKeyError(Exception):
    """Raised if a recipe expects a key that was not observed although the contract declares it."""


def of_failure(failure: Failure) -> Verdict:
    """Return the verdict ``unavailable`` or ``inconclusive`` for a failure, with its reason."""
    name = "unavailable" if failure.kind in UNAVAILABLE or failure.absent else "inconclusive"
    return Verdict(name, failure.reason, failure.kind)  # type: ignore[arg-type]


def by_expectation(recipe: Recipe, observation: Observation) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Compare the observation with the recipe's unpatched and fixed values, and return the verdict.

    The verdict is ``reproduced``, ``fixed``, or ``changed`` if neither set matches.
    """
    addresses = list(dict.fromkeys([*recipe.expected_unpatched, *recipe.expected_fixed]))
    try:
        comparisons = tuple(_compare(recipe, address, observation) for address in addresses)
    except MissingKeyError as error:
        return Verdict("inconclusive", str(error), "drift"), ()
    unpatched = bool(recipe.expected_unpatched) and all(item.matches_unpatched is not False for item in comparisons)
    fixed = bool(recipe.expected_fixed) and all(item.matches_fixed is not False for item in comparisons)
    if unpatched and fixed:  # the two sets differ by less than the recipe's tolerance
        return Verdict("inconclusive", "the observation matches both value sets", "ambiguous"), comparisons
    if unpatched:
        return Verdict("reproduced", "the observation equals the unpatched values"), comparisons
    if fixed:
        return Verdict("fixed", "the observation equals the fixed values"), comparisons
    nearest = next(item for item in comparisons if item.matches_fixed is False or item.matches_unpatched is False)
    return Verdict(
        "changed", f"the observation matches neither value set; {nearest.key}: {nearest.detail}"
    ), comparisons


def _compare(recipe: Recipe, address: str, observation: Observation) -> Comparison:
    observed = read(address, observation)
    unpatched, fixed = recipe.expected_unpatched.get(address), recipe.expected_fixed.get(address)
    like_unpatched = _judge(observed, unpatched, recipe.tolerance)
    like_fixed = _judge(observed, fixed, recipe.tolerance)
    details = [judgement[1] for judgement in (like_fixed, like_unpatched) if judgement[1]]
    return Comparison(
        address,
        observed,
        unpatched.value if unpatched else None,
        fixed.value if fixed else None,
        like_unpatched[0],
        like_fixed[0],
        details[0] if details else "",
    )


def _judge(observed: Any, expected: Expected | None, recipe: Tolerance) -> tuple[bool | None, str]:
    if expected is None:
        return None, ""
    own = expected.tolerance
    detail = mismatch(observed, expected.value, own if own != Tolerance() else recipe)
    return not detail, detail


def read(address: str, observation: Observation) -> Any:
    """Return the observed value at a key such as ``baseline.advantages`` or ``difference(a, b).loss``.

    :raises MissingKeyError: if the key was not observed.
    """
    parsed = parse_address(address, tuple(observation))
    values = [_reach(observation[variant], parsed.key.split(".")) for variant in parsed.variants]
    if _MISSING in values:
        keys = observation[parsed.variants[values.index(_MISSING)]]
        raise MissingKeyError(
            f"drift: {address!r} was not observed; the function returned {', '.join(keys) or 'nothing'}"
        )
    if len(values) == 1:
        return values[0]
    try:
        return minus(values[0], values[1])
    except ValueError as error:
        raise MissingKeyError(f"{address}: {error}") from None


_MISSING = object()


def _reach(value: Any, parts: Sequence[str]) -> Any:
    """Return the value at a dotted key in a value; :data:`_MISSING` if there is none.

    Keys may contain dots: ``gradients.output.values`` is the key ``output.values`` of ``gradients``.
    """
    if not parts:
        return value
    if isinstance(value, list) and parts[0].isdigit() and int(parts[0]) < len(value):
        return _reach(value[int(parts[0])], parts[1:])
    if isinstance(value, Mapping):
        for end in range(len(parts), 0, -1):
            inner = value.get(".".join(parts[:end]), _MISSING)
            if inner is not _MISSING and (deeper := _reach(inner, parts[end:])) is not _MISSING:
                return deeper
    return _MISSING


def by_law(
    law: Law,
    recipe: Recipe,
    measurement: Measurement,
    contract: Contract | None = None,
    effects: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[Verdict, tuple[Comparison, ...]]:
    """Check a law on a recipe's variants, and return ``reproduced`` if the law is broken, or ``fixed`` if it holds."""
    try:
        violations = law.violations(
            Case(recipe.variants, measurement.observation, measurement.oracle, contract, effects)
        )
    except DoesNotApply as error:
        reason = f"the law {law.name} does not apply to this scenario: {error}"
        return Verdict("inconclusive", reason, "law"), ()
    if not violations:
        return Verdict("fixed", f"the law holds: {law.statement}"), ()
    comparisons = tuple(
        Comparison(item.key, item.observed, None, item.demanded, None, False, item.detail) for item in violations
    )
    return Verdict("reproduced", f"the law is broken ({law.statement}): {violations[0].detail}"), comparisons
