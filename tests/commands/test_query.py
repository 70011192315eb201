"""``sentinel query``: answers from an index that is made anew whenever it has to be."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_questions_are_answered_from_what_was_kept(run_sentinel: Any, tiny: Any) -> None:
    run_sentinel("sweep", "tiny")
    rows = run_sentinel("query", "--verdict", "reproduced", "--json").json()
    assert [(row["bug"], row["commits"], row["first"]) for row in rows] == [("TINY-MEAN", 1, tiny.buggy)]
    assert run_sentinel("query", "--target", "t*", "--bug", "tiny-*", "--until", "2026-01-01").status == 0
    assert run_sentinel("query", "--until", "2025-12-31").status == 1
    assert run_sentinel("query", "--release", "*").status == 1
    assert run_sentinel("query", "--law", "no_such_law").status == 1


def test_the_index_is_made_anew_where_it_is_damaged_or_old(run_sentinel: Any) -> None:
    from sentinel.sources import Home

    run_sentinel("sweep", "tiny")
    before = run_sentinel("query").out
    index = Home.default().path / "history" / "index.sqlite"
    index.write_bytes(b"not a database")
    assert run_sentinel("query").out == before
    index.unlink()
    assert run_sentinel("query").out == before
    record = index.parent / "tiny" / "TINY-MEAN" / "git-main.json"
    record.write_text(record.read_text().replace('"reproduced"', '"changed"'))
    assert "changed" in run_sentinel("query").out


def test_a_file_that_is_no_record_is_named(run_sentinel: Any) -> None:
    from sentinel.sources import Home

    run_sentinel("sweep", "tiny")
    stray = Home.default().path / "history" / "tiny" / "TINY-MEAN" / "stray.json"
    stray.write_text("[]")
    answer = run_sentinel("query")
    assert (answer.status, "stray.json: no record of a history" in answer.err) == (2, True)


def test_a_day_that_is_none_is_refused(run_sentinel: Any) -> None:
    answer = run_sentinel("query", "--since", "yesterday")
    assert (answer.status, "write a day" in answer.err) == (2, True)
