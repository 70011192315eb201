"""Define a contract with every kind of observation, an honest function, and deviations from it."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sentinel.contracts.choices import Choices as Drawn
from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Input, Inputs, Observed
from sentinel.laws.law import Case, Law, Violation
from sentinel.search.scenarios import draw, narrow
from sentinel.targets import Binding
from sentinel.values.literals import FLOATS, Tensor, from_array, tensor

Array = npt.NDArray[Any]
Observation = Mapping[str, Any]
Function = Callable[[Inputs], Observation]


class Dice(Drawn):
    """Choices from a random generator, in place of Hypothesis's."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__(generator.randbytes(256))


def _parts(inputs: Mapping[str, Any], choose: Choose) -> list[dict[str, Any]]:
    """Return one part per group, with the count of the whole batch."""
    groups = dict.fromkeys(inputs["group"])
    if len(groups) < 2:
        raise DoesNotApply("one group cannot be cut")
    count = max(int((inputs["response_mask"].array() != 0).sum()), 1)
    return [{**part(inputs, group), "count": count} for group in groups]


def part(inputs: Mapping[str, Any], group: str) -> dict[str, Any]:
    rows = [row for row, label in enumerate(inputs["group"]) if label == group]
    cut = {name: from_array(inputs[name].array()[rows], inputs[name].dtype) for name in ("scores", "response_mask")}
    return {**inputs, **cut, "group": [group] * len(rows)}


CONTRACT = Contract(
    name="scoring",
    summary="group-centred scores, and their weighted mean as a loss",
    source="these tests",
    inputs=(
        Input("scores", "tensor", "a score of each token", shape=("batch", "tokens"), domain="reward"),
        Input(
            "response_mask",
            "tensor",
            "1 where a token counts",
            shape=("batch", "tokens"),
            domain="mask",
            dtypes=("bool", "int64"),
        ),
        Input("group", "labels", "the prompt", shape=("batch",)),
        Input("scale", "number", "multiplies the loss", default=1.0, choices=(1.0, 2.0), knob=True),
        Input("count", "number", "valid tokens of the global batch", default=None),
    ),
    observes=(
        Observed("loss", "scale times the mean score of a valid token"),
        Observed("advantages", "a row's sum of scores, less its group's mean", ("batch", "tokens")),
        Observed("per_token_gradient", "d loss / d scores", ("batch", "tokens"), "gradient"),
        Observed("share", "share of the valid tokens with a positive score", role="metric"),
        Observed("kept", "1 in rows of positive sum", ("batch", "tokens"), "decision"),
        Observed("note", "what nobody compares", role="other"),
    ),
    measure=lambda call, inputs: call(**inputs),
    oracle=lambda inputs: {},
    group="group",
    parts=_parts,
)

BINDING = Binding("framework.scoring", "scoring")


@dataclass(frozen=True)
class Choices:
    """Options of :func:`scoring`. Each default is honest; each other value is one deviation."""

    masked: str = "left out"  # or "multiplied", "counted"
    rejected: str = "absent"  # or "counted"
    baseline: str = "group"  # or "batch"
    position: float = 0.0
    columns: bool = False
    own_count: bool = False
    integer_mask: str = "a mask"  # or "an index"
    scale: str = "used"  # or "ignored"
    share_over: str = "valid"  # or "all"
    decided: str = "by row"  # or "by token"
    lone: float = 0.0
    shrink: float = 0.0
    gradient: str = "where it belongs"  # or "everywhere", "nowhere"
    precision: str = ""


HONEST = Choices()


def scoring(choices: Choices = HONEST) -> Function:
    """Return the scores, in the dtype of the inputs."""
    return lambda inputs: _scoring(inputs, choices)


@np.errstate(all="ignore")
def _scoring(inputs: Inputs, choices: Choices) -> Observation:
    given, mask = inputs["scores"], inputs["response_mask"]
    scores = given.array()
    if choices.precision and given.dtype == "float32":
        scores = scores.astype(choices.precision)
    valid = mask.array() != 0
    if choices.integer_mask == "an index" and mask.dtype == "int64":
        valid = np.roll(valid, 1, axis=0)
    if choices.masked == "multiplied":
        counted = scores * valid
    else:
        counted = np.where(valid | (choices.masked == "counted"), scores, 0)
    count = valid.sum() if inputs["count"] is None or choices.own_count else inputs["count"]
    count = scores.dtype.type(max(count, 1))
    scale = 1.0 if choices.scale == "ignored" else inputs["scale"]
    gradient = np.where(valid | (choices.gradient == "everywhere"), scale / count, 0.0)
    rows = counted.sum(axis=-1)
    kept = np.repeat((rows > 0)[:, None], scores.shape[1], axis=1) if choices.decided == "by row" else counted > 0
    share_of = valid if choices.share_over == "valid" else np.ones_like(valid)
    centred = _centred(rows, valid, inputs["group"], choices)
    if choices.columns:
        centred = centred / scores.shape[1]

    def out(values: Any) -> Tensor:
        return from_array(np.asarray(values), given.dtype)

    return {
        "loss": out(scale * counted.sum() / count),
        "advantages": out(np.where(valid, centred[:, None], 0.0)),
        "per_token_gradient": out(gradient * (choices.gradient != "nowhere")),
        "share": float(((scores > 0) & share_of).sum() / max(share_of.sum(), 1)),
        "kept": out(kept.astype(float)),
        "note": "what nobody compares",
    }


def _centred(rows: Array, valid: Array, group: Sequence[Any], choices: Choices) -> Array:
    there = valid.any(axis=-1) | (choices.rejected == "counted")
    centred = rows + choices.position * np.arange(len(rows))
    for name in set(group):
        members = np.array([label == name or choices.baseline == "batch" for label in group]) & there
        own = np.array([label == name for label in group])
        mean = rows[members].mean() * (1 - choices.shrink) if members.any() else 0.0
        centred[own] = centred[own] - mean
        if members.sum() == 1:
            centred[own] = centred[own] + choices.lone
    return centred


def scenario(choose: Choose, contract: Contract = CONTRACT) -> dict[str, Any]:
    """Return one scenario of the contract, as a search draws it."""
    return draw(narrow(contract, BINDING), BINDING, choose)


def batch(scores: list[list[float]], mask: list[list[int]], group: str, dtype: str = "float32") -> dict[str, Any]:
    """Return a scenario with given values."""
    return {
        "scores": tensor(scores, dtype),
        "response_mask": tensor(mask, "float32"),
        "group": list(group),
        "scale": 1.0,
        "count": None,
    }


def ask(
    law: Law,
    function: Function,
    inputs: Inputs,
    choose: Choose,
    twin: Function | None = None,
    contract: Contract = CONTRACT,
) -> list[Violation]:
    """Return a law's violations for a function in one scenario. The oracle is :func:`scoring` in float64."""
    variants = {"": inputs} if law.vary is None else law.vary(narrow(contract, BINDING), inputs, choose)
    observation = {
        name: (twin or function)(given) if law.twin and name == law.twin else function(given)
        for name, given in variants.items()
    }
    oracle = {name: scoring()(_double(given)) for name, given in variants.items()} if law.needs_oracle else None
    again = {name: {"mutated": [], "globals": [], "again": function(given)} for name, given in variants.items()}
    return law.check(Case(variants, observation, oracle, contract, again if law.watches else {}))


def _double(inputs: Inputs) -> dict[str, Any]:
    return {
        name: replace(wide, requires_grad=value.requires_grad)
        if isinstance(value, Tensor) and value.dtype in FLOATS and (wide := from_array(value.array(), "float64"))
        else value
        for name, value in inputs.items()
    }
