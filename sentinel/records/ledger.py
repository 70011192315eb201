"""The ledger of one target: its mirror, what was asked for in it, and the records that sweeps of it give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sentinel.deciding.setup import options_of
from sentinel.errors import NothingExamined, SentinelError
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.basis import basis, surroundings
from sentinel.records.closure_verdicts import ClosureVerdict, ClosureVerdicts, ClosureVerdictStore
from sentinel.records.executors import Executor, Local, ProbeResult, Work
from sentinel.records.history import Selection, history_of, keep
from sentinel.records.origins import Origin, origin
from sentinel.records.sweep import Sweep, Told
from sentinel.settings import Settings
from sentinel.sources import MirrorStore
from sentinel.sources import commits as git
from sentinel.sources.commits import Commit, Tag
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gitrefs import read_refs
from sentinel.sources.gittrees import GitTrees
from sentinel.targets import Target
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: Gives the entry of each recipe, by bug id, at a commit.
Decide = Callable[[Commit], dict[str, ClosureVerdict]]


@dataclass(frozen=True)
class Account:
    """What a sweep gave."""

    records: list[dict[str, Any]]
    probed: int


class Ledger:
    """:raises Unavailable: where the target has no mirror."""

    def __init__(self, catalog: Catalog, settings: Settings, target: Target, store: MirrorStore | None = None) -> None:
        if settings.url_of(target.name):
            raise SentinelError(f"histories are kept of upstream alone; leave out the --repo-url of {target.name}")
        self.catalog = catalog
        self.settings = settings
        self.target = target
        self.mirrors = store or MirrorStore()
        self.mirror = self.mirrors.path(target.name)
        self.entries = ClosureVerdictStore(self.mirrors.home)
        self.beside = surroundings(self.options.python)

    def commit(self, name: str) -> Commit:
        """Give the commit that a name stands for.

        :raises SentinelError: where the name is none that git could take; Unavailable: where it is not there.
        """
        return git.commit(
            self.mirror,
            self.mirrors.resolve(self.target, Ref.parse(name if name.startswith("git:") else f"git:{name}").name),
        )

    def select(self, selection: Selection) -> tuple[Selection, list[Commit], list[Tag]]:
        """Give the selection as it turned out, its commits in order, and the tags that stand for releases.

        :raises Unavailable: where a ref is not there.
        :raises SentinelError: where nothing is selected.
        """
        tags = git.releases(self.mirror)
        head = self.commit(selection.until if selection.until and not git.is_day(selection.until) else selection.ref)
        since = selection.since
        if since and not git.is_day(since):
            since = self.commit(since).sha
        until = selection.until if selection.until and git.is_day(selection.until) else None
        line = git.history(self.mirror, head.sha, since or None, until)
        begins = tuple(git.shallow_commits(self.mirror, line))
        if selection.walk == "tags":
            line, begins = list({tag.commit.sha: tag.commit for tag in tags}.values()), ()
        if not line:
            span = " ".join(f"--{n} {v}" for n, v in (("since", selection.since), ("until", selection.until)) if v)
            raise NothingExamined(
                f"{self.target.name}: no commit of {selection.ref} is selected by {span or selection.walk}; name a "
                f"longer span, or fetch what is new: `sentinel mirror update {self.target.name}`"
            )
        return replace(selection, head=head.sha, begins=begins), line, tags

    def sweep(
        self,
        recipes: Sequence[Recipe],
        selection: Selection,
        executor: Callable[[], Executor] | None = None,
        on_commit: Told | None = None,
    ) -> Account:
        """Decide each recipe at each commit, and write the records.

        :raises GitError, WorkerError, SentinelError: as :meth:`sentinel.records.sweep.Sweep.run`.
        """
        source, line, tags = self.select(selection)
        entries = self._entries(recipes)
        every = list({commit.sha: commit for commit in (*line, *(tag.commit for tag in tags))}.values())
        with self.trees() as trees:
            sweep = Sweep(self.target, recipes, entries, trees, self.beside, self._lineage())
            decided = sweep.run(every, executor or self.local, on_commit)
            selected, origin_of = (source, line, tags), self._origins(trees)
            documents = (
                history_of(recipe, entries[recipe.bug_id].basis, *selected, decided[recipe.bug_id], origin_of)
                for recipe in recipes
            )
            written_records = keep(self.entries.folder, documents)
        return Account(written_records, sweep.probed)

    @contextmanager
    def deciding(self, recipes: Sequence[Recipe], executor: Callable[[], Executor]) -> Iterator[Decide]:
        """Give a function that decides each recipe at one commit. Workers start when needed."""
        entries = self._entries(recipes)
        with self.trees() as trees, ExitStack() as stack:
            running: list[Executor] = []

            def submit(lane: int, work: Work) -> Future[tuple[ProbeResult, ...]]:
                if not running:
                    running.append(executor())
                    stack.callback(running[0].close)
                return running[0].submit(lane, work)

            sweep = Sweep(self.target, recipes, entries, trees, self.beside, self._lineage())
            yield lambda commit: sweep.decide(commit, submit)

    def _entries(self, recipes: Sequence[Recipe]) -> dict[str, ClosureVerdicts]:
        """Give what is known of each recipe, by bug id, on what its verdicts rest on here and now."""
        on = {recipe.bug_id: basis(self.catalog, recipe, self.settings) for recipe in recipes}
        return {bug: ClosureVerdicts(self.entries, self.target.name, bug, of) for bug, of in on.items()}

    def _lineage(self) -> git.Lineage:
        return git.Lineage(self.mirror, read_refs(self.mirror).get(f"refs/heads/{self.target.branch}"))

    def trees(self) -> closing[GitTrees]:
        return closing(GitTrees(self.mirror))

    @property
    def options(self) -> Options:
        """How probes of this target run."""
        return replace(options_of(self.settings, self.target.name), trace=True)

    def local(self, lanes: int | None = None) -> Local:
        """Give the executor of this machine's cores."""
        return Local(self.catalog, self.entries.folder / "copies", self.mirrors.path, self.options, lanes)

    def _origins(self, trees: GitTrees) -> Callable[[Commit, ClosureVerdict], Origin | None]:
        def came_from(commit: Commit, entry: ClosureVerdict) -> Origin | None:
            if not commit.parents:
                return None
            try:
                return origin(trees, entry, commit.tree, git.commit(self.mirror, commit.parents[0]).tree)
            except GitError:  # the parent, or a file of it, is not in the mirror
                return None

        return came_from
