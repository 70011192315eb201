"""Write the failure report of a pytest item: verdict, place in the code, values, and the command to repeat it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from itertools import combinations, zip_longest
from typing import Any

from sentinel.deciding.outcomes import Comparison, Decision
from sentinel.reports.escaping import message, passage, visible
from sentinel.reports.evidence import Places, places_of, reason
from sentinel.reports.numbers import differing_elements, flat, format_number
from sentinel.reports.rows import MEANING
from sentinel.reports.summary import aligned
from sentinel.values.literals import Tensor, plain

_LONGEST_VALUE = 48
#: Maximum number of table rows for one value.
_MOST = 5
#: Number of characters that are printed before the first difference of two long values.
_LEAD = 12


def explain(decision: Decision, command: str = "") -> str:
    """Return the failure report of a decision as plain text without control characters."""
    places = places_of(decision)
    parts = [
        _headline(decision),
        _reason(decision),
        _where(decision, places),
        _scenario(decision),
        _table(decision),
        "\n".join(f"{message(c.key)}: {message(c.detail, places)}" for c in decision.comparisons if c.detail),
    ]
    if decision.failure is not None and decision.failure.traceback:
        parts.append("upstream's traceback:\n" + textwrap.indent(passage(decision.failure.traceback, places), "  "))
    if command:
        parts.append(f"repeat: {visible(command)}")
    return visible("\n\n".join(part for part in parts if part), lines=True)


def _headline(decision: Decision) -> str:
    recipe, verdict = decision.recipe, decision.verdict
    what = message(f"{recipe.target} {recipe.bug_id or decision.law}")
    wanted = f", expected {decision.expect}" if decision.expect not in (None, verdict.name) else ""
    title = f"\n{message(recipe.title)}" if recipe.title else ""
    return f"{what} at {message(decision.ref.short)}: {verdict.name} ({MEANING[verdict.name]}){wanted}{title}"


def _reason(decision: Decision) -> str:
    text = ": ".join(part for part in (decision.verdict.kind, reason(decision)) if part)
    law = f"law: {decision.law}" if decision.law else ""
    return "\n".join(part for part in (text and f"reason: {text}", law) if part)


def _where(decision: Decision, places: Places) -> str:
    code = decision.provenance
    if code is None:
        return f"boundary: {message(decision.recipe.boundary)}"
    line = f"boundary: {message(code.boundary)} ({message(code.file, places)}:{code.line} at {_revision(decision)})"
    return line + (f"\n          {message(code.signature, places)}" if code.signature else "")


def _revision(decision: Decision) -> str:
    checkout = decision.checkout
    if checkout is None:
        return message(decision.ref.short)
    if checkout.commit:
        return f"commit {checkout.commit[:12]}" + (" with uncommitted changes" if checkout.dirty else "")
    return message(f"release {checkout.version}" if checkout.version else f"tree {checkout.tree[:12]}")


def _scenario(decision: Decision) -> str:
    """Return the scenario as text if a search drew it. Return an empty string for a recipe, because its file has the
    scenario."""
    lines = scenario_lines(decision.recipe.document) if decision.law_alone else []
    return "\n".join(["scenario:", *(f"  {line}" for line in lines)]) if lines else ""


def scenario_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the scenario of a recipe as lines: one per input, then one per input that a variant changes."""
    variants = document.get("variants") or {}
    scenario = document.get("scenario") or document.get("constructed_scenario") or {}
    parts = [("", scenario), *((f"{message(name)}: ", variants[name]) for name in variants)]
    return [f"{label}{message(name)} = {_literal(value)}" for label, part in parts for name, value in part.items()]


def _literal(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) == {"tensor", "dtype"}:
        return f"{_literal(value['tensor'])} {message(value['dtype'])}"
    return message(json.dumps(plain(value), default=repr))


def _table(decision: Decision) -> str:
    if not decision.comparisons:
        return ""
    alone = decision.law_alone
    rows = [row for item in decision.comparisons for row in _rows(item, alone)]
    return aligned([("key", "observed", *(("demanded",) if alone else ("unpatched", "fixed", "matches"))), *rows])


def _rows(item: Comparison, alone: bool) -> list[list[str]]:
    """Return the table rows of a comparison: one row or, for long values, one row per differing element."""
    sides = [item.fixed] if alone else [item.unpatched, item.fixed]
    values = [plain(value) for value in (item.observed, *sides)]
    right = values[-1] if item.fixed is not None and not item.matches_fixed else values[1]
    long = any(len(_text(value)) > _LONGEST_VALUE for value in values)
    differences = differing_elements(message(item.key), values[0], right, *values[1:]) if long else []
    if not differences or differences[0][0] == item.key:
        demanded = distinct(item.observed, item.fixed) if item.fixed is not None else [show(item.observed), ""]
        return [[message(item.key), *(demanded if alone else [*_values(item), _matches(item)])]]
    last = [] if alone else [_matches(item)]
    rows = [
        [key, *(format_number(value, 9) for value in (observed, *others)), *[""] * len(last)]
        for key, observed, _, *others in differences[:_MOST]
    ]
    count = len(list(flat(values[0], "")))
    return [*rows, [f"{len(differences)} of {count} differ", *[""] * len(values), *last]]


def _values(item: Comparison) -> list[str]:
    sides = [
        ... if matches is None and value is None else value
        for matches, value in ((item.matches_unpatched, item.unpatched), (item.matches_fixed, item.fixed))
    ]
    return row_cells(*sides, item.observed)


def _matches(item: Comparison) -> str:
    names = [name for name, hit in (("unpatched", item.matches_unpatched), ("fixed", item.matches_fixed)) if hit]
    return " and ".join(names) or "neither"


def row_cells(unpatched: Any, fixed: Any, *observed: Any) -> list[str]:
    """Return table cells for the observed values, the value with the bug, and the value without the bug.

    The cell of an unknown value (``...``) is empty. If the values with and without the bug are equal, the cell for the
    value with the bug is ``as fixed``.
    """
    either = unpatched is not ... and fixed is not ... and plain(unpatched) == plain(fixed)
    sides = [... if either else unpatched, fixed]
    texts = distinct(*observed, *(value for value in sides if value is not ...))
    left = iter(texts[len(observed) :])
    cells = ["" if value is ... else next(left) for value in sides]
    return [*texts[: len(observed)], "as fixed" if either else cells[0], cells[1]]


def distinct(*values: Any) -> list[str]:
    """Format values as short, different strings. If two values would look the same, each string starts just before the
    first difference."""
    texts, cells = [_text(value) for value in values], [show(value) for value in values]
    for one, other in combinations(range(len(values)), 2):
        if cells[one] == cells[other] and texts[one] != texts[other]:
            pairs = zip_longest(texts[one], texts[other])
            start = next(place for place, (left, right) in enumerate(pairs) if left != right) - _LEAD
            cells = [f"...{text[start : start + _LONGEST_VALUE]}..." for text in texts]
    return cells if len(set(cells)) == len(set(texts)) else texts


def show(value: Any) -> str:
    """Format a value for a table cell: in full if it is short, otherwise as dtype, shape and first elements."""
    text = _text(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    kind = f"{value.dtype}{list(value.shape)} " if isinstance(value, Tensor) else ""
    return f"{kind}{text[: _LONGEST_VALUE - len(kind) - 3]}..."


def _text(value: Any) -> str:
    return message(json.dumps(plain(value), default=repr))
