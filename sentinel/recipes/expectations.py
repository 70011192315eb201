"""Read a recipe's expected values with and without the bug, and check that no observation can match both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.recipes.addresses import AddressError, parse_address
from sentinel.recipes.inputs import LiteralError, make_tensor, numbers, read_tags
from sentinel.recipes.problems import Findings
from sentinel.recipes.recipe import Expected
from sentinel.values.closeness import mismatch
from sentinel.values.documents import Place
from sentinel.values.tolerance import Tolerance


def read_tolerance(findings: Findings, written: Any, place: Place) -> Tolerance:
    """Convert a mapping in a recipe to a tolerance, and add an error to ``findings`` for each invalid entry."""
    if not isinstance(written, Mapping):
        return Tolerance()
    for name in ("relative", "absolute"):
        if name in written and not math.isfinite(written[name]):
            findings.error((*place, name), f"{name} must be a finite number, found {written[name]}")
    exact = written.get("exact", False)
    if exact and ("relative" in written or "absolute" in written):
        findings.error(
            (*place, "exact"), "exact: true excludes a tolerance; drop exact, or relative and absolute", key=True
        )
    return Tolerance(written.get("relative"), written.get("absolute"), exact)


def read_expectations(
    findings: Findings, contract: Contract, variants: Collection[str], written: Mapping[str, Any], place: Place
) -> dict[str, Expected]:
    """Convert a recipe's expected values: full address -> expected value."""
    expected: dict[str, Expected] = {}
    keys = None if contract.open_keys else contract.keys
    observed = set(contract.keys)
    aliases = {alias: name for alias, name in contract.aliases.items() if contract.open_keys or name in observed}
    for text, value in written.items():
        here = (*place, text)
        try:
            address = str(parse_address(text, variants, keys, aliases))
        except AddressError as error:
            findings.error(here, str(error), key=True)
            continue
        if address in expected:
            findings.error(here, f"{text!r} means {address!r}, which already has an expected value above", key=True)
            continue
        try:
            expected[address] = _expected(findings, value, here)
        except LiteralError as error:
            findings.error((*here, *error.place), f"{text}: {error.message}")
    return expected


def _expected(findings: Findings, written: Any, place: Place) -> Expected:
    if not isinstance(written, Mapping):
        return Expected(_value(written))
    forms = [form for form in ("value", "tensor") if form in written]
    if len(forms) != 1:
        raise LiteralError(
            "write an expected value directly, or as {value: ...} or {tensor: ...}; "
            "both forms accept the optional keys dtype, tolerance and exact"
        )
    form = forms[0]
    tolerance = read_tolerance(findings, written.get("tolerance"), (*place, "tolerance"))
    if written.get("exact") is True:
        if tolerance != Tolerance():
            findings.error((*place, "exact"), "exact: true excludes a tolerance; drop one of them", key=True)
        tolerance = Tolerance(exact=True)
    try:
        if "dtype" in written:
            return Expected(make_tensor(written[form], written["dtype"]), tolerance)
        value = _value(written[form])
        if form == "tensor":
            numbers(value)
        return Expected(value, tolerance)
    except LiteralError as error:
        raise error if error.place[:1] == ("dtype",) else error.below(form) from None


def _value(written: Any) -> Any:
    if isinstance(written, Mapping):
        return {key: _value(item) for key, item in written.items()}
    if isinstance(written, list):
        return [_value(item) for item in written]
    return read_tags(written)


def indistinguishable(
    unpatched: Mapping[str, Expected], fixed: Mapping[str, Expected], tolerance: Tolerance
) -> str | None:
    """Return why the buggy and the fixed values cannot be distinguished, or None if they can.

    Two sets of values can be distinguished if the values of a common key differ by more than the tolerance, or if each
    set has a key that the other lacks. If one set has all keys of the other, with equal values, an observation that
    matches the larger set matches both.
    """
    common = [key for key in unpatched if key in fixed]
    pairs = [(unpatched[key], fixed[key]) for key in common]
    if not all(_matches(one.value, two, tolerance) or _matches(two.value, one, tolerance) for one, two in pairs):
        return None
    only_unpatched = [key for key in unpatched if key not in fixed]
    only_fixed = [key for key in fixed if key not in unpatched]
    if only_unpatched and only_fixed:
        return None
    reason = "expected_unpatched and expected_fixed cannot be distinguished: "
    equal = (
        f"{', '.join(common)} agree{'s' if len(common) == 1 else ''} within the tolerance"
        if common
        else "no key in common"
    )
    extra = only_unpatched or only_fixed
    if not extra:
        return f"{reason}{equal}; if the bug's effect is that small, add a dtype, a tolerance or exact: true"
    missing = "expected_fixed" if only_unpatched else "expected_unpatched"
    return f"{reason}{equal}, and {missing} does not have {', '.join(extra)}"


def _matches(observed: Any, expected: Expected, default: Tolerance) -> bool:
    own = expected.tolerance
    return not mismatch(observed, expected.value, own if own != Tolerance() else default)
