"""``sentinel compare``: whether frameworks mean the same by one name."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from sentinel.commands.console import (
    Commands,
    command,
    complain,
    json_option,
    nothing_examined,
    progress,
    say,
    say_json,
)
from sentinel.commands.options import catalog_and_settings, evidence_folders, settings_options
from sentinel.comparing import frameworks, table
from sentinel.comparing.across import Row
from sentinel.comparing.table import markdown
from sentinel.deciding.runner import runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.reports.store import write_atomically
from sentinel.settings import NAMED

GROUP = "search"
SUMMARY = "compare what frameworks mean by one name"

#: What `--all` writes for readers.
PAGE = Path("docs/dialects.md")

_EXAMPLE = """\
  sentinel compare loss_aggregation
  sentinel compare grpo --targets trl,verl                 a row of the table, or a contract
  sentinel compare kl_estimate --targets verl,openrlhf --ref verl=pypi:latest --ref openrlhf=git:main
  sentinel compare --all                                   write the table: docs/dialects.md, reports/dialects.json

The same scenarios go to every boundary that is bound to the contract, and to its definition, with the same settings
where they can be had. What tells two apart is drawn as small as it goes and measured again in fresh processes. A
declared dialect, a setting that cannot be made the same, or a known bug explains it; or nothing does, and it is to be
read.
exit status: 0 all is explained, 1 something is not, 2 it could not be compared
"""


def declare(commands: Commands) -> None:
    parser = command(commands, "compare", _compare, SUMMARY, _EXAMPLE)
    parser.add_argument("contract", metavar="CONTRACT", nargs="?", help="a contract, or a row of the table")
    parser.add_argument("--all", action="store_true", help="every row of the table; writes it")
    parser.add_argument("--targets", metavar="NAMES", action="append", help="only these (default: all)")
    parser.add_argument("--ref", metavar="[TARGET=]REF", action="append", help="at this ref (default: the branch)")
    parser.add_argument("--examples", metavar="N", type=int, default=60, help="scenarios of two (default: 60)")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="draw other scenarios (default: 0)")
    settings_options(parser)
    json_option(parser)


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.contract):
        raise SentinelError("name a contract (`sentinel compare loss_aggregation`), or give --all")
    if arguments.examples < 1:
        raise SentinelError(f"--examples {arguments.examples}: at least one scenario has to be drawn")
    catalog, settings = catalog_and_settings(arguments)
    names = list(catalog.adapters)
    targets = NAMED["target"].read(arguments.targets or ["all"], names)
    refs = dict(NAMED["ref"].read(arguments.ref, names)) if arguments.ref else {}
    unasked = next((name for name in refs if name not in (None, *targets)), None)
    if unasked is not None:
        raise SentinelError(f"--ref {unasked}={refs[unasked]}: --targets leaves {unasked} out")
    meanings = frameworks.TABLE if arguments.all else frameworks.rows_named(arguments.contract, list(catalog.contracts))
    rows: list[tuple[frameworks.Meaning, Row]] = []
    interrupted = False
    with progress() as tell, closing(runner_of(catalog, settings, tell)) as runner:
        for name, ref in refs.items():
            if name is not None:  # a ref that is named for a target has to be there
                runner.checkout(name, ref)
        recipes = find_recipes(catalog, targets)
        sizes = arguments.examples, arguments.seed
        compared = frameworks.Frameworks(catalog, runner, targets, refs, recipes, *sizes, tell, arguments.all)
        try:
            for meaning in [item for item in meanings if not arguments.all or compared.bound(item.contract)]:
                for row in compared.rows(meaning):
                    rows.append((meaning, row))
        except KeyboardInterrupt:
            interrupted = True
    document = table.document(compared, rows, interrupted)
    if arguments.all and not interrupted:
        _write(document, evidence_folders(arguments)[1])
    if arguments.json:
        say_json(document)
    else:
        say("\n".join(table.lines(document)))
    if interrupted:
        return 130
    status = table.status(document)
    if status != 2:
        return status
    return nothing_examined(
        "no two functions could be asked; see `not compared`, or name other --targets or another --ref"
    )


def _write(document: dict[str, Any], reports: Path) -> None:
    """Write the page for readers, and the data for the site."""
    data = json.dumps(document, indent=1, sort_keys=True) + "\n"
    for file, text in ((reports / "dialects.json", data), (PAGE, "\n".join(markdown(document)) + "\n")):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text, "run it where docs/ and reports/ may be written")
        complain(f"{file} written")
