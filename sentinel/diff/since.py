"""Finds the commit with which a difference came, by bisection: most commits need no process, their code says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from sentinel.deciding.law_session import SETTINGS, LawSession, Subject, Undecidable
from sentinel.deciding.runner import Runner
from sentinel.diff.comparing import BoundaryDiff, Comparison
from sentinel.diff.pairs import AFTER, BEFORE, BESIDE, SIDES, same_answers
from sentinel.diff.reached import Code, Reached
from sentinel.errors import SentinelError, Unavailable
from sentinel.history import commits
from sentinel.history.bisection import bisect
from sentinel.history.closure_verdicts import ClosureVerdict
from sentinel.history.commits import Commit
from sentinel.history.gittrees import GitTrees
from sentinel.sources import MirrorStore
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

#: What a bisection calls the two sides.
_VERDICTS = {BEFORE: "fixed", AFTER: "reproduced"}


class Since:
    """Asks the history of one comparison. Close it at the end.

    :raises Unavailable: where there is no mirror, or a side is none of its commits.
    """

    def __init__(self, comparison: Comparison, runner: Runner, store: MirrorStore) -> None:
        self._comparison, self._runner = comparison, runner
        self._target = comparison.target
        self._mirror = store.path(self._target.name)
        self.ends = {side: self._end(comparison.checkouts[side]) for side in SIDES}
        self._trees = GitTrees(self._mirror)
        self._code = Code(self._target, self._trees)
        self._commits: list[Commit] = []
        self._kept: dict[tuple[str, str], ClosureVerdict] = {}

    def close(self) -> None:
        self._trees.close()

    def _end(self, checkout: Checkout) -> Commit:
        sha = None if checkout.dirty else checkout.commit
        if checkout.version is not None:
            tags = commits.releases(self._mirror)
            sha = next((tag.commit.sha for tag in tags if tag.name.lstrip("v") == checkout.version), None)
        if sha is None:
            raise Unavailable(f"{checkout.ref} is no commit of the mirror")
        return commits.commit(self._mirror, sha)

    def commit(self, subject: Subject, compared: BoundaryDiff) -> tuple[Commit | None, str]:
        """Give the commit with which a boundary came to differ; or None and why it is not known."""
        decide = self._decider(subject, compared)
        if decide is None:
            return None, "nothing that differs can be asked of the commits between"
        try:
            for earlier in self._commits:  # one commit has changed several boundaries more often than not
                parents = [commits.commit(self._mirror, sha) for sha in earlier.parents[:1]]
                if [decide(each).verdict for each in (earlier, *parents)] == [_VERDICTS[AFTER], _VERDICTS[BEFORE]]:
                    return earlier, ""
            bisection = bisect(self._mirror, self.ends[BEFORE], self.ends[AFTER], decide)
        except SentinelError as error:
            return None, str(error)
        if bisection.first is None:
            return None, f"one of {len(bisection.suspects)} commits; those beside the change could not be decided"
        self._commits.append(bisection.first)
        return bisection.first, ""

    def _decider(self, subject: Subject, compared: BoundaryDiff) -> Callable[[Commit], ClosureVerdict] | None:
        reached = {side: self._comparison.reached(side, subject) for side in SIDES}
        state = self._state(subject, compared)
        if state is None:
            return None

        def decide(commit: Commit) -> ClosureVerdict:
            key = commit.sha, subject.name
            if key not in self._kept:
                side = self._by_code(commit, subject, reached) or self._by_asking(commit, subject, state)
                verdict, why = (_VERDICTS[side], "") if side in SIDES else ("inconclusive", side)
                self._kept[key] = ClosureVerdict("", "", verdict, "law" if why else "", why, commit.sha)
            return self._kept[key]

        return decide

    def _by_code(self, commit: Commit, subject: Subject, reached: Mapping[str, Reached | None]) -> str:
        here = self._code.reached(commit.tree, subject.binding)
        like = (side for side, each in reached.items() if here is not None and each and not here.changed(each))
        return next(like, "")

    def _by_asking(self, commit: Commit, subject: Subject, state: Callable[[LawSession], str]) -> str:
        """Say which side a commit is like; or why that cannot be told."""
        ref = Ref("git", commit.sha)
        try:
            place = self._runner.open_target(self._target.name, ref, [subject.binding])
            with closing(place.law_session.fresh()) as session:
                return state(session)
        except (Undecidable, Unavailable) as error:
            return str(error)
        finally:
            with suppress(SentinelError):
                self._runner.discard(self._target.name, ref)

    def _state(self, subject: Subject, compared: BoundaryDiff) -> Callable[[LawSession], str] | None:
        if compared.differences:
            first = compared.differences[0]

            def by_numbers(session: LawSession) -> str:
                whole = first.symptom == BESIDE or SETTINGS in first.inputs
                beside = self._comparison.beside(subject) if whole else False
                called = session.answers(subject, {"": first.inputs}, beside).answers[""]
                beside_answers = (
                    {key: called.beside.get(key) for key in first.details} if first.symptom == BESIDE else {}
                )
                answer = (
                    called.refused.reason if called.refused is not None else beside_answers or called.observation or {}
                )
                like = [s for s in SIDES if same_answers(subject.contract, first.inputs, first.answers[s], answer)]
                return like[0] if len(like) == 1 else "it answers as neither does"

            return by_numbers
        for side, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
            for broken in compared.broken.get(side, ()):
                law = next(law for law in subject.laws if law.name == broken.law)

                def by_law(session: LawSession) -> str:
                    [trial] = session.try_(subject, [(law, broken.variants)])  # noqa: B023 (the first one returns)
                    if trial.case is None:
                        return trial.refused or trial.silent
                    shown = any(item.symptom == broken.symptom for item in trial.violations)  # noqa: B023
                    return side if shown else other  # noqa: B023

                return by_law
        return None


def with_commits(
    comparison: Comparison, results: list[BoundaryDiff], runner: Runner, store: MirrorStore, tell: Callable[[str], None]
) -> list[BoundaryDiff]:
    """Give what differs, with the commit with which that came, where it can be had."""
    subjects = {subject.name: subject for subject in comparison.subjects}
    if not any(each.state == "differs" for each in results):
        return results
    try:
        since = Since(comparison, runner, store)
    except SentinelError as error:
        return [replace(each, no_commit=str(error)) if each.state == "differs" else each for each in results]
    with closing(since):
        dated = []
        for each in results:
            if each.state == "differs":
                tell(f"looking for the commit that changed {each.name}")
                commit, why = since.commit(subjects[each.name], each)
                each = replace(each, commit=commit, no_commit=why)
            dated.append(each)
        return dated
