"""Define the contract of a trainer's advantage step, which computes advantages from rewards and log-probs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sentinel.contracts.aggregation import replaced
from sentinel.contracts.contract import (
    Choose,
    Contract,
    DoesNotApply,
    Input,
    Observed,
    dialect,
    knob,
    per_row,
    per_token,
)
from sentinel.contracts.normalisation import LAWS_OF_TOKENS, lay_out_groups, normalised, rows_of
from sentinel.values.lazy import torch
from sentinel.values.literals import Tensor, tensor

_KEYS = ("advantages", "returns", "tot_rewards", "kl_rewards", "loss_mask")


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the outputs of the advantage step. Advantages and returns are set to 0 where the returned loss mask is
    0."""
    outputs = call(**{**inputs, "reward_norm": _sized(inputs["reward_norm"], inputs["group"])})
    observation = {key: outputs[key] for key in _KEYS}
    for key in ("advantages", "returns"):
        observation[key] = torch.where(observation["loss_mask"] != 0, observation[key], 0.0)
    return observation


def _sized(norm: Mapping[str, Any] | None, group: Any) -> Mapping[str, Any] | None:
    """Add ``group_size`` to the configuration of a group normalisation that lacks it."""
    if (
        norm is None
        or group is None
        or "group_size" in norm
        or "group" not in (norm.get("mean_level"), norm.get("std_level"))
    ):
        return norm
    groups = list(rows_of(group).values())
    if len({len(rows) for rows in groups}) > 1 or [row for rows in groups for row in rows] != list(range(len(group))):
        raise DoesNotApply("the rows of a group are not consecutive, or the groups differ in size")
    return {**norm, "group_size": len(groups[0])}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the advantages and returns of each token from the sequence rewards.

    Position t predicts token t + 1, and counts if that token was generated. The reward of a sequence's last token is
    the sequence's score: ``clip((reward + bias) scaling)``, normalised over the accepted sequences. Without a critic,
    GAE (arXiv:1506.02438, equation 16) gives ``A_t = (discount lambda)^l score`` if l more steps follow.

    A sequence without a generated token is rejected. With ``mask_no_eos_with_zero``, a sequence without EOS gets reward
    0. The statistics of the rewards exclude both kinds of sequences, unless the dialect ``rejected`` is ``counted``.
    """
    if inputs["kl_ctl"]:
        raise DoesNotApply("the KL penalty needs reference log-probs")
    attention, generated = inputs["attention_mask"] != 0, inputs["loss_mask"] != 0
    steps = torch.roll(generated, -1, -1)
    accepted = generated.any(-1)
    if inputs["mask_no_eos_with_zero"]:
        accepted &= ~attention.all(-1)
    bound = inputs["reward_clip"]
    rewards, near = inputs["rewards"], inputs["overlong_tokens"]
    if near is not None:  # DAPO (arXiv:2503.14476), equation 13; the response may have all columns but one
        excess = generated.sum(-1) - (generated.shape[1] - 1 - near)
        rewards = rewards - (excess / near).clamp(min=0).to(rewards)
    scores = ((rewards + inputs["reward_bias"]) * inputs["reward_scaling"]).clamp(-bound, bound)
    counted = accepted if inputs["rejected"] == "absent" else torch.ones_like(accepted)
    if inputs["reward_norm"] is not None:
        scores = normalised(scores, counted, _normalisation(inputs["reward_norm"], inputs["group"]))
    scores = torch.where(accepted, scores, 0.0)
    starts = _turn_starts(steps) if inputs["timestep"] == "turn" else steps
    ahead = starts.sum(-1, keepdim=True) - starts.cumsum(-1)
    decay = (inputs["discount"] * _lambda(inputs, starts)) ** ahead.to(scores)
    returns = torch.where(steps, decay * scores[:, None], 0.0)
    advantages = returns
    if inputs["adv_norm"] is not None:
        advantages = normalised(returns, steps, _normalisation(inputs["adv_norm"], inputs["group"]))
    earned = torch.zeros_like(returns)
    earned[torch.arange(len(scores)), (attention.sum(-1) - 2).clamp(min=0)] = scores
    return {
        "advantages": advantages,
        "returns": returns,
        "tot_rewards": earned,
        "kl_rewards": torch.zeros_like(returns),
        "loss_mask": steps.to(returns),
    }


def _turn_starts(steps: Any) -> Any:
    """Return flags for the first token of each turn. A turn is a run of generated tokens."""
    before = torch.nn.functional.pad(steps, (1, 0))[:, :-1]
    return steps & ~before


def _lambda(inputs: Mapping[str, Any], starts: Any) -> Any:
    """Return lambda of each row, [batch, 1]. VAPO's lambda (arXiv:2504.05118, equation 9) is ``1 - 1 / (alpha n)`` with
    the number n of timesteps; here, alpha is 1.
    """
    counts = starts.sum(-1, keepdim=True).double()
    return 1 - 1 / counts.clamp(min=1) if inputs["lambda_rule"] == "by_length" else inputs["gae_lambda"]


def _normalisation(norm: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """Convert a normalisation's configuration to the inputs of
    :func:`sentinel.contracts.normalisation.normalised`."""
    return {
        "group": group,
        "mean_level": norm.get("mean_level"),
        "std_level": norm.get("std_level"),
        "leave_one_out": norm.get("mean_leave1out", False),
        "epsilon": norm.get("eps", 1e-5),
        "std": "unbiased" if norm.get("std_unbiased", True) else "biased",
        "epsilon_placement": "outside",
        "std_about": "subtracted",
        "group_of_one": "zero",
    }


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Lay out each row as a prompt of at least one token, generated tokens, and padding.

    Every row has a generated token, because trainers drop rollouts without one. If advantages are normalised,
    ``mask_no_eos_with_zero`` is switched off, because a row whose reward was set to 0 would still count in that
    normalisation, unlike an absent row.
    """
    attention, generated = (inputs[name].array() != 0 for name in ("attention_mask", "loss_mask"))
    rows, tokens = attention.shape
    if tokens < 2:
        raise DoesNotApply("a prompt and a response need at least two tokens")
    attention = np.arange(tokens)[None, :] < attention.sum(-1).clip(2)[:, None]
    if inputs["mask_no_eos_with_zero"] and rows > 1 and tokens > 2:  # one row without EOS and one with EOS
        attention[0] = True
        attention[-1, -1] = False
    generated = generated & attention & (np.arange(tokens) > 0)[None, :]
    generated[np.arange(rows), attention.sum(-1) - 1] = True
    inputs["attention_mask"] = _mask(inputs["attention_mask"], attention)
    inputs["loss_mask"] = _mask(inputs["loss_mask"], generated)
    if inputs["adv_norm"] is not None:
        inputs["mask_no_eos_with_zero"] = False
    return lay_out_groups(inputs, choose)


def _mask(value: Tensor, flags: Any) -> Tensor:
    return replaced(value, flags.astype(int))


def _filled(value: float, dtype: str) -> Callable[[Mapping[str, Any]], Any]:
    def default(scenario: Mapping[str, Any]) -> Any:
        rows, columns = scenario["attention_mask"].shape
        return tensor([[value] * columns for _ in range(rows)], dtype)

    return default


_BATCH_NORM = {"mean_level": "batch", "std_level": "batch", "std_unbiased": True, "eps": 1e-5}
_REWARD_NORMS = (
    None,
    {"mean_level": "batch", "std_level": None},
    _BATCH_NORM,
    {"mean_level": "group", "std_level": None},
    {"mean_level": "group", "std_level": "group", "std_unbiased": True, "eps": 1e-5},
)

#: The shape of the results. A position predicts the next token.
_POSITIONS = ("batch", "positions")

ADVANTAGE_STEP = Contract(
    name="advantage_step",
    summary="advantages of a batch of sequences: reward normalisation, KL penalty, GAE, advantage normalisation",
    source=(
        "PPO (arXiv:1707.06347) with GAE (arXiv:1506.02438), equation 16, on "
        "KL-regularised token rewards (arXiv:2203.02155)"
    ),
    inputs=(
        per_token("attention_mask", "1 for tokens that are not padding", "mask", dtype="int64"),
        per_token("loss_mask", "1 for generated tokens", "mask", dtype="bool", dtypes=("int64", "float32")),
        per_row("rewards", "task reward of each sequence", "reward"),
        Input(
            "group",
            "labels",
            "prompt id of each row; required if a group normalisation has no group_size",
            shape=("batch",),
            default=None,
        ),
        Input("group_layout", "string", "equal: groups are consecutive and of one size", default="equal"),
        per_token("input_ids", "token ids", dtype="int64", default=_filled(1, "int64")),
        per_token("logprobs", "rollout log-prob of each token", "log_prob", default=_filled(0.0, "float32")),
        Input(
            "reward_norm",
            "mapping",
            "how sequence rewards are normalised: mean_level, std_level, …",
            default=None,
            choices=_REWARD_NORMS,
        ),
        Input(
            "adv_norm",
            "mapping",
            "how advantages are normalised: mean_level, std_level, …",
            default=None,
            choices=(None, _BATCH_NORM),
        ),
        knob("mask_no_eos_with_zero", "whether a row that fills its length without EOS gets reward 0", (False, True)),
        knob("reward_bias", "added to each reward", (0.0, 0.5)),
        knob("reward_scaling", "multiplies each reward", (1.0, 2.0)),
        knob("reward_clip", "bound of |reward|", (1000.0, 1.0)),
        Input("kl_ctl", "number", "coefficient of the KL penalty", default=0.0),
        Input("kl_estimator", "string", "estimator of the KL penalty", default="k1"),
        knob("discount", "gamma", (1.0, 0.5)),
        knob("gae_lambda", "lambda of GAE", (1.0, 0.5)),
        # A search varies the next three inputs only for bindings that list their values in ``accepts``.
        Input("timestep", "string", "a step of GAE: token, or turn (a run of generated tokens)", default="token"),
        Input(
            "lambda_rule",
            "string",
            "lambda of a row: constant, or by_length (1 - 1 / number of steps)",
            default="constant",
        ),
        Input(
            "overlong_tokens",
            "integer",
            "number of last response tokens that reduce the reward, linearly up to 1; default: none do",
            default=None,
        ),
        dialect(
            "rejected",
            "absent",
            "whether the statistics include rewards of rejected rows and rewards that were set to 0: absent or counted",
        ),
    ),
    observes=(
        Observed("advantages", "advantage of each token, at the position that predicts it; 0 elsewhere", _POSITIONS),
        Observed("returns", "return of each token, at the position that predicts it; 0 elsewhere", _POSITIONS),
        Observed("tot_rewards", "token rewards after the KL penalty", _POSITIONS, "other"),
        Observed("kl_rewards", "the KL penalty only", _POSITIONS, "other"),
        Observed("loss_mask", "the mask that the loss will use", _POSITIONS),
    ),
    measure=_measure,
    oracle=_oracle,
    law="a_rejected_row_is_an_absent_row",
    aliases={"loss_mask_before_roll": "loss_mask"},
    # padding_is_invisible is not listed: a row without padding counts as a row without EOS, so padding changes the
    # result. groups_are_isolated is not listed: a normalisation may use the whole batch.
    laws=tuple(law for law in LAWS_OF_TOKENS if law not in ("padding_is_invisible", "groups_are_isolated")),
    mask="loss_mask",
    arrange=_arrange,
)
