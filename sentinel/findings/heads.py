"""Whether a pull request mends a bug, whatever its words: the recipe is run at each head that changes the boundary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.findings.history import files_of, names_of, touching
from sentinel.history.commits import merge_base
from sentinel.history.ledger import Ledger
from sentinel.recipes import Recipe
from sentinel.reports.escaping import message
from sentinel.sources import gitbinary
from sentinel.targets import Target


@dataclass(frozen=True)
class Head:
    """A recipe at the head of a pull request that changes lines of its function, or of another's of the same search.

    :ivar verdict: what the recipe says there; ``mends`` where it is ``fixed`` there and ``reproduced`` at the commit
        that the pull request began from: an old head may be from before the bug.
    :ivar open: whether the mirror has the merge that GitHub keeps ready for pull requests that are open.
    """

    bug_id: str
    pull: int
    commit: str
    subject: str
    verdict: str
    open: bool


def pulls(mirror: Path, target: Target, recipe: Recipe) -> list[int]:
    """The numbers of the pull requests of which own commits change lines of the boundary's function, newest first."""
    outside = ["--glob=refs/pull/*/head", "--not", f"refs/heads/{target.branch}"]
    touches = touching(mirror, names_of(recipe), files_of(target, recipe.boundary), outside)
    return sorted({touch.pull for touch in touches if touch.pull is not None}, reverse=True)


def heads(ledger: Ledger, recipes: Sequence[Recipe], most: int | None = None) -> Iterator[Head]:
    """Run recipes of one target at the head of each pull request that changes a function of one of them.

    :param most: of the newest so many.
    """
    numbers = {number for recipe in recipes for number in pulls(ledger.mirror, ledger.target, recipe)}
    with ledger.deciding(recipes, lambda: ledger.local(1)) as decide:
        for number in sorted(numbers, reverse=True)[:most]:
            try:
                head = ledger.commit(f"pull/{number}/head")
                found = {bug: unit.verdict for bug, unit in decide(head).items()}
                if "fixed" in found.values():
                    began = merge_base(ledger.mirror, head.sha, f"refs/heads/{ledger.target.branch}")
                    if began is None:
                        raise Unavailable(f"{head.sha} has nothing in common with {ledger.target.branch}")
                    before = decide(ledger.commit(began))
                    for bug, verdict in found.items():
                        if verdict == "fixed" and before[bug].verdict == "reproduced":
                            found[bug] = "mends"
            except (
                Unavailable,
                gitbinary.GitError,
            ) as error:  # the mirror has not all of it: what was not decided is told as such
                told = message(str(error))
                yield from (Head(recipe.bug_id, number, "", told, "unavailable", False) for recipe in recipes)
                continue
            ready = _open(ledger, number)
            for bug, verdict in found.items():
                yield Head(bug, number, head.sha, message(head.subject), verdict, ready)


def _open(ledger: Ledger, number: int) -> bool:
    ref = f"refs/pull/{number}/merge"
    return not gitbinary.run(ledger.mirror, "rev-parse", "--quiet", "--verify", ref).status
