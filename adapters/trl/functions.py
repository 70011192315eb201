"""Bindings for those functions of TRL that take tensors, and for its collators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import LAYOUTS, MASKED_STATISTICS, PREFERENCE_LOSS, aggregated
from sentinel.binding.kit import torch

CODE = "https://github.com/huggingface/trl/blob/f2cd57710ae345ea6428ae95363267fcf38a3dc8/trl"  # July 2026
_OWN, _UTILS, _SFT = "trl.experimental", "trl.trainer.utils", "trl.trainer.sft_trainer"
_PPO, _MORE = f"{_OWN}.ppo.ppo_trainer", f"{_OWN}.utils"
_CPO, _ORPO, _BCO = (f"{_OWN}.{name}.{name}_trainer.{name.upper()}Trainer" for name in ("cpo", "orpo", "bco"))
_DISTILLED = {name: f"{_OWN}.{name}.{name}_trainer" for name in ("gkd", "gold", "distillation", "iw_opd")}
_SERVED = f"{_OWN}.server_distillation.server_distillation_trainer"
_MINI = f"{_OWN}.minillm.minillm_trainer.MiniLLMTrainer"
_FLOATS = ("float32", "float64")
_ROWS = ("full", "right")


def _finite(line: str) -> Dialect:
    return Dialect(
        "masked_values_have_no_influence", None, "values are multiplied by the mask; masked values are finite",
        f"{CODE}/{line}", symptom="non-finite",
    )  # fmt: skip


def _needs(boundary: Any, *keys: str) -> None:
    """Exclude versions of TRL whose function does not use these names.

    :raises AbsentError: if the function's source lacks one of them.
    """
    source = kit.source_of(boundary.function)
    if missing := [key for key in keys if key not in source]:
        raise AbsentError(f"not in this version: {missing[0]}")


# -- log-probs, and losses of logits -----------------------------------------------------------------------------------


def _log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs and entropies that a TRL trainer computes. A stand-in model returns the scenario's logits
    for two rows at a time.
    """
    logits, ids = inputs["logits"], inputs["token_ids"]
    parts = (part.clone() for part in torch.nn.functional.pad(logits, (0, 0, 1, 1)).split(2))
    trainer = kit.make_unbuilt(
        boundary.owner,
        temperature=inputs["temperature"],
        model_kwarg_keys=(),
        _entropy_bonus_enabled=False,
        args=kit.bookkeeping(report_to=[]),
        accelerator=kit.make_one_process(boundary.device),
    )
    ids = torch.nn.functional.pad(ids, (2, 0))
    asked: dict[str, Any] = {"compute_entropy": True} if inputs["with_entropy"] else {}
    told = boundary.function(
        trainer, lambda **_: kit.stand_in(logits=next(parts)), ids, torch.ones_like(ids), logits.shape[1], 2, **asked
    )
    return {"log_probs": told[0], "entropy": told[1]}


def _divergence(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the divergence of logits. Masked tokens have the label -100."""
    labels = torch.where(inputs["response_mask"] != 0, 1, -100)
    return kit.call_with(
        boundary,
        {**inputs, "labels": labels},
        leading=("logits", "teacher_logits", "labels"),
        takes=("beta", "temperature", "batch_num_tokens"),
        since={"batch_num_tokens": None},
        reads={"loss": ()},
    )


def _each_token(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean divergence of log-probs. The support of the divergence is the whole vocabulary."""
    support = torch.ones_like(inputs["logits"], dtype=torch.bool)
    return kit.call_divergence(boundary, inputs, of_logits=False, support_mask=support)


def _top(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean divergence of logits over the student's top-k tokens. Here these tokens are the whole
    vocabulary."""
    size = inputs["logits"].shape[-1]
    options = {"distillation_topk": size, "distillation_add_tail": False}
    return kit.call_divergence(boundary, inputs, of_logits=True, **options)


def _reverse(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reverse KL that TRL's MiniLLM trainer computes."""
    mask = inputs["response_mask"] != 0
    if not mask.any():
        raise AbsentError("the trainer's batches have at least one valid token; this scenario has none")
    both = [torch.where(mask[..., None], inputs[name], 0.0).log_softmax(-1) for name in ("logits", "teacher_logits")]
    return {"loss": boundary.function(kit.make_unbuilt(boundary.owner), *both, mask=mask)}


def _mini_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of a whole step of TRL's MiniLLM trainer. The adapter replaces the loss on rewards by 0, so only
    the reverse KL remains.
    """
    mask = (inputs["response_mask"] != 0).long()
    if not mask.any():
        raise AbsentError("the trainer's batches have at least one valid token; this scenario has none")
    ours, teacher = (torch.nn.functional.pad(inputs[name], (0, 0, 0, 1)) for name in ("logits", "teacher_logits"))
    trainer = kit.make_unbuilt(
        boundary.owner, kd_temperature=inputs["temperature"], rkl_advantage=False, single_step_decomposition=True,
        teacher_model=torch.nn.Identity(), _compute_loss=lambda *_: torch.zeros(()),
    )  # fmt: skip
    trainer.teacher_model.forward = lambda **_: kit.stand_in(logits=teacher)
    prompt, ids = torch.ones_like(mask[:, :1]), torch.zeros_like(mask)
    batch = {"prompt_ids": prompt, "completion_ids": ids, "prompt_mask": prompt, "completion_mask": mask}
    return {"loss": boundary.function(trainer, lambda **_: kit.stand_in(logits=ours), batch)}


def _chunked(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's chunked supervised loss. The head is the identity matrix, so the hidden states are the logits."""
    logits = inputs["logits"]
    return {"loss": boundary.invoke(
        kit.take_inputs(inputs, "labels", "batch_num_tokens"), logits, torch.eye(logits.shape[-1]).to(logits), 3
    )[0]}  # fmt: skip


def _reduced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean that TRL's function computes from one value per token. In TRL, its caller first sums over the
    vocabulary."""
    mask, count = inputs["response_mask"] != 0, inputs["batch_num_tokens"]
    _needs(boundary, "num_items_in_batch")
    marked = {"completion_mask": mask.long(), "labels": torch.where(mask, 1, -100)}
    total = None if count is None else torch.tensor(count)
    return {"loss": boundary.invoke({}, inputs["loss_mat"], **marked, num_items_in_batch=total)}


def _clipped(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's importance weights. The adapter passes a loss of 1 per token, so the weighted loss equals the
    weight."""
    ones = torch.ones_like(inputs["old_log_probs"])
    told = boundary.function(ones, inputs["old_log_probs"], inputs["rollout_log_probs"], inputs["threshold_high"])
    return {"weights": told}


def _rewarded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advantages of TRL's MiniLLM trainer. The adapter passes rewards as the teacher's log-probs, and 0
    as the student's.
    """
    rewards = inputs["token_level_rewards"]
    trainer = kit.make_unbuilt(boundary.owner, gamma=inputs["gamma"], length_normalization=False)
    told = boundary.function(trainer, torch.zeros_like(rewards), rewards, inputs["response_mask"])
    return {"returns": told, "advantages": told}


_BETA = {"beta": ("beta", "alpha", "distillation_alpha"), "batch_num_tokens": ("num_items_in_batch",)}
_TOKEN_MEAN = {**aggregated("token-mean"), "weights": None}
_LOCAL: dict[str, Any] = {"batch_num_tokens": None, "temperature": 1.0}


def _distils(path: str, call: Callable[..., Any], **fixed: Any) -> Binding:
    accepts = {"response_mask": _ROWS}
    return Binding(path, "distillation_loss", call=call, arguments=_BETA, fixed=fixed, accepts=accepts, dtypes=_FLOATS)


def _logits(path: str, call: Callable[..., Any], **more: Any) -> Binding:
    more["fixed"] = {"temperature": 1.0, "with_entropy": False, **more.get("fixed", {})}
    return Binding(path, "token_log_probs", call=call, dtypes=_FLOATS, **more)


_OF_LOGITS = (
    _logits(f"{_UTILS}.selective_log_softmax", kit.call_log_probs),
    _logits(
        f"{_UTILS}.entropy_from_logits", partial(kit.call_entropy, "selective_log_softmax"),
        fixed={"with_entropy": True},
    ),
    *(_logits(f"{owner}.get_batch_logps", kit.call_sums_of_log_probs) for owner in (_CPO, _ORPO, _BCO)),
    *(
        Binding(
            f"trl.trainer.{name.lower()}_trainer.{name}Trainer._get_per_token_logps_and_entropies", "token_log_probs",
            call=_log_probs, dtypes=_FLOATS, stand_ins=(StandIn("model", "returns the scenario's logits"),),
        )
        for name in ("GRPO", "RLOO")
    ),
    *(
        _distils(f"{_DISTILLED[name]}.{owner}.generalized_jsd_loss", _divergence)
        for name, owner in (
            ("gkd", "GKDTrainer"), ("gold", "GOLDTrainer"), ("distillation", "DistillationTrainer"),
            ("iw_opd", "IWOPDTrainer"),
        )
    ),
    *(
        _distils(f"{module}._jsd_divergence", _each_token, **_LOCAL)
        for module in (_DISTILLED["distillation"], _DISTILLED["iw_opd"], _SERVED)
    ),
    *(
        _distils(f"{_OWN}.{name}.loss_utils.{function}", call, **_LOCAL)
        for name in ("sdft", "sdpo")
        for function, call in (
            ("compute_divergence", partial(kit.call_divergence, of_logits=False)),
            ("compute_full_logit_self_distillation_loss", partial(kit.call_divergence, of_logits=True)),
            ("compute_topk_self_distillation_loss", _top),
        )
    ),
    _distils(f"{_MINI}._single_step_decomposition_loss", _reverse, beta=1.0, **_LOCAL),
    _distils(f"{_MINI}.compute_loss", _mini_step, beta=1.0, batch_num_tokens=None),
    *(
        Binding(
            f"{module}._reduce_divergence_loss", "loss_aggregation", call=_reduced,
            fixed={name: value for name, value in _TOKEN_MEAN.items() if name != "batch_num_tokens"},
        )
        for module in (
            f"{_DISTILLED['distillation']}.DistillationTrainer", f"{_DISTILLED['iw_opd']}.IWOPDTrainer",
            f"{_SERVED}.ServerDistillationTrainer",
        )
    ),
    *(
        Binding(
            f"{_OWN}.{name}.loss_utils.apply_importance_sampling_clipping", "importance_weight", call=_clipped,
            fixed={"mode": "truncate", "level": "token", "threshold_low": None, "normalise": None},
            dialects=(
                Dialect(
                    "log_ratio_clamp", 20.0, "the log-ratio is clamped to [-20, 20]",
                    f"{CODE}/experimental/{name}/loss_utils.py#L63",
                ),
            ),
        )
        for name in ("sdft", "sdpo")
    ),
    Binding(f"{_SFT}._chunked_cross_entropy_loss", "supervised_loss", call=_chunked,
            arguments={"batch_num_tokens": ("num_items_in_batch",)}, dtypes=("float32",)),
    # The discount is 1 or 0, because the function raises other discounts to the power of the absolute position.
    Binding(
        f"{_MINI}._compute_advantage", "discounted_return", call=_rewarded,
        fixed={"kl": None, "kl_coef": 0.0}, accepts={"gamma": (1.0, 0.0)},
        dialects=(_finite("experimental/minillm/minillm_trainer.py#L327"),),
    ),
)  # fmt: skip

# -- losses of pairs ---------------------------------------------------------------------------------------------------


def _cpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's CPO loss of pairs, without its term for the chosen responses."""
    averages = _sums_of_pairs(boundary.owner.get_batch_logps, inputs, inputs["loss_type"] == "ipo")
    options = {"loss_type": inputs["loss_type"], "beta": inputs["beta"], "alpha": 0.0}
    options["label_smoothing"] = inputs["label_smoothing"]
    trainer = kit.make_unbuilt(boundary.owner, accelerator=kit.make_one_process(boundary.device), **options)
    return {"loss": boundary.function(trainer, *averages)[0].mean()}


def _sums_of_pairs(log_probs: Callable[..., Any], inputs: Mapping[str, Any], average: bool) -> Any:
    """Return the log-probs that TRL computes for the chosen and the rejected responses: sums, or means over tokens."""
    table, mask = (kit.join_both_sides(inputs, name) for name in ("log_probs", "mask"))
    labels = torch.nn.functional.pad(torch.where(mask != 0, 1, -100), (1, 0), value=-100)
    logits = torch.nn.functional.pad(kit.two_token_logits(torch.where(table < 0, table, -1.0)), (0, 0, 0, 1))
    return log_probs(logits, labels, average_log_prob=average).chunk(2)


def _xpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's XPO loss without its exploration term. In every second pair, the model's response is the chosen
    one."""
    valid, names = kit.join_both_sides(inputs, "mask") != 0, ("log_probs", "ref_log_probs")
    columns = [torch.where(valid, kit.join_both_sides(inputs, name), 0.0).chunk(2) for name in names]
    chosen = torch.arange(len(columns[0][0])) % 2 == 0
    (model, other), (reference, its) = (
        (torch.where(chosen[:, None], *pair), torch.where(chosen[:, None], *reversed(pair))) for pair in columns
    )
    trainer = kit.make_unbuilt(boundary.owner, args=kit.stand_in(loss_type="sigmoid", alpha=0.0, beta=inputs["beta"]))
    vars(trainer).update(state=kit.stand_in(epoch=0), _alpha=[0.0], _beta=[inputs["beta"]])
    return {"loss": boundary.function(trainer, model, other, its, reference, chosen)[0]}


_OF_TWO = (
    Binding(
        f"{_CPO}.cpo_loss", "preference_loss", call=_cpo_loss, fixed={"ld_alpha": None},
        dialects=(
            Dialect("reference", "none", "CPO has no reference", f"{CODE}/experimental/cpo/cpo_trainer.py#L677"),
        ),
    ),
    Binding(
        f"{_OWN}.xpo.xpo_trainer.XPOTrainer._compute_losses", "preference_loss", call=_xpo_loss,
        fixed={**PREFERENCE_LOSS.lacking("beta"), "loss_type": "sigmoid"},
    ),
)  # fmt: skip

# -- padding, masks, batches -------------------------------------------------------------------------------------------


def _statistic(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a statistic that TRL computes.

    :raises AbsentError: if the statistic is NaN because there are too few tokens; TRL's comments exclude such batches.
    """
    counts, least = (inputs["response_mask"] != 0).sum(-1), 1 if inputs["statistic"] == "mean" else 2
    if int(counts.min() if inputs["axis"] else counts.sum()) < least:
        raise AbsentError(f"the trainer's batches have at least {least} valid tokens; this scenario has fewer")
    return kit.call_with(boundary, inputs, values_of={"axis": kit.AXIS})


def _ended(reads: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's mask of the tokens up to the stop token."""
    return {"response_mask": reads(boundary, inputs["responses"], inputs["eos_token_id"])}


def _flushed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Shift left-padded rows to the left with TRL's function, and return their tokens."""
    tokens, mask = kit.lay_out([sample["tokens"] for sample in inputs["samples"]], left=True)
    mask, tokens = boundary.function(mask, tokens)
    lengths = mask.sum(-1).tolist()
    return {"samples": [{"tokens": row[:length]} for row, length in zip(tokens, lengths)]}


def _read(ids: Any, there: Any) -> Any:
    return ids[there.bool()]


def _labelled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    _needs(boundary, '.get("labels"')
    batch = boundary.function(boundary.owner(pad_token_id=0), _lists(inputs))
    labels = [row[row != -100] for row in batch["labels"]]
    ids = map(_read, batch["input_ids"], batch["attention_mask"])
    return _samples(inputs, ({"input_ids": row, "labels": label} for row, label in zip(ids, labels)))


def _lists(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert samples to lists. Each field gets a different offset, so that swapped fields are detected."""
    return [
        {name: (value + 1000 * place).tolist() for place, (name, value) in enumerate(sample.items())}
        for sample in inputs["samples"]
    ]


def _samples(inputs: Mapping[str, Any], found: Any) -> dict[str, Any]:
    """Convert samples back, without the offsets of :func:`_lists`."""
    places = {name: 1000 * place for place, name in enumerate(inputs["samples"][0])}
    return {"samples": [{name: value - places[name] for name, value in sample.items()} for sample in found]}


def _sided(sides: tuple[str, ...], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate prompts with one or more answers. The batch has the first answers of all prompts, then the second ones,
    and so on.
    """
    rows = _lists(inputs)
    _needs(boundary, *rows[0])
    batch = boundary.function(boundary.owner(pad_token_id=0), [{"label": True, **row} for row in rows])
    samples: list[dict[str, Any]] = [{} for _ in rows]
    place = {"": 0, "KL_": 0}
    for side in sides:
        prefix = "KL_" if side.startswith("KL_") else ""
        for sample in samples:
            row, place[prefix] = place[prefix], place[prefix] + 1
            ids, there = batch[f"{prefix}input_ids"][row], batch[f"{prefix}attention_mask"][row]
            if f"{prefix}completion_mask" in batch:
                answer = batch[f"{prefix}completion_mask"][row]
                prompt = _read(ids, there * (1 - answer))
                sample["prompt_ids"] = prompt if torch.equal(sample.get("prompt_ids", prompt), prompt) else prompt * 0
                there = answer
            sample[f"{side}_ids"] = _read(ids, there)
    if "margin" in rows[0]:
        samples = [{**sample, "margin": margin} for sample, margin in zip(samples, batch["margin"])]
    return _samples(inputs, samples)


def _padded(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate columns that each have their own padding value."""
    batch = boundary.function(boundary.owner(pad_token_id=-1), _lists(inputs))
    outside = {"prompt_input_ids": -1, "chosen_input_ids": -1, "chosen_labels": -100}
    rows = [
        {name: batch[name][row][batch[name][row] != value] for name, value in outside.items()}
        for row in range(len(inputs["samples"]))
    ]
    scores = batch["ref_chosen_logps"]
    return _samples(inputs, ({**row, "ref_chosen_logps": score} for row, score in zip(rows, scores)))


def _lengthened(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["values"].dtype == torch.bool:
        raise AbsentError("the callers pass integers and floats; the scenario has booleans")
    return {"padded": boundary.function(inputs["values"], inputs["length"], inputs["pad_value"])}


def _split_images(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Split the images of a batch with TRL's function. A sample has as many images as tokens."""
    samples = inputs["samples"]
    lengths = [len(sample["pixel_values"]) for sample in samples]
    pixels = torch.cat([sample["pixel_values"] for sample in samples])
    grids = torch.ones(len(pixels), 3, dtype=torch.long)
    batch = boundary.function({"pixel_values": pixels, "image_grid_thw": grids, "num_images": lengths})
    return {"samples": [{"pixel_values": values} for values in batch["pixel_values"]]}


def _shuffled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Reorder columns with TRL's function. In place of torch's random permutation, a stand-in returns the scenario's
    order."""
    order = torch.tensor(inputs["order"])
    with kit.swap(boundary.module.torch, "randperm", lambda *_, **__: order):
        return {"parts": [boundary.function(dict(inputs["fields"]))], "metas": [inputs["meta"]]}


def _cut(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = boundary.function(dict(inputs["fields"]), inputs["count"])
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _sampled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat rows with TRL's sampler: each row in place (``repeat``), or the whole batch (``tile``)."""
    fields, count = inputs["fields"], inputs["count"]
    rows = len(fields["number"])
    times = (
        {"mini_repeat_count": count}
        if inputs["surgery"] == "repeat"
        else {"mini_repeat_count": 1, "repeat_count": count}
    )
    places = list(boundary.function(boundary.owner(range(rows), batch_size=rows, shuffle=False, **times)))
    columns = {
        name: column[places] if isinstance(column, torch.Tensor) else [column[place] for place in places]
        for name, column in fields.items()
    }
    return {"parts": [columns], "metas": [inputs["meta"]]}


def _layouts(*names: str, **others: Any) -> dict[str, Any]:
    tokens = {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]}
    return {"layouts": {**dict.fromkeys(names, tokens), **others}}


_NUMBER = {"kind": "tensor", "dtype": "float32", "shape": []}
_COLUMNS = {"layouts": {name: LAYOUTS[name] for name in ("number", "tokens", "weights")}}
_COLLATES = (
    (f"{_SFT}.DataCollatorForLanguageModeling.torch_call", _labelled, _layouts("input_ids", "labels")),
    (
        "trl.trainer.reward_trainer.DataCollatorForPreference.torch_call", partial(_sided, ("chosen", "rejected")),
        _layouts("chosen_ids", "rejected_ids", margin=_NUMBER),
    ),
    (
        "trl.trainer.kto_trainer.DataCollatorForUnpairedPreference.torch_call",
        partial(_sided, ("completion", "KL_completion")), _layouts("prompt_ids", "completion_ids", "KL_completion_ids"),
    ),
    (
        f"{_OWN}.tpo.tpo_trainer.DataCollatorForTriplePreference.torch_call",
        partial(_sided, ("chosen", "rejected", "reference")),
        _layouts("prompt_ids", "chosen_ids", "rejected_ids", "reference_ids"),
    ),
    (
        f"{_MORE}.DPODataCollatorWithPadding.__call__", _padded,
        _layouts(
            "prompt_input_ids", "chosen_input_ids", "chosen_labels", ref_chosen_logps=_NUMBER
        ),
    ),
    (f"{_UTILS}.flush_left", _flushed, _layouts("tokens")),
    (f"{_UTILS}.split_pixel_values_by_grid", _split_images, _layouts("pixel_values")),
)  # fmt: skip

_OF_BATCHES = (
    *(
        Binding(
            f"{_PPO}.{name}", "masked_statistics", outputs=("result",), call=_statistic,
            arguments={"response_mask": ("mask",)}, fixed={"statistic": statistic, **MASKED_STATISTICS.lacking(*knobs)},
            dialects=(_finite("experimental/ppo/ppo_trainer.py#L237"),),
        )
        for name, statistic, knobs in (
            ("masked_mean", "mean", ("axis",)), ("masked_var", "var", ("unbiased",)),
            ("masked_whiten", "whiten", ("shift_mean",)),
        )
    ),
    Binding(
        f"{_UTILS}.pad", "column_padding", call=kit.call_padding,
        arguments={"pad_value": ("padding_value",), "side": ("padding_side",)},
    ),
    Binding(
        f"{_MORE}.pad_to_length", "column_padding", call=_lengthened,
        fixed={"side": "right"},
    ),
    Binding(
        f"{_MORE}.truncate_right", "response_masks",
        call=partial(_ended, lambda boundary, ids, stop: boundary.function(ids, stop, 0)[1]),
    ),
    Binding(
        f"{_PPO}.truncate_response", "response_masks",
        call=partial(_ended, lambda boundary, ids, stop: (boundary.function(stop, -1, ids) != -1).long()),
    ),
    *(Binding(path, "collation", call=call, fixed=fixed) for path, call, fixed in _COLLATES),
    Binding(
        f"{_UTILS}.shuffle_sequence_dict", "row_surgery", call=_shuffled, fixed={"surgery": "reorder"},
        stand_ins=(StandIn("torch.randperm", "returns the scenario's order instead of a random one"),),
    ),
    Binding(
        f"{_UTILS}.split_tensor_dict", "row_surgery", call=_cut, fixed={"surgery": "cut", **_COLUMNS},
        accepts={"remainder": (0,)},
    ),
    *(
        Binding(f"{_UTILS}.RepeatSampler.__iter__", "row_surgery", call=_sampled, fixed={"surgery": surgery})
        for surgery in ("repeat", "tile")
    ),
)  # fmt: skip

FUNCTIONS = (*_OF_LOGITS, *_OF_TWO, *_OF_BATCHES)
