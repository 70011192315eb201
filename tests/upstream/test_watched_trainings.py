"""Real trainings of TRL: a correct one has no report, parameters do not change, and a bug is reported."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from shipped import MIRRORS

from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref

#: Found without an import, which each process that collects these tests would repeat.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("datasets") is None, reason="datasets (extra `trl`) is not installed"),
]
_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> str:
    """Run the benchmark with the release of CI's first run, and return its output."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    try:
        checkout = open_checkout(bundled_catalog().targets["trl"], Ref.parse("pypi:1.16.0"), store=MIRRORS)
    except Unavailable as error:
        pytest.skip(error.reason)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, checkout.import_roots)), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, _BENCHMARKS / name, *words],
        capture_output=True, text=True, timeout=500, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_bug_in_a_real_training_is_named(tmp_path, monkeypatch):
    """One bug of the benchmark's list."""
    words = ["--only", "grpo-rows-for-tokens", "--steps", "2", "--clean-steps", "4"]
    said = _benchmark(tmp_path, monkeypatch, "injected.py", *words)
    assert "| grpo, no bug, 4 steps | nothing |" in said
    assert "| grpo, parameters after 4 steps | the same |" in said
    assert "| grpo-rows-for-tokens | the_oracle_agrees | 0 |" in said
    assert "1 of 1 named within 20 steps; false alarms: 0" in said


def test_mixed_up_rows_are_named(tmp_path, monkeypatch):
    said = _benchmark(tmp_path, monkeypatch, "drawn.py", "--bugs", "--only", "mixed-")
    assert "reward function 0 got wrong `completions` for 8 of 8 rows: for row 0, the value of row 1" in said
    assert "reward function 0 got wrong `answer` for " in said
    assert "the prompt tokens of 8 of 8 rows are not those of the dataset's prompt" in said
    assert "8 of 8 completions were generated from other prompt tokens than the batch's" in said
    assert "4 of 4 bugs raised an alarm in a training that raised none without the bug" in said


def test_bugs_in_gradients_kto_rewards_positions_and_resumed_runs_are_named(tmp_path, monkeypatch):
    said = _benchmark(tmp_path, monkeypatch, "drawn.py", "--bugs", "--only", "class-")
    for name in ("the_gradient_is_the_documented_one", "batches_are_their_rows", "training_resumes_where_it_stopped"):
        assert f"{name}, step 0" in said
    assert "8 of 8 bugs raised an alarm in a training that raised none without the bug" in said


@pytest.mark.parametrize(
    ("bugs", "count", "names"),
    [
        ("missed-kto", 3, ("tokens_are_the_datasets", "batches_are_their_rows")),
        ("missed-evaluation", 5, ("advantages_follow_from_rewards", "tokens_are_the_datasets",
                                  "an_evaluation_is_the_mean_of_its_batches", "an_evaluation_trains_nothing")),
        ("trial-grpo", 5, ("an_epoch_has_all_rows", "epochs_are_shuffled_anew", "the_reference_follows_as_configured",
                           "the_batch_means_what_it_should")),
        ("trial-resumed", 2, ("training_resumes_where_it_stopped",)),
        ("trial-sft", 2, ("the_divisor_is_the_number_of_labels", "the_rate_is_the_schedules")),
    ],
)  # fmt: skip
def test_bugs_of_a_kind_are_named(tmp_path, monkeypatch, bugs, count, names):
    said = _benchmark(tmp_path, monkeypatch, "drawn.py", "--bugs", "--only", bugs)
    assert all(f"{name}, step" in said for name in names)
    assert f"{count} of {count} bugs raised an alarm in a training that raised none without the bug" in said


def test_the_checker_uses_little_memory(tmp_path, monkeypatch):
    said = _benchmark(tmp_path, monkeypatch, "watch.py", "--memory")
    found = re.search(r"the checker: (\d+) MB of its own", said)
    assert found is not None
    assert int(found[1]) <= 256


def test_an_observation_takes_a_small_part_of_a_step(tmp_path, monkeypatch):
    """Measured as CPU time of the run's thread. Of a hundred steps, one is checked, and in another a call is copied."""
    said = _benchmark(tmp_path, monkeypatch, "watch.py", "--grpo", "40")
    found = re.search(r"time that watch itself measures in a checked step: ([\d.]+)% of a step", said)
    assert found is not None, said
    assert 2 * float(found[1]) / 100 <= 0.5, "the bound on all that watching costs is 1% of the time"
