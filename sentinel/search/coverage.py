"""Determine which signal functions are bound, and which of their lines run while laws are checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.deciding.law_session import LawSession, LineSession, Subject, Undecidable
from sentinel.errors import INSTALL, SentinelError
from sentinel.laws.law import Law
from sentinel.recipes import Recipe
from sentinel.search.bindings import Definitions, Trees, sighting
from sentinel.search.guards import CALLS_AWAY, Code, Constants, Place, Setting, guard_of, statements, ways_from
from sentinel.search.inventory import STATES, Function, Source, State, read
from sentinel.targets import PackageRoot, Target


@dataclass(frozen=True)
class Coverage:
    """The signal functions of one tree, and whether each is bound.

    :ivar functions: all functions of the inventory, before any exclusion, sorted by file and line.
    :ivar outside: dotted paths of bound functions that the inventory's rule does not count as signal functions.
    :ivar unread: file -> why it could not be read; its functions are not counted.
    """

    functions: tuple[Function, ...]
    outside: tuple[str, ...]
    unread: Mapping[str, str]

    @property
    def totals(self) -> dict[State, int]:
        return count_states(self.functions)

    @property
    def modules(self) -> dict[str, dict[State, int]]:
        by_module: dict[str, list[Function]] = defaultdict(list)
        for function in self.functions:
            by_module[function.module].append(function)
        return {module: count_states(by_module[module]) for module in sorted(by_module)}


def count_states(functions: Sequence[Function]) -> dict[State, int]:
    counts = Counter(function.state for function in functions)
    return {state: counts[state] for state in STATES}


def coverage(
    target: Target, trees: Trees, tree: str = "", parsed: dict[tuple[str, str], Source] | None = None
) -> Coverage:
    """Return which signal functions of a tree are bound.

    :param parsed: file and blob -> its parsed source; shared between trees because most files stay the same.
    :raises SentinelError: if a file takes too much time or memory to parse.
    """
    names: dict[str, Source] = {}
    definitions = Definitions(trees, target.roots, lambda blob: names[blob].names if blob in names else {})
    parsed = {} if parsed is None else parsed
    blobs = dict(sorted(definitions.sources(tree)))
    new = {file: blob for file, blob in blobs.items() if (file, blob) not in parsed}
    sources_read = read({file: (target.module_of(file), trees.blob(blob)) for file, blob in new.items()})
    parsed.update(((file, new[file]), source) for file, source in sources_read.items())
    sources = {file: parsed[file, blob] for file, blob in blobs.items()}
    names.update((blobs[file], source) for file, source in sources.items())
    return coverage_of(target, definitions, tree, sources)


def coverage_of(target: Target, definitions: Definitions, tree: str, sources: Mapping[str, Source]) -> Coverage:
    """Return the coverage of those functions that are defined in the given files of a tree."""
    bound: dict[tuple[str, tuple[int, int]], list[str]] = defaultdict(list)
    paths = {}
    for binding in target.bindings:
        where = sighting(definitions, tree, binding)
        if where.definition is not None and where.bound:
            place = where.definition.file, where.definition.name.span
            paths[place] = where.definition.path
            bound[place].append(binding.contract)
    functions = []
    for file, source in sources.items():
        module = target.module_of(file)
        for function in source.functions:
            place = file, function.span
            signal = target.carries_signal(f"{module}.{function.name}")
            state: State = "bound" if place in bound else "not bound" if signal else "no signal"
            contracts = tuple(dict.fromkeys(bound.get(place, ())))
            functions.append(replace(function, file=file, state=state, contracts=contracts))
    inside = {(function.file, function.span) for function in functions}
    outside = tuple(sorted(path for place, path in paths.items() if place not in inside))
    unread = {file: source.unread for file, source in sources.items() if source.unread}
    return Coverage(tuple(functions), outside, unread)


@dataclass(frozen=True)
class Lines:
    """The lines that ran in a bound function, or in a function that a bound function calls.

    :ivar ran: the lines that ran during the search; empty if the function was never called.
    :ivar idle: the lines that did not run, if the function was called.
    :ivar branches: the number of branches, as coverage.py counts them: the exits of all lines that have more than one
        exit. ``taken`` is the number of branches that were taken.
    :ivar guards: idle line -> the innermost condition around it, if there is one.
    :ivar turned: the idle lines that ran in additional calls, with options that no scenario sets. Laws were not checked
        in these calls.
    """

    function: Function
    ran: tuple[int, ...]
    idle: tuple[int, ...]
    branches: int = 0
    taken: int = 0
    guards: Mapping[int, str] = field(default_factory=dict)
    turned: tuple[int, ...] = ()


#: Maximum numbers of settings for one boundary, of settings for one line, and of scenarios for one setting.
_TURNS, _WAYS, _GUARDED = 24, 2, 2


def _pass_guards(session: LineSession, subject: Subject, code: Code, places: Sequence[Place]) -> None:
    """Call a boundary with options, arguments, sizes and dtypes that may make more of its lines run.

    :param places: the functions whose lines count.
    :raises Undecidable: if the boundary cannot be called.
    """
    from sentinel.search.boundary_search import glimpses, turn

    usual = [inputs[""] for _, inputs in glimpses(subject, 0, [_RUNS])[:_GUARDED]]
    parts = [code.part(*place) for place in places]
    tried: list[Setting] = []
    for place, part in zip(places, parts):
        for line in statements(part):
            lines_run = _ran(session, place[0])
            if line in lines_run:
                continue
            ran = {each.last for (file, _), each in zip(places, parts) if _ran(session, file).intersection(each.inside)}
            ways = [way for way in ways_from(part, line, parts, ran, CALLS_AWAY)[:_WAYS] if way not in tried]
            for way in ways[: _TURNS - len(tried)]:
                tried.append(way)
                scenarios = turn(subject, 0, way, usual)
                session.turn(subject, scenarios)
                if line in _ran(session, place[0]):
                    break


def _ran(session: LineSession, file: str) -> set[int]:
    return session.of_turned(file).union(abs(line) for pair in session.of(file) for line in pair)


#: A law without a check, which only makes the boundary run.
_RUNS = Law("runs", "", lambda case: [])


def lines(
    whole: Coverage,
    folder: Path,
    level: str,
    recipes: Sequence[Recipe],
    session: LawSession,
    bound: Iterable[Subject],
    roots: tuple[PackageRoot, ...],
) -> list[Lines]:
    """Search for broken laws of bound functions, and return which lines and branches ran.

    Afterwards, set options that no scenario sets, to find out under which options the remaining lines run. The result
    has all bound functions, and other signal functions that ran. Lines with a ``raise`` statement are not counted.
    """
    from sentinel.search.boundary_search import BoundarySearch  # importing Hypothesis takes about 0.3 s
    from sentinel.search.survey import LEVELS

    try:
        import coverage as library
    except ImportError:
        raise SentinelError(f"coverage.py counts lines, but it is not installed: {INSTALL.format('lines')}") from None
    examples, shrinking = LEVELS[level]
    watched, code = LineSession(session), Code(str(folder), roots)
    signal = {(each.file, each.name) for each in whole.functions}
    try:
        for boundary in bound:
            here = [each for each in whole.functions if each.path in boundary.binding.paths]
            constants = code.constants(here[0].file, here[0].line) if here else Constants()
            with suppress(Undecidable):
                search = BoundarySearch(watched, boundary, 0, None, shrinking, False, glimpse=True, constants=constants)
                search.try_recipes(recipes)
                search.run(examples)
                reached = code.reached(here[0].file, here[0].line) if here else []
                _pass_guards(watched, search.subject, code, [place for place in reached if place in signal])
    finally:
        watched.close()
    sources = {each.file for each in whole.functions}
    # Use paths of this process, because coverage.py opens the files. The worker may see the checkout at other paths.
    jumps = {str(folder / file): pairs for file in sources if (pairs := watched.of(file))}
    measured = library.Coverage(data_file=None, branch=True, config_file=False)
    measured.clear_exclude()  # a framework's "pragma: no cover" is about its own tests
    measured.exclude(r"^\s*raise\b")  # laws do not compare calls that raise, so these lines are not counted
    measured.get_data().add_arcs(jumps)
    there: dict[str, tuple[set[int], set[int], dict[int, tuple[int, int]]]] = {}
    for path in jumps:
        with suppress(library.CoverageException, ValueError, MemoryError, RecursionError):  # the file does not parse
            _, statements, _, idle, _ = measured.analysis2(path)
            there[path] = set(statements).difference(idle), set(idle), measured.branch_stats(path)
    per_function = []
    for each in whole.functions:
        lines_run, never, ways = there.get(str(folder / each.file), (set(), set(), {}))
        ran_there = lines_run.intersection(range(each.line, each.end_line + 1))
        part = code.part(each.file, each.name) if ran_there else None
        # Only the body counts, because decorators and the `def` line run when the function is defined. If two functions
        # have one name, such as a property and its setter, `part` may be the other function.
        inside = (
            part.inside if part and part.inside.stop == each.end_line + 1 else range(each.line + 1, each.end_line + 1)
        )
        ran = tuple(sorted(lines_run.intersection(inside)))
        if ran:
            exits = [ways[line] for line in inside if line in ways]
            of, gone_ways = (sum(numbers) for numbers in zip(*exits)) if exits else (0, 0)
            idle_lines = tuple(sorted(never.intersection(inside)))
            guards = {line: text for line in idle_lines if part and (text := guard_of(part, line))}
            turned = tuple(line for line in idle_lines if line in watched.of_turned(each.file))
            per_function.append(Lines(each, ran, idle_lines, of, gone_ways, guards, turned))
        elif each.state == "bound":
            per_function.append(Lines(each, (), ()))
    return per_function
