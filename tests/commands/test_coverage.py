import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sentinel.recipes.catalog
from sentinel.recipes.catalog import Catalog

LOSSES = """\
def agg_loss(loss_mat, loss_mask):
    return (loss_mat * loss_mask).sum()

def masked_mean(x, mask):
    return (x * mask).mean()

def split(x):
    return x[1:]
"""
ROWS = "raise SystemExit('this was run')\n\ndef pack(input_ids, seqlens):\n    return input_ids[seqlens]\n"


@pytest.fixture
def work(tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working tree with one function of each state, and one without training signal."""
    adapter = catalog.adapters["tiny"]
    target = replace(adapter.target, no_signal=("tiny.rows.*",))
    changed = replace(catalog, adapters={"tiny": replace(adapter, target=target)})
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: changed)
    folder = tmp_path / "work" / "tiny"
    folder.mkdir(parents=True)
    for name, text in {"__init__.py": "", "losses.py": LOSSES, "rows.py": ROWS}.items():
        (folder / name).write_text(text)
    return folder.parent


def test_coverage_prints_a_table_of_modules_with_a_total(run_sentinel, work):
    answer = run_sentinel("coverage", "tiny", "--ref", f"path:{work}")
    assert answer.status == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["tiny.losses", "2", "1", "1", "0"] in lines
    assert ["tiny.rows", "1", "0", "0", "1"] in lines
    assert ["total", "3", "1", "1", "1"] in lines
    # A glob hides functions from the list; the figures still count them.
    assert answer.out.splitlines()[0].endswith(
        ": laws can check 1 of the 3 functions that the rule selects: "
        "1 bound (33%), 1 not bound (33%), 1 no signal (33%)"
    )
    assert "masked_mean" not in answer.out
    listed = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "-v").out
    assert "tiny.losses.masked_mean" in listed
    assert "tiny.rows.pack" not in listed


GUARDED = """\
def traced(function):
    return function

@traced
def agg_loss(loss_mat, loss_mask, loss_agg_mode):
    if loss_mat is None:
        return 0.0
    return masked_sum(loss_mat * loss_mask)

def masked_sum(x):
    return x.sum()
"""


@pytest.mark.slow
def test_run_lists_the_lines_that_a_quick_search_runs(run_sentinel, work):
    (work / "tiny" / "losses.py").write_text(GUARDED)
    answer = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "--run", "-v")
    assert answer.status == 0, answer.err
    words = " ".join(answer.out.split())
    assert "tiny.losses.agg_loss tiny/losses.py:4 7 (if loss_mat is None; ran with it) module" in words
    assert "tiny.losses 2 0 4 75% 2 50%" in words  # the condition was evaluated, but never true
    summary = "laws can check 1 of the 3 functions that the rule selects: 1 bound (33%), 1 not bound (33%), "
    assert words.startswith(
        f"{summary}1 no signal (33%); 1 of the bound functions ran while laws were checked function place"
    )
    told, beside = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "--run", "--json").json()
    assert (told["path"], told["ran"], told["idle"]) == ("tiny.losses.agg_loss", [6, 8], [7])
    assert (told["branches"], told["taken"]) == (2, 1)
    assert (beside["ran"], beside["idle"]) == ([11], [])


TURNED = """\
class Config:
    top = 0

def agg_loss(loss_mat, loss_mask, loss_agg_mode, scale=None):
    if scale is not None:
        loss_mask = scaled(loss_mask, scale)
    if loss_mask.sum() < -1:
        return loss_mat.max()
    return (loss_mat * loss_mask).sum()

def scaled(loss_mask, scale, squared=False):
    if squared:
        loss_mask = loss_mask * loss_mask
    return loss_mask * scale
"""


@pytest.mark.slow
def test_run_tries_unset_options_and_lists_idle_lines_with_conditions(run_sentinel, work):
    (work / "tiny" / "losses.py").write_text(TURNED)
    [own] = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "--run", "--json").json()
    assert (own["path"], own["ran"], own["idle"]) == ("tiny.losses.agg_loss", [5, 7, 9], [6, 8])
    assert own["guards"] == {"6": "scale is not None", "8": "loss_mask.sum() < -1"}
    assert own["turned"] == [6]


@pytest.mark.slow
def test_save_writes_the_data_of_the_site(run_sentinel, work, tmp_path):
    (work / "tiny" / "losses.py").write_text(GUARDED)
    file = tmp_path / "coverage.json"
    for more in ((), ("--run",)):
        assert run_sentinel("coverage", "tiny", "--ref", f"path:{work}", *more, "--save", file).status == 0
    told = json.loads(file.read_text())["coverage"]["tiny"]
    assert told["modules"]["totals"]["not bound"] == 1
    assert told["lines"]["modules"]["tiny.losses"]["ran"] == 3


def test_run_requires_coverage_py(run_sentinel, work, monkeypatch):
    monkeypatch.setitem(sys.modules, "coverage", None)
    answer = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "--run")
    assert (answer.status, "coverage.py counts lines, but it is not installed" in answer.err) == (2, True)


def test_json_output_is_for_programs(run_sentinel, work):
    found = run_sentinel("coverage", "tiny", "--ref", f"path:{work}", "--json").json()
    assert found["totals"] == {"bound": 1, "not bound": 1, "no signal": 1}
    assert found["modules"]["tiny.rows"]["no signal"] == 1
    assert found["functions"][0]["path"] == "tiny.losses.agg_loss"
    assert (found["target"], found["outside"], found["unread"]) == ("tiny", [], {})


def test_bound_functions_outside_the_rule_are_listed(run_sentinel, work):
    (work / "tiny" / "losses.py").write_text("def agg_loss(x):\n    return other(x)\n")
    answer = run_sentinel("coverage", "tiny", "--ref", f"path:{work}")
    assert "bound, but not counted because they carry no signal by the rule: tiny.losses.agg_loss" in answer.out


def test_an_unreadable_file_is_reported(run_sentinel, work):
    (work / "tiny" / "rows.py").write_text("def (")
    answer = run_sentinel("coverage", "tiny", "--ref", f"path:{work}")
    assert answer.status == 1
    assert "not read: tiny/rows.py: the file does not parse with Python " in answer.out


def test_coverage_without_a_mirror_names_the_command(run_sentinel):
    for arguments in (("coverage", "tiny"), ("coverage", "tiny", "--history")):
        answer = run_sentinel(*arguments)
        assert (answer.status, answer.err.count("no mirror of tiny")) == (2, 1)
    assert "no mirror of tiny" in run_sentinel("coverage", "tiny", "--json").json()["unavailable"]


@pytest.mark.usefixtures("mirrored")
def test_coverage_reads_a_mirror(run_sentinel):
    answer = run_sentinel("coverage", "tiny")
    assert answer.status == 0
    assert answer.out.startswith("tiny at ")
    assert ": laws can check 1 of the 1 functions that the rule selects: 1 bound (100%), " in answer.out
    answer = run_sentinel("coverage", "tiny", "--history")
    assert (answer.status, "no release tags" in answer.err) == (2, True)
