"""Scenarios of recipes, as a search at the boundary would have drawn them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy import TOY

from sentinel.recipes import Recipe
from sentinel.search.bench import Subject
from sentinel.search.examples import example
from sentinel.targets import Binding

#: A search has the scale that ``shifted`` says, where nobody says otherwise.
SUBJECT = Subject(
    Binding("pkg.toys.right", "toy_sum", fixed={"shifted": False, "scale": lambda inputs: 3.0 + inputs["shifted"]}),
    TOY,
    (),
    "",
    "",
)


def recipe(inputs: Mapping[str, Any], *defaulted: str) -> Recipe:
    variants = {"": {"shifted": True, "scale": 1.0, **inputs}}
    return Recipe("X", "x", "toy", "toy_sum", "pkg.toys.right", variants, Path("x"), "", defaulted=defaulted)


@pytest.mark.parametrize(("defaulted", "scale"), [((), 7.0), (("scale",), 3.0)], ids=("stated", "left out"))
def test_what_a_search_derives_gives_way_to_what_a_recipe_states(defaulted: tuple[str, ...], scale: float) -> None:
    found = example(SUBJECT, recipe({"scale": 7.0}, *defaulted))
    assert found.variants == {"": {"shifted": False, "scale": scale}}
