"""Says of every function that carries training signal whether a contract looks at it, a reason leaves it out, or
nobody has looked at it."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Literal

from sentinel.deciding.law_session import LawSession, LineSession, Subject, Undecidable
from sentinel.history.bindings import Definitions, Trees, sighting, syntax_of
from sentinel.history.gittrees import TREE, Folder
from sentinel.history.inventory import Source, read
from sentinel.laws.law import Law
from sentinel.recipes.catalog import Adapter
from sentinel.search.automatic import subject_of, understood
from sentinel.search.signatures import Signature
from sentinel.sources.checkouts import files
from sentinel.sources.trees import FILE
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import LARGEST_SOURCE, read_source

State = Literal["by contract", "automatic", "within a call", "left out", "never looked at"]
STATES: tuple[State, ...] = ("by contract", "automatic", "within a call", "left out", "never looked at")


@dataclass(frozen=True)
class Looked:
    """One function that carries training signal.

    :ivar module: its dotted name.
    :ivar by: the contracts that it is bound to; what ran it; or the reason why it is left out, or not called.
    """

    module: str
    name: str
    file: str
    line: int
    end_line: int
    subjects: tuple[str, ...]
    state: State
    by: tuple[str, ...] = ()
    signature: Signature = field(default=Signature(()), compare=False)

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Coverage:
    """:ivar functions: the inventory, by file and line.
    :ivar outside: bound boundaries that the rule does not have in the inventory.
    :ivar unread: file -> why it could not be read: what it defines is not counted.
    """

    functions: tuple[Looked, ...]
    outside: tuple[str, ...]
    unread: Mapping[str, str]

    @property
    def totals(self) -> dict[State, int]:
        return counted(self.functions)

    @property
    def modules(self) -> dict[str, dict[State, int]]:
        found: dict[str, list[Looked]] = defaultdict(list)
        for function in self.functions:
            found[function.module].append(function)
        return {module: counted(found[module]) for module in sorted(found)}


def counted(functions: Sequence[Looked]) -> dict[State, int]:
    counts = Counter(function.state for function in functions)
    return {state: counts[state] for state in STATES}


def coverage(
    target: Target, trees: Trees, tree: str = "", parsed: dict[tuple[str, str], Source] | None = None
) -> Coverage:
    """The coverage of a target at one tree.

    :param parsed: file and blob -> what was read of them; kept from tree to tree, as most files stay the same.
    :raises SentinelError: where a file takes too long, or too much memory, to parse.
    """
    names: dict[str, Source] = {}
    definitions = Definitions(trees, target.roots, lambda blob: names[blob].names if blob in names else {})
    parsed = {} if parsed is None else parsed
    blobs = dict(sorted(definitions.sources(tree)))
    new = {file: blob for file, blob in blobs.items() if (file, blob) not in parsed}
    found = read({file: (target.module_of(file), trees.blob(blob)) for file, blob in new.items()})
    parsed.update(((file, new[file]), source) for file, source in found.items())
    sources = {file: parsed[file, blob] for file, blob in blobs.items()}
    names.update((blobs[file], source) for file, source in sources.items())
    return coverage_of(target, definitions, tree, sources)


def coverage_of(target: Target, definitions: Definitions, tree: str, sources: Mapping[str, Source]) -> Coverage:
    """The coverage of some files of a tree."""
    bound: dict[tuple[str, tuple[int, int]], list[str]] = defaultdict(list)
    paths = {}
    for binding in target.bindings:
        seen = sighting(definitions, tree, binding)
        if seen.found is not None and seen.bound:
            place = seen.found.file, seen.found.name.span
            paths[place] = seen.found.path
            bound[place].append(binding.contract)
    left = {
        (found.file, found.name.span): reason
        for path, reason in target.unbound.items()
        if (found := definitions.find(tree, path)) is not None
    }
    functions = []
    for file, source in sources.items():
        module = target.module_of(file)
        for function in source.functions:
            place = file, function.span
            reason = left.get(place) or _reason_against(target, f"{module}.{function.name}")
            state: State = "by contract" if place in bound else "left out" if reason else "never looked at"
            by = tuple(dict.fromkeys(bound[place])) if place in bound else (reason,) if reason else ()
            looked = Looked(
                module, function.name, file, *function.span, function.subjects, state, by, function.signature
            )
            functions.append(looked)
    inside = {(function.file, (function.line, function.end_line)) for function in functions}
    outside = tuple(sorted(path for place, path in paths.items() if place not in inside))
    unread = {file: source.unread for file, source in sources.items() if source.unread}
    return Coverage(tuple(functions), outside, unread)


def _reason_against(target: Target, path: str) -> str:
    """Why the adapter leaves a function out, under the name that it has here or has today."""
    names = [path]
    for today, several in target.moved.items():
        names += (today + path.removeprefix(then) for then in several if f"{path}.".startswith(f"{then}."))
    return next(filter(None, map(target.reason_against, names)), "")


def unbound(adapter: Adapter, found: Coverage, laws: Mapping[str, Law]) -> Iterator[tuple[Looked, Subject | None]]:
    """The functions that nobody has looked at, each as what the lexicon makes of it; where nobody can call it, why not
    stands in ``by``."""
    for function in found.functions:
        if function.state == "never looked at":
            read = understood(adapter.target, function.path, function.signature, "." in function.name)
            lacks = (read.odd,) if read.odd else ()
            subject = None if lacks else subject_of(function.path, read, str(adapter.file), laws)
            yield replace(function, by=lacks), subject


def called(
    adapter: Adapter, found: Coverage, laws: Mapping[str, Law], session: LawSession, bound: Iterable[Subject]
) -> Coverage:
    """The coverage in which what answers with no line of an adapter is automatic, and what runs when a boundary or one
    of these is called is within a call.

    :param bound: the boundaries.
    """
    from sentinel.search.inferred import answers, ran_by, ready  # Hypothesis takes its time

    ran: dict[str, str] = {}
    for boundary in bound:
        with suppress(Undecidable):
            trials, _ = answers(session, boundary, count=_FEW)
            ran |= dict.fromkeys(ran_by(trials), boundary.boundary)
    now = {}
    for function, subject in unbound(adapter, found, laws):
        if subject is not None:
            made, why = None, ""
            try:
                made, why, through = ready(session, subject)
                ran = dict.fromkeys(through, function.path) | ran
            except Undecidable as error:
                why = str(error)
            # A stub answers nothing of what a package would that is not here; an adapter would say the same of it.
            absent = "which is not installed" in why
            state: State = "automatic" if made is not None else "left out" if absent else "never looked at"
            function = replace(function, state=state, by=(why,) if why else ())
        now[function.file, function.line] = function
    for place, function in now.items():
        if function.state in ("never looked at", "left out") and function.path in ran:
            now[place] = replace(function, state="within a call", by=(ran[function.path],))
    return replace(found, functions=tuple(now.get((one.file, one.line), one) for one in found.functions))


@dataclass(frozen=True)
class Lines:
    """The lines of a function that is looked at.

    :ivar ran: those that ran while laws were searched; none where it never was called.
    :ivar idle: those of a function that ran, which did not.
    :ivar ways: of each condition and loop of a function that ran, how many of its two ways were gone.
    """

    function: Looked
    ran: tuple[int, ...]
    idle: tuple[int, ...]
    ways: tuple[int, ...] = ()


def lines(
    found: Coverage, sources: Callable[[str], bytes], level: str, session: LawSession, bound: Iterable[Subject]
) -> list[Lines]:
    """The lines and branches of each function that a contract looks at, or that ran beside one, which ran in a search.

    :param sources: the content of a file.
    :param level: ``quick`` or ``deep``.
    """
    from sentinel.search.boundary_search import BoundarySearch  # Hypothesis takes its time
    from sentinel.search.survey import LEVELS

    examples, shrinking = LEVELS[level]
    watched = LineSession(session)
    try:
        for boundary in bound:
            with suppress(Undecidable):
                BoundarySearch(watched, boundary, 0, None, shrinking, False, glimpse=True).run(examples)
    finally:
        watched.close()
    by_file = {f"/{each.file}": each.file for each in found.functions}
    paths = {by_file[end]: path for path in watched.lines for end in by_file if path.endswith(end)}
    there = {file: watched.lines[path] for file, path in paths.items()}
    gone = {file: _ways(syntax_of(sources(file)), watched.jumps.get(path, set())) for file, path in paths.items()}
    told = []
    for each in found.functions:
        marks = {line: ran for line, ran in there.get(each.file, {}).items() if each.line <= line <= each.end_line}
        if marks or each.state == "by contract":
            ran = tuple(sorted(line for line, did in marks.items() if did))
            idle = tuple(sorted(line for line, did in marks.items() if not did))
            ways = (many for line, many in gone.get(each.file, ()) if each.line <= line <= each.end_line)
            told.append(Lines(each, ran, idle, tuple(ways) if ran else ()))
    return told


def _ways(tree: ast.Module, jumps: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The line of each condition and loop of a file, and how many of its two ways were gone: into it, and past it."""
    said = []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor)):
            continue
        asked = node.test if isinstance(node, (ast.If, ast.While)) else node.iter
        if isinstance(asked, ast.Constant):
            continue
        head = range(node.lineno, (asked.end_lineno or 0) + 1)
        body = range(head.stop, (node.body[-1].end_lineno or 0) + 1)
        if body:  # not all on one line
            after = {then in body for first, then in jumps if first in head and then not in head}
            said.append((node.lineno, len(after)))
    return said


#: Scenarios of a boundary, to see what runs when it is called.
_FEW = 4


class CheckoutTrees:
    """The files of a checkout as a tree, for what reads trees; there is one, and its name does not matter."""

    def __init__(self, checkout: Checkout) -> None:
        self._base = checkout.path
        self._folders: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        self._files: dict[str, str] = {}
        for file, blob in files(checkout).items():
            path, entry = PurePosixPath(file), (FILE, blob)
            self._files[blob] = file
            while path.name:
                above = path.parent.as_posix()
                self._folders["" if above == "." else above][path.name] = entry
                path = path.parent
                entry = (TREE, path.as_posix())

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        above, _, name = path.rpartition("/")
        return self.folder(above).get(name)

    def folder(self, tree: str) -> Folder:
        return self._folders.get(tree, {})

    def blob(self, name: str) -> bytes:
        return self.content(self._files[name])

    def content(self, file: str) -> bytes:
        # One byte more: what is longer than a source may be is not read as a part of it.
        return read_source(str(self._base / file), LARGEST_SOURCE + 1)
