"""SkyRL's bindings beside the oracles: they agree on scenarios made by hand, and differ where it is said here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from binding_kit import NUMBERS, Bound, at, bound, compared_with, opened

from sentinel.contracts.contract import DoesNotApply
from sentinel.deciding.law_session import Trial, Undecidable
from sentinel.values.literals import from_array, tensor

MAIN = "a9564572eb8e91076be43c1bd5e4615e3de17265"
HEAD = "fda3c7352e2afe9fb9686362530426945a2ee84e"  # of #1811
BASE = "e713bdeb237640e89f8ce8728394caf7f4ae11d8"

PPO = "skyrl.backends.skyrl_train.utils.ppo_utils"
TORCH = "skyrl.backends.skyrl_train.utils.torch_utils"
OFF_POLICY = "skyrl.backends.skyrl_train.utils.off_policy_correction_utils"
WORKERS = "skyrl.backends.skyrl_train.workers"
WORKER = f"{WORKERS}.worker.PolicyWorkerBase._forward_backward_micro"
WRAPPER = f"{WORKERS}.megatron.megatron_model_wrapper.MegatronModelWrapper"
PADDING = f"{WORKERS}.worker_utils.TokenBasedBatchIterator._create_padding_microbatch"
TRAINER = "skyrl.train.trainer.RayPPOTrainer"
CHECK = "skyrl.train.utils.utils.validate_cfg"

#: Response-level tensors are right-aligned.
LEFT = [[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]]
GAPS = [[1, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 1]]

#: Contracts whose scenarios are no tensors: what their laws find has tests of its own below.
OF_SETTINGS = ("batch_surgery", "configuration_check", "training_input", "device_placement")
#: What main no longer has, all of it at a commit before SkyRL moved.
BEFORE = "6ecf87862b8b0694d4c2475a17c1a2ec7a9cc4f5"
FORMER = [item for item in bound("skyrl") if item.values[0].startswith("skyrl_train.")]
OF_TENSORS = [
    item
    for item in bound("skyrl")
    if item.values[1] not in (*OF_SETTINGS, "rollout_kl")
    and item not in FORMER
    and not item.values[0].endswith(".normalize_advantages_dict")
]


@pytest.fixture(scope="module", params=at(base=BASE, head=HEAD, main=MAIN))
def anywhere(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bound]]:
    for code in opened("skyrl", request.param):
        yield request.param, code


def _disagreements(code: Bound, boundary: str, contract: str, mask: list[list[int]] | None = None) -> dict[str, str]:
    try:
        return code.disagreements(code.subject(boundary, contract), mask)
    except DoesNotApply as error:
        pytest.skip(str(error))
    except Undecidable as error:
        if error.failure.kind != "not-in-this-version":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def before() -> Iterator[Bound]:
    yield from opened("skyrl", BEFORE)


@pytest.mark.parametrize(("boundary", "contract"), FORMER)
def test_oracle_and_boundary_agreed_before_it_moved(before: Bound, boundary: str, contract: str) -> None:
    if boundary.endswith(".sapo_policy_loss"):
        pytest.skip("it came in the weeks between")
    assert _disagreements(before, boundary, contract) == {}


@pytest.mark.parametrize(("boundary", "contract"), OF_TENSORS)
def test_oracle_and_boundary_agree(anywhere: tuple[str, Bound], boundary: str, contract: str) -> None:
    wrong = _disagreements(anywhere[1], boundary, contract)
    if boundary.endswith(".handle_filter_sampling") and anywhere[0] == MAIN:
        # Since #1908 a batch of which no group is left ends the training: see SKYRL-DYNAMIC-SAMPLING-NO-GROUP-LEFT.
        assert wrong.pop("plain").endswith("indices must be non-empty")
    assert wrong == {}


@pytest.mark.parametrize(("boundary", "contract"), OF_TENSORS)
def test_oracle_and_boundary_agree_behind_a_mask_with_gaps(
    anywhere: tuple[str, Bound], boundary: str, contract: str
) -> None:
    declared = anywhere[1].subject(boundary, contract).contract
    mask = declared.input(declared.mask)
    if mask is None or "gaps" not in mask.choices:
        pytest.skip("its mask has no gaps")
    assert _disagreements(anywhere[1], boundary, contract, GAPS) == {}


@pytest.mark.parametrize(
    ("boundary", "contract"),
    [
        (f"{PPO}.compute_gae_advantage_return", "generalised_advantage"),
        (f"{PPO}.compute_reinforce_plus_plus_outcome_advantage", "discounted_return"),
        (f"{PPO}.compute_grpo_outcome_advantage", "group_advantage"),
        (f"{PPO}.compute_rloo_outcome_advantage", "group_advantage"),
        (f"{PPO}.compute_maxrl_advantage", "group_advantage"),
    ],
)
def test_estimators_agree_behind_padding_on_the_left(anywhere: tuple[str, Bound], boundary: str, contract: str) -> None:
    code = anywhere[1]
    subject = code.subject(boundary, contract)
    rewards = [[0.0, 0.0, abs(row[-1])] for row in NUMBERS["token_level_rewards"]]
    for inputs in code.scenarios(subject, LEFT).values():
        scenario = {**inputs, "token_level_rewards": tensor(rewards, "float32")}
        assert not code.ask(subject, "the_oracle_agrees", {"": scenario}).violations


@pytest.mark.parametrize("boundary", [WORKER, f"{WRAPPER}.forward_backward_mini_batch"])
def test_the_rollout_kl_agrees_where_it_exists(anywhere: tuple[str, Bound], boundary: str) -> None:
    sha, code = anywhere
    if sha != HEAD:
        with pytest.raises(Undecidable, match="not in this version"):
            code.disagreements(code.subject(boundary, "rollout_kl"), GAPS)
        return
    said = code.disagreements(code.subject(boundary, "rollout_kl"), GAPS)
    assert {name: what for name, what in said.items() if "is a rounding off" not in what} == {}


@pytest.mark.parametrize(
    ("boundary", "contract", "inputs"),
    [
        (f"{PPO}.compute_approx_kl", "kl_estimate", {"kl_estimator": "k3", "clamp": None}),
        (f"{PPO}.compute_gae_advantage_return", "generalised_advantage", {"whiten": False}),
        (f"{PPO}.compute_reinforce_plus_plus_outcome_advantage", "discounted_return", {"whiten": False}),
        (f"{PPO}.ppo_critic_loss", "value_loss", {"factor": 1.0}),
        (f"{TRAINER}._normalize_advantages", "advantage_normalisation", {"std": "unbiased"}),
        (f"{PPO}.ppo_policy_loss", "policy_loss", {"algorithm": "cispo"}),
        (f"{PPO}.gspo_policy_loss", "policy_loss", {"algorithm": "ppo"}),
        (f"{PPO}.sapo_policy_loss", "policy_loss", {"algorithm": "ppo"}),
        (f"{PPO}.compute_policy_loss_cispo", "policy_loss", {"algorithm": "cispo_unified"}),
        (f"{PPO}.rollout_is_policy_loss", "policy_loss", {"algorithm": "cispo"}),
        (f"{PPO}.importance_sampling_loss", "policy_loss", {"algorithm": "reinforce"}),
        (f"{PPO}.cross_entropy_loss", "policy_loss", {"algorithm": "reinforce"}),
        (f"{PPO}.compute_rloo_outcome_advantage", "group_advantage", {"estimator": "grpo"}),
        (f"{PPO}.masked_whiten", "masked_statistics", {"unbiased": False}),
    ],
)
def test_what_is_fixed_or_a_dialect_is_there(
    anywhere: tuple[str, Bound], boundary: str, contract: str, inputs: Mapping[str, Any]
) -> None:
    """The oracle of something else does not agree."""
    code = anywhere[1]
    subject = code.subject(boundary, contract)
    scenario = {**code.scenarios(subject)["plain"], **inputs}
    if contract == "kl_estimate":
        scenario |= {"log_probs": tensor([[-20.0]], "float32"), "ref_log_probs": tensor([[-1.0]], "float32")}
        scenario["response_mask"] = tensor([[1.0]], "float32")
    assert code.ask(subject, "the_oracle_agrees", {"": scenario}).violations


# -- what the laws find -----------------------------------------------------------------------------------------------


def _trial(code: Bound, boundary: str, contract: str, law: str, *variants: Mapping[str, Any]) -> Trial:
    """What a law says of the plain scenario with these changes; of several, the first is the baseline."""
    subject = code.subject(boundary, contract)
    plain = code.scenarios(subject)["plain"]
    names = ["baseline", "outlier"] if len(variants) > 1 else [""]
    return code.ask(subject, law, {n: {**plain, **inputs} for n, inputs in zip(names, variants)})


def _violations(code: Bound, boundary: str, contract: str, law: str, *variants: Mapping[str, Any]) -> list[Any]:
    return list(_trial(code, boundary, contract, law, *variants).violations)


def _row(*numbers: float) -> Any:
    return tensor([list(numbers)], "float32")


def test_the_mean_of_advantages_is_over_padding_too(anywhere: tuple[str, Bound]) -> None:
    """NovaSky-AI/SkyRL#1305, open: the mean is over all positions, the variance over those of responses."""
    boundary, mask = f"{TRAINER}._normalize_advantages", {"response_mask": _row(0, 1)}
    law = "masked_values_have_no_influence"
    trial = _trial(
        anywhere[1],
        boundary,
        "advantage_normalisation",
        law,
        {**mask, "advantages": _row(1, 1)},
        {**mask, "advantages": _row(7, 1)},
    )
    (violation,) = trial.violations
    assert violation.observed.nested() == [[0.0, -1.0]]
    assert compared_with(trial, violation).nested() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("boundary", "contract", "name", "key"),
    [
        (f"{PPO}.reduce_loss", "loss_aggregation", "loss_mat", "loss"),
        (f"{TORCH}.masked_mean", "masked_statistics", "values", "statistic"),
    ],
)
def test_a_mask_is_a_factor_so_that_nan_passes(
    anywhere: tuple[str, Bound], boundary: str, contract: str, name: str, key: str
) -> None:
    """The cause of #1633 (NaN on tokens of filtered rows), which #1635 took out of compute_approx_kl alone."""
    mask = {"response_mask": tensor([[1, 0]], "int64")}
    rows = ({**mask, name: _row(1, 2)}, {**mask, name: _row(1, math.nan)})
    found = _violations(anywhere[1], boundary, contract, "masked_values_have_no_influence", *rows)
    assert {(item.key, item.symptom) for item in found} == {(f"outlier.{key}", "non-finite")}


def test_a_sequence_with_nan_behind_its_mask_is_kept_whatever_its_ratio(anywhere: tuple[str, Bound]) -> None:
    """NaN is neither above the upper threshold nor below the lower one."""
    shared = {"response_mask": _row(1, 0), "level": "geometric", "threshold_low": 0.5, "threshold_high": 2.0}
    shared |= {"rollout_log_probs": _row(-2, -1)}
    law, boundary = "masked_values_have_no_influence", f"{OFF_POLICY}.compute_sequence_mask"
    rows = ({**shared, "old_log_probs": _row(-1, -1)}, {**shared, "old_log_probs": _row(-1, math.nan)})
    trial = _trial(anywhere[1], boundary, "importance_weight", law, *rows)
    violation = trial.violations[0]
    assert violation.observed.nested() == [[1.0, 0.0]]
    assert compared_with(trial, violation).nested() == [[0.0, 0.0]]


def test_k2_has_a_gradient_of_nan_behind_the_mask(anywhere: tuple[str, Bound]) -> None:
    shared = {"kl_estimator": "k2", "response_mask": _row(1, 0), "ref_log_probs": _row(-1, -1), "clamp": None}
    rows = ({**shared, "log_probs": _row(-1, -1)}, {**shared, "log_probs": _row(-1, math.nan)})
    law = "masked_values_have_no_influence"
    found = _violations(anywhere[1], f"{PPO}.compute_approx_kl", "kl_estimate", law, *rows)
    assert {(item.key, item.symptom) for item in found} == {("outlier.per_token_gradient", "non-finite")}


def test_importance_sampling_overflows_on_a_masked_token(anywhere: tuple[str, Bound]) -> None:
    """Every other ratio is cut before its exponential; here exp(90) is infinite, and 0 times it is NaN."""
    inputs = {"log_probs": _row(-1, -1), "old_log_probs": _row(-1, -91), "advantages": _row(1, 1)}
    inputs["response_mask"] = _row(1, 0)
    boundary = f"{PPO}.importance_sampling_loss"
    found = _violations(anywhere[1], boundary, "policy_loss", "finite_in_finite_out", inputs)
    assert ("loss", "non-finite") in {(item.key, item.symptom) for item in found}


def test_the_driver_asks_two_of_four_corrections_for_log_probs(anywhere: tuple[str, Bound]) -> None:
    """Without log-probs the other two do nothing, and nobody says so."""
    code = anywhere[1]
    subject = code.subject(f"{TRAINER}.convert_to_training_input", "training_input")
    silent = []
    for inputs in code.scenarios(subject).values():
        trial = code.ask(subject, "the_oracle_agrees", {"": inputs})
        silent += [option.rpartition(".")[2] for option in inputs["needing"]] if trial.violations else []
    masks = ["outlier_token_is_threshold_high", "token_mask_is_threshold_low", "token_mask_is_threshold_high"]
    assert silent == [*masks, "policy_loss_type"]  # rollout_is fails loudly, if late: in a worker


def test_which_misspelt_names_the_check_lets_pass(anywhere: tuple[str, Bound]) -> None:
    sha, code = anywhere
    subject = code.subject(CHECK, "configuration_check")
    plain = code.scenarios(subject)["plain"]
    passing = set()
    for option, of in plain["named_options"].items():
        scenario = {**plain, "configuration": {**of["with"], option: "misspelt"}}
        trial = code.ask(subject, "the_oracle_agrees", {"": scenario})
        passing |= {option.partition("algorithm.")[2]} if trial.violations else set()
    option = {"rollout_kl_estimator_type"} if sha == HEAD else set()
    assert passing == {"kl_estimator_type", "dynamic_sampling.type", *option}


def test_terms_that_are_off_are_zeros_on_the_cpu(anywhere: tuple[str, Bound]) -> None:
    sha, code = anywhere
    subject = code.subject(WORKER, "device_placement")
    zeros = {}
    for name, inputs in code.scenarios(subject).items():
        found = code.ask(subject, "the_oracle_agrees", {"": inputs}).violations
        zeros[name] = next((item.observed for item in found if item.key == "created_off_device"), 0)
    more = 1 if sha == HEAD else 0  # which has one term more, and it is off
    assert list(zeros.values()) == [more, more + 1, more + 1, more + 2]


def test_what_padding_lacks(anywhere: tuple[str, Bound]) -> None:
    """And of loss_mask the dtype, everywhere: int64 beside the float32 of the schema."""
    sha, code = anywhere
    subject = code.subject(PADDING, "batch_surgery")
    plain = code.scenarios(subject)["plain"]
    optional = {
        "rollout_logprobs": tensor([[-1.0]], "float32"),
        "rollout_expert_indices": from_array(tensor([[[[1]], [[2]]]], "int64").array(), "uint8"),
    }
    found = code.ask(subject, "fields_survive_surgery", {"": {**plain, "optional_fields": optional}}).violations
    lacking = {BASE: ["rollout_expert_indices", "rollout_logprobs"], HEAD: ["rollout_expert_indices"]}.get(sha, [])
    assert {item.symptom: item.observed for item in found} == {
        "dtype": ["loss_mask"],
        **({"dropped": lacking} if lacking else {}),
    }
