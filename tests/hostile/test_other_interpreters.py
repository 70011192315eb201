"""Another environment (``--sentinel-python``) whose files attack when its interpreter starts."""

import contextlib
import json
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_kit import SECRETS, Lab, copy_demo, gone, returned

from sentinel.deciding.pool import contained_places
from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker import interpreters
from sentinel.worker.client import Options, Preloader, WorkerError

#: A program that a ``.pth`` file starts in any interpreter of the environment. It reports on standard error.
ATTACK = """
import json, os, socket, sys, time

def tried(action):
    try:
        action()
    except BaseException as error:
        return type(error).__name__
    return "done"

def daemon():
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
        os._exit(0)

if os.environ.get("TMPDIR"):  # in a preloader, and not in whoever prepares this
    print("told", json.dumps({{
        "read": tried(lambda: open({secret!r}).read()),
        "write": tried(lambda: open({secret!r}, "w")),
        "recipes": tried(lambda: os.listdir({recipes!r})),
        "checkout": tried(lambda: open({checkout!r}, "w")),
        "connect": tried(lambda: socket.create_connection(("127.0.0.1", {port}), timeout=5).close()),
        "signal": tried(lambda: os.kill({pid}, 0)),
        "daemon": tried(daemon),
        "environment": sorted(os.environ),
        "user": [os.getuid(), [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0]],
    }}), file=sys.stderr)
"""


@pytest.fixture
def wrapped() -> None:
    reason = interpreters.reason_against()
    if reason:
        pytest.skip(f"no interpreter can be contained from its start here: {reason}")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment with access to this one's packages."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    packages = "\n".join(dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))
    (_packages(tmp_path / "env") / "these.pth").write_text(packages)
    return tmp_path / "env"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def started(
    environment: Path, tmp_path: Path, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Preloader]]:
    """Return a function that starts the worker of an attacking environment."""
    preloaders = []
    tree = copy_demo(tmp_path / "lab" / "demo")
    (tmp_path / "secret").write_text("secret")
    attack = ATTACK.format(
        secret=str(tmp_path / "secret"),
        recipes=str(bundled("recipes") / "verl"),
        checkout=str(tree / "attacked"),
        port=server.getsockname()[1],
        pid=os.getpid(),
    )
    (_packages(environment) / "attack.py").write_text(attack)
    (_packages(environment) / "attack.pth").write_text("import attack")
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    places = contained_places(bundled_catalog())
    # The readable packages are those of this environment, because the .pth file of the other environment is untrusted.
    seen = (*places.readable, sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    places = replace(places, readable=seen, checkouts=(str(tmp_path / "lab"),))

    def start(sandbox: str) -> Preloader:
        options = Options(timeout=30, sandbox=sandbox, python=str(environment / "bin" / "python"))
        preloaders.append(Preloader(options, [], places))
        preloaders[-1].hello()
        return preloaders[-1]

    yield start
    for preloader in preloaders:
        preloader.stop()


def _packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def _told(preloader: Preloader) -> dict[str, Any]:
    preloader._log.seek(0)
    lines = preloader._log.read().decode().splitlines()
    return dict(json.loads(next(line for line in lines if line.startswith("told ")).removeprefix("told ")))


def test_start_up_code_of_an_environment_is_contained(wrapped, started, tmp_path):
    told = _told(started("strict"))
    assert told["read"] == told["recipes"] == "FileNotFoundError"
    assert {told["write"], told["checkout"]} <= {"OSError", "PermissionError"}
    assert told["connect"] in ("OSError", "ConnectionRefusedError")  # nothing listens on its loopback interface
    assert told["signal"] == "ProcessLookupError"
    assert not {*told["environment"]} & {*SECRETS}
    user, capabilities = told["user"]
    assert user != 0
    assert int(capabilities, 16) == 0
    assert (tmp_path / "secret").read_text() == "secret"


def test_start_up_code_is_not_contained_under_basic(started):
    told = _told(started("basic"))
    assert [told[name] for name in ("read", "recipes", "checkout", "connect", "signal")] == ["done"] * 5


def test_processes_of_start_up_code_end_with_the_worker(wrapped, started):
    preloader = started("strict")
    process, scratch = preloader._process, preloader._scratch
    assert scratch is not None
    inside = _below(process.pid)
    assert len(inside) >= 3  # the namespace's first process, the worker, its daemon
    preloader.stop()
    assert all(map(gone, inside))
    assert not Path(scratch).exists()


def test_a_worker_that_is_killed_is_replaced(wrapped, started, tmp_path):
    preloader = started("strict")
    lab = Lab(preloader, tmp_path / "lab", sandbox="strict")
    first = preloader._process
    assert returned(lab.call({"mod.py": "def f():\n    return 7\n"}, "pkg.mod.f")) == 7
    for pid in reversed(_below(first.pid)):  # the first one ends after the others
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"ended: it was killed by SIGKILL"):
        preloader.require(["json"])
    assert returned(lab.call({}, "pkg.mod.f")) == 7


def test_no_process_survives_a_killed_controller(wrapped, environment, tmp_path, monkeypatch):
    """The contained processes see that their socket is closed. Their folder is removed too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = """
import os, signal, sys
from sentinel.worker.client import Options, Places, Preloader
preloader = Preloader(Options(timeout=30, python=sys.argv[1]), [], Places(readable=sys.argv[2:]))
preloader.hello()
print(preloader._process.pid, preloader._scratch, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    command = [sys.executable, "-c", script, str(environment / "bin" / "python"), *packages]
    pid, scratch = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    assert gone(int(pid))
    assert not Path(scratch).exists()


def test_probes_of_another_interpreter_are_contained_again(wrapped, started, tmp_path):
    lab = Lab(started("strict"), tmp_path / "lab", sandbox="strict")
    source = """
import os, socket
def tell(path):
    numbers = [name for name in os.listdir("/proc") if name.isdigit()]
    return [os.path.exists(path), len(numbers), os.getcwd()]
def spin():
    if os.fork() == 0:
        while True: pass
    return 7
"""
    process = lab.open(lab.write({"mod.py": source}))
    found, processes, folder = returned(lab.probe(process, "pkg.mod.tell", path=str(tmp_path / "lab" / "demo")))
    assert (found, processes) == (False, 2)  # the target process and the worker
    assert folder.startswith(str(lab.preloader._scratch))
    assert returned(lab.probe(process, "pkg.mod.spin")) == 7
    process.close()
    assert gone(process._leader.pid)


def test_package_locations_are_queried_in_containment(wrapped, environment, tmp_path):
    packages = _packages(environment)
    (packages / "demo_rl").mkdir()
    (packages / "demo_rl" / "__init__.py").write_text("")
    (packages / "attack.pth").write_text(f"import os; open({str(tmp_path / 'mark')!r}, 'w')")
    demo = bundled_catalog().targets["demo"]
    python = environment / "bin" / "python"
    made = open_checkout(demo, Ref("installed"), store=MirrorStore(Home(tmp_path / "home")), python=str(python))
    assert (made.path / "demo_rl" / "__init__.py").is_file()
    assert not (tmp_path / "mark").exists()
    subprocess.run([python, "-c", ""], check=False)
    assert (tmp_path / "mark").exists()  # without containment it runs


def _below(pid: int) -> list[int]:
    """Return the ids, in this process's PID namespace, of a process's descendants."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *_below(child)]
    return found


def test_packages_of_the_user_are_visible(wrapped, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "base"))
    (tmp_path / "base" / "lib").mkdir(parents=True)
    script = f"import json, os; print(json.dumps(os.listdir({str(tmp_path / 'base')!r})))"
    assert interpreters.ask(
        str(Path(os.path.realpath(site.__file__)).parents[2] / "bin" / "python3"), "-c", script
    ) == ["lib"]
