"""Implement ``sentinel report site``, which writes evidence, coverage and histories as a static website."""

from __future__ import annotations

import argparse
from pathlib import Path

from sentinel.commands.console import Commands, command, counted, echo, print_error, progress, size
from sentinel.commands.options import catalog_and_settings, evidence_folders, evidence_option, settings_options
from sentinel.errors import SentinelError
from sentinel.recipes.grades import count_bugs as roots
from sentinel.recipes.grades import realism, root
from sentinel.tools.site.building import build, check, require, write
from sentinel.tools.site.material import read

_EXAMPLE = """\
  sentinel report site                               pages in site/ from the results in reports/
  sentinel report site --reports sentinel-reports    from the results of your last run
  sentinel contribute --all --out export; sentinel report site    with a script for each bug

Open site/index.html in a browser; a server is not needed. The pages include histories of bugs if `sentinel sweep
--save` wrote them to the same folder. The output is deterministic. A folder with other files is not changed.
"""


#: The maximum number of notes that are printed.
_NOTES = 5


def declare(commands: Commands) -> None:
    parser = command(
        commands, "site", _site, "write recorded results, coverage and bug histories as web pages", _EXAMPLE
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("site"), help="folder of the pages (default: site)"
    )
    evidence_option(parser, "--reports", "baseline", "evidence", "reports")
    parser.add_argument(
        "--exports",
        metavar="DIR",
        type=Path,
        default=Path("export"),
        help="folder that `sentinel contribute` wrote (default: export)",
    )
    settings_options(parser, "recipes")


def _site(arguments: argparse.Namespace) -> int:
    require()
    check(arguments.out)
    _, reports = evidence_folders(arguments)
    if reports.resolve() in (arguments.out.resolve(), *arguments.out.resolve().parents):
        raise SentinelError(
            f"the site cannot be written to {arguments.out}, because runs read all files inside {reports} as evidence; "
            "name another --out"
        )
    catalog, _ = catalog_and_settings(arguments)
    with progress() as notify:
        notify(f"reading {reports}")
        material = read(reports, catalog, arguments.exports)
        made = write(arguments.out, build(material, notify))
    for note in material.notes[:_NOTES]:
        print_error(note)
    if len(material.notes) > _NOTES:
        print_error(f"and {len(material.notes) - _NOTES} more histories that cannot be read")
    start = arguments.out / "index.html"
    rows = ({"target": b.target, "root": root(b.document), "realism": realism(b.document)} for b in material.bugs)
    echo(f"{start}: {roots(rows)}, {counted(len(made), 'file')}, {size(sum(made.values()))}")
    return 0
