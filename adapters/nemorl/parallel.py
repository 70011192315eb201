"""Bindings for NeMo-RL's log-probs over tensor-parallel and context-parallel ranks, and over packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sentinel import AbsentError, Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

from .shared import MAIN, SAMPLING

PARALLEL = "nemo_rl.distributed.model_utils"


@dataclass(frozen=True)
class Place:
    """The place of a rank among the tensor-parallel ranks (``part``) and the context-parallel ranks (``window``)."""

    part: int
    window: int
    tp_group: tuple[int, ...]
    cp_group: tuple[int, ...]

    def bounds(self, own: Any) -> tuple[int, int]:
        """Return the first token and the end of this rank's part of the vocabulary."""
        return self.part * own.shape[-1], (self.part + 1) * own.shape[-1]


def cut(whole: Any, rank: int, count: int) -> Any:
    """Return a context-parallel rank's tokens: a chunk from the start of the sequence, and one from its end."""
    if count == 1:
        return whole
    chunks = whole.chunk(2 * count, 1)
    return torch.cat([chunks[rank], chunks[-1 - rank]], 1)


def join(parts: Sequence[Any]) -> Any:
    """Return the whole sequence of the parts that :func:`cut` returned for each rank."""
    halves = [part.chunk(2, 1) for part in parts] if len(parts) > 1 else [(parts[0], parts[0][:, :0])]
    return torch.cat([first for first, _ in halves] + [second for _, second in reversed(halves)], 1)


def on_shards(
    module: Any, sequences: Sequence[Any], windows: int, work: Callable[[Any, Place], tuple[Any, Any]], parts: int = 2
) -> tuple[Any, list[Any]]:
    """Call ``work`` on ranks, each with a part of the vocabulary and of the tokens.

    :param sequences: logits [rows, tokens, vocabulary], which are cut separately and then joined along the tokens.
    :param work: ``work(own, place)`` returns a result, and the number whose gradient is needed. As in NeMo-RL's
        training, the gradients of context-parallel ranks are averages.
    :param parts: number of ranks that share the vocabulary; 1 if its size is odd.
    :returns: the first rank's result, and the gradient with respect to each of the sequences.
    """
    parts = 1 if sequences[0].shape[-1] % parts else parts

    def run(rank: int) -> tuple[Any, Any]:
        part, window = rank % parts, rank // parts
        tp_group = tuple(window * parts + each for each in range(parts))
        place = Place(part, window, tp_group, tuple(each * parts + part for each in range(windows)))
        tokens = torch.cat([cut(whole.detach(), window, windows) for whole in sequences], 1)
        own = tokens.chunk(parts, -1)[part].clone().requires_grad_()
        made, number = work(own, place)
        return made.detach(), torch.autograd.grad(number / windows, own)[0]

    with kit.on_cpu(module):
        answers = kit.on_ranks(parts * windows, run)
    sizes, slopes = [whole.shape[1] // windows for whole in sequences], [slope for _, slope in answers]
    joined = [torch.cat(slopes[first : first + parts], -1).split(sizes, 1) for first in range(0, len(slopes), parts)]
    return answers[0][0], [join(each) for each in zip(*joined)]


def weights_of(values: Any) -> Any:
    """Return a weight for each token. Neighbours differ, so that a gradient of another token is detected."""
    rows, tokens = values.shape[:2]
    return 2.0 ** ((torch.arange(rows)[:, None] + torch.arange(tokens)) % 3)


def weighted_sum(values: Any) -> Any:
    return (values * weights_of(values)).sum()


def attach_slopes(values: Any, slopes: Any, logits: Any) -> Any:
    """Return log-probs, given the gradient of their weighted sum with respect to the logits."""
    slopes = slopes / weights_of(slopes)[..., None]
    return values + (slopes * (logits - logits.detach())).sum(-1)


def pad(values: Any, multiple: int) -> Any:
    """Repeat the last token until the number of tokens is a multiple."""
    return torch.cat([values, *[values[:, -1:]] * (-values.shape[1] % multiple)], 1)


def _with_the_last(logits: Any) -> Any:
    """Append the logits of the last token, which predict nothing."""
    return torch.cat([logits, -logits[:, :1].detach()], 1)


def filter_options(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return NeMo-RL's option that filters tokens by top-k and top-p; empty if the scenario has no filter.

    :raises AbsentError: if this version does not have both filters.
    """
    size = inputs["logits"].shape[-1]
    filters = {"top_k": inputs["top_k"] and min(inputs["top_k"], size), "top_p": inputs["top_p"]}
    if filters == {"top_k": None, "top_p": 1.0}:
        return {}
    params = boundary.imported[SAMPLING].TrainingSamplingParams
    if missing := [name for name in filters if name not in params.__annotations__]:
        raise AbsentError(f"this version has no option {missing[0]} for log-probs")
    return {"sampling_params": params(**filters)}


def score_windows(boundary: Any, inputs: Mapping[str, Any], chunked: bool = False) -> dict[str, Any]:
    """Compute log-probs over ranks that have a part of each sequence, and a part of the vocabulary."""
    module, logits, windows = boundary.imported[PARALLEL], inputs["logits"], inputs["context_parallel_size"]
    ids, chosen = kit.prepend_prompt(inputs["token_ids"]), filter_options(boundary, inputs)
    chosen |= {"chunk_size": 2} if chunked else {}
    count = logits.shape[1]

    def score(own: Any, place: Place) -> tuple[Any, Any]:
        groups = {"cp_group": place.cp_group, **chosen}
        made = module.from_parallel_logits_to_logprobs(own, ids, *place.bounds(own), place.tp_group, **groups)
        return made, weighted_sum(made[:, :count])

    def score_next(own: Any, place: Place) -> tuple[Any, Any]:
        groups = {"vocab_parallel_group": place.tp_group, "context_parallel_group": place.cp_group}
        made = module.get_next_token_logprobs_from_logits(ids, own, vocab_parallel_rank=place.part, **groups, **chosen)
        return made, weighted_sum(made[:, :count])

    work = score_next if boundary.path.endswith("get_next_token_logprobs_from_logits") else score
    made, [slopes] = on_shards(module, [pad(_with_the_last(logits), 2 * windows)], windows, work)
    return {"log_probs": attach_slopes(made[:, :count], slopes[:, :count], logits), "entropy": None}


def _score_packed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs of sequences that are packed into one row. Each sequence is padded for itself."""
    module, logits, windows = boundary.imported[PARALLEL], inputs["logits"], inputs["context_parallel_size"]
    ids, count = kit.prepend_prompt(inputs["token_ids"]), logits.shape[1]
    ends = ((inputs["response_mask"] != 0) * torch.arange(1, count + 1)).amax(-1).tolist()
    rows = [pad(_with_the_last(logits)[row : row + 1, : end + 1], 2 * windows) for row, end in enumerate(ends)]
    starts = torch.tensor([0, *(row.shape[1] for row in rows)]).cumsum(0)
    rolls, chosen = boundary.path.endswith("_pack_input_ids"), filter_options(boundary, inputs)

    def score(own: Any, place: Place) -> tuple[Any, Any]:
        if rolls:
            lengths = torch.tensor([0, *(end + 1 for end in ends)]).cumsum(0)
            shares = {"cp_rank": place.window, "cp_size": windows, "roll_shift": -1}
            target = boundary.function(ids, lengths, starts, **shares)
        else:
            target = torch.cat([pad(ids[row : row + 1, : end + 1], 2 * windows) for row, end in enumerate(ends)], 1)
        made = module.from_parallel_logits_to_logprobs_packed_sequences(
            own, target, starts, count + 1, *place.bounds(own), place.tp_group, cp_group=place.cp_group,
            target_is_pre_rolled=rolls, **chosen,
        )  # fmt: skip
        return made, weighted_sum(made * (torch.arange(count) < torch.tensor(ends)[:, None]))

    made, slopes = on_shards(module, rows, windows, score)
    whole = torch.zeros_like(logits)
    for row, (end, own) in enumerate(zip(ends, slopes)):
        whole[row, :end] = own[0, :end]
    return {"log_probs": attach_slopes(made, whole, logits), "entropy": None}


def _process_outputs(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Process the outputs of a packed batch with NeMo-RL's post-processor. Only top-k logits have a distribution."""
    module, logits, windows = boundary.imported[PARALLEL], inputs["logits"], inputs["context_parallel_size"]
    ids, (rows, count, size) = kit.prepend_prompt(inputs["token_ids"]), logits.shape
    ends = ((inputs["response_mask"] != 0) * torch.arange(1, count + 1)).amax(-1).tolist()
    packs = windows > 1 or count % 2 == 0
    outputs = _with_the_last(logits)
    cuts = [pad(outputs[row : row + 1, : end + 1], 2 * windows) for row, end in enumerate(ends)] if packs else [outputs]
    starts = torch.tensor([0, *(own.shape[1] for own in cuts)]).cumsum(0)
    target = torch.cat([pad(ids[row : row + 1, : end + 1], 2 * windows) for row, end in enumerate(ends)], 1)
    parallel = {"context_parallel_size": windows}
    config = {"sequence_packing": {"enabled": packs}, "megatron_cfg": parallel, "logprob_chunk_size": 2}
    columns = {"input_ids": ids, "input_lengths": torch.tensor(ends) + 1, "token_mask": torch.ones_like(ids)}
    data, params = {**columns, "sample_mask": torch.ones(rows)}, filter_options(boundary, inputs).get("sampling_params")
    ranked = "Topk" in boundary.path

    def process(own: Any, place: Place) -> tuple[Any, Any]:
        if ranked:
            made = boundary.function(boundary.owner(config, size), data, starts)(own)[1]
            places, known = made["topk_indices"][:, :-1], made["topk_logits"][:, :-1].log_softmax(-1)
            return (known * (places == inputs["token_ids"][..., None])).sum(-1), 0 * own.sum()
        owner = boundary.owner(config, params)
        return boundary.function(owner, data, target, starts)(own)[1]["logprobs"][:, 1:], 0 * own.sum()

    parts = 1 if size % 2 else 2

    def group_of(axis: str) -> Any:
        rank = torch.distributed.get_rank()
        if axis == "tensor":
            return tuple(rank // parts * parts + each for each in range(parts))
        return tuple(each * parts + rank % parts for each in range(windows))

    megatron = {
        "get_tensor_model_parallel_group": partial(group_of, "tensor"),
        "get_context_parallel_group": partial(group_of, "context"),
        "get_tensor_model_parallel_rank": lambda: torch.distributed.get_rank() % parts,
    }
    with kit.swap_all(boundary.module, **megatron):
        made, _ = on_shards(module, cuts, windows, process)
    return {"log_probs": made.detach(), "entropy": None}


def _score_columns(way: str, boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from the logits of all tokens of the vocabulary, which NeMo-RL gathers in another order."""
    module, logits, windows = boundary.imported[PARALLEL], inputs["logits"], inputs["context_parallel_size"]
    rows, count, size = logits.shape
    ids, order = inputs["token_ids"].long(), torch.arange(size).flip(0)
    whole = pad(logits, 2 * windows) if windows > 1 else logits

    def gather(own: Any, place: Place) -> tuple[Any, Any]:
        bounds = dict(zip(("vocab_start_index", "vocab_end_index"), place.bounds(own)))
        if way == "columns":
            return order.expand(rows, count, size), module.vocab_parallel_gather_columns(
                own, order, tp_group=place.tp_group
            )
        if way == "likeliest":
            values, places = module.distributed_vocab_topk(own, size + 1, place.tp_group, **bounds, chunk_size=2)
            return places, values
        wanted = order.expand(rows, count, size)
        groups = {"tp_group": place.tp_group, "cp_group": place.cp_group}
        return wanted, module.gather_logits_at_global_indices(own, wanted, **groups, **bounds, chunk_size=2)

    def score(own: Any, place: Place) -> tuple[Any, Any]:
        places, values = gather(own, place)
        known = values[:, :count].log_softmax(-1)
        made = (known * (places == ids[..., None])).sum(-1)
        return made, weighted_sum(made) if values.requires_grad else 0 * own.sum()

    made, [slopes] = on_shards(module, [whole], windows, score)
    if way == "likeliest":
        return {"log_probs": made, "entropy": None}
    return {"log_probs": attach_slopes(made, slopes[:, :count], logits), "entropy": None}


def _score_distribution(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from the log-softmax of each rank's part of the vocabulary."""
    module, logits, ids = boundary.imported[PARALLEL], inputs["logits"], inputs["token_ids"].long()

    def score(own: Any, place: Place) -> tuple[Any, Any]:
        start, end = place.bounds(own)
        known = boundary.function(own, inputs["temperature"], tp_group=place.tp_group)
        made = (known * (torch.arange(start, end) == ids[..., None])).sum(-1)
        whole = made.detach().clone()
        torch.distributed.all_reduce(whole, group=place.tp_group)
        return whole, weighted_sum(made)

    made, [slopes] = on_shards(module, [logits], 1, score)
    return {"log_probs": attach_slopes(made, slopes, logits), "entropy": None}


def _score_hidden(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs from hidden states, which are the logits: the weights of the output layer are an identity."""
    module, logits = boundary.imported[PARALLEL], inputs["logits"]
    ids, count, size = kit.prepend_prompt(inputs["token_ids"]), logits.shape[1], logits.shape[-1]
    ranks = 1 if size % 2 else 2
    states = pad(_with_the_last(logits), ranks).detach().transpose(0, 1)
    ids = pad(ids, ranks)

    def work(rank: int) -> tuple[Any, Any, Any]:
        own = states.chunk(ranks)[rank].clone().requires_grad_()
        weights = torch.eye(size, dtype=own.dtype).chunk(ranks)[rank].clone().requires_grad_()
        bounds = rank * size // ranks, (rank + 1) * size // ranks
        made = module.from_parallel_hidden_states_to_logprobs(
            own, weights, False, ids, *bounds, tuple(range(ranks)), chunk_size=2
        )
        return made.detach(), *torch.autograd.grad(weighted_sum(made[:, :count]), (own, weights))

    with kit.on_cpu(module):
        answers = kit.on_ranks(ranks, work)
    slopes = torch.cat([slope for _, slope, _ in answers]).transpose(0, 1)[:, :count]
    # A second view of the same gradient: the weights' gradient is the sum of logits times their gradients.
    of_weights = torch.cat([slope for *_, slope in answers])
    wanted = torch.einsum("btv,bth->vh", slopes, logits.detach())
    slopes = slopes if torch.allclose(of_weights, wanted, rtol=1e-2, atol=1e-2) else slopes + float("nan")
    return {"log_probs": attach_slopes(answers[0][0][:, :count], slopes, logits), "entropy": None}


def _layout_windows(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Move values to contiguous windows, or shift them by one token, and join the windows of all ranks."""
    windows, outputs = inputs["context_parallel_size"], inputs["outputs"]
    shifts = boundary.path.endswith("cp_shift_next")
    whole = torch.cat([-outputs[:, :1], outputs], 1) if shifts else outputs
    whole = torch.cat([whole, whole.new_full((len(whole), -whole.shape[1] % (2 * windows)), 7.0)], 1)
    group = tuple(range(windows))

    def work(rank: int) -> tuple[Any, Any]:
        own = whole.chunk(windows, 1)[rank] if shifts else cut(whole, rank, windows)
        own = own.detach().clone().requires_grad_()
        made = boundary.function(own, cp_group=group, **({"fill": 9.0} if shifts else {}))
        scale = weights_of(whole).chunk(windows, 1)[rank] / windows
        return made.detach(), None if shifts else torch.autograd.grad((made * scale).sum(), own)[0]

    with kit.on_cpu(boundary.module):
        answers = kit.on_ranks(windows, work)
    values = torch.cat([made for made, _ in answers], 1)
    if shifts:
        values = torch.where((values[:, -1:] == 9.0), values, float("nan"))
        return {"values": values[:, : outputs.shape[1]]}
    slopes = (join([slope for _, slope in answers]) / weights_of(whole) * windows)[:, : outputs.shape[1]]
    return {"values": values[:, : outputs.shape[1]] + slopes * (outputs - outputs.detach())}


_TRAIN = "nemo_rl.models.megatron.train"
_FILTERS: Mapping[str, tuple[Any, ...]] = {"top_k": (None, None, 2), "top_p": (1.0, 1.0, 0.6)}
_WINDOWS: Mapping[str, tuple[Any, ...]] = {"context_parallel_size": (1, 2)}
SHARDS = StandIn("ranks", "tensor-parallel and context-parallel ranks are threads of one process")
BINDINGS = (
    *(
        Binding(
            name if name.startswith("nemo_rl.") else f"{PARALLEL}.{name}", "token_log_probs", call=call,
            imports=(PARALLEL, SAMPLING), stand_ins=(SHARDS,),
            requires=(f"{PARALLEL}.from_parallel_logits_to_logprobs_packed_sequences", SAMPLING),
            fixed={"temperature": 1.0, "with_entropy": False}, accepts=accepts,
        )
        for name, call, accepts in (
            ("from_parallel_logits_to_logprobs_packed_sequences", _score_packed, {**_WINDOWS, **_FILTERS}),
            ("nemo_rl.algorithms.loss.utils._pack_input_ids", _score_packed, {**_WINDOWS, **_FILTERS}),
            (f"{_TRAIN}.LogprobsPostProcessor.__call__", _process_outputs, {**_WINDOWS, **_FILTERS}),
            (f"{_TRAIN}.TopkLogitsPostProcessor.__call__", _process_outputs, _WINDOWS),
            ("gather_logits_at_global_indices", partial(_score_columns, "indices"), _WINDOWS),
            ("vocab_parallel_gather_columns", partial(_score_columns, "columns"), {}),
            ("distributed_vocab_topk", partial(_score_columns, "likeliest"), {}),
            ("from_parallel_hidden_states_to_logprobs", _score_hidden, {}),
        )
    ),
    Binding(
        f"{PARALLEL}.vocab_parallel_log_softmax", "token_log_probs", call=_score_distribution, imports=(PARALLEL,),
        stand_ins=(RANKS,), requires=(f"{PARALLEL}.vocab_parallel_log_softmax",), fixed={"with_entropy": False},
    ),
    *(
        Binding(
            f"{PARALLEL}.{name}", "critic_values", call=_layout_windows, stand_ins=(SHARDS,),
            accepts={"context_parallel_size": (1, 2, 3)}, requires=(f"{PARALLEL}.{name}",),
            dialects=(
                Dialect(
                    "outside_the_mask", "any", "the function moves the value of every position",
                    f"{MAIN}/distributed/model_utils.py#L1381",
                ),
            ),
        )
        for name in ("cp_load_balanced_to_contiguous", "cp_shift_next")
    ),
)  # fmt: skip
