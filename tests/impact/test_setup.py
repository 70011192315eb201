"""What is taken from a scenario, and what a boundary's answer means for the gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, write_recipe
from impact_kit import float64

from sentinel.impact import toy
from sentinel.impact.batches import GROUP_SIZES, Batch, advantages, centred, k3, over_tokens, ppo, token_mean
from sentinel.impact.parts import part_of
from sentinel.impact.setup import NotTakenError, Setup, setups
from sentinel.impact.toy import Array
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled_catalog

_NAN = float("nan")
_CONTRACTS = bundled_catalog().contracts


def _setup(folder: Path, document: Any = MASKED_TOKENS, **changes: Any) -> Setup:
    catalog = bundled_catalog()
    recipe = load_recipe(write_recipe(folder, document, **changes), catalog)
    return setups(recipe, catalog.contracts[recipe.contract], recipe.variants)[0]


def _policy(folder: Path, **scenario: Any) -> Setup:
    tokens = {"log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "advantages": [[1.0]], "response_mask": [[1]]}
    return _setup(
        folder,
        target="verl",  # the demo framework has no such boundary; none is called here
        contract="policy_loss",
        boundary="verl.trainer.ppo.core_algos.compute_policy_loss_vanilla",
        invariant="the_oracle_agrees",
        scenario={"algorithm": "ppo", "loss_agg_mode": "token-mean", **tokens, **scenario},
        expected_unpatched={"loss": 1.0},
        expected_fixed={"loss": 2.0},
    )


_ONES: Callable[[Batch], Array] = lambda b: np.ones(b.mask.shape)  # noqa: E731
_PPO: Callable[[Batch], Array] = lambda b: token_mean(b, ppo(b, advantages(b))[1])  # noqa: E731
_KL: Callable[[Batch], Array] = lambda b: token_mean(b, 0.02 * k3(b)[1])  # noqa: E731


@pytest.mark.parametrize(
    ("contract", "right", "plain"),
    [
        ("policy_loss", _PPO, _PPO),
        ("policy_update", _PPO, _PPO),
        ("decoupled_loss", _PPO, _PPO),
        ("loss_aggregation", lambda b: token_mean(b, _ONES(b)), lambda b: _PPO(b) + _KL(b)),
        ("prompt_loss", lambda b: token_mean(b, _ONES(b)), lambda b: _PPO(b) + _KL(b)),
        ("kl_estimate", lambda b: k3(b)[1], lambda b: _PPO(b) + _KL(b)),
        ("rollout_kl", lambda b: 0.3 * k3(b)[1], lambda b: _PPO(b) + 0.3 * k3(b)[1]),
        ("group_advantage", advantages, _PPO),
        ("generalised_advantage", advantages, _PPO),
        ("penalised_advantage", advantages, _PPO),
        ("discounted_return", advantages, _PPO),
        ("advantage_normalisation", advantages, _PPO),
        ("reward_normalisation", lambda b: advantages(b)[:, 0], _PPO),
    ],
)
def test_a_right_answer_gives_the_gradient_of_the_plain_formulas(
    batch: Batch, contract: str, right: Callable[[Batch], Array], plain: Callable[[Batch], Array]
) -> None:
    part = part_of(_CONTRACTS[contract])
    assert part is not None
    assert np.allclose(part.slopes(batch, right(batch)), plain(batch), atol=1e-12)
    sizes = {"batch": len(batch.mask), "tokens": batch.mask.shape[1]}
    for item in _CONTRACTS[contract].inputs:
        if item.shape and item.name != _CONTRACTS[contract].mask:
            assert part.inputs[item.name](batch).shape == tuple(sizes[name] for name in item.shape)


@pytest.mark.parametrize("contract", ["call", "token_log_probs", "value_loss", "supervised_update", "group_filter"])
def test_what_is_neither_a_loss_of_log_probs_nor_advantages_is_no_part(contract: str) -> None:
    assert part_of(_CONTRACTS[contract]) is None


def test_what_a_loss_leaks_and_a_nan_that_advantages_have_are_in_the_gradient(batch: Batch) -> None:
    loss, group = (part_of(_CONTRACTS[name]) for name in ("loss_aggregation", "group_advantage"))
    assert loss is not None
    assert group is not None
    assert np.abs(loss.slopes(batch, np.ones(batch.mask.shape))[~batch.mask]).max() > 0
    broken = advantages(batch).copy()
    cell = tuple(np.argwhere(batch.mask)[0])
    broken[cell] = _NAN  # the clip range compares, and no comparison with NaN holds
    assert np.isnan(group.slopes(batch, broken)[cell])


def test_advantages_are_made_of_what_their_rewards_are(batch: Batch) -> None:
    normalising, penalising = (part_of(_CONTRACTS[name]) for name in ("advantage_normalisation", "penalised_advantage"))
    assert normalising is not None
    assert penalising is not None
    assert (normalising.inputs["advantages"](batch) == over_tokens(batch, centred(batch))).all()
    assert (penalising.inputs["log_probs"](batch) == batch.old_log_probs).all()


def test_the_configuration_is_the_scenarios(tmp_path: Path) -> None:
    setup = _setup(tmp_path)
    assert setup.configuration == {"loss_agg_mode": "token-mean"}
    assert setup.notes == ["every 10th batch has the scenario's own rows"]


def test_the_variant_is_the_first_on_which_the_two_differ(tmp_path: Path) -> None:
    variants = {"plain": {}, "outlier": {"loss_mat": [[1.0, _NAN], [1.0, 2.0]]}}
    unpatched, fixed = {"plain.loss": 1.0, "outlier.loss": 3.0}, {"plain.loss": 1.0000001, "outlier.loss": 1.0}
    setup = _setup(tmp_path, variants=variants, expected_unpatched=unpatched, expected_fixed=fixed)
    assert setup.variant == "outlier"


def test_the_scenarios_rows_stand_in_the_batch_with_their_mask(tmp_path: Path, batch: Batch) -> None:
    two = {name: [[-1.0, -91.0], [-1.0, -2.0]] for name in ("log_probs", "old_log_probs")}
    setup = _policy(tmp_path, **two, advantages=[[1.0, 3.0], [_NAN, _NAN]], response_mask=[[1, 1], [0, 0]])
    changed = setup.with_rows(batch)
    inputs, ordinary = setup.inputs(changed, True), setup.inputs(batch, False)
    rows = np.flatnonzero(np.isnan(inputs["advantages"].array()).any(-1))[0] + np.array([-1, 0])
    assert inputs["old_log_probs"].array()[rows, :2].tolist() == [[-1, -91], [-1, -2]]
    assert (inputs["response_mask"].array()[rows] != 0).tolist() == [[True, True, *[False] * 4], [False] * 6]
    others = np.setdiff1d(np.arange(len(batch.mask)), rows)
    assert (changed.mask[others] == batch.mask[others]).all()
    assert (inputs["log_probs"].array()[others] == ordinary["log_probs"].array()[others]).all()
    assert np.isfinite(ordinary["advantages"].array()).all()


def test_the_scenarios_groups_are_their_own_and_leave_no_response_alone(tmp_path: Path, batch: Batch) -> None:
    rewards = {"token_level_rewards": [[1.0], [0.0], [1.0]], "response_mask": [[1], [1], [1]], "group": ["p", "p", "q"]}
    setup = _setup(tmp_path, REJECTED_ROW, scenario=rewards, variants=None)
    groups = setup.inputs(batch, True)["group"]
    sizes = {label: groups.count(label) for label in groups}
    assert (sizes["scenario p"], sizes["scenario q"], min(sizes[f"prompt {n}"] for n in range(5))) == (2, 1, 4)
    alike = replace(setup, alike=True).inputs(batch, True)["group"]
    assert alike == batch.labels.tolist(), "groups of one size stay so"


def test_a_scenario_that_is_a_microbatch_divides_by_the_global_counts(tmp_path: Path, batch: Batch) -> None:
    setup = _policy(tmp_path, global_batch_size=2, dp_size=2, loss_agg_mode="seq-mean-token-mean")
    assert setup.share == 2
    assert setup.inputs(batch, None)["global_batch_size"] == 2 * batch.mask.any(-1).sum()
    observation = {"per_token_gradient": float64(np.ones(batch.mask.shape))}
    assert (setup.slopes(batch, observation) == 1).all(), "half of it on each of two ranks, whose mean is taken"


def test_mini_batches_are_averaged(tmp_path: Path, batch: Batch) -> None:
    setup = replace(_policy(tmp_path), settings={**_policy(tmp_path).settings, "mini_batch_size": 8, "dp_size": 2})
    observation = {"per_token_gradient": float64(np.ones(batch.mask.shape))}
    assert np.allclose(setup.slopes(batch, observation), 1 / 5)


def test_an_answer_of_another_shape_is_not_trained_with(tmp_path: Path, batch: Batch) -> None:
    with pytest.raises(NotTakenError, match=r"per_token_gradient should be \[40, 6\], and is \[2\]"):
        _setup(tmp_path).slopes(batch, {"per_token_gradient": float64([1, 2])})


@pytest.mark.parametrize(("members", "size"), [(1, 8), (2, 8), (3, 6)])
def test_equal_groups_are_multiples_of_the_scenarios(tmp_path: Path, members: int, size: int) -> None:
    setup = _setup(tmp_path)
    labels = [name for name in "pq" for _ in range(members)]
    equal = replace(setup, settings={"group": labels}, contract=_CONTRACTS["group_advantage"], alike=True)
    assert list(equal.group_sizes) == [size] * len(toy.TARGETS)
    assert setup.group_sizes == GROUP_SIZES
