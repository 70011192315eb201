"""Create a recipe from the scenario of a finding: a search found that it breaks a law."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.laws.law import Law

_LONGEST_ID = 100


def found_id(target: str, boundary: str, law: str, symptom: str = "value") -> str:
    """Return a bug id for a finding, made from the names of the function and the law."""
    parts = [target, boundary.rpartition(".")[2].strip("_"), law]
    text = "-".join([*parts, *([symptom] if symptom != "value" else [])]).upper()
    text = re.sub(r"[^A-Z0-9.]+", "-", text)  # a symptom may contain spaces
    return text[:_LONGEST_ID].rstrip("-")


def pin_of(commit: str | None, version: str | None) -> str:
    """Return the immutable ref of a checkout, which is a commit or a release; empty if it has neither."""
    return f"git:{commit}" if commit else f"pypi:{version}" if version else ""


def found_recipe(
    law: Law,
    target: str,
    contract: str,
    boundary: str,
    scenario: Mapping[str, Any],
    variants: Mapping[str, Any],
    details: Sequence[tuple[str, str]] = (),
    pin: str = "",
    name: str = "",
) -> dict[str, Any]:
    """Return a recipe document for a scenario that breaks a law.

    :param variants: name of a further variant -> the inputs that differ from ``scenario``.
    :param details: (key, detail) of each violation: the observed key, and how its value is wrong.
    :param pin: the ref at which the scenario was found; empty if no immutable ref names this code.
    :param name: the bug id.
    """
    title = f"{boundary.rpartition('.')[2]}: {details[0][1] if details else law.statement}"
    return {
        "recipe_version": 1,
        "bug_id": name or found_id(target, boundary, law.name),
        "title": " ".join(title.split())[:160],
        "target": target,
        "contract": contract,
        "boundary": boundary,
        "invariant": law.name,
        "story": f"The law: {law.statement}.\n" + "".join(f"{key}: {detail}.\n" for key, detail in details),
        "upstream": {"status": "unreported"},
        "scenario": scenario,
        **({"variants": variants} if variants else {}),
        **({"pins": [{"ref": pin, "expect": "reproduced"}], "watch": ["git:main"]} if pin and details else {}),
    }
