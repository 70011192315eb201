"""Bindings for ROLL's forward passes, which compute log-probs in microbatches, packed or split over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import MPU, RANKS
from sentinel.binding.kit import torch

from .containers import CONTAINER, PROTOCOL, RECENT

_STRATEGIES = "roll.distributed.strategy"
_FSDP, _HF, _MEGATRON = (f"{_STRATEGIES}.{name}_strategy" for name in ("fsdp2", "hf", "megatron"))
_WORKER, _DYNAMIC = "roll.pipeline.base_worker", "roll.utils.dynamic_batching"
_CONFIG = "roll.configs.worker_config"
_FUNCTIONALS = "roll.utils.functionals"
_UTIL, _ULYSSES = "roll.third_party.megatron.util", "roll.utils.context_parallel.rmpad_ulysses"
_GATHER = "roll.utils.context_parallel.autograd_gather"

_MODEL = StandIn("model", "a table of log-probs and entropies, in which tokens are looked up by their id")
_SELF = StandIn("self", "the real class for one rank, without a model")
_ADDRESS = StandIn("get_node_ip", "a decorator reads the machine's address at import, for which a network is needed")
_WHOLE = {"micro_batch_size": None, "max_tokens_per_microbatch": None, "padding_microbatches": 0}


class _Table:
    """A batch with a one-token prompt per row, and a table with the log-prob and the entropy of each of its tokens."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        log_probs = kit.prepend_prompt(inputs["log_probs"].detach())
        self.rows, self.width = log_probs.shape
        self.ids = 1 + torch.arange(log_probs.numel()).reshape(log_probs.shape)
        self._log_probs = log_probs.flatten()
        entropies = log_probs[:, 1:] if inputs["entropies"] is None else inputs["entropies"].detach()
        self._entropies = torch.cat((entropies, log_probs[:, :1] * 0), 1).flatten()
        valid = kit.prepend_prompt(inputs["response_mask"]) != 0
        self.mask = valid.long()
        self.ends = (valid * torch.arange(1, self.width + 1)).amax(-1, keepdim=True).clamp(min=1)
        self.attended = torch.arange(self.width)[None] < self.ends

    def log_probs(self, ids: Any) -> Any:
        """Return the log-probs of these tokens."""
        return self._log_probs[(ids.long() - 1).clamp(min=0)]

    def entropies(self, ids: Any) -> Any:
        """Return the entropies of the distributions after these tokens."""
        return self._entropies[(ids.long() - 1).clamp(min=0)]

    def positions(self, pictured: bool) -> Any:
        one = torch.arange(self.width).expand(self.rows, -1)
        if not pictured:
            return one
        return 100 * torch.arange(self.rows)[:, None, None] + 10 * torch.arange(3)[None, :, None] + one[:, None]

    def batch(self, boundary: Any, pictured: bool) -> Any:
        columns = {"input_ids": self.ids, "attention_mask": self.attended.long(), "response_mask": self.mask}
        columns |= {"position_ids": self.positions(pictured), "number": torch.arange(self.rows)}
        if pictured:
            columns["multi_modal_inputs"] = [
                {"pixel_values": torch.full((1, 2), 0.5 + row)} for row in range(self.rows)
            ]
        return CONTAINER(boundary, columns, {"loss_mask_keys": ["response_mask"]})

    def seen(self, ids: Any, positions: Any, pixels: Any) -> Any:
        """Return the ids, or the ids of other tokens if images or positions are those of other rows."""
        row = (ids[:, 0] - 1) // self.width
        right = torch.equal(pixels, torch.full((len(row), 2), 0.5) + row[:, None])
        right = right and torch.equal(positions.transpose(0, 1), self.positions(True)[row])
        return ids if right else torch.ones_like(ids)


def _worker(boundary: Any, strategy: Any, size: int) -> Any:
    """Return ROLL's worker class without a model, with this strategy."""
    owner = boundary.imported[_WORKER].ActorWorker
    config = kit.stand_in(
        infer_batch_size=size, name="actor", apply_loss_scale=False, use_dynamic_batching_in_infer=False,
        logits_in_fp32=True,
    )  # fmt: skip
    ranks = kit.stand_in(cp_size=1, cp_rank=0, dp_size=1, tp_size=1, tp_rank=0, is_pipeline_last_stage=True)
    worker = kit.make_unbuilt(
        owner, worker_config=config, rank_info=ranks, strategy=strategy, cluster_name="actor", worker_name="actor"
    )
    strategy.worker, strategy.worker_config = worker, config
    return worker


def _compute(boundary: Any, worker: Any, data: Any) -> Any:
    """Compute the log-probs of a batch with ROLL's worker. Its method has a decorator, which only marks it."""
    modules = [boundary.imported[_WORKER], boundary.imported[_FSDP], boundary.imported[PROTOCOL]]
    platform = kit.stand_in(device_type=boundary.device, is_npu=lambda: False, is_available=lambda: False)
    with contextlib.ExitStack() as stack:
        for module in (each for each in modules if hasattr(each, "current_platform")):
            stack.enter_context(kit.swap(module, "current_platform", platform))
        stack.enter_context(
            kit.swap(boundary.imported[_WORKER], "state_offload_manger", lambda **_: contextlib.nullcontext())
        )
        return kit.on_ranks(1, lambda _: type(worker).compute_log_probs.__wrapped__(worker, data))[0]


def _forward(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with ROLL's worker and its FSDP2 or Hugging Face strategy."""
    table, pictured = _Table(inputs), inputs["with_images"]
    hugging_face = "hf_strategy" in boundary.path
    owner = boundary.imported[_HF].HfInferStrategy if hugging_face else boundary.imported[_FSDP].FSDP2InferStrategy

    class Strategy(owner):  # type: ignore[misc, valid-type]
        """ROLL's strategy, whose model returns token ids instead of logits."""

        param_dtype = torch.bfloat16

        def __init__(self) -> None:
            self.model = self

        def eval(self) -> None:
            pass

        def get_data_input(self, batch: Any) -> Any:
            return batch

        def __call__(self, input_ids: Any, position_ids: Any, pixel_values: Any = None, **_: Any) -> Any:
            return kit.stand_in(logits=table.seen(input_ids, position_ids, pixel_values) if pictured else input_ids)

        def op_compute_log_probs(self, logits: Any, **_: Any) -> Any:
            return table.log_probs(logits[:, 1:])

        def op_compute_entropy(self, logits: Any, **_: Any) -> Any:
            return table.entropies(logits[:, :-1])

    Strategy.__abstractmethods__ = frozenset()
    worker = _worker(boundary, Strategy(), inputs["micro_batch_size"] or table.rows)
    made = _compute(boundary, worker, table.batch(boundary, pictured)).batch
    return {"log_probs": made["log_probs"], "entropy": made["entropy"]}


def _megatron(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute log-probs with ROLL's worker and its Megatron strategy on one rank.

    The stand-in for the model returns the ids of the tokens that it receives. Rows are packed if the scenario says so
    or if it has a token budget, for which ROLL balances the rows of microbatches.
    """
    module, table, pictured = boundary.imported[_MEGATRON], _Table(inputs), inputs["with_images"]
    data, budget = table.batch(boundary, pictured), inputs["max_tokens_per_microbatch"]
    kind = type("Strategy", (module.MegatronInferStrategy,), {"__abstractmethods__": frozenset()})
    strategy = kit.make_unbuilt(kind)
    packs = inputs["packed"]

    def model(input_ids: Any, position_ids: Any, pixel_values: Any = None, **_: Any) -> Any:
        return table.seen(input_ids, position_ids, pixel_values) if pictured else input_ids

    def run(forward_step_func: Any, data_iterator: Any, num_microbatches: int, **_: Any) -> list[Any]:
        made = []
        for _ in range(num_microbatches):
            output, loss = forward_step_func(data_iterator[0], model)
            made.append(loss(output)[1])
        return made

    class Chunks(list[Any]):
        """The model's chunks, of which there is one."""

        def eval(self) -> None:
            pass

        def get_models(self) -> list[Any]:
            return [*self]

    packing = boundary.imported[_CONFIG].SequencePackingConfig()
    names = {
        "models_unwrapped": [kit.stand_in(get_batch_on_this_cp_rank=kit.return_first)], "model": Chunks([model]),
        "enable_router_replay": False, "is_multimodal": False, "use_sequence_packing": packs,
        "seq_length": table.width, "forward_backward_func": run,
        "megatron_train_args": kit.stand_in(cross_entropy_loss_fusion=False),
        "get_data_input": kit.return_first, "load_states": _ignore, "offload_states": _ignore,
    }  # fmt: skip
    for name, value in names.items():
        setattr(strategy, name, value)
    worker = _worker(boundary, strategy, inputs["micro_batch_size"] or table.rows)
    worker.worker_config.sequence_packing_args = packing
    worker.worker_config.strategy_args = kit.stand_in(strategy_config={})
    if packs and budget:
        packing.algorithm, packing.max_packed_sequence_length_forward = "load_balance", 64
        packing.min_num_micro_batches_forward = 1
    elif budget:
        worker.worker_config.use_dynamic_batching_in_infer = True
        data, _ = boundary.imported[_DYNAMIC].dynamic_batching_shard(data, 1, max(budget, table.width), 1)
    stands = {
        "mpu": kit.make_single_rank_mpu(), "PackedSeqParams": kit.stand_in,
        "disable_gradients": lambda **_: contextlib.nullcontext(),
        "vocab_parallel_logprobs": lambda logits, labels, **_: table.log_probs(labels),
        "vocab_parallel_entropy": lambda logits, **_: table.entropies(logits),
        "current_platform": kit.stand_in(device_type=boundary.device),
    }  # fmt: skip
    with kit.swap_all(module, **stands):
        made = _compute(boundary, worker, data).batch
    order = data.batch["number"].argsort()
    return {"log_probs": made["log_probs"][order], "entropy": made["entropy"][order]}


def _ignore(*_: Any, **__: Any) -> None:
    return None


# -- reference models --------------------------------------------------------------------------------------------------


def _routed(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the log-probs of two reference models with ROLL, each of which is responsible for a domain.

    For an odd number of rows, both models are responsible for all rows. A model returns log-probs for the rows that
    its two ranks receive; for the rows of another domain, they are wrong.
    """
    table, functions, protocol = _Table(inputs), boundary.imported[_FUNCTIONALS], boundary.imported[PROTOCOL]
    routes, budget = table.rows % 2 == 0, inputs["max_tokens_per_microbatch"]
    data = table.batch(boundary, False)
    data = CONTAINER(boundary, {**kit.read_columns(data), "domain": [f"d{row % 2}" for row in range(table.rows)]}, {})

    def model(number: int) -> Any:
        def compute(batch: Any, **_: Any) -> list[Any]:
            made = table.log_probs(batch.batch["input_ids"][:, 1:])
            own = batch.batch["number"] % 2 == number
            made = torch.where(own[:, None], made, made * 0 + 9.0) if routes else made
            both = zip(made.chunk(2), batch.batch["number"].chunk(2))
            return [CONTAINER(boundary, {"log_probs": own, "number": rows}, {"metrics": {}}) for own, rows in both]

        worker = kit.stand_in(
            device_mapping=[number], use_dynamic_batching_in_infer=bool(budget), sequence_length_round_in_infer=1,
            max_tokens_per_microbatch_in_infer=max(budget or 0, table.width),
            strategy_args=kit.stand_in(strategy_config={}),
        )  # fmt: skip
        return kit.stand_in(dp_size=2, worker_config=worker, compute_log_probs=compute)

    config = kit.stand_in(
        needs_teacher_routing=routes, domain_2_tag={"d0": {"zero"}, "d1": {"one"}}, teacher_names_for_all_tags=[],
        tag_to_teacher_names={"zero": ["first"], "one": ["second"]},
    )  # fmt: skip
    with kit.swap(protocol, "ray", kit.stand_in(get=kit.return_first)):
        context = functions.build_domain_routing_context(data, config)
        models = {"first": model(0), "second": model(1)}
        made = functions.compute_ref_log_probs_with_routing(data, models, config, *context).batch
    masks = [made[f"ref_log_probs_{name}_mask"].long() for name in models]
    right = torch.equal(masks[0] + masks[1], torch.full((table.rows,), 1 if routes else 2))
    return {"log_probs": made["ref_log_probs"] if right else made["ref_log_probs"] * float("nan")}


# -- layouts -----------------------------------------------------------------------------------------------------------


def _packed_on_ranks(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs and entropies that pass through ROLL's packed layout, averaged over the layouts.

    One rank pads rows for FP8 or not. Two context-parallel ranks do not pad for FP8, and are used only if each row has
    two tokens: otherwise, ROLL's function raises an exception, because a row has no token for a rank's first chunk.
    """
    table, module = _Table(inputs), boundary.module
    following = table.ids.roll(-1, 1)

    def score(ranks: int, padded: bool) -> Any:
        def work(rank: int) -> Any:
            packed, parameters = module.preprocess_packed_seqs(table.ids, table.attended, use_fp8_padding=padded)
            labels, _ = module.preprocess_packed_seqs(following, table.attended, use_fp8_padding=padded)
            scores = torch.stack([table.log_probs(labels), table.entropies(packed)], -1)
            return module.postprocess_packed_seqs(scores, parameters, table.attended, table.rows, table.width)

        parallel = kit.make_single_rank_mpu(get_context_parallel_world_size=ranks)
        parallel.get_context_parallel_rank = lambda: torch.distributed.get_rank()
        with kit.swap_all(module, mpu=parallel, PackedSeqParams=kit.stand_in):
            return kit.on_ranks(ranks, work)[0]

    layouts = [(1, False), (1, True), *([(2, False)] if table.ends.min() > 1 else [])]
    made = sum(score(*layout) for layout in layouts) / len(layouts)
    return {"log_probs": made[:, :-1, 0], "entropy": made[:, :-1, 1]}


def _sliced(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return log-probs and entropies of a stream of tokens that ROLL cuts over two ranks and gathers again.

    An entropy is looked up by the token's position id: its index in the padded batch. If the inputs are only padded,
    the adapter cuts them.
    """
    table, module, pads = _Table(inputs), boundary.module, boundary.path.endswith("ulysses_pad_inputs")
    stream, labels = (ids[table.attended][None] for ids in (table.ids, table.ids.roll(-1, 1)))
    places = stream - 1
    channels = places if len(table.ids) % 2 else torch.stack([places, places])

    def work(rank: int) -> Any:
        if pads:
            ids, own, size = module.ulysses_pad_inputs(labels, channels, cp_size=2)
            part = slice(rank * ids.shape[1] // 2, (rank + 1) * ids.shape[1] // 2)
            ids, own = ids[:, part], own[..., part]
        else:
            ids, own, size = module.ulysses_pad_and_slice_inputs(labels, channels, cp_size=2, cp_rank=rank)
        scores = torch.stack([table.log_probs(ids), table.entropies(own.reshape(-1, 1, own.shape[-1])[-1] + 1)], -1)
        return module.gather_outputs_and_unpad(scores, gather_dim=1, unpad_dim=1, padding_size=size, group=(0, 1))

    whole = torch.zeros(*table.ids.shape, 2)
    whole[table.attended] = kit.on_ranks(2, work)[1][0].to(whole.dtype)
    return {"log_probs": whole[:, :-1, 0], "entropy": whole[:, :-1, 1]}


def _bind(path: str, call: Callable[..., Any], *imports: str, **more: Any) -> Binding:
    usual = {"imports": (PROTOCOL, _WORKER, _FSDP, *imports), "stand_ins": (_SELF, _MODEL, RANKS, _ADDRESS)}
    usual["requires"] = RECENT
    return Binding(path, "recomputed_log_probs", call=call, **{**usual, **more})


_LAYOUT: Mapping[str, Any] = {"imports": (), "stand_ins": (_MODEL, RANKS), "fixed": _WHOLE}
BINDINGS = (
    *(
        _bind(
            path, _forward, *([_HF] if path.startswith(_HF) else []),
            fixed={"max_tokens_per_microbatch": None, "padding_microbatches": 0},
            accepts={"with_images": (False, True)},
        )
        for path in (
            f"{_FSDP}.FSDP2InferStrategy.forward_step", f"{_FSDP}.FSDP2InferStrategy._fsdp2_forward",
            f"{_HF}.HfInferStrategy.forward_step", f"{_WORKER}.ActorWorker.compute_log_probs",
            f"{_WORKER}.ActorWorker.forward_func_log_probs",
        )
    ),
    *(
        _bind(
            f"{_MEGATRON}.MegatronInferStrategy.{name}", _megatron, _MEGATRON, _DYNAMIC, _CONFIG,
            stand_ins=(_SELF, _MODEL, MPU, RANKS, _ADDRESS), fixed={"padding_microbatches": 0},
            accepts={"packed": (False, True)},
        )
        for name in (
            "forward_step", "inner_forward_step", "_pack_sequences", "_unpack_sequences", "op_compute_log_probs",
            "op_compute_entropy",
        )
    ),
    *(
        _bind(
            f"{_FUNCTIONALS}.{name}", _routed, imports=(PROTOCOL, _FUNCTIONALS),
            stand_ins=(StandIn("references", "each model is a table of log-probs, on two ranks"),),
            fixed={"micro_batch_size": None, "padding_microbatches": 0, "entropies": None},
            requires=(f"{_FUNCTIONALS}.{name}",),
        )
        for name in (
            "compute_ref_log_probs_with_routing", "extract_real_results_from_routed", "merge_ref_log_probs_compat",
            "build_domain_routing_context",
        )
    ),
    *(_bind(f"{_UTIL}.{side}process_packed_seqs", _packed_on_ranks, **_LAYOUT) for side in ("pre", "post")),
    *(
        _bind(f"{_ULYSSES}.{name}", _sliced, **_LAYOUT)
        for name in ("ulysses_pad_inputs", "ulysses_pad_and_slice_inputs", "gather_outputs_and_unpad")
    ),
)  # fmt: skip
