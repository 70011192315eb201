"""The bundled recipes at their pins, and proof that each could give another verdict.

``pytest --sentinel-target=verl`` decides every pin. CI runs it for each target and compares each number with the
committed evidence (``.ci/run``). Here, one pin of each verdict is decided twice.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from demo_kit import Consult
from shipped import MIRRORS, PINS, RECIPES, Decisions, pin_id, runner
from test_recipe_twins import BY_TWIN

from sentinel.deciding import verdicts
from sentinel.deciding.outcomes import Measurement, Provenance
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports.evidence import dumps, evidence
from sentinel.reports.store import facts_in, line_files
from sentinel.search.scenarios import with_dialects
from sentinel.values.literals import Tensor, tensor

#: ``consulted(recipe)`` returns the reference's values for its scenario, in the framework's dtypes.
Consulted = Callable[[Recipe], Measurement]

REPORTS = Path(__file__).parents[2] / "reports"


@pytest.fixture(scope="module")
def consulted(consult: Consult) -> Consulted:
    catalog = bundled_catalog()

    def ask(recipe: Recipe) -> Measurement:
        contract = catalog.contracts[recipe.contract]
        binding = catalog.targets[recipe.target].binding(recipe.boundary, recipe.contract)
        fixed: dict[str, Any] = {}
        if binding:  # without inputs that a search derives from others
            fixed = {name: value for name, value in binding.fixed.items() if not callable(value)}
        variants = {
            name: with_usual(contract, binding, {**inputs, **fixed}, recipe) for name, inputs in recipe.variants.items()
        }
        answer = consult(contract.name, variants)
        observation = {name: {k: narrowed(v) for k, v in part.items()} for name, part in answer.items()}
        nowhere = Provenance(recipe.boundary, "", "", 0, "", "")
        return Measurement(observation, nowhere, oracle=answer)

    return ask


def with_usual(contract: Any, binding: Any, inputs: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return the scenario with the values that the adapter fixes; the recipe's own values take precedence."""
    usual = with_dialects(contract, binding, dict(inputs)) if binding is not None else inputs
    return {name: usual[name] if name in recipe.defaulted else inputs[name] for name in usual}


def narrowed(value: Any) -> Any:
    """Round a number of the reference to float32, the frameworks' dtype."""
    if isinstance(value, Tensor) and value.dtype == "float64":
        return tensor(value.nested(), "float32")
    return value


#: The pins, sorted so that a selection opens few checkouts: those of the most recipes first.
_NAMED = Counter((pin.recipe.target, pin.ref) for pin in PINS)
BY_CHECKOUT = sorted(PINS, key=lambda pin: -_NAMED[pin.recipe.target, pin.ref])


def test_committed_evidence_is_about_pins_and_watched_refs():
    known = {
        (recipe.target, recipe.bug_id, f"{ref.key('')}.json")
        for recipe in RECIPES.values()
        for ref in (*(pin.ref for pin in recipe.pins), *recipe.watch)
    }
    strangers = {place.parts for place in _committed()} - known
    assert {parts for parts in strangers if parts[1] != "laws"} == set()


@pytest.mark.slow
def test_no_text_ends_before_the_number_of_a_pull_request():
    """YAML reads the rest of a line as a comment from `` #`` on, unless the text is quoted."""
    cut = []
    for file in sorted((REPORTS.parent / "recipes").rglob("*.yaml")):
        text = file.read_text("utf-8")
        plain = [token for token in yaml.scan(text) if isinstance(token, yaml.ScalarToken) and token.plain]
        ends = [token.end_mark for token in plain]
        cut += [f"{file.name}:{end.line + 1}" for end in ends if re.match(r" +#\d", text[end.index :])]
    assert cut == []


def test_the_committed_evidence_is_small():
    files = [file for file in REPORTS.rglob("*") if file.is_file()]
    assert _committed()
    assert len(files) <= 60
    assert sum(file.stat().st_size for file in files) <= 5_000_000


#: Recipes with a pin of each decided verdict.
OPPOSITES = {name for name, recipe in RECIPES.items() if {"reproduced", "fixed"} <= {pin.expect for pin in recipe.pins}}

#: Recipes that no revision fixes: the contract's float64 reference replaces the framework.
NOT_FIXED = sorted(set(RECIPES) - set(OPPOSITES) - set(BY_TWIN))


def test_every_shipped_recipe_can_fail():
    """A new recipe needs a pin of each verdict, a changed copy in a test next to this one, or a contract with an
    oracle.
    """
    contracts = bundled_catalog().contracts
    assert [name for name in NOT_FIXED if contracts[RECIPES[name].contract].oracle is None] == []
    assert all({at_pin, at_twin} == {"reproduced", "fixed"} for _, at_pin, at_twin in BY_TWIN.values())


@pytest.mark.parametrize("bug_id", NOT_FIXED)
def test_bugs_fixed_nowhere_are_fixed_in_the_oracle(bug_id, consulted):
    """The reference's values give the verdict that no revision gives yet."""
    recipe = RECIPES[bug_id]
    measured = consulted(recipe)
    if recipe.expected_fixed:
        verdict, comparisons = verdicts.by_expectation(recipe, measured.observation)
        assert verdict.name == "fixed", comparisons
    else:
        catalog = bundled_catalog()
        law = catalog.laws[str(recipe.invariant)]
        verdict, comparisons = verdicts.by_law(law, recipe, measured, catalog.contracts[recipe.contract])
        assert verdict.name == "fixed", comparisons


@pytest.mark.slow
def test_a_second_run_writes_the_same_bytes():
    """One pin of each verdict, in other processes and the reverse order. Stub modules may differ."""
    chosen = {pin.expect: pin for pin in reversed(BY_CHECKOUT) if pin.ref.kind == "git"}
    there = [pin for pin in chosen.values() if MIRRORS.get(pin.recipe.target)]
    if not there:
        pytest.skip("no mirror of any target; run sentinel mirror add verl")
    documents = []
    for pins in (there, there[::-1]):
        warm = runner()
        try:
            decided = Decisions(warm, pins)
            documents.append({pin_id(pin): evidence(decided(pin)) for pin in there})
        finally:
            warm.close()
    for name, one in documents[0].items():
        # Which stub modules a lazily loaded module received depends on who first imported it in that process.
        one["environment"]["ghosts"] = documents[1][name]["environment"]["ghosts"]
        assert dumps(one) == dumps(documents[1][name]), name


@cache
def _committed() -> tuple[PurePosixPath, ...]:
    return tuple(place for file in line_files(REPORTS) for place in facts_in(file))
