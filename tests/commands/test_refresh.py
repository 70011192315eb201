import json
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sentinel.recipes.catalog
from sentinel.commands import report_refresh
from sentinel.recipes.catalog import Catalog
from sentinel.reports.evidence import dumps

PLACE = "tiny/TINY-MEAN"


@pytest.fixture
def changed(catalog: Catalog, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces text in the recipe or the adapter. The recipe has no pins of releases."""

    def change(old: str, new: str) -> None:
        top = Path(tempfile.mkdtemp(dir=tmp_path))  # Python caches the source of a file
        for name in ("recipes", "adapters"):
            shutil.copytree(tiny.recipe.parents[2] / name, top / name)
        for file in (top / "recipes" / "tiny" / "TINY-MEAN.yaml", top / "adapters" / "tiny.py"):
            text = file.read_text().replace('  - {ref: "pypi:1.2.3", expect: fixed}\n', "")
            file.write_text(text.replace(old, new))
        bare = replace(catalog, adapters={}, recipe_folders=())
        other = bare.with_(adapters=[top / "adapters" / "tiny.py"], recipe_folders=[top / "recipes"])
        monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: other)

    return change


@pytest.fixture
def recorded(run_sentinel: Any, changed: Any, evidence: Path) -> Path:
    changed("", "")
    assert run_sentinel("report", "accept", "--from", evidence, "--to", "reports").status == 0
    return Path("reports/tiny.jsonl")


def test_an_accepted_run_is_not_stale(run_sentinel, recorded):
    answer = run_sentinel("report", "refresh", "--check")
    assert (answer.status, answer.out) == (0, "4 verdicts recorded in reports, 0 stale\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: masked tokens count", "title: padding is part of the mean"),
        ("is summed", "counts"),
        ("note: before", "note: with the bug"),
        ("from sentinel.targets", "# no more than a comment\nfrom sentinel.targets"),
        ('pypi="tiny-dist"', 'pypi="tiny"'),
    ],
)
def test_prose_and_unrelated_adapter_code_do_not_make_entries_stale(run_sentinel, recorded, changed, old, new):
    changed(old, new)
    assert run_sentinel("report", "refresh", "--check").status == 0


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("-50.0", "-51.0", "recipe"),
        ("{loss: 1.0}", "{loss: 1.5}", "recipe"),
        ('("loss_mask",)', '("loss_mask", "mask")', "binding"),
    ],
)
def test_changed_deciding_parts_make_entries_stale(run_sentinel, recorded, changed, old, new, what):
    changed(old, new)
    answer = run_sentinel("report", "refresh", "--check")
    assert answer.status == 1
    assert f"stale: {PLACE}/git-main.json: its {what} changed" in answer.out
    assert f"4 verdicts recorded in reports, 4 stale; 4 because its {what} changed" in answer.out


def test_an_entry_decided_by_a_newer_python_is_refreshed_with_it(run_sentinel, recorded, changed):
    text = recorded.read_text()
    now = ".".join(map(str, sys.version_info[:2]))
    assert f'"python":"{now}.' in text
    recorded.write_text(text.replace(f'"python":"{now}.', '"python":"3.99.'))
    changed("-50.0", "-51.0")
    answer = run_sentinel("report", "refresh", "--check")
    assert "1 stale; 1 because its recipe changed; 3 more need the newer Python" in answer.out
    assert answer.status == 1  # the unavailable pull request was decided without an interpreter
    named = run_sentinel("report", "refresh", "--check", "--python", sys.executable)
    assert ", 4 stale; 4 because" in named.out


def test_refresh_decides_stale_entries_again(run_sentinel, recorded, changed, evidence, monkeypatch):
    """pytest runs once for the pins and once for each other ref, and the results are accepted."""
    changed("-50.0", "-51.0")
    runs: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        runs.append([word for word in command if word.startswith("--sentinel")])
        folder = Path(next(word for word in command if word.startswith("--sentinel-report-dir")).partition("=")[2])
        shutil.copytree(evidence, folder)
        items = []
        for file in folder.rglob("*.json"):
            document = json.loads(file.read_text())
            document["recipe"]["document"]["scenario"]["loss_mat"]["tensor"][1][1] = -51.0
            document["adapter"] = sentinel.recipes.catalog.bundled_catalog().adapters["tiny"].digest
            file.write_text(json.dumps(document))
            items.append({"id": "x", "outcome": "passed", "evidence": file.relative_to(folder).as_posix()})
        (folder / "run.json").write_text(json.dumps({"items": items, "started": "2026-02-03T04:05:06+00:00"}))

    monkeypatch.setattr(report_refresh.subprocess, "run", run)
    answer = run_sentinel("report", "refresh")
    assert answer.out.endswith("4 verdicts recorded in reports, 0 stale\n")
    assert answer.status == 0
    whole = ["--sentinel-target=tiny", "--sentinel-bug=TINY-MEAN"]
    refs = [word for words in runs for word in words if word.startswith("--sentinel-ref")]
    assert all(words[:2] == whole for words in runs)
    assert refs == ["--sentinel-ref=git:main", "--sentinel-ref=git:pull/9/head"]
    assert len(runs) == 3
    lines = [json.loads(line) for line in recorded.read_text().splitlines() if '"shared"' not in line]
    assert {line["date"] for line in lines} == {"2026-02-03"}


@pytest.mark.slow
def test_a_run_that_decides_nothing_leaves_entries_stale(run_sentinel, recorded, changed):
    """Here the run decides nothing because pytest does not have the target."""
    changed("-50.0", "-51.0")
    before = recorded.read_bytes()
    answer = run_sentinel("report", "refresh")
    assert answer.status == 1
    assert "pytest ended without a result (--sentinel-target=tiny" in answer.out
    assert recorded.read_bytes() == before


def test_show_expands_a_line(run_sentinel, recorded, evidence, tiny):
    for name, ref in (("git-main", "git:main"), (f"git-{tiny.buggy[:12]}", f"git:{tiny.buggy[:9]}")):
        answer = run_sentinel("report", "show", "TINY-MEAN", ref)
        whole = json.loads((evidence / PLACE / f"{name}.json").read_text())
        whole["recipe"] = json.loads(answer.out)["recipe"]  # without the pin of a release
        assert answer.out == dumps(whole)
    assert "name one of these as REF" in run_sentinel("report", "show", "TINY-MEAN").err
    assert "did you mean 'TINY-MEAN'" in run_sentinel("report", "show", "TINY-MEEN").err


def test_show_rejects_a_line_whose_recipe_has_changed(run_sentinel, recorded, changed):
    changed("-50.0", "-51.0")
    answer = run_sentinel("report", "show", "TINY-MEAN", "git:main")
    assert answer.status == 2
    assert "TINY-MEAN at git:main cannot be expanded: its recipe changed; decide it again with" in answer.err


def _again(text: str) -> str:
    [line] = [line for line in text.splitlines(keepends=True) if '"verdict":"reproduced"' in line]
    return text + line


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: re.sub('"observation":{.*?}}},?', '"observation":{},', text, count=1), "at $.observation"),
        (
            lambda text: text.replace('"verdict":"reproduced"', '"verdict":"fixed"'),
            "its observation leads to reproduced",
        ),
        (_again, "two lines for tiny/TINY-MEAN/git-"),
        (lambda text: re.sub('"refs":{"git:[0-9a-f]{40}"', f'"refs":{{"git:{40 * "a"}"', text), "the checkout is "),
    ],
)
def test_a_contradictory_line_is_rejected(run_sentinel, recorded, damage, said):
    before = recorded.read_text()
    recorded.write_text(damage(before))
    assert recorded.read_text() != before
    answer = run_sentinel("report", "refresh", "--check")
    assert answer.status == 2
    assert said in answer.err


def test_pins_without_a_line_are_listed(run_sentinel, recorded, tiny):
    lines = recorded.read_text().splitlines(keepends=True)
    recorded.write_text("".join(line for line in lines if '"verdict":"reproduced"' not in line))
    answer = run_sentinel("report", "refresh", "--check")
    assert answer.status == 1
    assert answer.out.startswith(f"not recorded: 1 pin: TINY-MEAN at git:{tiny.buggy}\n")


def test_an_entry_is_stale_if_its_pin_expects_another_verdict(run_sentinel, recorded):
    text = recorded.read_text()
    recorded.write_text(re.sub('(git:[0-9a-f]{40}":)"reproduced"', r'\1"fixed"', text))
    answer = run_sentinel("report", "refresh", "--check")
    assert (answer.status, "its pin changed" in answer.out) == (1, True)


def test_one_commit_has_one_line(run_sentinel, recorded, tiny):
    """``git:main`` is the fixed commit."""
    lines = [json.loads(line) for line in recorded.read_text().splitlines() if '"shared"' not in line]
    refs = {line["verdict"]: line["refs"] for line in lines}
    assert refs == {
        "reproduced": {f"git:{tiny.buggy}": "reproduced"},
        "fixed": {f"git:{tiny.fixed}": "fixed", "git:main": ""},
        "unavailable": {"git:pull/9/head": ""},
    }
    assert len(lines) == len(refs)
    assert "null" not in recorded.read_text()
    assert not {"title", "expectation", "document"} & {key for line in lines for key in line}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-40],
        lambda text: text.replace('"refs":', '"ref":'),
        lambda text: text.replace('"verdict":"fixed"', '"verdict":"fine"'),
        lambda text: text.replace('"environment":"', '"environment":"x'),
        lambda text: "[]\n" + text,
    ],
)
def test_a_damaged_line_is_named(run_sentinel, recorded, evidence, damage):
    recorded.write_text(damage(recorded.read_text()))
    answer = run_sentinel("report", "changes", "--from", evidence, "--baseline", "reports", "--no-bisect")
    assert answer.status == 2
    assert "reports/tiny.jsonl:" in answer.err
    assert "restore it from git" in answer.err
