"""An adapter for RLinf (RLinf/RLinf), begun by `sentinel adapt` and finished by hand.

`sentinel adapt https://github.com/RLinf/RLinf --check docs/examples/rlinf.py` tries the laws on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import Binding, Dialect, PackageRoot, Registry, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.families import aggregated, group_advantage, masked_statistic, policy_loss
from sentinel.binding.kit import torch

_CODE = "https://github.com/RLinf/RLinf/blob/a3816b596478dcd8a5c69a6ec1468c9519f77b5b/rlinf"
_ADVANTAGES, _LOSSES, _UTILS = "rlinf.algorithms.advantages", "rlinf.algorithms.losses", "rlinf.utils.utils"
_OLD = "rlinf.algorithms.math.algo_functions"

_REJECTED = Dialect(
    "rejected", "counted", "a response without tokens is part of its group", f"{_CODE}/algorithms/advantages.py#L108"
)
#: A response ends where padding begins.
_PADDED = {"response_mask": ("full", "right")}
_EMPTY = Dialect(
    "empty_rows", "counted", "the mean over responses includes those without tokens", f"{_CODE}/utils/utils.py#L338"
)


def _reasoning(estimator: str, boundary: Any, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Call the entry of all estimators, which takes one reward per response and transposes."""
    mask = inputs["response_mask"].bool()
    given: dict[str, Any] = {"rewards": torch.where(mask, inputs["token_level_rewards"], 0.0).sum(-1)}
    if "group" in inputs:
        given["group_size"] = kit.group_size(inputs)
    else:
        given["group_size"] = 1
    if "values" in inputs:
        given.update(values=inputs["values"], gamma=inputs["gamma"], gae_lambda=inputs["lam"])
    if estimator == "gae":
        given["normalize_advantages"] = inputs["whiten"]
    advantages, returns = boundary.function(task_type="reasoning", adv_type=estimator, loss_mask=mask, **given)
    return advantages, returns


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call the loop over ``[tokens, batch]``, with a value after the last token and the flag of the episode's end."""
    mask, values = inputs["response_mask"].bool(), inputs["values"].T
    dones = torch.zeros(len(values) + 1, values.shape[1], dtype=torch.bool)
    dones[-1] = True
    after = torch.cat([values, torch.zeros_like(values[:1])])
    own = {**inputs, "token_level_rewards": inputs["token_level_rewards"].T, "values": after, "response_mask": mask.T}
    answer = boundary.invoke(own, dones=dones, normalize_advantages=False)
    return tuple(part.T for part in answer)


def _embodied(logprob_type: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the entry of embodied losses: one reward and mask value per chunk, log-probs of each action of a chunk."""
    loss, metrics = boundary.function(
        task_type="embodied",
        loss_type="actor",
        logprob_type=logprob_type,
        single_action_dim=inputs["actions_per_step"],
        logprobs=inputs["log_probs"].flatten(1),
        old_logprobs=inputs["old_log_probs"].flatten(1),
        advantages=inputs["advantages"],
        loss_mask=inputs["response_mask"].bool(),
        clip_ratio_low=inputs["eps_clip_low"],
        clip_ratio_high=inputs["eps_clip_high"],
        clip_ratio_c=inputs["dual_clip"],
    )
    return {"loss": loss, "clip_fraction": metrics["actor/clip_fraction"], "approx_kl": metrics["actor/approx_kl"]}


def _explained(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the two halves of the metric: the sums of a microbatch, then the metric of their total."""
    stats = boundary.invoke(inputs)
    metric = boundary.module.compute_critic_explained_variance_from_stats(stats)
    return {"explained_variance": metric}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call REINFORCE++, which takes one reward per response, ``[1, batch]``, and returns ``[tokens, batch]``."""
    mask = inputs["response_mask"].bool()
    rewards = torch.where(mask, inputs["token_level_rewards"], 0.0).sum(-1)[None]
    own = {"token_level_rewards": rewards, "response_mask": mask.T}
    return {"advantages": boundary.invoke(own, group_size=1)[0].T}


_MASK = {"response_mask": ("loss_mask", "mask")}
_RATIOS = {
    "log_probs": ("logprobs",),
    "old_log_probs": ("old_logprobs",),
    "eps_clip_low": ("clip_ratio_low",),
    "eps_clip_high": ("clip_ratio_high",),
    "dual_clip": ("clip_ratio_c", "c_clip"),
}
_CLIP = ("eps_clip_low", "eps_clip_high", "dual_clip")
_WHITE = (
    Dialect(
        "whiten", True, "advantages are normalised over the valid tokens", f"{_CODE}/algorithms/advantages.py#L357"
    ),
    Dialect("std", "biased", "the variance is a masked mean of squares", f"{_CODE}/algorithms/advantages.py#L360"),
    Dialect(
        "epsilon_placement",
        "floor",
        "the variance is clamped to at least 1e-8",
        f"{_CODE}/algorithms/advantages.py#L361",
    ),
)


def _aggregation(name: str, mode: str) -> Binding:
    return Binding(
        f"{_UTILS}.{name}",
        "loss_aggregation",
        arguments={"loss_mat": ("values",), "response_mask": ("mask",)},
        outputs=("loss",),
        fixed={**aggregated(mode), "weights": None},
        dialects=(_EMPTY,),
    )


TARGET = Target(
    name="rlinf",
    repository="https://github.com/RLinf/RLinf.git",
    roots=(PackageRoot("rlinf"),),
    stub_versions={"ray": "2.47.0"},
    arguments=_MASK,
    registries=(
        Registry("register_policy_loss", like=f"{_LOSSES}.compute_ppo_actor_loss"),
        Registry("register_advantage", like=f"{_ADVANTAGES}.compute_grpo_advantages"),
    ),
    bindings=(
        group_advantage(
            f"{_ADVANTAGES}.compute_grpo_advantages",
            partial(
                kit.call_with,
                takes=("token_level_rewards", "response_mask"),
                sums={"token_level_rewards": "response_mask"},
                group="group_size",
                tokens_first=True,
            ),
            "grpo",
            (),
            _REJECTED,
            formerly=(f"{_OLD}.compute_grpo_advantages",),
            arguments={"token_level_rewards": ("rewards",)},
            outputs=("advantages",),
            fixed={"group_layout": "equal"},
            accepts=_PADDED,
            dtypes=("float32",),
        ),
        Binding(
            f"{_ADVANTAGES}.compute_gae_advantages_and_returns",
            "generalised_advantage",
            call=_gae,
            stand_ins=(StandIn("dones", "a response is one episode, as in the framework's own preparation"),),
            arguments={"token_level_rewards": ("rewards",), "lam": ("gae_lambda",)},
            outputs=("advantages", "returns"),
            dialects=(
                Dialect(
                    "masked_steps", "counted", "the loop runs over all tokens and does not read the mask",
                    f"{_CODE}/algorithms/advantages.py#L62",
                ),
            ),
        ),
        Binding(
            f"{_ADVANTAGES}.compute_reinpp_advantages",
            "discounted_return",
            call=_whitened,
            arguments={"token_level_rewards": ("rewards",)},
            fixed={"gamma": 1.0, "kl": None, "kl_coef": 0.0, "reward_layout": "outcome"},
            dialects=_WHITE,
            dtypes=("float32",),
        ),
        Binding(
            "rlinf.algorithms.registry.calculate_adv_and_returns",
            "group_advantage",
            call=partial(_reasoning, "grpo"),
            imports=(_ADVANTAGES,),
            outputs=("advantages",),
            fixed={"estimator": "grpo", "epsilon": None, "norm_by_std": None, "group_layout": "equal"},
            accepts=_PADDED,
            dtypes=("float32",),
            dialects=(_REJECTED,),
        ),
        policy_loss(
            f"{_LOSSES}.compute_ppo_actor_loss",
            partial(kit.call_with, bools=("response_mask",)),
            "ppo",
            _CLIP,
            mode="token-mean",
            formerly=(f"{_OLD}.actor_loss_fn",),
            arguments=_RATIOS,
            outputs=("loss",),
            dtypes=("float32",),
        ),
        policy_loss(
            f"{_LOSSES}.compute_decoupled_ppo_actor_loss",
            partial(kit.call_with, bools=("response_mask",)),
            "ppo",
            _CLIP,
            mode="token-mean",
            arguments=_RATIOS,
            outputs=("loss",),
            dtypes=("float32",),
        ),
        policy_loss(
            "rlinf.algorithms.registry.policy_loss",
            partial(_embodied, "action_level"),
            "ppo",
            _CLIP,
            mode="token-mean",
            imports=(_LOSSES,),
            fixed={"actions_per_step": 3},
            dtypes=("float32",),
        ),
        Binding(
            f"{_LOSSES}.compute_ppo_critic_loss",
            "value_loss",
            call=partial(kit.call_with, bools=("response_mask",)),
            arguments={"vpreds": ("values",), "values": ("prev_values",), "cliprange_value": ("value_clip",)},
            constants={"huber_delta": 1.0},
            outputs=("loss",),
            fixed=aggregated("token-mean"),
            accepts={"cliprange_value": (0.2, 0.6)},
            dialects=(
                Dialect("factor", 0.5, "half the squared error", f"{_CODE}/algorithms/utils.py#L22"),
                Dialect("kind", "huber", "a Huber loss", f"{_CODE}/algorithms/utils.py#L20"),
            ),
        ),
        Binding(
            "rlinf.utils.metric_utils.compute_critic_explained_variance_stats", "explained_variance", call=_explained
        ),
        Binding(
            "rlinf.algorithms.utils.kl_penalty",
            "kl_estimate",
            formerly=(f"{_OLD}.kl_penalty",),
            arguments={"log_probs": ("logprob",), "ref_log_probs": ("ref_logprob",), "kl_estimator": ("kl_penalty",)},
            outputs=("kl",),
            accepts={"response_mask": (None,)},
            dialects=(
                Dialect(
                    "clamp", 10.0, "the estimate is clamped to [-10, 10]", f"{_CODE}/algorithms/utils.py#L58",
                    where={"kl_estimator": ("k3",)},
                ),
            ),
        ),
        Binding(
            "rlinf.algorithms.utils.safe_normalize",
            "masked_statistics",
            call=partial(kit.call_with, takes=("values", "response_mask"), bools=("response_mask",)),
            arguments={"values": ("array",)},
            outputs=("result",),
            fixed={"statistic": "whiten", "axis": None, "unbiased": True, "shift_mean": True, "epsilon": 1e-5},
            dtypes=("float32",),
            dialects=(
                Dialect("epsilon_placement", "outside", "std + 1e-5", f"{_CODE}/algorithms/utils.py#L402"),
            ),
        ),
        Binding(
            f"{_UTILS}.masked_mean",
            "masked_statistics",
            call=partial(kit.call_with, values_of={"axis": kit.AXIS}, bools=("response_mask",)),
            arguments={"response_mask": ("mask",)},
            outputs=("result",),
            fixed={"statistic": "mean", "unbiased": True, "shift_mean": True, "epsilon": 1e-8},
        ),
        masked_statistic(f"{_UTILS}.masked_sum", "sum", "axis", arguments={"response_mask": ("mask",)}),
        _aggregation("seq_mean_token_sum", "seq-mean-token-sum"),
        _aggregation("seq_mean_token_mean", "seq-mean-token-mean"),
        Binding(
            f"{_UTILS}.compute_logprobs_from_logits",
            "token_log_probs",
            call=partial(kit.call_with, takes=("logits", "token_ids")),
            formerly=("rlinf.models.embodiment.model_utils.compute_logprobs_from_logits",),
            arguments={"token_ids": ("target",)},
            outputs=("log_probs",),
            fixed={"temperature": 1.0, "with_entropy": False},
        ),
    ),
)  # fmt: skip
