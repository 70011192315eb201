"""The workflow that publishes the site: its build steps, and the permissions of its jobs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text()))


def test_the_workflow_uploads_the_built_site(workflow, few_records, tmp_path):
    steps = {
        step.get("name", step.get("uses", "").partition("@")[0]): step for step in workflow["jobs"]["build"]["steps"]
    }
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sentinel").write_text(f'#!/bin/sh\nexec {sys.executable} -m sentinel.cli "$@"\n')
    (tools / "sentinel").chmod(0o755)
    (tmp_path / "reports").symlink_to(few_records[0])
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps["Build"]["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    uploaded = steps["actions/upload-pages-artifact"]["with"]["path"]
    assert (tmp_path / uploaded / "index.html").is_file()
