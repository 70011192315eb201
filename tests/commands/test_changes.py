"""``sentinel changes``: a run beside its baseline, for people, programs and job summaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("mirrored", "warm_runs")


@pytest.fixture
def overnight(run_sentinel: Any, tiny: Any, catalog: Any) -> list[str]:
    """``recorded/`` says that main has the bug; tonight it has not."""
    import json

    from sentinel.recipes import find_recipes
    from sentinel.refs import Ref
    from sentinel.reports import store
    from sentinel.runner import Job, Runner
    from sentinel.sources import open_checkout
    from sentinel.worker.client import Options

    runner = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref), Options(timeout=30))
    recipe = find_recipes(catalog, ("tiny",))[0]
    for folder, ref in (("recorded", tiny.buggy), ("tonight", tiny.fixed)):
        file = store.write(Path(folder), runner.decide(Job(recipe, Ref("git", ref))))
        document = {**json.loads(file.read_text()), "ref": "git:main"}
        file.rename(file.with_name("git-main.json")).write_text(json.dumps(document))
    runner.close()
    return ["changes", "--from", "tonight", "--baseline", "recorded"]


def test_a_bug_that_went_is_told_with_the_commit(run_sentinel: Any, overnight: list[str], tiny: Any) -> None:
    answer = run_sentinel(*overnight)
    assert answer.status == 1
    assert "newly fixed: tiny TINY-MEAN at git:main" in answer.out
    assert f"since 2026-01-01 {tiny.fixed[:9]} a change" in answer.out


def test_json_and_markdown(run_sentinel: Any, overnight: list[str], tiny: Any) -> None:
    (change,) = run_sentinel(*overnight, "--json").json()
    assert change["commits"][0]["sha"] == tiny.fixed
    told = run_sentinel(*overnight, "--no-bisect", "--format", "markdown").out
    assert "| newly fixed | tiny | TINY-MEAN |" in told


def test_a_branch_is_compared_with_its_base_and_only_what_is_worse_fails(
    run_sentinel: Any, overnight: list[str]
) -> None:
    for folder in ("recorded", "tonight"):
        for file in Path(folder).glob("tiny/*/*.json"):
            file.rename(file.with_name(f"path-{folder}.json"))
    guard = ("--across-refs", "--no-bisect", "--worse")
    better = run_sentinel("changes", "--from", "tonight", "--baseline", "recorded", *guard)
    worse = run_sentinel("changes", "--from", "recorded", "--baseline", "tonight", *guard)
    assert (better.status, "newly fixed" in better.out) == (0, True)
    assert (worse.status, "newly broken" in worse.out) == (1, True)


def test_nothing_changed_is_status_0(run_sentinel: Any, overnight: list[str]) -> None:
    answer = run_sentinel(*overnight[:2], "recorded", *overnight[3:])
    assert (answer.status, answer.out) == (0, "nothing changed\n")


def test_a_folder_that_is_not_there(run_sentinel: Any) -> None:
    answer = run_sentinel("changes", "--from", "nowhere")
    assert (answer.status, "no such folder: nowhere" in answer.err) == (2, True)
