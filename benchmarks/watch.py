"""What watching costs: a call that is not copied, one that is, and a step of training with and without.

    python benchmarks/watch.py

Ratios of one process on one machine. The step is a forward and a backward pass of a small network, and one call of a
watched function on a batch of 64 responses of 512 tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType

import torch

from sentinel.watch.wrapping import Budget, Plan, Watcher

_CALLS, _STEPS = 200_000, 400


def _module() -> ModuleType:
    made = ModuleType("watched_benchmark")
    sys.modules["watched_benchmark"] = made
    exec(
        "def nothing(x):\n    return x\n\ndef loss(values, mask):\n    return (values * mask).sum() / mask.sum()\n",
        made.__dict__,
    )
    return made


def _seconds(action: Callable[[], object], times: int) -> float:
    """Of this process alone: a machine that others use makes no difference."""
    began = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - began) / times


def main() -> None:
    torch.set_num_threads(1)
    module = _module()
    network = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 512))
    values, mask = torch.randn(64, 512), torch.ones(64, 512)

    def step() -> None:
        network.zero_grad()
        module.loss(network(values), mask).backward()

    bare_call, bare_step = _seconds(lambda: module.nothing(1), _CALLS), _seconds(step, _STEPS)
    watcher = Watcher(Budget())
    watcher.watch(Plan(0, "nothing", ("watched_benchmark", "nothing"), (("x",),)))
    watcher.watch(Plan(1, "loss", ("watched_benchmark", "loss"), (("values",), ("mask",))))
    watcher.budget.every = 1 << 60
    module.nothing(1)
    watched_call = _seconds(lambda: module.nothing(1), _CALLS)
    watcher.restore()

    watcher = Watcher(Budget())
    watcher.watch(Plan(1, "loss", ("watched_benchmark", "loss"), (("values",), ("mask",))))

    def step_and_take() -> None:
        step()
        watcher.copies.queue.clear()

    watched_step = _seconds(step_and_take, _STEPS)
    watcher.restore()
    print(f"a call that is not copied: {1e6 * (watched_call - bare_call):.2f} us more")
    print(f"a step: {watched_step / bare_step:.3f} of one that is not watched ({1e3 * bare_step:.1f} ms)")
    print(f"copies: {watcher.budget.spent / (_STEPS * watched_step):.4f} of the time (bound: {watcher.budget.share})")


if __name__ == "__main__":
    main()
