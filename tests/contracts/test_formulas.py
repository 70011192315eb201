"""The formulas that reports print next to numbers."""

import pytest

from sentinel.contracts.formulas import FORMULAS, formula_of
from sentinel.contracts.policy_loss import ALGORITHMS
from sentinel.recipes.catalog import bundled_catalog

CONTRACTS = bundled_catalog().contracts


@pytest.mark.parametrize("name", FORMULAS)
def test_the_options_of_a_formula_are_inputs_of_its_contract(name):
    contract = CONTRACTS[name]
    assert contract.oracle is not None
    for options, formula in FORMULAS[name].items():
        chosen = dict(option.split("=") for option in options.split())
        for option, value in chosen.items():
            item = contract.input(option)
            assert item is not None
            choices = {*map(str, item.choices), str(item.default)}
            assert value in choices or value in item.meaning, f"{option} is not {value}"
        shown = formula_of(contract, chosen)
        assert not options or shown.startswith(formula), "no earlier formula is for the same options"


def test_the_formula_depends_on_the_options():
    advantage = CONTRACTS["group_advantage"]
    assert "std(r)" in formula_of(advantage, {"estimator": "grpo", "norm_by_std": None})
    assert "std(r)" not in formula_of(advantage, {"estimator": "grpo", "norm_by_std": False})
    assert formula_of(advantage, {"estimator": "passk"}) == ""
    assert formula_of(CONTRACTS["rollout"], {}) == ""
    assert formula_of(CONTRACTS["value_loss"], {"cliprange_value": 0.2}).startswith("max(")
    assert formula_of(CONTRACTS["value_loss"], {}).endswith("equation 9]; token-mean")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_policy_loss_has_a_formula(algorithm):
    assert formula_of(CONTRACTS["policy_loss"], {"algorithm": algorithm})
