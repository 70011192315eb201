"""Compute what the page of a bug shows: the scenario's tensors, with masked values, and the results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.recipes import AddressError, parse_address
from sentinel.recipes.catalog import Catalog
from sentinel.reports.evidence import bare
from sentinel.tools.site.grids import (
    Cell,
    Grid,
    Mark,
    Marks,
    Rows,
    as_number,
    close,
    differing,
    fitting,
    grid,
    rows_of,
    written,
)
from sentinel.tools.site.material import Bug, Document, Evidence
from sentinel.values.literals import TAGGED

#: Laws about masked values. On the pages of bugs that break them, masked values may be marked as leaking.
_ABOUT_MASKS = (
    "masked_values_have_no_influence",
    "a_rejected_row_is_an_absent_row",
    "gradients_stay_where_they_belong",
    "padding_is_invisible",
)

Inputs = Mapping[str, Any]

#: (variant, input) -> marks of the input's values that are masked, but may change the result.
Leaks = Mapping[tuple[str, str], Marks]


@dataclass(frozen=True)
class Variant:
    """One variant of a bug's scenario, as its page shows it.

    The first variant has all inputs. Every further variant has only the inputs that differ from the first.

    :ivar grids: the inputs that are displayed as tables.
    :ivar settings: the names and values of the other inputs.
    """

    name: str
    grids: tuple[Grid, ...]
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Outcome:
    """One observed value, with and without the bug.

    :ivar before: the value observed with the bug; None if there is none.
    :ivar after: the value observed without the bug, or otherwise the expected right value; None if there is none.
    :ivar same: whether the value is right even with the bug.
    """

    key: str
    meaning: str
    before: Grid | None
    after: Grid | None
    same: bool


@dataclass(frozen=True)
class Story:
    """What the page of a bug shows.

    :ivar before: the evidence with the bug.
    :ivar after: the evidence without the bug. If it is None, the right values are only expected, not observed.
    :ivar scenario: the first variant.
    :ivar variants: the other variants.
    :ivar defaults: the names and values of inputs that the recipe omits.
    """

    before: Evidence | None
    after: Evidence | None
    scenario: Variant
    variants: tuple[Variant, ...]
    defaults: tuple[tuple[str, str], ...]
    outcomes: tuple[Outcome, ...]

    @property
    def wrong(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if not outcome.same)

    @property
    def unmoved(self) -> tuple[Outcome, ...]:
        """Return the values that are right even with the bug. If no evidence has the bug, return all values."""
        return tuple(outcome for outcome in self.outcomes if outcome.same and (outcome.before or outcome.after))

    @property
    def masks(self) -> bool:
        return any(cell.masked for cell in self._cells())

    @property
    def leaks(self) -> bool:
        return any(cell.mark == "leak" for cell in self._cells())

    def _cells(self) -> Iterator[Cell]:
        inputs = [drawn for variant in (self.scenario, *self.variants) for drawn in variant.grids]
        outputs = [side for outcome in self.outcomes for side in (outcome.before, outcome.after) if side is not None]
        return (cell for drawn in (*inputs, *outputs) for line in drawn.lines for cell in line.cells)


def sides(bug: Bug) -> tuple[Evidence | None, Evidence | None]:
    """Return the first evidence with the bug and the first without it, in the order of the pins."""
    before = next((evidence for evidence in bug.evidence if evidence.verdict == "reproduced"), None)
    return before, next((evidence for evidence in bug.evidence if evidence.verdict == "fixed"), None)


#: Words in the note of a pin whose revision is older than the bug, and therefore does not have it.
_OLDER = re.compile(r"\b(parent|before|base)\b")


def chips(bug: Bug, branch: str) -> list[tuple[str, Evidence]]:
    """Return (label, evidence) for all evidence of a bug. Evidence with a label comes first.

    The labels are ``latest`` (at main), ``buggy`` (with the bug) and ``fix`` (without the bug). Other evidence has an
    empty label.
    """
    base = sides(bug)[0]
    fix = next((s for s in bug.evidence if s.verdict == "fixed" and not _OLDER.search(bug.note(s.ref))), None)
    names: dict[Evidence, str] = {}
    for name, evidence in (("latest", bug.at(branch)), ("buggy", base), ("fix", fix)):
        if evidence is not None:
            names.setdefault(evidence, name)
    return [(name, evidence) for evidence, name in names.items()] + [
        ("", evidence) for evidence in bug.evidence if evidence not in names
    ]


def story(bug: Bug, catalog: Catalog) -> Story | None:
    """Return what a bug's page shows, or None if the bug has no evidence."""
    before, after = sides(bug)
    evidence = before or after or next(iter(bug.evidence), None)
    if evidence is None:
        return None
    contract = catalog.contracts.get(bug.contract)
    document = evidence.document
    inputs = inputs_of(bug, document, contract)
    defaulted = set(document["scenario"]["defaulted"])
    leaking = _leaking(inputs, contract, any(law in _ABOUT_MASKS for law in bug.laws))
    name, *others = inputs
    first = inputs[name]
    scenario = {key: value for key, value in first.items() if key not in defaulted}
    changes = {other: {k: v for k, v in inputs[other].items() if k not in first or first[k] != v} for other in others}
    return Story(
        before,
        after,
        _variant(name, scenario, inputs, contract, leaking),
        tuple(_variant(other, own, inputs, contract, leaking) for other, own in changes.items()),
        tuple((key, written(value)) for key, value in first.items() if key in defaulted),
        tuple(_outcomes(document, before, after, inputs, contract)),
    )


def inputs_of(bug: Bug, document: Document, contract: Contract | None) -> dict[str, Inputs]:
    """Return the variants of a scenario in the recipe's order, with their inputs in the contract's order."""
    recorded: Mapping[str, Inputs] = document["scenario"]["variants"]
    variants = list(bug.recipe.variants if bug.recipe else bug.document.get("variants") or ())
    order = [item.name for item in contract.inputs] if contract else []
    by_variant: dict[str, Inputs] = {}
    for variant in sorted(recorded, key=lambda name: _place(name, variants)):
        inputs = recorded[variant]
        by_variant[variant] = {key: inputs[key] for key in sorted(inputs, key=lambda name: _place(name, order))}
    return by_variant


def _place(name: str, order: Sequence[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


# -- the scenario ------------------------------------------------------------------------------------------------------


def _variant(
    name: str, own: Inputs, inputs: Mapping[str, Inputs], contract: Contract | None, leaking: Leaks
) -> Variant:
    grids, settings = [], []
    mask = mask_of(contract, inputs[name])
    for key, value in own.items():
        rows = rows_of(value)
        declared = contract.input(key) if contract else None
        if rows is None or not any(rows):
            settings.append((key, written(value)))
            continue
        own_mask = None if contract is not None and key == contract.mask else mask
        upright = bool(declared and (declared.kind == "labels" or declared.shape[:1] == ("batch",)))
        varies: Marks = dict.fromkeys(_varying(key, name, inputs), "varies")
        marks = {**varies, **leaking.get((name, key), {})}
        note = declared.meaning if declared else ""
        grids.append(grid(key, value, mask=own_mask, upright=upright, marks=marks, note=note))
    return Variant(name, tuple(grids), tuple(settings))


def mask_of(contract: Contract | None, inputs: Inputs) -> Rows | None:
    """Return the rows of a scenario's mask, or None if its contract has no mask."""
    return rows_of(inputs.get(contract.mask)) if contract is not None and contract.mask else None


def _varying(key: str, variant: str, inputs: Mapping[str, Inputs]) -> frozenset[tuple[int, int]]:
    """Return the positions (row, column) at which an input of a variant differs from the first variant's."""
    first = next(iter(inputs))
    if variant == first or key not in inputs[first]:
        return frozenset()
    here, there = rows_of(bare(inputs[variant][key])), rows_of(bare(inputs[first][key]))
    if here is None or there is None or list(map(len, here)) != list(map(len, there)):
        return frozenset()  # positions of different shapes do not correspond
    return differing(inputs[variant][key], inputs[first][key])


def _leaking(inputs: Mapping[str, Inputs], contract: Contract | None, about_masks: bool) -> Leaks:
    """Mark the masked values that may influence the result, which they must not.

    These are the nonzero masked values that are not finite or that differ between variants. If there are none, all
    nonzero masked values are marked.
    """
    if contract is None or not about_masks:
        return {}
    leaks: dict[tuple[str, str, int, int], Any] = {}
    for variant, own in inputs.items():
        mask = mask_of(contract, own)
        for key, value in own.items():
            rows = rows_of(value)
            if rows is None or key == contract.mask or (behind := fitting(mask, rows)) is None:
                continue
            for i, row in enumerate(rows):
                for j, item in enumerate(row):
                    if not behind[i][j] and as_number(item) not in (None, 0.0):
                        leaks[variant, key, i, j] = item
    telling = [place for place, item in leaks.items() if _is_suspicious(place, item, inputs)]
    marks: dict[tuple[str, str], dict[tuple[int, int], Mark]] = {}
    for variant, key, i, j in telling or leaks:
        marks.setdefault((variant, key), {})[i, j] = "leak"
    return marks


def _is_suspicious(place: tuple[str, str, int, int], item: Any, inputs: Mapping[str, Inputs]) -> bool:
    """Return True if a value is not finite, or differs between variants."""
    _, key, i, j = place
    if isinstance(item, str) and item in TAGGED:
        return True
    for other in inputs.values():
        rows = rows_of(other.get(key))
        if rows is not None and i < len(rows) and j < len(rows[i]) and not close(rows[i][j], item):
            return True
    return False


# -- results -----------------------------------------------------------------------------------------------------------


def _outcomes(
    document: Document,
    before: Evidence | None,
    after: Evidence | None,
    inputs: Mapping[str, Inputs],
    contract: Contract | None,
) -> Iterable[Outcome]:
    there = {item["key"]: item for item in after.document["comparison"]} if after else {}
    for item in document["comparison"]:
        key = item["key"]
        variant, name = _split_address(key, inputs)
        declared = next((o for o in contract.observes if o.key == name), None) if contract else None
        observed = item["observed"]
        right = there[key]["observed"] if key in there else item["fixed"]
        has_right = key in there or right is not None
        # A value may be right although a law is broken. It is then not marked as wrong.
        same = before is None or item["matches_fixed"] is True or (has_right and bare(observed) == bare(right))
        mask = mask_of(contract, inputs[variant]) if variant in inputs else None
        drawn: dict[str, Any] = {"mask": mask, "upright": bool(declared and declared.shape == ("batch",))}
        off = differing(observed, right) if has_right and not same else frozenset()
        back = differing(right, observed) if has_right and not same else frozenset()
        yield Outcome(
            key,
            declared.meaning if declared else "",
            grid(key, observed, **drawn, marks=dict.fromkeys(off, "wrong"), other=right) if before else None,
            grid(key, right, **drawn, marks=dict.fromkeys(back, "mended"), other=observed) if has_right else None,
            same,
        )


def _split_address(key: str, inputs: Mapping[str, Inputs]) -> tuple[str, str]:
    """Split the address of an expected value into its first variant, whose mask applies, and the key."""
    try:
        address = parse_address(key, list(inputs))
        return address.variants[0], address.key
    except AddressError:
        return "", key
