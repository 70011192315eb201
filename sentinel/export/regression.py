"""``test_<bug>.py``: the recipe as a test that the upstream project can keep: with the bug it fails, else it passes."""

from __future__ import annotations

import re
from typing import Any

from sentinel.export.literals import scalar
from sentinel.export.observing import Observing, Subject
from sentinel.export.program import ProgramError
from sentinel.export.rendering import variable
from sentinel.export.runner import python, tolerance
from sentinel.export.wrapping import wrapped
from sentinel.outcomes import Observation
from sentinel.recipes.addresses import parse_address
from sentinel.reports.escaping import message
from sentinel.values import Tensor
from sentinel.verdicts import MissingKeyError, read

_CLOSE = 'CLOSE = {{"rtol": {tolerance!r}, "atol": 1e-06, "equal_nan": True, "check_dtype": False}}'


def file_name(bug_id: str) -> str:
    """``test_<bug>.py``"""
    return f"test_{_snake(bug_id)}.py"


def regression_test(subject: Subject, observed: Observing, observation: Observation) -> str:
    """The text of the test.

    :param observation: what was observed at one of the revisions; says which values are tensors.
    :raises ProgramError: where the recipe does not say what is right.
    """
    recipe = subject.recipe
    variants = tuple(recipe.variants)
    told = [address for address in observed.addresses if address in recipe.expected_fixed]
    plain = [address for address in told if parse_address(address, variants).kind == "value"] or told
    if not plain:
        raise ProgramError("the recipe does not say which values are right")
    asserts = [
        _assert(recipe.expected_fixed[a].value, _name(a, variants), _is_tensor(a, observation), recipe) for a in plain
    ]
    calls = [
        wrapped(f"{variable(name, 'observed')} = {call}")
        for name, call in observed.variants.items()
        if any(name in parse_address(address, variants).variants for address in plain)
    ]
    third = sorted({"torch", *observed.third, *(["pytest"] if any("pytest." in line for line in asserts) else [])})
    title = message(recipe.title).replace('"""', "'''").replace("\\", "\\\\")
    body = "\n".join("    " + line for item in [*calls, *asserts] for line in item.split("\n"))
    head = "\n".join([*observed.standard, *([""] if observed.standard else []), *(f"import {n}" for n in third)])
    parts = [
        f'"""Regression test: {title}."""\n\n{head}\n\n' + "\n".join(observed.imports.lines()),
        *observed.classes,
        *([_CLOSE.format(tolerance=tolerance(recipe))] if any("CLOSE" in line for line in asserts) else []),
        "\n".join(observed.function),
        f"def test_{_snake(recipe.bug_id)}():\n{body}",
    ]
    return "\n\n\n".join(parts) + "\n"


def _snake(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower()


def _name(address: str, variants: tuple[str, ...]) -> str:
    found = parse_address(address, variants)
    return " - ".join(f"{variable(variant, 'observed')}[{scalar(found.key)}]" for variant in found.variants)


def _is_tensor(address: str, observation: Observation) -> bool:
    try:
        return isinstance(read(address, observation), Tensor)
    except MissingKeyError:
        return False


def _assert(value: Any, name: str, tensor: bool, recipe: Any) -> str:
    if tensor:
        return wrapped(f"torch.testing.assert_close({name}, torch.tensor({python(value)}), **CLOSE)")
    if isinstance(value, bool) or value is None:
        return f"assert {name} is {value}"
    if isinstance(value, float) or (isinstance(value, list) and value and all(isinstance(v, float) for v in value)):
        return wrapped(f"assert {name} == pytest.approx({python(value)}, nan_ok=True)")
    return wrapped(f"assert {name} == {python(value)}")
