"""``sentinel audit`` on working trees of ``tiny``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def tree(tiny: Any, commit: str, folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(tiny.upstream), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)
    return folder


def test_it_answers_in_words_first(run_sentinel: Any, mirrored: None, tiny: Any, tmp_path: Path) -> None:
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.buggy, tmp_path / "buggy"))
    assert answer.status == 1
    assert answer.out.startswith(f"1 of 1 known bug is in tiny at {tiny.buggy[:12]}.")
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.fixed, tmp_path / "fixed"))
    assert answer.status == 0
    assert answer.out.startswith("0 of 1 known bug are in tiny")


def test_a_configuration_that_names_nothing_is_not_known(
    run_sentinel: Any, mirrored: None, tiny: Any, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("actor: {lr: 1}\n")
    buggy = tree(tiny, tiny.buggy, tmp_path / "buggy")
    answer = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config)
    assert answer.status == 0
    assert "your configuration reaches 0, of 1 that is not known" in answer.out
    (bug,) = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config, "--json").json()["bugs"]
    assert (bug["verdict"], bug["reach"]) == ("reproduced", "not known")


def test_mistakes_are_told(run_sentinel: Any, mirrored: None, tiny: Any, tmp_path: Path) -> None:
    assert run_sentinel("audit", "nothing").status == 2
    answer = run_sentinel("audit", "tiny")
    assert answer.status == 2
    assert "nothing could be decided" in answer.err
    assert run_sentinel("audit", "tiny", "--repo", tmp_path, "--python", "python3").status == 2
