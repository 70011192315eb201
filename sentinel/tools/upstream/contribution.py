"""Define a contribution, the data about one root cause from which the pages of a pull request are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.fixes import Fix, fix_of, is_test
from sentinel.recipes.json_schema import JsonSchema
from sentinel.records.ledger import Ledger
from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import evidence, validate
from sentinel.reports.store import parse
from sentinel.sources import MirrorStore
from sentinel.targets import Target
from sentinel.tools.upstream.citations import Numbers, citations
from sentinel.tools.upstream.exporting import Bundle
from sentinel.tools.upstream.heads import heads
from sentinel.tools.upstream.patch import changed_by, mailed
from sentinel.tools.upstream.trying import FixTrial, diff_of
from sentinel.tools.upstream.upstream_tests import proves
from sentinel.tools.upstream.words import searches

VERSION = 1

#: The schema of ``evidence.json``. Each side in it is also checked against the schema of evidence.
_SCHEMA = JsonSchema({
    "type": "object",
    "required": ["contribution_version", "target", "bugs", "fix", "tried", "runner", "reason", "related"],
    "properties": {
        "contribution_version": {"const": VERSION},
        "target": {"type": "string"},
        "bugs": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "type": "object", "minProperties": 1, "additionalProperties": {"type": "object"}
            },
        },
        "fix": {
            "type": ["object", "null"],
            "required": ["file", "digest"],
            "properties": {"file": {"type": "string"}, "digest": {"type": "string"}},
        },
        "tried": {"type": ["object", "null"]},
        "runner": {
            "type": ["object", "null"],
            "required": ["sides", "packages"],
            "properties": {
                "sides": {"type": "object", "additionalProperties": {"type": "string"}},
                "packages": {"type": "array", "items": {"type": "string"}},
            },
        },
        "reason": {"type": "string"},
        "related": {"type": "array", "items": {"type": "object"}},
    },
})  # fmt: skip

#: The maximum number of pull requests at whose heads a recipe is run; the newest are chosen.
MOST_HEADS = 6

#: The stored verdict of a pull request whose base does not have the bug.
ABSENT = "not there where it began"


@dataclass(frozen=True)
class Contribution:
    """The data from which the pages of one pull request are written.

    :ivar recipes: the recipes of the bugs with one root cause. The folder of the pages is named after the first.
    :ivar fix: the tested fix; None if Sentinel has none.
    :ivar document: the content of ``evidence.json``.
    :ivar diff, tests: the diffs of the code and of its tests, as the page shows them.
    :ivar patch: the whole change as a message that ``git am`` accepts.
    :ivar unknown: cited ``#numbers`` that the mirrors cannot resolve, such as those of issues.
    :ivar searches: queries with which a person searches GitHub for duplicates.
    :ivar logged: whether ``tests.log`` is next to the page.
    """

    recipes: tuple[Recipe, ...]
    target: Target
    fix: Fix | None
    document: Mapping[str, Any]
    diff: str = ""
    tests: str = ""
    patch: str = ""
    unknown: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    logged: bool = False

    @property
    def recipe(self) -> Recipe:
        return self.recipes[0]


def documented(
    bundles: Sequence[Bundle], fix: Fix | None, tried: FixTrial | None, others: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Create the content of ``evidence.json``: the evidence, and the results of testing the fix.

    :param bundles: one for each bug of the root cause.
    :param others: what :func:`related` returns.
    """
    first = bundles[0]
    runner = {side.name: side.tried.status or side.tried.problem for side in first.sides if side.tried is not None}
    return {
        "contribution_version": VERSION,
        "target": first.recipe.target,
        "bugs": {
            bundle.recipe.bug_id: {side.name: evidence(side.decision) for side in bundle.sides} for bundle in bundles
        },
        "fix": {"file": fix.path.name, "digest": fix.digest} if fix else None,
        "tried": {name: value for name, value in tried.items() if name != "log"} if tried else None,
        "runner": {"sides": runner, "packages": list(first.packages)} if first.runner else None,
        "reason": first.reason,
        "related": [dict(item) for item in others],
    }


def contribution(document: Mapping[str, Any], catalog: Catalog, store: MirrorStore) -> Contribution:
    """Combine the data of ``evidence.json`` with the current recipes and fixes.

    :raises SentinelError: if a recipe is missing, or if the fix has changed since ``evidence.json`` was written.
    """
    target = str(document["target"])
    if target not in catalog.targets:
        raise SentinelError(f"no adapter for target {target!r}; `sentinel list` shows the targets")
    by_id = {recipe.bug_id: recipe for recipe in find_recipes(catalog, [target])}
    if absent := document["bugs"].keys() - by_id.keys():
        raise SentinelError(f"no recipe here has the bug id {', '.join(sorted(absent))}")
    recipes = tuple(by_id[bug] for bug in document["bugs"])
    fix = fix_of(catalog, target, recipes[0].bug_id) if document["fix"] else None
    if document["fix"] and (fix is None or fix.digest != document["fix"]["digest"]):
        raise SentinelError(
            f"{document['fix']['file']} has changed since the contribution was written; run `sentinel contribute` again"
        )
    if fix is None:
        return Contribution(recipes, catalog.targets[target], fix, document)
    # The pages are named after the first bug of the fix, and the document may list the bugs in another order.
    recipes = tuple(by_id[bug] for bug in fix.bugs)
    document = {**document, "bugs": {bug: document["bugs"][bug] for bug in fix.bugs}}
    changed = fix.files or changed_by(store.path(target), fix)
    tests = [file for file in changed if is_test(file)]
    made = Contribution(
        recipes,
        catalog.targets[target],
        fix,
        document,
        diff_of(fix, store, 1, [file for file in changed if file not in tests]),
        diff_of(fix, store, 1, tests) if tests else "",
        mailed(fix, diff_of(fix, store)),
    )
    branches = {name: each.branch for name, each in catalog.targets.items() if store.has(name)}
    numbers = {name: Numbers(store.path(name), branch) for name, branch in branches.items()}
    texts = "\n".join([fix.wrong, fix.cause, fix.fix, fix.reach, fix.comment, *fix.limits, *fix.related])
    cited = citations(fix.path.name, texts, target, catalog.targets, numbers)
    unknown = dict.fromkeys(
        f"{each.where} issue {each.what}" if each.unknown == "an issue" else f"{each.where}{each.what} ({each.unknown})"
        for each in cited
        if each.unknown
    )
    return replace(made, unknown=tuple(unknown), searches=tuple(searches(recipes, fix)))


def is_logged(folder: Path, fix: Fix | None) -> bool:
    """Return True if the folder of a contribution contains ``tests.log``.

    :raises SentinelError: if the log does not show that the new tests failed without the fix and passed with it.
    """
    file = folder / "tests.log"
    if not file.exists():
        return False
    if fix is None or not proves(file.read_text("utf-8"), fix.regression):
        raise SentinelError(
            f"{visible(str(file))}: does not show that the new test failed without the fix and passed with it"
        )
    return True


def load_contribution(file: Path) -> dict[str, Any] | None:
    """Read the ``evidence.json`` of a contribution. Return None if the file is something else.

    :raises SentinelError: if the file cannot be read, or does not have the form that :func:`documented` returns.
    """
    document = parse(file)
    if not isinstance(document, dict) or "contribution_version" not in document:
        return None
    for error in _SCHEMA.errors(document):
        place = ".".join(map(str, ("$", *error.instance_path)))
        raise SentinelError(f"{visible(str(file))}: not a contribution: at {place}: {message(error.message)[:300]}")
    for bug, sides in document["bugs"].items():
        for name, side in sides.items():
            try:
                validate(side)
            except SentinelError as error:
                raise SentinelError(f"{visible(str(file))}: {message(bug)}, {message(name)}: {error}") from None
    return document


def related(ledger: Ledger, recipe: Recipe, fix: Fix) -> list[dict[str, Any]]:
    """Run a recipe at the heads of pull requests that change the boundary's function, and return the results.

    Return the number, commit and verdict of each, except for the fix's own pull request. The verdict is ``fixed`` if
    the recipe is ``fixed`` at the head and ``reproduced`` at the base.
    """
    verdicts = {"fixes": "fixed", "absent": ABSENT}
    return [
        {"pull": head.pull, "commit": head.commit, "verdict": verdicts.get(head.verdict, head.verdict)}
        for head in heads(ledger, [recipe], MOST_HEADS)
        if head.commit not in ("", fix.head)
    ]
