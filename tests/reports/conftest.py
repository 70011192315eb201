"""Fixtures: decisions for tests of reports."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.deciding.outcomes import Comparison, Decision, Environment, Failure, Measurement, Provenance, Verdict
from sentinel.recipes import Expected, Recipe
from sentinel.targets import StandIn
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref
from sentinel.values.literals import tensor
from sentinel.values.tolerance import Tolerance

BASE = "c09bc8bc9f43d69968cb5dbfcb5d129b7fb08682"
HOSTILE = "\x1b[31m<script>alert(1)</script> [red]x[/red] </details> ``` | `a` @everyone\u202e\n## h\r\x07"


def roll_recipe(**changes: Any) -> Recipe:
    recipe = Recipe(
        bug_id="ROLL-AGGLOSS-TOKENMEAN-MASK",
        title="token-mean sums masked tokens",
        target="roll",
        contract="loss_aggregation",
        boundary="roll.utils.functionals.agg_loss",
        variants={
            "": {
                "loss_mat": tensor([[1.0, 100.0], [1.0, -50.0]], "float32", requires_grad=True),
                "loss_mask": tensor([[1, 0], [1, 0]], "int64"),
                "batch_num_tokens": 2,
                "theta": 1.0,
            }
        },
        path=Path("/home/alice/recipes/roll/ROLL-AGGLOSS-TOKENMEAN-MASK.yaml"),
        digest="sha256:" + "1" * 64,
        expected_unpatched={"loss": Expected(26.0), "per_token_gradient": Expected([[0.5, 0.5], [0.5, 0.5]])},
        expected_fixed={"loss": Expected(1.0), "per_token_gradient": Expected([[0.5, 0.0], [0.5, 0.0]])},
        defaulted=("theta",),
        upstream={"pull": 444},
        document={"recipe_version": 1, "scenario": {"loss_mat": [[1.0, 100.0], [1.0, float("-inf")]]}},
    )
    return replace(recipe, **changes)


def measured(loss: float, gradient: list[list[float]], **changes: Any) -> Measurement:
    measurement = Measurement(
        observation={"": {"loss": tensor(loss, "float32"), "per_token_gradient": tensor(gradient, "float32")}},
        provenance=Provenance(
            boundary="roll.utils.functionals.agg_loss",
            module="roll.utils.functionals",
            file="roll/utils/functionals.py",
            line=312,
            blob="2" * 40,
            signature="(loss_mat, loss_mask, loss_agg_mode, batch_num_tokens=None)",
            end_line=340,
        ),
        ghosts=("tensordict", "ray"),
        stand_ins=(StandIn("mpu", "one rank"),),
    )
    return replace(measurement, **changes)


def roll_decision(name: str = "reproduced", **changes: Any) -> Decision:
    """Return a decision: ``reproduced``, ``fixed``, or without a measurement."""
    loss, gradient = (26.0, [[0.5, 0.5], [0.5, 0.5]]) if name == "reproduced" else (1.0, [[0.5, 0.0], [0.5, 0.0]])
    bad, decided = name == "reproduced", name in ("reproduced", "fixed")
    ref = Ref("git", BASE)
    decision = Decision(
        recipe=roll_recipe(),
        ref=ref,
        verdict=Verdict(name) if decided else Verdict(name, "took longer than 60 s", "timeout"),  # type: ignore[arg-type]
        expect="reproduced",
        checkout=Checkout(
            target="roll",
            ref=ref,
            path=Path("/home/alice/.cache/sentinel/trees/ab12"),
            roots=("roll",),
            import_roots=(Path("/home/alice/.cache/sentinel/trees/ab12"),),
            tree="3" * 64,
            commit=BASE,
            left_out=(LeftOut("roll/z.png", 3_000_000, "too large"), LeftOut("roll/a.png", None, "absent")),
        ),
        measurement=measured(loss, gradient) if decided else None,
        failure=None if decided else Failure("timeout", "took longer than 60 s"),
        comparisons=(
            Comparison("loss", tensor(loss, "float32"), 26.0, 1.0, bad, not bad, "" if bad else "24 too small"),
            Comparison(
                "per_token_gradient",
                tensor(gradient, "float32"),
                [[0.5, 0.5], [0.5, 0.5]],
                [[0.5, 0.0], [0.5, 0.0]],
                bad,
                not bad,
                "element [0][1]: 0.5 beside 0.0",
            ),
        )
        if decided
        else (),
        environment=Environment(
            python="3.11.7",
            torch="2.13.0",
            numpy="2.4.6",
            platform="Linux-x86_64",
            flags={"TORCHDYNAMO_DISABLE": "1"},
            packages={"tensordict": "0.6"},
        ),
        adapter="sha256:" + "4" * 64,
    )
    return replace(decision, **changes)


@pytest.fixture(scope="session")
def decide() -> Callable[..., Decision]:
    """Return the decision of ROLL #444 with changed fields."""
    return roll_decision


@pytest.fixture(scope="session")
def recipe() -> Callable[..., Recipe]:
    return roll_recipe


@pytest.fixture(scope="session")
def measurement() -> Callable[..., Measurement]:
    return measured


@pytest.fixture(scope="session")
def hostile() -> str:
    """Text that a terminal, rich, Markdown or a browser might interpret."""
    return HOSTILE


@pytest.fixture(scope="session")
def loose() -> Tolerance:
    return Tolerance(relative=0.1)
