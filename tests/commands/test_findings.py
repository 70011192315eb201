import shutil
from pathlib import Path

from demo_kit import git

from sentinel.tools.upstream.commands import report_duplicates
from sentinel.tools.upstream.heads import heads


def test_findings_are_stored_and_printed_once(run_sentinel, mirrored, evidence):
    Path("reports").symlink_to(evidence)
    first = run_sentinel("report", "findings")
    assert first.status == 0
    assert "1 finding from 3 verdicts, 1 changed" in first.out
    assert "fixed upstream" in first.out
    assert Path("findings/tiny.jsonl").is_file()
    assert "TINY-MEAN" in Path("findings/BUG_FINDINGS.md").read_text()
    assert "1 finding from 3 verdicts, 0 changed" in run_sentinel("report", "findings").out
    assert run_sentinel("report", "findings", "--json").json()[0]["state"] == "fixed upstream"
    Path("state.md").write_text("<!-- edition 2026-02-02, since 2026-01-01 -->\n")
    run_sentinel("report", "findings", "--state", "state.md")
    text = Path("state.md").read_text()
    assert text.startswith("<!-- edition 2026-02-02, since 2026-01-01 -->\n# The state")
    assert "| tiny | 0 | 0 | 0 | 0 |" in text
    run_sentinel("report", "findings", "--state", "state.md")
    assert Path("state.md").read_text() == text


def test_duplicates_lists_every_source(run_sentinel, mirrored, tiny):
    answer = run_sentinel("report", "duplicates", "TINY-MEAN")
    assert answer.status == 0
    assert answer.out.count("searched:") == 4
    assert "issues were not searched, because mirrors have none; search upstream's for agg_loss" in answer.out
    names = [source["name"] for source in run_sentinel("report", "duplicates", "TINY-MEAN", "--json").json()]
    assert names[0] == "recipes"
    assert run_sentinel("report", "duplicates", "NO-SUCH").status == 2


def test_a_pull_request_that_fixes_the_bug_is_found_by_running_it(run_sentinel, tiny, tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    shutil.copytree(tiny.upstream, clone)

    losses = clone / "tiny" / "losses.py"
    right = losses.read_text()
    git(clone, "checkout", "-q", tiny.buggy)
    wrong = losses.read_text()
    for number, text in (("7", right), ("8", wrong.replace("def agg_loss(", "def agg_loss(  # the same\n    "))):
        git(clone, "checkout", "-q", tiny.buggy)
        losses.write_text(text)
        git(clone, "commit", "-qam", "tidy up")
        git(clone, "update-ref", f"refs/pull/{number}/head", "HEAD")
    git(clone, "update-ref", "refs/heads/main", tiny.buggy)
    git(clone, "update-ref", "refs/pull/7/merge", "refs/pull/7/head")
    assert run_sentinel("mirror", "add", "tiny", "--from", clone).status == 0
    answer = run_sentinel("report", "duplicates", "TINY-MEAN", "--run", "--json")
    verdicts = {head["pull"]: (head["verdict"], head["open"]) for head in answer.json()}
    assert verdicts == {8: ("reproduced", False), 7: ("fixes", True)}
    assert answer.status == 1
    text = run_sentinel("report", "duplicates", "TINY-MEAN", "--run").out
    assert "TINY-MEAN  #7" in text
    assert "1 recipe at 2 heads: 1 fixed, 0 whose base lacks the bug, 0 could not be decided" in text

    def interrupted(*arguments):
        yield next(heads(*arguments))
        raise KeyboardInterrupt

    monkeypatch.setattr(report_duplicates, "heads", interrupted)
    answer = run_sentinel("report", "duplicates", "TINY-MEAN", "--run")
    assert (answer.status, answer.err.splitlines()[-1]) == (130, "sentinel: interrupted; the other heads were not run")
    assert "1 recipe at 1 head: " in answer.out
