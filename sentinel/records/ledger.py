"""Run sweeps of one target over the commits of its git mirror, and store the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sentinel.deciding.setup import options_of
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.basis import basis, surroundings
from sentinel.records.closure_verdicts import ClosureVerdict, ClosureVerdicts, ClosureVerdictStore
from sentinel.records.executors import Executor
from sentinel.records.history import Selection, history_of, save
from sentinel.records.origins import Origin, origin
from sentinel.records.sweep import OnCommit, Sweep
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.sources import commits as git
from sentinel.sources.commits import Commit, Tag
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gitrefs import read_refs, read_shallow
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: Returns the verdict of each recipe at a commit, by bug id.
Decide = Callable[[Commit], dict[str, ClosureVerdict]]


@dataclass(frozen=True)
class Account:
    """The result of a sweep.

    :ivar records: the histories, one for each recipe.
    :ivar probed: the number of verdicts that were measured, not taken from the store.
    """

    records: list[dict[str, Any]]
    probed: int


class Ledger:
    """The git mirror and the stored verdicts of one target.

    :raises Unavailable: if the target has no mirror.
    """

    def __init__(self, catalog: Catalog, settings: Settings, target: Target, store: MirrorStore | None = None) -> None:
        if settings.url_of(target.name):
            raise SentinelError(
                f"histories are recorded for the upstream repository only; leave out --repo-url for {target.name}"
            )
        self.catalog = catalog
        self.settings = settings
        self.target = target
        self.mirrors = store or MirrorStore()
        self.mirror = self.mirrors.path(target.name)
        self.entries = ClosureVerdictStore(self.mirrors.home)
        self.surroundings = surroundings(self.options.python)

    def commit(self, name: str) -> Commit:
        """Return the commit of a branch, tag or hash.

        :raises SentinelError: if the name is not a valid git name.
        :raises Unavailable: if the mirror has no such commit.
        """
        return git.commit(
            self.mirror,
            self.mirrors.resolve(self.target, Ref.parse(name if name.startswith("git:") else f"git:{name}").name),
        )

    def select(self, selection: Selection) -> tuple[Selection, list[Commit], list[Tag]]:
        """Resolve a selection, and return it with its commits and release tags, the oldest first.

        :raises Unavailable: if a ref does not exist.
        :raises NothingExamined: if no commit is selected.
        """
        tags = git.releases(self.mirror)
        head = self.commit(selection.until if selection.until and not git.is_day(selection.until) else selection.ref)
        since = selection.since
        if since and not git.is_day(since):
            since = self.commit(since).sha
        until = selection.until if selection.until and git.is_day(selection.until) else None
        line = git.history(self.mirror, head.sha, since or None, until)
        shallow = read_shallow(self.mirror)
        begins = tuple(commit.sha for commit in line if commit.sha in shallow)
        if selection.walk == "tags":
            line, begins = list({tag.commit.sha: tag.commit for tag in tags}.values()), ()
        if not line:
            span = " ".join(f"--{n} {v}" for n, v in (("since", selection.since), ("until", selection.until)) if v)
            raise NothingExamined(
                f"{self.target.name}: no commit of {selection.ref} is selected by {span or selection.walk}; widen the "
                f"range, or run `sentinel mirror update {self.target.name}`"
            )
        return replace(selection, head=head.sha, begins=begins), line, tags

    def sweep(
        self,
        recipes: Sequence[Recipe],
        selection: Selection,
        lanes: int | None = None,
        on_commit: OnCommit | None = None,
    ) -> Account:
        """Compute the verdict of each recipe at each selected commit. Save and return the histories.

        :param lanes: the number of probes that run at the same time; None for one per core.
        :raises GitError, WorkerError, SentinelError: as :meth:`sentinel.records.sweep.Sweep.run` does.
        """
        source, line, tags = self.select(selection)
        entries = self._entries(recipes)
        every = list({commit.sha: commit for commit in (*line, *(tag.commit for tag in tags))}.values())
        with self.trees() as trees:
            sweep = Sweep(self.target, recipes, entries, trees, self.surroundings, self._lineage())
            decided = sweep.run(every, lambda: self._executor(lanes), on_commit)
            selected, origin_of = (source, line, tags), self._origins(trees)
            documents = (
                history_of(recipe, entries[recipe.bug_id].basis, *selected, decided[recipe.bug_id], origin_of)
                for recipe in recipes
            )
            saved = save(self.entries.folder, documents)
        return Account(saved, sweep.probed)

    @contextmanager
    def decider(self, recipes: Sequence[Recipe]) -> Iterator[Decide]:
        """Provide a function that returns the verdicts at a commit. Workers start only if a verdict is not stored."""
        entries = self._entries(recipes)
        with self.trees() as trees, closing(self._executor(1)) as executor:
            sweep = Sweep(self.target, recipes, entries, trees, self.surroundings, self._lineage())
            yield lambda commit: sweep.decide(commit, executor)

    def _entries(self, recipes: Sequence[Recipe]) -> dict[str, ClosureVerdicts]:
        on = {recipe.bug_id: basis(self.catalog, recipe, self.settings) for recipe in recipes}
        return {bug: ClosureVerdicts(self.entries, self.target.name, bug, of) for bug, of in on.items()}

    def _lineage(self) -> git.Lineage:
        return git.Lineage(self.mirror, read_refs(self.mirror).get(f"refs/heads/{self.target.branch}"))

    def trees(self) -> closing[GitTrees]:
        return closing(GitTrees(self.mirror))

    @property
    def options(self) -> Options:
        """Return the options for worker processes of this target."""
        return replace(options_of(self.settings, self.target.name), trace=True)

    def _executor(self, lanes: int | None) -> Executor:
        folder = self.entries.folder / "copies"
        return Executor(self.catalog, self.target, self.mirror, folder, self.options, lanes)

    def _origins(self, trees: GitTrees) -> Callable[[Commit, ClosureVerdict], Origin | None]:
        def came_from(commit: Commit, entry: ClosureVerdict) -> Origin | None:
            if not commit.parents:
                return None
            try:
                return origin(trees, entry, commit.tree, git.commit(self.mirror, commit.parents[0]).tree)
            except GitError:  # the mirror lacks the parent commit, or one of its files
                return None

        return came_from
