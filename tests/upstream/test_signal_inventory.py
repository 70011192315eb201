"""The inventory's rule finds every boundary of a known bug, and the page's table matches the command."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from shipped import MIRRORS, PINS

from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.bindings import Definitions
from sentinel.search.coverage import coverage
from sentinel.search.inventory import signal_functions
from sentinel.sources.commits import commit
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gittrees import GitTrees

pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

TARGETS = [
    pytest.param(name, marks=() if name == "slime" else pytest.mark.nightly)
    for name in bundled_catalog().targets
    if name != "demo"
]
#: Boundaries that only pass their arguments on -> the function that is counted instead.
HANDS_ON = {"zeroband.training.loss.grpo_loss": "_compile_grpo_loss"}
#: Boundaries of known bugs that compute no training signal: this one computes how many steps the scheduler plans.
NO_SIGNAL = {"roll.pipeline.agentic.agentic_config.AgenticConfig.set_max_steps"}
#: Target -> its commit and the size of its inventory, before any exclusion, at Sentinel 09ff2d4b.
INVENTORY = {
    "areal": ("cbff54d645d2", 468),
    "nemorl": ("7ea279abfbeb", 907),
    "openrlhf": ("3c3be6234e0c", 162),
    "primerl": ("559b44772e47", 346),
    "roll": ("8eb27cc2dc34", 667),
    "skyrl": ("a9564572eb8e", 496),
    "slime": ("624b824a898a", 357),
    "trl": ("f2cd57710ae3", 522),
    "verl": ("1dda039b9c63", 853),
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_boundary_of_a_known_bug_is_in_the_inventory(name):
    target = bundled_catalog().targets[name]
    try:
        mirror = MIRRORS.path(name)
    except Unavailable as error:
        pytest.skip(error.reason)
    trees = GitTrees(mirror)
    definitions = Definitions(trees, target.roots)

    @cache
    def carried(file: str, blob: str) -> dict[str, tuple[int, int]]:
        functions = signal_functions(ast.parse(trees.blob(blob)).body, target.module_of(file))
        return {function.name: function.span for function in functions}

    held, missed = set(), set()
    try:
        for job in PINS:
            if job.recipe.target != name or job.ref.kind != "git" or job.expect == "unavailable":
                continue
            try:
                tree = commit(mirror, str(job.ref.name)).tree
            except GitError:  # of a pull request that nobody fetched
                continue
            binding = target.binding(job.recipe.boundary, job.recipe.contract)
            paths = binding.paths if binding else (job.recipe.boundary,)
            found = next(filter(None, (definitions.find(tree, path) for path in paths)))
            functions, (first, last) = carried(found.file, found.blob), found.name.span
            itself = any(first <= begin and end <= last for begin, end in functions.values())  # or methods of its class
            inside = itself or job.recipe.boundary in NO_SIGNAL or HANDS_ON.get(job.recipe.boundary) in functions
            (held if inside else missed).add((job.recipe.boundary, job.ref.short))
    finally:
        trees.close()
    assert missed == set()
    assert held


@pytest.mark.parametrize("name", TARGETS)
def test_the_table_of_the_coverage_page_matches_the_code(name):
    target = bundled_catalog().targets[name]
    shape = rf"^\| {name} \| `(\w+)` \| (\d+) \| (\d+) \((\d+)%\) \| (\d+) \| (\d+) \|$"
    rows = re.findall(shape, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 1, f"{PAGE} has no row of {name}: python benchmarks/inventory.py"
    [(sha, *numbers)] = rows
    try:
        trees = GitTrees(MIRRORS.path(name))
        tree = commit(MIRRORS.path(name), MIRRORS.resolve(target, sha)).tree
    except Unavailable as error:
        pytest.skip(error.reason)
    try:
        found = coverage(target, trees, tree)
    finally:
        trees.close()
    total, bound, share, not_bound, no_signal = map(int, numbers)
    # The denominator is the whole inventory, as the rule of Sentinel 09ff2d4b gives it at these commits.
    assert (sha, len(found.functions), total) == (*INVENTORY[name], INVENTORY[name][1])
    assert total == bound + not_bound + no_signal
    assert share == round(100 * bound / total)
    assert found.totals["bound"] >= bound  # adapters may have bound more since
    assert found.totals["no signal"] <= no_signal
    assert found.unread == {}
    assert len(found.outside) <= 0.1 * len(target.bindings)  # bound functions that the rule does not find
