"""Implement ``sentinel list``, which lists targets, recipes, boundaries and contracts."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from sentinel.commands import boundaries
from sentinel.commands.console import Commands, Run, command, counted, echo, echo_json, echo_table, group, json_option
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.contracts.contract import REQUIRED, Contract
from sentinel.contracts.formulas import FORMULAS
from sentinel.errors import SentinelError, nearest
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.grades import count_bugs as bugs
from sentinel.recipes.grades import realism, root
from sentinel.recipes.template import describe_input, shown_default
from sentinel.reports.markdown import index
from sentinel.sources import MirrorStore
from sentinel.testing.examples import example_of

GROUP = "begin"
SUMMARY = "list targets, recipes, boundaries or contracts"

_EXAMPLE = """\
  sentinel list                      the targets
  sentinel list recipes verl         the known bugs of one target
  sentinel list boundaries roll      the functions that recipes can call, with their contracts
  sentinel list contracts            the contracts, each with example code that checks your own function
"""
_TARGETS = """\
  sentinel list targets --json
"""
_RECIPES = """\
  sentinel list recipes verl         the known bugs of one target
  sentinel list recipes --law '*masked*' --severity high --affects gspo
  sentinel list recipes --signal metric
  sentinel list recipes verl --introduced-by '#4769'     if a recorded history contains it
  sentinel list recipes --markdown   the index, as committed in recipes/README.md
"""
_CONTRACTS = """\
  sentinel list contracts group_advantage      its inputs with their choices, and its observed keys
  sentinel list contracts '*loss*' --json
"""


def declare(commands: Commands) -> None:
    own = group(commands, "list", SUMMARY, _EXAMPLE)
    _kind(own, "targets", _targets, "list the frameworks that have an adapter (the default)", _TARGETS)
    recipes = _kind(own, "recipes", _recipes, "list known bugs", _RECIPES)
    for name, of in _FILTERS.items():
        recipes.add_argument(f"--{name}", metavar="GLOB", help=f"only recipes where GLOB matches {of}")
    for name, of in _TEXTS.items():
        option = f"--{name.replace('_', '-')}"
        recipes.add_argument(option, metavar="TEXT", help=f"only recipes whose {of} contains TEXT")
    recipes.add_argument("--markdown", action="store_true", help="print a Markdown index, grouped by law")
    boundaries.declare(own)
    contracts = command(own, "contracts", _contracts, "list contracts, or one contract with its inputs", _CONTRACTS)
    contracts.add_argument("contract", metavar="GLOB", nargs="?", default="*", help="only contracts with these names")
    json_option(contracts)


def _kind(own: Commands, name: str, run: Run, text: str, example: str) -> argparse.ArgumentParser:
    parser = command(own, name, run, text, example)
    parser.add_argument("target", metavar="TARGET", nargs="?", help="only this target")
    settings_options(parser, "recipes")
    json_option(parser)
    return parser


def _read(arguments: argparse.Namespace) -> tuple[Catalog, list[str], list[Recipe]]:
    """Return the catalog, the names of the chosen targets, and their recipes."""
    catalog, _ = catalog_and_settings(arguments)
    names = [target_named(catalog, arguments.target).name] if arguments.target else sorted(catalog.targets)
    return catalog, names, find_recipes(catalog, names)


def _echo_rows(headings: Sequence[str], rows: list[dict[str, Any]], arguments: argparse.Namespace, nothing: str) -> int:
    if arguments.json:
        echo_json(rows)
    elif not rows:
        echo(nothing)
    else:
        echo_table(headings, [[_cell(row[heading.replace(" ", "_")]) for heading in headings] for row in rows])
    return 0


#: Fields of recipes -> the noun in the help of the option that selects recipes by the field's value.
_FILTERS = {
    "law": "a law that the bug breaks",
    "contract": "the contract",
    "boundary": "the boundary",
    "severity": "the severity",
    "realism": "the realism (default, configuration, fault, unreachable)",
    "root": "the root cause",
    "signal": "the wrong part of the training signal (gradient, log_prob, advantage, reward, data, metric, setup)",
    "pull": "the number of the pull request",
    "status": "the status upstream (open, merged, closed, unreported, removed)",
}

#: Fields of recipes -> the noun in the help of the option that selects recipes by a part of the field's value.
_TEXTS = {
    "affects": "`affects` (the affected configurations)",
    "introduced_by": "`introduced_by` (a commit or pull request)",
    "fixed_by": "`fixed_by` (a commit or pull request)",
}


def _matches(row: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    for name, glob in wanted.items():
        pattern = f"*{glob.lower()}*" if name in _TEXTS else glob.lower()
        if not any(fnmatchcase(str(item).lower(), pattern) for item in _values(row, name)):
            return False
    return True


def _values(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row["laws" if name == "law" else name]
    return value if isinstance(value, list) else [value or ""]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)


def _targets(arguments: argparse.Namespace) -> int:
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
                "mirror": "none" if mirror is None else "here" if mirror.whole else "incomplete",
            }
        )
    headings = ("target", "recipes", "boundaries", "packages", "pypi", "repository", "mirror")
    return _echo_rows(headings, rows, arguments, "no adapter is installed; `sentinel doctor` checks the installation")


def _recipes(arguments: argparse.Namespace) -> int:
    _, names, recipes = _read(arguments)
    wanted = {name: getattr(arguments, name) for name in (*_FILTERS, *_TEXTS) if getattr(arguments, name)}
    rows = [row for row in map(_row, recipes) if _matches(row, wanted)]
    if arguments.markdown:
        echo(index(rows))
        return 0
    limits = "".join(f", {name} {value}" for name, value in wanted.items())
    nothing = f"none of {counted(len(recipes), 'recipe')} of {', '.join(names)} matches{limits}"
    for name in _FILTERS if not rows else ():
        values = {str(item) for row in map(_row, recipes) for item in _values(row, name) if item}
        if name in wanted and not any(fnmatchcase(value.lower(), wanted[name].lower()) for value in values):
            nothing = f"no recipe has {name} {wanted[name]!r}{nearest(wanted[name], values, 'there are', 0.4)}"
    status = _echo_rows(("target", "bug", "pins", "severity", "realism", "title"), rows, arguments, nothing)
    if rows and not arguments.json:
        echo(f"\n{bugs(rows)}")
    return status


def _row(recipe: Recipe) -> dict[str, Any]:
    texts = {name: recipe.document.get(name) for name in ("severity", "signal", "effect", "introduced_by", "fixed_by")}
    return {
        "target": recipe.target,
        "bug": recipe.bug_id,
        "pins": len(recipe.pins),
        "title": recipe.title,
        "boundary": recipe.boundary,
        "contract": recipe.contract,
        "laws": list(recipe.laws),
        "affects": [str(item) for item in recipe.affects],
        **texts,
        "realism": realism(recipe.document),
        "root": root(recipe.document),
        "pull": recipe.upstream.get("pull"),
        "status": recipe.upstream.get("status"),
        "upstream": recipe.upstream.get("url"),
    }


def _contracts(arguments: argparse.Namespace) -> int:
    """Print the selected contracts. If only one is selected, also print its inputs and observed keys."""
    catalog, _ = catalog_and_settings(arguments)
    bound = Counter(binding.contract for target in catalog.targets.values() for binding in target.bindings)
    contracts = [item for name, item in sorted(catalog.contracts.items()) if fnmatchcase(name, arguments.contract)]
    if not contracts:
        which = nearest(arguments.contract, catalog.contracts, "there are")
        raise SentinelError(f"unknown contract {arguments.contract!r}{which}")
    if arguments.json:
        echo_json([_contract(contract, bound[contract.name]) for contract in contracts])
        return 0
    if len(contracts) > 1:
        for contract in contracts:
            echo(f"{contract.name}: {contract.summary}")
            for line in example_of(contract) if contract.laws else ():
                echo(f"    {line}")
        echo("\n`sentinel list contracts NAME` explains the inputs; docs/own.md explains how to check a function.")
        return 0
    row = _contract(contracts[0], bound[contracts[0].name])
    echo(f"{row['contract']}: {contracts[0].summary}\ndefinition: {row['source']}")
    for options, formula in FORMULAS.get(contracts[0].name, {}).items():
        echo(f"    {options}{': ' if options else ''}{formula}")
    echo(f"laws: {', '.join(row['laws'])}\nbindings: {row['bindings']}\n")
    echo("\n".join(row["example"]) + "\n")
    columns = ("input", "kind", "choices", "default", "meaning")
    echo_table(columns, [[_cell(item[column]) for column in columns] for item in row["inputs"]])
    echo("")
    echo_table(("observes", "meaning"), [[key, meaning] for key, meaning in row["observes"].items()])
    return 0


def _contract(contract: Contract, bindings: int) -> dict[str, Any]:
    return {
        "contract": contract.name,
        "summary": contract.summary,
        "source": " ".join(contract.source.split()),
        "example": list(example_of(contract)) if contract.laws else [],
        "bindings": bindings,
        "laws": list(contract.laws),
        "inputs": [
            {
                "input": item.name,
                "kind": describe_input(item),
                "choices": list(item.choices),
                "default": None if item.default is REQUIRED else shown_default(item),
                "meaning": " ".join(item.meaning.split()),
            }
            for item in contract.inputs
        ],
        "observes": {item.key: " ".join(item.meaning.split()) for item in contract.observes},
    }
