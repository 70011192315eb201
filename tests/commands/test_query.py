"""``sentinel report query``: answers from what sweeps have kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_questions_are_answered_from_what_was_kept(run_sentinel: Any, tiny: Any) -> None:
    run_sentinel("sweep", "tiny")
    rows = run_sentinel("report", "query", "--verdict", "reproduced", "--json").json()
    assert [(row["bug"], row["commits"], row["first"]) for row in rows] == [("TINY-MEAN", 1, tiny.buggy)]
    assert run_sentinel("report", "query", "--target", "t*", "--bug", "tiny-*", "--until", "2026-01-01").status == 0
    assert run_sentinel("report", "query", "--until", "2025-12-31").status == 1
    assert run_sentinel("report", "query", "--release", "*").status == 1
    assert run_sentinel("report", "query", "--law", "no_such_law").status == 1


def test_nothing_is_written_where_records_are_read(run_sentinel: Any) -> None:
    from sentinel.sources import Home

    run_sentinel("sweep", "tiny")
    folder = Home.default().path / "history"
    before = sorted(folder.rglob("*"))
    for command in ("report query", "report history", "report history TINY-MEAN"):
        assert run_sentinel(*command.split(), "--from", str(folder)).status == 0
    assert sorted(folder.rglob("*")) == before
    record = folder / "tiny" / "TINY-MEAN" / "git-main.json"
    record.write_text(record.read_text().replace('"reproduced"', '"changed"'))
    assert "changed" in run_sentinel("report", "query").out


def test_a_file_that_is_no_record_is_named(run_sentinel: Any) -> None:
    from sentinel.sources import Home

    run_sentinel("sweep", "tiny")
    stray = Home.default().path / "history" / "tiny" / "TINY-MEAN" / "stray.json"
    whole = json.loads((stray.parent / "git-main.json").read_text())
    for damage in ([], {**whole, "runs": [{}]}, {**whole, "bug_id": None}, {**whole, "commits": "2"}):
        stray.write_text(json.dumps(damage))
        for command in ("report query", "report history"):
            answer = run_sentinel(*command.split())
            assert (answer.status, "stray.json: no record of a history" in answer.err) == (2, True)
