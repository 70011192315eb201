"""The check of a configuration before training starts: what it refuses, and what it settles by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sentinel.contracts.contract import Choose, Contract, DoesNotApply, Input, Observed


def _measure(call: Callable[..., Mapping[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    outputs = call(**inputs)
    return {"accepted": outputs["refusal"] is None, "refusal": outputs["refusal"], "settled": outputs["settled"]}


def _arrange(inputs: dict[str, Any], choose: Choose) -> dict[str, Any]:
    """One option that takes a name, with a name that exists or with a misspelt one."""
    named = inputs["named_options"]
    option = choose.one_of(list(named))
    names = named[option]["names"]
    name = f"{names[0]}x" if choose.integer(0, 1) else choose.one_of(names)
    inputs["configuration"] = {**inputs["configuration"], **named[option].get("with", {}), option: name}
    return inputs


def _oracle(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A name that does not exist can have no effect but a mistake: it is refused, and one that exists is not."""
    named = {option: of["names"] for option, of in inputs["named_options"].items() if option in inputs["configuration"]}
    if not named:
        raise DoesNotApply("the configuration has no option whose names are known")
    wrong = {option for option, names in named.items() if inputs["configuration"][option] not in names}
    refusal = {"type": "", "message": ", ".join(sorted(wrong))} if wrong else None
    return {"refusal": refusal, "settled": {}}


CONFIGURATION_CHECK = Contract(
    name="configuration_check",
    summary="whether a configuration is accepted, and the options as the check leaves them",
    source="a mistake in the configuration is refused before any GPU hour is spent, not in the first training step",
    inputs=(
        Input(
            "configuration",
            "mapping",
            "dotted option -> value; what is left out keeps the framework's default",
            choices=({},),
        ),
        Input("watched", "any", "dotted options whose value after the check is observed", default=[]),
        Input(
            "named_options",
            "mapping",
            "what a search makes the configuration of: dotted option -> names (those that it takes) and with (options "
            "without which nobody reads it)",
            default={},
        ),
    ),
    observes=(
        Observed("accepted", "whether the check let it pass"),
        Observed("refusal", "type and message of the error, where it did not", role="other"),
        Observed("settled", "dotted option -> value after the check", role="other"),
    ),
    measure=_measure,
    oracle=_oracle,
    laws=("the_oracle_agrees",),
    arrange=_arrange,
)
