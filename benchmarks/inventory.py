"""Check the inventory of `sentinel coverage`: `python benchmarks/inventory.py`.

1. The coverage of every target at the newest commit of its branch is written into the table of docs/coverage.md.
2. Recall: the number of functions with known bugs that are in the inventory, at the revisions that have the bugs. Known
bugs come from recipes and from `--corpus FILE` (JSON lines: target, boundary, parent). A target without an adapter
needs `--mirror TARGET=DIR`; its package is searched at the top of the repository and in `src/`.
3. The bound functions at the newest commit that are not in the inventory.
4. With `--sample N`: N random functions of the inventory and N random other functions, for a person to read.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from sentinel.errors import Unavailable
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.bindings import Definitions
from sentinel.search.coverage import Coverage, coverage
from sentinel.search.inventory import STATES, signal_functions
from sentinel.sources import MirrorStore
from sentinel.sources.commits import commit
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import PackageRoot, Target

CATALOG = bundled_catalog()
PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
HEADINGS = ("target", "commit", "functions", *STATES)


class Upstream:
    """One framework: its trees and its signal functions."""

    def __init__(self, target: Target, mirror: Path) -> None:
        self.target, self.mirror, self.trees = target, mirror, GitTrees(mirror)
        self.definitions = Definitions(self.trees, target.roots)
        self.carried = lru_cache(maxsize=None)(self._carried)

    def tree(self, sha: str) -> str:
        return commit(self.mirror, sha).tree

    def has(self, tree: str, path: str) -> bool | None:
        """Return whether the inventory contains a boundary; None if the tree has no function with that path."""
        names = binding.paths if (binding := self.target.binding(path)) else (path,)
        found = next(filter(None, (self.definitions.find(tree, name) for name in names)), None)
        if found is None or found.name.kind != "function":
            return None
        return found.name.span in self.carried(found.file, found.blob)

    def _carried(self, file: str, blob: str) -> set[tuple[int, int]]:
        body = ast.parse(self.trees.blob(blob)).body
        return {function.span for function in signal_functions(body, self.target.module_of(file))}

    def others(self, tree: str, found: Coverage) -> Iterator[str]:
        """Yield the functions of a tree that are not in the inventory ``found``, as text."""
        inside = {(function.file, function.line) for function in found.functions}
        for file, blob in sorted(self.definitions.sources(tree)):
            for node in ast.walk(ast.parse(self.trees.blob(blob))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    if (file, line) not in inside:
                        yield f"{node.name} ({file}:{line})"


def known_bugs(corpora: list[Path]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (source of the bug, target, boundary, commit with the bug) for each known bug."""
    for recipe in find_recipes(CATALOG):
        for pin in recipe.pins:
            if pin.ref.kind == "git" and pin.expect != "unavailable":
                yield "recipes", recipe.target, recipe.boundary, str(pin.ref.name)
    for file in corpora:
        for line in file.read_text(encoding="utf-8").splitlines():
            bug = json.loads(line)
            yield file.name, bug["target"], bug["boundary"], bug["parent"]


def recall(upstreams: dict[str, Upstream], corpora: list[Path]) -> dict[str, Any]:
    sets: dict[str, dict[bool | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, target, boundary, sha in known_bugs(corpora):
        try:
            held = upstreams[target].has(upstreams[target].tree(sha), boundary)
        except (KeyError, GitError):
            held = None
        sets[name][held].add(f"{boundary} at {sha[:12]}")
    return {
        name: {
            "in the inventory": len(found[True]),
            "missed": sorted(found[False]),
            "no function there, or no such commit here": sorted(found[None]),
        }
        for name, found in sets.items()
    }


def rewritten(text: str, rows: list[tuple[str, ...]]) -> str:
    """Return the page's text with a new table of coverage."""
    lines = ["| " + " | ".join(row) + " |" for row in (HEADINGS, ("---",) * len(HEADINGS), *rows)]
    return re.sub(r"\| target \| commit .*?\n\n", lambda _: "\n".join(lines) + "\n\n", text, flags=re.DOTALL)


def row(name: str, sha: str, found: Coverage) -> tuple[str, ...]:
    bound, not_bound, no_signal = (found.totals[state] for state in STATES)
    total = len(found.functions)
    return name, f"`{sha[:12]}`", str(total), f"{bound} ({bound / total:.0%})", str(not_bound), str(no_signal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, action="append", default=[])
    parser.add_argument("--mirror", metavar="TARGET=DIR", action="append", default=[])
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    store, rows = MirrorStore(), []
    upstreams: dict[str, Upstream] = {}
    inside: list[str] = []
    outside: list[str] = []
    missed: list[str] = []
    for name, target in CATALOG.targets.items():
        try:
            upstream = Upstream(target, store.path(name))
            head = store.resolve(target, target.branch)
        except Unavailable:
            continue
        tree = upstream.tree(head)
        found = coverage(target, upstream.trees, tree)
        upstreams[name] = upstream
        rows.append(row(name, head, found))
        missed += found.outside
        inside += [f"{each.path} ({each.file}:{each.line})" for each in found.functions]
        outside += upstream.others(tree, found) if arguments.sample else ()
    for name, _, folder in (text.partition("=") for text in arguments.mirror):
        packages = {bug[2].partition(".")[0] for bug in known_bugs(arguments.corpus) if bug[1] == name}
        roots = [PackageRoot(f"{above}{package}", above.rstrip("/")) for package in packages for above in ("", "src/")]
        upstreams[name] = Upstream(Target(name, "", tuple(roots)), Path(folder))
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    drawn = random.Random(arguments.seed)
    result = {
        "coverage": rows,
        "bound boundaries that the rule does not find": missed,
        "recall": recall(upstreams, arguments.corpus),
        "sample": {
            "inside": drawn.sample(inside, min(arguments.sample, len(inside))),
            "outside": drawn.sample(outside, min(arguments.sample, len(outside))),
        },
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
