"""Implement ``sentinel recipe``, which writes and checks recipes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sentinel.commands.console import Commands, command, counted, echo, echo_json, group
from sentinel.commands.options import catalog_and_settings, target_named
from sentinel.contracts.contract import Contract
from sentinel.errors import NothingExamined, RecipeError, SentinelError, nearest
from sentinel.recipes import recipe_files
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.check import check_files
from sentinel.recipes.fixes import SUFFIX, load_fix
from sentinel.recipes.inputs import inside
from sentinel.recipes.structure import schema
from sentinel.recipes.template import TODO, template
from sentinel.targets import Target

GROUP = "publish"
SUMMARY = "write and check recipes"

_CHECK = """\
  sentinel recipe check MY-BUG.yaml      list every error and warning with file:line:column
  sentinel recipe check recipes/         check every recipe below a folder
"""
_NEW = """\
  sentinel recipe new MY-BUG --target verl --boundary verl.trainer.ppo.core_algos.agg_loss
  sentinel recipe new MY-BUG --target roll --contract call -o recipes/roll/MY-BUG.yaml
"""
_SCHEMA = """\
  sentinel recipe schema > recipe.schema.json        for an editor that checks YAML
"""


def declare(commands: Commands) -> None:
    own = group(commands, "recipe", SUMMARY, _NEW + _CHECK)
    new = command(own, "new", _new, "write a commented template", _NEW)
    new.add_argument("bug_id", metavar="BUG-ID", help="the bug id; the recipe and its evidence are named after it")
    new.add_argument("--target", required=True, metavar="T", help="see `sentinel list targets`")
    new.add_argument("--boundary", metavar="B", help="dotted path; see `sentinel list boundaries`")
    new.add_argument("--contract", metavar="C", help="default: the contract that the boundary is bound to")
    new.add_argument("-o", "--output", metavar="FILE", default="-", help="default: standard output")
    check = command(own, "check", _check, "check recipes; exit status 1 if there is an error", _CHECK)
    check.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a recipe, or a folder of recipes")
    command(own, "schema", _schema, "print the JSON Schema of recipes", _SCHEMA)


def _check(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings()
    gone = [str(path) for path in arguments.files if not path.exists()]
    if gone:
        raise SentinelError(f"{', '.join(gone)}: no such file; name a recipe, or a folder of recipes")
    files = [file for path in arguments.files for file in (recipe_files(path) if path.is_dir() else [path])]
    fixes = dict.fromkeys(fix for path in arguments.files for fix in _fixes_of(path))
    files = [file for file in files if file not in fixes]
    if not files and not fixes:
        raise NothingExamined(
            f"{', '.join(map(str, arguments.files))}: no recipe there; name a recipe, or a folder of recipes"
        )
    problems = check_files(files, catalog)
    for problem in problems:
        echo(str(problem))
    broken = 0
    for fix in fixes:
        try:
            load_fix(fix)
        except RecipeError as error:
            echo(str(error))
            broken += 1
    errors = sum(problem.severity == "error" for problem in problems)
    counts = f"{counted(errors + broken, 'error')}, {counted(len(problems) - errors, 'warning')}"
    print(f"{counted(len(files) + len(fixes), 'file')}: {counts}", file=sys.stderr)
    return 1 if errors + broken else 0


def _fixes_of(path: Path) -> list[Path]:
    """Return the fix files of a path, which is a folder, a recipe (one fix file or none), or a fix file."""
    if path.is_dir():
        return sorted(path.rglob(f"*{SUFFIX}"))
    fix = path if path.name.endswith(SUFFIX) else path.with_name(f"{path.stem}{SUFFIX}")
    return [fix] if fix.is_file() else []


def _new(arguments: argparse.Namespace) -> int:
    catalog, _ = catalog_and_settings()
    target = target_named(catalog, arguments.target)
    contract = _contract(catalog, target, arguments.boundary, arguments.contract)
    text = template(arguments.bug_id, target.name, arguments.boundary or TODO, contract)
    if arguments.output == "-":
        print(text, end="")
        return 0
    file = Path(arguments.output)
    _create(file, text)
    echo(f"{file}: replace each {TODO}, then run `sentinel recipe check {file}`")
    return 0


def _contract(catalog: Catalog, target: Target, boundary: str | None, name: str | None) -> Contract | None:
    """Return the contract with this name or, without a name, the contract to which the boundary is bound."""
    if boundary is not None:
        problem = inside(boundary, target.packages)
        if problem:
            raise SentinelError(f"--boundary: {problem}")
    if name is None:
        binding = target.binding(boundary) if boundary else None
        if boundary and binding is None:
            raise SentinelError(
                f"{target.explain_unbound(boundary)}; use --contract call to pin a function without a binding"
            )
        name = binding.contract if binding else None
    elif name not in catalog.contracts:
        raise SentinelError(f"unknown contract {name!r}{nearest(name, catalog.contracts, 'the contracts are')}")
    return catalog.contracts[name] if name else None


def _create(file: Path, text: str) -> None:
    """Create a file, and remove it if writing fails. Raise SentinelError if it already exists."""
    try:
        if file.is_file() and not file.stat().st_size:  # left by a command that was killed before it wrote anything
            file.unlink()
        with file.open("x", encoding="utf-8") as stream:
            try:
                stream.write(text)
                stream.flush()
            except BaseException:
                file.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise SentinelError(f"{file} already exists and is not overwritten; choose another file with -o") from None
    except OSError as error:
        raise SentinelError(f"cannot write {file}: {error.strerror}; choose another file with -o") from error


def _schema(arguments: argparse.Namespace) -> int:
    echo_json(schema())
    return 0
