"""Recipes can fail: twins of real revisions, each with a few lines changed, give the other verdict.

For recipes of which no pin shows one of the two: the rollout KL option of SkyRL exists at one commit only, and no paper
defines some losses token by token.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twins import Decide, Twins, deciding, skip_without

HEAD = "git:fda3c7352e2afe9fb9686362530426945a2ee84e"
MAIN = "git:a9564572eb8e91076be43c1bd5e4615e3de17265"
VERL = "git:1dda039b9c6311889a9c9a26040677e1254814f9"

WORKERS = "skyrl/backends/skyrl_train/workers"
CHECK = "skyrl/train/utils/utils.py"
TURNS_LOGPROBS_ON = "if cfg.trainer.algorithm.use_rollout_kl_loss and"

_CORE = "verl/trainer/ppo/core_algos.py"
_MASKED = (
    "\n    log_prob, old_log_prob, advantages = ("
    "torch.where(response_mask > 0, item, 0.0) for item in (log_prob, old_log_prob, advantages))"
)
_CLIP_COV = 'assert clip_cov_ratio > 0, "clip_ratio should be larger than 0."'
_KL_COV = 'assert kl_cov_ratio > 0, "kl_cov_ratio should be larger than 0."'

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
                'assert cfg.trainer.algorithm.rollout_kl_estimator_type in ("k1", "abs", "k2", "k3")\n    '
                + TURNS_LOGPROBS_ON,
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
}
#: bug id -> the twin, the verdict at its pin, the verdict at the twin.
BY_TWIN = {
    "SKYRL-ROLLOUT-KL-LOGPROBS-OFF": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-MISSING-LOGPROBS": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-FSDP": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-MEGATRON": ("broken", "fixed", "reproduced"),
    "SKYRL-ROLLOUT-KL-ZERO-DEVICE": ("repaired", "reproduced", "fixed"),
    "SKYRL-ROLLOUT-KL-ESTIMATOR-UNCHECKED": ("repaired", "reproduced", "fixed"),
    "SKYRL-PADDING-ROUTER-PADDING-MASK": ("without the mask", "fixed", "reproduced"),
    "VERL-CLIP-COV-MASKED-NAN-GRADIENT": ("clip_cov masked", "reproduced", "fixed"),
    "VERL-KL-COV-MASKED-NAN-GRADIENT": ("kl_cov masked", "reproduced", "fixed"),
}


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decide]:
    yield from deciding(TWINS, tmp_path_factory.mktemp("twins"), pull=1811)


@pytest.mark.parametrize("bug_id", BY_TWIN)
def test_a_twin_gives_the_other_verdict(decide, bug_id):
    twin, at_pin, at_twin = BY_TWIN[bug_id]
    pinned = skip_without(decide(bug_id, TWINS[twin][0]))
    assert (pinned.verdict.name, decide(bug_id, twin).verdict.name) == (at_pin, at_twin)


def test_a_broken_estimator_is_told_by_every_output(decide):
    """The masked mean left out: metric, loss and gradient are all off, and the evidence shows by how much."""
    broken = skip_without(decide("SKYRL-ROLLOUT-KL-FSDP", "broken"))
    keys = {item.key.partition(".")[2] for item in broken.comparisons}
    assert keys == {"rollout_kl", "loss", "per_token_gradient"}
    assert broken.law == "the_oracle_agrees"
