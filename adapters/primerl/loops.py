"""Bindings for the updates of prime-rl's training loops: from samples to the optimizer and to the logged numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from sentinel import Binding, Dialect
from sentinel.binding import kit
from sentinel.binding.families import LOWEST_RATE
from sentinel.binding.kit import torch

from .runs import MAIN, PEAK, STAND_INS, _config, _packed, _trained

_RL, _SFT, _UTILS = "prime_rl.trainer.rl.train", "prime_rl.trainer.sft.train", "prime_rl.trainer.utils"
_DATA, _BATCH, _CP = "prime_rl.trainer.rl.data", "prime_rl.trainer.batch", "prime_rl.utils.cp"
_CONFIGS, _HEAD, _TYPES = (
    "prime_rl.configs.trainer", "prime_rl.trainer.models.layers.lm_head", "prime_rl.transports.rollouts.types",
)  # fmt: skip
_LOSS = "prime_rl.trainer.rl.loss"
_EXTRA = ("supervised_weights", "distill_weights")


# -- samples -----------------------------------------------------------------------------------------------------------


def _encoded(array: Any) -> dict[str, Any]:
    """Return the fields in which prime-rl sends a tensor between processes."""
    dtype = str(array.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(array.shape), "data": array.numpy().tobytes()}


def _experts_of(ids: Any) -> Any:
    """Return the experts that a token's rollout chose in each layer, [tokens, layers, 1]. Each token has its own."""
    return torch.stack([ids % 120, ids * 7 % 120], -1)[..., None]


def _has_image(row: int) -> bool:
    """Return whether a row has an image; every third row is only text."""
    return row % 3 != 2


def _temperature(row: Any) -> Any:
    """Return the temperature with which a row was sampled. Odd rows have another one than even rows."""
    return 1.0 + row % 2


def _streams(inputs: Mapping[str, Any], row: int, length: int) -> dict[str, Any]:
    """Return prime-rl's streams of a row: one number for each of its tokens.

    A stream that has its default value everywhere is None, as in prime-rl's orchestrator.
    """
    flags = [False, *(inputs["response_mask"][row] != 0).tolist()][:length]

    def read(name: str) -> Any:
        values = [0.0, *([0.0] * length if inputs[name] is None else inputs[name][row].tolist())]
        return [value if flag else 0.0 for value, flag in zip(values, flags)]

    weights = read("policy_weights")
    weights = None if inputs["policy_weights"] is None or weights == list(map(float, flags)) else weights
    supervised, distilled = (read(name) if any(read(name)) else None for name in _EXTRA)
    learns = any(flags) if weights is None else any(weights)
    return {
        "mask": flags,
        "logprobs": read("old_log_probs"),
        "advantages": read("advantages") if learns else None,
        "ref_logprobs": read("teacher_log_probs") if distilled else None,
        "rl_weights": weights,
        "ce_weights": supervised,
        "ref_kl_weights": distilled,
    }


def _media(types: Any, inputs: Mapping[str, Any], row: int, ids: Sequence[int]) -> dict[str, Any]:
    """Return the image of a row, which its first token stands for, and the experts of its tokens."""
    media: dict[str, Any] = {}
    if inputs["with_images"] and _has_image(row):
        image = {"pixel_values": torch.tensor([[float(row)]]), "image_grid_thw": torch.ones(1, 3, dtype=torch.int64)}
        media["mm_kwargs"] = {name: types.EncodedTensor(**_encoded(value)) for name, value in image.items()}
        media["mm_token_type_ids"] = [1] + [0] * (len(ids) - 1)
    if inputs["with_routes"]:
        media["routed_experts"] = types.RoutedExperts(**_encoded(_experts_of(torch.tensor(ids)).to(torch.uint8)))
    return media


def _samples(types: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """Return one of prime-rl's training samples for each row, which ends with the last valid token."""
    mask, samples = inputs["response_mask"] != 0, []
    for row, (valid, ids) in enumerate(zip(mask.tolist(), kit.token_ids(torch.ones_like(mask)))):
        length = 2 + max((place for place, flag in enumerate(valid) if flag), default=-1)
        fields = {"token_ids": ids[:length], "temperatures": [_temperature(row)] * length, "env_name": f"env{row % 2}"}
        made = types.TrainingSample(
            **fields, **_streams(inputs, row, length), **_media(types, inputs, row, ids[:length])
        )
        samples.append(made)
    return samples


def _budget(inputs: Mapping[str, Any]) -> int:
    """Return the number of tokens of a microbatch."""
    rows, width = inputs["log_probs"].shape
    budget = inputs["max_tokens_per_microbatch"] or (inputs["micro_batch_size"] or rows) * (width + 1)
    return max(budget, width + 1)


# -- model -------------------------------------------------------------------------------------------------------------


def _model(boundary: Any, inputs: Mapping[str, Any], tempered: bool, adapted: Mapping[int, int], table: Any) -> Any:
    """Return the trainer's model: a table of log-probs with prime-rl's output layer.

    The model returns other log-probs if a row arrives without its own experts or images.

    :param tempered: whether the model multiplies logits by the temperature of the row, by which the trainer divides.
    :param adapted: rank -> the number of tokens that the trainer has announced for the LoRA adapter.
    """
    size, width = table.config.vocab_size, inputs["log_probs"].shape[1] + 2
    first = kit.token_ids(torch.ones(1, 1))[0][0]
    entropies, layers = inputs["entropies"], boundary.imported[_HEAD]

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        supports_packed_multimodal_training = True

        def __init__(self) -> None:
            super().__init__()
            self.model, self.config = table.model, table.config
            with kit.keep_random_state():
                self.head = layers.FusedOutputLinear(size, size, 2)
            self.head.weight = torch.nn.Parameter(torch.eye(size), requires_grad=False)

        def forward(self, input_ids: Any, labels: Any = None, temperature: Any = None, **media: Any) -> Any:
            rows = torch.where(input_ids < first, -1, (input_ids - first) // width)
            length = (input_ids if labels is None else labels).shape[1]
            lacking = _lacks(inputs, input_ids, rows, media) | (adapted[torch.distributed.get_rank()] != length)
            if labels is None:
                logits = self.model(input_ids).last_hidden_state
            else:  # the next token may belong to another context-parallel rank
                ids, rows, lacking = (_shard(each, length) for each in (input_ids, rows, lacking))
                logits = self.model(torch.cat([ids[:, :1], labels], 1)).last_hidden_state[:, :-1]
            logits = logits + lacking[..., None] * torch.arange(size)
            logits = logits * _temperature(rows)[..., None] if tempered else logits
            if inputs["fused_head"]:
                return self.head(logits, labels, temperature)
            if entropies is None or not tempered:
                return kit.stand_in(logits=logits)
            log_probs = (logits / temperature[..., None]).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
            whole = torch.nn.functional.pad(entropies.detach(), (1, 1)).flatten()
            return {"logprobs": log_probs, "entropy": whole[(labels - first).clamp(min=0)]}

    return Model()


def _shard(values: Any, length: int) -> Any:
    """Return this rank's part of [1, tokens]. prime-rl leaves it to the model to split batches with images."""
    parts = values.shape[1] // length
    return values.chunk(parts, 1)[torch.distributed.get_rank() % parts]


def _gather(value: Any, group: Any) -> Any:
    """Gather tensors from all ranks of a group. Gradients are summed over the ranks, as in torch.distributed.nn."""
    place, count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)

    class Gather(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(_: Any, own: Any) -> Any:
            parts = [None] * count
            torch.distributed.all_gather(parts, own.detach().clone(), group=group)
            return tuple(parts)

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:
            total = torch.stack(gradients)
            torch.distributed.all_reduce(total, group=group)
            return total[place]

    return Gather.apply(value)


def _run(boundary: Any, inputs: Mapping[str, Any], options: Mapping[str, Any], replaced: Any, tempered: bool) -> Any:
    """Run a loop with the options that both trainers have. Attention, which splits over ranks too, is left out."""
    nothing = partial(kit.return_first, None)
    parallel, adapted = inputs["context_parallel_size"], dict[int, int]()
    usual = {
        "max_steps": inputs["steps"], "optim.max_norm": inputs["max_norm"], "model.cp": parallel,
        "model.cp_style": "ring", "model.attn": "words", "model.lora": "adapter",
        **_schedule(inputs), **_resumed(inputs["resumes_after"]),
        **dict.fromkeys(("ckpt.interval", "ckpt.skip_scheduler", "ckpt.skip_progress", "ckpt.skip_dataloader")),
    }  # fmt: skip
    swaps = {
        "setup_scheduler": boundary.module.setup_scheduler,
        "resolve_latest_ckpt_step": partial(kit.return_first, inputs["resumes_after"]),
        **dict.fromkeys(("substitute_hf_flash_attn", "substitute_ring_attn"), nothing),
        "get_lora_state": lambda: kit.stand_in(reset_adapter_parameters=nothing),
        "set_lora_num_tokens": lambda tokens: adapted.update({torch.distributed.get_rank(): int(tokens.sum())}),
    }
    attention = dict.fromkeys(("update_ring_flash_attn_params", "setup_sparse_mla_cp"), nothing)
    model = partial(_model, boundary, inputs, tempered, adapted)
    with kit.swap_all(boundary.imported[_CP], dist_nn=kit.stand_in(all_gather=_gather), **attention):
        return _trained(
            boundary, inputs["dp_size"] * parallel, _config(**usual, **options), inputs["log_probs"],
            {**swaps, **replaced}, wrapped=model, optimizer=_make_optimizer,
            parallel=parallel, offloads=inputs["offloads"],
        )  # fmt: skip


def _lacks(inputs: Mapping[str, Any], ids: Any, rows: Any, media: Mapping[str, Any]) -> Any:
    """Flag the tokens that arrive without the experts or images of their rollout. The row of padding is -1."""
    lacking = torch.zeros_like(ids, dtype=torch.bool)
    if inputs["with_routes"]:
        lacking |= (media["routed_experts"] != _experts_of(ids)).flatten(2).any(-1) & (rows >= 0)
    if inputs["with_images"]:
        pictured = [row for row in dict.fromkeys(rows.flatten().tolist()) if row >= 0 and _has_image(row)]
        images = media["pixel_values"].flatten().tolist() if "pixel_values" in media else []
        marked = rows[media["mm_token_type_ids"] != 0].tolist() if "mm_token_type_ids" in media else []
        lacking |= torch.tensor(images != pictured or marked != pictured)
    return lacking


# -- reinforcement learning --------------------------------------------------------------------------------------------


def _loss_config(boundary: Any, inputs: Mapping[str, Any]) -> Any:
    """Return prime-rl's configuration of the scenario's policy loss."""
    configs, half = boundary.imported[_CONFIGS], inputs["kl_coef"] / 2
    usual = {"adv_tau": 1.0, "kl_tau": half}
    # The classes are used without their constructors, because their base class belongs to a package that is not here.
    if inputs["algorithm"] == "dppo_tv":
        bounds = {"dppo_mask_low": inputs["eps_clip_low"], "dppo_mask_high": inputs["eps_clip_high"]}
        return kit.make_unbuilt(configs.DefaultLossConfig, **bounds, **usual)
    if inputs["algorithm"] == "importance_sampling":
        return kit.make_unbuilt(configs.IPOLossConfig, ipo_threshold=2.0, **usual)
    return kit.make_unbuilt(configs.CustomLossConfig, import_path=f"{_LOSS}.ce_loss_fn", kwargs={})


def _receive(parts: Sequence[Sequence[Any]], _: Any, rank: int, *__: Any) -> Any:
    """Return a receiver that gives a rank the same microbatches in each step."""
    return kit.stand_in(wait=partial(kit.return_first, None), receive=partial(kit.return_first, parts[rank]))


def _make_optimizer(rank: Any) -> Any:
    """Return an optimizer that adds up gradients and changes no parameter. A learning-rate scheduler needs torch's
    class."""

    class Summing(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, *_: Any) -> None:
            rank.add(self.param_groups[0]["lr"])

    return Summing([rank.table], lr=PEAK)


def _resumed(step: int) -> dict[str, Any]:
    """Return options with which a run resumes from the checkpoint of a step, in each of prime-rl's three ways."""
    if not step:
        return {}
    if step == 1:
        return {"resume.dir": None, "resume.step": None}
    return {"resume.dir": None, "resume.step": step} if step == 2 else {"resume.dir": Path(), "resume.dir_step": step}


def _schedule(inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not inputs["warmup_steps"] and not inputs["decay_steps"]:
        return {"scheduler.type": "constant"}
    return {
        "scheduler.type": "linear", "scheduler.warmup_steps": inputs["warmup_steps"],
        "scheduler.decay_steps": inputs["decay_steps"], "scheduler.min_lr": PEAK * LOWEST_RATE,
    }  # fmt: skip


def _reinforced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run steps of reinforcement learning, from prime-rl's training samples to the optimizer and the log."""
    data, batch, ranks = boundary.imported[_DATA], boundary.imported[_BATCH], inputs["dp_size"]
    mask = inputs["response_mask"] != 0
    samples = _samples(boundary.imported[_TYPES], inputs)
    cost = batch.build_bin_cost(None)
    parts = batch.prepare_batch(samples, _budget(inputs), ranks, cost, pad_to_multiple_of=4)
    options = {
        "data.fake": None, "loss": _loss_config(boundary, inputs), "enable_router_replay": inputs["with_routes"],
        "model.vlm": "vlm" if inputs["with_images"] else None,
    }  # fmt: skip
    size = ranks * inputs["context_parallel_size"]
    world = {"get_world": lambda: kit.stand_in(rank=torch.distributed.get_rank(), world_size=size)}
    with kit.swap_all(data, setup_micro_batch_receiver=partial(_receive, parts), **world):
        made, reports = _run(boundary, inputs, options, {}, tempered=True)
    # prime-rl logs the mean, over microbatches and ranks, of their shares of the loss.
    count = sum(map(len, parts)) * inputs["context_parallel_size"]
    losses = [value * count for value in reports.read("loss/mean")]
    known = inputs["entropies"] is not None and not inputs["fused_head"]
    return {
        **_logged(inputs, made, reports, losses),
        "entropy": _of_tokens(reports, "entropy", mask) if known else None,
        "old_kl": _of_tokens(reports, "mismatch_kl", mask & _sampled(inputs)),
    }


def _sampled(inputs: Mapping[str, Any]) -> Any:
    """Flag the tokens with a weight in the policy loss or in the distillation."""
    weights = [inputs[name] for name in ("policy_weights", "distill_weights")]
    return torch.tensor(True) if weights[0] is None else (weights[0] != 0) | (weights[1] != 0)


def _of_tokens(reports: Any, name: str, counted: Any) -> float | None:
    """Return the mean over tokens that prime-rl logs, averaged with the mean that follows from its means over
    environments; None if no token counts."""
    if not counted.any():
        return None
    sizes = {f"env{parity}": int(counted[parity::2].sum()) for parity in range(2)}
    logged = {env: reports.read(f"{name}/{env}/mean") for env, size in sizes.items() if size}
    whole = reports.read(f"{name}/all/mean")
    if not all(logged.values()) or not whole:
        return float("nan")  # the log lacks a value
    joined = sum(sum(means) / len(means) * sizes[env] for env, means in logged.items()) / sum(sizes.values())
    return (joined + sum(whole) / len(whole)) / 2


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _logged(inputs: Mapping[str, Any], made: Any, reports: Any, losses: Sequence[float]) -> dict[str, Any]:
    """Return what both trainers log, and the gradient that reached the first rank's optimizer."""
    logged = _mean(reports.read("optim/lr"))
    return {
        "gradient": made[0].gradient[:, 1:-1],
        "rates": made[0].rates,
        "loss": _mean(losses),
        "lost_steps": inputs["steps"] - inputs["resumes_after"] - len(losses),
        "grad_norm": _mean(reports.read("optim/grad_norm")),
        "logged_rate": None if logged is None else logged / PEAK,
    }


# -- supervised training -----------------------------------------------------------------------------------------------


def _filled(batch: dict[str, Any], multiple: int) -> dict[str, Any]:
    """Pad a microbatch with masked tokens to a multiple of the number of context-parallel ranks."""
    missing = -batch["input_ids"].shape[1] % multiple
    batch["seq_lens"][-1] += missing
    return {
        name: each if each.ndim == 1 else torch.nn.functional.pad(each, (0, missing)) for name, each in batch.items()
    }


def _tuned(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run steps of supervised training. Each rank has the same number of microbatches, each with one packed row."""
    # Without a fused head, the model does not know the first token of the next context-parallel rank.
    inputs = {**inputs, "fused_head": inputs["fused_head"] or inputs["context_parallel_size"] > 1}
    mask = inputs["response_mask"] != 0
    share = len(mask) // inputs["dp_size"]
    per = inputs["micro_batch_size"] or share
    ids, flags = kit.token_ids(torch.ones_like(mask)), [[*row, 0] for row in mask.long().tolist()]

    parallel = inputs["context_parallel_size"]

    def load(_: Any, data: Any) -> Iterator[Any]:
        start = torch.distributed.get_rank() // parallel * share
        places = range(start, start + share, per)
        for place in places if data.name == "validation" else cycle(places):
            yield _filled(_packed(ids[place : place + per], flags[place : place + per]), parallel)

    width = -(-(mask.shape[1] + 1) * per // parallel) * parallel
    options = {
        "data.type": "fake", "data.name": "training", "data.batch_size": len(mask), "data.micro_batch_size": per,
        "data.seq_len": width, "tokenizer.name": "words", "renderer": None,
        "model.fused_lm_head_token_chunk_size": 2 if inputs["fused_head"] else None,
    }  # fmt: skip
    if inputs["validates"]:
        options |= {"val.eval_on_start": True, "val.interval": inputs["steps"] + 1, "val.data.name": "validation"}
    counts = {"one": len(mask), "two": len(mask)}
    dataset = kit.stand_in(step=len(mask), epoch=0, num_samples=counts, num_tokens=counts)
    replaced = {
        "setup_dataset": partial(kit.return_first, dataset), "setup_dataloader": load,
        **dict.fromkeys(("get_dataset_state", "load_sft_dataset", "create_renderer"), partial(kit.return_first, {})),
    }  # fmt: skip
    made, reports = _run(boundary, inputs, options, replaced, tempered=False)
    validated = _mean(reports.read("val/loss")) if mask.any() else None
    return {**_logged(inputs, made, reports, reports.read("loss/mean")), "validation_loss": validated}


_NO_TERMS = dict.fromkeys(("policy_weights", "teacher_log_probs", *_EXTRA))
BINDINGS = (
    Binding(
        f"{_RL}.train", "loop_update", call=_reinforced, stand_ins=STAND_INS,
        imports=(_UTILS, _DATA, _BATCH, _CP, _CONFIGS, _HEAD, _TYPES),
        requires=(f"{_BATCH}.STREAM_FILL", f"{_TYPES}.TrainingSample"),
        fixed={"validates": False},
        accepts={
            "algorithm": ("dppo_tv", "importance_sampling", "cross_entropy"), "several_terms": (False, True),
            "fused_head": (False, True), "with_images": (False, True), "with_routes": (False, True),
            "resumes_after": (0, 1, 2, 3), "context_parallel_size": (1, 2),
            "offloads": (False, True),
        },
        dialects=(
            Dialect(
                "logged_rate_of", "next", "the rate is read after the scheduler's step",
                f"{MAIN}/trainer/rl/train.py#L572",
            ),
            Dialect(
                "distill_trust", 0.2, "the trust region of the distillation is one-sided, and not an option",
                f"{MAIN}/trainer/rl/loss.py#L231",
            ),
            Dialect(
                "distill_kl_coef", 2e-3, "the distillation also penalises the squared log-ratio",
                f"{MAIN}/trainer/rl/loss.py#L239",
            ),
        ),
    ),
    Binding(
        f"{_SFT}.train", "loop_update", call=_tuned, stand_ins=STAND_INS, imports=(_UTILS, _HEAD, _CP),
        requires=(f"{_UTILS}.scale_gradients_",),
        fixed={
            **_NO_TERMS, "algorithm": "cross_entropy", "several_terms": False, "kl_coef": 0.0, "old_log_probs": None,
            "advantages": None, "entropies": None, "with_images": False, "with_routes": False, "eps_clip_low": 0.2,
            "eps_clip_high": 0.2, "max_tokens_per_microbatch": None,
        },
        accepts={
            "fused_head": (False, True), "validates": (False, True), "resumes_after": (0, 1, 2, 3),
            "context_parallel_size": (1, 2), "offloads": (False, True),
        },
    ),
)  # fmt: skip
