"""What containment costs, as ratios in one run: `python benchmarks/containment.py`. Needs nothing but this machine.

A target process is started, and a bare probe (fork, one backward pass, exit) made in it, under each level in turns; the
figures are medians, and differences to ``off``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled_catalog
from sentinel.worker.client import Options, Preloader

LEVELS = ("off", "basic", "strict")


def clock(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    preloader = Preloader(Options(), [], contained_places(bundled_catalog()))
    preloader.hello()
    starts: dict[str, list[float]] = {level: [] for level in LEVELS}
    probes: dict[str, list[float]] = {level: [] for level in LEVELS}
    for _ in range(repeats):
        for level in LEVELS:
            preloader.options = replace(preloader.options, sandbox=level)
            began = time.perf_counter()
            process = preloader.oracle()
            process.bare()
            starts[level].append(time.perf_counter() - began)
            probes[level].append(clock(process.bare))
            process.close()
    preloader.stop()
    for what, measured in (("a target process, with its first probe", starts), ("one more probe", probes)):
        usual = statistics.median(measured["off"])
        for level in LEVELS:
            median = statistics.median(measured[level])
            more = f"{(median - usual) * 1e3:+6.1f} ms, {median / usual:.2f} times"
            print(f"{what}, {level:>6}: {median * 1e3:6.1f} ms, {more}")


if __name__ == "__main__":
    main()
