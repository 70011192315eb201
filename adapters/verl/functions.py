"""Bindings for verl's small functions: log-probs, padding, metrics, containers, parts of reward rules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import BOXES, LAYOUTS, LEARNING_RATE, MASKED_STATISTICS, RANKS, Container, rule_reward
from sentinel.binding.kit import torch

from .containers import CONTAINER
from .data import aggregated_name, reported_of_part
from .shared import CPU, MAIN
from .updates import refuse_flash_attention

_TORCH, _PADDING = "verl.utils.torch_functional", "verl.workers.utils.padding"
_PADDING_BEFORE = "verl.workers.roles.utils.padding"
_PROTOCOL, _CORE = "verl.protocol", "verl.trainer.ppo.core_algos"
_DATA, _METRIC = f"{_PROTOCOL}.DataProto", "verl.utils.metric.utils"
_TENSORDICT, _ULYSSES = "verl.utils.tensordict_utils", "verl.utils.ulysses"
_OFF_POLICY = "verl.trainer.ppo.rollout_corr_helper"
_ROWS = ("full", "right")

# -- log-probs and losses ----------------------------------------------------------------------------------------------


def _gather_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"log_probs": boundary.function(inputs["logits"].log_softmax(-1), inputs["token_ids"]), "entropy": None}


def _log_probs_of_top_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "log_probs": boundary.function(inputs["logits"], inputs["token_ids"][..., None], 3)[..., 0],
        "entropy": None,
    }


def _scale_logits(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    logits = boundary.function(inputs["token_ids"], inputs["logits"] * 1, inputs["temperature"], None, None)
    return {"log_probs": boundary.module.logprobs_from_logits_naive(logits, inputs["token_ids"]), "entropy": None}


def _prepend_prompt(inputs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the ids and logits of whole sequences, which consist of two prompt tokens and the response."""
    pad = torch.nn.functional.pad
    return pad(inputs["token_ids"], (2, 0)), pad(inputs["logits"], (0, 0, 1, 1))


def _log_probs_of_response(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ids, logits = _prepend_prompt(inputs)
    return {"log_probs": boundary.function(ids, logits, inputs["token_ids"].shape[1]), "entropy": None}


def _call_rmpad(packed: bool, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs from the functions of verl that take logits without padding.

    :param packed: True if the function takes packed ids, and False if it takes padded ids and their mask.
    """
    (ids, logits), (rows, tokens) = _prepend_prompt(inputs), inputs["token_ids"].shape
    kernels = kit.stand_in(
        pad_input=lambda hidden_states, indices, batch, seqlen: kit.restore_padding(
            hidden_states, indices, batch, seqlen
        ),
        unpad_input=lambda values, attention_mask: kit.remove_padding(values, attention_mask),
    )
    packages = {"flash_attn": kit.stand_in(), "flash_attn.bert_padding": kernels}
    with mock.patch.dict(sys.modules, packages), kit.swap(boundary.module, "get_device_name", lambda: "cuda"):
        if packed:
            told = boundary.function(
                ids.reshape(1, -1), logits.flatten(0, 1), torch.arange(ids.numel()), rows, tokens + 2, tokens
            )
        else:
            told = boundary.function(ids, torch.ones_like(ids), logits.flatten(0, 1), tokens)
    return {"log_probs": told, "entropy": None}


def _fused_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # With the identity matrix as the output layer, the hidden states are the logits.
    logits = inputs["logits"]
    layer = boundary.module.FusedLinearForPPO(3)
    told = layer(logits, torch.eye(logits.shape[-1]).to(logits), inputs["token_ids"], inputs["temperature"])
    return (
        dict(zip(("log_probs", "entropy"), told)) if inputs["with_entropy"] else {"log_probs": told[0], "entropy": None}
    )


def _entropy_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not (inputs["response_mask"] != 0).any():
        raise AbsentError("the scenario has no valid token, but every batch of verl has one")
    logits = torch.where(inputs["response_mask"] != 0, inputs["loss_mat"], 0.0)[..., None]
    with kit.swap(boundary.module.verl_F, "entropy_from_logits", lambda logits: logits[..., 0]):
        return {"loss": boundary.invoke(kit.take_inputs(inputs, "loss_agg_mode"), logits, inputs["response_mask"])}


def _top_divergence(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"]
    if not mask.any():
        raise AbsentError("the scenario has no valid token, but every packed batch of verl has one")
    student, teacher = (inputs[name][mask != 0] for name in ("logits", "teacher_logits"))
    ends = torch.tensor([0, len(student)])
    nested = partial(torch.nested.nested_tensor_from_jagged, offsets=ends)
    # The top-k tokens of the teacher are the whole vocabulary.
    words = torch.arange(student.shape[-1]).expand(student.shape).contiguous()
    loss = kit.stand_in(use_chunked_topk=False, log_prob_min_clamp=None)
    told = boundary.function(
        student[None], nested(teacher.log_softmax(-1)), nested(words), kit.stand_in(distillation_loss=loss), "thd"
    )
    told = told["distillation_losses"] if isinstance(told, Mapping) else told[0]
    return {"loss": told.sum() / max(int((mask != 0).sum()), 1)}


def _penalise_rewards(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token rewards after verl's KL penalty. In the contract, they are returns with the discount 0."""
    kl = inputs["kl"] if inputs["kl"] is not None else torch.zeros_like(inputs["token_level_rewards"])
    rewards = boundary.function(inputs["token_level_rewards"], kl, torch.zeros_like(kl), inputs["kl_coef"])
    return {"returns": rewards, "advantages": rewards}


def _penalise_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    kl = inputs["kl"] if inputs["kl"] is not None else torch.zeros_like(inputs["token_level_rewards"])
    columns = {"token_level_scores": inputs["token_level_rewards"], "old_log_probs": kl, "ref_log_prob": kl * 0}
    mask = inputs["response_mask"]
    data = boundary.imported[_PROTOCOL].DataProto.from_dict(
        tensors={**columns, "response_mask": mask, "responses": mask.long(), "attention_mask": mask}
    )
    controller = kit.stand_in(value=inputs["kl_coef"], update=lambda **_: None)
    rewards = boundary.function(data, controller, "kl")[0].batch["token_level_rewards"]
    # GRPO and RLOO add up a row's rewards without a mask, so a penalty of a masked token counts. NaN counts
    # as 0, because verl multiplies by the mask, which turns an infinite penalty into NaN.
    counted = torch.where(mask != 0, 0.0, rewards - inputs["token_level_rewards"]).nan_to_num().sum(-1, keepdim=True)
    rewards = rewards + counted
    return {"returns": rewards, "advantages": rewards}


def _logits(path: str, call: Callable[..., Any], **more: Any) -> Binding:
    more["fixed"] = {"temperature": 1.0, "with_entropy": False, **more.get("fixed", {})}
    return Binding(path, "token_log_probs", call=call, **more)


_UNPACKS = StandIn("flash_attn", "replaces the kernels that pad and unpad rows; the rows are the same")
_TOKEN_REWARDS: dict[str, Any] = {"gamma": 0.0, "reward_layout": "any"}
_LOSSES = (
    _logits(f"{_TORCH}.gather_from_labels", _gather_log_probs),
    _logits(f"{_TORCH}.log_probs_from_logits_response", _log_probs_of_response),
    _logits(
        f"{_TORCH}.log_probs_from_logits_response_rmpad", partial(_call_rmpad, False), stand_ins=(_UNPACKS,),
    ),
    _logits(f"{_TORCH}.log_probs_from_logits_all_rmpad", partial(_call_rmpad, True), stand_ins=(_UNPACKS,)),
    Binding(
        f"{_TORCH}.post_process_logits", "token_log_probs", call=_scale_logits, fixed={"with_entropy": False},
    ),
    _logits("verl.trainer.distillation.fsdp.losses._chunked_topk_log_probs", _log_probs_of_top_tokens),
    *(
        Binding(f"verl.utils.experimental.torch_functional.{path}", "token_log_probs", call=_fused_log_probs)
        for path in (
            "FusedLinearForPPO.forward", "FusedLinearForPPOFunction.forward", "FusedLinearForPPOFunction.backward",
            "_fused_linear_for_ppo_fwd", "_fused_linear_for_ppo_bwd",
        )
    ),
    Binding(
        f"{_CORE}.compute_entropy_loss", "loss_aggregation", call=_entropy_loss,
        fixed=dict.fromkeys(("weights", "batch_num_tokens", "global_batch_size", "dp_size", "loss_scale_factor")),
        stand_ins=(StandIn("entropy_from_logits", "returns the scenario's value of each token"),),
    ),
    Binding(
        "verl.trainer.distillation.fsdp.losses.kl_divergence", "distillation_loss",
        call=partial(kit.call_divergence, of_logits=False), accepts={"response_mask": _ROWS},
        fixed={"beta": 0.0, "temperature": 1.0, "batch_num_tokens": None},
    ),
    Binding(
        "verl.trainer.distillation.fsdp.losses.compute_forward_kl_topk", "distillation_loss", call=_top_divergence,
        fixed={"beta": 0.0, "temperature": 1.0, "batch_num_tokens": None},
    ),
    Binding(f"{_CORE}.compute_rewards", "discounted_return", call=_penalise_rewards, fixed=_TOKEN_REWARDS),
    Binding(
        "verl.trainer.ppo.ray_trainer.apply_kl_penalty", "discounted_return", call=_penalise_batch,
        fixed=_TOKEN_REWARDS, imports=(_PROTOCOL,),
    ),
)  # fmt: skip

# -- metrics -----------------------------------------------------------------------------------------------------------


def _mean_over_ranks(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = inputs["values"], inputs["response_mask"]
    if not mask.any():
        raise AbsentError("the scenario has no valid token, but every step of verl has one")
    return {"result": kit.on_ranks(2, lambda rank: boundary.function(values[rank::2], mask[rank::2]))[0]}


def _reported_divergence(key: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = inputs["values"], inputs["response_mask"]
    if not (mask != 0).any():
        raise AbsentError("the scenario has no valid token, but every batch of verl has one")
    # The log-probs of the two policies differ by the scenario's values.
    return {"result": values.new_tensor(boundary.function(torch.zeros_like(values), values, mask)[key])}


def _flat(inputs: Mapping[str, Any]) -> list[float]:
    return [value for part in inputs["parts"] for value in part]


def _reduced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    key = {"mean": "loss"}.get(inputs["statistic"], inputs["statistic"])
    return {"mean": boundary.function({key: _flat(inputs)})[key]}


def _mean_of_metric(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Add values to a verl ``Metric`` with ``append`` or ``extend``, and return the metric's mean."""
    parts = inputs["parts"] if boundary.path.endswith("extend") else _flat(inputs)
    metric = boundary.owner(inputs["statistic"])
    for number, part in enumerate(parts):
        if number % 2:  # every other part is a metric itself
            other = boundary.owner(inputs["statistic"])
            boundary.function(other, part)
            part = other
        boundary.function(metric, part)
    return {"mean": metric.aggregate()}


def _over_ranks(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ranks = [boundary.owner(inputs["statistic"], value) for value in _flat(inputs)]
    return {"mean": boundary.owner.aggregate_dp(ranks)}


def _rate_accepted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl's mean rate of accepted draft tokens. A sample without a value is a padded row.

    If the number of samples is odd, the rate is read from the mean number of tokens per verification.
    """
    import numpy

    values = _flat(inputs)
    there = numpy.array([value is not None for value in values])
    accepted = numpy.array([value or 0.0 for value in values])
    # Samples without an accepted token have no draft in every other scenario. Their rate is 0.
    drafts = accepted if len(inputs["parts"]) % 2 else accepted * 0 + 1
    mask = None if there.all() else there
    made = boundary.function(drafts, list(accepted), accepted * 0 + 1, mask)
    rate, length = made["rollout/spec_accept_rate"], made["rollout/spec_accept_length"]
    return {"mean": length - 1 if len(values) % 2 else rate}


#: The contract's statistic -> metrics that the asynchronous trainer aggregates in this way, by its rules for names.
_METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "mean": (
        "score/weighted",
        "perf/throughput",
        "fully_async/trainer/idle_ratio",
        "dynamic_resource/train_resource_utilization",
    ),
    "sum": ("timing_s/step", "perf/total_num_tokens", "dynamic_resource/train_compute_time_s"),
    "max": ("critic/score/max", "timing_s/agent_loop/tool_calls/max"),
    "min": ("critic/score/min", "timing_s/agent_loop/tool_calls/min"),
    "range": ("global_seqlen/minmax_diff",),
    "last": ("training/global_step", "fully_async/count/current_param_version"),
    "mean_of_means": ("critic/score/mean", "actor/entropy"),
}


def _count(part: list[float]) -> float:
    return float(len(part))


#: Metrics that are ratios of totals. With the sum and the number of samples as totals, the ratio is the mean.
_RATIOS: Mapping[str, Mapping[str, Callable[[list[float]], float]]] = {
    "perf/throughput": {"perf/throughput": sum, "perf/total_num_tokens": sum, "perf/time_per_step": _count},
    "fully_async/trainer/idle_ratio": {"timing_s/gen": sum, "timing_s/step": _count},
    "dynamic_resource/train_resource_utilization": {
        "dynamic_resource/train_compute_time_s": sum,
        "dynamic_resource/train_allocated_time_s": _count,
    },
}


def _aggregate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    aggregator, chosen = boundary.owner(total_gpus=1), inputs["statistic"]
    name, rules = aggregated_name(inputs, _METRIC_NAMES), dict(aggregator.aggregation_rules)
    if name == "score/weighted":
        rules["weighted_avg"] = [name]
    ratio = _RATIOS.get(name, {})
    for number, part in enumerate(inputs["parts"]):
        metrics = {key: read(part) for key, read in ratio.items()} or reported_of_part(name, chosen, part)
        made = {key: torch.tensor(value) if number % 2 else value for key, value in metrics.items()}
        aggregator.add_step_metrics(made, len(part))
    with kit.swap(aggregator, "aggregation_rules", rules):
        return {"mean": boundary.function(aggregator)[name]}


def _validation_mean(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return verl's validation metric ``mean@n``: the mean score of the n responses to one prompt."""
    values = _flat(inputs)
    with kit.keep_random_state():
        told = boundary.function(["data"] * len(values), ["0"] * len(values), {"score": values})
    return {"mean": told["data"]["score"][f"mean@{len(values)}"]}


_NO_GAPS = {"missing": False}
_SIMPLE = {"statistic": ("mean", "max", "min")}
_WITH_SUM = {"statistic": (*_SIMPLE["statistic"], "sum")}
_MEAN = {"statistic": "mean", **MASKED_STATISTICS.lacking()}
_METRICS = (
    Binding(
        f"{_TORCH}.distributed_masked_mean", "masked_statistics", call=_mean_over_ranks, fixed=_MEAN,
        stand_ins=(RANKS,),
        dialects=(
            Dialect(
                "masked_values_have_no_influence", None, "values are multiplied by the mask; masked values are finite",
                f"{MAIN}/utils/torch_functional.py#L977", symptom="non-finite",
            ),
        ),
    ),
    *(
        Binding(f"{_OFF_POLICY}.{name}", "masked_statistics", call=partial(_reported_divergence, key), fixed=_MEAN)
        for name, key in (
            ("compute_offpolicy_metrics", "kl"), ("compute_rollout_corr_metrics_from_logprobs", "rollout_corr/kl"),
        )
    ),
    *(
        Binding(path, "mean_of_parts", call=call, fixed=_NO_GAPS, accepts=accepts)
        for path, call, accepts in (
            (f"{_METRIC}.reduce_metrics", _reduced, _SIMPLE),
            (f"{_METRIC}.Metric.append", _mean_of_metric, _WITH_SUM),
            (f"{_METRIC}.Metric.extend", _mean_of_metric, _WITH_SUM),
            (f"{_METRIC}.Metric.aggregate_dp", _over_ranks, _SIMPLE),
            (
                "verl.experimental.fully_async_policy.detach_utils.MetricsAggregator.get_aggregated_metrics",
                _aggregate, {"statistic": tuple(_METRIC_NAMES)},
            ),
            ("verl.trainer.ppo.metric_utils.process_validation_metrics", _validation_mean, {}),
        )
    ),
    Binding(
        "verl.trainer.ppo.metric_utils.reduce_metrics", "mean_of_parts", call=_reduced, fixed=_NO_GAPS, accepts=_SIMPLE,
        formerly=("verl.trainer.ppo.ray_trainer.reduce_metrics",),
    ),
    Binding("verl.trainer.ppo.ray_trainer.compute_spec_decode_metrics", "mean_of_parts", call=_rate_accepted),
)  # fmt: skip

# -- padding, packing, collation ---------------------------------------------------------------------------------------


def _listed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    padded = boundary.function(inputs["values"].tolist(), inputs["pad_value"], inputs["length"])
    return {"padded": padded.to(inputs["values"].dtype)}


def _pad_columns(boundary: Any, values: Any, size: int) -> Any:
    # Transposed, because verl's function pads the first axis.
    return boundary.function(values.T, torch.tensor([0, values.shape[1]]), values.shape[1], size)[0].T


def _pad_with_positions(boundary: Any, values: Any, size: int) -> Any:
    """Pad packed rows with verl, which also pads their positions. There are three channels if the width is even.

    No value is returned unchanged if the positions of the padding do not restart at 0.
    """
    shape = (3, 1, -1) if values.shape[1] % 2 == 0 else (1, -1)
    positions = torch.arange(values.shape[1]).expand(*shape)
    padded, made = boundary.function(values, positions, size)[:2]
    beyond = padded.shape[1] - values.shape[1]
    right = torch.equal(made, torch.cat((positions, torch.arange(beyond).expand(*shape)), -1))
    return padded if right else padded - 1


def _masks(mask: Callable[[Any, Any, int], Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"response_mask": mask(boundary, inputs["lengths"], inputs["response_length"])}


def _nested_mask(boundary: Any, lengths: Any, width: int) -> Any:
    return boundary.function(_nested([torch.arange(int(length)) for length in lengths]), width)


def _nested(rows: Sequence[Any]) -> Any:
    ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.cat([*rows]), offsets=ends)


def _samples(rows: Sequence[Any]) -> dict[str, Any]:
    return {"samples": [{"tokens": row} for row in rows]}


def _tokens(inputs: Mapping[str, Any]) -> list[Any]:
    return [sample["tokens"] for sample in inputs["samples"]]


def _remove_padding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = kit.lay_out(_tokens(inputs))
    flat, _, ends, *_ = boundary.function(values[..., None], mask)
    return _samples(flat[:, 0].split(ends.diff().tolist()))


def _restore_padding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = kit.lay_out(_tokens(inputs))
    flat, places, *_ = kit.remove_padding(values[..., None], mask)
    whole = boundary.function(flat, places, *values.shape)[..., 0]
    return _samples([row[there != 0] for row, there in zip(whole, mask)])


def _select_valid_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = kit.lay_out(_tokens(inputs))
    places, ends, *_ = boundary.function(mask)
    return _samples(values.flatten()[places].split(ends.diff().tolist()))


def _from_left(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = kit.lay_out(_tokens(inputs), left=True)
    return _samples([torch.tensor(row) for row in boundary.function(values, mask)])


def _responses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    values, mask = kit.lay_out(_tokens(inputs))
    made = boundary.function(values, _nested([torch.ones(int(row.sum())) for row in mask]))
    return _samples(made.unbind())


def _to_nested(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not hasattr(boundary.module, "unpad_input"):
        raise AbsentError("this version removes padding only with flash-attn, which is not installed")
    samples = inputs["samples"]
    ids, mask = kit.lay_out([sample["input_ids"] for sample in samples], left=True)
    places = torch.stack(
        [
            kit.lay_out([row], left=True)[0][0]
            if len(row) + 1 == ids.shape[1]
            else torch.nn.functional.pad(row, (ids.shape[1] - len(row), 0))
            for row in (sample["position_ids"] for sample in samples)
        ]
    )
    columns = {"input_ids": ids, "attention_mask": mask, "response_mask": mask, "position_ids": places}
    data = boundary.imported[_TENSORDICT].get_tensordict(columns)
    with kit.swap(boundary.module, "unpad_input", kit.remove_padding):
        made = boundary.function(data)
    return {
        "samples": [
            dict(zip(("input_ids", "position_ids"), row))
            for row in zip(made["input_ids"].unbind(), made["position_ids"].unbind())
        ]
    }


def _response_values(reads: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Select the values of response tokens from a critic's packed outputs. Each row has one prompt token."""
    mask, outputs = inputs["response_mask"], inputs["outputs"]
    lengths = [int(row.sum()) for row in mask != 0]
    rows = [torch.cat([outputs[row, :length], inputs["output_after"][row][None]]) for row, length in enumerate(lengths)]
    return {"values": reads(boundary, _nested(rows), lengths, mask.shape[1])}


def _sliced(boundary: Any, packed: Any, lengths: list[int], width: int) -> Any:
    refuse_flash_attention(boundary.function)
    columns = {
        "prompts": _nested([torch.ones(1) for _ in lengths]),
        "responses": _nested([torch.ones(n) for n in lengths]),
        "attention_mask": _nested([torch.ones(n + 1) for n in lengths]),  # some versions read it, and do not use it
    }
    data = boundary.imported[_TENSORDICT].get_tensordict(columns, {"max_response_len": width})
    return boundary.function(packed, data)


def _nested_responses(boundary: Any, packed: Any, lengths: list[int], width: int) -> Any:
    made = boundary.function(packed, _nested([torch.ones(n) for n in lengths]))
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in made.unbind()])


def _cut(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ids = torch.tensor(inputs["token_ids"])
    made, there = boundary.function(kit.make_unbuilt(boundary.owner, max_length=inputs["max_length"]), ids, ids * 0 + 1)
    return {"token_ids": made[there != 0].tolist()}


def _tokenize_and_truncate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ids = torch.tensor([inputs["token_ids"]])
    made, there = boundary.function(
        "", lambda *_, **__: {"input_ids": ids, "attention_mask": ids * 0 + 1}, inputs["max_length"], 0,
        truncation=inputs["side"],
    )  # fmt: skip
    return {"token_ids": made[0][there[0] != 0].tolist()}


def _stacked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    batch = boundary.function([dict(sample) for sample in inputs["samples"]])
    return {"samples": [{name: column[row] for name, column in batch.items()} for row in range(len(inputs["samples"]))]}


def _images_of_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return each row's image, video and sound tensors from the columns that verl concatenates over rows.

    Rows without media are between the rows. If there are two rows, verl selects them by their indices.
    """
    samples = inputs["samples"]
    rows = [{name: value[None] for name, value in sample.items()} for sample in samples]
    # The model pads sounds, which have different lengths, to the longest one.
    batch = [one for row in rows for one in (None, row)]
    chosen = [2 * row + 1 for row in range(len(rows))] if len(rows) == 2 else None
    columns = boundary.function(batch, chosen)
    sizes = {name: [value.shape[-1] for value in (sample[name] for sample in samples)] for name in samples[0]}
    return {
        "samples": [
            {name: columns[name][row][..., : sizes[name][row]] for name in sizes if name in columns}
            for row in range(len(rows))
        ]
    }


def _preference_items(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of verl's dataset of preference pairs.

    Texts are token ids. Their thousands mark the column, so that a text of another column changes the result.
    """
    samples = inputs["samples"]
    own = {"prompts": "prompt", "chosen_responses": "chosen", "rejected_responses": "rejected"}
    columns = {
        name: [sample[field] + 1000 * place for sample in samples] for place, (name, field) in enumerate(own.items())
    }
    tokenizer: Any = lambda row, **_: {"input_ids": row[None]}  # noqa: E731
    dataset = kit.make_unbuilt(boundary.owner, tokenizer=tokenizer, add_eos=False, max_length=12, **columns)
    found = []
    for row, sample in enumerate(samples):
        item = boundary.function(dataset, row)
        sides = [ids[there != 0] for ids, there in zip(item["input_ids"], item["attention_mask"])]
        start = len(sample["prompt"])
        texts = (sides[0][:start], sides[0][start:], sides[1][start:])
        found.append({field: text - 1000 * place for place, (field, text) in enumerate(zip(own.values(), texts))})
    return {"samples": found}


def _layouts(*names: str, **others: Any) -> dict[str, Any]:
    tokens = {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]}
    return {"layouts": {**dict.fromkeys(names, tokens), **others}}


def _collates(path: str, call: Callable[..., Any], *names: str, **more: Any) -> Binding:
    fixed = _layouts(*(names or ("tokens",)), **more.pop("others", {}))
    return Binding(path, "collation", call=call, fixed=fixed, **more)


_TWO = {"row": {"kind": "tensor", "dtype": "float32", "shape": [2]}, "label": {"kind": "text"}}
_NO_VALUE = {"pad_value": (0,)}
_OF_RM = "verl.utils.dataset.rm_dataset.RMDataset"
_FALLBACK = "verl.utils.attention_utils._fallback"
_RIGHT = {"side": "right"}
_PADDED = (
    Binding(f"{_TORCH}.pad_2d_list_to_length", "column_padding", call=_listed, fixed=_RIGHT),
    *(
        Binding(
            path, "column_padding", call=partial(kit.call_padding_to_multiple, pads), fixed=_RIGHT, accepts=_NO_VALUE,
        )
        for path, pads in (
            ("verl.utils.model.pad_packed_inputs", _pad_columns),
            (f"{_ULYSSES}.ulysses_pad", _pad_with_positions),
            (
                "verl.workers.engine.utils.pad_packed_inputs",
                lambda boundary, values, size: _pad_with_positions(boundary, values, size - values.shape[1]),
            ),
            (
                f"{_ULYSSES}._pad_tensor",
                lambda boundary, values, size: boundary.function(values, 1, size - values.shape[1]),
            ),
        )
    ),
    *(
        Binding(path, "response_masks", call=partial(_masks, mask))
        for path, mask in (
            (f"{_PADDING}.build_attention_mask_from_nested", _nested_mask),
            (
                "verl.trainer.ppo.v1.trainer_base.PPOTrainer._lengths_to_mask",
                lambda boundary, lengths, width: boundary.function(lengths, width),
            ),
        )
    ),
    _collates(f"{_FALLBACK}_unpad_input", _remove_padding),
    _collates(f"{_FALLBACK}_pad_input", _restore_padding),
    _collates(f"{_TORCH}.get_unpad_data", _select_valid_tokens),
    _collates(f"{_TORCH}.remove_pad_token", _from_left),
    _collates(f"{_PADDING}.response_to_nested", _responses),
    _collates(
        f"{_PADDING}.left_right_2_no_padding", _to_nested, "input_ids", "position_ids", imports=(_TENSORDICT,),
        formerly=(f"{_PADDING_BEFORE}.left_right_2_no_padding",),
    ),
    _collates("verl.utils.dataset.rl_dataset.collate_fn", _stacked, "label", others=_TWO),
    _collates(
        "verl.utils.model.extract_multi_modal_inputs", _images_of_rows, "input_features",
        others={"pixel_values": {"kind": "tensor", "dtype": "float32", "shape": [2, 3]}},
    ),
    _collates(f"{_OF_RM}.__getitem__", _preference_items, "prompt", "chosen", "rejected"),
    *(
        Binding(
            f"{_PADDING}.{name}", "critic_values", call=partial(_response_values, reads), imports=(_TENSORDICT,),
            accepts={"response_mask": _ROWS}, formerly=(f"{_PADDING_BEFORE}.{name}",),
        )
        for name, reads in (("no_padding_2_padding", _sliced), ("response_from_nested", _nested_responses))
    ),
    Binding(
        f"{_OF_RM}._pad_to_length", "truncation", call=_cut,
        fixed={"side": "right", "padded": True, "loss_mask": None},
    ),
    Binding(
        f"{_TORCH}.tokenize_and_postprocess_data", "truncation", call=_tokenize_and_truncate,
        fixed={"padded": True, "loss_mask": None}, stand_ins=(StandIn("tokenizer", "returns the scenario's ids"),),
    ),
)  # fmt: skip

# -- containers --------------------------------------------------------------------------------------------------------

_PROTO = Container(CONTAINER, common={"imports": (_PROTOCOL,)})
_Do = Callable[[Any, Mapping[str, Any], Any], Sequence[Any]]


def _all_keys(data: Any) -> dict[str, list[str]]:
    """Return the arguments with which ``DataProto.select`` and ``pop`` return all data."""
    return {
        "batch_keys": [*data.batch.keys()],
        "non_tensor_batch_keys": [*data.non_tensor_batch],
        "meta_info_keys": [*data.meta_info],
    }


def _ranges(inputs: Mapping[str, Any], data: Any) -> list[tuple[int, int]]:
    size = len(data) // inputs["count"]
    return [(part * size, (part + 1) * size) for part in range(inputs["count"])]


def _unite(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Split a DataProto by columns, and unite the two halves with verl.

    The first half has all tensors. The second half has all other columns, and one of the tensors again.
    """
    names, owner = _all_keys(data), boundary.owner
    one = owner.select(data, names["batch_keys"], [], names["meta_info_keys"])
    other = owner.select(data, names["batch_keys"][:1], names["non_tensor_batch_keys"], [])
    return [boundary.function(one, other)]


def _renamed(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    boundary.function(data, ["number"], ["other"])
    return [boundary.function(data, ["other"], ["number"])]


def _restored(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    made = object.__new__(boundary.owner)
    if boundary.path.endswith("__getstate__"):
        made.__setstate__(boundary.function(data))
    else:
        boundary.function(made, data.__getstate__())
    return [made]


def _wrapped(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    return list(boundary.function(boundary.owner(data), inputs["count"]))


def _split_future(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Split a ``DataProtoFuture`` with verl, and return the data of each part. ``ray.get`` returns its argument."""
    future = boundary.owner(collect_fn=boundary.module.DataProto.concat, futures=[data])
    with kit.swap(boundary.module.ray, "get", kit.return_first):
        return [part.get() for part in boundary.function(future, inputs["count"])]


def _join(boundary: Any, inputs: Mapping[str, Any], _: Any) -> Sequence[Any]:
    """Join the parts of a batch with ``BatchData.concat`` or ``DataProtoFuture.get``."""
    parts = kit.join_parts(CONTAINER, kit.stand_in(function=list, imported=boundary.imported), inputs, None)[0]
    if boundary.path.endswith("get"):
        with kit.swap(boundary.module.ray, "get", kit.return_first):
            return [boundary.function(boundary.owner(collect_fn=boundary.module.DataProto.concat, futures=parts))]
    return [boundary.function(boundary.owner(parts))]


def _items(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples = inputs["samples"]
    fields = {
        "row": torch.stack([sample["row"] for sample in samples]),
        "label": [sample["label"] for sample in samples],
    }
    data = CONTAINER(boundary, fields, {})
    columns = kit.read_columns(boundary.function([data[row] for row in range(len(samples))]))
    return {"samples": [{name: column[row] for name, column in columns.items()} for row in range(len(samples))]}


_NO_LISTS = {name: kind for name, kind in LAYOUTS.items() if name != "prompt"}
_WHOLE = {"fixed": {"count": 1}, "accepts": {"remainder": (0,)}}
_SURGERIES: tuple[tuple[str, str, _Do, dict[str, Any]], ...] = (
    ("DataProto.select", "cut", lambda b, i, data: [b.function(data, **_all_keys(data))], _WHOLE),
    ("DataProto.pop", "cut", lambda b, i, data: [b.function(data, **_all_keys(data))], _WHOLE),
    ("DataProto.union", "cut", _unite, _WHOLE),
    ("DataProto.rename", "cut", _renamed, _WHOLE),
    ("DataProto.__getstate__", "cut", _restored, _WHOLE),
    ("DataProto.__setstate__", "cut", _restored, _WHOLE),
    (
        "DataProto.to_tensordict", "cut", lambda b, i, data: [b.owner.from_tensordict(b.function(data))],
        # Without lists, because a column of lists with equal lengths becomes an array with two axes.
        {**_WHOLE, "fixed": {"count": 1, "layouts": _NO_LISTS}},
    ),
    (
        "DataProto.slice", "cut", lambda b, i, data: [b.function(data, *ends) for ends in _ranges(i, data)],
        {"accepts": {"remainder": (0,)}},
    ),
    ("DataProto.__getitem__", "reorder", lambda b, i, data: [b.function(data, [*i["order"]])], {}),
    ("fold_batch_dim", "cut", lambda b, i, data: [b.module.unfold_batch_dim(b.function(data, 1))], _WHOLE),
    ("unfold_batch_dim", "cut", lambda b, i, data: [b.function(b.module.fold_batch_dim(data, 1))], _WHOLE),
    ("BatchData.chunk", "cut", _wrapped, {"accepts": {"remainder": (0,)}}),
    ("BatchData.concat", "join", _join, {}),
    ("DataProtoFuture.chunk", "cut", _split_future, {"accepts": {"remainder": (0,)}}),
    ("DataProtoFuture.get", "join", _join, {}),
)  # fmt: skip

_CONTAINERS = (
    *(_PROTO.surgery(f"{_PROTOCOL}.{name}", kind, do, **more) for name, kind, do, more in _SURGERIES),
    Binding(
        f"{_PROTOCOL}.collate_fn", "collation", call=_items, imports=(_PROTOCOL,), fixed={"layouts": _TWO},
    ),
)  # fmt: skip

# -- parts of reward rules, and schedules ------------------------------------------------------------------------------


def _score_prime(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return 1 if verl's ``prime`` rule extracts the ground truth from the response, and 0 otherwise."""
    return {"score": float(boundary.function(inputs["response"])[1] == inputs["ground_truth"])}


def _coefficients(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    controller = boundary.owner(inputs["initial"], inputs["target_kl"], inputs["horizon"])
    return kit.read_coefficients(controller, inputs, "current_kl")


def _read_rates(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["schedule"] == "constant" and inputs["first_step"]:
        raise AbsentError("verl's constant schedule has no option zero_indexed_step; first_step must be 0")
    config = kit.stand_in(
        total_training_steps=inputs["training_steps"], lr_warmup_steps=inputs["warmup_steps"],
        lr_warmup_steps_ratio=0.0, lr_scheduler_type=inputs["schedule"], min_lr_ratio=inputs["min_ratio"],
        num_cycles=0.5, zero_indexed_step=inputs["first_step"] == 0, warmup_style=None,
    )  # fmt: skip
    engine = kit.make_unbuilt(boundary.owner, optimizer_config=config, rank=1)
    return kit.read_rates(inputs, partial(boundary.function, engine))


_RULES = "verl.utils.reward_score"
_DAPO, _PRIME, _QA = (f"{_RULES}.{name}" for name in ("math_dapo", "prime_math", "search_r1_like_qa_em"))
_TAGS, _HASHES = (
    ("<answer>{answer}</answer>", "I see. <answer> {answer} </answer>"),
    ("#### {answer}", "So:\n#### {answer}"),
)
_ANSWER = ("Answer: {answer}", "So it is.\nAnswer: {answer}\n")
_PARTS = (
    rule_reward(f"{_DAPO}.normalize_final_answer", "bare", notations="minerva", call=kit.apply_normaliser),
    rule_reward(f"{_DAPO}.is_correct_minerva", *_ANSWER, notations="minerva"),
    rule_reward(f"{_DAPO}.is_correct_strict_box", *BOXES),
    rule_reward(f"{_DAPO}.verify", *_ANSWER, notations="minerva"),
    rule_reward(f"{_PRIME}.grade_answer", "bare", notations="math", imports=(f"{_PRIME}.grader",)),
    rule_reward(f"{_PRIME}.match_answer", *BOXES, call=_score_prime),
    rule_reward(f"{_PRIME}.math_normalize.normalize_answer", "bare", notations="math", call=kit.apply_normaliser),
    rule_reward(f"{_QA}.normalize_answer", "bare", notations="questions", call=kit.apply_normaliser),
    rule_reward(f"{_QA}.extract_solution", *_TAGS, call=kit.apply_extractor),
    rule_reward(f"{_RULES}.gsm8k.extract_solution", *_HASHES, notations="thousands", call=kit.apply_extractor),
)  # fmt: skip

_SCHEDULES = (
    Binding(f"{_CORE}.AdaptiveKLController.update", "kl_coefficient", call=_coefficients, fixed={"adaptive": True}),
    Binding(
        "verl.workers.engine.fsdp.transformer_impl.FSDPEngine._build_lr_scheduler", "learning_rate", call=_read_rates,
        formerly=("verl.workers.engine.fsdp.engine_impl.FSDPEngine._build_lr_scheduler",),
        fixed=LEARNING_RATE.lacking("warmup_steps", "min_ratio", "first_step"),
        accepts={"schedule": ("constant", "cosine")}, stand_ins=(CPU,),
    ),
)  # fmt: skip

BINDINGS = (*_LOSSES, *_METRICS, *_PADDED, *_CONTAINERS, *_PARTS, *_SCHEDULES)
