"""The demo framework's two bugs, measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from demo_kit import Repository, write_recipe
from impact_kit import Impact, Told

from sentinel.cli import main
from sentinel.worker.client import Zygote


@pytest.fixture
def impact(
    demo_home: Path,
    demo_repository: Repository,
    warm_runs: Zygote,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Impact:
    """Run the command at the demo framework's broken and fixed commits."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    commits = demo_repository.commits
    pins = [
        {"ref": f"git:{commits['broken']}", "expect": "reproduced"},
        {"ref": f"git:{commits['fixed']}", "expect": "fixed"},
    ]

    def run(document: Mapping[str, Any], *arguments: str, **changes: Any) -> Told:
        write_recipe(tmp_path / "recipes", document, **{"pins": pins, **changes})
        bug = changes.get("bug_id", document["bug_id"])
        capsys.readouterr()
        try:
            status = main(["impact", bug, *arguments, "--recipes", str(tmp_path / "recipes")])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Told(status, out, err, tmp_path / "here" / "impact" / bug)

    return run
