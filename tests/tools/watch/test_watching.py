"""A run of the demo framework is watched: violations are reported, right functions are not, and nothing else
changes."""

import contextlib
import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
import torch

import sentinel.tools.watch
from sentinel.cli import main
from sentinel.recipes.affects import RECORDED
from sentinel.recipes.catalog import bundled_catalog
from sentinel.tools.watch import checker, link, meeting, replay, training
from sentinel.tools.watch.wrapping import Budget, Plan
from sentinel.values.documents import read
from sentinel.worker.client import Preloader
from tests.demo_kit import FRAMEWORK

#: Trains on the framework's advantages until a call is copied. Without watching, trains for the same number of steps.
_RUN = """
import json, sys, time
sys.path[:0] = [{framework!r}]
import torch
from demo_rl import advantages
import sentinel.tools.watch
watching = sentinel.tools.watch.start("demo", {events!r}, every=1) if {watched} else None

torch.manual_seed(0)
weight = torch.zeros(4, 3, requires_grad=True)
mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
steps, until = 0, time.monotonic() + 120
while steps < 50 or (watching and not watching.watcher.calls and time.monotonic() < until):
    rewards = torch.rand(4, 3)
    found, _ = advantages.group_advantage(rewards * mask + 0.1, mask, ["p", "p", "p", "p"])
    if steps < 50:
        (weight * found).sum().backward()
    else:
        time.sleep(0.01)  # the checker is starting
    steps += 1
if watching:
    watching.stop()
print(json.dumps({{"weight": weight.grad.flatten().tolist(), **(watching.counts if watching else {{}})}}))
"""


def _run(tmp_path: Path, kind: str, watched: bool = True) -> tuple[dict[str, Any], str]:
    framework = tmp_path / kind
    if not framework.exists():
        framework.mkdir()
        (framework / "demo_rl").symlink_to(FRAMEWORK / kind / "demo_rl")
    script = tmp_path / "run.py"
    script.write_text(
        _RUN.format(framework=str(framework), events=str(tmp_path / f"{kind}.jsonl"), watched=watched), encoding="utf-8"
    )
    ran = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=240, check=True, cwd=tmp_path
    )
    return json.loads(ran.stdout), ran.stderr


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp("watched")
    return *_run(folder, "broken"), folder


@pytest.mark.slow
def test_a_violation_is_printed_and_written(broken):
    counts, said, folder = broken
    laws = {item["law"] for item in counts["violations"]}
    assert "the_oracle_agrees" in laws
    assert "does not hold: demo_rl.advantages.group_advantage, call " in said
    assert "1 function watched: one call in 1 of each function is copied, using at most 1% of the run's time\n" in said
    assert "\n  in group_advantage (demo_rl/advantages.py:" in said
    assert "\n  try: sentinel watch replay broken.jsonl, to reproduce and shrink this call" in said
    assert "kinds of violation: the_oracle_agrees (step 0), " in said
    assert said.index("function watched: one") < said.index("does not hold")
    assert "without texts and group names" in said
    *events, end = [json.loads(line) for line in (folder / "broken.jsonl").read_text(encoding="utf-8").splitlines()]
    schema = json.loads((Path(sentinel.__file__).parent / "schemas" / "events.schema.json").read_text(encoding="utf-8"))
    for event in (*events, end):
        jsonschema_rs.validate(schema, event)
    assert {event["event"] for event in events} == {"violation"}
    assert {event["boundary"] for event in events} == {"demo_rl.advantages.group_advantage"}
    assert end["event"] == "end"
    assert counts["read"] >= 1
    first = next(event for event in events if event["law"] == "the_oracle_agrees")
    assert first["rank"] == 1
    assert first["variants"][""]["group"] == ["0", "0", "0", "0"], "labels are the user's own"


Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(
    warm_runs: Preloader, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Said:
    """Return ``said(*words)``, which runs the command in this process and returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["watch", *map(str, words)]), *capsys.readouterr()

    return run


@pytest.mark.slow
def test_replay_measures_a_violation_again_and_writes_a_recipe(broken, tmp_path, said, monkeypatch):
    monkeypatch.setattr(replay, "_SHRINKING", 20)
    words = ["replay", broken[2] / "broken.jsonl", "--ref"]
    status, _, wrong = said(*words, f"path:{FRAMEWORK / 'broken'}", "--save", "saved")
    assert status == 1, wrong
    recipes = [read(file).data for file in (tmp_path / "saved").iterdir()]
    first = next(recipe for recipe in recipes if recipe["invariant"] == "the_oracle_agrees")
    assert "seen in a run of demo" in first["reach"]["how"]
    assert len(first["scenario"]["response_mask"]) < 4, "what was captured has four rows"
    status, kept, wrong = said(*words, f"path:{FRAMEWORK / 'fixed'}")
    assert status == 0, wrong
    assert "the violation occurs only in the run" in kept


@pytest.mark.slow
def test_watching_changes_no_parameter(broken):
    counts, _, folder = broken
    assert _run(folder, "broken", watched=False)[0]["weight"] == counts["weight"]


@pytest.mark.slow
def test_a_right_function_is_not_reported(tmp_path):
    counts, said = _run(tmp_path, "fixed")
    assert counts["read"] >= 1
    assert counts["laws"] >= 1
    assert counts["violations"] == []
    assert "does not hold" not in said


@pytest.mark.nightly
def test_a_killed_checker_costs_only_its_checks(tmp_path):
    (tmp_path / "demo_rl").symlink_to(FRAMEWORK / "fixed" / "demo_rl")
    script = (
        "import os, sys, torch\nimport sentinel.tools.watch\nsys.path[:0] = [sys.argv[1]]\n"
        "watching = sentinel.tools.watch.start('demo', 'events.jsonl', every=1)\n"
        "os.kill(watching.checker, 9)\nfrom demo_rl.advantages import group_advantage\n"
        "ones = torch.ones(2, 2)\n"
        "for _ in range(1000):\n    group_advantage(ones, ones.int(), ['p', 'p'])\n"
        "watching.stop()\nprint('trained', watching.counts)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    assert ran.stdout == "trained {}\n"
    assert ran.stderr == "sentinel watch: this process is no longer watched: the checker has ended\n"


@pytest.mark.parametrize("end", ["hangs", "dies", "says nonsense", "lies", "plans what is not there"])
@pytest.mark.parametrize("point", ["at once", "with the modules", "with a plan", "with a call"])
def test_a_hanging_or_ended_checker_costs_only_its_checks(monkeypatch, tmp_path, point, end):
    """The checker fails at each point of the protocol. If it hangs, it no longer reads, and its socket becomes full."""
    ours, theirs = Pipe()
    module: Any = ModuleType("ending_rl")
    exec("def double(x):\n    return 2 * x\n", module.__dict__)
    code = module.double.__code__
    monkeypatch.setitem(sys.modules, "ending_rl", module)
    monkeypatch.setattr(link, "PATIENCE", 0.2)
    monkeypatch.setattr(link.Watching, "_connect", lambda *_: ours)
    watching = link.Watching("demo", ("ending_rl",), tmp_path / "events.jsonl", Budget(share=1.0, every=1))
    ones = torch.ones(1 << 18)

    def heard(kind: str) -> None:
        while theirs.recv()[0] != kind:
            pass

    if point != "at once":
        heard("modules")
    if point in ("with a plan", "with a call"):
        plan = Plan(0, "ending_rl.double", ("ending_rl", "double"), (("x",),))
        theirs.send(("plan", plan))
        heard("watched")
    if point == "with a call":
        module.double(ones)
        heard("call")
    if end == "dies":
        theirs.close()
    if end == "says nonsense":
        theirs.send_bytes(b"nonsense")
    if end == "lies":
        theirs.send(("plan", 7))
    if end == "plans what is not there":
        for name, path in (("double", ("y", (".", "z"))), ("nothing", ("x",)), ("double.__code__", ("x",))):
            theirs.send(("plan", Plan(1, "other", ("ending_rl", name), (path,), {"m": ("ending_rl", "m")}, (path,))))
    assert all(torch.equal(module.double(ones), 2 * ones) for _ in range(20))
    watching.stop()
    assert module.double.__code__ is code
    assert watching.counts == {}
    theirs.close()


@pytest.mark.parametrize(("late", "why"), [(60.0, "it was killed, or ended without"), (-1.0, "the checker was busy")])
def test_a_process_that_ends_without_a_report_is_named(tmp_path, capfd, monkeypatch, late, why):
    """The thread of a rank may have died; "0 kinds of violation" must not hide that."""
    monkeypatch.setattr(checker, "_LATE", late)
    ours, theirs = Pipe()
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    one.attach(theirs)
    ours.send(("process", 7, 1, "rate"))
    ours.close()
    one.serve()
    said = capfd.readouterr().err
    assert "process 7, rank 1 ended without a report: " in said
    assert why in said
    (end,) = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(end)["lost"] == [7]


def test_a_checker_receives_all_messages_before_it_checks_the_first(tmp_path, monkeypatch):
    """Otherwise the end of a run would have to wait for slow checks, and its last calls would be lost."""
    ours, theirs = Pipe()
    left: list[bool] = []
    monkeypatch.setattr(checker.Checker, "_take", lambda *_: left.append(theirs.poll()))
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    one.attach(theirs)
    for _ in range(5):
        ours.send(("process", 7, 1, "rate"))
    ours.send(("end", {}))
    one.serve()
    assert left == [False] * 5


def test_a_process_that_the_command_stops_is_not_reported_as_lost(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(meeting.tempfile, "gettempdir", lambda: str(tmp_path))
    place = meeting.address(["demo"], ())
    place = place.with_name(f"9{place.name}")
    meeting.mark_stopped("9")
    ours, theirs = Pipe()
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    one.attach(theirs)
    ours.close()
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        one.serve(listening, place)
    assert "without a report" not in capfd.readouterr().err
    meeting.mark_stopped("9", False)
    assert not meeting.is_stopped(place)


def test_the_summary_says_in_how_many_steps_something_was_compared(tmp_path, capfd):
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    ours, theirs = Pipe()
    one.attach(theirs)
    ours.send(("event", training.Event("facts", 0, 0, _FACTS)))
    for step in (0, 0, 7):
        ours.send(("event", training.Event("generated", step, 0, {"temperature": (1.0, 0.5)})))
    ours.send(("end", {"steps": 12}))
    one.serve()
    assert "checked: 1 invariant 3 times, in 2 of 12 steps; laws 0 times" in capfd.readouterr().err


def test_a_call_that_another_contract_of_its_function_reads_counts_as_read(tmp_path):
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    places = {0: "demo_rl.loss", 1: "demo_rl.loss", 2: "demo_rl.advantages"}
    one._readings = {number: SimpleNamespace(boundary=SimpleNamespace(path=path)) for number, path in places.items()}
    one._read[0] = 3
    one._unread[0]["a mask is missing"] = 1
    one._unread[1]["beta is 0.2, but 0.0 in the adapter's call"] = 4
    one._unread[2]["index is missing"] = 2
    counts = one._summary()
    assert counts["not_read"] == {"index is missing": 2, "a mask is missing": 1}
    assert (counts["copied"], counts["read"], counts["called"]) == (6, 3, {"demo_rl.loss": 3})


@pytest.mark.parametrize("last", [{"seconds": 0.25}, None])
def test_the_time_of_a_run_is_left_out_if_a_process_did_not_report_it(tmp_path, capfd, last):
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    pipes = [Pipe() for _ in range(2)]
    for _, theirs in pipes:
        one.attach(theirs)
    (first, _), (second, _) = pipes
    for kind, values in (("facts", _FACTS), ("generated", {"temperature": (1.0, 0.5)})):
        first.send(("event", training.Event(kind, 0, 0, values)))
    first.send(("end", {"seconds": 0.5}))
    if last is not None:
        second.send(("end", last))
    second.close()
    one.serve()
    said, end = capfd.readouterr().err, json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert ("this took 0.75 s of the run" in said, "this took" in said) == (last is not None, last is not None)
    assert end.get("seconds") == (0.75 if last else None)


def test_a_living_checker_is_waited_for(tmp_path, monkeypatch):
    """A busy machine may delay a checker by minutes. A killed checker is not alive, although its socket file stays."""
    monkeypatch.setattr(meeting.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(meeting, "LONG_PATIENCE", 0.0)
    place = meeting.address(["demo"], ())
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        with meeting._alone(place) as short:
            listening.bind(short)
        listening.listen()
        assert meeting.is_alive(place)
    assert place.exists()
    assert not meeting.is_alive(place)


def test_a_trainers_module_is_attached_before_its_import_returns(tmp_path, monkeypatch):
    (tmp_path / "early_rl.py").write_text("made = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[Any] = []
    finder = link._Attaching({"early_rl"}, lambda: seen.append(sys.modules["early_rl"].made))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.import_module("early_rl").made == 1
    monkeypatch.delitem(sys.modules, "early_rl")
    assert seen == [1]


def test_a_dying_thread_reports_its_end(monkeypatch, tmp_path, capfd):
    def fails(*_: Any) -> None:
        raise SystemExit("no more")

    ours, theirs = Pipe()
    monkeypatch.setattr(link.Watching, "_connect", lambda *_: ours)
    monkeypatch.setattr(link.Training, "attach", fails)
    watching = link.Watching("demo", ("ending_rl",), tmp_path / "events.jsonl", Budget())
    watching._thread.join(10)
    assert "this process is no longer watched: SystemExit: no more" in capfd.readouterr().err
    watching.stop()
    with pytest.raises(EOFError):  # the messages that it had sent, then the end
        [theirs.recv() for _ in range(10)]


#: The message of a run about its trainer.
_FACTS = {"class": "demo.Trainer", "own": {}, "changed": [], "random": [],
    "scaler": False, "distributed": "NO", "options": {}, "loss_function": False, "smoothing": False,
    "generation": [], "callbacks": {}, "places": {}, "collator": "", "given": {},
    "weights_swap": False}  # fmt: skip


def test_an_invariant_that_does_not_apply_is_printed_with_the_reason(tmp_path, capfd):
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    ours, theirs = Pipe()
    one.attach(theirs)
    facts = {**_FACTS, "own": {"training_step": "Mine.training_step"}}
    for step in range(2):
        ours.send(("event", training.Event("facts", step, 0, facts)))
    ours.send(("end", {}))
    one.serve()
    said = capfd.readouterr().err
    assert len(re.findall(r"Trainer: \d+ of all \d+ invariants will be checked; \d+ need a part that ", said)) == 1
    assert len(re.findall(r"not checked: .*: the adapter does not document demo.Trainer\n", said)) == 2
    assert len(re.findall(r"not checked: .*, micro_batches_add_up.*: Mine.training_step is your own\n", said)) == 2
    assert len(re.findall(r"not checked: .*: no checked step had values to compare\n", said)) == 1
    assert max(map(len, said.splitlines())) < 250
    assert "nothing was examined" in said
    assert "kinds of violation" not in said, "which would look like an all-clear"


def test_the_settings_of_a_run_are_written_with_their_classes(tmp_path):
    class Options:
        def __init__(self) -> None:
            self.beta, self.output_dir, self.kind = 0.1, "out", None

    class Mine(Options): ...

    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    ours, theirs = Pipe()
    one.attach(theirs)
    ours.send(("event", training.Event("configuration", 0, 0, training.configuration_of(Mine()))))
    ours.send(("end", {}))
    one.serve()
    written = json.loads((tmp_path / "events.config.json").read_text())
    assert written == {RECORDED: ["Mine", "Options"], "beta": 0.1, "kind": None}


def test_a_loss_of_the_users_is_the_reason_why_nothing_was_examined(tmp_path, capfd):
    one = checker.Checker(bundled_catalog(), "demo", tmp_path / "events.jsonl")
    ours, theirs = Pipe()
    one.attach(theirs)
    facts = {
        "class": "demo.Trainer",
        "own": {"compute_loss": "Mine.compute_loss"},
        "changed": [],
        "random": [],
        "scaler": False,
        "distributed": "NO",
        "options": {},
        "loss_function": False,
        "smoothing": False,
        "generation": [],
        "callbacks": {},
        "places": {},
        "collator": "",
        "given": {},
        "weights_swap": False,
    }
    ours.send(("watched", 0, ""))
    ours.send(("event", training.Event("facts", 0, 0, facts)))
    rates = {"rates": [], "last": [], "initial": [], "theirs": True, "scheduled": None, "sums": {}, "norm": None}
    rates |= {"unscheduled": "the rate of lr_scheduler_type=greedy does not depend on the step alone"}
    values = {"left": [], "reference": {}, "losses": [0.0], "returned": [], "wanted": 1, "world": 1, **rates}
    ours.send(("event", training.Event("stepping", 0, 0, values)))
    ours.send(("end", {}))
    one.serve()
    said = capfd.readouterr().err
    why = "no loss, advantages or samples were compared: Mine.compute_loss is your own\n"
    assert f"{why}  checked: only the settings, the rows and the optimizer, with 1 invariant 1 times" in said
    assert "kinds of violation" not in said
    assert "nothing was examined" not in said, "settings were"


def test_the_checker_is_killed_before_the_run_when_memory_ends():
    """The checker has a memory limit, and the kernel's out-of-memory killer selects it first."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            checker._lower_priority()
            bytearray(checker._MEMORY)
        except MemoryError:
            os.write(write, Path("/proc/self/oom_score_adj").read_bytes())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 99) == b"1000\n"


def test_a_large_events_file_is_rotated_and_a_full_disk_stops_writing(tmp_path, monkeypatch):
    writes = object.__new__(checker.Checker)
    writes.events = Path("/dev/full")
    writes._write({"event": "end"})
    writes.events = tmp_path / "events.jsonl"
    monkeypatch.setattr(checker, "_LARGEST", 100)
    for number in range(6):
        writes._write({"event": "violation", "detail": "x" * 90, "step": number})
    kept = [writes.events, *(writes.events.with_suffix(f".{number}") for number in (1, 2, 3))]
    assert [json.loads(file.read_text(encoding="utf-8"))["step"] for file in kept] == [5, 4, 3, 2]
    assert len(list(tmp_path.iterdir())) == 4


def test_the_checker_does_not_join_the_training(tmp_path, monkeypatch):
    """Otherwise framework code that the checker calls would use the run's own address of ``torch.distributed``."""
    launched: list[dict[str, str]] = []
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "SLURM_PROCID",
    ):
        monkeypatch.setenv(name, "1")
    said = subprocess.CompletedProcess([], 0, b"1\n")
    monkeypatch.setattr(link.subprocess, "run", lambda *_, env, **__: launched.append(env) or said)
    monkeypatch.setattr(meeting.tempfile, "gettempdir", lambda: str(tmp_path))
    sentinel.tools.watch.start("demo", tmp_path / "events.jsonl").stop()
    kept = [name for name in launched[0] if name.startswith(("RANK", "WORLD", "LOCAL_", "MASTER", "TORCHE", "SLURM"))]
    assert kept == []
    assert launched[0]["CUDA_VISIBLE_DEVICES"] == ""


def _command(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "sentinel", "watch", *arguments],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_stops_a_run(tmp_path):
    """Processes that the command starts are watched, although the script does not mention Sentinel."""
    script = (
        "import sys, time, torch\nfrom demo_rl.advantages import group_advantage\n"
        "mask, until = torch.tensor([[1, 1], [0, 0]]), time.monotonic() + 200\n"
        "while time.monotonic() < until:\n"
        "    group_advantage(torch.rand(2, 2), mask, ['p', 'p'])\n    time.sleep(0.01)\n"
    )
    words = ["--target", "demo", "--every", "1", "--fail-after", "1", "--", sys.executable, "-c", script]
    ran = _command(tmp_path, *words, PYTHONPATH=str(FRAMEWORK / "broken"))
    assert ran.returncode == 1, ran.stderr
    assert "of violation: stopping the run (--fail-after)" in ran.stderr
    assert "without a report" not in ran.stderr, "the command itself has stopped it"
    assert "lost" not in json.loads((tmp_path / "sentinel-events.jsonl").read_text().splitlines()[-1])
    assert "sentinel-events.jsonl" in ran.stdout


@pytest.mark.slow
def test_the_processes_of_a_run_share_one_checker(tmp_path):
    """Each process has a rank, as from a launcher. Their violations are collected, each with its rank."""
    rank = (
        "import sys, time, torch\nfrom pathlib import Path\nfrom demo_rl.advantages import group_advantage\n"
        "until = time.monotonic() + 200\n"
        "while time.monotonic() < until and not Path('sentinel-events.jsonl').exists():\n"
        "    group_advantage(torch.rand(2, 2), torch.tensor([[1, 1], [0, 0]]), ['p', 'p'])\n    time.sleep(0.01)\n"
    )
    (tmp_path / "rank.py").write_text(rank, encoding="utf-8")
    launcher = (
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen([sys.executable, 'rank.py'], env={**os.environ, 'RANK': str(n)}) for n in (0, 1)]\n"
        "sys.exit(sum(rank.wait() for rank in ranks))\n"
    )
    words = ["--target", "demo", "--every", "1", "--", sys.executable, "-c", launcher]
    ran = _command(tmp_path, *words, PYTHONPATH=str(FRAMEWORK / "broken"))
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "sentinel-events.jsonl").read_text(encoding="utf-8").splitlines()
    *events, end = [json.loads(line) for line in lines]
    assert len({event["run"] for event in (*events, end)}) == 1
    assert sorted(end["processes"].values()) == [0, 1]
    assert {event["process_rank"] for event in events} <= {0, 1}
    assert "does not hold: demo_rl.advantages.group_advantage, call 1, step 0, rank " in ran.stderr
    assert ran.stderr.count("checked in 2 processes: ") == 1
    schema = json.loads((Path(sentinel.__file__).parent / "schemas" / "events.schema.json").read_text(encoding="utf-8"))
    for event in (*events, end):
        jsonschema_rs.validate(schema, event)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--target", "demo"], "give --target, and the command after --"),
        (["--target", "dmo", "--", "true"], "did you mean 'demo'?"),
        (["--target", "demo", "--every", "0", "--", "true"], "must be at least 1"),
        (["--target", "demo", "--events", "nowhere/events.jsonl", "--", "true"], "cannot write there; name a file"),
        (["--target", "demo", "--without", "nope", "--", "true"], "unknown invariant; use one of "),
        (["--target", "demo", "--", "no-such-program"], "no-such-program: No such file or directory"),
    ],
)
def test_an_invalid_command_shows_its_usage(said, words, wrong):
    status, _, told = said(*words)
    assert status == 2
    assert wrong in told


@pytest.mark.nightly
def test_a_run_without_an_events_folder_continues_unwatched(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", "import demo_rl.advantages"], capture_output=True, text=True, timeout=240, check=True,
        cwd=tmp_path,
        env={**os.environ, "SENTINEL_WATCH": "demo:nowhere/events.jsonl", "PYTHONPATH": str(FRAMEWORK / "broken")},
    )  # fmt: skip
    assert "this run is not watched: the folder of " in ran.stderr


@pytest.mark.slow
def test_a_framework_that_is_not_installed_costs_nothing(tmp_path):
    """The run continues, and reports at its end that nothing was examined."""
    script = (
        "import sentinel.tools.watch\n"
        "with sentinel.tools.watch.start('demo') as watching:\n    print(watching.ready(2.0), 'trained')\n"
        "print(watching.counts['boundaries'], watching.counts['violations'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
    )
    assert ran.stdout == "False trained\n[] []\n"
    assert ran.stderr.startswith(
        "\nsentinel watch: nothing was examined: the run imported no function that the adapter binds\nsentinel watch: "
    )
    assert "kinds of violation" not in ran.stderr


@pytest.mark.slow
def test_an_unknown_version_is_watched_or_reported(tmp_path):
    """The function of this version requires an argument that the adapter does not know, so its calls are not read."""
    shutil.copytree(FRAMEWORK / "broken" / "demo_rl", tmp_path / "demo_rl")
    file = tmp_path / "demo_rl" / "advantages.py"
    source = file.read_text(encoding="utf-8")
    changed = source.replace("group_advantage(\n", "group_advantage(\n    horizon: int,\n")
    assert changed != source
    file.write_text(changed, encoding="utf-8")
    script = (
        "import sys, torch\nimport sentinel.tools.watch\nsys.path[:0] = [sys.argv[1]]\n"
        "from demo_rl.advantages import group_advantage\n"
        "with sentinel.tools.watch.start('demo', every=1) as watching:\n    watching.ready()\n"
        "    for _ in range(3):\n"
        "        group_advantage(9, torch.rand(2, 2), torch.tensor([[1, 1], [0, 0]]), ['p', 'p'])\n"
        "print(watching.counts['violations'], sum(watching.counts['not_watched'].values()) > 0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, cwd=tmp_path)
    assert ran.stdout == "[] True\n", ran.stderr


#: A line of an events file, as a checker writes it.
_EVENT = {
    "event": "violation", "run": 1, "time": 1.5, "pid": 1, "process_rank": None, "target": "demo", "version": "",
    "law": "the_oracle_agrees", "rank": 1, "statement": "", "boundary": "demo_rl.advantages.group_advantage",
    "subject": "demo_rl.advantages.group_advantage", "contract": "group_advantage", "symptom": "value", "call": 1,
    "step": 0, "place": "", "seen": "run", "key": "advantages", "detail": "", "known": [],
    "variants": {"": {"rewards": 1.0}},
}  # fmt: skip
_END = {"event": "end", "run": 1, "time": 1.5, "processes": {}, "boundaries": [], "copied": 0, "read": 0, "laws": 0}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested deeper than 64 levels"),
        ('{"event":' + "9" * 5000 + "}", "the number has 5000 digits"),
        (b"\xff\xfe" * 10, "not UTF-8: byte 0xff"),
        ("null", "the line is neither a violation nor the final line"),
        ('"event"', "the line is neither a violation nor the final line"),
        ({**_EVENT, "event": ["violation"]}, "the line is neither a violation nor the final line"),
        ({"event": "violation"}, "is a required property"),
        ({"event": "end", "run": 1, "time": 1.5}, "is a required property"),
        ({**_END, "violations": 5}, "at violations: 5 is not of type"),
        ({**_EVENT, "symptom": ["x"]}, "at symptom: ["),
        ({**_EVENT, "subject": ["a"]}, "at subject: ["),
        ({**_EVENT, "boundary": "\ud800"}, "half of a surrogate pair"),
        ({**_EVENT, "target": "../../etc"}, "which is not a target here"),
        ({**_EVENT, "variants": {}}, "the scenario has no variants"),
        ({**_EVENT, "variants": {"": 7}}, "object is not iterable"),
        (
            {**_EVENT, "variants": {"": {"$new": "os.system"}}},
            "the scenario's inputs are not those of the contract: token_level_rewards",
        ),
        (
            {**_EVENT, "variants": {"": {"t": {"dtype": "float32", "shape": [9], "tensor": [1]}}}},
            "cannot reshape array of size 1",
        ),
    ],
)
def test_a_malformed_events_file_is_rejected_with_its_line(tmp_path, said, line, wrong):
    """The command prints one message, exits with 2, and opens no checkout."""
    text = line if isinstance(line, (str, bytes)) else json.dumps(line)
    (tmp_path / "events.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    status, shown, told = said("replay", "events.jsonl", "--ref", f"path:{FRAMEWORK / 'broken'}")
    assert (status, shown) == (2, "")
    assert told.count("sentinel: ") == 1
    assert wrong in told
    assert told.startswith("sentinel: events.jsonl") or "which is not a target here" in told


def test_a_pipe_is_rejected_as_an_events_file(tmp_path, said):
    os.mkfifo(tmp_path / "events.jsonl")
    status, _, told = said("replay", "events.jsonl")
    assert status == 2
    assert "not a regular file" in told


def test_replay_of_a_file_without_violations_exits_with_2(tmp_path, said):
    for text in ("", json.dumps({**_END, "violations": []}) + "\n"):
        (tmp_path / "events.jsonl").write_text(text, encoding="utf-8")
        status, shown, told = said("replay", "events.jsonl")
        assert (status, shown) == (2, "")
        assert "nothing was examined: events.jsonl does not contain a violation" in told


def test_replay_explains_why_an_invariant_of_the_training_is_not_replayed(tmp_path, said):
    detail = "a micro-batch's loss is -1, and its documented value is 2; in Trainer._loss (demo.py:3)"
    event = {**_EVENT, "law": "the_loss_is_the_documented_one", "boundary": "", "symptom": "training", "step": 4,
             "key": "", "detail": detail, "variants": None}  # fmt: skip
    for name in ("subject", "contract", "call", "place"):
        del event[name]
    (tmp_path / "events.jsonl").write_text(json.dumps(event))
    status, shown, told = said("replay", "events.jsonl")
    assert status == 2
    assert shown.splitlines() == [
        f"the_loss_is_the_documented_one, step 4: {detail}",
        "  not reproduced: this violation is of an invariant, for which no call was saved; only violations of laws can "
        "be replayed",
        "0 violations of 1 reproduced outside the run",
    ]
    assert "--ref" not in told
    assert "until a law is violated" in told


def test_foreign_text_in_events_is_escaped(tmp_path, said):
    """An events file may come from other people. Its text is escaped in live output and in a replay."""
    event = {**_EVENT, "subject": "\x1b[31mx", "boundary": "\x1b[31mred", "symptom": "\x1b", "key": "\x1b[0m"}
    event |= {"detail": "\x1b[2J", "variants": None}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")
    _, shown, wrong = said("replay", "events.jsonl", "--ref", f"path:{FRAMEWORK / 'broken'}")
    assert "red" in shown
    assert "\x1b" not in shown + wrong


def test_the_checkers_output_is_escaped(capsys):
    checker._say("does not hold: \x1b[31mred\x07")
    assert "\x1b" not in (said := capsys.readouterr().err)
    assert "red" in said


#: Runs ``call`` after all loaded functions were read.
_RUN_OF_FEW = """
import gc, time, torch
from demo_rl.advantages import group_advantage
[watching] = [one for one in gc.get_objects() if type(one).__name__ == "Watching"]
for _ in range(20):
    assert watching.ready(200)
    time.sleep(0.1)  # it may have been ready before the last module was imported
{call}
"""
_CALL = "group_advantage({first}torch.rand(2, 2), torch.tensor([[1, 1], [0, 0]]), ['p', 'p']{last})"
_KILL = "import gc, os; [os.kill(one.checker, 9) for one in gc.get_objects() if type(one).__name__ == 'Watching']"


#: Ends while the checker is stopped, so that no function has been read, at any speed of the machine.
_TOO_SHORT = """
import gc, os, signal, threading
import demo_rl
[watching] = [one for one in gc.get_objects() if type(one).__name__ == "Watching"]
os.kill(watching.checker, signal.SIGSTOP)
go_on = lambda: (watching._ending.wait(), os.kill(watching.checker, signal.SIGCONT))
threading.Thread(target=go_on, daemon=True).start()
import demo_rl.advantages
"""


def _demo(tmp_path: Path, *edits: tuple[str, str]) -> None:
    shutil.copytree(FRAMEWORK / "broken" / "demo_rl", tmp_path / "demo_rl")
    file = tmp_path / "demo_rl" / "advantages.py"
    source = file.read_text(encoding="utf-8")
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    file.write_text(source, encoding="utf-8")


_NEEDS_MORE = [("group_advantage(\n", "group_advantage(\n    horizon: int,\n")]
_TAKES_MORE = [
    ("index: list[str]\n", "index: list[str], shift: float = 0.0\n"),
    ("(-1) * response_mask", "(-1) * response_mask + shift"),
]
#: Edits of the framework, the script of the run, and the reason why nothing was examined.
_UNREAD = {
    "short": ((), _TOO_SHORT, "no function of the run could be watched: the run ended before the function was read"),
    "fails": ((), f"{_TOO_SHORT}raise SystemExit(3)", "no function of the run could be watched: the run ended before"),
    "no call": ((), _RUN_OF_FEW.format(call=""), "no call of a watched function was copied"),
    "no import": ((), "pass", "no process of this command imported demo"),
    "killed": ((), f"import demo_rl\n{_KILL}", "the checker process ended before it wrote its results"),
    "drift": (
        _NEEDS_MORE,
        _RUN_OF_FEW.format(call=_CALL.format(first="9, ", last="")),
        "no function of the run could be watched: DriftError: demo_rl.advantages.group_advantage",
    ),
    "read": (
        _TAKES_MORE,
        _RUN_OF_FEW.format(call=_CALL.format(first="", last=", shift=2.0")),
        "no copied call could be read: demo_rl.advantages.group_advantage: shift is 2.0, but 0.0 in the adapter's call",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edits", "script", "why"),
    [pytest.param(*_UNREAD[name], id=name, marks=[pytest.mark.nightly] * (name == "killed")) for name in _UNREAD],
)
def test_a_run_without_a_read_call_exits_with_2(tmp_path, edits, script, why):
    """The last line gives the reason, and no result is printed. The status is 2, whatever the status of the run is."""
    _demo(tmp_path, *edits)
    ran = _command(tmp_path, "--target", "demo", "--every", "1", "--", sys.executable, "-c", script, PYTHONPATH=".")
    assert ran.returncode == 2, ran.stderr
    assert f"\nnothing was examined: {why}" in f"\n{ran.stderr}"
    assert ran.stdout == "", "nothing that looks like an all-clear"
    first, *others = ran.stderr.splitlines()
    assert first == "sentinel watch: watching starts when a process of this command imports demo"
    assert others[-1].startswith(f"nothing was examined: {why}")
    assert ("; the command itself ended with status 3" in others[-1]) == ("SystemExit(3)" in script)
    if edits is _NEEDS_MORE:  # a function that cannot be watched is reported when the run begins, with the cause
        assert others[0].startswith("sentinel watch: cannot watch demo_rl.advantages.group_advantage: DriftError: ")
        assert "now requires 'horizon'" in ran.stderr
