"""``sentinel sweep`` prints and saves histories, resumes, and explains invalid input."""

from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


def test_a_sweep_reports_when_the_bug_appeared_and_was_fixed(run_sentinel, tiny):
    answer = run_sentinel("sweep", "tiny")
    assert answer.status == 0
    assert "|#.|" in answer.out
    assert f"fixed: 2026-01-01 {tiny.fixed[:9]} a change" in answer.out
    assert "2 verdicts from 2 distinct versions of the code, 2 of them probed now" in answer.out
    assert "0 of them probed now" in run_sentinel("sweep", "tiny").out


def test_sweep_json_has_the_histories(run_sentinel, tiny):
    told = run_sentinel("sweep", "tiny", "--json").json()
    record = told["records"][0]
    assert [run["verdict"] for run in record["runs"]] == ["reproduced", "fixed"]
    assert record["changes"][1]["commit"]["sha"] == tiny.fixed
    assert told["probed"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "tinny"], "unknown target 'tinny' — did you mean 'tiny'"),
        (["sweep", "tiny", "--bug", "TINY-MEEN"], "no recipe matches 'TINY-MEEN' — did you mean 'TINY-MEAN'?"),
        (["sweep", "tiny", "--since", "2026-13-01"], "not a valid day: '2026-13-01'"),
        (["sweep", "tiny", "--since", "2030-01-01"], "no commit of main is selected by --since 2030-01-01"),
        (["sweep", "tiny", "--ref", "nonsense"], "nonsense"),
        (["sweep", "tiny", "--until", "git:nonsense"], "no branch, tag or commit 'nonsense'"),
        (["sweep", "tiny", "--ref=-x"], "cannot begin with '-'"),
        (["sweep", "tiny", "--tags"], "no commit of main is selected by tags"),
        (["sweep", "tiny", "--jobs", "0"], "at least 1"),
        (["sweep", "tiny", "--releases", "--since", "v1"], "--since selects commits"),
        (["sweep", "tiny", "--tags", "--releases"], "not allowed with"),
    ],
)
def test_sweep_rejects_invalid_input_in_one_sentence(run_sentinel, arguments, said):
    answer = run_sentinel(*arguments)
    assert answer.status == 2
    assert said in answer.err


def test_an_interrupted_sweep_keeps_its_verdicts(run_sentinel, monkeypatch):
    from sentinel.records.executors import Executor

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Executor, "_perform", interrupted)
    answer = run_sentinel("sweep", "tiny")
    assert answer.status == 130
    assert "results are stored" in answer.err


GONE = """\
recipe_version: 1
bug_id: TINY-GONE
title: about a function that is nowhere
target: tiny
contract: call
boundary: tiny.losses.gone
scenario: {arguments: {}}
expected_unpatched: {returned: 1}
expected_fixed: {returned: 2}
"""


def test_a_sweep_that_decides_nothing_exits_with_2(run_sentinel, tmp_path):
    file = tmp_path / "more" / "tiny" / "TINY-GONE.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(GONE)
    answer = run_sentinel("sweep", "tiny", "--bug", "TINY-GONE", "--recipes", str(tmp_path / "more"))
    assert (answer.status, "not decided" in answer.out) == (2, True)
    assert "nothing was examined: no recipe could be decided at any commit (" in answer.err


def test_a_sweep_of_releases_needs_no_mirror(run_sentinel, monkeypatch, tiny):
    from sentinel.sources import open_checkout
    from sentinel.targets.refs import Ref
    from sentinel.tools.sweep import releases

    commits = {"1.0": tiny.buggy, "1.1": tiny.fixed}

    def opened(target: Any, ref: Any, **options: Any) -> Any:
        return open_checkout(target, Ref("git", commits[ref.name]), **options)

    monkeypatch.setattr(releases, "versions", lambda target: list(commits))
    monkeypatch.setattr("sentinel.deciding.setup.open_checkout", opened)
    answer = run_sentinel("sweep", "tiny", "--releases", "--json").json()
    assert [(r["name"], r["verdict"]) for r in answer["records"][0]["releases"]] == [
        ("1.0", "reproduced"),
        ("1.1", "fixed"),
    ]
    assert run_sentinel("sweep", "tiny", "--releases", "--json").json()["probed"] == 0
    assert "| tiny | TINY-MEAN | not swept |  |  |  | 1.0 |" in run_sentinel("report", "history", "--markdown").out


def test_histories_are_saved_in_the_requested_folder(run_sentinel, tmp_path):
    assert run_sentinel("sweep", "tiny", "--save", str(tmp_path / "kept")).status == 0
    assert (tmp_path / "kept" / "tiny.jsonl").is_file()
    assert run_sentinel("report", "history", "TINY-MEAN", "--from", str(tmp_path / "kept")).status == 0
