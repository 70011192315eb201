"""Kill -9 before any system call of a worker: zygote, target process, oracle process, session, leaf."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import killing
import pytest
from demo_kit import MASKED_TOKENS, copy_demo, write_recipe
from stalking import Followed, Moment, Place, following
from walking import ALL, needs_tracing

from sentinel.deciding.outcomes import Verdict
from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, WorkerError

pytestmark = [needs_tracing, pytest.mark.nightly]

_BY_LAW: dict[str, Any] = {**MASKED_TOKENS, "expected_unpatched": None, "expected_fixed": None}
#: What is asked of a probe alone, of an oracle process too, and of a session.
QUESTIONS: dict[str, dict[str, Any]] = {
    "values": MASKED_TOKENS,
    "oracle": {**_BY_LAW, "bug_id": "DEMO-ORACLE", "invariant": "the_oracle_agrees"},
    "session": {**_BY_LAW, "bug_id": "DEMO-SESSION", "invariant": "nothing_else_is_touched"},
}
RIGHT = {"values": "reproduced", "oracle": "reproduced", "session": "fixed"}

#: ``ask(runner, question)``
Ask = Callable[[Runner, str], Verdict]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    tree = Ref("path", str(copy_demo(tmp_path / "tree")))
    catalog = bundled_catalog()
    jobs = {
        name: Job(load_recipe(write_recipe(tmp_path, document), catalog), tree) for name, document in QUESTIONS.items()
    }
    return lambda runner, question: runner.decide(jobs[question]).verdict


def runner_of() -> Runner:
    opened = partial(open_checkout, store=MirrorStore())
    return Runner(bundled_catalog(), lambda target, ref, pull: opened(target, ref), Options(timeout=20))


def held() -> tuple[int, int]:
    """Descriptors and threads of this process, without what other tests have only forgotten to close."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@dataclass(frozen=True)
class Asked:
    """:ivar verdict: the answer while somebody was killed, or why there was none; ``after``: the next answer to it."""

    seen: Followed
    verdict: Verdict | str
    after: Verdict | str


def asked(ask: Ask, question: str, runner: Runner, pid: int, moment: Moment | None = None) -> Asked:
    """Ask something while somebody is killed, and again when that is over; end what still runs."""
    with following(pid, moment) as seen:
        verdict = answer(ask, runner, question)
        after = answer(ask, runner, question) if seen.killed is not None else verdict
        runner.close()
    return Asked(seen, verdict, after)


def answer(ask: Ask, runner: Runner, question: str) -> Verdict | str:
    try:
        return ask(runner, question)
    except WorkerError as error:
        return str(error)


def right(told: Verdict | str, question: str) -> bool:
    return isinstance(told, Verdict) and told.name == RIGHT[question]


def honest(told: Verdict | str, question: str) -> bool:
    """The right verdict, or none and a reason. Whoever is gone is not waited for."""
    if right(told, question) or isinstance(told, str):
        return True
    return told.name == "inconclusive" and bool(told.reason) and told.kind != "timeout"


def moments(calls: Mapping[Place, int], most: int) -> Sequence[Moment]:
    """Every call of each process (or every so manieth); by default so many, the first and the last among them."""
    steps = max(calls.values()) // ALL if ALL else most - 1
    return sorted(
        {Moment(place, 1 + (total - 1) * step // steps) for place, total in calls.items() for step in range(steps + 1)}
    )


@pytest.mark.parametrize(
    "question", ["values", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("oracle", "session"))]
)
def test_what_a_zygote_has_forked(question, ask, warm_runs):
    """Target process, oracle process, session and leaf, each before calls from its first to its last."""
    pid = int(warm_runs.hello()["pid"])
    assert right(asked(ask, question, runner_of(), pid).verdict, question)  # so that the byte code is there
    whole = asked(ask, question, runner_of(), pid)
    assert right(whole.verdict, question)
    calls = {place: total for place, total in whole.seen.calls.items() if place}
    before, undecided = held(), 0
    planned = moments(calls, 4)
    for moment in planned:
        told = asked(ask, question, runner_of(), pid, moment)
        where = f"{moment}, call {told.seen.killed}: {told.verdict}, then {told.after}"
        assert honest(told.verdict, question), where
        assert right(told.after, question), where
        assert held() == before, where
        undecided += not right(told.verdict, question)
    print(f"killed at {len(planned)} of {sum(calls.values())} calls, {undecided} of them undecided")
    assert undecided, "somebody who was needed has been killed"


@pytest.mark.nightly
def test_a_zygote(ask, scratch):
    """Another one takes its place, and one answer at most is lost. Nothing of it is left."""
    whole, answers = of_another_controller(ask)
    assert all(right(answer, "values") for answer in answers)
    total = whole.calls[()]
    starting = [Moment((), 1 + total * part // 20) for part in (range(20) if ALL else (10,))]  # it loads torch
    asking = [Moment((), total - before_the_end) for before_the_end in (range(120) if ALL else (12, 40))]
    killed = 0
    for moment in {*starting, *asking}:
        seen, answers = of_another_controller(ask, moment)
        where = f"{moment} of {total}, call {seen.killed}: {answers}"
        assert all(honest(answer, "values") for answer in answers), where
        assert all("killed by SIGKILL" in answer for answer in answers if isinstance(answer, str)), where
        assert sum(not right(answer, "values") for answer in answers) <= 1, where
        assert os.listdir(scratch) == [], where
        killed += seen.killed is not None
    assert killed


def of_another_controller(ask: Ask, moment: Moment | None = None) -> tuple[Followed, list[Verdict | str]]:
    """What it is told by a zygote of its own, three times; it fails where it keeps a descriptor or a thread.

    The controller is a process of its own: one that waits for its zygote would be told of the stops of it.
    """
    told, tell = os.pipe()
    wait, go = os.pipe()

    def act() -> int:
        before, runner = held(), runner_of()
        runner.start(["demo"])
        process = runner._processes.zygote("demo")._process
        os.write(tell, b"%d" % process.pid)
        os.read(wait, 1)
        answers = [answer(ask, runner, "values") for _ in range(3)]
        runner.close()
        lease = 1  # on checkouts that are in use: one descriptor to the end of the process
        assert held() == (before[0] + lease, before[1])
        print(json.dumps([told if isinstance(told, str) else [told.name, told.reason, told.kind] for told in answers]))
        return 0

    try:
        with ThreadPoolExecutor(1) as pool:
            controller = pool.submit(killing.apart, act)
            with following(int(os.read(told, 20)), moment) as seen:
                os.write(go, b"!")
                done = controller.result()
    finally:
        for descriptor in (told, tell, wait, go):
            os.close(descriptor)
    assert done.status == 0, done.said
    return seen, [said if isinstance(said, str) else Verdict(*said) for said in json.loads(done.said)]
