"""Search for duplicates of a bug: other recipes, upstream's history and pull requests, a fork, GitHub."""

from __future__ import annotations

import http.client
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.fixes import Fix
from sentinel.reports.escaping import message
from sentinel.sources.gitbinary import git_dir_of
from sentinel.sources.mirrors import MirrorStore
from sentinel.targets import Target
from sentinel.tools.upstream.history import files_of, name_of, named, touching
from sentinel.tools.upstream.words import similar, terms
from sentinel.values.literals import Tensor, plain

#: The most matches of a source that are listed.
MOST = 25

#: Limit for a response of GitHub; the fields of an issue.
_MOST_BYTES = 4_000_000
_SAID = {"number", "state", "title"}


@dataclass(frozen=True)
class Match:
    """A possible duplicate.

    :ivar what: a bug id, ``#N`` of a pull request, a commit.
    :ivar why: how the match is related to the bug.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Source:
    """A place that is searched for duplicates.

    :ivar searched: whether it was searched; ``note`` describes how, or why not.
    :ivar more: the number of matches that are not listed.
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
    fork: Path | None = None,
    environ: Mapping[str, str] | None = None,
    fix: Fix | None = None,
) -> list[Source]:
    """Search every source for duplicates. If a source cannot be searched, its note says why.

    :param fix: the fix of the bug, whose texts provide further names to search for.
    """
    environ = os.environ if environ is None else environ
    return [
        _recipes(recipe, others),
        _guarded("upstream history", lambda: _history(recipe, target, store)),
        _guarded("pull requests of the mirror", lambda: _pulls(recipe, others, target, store)),
        _guarded("pull requests that name it", lambda: _similar(recipe, fix, target, store)),
        _guarded("branches of the fork", lambda: _fork(recipe, target, fork)),
        _guarded("GitHub's search", lambda: _github(recipe, target, environ)),
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
    """Return what two recipes of a target have in common; empty if that is too little for a duplicate."""
    pull = recipe.upstream.get("pull")
    same = {
        "same pull request": bool(pull) and pull == other.upstream.get("pull"),
        "same boundary": recipe.boundary == other.boundary,
        "same kind of boundary": recipe.contract == other.contract and recipe.contract != "call",
        "same law": bool(set(recipe.laws[:1]) & set(other.laws)) or bool(set(other.laws[:1]) & set(recipe.laws)),
        "same scenario": scenario(recipe) == scenario(other),
    }
    reasons = [name for name, there in same.items() if there]
    law, place = same["same law"], same["same boundary"] or same["same kind of boundary"]
    return reasons if same["same pull request"] or same["same scenario"] or (law and place) else []


def scenario(recipe: Recipe) -> str:
    """Return a normal form of a scenario, which stays the same if rows are reordered or if groups or variants are
    renamed.
    """
    variants = sorted(_normal(inputs) for inputs in recipe.variants.values())
    return json.dumps([recipe.contract, variants])


def _normal(inputs: Mapping[str, Any]) -> str:
    rows = {len(value.nested()) for value in inputs.values() if isinstance(value, Tensor) and len(value.shape) > 1}
    count = rows.pop() if len(rows) == 1 else 0
    by_row: list[list[Any]] = [[] for _ in range(count)]
    rest = {}
    for name in sorted(inputs):
        value = plain(inputs[name])
        if isinstance(value, list) and len(value) == count:
            groups = name == "group"
            for index, item in enumerate(value):
                by_row[index].append([name, value.count(item) if groups else item])
        else:
            rest[name] = value
    return json.dumps([sorted(json.dumps(row) for row in by_row), rest], sort_keys=True)


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


def _pulls(recipe: Recipe, others: Sequence[Recipe], target: Target, store: MirrorStore) -> Source:
    """Search pull requests by the lines that they change, the name of the function, and the numbers of related pull
    requests.
    """
    git_dir = store.path(target.name)
    outside = ["--glob=refs/pull/*/head", "--not", f"refs/heads/{target.branch}"]
    like = [other for other in others if other.target == recipe.target and likeness(recipe, other)]
    numbers = {int(item.upstream["pull"]) for item in (recipe, *like) if item.upstream.get("pull")}
    words = [name_of(recipe), *(f"#{number}" for number in sorted(numbers))]
    touches = [
        *touching(git_dir, target, recipe, outside),
        *named(git_dir, words, outside),
    ]
    matches: dict[int, Match] = {}
    for number in sorted(numbers, reverse=True):
        matches[number] = Match(f"#{number}", "a recipe of the same bug refers to it")
    for item in touches:
        if item.pull is not None:
            why = "changes its lines" if item.why == "lines" else "its message names the function"
            matches.setdefault(item.pull, Match(f"#{item.pull}", f"{why}: {message(item.subject)}"))
    matches.pop(int(recipe.upstream.get("pull") or 0), None)
    note = f"every pull/N/head that changes lines of {name_of(recipe)} or names it{_shallow(git_dir)}"
    return _listed("pull requests of the mirror", note, list(matches.values()))


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


def _fork(recipe: Recipe, target: Target, fork: Path | None) -> Source:
    if fork is None:
        raise Unavailable("name your clone with --fork DIR")
    git_dir = git_dir_of(fork) if (fork / ".git").exists() else fork
    base = next((pin.ref.name for pin in recipe.pins if pin.ref.kind == "git"), None)
    revisions = ["--branches", *(["--not", base] if base else [])]
    touches = touching(git_dir, target, recipe, revisions)
    note = f"local branches that change lines of {name_of(recipe)}"
    return _listed("branches of the fork", note, [Match(item.ref, message(item.subject)) for item in touches])


# -- GitHub ------------------------------------------------------------------------------------------------------------


def _github(recipe: Recipe, target: Target, environ: Mapping[str, str]) -> Source:
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN")
    if not token:
        raise Unavailable("no GITHUB_TOKEN in the environment")
    site, _, repository = target.repository.removesuffix(".git").partition("github.com/")
    if site != "https://":
        raise Unavailable(f"{target.repository} is not on GitHub")
    api = environ.get("GITHUB_API_URL") or "https://api.github.com"
    name = name_of(recipe)
    matches = []
    for kind in ("pull-request", "issue"):  # the API requires one of the two
        query = urllib.parse.quote(f"repo:{repository} is:{kind} {name}")
        url = f"{api}/search/issues?per_page={MOST}&q={query}"
        matches += [
            Match(f"#{item['number']}", message(f"{item['state']}: {item['title']}")) for item in _items(url, token)
        ]
    return _listed("GitHub's search", f"issues and pull requests of {repository} with {name}", matches)


def _items(url: str, token: str) -> list[Any]:
    """Query GitHub's search for items, each with ``number``, ``state`` and ``title``."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            items = json.loads(answer.read(_MOST_BYTES))["items"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError) as error:
        raise Unavailable(f"the request to GitHub failed: {message(str(error))}") from None
    if not isinstance(items, list) or not all(isinstance(item, dict) and item.keys() >= _SAID for item in items):
        raise Unavailable("the response of GitHub is not a list of issues")
    return items


def _listed(name: str, note: str, matches: Sequence[Match]) -> Source:
    return Source(name, True, note, tuple(matches[:MOST]), max(0, len(matches) - MOST))
