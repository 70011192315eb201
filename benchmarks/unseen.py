"""What of the bugs that nobody has shown it would Sentinel see? `python benchmarks/unseen.py`.

Candidates are mined from whole histories (`sentinel mirror add TARGET`): first-parent commits of the branch whose
subject speaks of a mistake, that change a function, and that neither a recipe nor a line of `--known FILE` names by
commit or pull request. Nothing is asked of the laws while they are mined.

1. The static share: by the best state of the functions of the inventory (docs/coverage.md) that a candidate changes,
   how many are looked at by a contract, left out, never looked at, or outside the inventory.
2. With `--run N`, of the candidates that `--json FILE` has from the first step: the laws of changed boundaries that are
   bound search at the parent and at the fix, for N more candidates, drawn at random. `found` is a law that breaks at
   the parent and not at the fix.
3. With `--since N`, of candidates that change what nobody has bound: the changed functions are called by the lexicon at
   the parent and at the fix, and compared. What the fix keeps and the parent does not is of rank three.

A candidate is no verified bug: its subject may speak of a crash, and its diff may tidy up.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from detection import search_until_broken

from sentinel.deciding.runner import Runner
from sentinel.errors import Unavailable
from sentinel.history import commits
from sentinel.history.bindings import Definitions, sighting, span_of, syntax_of
from sentinel.history.coverage import STATES, coverage_of, unbound
from sentinel.history.gittrees import GitTrees, LargeObjectError
from sentinel.history.held import Held, compared_at
from sentinel.history.inventory import Function, Source, signal_functions
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.checks import subjects
from sentinel.sources import MirrorStore, open_checkout
from sentinel.sources.gitbinary import GitError
from sentinel.targets import Target
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

CATALOG = bundled_catalog()

SPEAKS = re.compile(
    r"\b(fix(e[sd]|ing)?|bug(s|fix)?|wrong(ly)?|incorrect(ly)?|mis(match|count|align)\w*|broken)\b", re.I
)
#: What such a subject may be about that trains nothing.
ASIDE = re.compile(
    r"\b(revert|docs?|readme|typos?|ci|lint|format(ting)?|pre-commit|tests?|docker\w*|install\w*)\b", re.I
)

#: Scenarios of one comparison, and what it can say, the most telling first.
SCENARIOS = 100
OUTCOMES = ("inferred law", "differs", "the same", "refused", "not understood", "unavailable")

#: Scenarios of one search: four times what `--sentinel-laws=quick` looks at.
ENOUGH = 25


@dataclass(frozen=True)
class Touched:
    path: str
    state: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """:ivar state: the best of the functions that it changes.
    :ivar outcome: of the laws, where they were asked.
    :ivar automatic: changed functions that nobody has bound, each with what calling it by the lexicon said; None where
        nobody has tried.
    """

    target: str
    commit: str
    parent: str
    date: str
    subject: str
    functions: tuple[Touched, ...]
    outcome: str = ""
    automatic: tuple[tuple[str, str], ...] | None = None

    @property
    def state(self) -> str:
        states = {function.state for function in self.functions}
        return next((state for state in STATES if state in states), "outside the inventory")


class Known:
    """The commits and pull requests of a target that recipes and other records name."""

    def __init__(self, target: str, records: list[Path]) -> None:
        files = (file for folder in CATALOG.recipe_folders for file in (folder / target).rglob("*.yaml"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        for record in records:
            texts += [line for line in record.read_text(encoding="utf-8").splitlines() if f'"{target}"' in line]
        text = "\n".join(texts)
        self.shas = set(re.findall(r"\b[0-9a-f]{7,40}\b", text))
        self.pulls = {int(number) for number in re.findall(r"(?:#|pull[\"']?: ?|pull/)(\d+)", text)}

    def __contains__(self, commit: commits.Commit) -> bool:
        return commit.pull in self.pulls or any(commit.sha.startswith(sha) for sha in self.shas)


class Miner:
    """The candidates of one target."""

    def __init__(self, target: Target, store: MirrorStore) -> None:
        self.target, self.mirror = target, store.path(target.name)
        self.head = store.resolve(target, target.branch)
        self.trees = GitTrees(self.mirror)
        self.definitions = Definitions(self.trees, target.roots)
        self.texts = lru_cache(maxsize=256)(self._texts)

    def candidates(self, known: Known) -> Iterator[Candidate]:
        line = commits.history(self.mirror, self.head)
        for parent, commit in pairwise(line):
            if not SPEAKS.search(commit.subject) or ASIDE.search(commit.subject) or commit in known:
                continue
            old, new = (dict(self.definitions.sources(one.tree)) for one in (parent, commit))
            changed = [file for file in old if new.get(file, old[file]) != old[file]]
            if changed:
                functions = self.touched(parent.tree, [(file, old[file], new[file]) for file in changed])
                where = self.target.name, commit.sha, parent.sha, commit.date[:10], commit.subject
                yield Candidate(*where, tuple(functions))

    def touched(self, tree: str, changed: Sequence[tuple[str, str, str]]) -> Iterator[Touched]:
        """The functions of the inventory that have other code now.

        :param changed: file, blob in the tree, blob afterwards.
        """
        sources = {}
        for file, old, new in changed:
            now = {function.name: text for function, text in self.texts(file, new)}
            found = [function for function, text in self.texts(file, old) if now.get(function.name, text) != text]
            sources[file] = Source(functions=tuple(found))
        if any(source.functions for source in sources.values()):
            for one in coverage_of(self.target, self.definitions, tree, sources).functions:
                yield Touched(one.path, one.state, one.by)

    def held(self, runner: Runner, candidate: Candidate) -> Iterator[tuple[str, str]]:
        """What the unbound functions that it changes keep at the fix and not at the parent."""
        wanted = {function.path for function in candidate.functions if function.state == "never looked at"}
        sides = []
        for sha in (candidate.commit, candidate.parent):
            tree = commits.commit(self.mirror, sha).tree
            sources = {}
            for file, blob in self.definitions.sources(tree):
                if any(path.startswith(f"{self.target.module_of(file)}.") for path in wanted):
                    sources[file] = Source(functions=tuple(one for one, _ in self.texts(file, blob)))
            adapter = CATALOG.adapters[self.target.name]
            bare = replace(self.target, bindings=(), unbound={}, registries=())
            found = unbound(adapter, coverage_of(bare, self.definitions, tree, sources), CATALOG.laws)
            sides.append({one.path: (one, subject) for one, subject in found if one.path in wanted})
        both = [path for path in sides[0] if path in sides[1]]
        if all(side[path][1] is None for path in both for side in sides):  # nothing to have a checkout for
            return ((path, f"not understood: {sides[0][path][0].by[0]}") for path in both)
        refs = Ref("git", candidate.commit), Ref("git", candidate.parent)
        return ((one.function.path, said(one)) for one in compared_at(runner, self.target.name, refs, sides, SCENARIOS))

    def _texts(self, file: str, blob: str) -> list[tuple[Function, str]]:
        """The functions of a file that carry signal, each with its code, without comments and docstrings."""
        try:
            tree = syntax_of(self.trees.blob(blob))
        except (SyntaxError, LargeObjectError):
            return []
        functions = {one.span: one for one in signal_functions(tree.body, self.target.module_of(file))}
        texts = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = functions.get(span_of(node))
                if ast.get_docstring(node):
                    node.body = node.body[1:]
                if function:
                    texts.append((function, ast.dump(node)))
        return texts

    def asked(self, runner: Runner, candidate: Candidate) -> str:
        """What the laws of the bound boundaries that it changes say, at the parent and at the fix."""
        tree = commits.commit(self.mirror, candidate.parent).tree
        changed = (self.definitions.find(tree, function.path) for function in candidate.functions)
        places = {found.place for found in changed if found}
        said = []
        for subject in subjects(CATALOG, self.target.name)[0]:
            seen = sighting(self.definitions, tree, subject.binding)
            if seen.found is None or not seen.bound or seen.found.place not in places:
                continue
            refs = Ref("git", candidate.parent), Ref("git", candidate.commit)
            before, after = (search_until_broken(runner, "", self.target.name, ref, subject, ENOUGH) for ref in refs)
            gone = sorted(set(before.laws) - set(after.laws))
            if gone and not after.missed.startswith(("every call", "the ")):
                return f"found: {subject.name}: {', '.join(gone)}"
            said.append("breaks at both" if before.laws and after.laws else before.missed or after.missed)
        return Counter(said).most_common(1)[0][0] if said else "no laws"


def said(one: Held) -> str:
    """What a comparison of a fix and its parent says, in a word and a reason."""
    outcome = one.outcome
    if outcome is None or not outcome.answered:
        why = one.why or next(iter(outcome.refused if outcome else ()), "")
        return f"not understood: {why}" if outcome is None else f"refused: {why}"
    ranks = {item.rank: item for item in reversed(outcome.broken)}
    if 3 in ranks and (law := ranks[3].law):
        return f"inferred law: {law.name} ({ranks[3].key})"
    return f"differs: {ranks[4].key}" if 4 in ranks else "the same"


def mine(targets: Sequence[str], records: list[Path]) -> Iterator[Candidate]:
    for name in targets:
        try:
            miner = Miner(CATALOG.targets[name], MirrorStore())
        except Unavailable as error:
            print(error.reason, file=sys.stderr)
            continue
        for one in miner.candidates(Known(name, records)):
            print(f"{name} {one.commit[:12]} {one.state}: {one.subject[:90]}", file=sys.stderr, flush=True)
            yield one


def ask(found: list[Candidate], count: int) -> Iterator[tuple[int, Candidate]]:
    """The next candidates whose boundaries are bound, with what the laws say; and their places."""
    waiting = [n for n, one in enumerate(found) if one.state == STATES[0]]
    random.Random(0).shuffle(waiting)
    miners: dict[str, Miner] = {}
    runner = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options())
    try:
        for n in [n for n in waiting if not found[n].outcome][:count]:
            one = found[n]
            miner = miners.setdefault(one.target, Miner(CATALOG.targets[one.target], MirrorStore()))
            yield n, replace(one, outcome=miner.asked(runner, one))
    finally:
        runner.close()


def hold(found: list[Candidate], count: int) -> Iterator[tuple[int, Candidate]]:
    """The next candidates that change what nobody has bound, with what the lexicon's calls say; and their places."""
    waiting = [n for n, one in enumerate(found) if any(each.state == STATES[-1] for each in one.functions)]
    random.Random(0).shuffle(waiting)
    miners: dict[str, Miner] = {}
    runner = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options(timeout=10))
    try:
        for n in [n for n in waiting if found[n].automatic is None][:count]:
            one = found[n]
            miner = miners.setdefault(one.target, Miner(CATALOG.targets[one.target], MirrorStore()))
            try:
                yield n, replace(one, automatic=tuple(miner.held(runner, one)))
            except (Unavailable, GitError) as error:
                yield n, replace(one, automatic=(("", f"unavailable: {error}"),))
    finally:
        runner.close()


def recorded(file: Path) -> list[Candidate]:
    """The verified bugs of a list, each as if nobody had bound its function."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        Candidate(bug["target"], bug["fix"], bug["parent"], "", bug["id"], (Touched(bug["boundary"], STATES[-1], ()),))
        for bug in lines
        if bug["target"] in CATALOG.targets
    ]


def read(file: Path) -> list[Candidate]:
    lines = json.loads(file.read_text(encoding="utf-8"))
    parts = [[Touched(each["path"], each["state"], tuple(each["by"])) for each in line["functions"]] for line in lines]
    for line in lines:
        if line.get("automatic") is not None:
            line["automatic"] = tuple(map(tuple, line["automatic"]))
    return [Candidate(**{**line, "functions": tuple(part)}) for line, part in zip(lines, parts)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(CATALOG.targets))
    parser.add_argument("--known", metavar="FILE", type=Path, action="append", default=[])
    parser.add_argument("--run", metavar="N", type=int, default=0, help="ask the laws of so many more bound ones")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True, help="where the candidates are kept")
    parser.add_argument(
        "--bugs", metavar="FILE", type=Path, help="with --since: these verified bugs instead (JSON lines)"
    )
    parser.add_argument("--since", metavar="N", type=int, default=0, help="call what N more change and nobody bound")
    arguments = parser.parse_args()

    def write() -> None:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")

    if arguments.run or arguments.since:
        found = recorded(arguments.bugs) if arguments.bugs else read(arguments.json)
        for n, one in hold(found, arguments.since):
            found[n] = one
            write()
            print(f"{one.target} {one.commit[:12]} {one.subject[:70]}: {one.automatic}", file=sys.stderr, flush=True)
        for n, one in ask(found, arguments.run):
            found[n] = one
            write()
            print(f"{one.target} {one.commit[:12]} {one.subject[:70]}: {one.outcome}", file=sys.stderr, flush=True)
    else:
        targets = arguments.target or [name for name in CATALOG.targets if name != "demo"]
        found = list(mine(targets, arguments.known))
        write()
    for name in dict.fromkeys(one.target for one in found):
        print(name, dict(Counter(one.state for one in found if one.target == name)))
    print(f"all {len(found)}", dict(Counter(one.state for one in found)))
    print("laws", dict(Counter(one.outcome.partition(":")[0] for one in found if one.outcome)))
    tried = [{text.partition(":")[0] for _, text in one.automatic} for one in found if one.automatic is not None]
    print("by the lexicon", len(tried), dict(Counter(next((o for o in OUTCOMES if o in one), "none") for one in tried)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
