"""The whole advantage step of a trainer: from sequence rewards and log-probs to the advantages that the loss sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed
from sentinel.values import tensor

_KEYS = ("advantages", "returns", "tot_rewards", "kl_rewards", "loss_mask")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {key: outputs[key] for key in _KEYS}


def _filled(value: float, dtype: str) -> Callable[[Mapping[str, Any]], Any]:
    def default(scenario: Mapping[str, Any]) -> Any:
        rows, columns = scenario["attention_mask"].shape
        return tensor([[value] * columns for _ in range(rows)], dtype)

    return default


ADVANTAGE_STEP = Contract(
    name="advantage_step",
    summary="advantages of a batch of sequences: reward normalisation, KL penalty, GAE, advantage normalisation",
    source=(
        "PPO (arXiv:1707.06347) with GAE (arXiv:1506.02438), equation 16, on "
        "KL-regularised token rewards (arXiv:2203.02155)"
    ),
    inputs=(
        Input("attention_mask", "tensor", "1 where a token is no padding", dtype="int64", shape=("batch", "tokens")),
        Input("loss_mask", "tensor", "1 where a token was generated", dtype="bool", shape=("batch", "tokens")),
        Input("rewards", "tensor", "task reward of each sequence", shape=("batch",)),
        Input(
            "input_ids", "tensor", "token ids", dtype="int64", shape=("batch", "tokens"), default=_filled(1, "int64")
        ),
        Input(
            "logprobs",
            "tensor",
            "rollout log-prob of each token",
            shape=("batch", "tokens"),
            default=_filled(0.0, "float32"),
        ),
        Input("reward_norm", "mapping", "how sequence rewards are normalised: mean_level, std_level, …", default=None),
        Input("adv_norm", "mapping", "how advantages are normalised: mean_level, std_level, …", default=None),
        Input(
            "mask_no_eos_with_zero",
            "boolean",
            "whether a row that filled its length without EOS gets no reward",
            default=False,
        ),
        Input("reward_bias", "number", "added to each reward", default=0.0),
        Input("reward_scaling", "number", "multiplies each reward", default=1.0),
        Input("reward_clip", "number", "bound of |reward|", default=1000.0),
        Input("kl_ctl", "number", "coefficient of the KL penalty", default=0.0),
        Input("kl_estimator", "string", "estimator of the KL penalty", default="k1"),
        Input("discount", "number", "gamma", default=1.0),
        Input("gae_lambda", "number", "lambda of GAE", default=1.0),
    ),
    observes=(
        Observed("advantages", "advantage of each token, rolled to the position that predicts it", ("batch", "tokens")),
        Observed("returns", "return of each token", ("batch", "tokens")),
        Observed("tot_rewards", "token rewards after the KL penalty", ("batch", "tokens")),
        Observed("kl_rewards", "the KL penalty alone", ("batch", "tokens")),
        Observed("loss_mask", "the mask that the loss will use", ("batch", "tokens")),
    ),
    measure=_measure,
    law="a_rejected_row_is_an_absent_row",
    aliases={"loss_mask_before_roll": "loss_mask"},
)
