"""The thread of a watched run that talks to the checker: it sends copies of calls, and is told what to copy."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from sentinel.tools.watch import meeting
from sentinel.tools.watch.meeting import PATIENCE
from sentinel.tools.watch.training import Event, Training
from sentinel.tools.watch.values import packed
from sentinel.tools.watch.wrapping import ENDED, Budget, Call, Watcher

#: What launchers tell a process of a training, beside what tells it to watch: code that finds these would join it.
_OF_RANKS = (
    *("SENTINEL_WATCH", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCHELASTIC_"),
    *("ACCELERATE_", "FSDP_", "DEEPSPEED_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "RAY_"),
)


class Watching:
    """A run that is watched. :meth:`stop` ends it, as leaving its ``with`` block and the end of the process do.

    :ivar counts: what became of it, once it has ended: violations, calls that were checked, and why others were not.
    :ivar checker: the number of the process beside it, where this one has started it.
    """

    def __init__(
        self,
        target: str,
        packages: tuple[str, ...],
        events: Path,
        budget: Budget,
        capture: str = "numbers",
        without: Sequence[str] = (),
    ) -> None:
        self.counts: dict[str, Any] = {}
        self.watcher = Watcher(budget, names=capture == "full")
        self._training, self._producers = Training(self.watcher), ()
        self._packages = packages
        self._pid = os.getpid()
        self._ending, self._ready = threading.Event(), threading.Event()
        self._reported: set[str] = set()
        self._modules = -1
        self._rank: int | None = -1
        self.checker: int | None = None
        try:
            if not events.absolute().parent.is_dir():
                raise NotADirectoryError(f"there is no folder for {events}")
            self._connection = self._met([target, str(events.absolute()), capture, *without])
        except (OSError, subprocess.SubprocessError) as error:
            print(f"sentinel watch: this run is not watched: {error}", file=sys.stderr)
            self._ending.set()
            return
        self._thread = threading.Thread(target=self._talk, name="sentinel-watch", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _met(self, words: Sequence[str]) -> Connection:
        """Connect to the checker of this run; the first of its processes starts one."""
        place = meeting.address(words, self._packages)

        def launch(listening: socket.socket) -> None:
            """Start the checker with the run's own copy of the framework, and no accelerator."""
            environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RANKS)}
            environment |= {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HYPOTHESIS_NO_PLUGINS": "1"}
            command = [
                sys.executable,
                "-m",
                "sentinel.tools.watch.checker",
                str(listening.fileno()),
                str(place),
                *words,
            ]
            started = subprocess.run(
                ["sh", "-c", '"$@" </dev/null >/dev/null & echo $!', "sh", *command],
                pass_fds=[listening.fileno()],
                env=environment,
                stdout=subprocess.PIPE,
                start_new_session=True,  # what ends this process is no reason to leave the others; a shell is between
                check=True,  # the two, as Ray kills the children of a worker that ends
            )
            self.checker = int(started.stdout)

        return meeting.joined(place, launch)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self, seconds: float = 120.0) -> bool:
        """Wait until the functions that are loaded have been read, for a run that is short; whether they have."""
        return not self._ending.is_set() and self._ready.wait(seconds)

    def stop(self) -> None:
        """Give every function its own code back, and wait a little for what was copied to be checked."""
        if os.getpid() != self._pid or self._ending.is_set():
            return
        self._training.stop()
        self.watcher.restore()
        self._ending.set()
        self._thread.join(PATIENCE)
        self.watcher.restore()  # what it was about to watch
        self._connection.close()

    def _talk(self) -> None:
        """Talk to the checker; whatever happens to it ends this thread, and nothing else."""
        idle = 0.0
        try:
            while not self._ending.is_set():
                self._tell_rank()
                self._tell_modules()
                self._training.attach(self._producers)
                self._hear(0.0)
                if self._send_all():
                    idle, self.watcher.budget.beside = 0.0, time.thread_time()
                else:
                    idle = min(idle + 0.05, 0.5 if self._ready.is_set() else 0.05)
                    self._ending.wait(idle)
            self._tell_modules()
            self._send_all()
            watcher = self.watcher
            totals = {"lost": watcher.lost, "failed": watcher.failed, "held_back": watcher.budget.held_back}
            seconds = watcher.budget.spent + time.thread_time()
            self._connection.send(("end", {**totals, "calls": watcher.calls, "seconds": seconds}))
            self._hear(PATIENCE)
        except Exception as error:
            self.watcher.note(error)
            self.watcher.restore()
            gone = (
                "the checker has ended"
                if isinstance(error, (EOFError, OSError))
                else f"{type(error).__name__}: {error}"
            )
            print(f"sentinel watch: this process is no longer watched: {gone}", file=sys.stderr)

    def _send_all(self) -> bool:
        """Send what waits; whether there was any."""
        sent = False
        for waiting in (self.watcher.copies, self.watcher.events):
            with contextlib.suppress(queue.Empty):
                while True:
                    one = waiting.get_nowait()
                    sent = True
                    self._send(one)
        return sent

    def _send(self, one: Call | Event) -> None:
        fields = ("parts", "result", "gradients") if isinstance(one, Call) else ("values",)
        try:
            plain = one._replace(**{name: packed(getattr(one, name)) for name in fields})
        except Exception as error:  # a device that fails, a tensor of a kind that nobody knows
            self.watcher.note(error)
        else:
            self._connection.send(("call" if isinstance(one, Call) else "event", plain))

    def _tell_rank(self) -> None:
        """Say which process of the training this is, as soon as it is known."""
        distributed: Any = sys.modules.get("torch.distributed")
        variable = os.environ.get("RANK", "")
        rank = int(variable) if variable.isdigit() else None
        with contextlib.suppress(Exception):  # it ends as it likes, and tests put others in its place
            if distributed.is_available() and distributed.is_initialized():
                rank = int(distributed.get_rank())
        if rank != self._rank:
            self._rank = rank
            every, share = self.watcher.budget.every, self.watcher.budget.share
            rate = f"one call in {every} of each is copied, in at most {share:.0%} of the time"
            self._connection.send(("process", self._pid, rank, rate))

    def _tell_modules(self) -> None:
        if len(sys.modules) == self._modules:
            return  # to look through thousands of names would be most of what watching costs
        self._modules = len(sys.modules)
        mine = {name: one for name, one in list(sys.modules.items()) if name.partition(".")[0] in self._packages}
        halves = {name for name, one in mine.items() if getattr(getattr(one, "__spec__", None), "_initializing", False)}
        if halves:  # what is being imported has no functions yet
            self._modules = -1
        loaded = mine.keys() - halves - self._reported
        if loaded:
            self._reported |= loaded
            self._ready.clear()
            self._connection.send(("modules", sorted(loaded)))

    def _hear(self, seconds: float) -> None:
        """Take what the checker says, and where there is time for it, until it has said its last."""
        until = time.monotonic() + seconds
        while self._connection.poll(max(until - time.monotonic(), 0.0)):
            kind, content = self._connection.recv()
            if kind == "plan":
                refused = ENDED if self._ending.is_set() else self.watcher.watch(content)
                self._connection.send(("watched", content.number, refused))
            elif kind == "numbers":
                self.watcher.numbers = content
            elif kind == "ready":
                self._producers = content
                self._training.attach(content)
                self._ready.set()
            else:
                self.counts = content
                return


def start(
    target: str,
    events: str | Path = "sentinel-events.jsonl",
    every: int = 100,
    share: float = 0.01,
    capture: Literal["numbers", "full"] = "numbers",
    without: Sequence[str] = (),
) -> Watching:
    """Watch the boundaries of a target in this process, as far as their modules are imported or will be.

    :param target: as ``sentinel list targets`` names it.
    :param events: a line of JSON for each kind of violation, and a last one that counts.
    :param every: of so many calls of a boundary one is copied, at most.
    :param share: of the run's time that goes into copies, at most.
    :param capture: what is written of a call that breaks a law: numbers of a call that is not large, or whole calls,
        with the names of their groups.
    :param without: names of invariants of the training that are not looked at.
    """
    from sentinel.recipes.catalog import bundled_catalog

    packages = bundled_catalog().targets[target].packages
    return Watching(target, packages, Path(events), Budget(share=share, every=every), capture, without)
