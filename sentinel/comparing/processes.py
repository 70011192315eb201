"""Start the processes that call both revisions of a boundary, and share them between comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

from sentinel.comparing.observations import AFTER, SIDES
from sentinel.comparing.reached import Code, Place, Reached
from sentinel.comparing.selection import Selection
from sentinel.comparing.sessions import Ended
from sentinel.comparing.units import Unit
from sentinel.deciding.law_session import LawSession, Subject
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.runner import Runner
from sentinel.search.bindings import sighting
from sentinel.targets import Binding
from sentinel.targets.refs import Ref


@dataclass(frozen=True)
class Runs:
    """The definitions that a boundary may use, the names of the functions that ran in its scenarios, and the number of
    these scenarios."""

    reached: Reached
    functions: frozenset[str]
    scenarios: int


@dataclass
class Shared:
    """The parsed code and the processes that several comparisons of one target share.

    If a boundary uses the same code at two revisions, both can share a process. Therefore, most pull requests need no
    process of their own for their base.

    :ivar runs: boundary -> the functions that ran in its scenarios.
    :ivar places: pairs of a git tree and the process that has imported it, the most recently used pair last.
    """

    code: Code
    runs: dict[str, list[Runs]] = field(default_factory=dict)
    places: list[tuple[str, OpenTarget]] = field(default_factory=list)

    def find_alike(self, reached: Reached, binding: Binding) -> OpenTarget | None:
        """Return a running process that has imported the same code for a boundary; None if there is none."""
        for place in self.places[::-1]:
            here = self.code.reached(place[0], binding)
            where = sighting(self.code.definitions, place[0], binding)
            if here is not None and not where.lacks and (here is reached or not here.changed(reached)):
                self.places.remove(place)
                self.places.append(place)
                return place[1]
        return None


class Processes:
    """The worker processes of a comparison, which call the boundaries at the base and at the head."""

    def __init__(self, runner: Runner, refs: Mapping[str, Ref], selection: Selection, shared: Shared | None) -> None:
        self._runner, self.refs, self._selection, self._shared = runner, refs, selection, shared
        self._places: dict[tuple[str, str], OpenTarget] = {}
        self._opening = Lock()

    def open(self, side: str, subject: Subject) -> OpenTarget:
        """Return the process that calls a boundary for one side.

        This may be the process of another revision in which the boundary uses the same code.
        """
        with self._opening:
            return self._open(side, subject)

    def _open(self, side: str, subject: Subject) -> OpenTarget:
        key, target = (side, subject.name), self._selection.target.name
        if key not in self._places:
            self._runner.start([target])
            own = next((each for (other, _), each in self._places.items()
                        if other == side and each.ref == self.refs[side]), None)  # fmt: skip
            reached = self._selection.reached(side, subject)
            binding = self._selection.binding(side, subject)
            alike = self._shared.find_alike(reached, binding) if self._shared and reached else None
            if alike is not None or own is None:
                place = self._runner.open_target(target, alike.ref if alike is not None else self.refs[side], [])
            else:
                place = own
            if self._shared is not None and alike is None and own is None:
                self._shared.places.append((self._selection.trees[side], place))
            if side == AFTER and subject.name in self._selection.moved:
                self._runner.follow(target, place.ref, self._selection.moved[subject.name], subject.contract.name)
            self._places[key] = place
        return self._places[key]

    def session(self, side: str, subject: Subject) -> LawSession:
        """Open a session for one side. If the import of the boundary's modules fails, every call of the session
        raises."""
        place = self.open(side, subject)
        failure = place.load(subject.binding)
        if failure is not None:
            return Ended(failure)
        path = self._selection.binding(side, subject).boundary
        return place.law_session.redirected({} if path == subject.boundary else {subject.boundary: path})

    @property
    def are_open(self) -> bool:
        """Return True if both revisions have a process."""
        return {side for side, _ in self._places} == {*SIDES}

    def sessions(self, subject: Subject) -> dict[str, LawSession]:
        """Open a session for each side. Both sides import the modules in parallel."""
        with ThreadPoolExecutor(2, "sentinel-open") as pool:
            return dict(zip(SIDES, pool.map(lambda side: self.session(side, subject), SIDES)))

    def locate_changes(self, side: str, subject: Subject) -> Mapping[Place, Unit]:
        """Return the changed definitions of one side, as they are in the tree that the boundary's process has imported.

        This may be the tree of another revision, where the same code is at other lines.
        """
        units, place = self._selection.patch.units(side), self.open(side, subject)
        if place.ref == self.refs[side] or self._shared is None:
            return units
        tree = next(tree for tree, each in self._shared.places if each.ref == place.ref)
        reached = self._selection.codes[side].reached(tree, self._selection.binding(side, subject))
        return {key: unit for key, unit in reached.units.items() if key in units} if reached is not None else {}
