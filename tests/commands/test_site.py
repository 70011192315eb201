import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "tools" / "site" / "data"


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence"
    shutil.copytree(DATA / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK", folder / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK")
    return folder


def test_the_site_can_be_built_twice(run_sentinel, reports, tmp_path):
    out = tmp_path / "pages" / "site"
    answer = run_sentinel("report", "site", "--out", out, "--reports", reports)
    assert answer.status == 0, answer.err
    assert answer.out.startswith(f"{out / 'index.html'}: 1 bug (1 recipe), ")
    first = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    (reports / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK" / "git-main.json").unlink()
    assert run_sentinel("report", "site", "--out", out, "--reports", reports).status == 0
    gone = out / "evidence" / "roll" / "ROLL-AGGLOSS-TOKENMEAN-MASK" / "git-main.json"
    assert gone in first
    assert not gone.exists()


def test_a_folder_that_is_not_a_site_is_not_changed(run_sentinel, reports, tmp_path):
    out = tmp_path / "work"
    out.mkdir()
    (out / "thesis.tex").write_text("x")
    answer = run_sentinel("report", "site", "--out", out, "--reports", reports)
    assert answer.status == 2
    assert "was not made by sentinel report site, so it was not changed" in answer.err
    assert "name another folder with --out" in answer.err
    assert [file.name for file in out.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such folder: "),
        ({}, " has no evidence; run pytest with --sentinel-target first, or name a folder with --reports DIR"),
        ({"roll/X/git-main.json": "{}"}, "git-main.json: not Sentinel evidence (no schema_version)"),
    ],
)
def test_report_site_rejects_invalid_input_in_one_line(run_sentinel, tmp_path, content, said):
    folder = tmp_path / "nothing"
    for name, text in (content or {}).items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    if content is not None:
        folder.mkdir(exist_ok=True)
    answer = run_sentinel("report", "site", "--out", tmp_path / "site", "--reports", folder)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err
    assert len([line for line in answer.err.splitlines() if not line.startswith("sentinel: reading")]) == 1
    assert not (tmp_path / "site").exists()


def test_a_site_inside_the_evidence_folder_is_rejected(run_sentinel, reports):
    answer = run_sentinel("report", "site", "--out", reports / "site", "--reports", reports)
    assert answer.status == 2
    assert "name another --out" in answer.err
    assert not (reports / "site").exists()
