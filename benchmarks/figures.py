"""Write the README's figures that follow from recipes, laws and committed evidence: ``python benchmarks/figures.py``.

Each figure appears once in the README, in the words of its pattern. Measured figures name the benchmark that gave them.
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
    """Return pattern -> figures; the pattern has a group for each figure."""
    catalog = bundled_catalog()
    recipes = find_recipes(catalog)
    rows = [row(recipe.target, recipe.document) for recipe in recipes]
    every = [(recipe, pin) for recipe in recipes for pin in recipe.pins]
    verl = [(recipe.bug_id, pin) for recipe, pin in every if recipe.target == "verl"]
    unknown = [
        (name, pin.ref) for name, pin in verl if pin.ref.kind == "git"
    ]  # before the first command there is no mirror
    releases = Counter(pin.expect for _, pin in verl if pin.ref.kind == "pypi")
    there = {pin.ref for _, pin in verl if pin.ref.kind == "pypi" and pin.expect == "reproduced"}
    seen, right, gone = (releases[name] for name in ("reproduced", "fixed", "unavailable"))
    return {
        r"ships (\d+ bugs? .*?), with (\d+) revisions": (count_bugs(rows), len(every)),
        r"and (\d+) \*laws\*": (len(catalog.laws),),
        r"(\d+) recipes +pypi:0\.9\.1  fixed ": (right,),
        r"(\d+) recipes +(\d+) refs +reproduced ": (seen, len(there)),
        r"(\d+) recipes +(\d+) refs +unavailable ": (
            len({name for name, _ in unknown}),
            len({ref for _, ref in unknown}),
        ),
        r"(\d+) reproduced, (\d+) unavailable, (\d+) fixed": (seen, len(unknown) + gone, right),
        r"(\d+) passed, (\d+) skipped, (\d+) xfailed in": (right + gone, len(unknown), seen),
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
