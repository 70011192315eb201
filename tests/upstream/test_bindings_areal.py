"""AReaL's bindings beside the oracles: they agree on scenarios made by hand, and differ where it is said here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from binding_kit import Bound, at, bound, opened

from sentinel.values.literals import tensor

MAIN = "cbff54d645d2cd8ee1f1c358a82f3f473588433d"
FIX = "cdc1c4783b19bcf68247b5e919c6b7c1ed0b2eb8"
BASE = "8eaf9e45b58219b3cc2bec37abd1d77f8786319a"

FUNCTIONAL = "areal.utils.functional"
NORMALIZATION = "areal.utils.data.Normalization.__call__"
STEP = "areal.trainer.ppo.actor.PPOActor._compute_advantages"
#: What main no longer has -> the last state of it that is in the corpus.
GONE = {
    "areal.trainer.ppo.actor.PPOActor._compute_logp": "abc85aba2f3b1d486b23781242bce9d8bc726b23",
    f"{FUNCTIONAL}.dynamic_sampling": "abc85aba2f3b1d486b23781242bce9d8bc726b23",
}
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]


@pytest.fixture(scope="module")
def main() -> Iterator[Bound]:
    yield from opened("areal", MAIN)


@pytest.fixture
def newest(main: Bound, boundary: str) -> Iterator[Bound]:
    """Main; or, for a boundary that is gone, where it was last."""
    if boundary not in GONE:
        yield main
        return
    yield from opened("areal", GONE[boundary])


@pytest.fixture(scope="module", params=at(base=BASE, fix=FIX, main=MAIN))
def anywhere(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bound]]:
    for opened_at in opened("areal", request.param):
        yield request.param, opened_at


#: Every binding but that of the whole step, whose scenario is made below.
PARTS = [item for item in bound("areal") if item.values != (STEP, "advantage_step")]

#: What main had once.
NO_LONGER = "has no IcePop"

#: Of an open target truth with a root only the last number counts: see AREAL-GEOMETRY3K-LAST-NUMBER.
ROOTS = {"areal.reward.geometry3k.geometry3k_reward_fn": {"ground_truth=5 \\sqrt { 3 }"}}

#: boundary -> the scenarios behind padding in which it is not what the oracle says: see below.
DIFFERS = {f"{FUNCTIONAL}.masked_normalization": {"axis=token"}}


def test_what_is_gone_is_bound_by_that_name() -> None:
    assert GONE.keys() <= {item.values[0] for item in PARTS}


@pytest.mark.parametrize(("boundary", "contract"), PARTS)
def test_oracle_and_boundary_agree(newest: Bound, boundary: str, contract: str) -> None:
    wrong = newest.disagreements(newest.subject(boundary, contract))
    wrong = {name: said for name, said in wrong.items() if not said.endswith(NO_LONGER)}
    assert set(wrong) == ROOTS.get(boundary, set()), wrong


@pytest.mark.parametrize(("boundary", "contract"), PARTS)
def test_oracle_and_boundary_agree_behind_padding(newest: Bound, boundary: str, contract: str) -> None:
    subject = newest.subject(boundary, contract)
    declared = subject.contract.input(subject.contract.mask)
    if declared is None or "right" not in declared.choices:
        pytest.skip("it takes no mask with padding")
    wrong = newest.disagreements(subject, PADDED)
    wrong = {name: said for name, said in wrong.items() if not said.endswith(NO_LONGER)}
    assert set(wrong) == DIFFERS.get(boundary, set()), wrong


def _scenario(plain: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The plain scenario with other values; lists of numbers become tensors of single precision."""
    return {
        **plain,
        **{
            name: tensor(value, "float32") if isinstance(value, list) and name != "group" else value
            for name, value in changes.items()
        },
    }


# -- the advantage step ------------------------------------------------------------------------------------------------


def _step(code: Bound, **changes: Any) -> dict[str, Any]:
    """Three rows: full, padded, and one whose tool has spoken between two turns."""
    inputs: dict[str, Any] = {
        "attention_mask": tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], "int64"),
        "loss_mask": tensor(
            [[False, True, True, True], [False, True, True, False], [False, True, False, True]], "bool"
        ),
        "rewards": tensor([1.0, -0.5, 2.0], "float32"),
        "group": ["p", "p", "p"],
    }
    for item in code.subject(STEP, "advantage_step").contract.inputs:
        if item.name not in inputs:
            inputs[item.name] = item.default(inputs) if callable(item.default) else item.default
    return {**inputs, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"discount": 0.5, "gae_lambda": 0.5},
        {"reward_bias": 0.5, "reward_scaling": 2.0, "reward_clip": 1.0},
        {"reward_norm": {"mean_level": "batch", "std_level": "batch", "eps": 1e-5}},
        {"reward_norm": {"mean_level": "group", "std_level": None}},
        {"reward_norm": {"mean_level": "group", "std_level": "group", "std_unbiased": False, "mean_leave1out": True}},
        {"adv_norm": {"mean_level": "batch", "std_level": "batch", "eps": 1e-5}},
    ],
    ids=str,
)
def test_the_step_agrees(anywhere: tuple[str, Bound], changes: dict[str, Any]) -> None:
    _, code = anywhere
    trial = code.ask(code.subject(STEP, "advantage_step"), "the_oracle_agrees", {"": _step(code, **changes)})
    assert not trial.violations
    assert not trial.refused


def test_rewards_that_are_not_earned_are_in_the_statistics(anywhere: tuple[str, Bound]) -> None:
    """AReaL #1351, fixed at its head."""
    sha, code = anywhere
    scenario = _step(code, reward_norm={"mean_level": "batch", "std_level": None}, mask_no_eos_with_zero=True)
    found = code.ask(code.subject(STEP, "advantage_step"), "the_oracle_agrees", {"": scenario}).violations
    assert bool(found) == (sha != FIX)


# -- what the laws find ------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_not_left_in_for_one_token(main: Bound) -> None:
    """A group of one row becomes 0, "instead of passing the raw reward/advantage through"; a group of which one row is
    accepted, and a batch of one, pass it through."""
    subject = main.subject(NORMALIZATION, "advantage_normalisation")
    plain = main.scenarios(subject)["plain"]
    values = {"advantages": [[1.0], [5.0]], "response_mask": [[1.0], [0.0]], "group": ["p", "p"]}
    scenario = _scenario(plain, **values, mean_level="group", std_level=None, leave_one_out=True)
    alone = _scenario(scenario, advantages=[[1.0]], response_mask=[[1.0]], group=["p"])
    law = "a_rejected_row_is_an_absent_row"
    (violation,) = main.ask(subject, law, {"baseline": scenario, "without": alone}).violations
    assert "1.0 in 'baseline', 0.0 in 'without'" in violation.detail

    rewards = main.subject(NORMALIZATION, "reward_normalisation")
    batch = {"rewards": [1.0], "group": ["p"], "mean_level": "batch", "std_level": None, "leave_one_out": True}
    scenario = _scenario(main.scenarios(rewards)["plain"], **batch)
    (violation,) = main.ask(rewards, "the_oracle_agrees", {"": scenario}).violations
    assert (violation.observed.nested(), violation.demanded.nested()) == ([1.0], [0.0])


def test_a_group_of_one_sequence_is_not_scaled_by_its_tokens(main: Bound) -> None:
    subject = main.subject(NORMALIZATION, "advantage_normalisation")
    values = {"advantages": [[1.0, -1.0]], "response_mask": [[1.0, 1.0]], "group": ["p"]}
    levels = {"mean_level": None, "std_level": "group", "leave_one_out": False}
    scenario = _scenario(main.scenarios(subject)["plain"], **values, **levels)
    (violation,) = main.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert [round(number, 3) for number in violation.observed.nested()[0]] == [1.0, -1.0]
    assert [round(number, 3) for number in violation.demanded.nested()[0]] == [0.707, -0.707]


def test_one_value_has_no_unbiased_variance(anywhere: tuple[str, Bound]) -> None:
    _, code = anywhere
    subject = code.subject(f"{FUNCTIONAL}.masked_normalization", "masked_statistics")
    plain = code.scenarios(subject)["plain"]
    scenario = _scenario(plain, values=[[0.0]], response_mask=[[1.0]], unbiased=True)
    (violation,) = code.ask(subject, "finite_in_finite_out", {"": scenario}).violations
    assert violation.key == "whitened"


@pytest.mark.parametrize("loss", ["ppo_actor_loss_fn", "sapo_loss_fn"])
def test_a_ratio_that_overflows_has_no_finite_gradient(anywhere: tuple[str, Bound], loss: str) -> None:
    """What is clipped has the gradient 0; that of exp is infinite, and 0 times it is NaN."""
    _, code = anywhere
    subject = code.subject(f"{FUNCTIONAL}.{loss}", "policy_loss")
    one = {"log_probs": [[-1.0]], "old_log_probs": [[-91.0]], "advantages": [[1.0]], "response_mask": [[1.0]]}
    scenario = _scenario(code.scenarios(subject)["plain"], **one)
    (violation,) = code.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert (violation.key, violation.symptom) == ("per_token_gradient", "non-finite")


def test_masked_advantages_are_in_the_mean_of_the_sequence(anywhere: tuple[str, Bound]) -> None:
    """AReaL #1346, fixed on main."""
    sha, code = anywhere
    subject = code.subject(f"{FUNCTIONAL}.ppo_actor_loss_fn", "policy_loss")
    one = {"log_probs": [[-1.0, -1.0]], "old_log_probs": [[-1.0, -1.0]], "advantages": [[1.0, 1.0]]}
    plain = code.scenarios(subject)["algorithm=gspo"]
    scenario = _scenario(plain, **one, response_mask=[[1.0, 0.0]])
    variants = {"baseline": scenario, "outlier": _scenario(scenario, advantages=[[1.0, 7.0]])}
    found = code.ask(subject, "masked_values_have_no_influence", variants).violations
    assert bool(found) == (sha != MAIN)


def test_a_critic_without_a_valid_token_has_no_finite_loss(anywhere: tuple[str, Bound]) -> None:
    """The actor's losses divide by at least 1."""
    _, code = anywhere
    subject = code.subject(f"{FUNCTIONAL}.ppo_critic_loss_fn", "value_loss")
    one = {"vpreds": [[0.0]], "values": [[0.0]], "returns": [[0.0]], "response_mask": [[0.0]]}
    scenario = _scenario(code.scenarios(subject)["plain"], **one)
    found = code.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert {item.symptom for item in found} == {"non-finite"}
    for actor in ("ppo_actor_loss_fn", "sapo_loss_fn"):
        subject = code.subject(f"{FUNCTIONAL}.{actor}", "policy_loss")
        none = {"log_probs": [[-1.0]], "old_log_probs": [[-1.0]], "advantages": [[1.0]], "response_mask": [[0.0]]}
        scenario = _scenario(code.scenarios(subject)["plain"], **none)
        assert not code.ask(subject, "the_oracle_agrees", {"": scenario}).violations


def test_k3_is_of_the_inverse_ratio(anywhere: tuple[str, Bound]) -> None:
    """Its configuration says k3 = r - log(r) - 1 with the ratio r of proximal and behaviour policy, here e^1.5: 1.98.

    It takes k3 of 1/r, which the adapter states as a dialect.

    https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal/api/cli_args.py#L1562
    """
    _, code = anywhere
    subject = code.subject(f"{FUNCTIONAL}.apply_rejection_sampling", "importance_weight")
    one = {"old_log_probs": [[-1.0]], "rollout_log_probs": [[-2.5]], "response_mask": [[1.0]]}
    how = {"level": "token", "mode": "mask", "statistic": "k3", "threshold_high": 1.25, "threshold_low": None}
    scenario = _scenario(code.scenarios(subject)["plain"], **one, **how)
    assert "kept" not in {item.key for item in code.ask(subject, "the_oracle_agrees", {"": scenario}).violations}
    scenario["statistic_of"] = "ratio"
    found = {item.key: item for item in code.ask(subject, "the_oracle_agrees", {"": scenario}).violations}
    assert (found["kept"].demanded.nested(), found["kept"].observed.nested()) == ([[0.0]], [[1.0]])


def test_a_batch_is_cut_along_the_last_dimension_whatever_that_is(main: Bound) -> None:
    """Trajectories of one and of two tokens, and six numbers for each token: what is cut to the length of a trajectory
    is the numbers, and the padding stays. Concatenation, whose inverse it is said to be, takes any dimensions."""
    subject = main.subject("areal.utils.data.split_and_unpad_tensor", "collation")
    plain = main.scenarios(subject)["plain"]
    samples = [
        {
            "input_ids": tensor(list(range(count)), "int64"),
            "logprobs": tensor([-1.0] * count, "float32"),
            "loss_mask": tensor([1] * count, "int32"),
            "routed_experts": tensor([[*range(6)]] * count, "int32"),
        }
        for count in (1, 2)
    ]
    seen = main.ask(subject, "the_oracle_agrees", {"": {**plain, "samples": samples}})
    (violation,) = seen.violations
    assert (violation.key, violation.observed, violation.demanded) == ("intact", 6, 8)
    narrow = [{name: value for name, value in sample.items() if name != "routed_experts"} for sample in samples]
    assert not main.ask(subject, "the_oracle_agrees", {"": {**plain, "samples": narrow}}).violations
