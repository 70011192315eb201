"""Supply chain: workflows, requirements with hashes, and a reproducible wheel."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sentinel.errors import INSTALL, REPOSITORY

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

#: The jobs with write permissions, which run no code of the repository.
MAY_WRITE = {("pages.yml", "deploy"), ("release.yml", "publish"), ("release.yml", "pypi")}
_PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}")
_VERSION = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


@pytest.mark.slow
def test_the_readmes_figures_equal_the_commands_output():
    figures = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert figures["rewritten"](text) == text, "run `python benchmarks/figures.py`"
    stale = re.sub(r"with \d+ revisions", "with 4 revisions", text)
    assert figures["rewritten"](stale) == text != stale


def test_the_repository_address_is_written_consistently():
    """If pyproject.toml names a repository, all messages and pages must say `rl-sentinel[…] @ git+…`."""
    urls = re.findall(r'(?m)^Repository = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert (urls or [""]) == [REPOSITORY]
    assert (f"@ git+{REPOSITORY}" if REPOSITORY else "in a checkout of Sentinel") in INSTALL.format("targets")


def complaints(name: str, workflow: dict[Any, Any]) -> Iterator[str]:
    """Return the parts of a workflow that a pull request's head could exploit."""
    triggers = workflow[True]  # YAML 1.1 reads the key `on` as true
    named = {triggers} if isinstance(triggers, str) else set(triggers)
    if named & {"pull_request_target", "workflow_run", "issue_comment", "issues"}:
        yield "a stranger's event runs with this repository's token"
    if workflow.get("permissions") != {"contents": "read"}:
        yield "permissions are not the least"
    for key, job in workflow["jobs"].items():
        granted = {what for what, how in job.get("permissions", {}).items() if how != "read"}
        if granted and (name, key) not in MAY_WRITE:
            yield f"{key} may write: {granted}"
        for step in job["steps"]:
            yield from _complaints_of_step(key, step, bool(granted))


def _complaints_of_step(job: str, step: dict[str, Any], writes: bool) -> Iterator[str]:
    run, uses = step.get("run", ""), step.get("uses", "")
    if "${{" in run:
        yield f"{job}: an expression in a shell text: {run}"
    if "secrets." in str(step):
        yield f"{job}: a secret: {step}"
    if writes and (uses.startswith("actions/checkout") or (run and not run.startswith("gh release create"))):
        yield f"{job} may write and runs {uses or run}"
    if uses.startswith("actions/checkout") and step.get("with", {}).get("persist-credentials") is not False:
        yield f"{job}: the checkout keeps its token"
    if uses and not uses.startswith("./") and not _PINNED.fullmatch(uses):
        yield f"{job}: {uses} is not pinned by its commit"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_give_a_heads_author_no_secrets(file):
    assert list(complaints(file.name, yaml.safe_load(file.read_text()))) == []


def test_a_bad_workflow_is_found():
    bad = {
        True: {"pull_request_target": None},
        "jobs": {
            "x": {
                "permissions": {"contents": "write"},
                "steps": [
                    {"uses": "actions/checkout@v4"},
                    {"run": "echo ${{ github.head_ref }}", "env": {"TOKEN": "${{ secrets.TOKEN }}"}},
                    {"uses": "somebody/action@main"},
                ],
            }
        },
    }
    assert len(list(complaints("bad.yml", bad))) == 10


def _zizmor(*places: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("zizmor")
    if not program.exists():
        pytest.skip("the extra `supply` is not installed")
    command = [str(program), "--offline", "--no-progress", "--quiet", *map(str, places)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_zizmor_finds_nothing():
    done = _zizmor(ROOT / ".github", ROOT / "action.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_detects_a_planted_problem(tmp_path):
    file = tmp_path / ".github" / "workflows" / "bad.yml"
    file.parent.mkdir(parents=True)
    step = "- run: echo ${{ github.event.pull_request.title }}"
    file.write_text(f"on: pull_request_target\njobs:\n  x:\n    runs-on: ubuntu-latest\n    steps:\n      {step}\n")
    assert _zizmor(file).returncode > 10


def _versions(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in _VERSION.findall(text):
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(version)
    return found


@pytest.mark.parametrize("name", ["test", "dev", "release"])
def test_every_requirement_has_a_hash_and_the_version_that_is_tested(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    lines = text.replace("\\\n", " ").splitlines()
    requirements = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert requirements
    assert [line for line in requirements if "==" not in line or "--hash=sha256:" not in line] == []
    assert "://" not in re.sub(r"#.*", "", text), "no index, and no other place"
    tested, here = _versions((ROOT / "constraints.txt").read_text()), _versions(text)
    assert {package: (versions, tested[package]) for package, versions in here.items()
            if package in tested and not versions & tested[package]} == {}  # fmt: skip


def test_every_constraint_is_installed_or_excluded():
    """All of ``constraints.txt`` is installed, except extras that the workflows do not install."""
    ray = {"ray", "charset-normalizer", "click", "msgpack", "protobuf", "requests"}
    docs = {"mkdocs", "ghp-import", "markdown", "mergedeep", "mkdocs-get-deps", "pyyaml-env-tag", "watchdog"}
    apart = {"atheris", *ray, *docs}
    here = _versions((ROOT / "requirements" / "dev.txt").read_text())
    assert _versions((ROOT / "constraints.txt").read_text()).keys() - here.keys() <= apart


def _source(folder: Path) -> Path:
    """Return a copy of the files of a wheel with other times and modes, as another checkout has them."""
    for name in ("sentinel", "adapters", "recipes"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def _built(folder: Path) -> Path:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1787270400"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_building_the_wheel_twice_gives_equal_bytes(tmp_path):
    pytest.importorskip("hatchling", reason="the extra `supply` is not installed")
    before = os.umask(0o077)
    try:
        one = _built(_source(tmp_path / "one"))
    finally:
        os.umask(before)
    other = _built(_source(tmp_path / "a longer name" / "other"))
    assert one.name == other.name
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = archive.namelist()
        texts = b"".join(archive.read(name) for name in names)
    assert {name.split("/")[0] for name in names} == {
        "sentinel",
        "sentinel_watch.pth",
        one.name.rsplit("-", 3)[0] + ".dist-info",
    }
    assert "sentinel/_bundled/adapters/demo.py" in names
    assert str(tmp_path).encode() not in texts
