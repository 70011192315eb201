"""An adapter for ms-swift (modelscope/ms-swift), begun by `sentinel adapt` and finished by hand.

`sentinel adapt ms-swift --check docs/examples/swift.py` tries the laws at the latest release. Its trainers are
subclasses of TRL's, which this environment lacks, so only functions and rewards are bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.kit import torch

_CODE = "https://github.com/modelscope/ms-swift/blob/3602360a562313afbf2ef6065fdf61f271a2c5b9/swift"
_ADVANTAGE, _GKD = "swift.rl_core.advantage", "swift.rlhf_trainers.gkd_loss"

_MASK = {"response_mask": ("completion_mask", "loss_mask")}
_SCALES = {None: "none", "group": "group", "batch": "batch"}


def _advantages(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call the advantages of responses with one reward function of weight 1."""
    rewards, group = inputs["rewards"], inputs["group"]
    names = boundary.parameters
    dynamic = {"prompt_ids": [str(label) for label in group], "request_ids": [str(row) for row in range(len(group))]}
    groups = dynamic if "prompt_ids" in names else {"num_generations": kit.group_size(inputs)}
    return boundary.function(
        rewards_per_func=rewards[:, None],
        reward_weights=torch.ones_like(rewards[:1]),
        advantage_estimator="rloo" if inputs["leave_one_out"] else "grpo",
        scale_rewards=_SCALES[inputs["std_level"]],
        **groups,
    )


def _distillation(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the divergence as the trainer does, which divides its sum by the number of tokens."""
    labels = torch.where(inputs["response_mask"] != 0, 0, -100)
    teacher = boundary.module.TeacherOutput(full_logits=inputs["teacher_logits"], labels=labels)
    total, count = boundary.function(inputs["logits"], teacher, labels, inputs["beta"], inputs["temperature"])
    return {"loss": total / count if count else total * 0}


def _log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the loss of each token: a label is one place behind the logits that predict it."""
    ids = torch.where(inputs["response_mask"] != 0, inputs["token_ids"].long(), -100)
    losses = boundary.invoke({"token_ids": ids.roll(1, -1)}, outputs=kit.stand_in(logits=inputs["logits"]))
    return {"log_probs": -losses.reshape(ids.shape)}


def _overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Add the penalty to the rewards, as the trainer adds up its reward functions."""
    lengths = (inputs["response_mask"] != 0).sum(-1).tolist()
    own = boundary.owner(kit.stand_in(soft_max_length=inputs["max_length"], soft_cache_length=inputs["buffer"]))
    penalties = own([""] * len(lengths), response_token_ids=[[0] * length for length in lengths])
    return {"rewards": inputs["rewards"] + torch.tensor(penalties)}


def _normalisation(name: str, layout: str) -> Binding:
    return Binding(
        f"{_ADVANTAGE}.{name}",
        "reward_normalisation",
        call=_advantages,
        outputs=("normalised",),
        fixed={"mean_level": "group", "epsilon": 1e-4, "clip": None, "group_layout": layout},
    )


TARGET = Target(
    name="swift",
    repository="https://github.com/modelscope/ms-swift.git",
    roots=(PackageRoot("swift"),),
    pypi="ms-swift",
    preload=("transformers", "accelerate", "datasets"),
    arguments=_MASK,
    bindings=(
        _normalisation("compute_advantages", "equal"),
        _normalisation("compute_advantages_dynamic", "any"),
        Binding(
            f"{_ADVANTAGE}.compute_teacher_kl_per_token",
            "kl_estimate",
            arguments={"log_probs": ("policy_per_token_logps",), "ref_log_probs": ("teacher_per_token_logps",)},
            outputs=("kl",),
            fixed={"kl_estimator": "k3"},
            accepts={"response_mask": ("full", "right", "left", "gaps")},
        ),
        Binding(  # the policy's log-ratio to the teacher, with the sign of a reward
            f"{_ADVANTAGE}.compute_teacher_logratio",
            "kl_estimate",
            arguments={"log_probs": ("teacher_per_token_logps",), "ref_log_probs": ("policy_per_token_logps",)},
            outputs=("kl",),
            fixed={"kl_estimator": "k1"},
        ),
        Binding(
            f"{_ADVANTAGE}._sdar_agg_loss",
            "loss_aggregation",
            outputs=("loss",),
            fixed={
                "weights": None,
                **dict.fromkeys(("batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")),
            },
            accepts={"loss_agg_mode": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")},
            dialects=(
                Dialect(
                    "empty_rows", "counted", "the mean over responses includes those without tokens",
                    f"{_CODE}/rl_core/advantage.py#L339",
                    where={"loss_agg_mode": ("seq-mean-token-sum", "seq-mean-token-mean")},
                ),
            ),
        ),
        Binding(
            f"{_GKD}.gkd_loss",
            "distillation_loss",
            call=_distillation,
            fixed={"batch_num_tokens": None},
        ),
        Binding(
            "swift.trainers.utils.per_token_loss_func",
            "token_log_probs",
            call=_log_probs,
            arguments={"token_ids": ("labels",)},
            fixed={"temperature": 1.0, "with_entropy": False, "context_parallel_size": 1},
            stand_ins=(StandIn("outputs", "has the logits of the model, which is all that the loss reads"),),
        ),
        Binding(
            "swift.rewards.orm.SoftOverlong.__call__",
            "overlong_penalty",
            call=_overlong,
            fixed={"factor": 1.0},
            accepts={"max_length": (5, 4), "buffer": (2, 1)},
            dialects=(
                Dialect(
                    "beyond_limit", "linear", "the penalty grows beyond the limit", f"{_CODE}/rewards/orm.py#L231"
                ),
            ),
            stand_ins=(StandIn("args", "has the two options that the reward reads"),),
        ),
    ),
)  # fmt: skip
