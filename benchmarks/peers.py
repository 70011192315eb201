"""Check correct and buggy training runs with TrainCheck (from PyPI), for comparison with `drawn.py --compared 30`.

    python -m venv peers && peers/bin/pip install traincheck trl==1.16.0 peft
    peers/bin/python benchmarks/peers.py

TrainCheck infers invariants from the traces of two correct runs with the same options and other seeds. It then checks
them on the trace of a run with a bug, and of the same run without the bug; or on the trace of a random correct run. A
bug counts as found if an invariant fails that does not fail without the bug. Bugs and correct runs alternate, so the
first few are a fair sample too. All runs are forked from one traced process, which has imported torch and TRL. On a
machine without a GPU, TrainCheck 0.2.0 needs a build of torch for the CPU.

One bug takes ten minutes or more. Each result is written as one line of FILE (``--to``), and results that FILE already
has are not computed again, so an interrupted run can be continued. A run that TrainCheck cannot trace or read has no
counts, but ``failed``: for example, its threads sometimes write two records of a trace into one line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from drawn import _STEPS, BUGS, build, compared, draw

#: The results so far.
DATA = Path(__file__).with_name("peers.jsonl")
#: The script that TrainCheck traces. TrainCheck finds the model by its variable name, `model`.
_SCRIPT = """
import os
import sys
sys.path[:0] = [os.environ["PEERS_CODE"]]
import torch
import peers
run = peers.forked()
trainer = peers.made(run)
model = trainer.model
peers.train(trainer, run)
"""
#: Seeds of the correct runs from which invariants are inferred.
_OTHERS = (101, 102)


def forked() -> dict[str, Any]:
    """Return each run that arrives on the pipe, in a child process of its own. (Runs inside the traced process.)"""
    for name in ("grpo", "rloo", "dpo", "sft", "kto", "reward"):
        importlib.import_module(f"trl.trainer.{name}_trainer")
    while line := Path(os.environ["PEERS_PIPE"]).read_text(encoding="utf-8"):
        child = os.fork()
        if child == 0:
            run = json.loads(line)
            if "traincheck" in sys.modules:  # the child writes a trace of its own, with threads of its own
                dumper: Any = importlib.import_module("traincheck.instrumentor.dumper")
                dumper.THREAD_DATA.__dict__.clear()
                dumper.monitoring_thread = None
                os.environ["TRAINCHECK_OUTPUT_DIR"] = run["folder"]
            signal.alarm(run["limit"])
            return dict(run)
        os.waitpid(child, 0)
        Path(os.environ["PEERS_PIPE"]).write_text("done", encoding="utf-8")
    sys.exit()


def _setup(name: str) -> Mapping[str, Any]:
    """Return the setup of a bug or of a seed."""
    return BUGS[name][0] if name in BUGS else draw(int(name))


def made(run: Mapping[str, Any]) -> Any:
    """Make the trainer of a run. (Runs inside the traced process.)"""
    name = run["name"]
    setup = _setup(name)
    if run["seed"]:
        setup = {**setup, "seed": run["seed"], "options": {**setup.get("options", {}), "seed": run["seed"]}}
    if run["bug"]:
        BUGS[name][1]()
    return build(setup, _STEPS, tempfile.mkdtemp())


def train(trainer: Any, run: Mapping[str, Any]) -> None:
    """Train, and write the CPU time. (Runs inside the traced process.)"""
    if "traincheck" in sys.modules:
        start_step = importlib.import_module("traincheck.instrumentor.control").start_step

        class Counts(importlib.import_module("transformers").TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                start_step()

        trainer.add_callback(Counts())
    began = time.process_time()
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    Path(run["folder"], "seconds").write_text(str(time.process_time() - began), encoding="utf-8")


class Trainings:
    """A process from which training runs are forked."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._pipe = folder / f"{Path(command[0]).name}.pipe"
        os.mkfifo(self._pipe)
        code = str(Path(__file__).parent.absolute())
        environment = {**os.environ, "PEERS_CODE": code, "PEERS_PIPE": str(self._pipe), "OMP_NUM_THREADS": "1"}
        with open(folder / f"{Path(command[0]).name}.log", "w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def train(self, run: Mapping[str, Any]) -> float:
        """Train, and return the seconds of CPU time."""
        folder = Path(run["folder"])
        folder.mkdir(exist_ok=True)
        self._pipe.write_text(json.dumps(run), encoding="utf-8")
        self._pipe.read_text(encoding="utf-8")
        return float((folder / "seconds").read_text(encoding="utf-8"))

    def end(self) -> None:
        self._pipe.write_text("", encoding="utf-8")
        self._process.wait()


class Peer:
    """Runs TrainCheck on traced training runs, and times runs without tracing."""

    def __init__(self, folder: Path, limit: int) -> None:
        (folder / "training.py").write_text(_SCRIPT, encoding="utf-8")
        words = "-p", "training.py", "--models-to-track", "model", "--model-tracker-style", "subclass"
        program = str(Path(sys.executable).with_name("traincheck-collect"))
        self._traced = Trainings(folder, program, *words, "--output-dir", "traced")
        self._bare = Trainings(folder, sys.executable, "training.py")
        self._folder, self._limit = folder, limit
        self._inferred: dict[str, Path] = {}
        self._known: dict[str, set[str]] = {}
        self.step: Any = None  # the step of the first violation in the last checked trace
        self.slower = 0.0  # by how much the last checked training was slower than the bare one

    def end(self) -> None:
        self._traced.end()
        self._bare.end()

    def _trace(self, name: str, bug: bool = False, seed: int = 0) -> Path:
        folder = self._folder / f"{name}-{'bug' if bug else seed}"
        run = {"name": name, "bug": bug, "seed": seed, "folder": str(folder), "limit": self._limit}
        took = self._traced.train(run)
        if not seed:
            self.slower = took / self._bare.train({**run, "folder": str(self._folder / "bare")})
        return folder

    def _call(self, module: str, *words: str) -> None:
        """Call a program of TrainCheck in a child process, which has already imported it."""
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(self._limit)
                os.chdir(self._folder)
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, 1), os.dup2(nothing, 2)
                sys.argv = [module, *words]
                importlib.import_module(module).main()
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise OSError(f"{module} failed")

    def failures(self, name: str) -> tuple[set[str], set[str]]:
        """Return the failed invariants of a run with its bug (empty if the run has none), and of the run without it."""
        same = repr(_setup(name))
        if same not in self._inferred:
            traces = [self._trace(name, seed=seed) for seed in _OTHERS]
            invariants = self._folder / f"{name}.json"
            self._call("traincheck.infer_engine", "-f", *map(str, traces), "-o", str(invariants))
            self._known[same] = self._failed(self._trace(name), invariants)
            self._inferred[same] = invariants
        with_bug = self._failed(self._trace(name, bug=True), self._inferred[same]) if name in BUGS else set()
        return with_bug, self._known[same]

    def _failed(self, trace: Path, invariants: Path) -> set[str]:
        checked = f"{trace}-checked"
        self._call("traincheck.checker", "-f", str(trace), "-i", str(invariants), "-o", checked, "--no-html-report")
        (file,) = Path(checked).rglob("failed.log")
        shutil.rmtree(trace)
        summary = json.loads(file.with_name("violations_summary.json").read_text(encoding="utf-8"))
        self.step = summary["first_violation_step"]
        return {json.dumps(one["invariant"], sort_keys=True) for one in _several(file)}


def _several(file: Path) -> list[Any]:
    """Parse a file that consists of several JSON objects one after the other."""
    text, decoder, found, place = file.read_text(encoding="utf-8"), json.JSONDecoder(), list[Any](), 0
    while rest := text[place:].lstrip():
        one, length = decoder.raw_decode(rest)
        found.append(one)
        place = len(text) - len(rest) + length
    return found


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    failed = [row["name"] for row in rows if "failed" in row]
    rows = [row for row in rows if "failed" not in row]
    bugs = [row for row in rows if row["name"] in BUGS]
    correct = [row for row in rows if row["name"] not in BUGS]
    named, alarms = sum(row["only_with_bug"] > 0 for row in bugs), sum(row["without_bug"] > 0 for row in correct)
    print(f"{named} of {len(bugs)} bugs named; {alarms} of {len(correct)} correct runs with a failing invariant")
    print(f"{len(failed)} runs that TrainCheck could not trace or read: {', '.join(failed)}")
    if rows:
        print(f"a traced training takes {statistics.median(row['slower'] for row in rows):.1f} times as long (median)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="number of bugs, and of correct runs")
    parser.add_argument("--limit", metavar="SECONDS", type=int, default=1800, help="limit of one training or program")
    parser.add_argument("--to", metavar="FILE", type=Path, default=DATA)
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.to.read_text("utf-8").splitlines()] if arguments.to.exists() else []
    known = {row["name"] for row in rows}
    bugs, seeds = compared(arguments.count)
    names = [name for name in chain.from_iterable(zip(bugs, map(str, seeds))) if name not in known]
    if names:
        for module in ("traincheck.infer_engine", "traincheck.checker"):
            importlib.import_module(module)
        peer = Peer(Path(tempfile.mkdtemp()), arguments.limit)
        for name in names:
            try:
                row = _decide(peer, name)
            except OSError as error:
                ended = "a traced training ended early" if isinstance(error, FileNotFoundError) else str(error)
                row = {"name": name, "failed": ended}
            rows.append(row)
            with arguments.to.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")
            print(json.dumps(row), flush=True)
        peer.end()
    _show(rows)


def _decide(peer: Peer, name: str) -> dict[str, Any]:
    """Return three counts of failed invariants: with the bug, only with the bug, and without it."""
    failed, usual = peer.failures(name)
    step = peer.step if failed or usual else None
    counts = {"with_bug": len(failed), "only_with_bug": len(failed - usual), "without_bug": len(usual)}
    return {"name": name, **counts, "step": step, "slower": round(peer.slower, 1)}


if __name__ == "__main__":
    main()
