"""verl's bindings beside the oracles: they agree on scenarios made by hand, and differ where it is said here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from binding_kit import Bound, at, bound, compared_with, opened

from sentinel.contracts.contract import DoesNotApply
from sentinel.values.literals import tensor

MAIN = "1dda039b9c6311889a9c9a26040677e1254814f9"
FIX = "265c9248757b0f54219a039d3bb2f562e0029634"
BASE = "f7d10f3dcb1127e60fc2d55da572a4b8783a5fc8"

CORE = "verl.trainer.ppo.core_algos"
CORRECTION = "verl.trainer.ppo.rollout_corr_helper"
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]

#: What main no longer has -> the last state of it that is in the corpus.
GONE = {
    "verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy": "7af2ada5fc56bcffa935d88ffb5548c42a721333",
    "verl.workers.critic.dp_critic.DataParallelPPOCritic.compute_values": "aa11dd19b3a374042321db397046e06c23fa1bed",
    "verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights": "4424616d7dfe03cc564866dc5e99dfaba1daba2e",
    f"{CORE}._masked_reward_sum": "eb2a6a0fef7dc5127c9704fab1d876b55810c1b9",  # the head of #6362
}

GEO_MEAN = f"{CORE}.compute_policy_loss_geo_mean"
REJECTION = f"{CORRECTION}.compute_rollout_rejection_mask"
PACKING = "verl.utils.seqlen_balancing.rearrange_micro_batches"
ITERATOR = "verl.protocol.DataProto.make_iterator"
BALANCE = "verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch"
DYNAMIC = "verl.utils.seqlen_balancing.prepare_dynamic_batch"
SEEDS = ("seed=1", "seed=7")
#: Takes the tokens of the largest covariance; in the plain scenario two of them tie.
TIED = ("kl_cov",)

#: boundary -> the scenarios in which it is not what the oracle says.
DIFFERS: dict[str, set[str]] = {
    # Its rows are sorted by their lengths once more, over all minibatches that keep_minibatch is to keep.
    BALANCE: {"keep_minibatches=True"},
    DYNAMIC: {"max_tokens_per_microbatch=5"},
    # https://github.com/verl-project/verl/issues/7913: the mean over the microbatch, whatever the global counts are.
    GEO_MEAN: {"global_batch_size=2"},
    # https://github.com/verl-project/verl/pull/5797: the packed mask is shifted across sequences.
    "verl.workers.utils.losses.sft_loss": {"first_counts=True"},
    # https://github.com/verl-project/verl/pull/6735: two microbatches have room enough, but not for these rows.
    PACKING: {"max_tokens_per_microbatch=5"},
    # https://github.com/verl-project/verl/pull/6377: the bounds of the ratio are taken for bounds of its inverse.
    REJECTION: {"threshold_low=0.9", "threshold_high=1.25", "threshold_high=5.0"},
    # As #2741 mended in the collate_fn of the datasets: lists of one length in a minibatch become one array of numbers.
    ITERATOR: {"plain", "epochs=1", "epochs=3", "minibatch_size=1", "minibatch_size=3", "shuffle=True", *SEEDS},
    # https://github.com/verl-project/verl/pull/6497: it whitens over tokens, not over responses.
    f"{CORE}.compute_gdpo_outcome_advantage": {"plain", "epsilon=0.5", "norm_by_std=False"},
    # The agent's loop says 1.0, whatever the configuration says: see VERL-REPETITION-PENALTY-IGNORED.
    "verl.experimental.agent_loop.agent_loop.AgentLoopWorker.generate_sequences": {"repetition_penalty=1.1"},
    # A rule that answers a record makes every score of the batch 0: see VERL-PRIME-RECORDS-SCORE-NOTHING.
    "verl.workers.reward_manager.prime.PrimeRewardManager.__call__": {"score_as=record"},
}
#: Shorter rows fit.
DIFFERS_BEHIND_PADDING = {**DIFFERS, PACKING: set[str](), DYNAMIC: set[str]()}


@pytest.fixture(scope="module")
def main() -> Iterator[Bound]:
    yield from opened("verl", MAIN)


@pytest.fixture
def newest(main: Bound, boundary: str) -> Iterator[Bound]:
    """Main; or, for a boundary that is gone, where it was last."""
    if boundary not in GONE:
        yield main
        return
    yield from opened("verl", GONE[boundary])


@pytest.fixture(scope="module", params=at(base=BASE, fix=FIX, main=MAIN))
def anywhere(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bound]]:
    for opened_at in opened("verl", request.param):
        yield request.param, opened_at


def _disagreements(code: Bound, boundary: str, contract: str, mask: Any = None) -> dict[str, str]:
    try:
        return code.disagreements(code.subject(boundary, contract), mask)
    except DoesNotApply:
        assert any(name in boundary for name in TIED)
        pytest.skip("rounding decides which tokens it takes")


@pytest.mark.parametrize(("boundary", "contract"), bound("verl"))
def test_oracle_and_boundary_agree(newest: Bound, boundary: str, contract: str) -> None:
    wrong = _disagreements(newest, boundary, contract)
    assert set(wrong) == DIFFERS.get(boundary, set()), wrong


@pytest.mark.parametrize(("boundary", "contract"), bound("verl"))
def test_oracle_and_boundary_agree_behind_padding(newest: Bound, boundary: str, contract: str) -> None:
    subject = newest.subject(boundary, contract)
    declared = subject.contract.input(subject.contract.mask)
    if declared is None or "right" not in declared.choices:
        pytest.skip("it takes no mask with padding")
    wrong = _disagreements(newest, boundary, contract, PADDED)
    assert set(wrong) == DIFFERS_BEHIND_PADDING.get(boundary, set()), wrong


def _scenario(plain: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The plain scenario with other values; lists become tensors of single precision."""
    made = {name: tensor(value, "float32") if isinstance(value, list) else value for name, value in changes.items()}
    return {**plain, **made}


def test_rewards_of_rejected_rows_move_the_others(anywhere: tuple[str, Bound]) -> None:
    """verl #6452, fixed at its head: whatever the estimator, a rejected row is an absent row."""
    sha, code = anywhere
    moved = set()
    for subject in code.subjects:
        if subject.contract.name != "group_advantage" or "passk" in subject.boundary:
            continue
        plain = code.scenarios(subject, [[0, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]])["plain"]
        rewards = [[0.0, 0.0, 0.0], [0.0, 0.0, -0.5], [0.0, 2.0, 0.0], [0.0, 0.0, 0.25]]
        baseline = {**_scenario(plain, token_level_rewards=rewards), "group": ["p", "p", "p", "q"]}
        other = _scenario(baseline, token_level_rewards=[[0.0, 0.0, 9.0], *rewards[1:]])
        trial = code.ask(subject, "a_rejected_row_is_an_absent_row", {"baseline": baseline, "changed": other})
        if trial.violations:
            moved.add(subject.boundary.rpartition(".")[2])
    leaks = {
        "compute_grpo_outcome_advantage",
        "compute_grpo_vectorized_outcome_advantage",
        "compute_reinforce_plus_plus_baseline_outcome_advantage",
        "compute_gdpo_outcome_advantage",
        "compute_rloo_outcome_advantage",
        "compute_rloo_vectorized_outcome_advantage",
        "compute_gpg_outcome_advantage",
        "compute_advantage",
    }
    assert moved == (set() if sha == FIX else leaks)


def test_a_reward_behind_the_mask_is_part_of_the_score(anywhere: tuple[str, Bound]) -> None:
    """https://github.com/verl-project/verl/pull/6362"""
    _, code = anywhere
    subject = code.subject(f"{CORE}.compute_rloo_outcome_advantage", "group_advantage")
    plain = code.scenarios(subject)["plain"]
    rows = {"response_mask": [[1.0, 0.0], [1.0, 1.0]], "token_level_rewards": [[0.0, 7.0], [0.0, 0.0]]}
    scenario = {**_scenario(plain, **rows), "group": ["p", "p"]}
    (violation, _) = code.ask(subject, "the_oracle_agrees", {"": scenario}).violations
    assert violation.observed.nested() == [[7.0, 0.0], [-7.0, -7.0]]
    assert violation.demanded.nested() == [[0.0, 0.0], [0.0, 0.0]]


def test_rloo_and_its_vectorised_twin_differ_about_a_group_of_one(main: Bound) -> None:
    """https://github.com/verl-project/verl/pull/7581"""
    subject = main.subject(f"{CORE}.compute_rloo_outcome_advantage", "group_advantage")
    plain = main.scenarios(subject)["plain"]
    scenario = {**_scenario(plain, response_mask=[[1.0]], token_level_rewards=[[1.0]]), "group": ["p"]}
    trial = main.ask(subject, "twins_agree", {"baseline": scenario, "twin": dict(scenario)})
    (violation, _) = trial.violations
    assert (compared_with(trial, violation).nested(), violation.observed.nested()) == ([[1.0]], [[0.0]])


def test_a_batch_without_a_valid_token_has_no_finite_loss(anywhere: tuple[str, Bound]) -> None:
    _, code = anywhere
    subject = code.subject(f"{CORE}.agg_loss", "loss_aggregation")
    for name, plain in code.scenarios(subject).items():
        if not name.startswith(("plain", "loss_agg_mode")):
            continue
        scenario = {**_scenario(plain, loss_mat=[[1.0]]), "response_mask": tensor([[0]], "int64")}
        found = code.ask(subject, "the_oracle_agrees", {"": scenario}).violations
        assert {item.symptom for item in found} == (set() if "token-sum" in name.split("=")[-1:] else {"non-finite"})


def test_the_ratio_that_is_kept_is_the_inverse(anywhere: tuple[str, Bound]) -> None:
    """https://github.com/verl-project/verl/pull/6377: a ratio of 1.28 is above 1.25, and kept."""
    _, code = anywhere
    subject = code.subject(REJECTION, "importance_weight")
    plain = code.scenarios(subject)["plain"]
    values = {"old_log_probs": [[-1.0]], "rollout_log_probs": [[-1.25]], "response_mask": [[1.0]]}
    scenario = _scenario(plain, **values, threshold_low=0.5, threshold_high=1.25)
    found = {item.key: item for item in code.ask(subject, "the_oracle_agrees", {"": scenario}).violations}
    assert (found["kept"].demanded.nested(), found["kept"].observed.nested()) == ([[0.0]], [[1.0]])


#: Two responses of one token each, and the second alone.
GEO: dict[str, Any] = {
    "advantages": [[1.0], [1.0]],
    "log_probs": [[-1.0], [-1.0]],
    "old_log_probs": [[-1.0], [-1.0]],
    "response_mask": [[1.0], [1.0]],
}
HALF = {name: value[1:] for name, value in GEO.items()}


def _policy(code: Bound, subject: Any, **changes: Any) -> dict[str, Any]:
    return _scenario(code.scenarios(subject)["plain"], importance_weights=None, **changes)


def test_a_rejected_row_halves_the_geometric_mean_loss(main: Bound) -> None:
    subject = main.subject(GEO_MEAN, "policy_loss")
    scenario = _policy(main, subject, **{**GEO, "response_mask": [[0.0], [1.0]]})
    variants = {"baseline": scenario, "without": _scenario(scenario, **HALF)}
    loss = main.ask(subject, "a_rejected_row_is_an_absent_row", variants).violations[0]
    assert "-0.5 in 'baseline', -1.0 in 'without'" in loss.detail


def test_microbatches_of_the_geometric_mean_loss_do_not_add_up(main: Bound) -> None:
    """https://github.com/verl-project/verl/issues/7913"""
    subject = main.subject(GEO_MEAN, "policy_loss")
    scenario = _policy(main, subject, **GEO, global_batch_size=2)
    half = _scenario(scenario, **HALF)
    found = main.ask(subject, "parts_add_up", {"baseline": scenario, "part_1": half, "part_2": dict(half)}).violations
    assert any("-1.0 in the whole, -2.0 in 2 parts together" in item.detail for item in found)


def test_the_geometric_mean_loss_counts_what_it_does_not_clip(main: Bound) -> None:
    """A negative advantage whose ratio rises is not clipped: the smaller of the two is the ratio itself."""
    subject = main.subject(GEO_MEAN, "policy_loss")
    one = {"advantages": [[-1.0]], "log_probs": [[-1.0]], "old_log_probs": [[-1.25]], "response_mask": [[1.0]]}
    scenario = _policy(main, subject, **one)
    (violation,) = main.ask(subject, "metrics_tell_the_truth", {"": scenario}).violations
    assert (violation.key, violation.observed, violation.demanded) == ("clip_fraction", 1.0, 0.0)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_dppo_counts_tokens_without_an_advantage_as_clipped(main: Bound, divergence: str) -> None:
    subject = main.subject(f"{CORE}.compute_policy_loss_dppo_{divergence}", "policy_loss")
    one = {"advantages": [[0.0]], "log_probs": [[-2.5]], "old_log_probs": [[-1.0]], "response_mask": [[1.0]]}
    scenario = _policy(main, subject, **one)
    (violation,) = main.ask(subject, "metrics_tell_the_truth", {"": scenario}).violations
    assert (violation.key, violation.observed, violation.demanded) == ("clip_fraction", 1.0, 0.0)


@pytest.fixture(scope="module")
def before_metrics() -> Iterator[Bound]:
    """Before #4062 a policy loss returned its metrics one by one."""
    yield from opened("verl", "52fc6747f4d52f7b1fca900dbb98a2caf93e0595")


@pytest.mark.parametrize("function", ["vanilla", "gpg"])
def test_policy_losses_that_return_their_metrics_one_by_one(before_metrics: Bound, function: str) -> None:
    subject = before_metrics.subject(f"{CORE}.compute_policy_loss_{function}", "policy_loss")
    differing = before_metrics.disagreements(subject, None)
    assert "plain" not in differing  # metrics and all; some modes and options came later


@pytest.fixture(scope="module")
def before_masks() -> Iterator[Bound]:
    """Before #878 the mask of responses was called ``eos_mask``, and GRPO always divided by the standard deviation."""
    yield from opened("verl", "a65c9157bc0b85b64cd753de19f94e80a11bd871")


@pytest.mark.parametrize(
    ("function", "contract"),
    [("grpo_outcome_advantage", "group_advantage"), ("gae_advantage_return", "generalised_advantage")],
)
def test_advantages_that_took_the_mask_by_its_first_name(before_masks: Bound, function: str, contract: str) -> None:
    differing = before_masks.disagreements(before_masks.subject(f"{CORE}.compute_{function}", contract), None)
    assert "plain" not in differing


def test_what_is_not_finite_behind_the_mask_reaches_the_loss(main: Bound) -> None:
    """https://github.com/verl-project/verl/pull/6349"""
    subject = main.subject(f"{CORE}.agg_loss", "loss_aggregation")
    plain = main.scenarios(subject)["loss_agg_mode=seq-mean-token-sum"]
    scenario = {**_scenario(plain, loss_mat=[[1.0, 1.0]]), "response_mask": tensor([[1, 0]], "int64")}
    outlier = _scenario(scenario, loss_mat=[[1.0, float("inf")]])
    variants = {"baseline": scenario, "outlier": outlier}
    found = main.ask(subject, "masked_values_have_no_influence", variants).violations
    assert {item.symptom for item in found} == {"non-finite"}
