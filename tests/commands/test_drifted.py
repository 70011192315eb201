"""``sentinel doctor TARGET``: each boundary beside what is there, and what to write in the adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.commands.drifted import diagnose
from sentinel.recipes.catalog import Catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref

LOSS = "def agg_loss(loss_mat, loss_mask, loss_agg_mode='token-mean'):\n    return 0\n"


@pytest.fixture
def doctor(run_sentinel: Any, tmp_path: Path) -> Callable[..., Any]:
    def run(files: dict[str, str], *options: str) -> Any:
        tree = tmp_path / "tree"
        for name, text in {"tiny/__init__.py": "", **files}.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        return run_sentinel("doctor", "tiny", "--ref", f"path:{tree}", *options)

    return run


def test_a_boundary_that_is_as_bound_needs_nothing(doctor: Any) -> None:
    answer = doctor({"tiny/losses.py": LOSS})
    assert answer.status == 0
    assert "1 of 1 boundaries of tiny" in answer.out
    assert "tiny/losses.py:1 (loss_mat, loss_mask, loss_agg_mode)" in doctor({}, "--all").out


@pytest.mark.parametrize(
    ("files", "state", "proposed"),
    [
        (
            {"tiny/core/algos.py": LOSS},
            "moved",
            "Binding('tiny.core.algos.agg_loss', 'loss_aggregation', formerly=('tiny.losses.agg_loss',))",
        ),
        (
            {"tiny/losses.py": LOSS.replace("agg_loss", "agg_losses")},
            "renamed",
            "Binding('tiny.losses.agg_losses', 'loss_aggregation', formerly=('tiny.losses.agg_loss',))",
        ),
        (
            {"tiny/losses.py": LOSS.replace("loss_mask", "resp_mask")},
            "other parameters",
            "arguments={'response_mask': ('resp_mask', 'loss_mask')}",
        ),
        ({"tiny/losses.py": "def other():\n    pass\n"}, "gone", ""),
        ({"tiny/losses.py": "def agg_loss(loss_mat) = nothing\n"}, "gone", ""),
    ],
)
def test_what_moved_is_found_and_an_entry_proposed(doctor: Any, files: Any, state: str, proposed: str) -> None:
    answer = doctor(files, "--json")
    (item,) = answer.json()
    assert (answer.status, item["state"], item["proposed"]) == (1, state, proposed)
    assert item["looked_for"] == ["tiny.losses.agg_loss"]


def test_the_text_says_what_was_looked_for(doctor: Any) -> None:
    said = doctor({"tiny/core.py": LOSS}).out
    assert "moved: tiny.losses.agg_loss (loss_aggregation)" in said
    assert "looked for  tiny.losses.agg_loss" in said
    assert "found       tiny.core.agg_loss in tiny/core.py:1" in said


def test_what_only_some_versions_have_is_no_drift(tiny_catalog: Catalog, tmp_path: Path) -> None:
    target = tiny_catalog.targets["tiny"]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "__init__.py").write_text("")
    (tmp_path / "tiny" / "losses.py").write_text(LOSS.replace("agg_loss", "agg_losses"))
    checkout = open_checkout(target, Ref("path", str(tmp_path)))

    def state(*requires: str) -> str:
        binding = replace(target.bindings[0], requires=requires)
        (found,) = diagnose(checkout, replace(target, bindings=(binding,)), tiny_catalog.contracts)
        return found.state

    assert state() == "renamed"
    assert state("tiny.losses.agg_loss") == "another version"
