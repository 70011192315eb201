"""Compare each open pull request in a mirror with its base, and store the results."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import sentinel
from sentinel.comparing import report
from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import AFTER, BEFORE
from sentinel.comparing.other_files import CommitFiles, list_changed_files
from sentinel.comparing.patch import other_changes
from sentinel.comparing.processes import Shared
from sentinel.comparing.reached import Code, changed_effect, signal_changes
from sentinel.comparing.results import BoundaryDiff
from sentinel.comparing.units import Modules
from sentinel.deciding.runner import Runner
from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.basis import deciding_digest
from sentinel.records.closure_verdicts import ClosureVerdictStore, lines
from sentinel.reports.escaping import message
from sentinel.reports.markdown import escaped
from sentinel.reports.store import file_name
from sentinel.sources import MirrorStore, commits
from sentinel.sources.commits import Commit
from sentinel.sources.gitbinary import run_checked
from sentinel.sources.gitrefs import read_refs, read_shallow
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref

Answer = Literal["introduces", "redefines", "fixes", "changes", "nothing", "cannot be decided"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)

#: The time limit for one pull request in seconds. Boundaries without a result by then are not compared.
_LONGEST = 600.0

#: The maximum number of processes that are kept for the next pull requests. Each process has imported a base revision,
#: which may be the base of the next pull requests too. It uses about 500 MB, most of it shared with other processes.
_PLACES = 6

_PROVEN = "No code that carries training signal differs between the two trees, so nothing was run."

_STOPPED = f"stopped after {_LONGEST:.0f} seconds"

_GRAVEST = ("worse", "better", "other", "beside")

#: The maximum number of findings of one pull request on a page.
_LINES = 4

_PULL = re.compile(r"refs/pull/([1-9][0-9]{0,8})/(head|merge)")


@dataclass(frozen=True)
class Pull:
    """The result of comparing one pull request with its base.

    :ivar head: the head commit.
    :ivar base: the merge base of the head and the branch; empty if unknown.
    :ivar answer: the most serious result. ``introduces``: only the head breaks a law or has a known bug, or a boundary
        can be called at the base but not at the head. ``redefines``: like ``introduces``, but the head deviates only
        from a contract's definition and breaks no other law. ``fixes``: only the base breaks a law or has a known bug.
        ``changes``: numbers differ. ``nothing``: all examined results are equal. ``cannot be decided``: no conclusion.
    :ivar findings: a sentence for each boundary that differs, and lines about code that was not examined; or the reason
        why there is no result.
    :ivar compared: the number of compared boundaries.
    :ivar scenarios: the number of scenarios at all compared boundaries.
    :ivar text: the comparison as Markdown.
    :ivar by: the digest of the recipes, laws, contracts and code of Sentinel that were used; empty if nothing was run.
    """

    number: int
    head: str
    subject: str
    base: str = ""
    answer: Answer = "nothing"
    findings: tuple[str, ...] = ()
    compared: int = 0
    scenarios: int = 0
    seconds: float = 0.0
    text: str = ""
    by: str = ""


def open_heads(mirror: Path, branch: str) -> list[tuple[int, str]]:
    """Return (number, head commit) of each open pull request, the newest first.

    GitHub has ``refs/pull/N/merge`` only for open pull requests. If the mirror has no such refs, each pull request
    whose head is not in the branch counts as open.
    """
    heads: dict[int, str] = {}
    merges: set[int] = set()
    for name, sha in read_refs(mirror).items():
        ref = _PULL.fullmatch(name)
        if ref and ref[2] == "head":
            heads[int(ref[1])] = sha
        elif ref:
            merges.add(int(ref[1]))
    if not merges:
        out = run_checked(mirror, "for-each-ref", f"--no-merged={branch}", "--format=%(refname)", "refs/pull")
        merges = {int(ref[1]) for line in out.decode().split() if (ref := _PULL.fullmatch(line))}
    return sorted(((number, heads[number]) for number in merges if number in heads), reverse=True)


class Radar:
    """Compares the pull requests of one target with their bases. Call :meth:`close` at the end."""

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        target: Target,
        store: MirrorStore,
        recipes: Sequence[Recipe],
        examples: int,
        notify: Callable[[str], None],
    ) -> None:
        self._catalog, self._runner, self._target, self._recipes = catalog, runner, target, recipes
        self._examples, self._notify = examples, notify
        self._mirror = store.path(target.name)
        self._branch = store.resolve(target, target.branch)
        self._trees = GitTrees(self._mirror)
        self._modules = Modules(target.name)
        self._shared = Shared(Code(target, self._trees, self._modules))
        self._code = self._shared.code
        self._store = ClosureVerdictStore(store.home)
        basis = f"{sentinel.__version__} {catalog.adapters[target.name].digest} {examples}"
        name = f"{hashlib.sha256(basis.encode()).hexdigest()[:12]}.jsonl"
        self._file = self._store.folder / file_name(target.name) / "pulls" / name
        self._basis = {"basis": basis}
        self._by = deciding_digest(catalog, target.name, recipes)
        self.answers = {pull.head: pull for pull in self._read_results() if pull.by in ("", self._by)}
        self._bases: dict[str, str | None] = {}

    def close(self) -> None:
        self._trees.close()
        self._modules.save()

    def sort_heads(self, heads: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Sort pull requests by the date of their base, newest first. Those with a stored result come first.

        Pull requests with the same base are then compared one after the other, and can share the base's process.
        """

        def place(head: tuple[int, str]) -> tuple[bool, str]:
            base = None if head[1] in self.answers else self._base(head[1])
            return head[1] in self.answers, commits.commit(self._mirror, base).date if base else ""

        return sorted(heads, key=place, reverse=True)

    def _base(self, head: str) -> str | None:
        if head not in self._bases:
            self._bases[head] = commits.merge_base(self._mirror, self._branch, head)
        return self._bases[head]

    def look(self, number: int, head: str) -> Pull:
        """Compare a pull request with its base. A stored result is returned if the head has not changed.

        :raises SentinelError: if the result cannot be stored.
        """
        pull = self.answers.get(head)
        if pull is None:
            commit = commits.commit(self._mirror, head)
            try:
                pull = self._decide(number, commit, time.monotonic())
            except SentinelError as error:  # not stored, because this machine may be the cause
                return Pull(number, head, commit.subject, "", "cannot be decided", (str(error),))
            self.answers[head] = pull
            # A timeout is not stored, because this machine may be the cause.
            if pull.findings[-1:] != (_STOPPED,):
                self._store.append(self._file, self._basis, asdict(pull))
        return pull

    def _read_results(self) -> Iterator[Pull]:
        for line in lines(self._file):
            with suppress(TypeError):
                pull = Pull(**line)
                if pull.answer in ANSWERS:
                    yield pull

    def _decide(self, number: int, head: Commit, began: float) -> Pull:
        sha = self._base(head.sha)
        if sha is None:
            shallow = ", which is shallow" if read_shallow(self._mirror) else ""
            raise Unavailable(
                f"{head.sha[:9]} and {self._target.branch} have no common history in this mirror{shallow}"
            )
        base = commits.commit(self._mirror, sha)
        if not self._code.files(head.tree):
            roots = ", ".join(root.path for root in self._target.roots)
            raise Unavailable(f"the head has none of the package roots: {roots}")
        if not self.touches(base.tree, head.tree):
            seconds = round(time.monotonic() - began, 2)
            unread, harmless = self._changes_outside_boundaries(base, head)
            answer: Answer = "cannot be decided" if unread else "nothing"
            said = (*(() if unread else (_PROVEN,)), *report.list_others(unread, harmless))
            return Pull(number, head.sha, head.subject, base.sha, answer, said, seconds=seconds)
        return self.compare(number, head, base, began)

    def touches(self, base: str, head: str) -> bool:
        """Return True if a pull request changes signal code, code that a boundary runs, or a file that registers
        functions.

        :param base, head: git trees.
        """
        one, other = self._code.files(base), self._code.files(head)
        changed = {file for file in one.keys() | other.keys() if one.get(file) != other.get(file)}
        if not changed:
            return False
        decorators = [registry.decorator.encode() for registry in self._target.registries]
        for file in changed & other.keys():
            if any(decorator in self._trees.blob(other[file]) for decorator in decorators):
                return True
        for file in changed:
            sides = (self._code, one.get(file)), (self._code, other.get(file))
            if signal_changes(file, *sides) or changed_effect(*sides) is not None:
                return True
        for binding in self._target.bindings:
            before, after = (self._code.reached(tree, binding) for tree in (base, head))
            if (before is None) != (after is None):
                return True
            if before is not None and after is not None and before is not after and before.changed(after):
                return True
        return False

    def _changes_outside_boundaries(self, base: Commit, head: Commit) -> tuple[list[str], list[str]]:
        one, other = self._code.files(base.tree), self._code.files(head.tree)
        changed = sorted(file for file in one.keys() | other.keys() if one.get(file) != other.get(file))
        sides = ((file, (self._code, one.get(file)), (self._code, other.get(file))) for file in changed)
        first, rest = other_changes(sides)
        files = list_changed_files(self._target, *(CommitFiles(self._mirror, each.sha) for each in (base, head)))
        return [*first, *files], rest

    def compare(self, number: int, head: Commit, base: Commit, began: float) -> Pull:
        refs = Ref("git", base.sha), Ref("git", head.sha)
        results: list[BoundaryDiff] = []
        try:
            comparison = Comparison(
                self._catalog,
                self._runner,
                self._target,
                refs,
                self._recipes,
                self._examples,
                notify=lambda line: self._notify(f"pull request {number}: {line}"),
                shared=self._shared,
                trees=(base.tree, head.tree),
                until=began + _LONGEST,
            )
            over = False
            for compared in comparison.run():
                results.append(compared)
                over = time.monotonic() - began > _LONGEST
                if over:
                    break
        finally:
            places = [place for place in self._shared.places if place[1].ref != refs[1]][-_PLACES:]
            for place in self._shared.places:
                if place not in places:
                    self._runner.discard(self._target.name, place[1].ref)
            self._shared.places[:] = places
        results = comparison.settle(results)
        answer = find_gravest(results)
        judged = sorted((item for item in results if item.judgement), key=lambda item: _GRAVEST.index(item.judgement))
        texts = [f"{item.name}: {report.summarise(item)}" for item in judged]
        away = [item for item in results if item.state == "gone"]
        texts += [f"{item.name}: gone{', perhaps to ' * bool(item.renamed)}{', '.join(item.renamed)}" for item in away]
        new = [item for item in results if item.state == "new" and not item.judgement]
        texts += [f"{item.name}: new, {item.reason or 'and breaks no law that was checked'}" for item in new]
        texts += [line.strip() for line in report.list_unexamined(comparison, results, over) if line != "not examined:"]
        if over:
            texts.append(_STOPPED)
            answer = "cannot be decided" if answer == "nothing" else answer
        answered_for = [
            item for item in results if item.state in ("differs", "same numbers", "not examined", "not compared")
        ]
        return Pull(
            number,
            head.sha,
            head.subject,
            base.sha,
            answer,
            tuple(texts),
            len(answered_for),
            sum(item.scenarios for item in answered_for),
            round(time.monotonic() - began, 2),
            report.to_markdown(comparison, results, over),
            self._by,
        )


def find_gravest(results: Sequence[BoundaryDiff]) -> Answer:
    """Return the most serious result of all boundaries (:attr:`Pull.answer` lists the results)."""
    worse = [item for item in results if item.broken.get(AFTER) or item.bugs.get(AFTER) or item.lost]
    if worse:
        return "redefines" if all(item.redefines for item in worse) else "introduces"
    if any(item.broken.get(BEFORE) or item.bugs.get(BEFORE) for item in results):
        return "fixes"
    if any(item.state == "differs" for item in results):
        return "changes"
    head_alone = any(item.state == "gone" or item.failed == AFTER for item in results)
    examined = any(item.state == "same numbers" or (item.state == "new" and item.scenarios) for item in results)
    return "nothing" if examined and not head_alone else "cannot be decided"


def comment(pull: Pull) -> str:
    """Write the result for a pull request as Markdown, to be posted as a comment."""
    lead = "No function that was examined returns different numbers." if pull.answer == "nothing" else ""
    lead = "It cannot be decided whether anything changes." if pull.answer == "cannot be decided" else lead
    text = pull.text or "\n".join(f"* {escaped(line)}" for line in pull.findings)
    return "\n\n".join(filter(None, [lead, text.strip()])) + "\n"


def headline(pulls: Sequence[Pull], total: int) -> str:
    """Return a sentence that states how many pull requests have each result."""
    counts = Counter(pull.answer for pull in pulls)
    texts = ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS if counts[answer])
    return f"{len(pulls)} of {total} open pull request{'' if total == 1 else 's'}: {texts or 'none decided'}"


def brief(pulls: Sequence[Pull], total: int, branch: str) -> dict[str, Any]:
    """Return data for a web page: the counts of results, and the pull requests with a result other than ``nothing``."""
    counts = Counter(pull.answer for pull in pulls)
    about = sorted((pull for pull in pulls if pull.answer != "nothing"), key=lambda pull: ANSWERS.index(pull.answer))
    return {
        "branch": branch,
        "headline": headline(pulls, total),
        "answers": dict(counts),
        "compared": sum(pull.compared > 0 for pull in pulls),
        "rows": [
            {
                "number": pull.number,
                "head": pull.head[:9],
                "subject": message(pull.subject),
                "answer": pull.answer,
                "findings": [message(line) for line in pull.findings[:_LINES]],
            }
            for pull in about
        ],
    }


def markdown(target: str, page: Mapping[str, Any]) -> str:
    """Write the results as Markdown, for the summary of a GitHub job."""
    parts = [f"## Open pull requests of {escaped(target)}", "", f"{escaped(page['headline'])}."]
    if page["rows"]:
        parts += ["", "| pull request | result | findings |", "|" + " --- |" * 3]
    for row in page["rows"]:
        cells = (f"#{row['number']} {row['subject']} ({row['head']})", row["answer"], "; ".join(row["findings"]))
        parts.append(f"| {' | '.join(map(escaped, cells))} |")
    return "\n".join(parts) + "\n"
