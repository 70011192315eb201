"""Measure how many bugs without a recipe Sentinel would find: `python benchmarks/unseen.py`.

1. Without `--bugs`, count commits that may fix a bug, by the state of the functions that they change: bound, not bound,
or outside the inventory (docs/coverage.md). If a commit changes several functions, the best state counts. Candidates
are first-parent commits of the targets' branches. Their subject mentions a mistake, they change a function, and neither
a recipe nor a line of `--known FILE` names the commit or its pull request. A candidate is not a verified bug: its
subject may refer to a crash.
2. With `--bugs FILE` (JSON lines: id, target, parent, fix, boundary), compare the parent with the fix (`sentinel diff`)
in every bound function that reaches changed code, with recipes off. Each bug in the list was measured at both revisions
before any law was tried. A bug is found if the oracle or another law is broken at the parent and holds at the fix, or
if the numbers differ. Laws that hold at the parent and are broken at the fix are listed too.
3. With `--draw SEED`, print candidates for the gate's new fixes (benchmarks/new_fixes.jsonl) in random order. The rule
was written before any result was seen. A candidate is a first-parent commit of a main branch. Its subject matches
SPEAKS or ALSO, and not ASIDE; it changes a signal function of the inventory that exists on both sides; and no recipe,
adapter or line of `--known FILE` names it. (Give each earlier benchmarks/*.jsonl and each corpus as FILE.) A person
reads the candidates in this order, and decides from the diff alone, before Sentinel runs, whether each is a fix. A
commit is a fix if the parent, without raising an exception, computes a wrong value that a run samples, trains on, or
reports about its training (loss, KL, rewards, gradients), and if the commit corrects this value in a signal function.
No fix is dropped because Sentinel cannot examine it.
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
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import AFTER, BEFORE
from sentinel.comparing.results import BoundaryDiff
from sentinel.deciding.runner import Runner
from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.bindings import Definitions, span_of, syntax_of
from sentinel.search.coverage import coverage_of
from sentinel.search.inventory import STATES, Function, Source, signal_functions
from sentinel.sources import MirrorStore, commits, open_checkout
from sentinel.sources.gitbinary import LargeObjectError
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

CATALOG = bundled_catalog()
ADAPTERS = Path(__file__).resolve().parent.parent / "adapters"

SPEAKS = re.compile(
    r"\b(fix(e[sd]|ing)?|bug(s|fix)?|wrong(ly)?|incorrect(ly)?|mis(match|count|align)\w*|broken)\b", re.I
)
#: Further words of subjects that describe a mistake, for `--draw`.
ALSO = re.compile(
    r"\b(missing|miss(es|ed)|ignor(e[sd]?|ing)|silent(ly)?|forg[eo]t\w*|lost|drop(s|ped)|leak\w*|inconsisten\w*|stale"
    r"|off[- ]by[- ]one|double[- ]\w+|should|invalid|correct(s|ed|ly|ness)?)\b",
    re.I,
)
#: Words in a subject that are not about training.
ASIDE = re.compile(
    r"\b(revert|docs?|readme|typos?|ci|lint|format(ting)?|pre-commit|tests?|docker\w*|install\w*)\b", re.I
)

#: Kind of code -> pattern for the dotted path of the function with the bug. The first matching pattern counts.
PLACES = {
    "rewards and graders": r"reward|extract_utils|score",
    "rollouts, agents, requests to engines": (
        r"agent|rollout|generator|inference|vllm|sglang|client|remote|server|tinker|io_struct|scheduler"
    ),
    "data sets, loaders, templates": (
        r"dataset|dataloader|\.data\.|data_api|chat_template|function_executor|dist_rollout"
    ),
    "metrics": r"metric|stats",
    "workers, engines and models' steps": (
        r"workers?\b|engine|strategy|megatron|models?\b|model_wrapper|losses|base_worker|actor_worker|sft"
    ),
    "the trainer's step": r"trainer",
    "other": "",
}

#: Number of scenarios for each boundary.
EXAMPLES = 25


@dataclass(frozen=True)
class Touched:
    path: str
    state: str


@dataclass(frozen=True)
class Candidate:
    """A commit that may fix a bug.

    :ivar state: the best state among the functions that it changes.
    """

    target: str
    commit: str
    parent: str
    date: str
    subject: str
    functions: tuple[Touched, ...]

    @property
    def state(self) -> str:
        states = {function.state for function in self.functions}
        return next((state for state in STATES if state in states), "outside the inventory")


class Known:
    """The commits and pull requests of a target that are named by recipes, by its adapter or in ``records``."""

    def __init__(self, target: str, records: list[Path]) -> None:
        files = [file for folder in CATALOG.recipe_folders for file in (folder / target).rglob("*.yaml")]
        files += [*ADAPTERS.glob(f"{target}.py"), *ADAPTERS.glob(f"{target}/**/*.py")]
        texts = [file.read_text(encoding="utf-8") for file in files]
        for record in records:
            texts += [line for line in record.read_text(encoding="utf-8").splitlines() if f'"{target}"' in line]
        text = "\n".join(texts)
        self.shas = set(re.findall(r"\b[0-9a-f]{7,40}\b", text))
        self.pulls = {int(number) for number in re.findall(r"(?:#|pull[\"']?: ?|pull/)(\d+)", text)}

    def __contains__(self, commit: commits.Commit) -> bool:
        return commit.pull in self.pulls or any(commit.sha.startswith(sha) for sha in self.shas)


class Miner:
    """Finds commits of one target that may fix a bug."""

    def __init__(self, target: Target, store: MirrorStore) -> None:
        self.target, self.mirror = target, store.path(target.name)
        self.head = store.resolve(target, target.branch)
        self.trees = GitTrees(self.mirror)
        self.definitions = Definitions(self.trees, target.roots)
        self.texts = lru_cache(maxsize=256)(self._texts)

    def pairs(self, known: Known, *patterns: re.Pattern[str]) -> Iterator[tuple[commits.Commit, commits.Commit]]:
        """Yield (parent, commit) for each commit that is not in ``known`` and whose subject matches one of the
        patterns, but not ASIDE."""
        for parent, commit in pairwise(commits.history(self.mirror, self.head)):
            speaks = any(pattern.search(commit.subject) for pattern in patterns)
            if speaks and not ASIDE.search(commit.subject) and commit not in known:
                yield parent, commit

    def candidate(self, parent: commits.Commit, commit: commits.Commit) -> Candidate | None:
        """Return the candidate; None if the commit changes no source file that exists before and after it."""
        old, new = (dict(self.definitions.sources(one.tree)) for one in (parent, commit))
        changed = [(file, old[file], new[file]) for file in old if new.get(file, old[file]) != old[file]]
        where = self.target.name, commit.sha, parent.sha, commit.date[:10], commit.subject
        return Candidate(*where, tuple(self.touched(parent.tree, changed))) if changed else None

    def touched(self, tree: str, changed: Sequence[tuple[str, str, str]]) -> Iterator[Touched]:
        """Yield the functions of the inventory whose code has changed.

        :param tree: the parent's tree.
        :param changed: (file, blob at the parent, blob at the commit).
        """
        sources = {}
        for file, old, new in changed:
            now = {function.name: text for function, text in self.texts(file, new)}
            found = [function for function, text in self.texts(file, old) if now.get(function.name, text) != text]
            sources[file] = Source(functions=tuple(found))
        if any(source.functions for source in sources.values()):
            for one in coverage_of(self.target, self.definitions, tree, sources).functions:
                yield Touched(one.path, one.state)

    def _texts(self, file: str, blob: str) -> list[tuple[Function, str]]:
        """Return the signal functions of a file, each with a dump of its code without comments and docstrings."""
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


def mine(targets: Sequence[str], records: list[Path]) -> Iterator[Candidate]:
    for name in targets:
        try:
            miner = Miner(CATALOG.targets[name], MirrorStore())
        except Unavailable as error:
            print(error.reason, file=sys.stderr)
            continue
        for pair in miner.pairs(Known(name, records), SPEAKS):
            one = miner.candidate(*pair)
            if one is not None:
                print(f"{name} {one.commit[:12]} {one.state}: {one.subject[:90]}", file=sys.stderr, flush=True)
                yield one


def draw(targets: Sequence[str], records: list[Path], seed: str) -> Iterator[Candidate]:
    """Yield commits that change a signal function and whose subject describes a mistake, in random order."""
    miners = {name: Miner(CATALOG.targets[name], MirrorStore()) for name in targets}
    drawn = [(name, *pair) for name in targets for pair in miners[name].pairs(Known(name, records), SPEAKS, ALSO)]
    random.Random(f"new fixes {seed}").shuffle(drawn)
    for name, parent, commit in drawn:
        one = miners[name].candidate(parent, commit)
        if one is not None and one.functions:
            yield one


@dataclass(frozen=True)
class Bug:
    id: str
    target: str
    parent: str
    fix: str
    boundary: str


@dataclass(frozen=True)
class Seen:
    """The result for one bug.

    :ivar by: "oracle", "law" or "numbers"; empty if the bug is missed.
    :ivar how: the law and the function that show the bug, or why it is missed.
    :ivar brought: laws that hold at the parent and are broken at the fix, each with its function.
    :ivar compared: the compared functions, each with its state.
    """

    bug: Bug
    by: str
    how: str
    brought: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()


def bugs_of(files: Sequence[Path]) -> list[Bug]:
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [Bug(*(line[name] for name in ("id", "target", "parent", "fix", "boundary"))) for line in lines]


def seen(runner: Runner, target: Target, bug: Bug) -> Seen:
    refs = Ref("git", bug.parent), Ref("git", bug.fix)
    found: list[BoundaryDiff] = []
    refused = ""
    try:
        for one in Comparison(CATALOG, runner, target, refs, examples=EXAMPLES).run():
            found.append(one)
    except SentinelError as error:
        refused = str(error)
    laws = [
        (CATALOG.laws[each.law].rank, each.law, one.name)
        for one in found
        for each in one.broken.get(BEFORE, ())
        if each.law in CATALOG.laws  # without programming errors that raise, because users notice them
    ]
    brought = tuple(f"{each.law} at {one.name}" for one in found for each in one.broken.get(AFTER, ()))
    asked = [one for one in found if one.state != "same code"]
    states = tuple(f"{one.name}: {one.state}{f' ({one.reason})' if one.reason else ''}" for one in asked)
    if laws:
        rank, law, name = min(laws)
        return Seen(bug, "oracle" if rank == 1 else "law", f"{law} at {name}", brought, states)
    differ = [one.name for one in found if one.state == "differs"]
    if differ:
        return Seen(bug, "numbers", f"numbers of {differ[0]}", brought, states)
    return Seen(bug, "", refused or "; ".join(states) or "nothing bound reaches it", brought, states)


def places(told: Sequence[Seen]) -> Iterator[str]:
    """Yield a line for each kind of code: its number of bugs, how many are found, and how the functions are reached."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in PLACES}
    for one in told:
        name = next(name for name, pattern in PLACES.items() if re.search(pattern, one.bug.boundary))
        own = any(each.startswith(one.bug.boundary) for each in one.compared)
        how = "bound itself" if own else "others reach it" if one.compared else "nothing bound reaches it"
        counts[name].update(["bugs", how, *(["seen"] if one.by else [])])
    headings = ("bugs", "seen", "nothing bound reaches it", "others reach it", "bound itself")
    for name, found in counts.items():
        yield f"{name}: " + ", ".join(f"{heading} {found[heading]}" for heading in headings)


def look(bugs: Sequence[Bug], file: Path) -> list[Seen]:
    """Examine each bug, unless the file has its result already; append results to the file and return all."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    told = [Seen(**{**line, "bug": Bug(**line["bug"])}) for line in known]
    there = {one.bug for one in told}
    for bug in bugs:
        if bug in there:
            continue
        # Each bug gets new processes, so that bugs cannot affect each other.
        runner = Runner(CATALOG, lambda target, ref, pull: open_checkout(target, ref, pull=pull), Options(timeout=10))
        try:
            told.append(seen(runner, CATALOG.targets[bug.target], bug))
        finally:
            runner.close()
        file.write_text(json.dumps([asdict(one) for one in told], indent=1) + "\n", encoding="utf-8")
        print(f"{bug.id}: {told[-1].by or 'missed'}: {told[-1].how}", file=sys.stderr, flush=True)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(CATALOG.targets))
    parser.add_argument("--known", metavar="FILE", type=Path, action="append", default=[])
    parser.add_argument("--json", metavar="FILE", type=Path, help="file for the results")
    parser.add_argument("--bugs", metavar="FILE", type=Path, action="append", help="verified bugs (JSON lines)")
    parser.add_argument("--draw", metavar="SEED", help="print candidates for the gate's new fixes in random order")
    arguments = parser.parse_args()
    targets = arguments.target or [name for name in CATALOG.targets if name != "demo"]
    if arguments.draw:
        for candidate in draw(targets, arguments.known, arguments.draw):
            print(json.dumps(asdict(candidate)), flush=True)
        return 0
    if arguments.json is None:
        parser.error("--json FILE is needed")
    if arguments.bugs:
        bugs = [bug for bug in bugs_of(arguments.bugs) if not arguments.target or bug.target in arguments.target]
        told = look(bugs, arguments.json)
        for name in [*dict.fromkeys(one.bug.target for one in told), ""]:
            counts = Counter(one.by or "missed" for one in told if name in ("", one.bug.target))
            print(f"{name or 'all'}: {counts.total()} bugs; " + ", ".join(f"{by}: {n}" for by, n in counts.items()))
        print("\n".join(places(told)))
        for one in told:
            print(f"{one.bug.id}: {one.by or 'missed'}: {one.how}")
            for law in one.brought:
                print(f"    the fix breaks {law}")
        return 0
    found = list(mine(targets, arguments.known))
    arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
    for name in dict.fromkeys(one.target for one in found):
        print(name, dict(Counter(one.state for one in found if one.target == name)))
    print(f"all {len(found)}", dict(Counter(one.state for one in found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
