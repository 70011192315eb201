"""`sentinel report changes` lists what differs between a run and its baseline."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


@pytest.fixture
def overnight(evidence: Path, tiny: Any) -> list[str]:
    """``recorded/`` says that main has the bug; the current run says that it does not."""
    for folder, sha in (("recorded", tiny.buggy), ("tonight", tiny.fixed)):
        document = json.loads((evidence / "tiny" / "TINY-MEAN" / f"git-{sha[:12]}.json").read_text())
        file = Path(folder, "tiny", "TINY-MEAN", "git-main.json")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({**document, "ref": "git:main", "expect": None}))
    return ["report", "changes", "--from", "tonight", "--baseline", "recorded"]


@pytest.mark.slow
def test_a_fixed_bug_is_listed_with_its_commit(run_sentinel, overnight, tiny):
    answer = run_sentinel(*overnight)
    assert answer.status == 1
    assert "newly fixed: tiny TINY-MEAN at git:main" in answer.out
    assert f"since 2026-01-01 {tiny.fixed[:9]} a change" in answer.out


def test_a_new_bug_is_listed_with_its_place_number_and_command(run_sentinel, overnight):
    arguments = ("report", "changes", "--from", "recorded", "--baseline", "tonight", "--no-bisect")
    answer = run_sentinel(*arguments)
    assert answer.status == 1
    lines = answer.out.splitlines()
    assert lines[:2] == ["newly broken: tiny TINY-MEAN at git:main", "    fixed -> reproduced"]
    assert "    masked tokens count" in lines
    assert re.search(r"^    tiny/losses\.py:\d+$", answer.out, re.MULTILINE)
    assert "    loss: 26.0, right 1.0" in lines
    assert "    pytest --sentinel-target=tiny --sentinel-bug=TINY-MEAN --sentinel-ref=git:main" in lines
    text = run_sentinel(*arguments, "--format", "markdown")
    assert re.search("<br><code>tiny/losses.py:[0-9]+</code><br><code>loss: 26.0, right 1.0</code><br>", text.out)
    assert "{" not in text.out, "no JSON for people"


@pytest.fixture
def place(overnight: list[str]) -> Any:
    """Return a function that writes evidence of a bug into a folder."""

    def put(folder: str, document: dict[str, Any]) -> None:
        file = Path(folder, "tiny", document["bug_id"], "git-main.json")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(document))

    return put


def test_new_bugs_are_listed_first_by_severity(run_sentinel, place):
    fixed, broken = (json.loads(next(Path(name).glob("tiny/*/*.json")).read_text()) for name in ("tonight", "recorded"))
    for folder in ("base", "head"):
        for name, severity in (("A-FIXED", "high"), ("B-LOW", "low"), ("C-HIGH", "high")):
            document = broken if (folder == "head") == (name != "A-FIXED") else fixed
            recipe = {**document["recipe"], "document": {**document["recipe"]["document"], "severity": severity}}
            place(folder, {**document, "bug_id": name, "recipe": recipe})
    out = run_sentinel("report", "changes", "--from", "head", "--baseline", "base", "--no-bisect").out
    told = [line.split()[3] for line in out.splitlines() if line.startswith("newly")]
    assert told == ["C-HIGH", "B-LOW", "A-FIXED"]


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
    ("verdict", "kind", "says"),
    [
        ("unavailable", "python", "no longer available"),
        ("unavailable", "not-in-this-version", "no longer available"),
        ("inconclusive", "timeout", "newly inconclusive"),
        ("inconclusive", "drift", "drifted"),
        ("changed", "", "drifted"),
    ],
)
def test_every_other_verdict_is_listed(run_sentinel, place, verdict, kind, says):
    base = json.loads(next(Path("tonight").glob("tiny/*/*.json")).read_text())
    for folder, document in (("base", base), ("head", _answered(verdict, kind)(base))):
        place(folder, document)
        place(folder, {**base, "bug_id": "TINY-OTHER"})  # decided at both revisions
    answer = run_sentinel("report", "changes", "--from", "head", "--baseline", "base", "--no-bisect")
    assert (answer.status, answer.out.partition(":")[0]) == (1, says)
    assert run_sentinel("report", "changes", "--from", "base", "--baseline", "base").status == 0


@pytest.mark.parametrize("unasked", [True, False])
def test_a_newly_broken_law_is_newly_seen(run_sentinel, overnight, unasked):
    """It is not called worse: the law may not have been decided before, or the search drew other scenarios. Only
    `sentinel diff` uses the same scenarios.
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
    told = run_sentinel(*arguments, "--no-bisect")
    assert (told.status, told.out.splitlines()[0]) == (1, "newly seen: tiny tiny.losses.agg_loss: a_law at git:main")


def test_nothing_is_compared_if_nothing_was_decided(run_sentinel, overnight):
    (file,) = Path("tonight").glob("tiny/*/*.json")
    file.write_text(json.dumps(_answered("inconclusive", "harness")(json.loads(file.read_text()))))
    Path("empty").mkdir()
    for folder in ("tonight", "empty"):
        answer = run_sentinel("report", "changes", "--from", folder, "--baseline", "tonight")
        assert (answer.status, f"nothing was examined: the run in {folder} has no" in answer.err) == (2, True)


def test_evidence_of_an_earlier_run_is_ignored(run_sentinel, overnight):
    """Evidence of an earlier head in the same folder does not count. ``run.json`` lists what the last run decided."""
    (file,) = Path("tonight").glob("tiny/*/*.json")
    item = {"id": "x", "outcome": "passed", "evidence": file.relative_to("tonight").as_posix()}
    stale = json.loads(file.read_text())
    file.with_name("path-000.json").write_text(json.dumps(_answered("changed")(stale)))
    Path("tonight/run.json").write_text(json.dumps({"items": [item]}))
    assert run_sentinel("report", "changes", "--from", "tonight", "--baseline", "tonight").status == 0
    assert run_sentinel("report", "accept", "--from", "tonight", "--to", "new").status == 0
    assert Path("new/tiny.jsonl").read_text().count('"verdict"') == 1
    for evil in ("../recorded/x.json", "/etc/passwd", "tiny/gone.json", 7):
        Path("tonight/run.json").write_text(json.dumps({"items": [{**item, "evidence": evil}]}))
        answer = run_sentinel("report", "changes", "--from", "tonight", "--baseline", "recorded")
        assert (answer.status, "is missing from the folder" in answer.err) == (2, True)
