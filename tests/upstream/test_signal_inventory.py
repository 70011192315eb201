"""Every boundary of a known bug carries training signal, by the rule; and the page's table is what the command says."""

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
#: Boundaries that only hand on what they are given, and to whom: that one is counted.
HANDS_ON = {"zeroband.training.loss.grpo_loss": "_compile_grpo_loss"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"


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
            inside = itself or HANDS_ON.get(job.recipe.boundary) in functions
            (held if inside else missed).add((job.recipe.boundary, job.ref.short))
    finally:
        trees.close()
    assert missed == set()
    assert held


@pytest.mark.parametrize("name", TARGETS)
def test_the_table_of_the_page_is_what_the_code_says(name):
    target = bundled_catalog().targets[name]
    shape = rf"^\| {name} \| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \((\d+)%\) \|$"
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
    total, contract, left, never, share = map(int, numbers)
    assert len(found.functions) == total == contract + left + never
    assert share == round(100 * never / total)
    assert found.totals["never looked at"] <= never  # an adapter that has grown since is no lie of the page
    assert found.unread == {}
    assert len(found.outside) <= 0.1 * len(target.bindings)  # what a person bound and the rule does not see


@pytest.mark.parametrize("name", [name for name in bundled_catalog().targets if name != "demo"])
def test_what_is_left_out_since_nothing_calls_it_is_called_by_nothing(name):
    """At the last commit of the branch, by its name: a call, or a mention in a table. A method shares its name with
    what other classes have, so that a name says nothing of it."""
    target = bundled_catalog().targets[name]
    uncalled = [
        path
        for path, reason in target.unbound.items()
        if reason.startswith("nothing calls it") and not path.split(".")[-2][0].isupper()
    ]
    try:
        trees = GitTrees(MIRRORS.path(name))
        tree = commit(MIRRORS.path(name), MIRRORS.resolve(target, target.branch)).tree
    except Unavailable as error:
        pytest.skip(error.reason)
    try:
        definitions = Definitions(trees, target.roots)
        own = {path: found for path in uncalled if (found := definitions.find(tree, path)) is not None}
        names = re.compile("|".join(path.rpartition(".")[2] for path in own).encode() or b"$.")
        mentioned = {
            (path, f"{file}:{node.lineno}")
            for file, blob in definitions.sources(tree)
            if names.search(text := trees.blob(blob))
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Name, ast.Attribute))
            for path, found in own.items()
            if path.rpartition(".")[2] == (node.id if isinstance(node, ast.Name) else node.attr)
            and not (file == found.file and found.name.span[0] <= node.lineno <= found.name.span[1])
        }
    finally:
        trees.close()
    assert mentioned == set()
