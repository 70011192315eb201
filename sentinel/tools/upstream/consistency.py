"""Check that the fields of an evidence document follow from its recipe, its code and its observation.

A comparison with a baseline covers only observations. People also read the other fields of evidence, such as the
scenario, the comparison and the texts, in which an author could write false statements. Therefore these fields are
compared with those of a new decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.reports.baseline import compare
from sentinel.reports.escaping import message
from sentinel.values.tolerance import Tolerance

Document = Mapping[str, Any]

#: Fields that follow from the recipe.
_OF_RECIPE = ("title", "contract", "law", "expectation")
#: Fields that follow from the observation. Their numbers are compared within the recipe's tolerance.
_OF_OBSERVATION = (
    "status",
    "not_triggered",
    "observed_bad_behavior",
    "expected_safe_behavior",
    "observed_fixed_behavior",
    "attack_effect",
    "oracle",
)


def contradictions(recorded: Document, now: Document) -> list[str]:
    """Return a message for each difference between recorded evidence and new evidence with the same verdict."""
    return [*_recipe(recorded, now), *_code(recorded, now), *_numbers(recorded, now)]


def _recipe(recorded: Document, now: Document) -> Iterator[str]:
    # A published recipe does not name its pull request, but `now` may name it, from the catalog's recipe.
    for name in (*_OF_RECIPE, *(() if recorded["recipe"]["published"] else ("upstream",))):
        if recorded[name] != now[name]:
            yield f"{name}: the evidence differs from its recipe"
    if recorded["recipe"]["document"] != now["recipe"]["document"]:
        yield "recipe: the copy inside the evidence is not the recipe that its digest names"
    before, after = recorded["scenario"], now["scenario"]
    if set(before["variants"]) != set(after["variants"]):
        yield "scenario: the variants in the evidence are not those of its recipe"
        return
    for variant, inputs in before["variants"].items():
        for name in sorted({*inputs, *after["variants"][variant]}):
            # If the contract got this input after the evidence was written, the recorded call used the default.
            added = name not in inputs and name in after["defaulted"]
            if not added and inputs.get(name) != after["variants"][variant].get(name):
                where = f"{variant}.{name}" if variant else name
                yield f"scenario: {message(where)} differs from the recipe"


def _code(recorded: Document, now: Document) -> Iterator[str]:
    """Compare the fields about the code: trees, files, blobs and lines must be equal at the same commit."""
    before, after = recorded["checkout"] or {}, now["checkout"] or {}
    for name in ("commit", "version"):
        # A field may be missing on one side: the evidence of a clean working tree is compared with its commit.
        if before.get(name) and after.get(name) and before[name] != after[name]:
            yield f"{name}: {message(str(before[name]))} recorded, {message(str(after[name]))} now"
    same_commit = before.get("commit") == after.get("commit")
    # A changed adapter may name other package roots, and the tree hash covers only the roots.
    same_roots = recorded["adapter"] == now["adapter"] or before.get("roots") == after.get("roots")
    if same_commit and same_roots and before.get("tree") != after.get("tree"):
        trees = [str(each.get("tree"))[:12] for each in (before, after)]
        yield f"tree: {trees[0]} recorded, {trees[1]} now, although the commit is the same"
    one, other = recorded["boundary"], now["boundary"]
    if one["written"] != other["written"]:
        yield f"boundary: {message(one['written'])} recorded, {message(other['written'])} now"
    if one["file"] and other["file"] and same_commit:
        for name in ("file", "blob") if one["file"] != other["file"] else ("blob", "line"):
            if one[name] != other[name]:
                yield f"{one['file']}: {name} {one[name]} recorded, {other[name]} now, although the commit is the same"


def _numbers(recorded: Document, now: Document) -> Iterator[str]:
    chosen = recorded["expectation"]["tolerance"]
    tolerance = Tolerance(chosen["relative"], chosen["absolute"], chosen["exact"])
    for name in _OF_OBSERVATION:
        if (name in recorded) != (name in now):
            leads = "has this key, but its observation does not lead to it"
            lacks = "lacks this key, but its observation leads to it"
            yield f"{name}: the evidence {leads if name in recorded else lacks}"
        elif name in recorded:
            yield from _differences(recorded[name], now[name], name, tolerance)
    yield from _differences(_judged(recorded), _judged(now), "comparison", tolerance)


def _judged(document: Document) -> dict[str, Any]:
    """Return key -> comparison, without explanations, because releases of Sentinel may word these differently."""
    return {
        item["key"]: {name: value for name, value in item.items() if name not in ("key", "detail")}
        for item in document["comparison"]
    }


def _differences(recorded: Any, now: Any, name: str, tolerance: Tolerance) -> Iterator[str]:
    yield from (str(item) for item in compare(recorded, now, name, tolerance) if not item.within)
