"""Measure what watching costs: for a call whose arguments are not copied, for copying arguments, for a training step.

    python benchmarks/watch.py
    python benchmarks/watch.py --memory               with TRL 1.16.0: the memory of the checker
    python benchmarks/watch.py --grpo 1500            real steps of GRPO, as short as possible
    python benchmarks/watch.py --grpo 100 --long      real steps of GRPO of about half a second

All times are CPU times, and ratios are of times in one process. Without an option, a training step is a forward and a
backward pass of a small network, with one call of a watched function on a batch of 64 responses of 512 tokens. With
``--grpo``, the model has a few thousand parameters. Its steps are short, so watching takes a larger share of them than
in any real run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import sentinel.tools.watch
from sentinel.tools.watch.wrapping import Budget, Plan, Watcher

_CALLS, _STEPS = 200_000, 400
#: With ``--long``: a model of three million parameters, whose steps take about half a second.
_LONG = {"hidden": 256, "layers": 4, "tokens": 24, "words_more": 2000}


def _module() -> ModuleType:
    made = ModuleType("watched_benchmark")
    sys.modules["watched_benchmark"] = made
    exec(
        "def nothing(x):\n    return x\n\ndef loss(values, mask):\n    return (values * mask).sum() / mask.sum()\n",
        made.__dict__,
    )
    return made


def _seconds(action: Callable[[], object], times: int) -> float:
    """Return the seconds of CPU time for one call of ``action``, averaged over ``times`` calls."""
    began = time.process_time()
    for _ in range(times):
        action()
    return (time.process_time() - began) / times


#: The kinds of steps in a block, in any order: ``bare`` is not watched, ``watched`` is watched but not checked,
#: ``looked`` is checked, and in ``copied``, the calls of watched functions are copied.
_BLOCK = ("bare",) * 4 + ("watched",) * 4 + ("looked", "copied")
#: At the default rate, one step in a hundred is checked, and one call of another step is copied (in ``copied``, all
#: calls are copied).
_RATE = 0.01


class _Clock:
    """Replaces the module ``time`` in the watcher during checked and copied steps, so that it measures CPU time.

    In other steps, the watcher keeps the usual clock, because reading the CPU time takes ten times as long (2 µs).
    """

    perf_counter = staticmethod(time.thread_time)


def switched(file: Path) -> Callable[[Any, Any], None]:
    """Return a function that adds a callback to a trainer. The callback switches watching on and off, and times each
    step.

    Watched and unwatched steps alternate in one process, because the times of two processes that do the same work
    differ by several per cent, due to their memory layout.

    :param file: the callback writes the times to this file, as JSON.
    """

    def attach(trainer: Any, watching: Any) -> None:
        from transformers import TrainerCallback

        from sentinel.tools.watch import training as of_training
        from sentinel.tools.watch import wrapping

        watcher, training = watching.watcher, watching._training
        codes: dict[int, tuple[Any, Any, Any]] = {}
        beside = time.pthread_getcpuclockid(watching._thread.ident)

        def switch(on: bool) -> None:
            for function, code in watcher._changed:
                codes.setdefault(id(function), (function, code, function.__code__))
            for function, *both in codes.values():
                function.__code__ = both[on]
            training.stop()
            if on:
                training._attached.discard("torch")
                training.attach()

        class Switches(TrainerCallback):  # type: ignore[misc, unused-ignore]
            def __init__(self) -> None:
                self.rows: list[dict[str, Any]] = []
                self.todo: list[str] = []
                self.kind, self.drawn = "first", random.Random(0)

            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step >= _FIRST:
                    if not self.todo:
                        self.todo = self.drawn.sample(_BLOCK, len(_BLOCK))
                    self.kind = self.todo.pop()
                    switch(self.kind != "bare")
                    for module in (of_training, wrapping):
                        vars(module).update(time=_Clock if self.kind in ("looked", "copied") else time)
                    watcher.steps, training._look = state.global_step, self.kind == "looked"
                    watcher.forced = self.kind == "copied"
                    training._micro, training._before = [], []
                self.own, self.began = watcher.budget.spent, time.thread_time()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                took, own = time.thread_time() - self.began, watcher.budget.spent - self.own
                self.rows.append({"kind": self.kind, "took": took, "own": own})

            def on_train_end(self, *_: Any, **__: Any) -> None:
                switch(True)
                sent = time.clock_gettime(beside)
                time.sleep(_IDLE)  # now the sending thread has nothing to do
                idle = (time.clock_gettime(beside) - sent) / _IDLE
                file.write_text(json.dumps({"rows": self.rows, "sent": sent, "idle": idle}), encoding="utf-8")

        trainer.add_callback(Switches())

    return attach


#: Number of steps to warm up, and seconds during which the idle sending thread is measured.
_FIRST, _IDLE = 10, 5.0


def _middle(values: list[float]) -> float:
    """Return the mean without the lowest and the highest fifth.

    They are left out because one step in a hundred takes six times as long as the others.
    """
    fifth = len(values) // 5
    return statistics.fmean(sorted(values)[fifth : len(values) - fifth])


def _beside(block: list[dict[str, Any]], row: dict[str, Any]) -> float:
    """Return the median time of the unwatched steps in a block, without ``row`` if it is one of them."""
    return statistics.median(float(other["took"]) for other in block if other["kind"] == "bare" and other is not row)


def _costs(blocks: list[list[dict[str, Any]]], sent: float, idle: float) -> dict[str, float]:
    """Return the cost of watching.

    * ``bare``: the seconds of an unwatched step
    * ``watched``, ``looked``, ``copied``: the additional seconds of a step that is only watched, checked, or copied
    * ``share``: the additional time at the default rate, as a share of an unwatched run, including the sending thread
    * ``counted``: the part of it that the watcher counts and limits (in watched steps by the wall clock)

    :param sent: CPU seconds of the sending thread for each pair of a checked and a copied step.
    :param idle: share of a core that the idle sending thread uses.
    """
    than_beside: dict[str, list[float]] = {kind: [] for kind in _BLOCK}
    for block in blocks:
        for row in block:
            than_beside[row["kind"]].append(row["took"] - _beside(block, row))
    more = {kind: _middle(of) - _middle(than_beside["bare"]) for kind, of in than_beside.items() if kind != "bare"}
    rows = [row for block in blocks for row in block]
    usual = _middle([row["took"] for row in rows if row["kind"] == "bare"])
    whole = more["watched"] + _RATE * (more["looked"] + more["copied"] - 2 * more["watched"] + sent)
    own = {kind: statistics.fmean(row["own"] for row in rows if row["kind"] == kind) for kind in more}
    counted = own["watched"] + _RATE * (own["looked"] + own["copied"] + sent)
    return {"bare": usual, **more, "share": whole / usual + idle, "counted": counted / usual + idle}


def of_grpo(steps: int, size: dict[str, Any]) -> None:
    """Train with GRPO, with watched, checked and unwatched steps in random order, and print their CPU times.

    The intervals are 95% bootstrap intervals over blocks of steps.
    """
    from injected import Prepared

    file = Path(tempfile.mkdtemp()) / "rows.json"
    # With gradient checkpointing, transformers adds a hook to the model in each step, so that steps become slower.
    settings = {"num_iterations": 1, "gradient_checkpointing": False, **size}
    settings["generation_kwargs"] = {"min_new_tokens": size.get("tokens", 8)}
    done = Prepared().trained("grpo", steps + _FIRST, switched(file), settings, every=100, share=1.0)
    assert not done["named"], done["named"]
    noted = json.loads(file.read_text(encoding="utf-8"))
    rows = noted["rows"][_FIRST:]
    blocks = [rows[start : start + len(_BLOCK)] for start in range(0, len(rows), len(_BLOCK))]
    sent = noted["sent"] / sum(row["kind"] == "looked" for row in rows)
    drawn = random.Random(0)
    again = [_costs(drawn.choices(blocks, k=len(blocks)), sent, noted["idle"]) for _ in range(1000)]

    found = _costs(blocks, sent, noted["idle"])

    def told(name: str, factor: float) -> str:
        low, *_, high = statistics.quantiles([one[name] for one in again], n=40)
        return f"{factor * found[name]:.2f} ({factor * low:.2f} to {factor * high:.2f})"

    print(f"GRPO, {len(rows)} steps of {told('bare', 1e3)} ms")
    print(f"a watched step: {told('watched', 1e3)} ms more; a checked step: {told('looked', 1e3)} ms more")
    print(f"a step whose calls are copied: {told('copied', 1e3)} ms more; sending both: {1e3 * sent:.2f} ms")
    print(f"at the default rate: {told('share', 100)}% of the time, with the thread that sends and waits")
    print(f"time that watch itself counts: {told('counted', 100)}% of the time at the default rate")
    for kind in ("watched", "looked", "copied"):
        own = [row["own"] for row in rows if row["kind"] == kind]
        print(f"  in a {kind} step: {1e3 * statistics.median(own):.2f} ms, at most {1e3 * max(own):.1f} ms")
    for kind in dict.fromkeys(_BLOCK):
        above = [row["took"] > 1.05 * _beside(block, row) for block in blocks for row in block if row["kind"] == kind]
        print(f"{kind} steps that take 5% more than unwatched ones next to them: {sum(above)} of {len(above)}")


def of_memory() -> None:
    """Print the memory of a checker for TRL: what it uses alone, and its total with the pages that it shares."""
    import importlib

    watching = sentinel.tools.watch.start("trl", Path(tempfile.mkdtemp()) / "events.jsonl")
    for name in ("grpo", "rloo", "dpo", "sft"):
        importlib.import_module(f"trl.trainer.{name}_trainer")
    watching.ready(600.0)
    assert watching.checker is not None
    lines = Path(f"/proc/{watching.checker}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    sizes = {line.split()[0].rstrip(":"): int(line.split()[1]) >> 10 for line in lines[1:]}
    print(f"the checker: {sizes['Private_Clean'] + sizes['Private_Dirty']} MB of its own, {sizes['Rss']} MB in all")
    watching.stop()


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--grpo", type=int, metavar="STEPS")
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    if arguments.memory:
        of_memory()
    if arguments.grpo:
        of_grpo(arguments.grpo, _LONG if arguments.long else {})
    if arguments.memory or arguments.grpo:
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
