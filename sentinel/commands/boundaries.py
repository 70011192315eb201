"""``sentinel list boundaries``: what is bound to which contract and takes what, whether it is there, what is left."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from sentinel.commands.console import Commands, command, json_option, progress, say, say_json, say_table
from sentinel.commands.known import known, settings_options, target_named
from sentinel.contracts.contract import REQUIRED, Input
from sentinel.deciding.runner import opener
from sentinel.errors import Unavailable
from sentinel.history.bindings import Sighting, revisions, sightings
from sentinel.history.coverage import CheckoutTrees
from sentinel.history.gittrees import GitTrees
from sentinel.recipes.catalog import Catalog
from sentinel.search.checks import subjects
from sentinel.sources import MirrorStore
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

_EXAMPLE = """\
  sentinel list boundaries roll                     with the inputs, keys and laws of their contracts
  sentinel list boundaries verl --ref git:main      and whether each is there at that ref
  sentinel list boundaries roll --ref git:8eb27cc2dc34c4d1310b169d9b86d339004d811a --json
  sentinel list boundaries verl --history           at every release tag and every 25th commit of main

Under "not bound" stand the functions that the adapter leaves out with a reason; and, with --ref, the other public
functions of the modules that have a bound one. The code is read, and nothing of it is imported: a boundary is there
under one of its names, or not in that version; or it is not reached, where a module is missing that the adapter calls
it with, or (--history) where a function that no name finds has half of its lines.
exit status: 0; 1 where a bound boundary is not there at the ref, or somewhere in the history not reached; 2 where the
ref, or the mirror, is not available
"""


@dataclass(frozen=True)
class Row:
    """One boundary.

    :ivar there: ``yes``, ``no``, ``other version`` (the adapter says in ``requires`` that only some have it), or empty
        where no ref was asked about.
    """

    target: str
    boundary: str
    contract: str
    there: str
    laws: tuple[str, ...]
    note: str
    formerly: tuple[str, ...]
    inputs: tuple[str, ...]
    observes: tuple[str, ...]


def declare(commands: Commands) -> None:
    parser = command(
        commands, "boundaries", _boundaries, "list bound functions with their contracts and laws", _EXAMPLE
    )
    parser.add_argument("target", metavar="TARGET", nargs="?", help="only of this target")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--ref", metavar="REF", help="also look whether each is there")
    when.add_argument("--history", action="store_true", help="look where each was, over the target's whole history")
    settings_options(parser, "repo-url", "python", "recipes")
    json_option(parser)


def _boundaries(arguments: argparse.Namespace) -> int:
    catalog, settings = known(arguments)
    targets = (
        [target_named(catalog, arguments.target)]
        if arguments.target
        else [target for name, target in sorted(catalog.targets.items()) if name != "demo"]
    )
    if arguments.history:
        return _history(targets, arguments.json)
    rows: list[Row] = []
    unbound: list[tuple[str, str, str]] = []
    unavailable: list[str] = []
    if arguments.ref is None:
        for target in targets:
            rows += _rows(catalog, target, None)
            unbound += [(target.name, path, reason) for path, reason in target.unbound.items()]
    else:
        ref = Ref.parse(arguments.ref)
        with progress() as tell:
            for target in targets:
                tell(f"looking at {target.name} at {ref.short}")
                try:
                    checkout = opener(settings, tell)(target, ref, None)
                except Unavailable as error:
                    unavailable.append(f"{target.name}: {error.reason}")
                    continue
                seen = sightings(target, CheckoutTrees(checkout), [""])
                rows += _rows(catalog, target, [one for (one,) in seen])
                unbound += left_unbound(target, checkout)
    if arguments.json:
        say_json(
            {
                "boundaries": [vars(row) for row in rows],
                "not_bound": [{"target": t, "function": path, "reason": reason} for t, path, reason in unbound],
                "unavailable": unavailable,
            }
        )
    else:
        _show(catalog if arguments.ref is None else None, rows, unbound, unavailable)
    if unavailable and not rows:
        return 2
    return 1 if any(row.there == "no" for row in rows) else 0


def _rows(catalog: Catalog, target: Target, seen: Sequence[Sighting] | None) -> list[Row]:
    found, omitted = subjects(catalog, target.name)
    laws = {id(subject.binding): tuple(law.name for law in subject.laws) for subject in found}
    reasons = {item.boundary: item.reason for item in omitted if not item.law}
    rows = []
    for binding, one in zip_longest(target.bindings, seen or ()):
        contract = catalog.contracts[binding.contract]
        note = "" if id(binding) in laws else reasons.get(binding.boundary, "")
        there = ""
        if one is not None:
            there = "yes" if one.bound else "other version" if one.lacks or binding.requires else "no"
            path = one.found.path if one.found else binding.boundary
            note = note or (f"as {path}" if path != binding.boundary else one.needs and f"{one.needs} is not there")
        own = laws.get(id(binding), ())
        inputs = tuple(item.name for item in contract.inputs)
        said = (target.name, binding.boundary, contract.name, there, own, note)
        rows.append(Row(*said, tuple(binding.formerly), inputs, tuple(contract.keys)))
    return rows


def _history(targets: Sequence[Target], as_json: bool) -> int:
    store = MirrorStore()
    found: list[dict[str, Any]] = []
    unavailable: list[str] = []
    for target in targets:
        try:
            mirror, head = store.path(target.name), store.resolve(target, Ref.parse(f"git:{target.branch}").name)
        except Unavailable as error:
            unavailable.append(f"{target.name}: {error.reason}")
            continue
        looked = revisions(mirror, head)
        trees = GitTrees(mirror)
        try:
            with progress() as tell:
                say_how_far = _telling(tell, target.name, len(looked))
                seen = sightings(target, trees, [commit.tree for commit in looked.values()], say_how_far)
        finally:
            trees.close()
        for binding, ones in zip(target.bindings, seen):
            spans = [list(same) for _, same in groupby(zip(looked, ones), key=lambda item: item[1].plain)]
            found.append(
                {
                    "target": target.name,
                    "boundary": binding.boundary,
                    "contract": binding.contract,
                    "revisions": len(ones),
                    "bound": sum(one.bound for one in ones),
                    "not_reached": sum(one.missing for one in ones),
                    "spans": [
                        {"first": same[0][0], "last": same[-1][0], "revisions": len(same), **same[0][1].plain}
                        for same in spans
                    ],
                }
            )
    if as_json:
        say_json({"boundaries": found, "unavailable": unavailable})
    else:
        _show_history(found, unavailable)
    if not found:
        return 2
    return 1 if any(item["not_reached"] for item in found) else 0


def _telling(tell: Callable[[str], None], target: str, total: int) -> Callable[[int], None]:
    return lambda done: tell(f"{target}: {done * 100 // total}% of {total} revisions")


def _show_history(found: list[dict[str, Any]], unavailable: list[str]) -> None:
    def row(item: dict[str, Any]) -> tuple[str, ...]:
        bound = [span for span in item["spans"] if span["state"] == "bound"]
        names = dict.fromkeys(span["path"] for span in bound if span["path"] != item["boundary"])
        notes = [f"as {name}" for name in names]
        for span in item["spans"]:
            if span["state"] == "not reached":
                why = " or ".join(span["alike"]) or f"{span['needs']} is not there"
                notes.append(f"not reached from {span['first']} to {span['last']}: {why}")
        ends = (bound[0]["first"], bound[-1]["last"]) if bound else ("", "")
        said = f"{item['bound']} of {item['revisions']}"
        return (item["target"], item["boundary"], item["contract"], said, *ends, "; ".join(notes))

    if found:
        say_table(("target", "boundary", "contract", "bound", "first", "last", "note"), [row(item) for item in found])
        missing = sum(item["not_reached"] for item in found)
        say(f"\n{sum(item['bound'] for item in found)} bound, {missing} not reached, the others not in their version")
    for line in unavailable:
        say(f"unavailable: {line}")


def left_unbound(target: Target, checkout: Checkout) -> list[tuple[str, str, str]]:
    """(target, path, reason) of functions that are not bound: those that the adapter names, and the others beside bound
    ones, which have no reason."""
    bound = {path for binding in target.bindings for path in binding.paths}
    left = [(target.name, path, reason) for path, reason in target.unbound.items()]
    modules = dict.fromkeys(filter(None, (_module(path, checkout) for path in sorted(bound))))
    for module, file in modules:
        for name in _functions(file):
            path = f"{module}.{name}"
            if path not in bound and not target.reason_against(path):
                left.append((target.name, path, ""))
    return left


def _module(path: str, checkout: Checkout) -> tuple[str, Path] | None:
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        for root in checkout.import_roots:
            file = root.joinpath(*parts[:end]).with_suffix(".py")
            if file.is_file():
                return ".".join(parts[:end]), file
    return None


def _functions(file: Path) -> Iterable[str]:
    """The public functions of a module, read and not run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")
    ]


def _show(
    catalog: Catalog | None, rows: list[Row], unbound: list[tuple[str, str, str]], unavailable: list[str]
) -> None:
    """Print the table; and with a catalog the contracts of those that are in it, and of any function."""
    if rows:
        say_table(
            ("target", "boundary", "contract", "formerly", "there", "laws", "note"),
            [
                (r.target, r.boundary, r.contract, ", ".join(r.formerly), r.there, str(len(r.laws) or ""), r.note)
                for r in rows
            ],
        )
    laws = {row.contract: row.laws for row in sorted(rows, key=lambda row: len(row.laws))}
    for contract in (item for _, item in sorted((catalog.contracts if catalog else {}).items())):
        if contract.name not in laws and not contract.open_keys:
            continue
        say(f"\n{contract.name}: {contract.summary}")
        say_table(("  input", "", ""), [(f"  {item.name}", _kind(item), item.meaning) for item in contract.inputs])
        say(f"  observes: {', '.join(contract.keys)}{', and what the boundary returns' * contract.open_keys}")
        if laws.get(contract.name):
            say(f"  laws: {', '.join(laws[contract.name])}")
    if unbound:
        say("\nnot bound")
        say_table(("target", "function", "why"), [(t, path, reason or "-") for t, path, reason in unbound])
    for line in unavailable:
        say(f"unavailable: {line}")


def _kind(item: Input) -> str:
    shape = f" [{', '.join(item.shape)}]" if item.shape else ""
    return f"{item.kind}{shape}{'' if item.default is REQUIRED else ', optional'}"
