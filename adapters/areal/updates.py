"""Bindings for AReaL's actor update and for its computation of log-probs. A table of log-probs replaces the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

_ACTOR = "areal.trainer.ppo.actor"
_ENGINE = "areal.engine.fsdp_engine"
_ARGUMENTS = "areal.api.cli_args"


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one update of AReaL's actor and return the gradient with respect to the log-probs.

    Each token has a unique id, with which the stand-in model looks up the token's log-prob, so AReaL may reorder
    tokens. The value at position t belongs to token t + 1. The loss is averaged over ranks, as FSDP averages gradients.
    """
    mask, count, named = inputs["response_mask"].bool(), inputs["dp_size"], kit.named_tokens(inputs)
    named.pop("rewards")
    rows, width = mask.shape
    share = rows // count
    table = kit.tables_of(inputs)["log_probs"]
    # The old log-probs are passed as those of the behaviour policy and as those of the proximal policy.
    scored, old = "rewards" in inputs, inputs["old_log_probs"]
    of_tokens = {"loss_mask": mask, "logprobs": old, "prox_logp": old, "advantages": inputs.get("advantages", old)}
    whole = {
        **named,
        **{name: torch.nn.functional.pad(column, (0, 1)) for name, column in of_tokens.items()},
        **dict.fromkeys(("rewards", "tot_rewards"), torch.zeros(rows)),
        "kl_rewards": torch.zeros(rows, width + 1),
    }
    arguments = boundary.imported[_ARGUMENTS]
    config = arguments.PPOActorConfig(experiment_name="", trial_name="", path="")
    vars(config).update(
        eps_clip=inputs["eps_clip_low"],
        eps_clip_higher=inputs["eps_clip_high"],
        c_clip=inputs["dual_clip"],
        ppo_n_minibatches=1,
        rejection_sampling=None,
        mb_spec=arguments.MicroBatchSpec(
            n_mbs=share // (inputs["micro_batch_size"] or share), max_tokens_per_mb=inputs["max_tokens_per_microbatch"]
        ),
    )
    engine_of = boundary.imported[_ENGINE].FSDPEngine
    losses: list[Any] = []

    class Engine(engine_of):  # type: ignore[misc, valid-type]
        """AReaL's engine without sharding and without optimiser steps."""

        dp_group = data_parallel_group = None
        optimizer_zero_grad = _ensure_ready = train = staticmethod(lambda *_: None)
        optimizer_step = staticmethod(dict)
        get_version = staticmethod(lambda: 0)

        def __init__(self) -> None:
            self.config, self.device, self.logger = config, boundary.device, boundary.module.logger
            self.parallel_helper = kit.stand_in(dp_size=count, sp_size=1, tp_size=1)
            self.model_config, self.enable_tree_training = kit.stand_in(model_type="qwen2"), False
            self.is_vision_model = False

        def model(self, input_ids: Any, **_: Any) -> Any:
            return kit.stand_in(logits=table[input_ids.roll(-1, dims=-1)])

        def _compute_logprobs_entropy(self, logits: Any, *_: Any) -> Any:
            return logits, torch.zeros_like(logits)

        def _get_vocab_min_max_logits(self, logits: Any, *_: Any) -> Any:
            return logits.detach(), logits.detach()

        def _compute_logprobs_and_loss(self, *batch: Any, **options: Any) -> Any:
            loss = super()._compute_logprobs_and_loss(*batch, **options)
            losses.append(loss)
            return loss.detach().requires_grad_()

    stages = []
    if scored:
        before = {name: torch.nn.functional.pad(of_tokens[name], (1, 0)) for name in ("loss_mask", "logprobs")}
        whole = {**named, **before, "rewards": inputs["rewards"]}
        norm = arguments.NormConfig(mean_level="group", std_level=None, group_size=kit.group_size(inputs))
        vars(config).update(reward_norm=norm, adv_norm=None, discount=1.0, gae_lambda=1.0, kl_ctl=0.0, reward_clip=1e9)
        actor = boundary.owner(config, Engine())
        whole = getattr(actor, "_compute_advantages", actor.compute_advantages)(dict(whole))
        stages = [("_compute_advantages", [whole])]

    def rank(number: int) -> None:
        part = slice(number * share, (number + 1) * share)
        actor = boundary.owner(config, Engine())
        boundary.function(actor, {name: column[part] for name, column in whole.items()})

    with kit.swap_all(boundary.module.stats_tracker, scalar=lambda **_: None, stat=lambda **_: None):
        kit.on_ranks(count, rank)
    (sum(losses) / count).backward()
    rest = {"stages": stages, "rows": named} if scored else {"pg_loss": None, "kl_loss": None}
    return {"gradient": inputs["log_probs"].grad, **rest}


def _recomputed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that AReaL's engine computes in a forward pass over packed microbatches."""
    named, table = kit.named_tokens(inputs), kit.prepend_prompt(inputs["log_probs"]).flatten()
    rows, size = len(named["number"]), inputs["micro_batch_size"]
    arguments = boundary.imported[_ARGUMENTS]
    config = arguments.PPOActorConfig(experiment_name="", trial_name="", path="")
    config.mb_spec = arguments.MicroBatchSpec(
        n_mbs=rows // (size or rows), max_tokens_per_mb=inputs["max_tokens_per_microbatch"]
    )

    class Engine(boundary.owner):  # type: ignore[misc, name-defined]
        """AReaL's engine without sharding."""

        dp_group = data_parallel_group = None
        _ensure_ready = staticmethod(lambda *_: None)

        def __init__(self) -> None:
            self.config, self.device, self.logger = config, boundary.device, kit.make_silent_logger()
            self.parallel_helper = kit.stand_in(dp_size=1, sp_size=1, tp_size=1)
            self.model_config, self.enable_tree_training = kit.stand_in(model_type="qwen2"), False
            self.is_vision_model = False

        def model(self, input_ids: Any, **_: Any) -> Any:
            return kit.stand_in(logits=table[input_ids.roll(-1, dims=-1)])

        def _compute_logprobs(self, logits: Any, *_: Any) -> Any:
            return logits

    batch = {name: named[name] for name in ("input_ids", "attention_mask")}
    made = kit.on_ranks(
        1, lambda _: boundary.function(Engine(), batch, aggregate_fn=lambda parts: torch.cat(parts, dim=-1))
    )[0]
    width = inputs["log_probs"].shape[1]
    return {"log_probs": torch.nn.functional.pad(made, (0, width + 1 - made.shape[1]))[:, :width]}


_UPDATE = Binding(
    f"{_ACTOR}.PPOActor._ppo_update", "policy_update", formerly=(f"{_ACTOR}.PPOActor.ppo_update",), call=_update,
    imports=(_ENGINE, _ARGUMENTS), requires=(f"{_ENGINE}.FSDPEngine._compute_logprobs_and_loss",),
    stand_ins=(
        StandIn("model", "a table of log-probs, in which the forward pass looks up its input tokens"),
        StandIn("engine", "the real engine without sharding over a process group and without optimiser steps"), RANKS,
        StandIn("stats_tracker", "discards the reported values, which do not affect the update"),
    ),
    fixed={
        **dict.fromkeys(("ref_log_probs", "entropies", "loss_scale_factor")),
        **dict.fromkeys(("kl_coef", "entropy_coef"), 0.0), "loss_agg_mode": "token-mean",
    },
    accepts={"dual_clip": (None, 3.0)}, dtypes=("float32",),
)  # fmt: skip

BINDINGS = (
    _UPDATE,
    Binding(
        f"{_ENGINE}.FSDPEngine.forward_batch", "recomputed_log_probs", call=_recomputed, imports=(_ARGUMENTS,),
        requires=(f"{_ENGINE}.FSDPEngine._compute_logprobs_and_loss",),
        stand_ins=(_UPDATE.stand_ins[0], _UPDATE.stand_ins[1], RANKS), fixed={"entropies": None},
        accepts={"response_mask": ("full", "right", "right")}, dtypes=("float32",),
    ),
    replace(_UPDATE, contract="training_step", fixed={"group_layout": "equal", "loss_agg_mode": "token-mean"}),
)  # fmt: skip
