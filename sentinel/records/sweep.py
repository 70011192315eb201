"""Compute the verdict of each recipe at many commits. A probe runs only once for all commits in which its files are
equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from itertools import pairwise

from sentinel.deciding.outcomes import Decision
from sentinel.recipes import Recipe
from sentinel.records.basis import Surroundings
from sentinel.records.closure_verdicts import ClosureVerdict, ClosureVerdicts
from sentinel.records.closures import Revision, closure_of
from sentinel.records.executors import Executor, modules_of
from sentinel.records.imports import Imports
from sentinel.sources.commits import Commit, Lineage
from sentinel.sources.gitbinary import MissingObjectError
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target

#: Maps bug id to commit to verdict.
Decided = Mapping[str, Mapping[str, ClosureVerdict]]

#: Called after each probed commit with the number of finished commits, of all commits, and of measured verdicts.
OnCommit = Callable[[int, int, int], None]


class Sweep:
    """Runs recipes over many commits of one target.

    :ivar probed: the number of verdicts that were measured, not taken from the store.
    """

    def __init__(
        self,
        target: Target,
        recipes: Sequence[Recipe],
        entries: Mapping[str, ClosureVerdicts],
        trees: GitTrees,
        surroundings: Surroundings,
        lineage: Lineage,
    ) -> None:
        self._surroundings = surroundings
        self._lineage = lineage
        self._imports = Imports(trees, target.roots)
        self._target = target
        self._recipes = list(recipes)
        self._entries = entries
        self._trees = trees
        self._memo: dict[tuple[str, str, str], str | None] = {}
        self._by_roots: dict[tuple[tuple[str, str], ...], dict[str, ClosureVerdict]] = {}
        self._done: dict[str, dict[str, ClosureVerdict]] = {recipe.bug_id: {} for recipe in recipes}
        self.probed = 0

    def run(
        self, commits: Sequence[Commit], executor: Callable[[], Executor], on_commit: OnCommit | None = None
    ) -> Decided:
        """Compute and return the verdict of each recipe at each commit.

        If an exception (including Ctrl-C) stops the sweep, all verdicts that it has measured are stored.

        :param executor: creates the executor. It is called only if a verdict is not stored.
        :raises GitError: if the mirror is unreadable.
        :raises SentinelError: if the disk is full.
        """
        missing = [commit for commit in commits if self._missing(commit)[1]]
        if missing:
            with closing(executor()) as running:
                self._probe(missing, running, len(commits), on_commit)
        return self._done

    def decide(self, commit: Commit, executor: Executor) -> dict[str, ClosureVerdict]:
        """Return the verdict of each recipe at one commit: bug id -> verdict."""
        revision, missing = self._missing(commit)
        if missing and revision is not None:
            for decision in executor.submit(0, commit.sha, revision.roots, missing).result():
                self._take(decision, commit, revision)
        return {bug: entries[commit.sha] for bug, entries in self._done.items()}

    def _missing(self, commit: Commit) -> tuple[Revision | None, list[Recipe]]:
        """Copy a commit's stored verdicts to the result. Return the revision, and the recipes without a stored verdict.

        If the mirror lacks objects of the commit, store ``unavailable`` for all recipes, and return ``(None, [])``.
        """
        try:
            revision = Revision(self._trees, commit.tree, self._target.roots, self._memo, self._surroundings)
            by_bug = self._by_roots.setdefault(revision.roots, {})
            missing = []
            for recipe in self._recipes:
                entry = by_bug.get(recipe.bug_id)
                if entry is None or not self._lineage.vouches(entry.commit, commit.sha):
                    entry = self._entries[recipe.bug_id].find(revision, commit.sha, self._lineage)
                if entry is None:
                    missing.append(recipe)
                else:
                    by_bug[recipe.bug_id] = self._done[recipe.bug_id][commit.sha] = entry
        except MissingObjectError as error:
            for recipe in self._recipes:
                self._done[recipe.bug_id][commit.sha] = ClosureVerdict(
                    "", "", "unavailable", "ref", str(error), commit.sha
                )
            return None, []
        return revision, missing

    def _probe(self, commits: Sequence[Commit], executor: Executor, total: int, on_commit: OnCommit | None) -> None:
        lanes = _Lanes(commits, executor.lanes)
        running: dict[Future[list[Decision]], tuple[int, Commit, Revision]] = {}
        left = len(commits)
        try:
            for lane in range(executor.lanes):
                left -= self._next(lane, lanes, executor, running)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    lane, commit, revision = running.pop(future)
                    for decision in future.result():
                        self._take(decision, commit, revision)
                    left -= 1 + self._next(lane, lanes, executor, running)
                    if on_commit:
                        on_commit(total - left, total, self.probed)
        finally:
            for future in running:
                future.cancel()

    def _next(
        self,
        lane: int,
        lanes: _Lanes,
        executor: Executor,
        running: dict[Future[list[Decision]], tuple[int, Commit, Revision]],
    ) -> int:
        """Submit a lane's next commit that needs a probe. Return the number of commits that were skipped before it."""
        finished = 0
        for commit in lanes.of(lane):
            revision, missing = self._missing(commit)
            if missing and revision is not None:
                running[executor.submit(lane, commit.sha, revision.roots, missing)] = (lane, commit, revision)
                return finished
            finished += 1
        return finished

    def _take(self, decision: Decision, commit: Commit, revision: Revision) -> None:
        bug = decision.recipe.bug_id
        closure = closure_of(self._questions(decision, commit), self._target.roots)
        entry = ClosureVerdict.of(decision, closure, revision.answers(closure), commit.sha)
        self._entries[bug].add(entry, closure)
        self._done[bug][commit.sha] = entry
        self._by_roots.setdefault(revision.roots, {})[bug] = entry
        self.probed += 1

    def _questions(self, decision: Decision, commit: Commit) -> Iterable[str] | None:
        """Return the file lookups of a probe: the traced ones, and those of imports in the source.

        Return None if no lookups were traced, or if the commit is not on upstream's branch: its code may forge the
        report.
        """
        source = decision.measurement or decision.failure
        if source is None or source.questions is None or not self._lineage.is_own(commit.sha):
            return None
        return {*source.questions, *self._imports.questions(commit.tree, modules_of(self._target, decision.recipe))}


class _Lanes:
    """Distributes commits over lanes in consecutive spans. A lane that has finished takes half of the longest remaining
    span."""

    def __init__(self, commits: Sequence[Commit], lanes: int) -> None:
        self._commits = commits
        ends = [len(commits) * lane // lanes for lane in range(lanes + 1)]
        self._spans = list(pairwise(ends))

    def of(self, lane: int) -> Iterator[Commit]:
        while True:
            start, end = self._spans[lane]
            if start == end:
                start, end = self._take_half()
                if start == end:
                    return
            self._spans[lane] = (start + 1, end)
            yield self._commits[start]

    def _take_half(self) -> tuple[int, int]:
        longest = max(range(len(self._spans)), key=lambda lane: self._spans[lane][1] - self._spans[lane][0])
        start, end = self._spans[longest]
        middle = start + (end - start) // 2
        self._spans[longest] = (start, middle)
        return middle, end
