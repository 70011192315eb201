"""Bindings for AReaL's losses other than PPO's, its advantages with a critic, and its learning-rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import PREFERENCE_LOSS, policy_loss
from sentinel.binding.kit import torch

_FUNCTIONAL = "areal.utils.functional"
ARGUMENTS = "areal.api.cli_args"
_ACTOR = "areal.trainer.ppo.actor.PPOActor._compute_advantages"
_MAIN = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"
_ICEPOP = "https://github.com/areal-project/AReaL/blob/f82f0f21dee4fc695d8ea9d5abc726d462f9638a/areal"


#: Options of an actor that uses the given log-probs instead of recomputing them.
ALONE: Mapping[str, Any] = {"use_decoupled_loss": False, "recompute_logprob": False}


def actor_of(boundary: Any, engine: Any, **options: Any) -> Any:
    """Build an actor with AReaL's own constructor and configuration class."""
    names = dict.fromkeys(("experiment_name", "trial_name", "path"), "sentinel")
    kind = boundary.imported[ARGUMENTS].PPOActorConfig
    arguments = kit.keep_accepted(kind, {**names, **options}, {"reward_norm": None, "adv_norm": None})
    return boundary.owner(kind(**arguments), engine)


def _critic_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with AReaL from a critic's values. Each row is a prompt of one token, the response and EOS.

    Position t predicts token t + 1. Only the last token has a reward, so each row ends with its last valid token.
    """
    mask = inputs["response_mask"] != 0
    rows, tokens = mask.shape
    plain = {"kl_ctl": 0.0, "reward_scaling": 1.0, "reward_bias": 0.0, "reward_clip": 1e9}
    discounts = {"discount": inputs["gamma"], "gae_lambda": inputs["lam"]}
    actor = actor_of(boundary, None, reward_norm=None, adv_norm=None, **ALONE, **plain, **discounts)
    ends = (mask * torch.arange(1, tokens + 1)).amax(-1)
    data = {
        "input_ids": torch.ones(rows, tokens + 2, dtype=torch.int64),
        "attention_mask": (torch.arange(tokens + 2)[None, :] <= ends[:, None]).long(),
        "loss_mask": torch.nn.functional.pad(mask, (1, 1)).long(),
        "rewards": torch.where(mask, inputs["token_level_rewards"], 0.0).sum(-1).float(),
        "logprobs": torch.zeros(rows, tokens + 2),
        "values": torch.nn.functional.pad(inputs["values"].float(), (0, 2)),
    }
    answer = boundary.function(actor, data)
    columns = data if answer is None else answer
    cut = {name: columns[name][:, :tokens] for name in ("advantages", "returns") if name in columns}
    return {"returns": None, **cut}  # older versions return only the advantages


def _decoupled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call AReaL's decoupled policy loss, which drops tokens with extreme importance weights.

    IcePop or rejection sampling selects these tokens.
    """
    low, high = inputs["weight_low"], inputs["weight_high"]
    if inputs["correction"] == "icepop":
        if "enable_icepop" not in boundary.parameters:
            raise AbsentError(f"in this version, {boundary.path} has no IcePop")
        drop = {"enable_icepop": True, "icepop_alpha": 0.0 if low is None else low, "icepop_beta": high}
    elif "rejection_sampling" not in boundary.parameters:
        if low is not None:
            raise AbsentError("this version has no lower bound for importance weights")
        drop = {"behav_imp_weight_cap": high}
    else:
        made = boundary.imported[ARGUMENTS].RejectionSamplingConfig
        drop = {"rejection_sampling": made(level="token", action="mask", metric="ratio", lower=low, upper=high)}
    names = ("log_probs", "proximal_log_probs", "behaviour_log_probs", "advantages", "eps_clip")
    masked = {**kit.take_inputs(inputs, *names), "response_mask": inputs["response_mask"].bool()}
    loss, metrics = boundary.invoke(masked, **drop)
    return {"loss": loss, "ratio": metrics["importance_weight"]}


def _pairs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call AReaL's preference loss on packed pairs, in which the rejected sequence follows the chosen sequence.

    Position t predicts token t + 1, and the last position predicts nothing. The tracker of metrics in this process is
    emptied first.
    """

    def packed(name: str, before: int, behind: int) -> Any:
        sides = [torch.nn.functional.pad(inputs[f"{side}_{name}"], (before, behind)) for side in ("chosen", "rejected")]
        return torch.stack(sides, dim=1).reshape(-1)

    rows, tokens = inputs["chosen_mask"].shape
    engine = boundary.imported.get(_DPO, boundary.module)
    engine.stats_tracker.DEFAULT_TRACKER.stats.clear()
    loss = engine.compute_dpo_loss(
        logprobs=packed("log_probs", 0, 1),
        entropy=None,
        input_={
            "cu_seqlens": torch.arange(0, 2 * rows * (tokens + 1) + 1, tokens + 1, dtype=torch.int32),
            "loss_mask": packed("mask", 1, 0),
            "ref_logprobs": packed("ref_log_probs", 0, 1),
        },
        beta=inputs["beta"],
        loss_type=inputs["loss_type"],
    )
    return {"loss": loss}


def _ranked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call AReaL's reward-model loss on packed pairs. The last score of a sequence is the sum of its log-probs."""
    sides = [
        torch.where(inputs[f"{s}_mask"] != 0, inputs[f"{s}_log_probs"], 0.0).sum(-1) for s in ("chosen", "rejected")
    ]
    ends = torch.stack(sides, 1).flatten()
    scores = torch.stack([-ends.detach(), ends], 1).flatten()
    boundary.module.stats_tracker.DEFAULT_TRACKER.stats.clear()
    return {"loss": boundary.function(scores, {"cu_seqlens": torch.arange(0, len(scores) + 1, 2, dtype=torch.int32)})}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call AReaL's supervised loss on a packed microbatch of sequences with equal lengths."""
    if "logits" in boundary.parameters:
        raise AbsentError("this version's loss takes logits instead of log-probs")
    source, mask = kit.source_of(boundary.function), inputs["response_mask"].reshape(-1)
    epsilon, count = 1e-5 if "1e-5" in source else 0.0, int(mask.count_nonzero())
    if count + epsilon == 0:
        raise AbsentError("this version divides by the number of valid tokens; the scenario has none")
    rows, tokens = inputs["log_probs"].shape
    boundary.module.stats_tracker.DEFAULT_TRACKER.stats.clear()
    ends = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32)
    # Until April 2026, the loss itself moved the mask to the positions that predict the valid tokens.
    data = {"cu_seqlens": ends, "loss_mask": mask.roll(1) if "torch.roll" in source else mask}
    log_probs = inputs["log_probs"].reshape(-1)
    # Undo the division by the number of tokens (since April 2026 plus 1e-5), because the contract's loss is a sum.
    return {"loss": boundary.function(log_probs, torch.zeros_like(log_probs), data) * (count + epsilon)}


_DPO = "areal.trainer.dpo.dpo_engine"
_PAIRED = PREFERENCE_LOSS.lacking("beta", "loss_type")
_OBJECTIVES = (
    *(
        Binding(
            f"{_FUNCTIONAL}.functional.{name}",
            "preference_loss",
            call=_pairs,
            fixed=_PAIRED,
            imports=(_DPO,),
            requires=(f"{_FUNCTIONAL}.functional.{name}",),
        )
        for name in ("dpo_pair_logratios", "dpo_preference_loss")
    ),
    Binding(
        "areal.trainer.rw.rw_engine.compute_rw_loss",
        "preference_loss",
        call=_ranked,
        fixed={**_PAIRED, "loss_type": "sigmoid", "beta": 1.0},
        formerly=("areal.engine.rw.rw_engine.compute_rw_loss",),
        dialects=(
            Dialect(
                "reference",
                "none",
                "a reward model has no reference",
                "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal/trainer/rw/rw_engine.py#L130",
            ),
        ),
    ),
    policy_loss(
        "areal.trainer.sft.lm_engine.compute_packed_sft_loss",
        _supervised,
        "cross_entropy",
        (),
        mode="token-sum",
        formerly=("areal.engine.sft.lm_engine.compute_packed_sft_loss",),
        requires=("areal.utils.stats_tracker",),
        dtypes=("float32",),
    ),
    Binding(
        _ACTOR,
        "generalised_advantage",
        formerly=("areal.trainer.ppo.actor.PPOActor.compute_advantages",),
        call=_critic_advantages,
        imports=(ARGUMENTS,),
        stand_ins=(StandIn("engine", "None: the advantage step does not use the training engine"),),
        fixed={"reward_layout": "outcome"},
        dtypes=("float32",),
    ),
    Binding(
        f"{_FUNCTIONAL}.ppo_actor_loss_fn",
        "decoupled_loss",
        arguments={
            "log_probs": ("logprobs",),
            "proximal_log_probs": ("proximal_logprobs",),
            "behaviour_log_probs": ("old_logprobs",),
        },
        call=_decoupled,
        imports=(ARGUMENTS,),
        dtypes=("float32",),  # the function converts log-probs to float32 before it subtracts them
        dialects=(
            Dialect(
                "denominator",
                "kept",
                "IcePop divides by the number of kept tokens",
                f"{_ICEPOP}/utils/functional/functional.py#L584",
                where={"correction": ("icepop",)},
            ),
        ),
    ),
    Binding("areal.trainer.dpo.dpo_engine.compute_dpo_loss", "preference_loss", call=_pairs, fixed=_PAIRED),
)


_ARCHON = "areal.experimental.engine.archon_utils"


def _scheduled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name: inputs[name] for name in boundary.binding.arguments if name in inputs}
    return kit.read_rates(inputs, lambda optimizer: boundary.invoke(arguments, optimizer=optimizer))


def _configured(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning rates of the scheduler that AReaL builds from its optimiser configuration."""
    made, steps = boundary.imported[ARGUMENTS].OptimizerConfig, inputs["training_steps"]
    warmup = {"warmup_steps": inputs["warmup_steps"]}
    if "warmup_steps" not in made.__dataclass_fields__:  # in older versions, the warm-up is a fraction of the steps
        warmup = {"warmup_steps_proportion": (inputs["warmup_steps"] + 0.5) / steps}
    options = made(lr=inputs["peak"], lr_scheduler_type="cosine", min_lr_ratio=inputs["min_ratio"], **warmup)
    return kit.read_rates(inputs, lambda optimizer: boundary.function(optimizer, options, steps))


_COSINE: Mapping[str, Any] = {"schedule": "cosine", "initial_ratio": 0.0, "stable_ratio": 0.0, "first_step": 0}
_FROM_MINIMUM = Dialect(
    "warmup_from",
    "minimum",
    "the rate is never below the minimum, even during warm-up",
    f"{_MAIN}/engine/fsdp_utils/__init__.py#L197",
)

_SCHEDULES = (
    Binding(
        "areal.engine.fsdp_utils.get_cosine_schedule_with_warmup", "learning_rate",
        formerly=("areal.utils.fsdp.get_cosine_schedule_with_warmup",),
        arguments={
            "warmup_steps": ("num_warmup_steps",), "training_steps": ("num_training_steps",),
            "min_ratio": ("min_lr_ratio",),
        },
        call=_scheduled, fixed=_COSINE, dialects=(_FROM_MINIMUM,),
    ),
    Binding(
        f"{_ARCHON}.create_lr_scheduler", "learning_rate", call=_configured, imports=(ARGUMENTS,),
        # The schedule is always cosine, because AReaL takes the other schedules from transformers.
        requires=(f"{_ARCHON}.create_lr_scheduler",), fixed=_COSINE,
        dialects=(_FROM_MINIMUM,),
    ),
)  # fmt: skip


BINDINGS = (*_OBJECTIVES, *_SCHEDULES)
