"""Bindings for NeMo-RL's losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect
from sentinel.binding import kit
from sentinel.binding.families import IMPORTANCE_WEIGHT, PREFERENCE_LOSS, RANKS, aggregated, policy_loss
from sentinel.binding.kit import torch

from . import parallel
from .parallel import PARALLEL
from .shared import ALGORITHMS, BATCHES, LOSSES, MAIN, PREPARED, SAMPLING, configured

_MODES = {"token-mean": True, "seq-mean-token-mean": False}

#: Key of the loss configuration in any version -> its default. A version that lacks a key behaves as if the key had
#: this default.
_OPTIONS: Mapping[str, Any] = {
    "reference_policy_kl_penalty": 0.0,
    "reference_policy_kl_type": "k3",
    "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": 10.0,
    "ratio_clip_min": 0.2,
    "ratio_clip_max": 0.2,
    "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False,
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_ratio": None,
    "token_level_loss": True,
    "disable_ppo_ratio": False,
    "force_on_policy_ratio": False,
    "sequence_level_importance_ratios": False,
    "use_cispo": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio_min": None,
    "positive_example_nll_weight": 0.0,
}


def _rows(mask: Any) -> Any:
    return (mask != 0).any(-1).float()


def _call_loss(boundary: Any, loss: Any, log_probs: Any, data: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Call a loss of NeMo-RL on log-probs. Versions until March 2026 get logits with these log-probs."""
    mask = data["token_mask"]
    counted = mask[:, 1:] * data["sample_mask"][:, None]
    sequences = inputs.get("global_batch_size") or _rows(counted).sum()
    tokens = inputs.get("batch_num_tokens") or counted.sum()
    counts = {"global_valid_seqs": torch.tensor(float(sequences)), "global_valid_toks": torch.tensor(float(tokens))}
    batch = boundary.imported[BATCHES].BatchedDataDict({"input_ids": torch.ones_like(mask, dtype=torch.int64), **data})
    if "wrapper" in boundary.path:
        return _call_wrapper(boundary, loss, log_probs, batch, counts)
    if "next_token_logprobs" in boundary.parameters:
        return boundary.invoke({}, loss, next_token_logprobs=log_probs, data=batch, **counts)
    logits = torch.nn.functional.pad(kit.two_token_logits(log_probs), (0, 0, 0, 1))
    with kit.swap(torch.Tensor, "cuda", lambda self: self):
        return boundary.invoke({}, loss, next_token_logits=logits, data=batch, **counts)


def _call_wrapper(boundary: Any, loss: Any, log_probs: Any, batch: Any, counts: Mapping[str, Any]) -> Any:
    """Call a loss of NeMo-RL through the wrapper that is the boundary. All sequences are on one rank."""
    # Replace log-probs that finite logits cannot give: 0 (a probability of 1), and NaN or infinity on masked tokens.
    uncertain = torch.where(torch.isfinite(log_probs) & (log_probs < 0), log_probs, -1.0)
    logits, prepares = (
        torch.nn.functional.pad(kit.two_token_logits(uncertain), (0, 0, 0, 1)),
        boundary.imported[PREPARED],
    )

    # With two tokens, top_k=2 keeps all tokens, so that the loss does not change.
    params = getattr(prepares, "TrainingSamplingParams", None)
    keeps_all = {"sampling_params": params(top_k=2)} if params else {}

    def work(_: int) -> Any:
        if boundary.owner is None:
            names = {"next_token_logits": logits, "data": batch, "loss_fn": loss}
            prepare = partial(prepares.prepare_loss_input, **keeps_all)
            return boundary.invoke({}, **names, prepare_fn=prepare, **counts)
        ends, prepare, ranks = torch.arange(len(logits) + 1) * logits.shape[1], prepares.prepare_loss_input, {}
        if "Fusion" in boundary.path:
            prepare, ranks = prepares.prepare_packed_loss_input, {"vocab_parallel_rank": 0, "vocab_parallel_group": 0}
        made = boundary.owner(loss, prepare, ends, **ranks)
        return boundary.function(made, logits.flatten(0, 1)[None], batch, **counts)

    with kit.swap(torch.Tensor, "cuda", lambda self: self):
        return kit.on_ranks(1, work)[0]


def _loss_module(boundary: Any) -> Any:
    return boundary.imported[LOSSES] if "wrapper" in boundary.path else boundary.module


def _clipped(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], more: Any = None) -> Any:
    names = {"advantages": "advantages", "old_log_probs": "prev_logprobs", "response_mask": "token_mask"}
    data = {upstream: kit.prepend_prompt(inputs[name]) for name, upstream in names.items()}
    rollout = inputs.get("rollout_log_probs")
    data["generation_logprobs"] = data["prev_logprobs"] if rollout is None else kit.prepend_prompt(rollout)
    data = {**data, "reference_policy_logprobs": data["prev_logprobs"], "sample_mask": _rows(inputs["response_mask"])}
    module = _loss_module(boundary)
    kind = boundary.owner if module is boundary.module else module.ClippedPGLossFn
    loss = kind(configured(module.ClippedPGLossConfig, options, _OPTIONS))
    return _call_loss(boundary, loss, inputs["log_probs"], {**data, **(more or {})}, inputs)


#: Algorithm -> the options that select it, and the only aggregation that the constructor accepts (None for any).
_BY_ALGORITHM: Mapping[str, tuple[Mapping[str, Any], str | None]] = {
    "ppo": ({}, None),
    "gspo": ({"sequence_level_importance_ratios": True}, "seq-mean-token-mean"),
    "cispo": ({"use_cispo": True}, "token-mean"),
    "reinforce": ({"disable_ppo_ratio": True}, None),
    "cross_entropy": ({"positive_example_nll_weight": 1.0}, "token-mean"),
}


def _policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    algorithm, mode = inputs["algorithm"], inputs["loss_agg_mode"]
    options, only = _BY_ALGORITHM[algorithm]
    if only not in (None, mode) or (algorithm in ("cispo", "reinforce") and inputs["dual_clip"] is not None):
        raise AbsentError(f"NeMo-RL rejects {algorithm} with loss_agg_mode={mode} and dual_clip={inputs['dual_clip']}")
    if algorithm in ("gspo", "cross_entropy") and inputs["rollout_log_probs"] is not None:
        raise AbsentError(
            f"NeMo-RL's importance weights of {algorithm} are per sequence; the contract needs them per token"
        )
    if inputs["on_policy"] and algorithm != "ppo":
        raise AbsentError("NeMo-RL has no option that sets the ratio to 1 for this algorithm")
    correction, cap = inputs["rollout_log_probs"] is not None, inputs["importance_weight_cap"]
    chosen = {
        **options,
        "force_on_policy_ratio": inputs["on_policy"],
        "token_level_loss": _MODES[mode],
        "ratio_clip_min": inputs["eps_clip_low"],
        "ratio_clip_max": inputs["eps_clip_high"],
        "ratio_clip_c": inputs["dual_clip"],
        "use_importance_sampling_correction": correction,
        "truncated_importance_sampling_ratio": cap if correction else None,
    }
    if correction and cap is not None and "truncated_importance_sampling_type" in _fields(boundary):
        chosen["truncated_importance_sampling_type"] = "tis"
    if algorithm == "cross_entropy":  # the term for positive examples; with advantages of 0, it is the whole loss
        nothing = {"advantages": torch.zeros_like(inputs["advantages"])}
        rewards = {"rewards": torch.ones(len(inputs["log_probs"]))}
        return {"loss": _clipped(boundary, {**inputs, **nothing}, chosen, rewards)[0]}
    return {"loss": _clipped(boundary, inputs, chosen)[0]}


def _fields(boundary: Any) -> Sequence[str]:
    return [*_loss_module(boundary).ClippedPGLossConfig.__annotations__]


def _importance_weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the importance weights of tokens, which the adapter reads from the gradient of the loss."""
    mask, high, by_row = inputs["response_mask"], inputs["threshold_high"], inputs["level"] == "sequence"
    kind = "tis" if inputs["mode"] == "truncate" else "icepop"
    if inputs["level"] == "kept_by_mean":
        if kind == "tis":
            raise AbsentError("NeMo-RL uses the geometric mean of a sequence's ratios only to mask the sequence")
        kind = "seq-mask-tis"
    if kind != "tis" and inputs["threshold_low"] is None:
        raise AbsentError("NeMo-RL masks importance weights only with both bounds; the scenario has no lower bound")
    if kind == "tis" and inputs["threshold_low"] and "tis_min" not in boundary.function.__code__.co_varnames:
        raise AbsentError("this version has no lower bound for truncated importance weights")
    options = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": inputs["threshold_low"],
        "sequence_level_importance_ratios": by_row,
        "token_level_loss": not by_row,
    }
    if "truncated_importance_sampling_type" in _fields(boundary):
        options["truncated_importance_sampling_type"] = kind
    elif kind != "tis":
        raise AbsentError("this version cannot mask importance weights; it only truncates them")
    valid = (mask != 0).float()
    counted = valid.sum(-1, keepdim=True) * _rows(mask).sum() if by_row else valid.sum()
    current = inputs["old_log_probs"].detach().clone().requires_grad_()
    scenario = {**inputs, "log_probs": current, "advantages": -counted.expand(mask.shape)}
    loss, metrics = _clipped(boundary, scenario, options)
    (weights,) = torch.autograd.grad(loss, current)
    kept = {} if kind == "tis" else {"kept": weights}
    # For whole sequences, NeMo-RL reports a share of the sequences instead of the tokens.
    reported = {} if kind == "seq-mask-tis" else {"clip_fraction": metrics.get("is_oob_ratio")}
    return {"weights": weights, **kept, **reported}


def _ratios(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    _, metrics = _clipped(boundary, {**inputs, "advantages": torch.ones_like(inputs["log_probs"])}, {})
    if "probs_ratio_max" not in metrics:
        raise AbsentError("this version does not report the largest and the smallest ratio")
    return {"ratio_max": metrics["probs_ratio_max"], "ratio_min": metrics["probs_ratio_min"]}


def _kl_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reported KL, and the policy loss, which is the KL term because all advantages are 0."""
    log_probs = inputs["log_probs"]
    options = {
        "reference_policy_kl_penalty": inputs["coefficient"],
        "token_level_loss": inputs["mean_over"] == "tokens",
        "reference_policy_kl_type": inputs["kl_estimator"],
        "use_on_policy_kl_approximation": inputs["behaviour_log_probs"] is not None,
    }
    if inputs["kl_estimator"] == "k3" and "reference_policy_kl_type" not in _fields(boundary):
        del options["reference_policy_kl_type"]
    ours = {"old_log_probs": log_probs.detach(), "global_batch_size": len(log_probs)}
    ours["rollout_log_probs"] = inputs["behaviour_log_probs"]
    reference = kit.prepend_prompt(inputs["rollout_log_probs"])
    more = {"reference_policy_logprobs": reference, "sample_mask": torch.ones(len(log_probs))}
    loss, metrics = _clipped(boundary, {**inputs, **ours, "advantages": torch.zeros_like(log_probs)}, options, more)
    loss.backward()
    return {"rollout_kl": metrics["kl_penalty"], "loss": loss.detach()}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    data = {"token_mask": kit.prepend_prompt(mask), "sample_mask": _rows(mask)}
    return {"loss": _call_loss(boundary, boundary.owner(), inputs["log_probs"], data, inputs)[0]}


_DPO: Mapping[str, Any] = {
    "reference_policy_kl_penalty": 0.05,
    "preference_loss_weight": 1.0,
    "sft_loss_weight": 0.0,
    "preference_average_log_probs": False,
    "sft_average_log_probs": False,
}


def _alternate(inputs: Mapping[str, Any], name: str) -> Any:
    return torch.stack(kit.join_both_sides(inputs, name).chunk(2), 1).flatten(0, 1)


def _reward_model_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call NeMo-RL's loss of a reward model, with the log-prob of each response as its reward."""
    rewards = torch.where(_alternate(inputs, "mask") != 0, _alternate(inputs, "log_probs"), 0.0).sum(-1)
    data, count = {"sample_mask": torch.ones(len(rewards))}, torch.tensor(float(len(rewards)))
    return {"loss": boundary.function(boundary.owner(), rewards[:, None], data, count, None)[0]}


def _draft_divergence(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the divergence of a draft model: NeMo-RL's cross entropy minus the teacher's entropy."""
    mask, teacher, count = inputs["response_mask"], inputs["teacher_logits"], _count(inputs)
    data = {"sample_mask": _rows(mask)}
    entropy = (torch.distributions.Categorical(logits=teacher).entropy() * (mask != 0)).sum() / (count + 1e-8)
    ranks = inputs["vocabulary_ranks"]
    if ranks == 1 or teacher.shape[-1] % ranks:
        loss = boundary.function(boundary.owner(), teacher, inputs["logits"], mask, data, None, count)
        return {"loss": loss - entropy}

    def work(own: Any, place: Any) -> tuple[Any, Any]:
        share = teacher.chunk(ranks, -1)[place.part].clone()
        total = boundary.function(boundary.owner(place.tp_group), share, own, mask, data, None, count)
        return total, total

    total, [gradient] = parallel.on_shards(boundary.imported[PARALLEL], [inputs["logits"]], 1, work, ranks)
    return {"loss": kit.attach_gradient(float(total - entropy), inputs["logits"], gradient)}


def _dpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call NeMo-RL's DPO loss on a batch in which chosen and rejected sequences alternate."""
    mask = _alternate(inputs, "mask")
    log_probs = torch.where(mask != 0, _alternate(inputs, "log_probs"), -1.0)
    reference = torch.nn.functional.pad(_alternate(inputs, "ref_log_probs"), (0, 1))
    data = {
        "token_mask": kit.prepend_prompt(mask),
        "sample_mask": torch.ones(len(mask)),
        "reference_policy_logprobs": reference,
    }
    options = {
        "reference_policy_kl_penalty": inputs["beta"],
        "preference_average_log_probs": inputs["averaged"],
        "sft_loss_weight": inputs["nll_weight"],
        "sft_average_log_probs": inputs["nll_over"] == "responses",
    }
    loss = boundary.owner(configured(boundary.module.DPOLossConfig, options, _DPO))
    return {"loss": _call_loss(boundary, loss, log_probs, data, {})[0]}


def _count(inputs: Mapping[str, Any]) -> Any:
    tokens = inputs["batch_num_tokens"]
    return torch.tensor(float((inputs["response_mask"] != 0).sum() if tokens is None else tokens))


def _value(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    loss = boundary.owner(boundary.module.MseValueLossConfig(cliprange=inputs["cliprange_value"]))
    data = {"token_mask": mask, "sample_mask": _rows(mask), **{name: inputs[name] for name in ("returns", "values")}}
    batch = boundary.imported[BATCHES].BatchedDataDict(data)
    value_loss, metrics = boundary.function(loss, inputs["vpreds"], batch, _rows(mask).sum(), _count(inputs))
    clipped = metrics["vf_clipfrac"] if inputs["cliprange_value"] is not None else None
    return {"loss": value_loss, "clip_fraction": clipped}


def _report_critic(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the critic's metrics that NeMo-RL reports for a step of several microbatches, of one row each.

    Rows without valid tokens are in the first microbatch, because a microbatch without tokens reports 0 as its minimum.
    """
    losses, mask = boundary.imported[LOSSES], inputs["response_mask"]
    loss = losses.MseValueLossFn(losses.MseValueLossConfig(cliprange=None))
    if inputs["returns"] is None or inputs["values"] is None or not (mask != 0).any():
        raise AbsentError("the critic reports returns and values of at least one token")
    columns = {"token_mask": mask, "sample_mask": _rows(mask), **{name: inputs[name] for name in ("returns", "values")}}
    filled = [row for row, flag in enumerate((mask != 0).any(-1).tolist()) if flag]
    parts = [[filled[0], *(row for row in range(len(mask)) if row not in filled)], *([row] for row in filled[1:])]
    metrics: dict[str, list[float]] = {}
    for rows in parts:
        batch = boundary.imported[BATCHES].BatchedDataDict({name: column[rows] for name, column in columns.items()})
        for name, value in loss(batch["values"], batch, len(mask), (mask != 0).sum())[1].items():
            metrics.setdefault(name, []).append(value)
    none = torch.tensor(0.0)
    made = boundary.function({"all_mb_metrics": metrics, "grad_norm": none, "loss": none})
    names = {"returns_mean": "returns_mean", **{f"values_{name}": f"values_{name}" for name in ("mean", "min", "max")}}
    reported = {ours: made[f"critic/{name}"] for ours, name in names.items()}
    return {"explained_variance": made["critic/explained_var"], **reported}


def _distil(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute NeMo-RL's distillation loss from the student's logits and the teacher's top-k logits."""
    mask, losses, beta = inputs["response_mask"], boundary.imported[LOSSES], inputs["beta"]
    kind = {0.0: "forward", 1.0: "reverse"}.get(beta, "mixed")
    options = {"kl_type": kind, "mixed_kl_weight": 1 - beta, "zero_outside_topk": inputs["outside"] is not None}
    loss = losses.DistillationLossFn(losses.DistillationLossConfig(**options))
    teacher = inputs["teacher_logits"]
    likeliest = teacher.topk(min(inputs["top_k"] or teacher.shape[-1], teacher.shape[-1]), -1)
    # The logits at the last position of a sequence predict no token.
    whole, values, places = (torch.nn.functional.pad(column, (0, 0, 0, 1)) for column in (inputs["logits"], *likeliest))
    data = boundary.imported[BATCHES].BatchedDataDict(
        {
            "token_mask": kit.prepend_prompt(mask),
            "sample_mask": _rows(mask),
            "input_ids": kit.prepend_prompt(mask),
            "teacher_topk_logits": values,
            "teacher_topk_indices": places,
        }
    )
    counts = {"global_valid_seqs": _rows(mask).sum(), "global_valid_toks": _count(inputs)}
    prepare, ranks = boundary.imported[PREPARED].prepare_loss_input, inputs["vocabulary_ranks"]
    windows = inputs["context_parallel_size"]
    if windows == 1 and (ranks == 1 or whole.shape[-1] % ranks):
        made, data = prepare(whole, data, loss)
        return {"loss": loss(data=data, **counts, **made)[0]}

    def work(own: Any, place: Any) -> tuple[Any, Any]:
        groups = {"vocab_parallel_group": place.tp_group, "context_parallel_group": place.cp_group}
        made, batch = prepare(own, data, loss, vocab_parallel_rank=place.part, **groups)
        total = loss(data=batch, **counts, **made)[0]
        return total, total

    sequences = [parallel.pad(whole, 2 * windows)]
    total, [gradient] = parallel.on_shards(boundary.imported[PARALLEL], sequences, windows, work, ranks)
    return {"loss": kit.attach_gradient(float(total), whole, gradient[:, : whole.shape[1]])}


def _top_k_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of a sequence that was sampled with ``top_k``, with an importance weight per sequence."""
    arguments = inputs["arguments"]
    ones = torch.ones(arguments["token_ids"].shape)
    data = {
        "input_ids": arguments["token_ids"],
        "token_mask": ones,
        "sample_mask": torch.ones(1),
        "advantages": ones,
        "prev_logprobs": kit.prepend_prompt(arguments["old_log_probs"]),
        "generation_logprobs": kit.prepend_prompt(arguments["rollout_log_probs"]),
    }
    losses, names = (
        boundary.imported[LOSSES],
        ("sequence_level_importance_ratios", "use_importance_sampling_correction"),
    )
    options = {**dict.fromkeys((*names, "disable_ppo_ratio"), True), "token_level_loss": False}
    loss = losses.ClippedPGLossFn(configured(losses.ClippedPGLossConfig, options, _OPTIONS))
    batch = boundary.imported[BATCHES].BatchedDataDict(data)
    params = boundary.imported[SAMPLING].TrainingSamplingParams(top_k=arguments["top_k"])
    with kit.swap(torch.Tensor, "cuda", lambda self: self):
        made, batch = boundary.function(arguments["logits"], batch, loss, sampling_params=params)
    counts = {"global_valid_seqs": torch.tensor(1.0), "global_valid_toks": torch.tensor(float(ones.shape[1] - 1))}
    return {"returned": loss(data=batch, **counts, **made)[0]}


CLAMPED = Dialect("clamp", 10.0, "an estimate is clamped to [-10, 10]", f"{MAIN}/algorithms/utils.py#L99")
BINDINGS = (
    *(
        policy_loss(
            boundary, _policy, [*_BY_ALGORITHM], ("eps_clip_low", "eps_clip_high", "dual_clip"), imports=imports,
            requires=imports[2:], fixed={"dp_size": None, "loss_scale_factor": None},
            accepts={
                "importance_weight_cap": (None, 2.0), "loss_agg_mode": tuple(_MODES), "on_policy": (False, False, True),
            },
        )
        for boundary, imports in (
            (f"{LOSSES}.ClippedPGLossFn.__call__", (BATCHES,)),
            *(
                (f"{ALGORITHMS}.loss.wrapper.{name}", (BATCHES, LOSSES, PREPARED))
                for name in (
                    "SequencePackingLossWrapper.__call__", "SequencePackingFusionLossWrapper.__call__",
                    "wrap_loss_fn_with_input_preparation",
                )
            ),
        )
    ),
    Binding(
        f"{LOSSES}.ClippedPGLossFn.__call__", "importance_weight", call=_importance_weights, imports=(BATCHES,),
        accepts={"level": ("token", "sequence", "kept_by_mean"), "response_mask": ("full", "right")},
        fixed=IMPORTANCE_WEIGHT.lacking("level", "mode", "threshold_low", "threshold_high"),
    ),
    *(
        Binding(
            path, "distillation_loss", call=_distil, fixed={"temperature": 1.0},
            imports=(LOSSES, BATCHES, PREPARED, PARALLEL),
            requires=(PREPARED,),
            accepts={
                "beta": (0.0, 1.0, 0.5, 0.25), "top_k": (None, 2), "outside": (None, -100.0),
                "vocabulary_ranks": (1, 2), "context_parallel_size": (1, 1, 2),
            },
            stand_ins=(parallel.SHARDS,),
            dialects=(
                Dialect(
                    "mixture", "divergences", "the mixed loss is a weighted sum of both divergences",
                    f"{MAIN}/algorithms/loss/loss_functions.py#L1174",
                ),
            ),
        )
        for path in (f"{LOSSES}.DistillationLossFn.__call__", f"{PREPARED}.prepare_loss_input")
    ),
    Binding(f"{LOSSES}.ClippedPGLossFn.__call__", "ratio_report", call=_ratios, imports=(BATCHES,)),
    Binding(
        f"{LOSSES}.ClippedPGLossFn.__call__", "rollout_kl", call=_kl_loss, imports=(BATCHES,),
        accepts={
            "kl_estimator": ("k1", "k2", "k3"), "mean_over": ("sequences", "tokens"), "off_policy": (False, True),
        },
        dialects=(
            CLAMPED,
            Dialect(
                "of_the_samples", "differentiated", "the KL loss includes the gradient of the sampling probability",
                f"{MAIN}/algorithms/loss/loss_functions.py#L478",
            ),
        ),
    ),
    policy_loss(
        f"{LOSSES}.NLLLossFn.__call__", _supervised, "cross_entropy", (), mode="token-mean",
        formerly=(f"{ALGORITHMS}.loss_functions.NLLLoss.__call__",), imports=(BATCHES,),
    ),
    Binding(
        f"{LOSSES}.PreferenceLossFn.__call__", "preference_loss", call=_reward_model_loss,
        formerly=(f"{ALGORITHMS}.loss_functions.PreferenceLoss.__call__",),
        fixed={**PREFERENCE_LOSS.lacking(), "loss_type": "sigmoid", "beta": 1.0},
        dialects=(
            Dialect(
                "reference", "none", "a reward model has no reference", f"{MAIN}/algorithms/loss/loss_functions.py#L919"
            ),
        ),
    ),
    Binding(
        f"{LOSSES}.DraftCrossEntropyLossFn.__call__", "distillation_loss", call=_draft_divergence,
        fixed={"temperature": 1.0, "beta": 0.0}, imports=(PARALLEL,), stand_ins=(RANKS,),
        accepts={"vocabulary_ranks": (1, 2)},
    ),
    Binding(
        f"{LOSSES}.DPOLossFn.__call__", "preference_loss", call=_dpo_loss, imports=(BATCHES,),
        fixed={**PREFERENCE_LOSS.lacking("beta"), "loss_type": "sigmoid"},
        accepts={"averaged": (False, True), "nll_weight": (0.0, 0.5), "nll_over": ("responses", "sums")},
    ),
    Binding(
        f"{LOSSES}.MseValueLossFn.__call__", "value_loss", call=_value, imports=(BATCHES,),
        fixed=aggregated("token-mean"),
        dialects=(
            Dialect("factor", 0.5, "the loss is half the squared error", f"{MAIN}/algorithms/loss/loss_functions.py"),
        ),
    ),
    *(
        Binding(
            f"{ALGORITHMS}.ppo._compute_critic_metrics", contract, call=_report_critic, imports=(LOSSES, BATCHES),
            requires=(f"{ALGORITHMS}.ppo._compute_critic_metrics", f"{LOSSES}.MseValueLossFn"),
        )
        for contract in ("explained_variance", "batch_report")
    ),
    Binding(
        f"{PREPARED}.prepare_loss_input", "call", call=_top_k_loss, imports=(LOSSES, BATCHES, SAMPLING),
        requires=(SAMPLING,),
    ),
)  # fmt: skip
