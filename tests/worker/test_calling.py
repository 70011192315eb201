"""Boundaries are found and called across renamed arguments and moved functions; drift names similar names."""

import ast
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, copy_demo

LOSS = "    return (loss_mat * {mask}).sum() / {mask}.sum()\n"


def demo_with(tmp_path: Path, losses: str, file: str = "losses.py") -> Path:
    tree = copy_demo(tmp_path / "demo")
    (tree / "demo_rl" / "losses.py").unlink()
    (tree / "demo_rl" / file).write_text(losses)
    return tree


@pytest.mark.parametrize(
    ("signature", "mask"),
    [
        ("loss_mat, loss_mask, loss_agg_mode", "loss_mask"),
        ("loss_mat, mask, loss_agg_mode", "mask"),
        ("loss_mat, response_mask, loss_agg_mode", "response_mask"),
        ("loss_agg_mode, loss_mask, *, loss_mat", "loss_mask"),
        ("loss_mat, loss_mask, loss_agg_mode='other', new=None, *args, **kwargs", "loss_mask"),
    ],
)
def test_arguments_are_bound_by_name(signature, mask, decide, tmp_path):
    tree = demo_with(tmp_path, f"def agg_loss({signature}):\n{LOSS.format(mask=mask)}")
    if mask == "response_mask":  # the adapter lists other names, so the canonical name is not used
        assert decide(MASKED_TOKENS, tree).verdict.kind == "drift"
    else:
        assert decide(MASKED_TOKENS, tree).verdict.name == "fixed"


def test_a_former_path_is_found(decide, tmp_path):
    tree = demo_with(
        tmp_path, f"def agg_loss(loss_mat, loss_mask, loss_agg_mode):\n{LOSS.format(mask='loss_mask')}", "core.py"
    )
    decision = decide(MASKED_TOKENS, tree)
    assert decision.verdict.name == "fixed"
    assert decision.measurement.provenance.boundary == "demo_rl.core.agg_loss"
    assert decision.measurement.provenance.file == "demo_rl/core.py"


@pytest.mark.parametrize(
    ("losses", "file", "said"),
    [
        (
            "def agg_los(loss_mat): ...\n",
            "losses.py",
            "this version has no demo_rl.losses.agg_loss (*; the nearest there is 'agg_los'",
        ),
        ("X = 1\n", "losses.py", "this version has no demo_rl.losses.agg_loss (removed upstream, or not there yet)"),
        (
            "\n\ndef agg_loss(loss_mat): ...\n",
            "elsewhere.py",
            "demo_rl.losses.agg_loss has moved to demo_rl.elsewhere.agg_loss; its code could not "
            "be compared with the old one",
        ),
        (
            "def agg_loss(loss_mat, loss_agg_mode): ...\n",
            "losses.py",
            "this version has no demo_rl.losses.agg_loss(loss_mask) (removed upstream, or not there yet)",
        ),
    ],
)
def test_a_missing_name_is_unavailable_and_names_its_new_place(losses, file, said, decide, tmp_path):
    verdict = decide(MASKED_TOKENS, demo_with(tmp_path, losses, file)).verdict
    assert (verdict.name, verdict.kind) == ("unavailable", "drift")
    assert fnmatch(verdict.reason, said)


def test_a_name_that_several_files_define_may_have_moved(decide, tmp_path):
    tree = demo_with(tmp_path, "def agg_loss(loss_mat): ...\n", "one.py")
    (tree / "demo_rl" / "other.py").write_text("def agg_loss(loss_mat): ...\n")
    reason = decide(MASKED_TOKENS, tree).verdict.reason
    assert reason == "this version has no demo_rl.losses.agg_loss; 2 other places define agg_loss"


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ("def agg_loss(loss_mat, loss_mask, loss_agg_mode, rank): ...\n", "now requires 'rank'"),
        ("agg_loss = 3\n", "is not callable"),
        (
            "def agg_loss(loss_mat, loss_mask, loss_agg_mode): return {'losses': loss_mat}\n",
            "did not return 'loss'; it returned losses",
        ),
    ],
)
def test_drift_names_the_searched_parameters(losses, said, decide, tmp_path):
    verdict = decide(MASKED_TOKENS, demo_with(tmp_path, losses)).verdict
    assert (verdict.name, verdict.kind) == ("inconclusive", "drift")
    assert said in verdict.reason


def test_a_shorter_tuple_is_drift(decide, tmp_path):
    tree = copy_demo(tmp_path / "demo")
    body = "def group_advantage(token_level_rewards, response_mask, index):\n    return (token_level_rewards,)\n"
    (tree / "demo_rl" / "advantages.py").write_text(body)
    verdict = decide(REJECTED_ROW, tree).verdict
    assert verdict.kind == "drift"
    assert "not the 2 values advantages, returns" in verdict.reason


@pytest.mark.parametrize(
    ("required", "there"),
    [
        ("demo_rl.losses", True),
        ("demo_rl.losses.agg_loss", True),
        ("demo_rl.losses.agg_loss(loss_mask)", True),
        ("demo_rl.settings.LossSettings.clip", True),
        ("demo_rl.settings.LossSettings.groups", True),  # a field with a factory is no attribute of the class
        ("demo_rl.settings.Row.tokens", True),
        ("demo_rl.losses.agg_loss(kl)", False),
        ("demo_rl.losses.kl_loss", False),
        ("demo_rl.settings.LossSettings.kl", False),
        ("demo_rl.nowhere", False),
        ("demo_rl.nowhere.at.all", False),
    ],
)
def test_requirements_of_a_recipe_are_checked(required, there, decide, fixed_tree):
    verdict = decide({**MASKED_TOKENS, "requires": [required]}, fixed_tree).verdict
    if there:
        assert verdict.name == "fixed"
    else:
        assert (verdict.name, verdict.kind) == ("unavailable", "not-in-this-version")
        assert verdict.reason == f"this version has no {required}"


def test_the_evidence_proves_which_code_ran(decide, broken_tree):
    import subprocess

    decision = decide(MASKED_TOKENS, broken_tree)
    found = decision.measurement.provenance
    file = broken_tree / "demo_rl" / "losses.py"
    blob = subprocess.run(["git", "hash-object", file], capture_output=True, text=True, check=True).stdout.strip()
    assert (found.file, found.blob, found.module) == ("demo_rl/losses.py", blob, "demo_rl.losses")
    assert file.read_text().splitlines()[found.line - 1].startswith(("def agg_loss", "@"))
    definitions = [item for item in ast.walk(ast.parse(file.read_text())) if isinstance(item, ast.FunctionDef)]
    (definition,) = (item for item in definitions if item.name == "agg_loss")
    assert found.end_line == definition.end_lineno
    assert "loss_mask" in found.signature
    assert " at 0x" not in found.signature


def test_code_from_outside_the_checkout_does_not_count_as_the_targets(decide, tmp_path):
    tree = demo_with(tmp_path, "from json import dumps as agg_loss\n")
    verdict = decide({**MASKED_TOKENS, "contract": "call", "scenario": {"positional": [1]}, **_CALL}, tree).verdict
    assert (verdict.name, verdict.kind) == ("inconclusive", "drift")
    assert "not loaded from the checkout" in verdict.reason


_CALL: dict[str, Any] = {
    "invariant": None,
    "expected_unpatched": {"returned": "1"},
    "expected_fixed": {"returned": "2"},
}


def test_methods_and_decorated_functions_are_called(lab):
    source = """
import functools
def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 2 * function(*args, **kwargs)
    return wrapper

class Actor:
    scale = 3
    @twice
    def step(self, x):
        return self.scale * x
    @staticmethod
    def static(x):
        return x
    @classmethod
    def klass(cls, x):
        return cls.scale * x
"""
    process = lab.open(lab.write({"mod.py": source}))
    for name, expected in (("static", 5), ("klass", 15)):
        answer = lab.probe(process, f"pkg.mod.Actor.{name}", x=5)
        assert answer.observation[""]["returned"] == expected
    found = lab.probe(process, "pkg.mod.Actor.step", self=None, x=1)
    assert found.kind == "raised"
    assert found.provenance.line == source[: source.index("@twice\n    def step")].count("\n") + 1


def test_a_failing_import_gives_the_same_message_each_time(lab):
    """The failing import has found a folder without ``__init__.py``, which the path needs too."""
    files = {
        "__init__.py": "from .whole import loss\nraise RuntimeError('half a package')\n",
        "whole/__init__.py": "",
        "whole/loss.py": "from pkg.bare.masks import MASK\n",
        "whole/mean.py": "from pkg.bare.rows import ROWS\n\ndef f():\n    return ROWS\n",
        "bare/masks.py": "MASK = 1\n",
        "bare/rows.py": "ROWS = 2\n",
    }
    reason = lab.call(files, "pkg.whole.mean.f").reason
    assert reason == "the module does not import: RuntimeError: half a package"


STEPS = """
class Trainer:
    shift = 1

    @property
    def twice(self):
        return 2 * self.scale

    @staticmethod
    def doubled(value):
        return 2 * value

    def helper(self, x):
        self.calls = 1
        return self.doubled(x) * self.scale + self.shift

    def step(self, x):
        return self.helper(x) + self.twice
"""


def test_a_namespace_as_self_has_the_other_methods_of_its_class(decide, fixed_tree):
    (fixed_tree / "demo_rl" / "steps.py").write_text(STEPS)
    document = {
        **MASKED_TOKENS,
        "contract": "call",
        "boundary": "demo_rl.steps.Trainer.step",
        "invariant": None,
        "scenario": {"self": {"namespace": {"scale": 10}}, "arguments": {"x": 3}},
        "expected_unpatched": {"returned": 81, "mutated": ["self.calls"]},
        "expected_fixed": {"returned": 0},
    }
    assert decide(document, fixed_tree).verdict.name == "reproduced"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("losses.agg_loss", "no demo_rl.losses.agg_loss (removed upstream)"),
        ("losses.pg_loss", "no demo_rl.losses.pg_loss (not there yet)"),
        ("core.agg_loss", "no demo_rl.core (removed upstream)"),
        ("trainer.agg_loss", "no demo_rl.trainer (not there yet)"),
    ],
)
def test_the_history_shows_whether_a_name_existed(name, said, decide, demo_repository, demo_home):
    recipe = {
        **MASKED_TOKENS,
        "contract": "call",
        "scenario": {"positional": [1]},
        **_CALL,
        "boundary": f"demo_rl.{name}",
    }
    verdict = decide(recipe, f"git:{demo_repository.commits['drifted']}").verdict
    assert verdict.reason.startswith(f"this version has {said}")
