"""Search for duplicates of a bug: other recipes, upstream's history and its pull requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.recipes import Recipe
from sentinel.recipes.fixes import Fix
from sentinel.reports.escaping import message
from sentinel.sources.mirrors import MirrorStore
from sentinel.targets import Target
from sentinel.tools.upstream.history import files_of, name_of, touching, touching_pulls
from sentinel.tools.upstream.words import similar, terms

#: The maximum number of matches that are listed for one source.
MOST = 25


@dataclass(frozen=True)
class Match:
    """A possible duplicate of a bug.

    :ivar what: a bug id, a commit, or ``#N`` for a pull request.
    :ivar why: how the match is related to the bug.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Source:
    """One place that was searched for duplicates, and what was found there.

    :ivar searched: whether the source could be searched.
    :ivar note: what was searched, or why the source could not be searched.
    :ivar more: the number of further matches, which ``found`` does not list.
    """

    name: str
    searched: bool
    note: str
    found: tuple[Match, ...] = ()
    more: int = 0


def duplicates(
    recipe: Recipe,
    others: Sequence[Recipe],
    target: Target,
    store: MirrorStore,
    fix: Fix | None = None,
) -> list[Source]:
    """Search recipes, upstream's history and pull requests for duplicates of a bug.

    :param others: the recipes to compare with.
    :param fix: the fix of the bug. Its texts provide further names to search for.
    """
    return [
        _recipes(recipe, others),
        _guarded("upstream history", lambda: _history(recipe, target, store)),
        _guarded("pull requests of the mirror", lambda: _pulls(recipe, target, store)),
        _guarded("pull requests that name it", lambda: _similar(recipe, fix, target, store)),
    ]


def _guarded(name: str, search: Callable[[], Source]) -> Source:
    try:
        return search()
    except SentinelError as error:
        return Source(name, False, message(str(error)))


# -- recipes -----------------------------------------------------------------------------------------------------------


def _recipes(recipe: Recipe, others: Sequence[Recipe]) -> Source:
    matches = []
    for other in others:
        if other.target == recipe.target and other.bug_id != recipe.bug_id and (why := likeness(recipe, other)):
            pull = f" (#{other.upstream['pull']})" if other.upstream.get("pull") else ""
            matches.append((-len(why), Match(other.bug_id + pull, ", ".join(why))))
    matches.sort(key=lambda pair: (pair[0], pair[1].what))
    return _listed("recipes", f"{len(others)} recipes", [item for _, item in matches])


def likeness(recipe: Recipe, other: Recipe) -> list[str]:
    """Return what two recipes have in common, or nothing if they are probably about different bugs.

    They may be about the same bug if they name the same pull request, or the same law and the same (kind of) boundary.
    """
    pull = recipe.upstream.get("pull")
    same = {
        "same pull request": bool(pull) and pull == other.upstream.get("pull"),
        "same boundary": recipe.boundary == other.boundary,
        "same kind of boundary": recipe.contract == other.contract and recipe.contract != "call",
        "same law": bool(set(recipe.laws[:1]) & set(other.laws)) or bool(set(other.laws[:1]) & set(recipe.laws)),
    }
    reasons = [name for name, there in same.items() if there]
    law, place = same["same law"], same["same boundary"] or same["same kind of boundary"]
    return reasons if same["same pull request"] or (law and place) else []


# -- git ---------------------------------------------------------------------------------------------------------------


def _history(recipe: Recipe, target: Target, store: MirrorStore) -> Source:
    git_dir = store.path(target.name)
    base = next((pin.ref.name for pin in recipe.pins if pin.ref.kind == "git"), None)
    branch = f"refs/heads/{target.branch}"
    revisions = [f"{base}..{branch}" if base else branch]
    touches = touching(git_dir, target, recipe, revisions)
    since = f"since {base[:12]}" if base else "all of it"
    since += _shallow(git_dir)
    note = f"commits of {target.branch} ({since}) that change lines of {name_of(recipe)}"
    return _listed("upstream history", note, [Match(item.commit[:12], message(item.subject)) for item in touches])


def _pulls(recipe: Recipe, target: Target, store: MirrorStore) -> Source:
    git_dir = store.path(target.name)
    matches = {
        touch.pull: Match(f"#{touch.pull}", f"changes its lines: {message(touch.subject)}")
        for touch in reversed(touching_pulls(git_dir, target, recipe))
    }
    matches.pop(int(recipe.upstream.get("pull") or 0), None)
    note = f"every pull/N/head that changes lines of {name_of(recipe)}{_shallow(git_dir)}"
    return _listed("pull requests of the mirror", note, list(matches.values())[::-1])


def _similar(recipe: Recipe, fix: Fix | None, target: Target, store: MirrorStore) -> Source:
    git_dir, words = store.path(target.name), terms([recipe], fix)
    files = fix.files or [file for file, _, _ in fix.guilty] if fix else files_of(target, recipe.boundary)
    names = [file.rpartition("/")[2] for file in files if not file.endswith("__init__.py")]
    found = similar(git_dir, target.branch, words, names, MOST)
    matches = [
        Match(f"#{item.number}", f"{item.state}, {', '.join(item.names[:4])}: {message(item.subject)}")
        for item in found
    ]
    return _listed("pull requests that name it", f"of any state, for {', '.join(words)}", matches)


def _shallow(git_dir: Path) -> str:
    return "; the mirror does not have the whole history" if (git_dir / "shallow").exists() else ""


def _listed(name: str, note: str, matches: Sequence[Match]) -> Source:
    return Source(name, True, note, tuple(matches[:MOST]), max(0, len(matches) - MOST))
