"""A contract for tests of the search: the sum of a row's valid values."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.contracts.contract import Contract, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"sums": call(**inputs)["sums"]}


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    values = torch.where(inputs["response_mask"] != 0, inputs["values"], 0.0)
    return {"sums": inputs["scale"] * values.sum(-1) + (1.0 if inputs["shifted"] else inputs.get("offset") or 0.0)}


TOY = Contract(
    name="toy_sum",
    summary="a scaled sum of the values of each row that count",
    source="none: made for tests",
    inputs=(
        Input("values", "tensor", "numbers", shape=("batch", "tokens"), domain="loss"),
        Input("response_mask", "tensor", "1 where one counts", shape=("batch", "tokens"), domain="mask"),
        Input("scale", "number", "a factor", choices=(1.0, 2.0), knob=True),
        Input("shifted", "boolean", "whether 1 is added", default=False, dialect=True),
    ),
    observes=(Observed("sums", "one a row", ("batch",)),),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees",),
)

_OFFSET = Input("offset", "number", "what is added; left out, nothing", default=None, choices=(None, 1.0), knob=True)

#: The contract with an input that some functions do not have.
TOY_WITH_OFFSET = replace(TOY, name="toy_sum_with_offset", inputs=(*TOY.inputs, _OFFSET))

#: The contract without a reference: only a law decides.
TOY_ALONE = replace(TOY, name="toy_sum_alone", oracle=None, laws=("masked_values_have_no_influence",))

_MANY = replace(_OFFSET, choices=(None, *(float(number) for number in range(1, 33))))

#: The contract with more choices than a short search draws.
TOY_WITH_MANY_OFFSETS = replace(TOY, name="toy_sum_with_many_offsets", inputs=(*TOY.inputs, _MANY))
