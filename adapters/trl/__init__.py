"""Bindings for TRL (huggingface/trl).

Configurations are instances of TRL's own classes. Most bindings call a method of a trainer whose constructor did not
run: its attributes come from the configuration or from ``_OFF``. Bindings of whole training steps run the constructor.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from unittest import mock

from sentinel import AbsentError, Alias, Binding, Dialect, PackageRoot, StandIn, Target, UnknownInputError
from sentinel.binding import kit
from sentinel.binding.drift import Neutral
from sentinel.binding.families import (
    MASKED_STATISTICS,
    POLICY_UPDATE,
    PREFERENCE_LOSS,
    WEIGHTS,
    WeightEngine,
    chat,
    microbatch_packing,
    normalised_rewards,
    policy_loss,
    row_mean,
)
from sentinel.binding.kit import torch

from .functions import FUNCTIONS
from .runs import RUNS
from .steps import STEPS as DOCUMENTED
from .tools import TOOLS

CODE = "https://github.com/huggingface/trl/blob/f2cd57710ae345ea6428ae95363267fcf38a3dc8/trl"  # July 2026

GRPO, RLOO, DPO, SFT, KTO, REWARD = (
    f"trl.trainer.{name}_trainer" for name in ("grpo", "rloo", "dpo", "sft", "kto", "reward")
)
GKD, ONLINE, DISTILLATION, _ASYNC = (
    f"trl.experimental.{name}.{name}_trainer" for name in ("gkd", "online_dpo", "distillation", "async_grpo")
)
_OWN, _HEAD = "trl.experimental", "trl.trainer.utils"
_SDPO = f"{_OWN}.sdpo.sdpo_trainer.SDPOTrainer"
_IW_OPD = f"{_OWN}.iw_opd.iw_opd_trainer"

# _COUNTED: the layouts of response masks that searches may draw. TRL pads completions on the right.
_COUNTED, _TYPED = ("full", "right"), ("input_ids", "mm_token_type_ids")

_SIDES = ("chosen", "rejected")

#: Attributes that a trainer's constructor sets besides the options, for a run without tools, images, adapters and vLLM.
_OFF: dict[str, Any] = {
    **dict.fromkeys(("tools", "environments", "environment_factories", "rollout_func", "ref_model", "_is_vlm")),
    **dict.fromkeys(("is_encoder_decoder", "_peft_has_been_casted_to_bf16", "reference_free"), False),
    **dict.fromkeys(("aux_loss_enabled", "_entropy_bonus_enabled", "is_fsdp_enabled", "is_deepspeed_enabled"), False),
    **dict.fromkeys(("use_liger_loss", "use_liger_kernel", "use_vllm", "off_policy_mask_threshold"), None),
    **dict.fromkeys(("use_liger_gkd_loss", "use_teacher_server", "loss_add_tail", "_buffered_num_items"), None),
    "_tp_size": 1,
    "_pending_extra_logs": {},
    "_pending_metrics": {},
    "is_vision_model": False,
    "label_smoothing": 0,
    "pad_token_id": 0,
    "padding_value": 0,
    "label_pad_token_id": -100,
    "loss_top_k": 0,
    "model_kwarg_keys": (),
}


def _attribute_of(self: Any, name: str) -> Any:
    """Return an attribute that the skipped constructor would set, from ``_OFF`` or from the configuration."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _OFF or name.startswith(("_on_policy_", "_off_policy_", "_matched_", "_unmatched_")):  # counters
        return _OFF.get(name, 0.0)
    if "args" in vars(self) and hasattr(self.args, name):
        return getattr(self.args, name)
    return Neutral(name)


def _options(boundary: Any, given: Mapping[str, Any], former: Mapping[str, Any] | None = None, kind: Any = None) -> Any:
    """Make the trainer's configuration, and set the given options without TRL's validation."""
    kind = kind or kit.config_class_of(boundary)
    made = kind(output_dir="unused", use_cpu=boundary.device == "cpu", bf16=False, report_to="none")
    for option, value in kit.keep_accepted(kind, given, former).items():
        setattr(made, option, value)
    return made


def _call_directly(wrapper: Any, model: Any, method: Callable[..., Any], *rest: Any, **more: Any) -> Any:
    return method(*rest, **more)  # TRL calls the method through the wrapper of a distributed model


def _trainer(boundary: Any, args: Any, **attributes: Any) -> Any:
    """Make a TRL trainer without running its constructor. Attributes that are not given come from its configuration."""
    made = object.__new__(type(boundary.owner.__name__, (boundary.owner,), {"__getattr__": _attribute_of}))
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    defaults = {
        "accelerator": kit.make_one_process(boundary.device),
        "_metrics": metrics,
        "model": kit.stand_in(training=True),
        "_forward_redirection": _call_directly,
    }
    vars(made).update({"args": args, "control": kit.bookkeeping(should_evaluate=False), **defaults, **attributes})
    return made


_ONE_PROCESS = StandIn("accelerator", "one process, in which gathering and reducing over ranks return their input")
_SELF = StandIn("self", "a trainer of TRL's class without its constructor; its attributes come from its configuration")
_TABLE = StandIn("model", "a causal model whose outputs are a table; the gradient of a token is that of its entry")
_LOG_PROBS = StandIn("_get_per_token_logps_and_entropies", "returns the scenario's log-probs; no model runs")

# -- policy losses -----------------------------------------------------------------------------------------------------

#: (algorithm, loss_agg_mode) -> loss_type.
_LOSS_TYPES = {
    ("ppo", "seq-mean-token-sum"): "luspo",
    ("gspo", "seq-mean-token-sum"): "luspo",
    ("sapo", "seq-mean-token-mean"): "sapo",
    ("cispo", "token-mean"): "cispo",
    **{
        (algorithm, mode): loss
        for algorithm in ("ppo", "gspo")
        for mode, loss in (
            ("seq-mean-token-mean", "grpo"),
            ("token-mean", "bnpo"),
            ("seq-mean-token-sum-norm", "dr_grpo"),
        )
    },
}


def _make_log_prob_methods(boundary: Any, log_probs: Any, entropies: Any = None) -> dict[str, Any]:
    """Make stand-ins for a trainer's methods that compute log-probs and entropies (default: 0)."""
    method = getattr(boundary.owner, "_get_per_token_logps_and_entropies", boundary.function)
    arity = 3 if "compute_aux_loss" in inspect.signature(method).parameters else 2
    entropies = log_probs.detach() * 0 if entropies is None else entropies
    both, one = (partial(kit.return_first, said) for said in ((log_probs, entropies, None)[:arity], log_probs))
    return {"_get_per_token_logps_and_entropies": both, "_get_per_token_logps": one}


def _completions(inputs: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Make the input of a policy loss: one-token prompts, with completions and their advantages."""
    mask, old = inputs["response_mask"].long(), inputs["old_log_probs"]
    total, weights = (inputs.get(name) for name in ("batch_num_tokens", "importance_weights"))
    prompt = torch.ones(len(mask), 1, dtype=torch.long, device=mask.device)
    return {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.ones_like(mask),
        "completion_mask": mask,
        "advantages": row_mean(inputs["advantages"], mask != 0)[:, 0],
        "old_per_token_logps": old,
        "old_logps": (old * mask).sum(-1),
        "num_items_in_batch": mask.sum() if total is None else torch.tensor(total),
        **({} if weights is None else {"importance_sampling_ratio": weights}),
        **more,
    }


def _clipping(boundary: Any, args: Any, inputs: Mapping[str, Any], **attributes: Any) -> Any:
    weighted = inputs["importance_weights"] is not None
    if weighted and not hasattr(args, "vllm_importance_sampling_correction"):
        raise UnknownInputError(
            "this version has no option vllm_importance_sampling_correction; the scenario has importance weights",
            "importance_weights",
        )
    return _trainer(
        boundary,
        args,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon_high,
        current_gradient_accumulation_steps=1,
        use_vllm=weighted,
        vllm_importance_sampling_correction=True,
        **_make_log_prob_methods(boundary, inputs["log_probs"]),
        **attributes,
    )


def _grpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    algorithm, mode, mask = inputs["algorithm"], inputs["loss_agg_mode"], inputs["response_mask"]
    loss_type = _LOSS_TYPES.get((algorithm, mode))
    if loss_type is None or (algorithm == "cispo" and inputs["eps_clip_low"] < 1):
        raise AbsentError(f"TRL has no {algorithm} loss with {mode} and the lower clip bound {inputs['eps_clip_low']}")
    loss_type = "dapo" if loss_type == "bnpo" and inputs["batch_num_tokens"] is not None else loss_type
    given = {
        **_clip_options(inputs),
        "epsilon_high": inputs["eps_clip_high"] + (algorithm == "cispo"),
        "importance_sampling_level": "sequence" if algorithm == "gspo" else "token",
        "delta": inputs["dual_clip"],
        "sapo_temperature_pos": inputs["tau_pos"],
        "sapo_temperature_neg": inputs["tau_neg"],
        "max_completion_length": inputs["loss_scale_factor"] or mask.shape[1],
    }
    former = {
        "delta": None,
        "importance_sampling_level": "token",
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
    }
    given["loss_type"] = _loss_type(boundary.function, loss_type)
    trainer, batch = _clipping(boundary, _options(boundary, given, former), inputs), _completions(inputs)
    if "student_logits" in boundary.parameters:  # SDPO's loss takes logits; no finite logits give a log-prob of 0
        said = torch.where(torch.isfinite(inputs["log_probs"]) & (inputs["log_probs"] < 0), inputs["log_probs"], -1.0)
        return {"loss": boundary.function(trainer, batch, kit.two_token_logits(said))}
    loss = boundary.function(trainer, kit.stand_in(training=True), batch)
    clipped = trainer._metrics["train"].get("clip_ratio/region_mean") if algorithm == "ppo" else None
    return {"loss": loss, "clip_fraction": clipped[0] if clipped else None}


def _policy_step(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradient of GRPO's loss of one micro-batch, including the KL and entropy terms."""
    mode, mask = inputs["loss_agg_mode"], inputs["response_mask"]
    given = {
        **_clip_options(inputs),
        "loss_type": _loss_type(boundary.function, _LOSS_TYPES["ppo", mode].replace("bnpo", "dapo")),
        "delta": inputs["dual_clip"],
        "beta": 0.0 if inputs["ref_log_probs"] is None else inputs["kl_coef"],
        "entropy_coef": inputs["entropy_coef"],
        "max_completion_length": inputs["loss_scale_factor"] or mask.shape[1],
    }
    args = _options(boundary, given, {"delta": None, "entropy_coef": 0.0})
    answers = _make_log_prob_methods(boundary, inputs["log_probs"], inputs["entropies"])
    trainer = _clipping(boundary, args, {**inputs, "importance_weights": None})
    vars(trainer).update(answers, _entropy_bonus_enabled=bool(inputs["entropy_coef"]))
    batch = _completions(inputs, ref_per_token_logps=inputs["ref_log_probs"])
    boundary.function(trainer, kit.stand_in(training=True), batch).backward()
    said = {name: values[0] for name, values in trainer._metrics["train"].items()}
    kl = said.get("kl") if mode == "token-mean" else None  # the reported KL is always a mean over tokens
    return {**kit.gradients_of(inputs), "kl_loss": kl, "entropy": said.get("entropy")}


def _loss_type(loss: Any, name: str) -> str:
    if f'"{name}"' not in kit.source_of(loss):
        raise AbsentError(f"this version has no loss_type {name!r}")
    return name


def _fused_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call TRL's method for Liger's fused loss, with TRL's unfused loss in place of Liger's kernel."""
    plain, args = boundary.owner._compute_loss, _options(boundary, {"loss_type": "grpo", **_clip_options(inputs)})
    trainer = _clipping(boundary, args, inputs, _get_last_hidden_state=lambda *_, **__: None)

    def kernel(**handed: Any) -> Any:
        trainer.use_vllm = handed.get("vllm_is_ratio") is not None
        batch = _completions({**inputs, "response_mask": handed["attention_mask"]})
        batch.update(
            importance_sampling_ratio=handed.get("vllm_is_ratio"),
            **{name: handed[name] for name in ("advantages", "old_per_token_logps")},
        )
        return plain(trainer, kit.stand_in(training=True), batch), [torch.zeros(())]

    vars(trainer)["liger_grpo_loss"] = vars(trainer)["liger_loss"] = kernel
    model = kit.stand_in(lm_head=kit.stand_in(weight=None, bias=None))
    return {"loss": boundary.invoke({}, trainer, model, _completions(inputs, ref_per_token_logps=None))}


def _clip_options(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "epsilon": inputs["eps_clip_low"],
        "epsilon_high": inputs["eps_clip_high"],
        "beta": 0.0,
        "num_iterations": 2,
    }


def _one_action_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    trainer = _clipping(boundary, _options(boundary, _clip_options(inputs)), inputs)
    return {"loss": boundary.function(trainer, kit.stand_in(training=True), _completions(inputs))}


def _takes_rows_of_ranks(collator: Any) -> bool:
    """Return True if the collator takes a list of rows, one for each rank, and False if it takes a list of samples."""
    return any(f"({name},)" in kit.source_of(collator.torch_call) for name in ("groups", "rows"))


def _row_of(boundary: Any, samples: Sequence[dict[str, Any]]) -> Any:
    """Make the collator's row from the samples of one rank: a tree of tokens, or a list until the autumn of 2026."""
    if not hasattr(boundary.module, "TreeRow"):
        return samples
    row = boundary.module.TreeRow()
    for sample in samples:
        row.add({name: torch.tensor(value) if isinstance(value, list) else value for name, value in sample.items()})
    return row


def _async_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call the loss of TRL's asynchronous trainer on completions that TRL's collator packs into one row."""
    mask, model = inputs["response_mask"].long(), kit.token_table(inputs["log_probs"], trains=False)
    if hasattr(boundary.module, "patch_chunked_lm_head"):
        boundary.module.patch_chunked_lm_head(model, 4, 1.0)
    elif hasattr(boundary.module, "add_fused_lm_head"):
        boundary.module.add_fused_lm_head(model, 1.0, outputs=("log_probs", "entropy"))
    else:
        raise AbsentError("this version has neither patch_chunked_lm_head nor add_fused_lm_head")
    columns = mask, inputs["old_log_probs"], row_mean(inputs["advantages"], mask != 0)[:, 0]
    rows = [
        {"input_ids": ids, "completion_mask": [0, *kept], "old_log_probs": [0.0, *old], "advantage": a, "group_id": 0}
        for ids, kept, old, a in zip(kit.token_ids(mask * 0 + 1), *(column.tolist() for column in columns))
    ]
    collator, given = boundary.module.DataCollatorForRollout(pad_token_id=0), [{**row, "metrics": {}} for row in rows]
    batch = collator.torch_call([[_row_of(boundary, given)]] if _takes_rows_of_ranks(collator) else given)
    if inputs["batch_num_tokens"] is not None:
        batch["global_n_tokens"] = torch.tensor([float(inputs["batch_num_tokens"])])
    args = _options(boundary, _clip_options(inputs), {"beta": 0.0, "num_iterations": 2})
    trainer = _clipping(boundary, args, inputs, _train_tokens_start_time=None)
    loss = boundary.function(trainer, model, batch)
    clipped = trainer._metrics["train"].get("clip_ratio/region_mean") if mask.any() else None  # NaN without a token
    return {"loss": loss, "clip_fraction": clipped[0] if clipped else None}


def _off_policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's off-policy mask, and PPO's loss of each token without this mask."""
    advantages, mask, ratio = inputs["advantages"][:, :1], inputs["response_mask"], torch.exp(-inputs["ppo_kl"])
    if not torch.equal(advantages.expand(mask.shape), inputs["advantages"]):
        raise AbsentError(
            "TRL has one advantage per completion; in the scenario, advantages differ within a completion"
        )
    kept = boundary.function(advantages, inputs["log_probs"], inputs["old_log_probs"], mask, inputs["opsm_delta"])
    bounded = ratio.clamp(1 - inputs["eps_clip"], 1 + inputs["eps_clip_high"])
    losses = -torch.minimum(ratio * advantages, bounded * advantages)
    return {"opsm_mask": kept.expand(mask.shape), "opsm_clipfrac": None, "policy_loss": losses}


_KERNEL = StandIn("liger_loss", "from another package: returns TRL's unfused loss for the same arguments")
_EMPTY_ROWS = "a mean over responses divides by the number of rows, including masked completions"
_RESPONSES = {"loss_agg_mode": ("seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")}
_ONE = Dialect("advantage_level", "sequence", "a response has one advantage", f"{CODE}/trainer/grpo_trainer.py#L3031")
_FINITE = Dialect(
    "masked_values_have_no_influence",
    None,
    "log-probs of untrained tokens are finite",
    f"{CODE}/trainer/sft_trainer.py#L1765",
    symptom="non-finite",
)
_OF_GRPO, _OF_RLOO = "trainer/grpo_trainer.py#L3107", "trainer/rloo_trainer.py#L1610"
_ONE_ACTION = f"{CODE}/trainer/rloo_trainer.py#L1600"
_RATIO_OF_A_RESPONSE = Dialect("ratio_level", "sequence", "the loss treats the completion as one action", _ONE_ACTION)
_RANKS: dict[str, tuple[Any, ...]] = dict.fromkeys(("global_batch_size", "dp_size"), (None,))
_MEANS = {"loss_agg_mode": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")}

_REJECTION = Binding(
    f"{GRPO}.GRPOTrainer.get_off_policy_mask", "sequence_rejection", call=_off_policy,
    stand_ins=(StandIn("policy loss", "PPO's loss for the scenario's ratios; the boundary computes only the mask"),),
    dialects=(
        Dialect(
            "masked_values_have_no_influence", None, "log-probs of masked tokens are finite too",
            f"{CODE}/trainer/grpo_trainer.py#L2934", symptom="non-finite",
        ),
    ),
)  # fmt: skip


def _of_responses(line: str) -> tuple[Dialect, ...]:
    return Dialect("empty_rows", "counted", _EMPTY_ROWS, f"{CODE}/{line}", _RESPONSES), _ONE


def _loss(path: str, call: Any, algorithm: Any, line: str, *dialects: Dialect, **more: Any) -> Binding:
    knobs, stand_ins = ("eps_clip_low", "eps_clip_high", *more.pop("knobs", ())), more.pop("stand_ins", ())
    return policy_loss(
        path,
        call,
        algorithm,
        knobs,
        Dialect("a_rejected_row_is_an_absent_row", None, _EMPTY_ROWS, f"{CODE}/{line}", _RESPONSES, "value"),
        *dialects,
        *_of_responses(line),
        stand_ins=(_SELF, _ONE_PROCESS, _LOG_PROBS, *stand_ins),
        accepts={"response_mask": _COUNTED, **_RANKS, **more.pop("accepts", {})},
        **more,
    )


_BY_RESPONSE = "seq-mean-token-mean"
LOSSES = (
    _loss(
        f"{GRPO}.GRPOTrainer._compute_loss", _grpo_loss, ("ppo", "gspo", "sapo"), _OF_GRPO, weights=True,
        knobs=("dual_clip", "tau_pos", "tau_neg", "loss_agg_mode"),
        accepts={"loss_agg_mode": (*_MEANS["loss_agg_mode"], "seq-mean-token-sum"), "dual_clip": (None, 3.0)},
    ),
    Binding(
        f"{GRPO}.GRPOTrainer._compute_loss", "policy_update", call=_policy_step,
        stand_ins=(_SELF, _ONE_PROCESS, _LOG_PROBS),
        fixed={
            "kl_estimator": "k3", "dp_size": 1,
            **dict.fromkeys(("mini_batch_size", "micro_batch_size", "max_tokens_per_microbatch")),
        },
        accepts={"response_mask": _COUNTED, **_MEANS, "dual_clip": (None, 3.0)},
        dialects=(
            *_of_responses(_OF_GRPO),
            Dialect(
                "entropy_agg_mode", "token-mean", "the entropy term is a mean over tokens for each loss_type",
                f"{CODE}/trainer/grpo_trainer.py#L3159",
            ),
        ),
    ),
    _loss(
        f"{GRPO}.GRPOTrainer.compute_liger_loss", _fused_loss, "ppo", _OF_GRPO, mode=_BY_RESPONSE, weights=True,
        stand_ins=(_KERNEL,),
    ),
    _loss(
        f"{RLOO}.RLOOTrainer._compute_loss", _one_action_loss, "ppo", _OF_RLOO, _RATIO_OF_A_RESPONSE, mode=_BY_RESPONSE,
    ),
    _loss(
        f"{_OWN}.gmpo.gmpo_trainer.GMPOTrainer._compute_loss", _one_action_loss, "gmpo",
        "experimental/gmpo/gmpo_trainer.py#L120", mode=_BY_RESPONSE, weights=True,
    ),
    policy_loss(
        f"{_ASYNC}.AsyncGRPOTrainer.compute_loss", _async_loss, "ppo", ("eps_clip_low", "eps_clip_high"), _FINITE, _ONE,
        mode="token-mean", stand_ins=(_SELF, _ONE_PROCESS, _TABLE), accepts={**_RANKS}, dtypes=("float32",),
    ),
    _loss(
        f"{_SDPO}._compute_policy_loss", _grpo_loss, ("ppo", "gspo"), "experimental/sdpo/sdpo_trainer.py#L1190",
        knobs=("loss_agg_mode",), accepts={**_MEANS, "batch_num_tokens": (None,)},
    ),
)  # fmt: skip

# -- losses of models, with a table in place of the model --------------------------------------------------------------


def _distilled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    student, teacher = kit.token_table(inputs["logits"], trains=False), kit.token_table(inputs["teacher_logits"])
    batch = kit.make_sequences(inputs["response_mask"])
    prompt, completion = batch["prompts"], batch["input_ids"][:, kit.PROMPT :]
    batch.update(
        prompt_ids=prompt,
        prompt_mask=batch["prompt_attention_mask"],
        completion_ids=completion,
        completion_mask=inputs["response_mask"].long(),
        teacher_input_ids=batch["input_ids"],
        teacher_attention_mask=batch["attention_mask"],
    )
    whole = {
        "distillation_mode": "full_logits",
        "distillation_alpha": inputs["beta"],
        "distillation_is_clip": None,
        "full_logit_distillation": True,
        "distillation_topk": None,
        "loss_type": "grpo",
    }
    trainer = _trainer(
        boundary,
        kit.bookkeeping(**whole),
        beta=inputs["beta"],
        temperature=inputs["temperature"],
        model=student,
        distillation_objective="jsd",
        teacher_model=teacher,
        _get_teacher_context_for_self_distillation=nullcontext,
        **dict.fromkeys(
            ("_raise_if_local_teacher_tokenizer_mismatch", "_log_self_distillation_metric"),
            partial(kit.return_first, None),
        ),
    )
    of_rows = hasattr(boundary.owner, "_compute_self_distillation_loss")  # SDPO's mean includes empty rows
    if of_rows and not inputs["response_mask"].any(-1).all():
        raise AbsentError(
            "TRL averages over all rows, including rows without a valid token; the scenario has such a row"
        )
    if "distillation_logits" in boundary.parameters:
        said = trainer._compute_teacher_student_logits(student, teacher, batch)
        return {"loss": boundary.function(trainer, student, batch, said)}
    count = inputs["batch_num_tokens"]
    total = None if count is None else torch.tensor(count)
    return {"loss": boundary.invoke({}, trainer, student, batch, num_items_in_batch=total)}


def _call_chunked_head(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    logits, pad = inputs["logits"], torch.nn.functional.pad
    # The head is the identity matrix, so that the hidden states are the logits.
    states, head = kit.stand_in(last_hidden_state=pad(logits, (0, 0, 0, 1))), torch.eye(logits.shape[-1]).to(logits)
    model = kit.stand_in(config=kit.stand_in(), lm_head=kit.stand_in(weight=head), model=lambda **_: states)
    labels, mask = (pad(values, (1, 0)) for values in (inputs["token_ids"], inputs["response_mask"] != 0))
    if "outputs" in boundary.parameters:  # since the autumn of 2026, the function sets the forward method of the model
        table = type("Table", (), {"forward": None})()
        table.base_model, table.get_output_embeddings = (
            (lambda **_: states),
            lambda: kit.stand_in(weight=head, bias=None),
        )
        table.config = kit.stand_in(get_text_config=lambda: kit.stand_in())
        boundary.function(table, inputs["temperature"], outputs=("log_probs", "entropy"))
        told = table.forward(labels=torch.where(mask, labels, -100), fused_lm_head=True)
        return {"log_probs": told.log_probs, "entropy": told.entropy.detach()}
    boundary.function(model, 3, inputs["temperature"])
    told = model.forward(None, labels=labels, completion_mask=mask)
    return {"log_probs": told["log_probs"], "entropy": told["entropy"].detach()}


def _log_entropy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean entropy that TRL's SFT trainer logs, given the scenario's entropy of each token."""
    import transformers

    if not hasattr(boundary.module, "entropy_from_logits"):
        raise AbsentError("this version has no function entropy_from_logits; its models return entropies")
    values, batch = inputs["values"], kit.make_sequences(inputs["response_mask"])
    model = kit.token_table(values[..., None].expand(*values.shape, 2))
    args = kit.stand_in(use_liger_kernel=False, loss_type="nll")

    def told(_: Any, model: Any, inputs: Any, return_outputs: bool = False, **__: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    with (
        kit.swap(transformers.Trainer, "compute_loss", told),
        kit.swap(boundary.module, "entropy_from_logits", lambda logits, *_, **__: logits[..., 0].clone()),
    ):
        trainer = _trainer(boundary, args, num_virtual_tokens=0, _total_train_tokens=0, model=model)
        boundary.invoke({}, trainer, model, {name: batch[name] for name in ("input_ids", "attention_mask", "labels")})
    return {"result": values.new_tensor(trainer._metrics["train"]["entropy"][0])}


def _join_pairs(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Concatenate the chosen and the rejected rows of the log-probs, the reference log-probs and the masks."""
    return tuple(kit.join_both_sides(inputs, name) for name in ("log_probs", "ref_log_probs", "mask"))


def _dpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    table, reference, mask = _join_pairs(inputs)
    model, other = kit.token_table(table, trains=False), kit.token_table(reference)
    if hasattr(boundary.module, "add_fused_lm_head"):  # as the trainer's constructor does
        boundary.module.add_fused_lm_head(model, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))
        boundary.module.add_fused_lm_head(other)
    batch = kit.make_sequences(mask)
    given = {name: inputs[name] for name in ("beta", "ld_alpha") if inputs[name] is not None}
    args = _options(boundary, given) if hasattr(boundary.module, "DPOConfig") else kit.stand_in(**given)
    several = "list" in str(getattr(type(args), "__annotations__", {}).get("loss_type"))
    trainer = _trainer(
        boundary,
        args,
        model=model,
        ref_model=other,
        loss_types=[inputs["loss_type"]],
        loss_weights=[1.0],
        beta=inputs["beta"],
        precompute_ref_logps=False,
        _total_train_tokens=0,
        max_length=None,
        loss_type=[inputs["loss_type"]] if several else inputs["loss_type"],
    )
    if "get_batch" in boundary.path:
        return {"loss": boundary.invoke({}, trainer, model, _split_pairs(boundary, batch))[0]}
    kept = {name: batch[name] for name in ("input_ids", "attention_mask", "completion_mask")}
    return {"loss": boundary.function(trainer, model, kept, False)}


def _orpo_loss(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ORPO's odds-ratio loss, which TRL computes from the mean log-prob of each response."""
    table, _, mask = _join_pairs(inputs)
    labels = torch.nn.functional.pad(torch.where(mask != 0, 1, -100), (1, 0), value=-100)
    logits = torch.nn.functional.pad(kit.two_token_logits(torch.where(table < 0, table, -1.0)), (0, 0, 0, 1))
    averages = boundary.owner.get_batch_logps(logits, labels, average_log_prob=True)
    trainer = _trainer(boundary, kit.stand_in(), beta=inputs["beta"])
    return {"loss": -boundary.function(trainer, *averages.chunk(2))[0].mean()}


def _split_pairs(boundary: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Split a preference batch into the columns of TRL's older collators: prompt, chosen and rejected."""
    whole = "chosen_labels" in boundary.owner.concatenated_forward.__code__.co_consts
    rows, start = len(batch["labels"]) // 2, 0 if whole else kit.PROMPT
    prompts = (("input_ids", "prompts"), ("attention_mask", "prompt_attention_mask"))
    found = {f"prompt_{name}": batch[column][:rows] for name, column in prompts}
    for part, side in enumerate(_SIDES):
        for name in ("input_ids", "attention_mask", "labels"):
            found[f"{side}_{name}"] = batch[name][part * rows : (part + 1) * rows, start:]
    return found


def _collate_pairs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate preference pairs with images, and return the tokens and token types of their prompts."""
    samples = inputs["samples"]
    pairs = [zip(*(sample[name].tolist() for name in _TYPED)) for sample in samples]
    prompts = [" ".join(f"{token}:{kind}" for token, kind in one) for one in pairs]
    rows = [{"images": ["i"], "prompt": prompt, "chosen": "3:0", "rejected": "5:0"} for prompt in prompts]
    batch = boundary.function(boundary.owner(processor=kit.TypedProcessor()), rows)
    kept, like = batch["attention_mask"].bool(), batch["input_ids"].shape
    columns = {name: batch[name] for name in _TYPED if name in batch and batch[name].shape == like}
    return {
        "samples": [
            {name: found[row][kept[row]][: len(sample["input_ids"])] for name, found in columns.items()}
            for row, sample in enumerate(samples)
        ]
    }


def _log_metric(leaves_nan: bool, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean that a trainer logs for a metric, given the metric's values."""
    import transformers

    values, valid = inputs["values"], inputs["response_mask"] != 0
    if boundary.function is transformers.Trainer.log:
        raise AbsentError("this version's trainer does not override `Trainer.log` of transformers")
    # Until March 2025, the trainer does not expect NaN.
    if leaves_nan and "nan" not in kit.source_of(boundary.module):
        raise AbsentError("this version's trainer cannot log completions without a score (NaN)")
    history = torch.where(valid, values, float("nan"))[valid | leaves_nan].tolist()
    steps = kit.bookkeeping(should_evaluate=True, global_step=1)
    kept = {"train": {"probed": history} if history else {}, "eval": {}}
    more = {"log_completions": False, "_metrics": kept, "_stored_metrics": kept}
    trainer = _trainer(boundary, kit.stand_in(), control=steps, state=steps, **more)
    found: dict[str, Any] = {}
    with kit.swap(transformers.Trainer, "log", lambda _, logs, *__: found.update(logs)):
        boundary.invoke({}, trainer, {"loss": 0.0}, start_time=0.0)
    told = found.get("probed", float("nan") if history else None)
    # If there are no values, the trainer logs nothing, and the mean is defined as 0.
    return {"result": values.new_tensor(0.0 if told is None else told)}


_NO_REFERENCE = Dialect("reference", "none", "CPO has no reference", f"{CODE}/experimental/cpo/cpo_trainer.py#L677")
_AT_THE_TABLE = StandIn("entropy_from_logits", "looks up the scenario's numbers in a table")
_OF_HF = StandIn("Trainer.compute_loss", "from transformers: returns the model's outputs; its loss is not used")

#: Trainers that store a missing value of a metric as NaN. Other trainers leave it out.
_WITHOUT_A_NUMBER = (f"{GRPO}.GRPOTrainer", f"{RLOO}.RLOOTrainer", _SDPO, f"{_ASYNC}.AsyncGRPOTrainer")
_LOGGING = (
    f"{DPO}.DPOTrainer",
    f"{SFT}.SFTTrainer",
    f"{KTO}.KTOTrainer",
    f"{REWARD}.RewardTrainer",
    *(
        f"trl.experimental.{place}Trainer"
        for place in (
            "a2po.a2po_trainer.A2PO", "cpo.cpo_trainer.CPO", "orpo.orpo_trainer.ORPO", "tpo.tpo_trainer.TPO",
            "distillation.distillation_trainer.Distillation", "gold.gold_trainer.GOLD", "iw_opd.iw_opd_trainer.IWOPD",
        )
    ),
)  # fmt: skip
_MEAN = {"statistic": "mean", **MASKED_STATISTICS.lacking()}

MODELS = (
    Binding(
        f"{DPO}.DPOTrainer._compute_loss", "preference_loss", call=_dpo_loss,
        formerly=tuple(f"{DPO}.DPOTrainer.{name}" for name in ("get_batch_loss_metrics", "get_batch_metrics")),
        stand_ins=(_SELF, _ONE_PROCESS, _TABLE), accepts={"chosen_mask": _COUNTED, "rejected_mask": _COUNTED},
        fixed={"label_smoothing": 0.0},  # the option is documented for Robust DPO and EXO only
    ),
    Binding(
        f"{_OWN}.orpo.orpo_trainer.ORPOTrainer.odds_ratio_loss", "preference_loss", call=_orpo_loss, stand_ins=(_SELF,),
        fixed={**PREFERENCE_LOSS.lacking("beta"), "loss_type": "orpo"}, dialects=(_NO_REFERENCE,),
    ),
    Binding(
        f"{_HEAD}.patch_chunked_lm_head", "token_log_probs", call=_call_chunked_head, fixed={"with_entropy": True},
        stand_ins=(StandIn("model", "a model whose hidden states are the logits, with an identity matrix as head"),),
    ),
    Binding(
        f"{DPO}.DataCollatorForVisionPreference.torch_call", "collation", call=_collate_pairs,
        stand_ins=(StandIn("processor", "a vision processor, which converts texts to numbers and adds their types"),),
        fixed={"layouts": {name: {"kind": "tensor", "dtype": "int64", "shape": ["tokens"]} for name in _TYPED}},
    ),
    *(
        Binding(
            f"{owner}.log", "masked_statistics", call=partial(_log_metric, owner in _WITHOUT_A_NUMBER),
            stand_ins=(_SELF, StandIn("Trainer.log", "from transformers; logs the values that it gets")), fixed=_MEAN,
        )
        for owner in (*_WITHOUT_A_NUMBER, *_LOGGING)
    ),
    Binding(
        f"{SFT}.SFTTrainer.compute_loss", "masked_statistics", call=_log_entropy,
        stand_ins=(_SELF, _ONE_PROCESS, _TABLE, _AT_THE_TABLE, _OF_HF), fixed=_MEAN,
        accepts={"response_mask": _COUNTED}, dialects=(_FINITE,), dtypes=("float32",),
    ),
    # GKD's loss has temperature 1, because its option temperature is only for sampling.
    *(
        Binding(
            boundary, "distillation_loss", call=_distilled, stand_ins=(_SELF, _ONE_PROCESS, _TABLE),
            accepts={"response_mask": _COUNTED, **accepts}, fixed=fixed,
        )
        for boundary, accepts, fixed in (
            (f"{DISTILLATION}.DistillationTrainer.compute_loss", {}, {}),
            (f"{GKD}.GKDTrainer.compute_loss", {}, {"temperature": 1.0}),
            (f"{_SDPO}._compute_self_distillation_loss", {"response_mask": ("full",)}, {"batch_num_tokens": None}),
        )
    ),
)  # fmt: skip

# -- rows of data: chats, pairs and packs ------------------------------------------------------------------------------


def _prepare_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare a chat with TRL's SFT trainer, and return its token ids and loss mask."""
    tokenizer, messages = chat(inputs)
    last = inputs["trains"] == "last"
    row = {"prompt": messages[:-1], "completion": messages[-1:]} if last else {"messages": messages}
    given = {"assistant_only_loss": not last, "completion_only_loss": last, "max_length": inputs["max_tokens"]}
    args = _options(boundary, given, {"assistant_only_loss": False})  # this option exists since June 2025
    trainer = _trainer(boundary, args, _tokenizer=tokenizer, chat_template=None)
    made = boundary.function(trainer, kit.Rows([row]), tokenizer, args, False, None, "chats")
    collator = getattr(boundary.module, "DataCollatorForLanguageModeling", None)
    # From March to June 2026, the collator truncates the rows.
    if made and "max_length" in getattr(collator, "__annotations__", ()):
        batch = collator(0, max_length=inputs["max_tokens"], completion_only_loss=last)([made[0]])
        return {"token_ids": batch["input_ids"][0], "loss_mask": batch["labels"][0] != -100}
    masks = [row[name] for row in made for name in ("completion_mask", "assistant_masks") if name in row]
    learned = [label != -100 for label in made[0]["labels"]] if made and "labels" in made[0] else map(all, zip(*masks))
    return {"token_ids": made[0]["input_ids"], "loss_mask": list(learned)} if made else {"token_ids": None}


def _prepare_pair(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate a preference pair for DPO, and return the token ids and loss mask of the prompt and the chosen answer."""
    tokenizer, messages = chat(inputs)
    row = {"chosen": messages, "rejected": [*messages[:-1], {"role": "assistant", "content": "w9.9"}]}
    trainers = boundary.module.DPOTrainer
    args = _options(boundary, {"max_length": inputs["max_tokens"]}, kind=boundary.module.DPOConfig)
    trainer = kit.make_unbuilt(trainers, args=args, _tokenizer=tokenizer, _is_vlm=False, is_vision_model=False)
    rows = trainers._prepare_dataset(trainer, kit.Rows([row]), tokenizer, args, "pairs")
    if not rows:
        return {"token_ids": None}
    options = kit.keep_accepted(
        boundary.owner, {"pad_token_id": 0, "max_length": inputs["max_tokens"]}, {"max_length": None}
    )
    batch = boundary.function(boundary.owner(**options), rows)
    if "prompt_input_ids" in batch:  # until February 2026, training steps join prompt and answer
        prompt, answer = (batch[f"{part}_input_ids"][0] for part in ("prompt", "chosen"))
        learned = torch.cat([torch.zeros_like(prompt), torch.ones_like(answer)])
        return {"token_ids": torch.cat([prompt, answer]), "loss_mask": learned}
    count = int(batch["attention_mask"][0].sum())
    return {"token_ids": batch["input_ids"][0][:count], "loss_mask": batch["completion_mask"][0][:count]}


def _collate_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Collate a chat with a collator for distillation, and return its token ids and loss mask."""
    tokenizer, messages = chat(inputs)
    tokenizer.backend_tokenizer = kit.stand_in(pre_tokenizer=None, decoder=None)
    known = {"tokenizer": tokenizer, "max_length": inputs["max_tokens"] or 1000, "max_prompt_length": 1000}
    known, one = kit.keep_accepted(boundary.owner, known, known), type(tokenizer).__call__

    def several(self: Any, texts: Any, **options: Any) -> Any:
        return one(self, texts, **options) if isinstance(texts, str) else {"input_ids": [*map(self.encode, texts)]}

    with kit.swap(type(tokenizer), "__call__", several):  # until October 2024, the collator tokenizes a list
        batch = boundary.function(boundary.owner(**known), [{"messages": messages}])
    ids, labels = batch["input_ids"][0], batch["labels"][0]
    return {"token_ids": torch.where(labels == -100, ids, labels), "loss_mask": labels != -100}


def _packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if "strategy" not in boundary.parameters:
        raise AbsentError("this version has only one packing strategy, which cuts rows at the end of a pack")
    rows = kit.make_dataset([{"input_ids": [row] * length} for row, length in enumerate(kit.lengths_of(inputs))])
    made = boundary.function(rows, inputs["max_tokens_per_microbatch"])
    return {"parts": [list(dict.fromkeys(row)) for row in made["input_ids"]]}


def _penalise_overlong(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Add TRL's penalty for overlong responses to the rewards."""
    ids = [[1] * int(length) for length in (inputs["response_mask"] != 0).sum(-1)]
    added = boundary.function(boundary.owner(inputs["max_length"], inputs["buffer"]), completion_ids=ids)
    return {"rewards": inputs["rewards"] + inputs["rewards"].new_tensor(added)}


_WORDS = StandIn("tokenizer", "each word is a token")
_PREPARES = f"{SFT}.SFTTrainer._prepare_dataset", f"{DPO}.DPOTrainer._prepare_dataset(args)"
ROWS = (
    *(
        Binding(boundary, "trained_tokens", call=call, stand_ins=(_SELF, _WORDS), fixed=fixed, requires=needs)
        for boundary, call, fixed, needs in (
            (_PREPARES[0], _prepare_chat, {}, (f"{SFT}.SFTConfig",)),
            (f"{DPO}.DataCollatorForPreference.torch_call", _prepare_pair, {"trains": "last"}, _PREPARES[1:]),
            (f"{_OWN}.utils.DataCollatorForChatML.__call__", _collate_chat, {"trains": "last", "max_tokens": None}, ()),
            (f"{_IW_OPD}._DistillationCollator.__call__", _collate_chat, {"trains": "last", "max_tokens": None}, ()),
        )
    ),
    Binding(
        "trl.rewards.other_rewards._SoftOverlongPunishment.__call__", "overlong_penalty", call=_penalise_overlong,
        fixed={"factor": 1.0},
    ),
    microbatch_packing("trl.data_utils.pack_dataset", _packed),
)  # fmt: skip

# -- single bugs whose contract would have only one boundary -----------------------------------------------------------


def _reported(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    chosen, rejected = (torch.tensor(inputs["arguments"][side]) for side in _SIDES)
    said = (chosen, rejected, chosen, rejected, torch.cat([chosen, rejected]))
    trainer = _trainer(
        boundary,
        kit.stand_in(),
        forward=partial(kit.return_first, said),
        ref_model=kit.stand_in(),
        beta=0.1,
        loss_type="kto",
        desirable_weight=1.0,
        undesirable_weight=1.0,
        kl=None,
    )
    told = boundary.function(trainer, kit.stand_in(), {})[1]
    return {"returned": {side: told[f"logps/{side}"].item() for side in _SIDES}}


def _report_kl(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the KL divergence that TRL's PPO trainer logs for the given policy and reference log-probs."""
    given = inputs["arguments"]
    log_probs, ref_log_probs = (torch.tensor(given[name]) for name in ("log_probs", "ref_log_probs"))
    ones, zeros = torch.ones_like(log_probs), torch.zeros(len(log_probs))
    trainer = _trainer(
        boundary, None, config=kit.stand_in(kl_penalty=given["kl_penalty"]), kl_ctl=kit.stand_in(value=0.2)
    )
    penalties = boundary.owner.compute_rewards(trainer, zeros, log_probs, ref_log_probs, ones)
    statistics = {"val/error": torch.ones(2), "returns/var": torch.ones(2)}
    told = boundary.function(
        trainer,
        0.2,
        logprobs=log_probs,
        ref_logprobs=ref_log_probs,
        masks=ones,
        scores=zeros,
        queries=[[1], [1]],
        non_score_reward=penalties[1],
        kls=penalties[-1],
        responses=[[1], [1]],
        train_stats=statistics,
    )
    return {"returned": told["objective/kl"].item()}


def _score_truncated(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs of the chosen responses after TRL truncated the pairs to ``max_length``."""
    given = inputs["arguments"]
    prompts, responses = given["prompts"], given["responses"]
    ids = torch.tensor(kit.token_ids(torch.ones(len(prompts), max(responses) - 1)))
    counts = (torch.arange(max(responses)) < torch.tensor(responses)[:, None]).long()
    before = torch.arange(max(prompts)).flip(0) < torch.tensor(prompts)[:, None]
    pairs = {"prompt_input_ids": 2 * before.long(), "prompt_attention_mask": before.long()}
    for side in _SIDES:
        pairs.update({f"{side}_input_ids": ids, f"{side}_attention_mask": counts})
    model = kit.token_table(torch.full((len(ids), ids.shape[1]), -1.0)[:, 1:])
    trainer = _trainer(
        boundary,
        kit.stand_in(rpo_alpha=None, ld_alpha=None),
        max_length=given["max_length"],
        truncation_mode="keep_end",
        use_logits_to_keep=False,
        padding_free=False,
        use_weighting=False,
        loss_type="sigmoid",
    )
    return {"returned": boundary.function(trainer, model, pairs)["chosen_logps"]}


def _labelled(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    given = inputs["arguments"]
    tokenizer = kit.table_tokenizer(kit.token_table(torch.zeros(1, max(given["token_ids"]))))
    collator = boundary.owner([given["response"]], [given["instruction"]], tokenizer=tokenizer)
    return {"returned": collator.torch_call([{"input_ids": given["token_ids"]}])["labels"][0]}


def _render_chat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Render a chat with the training template by which TRL replaces a known chat template.

    Return the text that is trained on, and whether both templates render the chat to the same text.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    given = inputs["arguments"]
    tokenizer = kit.table_tokenizer(kit.token_table(torch.zeros(1, 1)))
    tokenizer.chat_template = getattr(boundary.module, f"{given['template']}_chat_template")
    asked = {"chat_template": boundary.function(tokenizer), "return_assistant_tokens_mask": True}
    texts, spans = render_jinja_template(conversations=[given["messages"]], **asked)
    same = texts[0] == tokenizer.apply_chat_template(given["messages"], tokenize=False)
    return {"returned": {"same": same, "trained": "".join(texts[0][start:end] for start, end in spans[0])}}


def _average_metric(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean that TRL's collator reports for a metric that only some samples have."""
    if "num_processes" not in boundary.owner.__annotations__ or not _takes_rows_of_ranks(boundary.owner):
        raise AbsentError("this version's collator does not take the samples of several ranks")
    collator = boundary.owner(pad_token_id=0, num_processes=len(inputs["parts"]))
    one = {"input_ids": [1], "completion_mask": [1], "old_log_probs": [0.0], "advantage": 0.0, "group_id": 0}
    parts = [
        [{**one, "metrics": {"other": 1.0} | ({} if value is None else {"own": value})} for value in part]
        for part in inputs["parts"]
    ]
    batch = collator.torch_call([[_row_of(boundary, part) for part in parts]])
    values = batch["metrics"].get("own") if "metrics" in batch else torch.tensor(collator.metrics["own"])
    return {"mean": math.nan if values is None else values.nanmean()}


REPORTS = (Binding(f"{_ASYNC}.DataCollatorForRollout.torch_call", "mean_of_parts", call=_average_metric),)

SINGLE = tuple(
    Binding(boundary, "call", call=call, stand_ins=stand_ins, requires=(f"{boundary}(batch)",) * ("KTO" in boundary))
    for boundary, call, stand_ins in (
        (f"{KTO}.KTOTrainer.get_batch_loss_metrics", _reported, (_SELF, _ONE_PROCESS)),
        ("trl.trainer.ppo_trainer.PPOTrainer.record_step_stats", _report_kl, (_SELF, _ONE_PROCESS)),
        (f"{DPO}.DPOTrainer.concatenated_forward", _score_truncated, (_SELF, _ONE_PROCESS, _TABLE)),
        ("trl.trainer.utils.DataCollatorForCompletionOnlyLM.torch_call", _labelled, (_WORDS,)),
        ("trl.chat_template_utils.get_training_chat_template", _render_chat, (_WORDS,)),
    )
)

# -- whole steps of trainers with their real constructors, on a model that is a table ----------------------------------


def _train_supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train with TRL's SFT trainer on token ids with completion masks, and return the loss and its gradient."""
    mask, first = inputs["response_mask"], int(inputs["first_counts"])
    ids = kit.token_ids(mask * 0 + 1)
    rows = [{"input_ids": row, "completion_mask": [first, *kept]} for row, kept in zip(ids, mask.long().tolist())]
    table, size, after = (inputs[name] for name in ("log_probs", "micro_batch_size", "output_after"))
    trainer, model = kit.build_trainer(boundary, table, size, rows, {"completion_only_loss": True}, after=after)
    if not len(trainer.train_dataset):
        raise AbsentError("TRL drops rows without a trained token, and the scenario has no other row")
    loss, arrived = kit.train(trainer, model)
    return {"loss": loss, "gradient": arrived[:, 1:-1], "gradient_after": arrived[:, -1]}


def _train_policy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train with TRL's GRPO or RLOO trainer on the scenario's completions, without generation."""
    mask = inputs["response_mask"]
    ids = torch.tensor(kit.token_ids(mask * 0 + 1), device=mask.device)
    if len(ids) < 2:
        raise AbsentError("TRL's trainer needs at least two completions; the scenario has fewer")
    options = {
        **_clip_options(inputs),
        "num_generations": len(ids),
        "temperature": 1.0,
        "max_completion_length": inputs["loss_scale_factor"] or mask.shape[1],
    }
    if "GRPO" in boundary.path:
        name = _LOSS_TYPES["ppo", inputs["loss_agg_mode"]].replace("bnpo", "dapo")
        computes = getattr(boundary.owner, "_compute_loss", boundary.owner.compute_loss)  # one method until April 2025
        options["loss_type"] = _loss_type(computes, name)
    prompts = [{"prompt": kit.token_words(row[:1])} for row in ids.tolist()]
    table, size = inputs["log_probs"], inputs["micro_batch_size"]
    trainer, model = kit.build_trainer(boundary, table, size, prompts, options, reward_funcs=kit.return_first)
    batch = _completions(inputs, prompt_ids=ids[:, :1], completion_ids=ids[:, 1:])
    if "fused_lm_head" in kit.source_of(trainer._get_per_token_logps_and_entropies):
        # The fused head also computes the old log-probs, and it returns 0 for masked tokens.
        batch["old_per_token_logps"] = batch["old_per_token_logps"] * mask
    # A training step slices exactly the columns that ``_generate_and_score_completions`` returns: keep only those.
    makes = kit.source_of(trainer._generate_and_score_completions)
    scored = {name: column for name, column in batch.items() if f'"{name}"' in makes}
    trainer._generate_and_score_completions = partial(kit.return_first, scored)
    loss, arrived = kit.train(trainer, model)
    return {"gradient": arrived[:, 1:-1], "pg_loss": loss}


def _train_on_pairs(
    rows: str, names: tuple[str, ...], options: Mapping[str, Any], boundary: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Train with a preference trainer of TRL on pairs of responses, and return the loss and its gradient.

    The first token of a row identifies the row. It is the prompt, or the beginning of a text. Trainers append the end
    token, except for the reward trainer until September 2025.

    :param rows: the kind of dataset: ``pairs``, single ``responses``, ``texts`` for a reward model (the score is the
        sum of the table over a text's tokens), or ``prompts``, for which responses are generated and judged.
    """
    table, reference, mask = _join_pairs(inputs)
    ids = kit.token_ids(mask, ended=True)
    pairs = list(zip(ids, ids[len(ids) // 2 :]))
    size, parts = inputs["micro_batch_size"], {"ref_model": kit.token_table(reference)} if "ref_model" in names else {}
    made: list[dict[str, Any]] = [{"prompt": kit.token_words(chosen[:1])} for chosen, _ in pairs]
    if rows == "prompts":
        parts["reward_funcs"] = lambda completions, **_: [2 * n < len(completions) for n in range(len(completions))]
    else:
        end = None if rows == "texts" and "eos_token" not in kit.source_of(boundary.module) else -1
        texts = [{side: f" {kit.token_words(one[:end])}" for side, one in zip(_SIDES, pair)} for pair in pairs]
        made = [{**({} if rows == "texts" else prompt), **text} for prompt, text in zip(made, texts)]
    if "tpo_alpha" in options:
        made = [{**row, "reference": row["chosen"]} for row in made]
    if rows == "responses":
        sides = [(row, side) for row in made for side in _SIDES]
        made = [{"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"} for row, side in sides]
        size = size and 2 * size
    given = {name: inputs[name] for name in names if name != "ref_model" and inputs[name] is not None}
    if given.get("loss_type") == "apo_zero":
        given["loss_type"] = "apo_zero_unpaired"
    trainer, model = kit.build_trainer(
        boundary, table, size, made, {**options, **given}, scores=rows == "texts", **parts
    )
    model.generate = partial(kit.generate_answers, {pair[0][0]: pair for pair in pairs})
    loss, arrived = kit.train(trainer, model)
    return {"loss": kit.attach_gradient(loss, table, arrived[:, 1:-1])}


def _train_student(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train a student with a distillation trainer of TRL, and return the loss and its gradient."""
    mask, generated = inputs["response_mask"], inputs["generated"]
    ids = kit.token_ids(mask, ended=True)
    if min(map(len, ids)) < 2:
        raise AbsentError("TRL needs a valid token in every completion; the scenario has a completion without one")
    known = {
        "beta": inputs["beta"],
        "temperature": inputs["temperature"],
        "lmbda": float(generated),
        "max_new_tokens": mask.shape[1],
        "max_completion_length": mask.shape[1],
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "remove_unused_columns": False,
        "distillation_objective": "jsd",
        "loss_top_k": 0,
    }
    rows = [{"first": row[0], "rest": row[1 : 2 if generated else None]} for row in ids]
    trainer, model = kit.build_trainer(
        boundary,
        inputs["logits"],
        inputs["micro_batch_size"],
        rows,
        kit.keep_accepted(kit.config_class_of(boundary), known, known),
        teacher_model=kit.token_table(inputs["teacher_logits"]),
        data_collator=kit.make_prompted_batch,
    )
    model.generate = partial(kit.generate_answers, {row[0]: (row[1:],) for row in ids})
    loss, arrived = kit.train(trainer, model)
    return {"loss": kit.attach_gradient(loss, inputs["logits"], arrived[:, 1:-1])}


def _score_sequences(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    arguments = inputs["arguments"]
    logits, ids = arguments["logits"], arguments["token_ids"]
    trainer = kit.make_unbuilt(
        boundary.owner, args=kit.stand_in(temperature=arguments["temperature"]), model_kwarg_keys=()
    )
    model = partial(kit.return_first, kit.stand_in(logits=logits))
    return {"returned": boundary.function(trainer, model, ids, torch.ones_like(ids), ids.shape[1] - 1)}


def _truncate_prompt(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of a prompt that TRL's A2PO trainer truncates and passes to ``generate``."""
    words = [kit.PROMPT + token for token in inputs["token_ids"]]
    vocabulary = kit.stand_in(config=kit.stand_in(vocab_size=max(words, default=0) + 1))
    seen: list[Any] = []

    def generate(input_ids: Any, **_: Any) -> Any:
        seen.extend(input_ids[0].tolist())
        raise StopIteration

    trainer = kit.make_unbuilt(
        boundary.owner,
        _optimal_values={},
        model=kit.stand_in(training=True),
        accelerator=kit.make_one_process("cpu"),
        args=kit.stand_in(max_prompt_length=inputs["max_length"]),
        processing_class=kit.table_tokenizer(vocabulary),
        generation_config=None,
    )
    generation = nullcontext(kit.stand_in(generate=generate))
    with kit.swap(boundary.module, "unwrap_model_for_generation", lambda *_: generation), suppress(StopIteration):
        boundary.function(trainer, [{"prompt": kit.token_words(words)}])
    return {"token_ids": [word - kit.PROMPT for word in seen]}


def _distil_from_server(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return TRL's distillation loss for a teacher server that returns log-probs of the whole vocabulary."""
    import numpy

    logits, mask = inputs["logits"], inputs["response_mask"]
    (batch, _, words), size = logits.shape, inputs["micro_batch_size"] or len(logits)
    target = inputs["teacher_logits"].log_softmax(-1).detach().numpy()
    head = kit.stand_in(weight=torch.eye(words), bias=None)
    config = kit.stand_in(get_text_config=lambda: None)
    trainer = kit.make_unbuilt(
        boundary.owner,
        **{f"_step_{name}": 0.0 for name in _COUNTERS},
        args=kit.stand_in(beta=inputs["beta"], teacher_temperature=1.0, add_tail_bucket=False),
        accelerator=kit.stand_in(
            num_processes=1, autocast=nullcontext, reduce=kit.return_first, unwrap_model=kit.return_first
        ),
        current_gradient_accumulation_steps=-(-batch // size),
        _metrics={"train": defaultdict(list)},
        _teacher_ids=[],
        _forward_redirection=_call_directly,
    )
    loss = 0.0
    for start in range(0, batch, size):
        counts = {row: int(mask[row].sum()) for row in range(start, min(start + size, batch))}
        rows = [
            {
                "input_ids": numpy.zeros(count + 1, dtype=int),
                "completion_mask": numpy.arange(count + 1) > 0,
                "teacher_topk_ids": numpy.tile(numpy.arange(words), (count + 1, 1)),
                "teacher_topk_logprobs": target[row, [0, *range(count)]],
                "prompt_id": row,
                "metrics": {},
            }
            for row, count in counts.items()
        ]
        hidden = torch.cat([logits[row, [*range(count), 0]] for row, count in counts.items()])[None]
        student = kit.stand_in(
            base_model=partial(kit.return_first, kit.stand_in(last_hidden_state=hidden)),
            get_output_embeddings=partial(kit.return_first, head),
            config=config,
        )
        loss = loss + boundary.function(trainer, student, boundary.module.DataCollatorForRollout(0)([[rows]]))
    return {"loss": loss}


def _compute_advantages(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the advantages that a TRL trainer computes from the scenario's rewards."""
    rewards, size, level = inputs["rewards"], kit.group_size(inputs), inputs["std_level"]
    options: dict[str, Any] = {"num_generations": max(size, 2), "beta": 0.0}
    if "GRPO" in boundary.path:
        kind = str(kit.config_class_of(boundary).__annotations__.get("scale_rewards"))
        if kind == "None" and level != "group":  # until March 2025
            raise AbsentError("this version has no option scale_rewards: rewards are always scaled by group")
        if "bool" in kind and level == "batch":  # until October 2025
            raise AbsentError(
                "this version's option scale_rewards is a boolean: rewards are scaled by group, not by batch"
            )
        if kind != "None":
            options["scale_rewards"] = level is not None if "bool" in kind else level or "none"
    elif level == "batch":
        options["normalize_advantages"] = True
    batch = [{"prompt": f"w{kit.PROMPT + sorted(set(inputs['group'])).index(label)}"} for label in inputs["group"]]
    trainer, model = kit.build_trainer(
        boundary,
        -torch.ones(2 * len(batch), 1),
        None,
        batch * 2,
        options,
        reward_funcs=lambda completions, **_: rewards.tolist(),
    )
    model.generate = lambda input_ids, **_: torch.nn.functional.pad(input_ids, (0, 1), value=1)
    if size == 1:
        if not hasattr(trainer, "num_generations_eval"):
            raise AbsentError("this version has no option num_generations_eval, which groups of one row need")
        model.eval()
        trainer.num_generations_eval = 1
    return {"normalised": boundary.function(trainer, batch)["advantages"]}


def _needed_names(boundary: str) -> tuple[str, ...]:
    # Versions of TRL or transformers without one of these names also lack options that the step sets.
    owner = boundary.rpartition(".")[0]
    return f"{owner}.{_TAKES.get(owner.rpartition('.')[2], '__init__(processing_class)')}", f"{owner[:-7]}Config"


_SAID = StandIn("generate", "returns the scenario's tokens instead of sampling")
_ONE_RANK: dict[str, Any] = {"dp_size": (1,), "max_tokens_per_microbatch": (None,), "response_mask": _COUNTED}
_BATCH = StandIn("_generate_and_score_completions", "returns the scenario's completions and advantages")
_COLLATOR = StandIn("data_collator", "returns one-token prompts, each followed by its completion")
_POLICY = {**_ONE_RANK, "mini_batch_size": (None,), "ref_log_probs": (None,)}
_TAKES = {
    "DPOTrainer": "compute_loss(num_items_in_batch)",
    "KTOTrainer": "_get_train_sampler(train_dataset)",
    "OnlineDPOTrainer": "__init__(reward_funcs)",
    "RewardTrainer": "compute_loss(num_items_in_batch)",
}
_ONE_TOKEN = StandIn("generate", "returns one token instead of sampling")
ADVANTAGES = (
    normalised_rewards(
        f"{GRPO}.GRPOTrainer._generate_and_score_completions", _compute_advantages, "std_level", "epsilon",
        fixed={"group_layout": "equal", "epsilon": 0.0001}, accepts={"std_level": ("group", "batch", None)},
        stand_ins=(_TABLE, _ONE_TOKEN), dtypes=("float32",),
    ),
    normalised_rewards(
        f"{RLOO}.RLOOTrainer._generate_and_score_completions", _compute_advantages, "leave_one_out", "std_level",
        stand_ins=(_TABLE, _ONE_TOKEN), fixed={"group_layout": "equal", "leave_one_out": True, "std_level": None},
    ),
)  # fmt: skip

_SIGMOID, _OF_PAIRS = ("sigmoid",), ("beta", "ref_model")
_SERVED = f"{_OWN}.async_distillation.async_distillation_trainer.AsyncDistillationTrainer.compute_loss"
_COUNTERS = ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s")
_A2PO = f"{_OWN}.a2po.a2po_trainer.A2POTrainer._prepare_inputs"
STEPS = (
    Binding(
        _A2PO, "truncation", call=_truncate_prompt, requires=(_A2PO,), fixed={"loss_mask": None, "padded": False},
        accepts={"side": ("left",)}, stand_ins=(StandIn("model", "records the prompt, and ends the call"),),
    ),
    Binding(
        f"{_OWN}.a2po.a2po_trainer.A2POTrainer._get_sequence_logps", "call", call=_score_sequences,
        requires=(_A2PO,), stand_ins=(StandIn("model", "returns the scenario's logits"),),
    ),
    Binding(
        _SERVED, "distillation_update", call=_distil_from_server, requires=(_SERVED,), dtypes=("float32",),
        stand_ins=(StandIn("model", "a backbone that returns the scenario's logits, and a head that keeps them"),),
        fixed={"temperature": 1.0, "generated": True}, accepts={"beta": (0.0,), "response_mask": _COUNTED},
    ),
    *(
        Binding(
            boundary, f"{contract}_update", call=call, stand_ins=(_TABLE, *stand_ins), requires=_needed_names(boundary),
            accepts=accepts, fixed=fixed, dialects=dialects, dtypes=("float32",),
        )
        for boundary, contract, call, stand_ins, accepts, fixed, dialects in (
            (f"{SFT}.SFTTrainer.compute_loss", "supervised", _train_supervised, (), _ONE_RANK, {}, (_FINITE,)),
            (
                f"{GRPO}.GRPOTrainer.compute_loss", "policy", _train_policy, (_BATCH,), {**_POLICY, **_MEANS},
                POLICY_UPDATE.lacking("eps_clip_low", "eps_clip_high", "loss_agg_mode"), _of_responses(_OF_GRPO),
            ),
            (
                f"{RLOO}.RLOOTrainer.compute_loss", "policy", _train_policy, (_BATCH,), _POLICY,
                {**POLICY_UPDATE.lacking("eps_clip_low", "eps_clip_high"), "loss_agg_mode": "seq-mean-token-mean"},
                (_RATIO_OF_A_RESPONSE, *_of_responses(_OF_RLOO)),
            ),
        )
    ),
    *(
        Binding(
            boundary, "preference_update", call=partial(_train_on_pairs, rows, names, options),
            stand_ins=(_TABLE, _SAID)[:1 + (rows == "prompts")], requires=_needed_names(boundary),
            accepts={"chosen_mask": _COUNTED, "rejected_mask": _COUNTED, "loss_type": types},
            fixed={**PREFERENCE_LOSS.lacking("loss_type", *names), **({} if "beta" in names else {"beta": 1.0})},
            dialects=() if "ref_model" in names else (_NO_REFERENCE,), dtypes=("float32",),
        )
        for boundary, rows, names, options, types in (
            (f"{DPO}.DPOTrainer.compute_loss", "pairs", (*_OF_PAIRS, "ld_alpha"), {}, _SIGMOID),
            (f"{ONLINE}.OnlineDPOTrainer.training_step", "prompts", _OF_PAIRS, {}, _SIGMOID),
            (f"{_OWN}.cpo.cpo_trainer.CPOTrainer.compute_loss", "pairs", ("beta",), {"cpo_alpha": 0.0}, _SIGMOID),
            (f"{_OWN}.tpo.tpo_trainer.TPOTrainer._compute_loss", "pairs", ("beta",), {"tpo_alpha": 0.0}, _SIGMOID),
            (f"{REWARD}.RewardTrainer.compute_loss", "texts", (), {}, _SIGMOID),
            (
                f"{KTO}.KTOTrainer.compute_loss", "responses", (*_OF_PAIRS, "loss_type"),
                {"train_sampling_strategy": "sequential"}, ("kto", "apo_zero"),
            ),
        )
    ),
    *(
        Binding(
            f"{trainer}.training_step", "distillation_update", call=_train_student, requires=(f"{_OWN}.utils",),
            stand_ins=(_TABLE, _SAID, _COLLATOR), accepts={"response_mask": _COUNTED, **accepts}, dtypes=("float32",),
        )
        for trainer, accepts in (
            (f"{GKD}.GKDTrainer", {"temperature": (1.0,)}), (f"{_OWN}.gold.gold_trainer.GOLDTrainer", {}),
            (f"{_IW_OPD}.IWOPDTrainer", {}), (f"{DISTILLATION}.DistillationTrainer", {"generated": (True,)}),
        )
    ),
)  # fmt: skip


# -- a colocated engine ------------------------------------------------------------------------------------------------


def _engine_versions(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each generated sample, the version of the weights that the engine had loaded.

    TRL sends the weights after each update. The model's only weight is the number of updates, which is the version.
    The trainer's constructor puts a new engine to sleep, at level 2.
    """
    engine, model = WeightEngine(), torch.nn.Module()
    model.version = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
    inner = kit.stand_in(load_weights=lambda pairs: [engine.load(value) for _, value in pairs])
    for name in ("model", "model_runner", "driver_worker", "model_executor", "llm_engine"):
        inner = kit.stand_in(**{name: inner})

    def generate(*_: Any, **__: Any) -> list[Any]:
        engine.generate()
        return [kit.stand_in(prompt_token_ids=[1], outputs=[kit.stand_in(token_ids=[2], logprobs=[])])]

    engines = {"sleep": engine.sleep, "wake_up": engine.wake_up, "generate": generate}
    own = dict.fromkeys(("repetition_penalty", "temperature", "top_p", "top_k", "min_p", "logprobs"))
    generation = kit.make_unbuilt(
        boundary.owner,
        llm=kit.stand_in(
            llm_engine=inner.llm_engine,
            reset_prefix_cache=lambda: None,
            collective_rpc=lambda name: engine.reload(),  # the trainer calls this only with reload_weights
            **engines,
        ),
        model=model,
        accelerator=kit.make_one_process(boundary.device),
        **dict.fromkeys(("_dist", "_distributed"), kit.bookkeeping(is_fsdp=False, gather_params=nullcontext)),
        is_fsdp_enabled=False,  # until June 2026
        **dict.fromkeys(("rollout_func", "processing_class", "tools", "chat_template", "chat_template_kwargs")),
        mode="colocate",
        enable_sleep_mode=inputs["sleeps"],
        _llm_weights_sleeping=inputs["sleeps"],
        structured_outputs_regex=None,
        tensor_parallel_size=1,
        max_completion_length=1,
        generation_kwargs={},
        **own,
    )
    if inputs["sleeps"]:
        engine.sleep(level=2)
    with mock.patch.dict(vars(boundary.module), SamplingParams=kit.stand_in, extract_logprobs=lambda *_: (None, None)):
        for count in inputs["generations"]:
            model.version += 1
            generation.sync_weights()
            for _ in range(count):
                boundary.function(generation, [[1]], None, 1)
    return {"versions": engine.versions}


ENGINES = (
    Binding(
        "trl.generation.vllm_generation.VLLMGeneration.generate", "engine_weights", call=_engine_versions,
        stand_ins=(WEIGHTS, _ONE_PROCESS, StandIn("self", "TRL's class without its constructor, which starts vLLM")),
    ),
)  # fmt: skip


#: Code that carries no training signal: see Target.no_signal.
_NO_SIGNAL = (
    "trl.generation.vllm_client.*", "trl.scripts.*", "trl.trainer.callbacks.*", "trl.trainer.utils.*_mfu",
    "*_flops_per_token",
)  # fmt: skip

TARGET = Target(
    name="trl",
    repository="https://github.com/huggingface/trl",
    roots=(PackageRoot("trl"),),
    pypi="trl",
    preload=(
        *("transformers", "transformers.trainer", "transformers.models.auto.processing_auto", "torch.distributed.fsdp"),
        *("accelerate", "datasets", "huggingface_hub", "pandas", "pyarrow", "requests"),
    ),
    moved={  # trainers that moved to trl.experimental in 2025, a trainer that moved back in 2026, and renamed names
        DISTILLATION: ("trl.trainer.distillation_trainer",),
        f"{_HEAD}.patch_chunked_lm_head": (f"{_HEAD}.add_fused_lm_head",),
        **{f"{_OWN}.{n}.{n}_trainer": (f"trl.trainer.{n}_trainer",) for n in ("gkd", "cpo", "orpo", "online_dpo")},
        f"{_OWN}.utils.DataCollatorForChatML": ("trl.trainer.utils.DataCollatorForChatML",),
        f"{DPO}.DataCollatorForPreference": (f"{DPO}.PreferenceCollator",),
    },
    at_import={
        # An annotation of the SDFT trainer names this class of an optional package.
        "builtins.PeftConfig": Alias("builtins.object"),
        # names that transformers 5 removed or added; no boundary uses them
        "transformers.top_k_top_p_filtering": Alias("transformers.TopKLogitsWarper"),
        "transformers.models.auto.modeling_auto.MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES": Alias(
            "transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"
        ),
    },
    no_signal=_NO_SIGNAL,
    steps=DOCUMENTED,
    bindings=(
        *(_REJECTION, *LOSSES, *ADVANTAGES, *MODELS, *ROWS, *REPORTS, *SINGLE, *STEPS),
        *(*ENGINES, *FUNCTIONS, *RUNS, *TOOLS),
    ),
)
