"""The pytest plugin in separate processes: cost for other projects, xdist, parallel runs, Ctrl-C."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, copy_demo, gone, write_recipe

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]

#: Modules that only a run with Sentinel may load.
HEAVY = (
    "torch",
    "hypothesis",
    "numpy",
    "git",
    "yaml",
    "jsonschema_rs",
    "rich",
    "transformers",
    "sentinel.run.session",
    "sentinel.recipes",
    "sentinel.recipes.catalog",
)


@pytest.fixture
def folder(tmp_path: Path, demo_home: Path, demo_repository: Repository) -> Path:
    """An empty folder of a user, with recipes in ``mine``."""
    commits = demo_repository.commits
    pins = [
        {"ref": f"git:{commits[name]}", "expect": verdict}
        for name, verdict in (("early", "reproduced"), ("broken", "reproduced"), ("fixed", "fixed"))
    ]
    place = tmp_path / "user"
    write_recipe(place / "mine", MASKED_TOKENS, pins=pins)
    write_recipe(place / "mine", REJECTED_ROW, pins=pins)
    return place


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


def test_a_run_without_sentinel_loads_and_prints_nothing(tmp_path):
    (tmp_path / "test_own.py").write_text(
        f"import sys\n\ndef test_own():\n    assert not [name for name in {HEAVY!r} if name in sys.modules]\n"
    )
    at_the_end = f"    print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)\n"
    (tmp_path / "conftest.py").write_text(f"import sys\n\ndef pytest_unconfigure():\n{at_the_end}")
    # Plugins of installed packages that load more.
    others = ("-p", "no:jaxtyping", "-p", "no:anyio", "-p", "no:hypothesispytest")
    status, with_plugin = finish(start(tmp_path, "-q", *others))
    assert status == 0, with_plugin
    assert not set(HEAVY) & set(with_plugin.split())
    _, without = finish(start(tmp_path, "-q", *others, "-p", "no:sentinel"))
    assert [line.partition(" in ")[0] for line in with_plugin.splitlines()] == [
        line.partition(" in ")[0] for line in without.splitlines()
    ]


FOREIGN = {
    "conftest.py": """
import pytest

class Entries(pytest.File):
    def collect(self):
        return [Entry.from_parent(self, name="entry")]

class Entry(pytest.Item):
    def runtest(self):
        assert self.path.read_text()

def pytest_collect_file(file_path, parent):
    return Entries.from_parent(parent, path=file_path) if file_path.suffix in (".json", ".yaml") else None

def pytest_sessionfinish(session):
    print("hypothesis plugin:", session.config.pluginmanager.hasplugin("hypothesispytest"))
""",
    "test_drawn.py": """
from hypothesis import given, strategies

@given(strategies.integers())
def test_drawn(number):
    assert number == number
""",
    "laws/unit/test_law.py": "def test_law():\n    pass\n",
    "data.json": '{"bug_id": 5}',
    "recipes/cake.yaml": "flour: 1",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--hypothesis-show-statistics",),
        ("laws/unit/test_law.py::test_law", "data.json", "recipes/cake.yaml"),
        ("laws/unit/test_absent.py::test_law", "laws/absent/test_law.py", "absent.json"),
    ],
    ids=" ".join,
)
def test_another_projects_tests_run_as_without_the_plugin(tmp_path, arguments):
    """Its files may have any names, and its Hypothesis tests keep their plugin."""
    for name, text in FOREIGN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def lines(*more: str) -> list[str]:
        _, text = finish(start(tmp_path, "-v", "-p", "no:cacheprovider", *arguments, *more))
        varying = re.compile(r"Typical runtimes: [^,]*|plugins: .*|metadata: .*|[\d.]+ ?m?s\b|~ [\d.]+|=+")
        return [varying.sub("", line) for line in text.splitlines() if "generate phase" not in line]

    with_sentinel = lines()
    assert with_sentinel == lines("-p", "no:sentinel")
    assert "hypothesis plugin: True" in "\n".join(with_sentinel)


@pytest.mark.slow
def test_a_gate_without_changes_loads_neither_torch_nor_hypothesis(tmp_path, demo_home, demo_repository):
    """Each takes longer to import than the whole run."""
    tree = tmp_path / "clone"
    demo_repository.git("clone", "-q", str(demo_repository.path), str(tree))
    user = tmp_path / "user"
    user.mkdir()
    loaded = "[name for name in ('torch', 'hypothesis') if name in sys.modules]"
    (user / "conftest.py").write_text(f"import sys\n\ndef pytest_unconfigure():\n    print('LOADED', {loaded})\n")
    others = ("-p", "no:jaxtyping", "-p", "no:anyio")  # plugins of installed packages that load more
    status, text = finish(start(user, "--sentinel-target=demo", f"--sentinel-repo={tree}", *others))
    assert status == 0, text
    assert "no signal line changed" in text
    assert "LOADED []" in text


@pytest.mark.slow
def test_under_xdist_only_the_controller_reports(folder):
    pytest.importorskip("xdist")
    write_recipe(
        folder / "mine",
        {**MASKED_TOKENS, "bug_id": "DEMO-ABSENT"},
        pins=[{"ref": "git:" + "0" * 40, "expect": "fixed"}],
    )
    options = ("-n", "2", "--junitxml=out.xml", "-rsx", "-W", "error")
    status, text = finish(start(folder, "--sentinel-recipes=mine", *options))
    assert status == 0, text
    assert "2 passed, 1 skipped, 4 xfailed" in text
    assert text.count(f" - {MASKED_TOKENS['title']}") == 2
    assert text.count("evidence: sentinel-reports") == 1
    run = json.loads((folder / "sentinel-reports" / "run.json").read_text())
    assert run["totals"]["outcomes"] == {"passed": 2, "skipped": 1, "xfailed": 4}
    assert 'tests="7"' in (folder / "out.xml").read_text()


@pytest.mark.slow
def test_under_xdist_a_fix_is_named(folder, demo_repository):
    pytest.importorskip("xdist")
    commits = demo_repository.commits
    refs = (f"--sentinel-ref=git:{commits['fixed']}", f"--sentinel-against=git:{commits['broken']}")
    options = ("--sentinel-target=demo", "--sentinel-recipes=mine", "--sentinel-laws=off", "-n", "2", "-k", "yaml")
    status, text = finish(start(folder, *options, *refs))
    assert status == 0, text
    assert text.count("fixed: DEMO-MASKED-TOKENS, reproduced at git:") == 1


@pytest.mark.nightly
def test_under_xdist_laws_have_the_same_results(folder, tmp_path):
    pytest.importorskip("xdist")
    tree = copy_demo(tmp_path / "broken")
    laws = ("laws/demo/demo_rl.losses.agg_loss", f"--sentinel-repo={tree}", "--sentinel-target=demo")
    evidence = []
    for workers, name in (("0", "alone"), ("2", "both")):
        status, text = finish(start(folder, *laws, "-n", workers, "--dist=loadgroup", f"--sentinel-report-dir={name}"))
        assert status == 1, text
        assert " failed, " in text
        found = sorted((folder / name).glob("demo/laws/*/*/*.json"))
        evidence.append({file.relative_to(folder / name): file.read_bytes() for file in found})
    assert evidence[0] == evidence[1]
    assert len(evidence[0]) > 5


@pytest.mark.nightly
def test_under_xdist_deciding_nothing_fails(folder, tmp_path, monkeypatch):
    pytest.importorskip("xdist")
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "empty"))
    status, text = finish(start(folder, "--sentinel-recipes=mine", "-n", "1"))
    assert "6 skipped" in text
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED, text


@pytest.mark.nightly
def test_two_concurrent_runs_agree(folder, tmp_path, demo_repository, monkeypatch):
    """With one report folder and an empty store, both decide everything, write the same, and do not load torch."""
    from sentinel.recipes.catalog import bundled_catalog
    from sentinel.sources import Home, MirrorStore

    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "cold"))
    MirrorStore(Home(tmp_path / "cold")).add(bundled_catalog().targets["demo"], str(demo_repository.path))
    loaded = "[name for name in ('torch', 'transformers', 'demo_rl') if name in sys.modules]"
    (folder / "conftest.py").write_text(f"import sys\n\ndef pytest_unconfigure():\n    print('LOADED', {loaded})\n")
    runs = [start(folder, "--sentinel-recipes=mine", "-q") for _ in range(2)]
    for status, text in map(finish, runs):
        assert status == 0, text
        assert "LOADED []" in text
        assert "2 passed, 4 xfailed" in text
    written = sorted((folder / "sentinel-reports" / "demo").rglob("*"))
    assert [path.name for path in written if path.is_file() and path.suffix != ".json"] == []
    assert len([path for path in written if path.suffix == ".json"]) == 6


WAITING = """
import os
import signal

def agg_loss(loss_mat, loss_mask, loss_agg_mode):
    for pid in (os.getpid(), os.getppid()):
        with open({pipe!r}, "w") as file:
            file.write(f"{{pid}}\\n")
    while True:
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_ctrl_c_during_a_run_keeps_its_verdicts(times, folder, tmp_path, monkeypatch):
    """Files that exist by then are complete, and no process is left."""
    tree = copy_demo(tmp_path / "waiting")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tree / "demo_rl" / "losses.py").write_text(WAITING.format(pipe=str(pipe)))
    scratch = own_scratch(tmp_path, monkeypatch)
    seen = "--sentinel-sandbox=basic"  # under strict containment, it has no access to the pipe and other process ids
    process = start(folder, "--sentinel-recipes=mine", f"--sentinel-repo={tree}", "-v", seen)
    pids = []
    own = os.open(pipe, os.O_RDWR)  # opening does not block if no probe comes
    while len(pids) < 2:  # the probe writes its process id and then hangs
        assert select.select([own], [], [], 60)[0], finish(process)
        pids += [int(line) for line in os.read(own, 100).split()]
    os.close(own)
    preloader = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
    for _ in range(times):
        process.send_signal(signal.SIGINT)
    status, text = finish(process)
    # The second signal may arrive while pytest handles the first. Python then ends with status 1 or by the signal.
    assert status in (pytest.ExitCode.INTERRUPTED, *([1, -signal.SIGINT] if times == 2 else [])), text
    assert times == 2 or "sentinel: the run was interrupted" in text
    assert all(gone(pid) for pid in (*pids, preloader))
    assert list(scratch.iterdir()) == []
    for file in (folder / "sentinel-reports").rglob("*"):
        if file.is_file() and file.name != ".gitignore":
            assert file.suffix == ".json"
            json.loads(file.read_text())


@pytest.mark.slow
def test_ctrl_c_during_the_import_of_torch_ends_the_run(folder, tmp_path, monkeypatch):
    scratch = own_scratch(tmp_path, monkeypatch)
    process = start(folder, "--sentinel-recipes=mine", "-v")
    while "collected" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    status, text = finish(process)
    assert status == pytest.ExitCode.INTERRUPTED, text
    assert list(scratch.iterdir()) == []


def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the run's worker, which is removed when the worker ends."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder
