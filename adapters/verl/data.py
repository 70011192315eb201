"""Bindings for verl's functions that select, pack, truncate and summarise data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import chat
from sentinel.binding.kit import torch

from .shared import CPU, MAIN
from .updates import ENGINE, LEARNING, learned

_PROTOCOL = "verl.protocol"
_BALANCING = "verl.utils.seqlen_balancing"
_DATASETS = "verl.utils.dataset"
_METRICS = "verl.trainer.ppo.metric_utils"
_TRAINER = "verl.trainer.ppo.ray_trainer"
_TOKENS = StandIn("tokens", "a sequence that is already tokenized; tokenization is not checked")
_STORE = StandIn("tq", "returns the scenario's rewards, in place of a store on other machines")
_DATASET = StandIn("self", "the real dataset reads files; the method reads only these attributes")


#: Fields of a sample with images: position ids have four rows (text, time, height, width).
_FIELDS = {
    "input_ids": {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]},
    "position_ids": {"kind": "tensor", "dtype": "int64", "shape": [4, "tokens"]},
}


def _proto(boundary: Any, tensors: Mapping[str, Any], **more: Any) -> Any:
    return boundary.imported[_PROTOCOL].DataProto.from_dict(tensors=dict(tensors), **more)


def _numpy(labels: list[Any]) -> Any:
    import numpy

    return numpy.array(labels, dtype=object)


def _select_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = inputs["arguments"]
    data = _proto(boundary, {"numbers": arguments["numbers"]}, non_tensors={"labels": _numpy(arguments["labels"])})
    chosen = boundary.function(data, arguments["chosen"])
    return {"returned": {"numbers": chosen.batch["numbers"], "labels": list(chosen.non_tensor_batch["labels"])}}


#: The contract's statistic -> metrics that verl's trainer aggregates in this way, by its rules for names.
_METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "mean": ("critic/score/mean", "training/off_policy/evicted_samples_staleness/mean", "actor/entropy"),
    "sum": ("training/off_policy/evicted_samples", "timing_s/step", "perf/total_num_tokens"),
    "max": ("critic/score/max", "response_length/max"),
    "min": ("critic/score/min", "response_length/min"),
    "range": ("global_seqlen/minmax_diff",),
    "last": ("training/global_step", "actor/lr"),
}


def aggregated_name(inputs: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> str:
    """Return the metric that a scenario reports. The number of samples selects one of several names."""
    several = names[inputs["statistic"]]
    return several[sum(map(len, inputs["parts"])) % len(several)]


def reported_of_part(name: str, statistic: str, part: list[float]) -> dict[str, float]:
    """Return the metrics of one training step, whose samples have the values of ``part``."""
    if statistic == "range":
        of_parts = {"max": max(part), "min": min(part), "minmax_diff": max(part) - min(part)}
        return {f"global_seqlen/{end}": value for end, value in of_parts.items()}
    reads: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min, "last": itemgetter(-1)}
    value = reads[statistic](part) if statistic in reads else sum(part) / len(part)
    if name.endswith("evicted_samples_staleness/mean"):  # weighted by the number of evicted samples
        return {name: value, name.removesuffix("_staleness/mean"): float(len(part))}
    return {name: value}


def _aggregate_metrics(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    aggregator, chosen = boundary.owner(), inputs["statistic"]
    name = aggregated_name(inputs, _METRIC_NAMES)
    for number, part in enumerate(inputs["parts"]):
        metrics = reported_of_part(name, chosen, part)
        # Booleans are not reported. Every other step reports tensors.
        made = {key: torch.tensor(value) if number % 2 else value for key, value in metrics.items()}
        aggregator.add_step_metrics({"is_last": True, **made}, sample_count=len(part))
    aggregated = boundary.function(aggregator)
    if "is_last" in aggregated:
        raise ValueError("a boolean was aggregated")
    return {"mean": aggregated[name]}


def _split_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    import tensordict

    mask = inputs["attention_mask"]
    places = torch.arange(len(mask))
    batch = tensordict.TensorDict({"attention_mask": mask, "input_ids": mask, "places": places}, batch_size=[len(mask)])
    options = _rules_for_microbatches(boundary, inputs)
    parts, places_of = boundary.function(batch, max_token_len=inputs["max_tokens_per_microbatch"], **options)
    rows = [part["places"].tolist() for part in parts]
    right = rows == [list(part) for part in places_of]
    if "force_group_size" in options:
        right &= all(row ^ 1 in part for part in rows for row in part)
    # No microbatches are returned if verl reports other rows than they contain, separates a pair, or makes too few.
    return {"parts": rows if right and len(rows) >= options.get("min_num_micro_batch", 1) else []}


def _rules_for_microbatches(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return further rules that verl's microbatches must obey.

    Without stages, the rows of a pair stay together if any two rows fit into a microbatch. Otherwise, there are at
    least two microbatches.
    """
    rows, width = inputs["attention_mask"].shape
    if inputs["stages"] > 1:
        return {"num_batches_divided_by": inputs["stages"]}
    rules = {}
    if rows % 2 == 0 and inputs["max_tokens_per_microbatch"] >= rows * width:
        rules = {"force_group_size": 2}
    elif rows > 1:
        rules = {"min_num_micro_batch": 2}
    return {name: value for name, value in rules.items() if name in boundary.parameters}


def _collate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    module = boundary.module
    collator = boundary.owner(pad_mode=module.DatasetPadMode.NO_PADDING)
    batch = boundary.function(collator, inputs["samples"])
    fields = {name: (field.values(), field.offsets().tolist()) for name, field in batch.items()}
    return {
        "samples": [
            {name: packed[..., ends[row] : ends[row + 1]] for name, (packed, ends) in fields.items()}
            for row in range(min(len(ends) for _, ends in fields.values()) - 1)
        ]
    }


def _truncate_message(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    modes = getattr(boundary.module, "DatasetPadMode", None)
    if modes is None or not hasattr(boundary.owner, "_process_single_message"):
        raise AbsentError("this version has no DatasetPadMode or no method _process_single_message")
    ids, mask = (torch.tensor(inputs[name]) for name in ("token_ids", "loss_mask"))
    item = _item_of_row(
        boundary,
        {},
        _build_messages=lambda row: [{"role": "user", "content": "tokens"}],
        _process_single_message=lambda **_: (ids, mask, torch.ones_like(ids), {}),
        sanity_check=lambda *_: None,
        tokenizer=kit.stand_in(pad_token_id=0),
        pad_mode=modes("right" if inputs["padded"] else "no_padding"),
        max_length=inputs["max_length"],
        truncation=inputs["side"],
    )
    there = item["attention_mask"].bool() if inputs["padded"] else slice(None)
    return {"token_ids": item["input_ids"][there].tolist(), "loss_mask": item["loss_mask"][there].tolist()}


def _item_of_row(boundary: Any, row: Mapping[str, Any], **attributes: Any) -> Any:
    lacks = dict.fromkeys(("processor", "tools", "enable_thinking", "enable_thinking_default"))
    frame = kit.stand_in(iloc=[kit.stand_in(to_dict=lambda: dict(row))])
    with kit.swap(boundary.module, "print_assembled_message", lambda *_: None):
        return boundary.function(kit.make_unbuilt(boundary.owner, dataframe=frame, **lacks, **attributes), 0)


class _NeedsUser:
    """A tokenizer whose chat template rejects chats without a user message, as the template of Qwen3.5 does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        if all(message["role"] != "user" for message in messages):
            raise ValueError("the chat has no user message")
        return self._tokenizer.apply_chat_template(messages, **options)


def _trained_tokens(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat's token ids, and the mask of the tokens that receive a gradient in verl.

    If the number of messages is odd, the template rejects chats without a user message.
    """
    modes = getattr(boundary.module, "DatasetPadMode", None)
    if modes is None or not hasattr(boundary.module, "extract_system_prompt_and_generation"):
        raise AbsentError("this version has no DatasetPadMode or no function extract_system_prompt_and_generation")
    tokenizer, messages = chat(inputs)
    templates = getattr(boundary.module, "apply_chat_template", None)
    handles = templates is not None and "dummy_user" in kit.source_of(templates)
    if (
        handles
        and len(messages) % 2
        and not inputs["default_system"]
        and any(one["role"] == "user" for one in messages)
    ):
        tokenizer = _NeedsUser(tokenizer)
    system, generation = boundary.module.extract_system_prompt_and_generation(tokenizer)
    item = _item_of_row(
        boundary,
        {"messages": messages},
        tokenizer=tokenizer,
        messages_key="messages",
        **{f"{name}_key": f"{name}s" for name in ("image", "video")},
        apply_chat_template_kwargs={},
        ignore_input_ids_mismatch=False,
        system_prompt=system,
        generation_prompt=generation,
        pad_mode=modes("no_padding"),
        max_length=inputs["max_tokens"] or 1000,
        truncation="right",
    )
    return {"token_ids": item["input_ids"], "loss_mask": learned(boundary, item)}


def _draw_after_bootstrap(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a random number twice with the same seed: without and after a call of verl's bootstrap.

    The numbers differ if the bootstrap changes numpy's global generator.
    """
    import numpy

    arguments = inputs["arguments"]
    numpy.random.seed(arguments["seed"])
    without = numpy.random.random_sample()
    numpy.random.seed(arguments["seed"])
    boundary.function(arguments["values"], subset_size=arguments["subset_size"], reduce_fns=[numpy.mean])
    return {"returned": {"without": without, "after": numpy.random.random_sample()}}


def _report_batch(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    advantages, mask = inputs["advantages"], inputs["response_mask"]
    tensors = {
        name: advantages if inputs[name] is None else inputs[name] for name in ("advantages", "returns", "values")
    }
    tensors |= {name: torch.zeros_like(advantages) for name in ("token_level_scores", "token_level_rewards")}
    tensors |= {
        "prompts": torch.zeros_like(mask[:, :1]),
        "responses": torch.zeros_like(mask),
        "response_mask": mask,
        "attention_mask": torch.cat((torch.ones_like(mask[:, :1]), mask), dim=-1),
    }
    metrics = boundary.function(_proto(boundary, tensors))
    return {name.removeprefix("critic/").replace("/", "_"): value for name, value in metrics.items()}


#: The contract's estimator -> the estimator's name in verl, if they differ.
_ESTIMATORS = {"optimal_token_baseline": "tir_optimal_token_baseline"}
#: The contract's input -> the column of verl's batch that only some estimators read.
_COLUMNS = {
    "reward_baselines": "reward_baselines",
    "old_log_probs": "old_log_probs",
    "sum_squared_probs": "sum_pi_squared",
}


def _compute_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute group-based advantages with the function that verl's trainer calls.

    Versions whose batches have no response mask derive it from the attention mask. Here, both masks are equal, because
    the batch has no prompt tokens.
    """
    if "gamma" in boundary.parameters and boundary.parameters["gamma"].default is boundary.parameters["gamma"].empty:
        raise AbsentError("this version has no advantage estimator other than GAE")
    if "norm_adv_by_std_in_grpo" not in boundary.parameters and not inputs["norm_by_std"]:
        raise AbsentError("this version's GRPO always divides by the standard deviation")
    mask = inputs["response_mask"]
    tensors = {name: inputs[name] for name in ("token_level_rewards", "response_mask")}
    tensors |= {"responses": mask, "attention_mask": mask}
    tensors |= {column: inputs[name] for name, column in _COLUMNS.items() if inputs[name] is not None}
    data = _proto(boundary, tensors, non_tensors={"uid": _numpy(inputs["group"])})
    estimator = _ESTIMATORS.get(inputs["estimator"], inputs["estimator"]) or "grpo"
    if estimator != "grpo" and not _lists_estimator(boundary, estimator):
        raise AbsentError(f"this version's trainer has no estimator {estimator!r}")
    batch = boundary.invoke({}, data=data, adv_estimator=estimator, norm_adv_by_std_in_grpo=inputs["norm_by_std"])
    return {name: batch.batch[name] for name in ("advantages", "returns")}


def _advantages_of_sessions(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the advantages of sessions with two outputs. The first output has another reward, which does not count.

    verl assigns the advantage of a session's last output to all its outputs.
    """
    if not (inputs["response_mask"] != 0).any(-1).all():
        raise AbsentError("the scenario has a response without a token, but every output of a session has one")
    rows, mask = len(inputs["group"]), inputs["response_mask"]
    # In verl's v1 trainer, tokens outside of responses have no reward.
    rewards = torch.where(mask != 0, inputs["token_level_rewards"], 0.0)
    tensors = {
        "token_level_rewards": torch.cat([1 + rewards.flip(0), rewards]),
        "response_mask": torch.cat([mask, mask]),
    }
    data = _proto(boundary, tensors, non_tensors={"uid": _numpy(list(inputs["group"]) * 2)})
    keys = [f"{name}_{row}_{output}" for output in range(2) for row, name in enumerate(inputs["group"])]
    batch = boundary.invoke(
        {}, data=data, batch_keys=keys, adv_estimator="grpo", norm_adv_by_std_in_grpo=inputs["norm_by_std"]
    )
    whole = {name: batch.batch[name] for name in ("advantages", "returns")}
    same = torch.equal(whole["advantages"][:rows], whole["advantages"][rows:])
    return {name: values[rows:] if same else values[:rows] for name, values in whole.items()}


def _lists_estimator(boundary: Any, estimator: str) -> bool:
    """Return True if this version's trainer finds the estimator in a registry, in which it is registered."""
    return estimator in getattr(getattr(boundary.module, "core_algos", None), "ADV_ESTIMATOR_REGISTRY", {})


def _compute_returns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute REINFORCE++ advantages with the function that verl's trainer calls."""
    if not _lists_estimator(boundary, "reinforce_plus_plus"):
        raise AbsentError("this version's trainer has no registry of estimators")
    data = _proto(boundary, {name: inputs[name] for name in ("token_level_rewards", "response_mask")})
    config = kit.Named(gamma=inputs["gamma"])
    batch = boundary.invoke({}, data=data, adv_estimator="reinforce_plus_plus", config=config)
    return {name: batch.batch[name] for name in ("advantages", "returns")}


def _compute_gae(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute GAE with the function that verl's trainer calls. The batch has no prompts, and no response mask."""
    if "config" not in boundary.parameters:
        raise AbsentError("this version's trainer derives GAE's mask in another way")
    mask = inputs["response_mask"]
    tensors = {name: inputs[name] for name in ("token_level_rewards", "values")}
    data = _proto(boundary, {**tensors, "responses": mask, "attention_mask": mask})
    names = kit.take_inputs(inputs, "gamma", "lam")
    batch = boundary.invoke({}, data=data, adv_estimator="gae", config={}, **names)
    return {name: batch.batch[name] for name in ("advantages", "returns")}


def _number_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    labels = inputs["labels"]
    # An odd number of numeric labels is passed as a tensor.
    if len(labels) % 2 and labels.dtype != object:
        labels = torch.from_numpy(labels)
    return {"numbers": boundary.function(labels, device="cpu")}


def _filter_groups(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of the groups that verl's dynamic sampling keeps."""
    rewards, groups = inputs["rewards"].tolist(), kit.rows_of_groups(inputs["group"])
    rows = {f"{number}_{row}_0": row for number, part in enumerate(groups) for row in part}

    def read(keys: list[str], **_: Any) -> dict[str, Any]:
        return {"extra_fields": [{"reward_extra_info": {"score": rewards[rows[key]]}} for key in keys]}

    buffer = kit.stand_in(
        filter_groups_metric="score",
        partitions={"train": dict.fromkeys(rows)},
        finished_keys={"train": {str(number) for number in range(len(groups))}},
        _dapo_classification_cache={"train": {}},
    )
    with kit.swap(boundary.module, "tq", kit.stand_in(kv_batch_get=read)):
        evicted = boundary.function(buffer, "train")
    evicted = evicted[0] if isinstance(evicted, tuple) else evicted
    numbers = sorted(row for number, part in enumerate(groups) if str(number) not in evicted for row in part)
    return {"numbers": numbers, "rewards": [rewards[row] for row in numbers]}


_DATA = (
    Binding(
        "verl.trainer.ppo.v1.replay_buffer.ReplayBuffer._dapo_filtered_keys", "group_filter", call=_filter_groups,
        requires=("verl.trainer.ppo.v1.replay_buffer.ReplayBuffer._dapo_filtered_keys",), stand_ins=(_STORE,),
        dialects=(
            Dialect(
                "group_of_one", "kept", "a response alone in its group is kept",
                f"{MAIN}/trainer/ppo/v1/replay_buffer.py#L292",
            ),
        ),
    ),
    Binding(f"{_PROTOCOL}.DataProto.select_idxs", "call", call=_select_rows, imports=(_PROTOCOL,)),
    Binding(
        f"{_BALANCING}.rearrange_micro_batches", "microbatch_packing", call=_split_batch,
        accepts={"attention_mask": ("full", "right"), "stages": (1, 2)},
    ),
    Binding(
        f"{_DATASETS}.dataset_utils.SFTTensorCollator.collate_variable_batch", "collation", call=_collate,
        fixed={"layouts": _FIELDS},
    ),
    Binding(
        f"{_DATASETS}.multiturn_sft_dataset.MultiTurnSFTDataset.__getitem__", "truncation", call=_truncate_message,
        stand_ins=(_DATASET, _TOKENS),
    ),
    # Tool results have turns of their own. A template that puts several of them into one turn renders a whole chat
    # differently from its single messages, and verl rejects such a template.
    Binding(
        f"{_DATASETS}.multiturn_sft_dataset.MultiTurnSFTDataset.__getitem__", "trained_tokens", call=_trained_tokens,
        imports=LEARNING, requires=LEARNING, stand_ins=(_DATASET, _TOKENS, ENGINE, CPU),
        fixed={"trains": "all", "tools_share_a_turn": False},
        dialects=(
            Dialect(
                "after_the_end", "counted", "the newline after the end of an answer is trained too",
                f"{MAIN}/utils/dataset/multiturn_sft_dataset.py#L235",
            ),
            Dialect(
                "untrained", "kept", "a chat without a trained token is kept",
                f"{MAIN}/utils/dataset/multiturn_sft_dataset.py#L377",
            ),
        ),
    ),
    Binding(f"{_METRICS}.bootstrap_metric", "call", call=_draw_after_bootstrap),
    Binding(
        "verl.trainer.ppo.v1.utils.MetricsAggregator.get_aggregated_metrics", "mean_of_parts", call=_aggregate_metrics,
        fixed={"missing": False}, accepts={"statistic": tuple(_METRIC_NAMES)},
    ),
    Binding(
        f"{_METRICS}.compute_data_metrics", "batch_report", formerly=(f"{_TRAINER}.compute_data_metrics",),
        call=_report_batch, imports=(_PROTOCOL,),
    ),
    Binding(
        "verl.utils.groupwise.as_torch_index", "group_numbers", outputs=("numbers",),
        call=_number_groups,
    ),
    Binding(
        f"{_TRAINER}.compute_advantage", "group_advantage", call=_compute_advantages, imports=(_PROTOCOL,),
        fixed={"epsilon": None},
        accepts={"estimator": ("grpo", "rloo", "opo", "remax", "optimal_token_baseline")},
        dialects=(
            Dialect(
                "group_of_one", "score", "a response alone in its group has the baseline 0",
                f"{MAIN}/trainer/ppo/core_algos.py#L316",
            ),
        ),
    ),
    Binding(
        "verl.trainer.ppo.v1.utils.compute_advantage_for_multi_trajectories", "group_advantage",
        formerly=("verl.trainer.main_ppo_sync.compute_advantage_for_multi_trajectories",),
        call=_advantages_of_sessions, imports=(_PROTOCOL,), fixed={"estimator": "grpo", "epsilon": None},
        dialects=(
            Dialect(
                "group_of_one", "score", "a response alone in its group has the baseline 0",
                f"{MAIN}/trainer/ppo/core_algos.py#L316",
            ),
        ),
    ),
    Binding(
        f"{_TRAINER}.compute_advantage", "discounted_return", call=_compute_returns, imports=(_PROTOCOL,),
        fixed={"kl": None, "kl_coef": 0.0},
        dialects=(
            Dialect(
                "whiten", True, "the estimator whitens its returns over the batch",
                f"{MAIN}/trainer/ppo/core_algos.py#L728",
            ),
        ),
    ),
    Binding(
        f"{_TRAINER}.compute_advantage", "generalised_advantage", call=_compute_gae, imports=(_PROTOCOL,),
        dialects=(
            Dialect(
                "whiten", True, "the estimator whitens its advantages over the batch",
                f"{MAIN}/trainer/ppo/core_algos.py#L262",
            ),
        ),
    ),
)  # fmt: skip


# -- small functions of tensors: log-probs and entropies, masks, padding, truncation -----------------------------------

_TORCH = "verl.utils.torch_functional"


def _entropies(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # The contract also needs log-probs with a gradient. Another function of the same module computes them.
    logits = inputs["logits"]
    rows, tokens, size = logits.shape
    log_probs = boundary.module.logprobs_from_logits_naive(logits, inputs["token_ids"])
    entropy = boundary.function(logits.reshape(rows * tokens, size)).reshape(rows, tokens)
    return {"log_probs": log_probs, "entropy": entropy}


def _logits(function: str, call: Any, with_entropy: bool) -> Binding:
    fixed = {"temperature": 1.0, "with_entropy": with_entropy}
    return Binding(f"{_TORCH}.{function}", "token_log_probs", call=call, fixed=fixed)


def _cut_response_mask(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    places = torch.arange(inputs["response_length"])
    there = (places[None, :] < inputs["lengths"][:, None]).long()
    tensors = {"responses": inputs["responses"], "attention_mask": torch.cat((inputs["prompt_mask"], there), dim=-1)}
    data = boundary.imported[_PROTOCOL].DataProto.from_dict(tensors=tensors)
    return {"response_mask": boundary.function(data)}


def _pad_and_truncate(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ids = torch.tensor([inputs["token_ids"]])
    padded, there = boundary.function(
        ids, torch.ones_like(ids), inputs["max_length"], 0, left_pad=True, truncation=inputs["side"]
    )
    return {"token_ids": padded[0][there[0].bool()].tolist()}


_KERNELS = (
    _logits("logprobs_from_logits", kit.call_log_probs, False),
    _logits("logprobs_from_logits_naive", kit.call_log_probs, False),
    _logits("logprobs_from_logits_v2", kit.call_log_probs, False),
    _logits("entropy_from_logits", _entropies, True),
    _logits("entropy_from_logits_with_chunking", _entropies, True),
    Binding(
        f"{_TORCH}.get_response_mask", "response_masks", arguments={"eos_token_id": ("eos_token",)},
        outputs=("response_mask",), call=partial(kit.call_with, leading=("responses",), takes=("eos_token_id",)),
    ),
    Binding(f"{_TRAINER}.compute_response_mask", "response_masks", call=_cut_response_mask, imports=(_PROTOCOL,)),
    Binding(
        f"{_TORCH}.pad_sequence_to_length", "column_padding", arguments={"side": ("left_pad",)}, outputs=("padded",),
        call=partial(
            kit.call_with, leading=("values", "length", "pad_value"),
            values_of={"side": {"left": True, "right": False}},
        ),
    ),
    # Required, because older versions lack this function: they tokenize and truncate in one function.
    Binding(
        f"{_TORCH}.postprocess_data", "truncation", call=_pad_and_truncate, requires=(f"{_TORCH}.postprocess_data",),
        fixed={"padded": True},
    ),
)  # fmt: skip


BINDINGS = (*_DATA, *_KERNELS)
