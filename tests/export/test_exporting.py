"""A bug of the demo framework as files that do without Sentinel."""

import ast
import hashlib
import json
import os
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
from sentinel.export.checking import Environment, Tried
from sentinel.export.exporting import Bundle
from sentinel.export.script import literal
from sentinel.recipes import Pin
from sentinel.targets import Alias
from sentinel.targets.refs import Ref

VARIANTS: dict[str, Any] = {
    **REJECTED_ROW,
    "invariant": None,
    "expected_unpatched": {"difference(reward_9, reward_0).advantages": [[0, 0], [-3, -3], [-3, -3]]},
    "expected_fixed": {"difference(reward_9, reward_0).advantages": [[0, 0], [0, 0], [0, 0]]},
}


@pytest.fixture(scope="module")
def bare() -> Iterator[Environment]:
    """What holds torch and numpy, and nothing else."""
    environment = Environment()
    yield environment
    environment.close()


def ran(bare: Environment, text: str, tree: Path, *needs: str) -> Tried:
    [(tried, _)] = bare.run({"run_validation.py": text}, "", [tree], needs, False)
    return tried


def statuses(bundle: Bundle) -> list[tuple[str, str]]:
    return [(side.tried.status, side.tested.status) for side in bundle.sides if side.tried and side.tested]


def edited(tree: Path, module: str, text: str) -> None:
    file = tree / "demo_rl" / module
    file.write_text(f"{file.read_text()}\n\n{text}")


def thrice(function: str) -> str:
    """Another implementation, which answers three times what the honest one does."""
    return (
        f"import functools\n\nhonest = {function}\n\n\n@functools.wraps(honest)\ndef {function}(*a, **k):\n"
        "    found = honest(*a, **k)\n"
        "    return tuple(3 * x for x in found) if isinstance(found, tuple) else 3 * found\n"
    )


def to_be_read(runner):
    first, last = map(int, re.search(r"What is to be read are lines +(\d+) to +(\d+)\.", runner.text).groups())
    return "\n".join(runner.text.split("\n")[first - 1 : last]) + "\n"


def test_runner_and_test_say_at_each_revision_what_the_evidence_says(export, broken_tree, fixed_tree):
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert statuses(bundle) == [("reproduced", "failed"), ("fixed", "passed")]
    assert bundle.runner.packages == ("torch", "numpy")
    assert "'evidence': {'base': 'reproduced at path', 'head': 'fixed at path'}," in to_be_read(bundle.runner)
    answer = json.loads(bundle.sides[1].tried.output)
    assert answer["observed"] == {"loss": 1.0, "masked_token_gradient_abs_sum": 0.0}
    assert answer["not_installed_and_not_used"] == ["demo_missing_tracker"]
    assert answer["file"] == "demo_rl/losses.py"


def test_what_it_needs_beside_torch_and_numpy_is_named(export, broken_tree, fixed_tree, bare):
    """Whatever is installed where it is exported."""
    use = "    assert pv.Version('1') < pv.Version('2')\n    if loss_agg"
    for tree in (broken_tree, fixed_tree):
        losses = tree / "demo_rl" / "losses.py"
        text = losses.read_text().replace("import torch\n", "import torch\nimport packaging.version as pv\n")
        losses.write_text(text.replace("    if loss_agg", use))
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert bundle.runner.packages == ("torch", "numpy", "packaging")
    assert "Needs Python 3.10 or newer, torch, numpy, packaging;" in bundle.runner.text
    without = ran(bare, bundle.runner.text, broken_tree)
    assert without.needs == ("packaging",)
    assert "install packaging" in without.problem


def test_a_stub_is_refused_once_the_boundary_runs(bare, export, broken_tree, tmp_path):
    """What the boundary makes of the refusal, where it catches it, is no answer either."""
    runner, use = export(MASKED_TOKENS, broken_tree).runner, "tracker.note(loss_mat)"
    trees = [tmp_path / name for name in ("passed on", "caught")]
    for tree, line in zip(trees, (use, f"try:\n        {use}\n    except Exception:\n        pass")):
        losses = shutil.copytree(broken_tree, tree) / "demo_rl" / "losses.py"
        losses.write_text(losses.read_text().replace("    if loss_agg_mode", f"    {line}\n    if loss_agg_mode"))
    tried = bare.run({"run_validation.py": runner.text}, "", trees, (), False)
    assert [(one.status, one.needs) for one, _ in tried] == [("", ("demo_missing_tracker",))] * 2


def test_what_the_target_preloads_is_real_and_what_its_adapter_answers_at_import_stands(bare, export, broken_tree):
    runner = export(MASKED_TOKENS, broken_tree).runner
    losses = broken_tree / "demo_rl" / "losses.py"
    used = "    assert (tqdm.tqdm, string.digits, string.Template) == (tqdm.std.tqdm, '01', string.Formatter)\n"
    text = losses.read_text().replace("import torch\n", "import string\nimport torch\nimport tqdm\n")
    losses.write_text(text.replace("    if loss_agg", f"{used}    if loss_agg", 1))
    answers = {"string.digits": "01", "string.Template": Alias("string.Formatter")}
    for name, of_demo, told in (("preload", [], ["tqdm", "demo_missing_package.part"]), ("at_import", {}, answers)):
        assert runner.text.count(f"'{name}': {of_demo},") == 1
        runner = replace(runner, text=runner.text.replace(f"'{name}': {of_demo},", f"'{name}': {literal(told)},"))
    assert ran(bare, runner.text, broken_tree).needs == ("tqdm",)
    assert ran(bare, runner.text, broken_tree, "tqdm").status == "reproduced"


#: Starts a runner for each checkout, in forks of a process that has loaded torch.
STARTED = """
import os, runpy, sys
import numpy, torch
for checkout in sys.argv[2:]:
    sys.stdout.flush()
    if os.fork() == 0:
        os.environ["TARGET_REPO"] = checkout
        runpy.run_path(sys.argv[1], run_name="__main__")
        os._exit(99)
    print("exit status", os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_the_exit_status_says_what_was_decided(export, broken_tree, tmp_path):
    """1 is the bug alone, and never that something else went wrong."""
    wanted = {
        "": (1, '"status": "reproduced"'),
        thrice("agg_loss"): (2, '"status": "changed"'),
        "import sys\nsys.exit(1)\n": (3, '"status": "could not run"'),
        "del agg_loss\n": (3, "the code has moved away from what this file knows"),
    }
    file = tmp_path / "run_validation.py"
    file.write_text(export(MASKED_TOKENS, broken_tree).runner.text)
    trees = [tmp_path / f"tree{number}" for number in range(len(wanted))]
    for tree, module in zip(trees, wanted):
        shutil.copytree(broken_tree, tree)
        edited(tree, "losses.py", module)
    command = [sys.executable, "-c", STARTED, file, *trees]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    said = re.split(r"exit status (\d)\n", done.stdout)
    assert [int(status) for status in said[1::2]] == [status for status, _ in wanted.values()], done.stderr
    assert all(told in text for text, (_, told) in zip(said[::2], wanted.values())), said


def test_without_torch_it_could_not_run(export, broken_tree, tmp_path):
    file = tmp_path / "run_validation.py"
    file.write_text(export(MASKED_TOKENS, broken_tree).runner.text)
    command = [sys.executable, "-S", "-s", file]
    done = subprocess.run(command, env={"TARGET_REPO": str(broken_tree)}, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "install torch, numpy" in done.stdout


def test_the_head_is_the_same_in_every_runner_and_says_its_digest(export, broken_tree, fixed_tree):
    runners = [export(document, broken_tree, fixed_tree).runner for document in (MASKED_TOKENS, VARIANTS, REJECTED_ROW)]
    (head,) = {runner.text.removesuffix(to_be_read(runner)).partition('"""\n')[2] for runner in runners}
    assert len({to_be_read(runner) for runner in runners}) == 3
    line = next(line for line in head.split("\n") if "sha256 of its lines" in line)
    fixed = head.partition(line)[2].partition("=\n\n")[2].partition(f"\n\n# {'=' * 20}")[0]
    assert hashlib.sha256(fixed.encode()).hexdigest() == line.rpartition(" ")[2]
    assert all(runner.text.endswith(to_be_read(runner)) for runner in runners)


def test_nothing_expected_is_copied_into_what_the_runner_observes(bare, export, broken_tree, fixed_tree):
    """A third implementation gives a third answer: a runner that had its numbers from evidence would not see it."""
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree)
    edited(fixed_tree, "losses.py", thrice("agg_loss"))
    assert ran(bare, bundle.runner.text, fixed_tree).status == "changed"


def test_a_law_decides_in_the_runner_where_it_decides_alone(bare, export, broken_tree, fixed_tree):
    bundle = export(REJECTED_ROW, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert statuses(bundle) == [("reproduced", "failed"), ("fixed", "passed")]
    assert "accepted rows differ" in json.loads(bundle.sides[0].tried.output)["observed"]["broken"][0]
    edited(fixed_tree, "advantages.py", thrice("group_advantage"))
    assert ran(bare, bundle.runner.text, fixed_tree).status == "fixed"  # other values, of which the law holds too


REQUIRED = {**MASKED_TOKENS, "requires": "demo_rl.losses.NEW_OPTION"}


def test_what_no_revision_is_about_has_no_runner(export, broken_tree, fixed_tree):
    bundle = export(REQUIRED, broken_tree, fixed_tree)
    assert bundle.runner is None
    assert not bundle.complete
    assert "the checkout has no demo_rl.losses.NEW_OPTION" in bundle.reason


def calling(function: str, scenario: dict[str, Any], key: str, values: tuple[Any, Any]) -> dict[str, Any]:
    """A recipe of the contract that calls anything; values with the bug, and right ones."""
    told = dict(zip(("expected_unpatched", "expected_fixed"), ({key: {"value": value}} for value in values)))
    plain = {name: item for name, item in MASKED_TOKENS.items() if name not in ("variants", "invariant", "tolerance")}
    return {**plain, "contract": "call", "boundary": f"demo_rl.losses.{function}", "scenario": scenario, **told}


#: Each kind of value that a recipe can write, and what a function sees of it.
VALUES: dict[str, Any] = {
    "strided": {"tensor": [[1.0, float("nan")], [-1.5, 3.0]], "dtype": "bfloat16", "contiguous": False},
    "leaf": {"tensor": 1.1, "dtype": "float16", "requires_grad": True},
    "empty": {"tensor": [[], []], "dtype": "int32"},
    "flags": {"tensor": [True, False], "dtype": "bool"},
    "objects": {"array": ["p", 2, None]},
    "numbers": {"array": [1, 2], "dtype": "int64"},
    "pair": {"tuple": [1, {"tensor": [0.1], "dtype": "float32"}]},
    "holder": {"namespace": {"deep": {"key": [True]}}},
    "made": {"new": "demo_rl.losses.Made", "arguments": {"size": 2}},
    "function": {"attribute": "demo_rl.losses.agg_loss"},
    "place": {"device": "cpu"},
    "plain": {"text": "\u202e'''\\", "big": 2**40},
}
SEEING = """\
class Made:
    def __init__(self, size):
        self.size = size


def seen(**values):
    def told(value):
        if isinstance(value, torch.Tensor):
            laid = [value.is_contiguous(), value.requires_grad]
            return [str(value.dtype), list(value.shape), str(value.tolist()), *laid]
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(told, value)]
        if type(value).__name__ == "ndarray":
            return ["array", str(value.dtype), *map(told, value.tolist())]
        if isinstance(value, dict):
            return {key: told(item) for key, item in value.items()}
        if hasattr(value, "__dict__") and not callable(value):
            return [type(value).__name__, told(vars(value))]
        return value.__name__ if callable(value) else str(value)

    return told(values)
"""


def test_values_reach_the_boundary_as_the_recipe_has_them(export, broken_tree):
    """What the worker makes of a recipe's values is what the runner makes of them."""
    edited(broken_tree, "losses.py", SEEING)
    document = calling("seen", {"arguments": VALUES}, "returned", (None, 0))
    seen = export(document, broken_tree).sides[0].decision.measurement.observation[""]["returned"]
    bundle = export({**document, "expected_unpatched": {"returned": {"value": seen}}}, broken_tree, check=True)
    assert bundle.sides[0].decision.verdict.name == "reproduced"
    assert bundle.sides[0].tried.status == "reproduced", bundle.sides[0].tried


def test_a_title_cannot_end_the_docstring(export, broken_tree, fixed_tree):
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, title='ends""" here\\ import os; os._exit(3)')
    for text in (bundle.runner.text, bundle.test):
        first = ast.parse(text).body[0]
        assert isinstance(first, ast.Expr)
        assert "os._exit" in str(first.value.value)  # type: ignore[attr-defined]


def test_without_pins_an_error_that_helps(loaded_recipe):
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
def test_revisions_are_neighbours(loaded_recipe, expects, pair):
    refs = [Ref("git", f"{number:040x}") for number in range(6)]
    pins = tuple(Pin(ref, expect) for ref, expect in zip(refs, expects.split()))
    base, head = pair
    assert replace(loaded_recipe, pins=pins).revisions() == (refs[base], None if head is None else refs[head])
