"""Implement ``sentinel report refresh``: decide verdicts again if their binding, contract or recipe has changed."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sentinel.commands.console import Commands, command, counted, echo, progress, some
from sentinel.commands.options import PROBING, catalog_and_settings, evidence_folders, evidence_option, settings_options
from sentinel.errors import NothingExamined
from sentinel.reports import lines, store
from sentinel.reports.baseline import update

_EXAMPLE = """\
  sentinel report refresh --check          list the stale entries; no framework code runs
  sentinel report refresh                  decide them again, and write the new results

An entry is stale if the digest of its binding, contract or recipe has changed, or its pin expects another verdict.
A changed title, reason or message does not count. Pins without an entry are listed too, if their target has entries.
exit status: 0 no entry is stale or missing at the end, 1 some are, 2 nothing is recorded or an entry is not valid
"""


_MISSING = "it is not recorded"


@dataclass(frozen=True)
class Stale:
    target: str
    place: PurePosixPath
    facts: lines.Facts
    why: str

    @property
    def ref(self) -> str:
        return str(next(iter(self.facts["refs"])))


def declare(commands: Commands) -> None:
    parser = command(commands, "refresh", _refresh, "decide stale entries of the baseline again", _EXAMPLE)
    parser.add_argument("--check", action="store_true", help="only list the stale entries")
    evidence_option(parser, "--baseline", "baseline", "the recorded evidence", "reports")
    parser.add_argument("--target", metavar="NAME", action="append", help="only these targets (default: all)")
    settings_options(parser, *(name for name in PROBING if name != "repo-url"))


def _refresh(arguments: argparse.Namespace) -> int:
    baseline = evidence_folders(arguments)[1]
    recipes = lines.Recipes(catalog_and_settings(arguments)[0])
    stale, elsewhere, examined = _stale(baseline, recipes, arguments)
    if not examined:
        raise NothingExamined(f"{baseline} has no lines of evidence; `sentinel report accept` records a run there")
    if stale and not arguments.check:
        with progress() as notify:
            for words in _runs(stale, recipes):
                notify(f"pytest {' '.join(words)}"[:160])
                with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
                    _decide(words, arguments, Path(folder) / "run", baseline, recipes)
        stale, elsewhere, examined = _stale(baseline, recipes, arguments)
    missing = [entry for entry in stale if entry.why == _MISSING]
    if missing:
        pins = [f"{entry.facts['bug_id']} at {entry.ref}" for entry in missing]
        echo(f"not recorded: {counted(len(pins), 'pin')}: {some(pins, 5)}")
    known = [entry for entry in stale if entry.why != _MISSING]
    for entry in known if arguments.check or len(known) <= 40 else ():
        echo(f"stale: {entry.place}: {entry.why}")
    why = "".join(f"; {count} because {reason}" for reason, count in Counter(e.why for e in known).most_common(3))
    newer = f"; {elsewhere} more need the newer Python with which they were decided" if elsewhere else ""
    echo(f"{counted(examined, 'verdict')} recorded in {baseline}, {len(known)} stale{why}{newer}")
    return 1 if stale else 0


def _stale(baseline: Path, recipes: lines.Recipes, arguments: argparse.Namespace) -> tuple[list[Stale], int, int]:
    """Return the stale entries, the number of further stale entries that need a newer Python, and the number of all
    entries.

    :raises SentinelError: if an entry is not valid.
    """
    stale, elsewhere, examined = [], 0, 0
    for file in store.line_files(baseline):
        if arguments.target and file.stem not in arguments.target:
            continue
        pins = recipes.pins(file.stem)
        for place, facts in store.facts_in(file).items():
            examined += 1
            store.expand(file, facts, recipes)
            pins.pop((facts.get("bug_id", ""), next(iter(facts["refs"]))), None)
            why = lines.why_stale(facts, file.stem, recipes)
            if why and not arguments.python and _python_of(facts) > sys.version_info[:2]:
                elsewhere += 1
            elif why:
                stale.append(Stale(file.stem, place, facts, why))
        for (bug, ref), expect in pins.items():
            stale.append(Stale(file.stem, PurePosixPath(bug), {"bug_id": bug, "refs": {ref: expect}}, _MISSING))
    return stale, elsewhere, examined


def _python_of(facts: lines.Facts) -> tuple[int, ...]:
    text = str(facts.get("environment", {}).get("python", ""))
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _runs(stale: list[Stale], recipes: lines.Recipes) -> Iterator[list[str]]:
    """Yield the arguments of each pytest run that decides a part of these entries again."""
    for target in sorted({entry.target for entry in stale}):
        here = [entry for entry in stale if entry.target == target]
        pinned = [entry for entry in here if _is_pin(entry, recipes)]
        if pinned:
            bugs = sorted({entry.facts["bug_id"] for entry in pinned})
            yield [f"--sentinel-target={target}", f"--sentinel-bug={','.join(bugs)}"]
        others = [entry for entry in here if not _is_pin(entry, recipes)]
        for ref in sorted({entry.ref for entry in others}):
            there = [entry for entry in others if entry.ref == ref]
            names = sorted({entry.facts["bug_id"] for entry in there if "bug_id" in entry.facts})
            laws = sorted({_law_id(entry) for entry in there if "bug_id" not in entry.facts})
            if names:
                yield [f"--sentinel-target={target}", f"--sentinel-bug={','.join(names)}", f"--sentinel-ref={ref}"]
            if laws:
                yield [*laws, f"--sentinel-ref={ref}", "--sentinel-laws=quick"]


def _is_pin(entry: Stale, recipes: lines.Recipes) -> bool:
    recipe = recipes.get(entry.target, entry.facts.get("bug_id", ""))
    return recipe is not None and any(str(pin.ref) == entry.ref for pin in recipe.pins)


def _law_id(entry: Stale) -> str:
    facts = entry.facts
    contract = f"({facts['contract_name']})" if "subject" in facts else ""
    return f"laws/{entry.target}/{facts['boundary_name']}{contract}"


def _decide(
    words: list[str], arguments: argparse.Namespace, folder: Path, baseline: Path, recipes: lines.Recipes
) -> None:
    options = [
        f"--sentinel-{name}={value}"
        for name in PROBING
        for given in [getattr(arguments, name.replace("-", "_"), None)]
        for value in (given if isinstance(given, list) else [given] if given else [])
    ]
    quiet = ["-q", "-p", "no:cacheprovider", "--no-header", "--no-summary"]
    command = [sys.executable, "-m", "pytest", *words, *options, *quiet, f"--sentinel-report-dir={folder}"]
    done = subprocess.run([*command, f"--sentinel-baseline={baseline}"], capture_output=True, text=True, check=False)
    if not (folder / store.RUN).is_file():
        echo(f"pytest ended without a result ({' '.join(words)[:160]}): {done.stdout[-600:]}{done.stderr[-600:]}")
        return
    result = update(folder, baseline, recipes)
    for line in (*result.changed, *(f"kept: {line}" for line in result.kept)):
        if "other binding" not in line or "->" in line:
            echo(line)
