"""Workers of a Ray cluster are watched if an environment variable requests it. Their common checker outlives each."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.demo_kit import FRAMEWORK

#: A driver of two workers (two ranks), which does not mention Sentinel. It kills the worker that started the checker as
#: Ray would. The calls of the other worker must still be checked.
_DRIVER = """
import os, time
from pathlib import Path
import ray

@ray.remote(num_cpus=1)
class Worker:
    def __init__(self, rank):
        os.environ["RANK"] = str(rank)

    def ready(self):
        import torch
        from demo_rl import advantages
        watching = [one for one in __import__("gc").get_objects() if type(one).__name__ == "Watching"]
        return watching[0].ready() and watching[0].checker is not None

    def train(self, calls):
        import torch
        from demo_rl.advantages import group_advantage
        for _ in range(calls):
            group_advantage(torch.rand(2, 2), torch.tensor([[1, 1], [0, 0]]), ["p", "p"])
            time.sleep(0.05)
        time.sleep(1.0)

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
workers = [Worker.remote(rank) for rank in (0, 1)]
began = ray.get([worker.ready.remote() for worker in workers])
assert sorted(began) == [False, True], began
ray.get([worker.train.remote(3) for worker in workers])
ray.kill(workers[began.index(True)])
time.sleep(2.0)
ray.get(workers[began.index(False)].train.remote(10))
ray.shutdown()
"""


def test_the_workers_of_a_ray_cluster_share_one_checker(tmp_path):
    pytest.importorskip("ray")
    events = tmp_path / "events.jsonl"
    (tmp_path / "driver.py").write_text(_DRIVER, encoding="utf-8")
    watched = {"SENTINEL_WATCH": f"demo:{events}", "SENTINEL_WATCH_EVERY": "1"}
    ran = subprocess.run(
        [sys.executable, "driver.py"], capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, **watched, "PYTHONPATH": os.pathsep.join([str(FRAMEWORK / "broken"), *sys.path])},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    until = time.monotonic() + 30
    while '"event": "end"' not in events.read_text(encoding="utf-8") and time.monotonic() < until:
        time.sleep(0.2)
    *found, end = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    assert end["event"] == "end", "the checker ended with the worker that had started it"
    assert sorted(end["processes"].values()) == [0, 1]
    assert len({one["run"] for one in (*found, end)}) == 1
    assert end["copied"] >= 13, "calls of the worker that was left are copied too"
    seen = next(one for one in end["violations"] if one["law"] == "the_oracle_agrees")
    assert sorted(seen["processes"]) == sorted(map(int, end["processes"])), "both have shown it"
