"""Recipes can fail: copies of real revisions with a few changed lines give the other verdict.

This covers recipes whose pins have only one verdict: SkyRL's rollout KL option exists at one commit only, and no paper
defines some losses per token.
"""

from collections.abc import Iterator

import pytest
from binding_kit import skip_without_python
from demo_kit import few
from shipped import RECIPES
from twins import Decide, Twins, deciding

HEAD = "git:fda3c7352e2afe9fb9686362530426945a2ee84e"
MAIN = "git:a9564572eb8e91076be43c1bd5e4615e3de17265"
VERL = "git:1dda039b9c6311889a9c9a26040677e1254814f9"

OPENRLHF = "git:3c3be6234e0cb353e76bb8019947db9dfe99fca7"
NEMORL = "git:7ea279abfbeb698b092856d0dab61e7cf39bc909"
PRIMERL = "git:559b44772e471d1538537b8805cc77f3824a5e64"

WORKERS = "skyrl/backends/skyrl_train/workers"
CHECK = "skyrl/train/utils/utils.py"
TURNS_LOGPROBS_ON = "if cfg.trainer.algorithm.use_rollout_kl_loss and"

_CORE = "verl/trainer/ppo/core_algos.py"
_MASKED = (
    "\n    log_prob, old_log_prob, advantages = ("
    "torch.where(response_mask > 0, item, 0.0) for item in (log_prob, old_log_prob, advantages))"
)
_CLIP_COV = 'assert clip_cov_ratio > 0, "clip_ratio should be larger than 0."'
_LOG_EXP = "torch.log(1 + torch.exp(reject_reward - chosen_reward)).mean()"
_SPAN = "(ones_indices[-1] - ones_indices[0] + 1).item() if len(ones_indices) else 0"
_PRIME_LOSS = "src/prime_rl/trainer/rl/loss.py"
_IPO = "is_masked = abs_probs_diff > loss_config.ipo_threshold"
_REF_KL = "is_masked = probs_diff < -0.2"
_SELECTED = "\n    importance_ratio = torch.where(loss_mask & ~is_masked, importance_ratio, 0.0)"
_IN_ORDER = "    if x2r < x1r or y2r < y1r:\n        return 0.0, False\n"
_KL_COV = 'assert kl_cov_ratio > 0, "kl_cov_ratio should be larger than 0."'

_GENERATOR = "skyrl/train/generators/skyrl_gym_generator.py"
_SAID = "output_ids[-1] == self.tokenizer.eos_token_id"
_ROLL = "git:8eb27cc2dc34c4d1310b169d9b86d339004d811a"
_SLIME = "git:624b824a898ab0ec1fcb4d373004c7f3852bf515"
_SLIME_LOSS = "slime/backends/megatron_utils/loss.py"
_TRL = "git:f2cd57710ae345ea6428ae95363267fcf38a3dc8"
_KEPT_LOGITS = "logits = logits[:, -logits_to_keep:, :]"
_AREAL = "git:cbff54d645d2cd8ee1f1c358a82f3f473588433d"
_CLOSED = "compute_conversation_end_token_id(self.tokenizer)"

TWINS: Twins = {
    "broken": (
        HEAD,
        (
            (CHECK, TURNS_LOGPROBS_ON, "if False and"),
            ("skyrl/train/trainer.py", "or self.cfg.trainer.algorithm.use_rollout_kl_loss", ""),
            (f"{WORKERS}/worker.py", "masked_mean(rollout_kl_loss, loss_mask, dim=-1)", "rollout_kl_loss"),
            (f"{WORKERS}/megatron/megatron_model_wrapper.py", "+ rollout_kl_loss_term", ""),
        ),
    ),
    "repaired": (
        HEAD,
        (
            (
                CHECK,
                TURNS_LOGPROBS_ON,
                'known = ("k1", "abs", "k2", "k3")\n    '
                "assert cfg.trainer.algorithm.kl_estimator_type in known\n    "
                "assert cfg.trainer.algorithm.rollout_kl_estimator_type in known\n    " + TURNS_LOGPROBS_ON,
            ),
            (
                f"{WORKERS}/worker.py",
                "rollout_kl_loss = torch.tensor(0.0)",
                "rollout_kl_loss = torch.tensor(0.0, device=action_log_probs.device)",
            ),
        ),
    ),
    "without the mask": (MAIN, ((f"{WORKERS}/worker_utils.py", 'data["router_padding_mask"] =', "unused ="),)),
    "clip_cov masked": (VERL, ((_CORE, _CLIP_COV, _CLIP_COV + _MASKED),)),
    "kl_cov masked": (VERL, ((_CORE, _KL_COV, _KL_COV + _MASKED),)),
    "softplus": (
        OPENRLHF,
        (
            (
                "openrlhf/models/loss.py",
                _LOG_EXP,
                "F.softplus(reject_reward - chosen_reward + (0.0 if margin is None else margin)).mean()",
            ),
        ),
    ),
    "actions counted": (OPENRLHF, (("openrlhf/trainer/ppo_utils/samples_generator.py", _SPAN, "len(ones_indices)"),)),
    "corners in order": (
        NEMORL,
        (("nemo_rl/environments/rewards.py", "    # compute iou function", f"{_IN_ORDER}    # compute iou function"),),
    ),
    "no answer": (
        NEMORL,
        (("nemo_rl/data/processors.py", "for completion_msg in preferred_completion:", "for completion_msg in ():"),),
    ),
    "last answer": (
        NEMORL,
        (
            (
                "nemo_rl/algorithms/reward_functions.py",
                "for message in message_log:",
                "for message in reversed(message_log):",
            ),
        ),
    ),
    "end as it was said": (
        MAIN,
        (
            (_GENERATOR, "loss_mask.append(1)", f"loss_mask.append(int({_SAID}))"),
            (
                _GENERATOR,
                "rollout_logprobs.append(0.0)",
                f"rollout_logprobs.append(response_logprobs[-1] if {_SAID} else 0.0)",
            ),
        ),
    ),
    "end of a cut answer": (
        MAIN,
        (
            (
                _GENERATOR,
                'loss_mask = response_encodings["assistant_masks"]',
                'loss_mask = response_encodings["assistant_masks"]\n'
                f"                if not {_SAID}:\n"
                "                    loss_mask[len(loss_mask) - 1 - loss_mask[::-1].index(1)] = 0",
            ),
        ),
    ),
    "k3 cut": (
        _ROLL,
        (("roll/utils/functionals.py", "ratio = torch.exp(kl)", "ratio = torch.exp(kl.clamp(max=20.0))"),),
    ),
    "closed once": (
        _ROLL,
        (
            (
                "roll/pipeline/agentic/env_manager/traj_env_manager.py",
                f"prompt_ids = {_CLOSED} + prompt_ids",
                f"end = {_CLOSED}\n            "
                'prompt_ids = end[history_token_ids[-1:] == end :] + self.tokenizer.encode("\\n") + prompt_ids',
            ),
        ),
    ),
    "experts kept": (
        _SLIME,
        (
            (
                "slime/utils/types.py",
                "self.rollout_routed_experts = routed_experts\n",
                "held = routed_experts[:0] if self.rollout_routed_experts is None else self.rollout_routed_experts\n"
                "                self.rollout_routed_experts = torch.cat([held, routed_experts[len(held) :]])\n",
            ),
        ),
    ),
    "reward on the last token": (
        _SLIME,
        (
            (
                _SLIME_LOSS,
                "for reward, per_token_kl in zip(old_rewards, kl, strict=False):",
                "for reward, per_token_kl, total, count in zip(old_rewards, kl, total_lengths, response_lengths):",
            ),
            (
                _SLIME_LOSS,
                "            if cp_rank == 0:\n",
                "            ends = [] if mpu.get_context_parallel_world_size() == 1 else "
                "get_logits_and_tokens_offset_with_cp(total, count)[3]\n"
                "            if not ends or total in (ends[0][1], ends[1][1]):\n",
            ),
        ),
    ),
    "variance from 0 on": (
        _SLIME,
        (
            (
                "slime/utils/distributed_utils.py",
                "global_var = global_mean_sq - global_mean**2",
                "global_var = (global_mean_sq - global_mean**2).clamp(min=0)",
            ),
        ),
    ),
    "experts appended": (
        _AREAL,
        (
            (
                "areal/infra/remote_inf_engine.py",
                "accumulated_routed_experts.append(gen_result.routed_experts)",
                "accumulated_routed_experts.append(\n"
                "                    gen_result.routed_experts[sum(map(len, accumulated_routed_experts)) :]\n"
                "                )",
            ),
        ),
    ),
    "no bonus": (
        PRIMERL,
        (
            (
                "src/prime_rl/orchestrator/algo/grpo.py",
                "rewards.mean() * penalty_frac",
                "rewards.mean().clamp(min=0) * penalty_frac",
            ),
        ),
    ),
    "at the temperature": (
        _TRL,
        (("trl/experimental/a2po/a2po_trainer.py", _KEPT_LOGITS, f"{_KEPT_LOGITS} / self.args.temperature"),),
    ),
    "scaled by the trainer": (
        _TRL,
        (
            (
                "trl/experimental/prm/prm_trainer.py",
                "        # Add tags for models that have been loaded",
                "        self.model_accepts_loss_kwargs = False\n        # Add tags for models that have been loaded",
            ),
        ),
    ),
    "equal distributions": (
        _ROLL,
        (
            (
                "roll/pipeline/distill/various_divergence.py",
                "akl = (g_head / (g_head + g_tail)) * fkl + (g_tail / (g_head + g_tail)) * rkl",
                "gaps = torch.where(g_head + g_tail > 0, g_head + g_tail, 1.0)\n"
                "        akl = g_head / gaps * fkl + g_tail / gaps * rkl",
            ),
        ),
    ),
    "the keyword": (
        _ROLL,
        (
            (
                "roll/pipeline/rlvr/rewards/ifeval_rule_reward_worker.py",
                "sum(1 for word in words if word == word)",
                "words.count(word)",
            ),
        ),
    ),
    "from the token on": (
        _TRL,
        (
            (
                "trl/experimental/minillm/minillm_trainer.py",
                "advantages = advantages.flip(1).cumsum(dim=1).flip(1)",
                "advantages = advantages.flip(1).cumsum(dim=1).flip(1) / gamma_pow",
            ),
        ),
    ),
    "masked gap": (
        NEMORL,
        (
            (
                "nemo_rl/algorithms/advantage_estimator.py",
                "advantages = distill_advantages * mask",
                "advantages = torch.where(mask > 0, distill_advantages, 0.0)",
            ),
        ),
    ),
    "reshaped": (
        NEMORL,
        (
            (
                "nemo_rl/algorithms/logits_sampling_utils.py",
                "logits.view(-1, vocab_size)",
                "logits.reshape(-1, vocab_size)",
            ),
        ),
    ),
    "selected": (PRIMERL, ((_PRIME_LOSS, _IPO, _IPO + _SELECTED), (_PRIME_LOSS, _REF_KL, _REF_KL + _SELECTED))),
}
#: bug id -> the changed copy, the verdict at its pin, the verdict at the copy.
BY_TWIN = {
    "SKYRL-ROLLOUT-KL-LOGPROBS-OFF": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-MISSING-LOGPROBS": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-FSDP": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-MEGATRON": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-ZERO-DEVICE": ("repaired", "reproduced", "fixed"),
    "SKYRL-KL-ESTIMATOR-UNCHECKED": ("repaired", "reproduced", "fixed"),
    "SKYRL-ROLLOUT-KL-ESTIMATOR-UNCHECKED": ("repaired", "reproduced", "fixed"),
    "SKYRL-PADDING-ROUTER-PADDING-MASK": ("without the mask", "fixed", "reproduced"),
    "VERL-CLIP-COV-MASKED-NAN-GRADIENT": ("clip_cov masked", "reproduced", "fixed"),
    "VERL-KL-COV-MASKED-NAN-GRADIENT": ("kl_cov masked", "reproduced", "fixed"),
    "OPENRLHF-LOGEXP-IGNORES-MARGIN": ("softplus", "reproduced", "fixed"),
    "OPENRLHF-LOGEXP-OVERFLOW": ("softplus", "reproduced", "fixed"),
    "OPENRLHF-RESPONSE-LENGTH-SPANS-OBSERVATIONS": ("actions counted", "reproduced", "fixed"),
    "NEMORL-GIOU-REVERSED-BOX": ("corners in order", "reproduced", "fixed"),
    "NEMORL-HELPSTEER3-ANSWER-IN-PROMPT": ("no answer", "reproduced", "fixed"),
    "NEMORL-OVERLONG-LENGTH-OF-THE-FIRST-ANSWER": ("last answer", "reproduced", "fixed"),
    "SKYRL-END-TOKEN-LOGPROB-ZERO": ("end as it was said", "reproduced", "fixed"),
    "SKYRL-END-AFTER-STOP-STRING-IS-TRAINED": ("end as it was said", "reproduced", "fixed"),
    "SKYRL-CUT-ANSWER-CLOSED-BY-TEMPLATE": ("end of a cut answer", "reproduced", "fixed"),
    "ROLL-ADAPTIVE-KL-EQUAL-DISTRIBUTIONS-NAN": ("equal distributions", "reproduced", "fixed"),
    "ROLL-IFEVAL-KEYWORD-COUNTS-EVERY-WORD": ("the keyword", "reproduced", "fixed"),
    "TRL-MINILLM-DISCOUNT-BY-POSITION": ("from the token on", "reproduced", "fixed"),
    "NEMORL-OPD-MASKED-NAN": ("masked gap", "reproduced", "fixed"),
    "NEMORL-TOP-P-SEVERAL-ROWS-RAISES": ("reshaped", "reproduced", "fixed"),
    "ROLL-K3-OVERFLOW-NAN-GRADIENT": ("k3 cut", "reproduced", "fixed"),
    "ROLL-TURN-END-DOUBLED": ("closed once", "reproduced", "fixed"),
    "SLIME-RESUMED-ROUTING-REPLACED": ("experts kept", "reproduced", "fixed"),
    "SLIME-PPO-CONTEXT-PARALLEL-REWARD": ("reward on the last token", "reproduced", "fixed"),
    "SLIME-WHITENED-EQUAL-RETURNS-NAN": ("variance from 0 on", "reproduced", "fixed"),
    "AREAL-RESUMED-ROUTING-MISALIGNED": ("experts appended", "reproduced", "fixed"),
    "PRIMERL-LENGTH-PENALTY-REWARDS-LENGTH": ("no bonus", "reproduced", "fixed"),
    "TRL-PRM-ACCUMULATION": ("scaled by the trainer", "reproduced", "fixed"),
    "TRL-A2PO-TEMPERATURE-IGNORED": ("at the temperature", "reproduced", "fixed"),
    "PRIMERL-IPO-REJECTED-TOKEN-NAN": ("selected", "reproduced", "fixed"),
    "PRIMERL-REF-KL-REJECTED-TOKEN-NAN": ("selected", "reproduced", "fixed"),
}


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decide]:
    yield from deciding(TWINS, tmp_path_factory.mktemp("twins"), pull=1811)


@pytest.mark.slow
@pytest.mark.parametrize("bug_id", few({bug: bug for bug in BY_TWIN}))
def test_a_broken_twin_gives_the_other_verdict(decide, bug_id):
    """The twin is a changed copy of the pin, which another test decides."""
    skip_without_python(bug_id.partition("-")[0].lower())
    twin, at_pin, at_twin = BY_TWIN[bug_id]
    assert {str(pin.ref): pin.expect for pin in RECIPES[bug_id].pins}[TWINS[twin][0]] == at_pin
    assert decide(bug_id, twin).verdict.name == at_twin


def test_every_output_detects_a_broken_estimator(decide):
    """Without the masked mean, metric, loss and gradient are wrong, and the evidence shows by how much."""
    skip_without_python("skyrl")
    broken = decide("SKYRL-ROLLOUT-KL-FSDP", "broken")
    keys = {item.key.partition(".")[2] for item in broken.comparisons}
    assert keys == {"rollout_kl", "loss", "per_token_gradient"}
    assert broken.law == "the_oracle_agrees"
