"""Bindings agree with the oracle on hand-made scenarios, except for the differences listed here.

Recipes describe what is wrong at a revision. ``test_twins.py`` shows that a binding would detect a fault.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from binding_kit import MAIN, Bound, Open, once_each, opened, skip_without_python, target_of

from sentinel.contracts.contract import DoesNotApply
from sentinel.deciding.law_session import Undecidable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.values.literals import tensor

VERL = "verl.trainer.ppo.core_algos"
ROLL = "roll.utils.functionals"
STEP = "areal.trainer.ppo.actor.PPOActor._compute_advantages"
FSDP = "slime.backends.fsdp_utils.actor"
LOSS = "slime.backends.megatron_utils.loss"
PPO = "skyrl.backends.skyrl_train.utils.ppo_utils"

#: Boundary that main lacks, or a boundary and its contract -> a commit that has it.
ELSEWHERE = {
    "verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy": "7af2ada5fc56bcffa935d88ffb5548c42a721333",
    "verl.workers.actor.dp_actor.DataParallelPPOActor.compute_log_prob": "b4aa2dce8fbb8ccd511cac468cbee4dd16d59653",
    "verl.workers.critic.dp_critic.DataParallelPPOCritic.compute_values": "aa11dd19b3a374042321db397046e06c23fa1bed",
    "verl.trainer.ppo.mismatch_helper.compute_rollout_importance_weights": "4424616d7dfe03cc564866dc5e99dfaba1daba2e",
    f"{VERL}._masked_reward_sum": "eb2a6a0fef7dc5127c9704fab1d876b55810c1b9",  # the head of #6362
    f"{ROLL}.batch_reward_norm": "541d7f6d7812da483832e87b56aa65a87aeceb2f",
    "areal.trainer.ppo.actor.PPOActor._compute_logp token_log_probs": "abc85aba2f3b1d486b23781242bce9d8bc726b23",
    "areal.utils.functional.dynamic_sampling": "abc85aba2f3b1d486b23781242bce9d8bc726b23",
    "slime.utils.ppo_utils.get_advantages_and_returns": "2091f7af3f767cc63e15783ceda3f5809829be34",
    "slime.utils.ppo_utils.vanilla_tis_function": "f37bbfeaebecd4f8bb3e9a08dac880cd93835406",
    f"{FSDP}.sum_of_sample_mean": "f37bbfeaebecd4f8bb3e9a08dac880cd93835406",
    f"{FSDP}.sum_of_token": "f37bbfeaebecd4f8bb3e9a08dac880cd93835406",
    f"{FSDP}.get_logprob_and_entropy_with_cp": "2a3969205ce37785b0a9f428a3c3ab1ea6422169",
    f"{FSDP}.FSDPTrainRayActor.compute_log_prob": "4e08faaa319fe01f5cec174203324c6e0bb23660",
    f"{LOSS}.get_pg_loss_reducer": "6f708931c34b78db6dd5c18334f4ec34a869447f",  # the head of #2090, not merged
}
#: SkyRL as it was before it moved, and the head of #1811.
BEFORE, KL_HEAD = "6ecf87862b8b0694d4c2475a17c1a2ec7a9cc4f5", "fda3c7352e2afe9fb9686362530426945a2ee84e"

#: Contracts whose scenarios are not hand-made; recipes have them.
BY_RECIPES = ("advantage_step", "batch_surgery", "training_input")
#: At another commit, because the code existed only for some weeks.
NOWHERE = ("skyrl_train.utils.ppo_utils.sapo_policy_loss", f"{PPO}.normalize_advantages_dict")
#: Selects tokens by covariance; two of them are equal in the simplest scenario.
TIED = ("kl_cov",)
#: Errors for settings that a revision or a contract does not have, and a difference that is only rounding.
SAID = (
    "has no IcePop",
    "the contract does not define rejection by the largest ratio of a sequence",
    "weights are clamped from above",
    "has rounding errors",
)

#: All scenarios of a dataset that trains the last answer of a chat.
_EVERY_CHAT = {"plain", "default_system=True", "tools_share_a_turn=True"}
#: boundary -> the scenarios in which it differs from the oracle.
DIFFERS: dict[str, set[str]] = {
    # Rows are sorted by length again, across the minibatches that keep_minibatch should preserve.
    "verl.trainer.ppo.ray_trainer.RayPPOTrainer._balance_batch": {"keep_minibatches=True"},
    f"{ROLL}.batch_balance": {"keep_minibatches=True"},
    "verl.utils.seqlen_balancing.prepare_dynamic_batch": {"max_tokens_per_microbatch=5"},
    # https://github.com/verl-project/verl/issues/7913: the mean over the microbatch, whatever the global counts are.
    f"{VERL}.compute_policy_loss_geo_mean": {"global_batch_size=2"},
    # ROLL-AGENTIC-SCHEDULE-COUNTS-TRAJECTORIES
    "roll.pipeline.agentic.agentic_config.AgenticConfig.set_max_steps": {"turns=3"},
    # SLIME-PPO-CONTEXT-PARALLEL-REWARD: on two ranks, the reward is in the middle of a short response.
    f"{LOSS}.compute_advantages_and_returns generalised_advantage": {"context_parallel_size=2"},
    # https://github.com/verl-project/verl/pull/5797: the packed mask is shifted across sequences.
    "verl.workers.utils.losses.sft_loss": {"first_counts=True"},
    # https://github.com/verl-project/verl/pull/6735: two microbatches are enough for the tokens, but not for these
    # rows.
    "verl.utils.seqlen_balancing.rearrange_micro_batches": {"max_tokens_per_microbatch=5"},
    # https://github.com/verl-project/verl/pull/6309: an answer that fits exactly is dropped.
    # #2741 fixed this in the datasets' collate_fn: lists of equal length in a minibatch become one array.
    "verl.protocol.DataProto.make_iterator": {
        *("plain", "epochs=1", "epochs=3", "minibatch_size=1", "minibatch_size=3", "shuffle=True", "seed=1", "seed=7")
    },
    # https://github.com/verl-project/verl/pull/6497: it whitens over tokens, not over responses.
    f"{VERL}.compute_gdpo_outcome_advantage": {"plain", "epsilon=0.5", "norm_by_std=False"},
    # Options that no engine receives: see the recipes whose names end in -IGNORED.
    "verl.experimental.agent_loop.agent_loop.AgentLoopWorker.generate_sequences": {
        *("repetition_penalty=1.5", "ignore_eos=True", "greedy=True")
    },
    # Some log-probs are equal here. The adapter refuses this, because rounding would give them a gradient.
    "skyrl.backends.skyrl_train.workers.megatron.megatron_model_wrapper."
    "MegatronModelWrapper.forward_backward_mini_batch rollout_kl": {"kl_estimator=abs"},
    # ROLL-DISTILL-DIVERGENCE-MASK-ONE-LATE
    "roll.pipeline.distill.distill_worker.StudentWorker.loss_func": {
        *("plain", "beta=1.0", "beta=0.5", "temperature=2.0", "batch_num_tokens=0", "batch_num_tokens=3")
    },
    "areal.engine.sglang_remote.SGLangBackend.build_generation_request": {"min_new_tokens=3"},
    "areal.engine.vllm_remote.VLLMBackend.build_generation_request": {"min_new_tokens=3"},
    "roll.distributed.strategy.vllm_strategy.create_sampling_params_for_vllm": {"greedy=True"},
    "roll.distributed.strategy.sglang_strategy.create_sampling_params_for_sglang": {"greedy=True"},
    # If a rule returns a record, every score of the batch is 0: see VERL-PRIME-RECORDS-SCORE-NOTHING.
    "verl.workers.reward_manager.prime.PrimeRewardManager.__call__": {"score_as=record"},
    # Only the last number of a truth with a root counts: see AREAL-GEOMETRY3K-LAST-NUMBER.
    "areal.reward.geometry3k.geometry3k_reward_fn": {"ground_truth=5 \\sqrt { 3 }"},
    # The mask covers as many tokens as the answer has, but the end token follows the answer, so its first token is
    # not trained.
    "areal.dataset.clevr_count_70k.get_clevr_count_70k_sft_dataset": _EVERY_CHAT,
    "areal.dataset.geometry3k.get_geometry3k_sft_dataset": _EVERY_CHAT,
    # https://github.com/areal-project/AReaL/issues/1728: the teacher's log-probs are one position late.
    "areal.infra.remote_inf_engine.RemoteInfEngine.compute_logp": {"plain"},
    # See slime's recipes.
    f"{LOSS}.get_responses": {"temperature=0.0"},
    f"{LOSS}.get_log_probs_and_entropy": {"temperature=0.0"},
    "slime.rollout.rm_hub.async_rm": {"rule=boxed_math"},
    "slime.rollout.rm_hub.math_utils.grade_answer_verl": {"wording=bare"},
    # The end of a response loses its log-prob: see SKYRL-END-TOKEN-LOGPROB-ZERO.
    "skyrl.train.generators.skyrl_gym_generator.SkyRLGymGenerator.agent_loop rollout": {"heard_as=text"},
    # A batch without a remaining group ends the training: see SKYRL-DYNAMIC-SAMPLING-NO-GROUP-LEFT.
    "skyrl.train.utils.trainer_utils.handle_filter_sampling": {"plain"},
}
#: The scenarios that differ with padding, if they are not those above: shorter rows fit, and one token axis differs.
BEHIND_PADDING: dict[str, set[str]] = {
    "verl.utils.seqlen_balancing.rearrange_micro_batches": set(),
    "verl.utils.seqlen_balancing.prepare_dynamic_batch": set(),
    "areal.utils.functional.masked_normalization": {"axis=token"},
}
PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]
GAPS = [[1, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 1]]
#: A commit at which ROLL's token means are right (#444). A recipe covers its critic's values on padding.
ROLL_FIX = "f67f5d31074bf71ff44ef674eaa2ebddfa57783d"


def _bound() -> list[Any]:
    """Return all searchable bindings as parameters, including those of code that main lacks. The first of each contract
    is tested in every run, the others in nightly runs.
    """
    seen: set[str] = set()
    params = []
    for target in MAIN:
        for each in subjects(bundled_catalog(), target)[0]:
            boundary, contract = each.boundary, each.contract.name
            if contract in BY_RECIPES or boundary in NOWHERE:
                continue
            old = {boundary, f"{boundary} {contract}"} & {*ELSEWHERE} or boundary.startswith("skyrl_train.")
            old = old or contract == "rollout_kl"
            marks = pytest.mark.nightly if old or contract in seen else ()
            params.append(pytest.param(boundary, contract, id=f"{boundary}-{contract}", marks=marks))
            seen |= set() if old else {contract}
    return params


@pytest.fixture(scope="module")
def code() -> Iterator[Open]:
    yield from once_each(opened)


def _at(code: Open, boundary: str, contract: str, commits: Mapping[str, str] = MAIN) -> Bound:
    """Return the commit at which a boundary is tested."""
    if contract == "rollout_kl":
        return code("skyrl", KL_HEAD)
    if boundary.startswith("skyrl_train."):
        return code("skyrl", BEFORE)
    target = target_of(boundary)
    skip_without_python(target)
    return code(target, ELSEWHERE.get(f"{boundary} {contract}", ELSEWHERE.get(boundary, commits[target])))


def _differing(bound: Bound, boundary: str, contract: str, mask: Any = None) -> dict[str, str]:
    try:
        wrong = bound.disagreements(bound.subject(boundary, contract), mask)
    except DoesNotApply:
        assert any(name in boundary for name in TIED)
        pytest.skip("rounding decides which tokens it takes")
    except Undecidable as error:
        if error.failure.kind != "not-in-this-version":
            raise
        pytest.skip(str(error))
    return {name: what for name, what in wrong.items() if not any(said in what for said in SAID)}


@pytest.mark.parametrize(("boundary", "contract"), _bound())
def test_oracle_and_boundary_agree(code, boundary, contract):
    wrong = _differing(_at(code, boundary, contract), boundary, contract)
    assert set(wrong) == DIFFERS.get(f"{boundary} {contract}", DIFFERS.get(boundary, set())), wrong


@pytest.mark.parametrize(("boundary", "contract"), _bound())
def test_oracle_and_boundary_agree_with_a_mask(code, boundary, contract):
    """With padding on the right; SkyRL pads on the left, and has gaps."""
    bound = _at(code, boundary, contract, {**MAIN, "roll": ROLL_FIX})
    subject = bound.subject(boundary, contract)
    declared = subject.contract.input(subject.contract.mask)
    kind = "gaps" if target_of(boundary) == "skyrl" else "right"
    if declared is None or kind not in declared.choices:
        pytest.skip(f"it takes no mask like that: {kind}")
    if boundary.startswith("roll.") and contract == "generalised_advantage":
        pytest.skip("what the critic says of padding is in it")
    wrong = _differing(bound, boundary, contract, GAPS if kind == "gaps" else PADDED)
    differs = {**DIFFERS, **BEHIND_PADDING}
    assert set(wrong) == differs.get(f"{boundary} {contract}", differs.get(boundary, set())), wrong


@pytest.mark.parametrize(
    ("boundary", "contract", "inputs"),
    [
        (f"{PPO}.compute_gae_advantage_return", "generalised_advantage", {"whiten": False}),
        (f"{PPO}.compute_reinforce_plus_plus_outcome_advantage", "discounted_return", {"whiten": False}),
        (f"{PPO}.ppo_critic_loss", "value_loss", {"factor": 1.0}),
        (f"{PPO}.ppo_policy_loss", "policy_loss", {"algorithm": "cispo"}),
        (f"{PPO}.gspo_policy_loss", "policy_loss", {"algorithm": "ppo"}),
        (f"{PPO}.rollout_is_policy_loss", "policy_loss", {"algorithm": "cispo"}),
        (f"{PPO}.cross_entropy_loss", "policy_loss", {"algorithm": "reinforce"}),
        (f"{PPO}.compute_rloo_outcome_advantage", "group_advantage", {"estimator": "grpo"}),
        (f"{PPO}.masked_whiten", "masked_statistics", {"unbiased": False}),
    ],
)
def test_the_oracle_of_another_contract_does_not_agree(code, boundary, contract, inputs):
    """This shows that a binding's fixed inputs and dialects describe its own code and not any code."""
    bound = _at(code, boundary, contract)
    subject = bound.subject(boundary, contract)
    scenario = {**bound.scenarios(subject)["plain"], **inputs}
    assert bound.ask(subject, "the_oracle_agrees", {"": scenario}).violations


@pytest.mark.parametrize(
    "changes",
    [
        {"discount": 0.5, "gae_lambda": 0.5},
        {"reward_bias": 0.5, "reward_scaling": 2.0, "reward_clip": 1.0},
        {"reward_norm": {"mean_level": "batch", "std_level": "batch", "eps": 1e-5}},
        {"reward_norm": {"mean_level": "group", "std_level": "group", "std_unbiased": False, "mean_leave1out": True}},
        {"adv_norm": {"mean_level": "batch", "std_level": "batch", "eps": 1e-5}},
        {"timestep": "turn", "gae_lambda": 0.5},
        {"timestep": "turn", "lambda_rule": "by_length"},
        {"lambda_rule": "by_length"},
        {"overlong_tokens": 2},
    ],
    ids=str,
)
def test_areals_whole_step_agrees(code, changes):
    """Three rows: full, padded, and one with a tool's output between two turns."""
    bound = code("areal", MAIN["areal"])
    subject = bound.subject(STEP, "advantage_step")
    inputs: dict[str, Any] = {
        "attention_mask": tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]], "int64"),
        "loss_mask": tensor(
            [[False, True, True, True], [False, True, True, False], [False, True, False, True]], "bool"
        ),
        "rewards": tensor([1.0, -0.5, 2.0], "float32"),
        "group": ["p", "p", "p"],
    }
    for item in subject.contract.inputs:
        if item.name not in inputs:
            inputs[item.name] = item.default(inputs) if callable(item.default) else item.default
    trial = bound.ask(subject, "the_oracle_agrees", {"": {**inputs, **changes}})
    assert (trial.violations, trial.refused) == ((), "")
