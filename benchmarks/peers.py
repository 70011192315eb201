"""Let TrainCheck (from PyPI) check correct and buggy training runs, for comparison with `benchmarks/drawn.py`.

    python -m venv peers && peers/bin/pip install traincheck trl==1.16.0 peft
    python benchmarks/peers.py peers/bin --bugs 'sft-*' --correct 2

For each kind of trainer, TrainCheck infers invariants from the trace of one correct run. It then checks them on traces
of runs with a bug, and of random correct runs (as in `drawn.py --seeds`). A bug counts as found if more invariants fail
than in the same run without the bug. A run takes about a minute of a core. On a machine without a GPU, TrainCheck 0.2.0
needs a build of torch for the CPU.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import subprocess
import sys
import tempfile
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from drawn import _STEPS, BUGS, build, draw

#: The script that TrainCheck traces. TrainCheck finds the model by its variable name, `model`.
_SCRIPT = """
import os
import sys
import tempfile
sys.path[:0] = [os.environ["PEERS_CODE"]]
import torch
import peers
trainer = peers.made(os.environ["PEERS_NAME"], tempfile.mkdtemp())
model = trainer.model
trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
"""


def setup_of(name: str) -> dict[str, Any]:
    """Return the setup of a run.

    :param name: a bug; a bug followed by " (correct)", for the same run without the bug; a seed; or a kind of trainer.
    """
    bug = name.removesuffix(" (correct)")
    if bug in BUGS:
        return dict(BUGS[bug][0])
    return draw(int(name)) if name.isdigit() else {"kind": name}


def made(name: str, folder: str) -> Any:
    if name in BUGS:
        BUGS[name][1]()
    return build(setup_of(name), _STEPS, folder)


class Peer:
    def __init__(self, programs: Path, folder: Path, limit: float) -> None:
        self._programs, self._folder, self._limit = programs, folder, limit
        (folder / "training.py").write_text(_SCRIPT, encoding="utf-8")
        self._inferred: dict[str, Path] = {}
        self._done: dict[str, tuple[int, int, float]] = {}

    def _run(self, program: str, *words: str, name: str = "") -> float:
        """Run a program of TrainCheck, and return its CPU time in seconds."""
        code = str(Path(__file__).parent.absolute())
        environment = {**os.environ, "PEERS_CODE": code, "PEERS_NAME": name, "OMP_NUM_THREADS": "1"}
        began = _used()
        subprocess.run(
            [str(self._programs / program), *words], cwd=self._folder, env=environment, check=True,
            timeout=self._limit, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return _used() - began

    def invariants(self, kind: str) -> Path:
        """Return the file of invariants for this kind of trainer. It is inferred at the first call."""
        if kind not in self._inferred:
            words = "-p", "training.py", "--models-to-track", "model", "--output-dir", f"of-{kind}"
            self._run("traincheck-collect", *words, name=kind)
            self._run("traincheck-infer", "-f", f"of-{kind}", "-o", f"{kind}.json")
            self._inferred[kind] = self._folder / f"{kind}.json"
        return self._inferred[kind]

    def failures(self, name: str) -> tuple[int, int, float]:
        """Return (failed invariants, checked invariants, time of the traced run divided by that of a bare run)."""
        same = name if name in BUGS else repr(setup_of(name))
        if same not in self._done:
            self._done[same] = self._failures(name)
        return self._done[same]

    def _failures(self, name: str) -> tuple[int, int, float]:
        file, trace = self.invariants(setup_of(name)["kind"]), name.replace(" ", "-")
        words = "-p", "training.py", "--models-to-track", "model", "-i", str(file), "--output-dir", trace
        traced = self._run("traincheck-collect", *words, name=name)
        bare = self._run("python", "training.py", name=name)
        self._run("traincheck-check", "-f", trace, "-i", str(file), "-o", f"{trace}-checked", "--no-html-report")
        counts = {
            verdict: sum(len(_several(one)) for one in (self._folder / f"{trace}-checked").rglob(f"{verdict}.log"))
            for verdict in ("failed", "passed")
        }
        return counts["failed"], sum(counts.values()), traced / bare


def _used() -> float:
    """Return the CPU time, in seconds, of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _several(file: Path) -> list[Any]:
    """Parse a file that consists of several JSON objects one after the other."""
    text, decoder, found, place = file.read_text(encoding="utf-8"), json.JSONDecoder(), list[Any](), 0
    while (rest := text[place:].lstrip()) and rest:
        one, length = decoder.raw_decode(rest)
        found.append(one)
        place = len(text) - len(rest) + length
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of TrainCheck's programs")
    parser.add_argument("--bugs", metavar="GLOB", default="*")
    parser.add_argument("--correct", metavar="COUNT", type=int, default=30)
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=1800.0, help="of one program")
    arguments = parser.parse_args()
    bugs = [name for name in BUGS if fnmatch.fnmatch(name, arguments.bugs)]
    seeds = [seed for seed in range(2000, 3000) if draw(seed).get("ranks", 1) == 1][: arguments.correct]
    peer = Peer(arguments.programs.absolute(), Path(tempfile.mkdtemp()), arguments.limit)
    named, alarms, decided = 0, 0, 0
    pairs = zip_longest(bugs, map(str, seeds))
    for name in (one for one in chain.from_iterable(pairs) if one is not None):
        try:
            failed, checked, slower = peer.failures(name)
            usual = peer.failures(f"{name} (correct)")[0] if name in BUGS else 0
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{name}: not decided: {type(error).__name__}", flush=True)
            continue
        decided += 1
        named += name in BUGS and failed > usual
        alarms += (name not in BUGS and failed > 0) or usual > 0
        without = f", {usual} without the bug" if name in BUGS else ""
        print(f"{name}: {failed} of {checked} invariants fail{without}; {slower:.1f} times as slow", flush=True)
    print(f"{decided} decided; {named} of {len(bugs)} bugs named; {alarms} correct trainings with a failing invariant")
    if not decided:
        sys.exit("nothing was decided")


if __name__ == "__main__":
    main()
