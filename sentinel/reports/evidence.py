"""Convert a decision to evidence: a JSON document with everything that another person needs to check the verdict.

The same recipe, adapter, commit and environment lead to the same bytes: keys are sorted, floats round-trip, and no
facts about the run (time, duration, host, user, folders) are included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import sentinel
from sentinel.deciding.outcomes import Comparison, Decision, Observation
from sentinel.errors import SentinelError
from sentinel.laws.layout import address
from sentinel.recipes import Expected
from sentinel.recipes.json_schema import JsonSchema
from sentinel.reports.escaping import message, passage
from sentinel.targets.refs import Ref
from sentinel.values.literals import TAGGED, plain, tagged, typed

SCHEMA_VERSION = 1

Document = dict[str, Any]
Places = tuple[tuple[str, str], ...]


def evidence(decision: Decision) -> Document:
    """Convert a decision to its evidence document."""
    recipe, verdict, measured = decision.recipe, decision.verdict, decision.measurement
    places = places_of(decision)
    document = {
        "schema_version": SCHEMA_VERSION,
        "sentinel_version": sentinel.__version__,
        "bug_id": message(recipe.bug_id),
        "title": message(recipe.title),
        "target": recipe.target,
        "contract": recipe.contract,
        "verdict": verdict.name,
        "kind": verdict.kind,
        "reason": reason(decision),
        "expect": decision.expect,
        "law": decision.law,
        "recipe": {
            "file": message(recipe.path.name),
            "digest": recipe.digest,
            "published": recipe.published,
            "document": typed(recipe.document),
        },
        "upstream": typed(recipe.upstream),
        "adapter": decision.adapter or None,
        "ref": ref_text(decision.ref),
        "checkout": _checkout(decision, places),
        "boundary": _boundary(decision, places),
        "environment": _environment(decision, places),
        "scenario": {"variants": typed(recipe.variants), "defaulted": sorted(recipe.defaulted)},
        "observation": _observation(measured.observation if measured else None),
        "oracle": _observation(measured.oracle if measured else None),
        "expectation": {
            "unpatched": _expected(recipe.expected_unpatched),
            "fixed": _expected(recipe.expected_fixed),
            "tolerance": asdict(recipe.tolerance),
        },
        "checks": _checks(decision),
        "comparison": [_comparison(item, places) for item in decision.comparisons],
        "failure": _failure(decision, places),
    }
    return with_behaviour({key: _json(value, key) for key, value in document.items()})


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as canonical JSON text: ASCII, sorted keys, one line per row of numbers.

    :raises ValueError: if a float is not finite; :func:`evidence` writes such floats as tagged strings.
    """
    # Escape ``##[``, because a CI runner executes ``##[command]`` in any output. In JSON it occurs only inside strings.
    return to_json(document).replace("##[", "#\\u0023[") + "\n"


_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, sort_keys=True).encode


def to_json(value: Any, step: str = "  ", indent: str = "", flat: bool = False) -> str:
    """Return JSON with one line per row of numbers, whereas ``json.dumps(indent=...)`` writes one line per number.

    :param flat: also write a mapping of scalars on one line.
    """
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    nested = any(isinstance(item, (Mapping, list, tuple)) for item in items)
    if not items or not (nested or (isinstance(value, Mapping) and not flat)):
        return _encode(value)
    deeper = indent + step
    if isinstance(value, Mapping):
        rows = [f"{_encode(key)}: {to_json(value[key], step, deeper, flat)}" for key in sorted(value)]
    else:
        rows = [to_json(item, step, deeper, flat) for item in value]
    inside = f",\n{deeper}".join(rows)
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    return f"{opening}\n{deeper}{inside}\n{indent}{closing}"


_SCHEMA = JsonSchema("evidence")


def schema() -> Document:
    """Return the published JSON Schema of evidence."""
    return _SCHEMA.schema


def validate(document: Any) -> None:
    """Check a document against the published schema.

    :raises SentinelError: if it does not match.
    """
    for error in _SCHEMA.errors(document):
        place = ".".join(map(str, ("$", *error.instance_path)))
        raise SentinelError(f"not valid evidence: at {place}: {message(error.message)[:300]}")


def reason(decision: Decision) -> str:
    """Return, safe to print, the reason of a decision's verdict or, if it has none, of its failure."""
    text = decision.verdict.reason or (decision.failure.reason if decision.failure else "")
    return message(text, places_of(decision))


def ref_text(ref: Ref) -> str:
    """Return a ref as text. For a working tree, omit the folder, because the tree hash identifies the tree."""
    return ref.kind if ref.kind in ("path", "installed") else str(ref)


def places_of(decision: Decision) -> Places:
    """Return the local folders that a decision's texts may contain, each with its replacement in reports."""
    places = [(str(decision.recipe.path.absolute().parent), "<recipes>")]
    if decision.checkout is not None:
        top = decision.checkout.path
        outside = [root for root in decision.checkout.import_roots if top not in (root, *root.parents)]
        places += [(str(place), "<checkout>") for place in (top, *outside)]
    if decision.ref.kind == "path":
        places += [(str(Path(decision.ref.name).absolute()), "<path>"), (decision.ref.name, "<path>")]
    return tuple(places)


def _checkout(decision: Decision, places: Places) -> Document | None:
    checkout = decision.checkout
    if checkout is None:
        return None
    return {
        **{name: getattr(checkout, name) for name in ("commit", "version", "digest", "tree", "dirty")},
        **({"patched": checkout.patched} if checkout.patched else {}),
        "roots": list(checkout.roots),
        "left_out": [
            {"path": message(item.path), "size": item.size, "reason": message(item.reason, places)}
            for item in sorted(checkout.left_out, key=lambda item: item.path)
        ],
    }


def _boundary(decision: Decision, places: Places) -> Document:
    provenance = decision.provenance
    return {
        "written": decision.recipe.boundary,
        "found": provenance and provenance.boundary,
        **{name: getattr(provenance, name, None) for name in ("module", "line", "blob")},
        "end_line": (provenance and provenance.end_line) or None,
        **{name: provenance and message(getattr(provenance, name), places) for name in ("file", "signature")},
    }


def _environment(decision: Decision, places: Places) -> Document:
    there, measured = decision.environment, decision.measurement
    return {
        **{name: getattr(there, name, None) for name in ("python", "torch", "numpy", "device", "sandbox")},
        "platform": there and message(there.platform, places),
        "flags": {key: message(value, places) for key, value in there.flags.items()} if there else {},
        "packages": dict(there.packages) if there else {},
        "ghosts": sorted(measured.ghosts) if measured else [],
        "stand_ins": [
            {"name": item.name, "reason": message(item.reason, places)}
            for item in sorted(measured.stand_ins if measured else (), key=lambda item: (item.name, item.reason))
        ],
    }


def _observation(observation: Observation | None) -> Document | None:
    return None if observation is None else {variant: typed(values) for variant, values in observation.items()}


def _expected(expected: Mapping[str, Expected]) -> Document:
    return {key: {"value": typed(item.value), "tolerance": asdict(item.tolerance)} for key, item in expected.items()}


def _comparison(item: Comparison, places: Places) -> Document:
    return {
        **{name: getattr(item, name) for name in ("key", "matches_unpatched", "matches_fixed")},
        **{name: typed(getattr(item, name)) for name in ("observed", "unpatched", "fixed")},
        "detail": message(item.detail, places),
    }


def json_comparison(item: Comparison) -> Document:
    """Return a comparison as JSON data without local paths, as evidence stores it."""
    return dict(_json(_comparison(item, ()), item.key))


def _checks(decision: Decision) -> Document | None:
    """Return what the checks of repeated calls found. A check that was not made is null."""
    measured = decision.measurement
    if measured is None:
        return None
    return {"repeated": measured.repeated or None, "reordered": "same values" if measured.reordered else None}


def _failure(decision: Decision, places: Places) -> Document | None:
    failure = decision.failure
    if failure is None:
        return None
    return {
        "kind": failure.kind,
        "reason": message(failure.reason, places),
        "traceback": passage(failure.traceback, places),
    }


def _json(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, dict):
        return {str(key): _json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        return _json(value.item(), where)
    if isinstance(value, float):
        return tagged(value)
    if isinstance(value, Mapping):
        return _json(dict(value), where)
    raise SentinelError(f"evidence cannot contain a {type(value).__name__} (at {message(where)}); return plain values")


# -- the shape of the published reports --------------------------------------------------------------------------------

#: Observation keys of an exception; a bug that raises is not silent.
_LOUD = ("raised", "exception", "error")


def with_behaviour(document: Document) -> Document:
    """Add the fields of published reports to a document: ``status``, and observed and expected behaviour if the verdict
    is reproduced or fixed.

    The fields ``observed_*`` contain only observed values; ``expected_safe_behavior`` comes from the recipe or the law.
    """
    status = document["verdict"]
    if status == "fixed":
        return {**document, "status": status, "not_triggered": True, "observed_fixed_behavior": _observed(document)}
    if status != "reproduced":
        return {**document, "status": status}
    bad, safe = _observed(document), _safe(document)
    differences = {key: _minus(bad[key], safe[key]) for key in bad if key in safe}
    return {
        **document,
        "status": status,
        "observed_bad_behavior": bad,
        "expected_safe_behavior": safe,
        "attack_effect": {
            "silent": not any(value for key, value in bad.items() if key.rsplit(".", 1)[-1] in _LOUD),
            "crashed": document["failure"] is not None,
            **{f"{key}_difference": plain(value) for key, value in differences.items() if value is not None},
        },
    }


def is_tensor(value: Any) -> bool:
    """Return True if a value in a document is the record of a tensor."""
    return isinstance(value, Mapping) and value.keys() >= {"dtype", "shape", "tensor"}


def bare(value: Any) -> Any:
    """Replace the tensor records in a value of a document by nested lists."""
    if is_tensor(value):
        return value["tensor"]
    if isinstance(value, Mapping):
        return {key: bare(item) for key, item in value.items()}
    return [bare(item) for item in value] if isinstance(value, list) else value


def _observed(document: Document) -> dict[str, Any]:
    """Return address -> observed value. If the verdict compared only some addresses, return only these."""
    compared = {item["key"]: bare(item["observed"]) for item in document["comparison"]}
    return compared or {key: bare(value) for key, value in flat(document["observation"]).items()}


def flat(observation: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return an observation as one mapping from address (``baseline.loss``) to value."""
    return {
        address(variant, key): value for variant, values in (observation or {}).items() for key, value in values.items()
    }


def _safe(document: Document) -> dict[str, Any]:
    safe = {key: bare(item["value"]) for key, item in document["expectation"]["fixed"].items()}
    comparisons = (i for i in document["comparison"] if i["matches_fixed"] is not None or i["fixed"] is not None)
    return safe or {item["key"]: bare(item["fixed"]) for item in comparisons}


def _minus(left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        rows = [_minus(one, other) for one, other in zip(left, right, strict=True)]
        return None if any(row is None for row in rows) else rows
    a, b = _number(left), _number(right)
    if a is None or b is None:
        return None
    try:
        return a - b
    except OverflowError:  # an integer that is too large for a float
        return math.nan


def _number(value: Any) -> float | int | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return float(value) if isinstance(value, str) and value in TAGGED else None
