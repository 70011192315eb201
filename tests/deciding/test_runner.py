from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, copy_demo, write_recipe

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.pool import Loaded
from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import Catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader

STATEFUL = """
import os
import signal
CALLS = 0
def call_number():
    global CALLS
    CALLS += 1
    return CALLS
def leave():
    os._exit(3)
def wait():
    signal.pause()
"""


def _calls(function: str, bug: str) -> dict[str, Any]:
    document = {key: MASKED_TOKENS[key] for key in ("recipe_version", "title", "target")}
    return {
        **document,
        "bug_id": bug,
        "contract": "call",
        "boundary": f"demo_rl.stateful.{function}",
        "scenario": {"arguments": {}},
        "expected_unpatched": {"returned": 1},
        "expected_fixed": {"returned": 0},
    }


def _decide_together(
    recipes: list[Mapping[str, Any]], folder: Path, catalog: Catalog, warm: Preloader, timeout: float = 30
) -> tuple[list[Decision], list[str]]:
    """Return the decisions, and the boundaries that were run in their own process."""
    tree = copy_demo(folder / "tree")
    (tree / "demo_rl" / "stateful.py").write_text(STATEFUL)
    files = [write_recipe(folder / "recipes", document) for document in recipes]
    jobs = [Job(load_recipe(file, catalog), Ref("path", str(tree))) for file in files]
    runner = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref), Options(timeout=timeout))
    alone: list[str] = []
    usual = Loaded.probe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loaded, "probe", lambda self, path, request: alone.append(path) or usual(self, path, request))
        runner.plan(jobs)
        decisions = [runner.decide(job) for job in jobs]
    runner.close()
    return decisions, alone


def test_agreeing_recipes_need_no_separate_process(tmp_path, catalog, warm_runs):
    recipes = [{**MASKED_TOKENS, "bug_id": f"DEMO-{number}"} for number in range(2)]
    decisions, alone = _decide_together(recipes, tmp_path, catalog, warm_runs)
    assert [decision.verdict.name for decision in decisions] == ["reproduced"] * 2
    assert [d.measurement and d.measurement.repeated for d in decisions] == ["same values"] * 2
    assert [d.measurement and d.measurement.reordered for d in decisions] == [True] * 2
    assert alone == []


@pytest.mark.slow
def test_state_left_by_one_recipe_changes_no_verdict(tmp_path, catalog, warm_runs):
    recipes = [_calls("call_number", f"DEMO-CALLS-{number}") for number in range(5)]
    decisions, alone = _decide_together([*recipes, MASKED_TOKENS], tmp_path, catalog, warm_runs)
    assert [decision.verdict.name for decision in decisions] == ["reproduced"] * 6
    assert set(alone) == {"demo_rl.stateful.call_number"}


def test_a_recipe_that_ends_the_process_fails_alone(tmp_path, catalog, warm_runs):
    decisions, alone = _decide_together([_calls("leave", "DEMO-LEAVES"), MASKED_TOKENS], tmp_path, catalog, warm_runs)
    assert [(d.verdict.name, d.verdict.kind) for d in decisions] == [("inconclusive", "exit"), ("reproduced", "")]
    assert set(alone) == {"demo_rl.stateful.leave", MASKED_TOKENS["boundary"]}


_WHERE_THERE = "import importlib.util\nif importlib.util.find_spec('{0}'):\n    from {0}.part import Config\n"


@pytest.mark.parametrize(
    ("head", "expected", "said"),
    [
        (_WHERE_THERE.format("absent_one"), ("unavailable", "python"), "its code needs absent_one (NameError"),
        (
            _WHERE_THERE.format("json.absent"),
            ("inconclusive", "import"),
            "does not import: NameError",
        ),  # json is installed
        ("def later():\n    from absent_one import Config\n", ("inconclusive", "import"), "does not import: NameError"),
        ("", ("inconclusive", "import"), "does not import: NameError"),
    ],
)
def test_a_missing_package_is_named_and_broken_code_is_not_excused(tmp_path, decide, head, expected, said):
    tree = copy_demo(tmp_path / "tree")
    (tree / "demo_rl" / "stateful.py").write_text(f"{head}def leave(config: Config = None):\n    return 1\n")
    verdict = decide(_calls("leave", "DEMO-NEEDS"), tree).verdict
    assert (verdict.name, verdict.kind) == expected
    assert said in verdict.reason


@pytest.mark.slow
def test_a_boundary_that_hangs_costs_its_timeout_once(tmp_path, catalog, warm_runs):
    """Other questions about it are not run; their decisions give the reason."""
    recipes = [_calls("wait", f"DEMO-WAITS-{number}") for number in range(3)]
    decisions, _ = _decide_together([*recipes, MASKED_TOKENS], tmp_path, catalog, warm_runs, timeout=1)
    assert [decision.verdict.name for decision in decisions] == ["inconclusive"] * 3 + ["reproduced"]
    assert [decision.verdict.kind for decision in decisions[:3]] == ["timeout"] * 3
    assert [decision.verdict.reason for decision in decisions[:3]] == [
        "no answer within 1 s",
        *["the boundary hung earlier in this run and is not called again: no answer within 1 s"] * 2,
    ]
