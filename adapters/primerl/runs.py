"""Bindings for prime-rl's trainers: supervised training and reinforcement learning.

The real training loops run a few steps on simulated ranks, with a table of log-probs as the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from typing import Any

from sentinel import Binding, Dialect, StandIn
from sentinel.binding import kit
from sentinel.binding.families import RANKS
from sentinel.binding.kit import torch

MAIN = "https://github.com/PrimeIntellect-ai/prime-rl/blob/559b44772e471d1538537b8805cc77f3824a5e64/src/prime_rl"
_RL, _SFT, _UTILS = "prime_rl.trainer.rl.train", "prime_rl.trainer.sft.train", "prime_rl.trainer.utils"
_LEVELS = ("debug", "info", "warning", "success")
_FIRST = 4  # rows in each batch of a training run
PEAK = 0.5  # the highest learning rate


class _Rank:
    """A stand-in for one rank's optimizer, checkpoint manager and weight broadcast. It adds up the gradients of all
    steps.
    """

    def __init__(self, table: Any) -> None:
        self.table, self.gradient, self.model = table, torch.zeros_like(table), None
        self.param_groups = [{"lr": PEAK}]
        self.rates: list[float] = []
        self.saved: list[int] = []
        self.sent: list[int] = []

    def zero_grad(self) -> None:
        self.table.grad = None

    def step(self) -> None:
        self.add(self.param_groups[0]["lr"])

    def add(self, rate: float) -> None:
        """Add the gradient of one step, multiplied by the step's learning rate divided by the highest rate."""
        self.rates.append(rate / PEAK)
        if self.table.grad is not None:
            self.gradient += self.table.grad * (rate / PEAK)

    def save(self, step: int, *_: Any, **__: Any) -> None:
        self.saved.append(step)

    def broadcast_weights(self, model: Any, step: int) -> None:
        self.sent.append(step)

    def maybe_clean(self, *_: Any) -> None:
        """Do nothing, because no checkpoint is written."""


class _Reports:
    """A stand-in for the monitors of a run. It records the logged metrics, and the metrics of the first rank alone."""

    def __init__(self) -> None:
        self.logged: list[Mapping[str, Any]] = []
        self.first: list[Mapping[str, Any]] = []

    async def setup(self, **_: Any) -> None:
        """Do nothing."""

    async def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.logged.append(dict(metrics))
        if torch.distributed.get_rank() == 0:
            self.first.append(dict(metrics))

    def read(self, name: str) -> list[float]:
        """Return what the first rank logged under a name, in order."""
        return [float(each[name]) for each in self.first if name in each]


def _clock() -> Any:
    seconds = count()
    return kit.stand_in(perf_counter=lambda: float(next(seconds)), time=lambda: float(next(seconds)))


def _trained(
    boundary: Any,
    ranks: int,
    config: Any,
    table: Any,
    replaced: Mapping[str, Any],
    after: Any = None,
    wrapped: Callable[[Any], Any] = kit.return_first,
    optimizer: Callable[[Any], Any] = kit.return_first,
    parallel: int = 1,
    offloads: bool = False,
) -> tuple[list[_Rank], _Reports]:
    """Run a trainer's loop on simulated ranks.

    :param wrapped: makes the trainer's model from the table of log-probs; by default, the table is the model.
    :param optimizer: makes the trainer's optimizer from the rank; by default, the rank is the optimizer.
    :param parallel: number of context-parallel ranks, which are adjacent.
    :param offloads: whether the trainer gets a manager that moves gradients to the CPU.
    """
    module, reports, own = boundary.module, _Reports(), threading.local()
    made: list[_Rank] = []

    def setup_model(*_: Any) -> Any:
        model = kit.token_table(table.detach(), after)
        own.rank = _Rank(model.model.table)
        own.rank.table.register_hook(partial(_average, ranks))
        made.append(own.rank)
        return wrapped(model)

    mesh = kit.stand_in(size=lambda: ranks // parallel, get_group=lambda: None)
    beside = kit.stand_in(
        get_group=lambda: cp_group(parallel), get_local_rank=lambda: torch.distributed.get_rank() % parallel
    )
    dims = {
        "cp_enabled": parallel > 1, "cp": parallel, "ep_enabled": False, "fsdp_gradient_divide_factor": ranks,
        "world_mesh": {"cp": beside},
    }  # fmt: skip
    rank = torch.distributed.get_rank
    nothing = partial(kit.return_first, None)
    speed = {"count_tokens": nothing, "get_tokens_per_second": lambda: 100.0, "get_mfu": lambda: 50.0}
    speed |= {"get_step_tokens_per_second": lambda tokens, time: tokens / time, "get_step_mfu": lambda *_: 50.0}
    swaps: dict[str, Any] = {
        "get_world": lambda: kit.stand_in(
            rank=torch.distributed.get_rank(), local_rank=0, world_size=ranks, is_master=True
        ),
        "setup_logger": lambda *_, **__: kit.stand_in(**dict.fromkeys(_LEVELS, str)),
        "monitors": reports,
        "get_parallel_dims": lambda *_: kit.stand_in(**dims, get_mesh=lambda _: mesh),
        "setup_ckpt_manager": lambda *_, **__: kit.stand_in(
            save=lambda *given, **more: own.rank.save(*given, **more), maybe_clean=nothing, load=_load, ckpt_dir="."
        ),
        "setup_model": setup_model,
        "setup_optimizer": lambda *_, **__: (optimizer(own.rank), _Offloading(own.rank.table) if offloads else None),
        "setup_scheduler": lambda *_, **__: kit.stand_in(step=nothing),
        "setup_weight_broadcast": lambda *_: own.rank,
        "get_perf_counter": lambda *_: kit.stand_in(**speed),
        "get_ckpt_disk_metrics": lambda _: {},
        "setup_token_exporter": lambda *_: kit.stand_in(export=nothing, close=nothing, mark_stable=nothing),
        "time": _clock(),
        **dict.fromkeys(
            ("setup_torch_distributed", "resolve_ep", "resolve_auto_attn", "setup_tokenizer", "setup_processor"),
            nothing,
        ),
        **replaced,
    }
    assert rank is not None
    norms = partial(kit.swap, boundary.imported[_UTILS], "torch_clip_grad_norm_")
    with ExitStack() as alone:
        alone.enter_context(kit.on_cpu(module, boundary.imported[_UTILS]))
        alone.enter_context(kit.swap_all(module, **swaps))
        alone.enter_context(norms(_clip))
        alone.enter_context(kit.swap(torch, "set_float32_matmul_precision", nothing))
        kit.on_ranks(ranks, lambda _: boundary.function.__wrapped__(config))
    return made, reports


class _Offloading:
    """A stand-in for prime-rl's manager of offloaded gradients. It scales them after the last backward pass of a step,
    and leaves them where they are.
    """

    def __init__(self, table: Any) -> None:
        self.table, self.scale, self.final = table, 1.0, False

    def begin_step(self, scale: float, **_: Any) -> None:
        self.scale = scale

    def begin_backward(self, final_backward: bool) -> None:
        self.final = final_backward

    def finish_backward(self, **_: Any) -> None:
        if self.final:
            self.table.grad.mul_(self.scale)

    def clip_grad_norm_(self, max_norm: float) -> Any:
        return _clip([self.table], max_norm)

    def close(self) -> None:
        """Do nothing."""


def cp_group(parallel: int) -> tuple[int, ...]:
    """Return the context-parallel ranks that have the same samples as this rank."""
    first = torch.distributed.get_rank() // parallel * parallel
    return tuple(range(first, first + parallel))


def _load(step: int, _: Any, __: Any, scheduler: Any, progress: Any, **___: Any) -> None:
    """Set progress and schedule as a checkpoint does that was saved after a step."""
    progress.step = step
    for _number in range(step):
        scheduler.step()


def _average(ranks: int, gradient: Any) -> Any:
    """Average a gradient over ranks, as FSDP does in each backward pass."""
    total = gradient.clone()
    torch.distributed.all_reduce(total)
    return total / ranks


def _clip(parameters: Any, max_norm: float, **_: Any) -> Any:
    """Clip gradients by their norm, like torchtitan's function without its device meshes. Return the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    for gradient in gradients if norm > max_norm else ():
        gradient.mul_(max_norm / norm)
    return norm


def _config(**options: Any) -> Any:
    """Return a trainer's configuration, with all features that these runs do not need turned off."""
    off = (
        "heartbeat", "metrics_server", "model.full_offload", "model.lora", "model.vlm", "resume", "gc", "trace_path",
        "memory_profiler_path", "model.ac_offloading", "model.fused_lm_head_token_chunk_size", "eval", "val",
        "tokenizer",
    )  # fmt: skip
    usual = {
        **dict.fromkeys(off),
        "log.level": "info", "log.json_logging": False, "log.log_data": False, "monitors.wandb": None,
        "monitors.file": None, "monitors.prime": None, "output_dir": ".", "run_dir": ".", "dist_timeout_seconds": 1,
        "matmul_precision": "highest", "model.fsdp_cpu_offload": False, "model.optim_cpu_offload": False, "model.cp": 1,
        "optim.lr": PEAK, "optim.max_norm": float("inf"), "scheduler.type": "constant", "rollout_transport": None,
        "weight_broadcast.type": "nccl", "enable_router_replay": False, "enable_token_export": False,
    }  # fmt: skip
    return kit.nest_options({**usual, **options})


def _packed(ids: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Pack sequences into a microbatch of one row. The target of each token is the next token of its sequence."""
    targets = [[*row[1:], 0] for row in ids]
    flat = {"input_ids": ids, "target_ids": targets, "position_ids": [range(len(row)) for row in ids]}
    made = {name: torch.tensor([[value for row in rows for value in row]]) for name, rows in flat.items()}
    counted = torch.tensor([[bool(flag) for row in masks for flag in row]])
    return {**made, "loss_mask": counted, "seq_lens": torch.tensor([len(row) for row in ids])}


def _supervised(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of supervised training. Each rank has the same number of microbatches, each with one packed row."""
    mask, ranks = inputs["response_mask"] != 0, inputs["dp_size"]
    rows, size = len(mask), inputs["micro_batch_size"]
    share = rows // ranks
    per = size or share
    ids, flags = kit.token_ids(torch.ones_like(mask)), [[*row, 0] for row in mask.long().tolist()]
    width = mask.shape[1] + 1

    def load(*_: Any) -> Iterator[Any]:
        start = torch.distributed.get_rank() * share
        for place in range(start, start + share, per):
            yield _packed(ids[place : place + per], flags[place : place + per])

    dataset = kit.stand_in(step=rows, epoch=0, num_samples={"one": rows}, num_tokens={"one": rows * width})
    data = {"data.batch_size": rows, "data.micro_batch_size": per, "data.seq_len": width * per, "data.type": "fake"}
    settings = {**data, "max_steps": 1, "ckpt": None}
    replaced = {"setup_dataset": lambda *_, **__: dataset, "setup_dataloader": load, "get_dataset_state": lambda _: {}}
    after = inputs["output_after"].detach()
    made, reports = _trained(boundary, ranks, _config(**settings), inputs["log_probs"], replaced, after)
    gradient = made[0].gradient
    (loss,) = {each["loss/mean"] for each in reports.logged if "loss/mean" in each}
    return {"loss": loss, "gradient": gradient[:, 1:-1], "gradient_after": gradient[:, -1]}


def _ran(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run several steps of reinforcement learning. The advantage of each token is the reward of the token's row."""
    steps = _steps(inputs)
    table = -torch.arange(1, 1 + len(inputs["rewards"]) * _FIRST * 3).reshape(-1, 3) / 16
    ids = kit.token_ids(torch.ones(table.shape))
    did: dict[str, list[Any]] = {name: [] for name in ("trained", "versions", "validated")}
    step = count()

    class Loader:
        def __init__(self, *_: Any) -> None:
            self.batches = cycle(range(len(inputs["rewards"])))

        def wait_for_batch(self) -> None:
            did["versions"].append(next(step))

        def get_batch(self) -> list[Any]:
            batch = next(self.batches)
            places = [batch * _FIRST + row for row in range(_FIRST)]
            return [
                self.pack(places[:3], inputs["rewards"][batch][:3]),
                self.pack(places[3:], inputs["rewards"][batch][3:]),
            ]

        def pack(self, places: Sequence[int], rewards: Sequence[float]) -> dict[str, Any]:
            rows = [ids[place] for place in places]
            lengths = [len(row) for row in rows]
            whole = _packed(rows, [[0, 1, 1, 1]] * len(rows))
            of_tokens = torch.tensor([[float(reward) for reward, row in zip(rewards, rows) for _ in row]])
            none = dict.fromkeys(("ref_logprobs", "ref_kl_weights", "routed_experts", "mm_kwargs", "mm_token_type_ids"))
            kinds = {"rl_weights": torch.ones_like(of_tokens), "ce_weights": (of_tokens > 0).float()}
            names = [f"env{row % 2}" for row, length in enumerate(lengths) for _ in range(length)]
            streams = {"advantages": of_tokens, "inference_logprobs": -0.5 - of_tokens / 8}
            streams |= {"temperatures": torch.ones_like(of_tokens), **kinds}
            return {**whole, **streams, **none, "sequence_lengths": lengths, "env_names": names}

    options = {"max_steps": steps, "ckpt.interval": inputs["save_period"], "data.fake": None, "model.seq_len": 12}
    loss = kit.stand_in(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=1e-3)
    replaced = {"DataLoader": Loader, "forward": _note_rows(boundary.module.forward, table, did["trained"])}
    served: list[float] = []
    if inputs["equivalent_options"]:
        options |= {
            "weight_broadcast.type": "filesystem", "enable_token_export": True, "heartbeat.url": "",
            "metrics_server.port": 1,
        }  # fmt: skip
        replaced |= {"Heartbeat": _make_heart, "MetricsServer": partial(_make_server, served)}
    made, reports = _trained(boundary, 1, _config(**options, loss=loss), table, replaced)
    versions = [made[0].sent[place] for place in did["versions"]]
    # No checkpoint counts if the metrics server got other losses than the log.
    right = not inputs["equivalent_options"] or served == reports.read("loss/mean")
    return {**did, "versions": versions, "saved": made[0].saved if right else []}


def _steps(inputs: Mapping[str, Any]) -> int:
    """Return the number of steps that the data and ``max_steps`` allow."""
    steps: int = len(inputs["rewards"]) * inputs["epochs"]
    return steps if inputs["max_steps"] is None else min(steps, inputs["max_steps"])


def _note_rows(forward: Callable[..., Any], table: Any, rows: list[int]) -> Callable[..., Any]:
    """Return the trainer's forward function, which also records the rows that it trains on."""
    first, width = kit.token_ids(torch.ones(1, 1))[0][0], table.shape[1] + 2

    def noted(model: Any, input_ids: Any, *given: Any, **more: Any) -> Any:
        if torch.is_grad_enabled():
            rows.extend(int(each - first) // width for each in input_ids[0] if not int(each - first) % width)
        return forward(model, input_ids, *given, **more)

    return noted


def _make_heart(_: str) -> Any:
    return kit.stand_in(beat=partial(kit.return_first, None))


def _make_server(served: list[float], _: Any) -> Any:
    """Return a stand-in for a metrics server, which records the loss of each step."""
    nothing = partial(kit.return_first, None)
    return kit.stand_in(start=nothing, stop=nothing, update=lambda loss, **_: served.append(loss))


def _fitted(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run several steps of supervised training. Each validation sample is a token whose loss is the sample's value.

    prime-rl sends its weights for evaluation in the steps in which it also saves them.
    """
    steps, values = _steps(inputs), [float(value) for part in inputs["validation"] for value in part]
    rows = len(inputs["rewards"]) * _FIRST
    table = torch.cat([
        -torch.arange(1, 1 + rows * 3).reshape(-1, 3) / 16, torch.tensor([[-value, -1.0, -1.0] for value in values])
    ])  # fmt: skip
    ids, trained = kit.token_ids(torch.ones(table.shape)), list[int]()

    def load(_: Any, data: Any) -> Iterator[Any]:
        if data.name == "validation":
            start = rows
            for part in inputs["validation"]:
                yield _packed(ids[start : start + len(part)], [[1, 0, 0, 0]] * len(part))
                start += len(part)
        else:
            for start in cycle(range(0, rows, _FIRST)):
                yield _packed(ids[start : start + _FIRST], [[1, 1, 1, 0]] * _FIRST)

    nothing, period = partial(kit.return_first, None), inputs["save_period"]
    dataset = kit.stand_in(step=rows, epoch=0, num_samples={"one": rows}, num_tokens={"one": rows})
    options = {
        "max_steps": steps, "data.batch_size": _FIRST, "data.micro_batch_size": _FIRST, "data.seq_len": 4 * _FIRST,
        "data.type": "fake", "data.name": "training", "ckpt.interval": period, "ckpt.skip_scheduler": False,
        "val.eval_on_start": inputs["validates_first"], "val.interval": inputs["validation_period"] or steps + 1,
        "val.data.name": "validation", "tokenizer.name": "words", "renderer": None,
        "eval.source": [kit.stand_in(interval=period, resolved_name="words")],
    }  # fmt: skip
    replaced = {
        "setup_dataset": partial(kit.return_first, dataset), "setup_dataloader": load,
        "forward": _note_rows(boundary.module.forward, table, trained),
        **dict.fromkeys(("get_dataset_state", "load_sft_dataset", "create_renderer"), nothing),
    }  # fmt: skip
    made, reports = _trained(boundary, 1, _config(**options), table, replaced)
    logged = [each for each in reports.first if "val/loss" in each]
    saved, sent = made[0].saved, made[0].sent
    return {
        "trained": trained,
        # The validation of step 1 precedes the first update.
        "validated": [each["step"] if each["step"] > 1 else 0 for each in logged],
        "validation": [each["val/loss"] for each in logged],
        "saved": saved if saved == sent else sent,
    }


STAND_INS = (
    StandIn("model", "a table of log-probs, in which the forward pass looks up its input tokens"),
    StandIn("setup functions, monitors", "the trainer's own loop calls stand-ins for files, meshes and engines"),
    RANKS,
)
BINDINGS = (
    Binding(
        f"{_SFT}.train", "supervised_update", call=_supervised, stand_ins=STAND_INS, imports=(_UTILS,),
        fixed={"first_counts": False, "max_tokens_per_microbatch": None}, requires=(f"{_UTILS}.scale_gradients_",),
        dialects=(
            Dialect(
                "masked_values_have_no_influence", None, "the gradient of cross_entropy needs finite logits everywhere",
                f"{MAIN}/trainer/sft/train.py#L334",
            ),
        ),
    ),
    Binding(
        f"{_RL}.train", "training_loop", call=_ran, stand_ins=STAND_INS, imports=(_UTILS,),
        fixed={"validation_period": 0, "validates_first": False, "validates_last": False},
        accepts={"equivalent_options": (0, 1)}, requires=(f"{_UTILS}.scale_gradients_",),
    ),
    Binding(
        f"{_SFT}.train", "training_loop", call=_fitted, stand_ins=STAND_INS, imports=(_UTILS,),
        fixed={"validates_last": False}, accepts={"validation_period": (0, 2)},
        requires=(f"{_UTILS}.scale_gradients_", f"{_SFT}.load_sft_dataset"),
    ),
)  # fmt: skip
