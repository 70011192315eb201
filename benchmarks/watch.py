"""What watching costs: a call that is not copied, one that is, and a step of training with and without.

    python benchmarks/watch.py
    PYTHONPATH=… python benchmarks/watch.py --trl     with TRL 1.16.0: real steps of GRPO, and the memory of the checker
    PYTHONPATH=… python benchmarks/watch.py --trl --memory       the latter alone

Ratios of one process on one machine, by its own time. The first step is a forward and a backward pass of a small
network, and one call of a watched function on a batch of 64 responses of 512 tokens. Those of GRPO are of a model of a
few thousand parameters, as short as a step can be: what watching adds to one is a larger share than in any run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import sentinel.watch
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


def of_grpo(steps: int = 210, times: int = 3) -> None:
    """Steps of the real trainer at the default rate, and without, in turn: all that the run's process did in each is
    counted. Both do the same work in the same step; the median of a step is what no accident of the machine is in."""
    from injected import Prepared

    prepared = Prepared()  # the checker is another process
    runs: dict[int, list[dict[str, Any]]] = {0: [], 100: []}
    for _ in range(times):
        for every, done in runs.items():
            done.append(prepared.trained("grpo", steps, every=every, share=0.01))
    bare, watched = (
        [statistics.median(of_step) for of_step in zip(*(one["took"][1:] for one in done))] for done in runs.values()
    )
    more = [one - other for one, other in zip(watched, bare)]
    looked = [more[step - 1] for step in range(100, steps, 100)]
    share = statistics.median(one["counts"]["seconds"] / sum(one["took"]) for one in runs[100])
    print(f"GRPO, {times} times {steps} steps: {sum(watched) / sum(bare):.4f} of the time without")
    print(f"a step: {1e3 * statistics.median(bare):.0f} ms; one that is looked at: {1e3 * max(looked):.1f} ms more")
    print(f"copies, looks and sending by their own clocks: {share:.4f} of the time")


def of_memory() -> None:
    """What the checker of a run of TRL holds for itself, beside what it shares with the run (the libraries' files)."""
    import importlib

    watching = sentinel.watch.start("trl", Path(tempfile.mkdtemp()) / "events.jsonl")
    for name in ("grpo", "rloo", "dpo", "sft"):
        importlib.import_module(f"trl.trainer.{name}_trainer")
    watching.ready(600.0)
    assert watching.checker is not None
    lines = Path(f"/proc/{watching.checker.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    sizes = {line.split()[0].rstrip(":"): int(line.split()[1]) >> 10 for line in lines[1:]}
    print(f"the checker: {sizes['Private_Clean'] + sizes['Private_Dirty']} MB of its own, {sizes['Rss']} MB in all")
    watching.stop()


def main() -> None:
    torch.set_num_threads(1)
    if "--trl" in sys.argv:
        of_memory()
        if "--memory" not in sys.argv:
            of_grpo()
        return
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
