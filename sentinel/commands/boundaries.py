"""Implement ``sentinel list boundaries``, which lists bound functions with their contracts and laws."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from sentinel.commands.console import (
    Commands,
    command,
    echo,
    echo_json,
    echo_table,
    json_option,
    nothing_examined,
    progress,
)
from sentinel.commands.options import catalog_and_settings, settings_options, target_named
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import Catalog
from sentinel.targets import Target
from sentinel.targets.refs import Ref

if TYPE_CHECKING:  # the import takes half a second, and other kinds of ``sentinel list`` do not need it
    from sentinel.search.bindings import Sighting

_EXAMPLE = """\
  sentinel list boundaries roll                     with their contracts, which `sentinel list contracts` describes
  sentinel list boundaries verl --ref git:main      also whether each function exists at this ref
  sentinel list boundaries roll --ref git:8eb27cc2dc34c4d1310b169d9b86d339004d811a --json

The code is read and not imported. `there` is "no" if the function, or a module that the adapter needs to call it, does
not exist at the ref, and "other version" if the binding is only for versions that have certain other code. Functions
that the adapter excludes are listed with the reason. `sentinel coverage TARGET -v` lists the functions without binding.
exit status: 0; 1 if a bound boundary does not exist at the ref; 2 if the ref is not available
"""


def declare(commands: Commands) -> None:
    parser = command(
        commands, "boundaries", _boundaries, "list bound functions with their contracts and laws", _EXAMPLE
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="only this target")
    parser.add_argument("--ref", metavar="REF", help="also show whether each function exists at this ref")
    settings_options(parser, "repo-url", "python", "recipes")
    json_option(parser)


def _boundaries(arguments: argparse.Namespace) -> int:
    catalog, settings = catalog_and_settings(arguments)
    targets = (
        [target_named(catalog, arguments.target)]
        if arguments.target
        else [target for name, target in sorted(catalog.targets.items()) if name != "demo"]
    )
    rows: list[dict[str, Any]] = []
    excluded = [
        {"target": target.name, "function": path, "reason": reason}
        for target in targets
        for registry in target.registries
        for path, reason in registry.excludes.items()
    ]
    unavailable: list[str] = []
    if arguments.ref is None:
        for target in targets:
            rows += _rows(catalog, target, None)
    else:
        from sentinel.deciding.setup import opener
        from sentinel.search.bindings import CheckoutTrees, Definitions, sighting

        ref = Ref.parse(arguments.ref)
        with progress() as notify:
            for target in targets:
                notify(f"reading {target.name} at {ref.short}")
                try:
                    checkout = opener(settings, notify)(target, ref, None)
                except Unavailable as error:
                    unavailable.append(error.reason)
                    continue
                definitions = Definitions(CheckoutTrees(checkout), target.roots)
                rows += _rows(catalog, target, [sighting(definitions, "", binding) for binding in target.bindings])
    if arguments.json:
        echo_json({"boundaries": rows, "excluded": excluded, "unavailable": unavailable})
    else:
        _show(rows, excluded, unavailable)
    if not rows:
        return nothing_examined(
            "; ".join(unavailable) or "no adapter binds a function; `sentinel list` shows the adapters"
        )
    return 1 if any(row["there"] == "no" for row in rows) else 0


def _rows(catalog: Catalog, target: Target, sightings: Sequence[Sighting] | None) -> list[dict[str, Any]]:
    """Return one table row per binding. With ``sightings``, each row states whether the checkout has the function."""
    from sentinel.search.checks import subjects

    searchable, omitted = subjects(catalog, target.name)
    laws = {id(subject.binding): tuple(law.name for law in subject.laws) for subject in searchable}
    reasons = {item.boundary: item.reason for item in omitted if not item.law}
    rows = []
    for binding, one in zip_longest(target.bindings, sightings or ()):
        contract = catalog.contracts[binding.contract]
        note = "" if id(binding) in laws else reasons.get(binding.boundary, "")
        there = ""
        if one is not None:
            there = "yes" if one.bound else "other version" if one.lacks or binding.requires else "no"
            path = one.definition.path if one.definition else binding.boundary
            note = note or (f"as {path}" if path != binding.boundary else one.needs and f"{one.needs} does not exist")
        rows.append(
            {
                "target": target.name,
                "boundary": binding.boundary,
                "contract": contract.name,
                "there": there,
                "laws": laws.get(id(binding), ()),
                "note": note,
                "formerly": binding.formerly,
                "inputs": [item.name for item in contract.inputs],
                "observes": contract.keys,
            }
        )
    return rows


def _show(rows: list[dict[str, Any]], excluded: list[dict[str, str]], unavailable: list[str]) -> None:
    if rows:
        columns = ("target", "boundary", "contract", "formerly", "there", "laws", "note")
        shown = [{**row, "formerly": ", ".join(row["formerly"]), "laws": str(len(row["laws"]) or "")} for row in rows]
        echo_table(columns, [[row[column] for column in columns] for row in shown])
    if excluded:
        echo("\nexcluded")
        echo_table(("target", "function", "reason"), [tuple(each.values()) for each in excluded])
    for line in unavailable if rows else ():
        echo(f"unavailable: {line}")
