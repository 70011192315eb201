"""The workflow that publishes the site: the shell of its build, and what each of its jobs may do."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / "pages.yml").read_text()))


def test_the_job_that_runs_upstream_code_may_write_nothing_and_the_one_that_publishes_runs_none(workflow):
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in jobs["build"]
    assert jobs["deploy"]["permissions"] == {"pages": "write", "id-token": "write"}
    assert not [step for step in jobs["deploy"]["steps"] if "run" in step]
    assert "pull_request" not in workflow[True]  # YAML 1.1 reads the key `on` as true


def test_actions_are_pinned_and_shell_texts_hold_no_expressions(workflow):
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert len(used) == 5
    assert all(re.fullmatch(r"actions/[\w/-]+@(v[0-9]+|[0-9a-f]{40})", name) for name in used)
    assert not [step for step in steps if "${{" in step.get("run", "")]


def test_what_is_uploaded_is_what_was_built(workflow, few_records, tmp_path):
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
