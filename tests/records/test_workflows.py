"""Run the shell steps of the workflows and of the action as a runner would, in an empty home.

Only ``pip install`` is not run, because its result is already installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_kit import MASKED_TOKENS, Repository, copy_demo, write_recipe
from demo_kit import git as demo_git

ROOT = Path(__file__).resolve().parents[2]
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")


@dataclass
class Runner:
    """A hosted runner.

    :ivar values: values of expressions such as ``inputs.targets``.
    :ivar environment: the variables of every step.
    """

    folder: Path
    values: dict[str, str]
    environment: dict[str, str]
    outputs: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            for name in re.split(r" *\|\| *", match[1]):
                found = name.strip("'") if name.startswith("'") else self.values.get(name, self.outputs.get(name, ""))
                if found:
                    return found
            return ""

        return EXPRESSION.sub(value, text)

    def step(self, step: Mapping[str, Any], job: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        own = {**(job or {}), **step.get("env", {})}
        environment = {**self.environment, **{name: self.filled(str(text)) for name, text in own.items()}}
        assert "${{" not in step["run"], "expressions in a shell text are injections waiting for an input"
        finished = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env=environment, cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in Path(environment["GITHUB_OUTPUT"]).read_text().splitlines():
            name, _, text = line.partition("=")
            self.outputs[f"steps.{step.get('id')}.outputs.{name}"] = text
        return finished

    @property
    def summary(self) -> str:
        return Path(self.environment["GITHUB_STEP_SUMMARY"]).read_text()


@pytest.fixture
def runner(tmp_path: Path, demo_repository: Repository) -> Runner:
    """A machine with git, bash and this Python, which can copy the demo framework's mirror from a folder."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("python", "pytest", "sentinel"):
        module = {"python": "", "pytest": "-m pytest", "sentinel": "-m sentinel.cli"}[name]
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tools / name).chmod(0o755)
    (tools / "pip").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/installed\n')
    (tools / "pip").chmod(0o755)
    seed = tmp_path / "seed"
    seed.mkdir()
    subprocess.run(["git", "clone", "-q", "--bare", str(demo_repository.path), str(seed / "demo")], check=True)
    for name in ("broken", "fixed"):
        command = ["git", "-C", str(seed / "demo"), "update-ref", f"refs/heads/{name}", demo_repository.commits[name]]
        subprocess.run(command, check=True)
    for name in ("home", "work", "temp"):
        (tmp_path / name).mkdir()
    for name in ("output", "summary"):
        (tmp_path / name).touch()
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "SENTINEL_HOME": str(tmp_path / "home" / "sentinel"),
        "SENTINEL_MIRROR_SEED": str(seed),
    }
    return Runner(tmp_path / "work", {"github.workspace": str(tmp_path / "home")}, environment)


def read(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load((ROOT / name).read_text()))


@pytest.mark.nightly
def test_the_nightly_run_passes_without_changes_and_lists_them(runner, tmp_path):
    workflow = read(".github/workflows/nightly.yml")
    job = workflow["jobs"]["upstream-main"]
    runner.values["inputs.targets"] = "demo"
    steps = {step["name"]: step for step in job["steps"] if "run" in step}
    recipes = tmp_path / "recipes"
    write_recipe(recipes, MASKED_TOKENS)
    runner.environment["PYTEST_ADDOPTS"] = f"--sentinel-recipes={recipes} --sentinel-laws=off"
    (runner.folder / "reports").mkdir()
    (runner.folder / "sentinel.toml").write_text(f'recipes = ["{recipes}"]\n')

    said: list[subprocess.CompletedProcess[str]] = []

    def night() -> dict[str, int]:
        said[:] = [runner.step(step, job["env"]) for step in steps.values()]
        return dict(zip(steps, (step.returncode for step in said), strict=True))

    check = "What changed, and with which commit"
    main_is(runner, "broken")
    first = night()
    assert first[check] == 1, said[2]  # nothing is recorded yet
    assert all(status == 0 for name, status in first.items() if name != check), said
    assert "not recorded" in runner.summary
    shutil.copytree(runner.folder / "nightly" / "demo", runner.folder / "reports" / "demo")
    tag(runner, "v1", "broken")
    assert set(night().values()) == {0}, said
    main_is(runner, "fixed")
    tag(runner, "v2", "fixed")
    third = night()
    assert set(third.values()) == {0}, said  # a fixed bug is reported and does not fail
    assert "newly fixed" in runner.summary
    last = runner.summary.rpartition("## Sentinel: what changed")[0]
    assert last.count("## Sentinel\n") == 2, "each night's run is told once, behind what changed"
    assert runner.summary.startswith("## Sentinel: what changed")
    assert rev(runner, "fixed")[:9] in runner.summary
    numbers = "What changes in the numbers since the last run, and with each release since"
    assert third[numbers] == 0, said[list(steps).index(numbers)]
    assert re.search(r"demo from git:\w+ .* to git:HEAD .* differ .*better", runner.summary)
    assert "demo from git:v1 " in runner.summary
    main_is(runner, "broken")
    assert night()[numbers] == 1, said[list(steps).index(numbers)]


def tag(runner: Runner, name: str, branch: str) -> None:
    seed = f"{runner.environment['SENTINEL_MIRROR_SEED']}/demo"
    subprocess.run(["git", "-C", seed, "tag", name, f"refs/heads/{branch}"], check=True)


def main_is(runner: Runner, name: str) -> None:
    seed = f"{runner.environment['SENTINEL_MIRROR_SEED']}/demo"
    subprocess.run(["git", "-C", seed, "update-ref", "refs/heads/main", f"refs/heads/{name}"], check=True)


def rev(runner: Runner, name: str) -> str:
    seed = f"{runner.environment['SENTINEL_MIRROR_SEED']}/demo"
    command = ["git", "-C", seed, "rev-parse", f"refs/heads/{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def guard(runner: Runner, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the action's shell steps. Return the result of the last one."""
    action = read("action.yml")
    defaults = {name: str(told.get("default", "")) for name, told in action["inputs"].items()}
    runner.values.update({f"inputs.{name}": text for name, text in {**defaults, **inputs}.items()})
    runner.values["github.action_path"] = str(ROOT)
    *before, last = [runner.step(step) for step in action["runs"]["steps"] if "run" in step]
    assert [step.returncode for step in before] == [0] * len(before), before
    return last


@pytest.fixture
def pull_request(runner: Runner, demo_repository: Repository) -> Runner:
    """A checkout of one commit, as `actions/checkout` makes it, of a pull request to the fixed revision."""
    base = demo_repository.commits["fixed"]
    copied = runner.folder.parent / "origin"
    subprocess.run(["git", "clone", "-q", str(demo_repository.path), str(copied)], check=True)
    demo_git(copied, "checkout", "-q", "-b", "pull", base)
    demo_git(copied, "commit", "-q", "--allow-empty", "-m", "pull")
    command = ["git", "clone", "-q", "--depth=1", "-b", "pull", f"file://{copied}", str(runner.folder)]
    subprocess.run(command, check=True)
    runner.values["github.event.pull_request.base.sha"] = base
    runner.environment |= {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(runner.folder)}
    return runner


def documented() -> dict[str, str]:
    """Return the action's inputs in the workflow of docs/ci.md, for the demo framework."""
    text = (ROOT / "docs" / "ci.md").read_text()
    workflow = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert workflow[True] == ["pull_request"]
    checkout, action = workflow["jobs"]["sentinel"]["steps"]
    assert checkout == {"uses": "actions/checkout@v4"}
    assert action["uses"] == "OWNER/SENTINEL@main"
    assert set(action["with"]) == {"sentinel-target"}
    return {**action["with"], "sentinel-target": "demo"}


@pytest.mark.slow
def test_the_documented_workflow_fails_for_a_bug_and_names_it(pull_request, tmp_path):
    same = guard(pull_request, **documented())
    assert same.returncode == 0, same.stdout + same.stderr
    assert "no signal line changed" in pull_request.summary
    copy_demo(pull_request.folder)
    worse = guard(pull_request, **documented())
    assert worse.returncode == 1, worse.stdout + worse.stderr
    line = next(line for line in pull_request.summary.split("\n") if "worse" in line)
    assert "demo&#95;rl.losses.agg&#95;loss" in line or "demo_rl.losses.agg_loss" in line
    assert "demo_rl/losses.py" in line
    assert re.search(
        r"^::error file=demo_rl/losses.py,line=\d+,endLine=\d+,title=worse%3A agg_loss", worse.stdout, re.M
    )
    sarif = json.loads((Path(pull_request.environment["RUNNER_TEMP"]) / "sentinel" / "sentinel.sarif").read_text())
    places = {
        place["physicalLocation"]["artifactLocation"]["uri"]
        for run in sarif["runs"] for result in run["results"] for place in result["locations"]
    }  # fmt: skip
    assert "demo_rl/losses.py" in places
    assert f"{ROOT}[targets]" in (tmp_path / "installed").read_text()


@pytest.mark.nightly
def test_the_action_passes_for_a_fix_and_warns_when_nothing_was_examined(pull_request):
    pull_request.values["github.event.pull_request.base.sha"] = demo_git(
        pull_request.folder.parent / "origin", "rev-parse", "pull~2"
    )
    better = guard(pull_request, **documented())
    assert better.returncode == 0, better.stdout + better.stderr
    assert "better: demo_rl.losses.agg_loss" in better.stdout


@pytest.mark.slow
def test_a_heads_configuration_is_not_used(pull_request, tmp_path):
    """The configuration files of pytest and Sentinel in the head have no effect."""
    attack = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    for name in (
        "conftest.py",
        "tests/conftest.py",
        "sitecustomize.py",
        "evil.py",
        "sentinel.py",
        "pytest.py",
        "torch.py",
    ):
        (pull_request.folder / name).parent.mkdir(exist_ok=True)
        (pull_request.folder / name).write_text(attack)
    (pull_request.folder / "pytest.ini").write_text("[pytest]\naddopts = -p evil\npythonpath = .\n")
    (pull_request.folder / "sentinel.toml").write_text('bug = "NO-SUCH"\npython = "./evil"\nlaws = "off"\n')
    done = guard(pull_request, **documented())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no signal line changed" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_the_reusable_workflow_is_the_action_at_its_own_commit():
    """Nothing is on PyPI, so the workflow must install the commit that the caller named."""
    *checkouts, action = read(".github/workflows/guard.yml")["jobs"]["guard"]["steps"]
    own = next(step for step in checkouts if step["with"]["path"] == "sentinel")
    assert own["with"]["repository"] == "${{ job.workflow_repository }}"
    assert own["with"]["ref"] == "${{ job.workflow_sha }}"
    assert action["uses"] == "./sentinel"
    assert action["with"]["repo"] in [step["with"]["path"] for step in checkouts]
    inputs, known = set(action["with"]), read("action.yml")["inputs"]
    assert set(read(".github/workflows/guard.yml")[True]["workflow_call"]["inputs"]) <= inputs <= set(known)


@pytest.mark.parametrize("name", ["action.yml", *(f".github/workflows/{w}.yml" for w in ("nightly", "pages"))])
def test_workflows_require_strict_containment(name):
    """Without namespaces, a run ends without evidence, and the comparison with its base fails."""
    document = read(name)
    jobs = document.get("jobs", {"": document.get("runs")}).values()
    shell = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    runs = [text for text in shell if "--sentinel-target" in text or "sentinel contribute" in text]
    assert runs
    assert all(
        "--sentinel-sandbox=strict" in text or """'sandbox = "strict"' > sentinel.toml""" in text for text in runs
    )


def test_one_file_states_how_to_install():
    """Only ``sentinel.errors.INSTALL`` says how to install Sentinel."""
    told = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = [ROOT / name for name in told if name.endswith((".py", ".md", ".yml", ".html", ".js", ".toml"))]
    promise = re.compile(r"pip3? install [^\n]*rl[-_]sentinel|rl-sentinel(\[\w+\])?==")
    telling = [file for file in files if file.is_file() and promise.search(file.read_text(encoding="utf-8"))]
    assert telling == [ROOT / "sentinel" / "errors.py"]


@pytest.mark.nightly
def test_the_pre_commit_hooks_run(pull_request):
    demo_git(pull_request.folder, "fetch", "-q", "--unshallow", "origin", "+main:refs/remotes/upstream/main")
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    run = f"{hooks['sentinel']['entry']} --sentinel-target=demo"
    assert pull_request.step({"run": run}).returncode == 0
    copy_demo(pull_request.folder)
    assert pull_request.step({"run": run}).returncode == 1
    files = re.compile(hooks["sentinel-recipes"]["files"])
    assert files.match("recipes/verl/X.yaml")
