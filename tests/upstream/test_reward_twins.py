"""Boundaries that price and filter responses: a broken twin of the real code is not what the oracle says, and the real
code is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest
from binding_kit import Bound, opened, opened_twin
from twins import Edit

from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects

PADDED = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]

_MANAGERS = "verl.workers.reward_manager"
_LOOP = "verl.experimental.reward_loop.reward_manager"
_OLD, _NEW = _MANAGERS.replace(".", "/"), _LOOP.replace(".", "/")
_RULES = "verl.utils.reward_score"
_RULED = _RULES.replace(".", "/")
_GYM, _ENVIRONMENTS = "skyrl_gym.envs", "skyrl-gym/skyrl_gym/envs"
_HUB, _GRADERS = "slime.rollout.rm_hub", "slime/rollout/rm_hub"
_WORKERS, _REWARDS = "roll.pipeline.rlvr.rewards", "roll/pipeline/rlvr/rewards"

_FUNCTIONALS = "roll.utils.functionals"
_ROLL = "roll/utils/functionals.py"
_SKYRL = "skyrl/train/utils/trainer_utils.py"

#: target -> a commit of its main.
MAIN = {
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
}
#: A boundary and its contract; a file, what stands there once, and what is put in its place.
TWINS: list[tuple[str, str, Edit]] = [
    (
        f"{_MANAGERS}.naive.NaiveRewardManager.__call__",
        "token_reward",
        (f"{_OLD}/naive.py", "reward_tensor[i, valid_response_length - 1]", "reward_tensor[i, -1]"),
    ),
    (
        f"{_MANAGERS}.batch.BatchRewardManager.__call__",
        "token_reward",
        (f"{_OLD}/batch.py", "reward_tensor[i, length - 1] = reward", "reward_tensor[0, length - 1] = reward"),
    ),
    (
        f"{_MANAGERS}.prime.PrimeRewardManager.__call__",
        "token_reward",
        (f"{_OLD}/prime.py", "scores.append(float(result))", "scores.insert(0, float(result))"),
    ),
    (
        f"{_LOOP}.base.RewardManagerBase.assemble_rm_scores",
        "token_reward",
        (f"{_NEW}/base.py", "valid_response_length - 1]", "valid_response_length - 2]"),
    ),
    (
        f"{_LOOP}.naive.NaiveRewardManager.run_single",
        "token_reward",
        (f"{_NEW}/naive.py", "response_ids[:valid_response_length]", "response_ids[:1]"),
    ),
    (
        f"{_MANAGERS}.dapo.DAPORewardManager.__call__",
        "token_reward",
        (f"{_OLD}/dapo.py", "reward_tensor[i, valid_response_length - 1]", "reward_tensor[i, -1]"),
    ),
    (
        f"{_LOOP}.dapo.DAPORewardManager.run_single",
        "token_reward",
        (f"{_NEW}/dapo.py", 'score = result["score"]', 'score = float(result["acc"])'),
    ),
    (
        f"{_LOOP}.gdpo.GDPORewardManager.run_single",
        "token_reward",
        (f"{_NEW}/gdpo.py", "response_ids[:valid_response_length]", "response_ids[:1]"),
    ),
    (
        f"{_MANAGERS}.dapo.DAPORewardManager.__call__",
        "overlong_penalty",
        (f"{_OLD}/dapo.py", "valid_response_length - expected_len", "valid_response_length - self.max_resp_len"),
    ),
    (
        f"{_LOOP}.dapo.DAPORewardManager.run_single",
        "overlong_penalty",
        (f"{_NEW}/dapo.py", "* overlong_penalty_factor, 0)", ", 0)"),
    ),
    (
        f"{_RULES}.gsm8k.compute_score",
        "rule_reward",
        (f"{_RULED}/gsm8k.py", "if answer == ground_truth:", "if answer != ground_truth:"),
    ),
    (
        f"{_RULES}.math_dapo.compute_score",
        "rule_reward",
        (f"{_RULED}/math_dapo.py", "1.0 if correct else -1.0", "-1.0 if correct else 1.0"),
    ),
    (
        f"{_RULES}.math_reward.compute_score",
        "rule_reward",
        (f"{_RULED}/math_reward.py", "if is_equiv(answer, ground_truth):", "if is_equiv(answer, answer):"),
    ),
    (
        f"{_RULES}.prime_math.compute_score",
        "rule_reward",
        (
            f"{_RULED}/prime_math/__init__.py",
            "if grade_answer(extracted_model_output, ground_truth):",
            "if grade_answer(ground_truth, ground_truth):",
        ),
    ),
    (
        f"{_RULES}.search_r1_like_qa_em.compute_score",
        "rule_reward",
        (f"{_RULED}/search_r1_like_qa_em.py", "if golden_answer == normalized", "if golden_answer != normalized"),
    ),
    (
        f"{_RULES}.search_r1_like_qa_em.compute_score_subem",
        "rule_reward",
        (f"{_RULED}/search_r1_like_qa_em.py", "if golden_answer in normalized", "if golden_answer not in normalized"),
    ),
    (
        f"{_RULES}.default_compute_score",
        "rule_reward",
        (f"{_RULED}/__init__.py", "from . import gsm8k\n", "from . import math_verify as gsm8k\n"),
    ),
    (
        "areal.reward.clevr_count_70k.clevr_count_70k_reward_fn",
        "rule_reward",
        ("areal/reward/clevr_count_70k.py", "is_correct = sol.strip() == ans.strip()", "is_correct = bool(sol)"),
    ),
    (
        "areal.reward.geometry3k.geometry3k_reward_fn",
        "rule_reward",
        ("areal/reward/geometry3k.py", "worker.verify(sol, ans)", "worker.verify(ans, ans)"),
    ),
    (
        "areal.utils.functional.reward_overlong_penalty",
        "overlong_penalty",
        ("areal/utils/functional/functional.py", "exceed_len = response_length_cur - expected_len", "exceed_len = 0"),
    ),
    (
        "areal.trainer.ppo.actor._apply_m2po_masking",
        "second_moment_mask",
        ("areal/trainer/ppo/actor.py", "sorted_m2_loss_mask[restored_indices]", "sorted_m2_loss_mask[indices]"),
    ),
    (
        f"{_FUNCTIONALS}.expand_to_token_level",
        "token_reward",
        (_ROLL, "[torch.arange(batch_size), eos_mask_idx] =", "[torch.arange(batch_size), -1] ="),
    ),
    (
        f"{_FUNCTIONALS}.difficulty_mask",
        "difficulty_filter",
        (_ROLL, "(reshape_score_mean > low_threshold) *", "(scores > low_threshold) *"),
    ),
    (
        f"{_FUNCTIONALS}.get_sample_level_mask",
        "overlong_filter",
        (_ROLL, "(max_response_length != true_response_length)", "(max_response_length == true_response_length)"),
    ),
    *(
        (
            f"{_WORKERS}.{worker}.{rule}",
            "rule_reward",
            (f"{_REWARDS}/{worker}.py", "if char == ground_truth[0]:", "if char != ground_truth[0]:"),
        )
        for worker, rule in (
            ("multiple_choice_boxed_rule_reward_worker", "multiple_choice_boxed_reward_fn"),
            ("general_val_rule_reward_worker", "single_choice_reward"),
            ("crossthinkqa_rule_reward_worker", "crossthinkqa_reward_fn"),
        )
    ),
    (
        f"{_WORKERS}.video_r1_reward_worker.accuracy_reward",
        "rule_reward",
        (f"{_REWARDS}/video_r1_reward_worker.py", "round(gt_number, 2) == round(", "round(gt_number, 2) >= round("),
    ),
    (
        "roll.distributed.strategy.vllm_strategy.create_sampling_params_for_vllm",
        "sampling_request",
        ("roll/distributed/strategy/vllm_strategy.py", 'top_p=gen_kwargs["top_p"],', "top_p=1.0,"),
    ),
    (
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
        "group_filter",
        ("slime/rollout/filter_hub/dynamic_sampling_filters.py", ".std() > 1e-6", ".std() >= 0.0"),
    ),
    (
        "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback",
        "group_filter",
        (
            "slime/rollout/filter_hub/dynamic_sampling_filters.py",
            "output.keep_when_insufficient = True",
            "output.keep = True",
        ),
    ),
    (
        f"{_HUB}.gpqa.compute_gpqa_reward",
        "rule_reward",
        (
            f"{_GRADERS}/gpqa.py",
            "return 1.0 if extracted_letter == correct_letter",
            "return 1.0 if extracted_letter",
        ),
    ),
    (
        f"{_HUB}.f1.f1_score",
        "rule_reward",
        (f"{_GRADERS}/f1.py", "Counter(prediction_tokens) & Counter(", "Counter(prediction_tokens) | Counter("),
    ),
    (
        f"{_HUB}.deepscaler.get_deepscaler_rule_based_reward",
        "rule_reward",
        (f"{_GRADERS}/deepscaler.py", "ground_truths = [label]", "ground_truths = [label, model_answer]"),
    ),
    (
        f"{_HUB}.math_dapo_utils.compute_score",
        "rule_reward",
        (f"{_GRADERS}/math_dapo_utils.py", "1.0 if correct else -1.0", "-1.0 if correct else 1.0"),
    ),
    (
        f"{_GYM}.gsm8k.utils.compute_score",
        "rule_reward",
        (f"{_ENVIRONMENTS}/gsm8k/utils.py", "if answer == ground_truth:", "if answer != ground_truth:"),
    ),
    (
        f"{_GYM}.aime.utils.compute_score",
        "rule_reward",
        (f"{_ENVIRONMENTS}/aime/utils.py", "1.0 if correct else -1.0", "-1.0 if correct else 1.0"),
    ),
    (
        f"{_GYM}.search.utils.compute_score",
        "rule_reward",
        (f"{_ENVIRONMENTS}/search/utils.py", "if golden_answer == normalized", "if golden_answer != normalized"),
    ),
    (
        f"{_GYM}.search.utils.compute_score_subem",
        "rule_reward",
        (f"{_ENVIRONMENTS}/search/utils.py", "if golden_answer in normalized", "if golden_answer not in normalized"),
    ),
    (
        "skyrl.train.trainer.RayPPOTrainer.postprocess_generator_output",
        "token_reward",
        ("skyrl/train/trainer.py", "per_token_reward[-1] = float(reward)", "per_token_reward[0] = float(reward)"),
    ),
    (
        "skyrl.train.utils.trainer_utils.handle_filter_sampling",
        "group_filter",
        (_SKYRL, "if traj_uid in kept_uids_set:", "if rewards[idx] > 0:"),
    ),
    (
        "skyrl.train.utils.trainer_utils.zero_variance_filter",
        "group_filter",
        (_SKYRL, "(max(vals) - min(vals)) <= tol", "max(vals) <= tol"),
    ),
    (
        "skyrl.train.generators.utils.apply_overlong_filtering",
        "overlong_filter",
        (
            "skyrl/train/generators/utils.py",
            '[0] * len(mask) if stop_reason != "stop"',
            "[0] * len(mask) if not stop_reason",
        ),
    ),
]


#: Those of these contracts that have no twin of their own, and why.
WITHOUT = {
    f"{_RULES}.math_batch.compute_score_batched": "it asks math_reward, which has one, for each response",
    f"{_FUNCTIONALS}.compute_token_reward": "it asks expand_to_token_level, which has one",
    f"{_FUNCTIONALS}.get_sample_level_mask(difficulty_filter)": "it asks difficulty_mask, which has one",
    f"{_HUB}.async_rm": "wrong as it is: SLIME-RM-BOXED-MATH-NEVER-RIGHT",
    f"{_HUB}.math_utils.grade_answer_verl": "wrong as it is: SLIME-RM-UNBOXED-ANSWER-WRONG",
    "areal.utils.functional.dynamic_sampling": "main has it no more",
}
CONTRACTS = (
    *("token_reward", "rule_reward", "overlong_penalty", "overlong_filter"),
    *("group_filter", "difficulty_filter", "second_moment_mask"),
)

#: What is wrong on main as it is: the scenario, and the recipe that shows it.
WRONG = {
    f"{_MANAGERS}.prime.PrimeRewardManager.__call__": {"score_as=record"},  # VERL-PRIME-RECORDS-SCORE-NOTHING
    "areal.reward.geometry3k.geometry3k_reward_fn": {  # AREAL-GEOMETRY3K-LAST-NUMBER
        "ground_truth=5 \\sqrt { 3 }",
    },
}


#: ``open_main(target)``: the boundaries of its main.
OpenMain = Callable[[str], Bound]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenMain]:
    """The main of a target, with all its edits."""

    def edited(target: str) -> Iterator[Bound]:
        edits = [edit for boundary, _, edit in TWINS if _target(boundary) == target]
        return opened_twin(target, MAIN[target], edits, tmp_path_factory.mktemp(target))

    yield from _once_each(edited)


@pytest.fixture(scope="module")
def original() -> Iterator[OpenMain]:
    """The main of a target, as it is."""
    yield from _once_each(lambda target: opened(target, MAIN[target]))


def _once_each(opening: Callable[[str], Iterator[Bound]]) -> Iterator[OpenMain]:
    """Opened when it is asked for first. (pytest would open it for each parameter anew.)"""
    with ExitStack() as stack:
        yield cache(lambda target: stack.enter_context(contextmanager(opening)(target)))


def _target(boundary: str) -> str:
    return boundary.partition(".")[0].partition("_")[0]


EACH = pytest.mark.parametrize(
    ("boundary", "contract"),
    [pytest.param(boundary, contract, id=f"{boundary}-{contract}") for boundary, contract, _ in TWINS],
)


def _wrong(bound: Bound, boundary: str, contract: str) -> set[str]:
    """The scenarios in which the boundary is not what the oracle says; a refusal is loud."""
    subject = bound.subject(boundary, contract)
    takes_a_mask = subject.contract.input(subject.contract.mask) is not None
    wrong = bound.disagreements(subject, PADDED if takes_a_mask else None)
    return {name for name, said in wrong.items() if not said.startswith("refused")}


@EACH
def test_a_broken_twin_is_found(twin: OpenMain, boundary: str, contract: str) -> None:
    assert _wrong(twin(_target(boundary)), boundary, contract) - WRONG.get(boundary, set())


@EACH
def test_the_original_is_not(original: OpenMain, boundary: str, contract: str) -> None:
    assert _wrong(original(_target(boundary)), boundary, contract) == WRONG.get(boundary, set())


def test_each_boundary_has_a_twin_or_a_reason() -> None:
    twins = {(boundary, contract) for boundary, contract, _ in TWINS}
    without = {
        subject.name if subject.name in WITHOUT else f"{subject.boundary}({subject.contract.name})"
        for target in MAIN
        for subject in subjects(bundled_catalog(), target)[0]
        if subject.contract.name in CONTRACTS and (subject.boundary, subject.contract.name) not in twins
    }
    assert without == set(WITHOUT)
