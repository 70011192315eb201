"""Bindings for TRL's functions of tensors, and for TRL's collators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
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
#: Where functions were before they moved.
_WAS_GRPO = "trl.trainer.grpo_trainer"
_WAS_MIXIN = f"{_OWN}.self_distillation.self_distillation_mixin.SelfDistillationMixin"


def _finite(line: str) -> Dialect:
    return Dialect(
        "masked_values_have_no_influence", None, "values are multiplied by the mask; masked values are finite",
        f"{CODE}/{line}", symptom="non-finite",
    )  # fmt: skip


def _require_in_source(boundary: Any, *keys: str) -> None:
    source = kit.source_of(boundary.function)
    if missing := [key for key in keys if key not in source]:
        raise AbsentError(f"this version's code of {boundary.path} does not contain {missing[0]!r}")


# -- log-probs, and losses of logits -----------------------------------------------------------------------------------


def _score_with_trainer(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs and entropies that a trainer computes from the scenario's logits, two rows at a time."""
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
        trainer, _model_of(boundary, parts, inputs), ids, torch.ones_like(ids), logits.shape[1], 2, **asked
    )
    return {"log_probs": told[0], "entropy": told[1]}


def _model_of(boundary: Any, parts: Iterator[Any], inputs: Mapping[str, Any]) -> Any:
    """Make a model that returns the next part of the logits at each call."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, **_: Any) -> Any:
            return kit.stand_in(logits=next(parts))

    model = Model()
    if hasattr(boundary.module, "add_fused_lm_head"):  # as the trainer's constructor does
        # With the identity matrix as the output layer, the hidden states are the logits.
        head = kit.stand_in(weight=torch.eye(inputs["logits"].shape[-1]).to(inputs["logits"]), bias=None)
        model.config = kit.stand_in(get_text_config=lambda: None)
        model.base_model = lambda **_: kit.stand_in(last_hidden_state=next(parts))
        model.get_output_embeddings = lambda: head
        boundary.module.add_fused_lm_head(model, inputs["temperature"], outputs=("log_probs", "entropy"))
    return model


def _call_divergence(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    labels = torch.where(inputs["response_mask"] != 0, 1, -100)
    return kit.call_with(
        boundary,
        {**inputs, "labels": labels},
        leading=("logits", "teacher_logits", "labels"),
        takes=("beta", "temperature", "batch_num_tokens"),
        since={"batch_num_tokens": None},
        reads={"loss": ()},
    )


def _divergence_of_log_probs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    support = torch.ones_like(inputs["logits"], dtype=torch.bool)  # the whole vocabulary
    return kit.call_divergence(boundary, inputs, of_logits=False, support_mask=support)


def _divergence_of_top_k(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    size = inputs["logits"].shape[-1]  # the whole vocabulary
    options = {"distillation_topk": size, "distillation_add_tail": False}
    return kit.call_divergence(boundary, inputs, of_logits=True, **options)


def _reverse_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    mask = inputs["response_mask"] != 0
    if not mask.any():
        raise AbsentError("the scenario has no valid token, but every batch of the trainer has at least one")
    both = [torch.where(mask[..., None], inputs[name], 0.0).log_softmax(-1) for name in ("logits", "teacher_logits")]
    return {"loss": boundary.function(kit.make_unbuilt(boundary.owner), *both, mask=mask)}


def _minillm_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss of TRL's MiniLLM trainer. The policy loss is replaced by 0, so that the reverse KL remains."""
    mask = (inputs["response_mask"] != 0).long()
    if not mask.any():
        raise AbsentError("the scenario has no valid token, but every batch of the trainer has at least one")
    ours, teacher = (torch.nn.functional.pad(inputs[name], (0, 0, 0, 1)) for name in ("logits", "teacher_logits"))
    trainer = kit.make_unbuilt(
        boundary.owner, kd_temperature=inputs["temperature"], rkl_advantage=False, single_step_decomposition=True,
        teacher_model=torch.nn.Identity(), _compute_loss=lambda *_: torch.zeros(()),
    )  # fmt: skip
    trainer.teacher_model.forward = lambda **_: kit.stand_in(logits=teacher)
    prompt, ids = torch.ones_like(mask[:, :1]), torch.zeros_like(mask)
    batch = {"prompt_ids": prompt, "completion_ids": ids, "prompt_mask": prompt, "completion_mask": mask}
    return {"loss": boundary.function(trainer, lambda **_: kit.stand_in(logits=ours), batch)}


def _chunked_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    logits = inputs["logits"]  # also the hidden states, because the head is the identity matrix
    return {"loss": boundary.invoke(
        kit.take_inputs(inputs, "labels", "batch_num_tokens"), logits, torch.eye(logits.shape[-1]).to(logits), 3
    )[0]}  # fmt: skip


def _reduce_divergences(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # TRL's function takes one value per token. Its callers sum over the vocabulary.
    mask, count = inputs["response_mask"] != 0, inputs["batch_num_tokens"]
    _require_in_source(boundary, "num_items_in_batch")
    marked = {"completion_mask": mask.long(), "labels": torch.where(mask, 1, -100)}
    total = None if count is None else torch.tensor(count)
    return {"loss": boundary.invoke({}, inputs["loss_mat"], **marked, num_items_in_batch=total)}


def _clip_weights(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    ones = torch.ones_like(inputs["old_log_probs"])  # losses of 1, so that a weighted loss is the weight
    told = boundary.function(ones, inputs["old_log_probs"], inputs["rollout_log_probs"], inputs["threshold_high"])
    return {"weights": told}


def _minillm_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    # The function computes rewards as the teacher's log-probs minus the student's, which are 0 here.
    rewards = inputs["token_level_rewards"]
    trainer = kit.make_unbuilt(boundary.owner, gamma=inputs["gamma"], length_normalization=False)
    told = boundary.function(trainer, torch.zeros_like(rewards), rewards, inputs["response_mask"])
    return {"returns": told, "advantages": told}


_BETA = {"beta": ("beta", "alpha", "distillation_alpha"), "batch_num_tokens": ("num_items_in_batch",)}
_TOKEN_MEAN = {**aggregated("token-mean"), "weights": None}
_LOCAL: dict[str, Any] = {"batch_num_tokens": None, "temperature": 1.0}


def _distils(path: str, call: Callable[..., Any], formerly: tuple[str, ...] = (), **fixed: Any) -> Binding:
    return Binding(
        path, "distillation_loss", formerly, call=call, arguments=_BETA, fixed=fixed,
        accepts={"response_mask": _ROWS}, dtypes=_FLOATS,
    )  # fmt: skip


def _logits(path: str, call: Callable[..., Any], **more: Any) -> Binding:
    more["fixed"] = {"temperature": 1.0, "with_entropy": False, **more.get("fixed", {})}
    return Binding(path, "token_log_probs", call=call, dtypes=_FLOATS, **more)


_OF_LOGITS = (
    _logits(f"{_UTILS}.selective_log_softmax", kit.call_log_probs),
    _logits(
        f"{_UTILS}.entropy_from_logits", partial(kit.call_entropy, "selective_log_softmax"),
        fixed={"with_entropy": True},
    ),
    *(_logits(f"{owner}.get_batch_logps", kit.call_sums_of_log_probs) for owner in (_CPO, _ORPO)),
    _logits(
        f"{_BCO}.get_batch_logps", kit.call_sums_of_log_probs,
        formerly=("trl.trainer.bco_trainer.BCOTrainer.get_batch_logps",),
    ),
    *(
        Binding(
            f"trl.trainer.{name.lower()}_trainer.{name}Trainer._get_per_token_logps_and_entropies", "token_log_probs",
            call=_score_with_trainer, dtypes=_FLOATS, stand_ins=(StandIn("model", "returns the scenario's logits"),),
        )
        for name in ("GRPO", "RLOO")
    ),
    *(
        _distils(f"{_DISTILLED[name]}.{owner}.generalized_jsd_loss", _call_divergence)
        for name, owner in (
            ("gkd", "GKDTrainer"), ("gold", "GOLDTrainer"), ("distillation", "DistillationTrainer"),
            ("iw_opd", "IWOPDTrainer"),
        )
    ),
    *(
        _distils(f"{module}._jsd_divergence", _divergence_of_log_probs, **_LOCAL)
        for module in (_DISTILLED["distillation"], _DISTILLED["iw_opd"], _SERVED)
    ),
    *(
        _distils(f"{_OWN}.{name}.loss_utils.{function}", call, formerly, **_LOCAL)
        for name in ("sdft", "sdpo")
        for function, call, formerly in (
            (
                "compute_divergence", partial(kit.call_divergence, of_logits=False),
                (f"{_WAS_MIXIN}._compute_divergence",),
            ),
            ("compute_full_logit_self_distillation_loss", partial(kit.call_divergence, of_logits=True), ()),
            ("compute_topk_self_distillation_loss", _divergence_of_top_k, ()),
        )
    ),
    _distils(f"{_MINI}._single_step_decomposition_loss", _reverse_kl, beta=1.0, **_LOCAL),
    _distils(f"{_MINI}.compute_loss", _minillm_loss, beta=1.0, batch_num_tokens=None),
    *(
        Binding(
            f"{module}._reduce_divergence_loss", "loss_aggregation", call=_reduce_divergences,
            fixed={name: value for name, value in _TOKEN_MEAN.items() if name != "batch_num_tokens"},
        )
        for module in (
            f"{_DISTILLED['distillation']}.DistillationTrainer", f"{_DISTILLED['iw_opd']}.IWOPDTrainer",
            f"{_SERVED}.ServerDistillationTrainer",
        )
    ),
    *(
        Binding(
            f"{_OWN}.{name}.loss_utils.apply_importance_sampling_clipping", "importance_weight", call=_clip_weights,
            formerly=(f"{_WAS_MIXIN}._apply_importance_sampling_clipping",),
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
    Binding(f"{_SFT}._chunked_cross_entropy_loss", "supervised_loss", call=_chunked_loss,
            arguments={"batch_num_tokens": ("num_items_in_batch",)}, dtypes=("float32",)),
    # The discount is 1 or 0, because the function raises other discounts to the power of the absolute position.
    Binding(
        f"{_MINI}._compute_advantage", "discounted_return", call=_minillm_advantages,
        fixed={"kl": None, "kl_coef": 0.0}, accepts={"gamma": (1.0, 0.0)},
        dialects=(_finite("experimental/minillm/minillm_trainer.py#L327"),),
    ),
)  # fmt: skip

# -- losses of pairs ---------------------------------------------------------------------------------------------------


def _cpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preference term of TRL's CPO loss, without the supervised term for the chosen responses."""
    averages = _response_log_probs(boundary.owner.get_batch_logps, inputs, inputs["loss_type"] == "ipo")
    options = {"loss_type": inputs["loss_type"], "beta": inputs["beta"], "alpha": 0.0}
    options["label_smoothing"] = inputs["label_smoothing"]
    trainer = kit.make_unbuilt(boundary.owner, accelerator=kit.make_one_process(boundary.device), **options)
    return {"loss": boundary.function(trainer, *averages)[0].mean()}


def _response_log_probs(log_probs: Callable[..., Any], inputs: Mapping[str, Any], average: bool) -> Any:
    """Return the log-probs of the chosen and of the rejected responses: sums over tokens, or means if ``average``."""
    table, mask = (kit.join_both_sides(inputs, name) for name in ("log_probs", "mask"))
    labels = torch.nn.functional.pad(torch.where(mask != 0, 1, -100), (1, 0), value=-100)
    logits = torch.nn.functional.pad(kit.two_token_logits(torch.where(table < 0, table, -1.0)), (0, 0, 0, 1))
    return log_probs(logits, labels, average_log_prob=average).chunk(2)


def _xpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's XPO loss without its exploration term."""
    valid, names = kit.join_both_sides(inputs, "mask") != 0, ("log_probs", "ref_log_probs")
    columns = [torch.where(valid, kit.join_both_sides(inputs, name), 0.0).chunk(2) for name in names]
    chosen = torch.arange(len(columns[0][0])) % 2 == 0  # True if the model's response is the chosen one
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
        formerly=("trl.trainer.xpo_trainer.XPOTrainer._compute_losses",),
        fixed={**PREFERENCE_LOSS.lacking("beta"), "loss_type": "sigmoid"},
    ),
)  # fmt: skip

# -- padding, masks, batches -------------------------------------------------------------------------------------------


def _statistic(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    # With too few tokens, the statistic is NaN. TRL's comments exclude such batches.
    counts, least = (inputs["response_mask"] != 0).sum(-1), 1 if inputs["statistic"] == "mean" else 2
    if int(counts.min() if inputs["axis"] else counts.sum()) < least:
        raise AbsentError(f"TRL's {inputs['statistic']} needs at least {least} valid tokens; the scenario has fewer")
    return kit.call_with(boundary, inputs, values_of={"axis": kit.AXIS})


def _mask_until_stop(reads: Callable[..., Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"response_mask": reads(boundary, inputs["responses"], inputs["eos_token_id"])}


def _flush_left(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    tokens, mask = kit.lay_out([sample["tokens"] for sample in inputs["samples"]], left=True)
    mask, tokens = boundary.function(mask, tokens)
    lengths = mask.sum(-1).tolist()
    return {"samples": [{"tokens": row[:length]} for row, length in zip(tokens, lengths)]}


def _read(ids: Any, there: Any) -> Any:
    return ids[there.bool()]


def _labelled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    _require_in_source(boundary, '.get("labels"')
    batch = boundary.function(boundary.owner(pad_token_id=0), _to_lists(inputs))
    labels = [row[row != -100] for row in batch["labels"]]
    ids = map(_read, batch["input_ids"], batch["attention_mask"])
    return _remove_offsets(inputs, ({"input_ids": row, "labels": label} for row, label in zip(ids, labels)))


def _to_lists(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert samples to lists, with a different offset for each field, so that swapped fields are detected."""
    return [
        {name: (value + 1000 * place).tolist() for place, (name, value) in enumerate(sample.items())}
        for sample in inputs["samples"]
    ]


def _remove_offsets(inputs: Mapping[str, Any], found: Any) -> dict[str, Any]:
    """Return the collated samples without the offsets that :func:`_to_lists` added."""
    places = {name: 1000 * place for place, name in enumerate(inputs["samples"][0])}
    return {"samples": [{name: value - places[name] for name, value in sample.items()} for sample in found]}


def _collate_sides(sides: tuple[str, ...], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate prompts with one or more answers each, and return the prompts and answers in the batch.

    The batch has the first answers of all prompts, then all second answers, and so on.
    """
    rows = _to_lists(inputs)
    _require_in_source(boundary, *rows[0])
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
    return _remove_offsets(inputs, samples)


def _collate_columns(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate columns with different padding values, and return their rows without padding."""
    batch = boundary.function(boundary.owner(pad_token_id=-1), _to_lists(inputs))
    outside = {"prompt_input_ids": -1, "chosen_input_ids": -1, "chosen_labels": -100}
    rows = [
        {name: batch[name][row][batch[name][row] != value] for name, value in outside.items()}
        for row in range(len(inputs["samples"]))
    ]
    scores = batch["ref_chosen_logps"]
    return _remove_offsets(inputs, ({**row, "ref_chosen_logps": score} for row, score in zip(rows, scores)))


def _pad_to_length(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["values"].dtype == torch.bool:
        raise AbsentError("TRL's callers only pad integers and floats; the scenario has booleans")
    return {"padded": boundary.function(inputs["values"], inputs["length"], inputs["pad_value"])}


def _split_images(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    samples = inputs["samples"]
    lengths = [len(sample["pixel_values"]) for sample in samples]
    pixels = torch.cat([sample["pixel_values"] for sample in samples])
    grids = torch.ones(len(pixels), 3, dtype=torch.long)
    if "num_images" not in kit.source_of(boundary.function):  # until September 2025: one image per sample
        grids = torch.tensor([[length, 1, 1] for length in lengths])
    batch = boundary.function({"pixel_values": pixels, "image_grid_thw": grids, "num_images": lengths})
    return {"samples": [{"pixel_values": values} for values in batch["pixel_values"]]}


def _shuffle(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    order = torch.tensor(inputs["order"])
    with kit.swap(boundary.module.torch, "randperm", lambda *_, **__: order):
        return {"parts": [boundary.function(dict(inputs["fields"]))], "metas": [inputs["meta"]]}


def _cut(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    parts = boundary.function(dict(inputs["fields"]), inputs["count"])
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _repeat_rows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat each row of a batch with TRL's sampler, or the whole batch if the scenario's surgery is ``tile``."""
    if "shuffle" not in inspect.signature(boundary.owner).parameters:
        raise AbsentError("this version's sampler always shuffles the rows")
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
        "trl.trainer.reward_trainer.DataCollatorForPreference.torch_call",
        partial(_collate_sides, ("chosen", "rejected")), _layouts("chosen_ids", "rejected_ids", margin=_NUMBER),
    ),
    (
        "trl.trainer.kto_trainer.DataCollatorForUnpairedPreference.torch_call",
        partial(_collate_sides, ("completion", "KL_completion")),
        _layouts("prompt_ids", "completion_ids", "KL_completion_ids"),
    ),
    (
        f"{_OWN}.tpo.tpo_trainer.DataCollatorForTriplePreference.torch_call",
        partial(_collate_sides, ("chosen", "rejected", "reference")),
        _layouts("prompt_ids", "chosen_ids", "rejected_ids", "reference_ids"),
    ),
    (
        f"{_MORE}.DPODataCollatorWithPadding.__call__", _collate_columns,
        _layouts(
            "prompt_input_ids", "chosen_input_ids", "chosen_labels", ref_chosen_logps=_NUMBER
        ),
    ),
    (f"{_UTILS}.flush_left", _flush_left, _layouts("tokens")),
    (f"{_UTILS}.split_pixel_values_by_grid", _split_images, _layouts("pixel_values")),
)  # fmt: skip

_FORMERLY = {
    f"{_MORE}.DPODataCollatorWithPadding.__call__": (f"{_UTILS}.DPODataCollatorWithPadding.__call__",),
    f"{_UTILS}.split_pixel_values_by_grid": (f"{_WAS_GRPO}.split_pixel_values_by_grid",),
}

_OF_BATCHES = (
    *(
        Binding(
            f"{_PPO}.{name}", "masked_statistics", outputs=("result",), call=_statistic,
            formerly=(f"trl.core.{name}", f"trl.trainer.ppo_trainer.{name}"),
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
        f"{_MORE}.pad_to_length", "column_padding", call=_pad_to_length,
        formerly=(f"{_UTILS}.pad_to_length",), fixed={"side": "right"},
    ),
    Binding(
        f"{_MORE}.truncate_right", "response_masks", formerly=(f"{_UTILS}.truncate_right",),
        call=partial(_mask_until_stop, lambda boundary, ids, stop: boundary.function(ids, stop, 0)[1]),
    ),
    Binding(
        f"{_PPO}.truncate_response", "response_masks",
        call=partial(_mask_until_stop, lambda boundary, ids, stop: (boundary.function(stop, -1, ids) != -1).long()),
    ),
    *(
        Binding(path, "collation", _FORMERLY.get(path, ()), call=call, fixed=fixed) for path, call, fixed in _COLLATES
    ),
    Binding(
        f"{_UTILS}.shuffle_sequence_dict", "row_surgery", call=_shuffle, fixed={"surgery": "reorder"},
        formerly=(f"{_WAS_GRPO}.shuffle_sequence_dict",),
        stand_ins=(StandIn("torch.randperm", "returns the scenario's order instead of a random one"),),
    ),
    Binding(
        f"{_UTILS}.split_tensor_dict", "row_surgery", call=_cut, formerly=(f"{_WAS_GRPO}.split_tensor_dict",),
        fixed={"surgery": "cut", **_COLUMNS},
        accepts={"remainder": (0,)},
    ),
    *(
        Binding(
            f"{_UTILS}.RepeatSampler.__iter__", "row_surgery", call=_repeat_rows, fixed={"surgery": surgery},
            formerly=(f"{_WAS_GRPO}.RepeatSampler.__iter__", f"{_WAS_GRPO}.RepeatRandomSampler.__iter__"),
        )
        for surgery in ("repeat", "tile")
    ),
)  # fmt: skip

FUNCTIONS = (*_OF_LOGITS, *_OF_TWO, *_OF_BATCHES)
