"""A finding as a finished recipe: the shrunk scenario, the pin, and what decides: the reference's values, or the law.

A law that compares outputs knows that they disagree, and not which of them is wrong. Where the contract's reference
answers too, it says; where it does not, the law itself is what the recipe is decided by. Either way the recipe has
called broken what is broken, and mended what a mended boundary answers, before it is written.
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
    """Write a finding, or a scenario for which a law held, as plain data in the recipe language, decided by its law."""
    subject, law = finding.subject, finding.law
    first = next(iter(finding.trial.variants.values()))
    others = {key: value for key, value in finding.trial.variants.items() if key}
    return found_recipe(
        law,
        target,
        subject.contract.name,
        subject.boundary,
        _scenario(subject, first),
        {key: _scenario(subject, value, first) for key, value in others.items()},
        [(item.key, item.detail) for item in finding.violations],
        "" if checkout.dirty else pin_of(checkout.commit, checkout.version),
        name or found_id(target, subject.boundary, law.name, finding.symptom),
    )


def _scenario(subject: Subject, inputs: Inputs, base: Inputs | None = None) -> dict[str, Any]:
    """Give the inputs that differ from the base, or from what the contract takes for granted where there is none."""
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
    """Give a literal in the recipe language."""
    if isinstance(value, Mapping):
        return {name: written(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [written(inner) for inner in value]
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
    """Write ``<folder>/<BUG-ID>.yaml``; a file that is there already is another's, and keeps its place.

    :raises SentinelError: where the folder cannot be written.
    """
    import yaml

    place = folder / f"{document['bug_id']}.yaml"
    number = 2
    while os.path.lexists(place):  # a link that leads nowhere too
        place = folder / f"{document['bug_id']}-{number}.yaml"
        number += 1
    final = {**document, "bug_id": place.stem}
    text = yaml.dump(final, Dumper=_dumper(), sort_keys=False, allow_unicode=False, default_flow_style=None, width=118)
    write_atomically(place, f"# Found and shrunk by {command}.\n{text}", "name another folder with --save")
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


class Untried(Exception):
    """Nothing that could be written of a finding tells a broken boundary from a mended one."""


def tried_document(finding: Finding, open_target: OpenTarget, runner: Runner, catalog: Catalog) -> dict[str, Any]:
    """Write the recipe of a finding, decided by the reference's values where it has them, tried against a broken twin
    (the code at hand) and mended ones.

    :raises Untried: where it cannot tell them apart.
    """
    document = recipe_document(finding, open_target.target, open_target.checkout)
    case = finding.trial.case
    assert case is not None  # or no law could have been broken
    oracle = _consulted(finding, open_target)
    twins = list(_mended(finding, oracle))
    failed = "no answer that a mended boundary might give keeps the law"
    for values in (_values(finding, oracle, twins[0]), {}) if oracle else ({},):
        if values is None:
            continue
        recipe = _loaded({**document, **values}, catalog)
        keeps = [_keeps(finding.law, recipe, twin, oracle, catalog) for twin in twins]
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
        failed = f"the recipe says {verdict.name} of the code that shows it: {verdict.reason}"
    raise Untried(failed)


def _loaded(document: Mapping[str, Any], catalog: Catalog) -> Recipe:
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        return load_recipe(save(Path(folder), document), catalog)


def _consulted(finding: Finding, open_target: OpenTarget) -> Answers:
    """Give what the contract's reference answers to each variant; empty where it has none."""
    if finding.subject.contract.oracle is None:
        return {}
    try:
        return open_target.law_session.consult(finding.subject, finding.trial.variants)
    except Undecidable:
        return {}


def _mended(finding: Finding, oracle: Answers) -> Iterator[Answers]:
    """Give what a mended boundary may answer: the reference's numbers where they count, and they everywhere (what
    stands on a masked token is nobody's business). Where there is no reference: nothing but zeros, which hardly a
    law forbids."""
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


def _values(finding: Finding, oracle: Answers, mended: Answers) -> dict[str, Any] | None:
    """Give what a recipe expects, by the reference; None where it does not tell which outputs are wrong: it agrees
    with all of them, or with none, and then it may mean something else."""
    case = finding.trial.case
    assert case is not None
    variants = list(case.observation)
    unpatched: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for key in dict.fromkeys(item.key.removeprefix(f"{name}.") for item in finding.violations for name in variants):
        if not all(key in answers for answers in (*case.observation.values(), *oracle.values())):
            continue
        right = {name: _plainly(mended[name][key]) for name in variants}
        wrong = [name for name in variants if mismatch(case.observation[name][key], right[name])]
        if len(wrong) == len(variants) > 1:
            return None
        unpatched |= {address(name, key): _plainly(case.observation[name][key]) for name in wrong}
        fixed |= {address(name, key): right[name] for name in wrong}
    return {"expected_unpatched": unpatched, "expected_fixed": fixed} if fixed else None


def _plainly(value: Any) -> Any:
    """Give a value without its dtype: the reference's is float64, and mending a boundary need not change its own."""
    return value.nested() if isinstance(value, Tensor) else plain(value)


def _keeps(law: Law, recipe: Recipe, answers: Answers, oracle: Answers, catalog: Catalog) -> bool:
    untouched = {name: {"mutated": [], "globals": [], "again": answer} for name, answer in answers.items()}
    contract = catalog.contracts[recipe.contract]
    try:
        return not law.violations(Case(recipe.variants, answers, oracle or None, contract, untouched))
    except DoesNotApply:
        return False
