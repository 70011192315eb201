"""Hold the functions that nobody has bound to what they kept at an earlier revision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sentinel.deciding.law_session import Subject, Undecidable
from sentinel.deciding.runner import Runner
from sentinel.history.coverage import CheckoutTrees, Looked, coverages, unbound
from sentinel.recipes.catalog import Catalog
from sentinel.search.checks import any_of
from sentinel.search.inferred import Outcome, compared
from sentinel.targets.refs import Ref


@dataclass(frozen=True)
class Held:
    """A function that both revisions have.

    :ivar outcome: None where it could not be compared; :ivar why: then the reason.
    """

    function: Looked
    outcome: Outcome | None = None
    why: str = ""


def held_to(
    runner: Runner,
    catalog: Catalog,
    target: str,
    refs: tuple[Ref, Ref],
    globs: Sequence[str],
    count: int,
    seed: int = 0,
    among: Callable[[Looked], bool] = lambda function: True,
) -> Iterator[Held]:
    """Compare every function that is understood at both revisions, and takes the same there.

    :param refs: the earlier one and the later one.
    :param count: scenarios of each.
    """
    adapter = catalog.adapters[target]
    then, now = (_understood(runner, catalog, target, ref) for ref in refs)
    sessions = [runner.open_target(target, ref, []).law_session for ref in refs]
    for path, (function, subject) in now.items():
        chosen = any_of(path, globs) or any_of(path.rpartition(".")[2], globs)
        if not chosen or path not in then or not among(function):
            continue
        earlier = then[path][1]
        if subject is None or earlier is None:
            yield Held(function, why=function.by[0] if function.by else then[path][0].by[0])
        elif replace(earlier, adapter="") != replace(subject, adapter=""):
            yield Held(function, why="it reads other things now")
        else:
            try:
                yield Held(
                    function,
                    compared(sessions[0], sessions[1], replace(subject, adapter=str(adapter.file)), count, seed),
                )
            except Undecidable as error:
                yield Held(function, why=str(error))


def _understood(runner: Runner, catalog: Catalog, target: str, ref: Ref) -> dict[str, tuple[Looked, Subject | None]]:
    adapter = catalog.adapters[target]
    (found,) = coverages(adapter.target, CheckoutTrees(runner.checkout(target, ref)), [""])
    return {function.path: (function, subject) for function, subject in unbound(adapter, found, catalog.laws)}
