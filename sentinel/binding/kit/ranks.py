"""Simulate several ranks with threads of one process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

from sentinel.binding.drift import RanksDisagreeError, StandInNamespace
from sentinel.binding.kit.objects import return_first, stand_in, swap, swap_all
from sentinel.values.lazy import torch


def gradient_of_ranks(tables: Sequence[Any]) -> Any:
    """Return the average, over the ranks, of the gradients of their log-prob tables."""
    return sum(torch.zeros_like(table) if table.grad is None else table.grad for table in tables) / len(tables)


class _Collectives:
    """Replaces torch.distributed's collectives for simulated ranks, which are threads.

    All ranks of a group must call the same collective; otherwise, a training run would hang. Only one rank runs
    at a time: the lowest that does not wait for others. So the order of calls and results is deterministic.

    :ivar failure: the first error: one that a rank raised, or a RanksDisagreeError. None if there is no error.
    """

    def __init__(self, count: int) -> None:
        self._count, self._changed = count, threading.Condition()
        self._calls: dict[Sequence[int], dict[int, tuple[str, str, Any]]] = {}
        self._returned: set[int] = set()
        self._ready = set(range(count))
        self._running: int | None = 0
        self.failure: BaseException | None = None

    def ranks_of(self, group: Any) -> Sequence[int]:
        """Return the ranks of a process group: a tuple lists them; any other value means all ranks."""
        return group if isinstance(group, tuple) else tuple(range(self._count))

    def begin(self, rank: int) -> None:
        """Wait until this rank may run.

        :raises RanksDisagreeError: if another rank has failed.
        """
        with self._changed:
            self._wait(lambda: self._running == rank)

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.failure is not None or condition())
        if self.failure is not None:
            raise RanksDisagreeError("another rank has failed")

    def _pause(self, rank: int) -> None:
        self._ready.discard(rank)
        self._running = min(self._ready, default=None)

    def exchange(self, rank: int, name: str, value: Any, group: Any) -> list[Any]:
        """Wait until every rank of the group has called this collective, and return the values of all ranks.

        :raises RanksDisagreeError: if the ranks of the group call different collectives, or if no rank can continue.
        """
        caller, ranks = sys._getframe(2), self.ranks_of(group)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        with self._changed:
            calls = self._calls.setdefault(ranks, {})  # the last rank to arrive deletes the entry
            calls[rank] = name, place, value
            if len(calls) == len(ranks):
                del self._calls[ranks]
                self._ready.update(ranks)
            else:
                self._pause(rank)
            self._compare(calls)
            self._wait(lambda: len(calls) == len(ranks) and self._running == rank)
        return [calls[each][2] for each in ranks]

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Record that a rank has returned or raised, so that no rank waits for it."""
        with self._changed:
            self._pause(rank)
            if error is not None:
                self._fail(error)
            else:
                self._returned.add(rank)
                self._compare({})

    def _compare(self, group: Mapping[int, tuple[str, str, Any]]) -> None:
        calls = {rank: call for each in (*self._calls.values(), group) for rank, call in each.items()}
        waiting = {rank for each in self._calls.values() for rank in each}
        stuck = waiting and len(waiting) + len(self._returned) == self._count
        if stuck or len({name for name, _, _ in group.values()}) > 1:
            ranks = [
                f"rank {rank} called {calls[rank][0]} ({calls[rank][1]})" if rank in calls else f"rank {rank} returned"
                for rank in range(self._count)
                if rank in calls or rank in self._returned
            ]
            self._fail(RanksDisagreeError(f"the ranks do not call the same collectives: {', '.join(ranks)}"))
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._changed.notify_all()


def on_ranks(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(rank)`` in one thread per rank, with ``torch.distributed`` replaced. Return each rank's result.

    A process group is a tuple of ranks; any other value means all ranks.

    :raises RanksDisagreeError: if a rank calls a collective that another rank of its group does not call.
    """
    dist = torch.distributed
    collectives, own = _Collectives(count), threading.local()
    answers: list[Any] = [None] * count
    reductions: dict[str, Callable[[list[Any]], Any]] = {
        "sum": sum,
        "avg": lambda parts: sum(parts) / len(parts),
        "max": lambda parts: torch.stack(parts).amax(0),
        "min": lambda parts: torch.stack(parts).amin(0),
    }

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, *_: Any, **__: Any) -> None:
        name = next(name for name in reductions if op == getattr(dist.ReduceOp, name.upper()))
        total = reductions[name](collectives.exchange(own.rank, "all_reduce", tensor.detach().clone(), group))
        with torch.no_grad():  # autograd does not see a collective, so the gradient of the rank's own part remains
            tensor.copy_(total)

    def all_gather(tensor_list: list[Any], tensor: Any, group: Any = None, *_: Any, **__: Any) -> None:
        tensor_list[:] = collectives.exchange(own.rank, "all_gather", tensor, group)

    def all_gather_into_tensor(into: Any, value: Any, group: Any = None, *_: Any, **__: Any) -> None:
        parts = collectives.exchange(own.rank, "all_gather_into_tensor", value.detach().clone(), group)
        into.copy_(torch.cat(parts))

    def all_gather_object(into: list[Any], value: Any, group: Any = None, *_: Any, **__: Any) -> None:
        into[:] = collectives.exchange(own.rank, "all_gather_object", value, group)

    def all_to_all(into: list[Any], values: list[Any], group: Any = None, *_: Any, **__: Any) -> None:
        several = [value.detach().clone() for value in values]
        parts = collectives.exchange(own.rank, "all_to_all", several, group)
        place = collectives.ranks_of(group).index(own.rank)
        for target, part in zip(into, parts):
            target.copy_(part[place])

    def all_to_all_single(into: Any, value: Any, *_: Any, group: Any = None, **__: Any) -> None:
        # Each rank cuts its value into one equal part per rank, and gets its own part from every rank.
        parts = collectives.exchange(own.rank, "all_to_all_single", value.detach().clone(), group)
        place = collectives.ranks_of(group).index(own.rank)
        into.copy_(torch.cat([part.chunk(len(parts))[place] for part in parts]))

    def reduce_scatter(into: Any, value: Any, op: Any = None, group: Any = None, *_: Any, **__: Any) -> None:
        parts = collectives.exchange(own.rank, "reduce_scatter", [one.detach().clone() for one in value], group)
        place = collectives.ranks_of(group).index(own.rank)
        into.copy_(sum(part[place] for part in parts))

    def barrier(group: Any = None, *_: Any, **__: Any) -> None:
        collectives.exchange(own.rank, "barrier", None, group)

    answered = {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "all_gather_into_tensor": all_gather_into_tensor,
        "all_gather_object": all_gather_object,
        "all_to_all": all_to_all,
        "all_to_all_single": all_to_all_single,
        "reduce_scatter": reduce_scatter,
        "barrier": barrier,
        "get_rank": lambda group=None, *_, **__: collectives.ranks_of(group).index(own.rank),
        "get_world_size": lambda group=None, *_, **__: len(collectives.ranks_of(group)),
        "is_initialized": lambda: True,
        "is_available": lambda: True,
    }
    profile, trace = sys.getprofile(), sys.gettrace()

    def run(rank: int) -> None:
        own.rank = rank
        sys.setprofile(profile)
        # With threading.settrace, each thread has a tracer of its own. A tracer of coverage.py loses lines if threads
        # share it.
        if threading.gettrace() is None:
            sys.settrace(trace)
        try:
            collectives.begin(rank)
            answers[rank] = work(rank)
        except BaseException as error:
            collectives.end(rank, error)
        else:
            collectives.end(rank)

    with ExitStack() as alone:
        for name, answer in answered.items():
            alone.enter_context(mock.patch.object(dist, name, answer))
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if collectives.failure is not None:
        raise collectives.failure
    return answers


def score_by_vocabulary(logits: Any, score: Callable[[Any, int], Any]) -> list[Any]:
    """Compute scores [rows, tokens] of logits [rows, tokens, vocabulary] whose vocabulary is split over ranks.

    There are two ranks if the size of the vocabulary is even, otherwise one. Each rank computes the gradient of its own
    part, because the backward pass calls collectives. Only the first score has a gradient with respect to ``logits``.

    :param score: ``score(part, rank)`` returns one score, or a tuple of scores, for a rank's part of the logits.
    """
    size = logits.shape[-1]
    ranks = 1 if size % 2 else 2

    def work(rank: int) -> Any:
        own = logits.detach()[..., rank * size // ranks : (rank + 1) * size // ranks].clone().requires_grad_()
        made = score(own, rank)
        made = made if isinstance(made, tuple) else (made,)
        return [one.detach() for one in made], torch.autograd.grad(made[0].sum(), own)[0]

    answers = on_ranks(ranks, work)
    slopes = torch.cat([slope for _, slope in answers], -1)
    first, *others = answers[0][0]
    return [first + (slopes * (logits - logits.detach())).sum(-1)[:, : first.shape[1]], *others]


def make_single_rank_mpu(**answers: Any) -> Any:
    """Make Megatron's ``mpu`` (parallel state) for one process: every axis has size 1, rank 0 and no group.

    :param answers: function -> the value that it returns instead of the default.
    """
    axes = ("tensor_model_parallel", "context_parallel", "data_parallel", "pipeline_model_parallel")
    kinds = {"world_size": 1, "rank": 0, "group": None}
    said = {f"get_{axis}_{kind}": answer for axis in axes for kind, answer in kinds.items()}
    said |= dict.fromkeys(("is_pipeline_first_stage", "is_pipeline_last_stage"), True)
    return stand_in(**{name: partial(return_first, answer) for name, answer in {**said, **answers}.items()})


class _OnCpu:
    """Replaces the module torch: CUDA functions do nothing, and all tensors are on the CPU."""

    cuda = StandInNamespace(
        **dict.fromkeys(("empty_cache", "reset_peak_memory_stats", "synchronize"), lambda: None),
        **dict.fromkeys(("max_memory_reserved", "max_memory_allocated"), lambda: 0),
        mem_get_info=lambda: (1 << 30, 1 << 31),
        get_device_name=lambda *_: "cpu",
        current_device=lambda: "cpu",
        nvtx=StandInNamespace(range_push=lambda _: None, range_pop=lambda: None),
    )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, value: Any, device: Any = None, pin_memory: bool = False, **options: Any) -> Any:
        return torch.tensor(value, **options)

    def empty(self, *size: Any, device: Any = None, **options: Any) -> Any:
        return torch.empty(*size, **options)

    def full(self, *given: Any, device: Any = None, **options: Any) -> Any:
        return torch.full(*given, **options)

    def autocast(self, **_: Any) -> Any:
        return nullcontext()


@contextmanager
def on_cpu(*modules: Any) -> Iterator[None]:
    """Replace CUDA with the CPU during a ``with`` block, for code in these modules and for the methods of tensors."""
    move = torch.Tensor.to

    def to(tensor: Any, *place: Any, **options: Any) -> Any:
        return tensor if place[:1] == ("cuda",) else move(tensor, *place, **options)

    with ExitStack() as alone:
        for module in modules:
            alone.enter_context(swap(module, "torch", _OnCpu()))
        alone.enter_context(swap_all(torch.Tensor, cuda=return_first, to=to))
        yield
