"""Overlong filtering: a response that was cut off at the limit of its length is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import TOKENS, Choose, Contract, Observed, token_mask
from sentinel.contracts.response_lengths import with_a_token


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``call`` returns ``kept`` [batch, tokens]: the mask that training sees."""
    kept = call(**inputs)["kept"]
    return {"kept": kept, "kept_outside": int(((kept != 0) & (inputs["response_mask"] == 0)).sum())}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The mask, with 0 in every column of a response that has as many tokens as there is room for."""
    valid = inputs["response_mask"] != 0
    return {"kept": (valid & ~valid.all(-1, keepdim=True)).double()}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """Every response has a token."""
    return with_a_token(inputs)


OVERLONG_FILTER = Contract(
    name="overlong_filter",
    summary="the mask of a batch of responses, without those that were cut off at the limit",
    source="DAPO (arXiv:2503.14476), section 3.4: overlong filtering masks the loss of truncated samples",
    inputs=(
        token_mask(
            "1 where a token is of the response; one that fills all columns was cut off", dtype="int64", dtypes=()
        ),
    ),
    observes=(
        Observed("kept", "1 where a token is trained on", TOKENS, "decision"),
        Observed("kept_outside", "how many tokens are kept that do not count"),
    ),
    measure=_measure,
    oracle=_oracle,
    law="the_oracle_agrees",
    laws=("order_does_not_matter", "twins_agree", "the_oracle_agrees", "nothing_else_is_touched"),
    arrange=_arrange,
)
