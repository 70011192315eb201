"""The part of evidence that has the shape of the published reports: ``status``, ``observed_bad_behavior`` and so on."""

from __future__ import annotations

import math
from typing import Any

from sentinel.deciding.outcomes import Decision
from sentinel.laws.layout import address
from sentinel.values.literals import TAGGED, plain

#: Observation keys that tell of an exception; a bug that raises one is not silent.
_LOUD = ("raised", "exception", "error")


def behaviour(decision: Decision) -> dict[str, Any]:
    """``status`` and, where the verdict is ``reproduced`` or ``fixed``, what a published report says beside it.

    Only what was observed stands under ``observed_*``; ``expected_safe_behavior`` is the recipe's (or the law's) word.
    """
    status = decision.verdict.name
    if status == "fixed":
        return {"status": status, "not_triggered": True, "observed_fixed_behavior": _observed(decision)}
    if status != "reproduced":
        return {"status": status}
    bad, safe = _observed(decision), _safe(decision)
    differences = {key: _minus(bad[key], safe[key]) for key in bad if key in safe}
    return {
        "status": status,
        "observed_bad_behavior": bad,
        "expected_safe_behavior": safe,
        "attack_effect": {
            "silent": not any(value for key, value in bad.items() if key.rsplit(".", 1)[-1] in _LOUD),
            "crashed": decision.failure is not None,
            **{f"{key}_difference": plain(value) for key, value in differences.items() if value is not None},
        },
    }


def _observed(decision: Decision) -> dict[str, Any]:
    """Address -> value, of what was compared; where nothing was, of all that was observed."""
    compared = {item.key: plain(item.observed) for item in decision.comparisons}
    observation = decision.measurement.observation if decision.measurement else {}
    return compared or {
        address(variant, key): plain(value) for variant, values in observation.items() for key, value in values.items()
    }


def _safe(decision: Decision) -> dict[str, Any]:
    safe = {key: plain(item.value) for key, item in decision.recipe.expected_fixed.items()}
    comparisons = (item for item in decision.comparisons if item.matches_fixed is not None or item.fixed is not None)
    return safe or {item.key: plain(item.fixed) for item in comparisons}


def _minus(left: Any, right: Any) -> Any:
    """``left - right`` element by element; None where that has no meaning."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        rows = [_minus(one, other) for one, other in zip(left, right, strict=True)]
        return None if any(row is None for row in rows) else rows
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    try:
        return a - b
    except OverflowError:  # an integer too large for a float beside a float
        return math.nan


def _number(value: Any) -> float | int | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return float(value) if isinstance(value, str) and value in TAGGED else None
