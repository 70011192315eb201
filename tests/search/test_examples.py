"""Scenarios from recipes, and scenarios derived from them, have the same form as drawn ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy import TOY

from sentinel.deciding.law_session import Subject
from sentinel.laws.knobs import every_knob_counts
from sentinel.recipes import Recipe
from sentinel.search.boundary_search import CHOICES, Drawn, example
from sentinel.targets import Binding, Dialect
from sentinel.values.literals import tensor

#: The default scale of a search, which ``shifted`` gives.
SUBJECT = Subject(
    Binding("pkg.toys.right", "toy_sum", fixed={"shifted": False, "scale": lambda inputs: 3.0 + inputs["shifted"]}),
    TOY,
    (),
    "",
)
COUNTED = {"values": tensor([[1.0]], "float32"), "response_mask": tensor([[1.0]], "float32")}


def recipe(inputs: Mapping[str, Any], *defaulted: str) -> Recipe:
    variants = {"": {"shifted": False, "scale": 1.0, **inputs}}
    return Recipe("X", "x", "toy", "toy_sum", "pkg.toys.right", variants, Path("x"), "", defaulted=defaulted)


@pytest.mark.parametrize(("defaulted", "scale"), [((), 7.0), (("scale",), 3.0)], ids=("stated", "left out"))
def test_values_of_a_recipe_override_derived_ones(defaulted, scale):
    found = example(SUBJECT, recipe({"scale": 7.0}, *defaulted))
    assert found.variants == {"": {"shifted": False, "scale": scale}}


DIALECT = Dialect("shifted", True, "meant", "https://example.org")


@pytest.mark.parametrize("states", [{"shifted": True}, {}], ids=["stated", "left out"])
def test_a_recipes_variants_are_tried_unchanged(states):
    """The adapter may have changed since the recipe was written, but each law gets the recipe's own values."""
    told = recipe(states, *({"scale"} if states else {"scale", "shifted"}))
    assert example(SUBJECT, told).variants[""]["shifted"] is bool(states)  # what the boundary fixes
    dialects = Subject(Binding("pkg.toys.right", "toy_sum", dialects=(DIALECT,)), TOY, (), "")
    told = recipe({"shifted": False, **COUNTED}, *(() if states else {"shifted"}))
    inputs = example(dialects, told).variants[""]
    assert inputs["shifted"] is not bool(states)
    variants = Drawn(dialects, inputs, bytes(CHOICES)).variants(every_knob_counts)
    assert isinstance(variants, dict)
    assert {part["shifted"] for part in variants.values()} == {inputs["shifted"]}


def test_a_changed_knob_activates_a_dialect():
    """Otherwise the reference would compute another boundary's values."""
    dialect = Dialect("shifted", True, "meant", "https://example.org", where={"scale": (2.0,)})
    subject = Subject(Binding("pkg.toys.right", "toy_sum", dialects=(dialect,)), TOY, (), "")
    inputs = {**COUNTED, "scale": 1.0, "shifted": False}
    variants = Drawn(subject, inputs, bytes(CHOICES)).variants(every_knob_counts)
    assert isinstance(variants, dict)
    assert {name: (part["scale"], part["shifted"]) for name, part in variants.items()} == {
        "baseline": (1.0, False),
        "turned": (2.0, True),
    }
