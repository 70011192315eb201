"""Adapter for OpenRLHF (OpenRLHF/OpenRLHF): the functions that Sentinel checks, and how it calls them.

OpenRLHF's trainers import Ray, DeepSpeed and vLLM. These become stub modules, because they do not affect the result of
a loss, an estimator or a mask. Methods are called on objects of the real classes that have only the attributes that
these methods read.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from sentinel import AbsentError, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.drift import Neutral
from sentinel.binding.families import (
    IMPORTANCE_WEIGHT,
    LAYOUTS,
    LOG_PROB_STEP,
    MASKED_STATISTICS,
    PREFERENCE_LOSS,
    RANKS,
    WEIGHTS,
    WORDS,
    Container,
    WeightEngine,
    balanced_partition,
    chat,
    masked_statistic,
    normalised_rewards,
    policy_loss,
    rule_reward,
)
from sentinel.binding.kit import torch

_MAIN = "https://github.com/OpenRLHF/OpenRLHF/blob/3c3be6234e0cb353e76bb8019947db9dfe99fca7/openrlhf"
_MADE = f"{_MAIN}/trainer/ppo_utils/experience_maker.py"
_LOSS = "openrlhf.models.loss"
_UTILS = "openrlhf.models.utils"
_ACTOR = "openrlhf.models.actor.Actor"
_PPO = "openrlhf.trainer.ppo_utils"
_EXPERIENCE = f"{_PPO}.experience"
_OF_MAKER = "trainer.ppo_utils.experience_maker.RemoteExperienceMaker"
_MAKER = f"openrlhf.{_OF_MAKER}"
_DPO = "openrlhf.trainer.dpo_trainer.DPOTrainer"
_SFT = "openrlhf.datasets.sft_dataset.SFTDataset"

#: Masks with padding on the right only, because OpenRLHF takes a gap in a mask for tokens of an environment.
_PADDED = {"response_mask": ("full", "right")}


#: For each option, the value with which newer versions behave like versions without the option.
_USUAL = {"token_level_loss": False, "temperature": 1.0}


def _made(boundary: Any, **options: Any) -> Any:
    """Build an object of the boundary's class with its constructor.

    Options that this version lacks are left out if they have their usual value.
    """
    return boundary.owner(**kit.keep_accepted(boundary.owner, options, _USUAL))


# -- losses ------------------------------------------------------------------------------------------------------------

_MODES = {"token-mean": True, "seq-mean-token-mean": False}
_COUNTS = ("dp_size", "batch_num_tokens", "global_batch_size")
_AGGREGATES: dict[str, Any] = {"loss_agg_mode": tuple(_MODES), "loss_scale_factor": (None,)}


def _counts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the global token and row counts that OpenRLHF's losses accept since May 2026."""
    return {name: inputs[name] for name in _COUNTS if inputs[name] is not None}


def _of_a_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean loss over the microbatches of an optimiser step. Each row is one microbatch."""
    aggregate = boundary.imported[_LOSS].aggregate_loss
    losses, mask = inputs["loss_mat"], inputs["response_mask"].to(inputs["loss_mat"].dtype)
    rows, level = len(losses), _MODES[inputs["loss_agg_mode"]]
    counts = boundary.function(range(rows), kit.stand_in(), rows, lambda row: mask[row : row + 1])
    parts = [aggregate(losses[row : row + 1], mask[row : row + 1], level, **info) for row, info in counts]
    return {"loss": sum(parts) / rows}


def _of_a_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"].to(inputs["loss_mat"].dtype)
    counts = boundary.invoke({}, strategy=kit.stand_in(), loss_mask=mask)
    aggregate = boundary.imported[_LOSS].aggregate_loss
    return {"loss": aggregate(inputs["loss_mat"], mask, _MODES[inputs["loss_agg_mode"]], **counts)}


def _normalised_by(function: str, call: Any) -> Binding:
    return Binding(
        f"openrlhf.utils.loss_utils.{function}",
        "loss_aggregation",
        call=call,
        imports=(_LOSS,),
        fixed=dict.fromkeys(("weights", *_COUNTS, "loss_scale_factor")),
        accepts=_AGGREGATES,
    )


def _range(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for the clip range. Until May 2025, OpenRLHF's losses had one clip bound for both sides."""
    low, high = inputs["eps_clip_low"], inputs["eps_clip_high"]
    if "clip_eps_low" in inspect.signature(boundary.owner.__init__).parameters:
        return {"clip_eps_low": low, "clip_eps_high": high}
    if low != high:
        raise AbsentError("this version has only one clip bound; eps_clip_low and eps_clip_high must be equal")
    return {"clip_eps": low}


def _correction(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for truncated importance sampling, under the names that this version uses."""
    cap = inputs["importance_weight_cap"]
    if inputs["rollout_log_probs"] is None or cap is None:
        return {}
    parameters = inspect.signature(boundary.owner.__init__).parameters
    if "is_correction_level" in parameters:
        options = {"is_correction_level": "token", "is_correction_mode": "clip"}
        return {**options, "is_correction_threshold": [0.0, cap]}
    both = "vllm_is_correction_type" in parameters or "use_icepop" in parameters
    switch = {"enable_vllm_is_correction": True} if "enable_vllm_is_correction" in parameters else {}
    return {**switch, "vllm_is_truncated_threshold": [0.0, cap] if both else cap}


def _policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call OpenRLHF's policy loss.

    The boundary for PPO is the method ``forward``. For GSPO it is the class, because the constructor must choose the
    mean over sequences that defines GSPO: the adapter passes only the name ``gspo``.
    """
    if boundary.owner is None:
        boundary = replace(boundary, owner=boundary.function, function=boundary.function.forward)
    gspo = inputs["algorithm"] == "gspo"
    options = {"policy_loss_type": "gspo"} if gspo else {"token_level_loss": _MODES[inputs["loss_agg_mode"]]}
    correction = _correction(boundary, inputs)
    loss = _made(boundary, **options, **_range(boundary, inputs), dual_clip=inputs["dual_clip"], **correction)
    names = kit.take_inputs(inputs, "log_probs", "old_log_probs", "advantages", "response_mask")
    rollout = {"rollout_log_probs": inputs["rollout_log_probs"]} if correction else {}
    answer = boundary.invoke({**names, **_counts(inputs), **rollout}, loss)
    values = (*(answer if isinstance(answer, tuple) else (answer,)), None, None)
    return {"loss": values[0], "clip_fraction": values[1], "approx_kl": values[2]}


def _weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the importance weights of tokens, which the adapter reads from the gradient of the loss."""
    masks, high, low = inputs["mode"] == "mask", inputs["threshold_high"], inputs["threshold_low"]
    if "vllm_is_correction_type" not in inspect.signature(boundary.owner.__init__).parameters:
        raise AbsentError("this version has only one kind of importance weights")
    if masks and low is None:
        raise AbsentError("OpenRLHF masks importance weights only with both bounds; the scenario has no lower bound")
    if inputs["level"] == "kept_by_mean" and not masks:
        raise AbsentError("OpenRLHF uses the geometric mean of a sequence's ratios only to mask the sequence")
    kind = "tis" if not masks else "icepop" if inputs["level"] == "token" else "seq-mask-tis"
    options = {"vllm_is_correction_type": kind, "vllm_is_truncated_threshold": [low, high]}
    loss = _made(boundary, enable_vllm_is_correction=True, token_level_loss=True, **options)
    mask = (inputs["response_mask"] != 0).to(inputs["old_log_probs"].dtype)
    current = inputs["old_log_probs"].detach().clone().requires_grad_()
    names = {"log_probs": current, "old_log_probs": inputs["old_log_probs"], "response_mask": mask}
    scenario = {**names, "advantages": -mask.sum().expand(mask.shape)}
    made = boundary.invoke(scenario, loss, rollout_log_probs=inputs["rollout_log_probs"])[0]
    (weights,) = torch.autograd.grad(made, current)
    return {"weights": weights, **({"kept": weights} if masks else {})}


def _of_model(names: Sequence[str], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    options = {"clip_eps": inputs["cliprange_value"]} if "cliprange_value" in inputs else {}
    loss = _made(boundary, **options, token_level_loss=_MODES[inputs["loss_agg_mode"]])
    return {"loss": boundary.invoke({**kit.take_inputs(inputs, *names), **_counts(inputs)}, loss)}


_CLIP = ("eps_clip_low", "eps_clip_high", "dual_clip")
_BY_SEQUENCES = {"loss_scale_factor": None, "loss_agg_mode": "seq-mean-token-mean"}
_CORRECTED = {"importance_weight_cap": (None, 2.0), **_AGGREGATES}
_CUT = "the log-ratio is clamped to [-20, 20] to prevent overflow"
_LOG_RATIO = Dialect("log_ratio_clamp", 20.0, _CUT, f"{_MAIN}/models/loss.py#L185")
_REPORTED = Dialect(
    "reported_log_ratio", "whole", "ppo_kl is the mean of the unclamped log-ratio", f"{_MAIN}/models/loss.py#L238"
)
_LOSSES = (
    Binding(
        f"{_LOSS}.aggregate_loss", "loss_aggregation",
        arguments={"loss_mat": ("loss",), "loss_agg_mode": ("token_level_loss",)}, outputs=("loss",),
        call=partial(
            kit.call_with, takes=("loss_mat", "response_mask", "loss_agg_mode", *_COUNTS),
            values_of={"loss_agg_mode": _MODES},
        ),
        fixed={"weights": None, "loss_scale_factor": None}, accepts=_AGGREGATES,
    ),
    _normalised_by("iter_grad_accum_global_norm", _of_a_step),
    _normalised_by("get_loss_batch_info", _of_a_batch),
    policy_loss(f"{_LOSS}.PolicyLoss", _policy, "gspo", _CLIP, fixed=_BY_SEQUENCES),
    policy_loss(f"{_LOSS}.PolicyLoss.forward", _policy, "ppo", _CLIP, _LOG_RATIO, _REPORTED, accepts=_CORRECTED),
    Binding(
        f"{_LOSS}.PolicyLoss.forward", "importance_weight", call=_weights,
        accepts={"level": ("token", "kept_by_mean"), "response_mask": ("full", "right")},
        fixed=IMPORTANCE_WEIGHT.lacking("level", "mode", "threshold_low", "threshold_high"),
    ),
    Binding(
        f"{_LOSS}.ValueLoss.forward", "value_loss", arguments={"vpreds": ("values",), "values": ("old_values",)},
        call=partial(_of_model, ("vpreds", "values", "returns", "response_mask")), accepts=_AGGREGATES,
        dialects=(Dialect("factor", 0.5, "the loss is half the squared error", f"{_MAIN}/models/loss.py#L290"),),
    ),
    policy_loss(
        f"{_LOSS}.SFTLoss.forward", partial(_of_model, ("log_probs", "response_mask")), "cross_entropy", (),
        arguments={"log_probs": ("per_token_logps",)}, accepts=_AGGREGATES,
    ),
)  # fmt: skip


# -- an update of the actor --------------------------------------------------------------------------------------------

_TRAINER = "openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer"
_DEEPSPEED = "openrlhf.utils.deepspeed.deepspeed"


class _Bar(list[Any]):
    """A stand-in progress bar that prints nothing."""

    set_postfix = staticmethod(lambda *_: None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Neutral(name)


def _update(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run OpenRLHF's training loop on each rank, up to DeepSpeed's ``backward``, and return the gradients.

    The adapter divides losses by the number of microbatches and averages over ranks, as DeepSpeed would. Each token has
    a unique id, with which the stand-in model looks up the token's log-prob.
    """
    mask, count = inputs["response_mask"], inputs["dp_size"]
    rows, width = mask.shape
    share, budget = rows // count, inputs["max_tokens_per_microbatch"]
    size = share if budget is not None else inputs["micro_batch_size"] or share
    steps = 1 if budget is not None else share // size
    tables, ids, args = kit.tables_of(inputs), kit.named_tokens(inputs)["input_ids"], _update_options(inputs, rows)
    last = (mask * torch.arange(1, width + 1)).amax(-1, keepdim=True).clamp(min=1)
    whole = {
        "sequences": ids,
        "attention_mask": (torch.arange(width + 1)[None] <= last).long(),
        "action_mask": mask.bool(),
        "action_log_probs": inputs["old_log_probs"],
        "base_action_log_probs": inputs["ref_log_probs"],
        "advantages": inputs["advantages"],
        "rollout_log_probs": inputs["rollout_log_probs"],
        "total_length": last[:, 0] + 1,
    }
    losses: list[Any] = []
    # ``trains.now`` is per thread, because each rank is a thread, and a rank can train while another rank waits.
    trains = threading.local()

    class Table:
        def __call__(self, sequences: Any, *_: Any, **__: Any) -> Any:
            outputs = [table[sequences[:, 1:]] for table in tables.values()]
            return outputs[0], kit.Named(entropy=outputs[1] if len(outputs) > 1 else torch.zeros_like(outputs[0]))

        def backward(self, loss: Any) -> None:
            losses.append(loss / steps)

        train = step = staticmethod(lambda: None)

    def rank(number: int) -> Any:
        settings = {"args": args, "accumulated_gradient": steps, "use_dynamic_batch": budget is not None}
        mesh = {"dp": kit.stand_in(get_group=lambda: None)}
        kind = boundary.imported[_DEEPSPEED].DeepspeedStrategy
        strategy = kit.make_unbuilt(kind, world_size=count, ds_device_mesh=mesh, **settings)
        kind.ring_attn_group = None
        schedule = kit.stand_in(get_last_lr=lambda: [0.0])
        trainer = boundary.owner(
            strategy, Table(), None, None, schedule, micro_train_batch_size=size, dataloader_pin_memory=False
        )
        part = slice(number * share, (number + 1) * share)
        columns = {name: None if column is None else column[part] for name, column in whole.items()}
        trainer.replay_buffer.append(boundary.imported[_EXPERIENCE].Experience(**columns, info={}))
        trains.now = True
        return boundary.function(trainer, inputs["kl_coef"])

    quiet = {"torch_dist_barrier_and_cuda_sync": lambda: None, "tqdm": lambda items, **_: _Bar(items)}
    with (
        kit.keep_random_state(),
        kit.swap(torch.cuda, "current_device", lambda: boundary.device if hasattr(trains, "now") else 0),
        kit.swap_all(boundary.module, **quiet),
    ):
        metrics = kit.on_ranks(count, rank)[0]
    (sum(losses) / count).backward()
    named = {"pg_loss": "policy_loss", "kl_loss": "kl", "entropy": "entropy_loss"}
    return {**kit.gradients_of(inputs), **{name: metrics.get(theirs) for name, theirs in named.items()}}


_UNCORRECTED = (("type", "tis"), ("level", "off"), ("mode", "mask"), ("gating", "ratio"), ("threshold", None))


def _update_options(inputs: Mapping[str, Any], rows: int) -> Any:
    """Return the command-line options that OpenRLHF's trainer reads."""
    reference, budget = inputs["ref_log_probs"], inputs["max_tokens_per_microbatch"]
    off, cap = ("train.colocate_all", "train.async_enable", "ds.packing_samples"), inputs["importance_weight_cap"]
    one = ("train.max_epochs", "rollout.n_samples_per_prompt", "ds.ring_attn_size", "ds.tensor_parallel_size")
    values = {
        "train.dynamic_batch_enable": budget is not None,
        "train.max_tokens_per_gpu": budget,
        **dict.fromkeys(("train.batch_size", "rollout.batch_size"), rows),
        "vllm.sync_backend": "nccl",
        "actor.eps_clip_low_high": (inputs["eps_clip_low"], inputs["eps_clip_high"]),
        "actor.aux_loss_coef": 0.0,
        "actor.dual_clip": inputs["dual_clip"],
        "actor.policy_loss_type": "ppo",
        "actor.loss_agg_mode": "token-mean",
        "actor.entropy_coef": None if inputs["entropies"] is None else inputs["entropy_coef"],
        "algo.kl.use_loss": reference is not None,
        "algo.kl.init_coef": inputs["kl_coef"],
        "algo.kl.estimator": inputs["kl_estimator"],
        **{f"algo.advantage.is_correction_{name}": option for name, option in _UNCORRECTED},
        "algo.advantage.is_correction_enable": cap is not None,
        **({} if cap is None else {"algo.advantage.is_correction_threshold": [0.0, cap]}),
    }
    return kit.nest_options({**dict.fromkeys(off, False), **dict.fromkeys(one, 1), **values})


_UPDATES = (
    Binding(
        f"{_TRAINER}.ppo_train", "policy_update", call=_update, imports=(_DEEPSPEED, _EXPERIENCE),
        requires=("openrlhf.utils.loss_utils.iter_grad_accum_global_norm",),
        stand_ins=(
            StandIn("actor", "a table of log-probs, in which the forward pass looks up its input tokens"),
            StandIn(
                "DeepSpeed",
                "the adapter divides a loss by the number of microbatches in a step and averages over ranks, as the "
                "engine does",
            ),
            RANKS,
        ),
        fixed={"loss_agg_mode": "token-mean", "loss_scale_factor": None},
        accepts={"kl_estimator": ("k1", "k2", "k3"), "importance_weight_cap": (None, 2.0)},
        dialects=(
            _LOG_RATIO,
            Dialect("kl_clamp", 10.0, "an estimate is clamped to [-10, 10]", f"{_MAIN}/models/utils.py#L88"),
        ),
    ),
)  # fmt: skip


# -- KL, rewards, masked statistics, and log-probs of a model ----------------------------------------------------------


def _landed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token rewards that OpenRLHF computes from one reward per response, without a KL penalty."""
    mask, former = inputs["response_mask"], "r.clamp(min=-10" in kit.source_of(boundary.function)
    if former and (inputs["rewards"].abs() > 10).any():
        raise AbsentError("this version clamps rewards to [-10, 10]; the scenario has a reward outside this range")
    nothing = torch.zeros(mask.shape)
    kl = {"log_probs": nothing, "log_probs_base": nothing} if "log_probs" in boundary.parameters else {"kl": nothing}
    answer = boundary.invoke({"rewards": inputs["rewards"], "response_mask": mask}, kl_coef=0.0, **kl)
    return {"token_level_rewards": answer[0] if isinstance(answer, tuple) else answer}


def _estimate(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Call OpenRLHF's KL estimator. Older versions have only one estimator, require a mask, and do not clamp."""
    apart = (inputs["log_probs"] - inputs["ref_log_probs"]).abs() > 10
    if apart.any() and "clamp" not in kit.source_of(boundary.function):
        raise AbsentError("this version does not clamp KL estimates to [-10, 10]")
    switch, whole = "use_kl_estimator_k3", torch.ones_like(inputs["log_probs"])
    switches = {"k1": {switch: False}, "k3": {switch: True}}
    if switch not in boundary.parameters:
        switches = {"k1": {"action_mask": whole}}
    return kit.call_estimator(switches, ("log_probs", "ref_log_probs"), boundary, inputs)


_NUMBERS = (
    Binding(
        f"{_UTILS}.compute_approx_kl", "kl_estimate", outputs=("kl",), call=_estimate, fixed={"response_mask": None},
        accepts={"kl_estimator": ("k1", "k2", "k3")},
        dialects=(Dialect("clamp", 10.0, "an estimate is clamped to [-10, 10]", f"{_MAIN}/models/utils.py#L88"),),
    ),
    Binding(
        f"{_UTILS}.compute_reward", "token_reward", arguments={"rewards": ("r",)}, call=_landed,
        fixed={"score_as": None}, accepts=_PADDED,
    ),
    masked_statistic(f"{_UTILS}.masked_mean", "mean", "axis"),
    masked_statistic(
        f"{_UTILS}.masked_normalize", "whiten", "epsilon", fixed={"unbiased": False, "axis": "token"},
        dialects=(
            Dialect("epsilon_placement", "floor", "the variance is at least eps", f"{_MAIN}/models/utils.py#L178"),
        ),
    ),
)  # fmt: skip


def _from_logits(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from a copy of the logits, because OpenRLHF's function divides its argument in place."""
    arguments = {"logits": inputs["logits"].clone(), "labels": inputs["token_ids"]}
    if "temperature" not in boundary.parameters and inputs["temperature"] != 1.0:
        raise AbsentError("this version computes log-probs without a temperature")
    log_probs = boundary.invoke({}, temperature=inputs["temperature"], **arguments)
    return {"log_probs": log_probs, "entropy": None}


def _from_a_model(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with OpenRLHF's actor and a stand-in model that returns the scenario's logits."""
    logits, ids, mask = inputs["logits"], inputs["token_ids"], inputs["response_mask"]
    if inputs["packed"] and (_RING not in sys.modules or "packed_seq_lens" in boundary.parameters):  # until April 2025
        raise AbsentError("this version's actor does not pack rows itself")
    # Each row begins with one prompt token, and its last logits predict no token.
    whole = torch.cat([logits, torch.zeros_like(logits[:, :1])], 1)
    last = ((mask != 0) * torch.arange(1, 1 + mask.shape[1])).amax(-1, keepdim=True)
    there = (torch.arange(whole.shape[1])[None] <= last).long() if inputs["packed"] else torch.ones_like(whole[..., 0])

    class Table(torch.nn.Module):
        def forward(self, *_: Any, **__: Any) -> Any:
            return kit.Named(logits=whole[there != 0][None] if inputs["packed"] else whole.clone())

    options = kit.take_inputs(inputs, "temperature")
    # A constructor without ``**kwargs`` may also lack the option ``temperature``.
    if "kwargs" not in inspect.signature(boundary.owner).parameters:
        options = kit.keep_accepted(boundary.owner, options, _USUAL)
    actor = boundary.owner(Table(), **options)
    actor.packing_samples = inputs["packed"]
    sequences = torch.cat([torch.zeros_like(ids[:, :1]), ids], 1)
    # Until May 2025, forward takes the number of response tokens instead of their mask, so both are passed.
    of_response = {"num_actions": ids.shape[1], "action_mask": mask}
    named = {"sequences": sequences, "attention_mask": there.long()}
    if inputs["with_entropy"]:
        if "return_entropy" not in boundary.parameters:
            raise AbsentError("this version's actor does not compute an entropy")
        named |= {"return_output": True, "return_entropy": True}
        if (mask != 0).all():  # then all log-probs are those of the response
            del of_response["action_mask"]
            named["return_logprobs"] = True
    with kit.swap_all(sys.modules.get(_RING), **_PACKING):
        answer = boundary.invoke({}, actor, **named, **of_response)
    log_probs, output = answer if isinstance(answer, tuple) else (answer, None)
    return {"log_probs": log_probs, "entropy": None if output is None else output.entropy[:, -mask.shape[1] :]}


#: Stand-ins for the functions of flash-attn that remove and restore padding.
_PACKING = {
    "unpad_input": lambda *told: (*kit.remove_padding(*told), None),
    "pad_input": kit.restore_padding,
    "index_first_axis": lambda values, places: values[places],
    "rearrange": lambda values, _: values.flatten(0, 1),
}
_RING = "openrlhf.models.ring_attn_utils"
_MODEL = StandIn("model", "a table of the scenario's logits; the computation of the network is not checked")
_LOG_PROBS = (
    Binding(f"{_UTILS}.log_probs_from_logits", "token_log_probs", call=_from_logits, fixed={"with_entropy": False}),
    Binding(
        f"{_UTILS}.compute_entropy", "token_log_probs", call=partial(kit.call_entropy, "log_probs_from_logits"),
        fixed={"temperature": 1.0, "with_entropy": True},
    ),
    Binding(
        f"{_ACTOR}.forward", "token_log_probs", call=_from_a_model, stand_ins=(_MODEL,),
        accepts={"packed": (False, True)},
        dialects=(
            Dialect(
                "entropy_of", "model", "the entropy is computed before the logits are divided by the temperature",
                f"{_MAIN}/models/actor.py#L272",
            ),
        ),
    ),
)  # fmt: skip


# -- advantages and returns, length penalties and the KL coefficient ---------------------------------------------------


def _of_a_maker(names: Sequence[str], boundary: Any, inputs: Mapping[str, Any]) -> Any:
    return boundary.invoke(kit.take_inputs(inputs, *names), kit.make_unbuilt(boundary.owner))


def _options(estimator: str, samples: int, gamma: float = 1.0, lam: float = 1.0, **more: Any) -> Any:
    """Return an advantage estimator's options, under their old names and under the dotted names since April 2026."""
    unset = ("clip_range", "overlong_buffer_len", "stop_properly_penalty_coef")
    former = {
        "advantage_estimator": estimator,
        "n_samples_per_prompt": samples,
        "gamma": gamma,
        "lambd": lam,
        "no_advantage_std_norm": more.get("no_std", False),
        **dict.fromkeys(("reward_clip_range", *unset[1:])),
    }
    clip = more.get("clip")
    former["reward_clip_range"] = clip and (-clip, clip)
    grouped = {
        **{f"algo.advantage.{name}": former[name] for name in ("gamma", "lambd")},
        **dict.fromkeys((*(f"reward.{name}" for name in unset), "rollout.max_new_tokens", "data.max_len")),
        "algo.advantage.estimator": estimator,
        "algo.advantage.no_std_norm": former["no_advantage_std_norm"],
        "algo.kl.use_loss": False,
        "rollout.n_samples_per_prompt": samples,
        "reward.clip_range": former["reward_clip_range"],
    }
    return kit.nest_options({**former, **grouped})


def _advantages(
    boundary: Any, estimator: str, samples: int, kl: Any, mask: Any, rewards: Any, coefficient: float, **more: Any
) -> Any:
    """Compute the advantages of one batch of experience with OpenRLHF. The rows must be sorted by prompt.

    :param more: the critic's ``values``, and further options of the estimator.
    """
    if 'device="cuda"' in kit.source_of(inspect.unwrap(boundary.function)):  # as in March and April 2025
        raise AbsentError("this version computes advantages only on a GPU, to which it moves the rewards")
    values = more.pop("values", torch.zeros(mask.shape))
    options = _options(estimator, samples, more.pop("gamma", 1.0 if coefficient == 0.0 else 0.0), **more)
    lengths = (mask != 0).sum(-1)
    columns = {"kl": kl, "action_mask": mask, "values": values, "response_length": lengths}
    info = {"reward": rewards.clone(), "response_length": lengths}
    numbered = {"index": [*range(len(rewards))], "to_device": lambda *_: None}
    experience = kit.stand_in(rewards=rewards.clone(), truncated=None, info=info, **columns, **numbered)
    settings = {"strategy": kit.stand_in(args=options), "args": options, "kl_ctl": kit.stand_in(value=coefficient)}
    maker = kit.make_unbuilt(boundary.owner, advantage_estimator=estimator, **settings)
    (answer,) = boundary.function(maker, [experience])
    return answer


def _relative(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise rewards with the OpenRLHF estimator for the scenario's group statistics."""
    settings, samples = (inputs["std_level"], inputs["leave_one_out"]), kit.group_size(inputs)
    if settings not in _ESTIMATORS:
        raise AbsentError(
            "OpenRLHF has no estimator that both subtracts a leave-one-out mean and divides by a standard deviation"
        )
    if samples == 1:
        raise AbsentError("OpenRLHF's command line requires several samples per prompt for this estimator")
    if (estimator := _ESTIMATORS[settings]) not in kit.source_of(inspect.unwrap(boundary.function)):
        raise AbsentError(f"this version has no advantage estimator {estimator}")
    rewards = inputs["rewards"]
    mask = torch.ones(len(rewards), 2)
    # These estimators have no discount, so OpenRLHF ignores the configured one.
    discount = {"gamma": 0.5} if "gamma is set to 1.0" in kit.source_of(inspect.unwrap(boundary.function)) else {}
    made = _advantages(
        boundary, estimator, samples, torch.zeros(mask.shape), mask, rewards, 0.0, clip=inputs["clip"], **discount
    )
    return {"normalised": made.advantages[:, 0]}


def _whitened(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Normalise the scenario's advantages with OpenRLHF's advantage step.

    The adapter passes the negated advantages as KLs. With rewards of 0, a KL coefficient of 1 and a discount of 0, the
    return of each token is the scenario's advantage.
    """
    advantages, mask = inputs["advantages"], inputs["response_mask"]
    rewards, no_std = torch.zeros(len(advantages)), inputs["std_level"] is None
    made = _advantages(boundary, "reinforce", 1, -advantages, mask.float(), rewards, 1.0, no_std=no_std)
    return {"normalised": made.advantages}


def _of_a_critic(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages and returns by GAE, with OpenRLHF's advantage step. A response's reward is a single number."""
    mask = inputs["response_mask"].float()
    rewards = torch.where(mask != 0, inputs["token_level_rewards"], 0.0).sum(-1)
    options = {"gamma": inputs["gamma"], "lam": inputs["lam"], "values": inputs["values"]}
    made = _advantages(boundary, "gae", 1, torch.zeros(mask.shape), mask, rewards, 0.0, **options)
    return {"advantages": made.advantages, "returns": made.returns}


def _overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    experience = kit.stand_in(
        rewards=inputs["rewards"].clone(), response_length=(inputs["response_mask"] != 0).sum(-1), info={}
    )
    boundary.function([experience], inputs["max_length"], inputs["buffer"], inputs["factor"])
    return {"rewards": experience.rewards}


def _kl_coefficient(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["adaptive"]:
        return kit.read_coefficients(
            boundary.function(inputs["initial"], inputs["target_kl"], inputs["horizon"]), inputs
        )
    return kit.read_coefficients(boundary.module.FixedKLController(inputs["initial"]), inputs)


_MAKING = StandIn("self", "an experience maker starts Ray actors; the step reads only options and a KL coefficient")
_SAMPLES = StandIn("experience", "a record of tensors; the step reads only those in the scenario")


_SINGLE = Dialect("twins_agree", None, "the mean advantage is computed in single precision", f"{_MADE}#L309")
_NORMALISED = (
    Dialect("whiten", True, "advantages are normalised over the batch", f"{_MADE}#L307"),
    Dialect("std", "biased", "the variance divides by the token count", f"{_MADE}#L316"),
    Dialect("epsilon_placement", "floor", "the variance is at least 1e-8", f"{_MADE}#L317"),
)
#: The estimator for each (std_level, leave_one_out).
_ESTIMATORS = {("group", False): "group_norm", (None, False): "dr_grpo", (None, True): "rloo"}
_ADVANTAGES = (
    Binding(
        f"{_MAKER}.get_advantages_and_returns", "generalised_advantage", outputs=("advantages", "returns"),
        call=partial(_of_a_maker, ("values", "token_level_rewards", "response_mask", "gamma", "lam")),
    ),
    Binding(
        f"{_MAKER}.get_cumulative_returns", "discounted_return", outputs=("returns",),
        call=partial(_of_a_maker, ("token_level_rewards", "response_mask", "gamma")),
        fixed={"kl": None, "kl_coef": 0.0},
    ),
    normalised_rewards(
        f"{_MAKER}.compute_advantages_and_returns", _relative, "std_level", "leave_one_out", "clip",
        stand_ins=(_MAKING, _SAMPLES), fixed={"epsilon": 1e-09, "group_layout": "equal"},
        accepts={"std_level": (None, "group"), "clip": (None, None, 0.5)},
    ),
    Binding(
        f"{_MAKER}.compute_advantages_and_returns", "generalised_advantage", call=_of_a_critic,
        stand_ins=(_MAKING, _SAMPLES), fixed={"reward_layout": "outcome"}, accepts=_PADDED,
        dialects=(*_NORMALISED, _SINGLE),
    ),
    Binding(
        f"{_MAKER}.compute_advantages_and_returns", "advantage_normalisation", call=_whitened,
        stand_ins=(_MAKING, _SAMPLES),
        fixed={"mean_level": "batch", "leave_one_out": False, "epsilon": 1e-08},
        accepts={**_PADDED, "std_level": ("batch", "batch", None)},
        dialects=(
            *_NORMALISED[1:],
            Dialect("masked_output", "any", "the loss multiplies by its mask", f"{_MAIN}/models/loss.py#L34"),
        ),
    ),
    Binding(f"{_PPO}.length_penalty.apply_overlong_penalty", "overlong_penalty", call=_overlong, stand_ins=(_SAMPLES,)),
    Binding(f"{_PPO}.kl_controller.AdaptiveKLController", "kl_coefficient", call=_kl_coefficient),
)  # fmt: skip


# -- experiences and padding -------------------------------------------------------------------------------------------


def _padded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pad rows to the scenario's length with OpenRLHF.

    OpenRLHF pads to the longest row, so the adapter adds a row of this length and removes it from the result.
    """
    values, value = inputs["values"], inputs["pad_value"]
    longest = torch.full((1, inputs["length"]), value, dtype=values.dtype)
    rows = [row[None] for row in values] + [longest]
    if value != 0 and "value" not in boundary.parameters:
        raise AbsentError("this version supports no padding value other than 0")
    padded = boundary.invoke({}, rows, side=inputs["side"], value=value, stack=False)
    return {"padded": padded.reshape(len(rows), -1)[:-1]}


def _drawn(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    sampler = boundary.owner(range(inputs["size"]), 1, 0, shuffle=True, seed=inputs["seed"])
    drawn = []
    for epoch in range(inputs["epochs"]):
        sampler.set_epoch(epoch)
        drawn += list(boundary.function(sampler))
    return {"drawn": drawn}


#: Column of the contract -> field of OpenRLHF's experience.
_COLUMNS = {"number": "total_length", "tokens": "sequences", "weights": "advantages", "label": "labels"}


def _experience(boundary: Any, fields: Mapping[str, Any], meta: Mapping[str, Any]) -> Any:
    named = {theirs: fields[ours] for ours, theirs in _COLUMNS.items()}
    made, whole = boundary.imported[_EXPERIENCE].Experience, torch.ones_like(fields["tokens"])
    numbers = fields["number"].float()
    info = {"reward": numbers, "score": numbers.tolist()}
    return made(**kit.keep_accepted(made, named), attention_mask=whole, action_mask=whole, info=info)


def _read(made: Any, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return an experience's columns. If its ``info`` belongs to other rows, all its numbers are -1."""
    number = made.total_length.reshape(-1).float()
    told = [torch.as_tensor(made.info[name]).reshape(-1).float() for name in ("reward", "score")]
    if not all(torch.equal(one, number) for one in told):
        made.total_length = torch.full_like(made.total_length, -1)
    columns = {ours: getattr(made, theirs) for ours, theirs in _COLUMNS.items()}
    if not columns["number"].ndim:
        columns = {name: column if name == "label" else column[None] for name, column in columns.items()}
    return columns, inputs["meta"]


def _singles(boundary: Any, inputs: Mapping[str, Any], made: Any) -> Any:
    return boundary.imported[_EXPERIENCE].split_experience_batch(made)


def _of_singles(boundary: Any, inputs: Mapping[str, Any], made: Any) -> Any:
    return [boundary.invoke({}, _singles(boundary, inputs, made))]


def _replayed(boundary: Any, inputs: Mapping[str, Any], made: Any) -> Any:
    """Add experiences to OpenRLHF's replay buffer, and collate the whole buffer into one batch."""
    with kit.swap(torch.cuda, "current_device", lambda: 0):
        buffer = boundary.owner(len(made.sequences))
    buffer.append(made)
    return [boundary.function(buffer, [buffer[place] for place in range(len(buffer))])]


def _balanced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Distribute samples over ranks by length with OpenRLHF, and return the indices of each rank's samples."""
    lengths, made = torch.tensor(inputs["lengths"]), boundary.module.Experience
    nodes = {"actor.num_nodes": inputs["parts"], "actor.num_gpus_per_node": 1}
    args = kit.nest_options({**nodes, "ds.ring_attn_size": 1, "ds.tensor_parallel_size": 1})
    rows = made(
        **kit.keep_accepted(made, {"total_length": lengths}), sequences=lengths[:, None], labels=[*range(len(lengths))]
    )
    return {"parts": [one.labels for one in boundary.function([rows], args)]}


class _Prompts(list[Any]):
    """A stand-in dataset of prompts. Only its length is used."""

    collate_fn = None

    def select(self, places: Sequence[int]) -> _Prompts:
        return _Prompts(self[place] for place in places)


def _planned(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of updates that OpenRLHF's trainer passes to the learning-rate scheduler."""
    prompts = _Prompts(range(inputs["steps_per_epoch"] * inputs["prompts_per_step"]))
    options = {
        **dict.fromkeys(("data.prompt_dataset", "data.prompt_probs", "data.prompt_split", "data.input_template")),
        "data.max_samples": 10**6,
        "data.dataloader_num_workers": 0,
        "train.seed": 0,
        "eval.dataset": None,
        "train.batch_size": inputs["batch_size"],
        "train.num_episodes": inputs["epochs"],
        "train.max_epochs": inputs["update_epochs"],
        "rollout.n_samples_per_prompt": inputs["samples_per_prompt"],
    }
    strategy = kit.stand_in(args=kit.nest_options(options), setup_dataloader=lambda *_, **__: None)
    replaced = {"blending_datasets": lambda *_, **__: prompts, "PromptDataset": kit.return_first}
    with kit.swap_all(boundary.module, **replaced):
        return {"length": boundary.invoke({}, strategy, None)[2]}


_ZEROS = "openrlhf.utils.utils.zero_pad_sequences"
_OF_ROWS = {"layouts": {name: LAYOUTS[name] for name in _COLUMNS}}
_BATCH = Container(_experience, _read, {"imports": (_EXPERIENCE,), "fixed": _OF_ROWS})
_ROWS = (
    _BATCH.surgery(f"{_EXPERIENCE}.split_experience_batch", "split", _singles, fixed={"count": 1}),
    _BATCH.surgery(f"{_EXPERIENCE}.make_experience_batch", "join", _of_singles),
    _BATCH.surgery(f"{_PPO}.replay_buffer.NaiveReplayBuffer.collate_fn", "join", _replayed),
    Binding(
        "openrlhf.trainer.ppo_trainer.prepare_datasets", "schedule_length", call=_planned,
        stand_ins=(StandIn("PromptDataset", "a data set of prompts; the function reads only their number"),),
        fixed={"max_steps": None, "turns": 1, "warmup_ratio": 0.0},
    ),
    Binding("openrlhf.utils.distributed_sampler.DistributedSampler.__iter__", "epoch_order", call=_drawn),
    Binding(_ZEROS, "column_padding", formerly=(f"{_PPO}.replay_buffer.zero_pad_sequences",), call=_padded),
    balanced_partition(f"{_EXPERIENCE}.balance_experiences", call=_balanced, fixed={"equal_size": True}),
    balanced_partition("openrlhf.utils.seqlen_balancing.get_seqlen_balanced_partitions"),
)  # fmt: skip


# -- supervised and preference data ------------------------------------------------------------------------------------


def _trained_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask of trained tokens. In OpenRLHF's dataset, the mask is shifted one position to the left."""
    before, rows = inputs["prompts"].shape[1], []
    plain: dict[str, Any] = {"pretrain_mode": False, "multiturn": False, "response_ranges": None}
    for prompt, counts, response, length in zip(
        inputs["prompts"], inputs["prompt_mask"], inputs["responses"], inputs["lengths"]
    ):
        ids = torch.cat([prompt[counts != 0], response[:length]])[None]
        own = int(counts.sum())
        dataset = kit.make_unbuilt(boundary.owner, prompt_ids_lens=[own], max_length=99, **plain)
        mask = boundary.function(dataset, ids, 0)[0, :-1]
        whole = torch.zeros(before + len(response))
        whole[before - own + 1 :][: len(mask)] = mask
        rows.append(whole)
    return {"response_mask": torch.stack(rows)}


def _data(
    boundary: Any, tokenizer: Any, row: Mapping[str, Any], columns: Mapping[str, str] = {}, **options: Any
) -> Any:
    """Build an OpenRLHF dataset of one row with its constructor.

    :param columns: further names of columns.
    """
    read = {"input_key": "messages", "chosen_key": "chosen", "rejected_key": "rejected", "apply_chat_template": True}
    read |= columns
    args = kit.nest_options({**read, **{f"data.{name}": value for name, value in read.items()}})
    parameters = inspect.signature(boundary.owner.__init__).parameters
    taken_options = {name: value for name, value in options.items() if name in parameters}
    if any(value and name not in taken_options for name, value in options.items()):
        raise AbsentError(f"in this version, {boundary.owner.__name__} lacks one of the options {sorted(options)}")
    return boundary.owner(kit.Rows([dict(row)]), tokenizer, 1000, kit.stand_in(args=args), **taken_options)


def _of_a_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask that OpenRLHF's dataset makes of a chat."""
    tokenizer, messages = chat(inputs)
    row, several, columns = {"messages": messages}, inputs["trains"] == "all", {}
    if inputs["apart"]:
        row = {"messages": messages[:-1], "answer": messages[-1] if several else messages[-1:]}
        columns = {"output_key": "answer"}
    data = _data(boundary, tokenizer, row, columns, multiturn=several)
    ids, *_, mask = boundary.function(data, 0)[:3]
    if isinstance(ids, int):
        raise AbsentError(
            "this version's dataset has no loss masks; the trainer computes them from the length of the prompt"
        )
    # OpenRLHF's mask is shifted one position to the left.
    return {"token_ids": ids[0], "loss_mask": [0, *mask[0, :-1].tolist()]}


_CONTEXT = {"prompt_key": "context"}


def _of_a_pair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token ids and the loss mask of the chosen answer of a preference pair."""
    tokenizer, messages = chat(inputs)
    other, columns = [*messages[:-1], {"role": "assistant", "content": "w9.9"}], {}
    row = {"chosen": messages, "rejected": other}
    if inputs["apart"]:
        row, columns = {"context": messages[:-1], "chosen": messages[-1:], "rejected": other[-1:]}, _CONTEXT
    data = _data(boundary, tokenizer, row, columns, is_dpo=True)
    ids, mask, *_, before = boundary.function(data, 0)
    return {"token_ids": ids[0], "loss_mask": [int(place >= before) for place in range(int(mask.sum()))]}


def _log_sum(trainer: Any, inputs: Mapping[str, Any], name: str, of_prompt: float) -> Any:
    """Return the log-probs that OpenRLHF's trainer computes for chosen and rejected responses.

    There are two prompt tokens. The second has the log-prob ``of_prompt``, which must not count. Response tokens have
    the scenario's log-probs.
    """
    pad = torch.nn.functional.pad
    masks = pad(kit.join_both_sides(inputs, "mask").long(), (2, 0), value=1)
    table = pad(kit.join_both_sides(inputs, name, -1.0), (1, 0), value=of_prompt)
    logits = kit.two_token_logits(table)
    logits = torch.cat([logits, torch.zeros_like(logits[:, :1])], 1)

    def model(*_: Any, return_logprobs: bool = False, **__: Any) -> Any:
        output = kit.Named(logits=logits)
        return (table, output) if return_logprobs else output

    (chosen, rejected), (ids, other) = masks.chunk(2), torch.ones_like(masks).chunk(2)
    return trainer.concatenated_forward(model, ids, chosen, other, rejected, [2] * len(ids))[:2]


def _preference(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the preference loss from the log-probs of policy and reference model, as OpenRLHF's trainer does."""
    of_trainer = boundary.imported[_DPO.rpartition(".")[0]]
    loss = of_trainer.DPOLoss(inputs["beta"], inputs["label_smoothing"], inputs["loss_type"] == "ipo")
    packing, parts = {"packing_samples": False}, {"strategy": kit.stand_in(ring_attn_group=None), "loss_fn": loss}
    tokenizer = kit.stand_in(pad_token_id=0)
    trainer = kit.make_unbuilt(
        of_trainer.DPOTrainer, tokenizer=tokenizer, args=kit.stand_in(**packing), **packing, **parts
    )
    policy, reference = _log_sum(trainer, inputs, "log_probs", -0.5), _log_sum(trainer, inputs, "ref_log_probs", -1.5)
    return {"loss": loss(*policy, *reference)[0]}


def _pairs(boundary: str, loss_type: str) -> Binding:
    """Return the preference-loss binding of a boundary that :func:`_preference` calls."""
    return Binding(
        boundary,
        "preference_loss",
        call=_preference,
        imports=(_DPO.rpartition(".")[0],),
        stand_ins=(_MODEL, StandIn("self", "the real trainer starts DeepSpeed; the step reads only a token id")),
        fixed={"loss_type": loss_type, "ld_alpha": None},
        accepts={"chosen_mask": ("full", "right"), "rejected_mask": ("full", "right")},
    )


class _Model(list[Any]):
    """A stand-in model with a training mode and an evaluation mode. It is never called."""

    training = True

    def eval(self) -> None:
        self.training = False

    def train(self) -> None:
        self.training = True

    def parameters(self) -> Any:
        return iter([torch.zeros(1)])


def _evaluated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean accuracy and the loss that OpenRLHF's evaluation logs for batches of preference pairs.

    Each answer is one token. Stand-ins for the model and the loss use the id of the chosen answer's token as its score,
    and give every rejected answer the score 0.5.
    """
    logs: dict[str, Any] = {}
    model, ranks = _Model(), {"is_rank_0": lambda: True, "all_reduce": kit.return_first, "all_gather": kit.return_first}
    model.config = kit.stand_in()  # type: ignore[attr-defined]
    strategy = kit.stand_in(**ranks, print=lambda *_: None, _unwrap_model=kit.return_first)

    def lost(chosen: Any, rejected: Any, *_: Any) -> Any:
        return (1 - chosen).mean()

    def forward(_: Any, chosen: Any, *__: Any) -> tuple[Any, ...]:
        return chosen[:, 0], chosen[:, 0] * 0 + 0.5, 0.0, None

    ranked = "dpo" in boundary.module.__name__
    # In 2024, DPO's forward pass returned three values, as that of the reward model does.
    few = not ranked or "chosen_logps, rejected_logps, _ = " in kit.source_of(boundary.function)
    batches = [(scores, scores, scores, scores, 0.0) for scores in map(_column, inputs["parts"])]
    trainer = kit.make_unbuilt(
        boundary.owner,
        model=model,
        ref_model=model,
        strategy=strategy,
        margin_loss=False,
        _tensorboard=None,
        loss_fn=(lambda chosen, rejected, *_: (lost(chosen, rejected), chosen, rejected)) if ranked else lost,
        concatenated_forward=(lambda *given: forward(*given)[:3]) if few else forward,
        _wandb=kit.stand_in(log=logs.update),
        packing_samples=False,
        eval_dataloader=batches,
    )
    with (
        kit.swap(boundary.module, "tqdm", lambda *_, **__: kit.bookkeeping()),
        kit.swap(torch.cuda, "current_device", lambda: boundary.device),
    ):
        boundary.function(trainer, batches)
    return {"mean": logs["eval/acc_mean"], "loss": logs["eval/eval_loss"]}


def _column(values: Sequence[float]) -> Any:
    return torch.tensor(values, dtype=torch.float64)[:, None, None]


def _passed_evaluation(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pass@k and the mean reward that OpenRLHF's evaluation reports, with one sample per response.

    All lengths differ; every fourth response has no length. Every third response is truncated.
    """
    right = inputs["right"]
    named = [str(place) for place in range(len(right))]
    answered = [(name, value) for name, responses in zip(named, right) for value in responses]
    samples = [
        kit.stand_in(
            prompts=[name],
            rewards=float(value),
            response_length=None if place % 4 == 3 else torch.tensor(1 + place),
            truncated=torch.tensor(int(place % 3 == 0)),
        )
        for place, (name, value) in enumerate(answered)
    ]
    loader, count = [(["own"] * len(named), named, named, None)], len(right[0])
    logs = boundary.function(loader, samples, count)
    return {"pass_at_k": logs[f"eval_own_pass{count}"], "mean": logs["eval_own_pass1"]}


_SCORES = StandIn("concatenated_forward", "returns the scenario's scores; no model runs")
_REPORTS = (
    *(
        Binding(f"{trainer}.evaluate", "mean_of_parts", call=_evaluated, fixed={"missing": False}, stand_ins=(_SCORES,))
        for trainer in (_DPO, "openrlhf.trainer.rm_trainer.RewardModelTrainer")
    ),
    Binding(
        "openrlhf.trainer.ppo_trainer.compute_eval_metrics", "pass_at_k", call=_passed_evaluation,
        accepts={"of": ("all",)},
    ),
)  # fmt: skip


_OF_FILES = StandIn("self", "the real dataset reads files; the mask needs only the length of a prompt")
_NEW_LINE = "the newline after the end of an answer is trained too"
_DATA = (
    Binding(f"{_SFT}.get_loss_mask", "response_masks", call=_trained_tokens, stand_ins=(_OF_FILES,)),
    Binding(
        f"{_SFT}.__getitem__", "trained_tokens", call=_of_a_chat, stand_ins=(WORDS,), fixed={"max_tokens": None},
        accepts={"apart": (False, False, True)},
        dialects=(Dialect("after_the_end", "counted", _NEW_LINE, f"{_MAIN}/datasets/sft_dataset.py#L107"),),
    ),
    Binding(
        "openrlhf.datasets.reward_dataset.RewardDataset.__getitem__", "trained_tokens", call=_of_a_pair,
        requires=("openrlhf.datasets.reward_dataset.preprocess_data(apply_chat_template)",),  # since June 2024
        stand_ins=(WORDS,), fixed={"max_tokens": None, "trains": "last"}, accepts={"apart": (False, True)},
    ),
    _pairs(f"{_DPO}.concatenated_forward", "sigmoid"), _pairs(f"{_LOSS}.DPOLoss.forward", "ipo"),
)  # fmt: skip


# -- agents, and rules that score them ---------------------------------------------------------------------------------


class _Letters:
    """A stand-in tokenizer that makes each letter one token."""

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, ids))


def _episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one episode of an OpenRLHF agent after a prompt of two tokens. The result ends with the model's last turn."""
    lengths, observed, rewards = inputs["said"], iter(inputs["heard"]), iter(inputs["rewards"])
    turns, left, numbers = iter(lengths), [len(lengths)], count(1)

    async def generate(_: Any, params: Any, **__: Any) -> Any:
        length = next(turns)
        ids = [1] * min(length, params.max_tokens)
        reason = "length" if length > params.max_tokens else "stop"
        probs = [{1: kit.stand_in(logprob=LOG_PROB_STEP * next(numbers))} for _ in ids]
        return kit.stand_in(
            outputs=[kit.stand_in(token_ids=ids, text="x" * len(ids), finish_reason=reason, logprobs=probs)]
        )

    def score(queries: Sequence[str], *_: Any) -> dict[str, Any]:
        return {"rewards": next(rewards), "extra_logs": {"queries": len(queries)}}

    async def answer(_: Any, __: Any) -> dict[str, Any]:
        left[0] -= 1
        reward = torch.tensor(next(rewards, 0.0))
        return {"rewards": reward, "environment_feedback": "y" * next(observed), "done": not left[0]}

    if hasattr(boundary.module, "AgentInstanceBase") and boundary.owner.__name__ == "MultiTurnAgentExecutor":
        bases = (boundary.module.AgentInstanceBase,)
        agent = type("Agent", bases, {"__init__": lambda self: None, "step": answer})
        executor = boundary.owner(agent)
    elif len(lengths) > 1 or inputs["heard"][-1]:
        raise AbsentError("the scenario needs several turns or an environment; this agent supports neither")
    else:
        executor = boundary.owner()
        executor.reward_endpoints, executor.reward_func = ["rewards.py"], score
    params, tokenizer = kit.stand_in(max_tokens=None, logprobs=1), _Letters()
    engine = {"llm_engine": kit.stand_in(generate=generate), "hf_tokenizer": tokenizer, "sampling_params": params}
    room = 2 + inputs["max_tokens"]
    record = asyncio.run(boundary.invoke({}, executor, prompt="pp", label="", max_length=room, **engine))
    spans = record["action_ranges"]
    spoken = {token for start, end in spans for token in range(start, end)}
    mask = [int(token in spoken) for token in range(2, spans[-1][1])]
    log_probs = record["rollout_log_probs"][2 : spans[-1][1]]
    return {
        "loss_mask": mask,
        "cut": record.get("truncated", False),
        "reward": record["reward"],
        "log_probs": log_probs,
    }


def _engine_versions(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version of the weights with which OpenRLHF's engines generate each sample.

    Weights are broadcast after each update. Engines that sleep between updates are also asleep at the start.
    """
    engine, updates = WeightEngine(), 0
    generator = boundary.imported[_SAMPLES]
    plain = {"rollout.batch_size": 1, "rollout.n_samples_per_prompt": 1, "rollout.vllm_generate_batch_size": None}
    args = kit.nest_options({**plain, "vllm.enable_sleep": inputs["sleeps"], "algo.dynamic_filtering_enable": False})

    def call(_: Any, method: str, **options: Any) -> None:
        getattr(engine, method)(**options)

    def generate(**_: Any) -> tuple[list[Any], int, bool]:
        engine.generate()
        return [None], 1, False

    # The trainer calls ``async_run_method`` to broadcast the weights.
    actors = kit.stand_in(async_run_method=lambda method_name: engine.load(updates))
    trainer = kit.make_unbuilt(boundary.owner, args=args, vllm_engines=[], actor_model_group=actors)
    samples = kit.make_unbuilt(generator.SamplesGenerator, args=args, vllm_engines=[], prompts_dataloader=[])
    samples._generate_vllm = generate
    if inputs["sleeps"]:
        engine.sleep()
    get = kit.stand_in(get=kit.return_first)
    with (
        kit.swap_all(boundary.module, batch_vllm_engine_call=call, ray=get),
        kit.swap(generator, "batch_vllm_engine_call", call),
    ):
        for updates, count in enumerate(inputs["generations"], start=1):  # noqa: B007 - the broadcast reads `updates`
            boundary.function(trainer)
            for _ in range(count):
                samples.generate_samples()
    return {"versions": engine.versions}


_SAMPLES, _OF_TRAINER = f"{_PPO}.samples_generator", "openrlhf.trainer.ppo_trainer.BasePPOTrainer"
_AGENT = "openrlhf.utils.agent"
_RULES, _NOTATIONS = "openrlhf.utils.math_utils", {"": "expressions", "_mathd": "math", "_sympy": "sympy"}
_ENGINE = (
    StandIn("llm_engine", "returns as many tokens as the scenario requires"),
    StandIn("hf_tokenizer", "each letter is a token"),
)
_AGENTS = (
    Binding(f"{_AGENT}.MultiTurnAgentExecutor.execute", "rollout_episode", call=_episode, stand_ins=_ENGINE),
    Binding(f"{_AGENT}.SingleTurnAgentExecutor.execute", "rollout_episode", call=_episode, stand_ins=_ENGINE),
    Binding(
        f"{_OF_TRAINER}.broadcast_to_vllm", "engine_weights", call=_engine_versions, imports=(_SAMPLES,),
        requires=(f"{_SAMPLES}.SamplesGenerator",),
        stand_ins=(WEIGHTS, StandIn("self", "the real trainer starts a cluster; the method reads only its options")),
    ),
    *(rule_reward(f"{_RULES}.grade_answer{kind}", "bare", notations=known) for kind, known in _NOTATIONS.items()),
)  # fmt: skip


# -- small functions: losses of logits and scores, padding, batches ----------------------------------------------------


def _of_labels(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not (inputs["labels"][:, 1:] != -100).any():
        raise AbsentError("this scenario has no trained token; batches of the framework have at least one")
    return {"loss": boundary.function(boundary.owner(), inputs["logits"], inputs["labels"])}


def _of_scores(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenRLHF's loss of preference pairs. The score of a response is the sum of its log-probs."""
    scores = [
        torch.where(inputs[f"{side}_mask"] != 0, inputs[f"{side}_log_probs"], 0.0).sum(-1)
        for side in ("chosen", "rejected")
    ]
    return {"loss": boundary.function(boundary.owner(), *scores)}


def _of_responses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum or the mean of each response's log-probs. Two prompt tokens precede each response."""
    if "per_token_logps" not in boundary.parameters or "average_log_prob" in boundary.parameters:
        raise AbsentError("this version does not return both the sum and the mean of log-probs")
    mask = (inputs["response_mask"] != 0).long()
    if not mask.any(-1).all():
        raise AbsentError("this scenario has an empty response; responses of the framework have at least one token")
    pad = torch.nn.functional.pad
    values, attention = pad(inputs["values"], (1, 0), value=3.0), pad(mask, (2, 0), value=1)
    told = boundary.function(kit.make_unbuilt(boundary.owner), values, attention, [2] * len(mask))
    return {"result": told[inputs["statistic"] == "mean"]}


def _by_chunks(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from the log-sum-exps that OpenRLHF computes in chunks of two tokens."""
    logits, ids = inputs["logits"], inputs["token_ids"]
    sums = boundary.function(logits.flatten(0, 1), 2).reshape(ids.shape)
    return {"log_probs": logits.gather(-1, ids[..., None])[..., 0] - sums, "entropy": None}


def _tokens(rows: Sequence[Any]) -> dict[str, Any]:
    return {"samples": [{"tokens": row} for row in rows]}


def _laid_out(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    return kit.lay_out([sample["tokens"] for sample in inputs["samples"]])


def _without_padding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return _tokens(boundary.function(*_laid_out(inputs)))


_EXPERIENCED = ("sequences", "attention_mask")


def _experiences_without_padding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    made = boundary.module.Experience
    options = inspect.signature(made).parameters.values()
    needed = [each.name for each in options if each.default is each.empty and each.name not in _EXPERIENCED]
    # Until July 2025, these were required, and the action mask determined the padding.
    rows = [
        made(sequences=row, attention_mask=there, **dict.fromkeys(needed, there))
        for row, there in zip(*_laid_out(inputs))
    ]
    return _tokens([one.sequences for one in boundary.function(rows)])


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack rows and unpack them with OpenRLHF's functions, without ring attention."""
    values, mask = _laid_out(inputs)
    with kit.swap_all(boundary.module, **_PACKING):
        packed, _, _, added, places = boundary.module.unpad_and_slice_tensor(values, mask, None)
        if boundary.path.endswith("unpad_and_slice_tensor"):
            return _tokens(packed[0].split(kit.lengths_of({"attention_mask": mask})))
        whole = boundary.function(packed, None, added, places, *values.shape)
    return _tokens([row[there != 0] for row, there in zip(whole, mask)])


def _of_all_ranks(boundary: Any, values: Any, ranks: int) -> Any:
    """Pad each row for ring attention with OpenRLHF's function, and join the parts of all ranks."""
    rows = []
    for row in values:
        parts = kit.on_ranks(ranks, lambda _, row=row: boundary.function(row[None], None, 0)[0])
        rows.append(torch.cat(parts, -1))
    return torch.cat(rows)


def _pairs_of(inputs: Mapping[str, Any], left: bool) -> list[Any]:
    """Return ids and masks of the chosen answers, then ids and masks of the rejected answers."""
    samples = inputs["samples"]
    # 1000 is added, so that no id occurs in both a chosen and a rejected answer.
    sides = [[sample["chosen"] for sample in samples], [sample["rejected"] + 1000 for sample in samples]]
    return [part for side in sides for part in kit.lay_out(side, left)]


def _read_pairs(chosen: Any, chosen_mask: Any, rejected: Any, rejected_mask: Any, *_: Any) -> dict[str, Any]:
    sides = [
        [row[there != 0] for row, there in zip(ids, mask)]
        for ids, mask in ((chosen, chosen_mask), (rejected, rejected_mask))
    ]
    return {"samples": [{"chosen": one, "rejected": other - 1000} for one, other in zip(*sides)]}


def _concatenated(left: bool, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts, tokenizer = _pairs_of(inputs, left), kit.stand_in(pad_token_id=0)
    trainer = kit.make_unbuilt(boundary.owner, tokenizer=tokenizer)
    ids, mask = boundary.invoke({}, trainer, *parts, prompt_id_lens=[1] * len(parts[0]))[:2]
    (chosen, rejected), (one, other) = ids.chunk(2), mask.chunk(2)
    return _read_pairs(chosen, one, rejected, other)


def _collated_pairs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "is_dpo" not in kit.source_of(boundary.function):
        raise AbsentError("this version's dataset cannot collate pairs for DPO")
    dataset = kit.make_unbuilt(boundary.owner, tokenizer=kit.stand_in(pad_token_id=0), is_dpo=False)
    sides = [(sample["chosen"][None], sample["rejected"][None] + 1000) for sample in inputs["samples"]]
    items = [(one, torch.ones_like(one), other, torch.ones_like(other), 0) for one, other in sides]
    return _read_pairs(*boundary.function(dataset, items))


def _collated_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "loss_mask" not in kit.source_of(boundary.function):
        raise AbsentError("this version's dataset has no loss masks")
    dataset = kit.make_unbuilt(boundary.owner, tokenizer=kit.stand_in(pad_token_id=0))
    rows = [(sample["input_ids"][None], sample["loss_mask"][None] + 1000) for sample in inputs["samples"]]
    ids, there, masks = boundary.function(dataset, [(one, torch.ones_like(one), mask) for one, mask in rows])
    found = zip((row[kept != 0] for row, kept in zip(ids, there)), (row[row != 0] - 1000 for row in masks))
    return {"samples": [dict(zip(("input_ids", "loss_mask"), pair)) for pair in found]}


def _concatenated_rows(boundary: Any, inputs: Mapping[str, Any], made: Any) -> Any:
    fields = inputs["fields"]
    rows = [{name: column[row : row + 1] for name, column in fields.items()} for row in range(len(fields["number"]))]
    return [boundary.function([_experience(boundary, row, {}) for row in rows], 0)]


def _punished(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rewards after OpenRLHF has applied its penalty for long responses."""
    experience = kit.stand_in(
        rewards=inputs["rewards"].clone(), response_length=(inputs["response_mask"] != 0).sum(-1), info={}
    )
    options = {
        "rollout.max_new_tokens": inputs["max_length"], "reward.overlong_buffer_len": inputs["buffer"],
        "reward.overlong_penalty_factor": inputs["factor"], "reward.stop_properly_penalty_coef": None,
    }  # fmt: skip
    boundary.function([experience], kit.nest_options(options))
    return {"rewards": experience.rewards}


def _collation(path: str, call: Any, *names: str, **sizes: int) -> Binding:
    """Return the binding of a function that collates rows of tokens.

    :param names: columns whose length varies from row to row; by default ``tokens``.
    :param sizes: columns of a fixed length, with this length.
    """
    columns = {**dict.fromkeys(names or ("tokens",), "tokens"), **sizes}
    kinds = {name: {"kind": "tensor", "dtype": "int64", "shape": [size]} for name, size in columns.items()}
    return Binding(path, "collation", call=call, fixed={"layouts": kinds})


_RM = "openrlhf.trainer.rm_trainer.RewardModelTrainer"
_RECORD = StandIn("experience", "a record of rewards and lengths; the function reads only these")
_NONE = Dialect("reference", "none", "a reward model has no reference", f"{_MAIN}/models/loss.py#L277")
_SMALL = (
    Binding(f"{_LOSS}.GPTLMLoss.forward", "supervised_loss", call=_of_labels, fixed={"batch_num_tokens": None}),
    *(
        Binding(
            f"{_LOSS}.{name}.forward", "preference_loss", call=_of_scores, dialects=(_NONE,),
            fixed={**PREFERENCE_LOSS.lacking(), "loss_type": "sigmoid", "beta": 1.0},
        )
        for name in ("PairWiseLoss", "LogExpLoss")
    ),
    *(
        Binding(
            f"{_DPO}._get_batch_logps", "masked_statistics", call=_of_responses,
            fixed={**MASKED_STATISTICS.lacking(), "statistic": statistic, "axis": "token"},
            dialects=(
                Dialect(
                    "masked_values_have_no_influence", None,
                    "log-probs are multiplied by the mask; those of masked tokens are finite",
                    f"{_MAIN}/trainer/dpo_trainer.py#L381", symptom="non-finite",
                ),
            ),
        )
        for statistic in ("sum", "mean")
    ),
    Binding(
        f"{_UTILS}._logsumexp_by_chunk", "token_log_probs", call=_by_chunks,
        fixed={"temperature": 1.0, "with_entropy": False},
    ),
    _collation("openrlhf.utils.utils.remove_pad_token", _without_padding),
    _collation(f"{_EXPERIENCE}.remove_padding_in_sequences", _experiences_without_padding),
    *(_collation(f"{_RING}.{name}", _packed) for name in ("unpad_and_slice_tensor", "gather_and_pad_tensor")),
    _collation(f"{_DPO}.concatenated_inputs", partial(_concatenated, False), "chosen", rejected=3),
    _collation(f"{_RM}.concatenated_inputs", partial(_concatenated, True), "chosen", rejected=3),
    _collation("openrlhf.datasets.reward_dataset.RewardDataset.collate_fn", _collated_pairs, "chosen", "rejected"),
    _collation(f"{_SFT}.collate_fn", _collated_rows, "input_ids", "loss_mask"),
    Binding(
        f"{_RING}.get_tensor_in_current_ring_attn_rank", "column_padding", stand_ins=(RANKS,),
        call=partial(kit.call_padding_to_multiple, _of_all_ranks), fixed={"side": "right"}, accepts={"pad_value": (0,)},
    ),
    _BATCH.surgery(
        f"{_EXPERIENCE}.Experience.concat_experiences", "cut", _concatenated_rows, accepts={"remainder": (0,)},
        fixed={"count": 1},
    ),
    Binding(f"{_PPO}.length_penalty.apply_length_penalties", "overlong_penalty", call=_punished, stand_ins=(_RECORD,)),
    balanced_partition("openrlhf.utils.seqlen_balancing.karmarkar_karp"),
    # Equal sizes are not tested, because the totals of parts of equal size may differ by more than the longest item,
    # which the contract does not allow.
    balanced_partition(
        "openrlhf.utils.seqlen_balancing.greedy_partition", fixed={"equal_size": False},
        call=partial(kit.call_with, leading=("lengths", "parts"), takes=(), equal_size=False),
    ),
    rule_reward(f"{_RULES}.mathd_normalize_answer", "bare", notations="math", call=kit.apply_normaliser),
)  # fmt: skip


# -- bindings for recipes only -----------------------------------------------------------------------------------------


def _in_a_ring(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function as if there were two ring-attention ranks, without an accelerator."""
    import torch

    ones = torch.ones
    with (
        kit.swap(boundary.module.dist, "get_world_size", lambda *_, **__: 2),
        kit.swap(torch, "ones", lambda *shape, device=None, **more: ones(*shape, **more)),
    ):
        return {"returned": boundary.function(**inputs["arguments"], ring_attn_group=None)}


def _collected(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collect samples with OpenRLHF's generator until no prompt is left. Return the first batch as ``taken`` and all
    later batches as ``left``.

    Each prompt has one rollout. The scenario's ``rejected`` rollouts have a score that the filter rejects.
    """
    module, rejected = boundary.module, set(inputs["rejected"])
    if not hasattr(module, "_collect_prompt_batch"):
        raise AbsentError("this version has no function _collect_prompt_batch, which generates a batch")
    loader = [(None, [number], [-1 - number], [None]) for number in range(inputs["completed"])]  # prompts, labels
    options = {"rollout.batch_size": inputs["needed"], "rollout.n_samples_per_prompt": 1}
    options |= {"rollout.vllm_generate_batch_size": inputs["needed"] + inputs["surplus"], "vllm.enable_sleep": False}
    options |= {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0.0, 1.0)}

    def experience(number: int, **_: Any) -> Any:
        return kit.stand_in(scores=torch.tensor([1.0 if number in rejected else 0.5]), number=number)

    generator = kit.make_unbuilt(
        boundary.owner,
        args=kit.nest_options(options),
        prompts_dataloader=loader,
        _dispatch_prompts_to_vllm=lambda prompts, *_, **__: [[number] for number in prompts],
        _process_response_into_experience=experience,
    )
    ray = {"wait": lambda refs, **_: (refs[:1], refs[1:]), "get": kit.return_first, "cancel": kit.return_first}
    progress = kit.stand_in(**dict.fromkeys(("set_postfix", "update"), lambda *_: None))
    batches, exhausted = [], False
    with kit.swap_all(module, ray=kit.stand_in(**ray), tqdm=lambda *_, **__: progress):
        while not exhausted and len(batches) < inputs["completed"] + 2:
            samples, _, _, exhausted = boundary.function(generator)
            batches.append([one.number for one in samples])
    return {"taken": batches[0], "left": [number for batch in batches[1:] for number in batch]}


def _passed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pass rate that OpenRLHF's generator reports if its filter accepts only some of the samples."""
    numbers = inputs["arguments"]
    samples = numbers["samples_per_prompt"]
    former = {"n_samples_per_prompt": samples, "vllm_generate_batch_size": None, "vllm_enable_sleep": False}
    grouped = {"rollout.n_samples_per_prompt": samples, "rollout.vllm_generate_batch_size": None}
    switches = {"vllm.enable_sleep": False, "algo.dynamic_filtering_enable": True, "dynamic_filtering": True}
    args = kit.nest_options({"rollout.batch_size": 1, "rollout_batch_size": 1, **former, **grouped, **switches})
    answered = ([None] * numbers["accepted"], numbers["consumed"], False)
    generator = kit.make_unbuilt(boundary.owner, args=args, prompts_dataloader=[], _generate_vllm=lambda **_: answered)
    return {"returned": boundary.function(generator)[1]}


_REMOTE = StandIn("ray, engines", "engines that answer the oldest prompt immediately, with the scenario's score")
_TWO_RANKS = StandIn("ring_attn_group", "two ranks; the function reads only their number")
_ANSWERED = StandIn("_generate_vllm", "the function reads only the numbers of returned prompts and samples")
_CALLS = (
    Binding("openrlhf.models.ring_attn_utils.pad_sequences", "call", call=_in_a_ring, stand_ins=(_TWO_RANKS,)),
    Binding(
        f"{_SAMPLES}.SamplesGenerator.generate_samples", "rollout_collection", call=_collected, stand_ins=(_REMOTE,),
        requires=(f"{_SAMPLES}.SamplesGenerator",), accepts={"filters": (False, True), "surplus": (0, 1, 2)},
    ),
    Binding(
        f"{_PPO}.samples_generator.SamplesGenerator.generate_samples", "call", call=_passed, stand_ins=(_ANSWERED,),
        formerly=(f"{_PPO}.experience_maker.SamplesGenerator.generate_samples",),
    ),
)  # fmt: skip


# -- training loops

#: The number of a set of options that must not change a run: TensorBoard instead of W&B, and a loss of one term.
_BOARDS = 1

#: A step has four rows, in two microbatches. Validation rows are numbered from ``_VALIDATION``.
_MICRO, _STEP, _VALIDATION, _REJECTED = 2, 4, 100, 60


class _Loader(list[Any]):
    """A stand-in data loader without a sampler."""

    sampler = None


def _scorer(trained: list[int], sign: float, weight: float) -> Any:
    """Return a model with one parameter. It appends the numbers of its training rows to ``trained``.

    A token's score depends on whether its row has an odd number. In training rows it also depends on the token's id.
    """

    class Scorer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(weight))
            self.config, self.model = kit.stand_in(), "model"

        def forward(self, ids: Any, attention_mask: Any, return_output: bool = False, **options: Any) -> Any:
            numbers = ids[:, :1]
            if self.training:
                trained.extend(number for number in numbers[:, 0].tolist() if number < _REJECTED)
            levels = torch.where(numbers >= _VALIDATION, numbers % 2, 0.4 + numbers % 2 / 5 + ids % 7 / 100)
            scores = self.weight * sign * levels.expand(ids.shape)
            scores = scores[:, :-1] if "return_logprobs" in options else scores[:, 0]
            return (scores, kit.Named(aux_loss=self.weight / 4)) if return_output else scores

    return Scorer()


def _microbatch(numbers: Sequence[int], pairs: bool) -> tuple[Any, ...]:
    """Return a microbatch of rows, or of pairs of rows. Each row starts with its number, and has one or two more
    tokens. The rejected row of a pair starts with another number.
    """
    ids, mask = torch.tensor([[[number, 5, 6]] for number in numbers]), torch.ones(len(numbers), 1, 3)
    mask[1::2, :, -1] = 0
    if not pairs:
        return ids, mask.long(), mask
    rejected = ids.clone()
    rejected[..., 0] = _REJECTED
    return ids, mask, rejected, mask.flip(0), [1] * len(numbers)


def _fitted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train a model of one parameter with OpenRLHF's ``fit``, and return what was trained, validated and saved.

    OpenRLHF's evaluation averages over batches, so validation batches have one row.
    """
    did: dict[str, list[Any]] = {name: [] for name in ("trained", "validated", "validation", "saved")}
    pairs, micro = _FIT not in boundary.path, range(0, _STEP, _MICRO)
    starts = [_STEP * step + place for step in range(len(inputs["rewards"])) for place in micro]
    options = {
        "eval.steps": inputs["validation_period"] or float("inf"), "ckpt.save_steps": inputs["save_period"],
        "ckpt.path": "", "ckpt.max_num": 3, "ckpt.max_mem": 5, "logger.logging_steps": 1, "train.batch_size": _STEP,
        "logger.wandb.key": None, "logger.tensorboard_dir": None, "ds.packing_samples": False,
        "model.aux_loss_coef": 0.25, "model.nll_loss_coef": 0.5, "model.label_smoothing": 0.125,
        "model.ipo_enable": False, "model.margin_loss_enable": True, "model.compute_fp32_loss_enable": True,
    }  # fmt: skip
    model, boards = _scorer(did["trained"], 1.0 if pairs else -1.0, 1.0), inputs["equivalent_options"] == _BOARDS
    if boards:  # without the further terms of the loss, which change no recorded value
        options |= {"model.aux_loss_coef": 0.0, "model.nll_loss_coef": 0.0, "model.margin_loss_enable": False}
    if inputs["validation_period"] == len(inputs["rewards"]):
        options["eval.steps"] = -1  # once per epoch

    def log(logs: Mapping[str, Any]) -> None:
        if "eval/global_step" in logs:
            did["validated"].append(logs["eval/global_step"])
            did["validation"].append(logs["eval/acc_mean" if pairs else "eval/eval gpt_loss"])

    def note(name: str, value: float, step: int) -> None:
        if name.startswith("eval/") and name == ("eval/acc_mean" if pairs else "eval/eval gpt_loss"):
            log({"eval/global_step": step, name: value})

    def save(_: Any, path: str, tag: str, *more: Any) -> None:
        did["saved"].append(int(tag.removeprefix("global_step")))

    names = ("print", "optimizer_step", "save_model")
    strategy = kit.stand_in(
        args=kit.nest_options(options), accumulated_gradient=_STEP // _MICRO, ring_attn_group=None, save_ckpt=save,
        is_rank_0=lambda: True, get_grad_norm=lambda one: one.weight.grad, ds_device_mesh=None,
        backward=lambda loss, *_: loss.backward(), **dict.fromkeys(names, lambda *_: None),
        **dict.fromkeys(("all_reduce", "all_gather", "_unwrap_model"), kit.return_first),
    )  # fmt: skip
    rows = [_VALIDATION + int(value) for part in inputs["validation"] for value in part]
    named = {
        "model": model, "strategy": strategy, "optim": None, "tokenizer": kit.stand_in(pad_token_id=0),
        "train_dataloader": _Loader(_microbatch(range(start, start + _MICRO), pairs) for start in starts),
        "eval_dataloader": _Loader(_microbatch([number], pairs) for number in rows), "save_hf_ckpt": True,
        "scheduler": kit.stand_in(get_last_lr=lambda: [0.5]), "max_epochs": inputs["epochs"],
        "ref_model": _scorer([], 1.0, 0.5), "beta": 0.5,
    }  # fmt: skip
    takes = inspect.signature(boundary.owner.__init__).parameters
    trainer = boundary.owner(**{name: value for name, value in named.items() if name in takes})
    trainer._wandb = None if boards else kit.stand_in(log=log, finish=lambda: None)
    trainer._tensorboard = kit.stand_in(add_scalar=note, close=lambda: None) if boards else None
    with kit.swap(boundary.module, "tqdm", lambda *_, **__: kit.bookkeeping()):
        boundary.function(trainer, strategy.args, 0, len(inputs["rewards"]))
    return did


_FIT = "openrlhf.trainer.sft_trainer.SFTTrainer"
_OF_LOOPS = (
    StandIn("model", "has one parameter; a score depends on the token's id and on whether its row has an odd number"),
    StandIn("strategy, logger", "one process; they record what is saved and reported"),
)
_EACH_EPOCH = Dialect(
    "validates_epochs",
    True,
    "the trainer also evaluates at the end of each epoch",
    f"{_MAIN}/trainer/rm_trainer.py#L228",
)
_LOOPS = tuple(
    Binding(
        f"{trainer}.fit", "training_loop", call=_fitted, stand_ins=_OF_LOOPS,
        accepts={"save_period": (1,), "equivalent_options": (0, _BOARDS)},
        requires=("openrlhf.utils.loss_utils.iter_grad_accum_global_norm",),  # since June 2026
        fixed={"max_steps": None, "validates_first": False, "validates_last": False}, dialects=dialects,
    )
    for trainer, dialects in ((_FIT, ()), (_DPO, ()), (_RM, (_EACH_EPOCH,)))
)  # fmt: skip


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "openrlhf.cli.*", "openrlhf.models.model.*", "openrlhf.trainer.ray.launcher.*",
    "openrlhf.trainer.ray.vllm_engine.*", "openrlhf.utils.logging_utils.*",
)  # fmt: skip

TARGET = Target(
    name="openrlhf",
    arguments={
        "response_mask": ("action_mask", "loss_mask", "mask", "response_mask"), "ref_log_probs": ("log_probs_base",),
        "token_level_rewards": ("rewards",), "lam": ("lambd",), "values": ("values", "tensor"), "axis": ("dim",),
        "epsilon": ("eps",),
    },
    moved={_MAKER: (f"{_PPO}.experience_maker.NaiveExperienceMaker",), _EXPERIENCE: (f"{_PPO}.replay_buffer",)},
    repository="https://github.com/OpenRLHF/OpenRLHF", roots=(PackageRoot("openrlhf"),), pypi="openrlhf",
    preload=("torch._dynamo", "transformers", "transformers.trainer", "transformers.models.auto.modeling_auto"),
    bindings=tuple(
        replace(binding, dtypes=("float32", "bfloat16"))
        for part in (
            _LOSSES, _UPDATES, _NUMBERS, _LOG_PROBS, _ADVANTAGES, _ROWS, _DATA, _AGENTS, _CALLS, _REPORTS, _SMALL,
            _LOOPS,
        )
        for binding in part
    ),
    no_signal=_NO_SIGNAL,
)  # fmt: skip
