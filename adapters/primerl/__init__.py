"""Adapter for prime-rl (PrimeIntellect-ai/prime-rl): the functions that Sentinel checks, and how it calls them.

prime-rl has one flat tensor per sample and no padding, so each row of a scenario is cut where its mask ends. The loss
is a sum over samples, divided by the token count of the whole step. Until July 2025, the package was called
``zeroband``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

from sentinel import AbsentError, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.families import (
    LAYOUTS,
    LEARNING_RATE,
    REWARD_NORMALISATION,
    balanced_partition,
    group_advantage,
    normalised_rewards,
    policy_loss,
)
from sentinel.binding.kit import torch

from . import loops, models, runs

_LOSS = "prime_rl.trainer.rl.loss"
_BEFORE = "zeroband"
_BATCH = "prime_rl.trainer.batch"
_ORCHESTRATOR = "prime_rl.orchestrator"
_ALGORITHMS = f"{_ORCHESTRATOR}.algo"
_ADVANTAGE = f"{_ORCHESTRATOR}.advantage"


# -- losses ------------------------------------------------------------------------------------------------------------

#: Bounds that no token exceeds, with the option names of all versions.
_UNBOUNDED: Mapping[str, Any] = {
    "clip_ratio": float("inf"),
    **dict.fromkeys(("mask_ratio_low", "token_mask_low", "sequence_mask_low", "geo_mask_low"), 0.0),
    "sequence_mask_ratio_low": 0.0,
    **dict.fromkeys(("mask_ratio_high", "token_mask_high", "sequence_mask_high", "geo_mask_high"), float("inf")),
    **dict.fromkeys(("ipo_mask_low", "ipo_mask_high", "dppo_mask_low", "dppo_mask_high", "ipo_threshold"), 2.0),
    **dict.fromkeys(("sequence_clip_high", "importance_ratio_max"), float("inf")),
    "type": "default",
    "kl_mask_type": "all",
    "ratio_type": "token",
    "norm_type": "token",
    "ratio_length_norm": False,
    "adv_tau": 1.0,
    "kl_tau": 0.0,
    "teacher_tau": 0.0,
}


def _counted(inputs: Mapping[str, Any]) -> int:
    """Return the number of tokens by which prime-rl's trainer divides the loss of a step."""
    tokens = inputs["batch_num_tokens"]
    return int((inputs["response_mask"] != 0).sum()) if tokens is None else tokens


def _settings(inputs: Mapping[str, Any], reader: Any) -> Any:
    """Return the configuration of the scenario's loss.

    :param reader: the loss function, whose source shows which options this version has.
    """
    if inputs["algorithm"] != "dppo_tv":
        return kit.stand_in(**_UNBOUNDED)
    if "dppo_mask_high" not in kit.source_of(reader):
        raise AbsentError("this version's loss has no DPPO trust region")
    trust = {"dppo_mask_low": inputs["eps_clip_low"], "dppo_mask_high": inputs["eps_clip_high"]}
    return kit.stand_in(**{**_UNBOUNDED, **trust})


def _loss_of(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the argument that selects the loss: a function, or a configuration in versions until February 2026."""
    if "loss_config" in boundary.parameters:
        if inputs["algorithm"] == "dppo_tv":
            raise AbsentError("this version's loss has no DPPO trust region")
        return kit.stand_in(**_UNBOUNDED)
    default = boundary.module.default_loss_fn
    settings = _settings(inputs, default)
    return lambda sample: default(sample, settings)


def _summed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of a step: the sum of its samples' losses, divided by the number of tokens."""
    current, old, advantages = (list(inputs[name]) for name in ("log_probs", "old_log_probs", "advantages"))
    masks = [row != 0 for row in inputs["response_mask"]]
    loss, scale = _loss_of(boundary, inputs), _counted(inputs)
    if "loss_config" in boundary.parameters:
        teachers = [None] if "teacher_logprobs" in boundary.parameters else []
        return {"loss": boundary.function(current, old, *teachers, advantages, masks, loss, scale)[0]}
    if "loss_fn" in boundary.parameters:
        return {"loss": boundary.function(current, old, None, advantages, masks, loss, scale)[0]}
    batch = {"trainer_logprobs": current, "inference_logprobs": old, "advantages": advantages, "loss_mask": masks}
    none = dict.fromkeys(("ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights"))
    scales = {"rl_scale": max(scale, 1), "ce_scale": 1, "ref_kl_scale": 1}
    return {"loss": boundary.invoke({}, rl_loss_fn=loss, **batch, **none, **scales)[0]}


def _sample_inputs(boundary: Any, inputs: Mapping[str, Any], row: int) -> Any:
    """Return prime-rl's ``LossInputs`` for one sample. Newer versions renamed the reference log-probs."""
    fields = {
        "trainer_logprobs": inputs["log_probs"][row],
        "inference_logprobs": inputs["old_log_probs"][row],
        "advantages": inputs["advantages"][row],
        "loss_mask": inputs["response_mask"][row] != 0,
    }
    made = boundary.module.LossInputs
    names = ("ref_logprobs", "teacher_logprobs", "loss_weights")
    lacking = {name: None for name in names if name in made.__dataclass_fields__}
    return made(**fields, **lacking)


def _one_by_one(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows = range(len(inputs["log_probs"]))
    settings = _settings(inputs, boundary.function)
    return {"loss": sum(boundary.function(_sample_inputs(boundary, inputs, row), settings).loss for row in rows)}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows = range(len(inputs["log_probs"]))
    scenario = {"old_log_probs": inputs["log_probs"], "advantages": inputs["log_probs"], **inputs}
    return {"loss": sum(boundary.function(_sample_inputs(boundary, scenario, row)).loss for row in rows)}


def _from_logits(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call prime-rl's loss function of spring 2025, which takes a padded batch and logits.

    The vocabulary has two tokens. Every token of a sequence is token 1.
    """
    log_probs, mask = inputs["log_probs"], inputs["response_mask"] != 0
    pad = torch.nn.functional.pad
    logits = kit.two_token_logits(log_probs)
    arguments = {
        "logits": torch.cat([logits, torch.zeros_like(logits[:, :1])], 1),
        "input_ids": torch.ones(mask.shape[0], mask.shape[1] + 1, dtype=torch.int64),
        "advantages": pad(inputs["advantages"], (1, 0)),
        "original_logprobs": pad(inputs["old_log_probs"], (1, 0)),
        "loss_mask": pad(mask, (1, 0)),
        "temperature": 1.0,
    }
    low, high = inputs["eps_clip_low"], inputs["eps_clip_high"]
    if "epsilon" in boundary.parameters:
        if low != high:
            raise AbsentError("this version has only one clip bound; eps_clip_low and eps_clip_high must be equal")
        arguments["epsilon"] = low
    elif "epsilon_low" in boundary.parameters:
        arguments |= {"epsilon_low": low, "epsilon_high": high}
    else:
        raise AbsentError("this version has no clip range for importance ratios")
    loss, clipped = boundary.invoke({}, **arguments)[:2]
    return {"loss": loss, "clip_fraction": clipped if not isinstance(clipped, Mapping) else None}


_SETTINGS = StandIn("loss_config", "the options that a loss reads, under the names of all versions")
_CLIP = ("eps_clip_low", "eps_clip_high")
_LOSSES = (
    policy_loss(
        f"{_LOSS}.compute_loss", _summed, ("importance_sampling", "dppo_tv"), _CLIP, stand_ins=(_SETTINGS,),
        fixed={"dp_size": None, "loss_scale_factor": None, "global_batch_size": None, "loss_agg_mode": "token-mean"},
    ),
    policy_loss(f"{_LOSS}.default_loss_fn", _one_by_one, "dppo_tv", _CLIP, mode="token-sum", stand_ins=(_SETTINGS,)),
    policy_loss(
        f"{_LOSS}.ipo_loss_fn", _one_by_one, "importance_sampling", (), mode="token-sum", stand_ins=(_SETTINGS,),
    ),
    policy_loss(f"{_LOSS}.ce_loss_fn", _supervised, "cross_entropy", (), mode="token-sum"),
    policy_loss(
        f"{_BEFORE}.training.loss.grpo_loss", _from_logits, "ppo", _CLIP, mode="token-mean",
        formerly=("prime_rl.trainer.loss.grpo_loss",),
    ),
)  # fmt: skip


# -- log-probs ---------------------------------------------------------------------------------------------------------


def _shifted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs as prime-rl's trainer does: shift labels to the left, and shift the results to the right.

    Each sequence begins with a one-token prompt. The logits at its last position predict no token.
    """
    module, logits = boundary.module, inputs["logits"]
    whole = torch.cat([logits, -logits[:, :1].detach()], 1)
    labels = module.shift_tensor_left(kit.prepend_prompt(inputs["token_ids"]))
    return {"log_probs": module.shift_tensor_right(module.selective_log_softmax(whole, labels))[:, 1:], "entropy": None}


_HEADS, _SOFTCAP = "prime_rl.trainer.models.layers", 64.0


def _fused(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs and entropies with prime-rl's fused output layer, in chunks of two tokens.

    The layer's weight is the identity, so that hidden states are logits. Gemma's layer caps logits smoothly; the
    adapter inverts this cap.
    """
    logits, size = inputs["logits"], inputs["logits"].shape[-1]
    capped = "gemma" in boundary.path
    if capped and logits.abs().max() > _SOFTCAP / 2:
        raise AbsentError("the layer caps logits, and the scenario's logits are too large to invert the cap")
    name = next(name for name in vars(boundary.module) if name.endswith("FusedOutputLinear"))
    with kit.keep_random_state():
        layer = getattr(boundary.module, name)(size, size, 2, **({"softcap": _SOFTCAP} if capped else {}))
    layer.weight = torch.nn.Parameter(torch.eye(size, dtype=logits.dtype), requires_grad=False)
    hidden = _SOFTCAP * torch.atanh(logits / _SOFTCAP) if capped else logits
    temperatures = torch.full(logits.shape[:2], inputs["temperature"] or 1.0)
    made = layer(hidden, inputs["token_ids"], temperatures)
    return {"log_probs": made["logprobs"], "entropy": made["entropy"] if inputs["with_entropy"] else None}


_LOG_PROBS = (
    *(
        Binding(f"{_HEADS}.{path}", "token_log_probs", call=_fused, requires=(f"{_HEADS}.{path}",))
        for layer, prefix in (("lm_head", "_SequenceChunked"), ("lm_head_gemma", "_GemmaChunked"))
        for path in (
            *(f"{layer}.{prefix}LogProbEntropyFn.{method}" for method in ("forward", "backward")),
            f"{layer}.{'Gemma' * ('gemma' in layer)}FusedOutputLinear.forward",
        )
    ),
    *(
        Binding(
            f"{_LOSS}.shift_tensor_{side}", "token_log_probs", call=_shifted,
            fixed={"temperature": 1.0, "with_entropy": False}, requires=(f"{_LOSS}.shift_tensor_right",),
        )
        for side in ("left", "right")
    ),
    Binding(
        f"{_LOSS}.compute_importance_ratio_and_mismatch_kl", "kl_estimate",
        # In this KL, the trainer's log-probs have the role of the contract's ref_log_probs.
        call=partial(kit.call_with, leading=("ref_log_probs", "log_probs"), takes=(), reads={"kl": 2}),
        fixed={"response_mask": None, "kl_estimator": "k3"},
    ),
    Binding(
        f"{_LOSS}.selective_log_softmax", "token_log_probs", call=kit.call_log_probs,
        fixed={"temperature": 1.0, "with_entropy": False},
    ),
    Binding(
        f"{_LOSS}.compute_entropy", "token_log_probs", call=partial(kit.call_entropy, "selective_log_softmax"),
        fixed={"temperature": 1.0, "with_entropy": True, "entropy_of": "sampled"},
    ),
)  # fmt: skip


# -- advantages --------------------------------------------------------------------------------------------------------

_STD_NORM = {None: None, "group": "local", "batch": "global"}


def _computed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with the function that prime-rl used for all algorithms until June 2026."""
    rewards = inputs["rewards"]
    rows, size, one_out = len(rewards), kit.group_size(inputs), inputs["leave_one_out"]
    wanted = {"leave_one_out": one_out, "std_norm": _STD_NORM[inputs["std_level"]]}
    settings = {**wanted, "length_weighted_mean": False, "neg_clipped": False, "type": "default"}
    if "advantage_type" in boundary.parameters:
        if inputs["std_level"] is not None:
            raise AbsentError("this version does not divide rewards by a standard deviation")
        options: dict[str, Any] = {"advantage_type": "rloo" if one_out else "drgrpo"}
    elif "advantage_config" in boundary.parameters:
        text = kit.source_of(boundary.module)
        if any(value and name not in text for name, value in wanted.items()):
            raise AbsentError("this version only subtracts the group mean from rewards")
        options = {"advantage_config": kit.stand_in(**settings)}
    else:
        raise AbsentError("this version computes advantages from rollouts, not from rewards")
    if one_out and size == 1:
        raise AbsentError("a leave-one-out mean needs groups of at least two rows")
    arguments = {"rewards": rewards.tolist(), "completion_lengths": [4] * rows, "samples_per_problem": size}
    return {"normalised": torch.tensor(boundary.invoke({}, **arguments, **options))}


def _episodes(rewards: Sequence[float]) -> list[Any]:
    """Return one episode per reward. Each episode has one trace with one token."""
    agent = kit.stand_in(trainable=True, name="agent")
    traces = []
    for reward in rewards:
        node = kit.stand_in(mask=[True], token_ids=[1], sampled=True, advantages=None)
        traces.append(kit.stand_in(has_error=False, agent=agent, nodes=[node], reward=reward, id="trace"))
    return [kit.stand_in(traces=[trace], id=str(row)) for row, trace in enumerate(traces)]


def _scored(boundary: Any, group: Any) -> list[float]:
    """Return the advantages that prime-rl's algorithm computes from the rewards of one group."""
    # With a decay of 1, the baseline of RAE stays 0.
    options = {"length_penalty": None, "episode_agents": frozenset(), "decay": 1.0, "baselines": defaultdict(float)}
    algorithm = kit.make_unbuilt(boundary.owner, **options)
    episodes = _episodes(group.tolist())
    asyncio.run(boundary.function(algorithm, episodes))
    return [episode.traces[0].nodes[0].advantages[0] for episode in episodes]


def _by_groups(boundary: Any, labels: Sequence[Any], rewards: Any) -> Any:
    scores = torch.zeros(len(rewards))
    for rows in kit.rows_of_groups(labels):
        scores[rows] = torch.tensor(_scored(boundary, rewards[rows]))
    return scores


def _centred(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"normalised": _by_groups(boundary, inputs["group"], inputs["rewards"])}


def _likeliest(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    scores = _by_groups(boundary, inputs["group"], inputs["token_level_rewards"].sum(-1))
    advantages = scores[:, None] * (inputs["response_mask"] != 0)
    return {"advantages": advantages, "returns": advantages}


def _of_requests(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with prime-rl's reward function for requests. A group is the completions of one request."""
    method = "dr_grpo" if inputs["std_level"] is None else "grpo"
    advantages = torch.zeros(len(inputs["rewards"]))
    for rows in kit.rows_of_groups(inputs["group"]):
        if len(rows) == 1 and method == "grpo":
            raise AbsentError("a standard deviation needs requests with at least two completions")
        rewards = [kit.stand_in(reward=float(inputs["rewards"][row]), advantage=None) for row in rows]
        answers = iter(rewards)
        request = kit.stand_in(request_id="0", outputs=rows)
        config = kit.stand_in(advantage_estimation_method=method, compute_reward=True)
        scored = {
            "_compute_completion_reward": lambda *_, _answers=answers: next(_answers),
            "RequestRewards": kit.stand_in,
        }
        with kit.swap_all(boundary.module, **scored):
            boundary.function(request, {}, "task", config)
        advantages[rows] = torch.tensor([reward.advantage for reward in rewards])
    return {"normalised": advantages}


def _admitted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row numbers and rewards of the groups whose GRPO advantages pass prime-rl's gate."""
    algorithm = kit.make_unbuilt(boundary.imported[f"{_ALGORITHMS}.grpo"].GRPOAlgorithm, length_penalty=None)
    gate = boundary.owner(kit.stand_in(reject_min=0.0, reject_max=0.0))
    rewards = inputs["rewards"].tolist()
    numbers: list[int] = []
    for rows in kit.rows_of_groups(inputs["group"]):
        episodes = _episodes([rewards[row] for row in rows])
        asyncio.run(algorithm.score_group(episodes))
        numbers += rows if boundary.function(gate, episodes) else []
    numbers.sort()
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


def _shaped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the advantages of one group with a penalty on generated tokens."""
    arguments = inputs["arguments"]
    weights = {"num_output_tokens_weight": arguments["weight"], "num_input_tokens_weight": 0, "num_turns_weight": 0}
    algorithm = kit.stand_in(length_penalty=kit.stand_in(**weights))
    episodes = _episodes(arguments["rewards"])
    for episode, length in zip(episodes, arguments["lengths"]):
        vars(episode.traces[0]).update(num_output_tokens=length, num_total_tokens=length, num_turns=1)
    asyncio.run(boundary.function(algorithm, episodes))
    return {"returned": [episode.traces[0].nodes[0].advantages[0] for episode in episodes]}


#: Required, because in versions without this function, the reward is in the rollout and not in its trace.
_NODES = (f"{_ALGORITHMS}.routing.assign_advantages",)
_TRACES = StandIn("episodes", "the verifiers package's records of rollouts; an algorithm uses rewards and advantages")
_GRPO = f"{_ALGORITHMS}.grpo.GRPOAlgorithm.score_group"
_ADVANTAGES = (
    *(
        normalised_rewards(
            path, _centred, requires=_NODES, stand_ins=(_TRACES,), fixed={"std_level": None}, twins=twins,
        )
        for path, twins in (
            (_GRPO, ()), (f"{_ALGORITHMS}.hierarchical_grpo.HierarchicalGRPOAlgorithm.score_group", (_GRPO,)),
        )
    ),
    Binding(
        f"{_ALGORITHMS}.rae.RAEAlgorithm.score_group", "reward_normalisation", call=_centred, requires=_NODES,
        stand_ins=(_TRACES,), fixed={**REWARD_NORMALISATION.lacking(), "mean_level": None, "std_level": None},
    ),
    Binding(_GRPO, "call", call=_shaped, stand_ins=(_TRACES,), requires=_NODES),
    group_advantage(
        f"{_ALGORITHMS}.max_rl.MaxRLAlgorithm.score_group", _likeliest, "maxrl", (), stand_ins=(_TRACES,),
        fixed={"reward_layout": "outcome", "epsilon": 0.0}, accepts={"response_mask": ("full",)}, requires=_NODES,
    ),
    Binding(
        "prime_rl.orchestrator.curriculum.gates.adv.AdvRangeGate.admit", "group_filter", call=_admitted,
        imports=(f"{_ALGORITHMS}.grpo",), stand_ins=(_TRACES,),
    ),
    normalised_rewards(
        f"{_ADVANTAGE}.compute_advantages", _computed, "std_level", "leave_one_out",
        stand_ins=(
            StandIn("advantage_config", "the options that the function reads, under the names of all versions"),
        ),
        fixed={"group_layout": "equal", "epsilon": 1e-08},
    ),
    normalised_rewards(
        f"{_BEFORE}.inference.rewards._compute_request_rewards", _of_requests, "std_level",
        stand_ins=(StandIn("request", "an engine's record of completions, each with the score from a rule"),),
        accepts={"std_level": (None, "group")},
    ),
)  # fmt: skip


# -- batches -----------------------------------------------------------------------------------------------------------


def _fields(boundary: Any, length: int, row: int) -> Any:
    """Return a training sample with ``length`` tokens. The id of each token is the row number."""
    types = inspect.getmodule(boundary.module.MicroBatch)
    of_tokens = {"token_ids": row, "mask": True, "logprobs": -1.0, "temperatures": 1.0, "advantages": 1.0}
    fields = {"env_name": "env", **{name: [value] * length for name, value in of_tokens.items()}}
    made: Any = vars(types)["TrainingSample"]
    if "mask" not in made.__struct_fields__:
        raise AbsentError(
            "this version's samples have a prompt and a completion instead of one list of tokens with a mask"
        )
    return made(**{name: value for name, value in fields.items() if name in made.__struct_fields__})


def _beside(boundary: Any, count: int) -> dict[str, Any]:
    """Return the arguments that only some versions of prime-rl accept."""
    cost = getattr(boundary.module, "build_bin_cost", lambda _: sum)(None)
    return {"bin_cost": cost, "num_loras": 1, "idxs": [0] * count}


def _micro_batches(boundary: Any, lengths: Sequence[int], budget: int, workers: int = 1) -> list[Any]:
    module = boundary.module
    samples = [module.prepare_sample(_fields(boundary, length, row), budget) for row, length in enumerate(lengths)]
    if "num_loras" in boundary.parameters:
        samples = [(0, sample) for sample in samples]
    arguments = {"samples": samples, "max_seq_len": budget, "num_train_workers": workers}
    return list(boundary.invoke({}, **arguments, **_beside(boundary, len(samples))))


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    made = _micro_batches(boundary, kit.lengths_of(inputs), inputs["max_tokens_per_microbatch"])
    return {"parts": [list(dict.fromkeys(one.input_ids)) for one in made]}


def _prepared(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split samples into microbatches for two workers, and drop microbatches that contain only padding."""
    samples = [_fields(boundary, length, row) for row, length in enumerate(kit.lengths_of(inputs))]
    budget = inputs["max_tokens_per_microbatch"]
    arguments = {"rollouts": samples, "seq_len": budget, "num_train_workers": 2}
    made = boundary.invoke({}, **arguments, **_beside(boundary, len(samples)))
    parts = [one for worker in made for one in worker if any(one.loss_mask)]
    return {"parts": [list(dict.fromkeys(one.input_ids)) for one in parts]}


def _concatenated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack samples into rows of equal length, as prime-rl's data loader does. Tokens that pad a row are not valid."""
    lengths, budget = kit.lengths_of(inputs), inputs["max_tokens_per_microbatch"]
    samples = [
        {name: [row] * length for name in ("input_ids", "target_ids")}
        | {"position_ids": list(range(length)), "loss_mask": [True] * length}
        for row, length in enumerate(lengths)
    ]
    with kit.swap(boundary.module, "get_logger", kit.make_silent_logger):
        packs = list(boundary.function(boundary.owner(samples, budget)))
    made = [boundary.module.cat_collate([pack]) for pack in packs]
    return {"parts": [list(dict.fromkeys(one["input_ids"][one["loss_mask"]].tolist())) for one in made]}


def _dealt(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    if len(inputs["lengths"]) % inputs["parts"]:
        raise AbsentError(
            "the number of samples must be a multiple of the number of parts, as prime-rl's callers ensure"
        )
    return boundary.function(inputs["lengths"], inputs["parts"])


#: The streams of a sample that prime-rl cuts with it, and the field of a microbatch if its name differs.
_CUT = {
    "logprobs": "inference_logprobs",
    **{name: name for name in ("advantages", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights")},
}


def _truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Truncate a sample. No token counts if another stream or the experts of the sample are not cut with it."""
    count = len(inputs["token_ids"])
    sample = _fields(boundary, count, 0)
    sample.token_ids = list(inputs["token_ids"])
    sample.mask = [bool(flag) for flag in inputs["loss_mask"]]
    kinds, types = sample.__struct_fields__, inspect.getmodule(boundary.module.MicroBatch)
    streams = [name for name in _CUT if name in kinds]
    for name in streams:
        setattr(sample, name, [float(place) for place in range(count)])
    if "routed_experts" in kinds and hasattr(types, "RoutedExperts"):
        sample.routed_experts = vars(types)["RoutedExperts"](
            data=bytes(range(count)), shape=[count, 1, 1], dtype="uint8"
        )
    made = boundary.function(sample, inputs["max_length"])
    kept = [float(place) for place in range(len(made.input_ids))]
    whole = all(list(getattr(made, _CUT[name])) == kept for name in streams if hasattr(made, _CUT[name]))
    experts = getattr(made, "routed_experts", None)
    if experts is not None and hasattr(experts, "data"):
        whole &= list(experts.data) == kept and list(experts.shape) == [len(kept), 1, 1]
    mask = [int(flag) for flag in made.loss_mask] if whole else [0] * len(kept)
    return {"token_ids": made.input_ids, "loss_mask": mask}


_STREAMS = ("advantages", "inference_logprobs", "temperatures", "ref_logprobs", "rl_weights", "ce_weights")


def _flags(sample: Mapping[str, Any]) -> Any:
    """Return a sample's loss mask as booleans. In a scenario, odd numbers mark trained tokens."""
    return sample["loss_mask"] % 2 == 1


def _in_one_bin(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Pack samples into one microbatch, pad it to a multiple of eight tokens and convert it to tensors.

    Samples are read with the sequence lengths in the microbatch. The last sample is read without the padding.
    """
    batch, data = boundary.imported[_BATCH], boundary.imported[_LOADER]
    samples = inputs["samples"]
    if "seq_lens" not in batch.MicroBatch.__struct_fields__:
        raise AbsentError("this version does not store sequence lengths in microbatches")
    rows = []
    for sample in samples:
        values = {name: column.tolist() for name, column in sample.items()}
        values["loss_mask"] = _flags(sample).tolist()
        count = len(values["input_ids"])
        lengths = {"sequence_lengths": [count], "seq_lens": [count], "env_names": ["env"] * count}
        rows.append(batch.MicroBatch(**values, position_ids=list(range(count)), **lengths))
    whole = batch._MicroBatchBin(rows, sum(len(row.input_ids) for row in rows))
    made = batch.pad_micro_batch(batch._materialize_bin(whole), 8)
    made = data.DataLoader._micro_batch_to_tensor(kit.stand_in(), made)
    ends, start, read = made["seq_lens"].cumsum(0).tolist(), 0, []
    for sample, end in zip(samples, ends):
        count = len(sample["input_ids"])
        places = made["position_ids"][0][start : start + count].tolist()
        own = {name: made[name][0][start : start + count] for name in sample}
        own["loss_mask"] = torch.where(own["loss_mask"] == _flags(sample), sample["loss_mask"], -1)
        read.append(own if places == list(range(count)) else {})
        start = end
    counted = sum(int(_flags(sample).sum()) for sample in samples)
    return {"samples": read if int(made["loss_mask"].sum()) == counted else []}


def _in_one_row(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Concatenate samples into one row of 64 tokens, and read them with the lengths that prime-rl stores."""
    module, samples = boundary.module, inputs["samples"]
    rows: list[dict[str, Any]] = [{name: column.tolist() for name, column in sample.items()} for sample in samples]
    for number, (row, sample) in enumerate(zip(rows, samples)):
        row["loss_mask"] = _flags(sample).tolist()
        count = len(row["input_ids"])
        row |= {"position_ids": list(range(count)), "seq_lens": [count]}
        if number % 3:  # every third sample is only text
            row |= {"mm_kwargs": {"pixel_values": torch.tensor([number])}, "mm_token_type_ids": [1] + [0] * (count - 1)}
    with kit.swap(module, "get_logger", kit.make_silent_logger):
        (pack,) = module.CatDataset(rows, 64)
    made, start, read = module.cat_collate([pack]), 0, []
    if "mm_kwargs" in pack and not _are_own_images(made, samples):
        return {"samples": []}
    for sample, length in zip(samples, made["seq_lens"].tolist()):
        read.append({name: made[name][0][start : start + len(sample["input_ids"])] for name in sample})
        flags = read[-1]["loss_mask"] == _flags(sample)
        read[-1]["loss_mask"] = torch.where(flags, sample["loss_mask"], -1)
        start += length
    return {"samples": read}


def _are_own_images(made: Mapping[str, Any], samples: Sequence[Any]) -> bool:
    """Return whether a packed row has the images of its samples, each at the sample's first token."""
    pictured = [number for number in range(len(samples)) if number % 3]
    if not pictured:
        return made["mm_kwargs"] is None and made["mm_token_type_ids"] is None
    starts = [sum(len(sample["input_ids"]) for sample in samples[:number]) for number in pictured]
    places = made["mm_token_type_ids"][0].nonzero()[:, 0].tolist()
    return bool(made["mm_kwargs"]["pixel_values"].tolist() == pictured and places == starts)


def _cut_at_ends(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Cut packed tokens at the sequence ends that prime-rl computes from lengths or from token positions."""
    samples = inputs["samples"]
    lengths = [len(sample["input_ids"]) for sample in samples]
    if "seq_lens" in boundary.parameters:
        ends, longest = boundary.function(torch.tensor(lengths), sum(lengths))
    else:
        ends, longest = boundary.function(torch.cat([torch.arange(length) for length in lengths])[None])
    whole = torch.cat([sample["input_ids"] for sample in samples])
    cuts = zip(ends.tolist(), ends.tolist()[1:])
    return {"samples": [{"input_ids": whole[start:end]} for start, end in cuts] if longest == max(lengths) else []}


def _sharded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split columns over context-parallel ranks with prime-rl. Each rank's columns are one part of the result."""
    count, parts, source = inputs["count"], list[Any](), kit.source_of(boundary.function)
    for rank in range(count):
        shards = {name: boundary.function(column[None], rank, count)[0] for name, column in inputs["fields"].items()}
        if "ndim == 3" in source:  # positions with channels, of which each must be split like the others
            for name, column in inputs["fields"].items():
                channels = boundary.function(column.expand(3, 1, -1), rank, count)
                shards[name] = shards[name] if (channels == shards[name]).all() else channels
        parts.append(shards)
    return {"parts": parts, "metas": [inputs["meta"]] * count}


def _passed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pass@k that prime-rl reports."""
    k, right = inputs["k"], [[float(value) for value in own] for own in inputs["right"]]
    if k & (k - 1):
        raise AbsentError("prime-rl reports pass@k only if k is a power of two")
    name = f"pass@{k}"
    if "records" not in boundary.parameters:
        return {"pass_at_k": sum(boundary.function(own)[name] for own in right) / len(right)}
    with kit.swap(boundary.module, "episode_group_id", lambda episode: episode):
        records = [
            kit.stand_in(trace=kit.stand_in(reward=value), episode=group)
            for group, own in enumerate(right)
            for value in own
        ]
        return {"pass_at_k": boundary.function(records)[name]}


def _epochs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sample numbers in the order in which prime-rl's dataset yields them to two ranks, in all epochs."""

    class Shuffled(list[Any]):
        """A stand-in dataset that is shuffled with a seed, like a dataset of the ``datasets`` package."""

        def shuffle(self, seed: int) -> Any:
            return [self[place] for place in torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))]

    class Set(boundary.owner):  # type: ignore[misc, name-defined]
        """prime-rl's dataset class without the tokenization of examples."""

        def _process(self, example: dict[str, Any]) -> dict[str, Any]:
            return example

    rows, size = Shuffled({"number": number} for number in range(inputs["size"])), inputs["size"]
    counters = {name: defaultdict(int) for name in ("num_samples", "num_tokens")}
    options = {"shuffle": True, "seed": inputs["seed"], "num_examples": size, "max_epochs": inputs["epochs"]}
    shares: list[list[int]] = []
    for rank in range(2):
        place = {"data_rank": rank, "data_world_size": 2, "step": 0, "epoch": 0}
        made = kit.make_unbuilt(Set, dataset=rows, logger=kit.make_silent_logger(), **options, **place, **counters)
        shares.append([int(row["number"]) for row in boundary.function(made)])
    turns = zip_longest(*shares)  # the ranks take samples in turns
    return {"drawn": [number for turn in turns for number in turn if number is not None]}


_LOADER, _SFT, _SEQUENCE, _CP = (
    "prime_rl.trainer.rl.data",
    "prime_rl.trainer.sft.data",
    "prime_rl.utils.sequence",
    "prime_rl.utils.cp",
)


def _tokens(**dtypes: str) -> dict[str, Any]:
    return {
        "layouts": {name: {"kind": "tensor", "shape": ["tokens"], "dtype": dtype} for name, dtype in dtypes.items()}
    }


_OF_IDS = {"input_ids": "int64"}
_OF_SAMPLES = {**_OF_IDS, "loss_mask": "int64", **dict.fromkeys(_STREAMS, "float32")}
_ROWS = (
    *(
        Binding(
            path,
            "collation",
            call=_in_one_bin,
            fixed=_tokens(**_OF_SAMPLES),
            imports=(_BATCH, _LOADER),
            requires=(f"{_BATCH}._MicroBatchBin", f"{_LOADER}.DataLoader._micro_batch_to_tensor"),
        )
        for path in (
            f"{_BATCH}._materialize_bin",
            f"{_BATCH}.pad_micro_batch",
            f"{_LOADER}.DataLoader._micro_batch_to_tensor",
        )
    ),
    *(
        Binding(
            f"{_SFT}.{name}",
            "collation",
            call=_in_one_row,
            requires=(f"{_SFT}.CatDataset._finalize_pack",),
            fixed=_tokens(**_OF_IDS, target_ids="int64", loss_mask="int64"),
        )
        for name in ("cat_collate", "CatDataset._finalize_pack")
    ),
    *(
        Binding(f"{_SEQUENCE}.get_cu_seqlens_from_{name}", "collation", call=_cut_at_ends, fixed=_tokens(**_OF_IDS))
        for name in ("position_ids", "seq_lens")
    ),
    *(
        Binding(
            f"{_CP}.{name}",
            "row_surgery",
            call=_sharded,
            fixed={"surgery": "cut", "remainder": 0, "layouts": {field: LAYOUTS[field] for field in fields}},
        )
        for name, fields in (
            ("shard_for_cp", ("number", "tokens", "weights")),
            ("shard_position_ids_for_cp", ("number",)),
        )
    ),
    *(
        Binding(f"{_ORCHESTRATOR}.{name}", "pass_at_k", call=_passed)
        for name in ("utils.compute_pass_metrics", "metrics.pass_at_k")
    ),
    Binding(f"{_SFT}.SFTDataset.__iter__", "epoch_order", call=_epochs, requires=(f"{_SFT}.SFTDataset._process",)),
    Binding(f"{_BATCH}.packed_samples_into_micro_bs", "microbatch_packing", call=_packed),
    Binding(f"{_BATCH}.prepare_batch", "microbatch_packing", call=_prepared),
    Binding(
        "prime_rl.trainer.sft.data.CatDataset.__iter__",
        "microbatch_packing",
        formerly=("prime_rl.trainer.sft.data.PackingDataset.__iter__",),
        requires=("prime_rl.trainer.sft.data.cat_collate",),
        call=_concatenated,
    ),
    balanced_partition(f"{_BATCH}.balanced_partition", call=_dealt, fixed={"equal_size": True}),
    Binding(f"{_BATCH}.prepare_sample", "truncation", call=_truncated, fixed={"side": "right", "padded": False}),
)


def _rates(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    lowest = inputs["peak"] * inputs["min_ratio"]
    options = {"max_steps": inputs["training_steps"], "lr": inputs["peak"], "min_lr": lowest}
    chosen = {**options, "warmup_steps": inputs["warmup_steps"]} if "warmup_steps" in boundary.parameters else {}
    if "decay_steps" in boundary.parameters:
        if not inputs["warmup_steps"]:
            raise AbsentError("a linear schedule needs a warm-up or a decay; the scenario has neither")
        chosen["decay_steps"] = 0
    return kit.read_rates(inputs, lambda optimizer: boundary.invoke({}, optimizer=optimizer, **chosen))


_SCHEDULER = "prime_rl.trainer.scheduler"
_SCHEDULES = (
    # min_ratio is never 0, because a warm-up from 0 begins at 1e-8 of the peak.
    *(
        Binding(
            f"{_SCHEDULER}.setup_{name}_scheduler", "learning_rate", call=_rates,
            fixed={**LEARNING_RATE.lacking("warmup_steps", "min_ratio"), "schedule": schedule},
            accepts={"min_ratio": (0.1, 1.0)},
            dialects=(
                Dialect(
                    "warmup_from", "minimum", "the warm-up begins at min_lr",
                    f"{runs.MAIN}/trainer/scheduler.py#L{line}",
                ),
            ),
        )
        for name, schedule, line in (("cosine", "cosine", 76), ("linear", "constant", 33))
    ),
    Binding(
        f"{_SCHEDULER}.setup_constant_scheduler", "learning_rate", call=_rates,
        fixed={**LEARNING_RATE.lacking(), "schedule": "constant", "warmup_steps": 0},
    ),
)  # fmt: skip


# -- rollouts ----------------------------------------------------------------------------------------------------------


def _branched(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Build training samples from a tree of messages with prime-rl, and return how often each token is trained on.

    ``tokens`` has ``[sampled, ids]`` for each node, and ``branches`` has the node numbers of each branch.
    """
    arguments = inputs["arguments"]
    nodes = []
    for sampled, ids in arguments["tokens"]:
        fields = {"token_ids": list(ids), "mask": [bool(sampled)] * len(ids), "sampled": bool(sampled)}
        nodes.append(kit.stand_in(**fields, loss_weights=None, advantages=None))
    branches = []
    for numbers in arguments["branches"]:
        path = [nodes[number] for number in numbers]
        ids = [token for node in path for token in node.token_ids]
        mask = [flag for node in path for flag in node.mask]
        lacking = dict.fromkeys(("multi_modal_data", "routed_experts", "reference_logprobs", "advantages"))
        branches.append(
            kit.stand_in(nodes=path, token_ids=ids, sampled_mask=mask, logprobs=[0.0] * len(ids), **lacking)
        )
    trace = kit.stand_in(branches=branches, nodes=nodes, has_error=False, stop_condition=None, num_turns=1)
    times = dict.fromkeys((token for _, ids in arguments["tokens"] for token in ids), 0)
    for sample in boundary.function(trace):
        for token, trained in zip(sample.token_ids, sample.mask):
            times[token] += int(trained)
    return {"returned": [times[token] for token in sorted(times)]}


def _compiled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Make training samples from the branches of a trace, which have two messages each. Every second branch also has an
    image and experts. A sample is empty if it does not have its own."""
    branches = []
    for number, sample in enumerate(inputs["samples"]):
        values = {name: column.tolist() for name, column in sample.items()}
        ids, nodes = values["token_ids"], []
        for part in (slice(0, 1), slice(1, None)):
            weights = {name: values[f"{name}_weights"][part] for name in ("rl", "ce", "ref_kl")}
            mask = [True] * len(ids[part])
            nodes.append(kit.stand_in(token_ids=ids[part], mask=mask, sampled=True, loss_weights=weights))
        image = kit.stand_in(mm_items={"image": [{"pixel_values": torch.tensor([number])}]})
        media = {"multi_modal_data": image, "routed_experts": sample["token_ids"][:, None, None].numpy()}
        media = media if number % 2 else dict.fromkeys(media)
        streams = {name: values[name] for name in ("token_ids", "logprobs", "advantages")}
        branches.append(kit.stand_in(nodes=nodes, reference_logprobs=values["ref_logprobs"], **streams, **media))
    trace = kit.stand_in(branches=branches, has_error=False, stop_condition=None, num_turns=1)
    starts = {int(sample["token_ids"][0]): 1 for sample in inputs["samples"]}
    made = boundary.function(trace, env_name="env", mm_token_type_ids_mapping=starts)
    return {"samples": [_read_sample(number, *pair) for number, pair in enumerate(zip(inputs["samples"], made))]}


def _read_sample(number: int, sample: Mapping[str, Any], made: Any) -> dict[str, Any]:
    """Return the fields of a training sample, or no fields if its image, experts or mask are not its own."""
    length = len(sample["token_ids"])
    right = made.mask == [True] * length and (made.mm_kwargs is None) == (number % 2 == 0)
    if right and number % 2:
        experts, pixels = made.routed_experts, made.mm_kwargs["pixel_values"]
        right = experts.data == sample["token_ids"].numpy().tobytes() and experts.shape == [length, 1, 1]
        right &= pixels.data == torch.tensor([number]).numpy().tobytes()
        right &= made.mm_token_type_ids == [1] + [0] * (length - 1)
    # prime-rl leaves out a stream without a weight.
    streams = {name: getattr(made, name) or [0.0] * length for name in sample}
    return {name: sample[name].new_tensor(values) for name, values in streams.items()} if right else {}


def _updated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the age of a running rollout after each policy update, in policy versions."""

    async def nothing(*_: Any, **__: Any) -> None:
        return None

    task = kit.stand_in(done=lambda: False, cancel=lambda: None)
    made = boundary.module.InflightRolloutInfo
    info = made(**{name: 0 if name == "off_policy_steps" else None for name in inspect.signature(made).parameters})
    scheduler = kit.stand_in(
        config=kit.stand_in(output_dir="."),
        logger=kit.make_silent_logger(),
        lora_name=None,
        strict_async_level=False,
        checkpoint_ready=kit.stand_in(set=lambda: None, clear=lambda: None),
        inference_pool=kit.stand_in(update_weights=nothing),
        inflight_group_rollouts={id(task): info},
        max_async_level=1,
        max_off_policy_steps=100,
        **dict.fromkeys(("step", "ckpt_step", "cancelled_rollouts_count"), 0),
    )
    ages = []
    for step in range(1, inputs["arguments"]["updates"] + 1):
        here = dict.fromkeys(("get_broadcast_dir", "get_step_path"), partial(kit.return_first, "."))
        with kit.swap_all(boundary.module, get_latest_ckpt_step=partial(kit.return_first, step), **here):
            asyncio.run(boundary.function(scheduler))
        ages += [info.off_policy_steps for info in scheduler.inflight_group_rollouts.values()]
    return {"returned": ages}


def _taken(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return which finished rollouts prime-rl's training sink takes as a batch, and which rollouts it leaves.

    A rollout has two tokens in one sample, of which the second has no advantage, and a sample without advantages. A
    batch is limited by the number of rollouts, or by their tokens.
    """
    tokens = 3  # in both samples of a rollout
    by_rollouts, by_tokens = (
        _take_batch(boundary, inputs["completed"], **size)
        for size in (
            {"batch_size": inputs["needed"], "token_batch_size": None},
            {"batch_size": None, "token_batch_size": inputs["needed"] * tokens},
        )
    )
    return by_rollouts if by_rollouts == by_tokens else {"taken": [], "left": []}


def _take_batch(boundary: Any, completed: int, **size: Any) -> dict[str, Any]:
    episodes, pending = {}, {}
    for number in range(completed):
        (made,) = _episodes([float(number)])
        made.traces[0].id = str(number)
        made.model_copy = lambda update, _made=made: kit.stand_in(**{**vars(_made), **update})
        episodes[str(number)] = made
        none = dict.fromkeys(("rl_weights", "ce_weights", "ref_kl_weights"))
        trained = kit.stand_in(**none, mask=[True, True], advantages=[1.0, 0.0], token_ids=[1, 1], number=number)
        useless = kit.stand_in(**none, mask=[True], advantages=[0.0], token_ids=[1], number=-1)
        pending[str(number)] = [trained, useless]
    sink = kit.make_unbuilt(
        boundary.owner,
        **size,
        config=kit.stand_in(train=kit.stand_in(filter_zero_advantages=True)),
        pending_batch=pending,
        pending_tokens=3 * completed,
        episode_by_trace=dict(episodes),
        pending_episodes=boundary.module.TrainEpisodes(),
    )
    batch = boundary.function(sink)
    taken = [each.number for each in batch.samples if each.rl_weights == [1.0, 0.0]]
    return {"taken": taken, "left": list(sink.pending_batch)}


def _teacher(owner: Any, log_probs: Sequence[float]) -> Any:
    """Return a prime-rl algorithm whose teacher model returns the given log-probs."""

    async def score(*_: Any) -> Sequence[float]:
        return log_probs

    return kit.make_unbuilt(owner, teacher_pool=kit.stand_in(score=score))


def _referenced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Assign reference log-probs to the tokens of each sample with prime-rl."""
    samples = []
    for sample in inputs["samples"]:
        ids, log_probs = (sample[name].tolist() for name in ("token_ids", "reference_logprobs"))
        parts = (ids[:1], ids[1:])
        nodes = [kit.stand_in(token_ids=part, mask=[True] * len(part), reference_logprobs=None) for part in parts]
        branch = kit.stand_in(token_ids=ids, nodes=nodes)
        for node in nodes:
            vars(node).update(sampled=True, advantages=None)
        if "values" in boundary.parameters and "trace" in boundary.parameters:
            boundary.function(kit.stand_in(nodes=nodes, id="trace"), log_probs)
            for node in nodes:
                node.reference_logprobs = node.advantages
        elif "branch" in boundary.parameters:
            boundary.function(branch, log_probs)
        else:
            agent = kit.stand_in(trainable=True)
            trace = kit.stand_in(has_error=False, agent=agent, nodes=nodes, branches=[branch])
            asyncio.run(boundary.function(_teacher(boundary.owner, log_probs), kit.stand_in(traces=[trace])))
        read = {name: [value for node in nodes for value in getattr(node, name) or ()] for name in sample}
        samples.append({name: sample[name].new_tensor(values) for name, values in read.items()})
    return {"samples": samples}


_ROLLOUTS = (
    Binding(
        f"{_ORCHESTRATOR}.train_sink.TrainSink.process_batch", "rollout_collection", requires=_NODES, call=_taken,
        stand_ins=(
            _TRACES, StandIn("self", "the real sink without its curriculum; it has collected the scenario's rollouts"),
        ),
    ),
    *(
        Binding(
            f"{_ALGORITHMS}.{name}", "collation", requires=_NODES, call=_referenced, stand_ins=(_TRACES,),
            fixed=_tokens(token_ids="int64", reference_logprobs="float32"),
        )
        for name in ("routing.assign_reference_logprobs", "routing.assign_advantages", "opd.OPDAlgorithm.score_episode")
    ),
    Binding("prime_rl.orchestrator.trajectories.trace_to_samples", "call", call=_branched, stand_ins=(_TRACES,)),
    Binding(
        "prime_rl.orchestrator.trajectories.trace_to_samples", "collation", call=_compiled, stand_ins=(_TRACES,),
        requires=("prime_rl.orchestrator.trajectories._loss_weights",),
        fixed=_tokens(
            token_ids="int64", **dict.fromkeys(
                ("logprobs", "advantages", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights"), "float32",
            ),
        ),
    ),
    Binding(
        "prime_rl.orchestrator.scheduler.Scheduler.update_policy", "call",
        formerly=("prime_rl.orchestrator.scheduler.Scheduler.maybe_update_policy",), call=_updated,
        stand_ins=(StandIn("self", "the real scheduler calls engines; the update reads only one running rollout"),),
    ),
)  # fmt: skip


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "prime_rl.evals.*", "prime_rl.inference.*", "prime_rl.monitors.*", "prime_rl.orchestrator.inference_metrics.*",
    "prime_rl.trainer.distributed.*", "prime_rl.trainer.models.*", "prime_rl.trainer.parallel_dims.*",
    "prime_rl.trainer.perf.*", "prime_rl.transports.*", "prime_rl.utils.client.*", "prime_rl.utils.metrics_server.*",
)  # fmt: skip

TARGET = Target(
    name="primerl",
    repository="https://github.com/PrimeIntellect-ai/prime-rl",
    roots=(
        PackageRoot("src/prime_rl", "src"),
        PackageRoot("packages/prime-rl-configs/src/prime_rl", "packages/prime-rl-configs/src"),
        PackageRoot("src/zeroband", "src"),
    ),
    moved={_LOSS: ("prime_rl.trainer.loss", f"{_BEFORE}.training.loss")},
    preload=("torch._dynamo", "transformers.generation", "jaxtyping", "beartype", "msgspec", "pydantic"),
    bindings=tuple(
        replace(binding, dtypes=("float32",))
        for binding in (
            *_LOSSES,
            *_LOG_PROBS,
            *_ADVANTAGES,
            *_ROWS,
            *_SCHEDULES,
            *_ROLLOUTS,
            *runs.BINDINGS,
            *loops.BINDINGS,
            *models.BINDINGS,
        )
    ),
    no_signal=_NO_SIGNAL,
)
