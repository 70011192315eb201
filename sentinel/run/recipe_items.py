"""Recipes as pytest items: one file a collector, one item a ref."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job
from sentinel.errors import RecipeError, SentinelError
from sentinel.recipes import Recipe
from sentinel.run.judging import complaint, expected_unavailable

if TYPE_CHECKING:
    from sentinel.run.session import Run


class SentinelWarning(pytest.PytestWarning):
    """Something in a recipe that is not used."""


class VerdictError(Exception):
    """The verdict is not the one that passes; carries what a failure shows."""

    def __init__(self, decision: Decision, headline: str) -> None:
        super().__init__(headline)
        self.decision = decision
        self.headline = headline


class RecipeFile(pytest.Collector):
    """A recipe file. The recipe itself, where the run has loaded it already, saves loading it twice.

    No ``pytest.File``: ``--lf`` looks for those by their ids below the root folder, where bundled recipes are not.
    """

    run: Run
    recipe: Recipe | None

    @classmethod
    def make(
        cls, parent: pytest.Collector, path: Path, nodeid: str | None, run: Run, recipe: Recipe | None
    ) -> RecipeFile:
        nodeid = nodeid or Path(os.path.relpath(path, parent.config.rootpath)).as_posix()
        file: RecipeFile = cls.from_parent(parent, name=path.name, path=path, nodeid=nodeid)
        file.run, file.recipe = run, recipe
        return file

    def collect(self) -> Iterable[pytest.Item]:
        try:
            recipe = self.recipe or self.run.load(self.path)
            for note in recipe.notes:
                self.warn(SentinelWarning(note))
            for job in self.run.jobs(recipe):
                item: RecipeItem = RecipeItem.from_parent(self, name=job.ref.short)
                item.job, item.run = job, self.run
                item.add_marker(pytest.mark.sentinel)
                item.add_marker(recipe.target)
                item.extra_keyword_matches.add(recipe.bug_id)  # -k: a published blob's file may have any name
                if recipe.invariant:
                    item.add_marker(recipe.invariant)
                yield item
        except (RecipeError, SentinelError) as error:
            raise self.CollectError(str(error)) from None


class RecipeFolder(pytest.Directory):
    """The selected recipes of one folder.

    pytest loads the folder's ``conftest.py``, as for a folder of its own. For files that it is given by their paths it
    would go through their folder once for each, which takes minutes for a thousand.
    """

    files: Sequence[RecipeFile]

    @classmethod
    def make(cls, session: pytest.Session, path: Path, run: Run, recipes: Iterable[Path]) -> RecipeFolder:
        folder: RecipeFolder = cls.from_parent(session, path=path)
        folder.files = [run.collector(recipe, folder) for recipe in recipes]
        return folder

    def collect(self) -> Iterable[RecipeFile]:
        return self.files


class RecipeItem(pytest.Item):
    """The verdict of one recipe at one ref."""

    job: Job
    run: Run
    evidence_file: Path | None = None
    seconds: float = 0.0

    def runtest(self) -> None:
        decision = self.run.decide(self.job)
        self.seconds = self.run.seconds(self.job)
        self.evidence_file = self.run.record(decision)
        headline = complaint(decision, self.run.settings.baseline)
        if headline is not None:
            raise VerdictError(decision, headline)
        if decision.verdict.name == "unavailable" and not expected_unavailable(decision):
            pytest.skip(decision.verdict.reason)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        error = excinfo.value
        if isinstance(error, VerdictError):
            from sentinel.reports.explain import explain

            return f"{error.headline}\n\n{explain(error.decision, self.run.command(self.nodeid))}"
        if isinstance(error, SentinelError):
            return f"sentinel: {error}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        return self.path, 0, f"{self.job.recipe.bug_id} at {self.job.ref.short}"
