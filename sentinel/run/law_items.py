"""Laws as pytest items: one boundary a collector, one item a law and ref. They stand in no file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sentinel.errors import SentinelError
from sentinel.run.judging import complaint
from sentinel.run.recipe_items import VerdictError
from sentinel.search.survey import LawJob
from sentinel.settings import nearest

if TYPE_CHECKING:
    from sentinel.run.session import Run

_ID = re.compile(r"laws/(?P<target>[^/]+)/(?P<boundary>[^:\[]+)(?:::(?P<law>\w+)(?:\[(?P<ref>[^\]]+)\])?)?")


class LawBoundary(pytest.Collector):
    """A boundary, for its laws."""

    run: Run
    jobs: Sequence[LawJob]

    @classmethod
    def make(cls, session: pytest.Session, run: Run, jobs: Sequence[LawJob]) -> LawBoundary:
        first = jobs[0]
        made: LawBoundary = cls.from_parent(
            session, name=first.boundary, nodeid=f"laws/{first.target}/{first.boundary}", path=session.path
        )
        made.run, made.jobs = run, jobs
        return made

    def collect(self) -> Iterable[pytest.Item]:
        for job in self.jobs:
            item: LawItem = LawItem.from_parent(self, name=f"{job.law}[{job.ref.short}]")
            item.job, item.run = job, self.run
            for marker in (pytest.mark.sentinel, job.target, job.law):
                item.add_marker(marker)
            # With --dist=loadgroup, xdist keeps a boundary's laws together: one hunt serves them all.
            item.add_marker(pytest.mark.xdist_group(self.nodeid))
            yield item


class LawItem(pytest.Item):
    """Whether one boundary keeps one law at one ref."""

    job: LawJob
    run: Run
    evidence_file: Path | None = None
    seconds: float = 0.0

    def runtest(self) -> None:
        decision = self.run.decide_law(self.job)
        self.seconds = self.run.seconds(self.job)
        self.evidence_file = self.run.record(decision)
        headline = complaint(decision, self.run.settings.baseline)
        if headline is not None:
            known, told = self.run.known_as(self.job)
            if told:  # one bug, one failure
                pytest.skip(f"{decision.verdict.name}; known, and failed already: {', '.join(known)}")
            raise VerdictError(decision, f"{headline}{' (known: ' + ', '.join(known) + ')' if known else ''}")
        if decision.verdict.name == "unavailable":
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
        return self.path, 0, f"{self.job.boundary} {self.job.law} at {self.job.ref.short}"


class LawId:
    """An item id given as an argument: ``laws/TARGET/BOUNDARY``, with a law and a ref or without."""

    def __init__(self, text: str) -> None:
        found = _ID.fullmatch(text)
        if found is None:
            raise SentinelError(
                f"{text!r} is no id of a law; write laws/TARGET/DOTTED.BOUNDARY::LAW[REF], the last two or the last "
                "one may be left out"
            )
        self.target, self.boundary = found["target"], found["boundary"]
        self.law, self.ref = found["law"], found["ref"]

    def nothing(self, there: Sequence[LawJob], refs: Sequence[str]) -> str:
        """What to say where it selects nothing.

        :param there: the laws of its target, at any ref.
        :param refs: those of this run.
        """
        of_boundary = [job.law for job in there if job.boundary == self.boundary]
        if not of_boundary:
            boundaries = dict.fromkeys(job.boundary for job in there)
            what = f"{self.target} has no boundary {self.boundary!r} to be searched{nearest(self.boundary, boundaries)}"
        elif self.law not in (None, *of_boundary):
            what = f"{self.boundary} has no law {self.law!r} to keep{nearest(str(self.law), of_boundary)}"
        else:
            at = f"{self.ref} is not among the refs of this run ({', '.join(refs)})" if refs else "this run has no ref"
            return f"{at}; say where {self.boundary} is to be searched: --sentinel-ref=git:main, or --sentinel-repo=DIR"
        return f"{what}; `sentinel list boundaries {self.target}` lists boundaries and laws"

    def selects(self, job: LawJob) -> bool:
        return (
            (job.target, job.boundary) == (self.target, self.boundary)
            and self.law in (None, job.law)
            and self.ref in (None, job.ref.short, str(job.ref))
        )
