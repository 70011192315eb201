"""Bindings for ROLL's preference and distillation losses, and for the log-probs that its strategies compute."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU, RANKS
from sentinel.binding.kit import torch

from .containers import PROTOCOL, RECENT

_FUNCTIONALS = "roll.utils.functionals"
_STRATEGY = "roll.distributed.strategy.strategy.InferenceStrategy"
_FSDP = "roll.distributed.strategy.fsdp2_strategy"
_DIVERGENCE = "roll.pipeline.distill.various_divergence"
_DPO = "roll.pipeline.dpo.actor_worker"
_PARALLEL, _MEGATRON = "roll.third_party.megatron.tensor_parallel", "roll.distributed.strategy.megatron_strategy"
_DISTILL, _SFT = "roll.pipeline.distill.distill_worker", "roll.pipeline.sft.sft_worker"

_SELF = StandIn("self", "the real object needs Ray and a model; the method reads only these attributes")
#: A strategy of one rank, whose methods are the real ones.
_RANK = StandIn("strategy", "the real class for one rank, without a model")
_ADDRESS = StandIn("get_node_ip", "a decorator reads the machine's address at import, for which a network is needed")


def _strategy(kind: Any) -> Any:
    """Return a ROLL strategy for one rank. Its abstract methods are not called."""
    concrete = type(kind.__name__, (kind,), {"__abstractmethods__": frozenset()})
    worker = kit.stand_in(rank_info=kit.stand_in(cp_size=1, cp_rank=0))
    return kit.make_unbuilt(concrete, worker=worker, worker_config=kit.stand_in(name="model"))


def _batch(boundary: Any, columns: Mapping[str, Any], **meta: Any) -> Any:
    return boundary.imported[PROTOCOL].DataProto.from_dict(tensors=dict(columns), meta_info=meta)


def _of_whole_rows(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logits, token ids and mask of sequences with a one-token prompt. The last logits predict nothing."""
    logits = torch.cat([inputs["logits"], -inputs["logits"][:, :1].detach()], 1)
    ids, mask = (kit.prepend_prompt(inputs[name].long()) for name in ("token_ids", "response_mask"))
    return {"logits": logits, "input_ids": ids, "attention_mask": mask}


def _scored(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs and entropies, either with ROLL's strategy or with a worker's method that calls a strategy."""
    whole = _of_whole_rows(inputs)
    if "output_tensor" not in boundary.parameters:
        strategy = _strategy(boundary.owner)
        log_probs = strategy.op_compute_log_probs(**whole)
        entropy = strategy.op_compute_entropy(whole["logits"], whole["attention_mask"])
        return {"log_probs": log_probs, "entropy": entropy}
    masks = dict.fromkeys(("attention_mask", "response_mask"), whole["attention_mask"])
    worker = kit.stand_in(strategy=_strategy(boundary.imported[_FSDP].FSDP2InferStrategy))
    data = _batch(boundary, {"input_ids": whole["input_ids"], **masks})
    made = boundary.function(worker, data, whole["logits"])[1]
    return {"log_probs": made["log_probs"], "entropy": made["entropy"]}


def _entropy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return kit.call_entropy("log_probs_from_logits", boundary, inputs)


def _of_pairs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with the method of ROLL's DPO worker that calls a strategy."""
    whole = _of_whole_rows(inputs)
    worker = kit.stand_in(strategy=_strategy(boundary.imported[_FSDP].FSDP2InferStrategy))
    columns = {name: whole[name] for name in ("input_ids", "attention_mask")}
    return {"log_probs": boundary.function(worker, _batch(boundary, columns), whole["logits"])[1]["log_probs"]}


def _entropy_of_ranks(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute entropies with ROLL's function for logits whose vocabulary is split over one or two ranks."""
    module, functions = boundary.module, boundary.imported[_FUNCTIONALS]
    values = functions.log_probs_from_logits(inputs["logits"], inputs["token_ids"])
    with kit.swap(module, "mpu", kit.make_single_rank_mpu()), kit.swap(torch, "compile", _compile_nothing):
        entropy = kit.score_by_vocabulary(
            inputs["logits"], lambda own, _: module.vocab_parallel_entropy(own, True, False)
        )
    return {"log_probs": values, "entropy": entropy[0].detach()}


def _compile_nothing(**_: Any) -> Any:
    return kit.return_first


_LOG_PROBS = (
    Binding(
        f"{_DPO}.ActorWorker.forward_func_log_probs", "token_log_probs", call=_of_pairs, imports=(PROTOCOL, _FSDP),
        stand_ins=(_SELF, _RANK, _ADDRESS), fixed={"temperature": 1.0, "with_entropy": False},
        requires=RECENT,
    ),
    Binding(
        f"{_PARALLEL}._VocabParallelEntropy.forward", "token_log_probs", call=_entropy_of_ranks,
        imports=(_FUNCTIONALS,), stand_ins=(MPU, RANKS), fixed={"temperature": 1.0, "with_entropy": True},
        requires=(f"{_PARALLEL}.vocab_parallel_entropy(use_fused_kernel)",),
    ),
    Binding(f"{_FUNCTIONALS}.entropy_from_logits", "token_log_probs", call=_entropy, fixed={"temperature": 1.0}),
    *(
        Binding(path, "token_log_probs", call=_scored, stand_ins=stand_ins, fixed={"temperature": 1.0}, **more)
        for path, stand_ins, more in (
            *(
                (f"{owner}.op_compute_{what}", (_RANK,), {})
                for owner in (_STRATEGY, f"{_FSDP}.FSDP2InferStrategy") for what in ("log_probs", "entropy")
            ),
        )
    ),
)  # fmt: skip


# -- distillation ------------------------------------------------------------------------------------------------------


def _divergence(boundary: Any, objective: str, temperature: float = 1.0, **options: Any) -> Any:
    config = kit.stand_in(kd_objective=objective, kd_temperature=temperature, **options)
    return boundary.imported[_DIVERGENCE].VariousDivergence(config)


#: beta -> ROLL's name for the objective.
_OBJECTIVES = {0.0: "forward_kl", 1.0: "reverse_kl", 0.5: "js_divergence"}


def _distilled(objective: str, options: Mapping[str, Any], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean divergence between student and teacher, from the probabilities that ROLL's strategy sends."""
    valid, count = inputs["response_mask"] != 0, inputs["batch_num_tokens"]
    count = max(int(valid.sum()), 1) if count is None else count
    logits, teacher = (torch.where(valid[..., None], inputs[name], 0.0) for name in ("logits", "teacher_logits"))
    strategy = _strategy(boundary.imported[_STRATEGY.rpartition(".")[0]].InferenceStrategy)
    probs, log_probs, _, infinite = strategy.op_compute_topk_probs_and_indices(
        teacher, kd_temperature=inputs["temperature"]
    )
    if options and max(logits.abs().max(), teacher.abs().max()) > 40 * inputs["temperature"]:
        raise AbsentError(
            "both models' probabilities of a token underflow in single precision, so their mixture has no logarithm"
        )
    equal = torch.softmax(logits.float(), -1) == torch.softmax(teacher.float(), -1)
    if objective == "adaptive_kl" and equal.all(-1).any():
        raise AbsentError("the student equals the teacher at a token, so the weights of both divergences are 0 / 0")
    divergence = _divergence(boundary, objective or _OBJECTIVES[inputs["beta"]], inputs["temperature"], **options)
    labels = torch.where(valid, 1, -100)
    loss, _ = strategy.op_compute_various_divergence(
        divergence, logits, probs, log_probs, None, infinite, labels, reduction="sum"
    )
    return {"loss": loss / count}


def _student(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss of ROLL's student worker, which consists only of the divergence from the teacher.

    The label of the one-token prompt is -100. The two models disagree about the token after the last one, so that the
    loss is wrong if this position counts.
    """
    valid, count = inputs["response_mask"] != 0, inputs["batch_num_tokens"]
    ours, teacher = (torch.where(valid[..., None], inputs[name], 0.0) for name in ("logits", "teacher_logits"))
    last = torch.arange(ours.shape[-1]).to(ours).expand_as(ours[:, :1])
    strategy = _strategy(boundary.imported[_STRATEGY.rpartition(".")[0]].InferenceStrategy)
    probs, log_probs, _, infinite = strategy.op_compute_topk_probs_and_indices(
        torch.cat([teacher, -last], 1), kd_temperature=inputs["temperature"]
    )
    columns = {"teacher_probs": probs, "teacher_log_probs": log_probs, "teacher_inf_mask": infinite}
    columns["labels_for_loss"] = torch.where(kit.prepend_prompt(valid), 1, -100)
    tokens = max(int(valid.sum()), 1) if count is None else count
    data = _batch(boundary, columns, batch_num_tokens={"labels_for_loss": tokens})
    worker = kit.stand_in(
        strategy=strategy, pipeline_config=kit.stand_in(distill_loss_weight=1.0),
        kl_loss_func=_divergence(boundary, _OBJECTIVES[inputs["beta"]], inputs["temperature"]),
    )  # fmt: skip
    return {"loss": boundary.function(worker, data, torch.cat([ours, last], 1))[0]}


def _of_indices(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the mean divergence from the teacher's probabilities of all tokens, which ROLL sorts by probability.

    With Megatron's strategy, the student's vocabulary is split over two ranks if its size is even.
    """
    valid, count = inputs["response_mask"] != 0, inputs["batch_num_tokens"]
    count = max(int(valid.sum()), 1) if count is None else count
    logits, teacher = (torch.where(valid[..., None], inputs[name], 0.0) for name in ("logits", "teacher_logits"))
    divergence = _divergence(boundary, _OBJECTIVES[inputs["beta"]], inputs["temperature"])
    module, labels = boundary.module, torch.where(valid, 1, -100)
    megatron = boundary.path.startswith(_MEGATRON)
    base = boundary.imported[_STRATEGY.rpartition(".")[0]].InferenceStrategy
    strategy = _strategy(module.MegatronInferStrategy if megatron else base)
    size = teacher.shape[-1]

    def of_teacher() -> Any:
        options = {"topk": size, "kd_temperature": inputs["temperature"]}
        if not boundary.path.startswith(_DISTILL):
            return strategy.op_compute_topk_probs_and_indices(teacher, **options)
        settings = {"logits_topk": size, "target_vocab_size": size, "teacher_temperature": 1, **options}
        worker = kit.stand_in(strategy=strategy, pipeline_config=kit.stand_in(**settings))
        return boundary.function(worker, None, torch.cat([teacher, teacher[..., :1]], -1))[1].values()

    if not megatron:
        probs, log_probs, indices, infinite = of_teacher()
        sent = divergence, logits, probs, log_probs, indices, infinite, labels
        return {"loss": strategy.op_compute_various_divergence(*sent, reduction="sum")[0] / count}
    strategy.models_unwrapped = [kit.stand_in(get_batch_on_this_cp_rank=lambda batch, **_: batch)]

    def score(own: Any, rank: int) -> Any:
        parallel = kit.make_single_rank_mpu(get_tensor_model_parallel_world_size=size // own.shape[-1])
        parallel.get_tensor_model_parallel_rank = lambda: torch.distributed.get_rank()
        with kit.swap(module, "mpu", parallel):
            sent = divergence, own, *teachers, labels
            return strategy.op_compute_various_divergence(*sent, reduction="none")[0]

    with kit.swap_all(module, mpu=kit.make_single_rank_mpu(), reduce_from_tensor_model_parallel_region=_sum_of_ranks):
        teachers = of_teacher()
        losses = kit.score_by_vocabulary(logits, score)[0]
    return {"loss": torch.where(valid, losses, 0.0).sum() / count}


def _sum_of_ranks(own: Any) -> Any:
    """Sum a tensor over all ranks. The gradient of each rank's own part is that of the sum, as in Megatron."""
    total = own.detach().clone()
    torch.distributed.all_reduce(total)
    return own + (total - own.detach())


#: The adapter sets the logits of masked tokens to 0 for both models. Objectives with options (skewed and adaptive
#: divergences) fail for equal logits, so their scenarios have no masked tokens.
_FULL: Mapping[str, tuple[Any, ...]] = {"response_mask": ("full",)}


def _distillation(path: str, beta: float | None, objective: str = "", **options: float) -> Binding:
    return Binding(
        path, "distillation_loss", call=partial(_distilled, objective, options),
        imports=(_DIVERGENCE, _STRATEGY.rpartition(".")[0]), stand_ins=(_RANK,), dtypes=("float32",),
        fixed={} if beta is None else {"beta": beta}, requires=(f"{_STRATEGY}.op_compute_topk_probs_and_indices",),
        accepts={"beta": tuple(_OBJECTIVES)} if beta is None else _FULL if options else {},
    )  # fmt: skip


_INDEXED = (
    f"{_STRATEGY}.op_compute_topk_logits", f"{_STRATEGY}.op_compute_gather_by_teacher_indices",
    f"{_DISTILL}.TeacherWorker.forward_func",
    *(
        f"{_MEGATRON}.MegatronInferStrategy.op_compute_{name}"
        for name in ("topk_logits", "gather_by_teacher_indices", "various_divergence")
    ),
)  # fmt: skip
_DISTILLATION = (
    *(
        Binding(
            path, "distillation_loss", call=_of_indices, dtypes=("float32",), accepts={"beta": tuple(_OBJECTIVES)},
            imports=(_DIVERGENCE, _STRATEGY.rpartition(".")[0]), requires=(f"{_STRATEGY}.op_compute_topk_logits",),
            stand_ins=(_RANK, *((MPU, RANKS) if path.startswith(_MEGATRON) else ())),
        )
        for path in _INDEXED
    ),
    Binding(
        "roll.pipeline.distill.distill_worker.StudentWorker.loss_func", "distillation_loss", call=_student,
        imports=(PROTOCOL, _DIVERGENCE, _STRATEGY.rpartition(".")[0]), stand_ins=(_SELF, _RANK, _ADDRESS),
        requires=(f"{_STRATEGY}._get_batch_num_tokens",), accepts={"beta": tuple(_OBJECTIVES)},
        dtypes=("float32",),
    ),
    *(
        _distillation(path, None)
        for path in (
            f"{_DIVERGENCE}.VariousDivergence.__call__", f"{_STRATEGY}.op_compute_various_divergence",
            f"{_STRATEGY}.op_compute_topk_probs_and_indices",
        )
    ),
    # The options of skewed and adaptive divergences are chosen so that only one of the two distributions has a weight.
    # The divergence is then the forward or the reverse KL.
    *(
        _distillation(f"{_DIVERGENCE}.VariousDivergence.compute_{name}_divergence", beta, objective, **options)
        for name, beta, objective, options in (
            ("forward_kl", 0.0, "forward_kl", {}), ("reverse_kl", 1.0, "reverse_kl", {}),
            ("js", 0.5, "js_divergence", {}),
            ("skewed_forward_kl", 0.0, "skewed_forward_kl", {"skew_lambda": 0.0}),
            ("skewed_reverse_kl", 1.0, "skewed_reverse_kl", {"skew_lambda": 0.0}),
            ("adaptive_kl", 0.0, "adaptive_kl", {"adaptive_kl_alpha": -1.0}),
        )
    ),
)  # fmt: skip


# -- supervised losses -------------------------------------------------------------------------------------------------


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute ROLL's mean loss of labels that are not shifted, or its sum divided by the number of tokens.

    :raises AbsentError: if there is no trained token, whose mean is not defined.
    """
    counted, total = (inputs["labels"][:, 1:] != -100).sum(), inputs["batch_num_tokens"]
    if "eval" in boundary.path:
        strategy = _strategy(boundary.imported[_STRATEGY.rpartition(".")[0]].InferenceStrategy)
        tokens = counted.clamp(min=1) if total is None else total
        data = _batch(boundary, {"labels_for_loss": inputs["labels"]}, batch_num_tokens={"labels_for_loss": tokens})
        return {"loss": boundary.function(kit.stand_in(strategy=strategy), data, inputs["logits"])[0]}
    if total is None and not counted:
        raise AbsentError("this scenario has no trained token; the mean of no token is not defined")
    strategy = _strategy(boundary.owner)
    strategy.models_unwrapped = [kit.stand_in(get_batch_on_this_cp_rank=lambda batch, **_: batch)]
    stands = {"mpu": kit.make_single_rank_mpu(), "vocab_parallel_cross_entropy": _cross_entropy}
    with kit.swap_all(boundary.module, **(stands if boundary.path.startswith(_MEGATRON) else {})):
        reduction = "mean" if total is None else "sum"
        loss, told = boundary.function(strategy, inputs["logits"], inputs["labels"], reduction=reduction)
    right = int(told) == int(counted)
    return {"loss": (loss / (1 if total is None else total)) if right else loss * float("nan")}


def _cross_entropy(logits: Any, labels: Any, **_: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")


def _shifted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute ROLL's loss of labels that the collator has shifted, split over two ranks.

    Some strategies take logits, and others take the loss of each token, which the adapter then computes.
    """
    labels = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    tokens = inputs["batch_num_tokens"]
    tokens = (labels != -100).sum().clamp(min=1) if tokens is None else tokens
    worker_of = boundary.owner.__name__ == "SFTWorker"
    owner = boundary.imported[_FSDP].FSDP2TrainStrategy if worker_of else boundary.owner
    takes_logits = owner.__name__ == "FSDP2TrainStrategy"
    output = inputs["logits"] if takes_logits else _cross_entropy(inputs["logits"], labels)
    ranks = 1 if owner.__name__ == "InferenceStrategy" else 2
    if labels.shape[1] % ranks:  # ROLL's rows have a multiple of the number of ranks
        labels, pad = torch.nn.functional.pad(labels, (0, 1), value=-100), (0, 0, 0, 1) if takes_logits else (0, 1)
        output = torch.nn.functional.pad(output, pad)
    width = labels.shape[1]

    def work(rank: int) -> Any:
        part = slice(rank * width // ranks, (rank + 1) * width // ranks)
        strategy = _strategy(owner)
        strategy.worker = kit.stand_in(rank_info=kit.stand_in(cp_size=ranks, cp_rank=rank))
        strategy.models_unwrapped = [
            kit.stand_in(get_batch_on_this_cp_rank=lambda batch, **_: {name: x[:, part] for name, x in batch.items()})
        ]
        own = output[:, part].contiguous()
        if worker_of:
            data = _batch(boundary, {"labels": labels}, batch_num_tokens={"labels": tokens})
            return boundary.function(kit.stand_in(strategy=strategy), data, own)[0]
        return strategy.op_compute_language_loss(own, labels, tokens)[0]

    parallel = kit.make_single_rank_mpu(get_context_parallel_world_size=ranks)
    with kit.swap_all(boundary.module, **({"mpu": parallel} if boundary.path.startswith(_MEGATRON) else {})):
        first, *others = kit.on_ranks(ranks, work)
    return {"loss": first + sum(loss - loss.detach() for loss in others)}


_SUPERVISED = (
    *(
        Binding(
            path, "supervised_loss", call=_supervised, imports=imports, stand_ins=stand_ins,
            requires=(f"{_STRATEGY}.op_compute_language_loss_from_logits(reduction)",),
        )
        for path, imports, stand_ins in (
            (f"{_STRATEGY}.op_compute_language_loss_from_logits", (), (_RANK,)),
            (f"{_MEGATRON}.MegatronInferStrategy.op_compute_language_loss_from_logits", (), (_RANK, MPU)),
            (
                f"{_DISTILL}.StudentWorker.loss_func_for_eval", (PROTOCOL, _STRATEGY.rpartition(".")[0]),
                (_SELF, _RANK, _ADDRESS),
            ),
        )
    ),
    *(
        Binding(path, "supervised_loss", call=_shifted, imports=imports, stand_ins=stand_ins, requires=RECENT)
        for path, imports, stand_ins in (
            (f"{_FSDP}.FSDP2TrainStrategy.op_compute_language_loss", (_FSDP,), (_RANK, RANKS)),
            (f"{_FSDP}.FSDP2TrainStrategy.get_labels_on_cp_rank", (_FSDP,), (_RANK, RANKS)),
            (f"{_STRATEGY}.op_compute_language_loss", (_FSDP,), (_RANK, RANKS)),
            (f"{_MEGATRON}.MegatronInferStrategy.op_compute_language_loss", (_FSDP,), (_RANK, MPU, RANKS)),
            (f"{_SFT}.SFTWorker.loss_func", (PROTOCOL, _FSDP), (_SELF, _RANK, RANKS, _ADDRESS)),
        )
    ),
)  # fmt: skip


# -- preferences -------------------------------------------------------------------------------------------------------


def _preferred(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute ROLL's preference loss. A response's log-probs are summed, and prompts have one token."""

    def in_turn(name: str) -> Any:
        return torch.stack(kit.join_both_sides(inputs, name).chunk(2), 1).flatten(0, 1)

    mask = kit.prepend_prompt(in_turn("mask").long())
    prompts, masked = [1] * len(mask), mask[:, 1:] != 0
    ours, reference = (torch.where(masked, in_turn(name), 0.0) for name in ("log_probs", "ref_log_probs"))
    options = {name: inputs[name] for name in ("beta", "label_smoothing")}
    if "data" in boundary.parameters:
        strategy = kit.stand_in(op_compute_log_probs=lambda **_: ours)
        columns = {"input_ids": mask, "attention_mask": mask, "prompt_id_lens": torch.tensor(prompts)}
        data = _batch(boundary, {**columns, "reference_log_probs": reference}, **options)
        return {"loss": boundary.function(kit.stand_in(strategy=strategy), data, None)[0]}
    sums = boundary.module.get_logps
    pairs = *sums(ours, mask, prompts), *sums(reference, mask, prompts)
    return {"loss": boundary.module.loss_fn(*pairs, **options)[0]}


_LOGITS = StandIn("strategy", "returns the scenario's log-probs; their computation from logits is not checked")
BINDINGS = (
    *_LOG_PROBS, *_DISTILLATION, *_SUPERVISED,
    *(
        Binding(
            f"{_DPO}.{name}", "preference_loss", call=_preferred, imports=(PROTOCOL,),
            stand_ins=(_SELF, _LOGITS, _ADDRESS), fixed={"loss_type": "sigmoid", "ld_alpha": None},
        )
        for name in ("get_logps", "loss_fn", "ActorWorker.loss_func")
    ),
)  # fmt: skip
