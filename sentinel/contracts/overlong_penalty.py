"""Soft overlong punishment: responses that come near the limit of their length lose some of their reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import (
    AS_DEFINED,
    REQUIRED,
    Choose,
    Contract,
    Observed,
    dialect,
    knob,
    per_row,
    token_mask,
)
from sentinel.contracts.response_lengths import with_a_token


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"rewards": call(**inputs)["rewards"]}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``r + f R(y)``, where ``R`` is 0 up to ``|y| = L_max - L_cache``, falls linearly to -1 at ``L_max``, and stays
    there."""
    lengths = (inputs["response_mask"] != 0).sum(-1).double()
    share = (lengths - (inputs["max_length"] - inputs["buffer"])) / inputs["buffer"]
    share = share.clamp(min=0.0, max=1.0 if inputs["beyond_limit"] == "flat" else None)
    return {"rewards": inputs["rewards"] - inputs["factor"] * share}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every response has a token, and the buffer is within the limit."""
    inputs["buffer"] = min(inputs["buffer"], inputs["max_length"])
    return with_a_token(inputs)


OVERLONG_PENALTY = Contract(
    name="overlong_penalty",
    summary="rewards of responses, less what they lose for coming near the limit of their length",
    source="DAPO (arXiv:2503.14476), equation 13: soft overlong punishment",
    inputs=(
        per_row("rewards", "reward of each response", "reward"),
        token_mask("1 where a token is of the response; its length is their number", dtypes=()),
        knob("max_length", "L_max: most tokens of a response", (5, 4, 3), REQUIRED),
        knob("buffer", "L_cache: before the limit, over so many tokens", (4, 2, 1), REQUIRED),
        knob("factor", "f: what a response at the limit loses", (1.0, 0.5)),
        dialect(
            "beyond_limit",
            "flat",
            "what one that is longer than the limit loses: flat (as at the limit), linear (more with each token)",
        ),
    ),
    observes=(Observed("rewards", "reward of each response, with the penalty", ("batch",)),),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=(
        "groups_are_isolated",
        "order_does_not_matter",
        "padding_is_invisible",
        "twins_agree",
        "every_knob_counts",
        "finite_in_finite_out",
        *AS_DEFINED,
    ),
    arrange=_arrange,
)
