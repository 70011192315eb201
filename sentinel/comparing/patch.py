"""Find the statements that differ between two revisions, and record which of them ran.

Equal results prove something about a changed statement only if it ran: an added statement at the head, a deleted
statement at the base. Functions are compared statement by statement. Any other definition, such as a value, a class or
a field, counts as one statement, which runs when its module is imported.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from sentinel.comparing.observations import AFTER, BEFORE, SIDES
from sentinel.comparing.reached import Code, Place, changed_effect, changes_of
from sentinel.comparing.units import Bare, Unit
from sentinel.search.bindings import syntax_of
from sentinel.search.guards import cut, function_of
from sentinel.search.inventory import names_signal

#: Fields of a syntax node that contain statements.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_SILENT = (ast.Pass, ast.Global, ast.Nonlocal, ast.Try)  # statements that cause no line event or have no effect

#: Maximum number of boundaries that get a full search for the changed lines of one function. It is ``_SEARCHES`` for
#: boundaries whose scenarios ran such a line. For other boundaries, it is 1 if an earlier full search ran such a line,
#: and ``_ATTEMPTS`` if none did.
_SEARCHES, _ATTEMPTS = 3, 2

#: First line, first column, last line, last column.
Span = tuple[int, int, int, int]

#: Reasons why a line that ran is not fully examined.
PART = "a part of the line may not have run"
DEFAULT = "a default in the line may not have been used"
VALUE = "it cannot be observed whether a value outside of functions is used"
HIDDEN = "it may hide a field of a base class"
ORDER = "the order of its parameters has changed, and callers may pass them by position"
MACHINE = "it depends on the machine, the process or the time"
MOVED = "it moved past lines that did not run"
PARTS = (PART, DEFAULT, VALUE, HIDDEN, ORDER, MACHINE, MOVED)

#: Reason why a line that ran is not examined.
NO_EFFECT = "it ran, but no compared result depends on it"

#: A changed statement: file, function, side, first and last line.
Key = tuple[str, str, str, int, int]

#: A changed statement: the items of :data:`Key`, whether a boundary reaches the function, why the statement does not
#: count as examined, and whether it does.
Line = tuple[str, str, str, int, int, bool, str, bool]


def describe_share(ran: int, count: int, elsewhere: Sequence[str]) -> str:
    """Return a sentence about changed lines that only other boundaries examined; empty if there are none.

    :param ran: the number of changed statements that the boundary's own scenarios examined.
    :param count: the number of changed statements that the boundary reaches.
    :param elsewhere: the other boundaries whose scenarios examined the rest.
    """
    if ran == count:
        return ""
    share, rest = f"its scenarios examined {ran} of {count} changed lines", "the others"
    if not ran:
        share, rest = "its scenarios did not examine the changed lines", "they"
    return f"{share}; {rest} were examined in scenarios of {', '.join(elsewhere)}" if elsewhere else share


def merge(lines: Iterable[Sequence[Any]]) -> list[Line]:
    """Merge lists of changed statements into one list without duplicates. A statement counts as run if it ran in any of
    the lists."""
    merged: dict[tuple[Any, ...], tuple[str, bool]] = {}
    for *line, guard, ran in lines:
        reason, before = merged.get(tuple(line), ("", False))
        part = next((each for each in (guard, reason) if each in PARTS), "")
        merged[tuple(line)] = part or guard or reason, ran or before
    return [(*line, "" if ran else guard, ran) for line, (guard, ran) in merged.items()]


def coverage(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the patch coverage as JSON data. Adjacent statements that did not run become one entry."""
    idle: list[dict[str, Any]] = []
    for file, name, side, first, last, bound, guard, ran in lines:
        entry = {"file": file, "function": name, "side": side, "guard": guard, "bound": bound}
        if ran:
            continue
        if idle and idle[-1].items() >= entry.items() and first <= idle[-1]["lines"][1] + 1:
            idle[-1]["lines"][1] = max(last, idle[-1]["lines"][1])
            idle[-1]["statements"] += 1
        else:
            idle.append({**entry, "lines": [first, last], "statements": 1})
    added = sum(line[2] == AFTER for line in lines)
    return {"changed": len(lines), "added": added, "ran": sum(line[-1] for line in lines), "not_run": idle}


#: Names of functions whose result depends on the machine, the process or the time, so that no scenario can change it.
_OF_THE_MACHINE = re.compile(
    r"device_count|current_device|is_available|is_initialized|is_bf16_supported|get_device_(capability|properties|name)"
    r"|mem_get_info|get_world_size|get_rank|cpu_count|getenv|gethostname|(is|are)_\w+_enabled|is_(compiling|scripting)"
    r"|get_(default|autocast)_\w+|get_num_threads|get_float32_matmul_precision|initial_seed|current_thread|active_count|sched_getaffinity|getpid"
    r"|time(_ns)?|monotonic|perf_counter|exists|is_(file|dir)|isfile|isdir|urandom"
)

#: Modules whose attributes depend on the machine or the process.
_MACHINE = {"datetime", "gc", "multiprocessing", "os", "platform", "psutil", "resource", "socket", "subprocess", "sys"}
_MACHINE |= {"tempfile", "threading", "time", "torch.backends", "torch.cuda", "torch.version", "uuid"}

#: Kinds of definitions that run at import, whether or not they are used: constants, dataclass fields, class attributes.
_DEFAULTS = ("value", "registry", "field", "class")


@dataclass(frozen=True)
class Statement:
    """A statement, without the statements nested in its body.

    :ivar key: its syntax and its nesting. Two statements of the base and the head are the same if their keys are equal.
    :ivar lines: its first and last line, counted from the first line of its function.
    :ivar guard: the innermost condition under which it runs; empty if there is none.
    :ivar parts: syntax of a part -> its spans, for parts that may not run although the line runs: an operand of ``and``
        or ``or``, a branch of a conditional expression, the body of ``if c: return x`` on one line, or a default. A
        part counts as run if instructions in all of its spans ran. It has no spans if its execution cannot be observed.
    :ivar node: its syntax tree.
    :ivar skipped: the line number of the function's first line in the syntax tree.
    """

    key: str
    lines: tuple[int, int]
    guard: str = ""
    parts: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    node: ast.AST = field(default_factory=ast.Pass)
    skipped: int = 1

    def span_of(self, node: ast.AST) -> Span:
        """Return the position of a syntax node, counted from the first line of the function."""
        return span_in(node, self.skipped)


@dataclass(frozen=True)
class Unexamined:
    """Changed lines of one function that no scenario ran.

    :ivar side: the revision whose lines these are.
    :ivar called: whether other lines of the function ran.
    :ivar bound: whether any boundary reaches the function.
    """

    file: str
    name: str
    lines: tuple[int, int]
    side: str
    guard: str = ""
    called: bool = False
    bound: bool = True


class Patch:
    """The definitions that differ between two revisions, and a record of the lines that ran.

    :param changes: place -> the definition at both revisions.
    :param bound: the changed definitions that a boundary reaches. All others are signal functions that no boundary
        reaches.
    :param fields: the names of the dataclass fields at the base. A new field with such a name may hide a base class's
        field.
    :param counterparts: the place of a new or removed function -> the corresponding function of the other revision.
    """

    def __init__(
        self,
        changes: Mapping[Place, tuple[Unit | None, Unit | None]],
        bound: Collection[Place] = (),
        fields: Collection[str] = (),
        counterparts: Mapping[Place, Unit] | None = None,
    ) -> None:
        self._fields, self._counterparts = frozenset(fields), counterparts or {}
        self._places = frozenset(changes)
        self._changes = _without_moved(changes)
        self._bound = frozenset(bound)
        self._changed = {place: changed_statements(*both) for place, both in self._changes.items()}
        #: place -> an added statement -> the unchanged statements that it passed
        self._passed = {place: passed_statements(*both) for place, both in self._changes.items()}
        self._ran: dict[tuple[str, Place], set[int]] = defaultdict(set)
        #: the bytecode instructions that ran, as spans
        self._instructions: dict[tuple[str, Place], set[Span]] = defaultdict(set)
        #: the changed statements that full searches ran; ``_searches`` counts the full searches for each definition
        self._searched: set[tuple[str, Place, int]] = set()
        #: boundary -> the changed statements that its own scenarios ran
        self._ran_at: dict[str, set[tuple[str, Place, int]]] = defaultdict(set)
        self._searches: Counter[Place] = Counter()
        #: changed statement -> whether a compared result depends on it; only statements for which this was tested
        self._matters: dict[tuple[str, Place, int], bool] = {}
        #: boundary -> the changed statements that ran, but on which none of its own results depends
        self._idle_at: dict[str, set[tuple[str, Place, int]]] = defaultdict(set)

    @property
    def places(self) -> frozenset[Place]:
        """Return (file, name) of each definition that changed or moved."""
        return self._places

    @property
    def unbound(self) -> list[Place]:
        """Return the changed signal functions that no boundary reaches."""
        return sorted(self._changes.keys() - self._bound)

    @property
    def count(self) -> int:
        """Return the number of changed statements, added and deleted."""
        return sum(len(numbers) for changed in self._changed.values() for numbers in changed.values())

    def units(self, side: str) -> dict[Place, Unit]:
        """Return the changed definitions of one revision, by place."""
        both = ((place, pair[SIDES.index(side)]) for place, pair in self._changes.items())
        return {place: unit for place, unit in both if unit is not None}

    def note(
        self, side: str, units: Mapping[Place, Unit], lines: Iterable[tuple[Any, ...]]
    ) -> set[tuple[str, Place, int]]:
        """Record the lines and instructions that ran, and return the changed statements among them.

        :param units: the definitions in the tree that the process imported. Their line numbers may differ from those of
            the side's own tree.
        :param lines: the lines and instructions, in the form of :attr:`~sentinel.comparing.sessions.Log.lines`.
        """
        statements_here = set()
        by_file: dict[str, list[int]] = defaultdict(list)
        instructions: dict[str, list[Span]] = defaultdict(list)
        for file, line, *rest in lines:
            if rest:
                instructions[file].append((line, *rest))
            else:
                by_file[file].append(line)
        own = self.units(side)
        for place, unit in units.items():
            if unit.kind != "function" or not unit.like(own.get(place)):
                continue
            first, last = unit.span
            ran = [line - first for line in by_file.get(place[0], ()) if first <= line <= last]
            spans = (span for span in instructions.get(place[0], ()) if first <= span[0] <= last)
            self._instructions[side, place].update((a - first, b, c - first, d) for a, b, c, d in spans)
            for number, statement in enumerate(statements(unit) if ran else ()):
                if any(statement.lines[0] <= line <= statement.lines[1] for line in ran):
                    self._ran[side, place].add(number)
                    if number in self._changed[place][side]:
                        statements_here.add((side, place, number))
        return statements_here

    def note_imported(self, places: Iterable[Place]) -> set[tuple[str, Place, int]]:
        """Record that these definitions, except functions, ran when their modules were imported. Return their
        statements."""
        imported = {
            (side, place, 0)
            for place in places
            for side, unit in zip(SIDES, self._changes.get(place, ()))
            if unit is not None and unit.kind != "function"
        }
        for side, place, number in imported:
            self._ran[side, place].add(number)
        return imported

    def note_boundary(self, boundary: str, ran: Collection[tuple[str, Place, int]]) -> None:
        """Record the changed statements that a boundary's own scenarios ran."""
        self._ran_at[boundary].update(ran)

    def ran_at(self, boundary: str, places: Collection[Place]) -> tuple[set[Key], list[str]]:
        """Return the changed statements of these definitions that a boundary's own scenarios ran and that had an effect
        there. Also return the names of the boundaries that examined further ones."""
        every = {
            (side, place, number)
            for place in places
            for side, numbers in self._changed.get(place, {}).items()
            for number in numbers
        }
        ran_at = {name: there - self._idle_at[name] for name, there in self._ran_at.items()}
        ran = ran_at.get(boundary, set()) & every
        others = [name for name, there in ran_at.items() if name != boundary and there & (every - ran)]
        return {self._key(*each) for each in ran}, others

    def is_compared_at(self, boundary: str, places: Collection[Place]) -> bool:
        """Return True if all changed statements of these definitions that a boundary's scenarios ran count as examined,
        and a compared result depends on at least one of them."""
        ran = [each for each in self._ran_at.get(boundary, set()) - self._idle_at[boundary] if each[1] in places]
        idle = {(side, place, number) for side, place, _ in ran for number in self.list_not_run(side, place)}
        return any(self.matters(*each) for each in ran) and idle.isdisjoint(ran)

    def _key(self, side: str, place: Place, number: int) -> Key:
        unit = self._changes[place][SIDES.index(side)]
        assert unit is not None
        first, last = statements(unit)[number].lines
        return (*place, side, unit.span[0] + first, unit.span[0] + last)

    def note_search(self, ran: Iterable[tuple[str, Place, int]], reached: Iterable[Place]) -> None:
        """Record the changed statements that a full search ran, and the definitions that its boundary reaches."""
        self._searched.update(ran)
        self._searches.update(reached)
        for place in reached:
            for side, unit in zip(SIDES, self._changes.get(place, ())):
                if unit is not None and unit.kind != "function":
                    self._searched.add((side, place, 0))

    def note_influence(self, boundary: str, statement: tuple[str, Place, int], matters: bool) -> None:
        """Record whether a boundary's results depend on a changed statement. One such boundary is enough."""
        self._matters[statement] = matters or self._matters.get(statement, False)
        if not matters:
            self._idle_at[boundary].add(statement)

    def matters(self, side: str, place: Place, number: int) -> bool:
        """Return True if a result of at least one boundary depends on a changed statement; False if none does or this
        is unknown."""
        return self._matters.get((side, place, number), False)

    def needs_search(self, ran: Collection[tuple[str, Place, int]], reached: Iterable[Place]) -> bool:
        """Return True if a boundary has changed statements that earlier full searches do not cover.

        :param ran: the changed statements that its scenarios ran.
        :param reached: the changed definitions that it reaches.
        """
        if not self._searched.issuperset(ran):
            return True
        entered, searched = ({place for _, place, _ in each} for each in (ran, self._searched))
        return any(
            (side, place, number) not in self._searched
            for place in reached
            if place in self._changed
            and self._searches[place] < (_SEARCHES if place in entered else 1 if place in searched else _ATTEMPTS)
            for side, numbers in self._changed[place].items()
            for number in numbers
        )

    def ran(self, place: Place) -> bool:
        """Return True if any statement of a definition ran, at either revision."""
        return any(self._ran.get((side, place)) for side in SIDES)

    def count_examined(self, places: Collection[Place] | None = None) -> int:
        """Return the number of changed statements that count as examined: in the definitions at ``places``, or in
        all."""
        chosen = self._changed if places is None else [place for place in places if place in self._changed]
        return sum(
            len(numbers) - len(self.list_not_run(side, place))
            for place in chosen
            for side, numbers in self._changed[place].items()
        )

    def lines(self, places: Collection[Place] | None = None) -> list[Line]:
        """Return the changed statements of the definitions at ``places``, or of all definitions."""
        found: list[Line] = []
        for place in sorted(self._changed if places is None else self._changed.keys() & set(places)):
            for side, unit in zip(SIDES, self._changes[place]):
                if unit is None:
                    continue
                every, not_run = statements(unit), set(self.list_not_run(side, place))
                for number in self._changed[place][side]:
                    guard = "" if number not in not_run else self._guard(side, place, every, number)
                    key = self._key(side, place, number)
                    found.append((*key, place in self._bound, guard, number not in not_run))
        return found

    def _guard(self, side: str, place: Place, every: Sequence[Statement], number: int) -> str:
        """Return why a statement does not count as examined: the condition that guards it if it did not run, otherwise
        why it may have run without an effect."""
        if number not in self._ran.get((side, place), ()):
            return every[number].guard
        return self._part(side, place, number) or NO_EFFECT

    def list_not_run(self, side: str, place: Place) -> list[int]:
        """Return the changed statements of a definition that did not run, may have run only in part, or had no
        effect."""
        ran = self._ran.get((side, place), set())
        return [
            number
            for number in self._changed.get(place, {}).get(side, ())
            if number not in ran
            or not self._matters.get((side, place, number), True)
            or self._part(side, place, number)
        ]

    def _part(self, side: str, place: Place, number: int) -> str:
        """Return why a changed part of a statement may not have run or cannot show an effect: one of :data:`PARTS`;
        empty if neither applies."""
        unit, other = self._changes[place][:: 1 if side == BEFORE else -1]
        if unit is None or (unit.kind != "function" and other is None):
            hides = unit is not None and unit.kind == "field" and place[1].rpartition(".")[2] in self._fields
            return HIDDEN if hides else ""
        if self._passed_idle(side, place, number):
            return MOVED
        matters = self.matters(side, place, number)
        if unit.kind in _DEFAULTS:
            return "" if matters else VALUE
        other = other or self._counterparts.get(place)
        if not number and other is not None and _reorders_parameters(unit, other):
            return ORDER  # adapters pass arguments by name, so their calls do not show the new order
        same = {part for statement in (statements(other) if other is not None else ()) for part in statement.parts}
        ran = self._instructions.get((side, place), ())
        new = {part: spans for part, spans in statements(unit)[number].parts.items() if part not in same}
        for part, spans in new.items():
            if not spans:
                if part.startswith(_READS_MACHINE):
                    return MACHINE
                if not matters or len(new) > 1:
                    return DEFAULT
            elif not all(any(_within(each, span) for each in ran) for span in spans):
                return PART
        return ""

    def _passed_idle(self, side: str, place: Place, number: int) -> list[int]:
        """Return the statements that a moved statement passed and that did not run."""
        passed = self._passed[place].get(number, ()) if side == AFTER else ()
        return [each for each in passed if each not in self._ran.get((side, place), ())]

    def find_unexamined(self, places: Collection[Place] | None = None) -> list[Unexamined]:
        """Return the changed lines that were not examined: in the definitions at ``places``, or in all. Adjacent lines
        are joined. If a changed line moved past lines that did not run, these are listed instead of it."""
        chosen = self._changed if places is None else {place for place in places if place in self._changed}
        return [item for place in sorted(chosen) for side in (AFTER, BEFORE) for item in self._idle(side, place)]

    def _idle(self, side: str, place: Place) -> Iterator[Unexamined]:
        unit = self._changes[place][SIDES.index(side)]
        ran = self._ran.get((side, place), set())
        if unit is None:
            return
        called, other = self.ran(place), self._changes[place][1 - SIDES.index(side)]
        if not called and other is None:
            # The definition is new or removed as a whole.
            yield Unexamined(*place, unit.span, side, bound=place in self._bound)
            return
        if not called and side == BEFORE and self._changed[place][AFTER]:
            return  # the head's lines, which replace these, are listed instead
        every = statements(unit)
        runs: list[list[int]] = []
        passed = {number: self._passed_idle(side, place, number) for number in self.list_not_run(side, place)}
        own = {number for number in passed if number not in ran or not passed[number]}
        for number in sorted(own.union(*passed.values())):
            if runs and number == runs[-1][-1] + 1 and {number, runs[-1][-1]}.isdisjoint(ran):
                runs[-1].append(number)
            else:
                runs.append([number])
        for run in runs:
            lines = unit.span[0] + every[run[0]].lines[0], unit.span[0] + max(every[each].lines[1] for each in run)
            guard = self._guard(side, place, every, run[0])
            guard += "" if run[0] in own else ", and a changed line moved past it"
            yield Unexamined(*place, lines, side, guard, called, place in self._bound)


def _without_moved(
    changes: Mapping[Place, tuple[Unit | None, Unit | None]],
) -> dict[Place, tuple[Unit | None, Unit | None]]:
    """Leave out functions that moved to another file and are otherwise unchanged."""
    gone = {(one.kind, one.digest): place for place, (one, other) in changes.items() if one and not other}
    moved: set[Place] = set()
    for place, (one, other) in changes.items():
        if other is not None and one is None and other.kind == "function" and (other.kind, other.digest) in gone:
            moved |= {place, gone[other.kind, other.digest]}
    return {place: both for place, both in changes.items() if place not in moved}


def other_changes(
    changed: Iterable[tuple[str, tuple[Code, str | None], tuple[Code, str | None]]], known: Collection[Place] = ()
) -> tuple[list[str], list[str]]:
    """Return two lists of further changed definitions, as ``file:line name``: those that may affect training, and
    functions that do not.

    Two kinds of definitions may affect training:

    * functions that are not signal functions by the inventory's rule, but that may still carry signal, or whose changed
      lines contain names of training signals;
    * changed values, fields and classes, such as defaults.

    :param changed: the changed files. Each item has the file's path and, for each revision, the :class:`Code` that
        reads the file and the file's blob. The blob is None if the revision does not have the file.
    :param known: definitions to leave out.
    """
    changes: dict[Place, tuple[Unit | None, Unit | None]] = {}
    doubtful: set[Place] = set()
    effects: set[str] = set()
    for file, before, after in changed:
        changes |= changes_of(file, before, after)
        sides = [(code, blob) for code, blob in (before, after) if blob is not None]
        doubtful |= {(file, name) for code, blob in sides for name in code.doubtful(file, blob)}
        effects |= {file} if changed_effect(before, after) is not None else set()
    first: list[str] = []
    second: list[str] = []
    for place, (one, other) in _without_moved(changes).items():
        (file, name), unit = place, other or one
        if place in known or unit is None or (unit.kind == "rest" and file in effects):
            continue
        text = f"{file}:{unit.span[0]} {name or 'the module'}"
        if unit.kind == "function":
            (first if place in doubtful or names_signal(_changed_text(one, other)) else second).append(text)
        elif other is not None and (one is not None or unit.kind == "field") and not name.startswith("__"):
            first.append(text)
    return first, second


def _changed_text(one: Unit | None, other: Unit | None) -> str:
    texts: list[str] = []
    for unit, numbers in zip((one, other), changed_statements(one, other).values()):
        lines = unit.text.splitlines() if unit is not None else []
        every = statements(unit) if unit is not None else ()
        texts += ["\n".join(lines[every[number].lines[0] : every[number].lines[1] + 1]) for number in numbers]
    return "\n".join(texts)


def changed_statements(one: Unit | None, other: Unit | None) -> dict[str, tuple[int, ...]]:
    """Return the indices of deleted and of added statements (see :func:`statements`)."""
    before, after = (statements(unit) if unit is not None else () for unit in (one, other))
    deleted: list[int] = []
    added: list[int] = []
    for start, end, begin, stop in _changed_blocks(before, after):
        deleted += range(start, end)
        added += range(begin, stop)
    if not deleted and not added:  # the difference is not in a statement, so all statements count
        deleted, added = list(range(len(before))), list(range(len(after)))
    return {BEFORE: tuple(deleted), AFTER: tuple(added)}


def changed_nodes(changed: Iterable[tuple[Place, Unit | None, Unit | None]]) -> Iterator[tuple[Unit, ast.AST]]:
    """Yield the syntax trees of the changed statements and of the statements in their bodies, with their functions."""
    for _, *both in changed:
        for unit, numbers in zip(both, changed_statements(*both).values()):
            yield from ((unit, statements(unit)[number].node) for number in numbers if unit is not None)


def _changed_blocks(before: Sequence[Statement], after: Sequence[Statement]) -> Iterator[tuple[int, int, int, int]]:
    matcher = SequenceMatcher(None, [each.key for each in before], [each.key for each in after], autojunk=False)
    yield from (places for tag, *places in matcher.get_opcodes() if tag != "equal")  # type: ignore[misc]


def passed_statements(one: Unit | None, other: Unit | None) -> dict[int, tuple[int, ...]]:
    """Return the added statements that moved, each with the unchanged statements that it passed.

    A statement moved if it assigns a variable, and if a statement that assigned the same variable was deleted elsewhere
    in the function. The statements that it passed are those in between that use this variable, or assign one that it
    uses. Equal numbers prove nothing about the new order unless these run.
    """
    if one is None or other is None:
        return {}
    before, after = statements(one), statements(other)
    blocks = list(_changed_blocks(before, after))
    lost = [_assigned(before[start:end]) - _assigned(after[begin:stop]) for start, end, begin, stop in blocks]
    passed: dict[int, tuple[int, ...]] = {}
    for place, (start, end, begin, stop) in enumerate(blocks):
        new = _assigned(after[begin:stop]) - _assigned(before[start:end])
        for elsewhere, (_, _, first, last) in enumerate(blocks):
            between = range(stop, first) if place < elsewhere else range(last, begin)
            unchanged = [each for each in between if not any(low <= each < high for *_, low, high in blocks)]
            for number in range(begin, stop) if new & lost[elsewhere] else ():
                moved = new & lost[elsewhere] & _assigned(after[number : number + 1])
                needs = _variables(after[number])
                users = (
                    each
                    for each in unchanged
                    if moved & _variables(after[each]) or needs & _assigned(after[each : each + 1])
                )
                passed[number] = (*passed.get(number, ()), *users)
    return passed


def _assigned(every: Iterable[Statement]) -> set[str]:
    """Return the variables that statements assign, also by item, attribute or in-place method: ``x`` or ``self.x``."""
    found = set[str]()
    for node in (each for statement in every for each in _own_expressions(statement.node)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            found.add(_variable(node.func.value))
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            found.add(_variable(node))
    return found - {""}


def _variables(statement: Statement) -> set[str]:
    return {_variable(node) for node in _own_expressions(statement.node)} - {""}


def _variable(node: ast.AST) -> str:
    """Return the variable of which an expression is an item or attribute; empty for any other expression."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return f"self.{node.attr}"
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def pair_statements(one: Unit, other: Unit) -> Iterator[tuple[int | None, int | None]]:
    """Yield pairs of indices: a deleted statement and the added statement that replaces it.

    Within a changed block, statements that compute the same variable are paired in order. A statement without a
    counterpart is paired with None. Statements that differ only in their nesting are left out.
    """
    before, after = statements(one), statements(other)
    for start, end, begin, stop in _changed_blocks(before, after):
        deleted, added = list(range(start, end)), list(range(begin, stop))
        for alike in (lambda a, b: a.key.split(" ", 1)[1] == b.key.split(" ", 1)[1], _computes_the_same):
            for number in list(deleted):
                mate = next((each for each in added if alike(before[number], after[each])), None)
                if mate is not None:
                    deleted.remove(number)
                    added.remove(mate)
                    if alike is _computes_the_same:
                        yield number, mate
        yield from [(number, None) for number in deleted] + [(None, number) for number in added]


def _computes_the_same(one: Statement, other: Statement) -> bool:
    """Return True if two statements of one kind assign the same variables or the same value or, if they assign nothing,
    use a common variable."""
    if type(one.node) is not type(other.node):
        return False
    assigned = _assigned([one]), _assigned([other])
    if any(assigned):
        values = [getattr(each.node, "value", None) for each in (one, other)]
        return assigned[0] == assigned[1] or (None not in values and len({*map(_dumped, values)}) == 1)
    used = _variables(one), _variables(other)
    return used[0] == used[1] or bool(used[0] & used[1])


@lru_cache(maxsize=4096)
def statements(unit: Unit) -> tuple[Statement, ...]:
    """Return a function's statements, beginning with its signature. Any other definition counts as one statement."""
    whole = (Statement(unit.digest, (0, unit.span[1] - unit.span[0])),)
    if unit.kind != "function" or unit.text.count("\n") != unit.span[1] - unit.span[0]:
        return whole  # two definitions of one name are one unit, whose line numbers do not match the file
    parsed = function_in(unit)
    if parsed is None:
        return whole
    return tuple(_statements(Bare().visit(copy.deepcopy(parsed[0])), parsed[1], "", ""))


@lru_cache(maxsize=4096)
def function_in(unit: Unit) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, int] | None:
    """Return the syntax tree of a function, and the line number of its first line in the tree. Return None if it cannot
    be parsed."""
    for source, skipped in ((unit.text, 1), (f"if 1:\n{unit.text}", 2)):
        with suppress(SyntaxError, ValueError, RecursionError):
            body = syntax_of(source).body
            [function] = body if skipped == 1 else body[0].body  # type: ignore[attr-defined]
            return function, skipped  # type: ignore[return-value]
    return None


def _statements(node: ast.AST, skipped: int, path: str, guard: str, outer: int = 0) -> Iterator[Statement]:
    """Yield a statement and the statements in its body.

    :param outer: the last line of the header of the surrounding block, such as the line of an ``if``. If the statement
        is on this line too, the line may run without the statement.
    """
    first = _first_line(node)
    blocks = [(name, getattr(node, name)) for name in BLOCKS if isinstance(getattr(node, name, None), list)]
    inner = [_first_line(child) for name, block in blocks for child in block]
    last = max(first, min(inner) - 1) if inner else getattr(node, "end_lineno", first) or first
    if not isinstance(node, _SILENT) and not (isinstance(node, ast.AnnAssign) and node.value is None):
        own = [f"{name}={_dumped(value)}" for name, value in ast.iter_fields(node) if name not in BLOCKS]
        key = f"{path} {type(node).__name__} {own}"
        parts: dict[str, tuple[Span, ...]] = {key: (span_in(node, skipped),)} if outer == first else {}
        for each in _own_expressions(node):
            inner_parts = _optional_parts(each)
            if inner_parts is not None:
                kind = "" if inner_parts or not _depends_on_machine(each) else _READS_MACHINE
                parts[kind + ast.dump(each)] = tuple(span_in(part, skipped) for part in inner_parts)
        yield Statement(key, (first - skipped, last - skipped), guard, parts, node, skipped)
    for name, block in blocks:
        within = guard
        if isinstance(node, (ast.If, ast.While)) and name in ("body", "orelse"):
            test = ast.unparse(node.test)
            within = cut(test if name == "body" else f"not ({test})")
        for child in block:
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                yield from _statements(child, skipped, f"{path}.{name}", within, last)


def _own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    fields = [value for name, value in ast.iter_fields(node) if name not in BLOCKS]
    for child in (each for value in fields for each in (value if isinstance(value, list) else [value])):
        if isinstance(child, ast.AST):
            yield from ast.walk(child)


def _optional_parts(node: ast.AST) -> list[ast.expr] | None:
    """Return the parts of an expression that are not always evaluated; None if there are none.

    Return an empty list if there is such a part, but its evaluation cannot be observed, as for a default.
    """
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values[1:]
    if isinstance(node, ast.Compare):
        return node.comparators[1:] or None
    if isinstance(node, ast.Lambda):
        return [node.body]
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        return [node.elt] if any(each.ifs for each in node.generators) else None
    if isinstance(node, ast.DictComp):
        return [node.value] if any(each.ifs for each in node.generators) else None
    unobserved = False
    if isinstance(node, ast.arguments):
        unobserved = bool(node.defaults or any(node.kw_defaults))
    if isinstance(node, ast.keyword):
        unobserved = node.arg in ("default", "default_factory")
    if _depends_on_machine(node):
        return []
    if isinstance(node, ast.Call):  # the default in mapping.get(key, default) or getattr(object, name, default)
        name = _called(node)
        most = {"get": 1, "pop": 1, "setdefault": 1, "next": 1, "getattr": 2}.get(name, len(node.args))
        unobserved = len(node.args) > most
    return [] if unobserved else None


#: Prefix of the key of a part whose value depends on the machine, the process or the time.
_READS_MACHINE = "machine "


def _depends_on_machine(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node.value) in _MACHINE
    return isinstance(node, ast.Call) and bool(_OF_THE_MACHINE.fullmatch(_called(node)))


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


@lru_cache(maxsize=4096)
def _reorders_parameters(one: Unit, other: Unit) -> bool:
    functions = [function_of(unit.text) for unit in (one, other)]
    names = [[each.arg for each in (*of.args.posonlyargs, *of.args.args)] if of is not None else [] for of in functions]
    common = {*names[0]} & {*names[1]}
    return [name for name in names[0] if name in common] != [name for name in names[1] if name in common]


def span_in(node: Any, skipped: int) -> Span:
    """Return the position of a syntax node, counted from the first line of its function."""
    return node.lineno - skipped, node.col_offset, node.end_lineno - skipped, node.end_col_offset


def _within(inner: Span, outer: Span) -> bool:
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


def _first_line(node: ast.AST) -> int:
    place = node.pattern if isinstance(node, ast.match_case) else node
    lines = [getattr(each, "lineno", 1) for each in (place, *getattr(node, "decorator_list", []))]
    return min(map(int, lines))


def _dumped(value: object) -> str:
    if isinstance(value, list):
        return str([_dumped(each) for each in value])
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)
