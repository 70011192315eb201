"""The settings in ``affects`` and ``until`` are options of the real code with the bug.

Each must be in the defaults of a commit that a recipe pins as buggy, and its values must be valid for the option or
appear in the code.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from demo_kit import few
from shipped import MIRRORS, RECIPES

from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.affects import bounding, in_text
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.declared import options_of
from sentinel.tools.audit.options import Option, Options

#: Values that the code composes from parts, with the parts that it tests.
COMPOSED = {"boxed_math": ("boxed_", "math")}

NAMING = {bug: bug for bug, recipe in RECIPES.items() if recipe.until or any(entry.when for entry in recipe.affects)}


@cache
def checkout(target: str, ref: Ref) -> Checkout | None:
    try:
        return open_checkout(bundled_catalog().targets[target], ref, store=MIRRORS)
    except Unavailable:
        return None


@cache
def options(target: str, ref: Ref) -> tuple[Options, ...]:
    found = checkout(target, ref)
    return options_of(bundled_catalog(), bundled_catalog().targets[target], found) if found else ()


@cache
def code(target: str, ref: Ref) -> str:
    found = checkout(target, ref)
    files = sorted(file for root in found.roots for file in (found.path / root).rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def refs(recipe: Recipe) -> list[Ref]:
    """Return the commits with the bug, or all pins if no pin has it."""
    pins = [pin for pin in recipe.pins if pin.ref.kind == "git"]
    return [pin.ref for pin in pins if pin.expect == "reproduced"] or [pin.ref for pin in pins]


def named(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    for entry in recipe.affects:
        yield from entry.when.items()
    yield from recipe.until.items()


def complaint(recipe: Recipe, name: str, condition: Any) -> str:
    """Return what is wrong with a setting; empty if one of the recipe's commits has it and accepts its values."""
    complaints = []
    for ref in refs(recipe):
        trainers = [trainer for trainer in options(recipe.target, ref) if name in trainer]
        found = [trainer.options.get(name, Option("{…}")) for trainer in trainers]
        wrong = [] if found else [f"{ref.short} has no option {name}"]
        for value in values(condition):
            other = value == bounding(condition) and any(value in trainer for trainer in trainers)
            if found and not other and not any(knows(recipe, ref, option, value) for option in found):
                wrong.append(f"{ref.short}: {name} knows no {value!r}")
        if not wrong:
            return ""
        complaints += wrong
    return "; ".join(complaints)


def values(condition: Any) -> list[str]:
    members = condition if isinstance(condition, list) else [condition]
    texts = [re.sub(r"^(>=|<=|!=|>|<) ", "", in_text(member)) for member in members]
    return [part for text in texts if text not in ("set", "unset", "null") for part in text.split(",")]


def knows(recipe: Recipe, ref: Ref, option: Option, value: str) -> bool:
    if value in option.choices:
        return True
    if value in ("true", "false"):
        return option.default in ("true", "false", "null", None)
    if re.fullmatch(r"-?[\d.]+", value):
        return option.default in ("null", None) or re.fullmatch(r"-?[\d.e-]+", option.default) is not None
    text = code(recipe.target, ref)
    if option.choices:  # if the option may have several classes, only the default's is read
        return option.choices == (option.default,) and f'Literal["{value}"]' in text
    if value.count(".") > 1:  # the path of a class or function of the target
        module, _, attribute = value.rpartition(".")
        found = checkout(recipe.target, ref)
        files = [root / f"{module.replace('.', '/')}.py" for root in found.import_roots]
        return any(file.is_file() and re.search(rf"\b{attribute}\b", file.read_text()) for file in files)
    return all(f'"{part}"' in text or f"'{part}'" in text for part in COMPOSED.get(value, (value,)))


@pytest.mark.parametrize("bug", few(NAMING, 8))
def test_settings_of_affects_are_options_of_the_code_with_the_bug(bug):
    recipe = RECIPES[bug]
    if not any(options(recipe.target, ref) for ref in refs(recipe)):
        pytest.skip(f"no commit of {bug} is in the mirror store")
    complaints = [complaint(recipe, name, condition) for name, condition in named(recipe)]
    assert not any(complaints), "\n".join(filter(None, complaints))


@pytest.mark.parametrize(
    ("bug", "name", "condition", "said"),
    [
        ("VERL-REJECTED-ROW-GRPO", "algorithm.adv_estimater", "grpo", "no option algorithm.adv_estimater"),
        ("VERL-REJECTED-ROW-GRPO", "algorithm.adv_estimator", ["grpo", "grpoo"], "knows no 'grpoo'"),
        ("AREAL-SAPO-MASKED-NAN-GRADIENT", "actor.use_sapo_los", True, "no option actor.use_sapo_los"),
        ("AREAL-NORM-MASKED-NON-FINITE", "actor.adv_norm.mean_level", "row", "knows no 'row'"),
        ("ROLL-GAE-UNMASKED-VALUES", "adv_estimator", "gea", "knows no 'gea'"),
        ("SKYRL-KL-K2-MASKED-NAN-GRADIENT", "trainer.algorithm.use_kl_loss", "> x", "knows no 'x'"),
        ("SLIME-OPSM-CLIPFRAC-MASKED-TOKENS", "use_opms", True, "no option use_opms"),
        ("SLIME-LOW-VAR-KL-NAN-GRADIENT", "kl_loss_type", "k4", "knows no 'k4'"),
    ],
)
def test_a_wrong_setting_is_detected(bug, name, condition, said):
    recipe = RECIPES[bug]
    if not any(options(recipe.target, ref) for ref in refs(recipe)):
        pytest.skip(f"no commit of {bug} is in the mirror store")
    assert said in complaint(recipe, name, condition)
