"""Write a finding as a recipe: the shrunk scenario, a pin, and expected values or a law.

If the contract has an oracle, the recipe expects the oracle's values. Otherwise it only checks the law, which detects
that outputs disagree but not which of them is right. Every recipe is tried before it is written. Its verdict must be
``reproduced`` on the current code, and another one if the outputs are replaced by correct outputs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.contracts.contract import DoesNotApply, Input, Inputs
from sentinel.deciding import verdicts
from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Job, Runner
from sentinel.laws.agreement import counted, literal, numbers
from sentinel.laws.law import Case, Law
from sentinel.laws.layout import address
from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.found import found_id, found_recipe, pin_of
from sentinel.reports.store import write_atomically
from sentinel.search.boundary_search import Finding
from sentinel.targets.checkout import Checkout
from sentinel.values.closeness import mismatch
from sentinel.values.literals import Tensor, plain

Answers = Mapping[str, Mapping[str, Any]]


def recipe_document(finding: Finding, target: str, checkout: Checkout, name: str = "") -> dict[str, Any]:
    """Return a recipe with the scenario of a finding. It checks the broken law, and expects no values."""
    subject, law = finding.subject, finding.law
    first = next(iter(finding.trial.variants.values()))
    others = {key: value for key, value in finding.trial.variants.items() if key}
    return found_recipe(
        law,
        target,
        subject.contract.name,
        subject.boundary,
        _changed_inputs(subject, first),
        {key: _changed_inputs(subject, value, first) for key, value in others.items()},
        [(item.key, item.detail) for item in finding.violations],
        "" if checkout.dirty else pin_of(checkout.commit, checkout.version),
        name or found_id(target, subject.boundary, law.name, finding.symptom),
    )


def _changed_inputs(subject: Subject, inputs: Inputs, base: Inputs | None = None) -> dict[str, Any]:
    scenario = {}
    for item in subject.contract.inputs:
        value = inputs[item.name]
        if base is not None and value == base[item.name]:
            continue
        # The recipe must have the values that the binding fixes, because only the narrowed contract has them as
        # defaults.
        granted = not callable(item.default) and value == item.default and item.name not in subject.binding.fixed
        if base is None and granted:
            continue
        scenario[item.name] = as_written(value, item)
    return scenario


def as_written(value: Any, item: Input | None = None) -> Any:
    """Return a literal as recipes write it."""
    if isinstance(value, Mapping):
        return {name: as_written(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_written(inner) for inner in value]
    if not isinstance(value, Tensor):
        return plain(value) if not isinstance(value, float) else value
    if item is not None and value.dtype == item.dtype and value.shape and 0 not in value.shape and value.contiguous:
        return value.nested()
    form: dict[str, Any] = {"tensor": value.nested(), "dtype": value.dtype}
    if 0 in value.shape:
        form = {"full": 0, "shape": list(value.shape), "dtype": value.dtype}
    if not value.contiguous:
        form["contiguous"] = False
    return form


def save(folder: Path, document: Mapping[str, Any], command: str = "sentinel discover") -> Path:
    """Write a recipe to ``<folder>/<BUG-ID>.yaml``, and return its path. If the file exists, add a number to its name.

    :raises SentinelError: if the folder cannot be written.
    """
    import yaml

    place = folder / f"{document['bug_id']}.yaml"
    number = 2
    while os.path.lexists(place):  # also true for a broken symbolic link
        place = folder / f"{document['bug_id']}-{number}.yaml"
        number += 1
    final = {**document, "bug_id": place.stem}
    text = yaml.dump(final, Dumper=_dumper(), sort_keys=False, allow_unicode=False, default_flow_style=None, width=118)
    write_atomically(place, f"# Found and shrunk by {command}.\n{text}", "name another folder with --save")
    return place


def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """A YAML dumper that writes multi-line text in block style, and no anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper


class CannotDistinguish(Exception):
    """Raised if neither expected values nor a law distinguish the code with the bug from correct code."""


def decisive_document(finding: Finding, open_target: OpenTarget, runner: Runner, catalog: Catalog) -> dict[str, Any]:
    """Build a recipe for a finding, and check that it distinguishes the current, buggy code from correct code.

    Correct code is simulated: the outputs of the call are replaced by correct ones (:func:`_right_outputs`). The recipe
    expects the oracle's values if there is an oracle and its values distinguish buggy from correct code. Otherwise the
    recipe only checks the law.

    :raises CannotDistinguish: if neither kind of recipe distinguishes buggy from correct code.
    """
    document = recipe_document(finding, open_target.target, open_target.checkout)
    case = finding.trial.case
    assert case is not None  # a trial with violations has a case
    oracle = _oracle_values(finding, open_target)
    twins = list(_right_outputs(finding, oracle))
    failed = "no simulated correct output satisfies the law"
    for values in (_expected_values(finding, oracle, twins[0]), {}) if oracle else ({},):
        if values is None:
            continue
        recipe = _load({**document, **values}, catalog)
        keeps = [_keeps_law(finding.law, recipe, twin, oracle, catalog) for twin in twins]
        if values:
            verdicts_of_twins = [verdicts.by_expectation(recipe, twin)[0].name == "fixed" for twin in twins[:2]]
            mended = all(verdicts_of_twins) and all(keeps[:2])
        else:
            mended = any(keeps)
        if not mended:
            continue
        verdict = runner.decide(Job(recipe, open_target.ref)).verdict
        if verdict.name == "reproduced":
            return {**document, **values}
        failed = f"on the code with the bug, the verdict is {verdict.name} instead of reproduced: {verdict.reason}"
    raise CannotDistinguish(failed)


def _load(document: Mapping[str, Any], catalog: Catalog) -> Recipe:
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        return load_recipe(save(Path(folder), document), catalog)


def _oracle_values(finding: Finding, open_target: OpenTarget) -> Answers:
    if finding.subject.contract.oracle is None:
        return {}
    try:
        return open_target.law_session.consult(finding.subject, finding.trial.variants)
    except Undecidable:
        return {}


def _right_outputs(finding: Finding, oracle: Answers) -> Iterator[Answers]:
    """Yield outputs that correct code could return.

    With an oracle, yield two outputs: one with the oracle's values only at elements that the mask counts, because the
    others are undefined, and one with the oracle's values everywhere. Without an oracle, yield one output with all
    values 0, which few laws reject.
    """
    case, contract = finding.trial.case, finding.subject.contract
    assert case is not None

    def answers(everywhere: bool) -> Answers:
        mended: dict[str, dict[str, Any]] = {}
        for variant, observed in case.observation.items():
            mended[variant] = dict(observed)
            for item in contract.observes:
                number = numbers(observed.get(item.key))
                if number is None:
                    continue
                right = numbers(oracle[variant].get(item.key)) if oracle else (np.zeros_like(number[0]), "")
                if right is None:
                    continue
                counts = None if everywhere else counted(contract, case.inputs[variant], item)
                values = right[0]
                if counts is not None and values.shape == number[0].shape:
                    values = np.where(counts, values, number[0])
                mended[variant][item.key] = literal(values, number[1])
        return mended

    if oracle:
        yield answers(everywhere=False)
    yield answers(everywhere=True)


def _expected_values(finding: Finding, oracle: Answers, mended: Answers) -> dict[str, Any] | None:
    """Return a recipe's expected values: those observed with the bug, and the oracle's values without it.

    Return None if the oracle agrees with all outputs. Also return None if it disagrees in every variant, because the
    function may then compute a different quantity than the oracle.
    """
    case = finding.trial.case
    assert case is not None
    variants = list(case.observation)
    unpatched: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for key in dict.fromkeys(item.key.removeprefix(f"{name}.") for item in finding.violations for name in variants):
        if not all(key in answers for answers in (*case.observation.values(), *oracle.values())):
            continue
        right = {name: _without_dtype(mended[name][key]) for name in variants}
        wrong = [name for name in variants if mismatch(case.observation[name][key], right[name])]
        if len(wrong) == len(variants) > 1:
            return None
        unpatched |= {address(name, key): _without_dtype(case.observation[name][key]) for name in wrong}
        fixed |= {address(name, key): right[name] for name in wrong}
    return {"expected_unpatched": unpatched, "expected_fixed": fixed} if fixed else None


def _without_dtype(value: Any) -> Any:
    """Return a value without its dtype, because recipes must not expect the oracle's float64."""
    return value.nested() if isinstance(value, Tensor) else plain(value)


def _keeps_law(law: Law, recipe: Recipe, answers: Answers, oracle: Answers, catalog: Catalog) -> bool:
    untouched = {name: {"mutated": [], "globals": [], "again": answer} for name, answer in answers.items()}
    contract = catalog.contracts[recipe.contract]
    try:
        return not law.violations(Case(recipe.variants, answers, oracle or None, contract, untouched))
    except DoesNotApply:
        return False
