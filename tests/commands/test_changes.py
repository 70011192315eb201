import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


GATE = ("--across-refs", "--no-bisect", "--worse")


@pytest.fixture
def overnight(evidence: Path, tiny: Any) -> list[str]:
    """``recorded/`` says that main has the bug; the current run says that it does not."""
    for folder, sha in (("recorded", tiny.buggy), ("tonight", tiny.fixed)):
        document = json.loads((evidence / "tiny" / "TINY-MEAN" / f"git-{sha[:12]}.json").read_text())
        file = Path(folder, "tiny", "TINY-MEAN", "git-main.json")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({**document, "ref": "git:main", "expect": None}))
    return ["report", "changes", "--from", "tonight", "--baseline", "recorded"]


def test_a_fixed_bug_is_listed_with_its_commit(run_sentinel, overnight, tiny):
    answer = run_sentinel(*overnight)
    assert answer.status == 1
    assert "newly fixed: tiny TINY-MEAN at git:main" in answer.out
    assert f"since 2026-01-01 {tiny.fixed[:9]} a change" in answer.out


def test_a_branch_fails_only_for_changes_that_are_worse(run_sentinel, overnight):
    for folder in ("recorded", "tonight"):
        for file in Path(folder).glob("tiny/*/*.json"):
            file.rename(file.with_name(f"path-{folder}.json"))
    better = run_sentinel("report", "changes", "--from", "tonight", "--baseline", "recorded", *GATE)
    worse = run_sentinel("report", "changes", "--from", "recorded", "--baseline", "tonight", *GATE)
    assert (better.status, "newly fixed" in better.out) == (0, True)
    assert worse.status == 1
    lines = worse.out.splitlines()
    assert lines[0] == "newly broken: tiny TINY-MEAN at git:main"
    assert lines[1] == "    fixed -> reproduced"
    assert "    masked tokens count" in lines
    assert re.search(r"^    tiny/losses\.py:\d+$", worse.out, re.MULTILINE)
    assert "    loss: 26.0, right 1.0" in lines
    assert "    pytest --sentinel-target=tiny --sentinel-bug=TINY-MEAN --sentinel-ref=git:main" in lines
    text = run_sentinel(
        "report", "changes", "--from", "recorded", "--baseline", "tonight", *GATE, "--format", "markdown"
    )
    assert re.search("<br><code>tiny/losses.py:[0-9]+</code><br><code>loss: 26.0, right 1.0</code><br>", text.out)
    assert "{" not in text.out, "no JSON for people"


@pytest.mark.parametrize(
    ("verdict", "kind", "status", "says"),
    [
        ("changed", "", 1, "drifted: "),
        ("inconclusive", "raised", 1, "newly inconclusive: "),
        ("unavailable", "ref", 1, "no longer available: "),
        ("unavailable", "not-in-this-version", 0, "    not worse: the code with the bug is not in this version"),
        ("fixed", "", 0, "    not worse: the bug is not present"),
    ],
)
def test_a_changed_verdict_is_worse_or_has_a_reason_why_not(run_sentinel, overnight, verdict, kind, status, says):
    base, fixed = (json.loads(next(Path(name).glob("tiny/*/*.json")).read_text()) for name in ("recorded", "tonight"))
    head = fixed if verdict == "fixed" else _answered(verdict, kind)(fixed)
    for folder, document in (("base", base), ("head", head)):
        for each in (document, {**base, "bug_id": "TINY-OTHER"}):
            place = Path(folder, "tiny", each["bug_id"], f"path-{folder}.json")
            place.parent.mkdir(parents=True)
            place.write_text(json.dumps(each))
    answer = run_sentinel("report", "changes", "--from", "head", "--baseline", "base", *GATE)
    assert (answer.status, says in answer.out) == (status, True), answer


def test_worse_changes_are_listed_first_by_severity(run_sentinel, overnight):
    (file,) = Path("tonight").glob("tiny/*/*.json")
    fixed, (bad,) = json.loads(file.read_text()), Path("recorded").glob("tiny/*/*.json")
    broken = json.loads(bad.read_text())
    for folder in ("base", "head"):
        for name, severity in (("A-FIXED", "high"), ("B-LOW", "low"), ("C-HIGH", "high")):
            document = broken if (folder == "head") == (name != "A-FIXED") else fixed
            recipe = {**document["recipe"], "document": {**document["recipe"]["document"], "severity": severity}}
            place = Path(folder, "tiny", name, f"path-{folder}.json")
            place.parent.mkdir(parents=True)
            place.write_text(json.dumps({**document, "bug_id": name, "ref": "path", "recipe": recipe}))
    out = run_sentinel("report", "changes", "--from", "head", "--baseline", "base", *GATE).out
    told = [line.split()[3] for line in out.splitlines() if line.startswith("newly")]
    assert told == ["C-HIGH", "B-LOW", "A-FIXED"]


@pytest.fixture
def guarded(run_sentinel: Any, overnight: list[str]) -> Any:
    """Return a function that compares a head with its base. ``change`` modifies the head's evidence; the base has no
    bug.
    """
    (file,) = Path("tonight").glob("tiny/*/*.json")
    base = json.loads(file.read_text())

    def told(change: Any, *options: str) -> Any:
        for folder, document in (("base", base), ("head", change(base))):
            shutil.rmtree(folder, ignore_errors=True)
            other = {**base, "bug_id": "TINY-OTHER"}  # decided at both revisions
            for each in filter(None, (document, other)):
                place = Path(folder, "tiny", each["bug_id"], f"path-{folder}.json")
                place.parent.mkdir(parents=True)
                place.write_text(json.dumps(each))
        return run_sentinel("report", "changes", "--from", "head", "--baseline", "base", *GATE, *options)

    return told


def _answered(verdict: str, kind: str = "") -> Any:
    """Change evidence of a missing bug to evidence of this verdict."""

    def turned(base: Any) -> Any:
        known = {key: value for key, value in base.items() if key not in ("not_triggered", "observed_fixed_behavior")}
        failure = {"kind": kind, "reason": "away", "traceback": ""} if kind else None
        ended = {"observation": None, "checks": None, "comparison": []} if kind else {}
        return {
            **known,
            **ended,
            "verdict": verdict,
            "status": verdict,
            "kind": kind,
            "reason": kind,
            "failure": failure,
        }

    return turned


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda base: None, "missing: tiny TINY-MEAN"),
        (_answered("unavailable", "ref"), "no longer available"),
        (_answered("unavailable", "python"), "no longer available"),
        (_answered("unavailable", "not-in-this-version"), "no longer available"),
        (_answered("inconclusive", "timeout"), "newly inconclusive"),
        (_answered("inconclusive", "drift"), "drifted"),
        (_answered("inconclusive", "unsteady"), "newly inconclusive"),
        (_answered("changed"), "drifted"),
        (lambda base: json.loads(next(Path("recorded").glob("tiny/*/*.json")).read_text()), "newly broken"),
    ],
)
def test_a_possibly_new_bug_fails_the_gate(guarded, change, says):
    """Any verdict other than fixed is worse, because a head can prevent the decision."""
    answer = guarded(change)
    assert (answer.status, says in answer.out) == (1, True), answer
    assert guarded(lambda base: base).status == 0


@pytest.mark.parametrize("unasked", [True, False])
def test_a_newly_broken_law_is_not_worse_by_itself(run_sentinel, overnight, unasked):
    """The law may not have been decided before, or the search drew other scenarios. `sentinel diff` compares on the
    same scenarios.
    """
    for folder, name in (("tonight", "recorded"), ("recorded", "tonight")):
        [file] = Path(folder).glob("tiny/*/*.json")
        told = json.loads(file.read_text())
        asked = _answered("unavailable", "not-in-this-version")(told) if unasked and name == "recorded" else told
        law = {
            **asked,
            "bug_id": "",
            "law": "a_law",
            "boundary": {**told["boundary"], "written": "tiny.losses.agg_loss"},
        }
        place = Path("laws", name, "tiny", "a_law", "git-main.json")
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(law))
    arguments = ("report", "changes", "--from", "laws/tonight", "--baseline", "laws/recorded")
    told = run_sentinel(*arguments, *GATE[1:])
    assert (told.status, told.out.splitlines()[0]) == (0, "newly seen: tiny tiny.losses.agg_loss: a_law at git:main")
    assert run_sentinel(*arguments, *GATE).status == 1


def test_the_gate_fails_when_nothing_was_decided(run_sentinel, overnight):
    (file,) = Path("tonight").glob("tiny/*/*.json")
    file.write_text(json.dumps(_answered("inconclusive", "harness")(json.loads(file.read_text()))))
    Path("empty").mkdir()
    for folder in ("tonight", "empty"):
        answer = run_sentinel("report", "changes", "--from", folder, "--baseline", "tonight", *GATE)
        assert (answer.status, f"nothing was examined: the run in {folder} decided none" in answer.err) == (2, True)


def test_evidence_of_an_earlier_run_is_ignored(run_sentinel, overnight):
    """Evidence of an earlier head in the same folder does not count. ``run.json`` lists what the last run decided."""
    (file,) = Path("tonight").glob("tiny/*/*.json")
    item = {"id": "x", "outcome": "passed", "evidence": file.relative_to("tonight").as_posix()}
    stale = json.loads(file.read_text())
    file.with_name("path-000.json").write_text(json.dumps(_answered("changed")(stale)))
    Path("tonight/run.json").write_text(json.dumps({"items": [item]}))
    assert run_sentinel("report", "changes", "--from", "tonight", "--baseline", "tonight", "--across-refs").status == 0
    assert run_sentinel("report", "accept", "--from", "tonight", "--to", "new").status == 0
    assert Path("new/tiny.jsonl").read_text().count('"verdict"') == 1
    for evil in ("../recorded/x.json", "/etc/passwd", "tiny/gone.json", 7):
        Path("tonight/run.json").write_text(json.dumps({"items": [{**item, "evidence": evil}]}))
        answer = run_sentinel("report", "changes", "--from", "tonight", "--baseline", "recorded")
        assert (answer.status, "is missing from the folder" in answer.err) == (2, True)
