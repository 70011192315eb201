"""Load, in sizes that a test can afford; `benchmarks/load.py` has the full ones. Whatever is asked, nothing is left."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, copy_demo, write_recipe

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.reports import store
from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: Forty megabytes; the boundary makes them in no time.
LARGE = "\n\ndef large():\n    import torch\n    return torch.zeros(10_000_000)\n"


def here() -> dict[str, int]:
    """What a process may leak."""
    gc.collect()
    own = Path("/proc/self")
    children = [pid for task in own.glob("task/*/children") for pid in task.read_text().split()]
    return {
        "descriptors": len(list((own / "fd").iterdir())),
        "threads": threading.active_count(),
        "processes": len(children),
        "temporary files": len(os.listdir(tempfile.gettempdir())),
    }


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def runner(scratch: Path) -> Iterator[Runner]:
    """One with a worker of its own, which has its first probe behind it; nothing is left when it is closed."""
    catalog = bundled_catalog()
    before = here()
    made = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref, store=MirrorStore()), Options())
    yield made
    made.close()
    left = here()
    assert left.pop("threads") <= before.pop("threads")  # one of another test may end meanwhile
    # The lease on checkouts in use is held, by one descriptor a home, as long as this process lives.
    assert left.pop("descriptors") <= before.pop("descriptors") + 1
    assert left == before


def recipe(folder: Path, **changes: object) -> Recipe:
    return load_recipe(write_recipe(folder, MASKED_TOKENS, **changes), bundled_catalog())


@pytest.mark.nightly
def test_recipes_probes_and_refs(runner, tmp_path):
    """Many recipes at one ref, one recipe many times, and one at many refs: as quick at the end, and as small."""
    tree = copy_demo(tmp_path / "tree")
    recipes = [recipe(tmp_path / "mine", bug_id=f"DEMO-{number:04d}") for number in range(20)]
    runner.plan([Job(each, Ref("path", str(tree))) for each in recipes])
    verdicts = [runner.decide(Job(each, Ref("path", str(tree)))).verdict.name for each in recipes]
    assert verdicts == ["reproduced"] * 20
    usual, sizes = Job(recipes[0], Ref("path", str(tree))), []
    for number in range(60):
        assert runner.decide(usual).verdict.name == "reproduced"
        if number in (20, 59):
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 4 << 20, "the controller grows with each probe"
    for number in range(6):
        other = copy_demo(tmp_path / f"tree-{number}", *(["fixed"] if number % 2 else []))
        (other / "demo_rl" / "extra.py").write_text(f"NUMBER = {number}\n")
        ref = Ref("path", str(other))
        decision = runner.decide(Job(recipes[0], ref))
        assert decision.verdict.name == ("fixed" if number % 2 else "reproduced")
        runner.discard("demo", ref)


@pytest.mark.nightly
def test_an_observation_that_is_far_too_large(runner, tmp_path):
    tree = copy_demo(tmp_path / "tree")
    losses = tree / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text() + LARGE)
    call = {"contract": "call", "boundary": "demo_rl.losses.large", "invariant": None, "scenario": {"arguments": {}}}
    values = {"expected_unpatched": {"returned": 1}, "expected_fixed": {"returned": 2}}
    large = recipe(tmp_path / "mine", bug_id="DEMO-LARGE", **call, **values)
    before = resident()
    decision = runner.decide(Job(large, Ref("path", str(tree))))
    assert (decision.verdict.name, decision.verdict.kind) == ("inconclusive", "crash"), decision.verdict
    assert decision.verdict.reason.startswith("its answer is larger than 8 MiB")
    assert resident() - before < 16 << 20
    assert store.write(tmp_path / "reports", decision).stat().st_size < 20_000
    after = runner.decide(Job(recipe(tmp_path / "mine"), Ref("path", str(tree))))
    assert after.verdict.name == "reproduced", "what is asked next is answered"


@pytest.mark.nightly
def test_eight_processes_on_however_many_cores(tmp_path, scratch):
    """More of them than there are cores, or questions: each is answered once, and nothing is left."""
    pytest.importorskip("xdist")
    tree = copy_demo(tmp_path / "tree", "fixed")
    files = [write_recipe(tmp_path / "mine", MASKED_TOKENS, bug_id=f"DEMO-{number}") for number in range(2)]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "8", f"--sentinel-repo={tree}"]
    done = subprocess.run(
        [*command, *map(str, files)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert len(list(store.files(tmp_path / "sentinel-reports"))) == 2
    assert [place.name for place in scratch.iterdir() if not place.name.startswith("pytest-of-")] == []  # xdist's own
