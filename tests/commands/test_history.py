import re

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_history_prints_the_stored_history_of_a_bug(run_sentinel):
    run_sentinel("sweep", "tiny")
    told = run_sentinel("report", "history", "tiny-mean")
    assert (told.status, "tiny: 2 commits of main (first-parent)" in told.out) == (0, True)
    assert run_sentinel("report", "history", "TINY-MEAN", "--json").json()[0]["bug_id"] == "TINY-MEAN"
    assert "did you mean 'TINY-MEAN'" in run_sentinel("report", "history", "TINY-MEEN").err


def test_history_without_a_bug_prints_a_line_per_bug(run_sentinel):
    run_sentinel("sweep", "tiny")
    told = run_sentinel("report", "history")
    assert told.status == 0
    assert "TINY-MEAN" in told.out
    assert told.out.startswith("bugs: 1, tested at 2 commits; present at a commit: 1; present in a tagged release: 0\n")
    assert [cell.strip() for cell in re.split(r" {2,}", told.out.splitlines()[-4])[:3]] == ["tiny", "TINY-MEAN", "|#.|"]
    assert run_sentinel("report", "history", "--json").json()[0]["introduced"].startswith("≤2026-01-01")
    lines = run_sentinel("report", "history", "--markdown").out.splitlines()
    assert "| target | bug | introduced | ended | days | releases with the bug | on PyPI |" in lines
    assert run_sentinel("report", "history", "TINY-MEAN", "--markdown").status == 2


def test_history_writes_nothing(run_sentinel, mirrored):
    from sentinel.sources import Home

    run_sentinel("sweep", "tiny")
    folder = Home.default().path / "history"
    before = sorted(folder.rglob("*"))
    for command in ("report history", "report history TINY-MEAN"):
        assert run_sentinel(*command.split(), "--from", str(folder)).status == 0
    assert sorted(folder.rglob("*")) == before
