"""What is taken from a scenario: the variant that tells, the configuration, what is rare, whether it is a part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, write_recipe

from sentinel.catalog import bundled_catalog
from sentinel.contracts.contract import Contract
from sentinel.errors import SentinelError
from sentinel.impact import toy
from sentinel.impact.batches import GROUP_SIZES, Batch, draw
from sentinel.impact.entrances import ENTRANCES
from sentinel.impact.scenes import Scene, concessions, scene
from sentinel.recipes import load_recipe
from sentinel.values import from_array

_NAN = float("nan")


def _scene(folder: Path, document: Any = MASKED_TOKENS, **changes: Any) -> Scene:
    catalog = bundled_catalog()
    recipe = load_recipe(write_recipe(folder, document, **changes), catalog)
    return scene(recipe, catalog.contracts[recipe.contract], recipe.variants)


def _batch() -> Batch:
    return draw(0, 0, toy.untrained(), toy.untrained())


def test_an_ordinary_scenario_has_nothing_rare(tmp_path: Path) -> None:
    told = _scene(tmp_path)
    assert (told.rare, told.in_parts, told.configuration) == ([], False, {"loss_agg_mode": "token-mean"})


def test_the_variant_is_the_first_on_which_the_two_differ(tmp_path: Path) -> None:
    variants = {"plain": {}, "outlier": {"loss_mat": [[1.0, _NAN], [1.0, 2.0]]}}
    unpatched, fixed = {"plain.loss": 1.0, "outlier.loss": 3.0}, {"plain.loss": 1.0000001, "outlier.loss": 1.0}
    changes = {"variants": variants, "expected_unpatched": unpatched, "expected_fixed": fixed}
    told = _scene(tmp_path, **changes)
    assert told.variant == "outlier"
    assert told.rare == ["loss_mat NaN at a masked token"]


def test_a_step_that_is_whole_is_the_mean_of_its_mini_batches(tmp_path: Path) -> None:
    """Its ranks are averaged by the worker."""
    told, batch = _scene(tmp_path), _batch()
    whole = replace(
        told,
        entrance=replace(told.entrance, whole=True),
        settings={**told.settings, "mini_batch_size": 8, "dp_size": 2},
    )
    observation = {"per_token_gradient": from_array(np.ones(batch.mask.shape), "float32")}
    assert np.array_equal(whole.slopes(batch, [observation]) * 5, told.slopes(batch, [observation]))


def _policy(folder: Path, law: str = "the_oracle_agrees", **scenario: Any) -> Scene:
    tokens = {"log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "advantages": [[1.0]], "response_mask": [[1]]}
    return _scene(
        folder,
        target="verl",  # the demo framework has no such boundary; none is called here
        contract="policy_loss",
        boundary="verl.trainer.ppo.core_algos.compute_policy_loss_vanilla",
        invariant=law,
        scenario={"algorithm": "ppo", "loss_agg_mode": "token-mean", **tokens, **scenario},
        expected_unpatched={"loss": 1.0},
        expected_fixed={"loss": 2.0},
    )


def test_a_far_log_ratio_is_rare_where_the_token_counts(tmp_path: Path) -> None:
    told = _policy(tmp_path, old_log_probs=[[-91.0]])
    assert told.rare == ["log_probs -1, old_log_probs -91 at a token that counts"]


def test_a_nan_of_a_rejected_response_goes_to_one(tmp_path: Path) -> None:
    two = {name: [[-1.0], [-1.0]] for name in ("log_probs", "old_log_probs")}
    told = _policy(tmp_path, **two, advantages=[[1.0], [_NAN]], response_mask=[[1], [0]])
    assert told.rare == ["advantages NaN at a masked token of a rejected response"]
    batch = _batch()
    (inputs,) = told.calls(batch, np.array([0.5]))
    planted = np.isnan(inputs["advantages"].array())
    assert planted.sum() == 1
    assert not batch.mask[planted.any(-1)].any()
    (plain,) = told.calls(batch, None)
    assert np.isfinite(plain["advantages"].array()).all()


def test_a_reward_on_a_masked_token_is_rare(tmp_path: Path) -> None:
    scenario = {"token_level_rewards": [[1.0, 4.0], [0.0, 1.0]], "response_mask": [[1, 0], [1, 1]], "group": ["p", "p"]}
    told = _scene(tmp_path, REJECTED_ROW, scenario=scenario, variants=None, expected_unpatched={"advantages": [[0.0]]},
                  expected_fixed={"advantages": [[1.0]]})  # fmt: skip
    assert told.rare == ["token_level_rewards 4 at a masked token"]
    batch = _batch()
    (inputs,) = told.calls(batch, np.array([0.0]))
    rewards = inputs["token_level_rewards"].array()
    row, column = np.argwhere(rewards == 4)[0]
    assert batch.mask[row].any()
    assert not batch.mask[row, column]


def test_a_rejected_batch_is_rare(tmp_path: Path) -> None:
    told = _policy(tmp_path, response_mask=[[0]])
    assert told.all_rejected
    assert "no response that is accepted" in told.rare


def test_a_lone_response_is_rare(tmp_path: Path) -> None:
    scenario = {
        "token_level_rewards": [[1.0], [0.0], [1.0]],
        "response_mask": [[1], [1], [1]],
        "group": ["p", "p", "q"],
    }
    told = _scene(tmp_path, REJECTED_ROW, scenario=scenario, variants=None)
    assert told.rare == ["a response that is alone in its group"]
    groups = told.calls(_batch(), np.array([]))[0]["group"]
    assert groups.count(groups[0]) == 1


@pytest.mark.parametrize(
    ("law", "global_batch_size", "dp_size"), [("parts_add_up", None, 2), ("the_oracle_agrees", 2, 1)]
)
def test_parts_add_up_to_the_whole(tmp_path: Path, law: str, global_batch_size: int | None, dp_size: int) -> None:
    """A microbatch is one by its law, or because the global batch has more than it."""
    counts = {"global_batch_size": global_batch_size, "dp_size": dp_size, "loss_agg_mode": "seq-mean-token-mean"}
    told = _policy(tmp_path, law, **counts)
    assert told.in_parts
    batch = _batch()
    parts = told.calls(batch, None)
    assert [part["response_mask"].shape[0] for part in parts] == [20, 20]
    accepted = int(batch.mask.any(-1).sum())
    assert {part["global_batch_size"] for part in parts} == {accepted}, "counted in the toy's batch"
    gradients = [{"per_token_gradient": part["log_probs"], "loss": 0.0} for part in parts]
    assert np.allclose(told.slopes(batch, gradients), batch.log_probs / dp_size, atol=1e-6)


def test_a_boundary_that_cuts_the_batch_itself_is_given_it_whole(tmp_path: Path) -> None:
    """How it is cut is what the scenario is about."""
    told = _scene(
        tmp_path,
        target="verl",
        contract="supervised_update",
        boundary="verl.workers.utils.losses.sft_loss",
        invariant="parts_add_up",
        scenario={
            "log_probs": [[-1.0, -1.0], [-1.0, -1.0]],
            "output_after": [-1.0, -1.0],
            "response_mask": [[1, 0], [1, 1]],
            "micro_batch_size": 1,
        },
        expected_unpatched={"loss": 1.0},
        expected_fixed={"loss": 2.0},
    )
    assert not told.in_parts
    (inputs,) = told.calls(_batch(), None)
    assert inputs["micro_batch_size"] == 1
    assert not np.array_equal(inputs["response_mask"].array() != 0, _batch().mask), "the entrance has a mask of its own"


def _statistic(folder: Path, law: str = "finite_in_finite_out", **scenario: Any) -> Scene:
    return _scene(
        folder,
        target="areal",
        contract="masked_statistics",
        boundary="areal.utils.functional.masked_normalization",
        invariant=law,
        scenario={"statistic": "whiten", "values": [[3.0, 0.0]], "response_mask": [[1, 0]], **scenario},
        expected_unpatched={"whitened": [[1.0, 0.0]]},
        expected_fixed={"whitened": [[0.0, 0.0]]},
    )


def test_one_token_that_counts_is_rare_where_it_must_be_finite(tmp_path: Path) -> None:
    assert _statistic(tmp_path).rare == ["one token that counts"]
    assert _statistic(tmp_path, "the_oracle_agrees").rare == []
    two = {"values": [[3.0, 0.0], [1.0, 0.0]], "response_mask": [[1, 0], [0, 0]]}
    assert _statistic(tmp_path, **two).rare == []


def test_a_batch_that_is_cut_off_is_rare(tmp_path: Path) -> None:
    told = _scene(
        tmp_path,
        target="roll",
        contract="overlong_filter",
        boundary="roll.utils.functionals.get_sample_level_mask",
        scenario={"response_mask": [[1, 1], [1, 1]]},
        expected_unpatched={"kept": [[1, 1], [1, 1]]},
        expected_fixed={"kept": [[0, 0], [0, 0]]},
        invariant="the_oracle_agrees",
    )
    assert told.rare == ["no response that ends"]
    assert not told.rejecting


@pytest.mark.parametrize(("members", "size"), [(1, 8), (2, 8), (3, 6)])
def test_equal_groups_are_multiples_of_the_scenarios(tmp_path: Path, members: int, size: int) -> None:
    told = _scene(tmp_path)
    labels = [name for name in "pq" for _ in range(members)]
    equal = replace(told, settings={"group": labels}, contract=_grouped(), alike=True)
    assert list(equal.group_sizes) == [size] * 5
    assert told.group_sizes == GROUP_SIZES


def test_what_a_boundary_may_refuse_is_left_out_in_turn(tmp_path: Path) -> None:
    told = _scene(tmp_path)
    ways = [(item.rejecting, item.alike) for item in concessions(told)]
    assert ways == [(True, False), (False, False), (True, True), (False, True)]
    assert concessions(replace(told, rejecting=False, alike=True)) == [replace(told, rejecting=False, alike=True)]


def _grouped() -> Contract:
    return bundled_catalog().contracts["group_filter"]


def test_the_temperature_is_the_scenarios_where_it_is_sampled_with(tmp_path: Path) -> None:
    told = _scene(tmp_path)
    logits = replace(told, entrance=ENTRANCES["token_log_probs"], settings={**told.settings, "temperature": 0.5})
    assert (told.temperature, logits.temperature) == (1.0, 0.5)


def test_what_the_batches_lack_is_told(tmp_path: Path) -> None:
    told = _scene(tmp_path)
    strange = replace(told, settings={**told.settings, "novelty": told.settings["loss_mat"]})
    with pytest.raises(SentinelError, match="the scenario has novelty, which the toy's batches have not"):
        strange.calls(_batch(), None)
