"""A constructed trainer: it gets its settings, takes one step, and logs the loss that it minimised."""

from typing import Any

import pytest
import torch
from contract_kit import measured

from sentinel.contracts.contract import Contract
from sentinel.recipes.catalog import bundled_catalog

GIVEN = {"options": {"beta": 0.25, "ref_model": "none"}, "form": "text", "micro_batch_size": 2}
RUN: dict[str, Any] = {
    "attributes": {"beta": 0.25, "epsilon": 0.5},
    "losses": [0.25, 0.5],
    "steps": 1,
    "logged": [{"loss": 0.75, "reward": 2.0}, {"train_loss": 0.75}],
    "update": torch.tensor([0.5, -1.0]),
    "batches": [{"labels": torch.tensor([[3, 1]]), "ids": torch.tensor([[2, 3]])}],
}


def contract() -> Contract:
    return bundled_catalog().contracts["constructed_trainer"]


def observed(**changes: Any) -> dict[str, Any]:
    return measured("constructed_trainer", lambda **_: {**RUN, **changes}, **GIVEN)


def test_a_correct_run_agrees_with_the_definition():
    definition = measured("constructed_trainer", **GIVEN)
    run = observed()
    assert {name: run[name] for name in ("other_settings", "steps", "loss_gap")} == {
        name: definition[name] for name in ("other_settings", "steps", "loss_gap")
    }


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("other_settings", {"attributes": {"beta": 0.5}}),
        ("steps", {"steps": 2}),
        ("loss_gap", {"losses": [0.25, 0.25]}),
    ],
)
def test_a_wrong_run_differs_from_the_definition(key, changes):
    assert observed(**changes)[key] != measured("constructed_trainer", **GIVEN)[key]


def test_a_loss_that_is_logged_with_four_decimals_is_no_gap():
    assert observed(losses=[0.25, 0.50004])["loss_gap"] == 0


def test_all_metrics_and_columns_are_observed():
    run = observed()
    assert run["logged"] == [0.75, 2.0, 0.75]
    assert run["batches"] == [2, 3, 3, 1]
    assert run["names"] == "0 loss, 0 reward, 1 train_loss, ids [1, 2], labels [1, 2]"


def test_the_size_of_an_update_is_its_euclidean_norm():
    assert observed(update=torch.tensor([3.0, -4.0]))["update_norm"] == 5
    assert observed(update=None)["update_norm"] is None


def test_every_call_is_compared_with_the_definition_alone():
    assert contract().laws == ("the_oracle_agrees",)
