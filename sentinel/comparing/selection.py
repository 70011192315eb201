"""Select the boundaries that a change can affect, from the source of both revisions. No code runs."""

from __future__ import annotations

import ast
import copy
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property, lru_cache

from sentinel.comparing.lookups import Lookup, changed_imports, changed_lookups, paths_at_head
from sentinel.comparing.observations import AFTER, BEFORE, OTHER, SIDES
from sentinel.comparing.other_files import Files, files_of, list_changed_files
from sentinel.comparing.patch import Patch, function_in, other_changes
from sentinel.comparing.reached import (
    Code,
    Place,
    Reached,
    Walked,
    changed_effect,
    changed_files,
    names_in,
    signal_changes,
)
from sentinel.comparing.results import BoundaryDiff
from sentinel.comparing.units import Bare, Modules, Unit
from sentinel.contracts.call import CALL
from sentinel.deciding.law_session import Subject
from sentinel.deciding.runner import Runner
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.bindings import ALIKE, CheckoutTrees, Definition, Sighting, sighting
from sentinel.search.checks import matches, subjects
from sentinel.targets import Binding, Target
from sentinel.targets.checkout import Checkout

#: A changed definition: (its place, the definition at the base, the definition at the head).
Change = tuple[Place, Unit | None, Unit | None]

#: Minimum similarity (0 to 1) of two functions that count as nearly the same.
_NEARLY = 0.8

#: Maximum number of callers that are listed for a removed function.
_CALLERS = 3


@dataclass(frozen=True)
class Candidate:
    """A boundary, the changed definitions that it may use, and its result.

    The result's state is empty if the source alone does not determine the result. Both revisions must then be called.
    """

    subject: Subject
    result: BoundaryDiff
    changed: list[Change] = field(default_factory=list)


class Selection:
    """The boundaries of both revisions, and the changed code.

    :ivar boundaries: globs; empty for all boundaries.
    :ivar trees: side -> the git tree if the code is read from a mirror; empty if it is read from a checkout.
    :ivar moved: boundary -> the dotted paths that moved: path in the adapter -> path at the head.
    :ivar left_out: boundary -> why it cannot be compared.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner: Runner,
        target: Target,
        checkouts: Mapping[str, Checkout],
        recipes: Callable[[], Sequence[Recipe]],
        boundaries: Sequence[str] = (),
        code: Code | None = None,
        trees: Mapping[str, str] | None = None,
        unchanged_too: bool = False,
    ) -> None:
        self.catalog, self._runner, self.target, self.checkouts = catalog, runner, target, checkouts
        self._recipes, self.boundaries, self._unchanged_too = recipes, boundaries, unchanged_too
        self.trees = trees or dict.fromkeys(SIDES, "")
        self._modules = Modules(target.name) if code is None else None
        walked: Walked = {}
        self.codes = {
            side: code or Code(target, CheckoutTrees(checkout), self._modules, walked)
            for side, checkout in checkouts.items()
        }
        self._distances: dict[str, Mapping[Place, int]] = {}
        self.moved: dict[str, Mapping[str, str]] = {}
        #: renamed boundary with an unchanged body -> its (file, definition) at the base and at the head
        self._renames: dict[str, tuple[tuple[str, Unit], tuple[str, Unit]]] = {}
        #: the same for renamed boundaries whose bodies are only similar
        self._followed: dict[str, tuple[tuple[str, Unit], tuple[str, Unit]]] = {}
        #: boundary to which a registry key refers at the base -> the key, and the path to which it refers at the head
        self.redirects: dict[str, tuple[Lookup, str]] = {}
        self.left_out: dict[str, str] = {}
        by_name: dict[str, Subject] = {}
        for checkout in checkouts.values():
            found, omitted = subjects(catalog, target.name, boundaries, checkout)
            by_name |= {subject.name: subject for subject in found}
            self.left_out |= {item.boundary: item.reason for item in omitted if not item.law}
        self.subjects = list(by_name.values())

    @cached_property
    def candidates(self) -> dict[str, Candidate]:
        """Return the boundaries of both revisions, by name."""
        one, other = (self.codes[side].files(self.trees[side]) for side in SIDES)
        identical = one == other
        every = self.subjects if identical else [*self.subjects, *self._called_by_bugs()]
        if not identical:
            self._redirect(every)
        found = [self._compare_text(subject, identical) for subject in every]
        if self._modules is not None:
            self._modules.save()
        return {each.subject.name: each for each in found if each is not None}

    def _compare_text(self, subject: Subject, identical: bool) -> Candidate | None:
        """Compare the source that a boundary uses at both revisions; return None if there is nothing to compare."""
        sides = {side: self._sight(side, subject.binding) for side in SIDES}
        if sides[BEFORE].bound and sides[AFTER].definition is None:
            subject = self._follow(subject)
            sides[AFTER] = self._sight(AFTER, subject.binding)
        if subject.name in self.redirects:
            sides[AFTER] = self._sight(AFTER, self.binding(AFTER, subject))
        there = [side for side in SIDES if sides[side].definition is not None and not sides[side].lacks]
        if not there or (not subject.laws and len(there) == 1):
            return None
        result = _describe(subject, sides)
        if subject.name in self.redirects:
            lookup, path = self.redirects[subject.name]
            result = replace(result, lookup=f"{lookup.key} now refers to {path.rpartition('.')[2]}")
        former = sides[BEFORE].definition
        if there == [BEFORE] and former is not None and sides[AFTER].definition is None:
            unread = self._unread(former.file)
            if unread is not None:
                if unread:
                    reason = f"{AFTER}: {former.file} was left out of the checkout: {unread}"
                    result = replace(result, state="not compared", failed=AFTER, reason=reason)
                unit = self.codes[BEFORE].unit_of(former)
                places = [(former.file, ""), *([(former.file, unit.name)] if unit is not None else [])]
                rest: list[Change] = [
                    (each, self._defined(BEFORE, each), self._defined(AFTER, each)) for each in places
                ]
                return Candidate(subject, replace(result, changed=_name_changes(rest)), rest)
        if len(there) == 1:
            definition = sides[AFTER].definition
            if there == [AFTER] and definition is not None and self._replaces_another(definition):
                return None  # its function is compared with the function that it replaces
            result = self._judge_missing(subject, result, sides, there[0])
            new = self._new_code(subject) if result.state == "new" else []
            return Candidate(subject, replace(result, changed=_name_changes(new)), new)
        changed: list[Change] = []
        if not identical:
            one, other = (self.reached(side, subject) for side in SIDES)
            changed = one.changed(other) if one is not None and other is not None else []
            own = [(file, unit.name) for file, unit in self._renames.get(subject.name, ())]
            changed = [item for item in changed if item[0] not in own]
            changed = self._changed_by_redirect(subject, changed)
        if not changed and not self._unchanged_too:
            return Candidate(subject, replace(result, state="same code"))
        return Candidate(subject, replace(result, changed=_name_changes(changed)), changed)

    def _new_code(self, subject: Subject) -> list[Change]:
        """Return the definitions that a new boundary reaches and that are new or changed at the head."""
        reached = self.reached(AFTER, subject)
        units = reached.units if reached is not None else {}
        both = [(place, self._defined(BEFORE, place), unit) for place, unit in units.items()]
        return [(place, one, unit) for place, one, unit in both if one is None or not one.like(unit)]

    # -- registry keys that are bound to another function --

    @cached_property
    def _lookups(self) -> list[Lookup]:
        return changed_lookups(self._changed_files(), self.codes, self.trees)

    def _redirect(self, every: Sequence[Subject]) -> None:
        """Record in :attr:`redirects` the boundaries whose registry key refers to another function at the head."""
        for lookup in self._lookups:
            module = self.target.module_of(lookup.after[0]) if lookup.after is not None else ""
            for subject in every:
                definition = self._find(BEFORE, subject)
                unit = self.codes[BEFORE].unit_of(definition) if definition is not None else None
                if definition is not None and unit is not None:
                    for path in paths_at_head(lookup, (definition.file, unit.name), module):
                        if self.codes[AFTER].definitions.find(self.trees[AFTER], path) is not None:
                            self.redirects[subject.name] = lookup, path

    def _replaces_another(self, definition: Definition) -> bool:
        unit = self.codes[AFTER].unit_of(definition)
        replacing = {lookup.after for lookup, _ in self.redirects.values()}
        replacing |= {(file, unit.name) for _, (file, unit) in self._followed.values()}
        return unit is not None and (definition.file, unit.name) in replacing

    def _changed_by_redirect(self, subject: Subject, changed: list[Change]) -> list[Change]:
        """Add to a boundary's changed definitions those of a changed registry key: its entry, and the function to which
        it refers at the head. Without such a key, return the definitions unchanged."""
        if subject.name not in self.redirects:
            return changed
        lookup, _ = self.redirects[subject.name]
        places = [*(place for place, _, _ in changed), lookup.entry, *filter(None, [lookup.after])]
        both = {place: (self._defined(BEFORE, place), self._defined(AFTER, place)) for place in places}
        return sorted(
            ((place, one, other) for place, (one, other) in both.items()
             if place == lookup.after or one is None or not one.like(other)),
            key=lambda item: item[0],
        )  # fmt: skip

    def _counterparts(self) -> dict[Place, Unit]:
        """Map the place of each new or removed definition to the corresponding definition of the other revision."""
        pairs = ((lookup.after, lookup.before) for lookup, _ in self.redirects.values())
        other = {new: unit for new, old in pairs if new and old and (unit := self._defined(BEFORE, old)) is not None}
        for (old_file, old), (new_file, new) in self._followed.values():
            other |= {(old_file, old.name): new, (new_file, new.name): old}
        return other

    def binding(self, side: str, subject: Subject) -> Binding:
        """Return a boundary's binding for the base or for the head. If a registry key refers to another function at the
        head, the head's binding has the path of that function."""
        if side == BEFORE or subject.name not in self.redirects:
            return subject.binding
        return replace(subject.binding, boundary=self.redirects[subject.name][1], formerly=(), moved={})

    def _unread(self, file: str) -> str | None:
        """Return the reason why a file was left out of the head's checkout.

        Return an empty string if the checkout has the file only as a link, or cannot parse it. In both cases, the
        failing import is reported instead. Return None otherwise.
        """
        omitted = next((item.reason for item in self.checkouts[AFTER].left_out if item.path == file), "")
        code = self.codes[AFTER]
        blob = code.files(self.trees[AFTER]).get(file)
        there = (self.checkouts[AFTER].path / file).is_file()  # true also for links within the checkout
        if not omitted and (not there or (blob is not None and code.parses(blob))):
            return None
        return omitted

    def _judge_missing(
        self, subject: Subject, result: BoundaryDiff, sides: Mapping[str, Sighting], there: str
    ) -> BoundaryDiff:
        """Return the result of a boundary that exists at only one revision: new, gone or not compared.

        :param there: the side that has the boundary.
        """
        units = [
            self.codes[side].unit_of(each.definition) for side, each in sides.items() if each.definition is not None
        ]
        if len(units) == 2 and units[0] is not None and units[0].like(units[1]):
            lacking = OTHER[there]  # the function is unchanged, but another name that the adapter uses is missing
            reason = f"{lacking}: this version has no {sides[lacking].lacks}"
            lost = f"it can no longer be called: {sides[AFTER].lacks} was removed" if lacking == AFTER else ""
            return replace(result, state="not compared", reason=reason, lost=lost)
        if there == AFTER:
            return replace(result, state="new")
        callers = self._callers(subject)
        lost = f"it was removed, but its callers are still there: {', '.join(callers)}" if callers else ""
        alike = tuple(f"{path} ({file}:{unit.span[0]})" for _, path, file, unit in self._alike(subject))
        return replace(result, state="gone", renamed=alike, lost=lost, reason=lost)

    def _sight(self, side: str, binding: Binding) -> Sighting:
        return sighting(self.codes[side].definitions, self.trees[side], binding)

    def _follow(self, subject: Subject) -> Subject:
        """Return the subject with the function's path at the head, if the function was moved or renamed; otherwise
        unchanged.

        To count as moved or renamed, the function must have nearly the same body.
        """
        older = [self.checkouts[BEFORE]]
        lack = self._runner.absence(self.target.name, subject.binding, self.checkouts[AFTER], older)
        if lack is None:
            return subject
        place, moved = lack.place, lack.moved
        if not moved and lack.needed in subject.binding.paths:
            place = self._renamed(subject)
            # A method's path also has its class.
            depth = 1 + sum(part[:1].isupper() for part in lack.needed.split(".")[-2:-1])
            modules = (path.rsplit(".", depth)[0] for path in (lack.needed, place))
            moved = {lack.needed: place, next(modules): next(modules)} if place else {}
        if not moved:
            return subject
        self.moved[subject.name] = moved
        formerly = (*subject.binding.formerly, place)
        return replace(subject, binding=replace(subject.binding, formerly=formerly))

    def _called_by_bugs(self) -> list[Subject]:
        """Return the boundaries of the recipes that use the contract ``call``, which has no laws."""
        adapter = str(self.catalog.adapters[self.target.name].file)
        bound = {subject.name for subject in self.subjects}
        callees = []
        for name in dict.fromkeys(recipe.boundary for recipe in self._recipes() if recipe.contract == CALL.name):
            plain = Binding(name, CALL.name, moved=self.target.moved)
            binding = self.target.binding(name, CALL.name) or plain
            if matches(binding, self.boundaries):
                self.left_out.pop(binding.boundary, None)
                callees.append(Subject(binding, CALL, (), adapter, f"{name}({CALL.name})" if name in bound else name))
        return callees

    # -- what a boundary reaches --

    def reached(self, side: str, subject: Subject) -> Reached | None:
        return self.codes[side].reached(self.trees[side], self.binding(side, subject))

    def changed_functions(self, name: str) -> list[str]:
        """Return the dotted paths of changed functions that a boundary may use."""
        return [
            f"{self.target.module_of(file)}.{path}"
            for (file, path), one, other in self.candidates[name].changed
            if one is not None and other is not None and other.kind == "function"
        ]

    def distance(self, name: str) -> float:
        """Return the length of the shortest chain of calls from a boundary to changed code; 0 if it has changed itself.

        The distance is infinite if following names does not lead to changed code.
        """
        return min(self.distances(name).values(), default=math.inf)

    def distances(self, name: str) -> Mapping[Place, int]:
        """Return the length of the shortest chain of calls from a boundary to each changed definition that it may
        use."""
        if name not in self._distances:
            self._distances[name] = self._measure_distances(self.candidates[name])
        return self._distances[name]

    def _measure_distances(self, candidate: Candidate) -> dict[Place, int]:
        changed = {place for place, _, _ in candidate.changed}
        reached = self.reached(AFTER, candidate.subject)
        if reached is None:
            return dict.fromkeys(changed, 0)
        by_name: dict[str, list[Place]] = {}
        by_decorator: dict[str, list[Place]] = {}
        for place, unit in reached.units.items():
            by_name.setdefault(place[1].rpartition(".")[2], []).append(place)
            for decorator in unit.decorators:
                by_decorator.setdefault(decorator, []).append(place)
        start = self._find(AFTER, candidate.subject)
        level = {place for place in reached.units if start is not None and place[0] == start.file
                 and reached.units[place].span == start.name.span}  # fmt: skip
        distances: dict[Place, int] = {}
        seen: set[Place] = set()
        steps = 0
        call = candidate.subject.binding.call
        called = {*names_in(call)} if call is not None else set()  # the adapter may call other functions too
        while level:
            distances |= dict.fromkeys(level & changed, steps)
            seen |= level
            units = [reached.units[place] for place in level]
            names = {name for unit in units for name in unit.names | unit.attributes} | (set() if steps else called)
            registries = {unit.name for unit in units if unit.kind == "registry"}
            level = {place for name in names for place in by_name.get(name, ())}
            for unit in reached.units.values():
                if registries & unit.names:  # the definition may call every registered function
                    level.update(by_decorator.get(unit.name.rpartition(".")[2], ()))
            level -= seen
            steps += 1
        return distances

    def callers_of(self, names: Collection[str]) -> Iterator[tuple[str, Unit]]:
        """Yield each definition at the head whose code uses one of these names, with its file. Leave out the
        definitions of these names."""
        code, last = self.codes[AFTER], {name.rpartition(".")[2] for name in names}
        for file, blob in code.definitions.sources(self.trees[AFTER]):
            if code.names(blob, last):
                for unit in code.module(blob).units.values():
                    if unit.name not in names and last & (unit.names | unit.attributes):
                        yield file, unit

    def boundary_at(self, file: str, unit: Unit) -> str | None:
        """Return the name of the boundary whose function is this definition of the head; None if there is none."""
        place = f"({file}:{unit.span[0]})"
        found = (name for name, each in self.candidates.items() if each.result.places.get(AFTER, "").endswith(place))
        return next(found, None)

    # -- changed code --

    @cached_property
    def patch(self) -> Patch:
        """Return the changed code: definitions that a boundary may use, and signal functions that no boundary uses."""
        bound = {}
        for place in {place for each in self.candidates.values() for place, _, _ in each.changed}:
            both = self._defined(BEFORE, place), self._defined(AFTER, place)
            if both != (None, None) and (both[0] is None or not both[0].like(both[1])):
                bound[place] = both
        reached = (self.reached(BEFORE, each.subject) for each in self.candidates.values() if each.changed)
        units = (item for each in reached if each is not None for item in each.units.items())
        fields = {name.rpartition(".")[2] for (_, name), unit in units if unit.kind == "field"}
        signal = {} if self.boundaries else self._signal_changes()
        return Patch({**signal, **bound}, bound, fields, self._counterparts())

    @cached_property
    def effects(self) -> list[str]:
        """Return the places (``file:line``) of changed module-level code that may affect functions elsewhere.

        The source does not show which functions such code affects. So if there is any, the source cannot prove that no
        signal code differs.
        """
        places = []
        after = self.codes[AFTER].files(self.trees[AFTER])
        for file, before, now in self._changed_files():
            line = changed_effect(before, now)
            if line is not None:
                places.append(f"{file}:{line}")
            elif self._reorders_registrations(before, now):
                places.append(f"{file}:1")
            elif before[1] is None and file.endswith("/__init__.py") and f"{file[:-12]}.py" in after:
                places.append(f"{file}:1")  # a new package hides the module of the same name
        _ = self.candidates
        compared = [lookup for lookup, _ in self.redirects.values()]
        return places + [each.where for each in self._lookups if each not in compared]

    def _reorders_registrations(self, before: tuple[Code, str | None], now: tuple[Code, str | None]) -> bool:
        """Return True if a file has the same imports in another order and two files register something under the same
        key. The order then decides which of the two entries is used."""
        one, other = (code.at_import(blob).imports for code, blob in (before, now))
        return one != other and sorted(one) == sorted(other) and self._registers_twice

    @cached_property
    def _registers_twice(self) -> bool:
        code, keys = self.codes[AFTER], Counter[tuple[str, str]]()
        for _, blob in code.definitions.sources(self.trees[AFTER]):
            keys.update(
                {(each.registry, each.key) for each in code.at_import(blob).registrations if each.unit != each.registry}
            )
        return any(count > 1 for count in keys.values())

    def proves_equality(self) -> bool:
        """Return True if the source of both revisions proves that no signal code differs."""
        return not self.patch.count and not self.effects and not self.unread

    @property
    def unread(self) -> list[str]:
        """Return further changes that may affect training: of definitions that no boundary uses, and of files outside
        the packages."""
        return [*self._others[0], *self.changed_files]

    @property
    def harmless(self) -> list[str]:
        """Return the changed functions without training signal that no boundary uses, as ``file:line name``."""
        return self._others[1]

    @cached_property
    def _others(self) -> tuple[list[str], list[str]]:
        if self.boundaries:
            return [], []
        entries = {lookup.entry for lookup in self._lookups}  # these are compared or listed in `effects`
        known = self.patch.places | self._new_or_gone | entries
        first, second = other_changes(self._changed_files(), known)
        called = [reached for each in self.candidates.values() if each.changed
                  and (reached := self.reached(AFTER, each.subject)) is not None]  # fmt: skip
        for place, text in changed_imports(self._changed_files(), self.codes, self.trees):
            unit = self._defined(AFTER, place)
            if unit is not None and place not in known and not any(place in each.units for each in called):
                first.append(f"{place[0]}:{unit.span[0]} {place[1]} ({text})")
        return first, second

    @cached_property
    def _files(self) -> tuple[Files, Files]:
        return files_of(self.checkouts[BEFORE]), files_of(self.checkouts[AFTER])

    @property
    def whole(self) -> bool:
        """Return True if files outside the packages are compared too; False if one of the revisions is a release."""
        return all(side.whole for side in self._files)

    @cached_property
    def changed_files(self) -> list[str]:
        """Return the paths of changed settings, scripts and other files outside the packages
        (:func:`list_changed_files`)."""
        return [] if self.boundaries else list_changed_files(self.target, *self._files)

    def _changed_files(self) -> Iterator[tuple[str, tuple[Code, str | None], tuple[Code, str | None]]]:
        before, after = ((self.codes[side], self.trees[side]) for side in SIDES)
        return changed_files(before, after)

    def _signal_changes(self) -> dict[Place, tuple[Unit | None, Unit | None]]:
        """Return the signal functions that differ, by place. New, removed and renamed boundaries are left out."""
        changes: dict[Place, tuple[Unit | None, Unit | None]] = {}
        for file, before, after in self._changed_files():
            changes |= signal_changes(file, before, after)
        return {place: both for place, both in changes.items() if place not in self._new_or_gone}

    @cached_property
    def _new_or_gone(self) -> set[Place]:
        """Return the places of definitions whose boundary was renamed or exists at only one revision."""
        places = {(file, unit.name) for pair in self._renames.values() for file, unit in pair}
        for each in self.candidates.values():
            for side in SIDES if each.result.state in ("new", "gone") else ():
                for path in each.subject.binding.paths:
                    definition = self.codes[side].definitions.find(self.trees[side], path)
                    unit = self.codes[side].unit_of(definition) if definition is not None else None
                    if definition is not None and unit is not None:
                        places.add((definition.file, unit.name))
        return places

    def _defined(self, side: str, place: Place) -> Unit | None:
        return self.codes[side].unit(self.trees[side], place)

    def _find(self, side: str, subject: Subject) -> Definition | None:
        definitions, tree = self.codes[side].definitions, self.trees[side]
        return next(filter(None, (definitions.find(tree, path) for path in self.binding(side, subject).paths)), None)

    def _callers(self, subject: Subject) -> list[str]:
        name = subject.boundary.rpartition(".")[2]
        later = dict(self.codes[AFTER].definitions.sources(self.trees[AFTER]))
        callers = []
        for file, path in self._users(subject):
            unit = self.codes[AFTER].module(later[file]).units.get(path) if file in later else None
            if unit is not None and unit.kind == "function" and name in unit.names | unit.attributes:
                callers.append(f"{self.target.module_of(file)}.{path}")
        return callers[:_CALLERS]

    def _users(self, subject: Subject) -> Iterator[Place]:
        """Yield the definitions at the base whose code contains a boundary's name, except the boundary itself."""
        code, definition = self.codes[BEFORE], self._find(BEFORE, subject)
        name = subject.boundary.rpartition(".")[2]
        for file, blob in sorted(code.definitions.sources(self.trees[BEFORE])):
            for path, unit in code.module(blob).units.items() if code.names(blob, [name]) else ():
                itself = definition is not None and definition.place == (blob, unit.span)
                if name in unit.names | unit.attributes and not itself:
                    yield file, path

    def _renamed(self, subject: Subject) -> str:
        """Return the new dotted path of a boundary that was renamed; empty if there is none. Record both definitions.

        The new name is that of the new function with the most similar body. If this body is not nearly the same, or if
        several bodies are equally similar, code that used the old name at the base must use the new name at the head.
        """
        definition = self._find(BEFORE, subject)
        old = self.codes[BEFORE].unit_of(definition) if definition is not None else None
        alike = sorted(self._alike(subject), key=lambda each: -each[0])
        if definition is None or old is None or not alike:
            return ""
        first = [each for each in alike if each[0] == alike[0][0]]
        called = [each for each in alike if self._is_called_now(subject, each[3].name)]
        chosen = first if len(first) == 1 and first[0][0] >= _NEARLY else called[:1]
        if not chosen:
            return ""
        [(similarity, path, file, unit)] = chosen
        pair = (definition.file, old), (file, unit)
        if similarity == 1:
            self._renames[subject.name] = pair
        else:
            self._followed[subject.name] = pair
        return path

    def _is_called_now(self, subject: Subject, name: str) -> bool:
        """Return True if a definition that used the boundary's name at the base uses ``name`` at the head."""
        last = name.rpartition(".")[2]
        units = (self._defined(AFTER, place) for place in self._users(subject))
        return any(unit is not None and last in unit.names | unit.attributes for unit in units)

    def _alike(self, subject: Subject) -> Iterator[tuple[float, str, str, Unit]]:
        """Yield the new functions whose code is similar to that of a removed boundary. One of them may be its new name.

        Each item is the similarity (0 to 1), the dotted path, the file and the definition.
        """
        own, other = self.codes[BEFORE], self.codes[AFTER]
        definition = self._find(BEFORE, subject)
        unit = self.codes[BEFORE].unit_of(definition) if definition is not None else None
        if unit is None:
            return
        before = dict(own.definitions.sources(self.trees[BEFORE]))
        sought = _tokens(unit)
        for file, blob in sorted(other.definitions.sources(self.trees[AFTER])):
            if before.get(file) == blob:
                continue
            units_before = own.module(before[file]).units if file in before else {}
            for name, each in other.module(blob).units.items():
                if each.kind != "function" or name in units_before:
                    continue
                matcher = SequenceMatcher(None, sought, _tokens(each), autojunk=False)
                if matcher.real_quick_ratio() >= ALIKE <= matcher.quick_ratio() and matcher.ratio() >= ALIKE:
                    yield matcher.ratio(), f"{self.target.module_of(file)}.{name}", file, each


@lru_cache(maxsize=1024)  # cached, because each new function is compared with each removed one
def _tokens(unit: Unit) -> list[str]:
    """Split the source of a function into words and symbols, without its name, annotations, docstring and comments."""
    parsed = function_in(unit)
    text = ast.unparse(Bare().visit(copy.deepcopy(parsed[0]))) if parsed is not None else unit.text
    own = unit.name.rpartition(".")[2]
    return ["" if each == own else each for each in re.findall(r"\w+|\S", text)]


def _describe(subject: Subject, sides: Mapping[str, Sighting]) -> BoundaryDiff:
    definitions = {side: where.definition for side, where in sides.items() if where.definition is not None}
    parameters = {side: tuple(sorted(each.name.parameters)) for side, each in definitions.items()}
    return BoundaryDiff(
        subject.name,
        subject.contract.name,
        "",
        places={side: f"{each.path} ({each.file}:{each.name.span[0]})" for side, each in definitions.items()},
        parameters=parameters if len(set(parameters.values())) > 1 else {},
    )


def _name_changes(changed: Sequence[Change]) -> tuple[str, ...]:
    """Format each changed definition as ``file:line name``. The line is the head's, or the base's if the head lacks
    it."""
    texts = []
    for (file, name), one, other in changed:
        unit = other or one
        assert unit is not None
        word = "" if one and other else " (new)" if other else " (gone)"
        texts.append(f"{file}:{unit.span[0]} {name or 'the module'}{word}")
    return tuple(texts)
