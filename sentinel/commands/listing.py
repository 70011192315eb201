"""``sentinel list``: targets, recipes, boundaries and refs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sentinel.commands import boundaries
from sentinel.commands.console import command, group, json_option, say, say_json, say_table
from sentinel.commands.known import known, settings_options, target_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentinel.commands.console import Commands, Run
    from sentinel.recipes import Recipe
    from sentinel.recipes.catalog import Catalog

_EXAMPLE = """\
  sentinel list                      the targets
  sentinel list recipes verl         the known bugs of one target
  sentinel list boundaries roll      the functions that recipes can call, and what they take
  sentinel list refs                 the revisions that recipes name, and which can be had here right now
"""
_TARGETS = """\
  sentinel list targets --json
"""
_RECIPES = """\
  sentinel list recipes verl         the known bugs of one target
  sentinel list recipes --law '*masked*' --severity high --affects gspo
  sentinel list recipes --signal metric
  sentinel list recipes verl --introduced-by '#4769'     as far as histories know it
  sentinel list recipes --markdown   the index that is committed as recipes/README.md
"""
_REFS = """\
  sentinel list refs verl --json
"""


def declare(commands: Commands) -> None:
    own = group(commands, "list", "list targets, recipes, boundaries or refs", _EXAMPLE)
    _kind(own, "targets", _targets, "list the frameworks that have an adapter; what is shown without a kind", _TARGETS)
    recipes = _kind(own, "recipes", _recipes, "list known bugs", _RECIPES)
    for name, of in _FILTERS.items():
        recipes.add_argument(f"--{name}", metavar="GLOB", help=f"only recipes of which {of} matches")
    for name, of in _TEXTS.items():
        recipes.add_argument(f"--{name.replace('_', '-')}", metavar="TEXT", help=f"only recipes {of} this text")
    recipes.add_argument("--markdown", action="store_true", help="as a Markdown index, grouped by law")
    boundaries.declare(own)
    _kind(own, "refs", _refs, "list the revisions that recipes name", _REFS)


def _kind(own: Commands, name: str, run: Run, text: str, example: str) -> argparse.ArgumentParser:
    parser = command(own, name, run, text, example)
    parser.add_argument("target", metavar="TARGET", nargs="?", help="only of this target")
    settings_options(parser, "recipes")
    json_option(parser)
    return parser


def _read(arguments: argparse.Namespace) -> tuple[Catalog, list[str], list[Recipe]]:
    """The catalog, the targets that are asked about, and their recipes."""
    from sentinel.recipes import find_recipes

    catalog, _ = known(arguments)
    names = [target_named(catalog, arguments.target).name] if arguments.target else sorted(catalog.targets)
    return catalog, names, find_recipes(catalog, names)


def _tell(headings: Sequence[str], rows: list[dict[str, Any]], arguments: argparse.Namespace, nothing: str) -> int:
    if arguments.json:
        say_json(rows)
    elif not rows:
        say(nothing)
    else:
        say_table(headings, [[_cell(row[heading.replace(" ", "_")]) for heading in headings] for row in rows])
    return 0


#: What recipes can be chosen by, and how that is said.
_FILTERS = {
    "law": "a law that the bug breaks",
    "contract": "the contract",
    "boundary": "the boundary",
    "severity": "the severity",
    "realism": "how real it is (default, configuration, fault, unreachable)",
    "root": "the root cause",
    "signal": "what of the training signal is wrong (gradient, log_prob, advantage, reward, data, metric, setup)",
    "pull": "the number of the pull request",
    "status": "the status upstream (open, merged, closed, unreported, removed)",
}

#: What recipes can be chosen by a part of.
_TEXTS = {
    "affects": "that affect a configuration with",
    "introduced_by": "whose bug came with a commit or pull request with",
    "fixed_by": "whose bug was mended by a commit or pull request with",
}


def _matches(row: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    values = {**row, "law": row["laws"]}
    for name, glob in wanted.items():
        found = values[name] if isinstance(values[name], list) else [values[name] or ""]
        pattern = f"*{glob.lower()}*" if name in _TEXTS else glob.lower()
        if not any(fnmatchcase(str(item).lower(), pattern) for item in found):
            return False
    return True


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)


def _targets(arguments: argparse.Namespace) -> int:
    from sentinel.sources import MirrorStore

    catalog, names, recipes = _read(arguments)
    pinned = Counter(recipe.target for recipe in recipes)
    mirrors = {mirror.target: mirror for mirror in MirrorStore().list()}
    rows = []
    for name in names:
        target, mirror = catalog.targets[name], mirrors.get(name)
        rows.append(
            {
                "target": name,
                "recipes": pinned[name],
                "boundaries": len(target.bindings),
                "packages": list(target.packages),
                "pypi": target.pypi,
                "repository": target.repository,
                "mirror": "none" if mirror is None else "here" if mirror.whole else "cut off half-way",
            }
        )
    headings = ("target", "recipes", "boundaries", "packages", "pypi", "repository", "mirror")
    return _tell(headings, rows, arguments, "no targets")


def _recipes(arguments: argparse.Namespace) -> int:
    _, names, recipes = _read(arguments)
    wanted = {name: getattr(arguments, name) for name in (*_FILTERS, *_TEXTS) if getattr(arguments, name)}
    rows = [row for row in map(_row, recipes) if _matches(row, wanted)]
    if arguments.markdown:
        from sentinel.reports.index import index

        say(index(rows))
        return 0
    limits = "".join(f", {name} {value}" for name, value in wanted.items())
    return _tell(
        ("target", "bug", "pins", "severity", "realism", "title"),
        rows,
        arguments,
        f"no recipes of {', '.join(names)}{limits}",
    )


def _row(recipe: Recipe) -> dict[str, Any]:
    from sentinel.recipes.reach import realism, root

    said = {name: recipe.document.get(name) for name in ("severity", "signal", "effect", "introduced_by", "fixed_by")}
    return {
        "target": recipe.target,
        "bug": recipe.bug_id,
        "pins": len(recipe.pins),
        "title": recipe.title,
        "boundary": recipe.boundary,
        "contract": recipe.contract,
        "laws": list(recipe.laws),
        "affects": [str(item) for item in recipe.affects],
        **said,
        "realism": realism(recipe.document),
        "root": root(recipe.document),
        "pull": recipe.upstream.get("pull"),
        "status": recipe.upstream.get("status"),
        "upstream": recipe.upstream.get("url"),
    }


def _refs(arguments: argparse.Namespace) -> int:
    from sentinel.commands.whereabouts import Whereabouts

    catalog, names, recipes = _read(arguments)
    places = Whereabouts()
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for recipe in recipes:
        for ref, expect in [*((pin.ref, pin.expect) for pin in recipe.pins), *((ref, None) for ref in recipe.watch)]:
            key = (recipe.target, str(ref))
            if key not in found:
                here, where = places.find(catalog.targets[recipe.target], ref)
                row = {"target": recipe.target, "ref": str(ref), "kind": "watched", "here": here, "where": where}
                found[key] = {**row, "recipes": []}
            found[key]["kind"] = "pin" if expect else found[key]["kind"]
            found[key]["recipes"].append({"bug": recipe.bug_id, "expect": expect})
    rows = [{**row, "named_by": len(row["recipes"])} for row in found.values()]
    headings = ("target", "ref", "kind", "named by", "here", "where")
    return _tell(headings, rows, arguments, f"no refs of {', '.join(names)}")
