"""Search many boundaries in turn, and store failing scenarios for the next run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import LawSession, Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Job, Runner
from sentinel.laws.law import Law
from sentinel.recipes import Recipe
from sentinel.search.boundary_search import EXAMPLE_CHOICES, BoundarySearch, Drawn, Finding
from sentinel.search.checks import Omission
from sentinel.search.decisions import stale_dialects
from sentinel.search.known import Others, covers, explain, search_others
from sentinel.targets import Dialect, Target
from sentinel.values.literals import Tensor, plain
from sentinel.worker import protocol

#: Number of scenarios of one boundary before the search continues with the next boundary.
TURN = 20

#: Maximum number of calls for shrinking one finding.
SHRINKING = 1000


class Memory:
    """Failing scenarios of earlier runs, stored in a Hypothesis database below ``SENTINEL_HOME``."""

    def __init__(self, folder: Path) -> None:
        from hypothesis.database import DirectoryBasedExampleDatabase

        self._database = DirectoryBasedExampleDatabase(folder)

    def of(self, target: str, subject: Subject, law: Law) -> list[dict[str, Inputs]]:
        scenarios = []
        for saved in self._database.fetch(_key(target, subject, law)):
            try:
                variants = protocol.decode(saved)
            except protocol.ProtocolError:
                continue
            if isinstance(variants, dict) and all(isinstance(inputs, dict) for inputs in variants.values()):
                scenarios.append(variants)
        return scenarios

    def keep(self, target: str, finding: Finding) -> None:
        key = _key(target, finding.subject, finding.law)
        self._database.save(key, protocol.encode(finding.trial.variants))

    def forget(self, target: str, subject: Subject, law: Law, variants: dict[str, Inputs]) -> None:
        self._database.delete(_key(target, subject, law), protocol.encode(variants))


def _key(target: str, subject: Subject, law: Law) -> bytes:
    return f"{target} {subject.boundary} {subject.contract.name} {law.name}".encode()


class Discovery:
    """A search of several boundaries that the user may interrupt at any time.

    :ivar tried: the number of scenarios so far. With this number as ``--examples``, a run repeats this search.
    :ivar not_searched: the boundaries that could not be called, each with the reason.
    :param laws: selects the laws to check.
    :param memory: failing scenarios of earlier runs, which are tried first. With None, the search depends only on the
        seed.
    :param on_finding: called with each new finding.
    :param report_progress: called with a line about the progress, at most once per ``interval`` seconds.
    """

    def __init__(
        self,
        open_target: OpenTarget,
        subjects: Sequence[Subject],
        laws: Callable[[Law], bool],
        seed: int,
        memory: Memory | None = None,
        on_finding: Callable[[Finding], None] = lambda finding: None,
        report_progress: Callable[[str], None] = lambda line: None,
        interval: float = 0.2,
    ) -> None:
        self._reported, self._interval = 0.0, interval
        self._open_target, self._memory, self._on_finding, self._report_progress = (
            open_target,
            memory,
            on_finding,
            report_progress,
        )
        self.tried, self.stopped = 0, False
        self.findings: list[Finding] = []
        self.not_searched: list[Omission] = []
        pairs = [(subject, [law for law in subject.laws if laws(law)]) for subject in subjects]
        self.searches = [
            BoundarySearch(open_target.law_session, subject, seed, some, SHRINKING) for subject, some in pairs if some
        ]

    @property
    def stale(self) -> list[tuple[Subject, Dialect]]:
        """Return the dialects whose violation never occurred in enough scenarios to which they apply."""
        return [
            (search.subject, dialect)
            for search in self.searches
            for law, outcome in search.outcomes.items()
            for dialect in stale_dialects(search.subject, law, outcome)
        ]

    def run(self, examples: int | None = None, seconds: float | None = None) -> None:
        """Search until the given number of scenarios or seconds is reached, or until the user interrupts."""
        began = time.monotonic()

        def over() -> bool:
            return seconds is not None and time.monotonic() - began >= seconds

        try:
            self._replay()
            going = list(self.searches)
            while going and not over() and (examples is None or self.tried < examples):
                for search in list(going):
                    left = TURN if examples is None else min(TURN, examples - self.tried)
                    if left <= 0 or over():
                        break
                    if not self._search_once(search, left, over, began):
                        going.remove(search)
        except KeyboardInterrupt:
            self.stopped = True
            self._collect()  # of the boundary that was being searched
        for search in [each for each in self.searches if each.undecided]:
            self._drop(search, search.undecided)

    def _drop(self, search: BoundarySearch, reason: str) -> None:
        self.searches.remove(search)
        self.not_searched.append(Omission(search.subject.boundary, "", reason))

    def _search_once(self, search: BoundarySearch, count: int, over: Callable[[], bool], began: float) -> bool:
        """Search one boundary with at most ``count`` scenarios. Return False if it need not be searched again."""
        before = search.tried

        def tick() -> None:
            self.tried += 1
            now = time.monotonic()
            if now - self._reported >= self._interval:
                self._reported = now
                rate = self.tried / max(now - began, 1e-9)
                self._report_progress(
                    f"{self.tried} scenarios ({rate:.0f} a second), findings: {len(self.findings)}; "
                    f"now at {search.subject.boundary}"
                )

        try:
            search.run(count, tick=tick, enough=over)
        except Undecidable as error:
            self._collect()  # findings from before the error
            self._drop(search, str(error))
            return False
        self._collect()
        return search.tried > before

    def _replay(self) -> None:
        if self._memory is None:
            return
        for search in self.searches:
            for law in search.outcomes:
                for variants in self._memory.of(self._open_target.target, search.subject, law):
                    try:
                        if not search.replay([(law, variants)]):
                            self._memory.forget(self._open_target.target, search.subject, law, variants)
                    except Undecidable:
                        break  # the boundary's search will raise the same error, and it is recorded then
        self._collect()

    def _collect(self) -> None:
        reported = {id(finding) for finding in self.findings}
        for search in self.searches:
            for outcome in search.outcomes.values():
                for finding in outcome.findings:
                    if id(finding) not in reported:
                        self.findings.append(finding)
                        if self._memory is not None:
                            self._memory.keep(self._open_target.target, finding)
                        self._on_finding(finding)


def grouped(findings: Sequence[Finding], law_session: LawSession | None = None) -> list[Finding]:
    """Join findings that have the same root cause.

    Two findings with the same symptom are joined in two cases:

    * They break the same law, and one boundary calls the other. The called one's finding lists the caller in ``also``.
    * They are about one boundary, and one scenario breaks both laws. The first lists the second law in ``laws``.

    :param law_session: the session for trying the scenario of one law with another law. With None, findings of
        different laws are not joined.
    """
    roots: list[Finding] = []
    also: dict[int, dict[str, None]] = defaultdict(dict)
    laws: dict[int, dict[str, None]] = defaultdict(dict)
    for finding in findings:
        root = next((item for item in findings if _explains(item, finding)), None)
        # If two boundaries call each other, each finding explains the other, and the first finding is kept.
        if root is None or (_explains(finding, root) and findings.index(finding) < findings.index(root)):
            roots.append(finding)
        else:
            also[id(root)][finding.subject.boundary] = None
    first: list[Finding] = []
    for finding in sorted(roots, key=lambda item: item.subject.laws.index(item.law)):
        same = (item for item in first if law_session is not None and _one_cause(law_session, item, finding))
        cause = next(same, None)
        if cause is None:
            first.append(finding)
        else:
            laws[id(cause)][finding.law.name] = None
    first.sort(key=findings.index)
    return [replace(each, also=tuple(also[id(each)]), laws=tuple(laws[id(each)])) for each in first]


def _one_cause(law_session: LawSession, one: Finding, other: Finding) -> bool:
    same = [(item.subject.boundary, item.subject.contract.name, item.symptom) for item in (one, other)]
    if same[0] != same[1]:
        return False
    return _also_breaks(law_session, one.law, other) or _also_breaks(law_session, other.law, one)


def _also_breaks(law_session: LawSession, law: Law, finding: Finding) -> bool:
    """Return True if ``law`` is also broken by the finding's scenario, with the same symptom."""
    subject, inputs = finding.subject, next(iter(finding.trial.variants.values()))
    for choices in EXAMPLE_CHOICES:
        variants = Drawn(subject, inputs, choices).variants(law)
        if isinstance(variants, str):
            continue
        try:
            [trial] = law_session.try_(subject, [(law, variants)])
        except Undecidable:
            return False
        if any(item.symptom == finding.symptom for item in trial.violations):
            return True
    return False


def _explains(one: Finding, other: Finding) -> bool:
    if one is other or (one.law.name, one.symptom) != (other.law.name, other.symptom):
        return False
    ran = other.trial.answer.functions if other.trial.answer else ()
    return one.subject.boundary != other.subject.boundary and any(path in ran for path in one.subject.binding.paths)


def match_known_bugs(
    runner: Runner,
    target: Target,
    open_target: OpenTarget,
    findings: Sequence[Finding],
    recipes: Sequence[Recipe],
    subjects: Sequence[Subject] = (),
) -> Iterator[Finding]:
    """Yield each finding with the recipes that explain it. Then yield further findings, on scenarios that do not
    trigger the known bugs.

    A recipe explains a finding if it meets all of these conditions: it is about the same law; it is about the finding's
    boundary or a function that this boundary calls; its bug is reproduced at this ref; the scenario triggers the bug;
    and the law holds on scenarios that do not trigger it. A violation on such a scenario is a further finding.

    :param subjects: the boundaries of the search. If a finding lists some of them as callers (``Finding.also``), these
        are searched for violations that the known bug does not explain.
    """
    decided: dict[str, str] = {}

    def verdict(recipe: Recipe) -> str:
        if recipe.bug_id not in decided:
            decided[recipe.bug_id] = runner.decide(Job(recipe, open_target.ref)).verdict.name
        return decided[recipe.bug_id]

    def known(finding: Finding) -> list[Recipe]:
        return [item for item in recipes if is_about(item, finding, target) and verdict(item) == "reproduced"]

    def search(subject: Subject, bugs: Mapping[Law, Sequence[Recipe]]) -> Mapping[Law, Others]:
        with suppress(Undecidable):
            return search_others(open_target.law_session, subject, 0, bugs, SHRINKING)
        return {}

    unknown: list[Finding] = []
    for finding in list(findings):
        known_as, hidden = tuple[str, ...](), ""
        if covers(known(finding), finding):
            callers = [item for item in subjects if item.boundary in finding.also]
            for subject in (finding.subject, *callers):
                names = (finding.law.name, *finding.laws) if subject is finding.subject else (finding.law.name,)
                broken = {law: [finding] for law in subject.laws if law.name in names}
                explained = explain(broken, known, partial(search, subject))
                unknown += [item for _, others in explained.values() for item in others]
                if subject is finding.subject:
                    excused, _ = explained[finding.law]
                    known_as, hidden = () if excused.doubt else excused.bugs, excused.hidden
        yield replace(finding, known_as=known_as, hidden=hidden)
    reported = {(item.subject.name, item.law.name, item.symptom) for item in findings if item.known_as == ()}
    for finding in unknown:
        place = finding.subject.name, finding.law.name, finding.symptom
        if place not in reported:
            reported.add(place)
            yield replace(finding, known_as=())


def is_about(recipe: Recipe, finding: Finding, target: Target) -> bool:
    """Return True if a recipe may describe the bug that a finding shows.

    This is so if the finding came from the recipe's scenario, or if both of these conditions hold:

    * The recipe names one of the finding's laws.
    * The recipe's boundary, under any of its names, is the finding's boundary, the second implementation with which the
      boundary was compared, or a function that ran when the law was broken.

    There are two exceptions. A recipe whose wrong values are all NaN or infinite explains a wrong finite number only in
    its own scenario. If the symptom of the finding is the name of an input, only recipes with a wrong value for this
    name qualify.
    """
    if recipe.target != target.name:
        return False
    if finding.examples[:1] == (recipe.bug_id,):
        return True
    if {finding.law.name, *finding.laws}.isdisjoint(recipe.laws):
        return False
    if finding.symptom == "value" and recipe.bug_id not in finding.examples and _makes_no_wrong_number(recipe):
        return False
    if finding.subject.contract.input(finding.symptom) is not None and finding.symptom not in _wrong_keys(recipe):
        return False
    binding = finding.subject.binding
    ran = finding.trial.answer.functions if finding.trial.answer else ()
    places = {*binding.paths, *(binding.twins if finding.law.twin else ()), *ran}
    bindings = [item for item in target.bindings if item.contract == recipe.contract and recipe.boundary in item.paths]
    return recipe.boundary in places or any(not places.isdisjoint(item.paths) for item in bindings)


def _wrong_keys(recipe: Recipe) -> set[str]:
    right = {key: plain(expected.value) for key, expected in recipe.expected_fixed.items()}
    wrong = {key: plain(expected.value) for key, expected in recipe.expected_unpatched.items()}
    return {key.rpartition(".")[2] for key, value in wrong.items() if value != right.get(key)}


def _makes_no_wrong_number(recipe: Recipe) -> bool:
    wrong = []
    for key, expected in recipe.expected_unpatched.items():
        right = recipe.expected_fixed.get(key)
        try:
            actual, fixed = (_array(side.value) for side in (expected, right or expected))
        except (TypeError, ValueError):  # text, None or a ragged list
            return False
        if right is None or actual.shape != fixed.shape:
            return False
        wrong.append(actual[~np.isclose(actual, fixed, equal_nan=True)])
    return any(map(len, wrong)) and not any(np.isfinite(values).any() for values in wrong)


def _array(value: Any) -> Any:
    array = value.array() if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "bfiu":
        raise TypeError(array.dtype)
    return array.astype(np.float64)
