"""verl: update steps of its workers and engines, on a table of log-probs for a model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.targets import Binding
from sentinel.worker.drift import AbsentError
from sentinel.worker.kit import swapped

from .shared import CONFIG, CPU, MEMORY, MODEL, OPTIMIZER, SELF, Recorder, make_model

#: What its losses can be aggregated by.
AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")

_ACTOR = "verl.workers.actor.dp_actor"
_CRITIC = "verl.workers.critic.dp_critic"
_MEMORY = "verl.utils.debug.performance"
_CORE = "verl.trainer.ppo.core_algos"
_PROTOCOL = "verl.protocol"


class Answer(dict[str, Any]):
    """What the actor's forward pass answers: newer revisions look into it, older ones unpack (entropy, log-probs)."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self["entropys"], self["log_probs"]))


def _with_prompt(mask: Any) -> Any:
    """The mask with one token of a prompt before it."""
    import torch

    return torch.cat((torch.ones_like(mask[:, :1]), mask), dim=-1)


def _batch(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of one prompt token, which is the row's place in the table, and a response."""
    import torch

    mask = inputs["response_mask"]
    rows, tokens = mask.shape
    ids = torch.arange(rows)[:, None].repeat(1, tokens + 1)
    batch = {
        "input_ids": ids,
        "responses": ids[:, 1:],
        "position_ids": torch.arange(tokens + 1)[None].repeat(rows, 1),
        "attention_mask": _with_prompt(mask),
        "response_mask": mask,
        "old_log_probs": inputs["old_log_probs"],
        "advantages": inputs["advantages"],
    }
    if inputs["ref_log_probs"] is not None:
        batch["ref_log_prob"] = inputs["ref_log_probs"]
    return batch


def options(inputs: Mapping[str, Any]) -> Any:
    """The actor's configuration under the names of all revisions."""
    import omegaconf

    with_kl = inputs["ref_log_probs"] is not None and bool(inputs["kl_coef"])
    return omegaconf.OmegaConf.create(
        {
            "ppo_mini_batch_size": inputs["mini_batch_size"] or len(inputs["response_mask"]),
            "ppo_micro_batch_size_per_gpu": inputs["micro_batch_size"] or len(inputs["response_mask"]),
            "ppo_micro_batch_size": inputs["micro_batch_size"] or len(inputs["response_mask"]),
            "use_dynamic_bsz": inputs["max_tokens_per_microbatch"] is not None,
            "ppo_max_token_len_per_gpu": inputs["max_tokens_per_microbatch"],
            "ppo_epochs": 1,
            "shuffle": False,
            "clip_ratio": inputs["eps_clip_low"],
            "clip_ratio_low": inputs["eps_clip_low"],
            "clip_ratio_high": inputs["eps_clip_high"],
            "clip_ratio_c": inputs["dual_clip"] or 1e30,  # beyond every ratio
            "entropy_coeff": 0.0,
            "calculate_entropy": False,
            "use_kl_loss": with_kl,
            "kl_loss_coef": inputs["kl_coef"],
            "kl_loss_type": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}.get(
                inputs["kl_estimator"], inputs["kl_estimator"]
            ),
            "loss_agg_mode": inputs["loss_agg_mode"],
            "loss_scale_factor": inputs["loss_scale_factor"],
            "policy_loss": {"loss_mode": "vanilla"},
            # With it every revision that has it takes the old log-probs as they are given.
            "use_rollout_log_probs": True,
            "global_batch_info": {},
            "grad_clip": 1e30,
        }
    )


def mean_of(reported: Any) -> Any:
    """As the trainer reduces what an update reports: ``numpy.mean`` of each."""
    import numpy

    return None if reported is None else float(numpy.mean(reported))


def _check(boundary: Any, inputs: Mapping[str, Any]) -> None:
    """An option that no code of this version names is none of its options.

    :raises AbsentError: where the scenario chooses it.
    """

    chosen = {
        "loss_agg_mode": inputs["loss_agg_mode"] != "token-mean",
        "clip_ratio_high": inputs["eps_clip_high"] != inputs["eps_clip_low"],
        "clip_ratio_c": inputs["dual_clip"] is not None,
    }
    code = "".join(map(inspect.getsource, (boundary.module, boundary.imported[_CORE])))
    for option, is_chosen in chosen.items():
        if is_chosen and option not in code:
            raise AbsentError(f"not in this version: {boundary.module.__name__} has no option {option!r}")


def _actor_update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The legacy FSDP actor, on one rank."""
    import tensordict
    import torch

    if hasattr(boundary.owner, "_make_minibatch_iterator"):
        raise AbsentError("not in this version: the actor draws its mini-batches from a loader, and has no KL loss")
    _check(boundary, inputs)
    model = make_model(inputs["log_probs"])
    recorder = Recorder(model)

    def forward(micro_batch: Mapping[str, Any], *_: Any, **__: Any) -> Answer:
        rows = micro_batch["input_ids"][:, 0]
        return Answer(log_probs=model.table[rows], entropys=torch.zeros_like(micro_batch["advantages"]))

    actor = object.__new__(boundary.owner)
    vars(actor).update(
        config=options(inputs),
        actor_module=model,
        actor_optimizer=recorder,
        _forward_micro_batch=forward,
        ulysses_sequence_parallel_size=1,
        use_prefix_grouper=False,
        scaler=None,
        _fsdp_gradient_divisor=1.0,
    )
    proto = boundary.imported[_PROTOCOL].DataProto
    batch = tensordict.TensorDict(_batch(inputs), batch_size=[len(inputs["response_mask"])])
    data = proto(batch=batch, meta_info={"temperature": 1.0})
    with (
        swapped(tensordict.TensorDict, "cuda", lambda self: self),
        swapped(torch.cuda, "current_device", lambda: "cpu"),
        swapped(sys.modules.get(_MEMORY), "_get_current_mem_info", lambda *_: ("0",) * 4),
        swapped(boundary.module, "get_device_id", lambda: "cpu"),
    ):
        told = boundary.function(actor, data)
    kl_loss = told.get("actor/kl_loss") if actor.config.use_kl_loss else None
    return {"gradient": recorder.gradient, "pg_loss": mean_of(told.get("actor/pg_loss")), "kl_loss": mean_of(kl_loss)}


def _critic_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The legacy FSDP critic. Its forward pass has left the prompt behind, and what comes after the last token."""
    import tensordict

    mask = inputs["response_mask"]
    given = {**inputs, **dict.fromkeys(("old_log_probs", "advantages"), inputs["outputs"]), "ref_log_probs": None}
    batch = {**_batch(given), "attention_mask": _with_prompt(mask).long()}
    critic = object.__new__(boundary.owner)
    vars(critic).update(
        critic_module=make_model(inputs["outputs"]),
        _forward_micro_batch=lambda micro_batch: inputs["outputs"][micro_batch["input_ids"][:, 0]],
        ulysses_sequence_parallel_size=1,
    )
    data = boundary.imported[_PROTOCOL].DataProto(
        batch=tensordict.TensorDict(batch, batch_size=[len(mask)]),
        meta_info={"micro_batch_size": len(mask), "use_dynamic_bsz": False},
    )
    with (
        swapped(sys.modules.get(_MEMORY), "_get_current_mem_info", lambda *_: ("0",) * 4),
        swapped(boundary.module, "get_device_id", lambda: "cpu"),
    ):
        return {"values": boundary.function(critic, data)}


BINDINGS = (
    Binding(
        f"{_CRITIC}.DataParallelPPOCritic.compute_values",
        "critic_values",
        call=_critic_values,
        imports=(_PROTOCOL,),
        stand_ins=(SELF, MODEL, CPU, MEMORY),
        accepts={"response_mask": ("full", "right")},
    ),
    Binding(
        f"{_ACTOR}.DataParallelPPOActor.update_policy",
        "policy_update",
        call=_actor_update,
        imports=(_PROTOCOL, _CORE),
        stand_ins=(SELF, MODEL, OPTIMIZER, CONFIG, CPU, MEMORY),
        # What clips is searched where the loss is; many versions of the actor have one range and no second clip.
        accepts={
            "dp_size": (1,),
            "loss_agg_mode": AGGREGATIONS,
            "eps_clip_low": (0.2,),
            "eps_clip_high": (0.2,),
            "dual_clip": (None,),
        },
    ),
)
