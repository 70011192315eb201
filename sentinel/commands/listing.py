"""``sentinel list``: targets, recipes, boundaries and refs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sentinel.commands.console import command, json_option, say, say_json, say_table
from sentinel.commands.known import known, settings_options, target_named
from sentinel.errors import SentinelError

if TYPE_CHECKING:
    from sentinel.commands.console import Commands
    from sentinel.contracts.contract import Contract, Input
    from sentinel.recipes import Recipe
    from sentinel.recipes.catalog import Catalog

_EXAMPLE = """\
  sentinel list                      the targets
  sentinel list recipes verl         the known bugs of one target
  sentinel list recipes --law '*masked*' --severity high --affects gspo
  sentinel list recipes --signal metric
  sentinel list recipes verl --introduced-by '#4769'     as far as histories know it
  sentinel list recipes --markdown   the index that is committed as recipes/README.md
  sentinel list boundaries roll      the functions that recipes can call, and what they take
  sentinel list refs                 the revisions that recipes name, and which can be had here right now
  sentinel list refs --json
"""

Table = tuple[Sequence[str], list[dict[str, Any]]]


def declare(commands: Commands) -> None:
    parser = command(commands, "list", _list, "list targets, recipes, boundaries or refs", _EXAMPLE)
    parser.add_argument("what", nargs="?", default="targets", choices=tuple(_LISTS))
    parser.add_argument("target", metavar="TARGET", nargs="?", help="only of this target")
    for name, of in _FILTERS.items():
        parser.add_argument(f"--{name}", metavar="GLOB", help=f"only recipes of which {of} matches")
    for name, of in _TEXTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="TEXT", help=f"only recipes {of} this text")
    parser.add_argument("--markdown", action="store_true", help="recipes as a Markdown index, grouped by law")
    settings_options(parser, "recipes")
    json_option(parser)


def _list(arguments: argparse.Namespace) -> int:
    catalog, _ = known(arguments)
    names = [target_named(catalog, arguments.target).name] if arguments.target else sorted(catalog.targets)
    wanted = {name: getattr(arguments, name) for name in (*_FILTERS, *_TEXTS) if getattr(arguments, name)}
    if arguments.what != "recipes" and (wanted or arguments.markdown):
        option = next(iter(wanted), "markdown").replace("_", "-")
        raise SentinelError(f"--{option} is about recipes: sentinel list recipes --{option} ...")
    headings, rows = _LISTS[arguments.what](catalog, names)
    if arguments.what == "recipes":
        rows = [row for row in rows if _matches(row, wanted)]
    if arguments.markdown:
        from sentinel.reports.index import index

        say(index(rows))
    elif arguments.json:
        say_json(rows)
    elif not rows:
        limits = "".join(f", {name} {value}" for name, value in wanted.items())
        say(f"no {arguments.what} of {', '.join(names)}{limits}")
    else:
        say_table(headings, [[_cell(row[heading.replace(" ", "_")]) for heading in headings] for row in rows])
        if arguments.what == "boundaries":
            _explain(catalog, {row["contract"] for row in rows})
    return 0


#: What recipes can be chosen by, and how that is said.
_FILTERS = {
    "law": "a law that the bug breaks",
    "contract": "the contract",
    "boundary": "the boundary",
    "severity": "the severity",
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


def _targets(catalog: Catalog, names: Sequence[str]) -> Table:
    from sentinel.sources import MirrorStore

    recipes = Counter(recipe.target for recipe in _recipes_of(catalog, names))
    mirrors = {mirror.target: mirror for mirror in MirrorStore().list()}
    rows = []
    for name in names:
        target = catalog.targets[name]
        mirror = mirrors.get(name)
        rows.append(
            {
                "target": name,
                "recipes": recipes[name],
                "boundaries": len(target.bindings),
                "packages": list(target.packages),
                "pypi": target.pypi,
                "repository": target.repository,
                "mirror": "none" if mirror is None else "here" if mirror.whole else "cut off half-way",
            }
        )
    return ("target", "recipes", "boundaries", "packages", "pypi", "repository", "mirror"), rows


def _recipes(catalog: Catalog, names: Sequence[str]) -> Table:
    rows = [
        {
            "target": recipe.target,
            "bug": recipe.bug_id,
            "pins": len(recipe.pins),
            "title": recipe.title,
            "boundary": recipe.boundary,
            "contract": recipe.contract,
            "laws": list(recipe.laws),
            "severity": recipe.document.get("severity"),
            "signal": recipe.document.get("signal"),
            "effect": recipe.document.get("effect"),
            "affects": [str(item) for item in recipe.affects],
            "introduced_by": recipe.document.get("introduced_by"),
            "fixed_by": recipe.document.get("fixed_by"),
            "pull": recipe.upstream.get("pull"),
            "status": recipe.upstream.get("status"),
            "upstream": recipe.upstream.get("url"),
        }
        for recipe in _recipes_of(catalog, names)
    ]
    return ("target", "bug", "pins", "title"), rows


def _boundaries(catalog: Catalog, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        for binding in catalog.targets[name].bindings:
            contract = catalog.contracts.get(binding.contract)
            rows.append(
                {
                    "target": name,
                    "boundary": binding.boundary,
                    "contract": binding.contract,
                    "formerly": list(binding.formerly),
                    "inputs": [item.name for item in contract.inputs] if contract else [],
                    "observes": list(contract.keys) if contract else [],
                }
            )
    return ("target", "boundary", "contract", "formerly"), rows


def _refs(catalog: Catalog, names: Sequence[str]) -> Table:
    from sentinel.commands.whereabouts import Whereabouts

    places = Whereabouts()
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for recipe in _recipes_of(catalog, names):
        for ref, expect in [*((pin.ref, pin.expect) for pin in recipe.pins), *((ref, None) for ref in recipe.watch)]:
            key = (recipe.target, str(ref))
            if key not in found:
                here, where = places.find(catalog.targets[recipe.target], ref)
                row = {"target": recipe.target, "ref": str(ref), "kind": "watched", "here": here, "where": where}
                found[key] = {**row, "recipes": []}
            found[key]["kind"] = "pin" if expect else found[key]["kind"]
            found[key]["recipes"].append({"bug": recipe.bug_id, "expect": expect})
    rows = [{**row, "named_by": len(row["recipes"])} for row in found.values()]
    return ("target", "ref", "kind", "named by", "here", "where"), rows


def _recipes_of(catalog: Catalog, names: Sequence[str]) -> list[Recipe]:
    from sentinel.recipes import find_recipes

    return find_recipes(catalog, names)


_LISTS: dict[str, Callable[[Catalog, Sequence[str]], Table]] = {
    "targets": _targets,
    "recipes": _recipes,
    "boundaries": _boundaries,
    "refs": _refs,
}


def _explain(catalog: Catalog, names: set[str]) -> None:
    """The contracts of a table of boundaries, and those that need no binding."""
    shown = [item for name, item in sorted(catalog.contracts.items()) if name in names or item.open_keys]
    for contract in shown:
        say(f"\n{contract.name}: {contract.summary}")
        say_table(("  input", "", ""), [(f"  {item.name}", _kind(item), item.meaning) for item in contract.inputs])
        say(f"  observes: {', '.join(contract.keys)}{_open(contract)}")


def _kind(item: Input) -> str:
    from sentinel.contracts.contract import REQUIRED

    shape = f" [{', '.join(item.shape)}]" if item.shape else ""
    return f"{item.kind}{shape}{'' if item.default is REQUIRED else ', optional'}"


def _open(contract: Contract) -> str:
    return ", and what the boundary returns" if contract.open_keys else ""
