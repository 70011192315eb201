"""``sentinel bisect``: what it prints and writes, and what it says to wrong input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_bisect_finds_the_fix_and_writes_its_log(run_sentinel: Any, tiny: Any, tmp_path: Path) -> None:
    log = tmp_path / "bisect.log"
    answer = run_sentinel("bisect", "TINY-MEAN", "--good", "main", "--bad", tiny.buggy, "--log", str(log))
    assert answer.status == 0
    assert f"{tiny.fixed} 2026-01-01 a change\ntook away TINY-MEAN" in answer.out
    assert f"# first fixed commit: [{tiny.fixed}]" in log.read_text()
    told = run_sentinel("bisect", "TINY-MEAN", "--good", "main", "--bad", tiny.buggy, "--json").json()
    assert (told["found"]["sha"], told["seeks"]) == (tiny.fixed, "fixed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["bisect", "TINY-MEEN", "--good", "main", "--bad", "main"],
            "no recipe matches 'TINY-MEEN' — did you mean 'TINY-MEAN'?",
        ),
        (["bisect", "TINY-MEAN", "--good", "main"], "--bad"),
        (["bisect", "TINY-MEAN", "--good", "main", "--bad", "main"], "same commit"),
    ],
)
def test_wrong_input_is_one_sentence_and_status_2(run_sentinel: Any, arguments: list[str], said: str) -> None:
    answer = run_sentinel(*arguments)
    assert answer.status == 2
    assert said in answer.err
