"""Real trainings of TRL: nothing is named where nothing is wrong, no parameter changes, and a bug is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import MIRRORS

from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref

pytest.importorskip("datasets")
_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "injected.py"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="transformers needs Python 3.11")
def test_a_bug_in_a_real_training_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the release that CI's first run has had; the whole list is the benchmark's."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    try:
        checkout = open_checkout(bundled_catalog().targets["trl"], Ref.parse("pypi:1.16.0"), store=MIRRORS)
    except Unavailable as error:
        pytest.skip(error.reason)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, checkout.import_roots)), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, _BENCHMARK, "--only", "grpo-rows-for-tokens", "--steps", "2", "--clean-steps", "4"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=500, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "| grpo, no bug, 4 steps | nothing |" in ran.stdout
    assert "| grpo, parameters after 4 steps | the same |" in ran.stdout
    assert "| grpo-rows-for-tokens | the_oracle_agrees | 0 |" in ran.stdout
    assert "1 of 1 named within 20 steps; false alarms: 0" in ran.stdout
