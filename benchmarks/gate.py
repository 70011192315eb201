"""Measure the gate on injected bugs, refactorings and reversed fixes, each compared with its base like a pull request.

    python benchmarks/gate.py --mutants 200 --refactorings 100 --fixes 60 --seed 1 [--corpus FILE] [--processes 2]
    python benchmarks/gate.py          write the results of benchmarks/gate.jsonl into the README's table

A mutant changes one expression of one line. The line is drawn from the nine main branches: from all lines in functions
of the inventory (before any exclusion) that an operator of mutants.py can change. Refactorings change random bound
functions. A fix is reversed: the fixed revision is the base, and the revision with the bug is the head. For fixes, only
two kinds of boundaries are compared: the recipe's own, and those that reach the recipe's function. Recipes are off.
``--new-fixes N`` takes the first N fixes of new_fixes.jsonl, which were chosen by the rule in unseen.py before Sentinel
ran on them.

Each result is written as one line of FILE (``--to``). Results that FILE already has are not computed again, so an
interrupted run can be continued. The jobs that are drawn first run first. A person adds ``verdict`` (``equivalent`` or
``miss``) and ``note`` to each mutant that was not noticed (*same* or *not examined*).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from mutants import EVERY, Mutant, _expressions, mutants
from refactorings import KINDS, refactor

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.patch import NO_EFFECT, PARTS
from sentinel.comparing.results import BoundaryDiff
from sentinel.deciding.runner import Runner, runner_of
from sentinel.errors import SentinelError
from sentinel.recipes import Recipe, find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.run.gate import outcome_of
from sentinel.search.coverage import coverage
from sentinel.search.inventory import Function, _functions
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.sources.commits import commit
from sentinel.sources.gittrees import GitTrees
from sentinel.targets.refs import Ref

ROOT = Path(__file__).resolve().parent.parent
README, DATA = ROOT / "README.md", Path(__file__).with_name("gate.jsonl")
NEW_FIXES = Path(__file__).with_name("new_fixes.jsonl")
CATALOG, STORE = bundled_catalog(), MirrorStore()
TARGETS = [name for name in CATALOG.targets if name != "demo"]

Row = dict[str, Any]

#: The reversed fix of verl #945, which has no recipe: (target, name, boundary, commit with the bug, fixed commit).
_DROPPED_MODE = (
    "verl", "verl-945", "verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy",
    "f845a46a178aaa9b1f9bc1c9d3a93c8487eb6279", "3e3d9372a5988c7f8fba7e3775a0e7e68180a891",
)  # fmt: skip

#: Number of jobs that are sorted by target before they run, so that fewer imports of frameworks are needed.
_BLOCK = 20


@cache
def inventory(name: str) -> tuple[str, dict[str, str], tuple[Function, ...]]:
    """Return (newest commit of a target's branch, file -> source, signal functions)."""
    target = CATALOG.targets[name]
    sha = STORE.resolve(target, target.branch)
    trees = GitTrees(STORE.path(name))
    try:
        tree = commit(STORE.path(name), sha).tree
        functions = coverage(target, trees, tree).functions
        blobs = {file: trees.at(tree, file) for file in sorted({each.file for each in functions})}
        sources = {file: trees.blob(found[1]).decode(errors="replace") for file, found in blobs.items() if found}
    finally:
        trees.close()
    return sha, sources, functions


def signal_lines() -> list[tuple[str, str, str, int]]:
    """Return (target, file, function, line) of every line of a signal function that computes something."""
    lines = []
    for name in TARGETS:
        _, sources, functions = inventory(name)
        defined = {file: dict(_functions(ast.parse(source).body)) for file, source in sources.items()}
        for each in functions:
            found = {item.lineno for item in _expressions(defined[each.file][each.name].body)}
            lines += [(name, each.file, each.name, line) for line in sorted(found)]
    return lines


def line_mutants(source: str, file: str, function: str, line: int) -> list[tuple[Mutant, str]]:
    """Return the mutants of a line, each with the changed source of the file.

    To save time, only the top-level statement around the line is parsed for each mutant.
    """
    lines = source.splitlines(keepends=True)
    around = next(node for node in ast.parse(source).body if node.lineno <= line <= (node.end_lineno or 0))
    first, last = around.lineno - 1, around.end_lineno or 0
    before, after = "".join(lines[:first]), "".join(lines[last:])
    part = "".join(lines[first:last])
    try:
        return [(made, before + made.source + after) for made in mutants(part, file, function, EVERY, line - first)]
    except (SyntaxError, IndentationError):
        return []


def draw_mutants(seed: int, count: int) -> Iterator[tuple[Row, str]]:
    """Yield random mutants as (row, changed source of the file)."""
    chosen, lines = random.Random(f"mutants {seed}"), signal_lines()
    chosen.shuffle(lines)
    number = 0
    for name, file, function, line in lines:
        if number == count:
            return
        several = line_mutants(inventory(name)[1][file], file, function, line)
        if several:
            made, source = chosen.choice(several)
            row = {"target": name, "file": file, "function": function, "line": line}
            change = {"operator": made.operator, "before": made.before, "after": made.after}
            yield {"kind": "mutant", "seed": seed, "number": number, **row, **change}, source
            number += 1


def draw_refactorings(seed: int, count: int) -> Iterator[tuple[Row, str]]:
    chosen = random.Random(f"refactorings {seed}")
    functions = [(name, each) for name in TARGETS for each in inventory(name)[2] if each.state == "bound"]
    number = 0
    while number < count:
        name, function = chosen.choice(functions)
        kind = chosen.choice(list(KINDS))
        made = refactor(inventory(name)[1][function.file], function.name, kind, chosen)
        if made is not None:
            row = {"target": name, "file": function.file, "function": function.name, "line": made[1], "operator": kind}
            yield {"kind": "refactoring", "seed": seed, "number": number, **row}, made[0]
            number += 1


def draw_fixes(seed: int, count: int, corpus: Path | None) -> Iterator[Row]:
    """Yield reversed fixes: verl #945, then those of the corpus, then those of recipes in random order."""
    number = 0
    several = [json.loads(line) for line in corpus.read_text().splitlines()] if corpus is not None else []
    pairs = [_DROPPED_MODE]
    pairs += [(each["target"], each["id"], each["boundary"], each["before"], each["after"]) for each in several]
    drawn = []
    for recipe in find_recipes(CATALOG):
        pins = {pin.expect: str(pin.ref) for pin in reversed(recipe.pins) if pin.ref.kind == "git"}
        if {"reproduced", "fixed"} <= set(pins):
            drawn.append((recipe.target, recipe.bug_id, recipe.boundary, pins["reproduced"], pins["fixed"]))
    random.Random(f"fixes {seed}").shuffle(drawn)
    for target, bug, boundary, before, after in [*pairs, *drawn]:
        if target in TARGETS and number < count:
            row = {"target": target, "bug": bug, "boundary": boundary, "before": before, "after": after}
            yield {"kind": "fix", "seed": seed, "number": number, **row}
            number += 1


def draw_new_fixes(count: int) -> Iterator[Row]:
    """Yield the reversed fixes of new_fixes.jsonl, in the order of the file."""
    chosen = [row for row in read(NEW_FIXES) if "dropped" not in row]
    yield from ({"kind": "new fix", "seed": 1, **row, "number": place} for place, row in enumerate(chosen[:count]))


class Bench:
    """Runs comparisons one after the other, and keeps the base's checkout and the process that imported it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._runner: Runner | None = None
        self._target, self._trees = "", dict[str, Path]()

    def runner(self, name: str) -> Runner:
        if self._runner is None or self._target != name:
            self.close()
            self._target, self._runner = name, runner_of(CATALOG, Settings(), store=STORE)
        return self._runner

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None

    def judge_change(self, row: Row, source: str) -> Row:
        """Compare the target's main branch with a copy in which one file is replaced.

        :param source: the new source of that file.
        """
        name = row["target"]
        if name not in self._trees:
            self._trees[name] = self._folder / f"{name}-{os.getpid()}"
            self._trees[name].mkdir()
            git, sha = ["git", "-C", str(STORE.path(name))], inventory(name)[0]
            listed = [*git, "ls-tree", "--name-only", sha, *(root.path for root in CATALOG.targets[name].roots)]
            roots = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
            archive = [*git, "archive", sha, *roots]
            with subprocess.Popen(archive, stdout=subprocess.PIPE) as process:
                subprocess.run(["tar", "x", "-C", self._trees[name]], stdin=process.stdout, check=True)
        head = self._folder / f"{name}-{os.getpid()}-{row['kind']}-{row['number']}"
        subprocess.run(["cp", "-al", self._trees[name], head], check=True)
        try:
            (head / row["file"]).unlink()
            (head / row["file"]).write_text(source, encoding="utf-8")
            recipes = [] if row["kind"] == "refactoring" else find_recipes(CATALOG, (name,))
            return self._judge(name, (Ref("git", inventory(name)[0]), Ref("path", str(head))), recipes)
        finally:
            shutil.rmtree(head)

    def judge_fix(self, row: Row) -> Row:
        refs = [_parse(row[side]) for side in ("after", "before")]
        if None in refs:
            return {"outcome": "not examined", "why": "the fix is not merged"}
        found = self._judge(row["target"], (refs[0], refs[1]), [], row["boundary"])  # type: ignore[arg-type]
        for ref in refs:
            self.runner(row["target"]).discard(row["target"], ref)  # type: ignore[arg-type]
        return found

    def _judge(self, name: str, refs: tuple[Ref, Ref], recipes: Sequence[Recipe], boundary: str = "") -> Row:
        began, runner = time.monotonic(), self.runner(name)
        try:
            comparison = Comparison(CATALOG, runner, CATALOG.targets[name], refs, recipes, until=began + self._seconds)
            found = _describe(comparison, boundary, began + self._seconds)
        except SentinelError as error:
            found = {"outcome": "not examined", "why": f"error: {error}"[:300]}
        finally:
            runner.discard(name, refs[1])
        return {**found, "seconds": round(time.monotonic() - began, 1)}


def _parse(text: str) -> Ref | None:
    word = text.split()[0]
    if word == "open":
        return None
    return Ref.parse(word if ":" in word else f"git:{word}")


def _describe(comparison: Comparison, boundary: str, until: float) -> Row:
    """Run the comparison until a boundary is worse, and return the gate's outcome with its reason.

    :param boundary: the function of a fix. Only this boundary, and boundaries that reach this function, are compared.
    :param until: the time (``time.monotonic``) after which no further boundary is compared.
    """
    names, results = comparison.to_call(), list[BoundaryDiff]()
    if boundary:
        tail = boundary.rpartition(".")[2]
        candidates = comparison.selection.candidates
        names = [
            name
            for name in names
            if name.partition(" ")[0] == boundary
            or any(f".{place}".endswith(f".{tail}") for (_, place), _, _ in candidates[name].changed)
        ]
    for name in names:
        if time.monotonic() > until:
            break
        results.append(comparison.compare(name))
        if outcome_of(results[-1]) == "worse":
            break
    whole = len(results) == len(names)
    results = comparison.settle(results)
    patch = comparison.selection.patch
    lines, idle = patch.lines(), patch.find_unexamined()
    row: Row = {"bound": any(line[5] for line in lines), "boundaries": len(names)}
    if not patch.count and not comparison.selection.effects:
        same = comparison.selection.proves_equality()  # for example, False if a chat template differs
        return {**row, "ran": False, "outcome": "same" if same else "not examined", "why": "no code differs"}
    outcomes = {outcome_of(each): each for each in reversed(results)}
    for outcome in ("worse", "other", "better"):
        if outcome in outcomes:
            item = outcomes[outcome]
            told = [each.law for each in item.broken.get("after", ())] or [each.symptom for each in item.differences]
            return {**row, "ran": True, "outcome": outcome, "by": item.name, "why": ", ".join(dict.fromkeys(told))}
    partly, silent = (any(item.guard in guards for item in idle) for guards in (PARTS, (NO_EFFECT,)))
    row["ran"] = partly or silent or any(line[-1] for line in lines)
    if "same" in outcomes and whole and not idle:
        return {**row, "outcome": "same", "by": outcomes["same"].name, "why": ""}
    reasons = [f"not compared: {each.reason}" for each in results if each.reason]
    why = (
        "not bound"
        if not row["bound"]
        else "it ran in part"
        if partly
        else NO_EFFECT
        if silent
        else "not reached"
        if whole
        else "time"
    )
    return {**row, "outcome": "not examined", "why": reasons[0][:200] if reasons and why != "not bound" else why}


# -- running ----------------------------------------------------------------------------------------------------------

Job = tuple[Row, str | None]


def key(row: Row) -> tuple[Any, ...]:
    return row["kind"], row["seed"], row["number"]


def draw(options: argparse.Namespace) -> Iterator[Job]:
    if options.mutants:  # drawing mutants reads nine inventories, which takes a minute
        yield from draw_mutants(options.seed, options.mutants)
    if options.refactorings:
        yield from draw_refactorings(options.seed, options.refactorings)
    yield from ((row, None) for row in draw_fixes(options.seed, options.fixes, options.corpus))
    yield from ((row, None) for row in draw_new_fixes(options.new_fixes))


def work(options: argparse.Namespace, place: int) -> None:
    """Run the jobs of one process. Each of n processes runs every n-th job whose result the file lacks. A job is drawn
    only when it is needed."""
    done = {key(row) for row in read(options.to)}
    jobs = (job for job in draw(options) if job[0]["number"] % options.processes == place and key(job[0]) not in done)
    with tempfile.TemporaryDirectory() as folder, closing(Bench(Path(folder), options.seconds)) as bench:
        while block := list(islice(jobs, _BLOCK)):
            for row, source in sorted(block, key=lambda job: str(job[0]["target"])):
                found = bench.judge_fix(row) if source is None else bench.judge_change(row, source)
                line = json.dumps({**row, **found})
                print(line, flush=True)
                with options.to.open("a", encoding="utf-8") as out:
                    out.write(f"{line}\n")


def read(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


# -- the table --------------------------------------------------------------------------------------------------------

_OUTCOMES = ("worse", "other", "not examined", "same")
_GROUPS: list[tuple[str, Callable[[Row], bool]]] = [
    ("injected bugs in signal lines", lambda row: row["kind"] == "mutant"),
    ("of these whose changed line ran", lambda row: row["kind"] == "mutant" and row["ran"]),
    ("refactorings of bound functions", lambda row: row["kind"] == "refactoring"),
    ("fixes of known bugs, reversed, recipes off", lambda row: row["kind"] == "fix"),
    ("new real fixes, reversed, chosen before Sentinel ran", lambda row: row["kind"] == "new fix"),
    ("bugs in functions bound or reached, by the framework's own CPU tests", lambda row: row["kind"] == "own tests"),
]


def results(rows: Sequence[Row]) -> dict[str, tuple[int, str]]:
    """Return title of a group -> (number of rows, text with the count of each outcome).

    The outcome *better* counts as *other*. A failing test of the framework has the outcome *worse*.
    """
    found = {}
    for title, belongs in _GROUPS:
        chosen = [row for row in rows if belongs(row)]
        counts = Counter("other" if row["outcome"] == "better" else row["outcome"] for row in chosen)
        equivalent = sum(row.get("verdict") == "equivalent" for row in chosen)
        text = ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES)
        found[title] = len(chosen), text + (f"; {equivalent} can change no result" if equivalent else "")
    return found


def rewritten(text: str) -> str:
    """Return the README's text with the current results in its table. A row is found by its group's title."""
    for title, (count, result) in results(read(DATA)).items():
        rows = re.compile(rf"^\| \d+ {re.escape(title)} \| [^|]* \|", re.MULTILINE)
        text, replaced = rows.subn(f"| {count} {title} | {result} |", text)  # no result has a backslash
        assert replaced == 1, f"the README has {replaced} rows '{title}'"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--refactorings", type=int, default=0)
    parser.add_argument("--fixes", type=int, default=0)
    parser.add_argument("--new-fixes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="further fixes, as JSON lines")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds after which no boundary is begun")
    parser.add_argument("--to", type=Path, default=DATA)
    options = parser.parse_args()
    if not (options.mutants or options.refactorings or options.fixes or options.new_fixes):
        README.write_text(rewritten(README.read_text(encoding="utf-8")), encoding="utf-8")
        return
    spawn = get_context("spawn")
    workers = [spawn.Process(target=work, args=(options, place)) for place in range(options.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
