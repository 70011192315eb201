"""Sessions: the many calls in one fork do not affect each other, and no process remains."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from demo_kit import Lab, gone

from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.values.literals import tensor
from sentinel.worker.client import Session, TargetProcess

CODE = """
import os, random, time
import numpy, torch

SEEN = []

def double(values):
    return values * 2

def spoil(values):
    values.add_(1)
    return values.clone()

def draw(values):
    return torch.rand(1)

def reseed_torch(values):
    torch.manual_seed(42)
    return values * 2

def reseed_numpy(values):
    numpy.random.seed(42)
    return values * 2

def reseed_python(values):
    random.seed(42)
    return values * 2

def own_generators(values):
    torch.Generator().manual_seed(42)
    numpy.random.default_rng(42).random()
    random.Random(42).random()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
    return values * 2

def count(values):
    SEEN.append(1)
    return float(len(SEEN))

def fail(values):
    raise ValueError("not these")

def inner(values):
    return double(values)

def end(values):
    os._exit(3)

def hang(values):
    time.sleep(1000)

def dawdle(values):
    time.sleep(1.1)
"""


@pytest.fixture
def process(lab: Lab) -> TargetProcess:
    tree = lab.write({"__init__.py": "from pkg.code import double", "code.py": CODE})
    return lab.open(tree, "pkg", timeout=30.0)


def ask(
    session: Session, function: str, describe: Any = True, adapter: Path | None = None, **calls: dict[str, Any]
) -> Any:
    inputs = {"arguments": {"values": tensor([1.0, 2.0], "float32")}, "positional": [], "self": None, "catch": False}
    plain = calls or {"": {}}
    session.send(
        {
            "boundary": f"pkg.code.{function}",
            "contract": "call",
            "contract_file": bundled_catalog().contracts["call"].file,
            "adapter": str(adapter or bundled("adapters") / "demo.py"),
            "given": ["arguments"],
            "describe": describe,
            "calls": {name: {"inputs": inputs, **call} for name, call in plain.items()},
        }
    )
    return session.receive()


def test_a_session_answers_many_calls_with_provenance(process):
    session = process.session()
    for _ in range(3):
        answer = ask(session, "double", one={}, two={})
        for part in answer.answers.values():
            assert part.observation["returned"].nested() == [2.0, 4.0]
    assert answer.provenance.boundary == "pkg.code.double"
    assert Path(answer.provenance.file).name == "code.py"
    session.close()


def test_an_exception_fails_only_its_own_call(process):
    session = process.session()
    refused = ask(session, "fail").answers[""].refused
    assert refused.reason == "the boundary raised ValueError: not these"
    assert ask(session, "double").answers[""].observation


def test_a_missing_boundary_fails_the_whole_request(process):
    failure = ask(process.session(), "nothing")
    assert failure.kind == "drift"


@pytest.mark.parametrize(
    ("function", "mutated", "globals_"),
    [
        ("double", [], []),
        ("spoil", ["arguments"], []),
        ("draw", [], ["torch.random"]),
        ("reseed_torch", [], ["torch.random"]),
        ("reseed_numpy", [], ["numpy.random"]),
        ("reseed_python", [], ["random"]),
        ("own_generators", [], []),
    ],
)
def test_a_watched_call_reports_its_side_effects(function, mutated, globals_, process):
    answer = ask(process.session(), function, it={"watch": True})
    effects = answer.answers["it"].effects
    assert (effects["mutated"], effects["globals"]) == (mutated, globals_)


def test_a_different_second_result_is_reported(process):
    part = ask(process.session(), "count", it={"watch": True}).answers["it"]
    assert part.observation["returned"] == 1.0
    assert part.effects["again"]["returned"] == 2.0


def test_generators_are_seeded_before_every_call(process):
    answers = ask(process.session(), "draw", one={}, two={}).answers
    assert answers["one"].observation == answers["two"].observation


def test_a_described_answer_names_the_functions_that_ran(process):
    """A function is named by the path of its definition, and by the path that its package exports."""
    names = ask(process.session(), "inner").functions
    assert names == ("pkg.code.double", "pkg.code.inner", "pkg.double")


ADAPTER = """
from sentinel import Binding, PackageRoot, Target
from .models import call

TARGET = Target(
    name="lab", repository="", roots=(PackageRoot("pkg"),), bindings=(Binding("pkg.code.report", "call", call=call),)
)
"""
MODELS = """
class Model:
    def log(self, values): ...

def call(boundary, inputs):
    boundary.function(Model(), inputs["arguments"]["values"])
    return {"returned": 0}
"""


def test_what_the_code_passes_to_a_stand_in_is_reported_for_each_module_of_an_adapter(lab):
    code = "def report(model, values):\n    model.log(values * 3)\n"
    tree = lab.write({"code.py": code, "../made/__init__.py": ADAPTER, "../made/models.py": MODELS})
    session = lab.open(tree, timeout=30.0).session()
    answer = ask(session, "report", {"beside": [], "lines": {}}, tree / "made" / "__init__.py", one={})
    assert answer.answers["one"].beside["log 1: given.values"].nested() == [3.0, 6.0]


def test_only_lines_of_the_target_are_reported(process):
    """Each pair of lines that ran in succession is reported once per session."""
    session = process.session()
    marks = ask(session, "inner", "lines").functions
    assert {mark.rpartition("/")[2].partition(" ")[0] for mark in marks} == {"code.py"}
    first, then = max(tuple(map(int, mark.rpartition(" ")[2].split(">"))) for mark in marks)
    assert first > 0 > then  # the last line of a function, and its end
    assert ask(session, "inner", "lines").functions == ()


def test_a_session_that_hangs_is_killed(lab):
    process = lab.open(lab.write({"code.py": CODE}), "pkg", timeout=0.5)
    session = process.session()
    assert "no answer within 0.5 s" in ask(session, "hang").reason
    assert gone(session._leader.pid)


@pytest.mark.slow
def test_slow_calls_share_one_timeout(lab):
    """Otherwise calls that are nearly as slow as the timeout would be made for every scenario of every law."""
    session = lab.open(lab.write({"code.py": CODE}), "pkg", timeout=4.0).session()
    failure = ask(session, "dawdle", **{str(place): {} for place in range(100)})
    assert failure.reason == "its calls take more than 0.4 s each, and more than 4 s together"
    assert session.hangs
    assert gone(session._leader.pid)


def test_a_probe_does_not_end_a_session(lab, process):
    session = process.session()
    ask(session, "count")
    lab.probe(process, "pkg.code.double", values=tensor([1.0], "float32"))
    assert ask(session, "count").answers[""].observation["returned"] == 2.0


def test_concurrent_threads_can_use_one_process(process):
    def search(number: int) -> list[Any]:
        session = process.session()
        answers = [ask(session, "count").answers[""].observation["returned"] for _ in range(5)]
        session.close()
        return answers

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(search, range(8))) == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 8


@pytest.mark.slow
def test_ended_sessions_free_their_place(preloader, offered):
    """Strict containment allows 256 processes, including those that have ended but were not waited for."""
    offered("strict")
    process = preloader.oracle()
    try:
        for _ in range(300):
            process.session().close()
    finally:
        process.close()
