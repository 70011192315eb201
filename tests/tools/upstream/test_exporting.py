"""A bug of the demo framework as a script that runs without Sentinel."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW

from sentinel.errors import SentinelError
from sentinel.recipes import Pin
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.checking import Environment
from sentinel.tools.upstream.script import MOST_LINES

VARIANTS: dict[str, Any] = {
    **REJECTED_ROW,
    "invariant": None,
    "expected_unpatched": {"difference(reward_9, reward_0).advantages": [[0, 0], [-3, -3], [-3, -3]]},
    "expected_fixed": {"difference(reward_9, reward_0).advantages": [[0, 0], [0, 0], [0, 0]]},
}


@pytest.fixture(scope="module")
def bare() -> Iterator[Environment]:
    """An environment with only torch and numpy."""
    environment = Environment()
    yield environment
    environment.close()


#: Runs a script on each tree in a fork of one process that has loaded torch.
EACH = """
import os, runpy, sys
import numpy, torch
for tree in sys.argv[2:]:
    if not os.fork():
        os.environ["TARGET_REPO"] = tree
        runpy.run_path(sys.argv[1], run_name="__main__")
        sys.exit(0)
    print("exit status", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def edited(tree: Path, module: str, text: str) -> None:
    file = tree / "demo_rl" / module
    file.write_text(f"{file.read_text()}\n\n{text}")


def thrice(function: str) -> str:
    """Another implementation, whose results are three times the right ones."""
    return (
        f"import functools\n\nhonest = {function}\n\n\n@functools.wraps(honest)\ndef {function}(*a, **k):\n"
        "    found = honest(*a, **k)\n"
        "    return tuple(3 * x for x in found) if isinstance(found, tuple) else 3 * found\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("document", [MASKED_TOKENS, VARIANTS], ids=["one call", "variants"])
def test_the_runner_agrees_with_the_evidence_at_each_revision(export, broken_tree, fixed_tree, document):
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert bundle.runner, bundle.reason
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"], bundle.reason
    assert bundle.packages == ("torch", "numpy")
    assert json.loads(bundle.sides[1].tried.output)["file"].startswith("demo_rl/")


def test_a_runner_is_short_and_does_not_name_sentinel(export, broken_tree, fixed_tree):
    text = export(MASKED_TOKENS, broken_tree, fixed_tree).runner
    assert text.count("\n") <= MOST_LINES
    assert max(map(len, text.splitlines())) <= 120
    assert "sentinel" not in text.lower()
    assert "agg_loss(**CALL)" in text


@pytest.mark.slow
def test_a_package_that_the_function_uses_is_needed_and_one_that_it_only_imports_is_stubbed(
    export, broken_tree, fixed_tree, bare
):
    use = "    assert pv.Version('1') < pv.Version('2')\n    if loss_agg"
    for tree in (broken_tree, fixed_tree):
        losses = tree / "demo_rl" / "losses.py"
        imports = "import torch\nimport packaging.version as pv\nimport pluggy\n"
        losses.write_text(losses.read_text().replace("import torch\n", imports).replace("    if loss_agg", use))
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, check=True)
    assert bundle.packages == ("torch", "numpy", "packaging"), bundle.reason
    stubs = next(line for line in bundle.runner.splitlines() if line.startswith("NOT_NEEDED"))
    assert "pluggy" in stubs
    assert "packaging" not in stubs
    [without] = bare.run(bundle.runner, [broken_tree], (), False)
    assert (without.status, "packaging" in without.problem) == ("unavailable", True)


@pytest.mark.slow
def test_the_exit_status_distinguishes_the_bug_from_other_failures(export, broken_tree, fixed_tree, tmp_path):
    wanted = {
        "": (1, "reproduced"),
        thrice("agg_loss"): (3, "changed"),
        "import sys\nsys.exit(1)\n": (1, ""),
        "del agg_loss\n": (3, "unavailable"),
    }
    file = tmp_path / "run_validation.py"
    file.write_text(export(MASKED_TOKENS, broken_tree, fixed_tree).runner)
    trees = []
    for number, module in enumerate(wanted):
        trees.append(shutil.copytree(broken_tree, tmp_path / f"tree{number}"))
        edited(trees[-1], "losses.py", module)
    command = [sys.executable, "-c", EACH, file, *trees]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = re.findall(r"(.*?)exit status (-?\d+)\n", done.stdout, re.DOTALL)
    assert [int(status) for _, status in told] == [status for status, _ in wanted.values()], done
    assert [word in text for (text, _), (_, word) in zip(told, wanted.values(), strict=True)] == [True] * 4, done


@pytest.mark.slow
def test_observed_values_are_not_copied_from_expected_ones(bare, export, broken_tree, fixed_tree):
    runner = export(MASKED_TOKENS, broken_tree, fixed_tree).runner
    edited(fixed_tree, "losses.py", thrice("agg_loss"))
    [tried] = bare.run(runner, [fixed_tree], (), False)
    assert tried.status == "changed"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"requires": "demo_rl.losses.NEW_OPTION"}, "this version has no demo_rl.losses.NEW_OPTION"),
        ({"title": "x"}, ""),
    ],
)
def test_a_bug_that_is_not_decided_has_no_runner(export, broken_tree, fixed_tree, changes, reason):
    bundle = export({**MASKED_TOKENS, **changes}, broken_tree, fixed_tree)
    assert bool(bundle.runner) is not bool(reason)
    assert reason in bundle.reason


def test_a_bug_that_only_a_law_decides_has_no_runner(export, broken_tree, fixed_tree):
    bundle = export(REJECTED_ROW, broken_tree, fixed_tree)
    assert (bundle.runner, bundle.reason) == ("", "the recipe has no expected values.")


def calling(function: str, scenario: dict[str, Any], key: str, values: tuple[Any, Any]) -> dict[str, Any]:
    """Return a recipe of the contract that calls any function, with values with the bug and right ones."""
    told = dict(zip(("expected_unpatched", "expected_fixed"), ({key: {"value": value}} for value in values)))
    plain = {name: item for name, item in MASKED_TOKENS.items() if name not in ("variants", "invariant", "tolerance")}
    return {**plain, "contract": "call", "boundary": f"demo_rl.losses.{function}", "scenario": scenario, **told}


def test_a_call_with_a_stand_in_has_no_runner(export, broken_tree):
    edited(broken_tree, "losses.py", "def rate(config):\n    return config.rate\n")
    scenario = {"arguments": {"config": {"namespace": {"rate": 2.0}}}}
    bundle = export(calling("rate", scenario, "returned", (2.0, 1.0)), broken_tree)
    assert (bundle.runner, bundle.reason) == ("", "the call needs a StandInNamespace.")


def test_a_title_cannot_end_the_docstring(export, broken_tree, fixed_tree):
    title = 'ends""" here\\ import os; os._exit(3)'
    first = ast.parse(export(MASKED_TOKENS, broken_tree, fixed_tree, title=title).runner).body[0]
    assert isinstance(first, ast.Expr)
    assert "os._exit" in str(first.value.value)  # type: ignore[attr-defined]


def test_a_recipe_without_pins_gives_advice(loaded_recipe):
    with pytest.raises(SentinelError, match="--base"):
        loaded_recipe.revisions()


@pytest.mark.parametrize(
    ("expects", "pair"),
    [
        ("reproduced fixed", (0, 1)),
        ("reproduced reproduced unavailable fixed reproduced fixed", (1, 3)),
        ("fixed reproduced", (1, 0)),
        ("reproduced reproduced", (0, None)),
        ("unavailable fixed", (0, 1)),
        ("unavailable unavailable fixed", (1, 2)),
        ("fixed", (0, None)),
    ],
)
def test_the_default_revisions_are_neighbouring_pins(loaded_recipe, expects, pair):
    refs = [Ref("git", f"{number:040x}") for number in range(6)]
    pins = tuple(Pin(ref, expect) for ref, expect in zip(refs, expects.split()))
    base, head = pair
    assert replace(loaded_recipe, pins=pins).revisions() == (refs[base], None if head is None else refs[head])
