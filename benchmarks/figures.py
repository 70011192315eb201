"""Update the README's figures that follow from recipes and laws: ``python benchmarks/figures.py``.

Each figure is found by a pattern that matches the README exactly once. Measured figures are not updated; the README
names the benchmark of each.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.grades import count_bugs, row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def figures() -> dict[str, tuple[object, ...]]:
    """Return pattern -> figures. Each pattern has one group for each of its figures."""
    catalog = bundled_catalog()
    recipes = find_recipes(catalog)
    rows = [row(recipe.target, recipe.document) for recipe in recipes]
    every = [(recipe, pin) for recipe in recipes for pin in recipe.pins]
    verl = [(recipe, pin) for recipe, pin in every if recipe.target == "verl"]
    commits = [pin.ref for _, pin in verl if pin.ref.kind == "git"]  # deselected: a new user has no mirror
    counts = Counter(pin.expect for _, pin in verl if pin.ref.kind == "pypi")
    newest = {
        verdict: [recipe for recipe, pin in verl if str(pin.ref) == "pypi:0.9.1" and pin.expect == verdict]
        for verdict in ("reproduced", "fixed", "unavailable")
    }
    counts_of = {
        verdict: count_bugs(row(recipe.target, recipe.document) for recipe in here) for verdict, here in newest.items()
    }
    return {
        r"ships (\d+ bugs? .*?), with (\d+) revisions": (count_bugs(rows), len(every)),
        r"and\s(\d+) \*laws\*": (len(catalog.laws),),
        r"pypi:0\.9\.1: present: (.*); fixed: (.*); not in this version: (.*)$": (
            counts_of["reproduced"],
            counts_of["fixed"],
            counts_of["unavailable"],
        ),
        r"(\d+) passed, (\d+) deselected, (\d+) xfailed in": (
            counts["fixed"] + counts["unavailable"],
            len(commits),
            counts["reproduced"],
        ),
    }


def rewritten(text: str) -> str:
    """Return the README's text with the current figures."""
    for pattern, values in figures().items():
        (found,) = re.finditer(pattern, text, re.MULTILINE)
        for group in range(len(values), 0, -1):
            start, end = found.span(group)
            text = text[:start] + str(values[group - 1]) + text[end:]
    return text


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
