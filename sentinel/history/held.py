"""Hold the functions that nobody has bound to what they kept at an earlier revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.runner import Runner
from sentinel.history.coverage import CheckoutTrees, coverage, unbound
from sentinel.history.inventory import Function
from sentinel.recipes.catalog import Catalog
from sentinel.search.automatic import merged
from sentinel.search.checks import any_of
from sentinel.search.inferred import Outcome, compared
from sentinel.targets.refs import Ref

#: Functions by their dotted paths, each with what the lexicon makes of it.
Functions = Mapping[str, tuple[Function, Subject | None]]


def held_to(
    runner: Runner,
    catalog: Catalog,
    target: str,
    refs: tuple[Ref, Ref],
    globs: Sequence[str],
    count: int,
    seed: int = 0,
) -> Iterator[Outcome]:
    """Compare every function that is understood at both revisions, and takes the same there."""
    adapter, sides = catalog.adapters[target], list[Functions]()
    for ref in refs:
        covered = coverage(adapter.target, CheckoutTrees(runner.checkout(target, ref)))
        sides.append({one.path: (one, subject) for one, subject in unbound(adapter, covered, catalog.laws)})
    then, now = sides
    some = {path: one for path, one in now.items() if any_of(path, globs) or any_of(path.rpartition(".")[2], globs)}
    yield from compared_at(runner, target, refs, (then, some), count, seed)


def compared_at(
    runner: Runner, target: str, refs: tuple[Ref, Ref], sides: Sequence[Functions], count: int, seed: int = 0
) -> Iterator[Outcome]:
    """Compare the functions that both revisions have."""
    then, now = sides
    sessions = [runner.open_target(target, ref, []).law_session for ref in refs]
    for path, (function, subject) in now.items():
        if path not in then:
            continue
        before, earlier = then[path]
        if subject is None or earlier is None:
            yield Outcome(path, (function.by or before.by)[0])
            continue
        if (earlier.contract.inputs, earlier.contract.mask) != (subject.contract.inputs, subject.contract.mask):
            subject = merged(earlier, subject)
        if subject is None:
            yield Outcome(path, "it takes other things now")
            continue
        try:
            yield compared(sessions[0], sessions[1], subject, count, seed)
        except Undecidable as error:
            yield Outcome(path, str(error))
