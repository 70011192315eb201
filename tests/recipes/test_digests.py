"""Digests of bindings cover the code that the declaration reaches, and no other code of the adapter."""

from pathlib import Path

import pytest

from sentinel.recipes.catalog import bundled_catalog, load_adapter
from sentinel.recipes.digests import binding_digest, contract_digest

ADAPTER = '''\
from functools import partial

from sentinel.targets import Binding, Dialect, PackageRoot, Target

SCALE = 2.0


def stating(statement):
    return lambda function: function


@stating("the value is scaled")
def _scaled(value):
    """Scale a value."""
    return value * SCALE


class Stub:
    def step(self):
        return 1


def _call(boundary, inputs, *, times=1):
    stub = Stub()
    return {"loss": _scaled(boundary.invoke(inputs, stub))}


def _other(boundary, inputs):
    if not inputs:
        raise ValueError(f"there are no inputs: {inputs}")
    return {"loss": 0}


TARGET = Target(
    "mine",
    "https://example.invalid/mine",
    (PackageRoot("mine"),),
    bindings=(
        Binding(
            "mine.agg",
            "loss_aggregation",
            call=partial(_call, times=2),
            dialects=(Dialect("the_oracle_agrees", reason="as in the paper", link="https://example.invalid/1"),),
        ),
        Binding("mine.agg2", "loss_aggregation", call=lambda boundary, inputs: _other(boundary, inputs)),
    ),
)
'''


def digests(folder: Path, old: str = "", new: str = "") -> list[str]:
    assert old in ADAPTER
    file = folder / f"mine{len(list(folder.iterdir()))}.py"  # Python caches a module's source by its path
    file.write_text(ADAPTER.replace(old, new) if old else ADAPTER)
    target = load_adapter(file, bundled_catalog().contracts).target
    return [binding_digest(target, file, name, "loss_aggregation") for name in ("mine.agg", "mine.agg2")]


@pytest.mark.parametrize(
    ("old", "new", "differ"),
    [
        ('"""Scale a value."""', '"""Return the value, scaled."""', [False, False]),
        ("SCALE = 2.0\n", "# twice\nSCALE = 2.0\n\n", [False, False]),
        ("the value is scaled", "a scaled value", [False, False]),
        ("as in the paper", "the paper says so", [False, False]),
        ("def _scaled(value):", "def _scaled(value: float) -> float:", [False, False]),
        ("SCALE = 2.0", "SCALE = 3.0", [True, False]),
        ("value * SCALE", "SCALE * value", [True, False]),
        ("return 1", "return 2", [True, False]),
        ("times=2", "times=3", [True, False]),
        ('{"loss": 0}', '{"loss": 1}', [False, True]),
        ("there are no inputs: ", "no inputs in ", [False, False]),
        ("no inputs: {inputs}", "no inputs", [False, True]),
        ("raise ValueError", "raise KeyError", [False, True]),
        ("_other(boundary, inputs))", "_other(boundary, {}))", [False, True]),
        ("the_oracle_agrees", "parts_add_up", [True, False]),
    ],
)
def test_a_digest_covers_the_code_that_a_binding_reaches(tmp_path, old, new, differ):
    before, after = digests(tmp_path), digests(tmp_path, old, new)
    assert [one != other for one, other in zip(before, after, strict=True)] == differ


def test_a_law_is_part_of_the_contract_digest():
    catalog = bundled_catalog()
    contract = catalog.contracts["loss_aggregation"]
    several = [contract_digest(contract, law) for law in (None, *(catalog.laws[name] for name in contract.laws))]
    assert len(set(several)) == len(several)
