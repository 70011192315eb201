"""Adapter for AReaL (areal-project/AReaL): the functions that Sentinel checks, and how it calls them.

Options are passed in AReaL's own configuration classes. Loss masks are boolean, as in AReaL's own calls.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, PackageRoot, StandIn, Target
from sentinel.binding import kit
from sentinel.binding.families import RANKS, aggregated, masked_statistic, policy_loss
from sentinel.binding.kit import torch

from . import containers, data, engines, objectives, rewards, rollouts, updates
from .objectives import ALONE, ARGUMENTS, actor_of
from .pieces import pieces_of

#: Links of dialects refer to AReaL's main branch of August 2026.
_MAIN = "https://github.com/areal-project/AReaL/blob/cbff54d645d2cd8ee1f1c358a82f3f473588433d/areal"

_FUNCTIONAL = "areal.utils.functional"
_DATA = "areal.utils.data"


def _functional_line(number: int) -> str:
    return f"{_MAIN}/utils/functional/functional.py#L{number}"


# -- the advantage step ------------------------------------------------------------------------------------------------

#: Fields of PPOActorConfig that the advantage step reads. They have the names of the contract's inputs.
_CONFIG = (
    *("reward_bias", "reward_scaling", "reward_clip", "kl_ctl", "kl_estimator", "discount", "gae_lambda"),
    "mask_no_eos_with_zero",
)

_VAPO = "areal.trainer.ppo.lambda_fn.vapo_length_adaptive_gae"
_BATCH = ("input_ids", "attention_mask", "loss_mask", "rewards", "logprobs")


def _advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute advantages with AReaL's PPO actor."""
    made = boundary.imported[ARGUMENTS].NormConfig
    norms = {name: None if inputs[name] is None else made(**inputs[name]) for name in ("reward_norm", "adv_norm")}
    overlong, generated = inputs["overlong_tokens"], inputs["loss_mask"] != 0
    options = {
        **kit.take_inputs(inputs, *_CONFIG),
        **({} if inputs["timestep"] == "token" else {"gae_timestep_unit": "turn"}),
        **({} if inputs["lambda_rule"] == "constant" else {"gae_lambda": _VAPO, "gae_lambda_kwargs": {"alpha": 1.0}}),
    }
    missing = {"gae_timestep_unit", "gae_lambda_kwargs"} & {*options} - {
        *boundary.imported[ARGUMENTS].PPOActorConfig.__dataclass_fields__
    }
    if missing:
        raise AbsentError(f"this version's configuration has no option {min(missing)!r}")
    limits = {} if overlong is None else {"overlong_tokens": overlong, "overlong_penalty_factor": 1.0}
    actor = actor_of(
        boundary, None, overlong_reward_penalty=overlong is not None, **limits, **ALONE, **norms, **options
    )
    actor.config.max_new_tokens = generated.shape[1] - 1
    data = {name: inputs[name].clone() for name in _BATCH}
    starts = generated & ~torch.nn.functional.pad(generated, (1, 0))[:, :-1]
    data["turn_ids"] = torch.where(generated, starts.cumsum(-1) - 1, -1)
    # Until November 2025 the function modified `data` in place and returned None.
    return boundary.function(actor, data) or data


def _gae(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute GAE with AReaL's function. Its tensors have one more column than the contract's.

    Position t predicts token t + 1, so the last position is not a step. Every response ends with EOS.
    """

    names = {"rewards": "token_level_rewards", "values": "values", "loss_mask": "response_mask"}
    wide = {theirs: torch.nn.functional.pad(inputs[ours], (0, 1)) for theirs, ours in names.items()}
    wide["loss_mask"] = wide["loss_mask"].float()
    whole = torch.zeros(len(wide["values"]), dtype=torch.bool)
    options = {"seq_no_eos_mask": whole, "discount": inputs["gamma"], "gae_lambda": inputs["lam"]}
    advantages, returns = boundary.invoke({}, **wide, **options)
    return {"advantages": advantages[:, :-1], "returns": returns[:, :-1]}


# -- inputs of a step --------------------------------------------------------------------------------------------------


class _Engine:
    """A stand-in engine that calls the actor's hook with the scenario's logits."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits

    def eval(self) -> None:
        pass

    def forward(self, input_: Any, aggregate_fn: Any, post_hook: Any = None) -> Any:
        if post_hook is None:
            raise AbsentError("this version computes log-probs in its engine, not in a hook of the actor")
        return aggregate_fn([post_hook(self.logits, input_)])


def _recomputed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Recompute log-probs with AReaL's actor. The logits at position t predict the label at position t."""
    boundary.imported[_FUNCTIONAL].mpu = types.SimpleNamespace(is_initialized=lambda: False)
    tokens = inputs["token_ids"]
    engine = _Engine(inputs["logits"].reshape(-1, inputs["logits"].shape[-1]))
    data = {"input_ids": tokens.reshape(-1).roll(1), "rolled_input_ids": tokens.reshape(-1)}
    actor = actor_of(boundary, engine, temperature=inputs["temperature"])
    actor.config.recompute_logprob = True  # on, because until 2026 this was an option that was off by default
    return {"log_probs": boundary.function(actor, data).reshape(tokens.shape)}


def _epochs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sample numbers in the order in which AReaL's data loop yields them over several epochs."""
    import itertools

    from torch.utils.data import DataLoader, DistributedSampler

    samples: Any = range(inputs["size"])
    sampler: Any = DistributedSampler(samples, num_replicas=1, rank=0, shuffle=True, seed=inputs["seed"])
    generator = torch.Generator()  # without this generator, the loader would draw from the global generator
    loader: Any = DataLoader(samples, sampler=sampler, batch_size=None, generator=generator)
    return {"drawn": list(itertools.islice(boundary.function(loader), inputs["size"] * inputs["epochs"]))}


# -- normalisation -----------------------------------------------------------------------------------------------------


def _normalisation(boundary: Any, inputs: Mapping[str, Any], values: Any, *mask: Any) -> Any:
    """Normalise values with AReaL's ``Normalization``. Each group is a run of consecutive rows."""

    sizes = [len(rows) for rows in kit.rows_of_groups(inputs["group"])]
    by_size = "group_sizes" in boundary.parameters
    if not by_size and len(set(sizes)) > 1:
        raise AbsentError("this version requires groups of equal size")
    made = boundary.imported[ARGUMENTS].NormConfig
    options = {"mean_leave1out": inputs["leave_one_out"], "std_unbiased": inputs["std"] == "unbiased"}
    arguments: dict[str, Any] = {"group_sizes": sizes} if by_size else {}
    if "mean_leave1out" in made.__dataclass_fields__:
        options["eps"] = inputs["epsilon"]
    elif options.pop("mean_leave1out"):
        raise AbsentError("this version has no option mean_leave1out")
    else:  # until October 2025 these options were arguments of the call
        arguments |= {"unbiased": options.pop("std_unbiased"), "eps": inputs["epsilon"]}
    levels = {name: inputs[name] for name in ("mean_level", "std_level")}
    norm = boundary.owner(made(group_size=max(sizes), **levels, **options))
    return boundary.function(norm, values, *mask, **arguments)


def _rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"normalised": _normalisation(boundary, inputs, inputs["rewards"])}


def _token_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"normalised": _normalisation(boundary, inputs, inputs["advantages"], inputs["response_mask"])}


_STD_ABOUT = Dialect(
    "std_about",
    "subtracted",
    "deviations are measured from the mean that is subtracted, whatever its level",
    f"{_MAIN}/utils/data.py#L1617",
)


def _norm(contract: str, call: Any, **fixed: Any) -> Binding:
    return Binding(
        f"{_DATA}.Normalization.__call__",
        contract,
        call=call,
        imports=(ARGUMENTS,),
        fixed={"group_layout": "consecutive", **fixed},
        accepts={"std": ("unbiased", "biased")},
        dialects=(_STD_ABOUT,),
    )


# -- losses ------------------------------------------------------------------------------------------------------------

# A loss is the mean over the tokens of one microbatch. The engine weights each microbatch by its token count.


def _level(boundary: Any, inputs: Mapping[str, Any]) -> str:
    """Return the level at which AReaL computes importance ratios: ``token`` or ``sequence``.

    :raises AbsentError: for ``sequence`` in versions until October 2025, which have only token-level ratios.
    """
    level = "sequence" if inputs["algorithm"] == "gspo" or inputs["ratio_level"] == "geometric" else "token"
    if level != "token" and "importance_sampling_level" not in boundary.parameters:
        raise AbsentError("this version has no sequence-level importance ratios")
    return level


def _has_bounds(boundary: Any, inputs: Mapping[str, Any]) -> None:
    """Raise AbsentError if the scenario needs two clip bounds, but this version has one (until September 2025)."""
    if inputs["eps_clip_high"] != inputs["eps_clip_low"] and "eps_clip_higher" not in boundary.parameters:
        raise AbsentError("this version has only one clip bound; eps_clip_low and eps_clip_high must be equal")


def _policy_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call one of AReaL's policy losses. The contract's old policy is AReaL's proximal policy. Decoupled losses also
    take a behaviour policy.
    """
    has = boundary.parameters
    names = [name for name, (upstream, *_) in _PPO.items() if upstream in has]
    rollout, cap = inputs["rollout_log_probs"], inputs["importance_weight_cap"]
    decoupled: dict[str, Any] = {}
    if rollout is not None and cap is None and "rejection_sampling" not in has:
        decoupled["behav_imp_weight_cap"] = None
    elif rollout is not None:
        made = getattr(boundary.imported[ARGUMENTS], "RejectionSamplingConfig", None)
        if made is None:
            raise AbsentError(
                "this version does not clamp importance weights; it drops tokens with a weight above the cap"
            )
        decoupled["rejection_sampling"] = made(
            level="token", action="clamp", upper=float("inf") if cap is None else cap
        )
    level = _level(boundary, inputs)
    if "eps_clip" in has:
        _has_bounds(boundary, inputs)
    loss, metrics = boundary.invoke(
        {**kit.take_inputs(inputs, *names), "response_mask": inputs["response_mask"].bool()},
        old_logprobs=inputs["old_log_probs"] if rollout is None else rollout,
        importance_sampling_level=level,
        **decoupled,
    )
    return {"loss": loss, "clip_fraction": metrics["clip_mask"], "dual_clip_fraction": metrics["dual_clip_mask"]}


def _policy(function: str, *more: Any, **fields: Any) -> Any:
    common: dict[str, Any] = {"mode": "token-mean", "imports": (ARGUMENTS,), "arguments": _PPO}
    return policy_loss(f"{_FUNCTIONAL}.{function}", _policy_loss, *more, **common, **fields)


_CLIP = ("eps_clip_low", "eps_clip_high")
_SAPO = ("tau_pos", "tau_neg")
#: The names that AReaL's losses have for the contract's inputs.
_PPO = {
    "log_probs": ("logprobs",),
    "old_log_probs": ("proximal_logprobs", "old_logprobs"),
    "advantages": ("advantages",),
    "eps_clip_low": ("eps_clip",),
    "eps_clip_high": ("eps_clip_higher",),
    "dual_clip": ("c_clip",),
    "tau_pos": ("tau_pos",),
    "tau_neg": ("tau_neg",),
}


def _of_sequences(where: Mapping[str, tuple[Any, ...]]) -> Dialect:
    return Dialect(
        "advantage_level",
        "sequence",
        "with sequence-level ratios, the advantage is the mean over the sequence",
        _functional_line(140),
        where=where,
    )


_POLICY_LOSSES = (
    _policy("ppo_actor_loss_fn", ("ppo", "gspo"), (*_CLIP, "dual_clip"), _of_sequences({"algorithm": ("gspo",)})),
    _policy(
        "sapo_loss_fn", "sapo", _SAPO, _of_sequences({"ratio_level": ("geometric",)}),
        requires=(f"{_FUNCTIONAL}.sapo_loss_fn",), accepts={"ratio_level": (None, "geometric")},
    ),
    _policy("cispo_loss_fn", "cispo", _CLIP, requires=(f"{_FUNCTIONAL}.cispo_loss_fn",)),
)  # fmt: skip


def _packed_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss of one packed microbatch with AReaL. ``cu_seqlens`` has the index of each sequence's first
    token.

    The loss reports metrics to a tracker of the process. The adapter empties the tracker first, as AReaL does after
    each training step.
    """
    algorithm = inputs["algorithm"]
    switch = {"sapo": "use_sapo_loss", "cispo": "use_cispo_loss"}.get(algorithm)
    if switch is not None and switch not in boundary.parameters:
        raise AbsentError(f"in this version, {boundary.path} does not support {algorithm}")
    level = _level(boundary, inputs)
    _has_bounds(boundary, inputs)
    rows, tokens = inputs["log_probs"].shape
    log_probs, old, advantages, mask = (
        inputs[name].reshape(-1) for name in ("log_probs", "old_log_probs", "advantages", "response_mask")
    )
    data = {
        **dict.fromkeys(("logprobs", "prox_logp"), old),
        "advantages": advantages,
        "loss_mask": mask,
        "input_ids": torch.zeros_like(old, dtype=torch.long),
        "cu_seqlens": torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32),
    }
    metrics = boundary.module.stats_tracker.DEFAULT_TRACKER.stats
    metrics.clear()
    entropy = torch.zeros_like(old)
    with kit.swap(boundary.module, "gather_logprobs_entropy", lambda *_, **__: (log_probs, entropy)):
        loss = boundary.invoke(
            {},
            logprobs=log_probs,
            entropy=entropy,
            logits=torch.zeros(rows * tokens, 1),
            temperature=1.0,
            **dict.fromkeys(("behav_imp_weight_cap", "behave_imp_weight_cap")),
            input_data=data,
            eps_clip=inputs["eps_clip_low"],
            eps_clip_higher=inputs["eps_clip_high"],
            c_clip=inputs["dual_clip"] if algorithm in ("ppo", "gspo") else None,
            importance_sampling_level=level,
            sapo_tau_pos=inputs["tau_pos"],
            sapo_tau_neg=inputs["tau_neg"],
            **({} if switch is None else {switch: True}),
        )
    names = {"clip_fraction": "clip_ratio", "dual_clip_fraction": "dual_clip_ratio"}
    return {"loss": loss, **{name: metrics[key][-1].reshape(rows, tokens) for name, key in names.items()}}


def _packed_columns(boundary: Any, inputs: Mapping[str, Any], columns: Mapping[str, Any], **options: Any) -> Any:
    """Call AReaL's loss on one packed microbatch with these columns, after the tracker of metrics is emptied.

    Masked tokens have version -1, as the tokens of a prompt.
    """
    mask, staleness = inputs["response_mask"], inputs.get("staleness", 1)
    rows, tokens = mask.shape
    flat = {name: column.reshape(-1) for name, column in columns.items()}
    log_probs = flat.pop("log_probs")
    data = {
        **flat,
        "advantages": inputs["advantages"].reshape(-1),
        "loss_mask": mask.reshape(-1),
        "input_ids": torch.zeros(rows * tokens, dtype=torch.long),
        "cu_seqlens": torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32),
        "versions": torch.where(mask != 0, _VERSION - staleness, -1).reshape(-1),
        **{name: inputs[name] for name in ("rl_loss_weight", "distill_loss_weight") if name in inputs},
    }
    boundary.module.stats_tracker.DEFAULT_TRACKER.stats.clear()
    return boundary.function(
        logprobs=log_probs,
        entropy=torch.zeros_like(log_probs),
        input_data=data,
        eps_clip=inputs["eps_clip"],
        eps_clip_higher=inputs["eps_clip"],
        c_clip=None,
        current_version=_VERSION,
        **options,
    )


#: The version of the trained policy.
_VERSION = 7
#: How a scenario's proximal policy is computed -> AReaL's method.
_METHODS = {"given": "metrics", "interpolated": "loglinear", "trained": "reuse_train_logp"}


def _packed_decoupled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the decoupled loss of a packed microbatch. Tokens with extreme importance weights are dropped."""
    low, high = inputs["weight_low"], inputs["weight_high"]
    made = boundary.imported[ARGUMENTS].RejectionSamplingConfig
    columns = {"log_probs": inputs["log_probs"], "logprobs": inputs["behaviour_log_probs"]}
    if inputs["proximal"] == "given":
        columns["prox_logp"] = inputs["proximal_log_probs"]
    drop = made(level="token", action="mask", metric="ratio", lower=low, upper=high)
    options = {"rejection_sampling": drop, "prox_logp_method": _METHODS[inputs["proximal"]]}
    options["use_cispo_loss"] = inputs["surrogate"] == "cispo"
    loss = _packed_columns(boundary, inputs, columns, **options)
    ratio = boundary.module.stats_tracker.DEFAULT_TRACKER.stats["importance_weight"][-1]
    return {"loss": loss, "ratio": ratio.reshape(inputs["response_mask"].shape)}


def _packed_distilled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss of a packed microbatch with a teacher."""
    old = inputs["old_log_probs"]
    columns = {"log_probs": inputs["log_probs"], "logprobs": old, "prox_logp": old}
    columns["teacher_logp"] = inputs["teacher_log_probs"]
    weights = {"rl_loss_weight": inputs["rl_weight"], "distill_loss_weight": inputs["distill_weight"]}
    return {"loss": _packed_columns(boundary, {**inputs, **weights}, columns)}


def _critic_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    names = ("vpreds", "values", "returns", "cliprange_value")
    mask = inputs["response_mask"].bool()
    if "input_data" in boundary.parameters:
        data = {**kit.take_inputs(inputs, "values", "returns"), "loss_mask": mask, "attention_mask": mask}
        metrics = boundary.module.stats_tracker.DEFAULT_TRACKER.stats
        metrics.clear()
        loss = boundary.function(inputs["vpreds"][..., None], data, inputs["cliprange_value"])
        return {"loss": loss, "clip_fraction": metrics["clip_ratio"][-1]}
    loss, metrics = boundary.invoke(
        {**kit.take_inputs(inputs, *names), "response_mask": mask}, loss_fn_type=inputs["kind"]
    )
    return {"loss": loss, "clip_fraction": metrics["clip_mask"]}


def _critic(path: str, kinds: tuple[str, ...], *dialects: Dialect, **more: Any) -> Binding:
    names = {
        "vpreds": ("value",), "values": ("old_value",), "returns": ("target_value",),
        "cliprange_value": ("value_eps_clip",),
    }  # fmt: skip
    half = Dialect("factor", 0.5, "the loss is half the squared error", _functional_line(866))
    return Binding(
        path, "value_loss", arguments=names, call=_critic_loss, fixed=aggregated("token-mean"),
        accepts={"cliprange_value": (0.2, 0.6), "kind": kinds}, dtypes=("float32",),  # the function asserts this
        dialects=(half, *dialects), **more,
    )  # fmt: skip


# -- log-probs ---------------------------------------------------------------------------------------------------------


def _gathered(name: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from flattened logits. Chunks have two tokens, so that borders between chunks are tested.

    :param name: the function of the module that calls the boundary, or an empty string to call the boundary itself.
    """
    shape = inputs["token_ids"].shape
    logits, labels = inputs["logits"].flatten(0, 1), inputs["token_ids"].flatten()
    with kit.swap(boundary.module, "mpu", kit.stand_in(is_initialized=lambda: False)):
        if name:
            answer = getattr(boundary.module, name)(logits, labels, temperature=inputs["temperature"], chunk_size=2)
        else:
            answer = boundary.invoke({"temperature": inputs["temperature"]}, logits, labels, chunk_size=2)
    log_probs, entropy = answer if isinstance(answer, tuple) else (answer, None)
    return {"log_probs": log_probs.reshape(shape), "entropy": None if entropy is None else entropy.reshape(shape)}


_PARALLEL = f"{_FUNCTIONAL}.vocab_parallel"


def _gathered_apart(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with AReaL. The vocabulary is split over two tensor-parallel ranks."""
    labels, module = inputs["token_ids"], boundary.module
    name = "_vocab_parallel_logprobs_entropy" if inputs["with_entropy"] else "_vocab_parallel_logprobs"
    function, temperature = getattr(module, name), inputs["temperature"]
    made = kit.score_by_vocabulary(inputs["logits"], lambda own, _: function(own, labels, 0, temperature))
    return dict(zip(("log_probs", "entropy"), [*made, None]))


_PIECES = (
    *(
        Binding(
            f"{_PARALLEL}.{name}", "token_log_probs", call=call, stand_ins=stand_ins, requires=(f"{_PARALLEL}.{name}",),
            fixed={"with_entropy": entropy}, accepts={"response_mask": ("full",)}, dtypes=("float32",),
        )
        for names, entropy, call, stand_ins in (
            ("_gather_logprobs _chunked_gather_logprobs _chunked_apply", False, "gather_logprobs", ()),
            ("_gather_logprobs_entropy _chunked_gather_logprobs_entropy", True, "gather_logprobs_entropy", ()),
            (
                "_vocab_parallel_logprobs _VocabParallelLogProbs.forward _VocabParallelLogProbs.backward", False,
                _gathered_apart, (RANKS,),
            ),
            (
                "_vocab_parallel_logprobs_entropy _VocabParallelLogProbsEntropy.forward "
                "_VocabParallelLogProbsEntropy.backward", True, _gathered_apart, (RANKS,),
            ),
        )
        for name in names.split()
        for call in [partial(_gathered, call) if isinstance(call, str) else call]
    ),
)  # fmt: skip


def _gather(function: str, entropy: bool) -> Binding:
    return Binding(
        f"{_FUNCTIONAL}.{function}",
        "token_log_probs",
        call=partial(_gathered, ""),
        stand_ins=(StandIn("mpu", "Megatron's state for one process, not initialised; the function queries it"),),
        fixed={"with_entropy": entropy},
        accepts={"response_mask": ("full",)},
        # The function takes logits of any of these dtypes, because it converts them to float32.
        dtypes=("float32", "bfloat16", "float16"),
    )


# -- divergences -------------------------------------------------------------------------------------------------------


def _rejection(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run AReaL's rejection sampling, which rejects or reweights tokens or sequences.

    The criterion is the importance ratio or an estimate of the divergence. The weight of a sequence is the geometric
    mean of its tokens' ratios. Weights are always clamped by ratio. A batch with an even number of rows is passed in
    packed form, as in training.
    """
    level, statistic, masks = inputs["level"], inputs["statistic"], inputs["mode"] == "mask"
    of_ratio = statistic == "ratio" or not masks
    if of_ratio and level == "largest":
        raise AbsentError("the contract does not define rejection by the largest ratio of a sequence")
    config = boundary.imported[ARGUMENTS].RejectionSamplingConfig(
        level="token" if level == "token" else "sequence",
        action="mask" if masks else "clamp",
        metric="ratio" if of_ratio else f"kl_{statistic}",
        agg="max" if level == "largest" else "mean",
        upper=inputs["threshold_high"],
        lower=inputs["threshold_low"] if of_ratio else None,
    )
    rows, ends = kit.take_inputs(inputs, "old_log_probs", "rollout_log_probs", "response_mask"), None
    shape = inputs["response_mask"].shape
    if not shape[0] % 2:
        ends = torch.arange(shape[0] + 1) * shape[1]
        rows = {name: value.flatten() for name, value in rows.items()}
    answer = boundary.invoke(rows, cu_seqlens=ends, config=config)
    weights, kept = answer.behave_imp_weight.reshape(shape), answer.loss_mask.reshape(shape)
    return {
        "weights": weights if of_ratio or level == "token" else None,
        "kept": kept if masks else None,
        "clip_fraction": answer.filtered_fraction,
    }


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "*.experimental.models.*", "*.models.transformers.*", "*_kernels.*", "*.agent_service.*", "*.openai.proxy.*",
    "*.infra.controller.*", "*.infra.rpc.*", "*.weight_update.*", "areal.tools.*", "*.stats_logger.*",
)  # fmt: skip

_CALLERS: tuple[Binding, ...] = (
    Binding(
        "areal.trainer.ppo.actor.PPOActor._compute_advantages",
        "advantage_step",
        formerly=("areal.trainer.ppo.actor.PPOActor.compute_advantages",),
        outputs=("advantages", "returns", "tot_rewards", "kl_rewards", "loss_mask"),
        call=_advantages,
        imports=(ARGUMENTS,),
        accepts={
            "timestep": ("token", "turn"),
            "lambda_rule": ("constant", "by_length"),
            "overlong_tokens": (None, 2),
        },
        stand_ins=(StandIn("engine", "None: the advantage step does not use the training engine"),),
    ),
    Binding(
        "areal.trainer.ppo.actor.PPOActor._compute_logp",
        "token_log_probs",
        formerly=("areal.trainer.ppo.actor.PPOActor.compute_logp",),
        call=_recomputed,
        imports=(ARGUMENTS, _FUNCTIONAL),
        stand_ins=(
            StandIn("engine", "its forward pass calls the boundary's hook with the scenario's logits"),
            StandIn("mpu", "Megatron's parallel state in a run without Megatron: not initialised"),
        ),
        fixed={"with_entropy": False},
    ),
    *_PIECES,
    _gather("gather_logprobs", entropy=False),
    _gather("gather_logprobs_entropy", entropy=True),
    Binding(
        f"{_DATA}.cycle_dataloader",
        "epoch_order",
        call=_epochs,
        stand_ins=(
            StandIn("dataloader", "torch's DataLoader, the base class of torchdata's; the sampler selects the samples"),
        ),
    ),
    Binding("areal.trainer.ppo.gae._compute_token_level_gae", "generalised_advantage", call=_gae),
    _norm("reward_normalisation", _rewards, clip=None),
    _norm("advantage_normalisation", _token_advantages),
    masked_statistic(
        f"{_FUNCTIONAL}.masked_normalization",
        "whiten",
        "axis",
        "unbiased",
        "epsilon",
        arguments={"values": ("x",), "axis": ("dim",), "epsilon": ("eps",)},
        dialects=(
            Dialect(
                "epsilon_placement",
                "outside",
                "eps is added to the standard deviation, not to the variance",
                _functional_line(53),
            ),
        ),
    ),
    *_POLICY_LOSSES,
    policy_loss(
        "areal.trainer.ppo.actor.grpo_loss_fn",
        _packed_loss,
        ("ppo", "gspo", "sapo", "cispo"),
        (*_CLIP, "dual_clip", *_SAPO),
        _of_sequences({"algorithm": ("gspo",)}),
        mode="token-mean",
        stand_ins=(
            StandIn(
                "gather_logprobs_entropy",
                "returns the scenario's log-probs to the loss; the replaced function has a binding of its own",
            ),
        ),
        requires=containers.OWN,
        dtypes=("float32",),  # the tracker rejects other dtypes
    ),
    Binding(
        "areal.trainer.ppo.actor.grpo_loss_fn",
        "decoupled_loss",
        call=_packed_decoupled,
        imports=(ARGUMENTS,),
        fixed={"correction": "mask"},
        accepts={"proximal": tuple(_METHODS), "staleness": (1, 2, 4), "surrogate": ("ppo", "cispo")},
        requires=("areal.trainer.ppo.actor.grpo_loss_fn(use_decoupled_loss)",),
        dtypes=("float32",),  # the tracker rejects other dtypes
    ),
    Binding(
        "areal.trainer.ppo.actor.grpo_loss_fn",
        "distilled_loss",
        call=_packed_distilled,
        # AReaL documents the KL term as log-prob minus the teacher's log-prob.
        fixed={"kl_estimator": "k1"},
        requires=("areal.trainer.ppo.actor.grpo_loss_fn(use_decoupled_loss)",),
        dtypes=("float32",),
    ),
    _critic(
        f"{_FUNCTIONAL}.ppo_critic_loss_fn",
        ("mse", "huber"),
        Dialect("huber_delta", 10.0, "Huber's loss is linear above a distance of 10", _functional_line(900)),
    ),
    _critic("areal.trainer.ppo.critic.ppo_loss_fn", ("mse",), requires=containers.OWN),
    Binding(
        f"{_DATA}.KLEstimator._compute_approx_kl",
        "kl_estimate",
        arguments={"ref_log_probs": ("log_probs_base",), "clamp": ("apply_clamp",)},
        outputs=("kl",),
        # AReaL has one switch for clamping to [-10, 10], which clamps k1 and k2 as well as k3.
        call=partial(
            kit.call_with,
            takes=("log_probs", "ref_log_probs", "kl_estimator", "clamp"),
            values_of={"clamp": {None: False, 10: True}},
        ),
        accepts={"response_mask": (None,), "kl_estimator": ("k1", "k2", "k3"), "clamp": (None, 10)},
    ),
    Binding(
        f"{_FUNCTIONAL}.apply_rejection_sampling",
        "importance_weight",
        arguments={"old_log_probs": ("proximal_logprobs",), "rollout_log_probs": ("old_logprobs",)},
        call=_rejection,
        imports=(ARGUMENTS,),
        accepts={"level": ("token", "geometric", "largest"), "statistic": ("ratio", "k2", "k3")},
        dialects=(
            Dialect(
                "ratio_precision",
                "float32",
                "log-probs are converted to single precision before the subtraction",
                _functional_line(231),
            ),
            Dialect(
                "statistic_of",
                "inverse",
                "the KL estimator keeps its sign: k3 uses the ratio of the rollout's probability to the policy's",
                _functional_line(242),
            ),
        ),
    ),
    *objectives.BINDINGS,
    *containers.BINDINGS,
    *rewards.BINDINGS,
    *rollouts.BINDINGS,
    *updates.BINDINGS,
    *engines.BINDINGS,
    *data.BINDINGS,
)

TARGET = Target(
    name="areal",
    arguments={"response_mask": ("response_mask", "loss_mask", "mask")},
    repository="https://github.com/areal-project/AReaL",
    roots=(PackageRoot("areal"),),
    defaults=("areal.api.cli_args.GRPOConfig", "areal.api.cli_args.PPOConfig"),
    moved={"areal.trainer.ppo": ("areal.engine.ppo",)},
    pypi="areal",
    # This function is replaced, because until October 2025 it created a folder below /home.
    at_import={"areal.utils.fs.get_user_tmp": "areal"},
    preload=("torch._dynamo", "torch.distributed.checkpoint", "tabulate", "omegaconf", "colorlog", "requests"),
    bindings=(*_CALLERS, *pieces_of(_CALLERS)),
    no_signal=_NO_SIGNAL,
)
