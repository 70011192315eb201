"""A sweep on a Ray cluster of two nodes, one of which fails: nothing is lost or done twice."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from history_kit import BUGGY, FIXED

from sentinel.errors import INSTALL, SentinelError
from sentinel.recipes import find_recipes
from sentinel.records.history import Selection
from sentinel.tools.sweep.ray_executor import RayExecutor
from sentinel.worker.client import Options


def test_without_ray_the_extra_is_named(monkeypatch, tiny_catalog):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SentinelError, match=re.escape(INSTALL.format("ray"))):
        RayExecutor(tiny_catalog, {}, Options())


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with one core each; the driver is on the first."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_lost_node_loses_no_work(cluster, history, ledger, tiny_catalog):
    for number in range(8):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": (FIXED if number % 3 else BUGGY) + f"# {number}\n"})
    book, recipes = ledger(), find_recipes(tiny_catalog, ("tiny",))
    taken: list[int] = []

    class Interrupted(RayExecutor):
        def submit(self, lane: int, work: Any) -> Any:
            taken.append(lane)
            if len(taken) == 4:
                cluster.remove_node(cluster.second, allow_graceful=False)
            return super().submit(lane, work)

    account = book.sweep(
        recipes, Selection("main"), lambda: Interrupted(tiny_catalog, {"tiny": book.mirror}, book.options, lanes=2)
    )
    (entries,) = book.entries.folder.glob("tiny/TINY-MEAN/*.jsonl")
    by_ray = sorted(entries.read_text().splitlines())
    assert len(by_ray) == len(set(by_ray)) == 8 + 1  # one line each, and the basis
    record = dict(account.records[0])
    entries.unlink()
    next(book.entries.folder.glob("tiny/TINY-MEAN/git-main.json")).unlink()
    alone = book.sweep(recipes, Selection("main"), lambda: book.local(1))
    assert sorted(entries.read_text().splitlines()) == by_ray
    assert json.dumps(alone.records[0], sort_keys=True) == json.dumps(record, sort_keys=True)
