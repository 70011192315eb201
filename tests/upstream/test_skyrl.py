"""SkyRL's recipes can fail: twins of real revisions, each with one line changed, give the other verdict.

The rollout KL option exists at one commit only, so no pin shows what its recipes say of broken code, or of code that
did what its reviewers asked for. Here a pin's checkout is copied and edited; upstream's code is not in this repository.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twins import Decide, Twins, deciding, skip_without

from sentinel.deciding import verdicts
from sentinel.recipes.catalog import bundled_catalog

BASE = "git:e713bdeb237640e89f8ce8728394caf7f4ae11d8"
HEAD = "git:fda3c7352e2afe9fb9686362530426945a2ee84e"
MAIN = "git:a9564572eb8e91076be43c1bd5e4615e3de17265"

WORKERS = "skyrl/backends/skyrl_train/workers"
CHECK = "skyrl/train/utils/utils.py"
TURNS_LOGPROBS_ON = "if cfg.trainer.algorithm.use_rollout_kl_loss and"

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
}


@pytest.fixture(scope="module")
def decide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decide]:
    yield from deciding("skyrl", TWINS, tmp_path_factory.mktemp("skyrl"), pull=1811)


@pytest.mark.parametrize(
    ("bug_id", "twin", "at_pin", "at_twin"),
    [
        ("SKYRL-ROLLOUT-KL-LOGPROBS-OFF", "broken", "fixed", "reproduced"),
        ("SKYRL-ROLLOUT-KL-MISSING-LOGPROBS", "broken", "fixed", "reproduced"),
        ("SKYRL-ROLLOUT-KL-FSDP", "broken", "fixed", "reproduced"),
        ("SKYRL-ROLLOUT-KL-MEGATRON", "broken", "fixed", "reproduced"),
        ("SKYRL-ROLLOUT-KL-ZERO-DEVICE", "repaired", "reproduced", "fixed"),
        ("SKYRL-ROLLOUT-KL-ESTIMATOR-UNCHECKED", "repaired", "reproduced", "fixed"),
        ("SKYRL-PADDING-ROUTER-PADDING-MASK", "without the mask", "fixed", "reproduced"),
    ],
)
def test_a_twin_gives_the_other_verdict(decide: Decide, bug_id: str, twin: str, at_pin: str, at_twin: str) -> None:
    pinned = skip_without(decide(bug_id, TWINS[twin][0]))
    assert (pinned.verdict.name, decide(bug_id, twin).verdict.name) == (at_pin, at_twin)


def test_a_broken_estimator_is_told_by_every_output(decide: Decide) -> None:
    """The masked mean left out: metric, loss and gradient are all off, and the evidence shows by how much."""
    broken = skip_without(decide("SKYRL-ROLLOUT-KL-FSDP", "broken"))
    keys = {item.key.partition(".")[2] for item in broken.comparisons}
    assert keys == {"rollout_kl", "loss", "per_token_gradient"}
    assert broken.law == "the_oracle_agrees"


def test_fields_survive_surgery_is_broken_where_a_field_is_dropped(decide: Decide) -> None:
    """The law itself. What it finds at head too is true: the padding's loss mask is int64 beside the real float32."""
    law = bundled_catalog().laws["fields_survive_surgery"]
    broken: dict[str, set[str]] = {}
    for pin in (BASE, HEAD):
        decision = skip_without(decide("SKYRL-PADDING-ROLLOUT-LOGPROBS", pin))
        assert decision.measurement is not None
        _, violations = verdicts.by_law(law, decision.recipe, decision.measurement)
        broken[pin] = {f"{item.key}: {', '.join(item.observed)}" for item in violations}
    dtypes = {"with_it.dtype_changed: loss_mask", "without.dtype_changed: loss_mask"}
    assert broken == {BASE: {"with_it.dropped: rollout_logprobs", *dtypes}, HEAD: dtypes}


def test_only_declared_stand_ins_are_used_and_no_ghost(decide: Decide) -> None:
    """The step on a stand-in Megatron is measured: a ghost that it used would make the verdict inconclusive."""
    decision = skip_without(decide("SKYRL-ROUTER-REPLAY-STALE-TRAINING", BASE))
    assert decision.verdict.name == "reproduced"
    assert decision.measurement is not None
    stand_ins = {item.name: item.reason for item in decision.measurement.stand_ins}
    assert {"mpu", "schedule", "RouterReplay", "ray", "dist"} <= set(stand_ins)
    assert all(stand_ins.values())
