"""Bindings for slime's functions that compute log-probs and values from the outputs of a model.

slime packs whole samples, prompt and response, into one row ``[1, T, V]``. A scenario has only the outputs that predict
response tokens. The adapter adds a one-token prompt to each sample, and one output at its end, which predicts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU
from sentinel.binding.kit import torch

from .shared import ARGS, LOSS, PPO, as_rows, joined, one_rank, shards, valid_counts

#: For links to the FSDP backend, whose last revisions are not on the main branch.
_FIX = "https://github.com/THUDM/slime/blob/2a3969205ce37785b0a9f428a3c3ab1ea6422169/slime"
_FSDP = "slime.backends.fsdp_utils.actor"


_ACTOR = StandIn("self", "the real actor needs GPUs and a cluster; the method reads only these attributes")
_MODELS = StandIn("model, ref_model", "returns the scenario's logits; the computation of the model is not checked")
_FIRST = StandIn(
    "torch.distributed.get_rank, barrier, get_gloo_group, tqdm",
    "with one process, the rank is 0 and a barrier does nothing; a progress bar only shows progress",
)
_ALONE = StandIn("tp_group", "there is one tensor-parallel rank, which has the whole vocabulary")
_RANKS = StandIn(
    "torch.distributed.nn.functional.all_gather",
    "one process simulates one rank after the other, and passes on the values that ranks send",
)

_SUMMED = StandIn(
    "torch.distributed.nn.all_reduce",
    "one process simulates one rank after the other, and adds the values that ranks send",
)

#: Samples have only response tokens, so their only invalid tokens are padding on the right.
_LENGTHS = {"response_mask": ("full", "right")}
_SINGLE = ("float32",)
_REDISTRIBUTE = f"{LOSS}._allgather_cp_redistribute"
_RANKED = {"context_parallel_size": (1, 2)}


def _packed(outputs: Any, lengths: list[int], after: Any) -> Any:
    """Concatenate the outputs of all samples, each followed by its row of ``after``, to one row ``[1, T, ...]``."""
    parts = [torch.cat([row[:n], last[None]]) for row, last, n in zip(outputs, after, lengths)]
    return torch.cat(parts).unsqueeze(0)


def _tokens(inputs: Mapping[str, Any], lengths: list[int]) -> list[Any]:
    """Return the tokens of each sample: a one-token prompt with id 0, then the response."""
    return [torch.nn.functional.pad(row[:n].long(), (1, 0)) for row, n in zip(inputs["token_ids"], lengths)]


def _after(logits: Any) -> Any:
    """Return logits for the last token of each sample, which predict nothing. They differ from all other logits, so
    that a function which uses them by mistake returns a wrong result.
    """
    return -logits[:, 0].detach()


def _of_logits(inputs: Mapping[str, Any], ask: Any) -> dict[str, Any]:
    """Call a function with the logits and tokens of each context-parallel rank, and join the results of all ranks."""
    tokens = _tokens(inputs, kit.lengths_of(inputs, "response_mask"))
    return _of_ranks(inputs, inputs["logits"], _after(inputs["logits"]), tokens, ask)


def _of_ranks(inputs: Mapping[str, Any], outputs: Any, after: Any, tokens: list[Any], ask: Any) -> dict[str, Any]:
    """Call a function with the outputs and tokens of each context-parallel rank, and join the results of all ranks."""
    ranks, lengths = inputs.get("context_parallel_size", 1), kit.lengths_of(inputs, "response_mask")
    packed, batch = _packed(outputs, lengths, after), {"unconcat_tokens": tokens, **valid_counts(inputs)}
    answers = []
    for rank in range(ranks):
        own = []
        for part in packed[0].split(batch["total_lengths"]):
            size = -(-len(part) // (2 * ranks))
            padding = part.new_full((2 * ranks * size - len(part), *part.shape[1:]), 7.0)
            chunks = torch.cat([part, padding]).split(size)
            own += [chunks[rank], chunks[-1 - rank]]
        with one_rank(rank, context_parallel=ranks):
            answers.append(ask(packed if ranks == 1 else torch.cat(own)[None], batch))
    return {key: joined([each[key] for each in answers], shards(lengths, ranks)) for key in answers[0]}


def _of_contiguous_ranks(
    inputs: Mapping[str, Any], outputs: Any, after: Any, tokens: list[Any], ask: Any
) -> dict[str, Any]:
    """Do the same as :func:`_of_ranks` if each rank has a contiguous part of the packed sequence, as with the option
    ``allgather_cp``. slime then adds the results of all ranks, and returns the tokens that each rank has otherwise.
    """
    ranks, lengths = inputs.get("context_parallel_size", 1), kit.lengths_of(inputs, "response_mask")
    packed, batch = _packed(outputs, lengths, after)[0], {"unconcat_tokens": tokens, **valid_counts(inputs)}
    size = -(-(len(packed) + 2) // ranks)  # so that the border of two ranks is within a response, not between responses
    padding = packed.new_full((ranks * size - len(packed), *packed.shape[1:]), 7.0)
    chunks = torch.cat([packed, padding]).split(size)

    def rank(number: int, all_reduce: Any) -> Any:
        with one_rank(number, context_parallel=ranks), kit.swap(torch.distributed.nn, "all_reduce", all_reduce):
            return ask(chunks[number][None], batch)

    def sent_by(number: int) -> list[Any]:
        sent: list[Any] = []

        def record(part: Any, group: Any = None) -> Any:
            sent.append(part)
            return part

        rank(number, record)
        return sent

    totals = [sum(parts) for parts in zip(*map(sent_by, range(ranks)))]
    answers = []
    for number in range(ranks):
        left = iter(totals)
        answers.append(rank(number, lambda part, group=None, left=left: next(left)))
    return {key: joined([each[key] for each in answers], shards(lengths, ranks)) for key in answers[0]}


def _args(inputs: Mapping[str, Any], contiguous: bool = False, top_p: float = 1.0) -> Any:
    return kit.stand_in(
        rollout_temperature=inputs["temperature"],
        rollout_top_p=top_p,
        log_probs_chunk_size=-1,
        allgather_cp=contiguous,
        entropy_coef=0.0,
        qkv_format="thd",
    )


def _responses(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs and entropies from the logits and tokens that slime selects for the responses."""

    def ask(packed: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(("logits", "tokens"), zip(*boundary.invoke({}, packed, args=_args(inputs), **batch))))

    samples = _of_logits(inputs, ask)
    logs = [torch.log_softmax(logits, dim=-1) for logits in samples["logits"]]
    width = inputs["token_ids"].shape[1]
    chosen = [x.gather(-1, t[:, None])[:, 0] for x, t in zip(logs, samples["tokens"])]
    return {"log_probs": as_rows(chosen, width), "entropy": as_rows([-(x.exp() * x).sum(-1) for x in logs], width)}


def _own_kernel(module: Any) -> None:
    """Raise AbsentError if Megatron-LM's fused kernel computes log-probs, as in versions of slime until June 2026.

    The binding of ``get_responses`` covers what these versions pass to the kernel.
    """
    if hasattr(module, "compute_log_probs"):
        raise AbsentError(f"in this version, {module.__name__} calls a Megatron-LM kernel to compute log-probs")


def _log_probs_and_entropy(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    _own_kernel(boundary.imported[PPO])

    def ask(packed: Any, batch: Mapping[str, Any]) -> Any:
        answer = boundary.invoke({}, packed, args=_args(inputs), with_entropy=inputs["with_entropy"], **batch)
        return answer[1] if isinstance(answer, tuple) else answer

    answer = _of_logits(inputs, ask)
    width = inputs["token_ids"].shape[1]
    return {key: as_rows(answer[key], width) if key in answer else None for key in ("log_probs", "entropy")}


def _gathered(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs and entropies with slime if each rank has a contiguous part of the packed sequence."""
    _own_kernel(boundary.imported[PPO])
    compute, args = boundary.module.get_log_probs_and_entropy, _args(inputs, contiguous=True)

    def ask(packed: Any, batch: Mapping[str, Any]) -> Any:
        return compute(packed, args=args, with_entropy=inputs["with_entropy"], **batch)[1]

    tokens, width = _tokens(inputs, kit.lengths_of(inputs, "response_mask")), inputs["token_ids"].shape[1]
    answer = _of_contiguous_ranks(inputs, inputs["logits"], _after(inputs["logits"]), tokens, ask)
    return {key: as_rows(answer[key], width) if key in answer else None for key in ("log_probs", "entropy")}


def _gathered_values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of slime if each rank has a contiguous part of the packed sequence."""
    tokens = [torch.zeros(n + 1, dtype=torch.long) for n in kit.lengths_of(inputs, "response_mask")]
    args = _args({"temperature": 0.5}, contiguous=True)

    def ask(packed: Any, batch: Mapping[str, Any]) -> Any:
        return boundary.module.get_values(packed.unsqueeze(-1), args=args, **batch)[1]

    answer = _of_contiguous_ranks(inputs, inputs["outputs"], inputs["output_after"], tokens, ask)
    return {"values": as_rows(answer["values"], inputs["outputs"].shape[1])}


def _nucleus(logits: Any, top_p: float) -> tuple[Any, Any]:
    """Return the tokens that can be sampled at each position with ``top_p``, and where the tokens of each begin."""
    ranked, order = logits.detach().double().softmax(-1).sort(dim=-1, descending=True)
    kept = ranked.cumsum(-1) - ranked < top_p
    return order[kept], torch.nn.functional.pad(kept.sum(-1).cumsum(0), (1, 0))


def _of_nucleus(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with slime from the logits and the tokens that the rollout could sample at each position."""
    module, lengths, logits = boundary.module, kit.lengths_of(inputs, "response_mask"), inputs["logits"]
    contiguous = boundary.function.__name__ == "_fill_topp_mask_rows"
    scaled = logits / (inputs["temperature"] or 1.0)
    kept = [_nucleus(row[:n], inputs["top_p"]) for row, n in zip(scaled, lengths)]
    names = ("rollout_top_p_token_ids", "rollout_top_p_token_offsets")
    replayed = dict(zip(names, map(list, zip(*kept))))
    args = _args(inputs, contiguous, top_p=0.5)  # any value below 1 makes slime read the tokens

    def ask(packed: Any, batch: Mapping[str, Any]) -> Any:
        more = module.get_rollout_top_p_logprob_kwargs(args, replayed)
        return module.get_log_probs_and_entropy(packed, args=args, with_entropy=False, **batch, **more)[1]

    of_ranks = _of_contiguous_ranks if contiguous else _of_ranks
    answer = of_ranks(inputs, logits, _after(logits), _tokens(inputs, lengths), ask)
    return {"log_probs": as_rows(answer["log_probs"], inputs["token_ids"].shape[1]), "entropy": None}


def _flat(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with slime from the flattened logits and tokens of all samples."""
    _own_kernel(boundary.module)
    shape = inputs["token_ids"].shape
    logits, tokens = inputs["logits"].flatten(0, 1), inputs["token_ids"].flatten()
    with_entropy = inputs["with_entropy"]
    if boundary.owner is not None:
        log_probs, entropy = boundary.module.calculate_log_probs_and_entropy(logits, tokens, None, with_entropy)
    else:
        log_probs, entropy = boundary.invoke({"with_entropy": with_entropy}, logits, tokens, None)
    return {"log_probs": log_probs.reshape(shape), "entropy": None if entropy is None else entropy.reshape(shape)}


def _values(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [torch.zeros(n + 1, dtype=torch.long) for n in kit.lengths_of(inputs, "response_mask")]

    def ask(packed: Any, batch: Mapping[str, Any]) -> Any:
        answer = boundary.invoke({}, packed.unsqueeze(-1), args=_args({"temperature": 0.5}), **batch)
        return answer[1] if isinstance(answer, tuple) else answer

    answer = _of_ranks(inputs, inputs["outputs"], inputs["output_after"], tokens, ask)
    return {"values": as_rows(answer["values"], inputs["outputs"].shape[1])}


def _context_parallel(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that slime computes on context-parallel rank 0."""
    lengths, ranks = kit.lengths_of(inputs, "response_mask"), inputs["context_parallel_size"]
    logits = _packed(inputs["logits"], lengths, _after(inputs["logits"]))[0]
    tokens = torch.cat(_tokens(inputs, lengths))
    surplus = -len(tokens) % ranks  # each rank has one chunk of the packed sequence
    logits = torch.nn.functional.pad(logits, (0, 0, 0, surplus))
    tokens = torch.nn.functional.pad(tokens, (0, surplus))
    sent: list[Any] = []

    def rank(number: int, all_gather: Any) -> Any:
        own = {"logits": logits.chunk(ranks)[number], "model_input_ids": tokens.chunk(ranks)[number].unsqueeze(0)}
        where = {"cp_rank": number, "cp_size": ranks, "cp_group": None, "allow_compile": False}
        with kit.swap(torch.distributed.nn.functional, "all_gather", all_gather):
            return boundary.invoke(kit.take_inputs(inputs, "temperature"), target_tokens=tokens, **own, **where)

    def recorded(part: Any, group: Any = None) -> list[Any]:
        sent.append(part)
        return [part] * ranks

    for number in range(ranks):
        rank(number, recorded)
    answer = rank(0, lambda part, group=None: list(sent))
    return dict(zip(("log_probs", "entropy"), (_responses_of(part, lengths, inputs) for part in answer)))


def _model(logits: Any) -> Any:
    """Return a stand-in model that returns the given logits ``[1, T, V]`` for every input."""
    model: Any = torch.nn.Module()
    model.forward = lambda **_: kit.stand_in(logits=logits)
    model.cuda = lambda: model
    return model


def _reference(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log-probs that slime computes with its reference model. The policy model has other logits, so that a
    call of the wrong model returns a wrong result.
    """
    lengths = kit.lengths_of(inputs, "response_mask")
    logits = _packed(inputs["logits"], lengths, _after(inputs["logits"]))
    tokens = torch.cat(_tokens(inputs, lengths))
    batch = {"tokens": tokens, "position_ids": torch.arange(len(tokens))}
    actor = kit.stand_in(
        model=_model(-logits),
        ref_model=_model(logits),
        args=kit.stand_in(rollout_temperature=inputs["temperature"], true_on_policy_mode=True),
        prof=kit.stand_in(iterate_train_log_probs=iter),
        fsdp_cpu_offload=True,  # so that models are not moved to another device
        cp_rank=0,
        cp_size=1,
        cp_group=None,
    )
    actor._get_model_inputs_args = boundary.owner._get_model_inputs_args.__get__(actor)
    ranks = kit.swap_all(
        torch.distributed, get_rank=partial(kit.return_first, 0), barrier=partial(kit.return_first, None)
    )
    with ranks, kit.swap_all(boundary.module, tqdm=kit.return_first, get_gloo_group=partial(kit.return_first, None)):
        boundary.function(actor, "ref", [batch], store_prefix="ref_")
    return {"log_probs": _responses_of(batch["ref_log_probs"], lengths, inputs)}


def _responses_of(packed: Any, lengths: list[int], inputs: Mapping[str, Any]) -> Any:
    """Split packed results into one row per response, padded with zeros. There is no result for the first token."""
    parts = torch.nn.functional.pad(packed, (0, 1))[: sum(lengths) + len(lengths)].split([n + 1 for n in lengths])
    return as_rows([part[:n] for part, n in zip(parts, lengths)], inputs["token_ids"].shape[1])


BINDINGS = (
    Binding(
        f"{LOSS}.get_responses", "token_log_probs", call=_responses, stand_ins=(ARGS, MPU),
        fixed={"with_entropy": True}, accepts={**_LENGTHS, **_RANKED, "temperature": (1.0, 0.5, 2.0, 0.0)},
        dtypes=_SINGLE, twins=(f"{LOSS}.get_log_probs_and_entropy",),
    ),
    Binding(
        f"{LOSS}.get_log_probs_and_entropy", "token_log_probs", call=_log_probs_and_entropy, imports=(PPO,),
        stand_ins=(ARGS, MPU), accepts={**_LENGTHS, **_RANKED, "temperature": (1.0, 0.5, 2.0, 0.0)}, dtypes=_SINGLE,
        twins=(f"{LOSS}.get_responses",),
    ),
    *(
        Binding(
            f"{PPO}.{name}", "token_log_probs", call=_flat, stand_ins=(_ALONE,), fixed={"temperature": 1.0},
            accepts={"response_mask": ("full",)}, requires=(f"{PPO}.{name}",),
        )
        for name in ("_VocabParallelLogProbEntropy.forward", "_VocabParallelLogProbEntropy.backward")
    ),
    # Small chunks, so that scenarios of a few tokens cross a chunk border.
    Binding(
        f"{PPO}.calculate_log_probs_and_entropy", "token_log_probs",
        formerly=(f"{LOSS}.calculate_log_probs_and_entropy",), constants={"chunk_size": 2}, call=_flat,
        stand_ins=(_ALONE,), fixed={"temperature": 1.0}, accepts={"response_mask": ("full",)},
    ),
    Binding(
        f"{LOSS}.get_values", "critic_values", call=_values, stand_ins=(ARGS, MPU), accepts={**_LENGTHS, **_RANKED},
        dtypes=_SINGLE,
    ),
    Binding(
        _REDISTRIBUTE, "token_log_probs", call=_gathered, stand_ins=(ARGS, MPU, _SUMMED), requires=(_REDISTRIBUTE,),
        imports=(PPO,),
        accepts={**_LENGTHS, **_RANKED, "temperature": (1.0, 0.5, 2.0)}, dtypes=_SINGLE,
    ),
    Binding(
        _REDISTRIBUTE, "critic_values", call=_gathered_values, stand_ins=(ARGS, MPU, _SUMMED),
        requires=(_REDISTRIBUTE,), accepts={**_LENGTHS, **_RANKED}, dtypes=_SINGLE,
    ),
    # The log-probs use only the tokens of the nucleus, but the entropy uses all tokens.
    *(
        Binding(
            f"{LOSS}.{name}", "token_log_probs", call=_of_nucleus, stand_ins=(ARGS, MPU, *sums),
            requires=(f"{LOSS}.{name}",), fixed={"with_entropy": False}, dtypes=_SINGLE,
            accepts={**_LENGTHS, **_RANKED, "temperature": (1.0, 0.5, 2.0), "top_p": (1.0, 0.75, 0.5)},
        )
        for name, sums in (("_build_topp_keep_mask", ()), ("_fill_topp_mask_rows", (_SUMMED,)))
    ),
    Binding(
        f"{_FSDP}.get_logprob_and_entropy_with_cp", "token_log_probs", call=_context_parallel, stand_ins=(_RANKS,),
        requires=(_FSDP,), fixed={"with_entropy": True}, accepts={**_LENGTHS, "context_parallel_size": (1, 2)},
        dialects=(
            Dialect(
                "entropy_of", "model",
                "the temperature applies only to log-probs; the entropy uses the original logits",
                f"{_FIX}/backends/fsdp_utils/actor.py#L1017",
            ),
        ),
    ),
    # Older versions have a single model, and swap its parameters on the GPU, so a newer method is required.
    Binding(
        f"{_FSDP}.FSDPTrainRayActor.compute_log_prob", "token_log_probs",
        formerly=(f"{_FSDP}.FSDPTrainRayActor._compute_log_prob",), call=_reference,
        stand_ins=(_ACTOR, _MODELS, _FIRST), requires=(f"{_FSDP}.FSDPTrainRayActor._get_model_inputs_args",),
        fixed={"with_entropy": False}, accepts=_LENGTHS,
    ),
)  # fmt: skip
