"""A finding as a finished recipe: the shrunk scenario, what was observed, what the law demands, the pin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.checkout import Checkout
from sentinel.closeness import agree
from sentinel.contracts.contract import Input
from sentinel.invariants.invariant import Inputs, Invariant, Violation
from sentinel.reports.store import write_atomically
from sentinel.search.bench import Subject
from sentinel.search.hunt import Finding
from sentinel.values import Tensor, plain

_LONGEST_ID = 100


def bug_id(target: str, boundary: str, law: str, symptom: str = "value") -> str:
    """``VERL-COMPUTE-RLOO-OUTCOME-ADVANTAGE-REJECTED-ROW-...``: the boundary's own name and the law."""
    parts = [target, boundary.rpartition(".")[2].strip("_"), law]
    text = "-".join([*parts, *([symptom] if symptom != "value" else [])]).upper().replace("_", "-")
    return text[:_LONGEST_ID].rstrip("-")


def recipe_document(
    subject: Subject,
    law: Invariant,
    variants: Mapping[str, Inputs],
    violations: tuple[Violation, ...],
    target: str,
    checkout: Checkout,
    name: str,
    observation: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The recipe as plain data, in the recipe language.

    Expected values are written where the law names them for all of an observation, and they differ by more than what
    recipes tolerate; else the law itself decides.

    :param observation: variant -> key -> value, as the boundary answered.
    """
    last = subject.boundary.rpartition(".")[2]
    first = next(iter(variants.values()))
    others = {key: value for key, value in variants.items() if key}
    title = f"{last}: {violations[0].detail}" if violations else f"{last}: {law.statement}"
    story = f"The law says: {law.statement}.\n" + "".join(f"{item.key}: {item.detail}.\n" for item in violations)
    document: dict[str, Any] = {
        "recipe_version": 1,
        "bug_id": name,
        "title": " ".join(title.split())[:160],
        "target": target,
        "contract": subject.contract.name,
        "boundary": subject.boundary,
        "invariant": law.name,
        "story": story,
        "upstream": {"status": "unreported"},
        "scenario": _scenario(subject, first),
    }
    if others:
        document["variants"] = {key: _scenario(subject, value, first) for key, value in others.items()}
    # Without their dtypes: the oracle's is float64, and whoever fixes the boundary need not change its own.
    values = [(item.key, _plainly(item.observed), _plainly(item.demanded)) for item in violations]
    answers = {
        (f"{variant}.{key}" if variant else key): value
        for variant, keys in (observation or {}).items()
        for key, value in keys.items()
    }
    whole = all(answers.get(item.key) == item.observed for item in violations)
    if values and whole and not law.twin and all(_tells_apart(item) for item in violations):
        document["expected_unpatched"] = {key: observed for key, observed, _ in values}
        document["expected_fixed"] = {key: demanded for key, _, demanded in values}
    pin = f"git:{checkout.commit}" if checkout.commit else f"pypi:{checkout.version}" if checkout.version else ""
    if pin and violations and not checkout.dirty:
        document["pins"] = [{"ref": pin, "expect": "reproduced"}]
        document["watch"] = ["git:main"]
    return document


def _plainly(value: Any) -> Any:
    return value.nested() if isinstance(value, Tensor) else plain(value)


def _tells_apart(violation: Violation) -> bool:
    demanded = violation.demanded
    if isinstance(demanded, Tensor):
        demanded = demanded.nested() if 0 not in demanded.shape else None
    if not isinstance(demanded, (int, float, list)):
        return False
    return not agree(violation.observed, demanded).agrees


def _scenario(subject: Subject, inputs: Inputs, base: Inputs | None = None) -> dict[str, Any]:
    """The inputs that differ from the base, or from what the contract takes for granted where there is none."""
    scenario = {}
    for item in subject.contract.inputs:
        value = inputs[item.name]
        if base is not None and value == base[item.name]:
            continue
        # What a boundary fixes is narrowed into its defaults, and no reader of the recipe knows it from there.
        granted = not callable(item.default) and value == item.default and item.name not in subject.binding.fixed
        if base is None and granted:
            continue
        scenario[item.name] = written(value, item)
    return scenario


def written(value: Any, item: Input | None = None) -> Any:
    """A literal in the recipe language."""
    if isinstance(value, Mapping):
        return {name: written(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [written(inner) for inner in value]
    if not isinstance(value, Tensor):
        return plain(value) if not isinstance(value, float) else value
    contiguous = getattr(value, "contiguous", True)
    if item is not None and value.dtype == item.dtype and value.shape and 0 not in value.shape and contiguous:
        return value.nested()
    form: dict[str, Any] = {"tensor": value.nested(), "dtype": value.dtype}
    if 0 in value.shape:
        form = {"full": 0, "shape": list(value.shape), "dtype": value.dtype}
    if not contiguous:
        form["contiguous"] = False
    return form


def save(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write ``<folder>/<BUG-ID>.yaml``; a file that is there already is another's, and keeps its place.

    :returns: the file.
    :raises SentinelError: where the folder cannot be written.
    """
    import yaml

    place = folder / f"{document['bug_id']}.yaml"
    number = 2
    while place.exists():
        place = folder / f"{document['bug_id']}-{number}.yaml"
        number += 1
    shown = {**document, "bug_id": place.stem}
    text = yaml.dump(shown, Dumper=_dumper(), sort_keys=False, allow_unicode=False, default_flow_style=None, width=118)
    write_atomically(place, "# Found and shrunk by sentinel discover.\n" + text, "name another folder with --save")
    return place


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Block text for what has several lines, and no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper


def finding_document(finding: Finding, target: str, checkout: Checkout) -> dict[str, Any]:
    """The recipe of a finding."""
    return recipe_document(
        finding.subject,
        finding.law,
        finding.trial.variants,
        finding.violations,
        target,
        checkout,
        bug_id(target, finding.subject.boundary, finding.law.name, finding.symptom),
        finding.trial.case.observation if finding.trial.case is not None else None,
    )
