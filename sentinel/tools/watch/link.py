"""Connect a process of a watched run with the checker: a thread sends copied calls and receives what to watch."""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from sentinel.targets import Steps
from sentinel.tools.watch import meeting
from sentinel.tools.watch.meeting import PATIENCE
from sentinel.tools.watch.training import Event, Training
from sentinel.tools.watch.values import packed
from sentinel.tools.watch.wrapping import ENDED, Budget, Call, Watcher

#: Prefixes of environment variables that the checker must not inherit, mostly those of launchers: code that finds them
#: would join the training.
_OF_RANKS = (
    *("SENTINEL_WATCH", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCHELASTIC_"),
    *("ACCELERATE_", "FSDP_", "DEEPSPEED_", "OMPI_", "PMI_", "PMIX_", "MPI_", "SLURM_", "RAY_"),
)


class _Attaching:
    """An import finder that wraps a trainer module's functions at its import, before any trainer is created."""

    def __init__(self, modules: set[str], attach: Callable[[], None]) -> None:
        self._modules, self._attach = modules, attach

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name not in self._modules:
            return None
        self._modules.discard(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        loader: Any = getattr(spec, "loader", None)
        if not hasattr(loader, "exec_module"):
            return None
        execute = loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            self._attach()

        loader.exec_module = executed
        return spec


class Watching:
    """Watches this process until :meth:`stop` is called, the ``with`` block ends, or the process ends.

    :ivar counts: after the end, the counts of violations and checked calls, and the reasons why other calls were not
        checked; until then empty.
    :ivar checker: process id of the checker if this process started it; otherwise None.
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
        steps = _steps_of_adapter(target)
        self._training, self._producers = Training(self.watcher, packages, steps), ()
        self._packages = packages
        self._pid = os.getpid()
        self._ending, self._ready = threading.Event(), threading.Event()
        self._reported: set[str] = set()
        self._modules = -1
        self._rank: int | None = -1
        self.checker: int | None = None
        try:
            if not events.absolute().parent.is_dir():
                raise NotADirectoryError(f"the folder of {events} does not exist")
            self._connection = self._connect([target, str(events.absolute()), capture, *without])
        except (OSError, subprocess.SubprocessError) as error:
            print(f"sentinel watch: this run is not watched: {error}", file=sys.stderr)
            self._ending.set()
            return
        self._finder: Any = _Attaching({one.trainer.rpartition(".")[0] for one in steps}, self._training.attach)
        sys.meta_path.insert(0, self._finder)
        self._thread = threading.Thread(target=self._talk, name="sentinel-watch", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def _connect(self, words: Sequence[str]) -> Connection:
        """Connect to the checker of this run. The first process of a run starts the checker."""
        place = meeting.address(words, self._packages)

        def launch(listening: socket.socket) -> None:
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
            # The checker must outlive this process, because other processes use it too. A shell starts it, because Ray
            # kills the children of a worker that ends.
            started = subprocess.run(
                ["sh", "-c", '"$@" </dev/null >/dev/null & echo $!', "sh", *command],
                pass_fds=[listening.fileno()],
                env=environment,
                stdout=subprocess.PIPE,
                start_new_session=True,
                check=True,
            )
            self.checker = int(started.stdout)

        return meeting.joined(place, launch)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self, seconds: float = 120.0) -> bool:
        """Wait until all bound functions that have been imported are watched. Return False on a timeout.

        A short run may need this, because a function's calls are copied only after the checker has read the function.
        """
        return not self._ending.is_set() and self._ready.wait(seconds)

    def stop(self) -> None:
        """Stop watching. Restore the functions' code, and wait up to 20 s until the copied calls are checked."""
        if os.getpid() != self._pid or self._ending.is_set():
            return
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._finder)
        self._training.stop()
        self.watcher.restore()
        self._ending.set()
        self._thread.join(PATIENCE)
        # The thread may have wrapped functions in the meantime.
        self.watcher.restore()
        self._connection.close()

    def _talk(self) -> None:
        """Exchange messages with the checker. An error ends only this thread, and the run continues unwatched."""
        idle, reported = 0.0, False
        try:
            while not self._ending.is_set():
                self._send_rank()
                self._tell_modules()
                self._training.attach(self._producers)
                self._receive(0.0)
                if self._send_all():
                    idle, self.watcher.budget.sending = 0.0, time.thread_time()
                else:
                    idle = min(idle + 0.05, 0.5 if self._ready.is_set() else 0.05)
                    self._ending.wait(idle)
            self._tell_modules()
            self._send_all()
            watcher = self.watcher
            totals = {name: getattr(watcher, name) for name in ("lost", "failed", "calls", "steps")}
            seconds = watcher.budget.spent + time.thread_time()
            more = {"held_back": watcher.budget.held_back, "seconds": seconds}
            self._connection.send(("end", {**totals, **more}))
            reported = True
            self._receive(PATIENCE)
        except BaseException as error:
            ended = isinstance(error, (EOFError, OSError)) or self._connection.closed  # another thread may close it
            self.watcher.note(error)
            self.watcher.restore()
            self._connection.close()  # so that the checker reports the cause, too
            if reported:  # the checker has all data; if it is busy, it prints the summary later
                return
            gone = "the checker has ended" if ended else f"{type(error).__name__}: {error}"
            print(f"sentinel watch: this process is no longer watched: {gone}", file=sys.stderr)

    def _send_all(self) -> bool:
        """Send all queued events, then all queued calls. Return True if there were any.

        Calls are taken from their queue first, so that a call is never sent before an event that preceded it. For
        example, the checker needs a trainer's settings before the trainer's calls.
        """
        calls = list(_drained(self.watcher.copies))
        several = [*_drained(self.watcher.events), *calls]
        for one in several:
            self._send(one)
        return bool(several)

    def _send(self, one: Call | Event) -> None:
        fields = ("parts", "result", "gradients") if isinstance(one, Call) else ("values",)
        try:
            plain = one._replace(**{name: packed(getattr(one, name)) for name in fields})
        except Exception as error:  # a failing device, an unknown kind of tensor
            self.watcher.note(error)
        else:
            self._connection.send(("call" if isinstance(one, Call) else "event", plain))

    def _send_rank(self) -> None:
        distributed: Any = sys.modules.get("torch.distributed")
        variable = os.environ.get("RANK", "")
        rank = int(variable) if variable.isdigit() else None
        with contextlib.suppress(Exception):  # torch.distributed may be missing, shut down, or replaced by a test
            if distributed.is_available() and distributed.is_initialized():
                rank = int(distributed.get_rank())
        if rank != self._rank:
            self._rank = rank
            every, share = self.watcher.budget.every, self.watcher.budget.share
            rate = f"one call in {every} of each function is copied, using at most {share:.0%} of the run's time"
            self._connection.send(("process", self._pid, rank, rate))

    def _tell_modules(self) -> None:
        if len(sys.modules) == self._modules:
            return  # searching thousands of names would dominate the cost of watching
        self._modules = len(sys.modules)
        mine = {name: one for name, one in list(sys.modules.items()) if name.partition(".")[0] in self._packages}
        halves = {name for name, one in mine.items() if getattr(getattr(one, "__spec__", None), "_initializing", False)}
        if halves:  # a module has no functions yet while it is being imported
            self._modules = -1
        loaded = mine.keys() - halves - self._reported
        if loaded:
            self._reported |= loaded
            self._ready.clear()
            self._connection.send(("modules", sorted(loaded)))

    def _receive(self, seconds: float) -> None:
        """Handle messages of the checker until none arrives in time, or until the last, which has the run's counts.

        :param seconds: the time limit; 0 to handle only messages that have already arrived.
        """
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


def _drained(waiting: queue.Queue[Any]) -> Iterator[Any]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def _steps_of_adapter(target: str) -> Sequence[Steps]:
    from sentinel.recipes.catalog import bundled_catalog

    targets = bundled_catalog().targets
    return targets[target].steps if target in targets else ()


def start(
    target: str,
    events: str | Path = "sentinel-events.jsonl",
    every: int = 100,
    share: float = 0.01,
    capture: Literal["numbers", "full"] = "numbers",
    without: Sequence[str] = (),
) -> Watching:
    """Watch a framework's bound functions in this process. Modules that are imported later are included.

    :param target: the framework, a name that ``sentinel list targets`` prints.
    :param events: the file that receives one line of JSON per kind of violation, and a last line with counts.
    :param every: copy at most one in this many calls of each function.
    :param share: the maximum share of the run's time that copying may take.
    :param capture: what to write about a call that violates a law. ``numbers``: its numbers, and only if the call is
        small. ``full``: the whole call, with the names of its groups.
    :param without: the names of invariants to skip.
    """
    from sentinel.recipes.catalog import bundled_catalog

    packages = bundled_catalog().targets[target].packages
    return Watching(target, packages, Path(events), Budget(share=share, every=every), capture, without)
