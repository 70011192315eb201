"""``sentinel export`` and what ``sentinel verify`` makes of its statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def exported(run_sentinel: Any, mirrored: None, tiny: Any) -> tuple[Any, Path]:
    answer = run_sentinel("export", "TINY-MEAN", "--in-toto", "--comment", "--no-check", "--out", "out")
    return answer, Path("out") / "TINY-MEAN"


def test_it_writes_every_file_and_says_what_to_do_next(exported: tuple[Any, Path]) -> None:
    answer, folder = exported
    names = {path.name for path in folder.iterdir()}
    assert names >= {"PULL_REQUEST.md", "COMMENT.md", "recipe.json", "evidence-base.json", "evidence-head.json"}
    assert names >= {"statement-base.json", "statement-head.json"}
    assert "gh pr create --repo" in answer.out
    assert "gh pr comment 7 --repo" in answer.out
    assert "base reproduced, head fixed" in answer.out


def test_a_part_that_cannot_be_exported_is_said_on_the_page(run_sentinel: Any, mirrored: None, tiny: Any) -> None:
    """Nothing can be said of a revision that cannot be had."""
    answer = run_sentinel("export", "TINY-MEAN", "--base", f"git:{'0' * 40}", "--no-check", "--out", "out")
    folder = Path("out") / "TINY-MEAN"
    assert answer.status == 1
    assert "it could not be decided at base" in answer.out
    assert not (folder / "run_validation.py").exists()
    assert "There is no runner that does without Sentinel" in (folder / "PULL_REQUEST.md").read_text()


def test_no_link_is_written_through(run_sentinel: Any, mirrored: None, tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "COMMENT.md").write_text("mine")
    Path("out").mkdir()
    (Path("out") / "TINY-MEAN").symlink_to(tmp_path / "mine")
    answer = run_sentinel("export", "TINY-MEAN", "--no-check", "--out", "out")
    assert (answer.status, "is a link, and nothing is written through it" in answer.err) == (2, True)
    assert [file.read_text() for file in (tmp_path / "mine").iterdir()] == ["mine"]


def test_statements_verify_offline_and_then_by_a_run(
    exported: tuple[Any, Path], run_sentinel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = exported
    answer = run_sentinel("verify", folder / "statement-base.json")
    assert answer.status == 0, answer.out + answer.err
    assert answer.out.count("TINY-MEAN was reproduced") == 1
    monkeypatch.setattr("sentinel.deciding.runner.Runner.decide", None)  # nothing may be run
    answer = run_sentinel("verify", folder / "statement-base.json", "--offline")
    assert answer.status == 0
    assert "every digest agrees" in answer.out
    evidence = folder / "evidence-base.json"
    evidence.write_text(evidence.read_text().replace("26.0", "25.0"))
    answer = run_sentinel("verify", folder / "statement-base.json", "--offline")
    assert answer.status == 1
    assert "sha256" in answer.out
