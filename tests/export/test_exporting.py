"""A bug of the demo framework as files that do without Sentinel."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW

from sentinel.errors import SentinelError
from sentinel.export import checking
from sentinel.export.exporting import revisions
from sentinel.recipes import Pin, Recipe
from sentinel.refs import Ref

VARIANTS: dict[str, Any] = {
    **REJECTED_ROW,
    "invariant": None,
    "expected_unpatched": {"difference(reward_9, reward_0).advantages": [[0, 0], [-3, -3], [-3, -3]]},
    "expected_fixed": {"difference(reward_9, reward_0).advantages": [[0, 0], [0, 0], [0, 0]]},
}


def test_runner_and_test_say_at_each_revision_what_the_evidence_says(
    export: Any, broken_tree: Path, fixed_tree: Path
) -> None:
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert [(side.tried.status, side.tested.status) for side in bundle.sides] == [
        ("reproduced", "failed"),
        ("fixed", "passed"),
    ]


def test_files_know_nothing_of_sentinel_and_are_short(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree)
    assert bundle.script.count("\n") <= 150
    for text in (bundle.script, bundle.test):
        imported = {
            name
            for node in ast.walk(ast.parse(text))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not any(name.startswith("sentinel") for name in imported)
        assert "agg_loss(" in text


def test_nothing_expected_is_copied_into_what_the_runner_observes(
    export: Any, broken_tree: Path, fixed_tree: Path
) -> None:
    """A third implementation gives a third answer: a runner that had its numbers from evidence would not see it."""
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree)
    losses = fixed_tree / "demo_rl" / "losses.py"
    losses.write_text(
        losses.read_text() + "\n\nhonest = agg_loss\n\n\ndef agg_loss(*a, **k):\n    return 3 * honest(*a, **k)\n"
    )
    checkout = bundle.head.decision.checkout
    changed = type(checkout)(**{**vars(checkout), "path": fixed_tree})
    assert checking.run(bundle.script, changed).status == "changed"


def test_variants_become_arguments_of_one_function(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    bundle = export(VARIANTS, broken_tree, fixed_tree, check=True)
    assert [side.decision.verdict.name for side in bundle.sides] == ["reproduced", "fixed"]
    assert bundle.script.count("def observe(") == 1
    assert "minus(" in bundle.script
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]


@pytest.mark.parametrize("name", ["with", "torch"])
def test_a_variant_may_have_a_name_that_no_variable_has(
    export: Any, broken_tree: Path, fixed_tree: Path, name: str
) -> None:
    document = json.loads(json.dumps(VARIANTS).replace("reward_9", name))
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason


def test_a_law_that_decides_alone_has_no_runner_and_says_so(export: Any, broken_tree: Path) -> None:
    bundle = export(REJECTED_ROW, broken_tree)
    assert not bundle.script
    assert "a law decides" in bundle.reason
    assert not bundle.complete


def test_a_law_that_decides_alone_gives_the_values_where_it_holds(
    export: Any, broken_tree: Path, fixed_tree: Path
) -> None:
    bundle = export(REJECTED_ROW, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]


REQUIRED = {**MASKED_TOKENS, "requires": "demo_rl.losses.NEW_OPTION"}


def test_a_runner_says_where_a_checkout_is_not_about_the_bug(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    losses = fixed_tree / "demo_rl" / "losses.py"
    losses.write_text(losses.read_text() + "\n\nNEW_OPTION = True\n")
    bundle = export(REQUIRED, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert [side.tried.status for side in bundle.sides] == ["unavailable", "fixed"]
    assert [side.tested and side.tested.status for side in bundle.sides] == [None, "passed"]
    assert "pkgutil" not in export(MASKED_TOKENS, broken_tree, fixed_tree).script


def test_what_no_revision_is_about_has_no_runner(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    bundle = export(REQUIRED, broken_tree, fixed_tree)
    assert not bundle.script
    assert "the checkout has no demo_rl.losses.NEW_OPTION" in bundle.reason


def calling(function: str, arguments: dict[str, Any], key: str, values: tuple[Any, Any]) -> dict[str, Any]:
    """A recipe of the contract that calls anything; values with the bug, and right ones."""
    scenario = {"arguments": arguments, **({"catch": True} if key == "raised" else {})}
    told = dict(zip(("expected_unpatched", "expected_fixed"), ({key: {"value": value}} for value in values)))
    plain = {name: item for name, item in MASKED_TOKENS.items() if name not in ("variants", "invariant", "tolerance")}
    return {**plain, "contract": "call", "boundary": f"demo_rl.losses.{function}", "scenario": scenario, **told}


def test_an_exception_is_caught_where_another_revision_raises_none(
    export: Any, broken_tree: Path, fixed_tree: Path
) -> None:
    for tree, condition in ((broken_tree, "not rows"), (fixed_tree, "False")):
        losses = tree / "demo_rl" / "losses.py"
        refusing = f"def kept(rows):\n    if {condition}:\n        raise ValueError('no rows')\n    return rows\n"
        losses.write_text(f"{losses.read_text()}\n\n{refusing}")
    document = calling("kept", {"rows": []}, "raised", ({"type": "ValueError", "message": "no rows"}, None))
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert "except Exception as error:" in bundle.script
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]


def test_a_backward_pass_is_written_down_once(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    for tree, factor in ((broken_tree, 2), (fixed_tree, 3)):
        losses = tree / "demo_rl" / "losses.py"
        losses.write_text(f"{losses.read_text()}\n\ndef scaled(x):\n    return {factor} * x\n")
    point = {"tensor": [1.0, 2.0], "dtype": "float32", "requires_grad": True}
    document = calling("scaled", {"x": point}, "gradients.x", ([2.0, 2.0], [3.0, 3.0]))
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert bundle.script.count("torch.autograd.backward(") == 1


def test_a_title_cannot_end_the_docstring(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    bundle = export(MASKED_TOKENS, broken_tree, fixed_tree, title='ends""" here\\ import os; os._exit(3)')
    for text in (bundle.script, bundle.test):
        first = ast.parse(text).body[0]
        assert isinstance(first, ast.Expr)
        assert "os._exit" in str(first.value.value)  # type: ignore[attr-defined]


def test_without_pins_an_error_that_helps(loaded_recipe: Recipe) -> None:
    with pytest.raises(SentinelError, match="--base"):
        revisions(loaded_recipe)


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
def test_revisions_are_neighbours(loaded_recipe: Recipe, expects: str, pair: tuple[int, int | None]) -> None:
    refs = [Ref("git", f"{number:040x}") for number in range(6)]
    pins = tuple(Pin(ref, expect) for ref, expect in zip(refs, expects.split()))
    base, head = pair
    assert revisions(replace(loaded_recipe, pins=pins)) == (refs[base], None if head is None else refs[head])


def test_a_runner_compares_lists_where_some_are_expected(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    assert "isinstance(left, list)" not in export(MASKED_TOKENS, broken_tree, fixed_tree).script
    assert "isinstance(left, list)" in export(VARIANTS, broken_tree, fixed_tree).script


def test_whole_numbers_need_no_tolerance_where_a_runner_is_long(
    export: Any, broken_tree: Path, fixed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = {
        **MASKED_TOKENS,
        "expected_unpatched": {"loss": 26},
        "expected_fixed": {"loss": int(MASKED_TOKENS["expected_fixed"]["loss"])},
    }
    assert "math.isclose" in export(counted, broken_tree, fixed_tree).script
    monkeypatch.setattr("sentinel.export.runner.LONGEST", 1)
    bundle = export(counted, broken_tree, fixed_tree, check=True)
    assert "math" not in bundle.script
    assert "TOLERANCE" not in bundle.script
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]


def test_lists_of_whole_numbers_need_none_either_and_tables_are_filled(
    export: Any, broken_tree: Path, fixed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.export.runner.LONGEST", 1)
    for tree, more in ((broken_tree, 0), (fixed_tree, 1)):
        losses = tree / "demo_rl" / "losses.py"
        losses.write_text(f"{losses.read_text()}\n\ndef counted(rows):\n    return [len(rows) + {more}] * 40\n")
    document = calling("counted", {"rows": [1, 2]}, "returned", ([2] * 40, [3] * 40))
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert "math" not in bundle.script
    assert max(map(len, bundle.script.splitlines())) <= 120
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]
