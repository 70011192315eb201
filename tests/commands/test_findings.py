"""``sentinel report findings`` and ``sentinel report duplicates``."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_findings_are_kept_and_told_once(run_sentinel: Any, mirrored: None, tiny: Any) -> None:
    first = run_sentinel("report", "findings")
    assert first.status == 0
    assert "1 finding, 1 moved" in first.out
    assert "reported" in first.out
    assert Path("findings/tiny/TINY-MEAN.json").is_file()
    assert "TINY-MEAN" in Path("findings/BUG_FINDINGS.md").read_text()
    assert "1 finding, 0 moved" in run_sentinel("report", "findings").out
    assert run_sentinel("report", "findings", "--json").json()[0]["state"] == "reported"
    assert run_sentinel("report", "findings", "--state", "nowhere").status == 2


def test_duplicates_lists_every_source(run_sentinel: Any, mirrored: None, tiny: Any) -> None:
    answer = run_sentinel("report", "duplicates", "TINY-MEAN")
    assert answer.status == 0
    assert answer.out.count("searched:") == 5
    assert answer.out.count("not searched:") == 2
    names = [source["name"] for source in run_sentinel("report", "duplicates", "TINY-MEAN", "--json").json()]
    assert names[0] == "recipes"
    assert run_sentinel("report", "duplicates", "NO-SUCH").status == 2
