"""Scenarios that are known to show something: those of recipes, for a search to begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import Subject
from sentinel.recipes import Recipe
from sentinel.search.scenarios import with_dialects


@dataclass(frozen=True)
class Example:
    """:ivar variants: variant name -> canonical inputs, as a search at this boundary would have drawn them.
    :ivar laws: the laws that are said to be broken there.
    """

    variants: Mapping[str, Inputs]
    laws: tuple[str, ...] = ()
    name: str = ""


def example(subject: Subject, recipe: Recipe) -> Example:
    """Give the scenario of a recipe of this boundary. What it states is tried as it says, in the place of what the
    adapter says of the boundary; what it leaves open is what a search draws first."""
    usual = {item.name: item.choices[0] for item in subject.contract.inputs if item.choices and not item.domain}
    granted = {name: usual[name] for name in recipe.defaulted if name in usual}
    fixed = subject.binding.fixed
    constants = {name: value for name, value in fixed.items() if not callable(value)}
    # What a search derives from the rest of a scenario.
    derived = {name: value for name, value in fixed.items() if callable(value) and name in recipe.defaulted}
    variants = {}
    for name, inputs in recipe.variants.items():
        stated = {key: value for key, value in inputs.items() if key not in recipe.defaulted}
        whole = {**inputs, **granted, **constants, **stated}
        whole |= {key: derive(whole) for key, derive in derived.items()}
        variants[name] = {**with_dialects(subject.contract, subject.binding, whole), **stated}
    return Example(variants, recipe.laws, recipe.bug_id)


def examples(subject: Subject, recipes: Sequence[Recipe]) -> list[Example]:
    """Give those of the recipes that are about this boundary."""
    return [
        example(subject, recipe)
        for recipe in recipes
        if recipe.contract == subject.contract.name and recipe.boundary in subject.binding.paths
    ]
