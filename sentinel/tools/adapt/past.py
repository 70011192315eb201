"""Find the former paths and parameter names of functions in a repository's history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from sentinel.contracts.contract import Contract
from sentinel.contracts.names import match_names
from sentinel.search.bindings import Definitions
from sentinel.sources import commits
from sentinel.sources.gitbinary import GitError
from sentinel.sources.gittrees import GitTrees
from sentinel.tools.adapt.project import Project
from sentinel.tools.adapt.proposals import Proposal

#: Number of evenly spaced commits to read. Up to twice as many are read, because the distance is rounded down.
_COMMITS = 40


def with_past(proposals: Sequence[Proposal], project: Project, contracts: Mapping[str, Contract]) -> list[Proposal]:
    """Add the former paths (``formerly``) and parameter names (``earlier``) of its function to each proposal.

    A few dozen commits are read, evenly spaced over the history. If a commit does not define a function at its path,
    but exactly one function of the same name elsewhere, both count as the same function.
    """
    assert project.mirror is not None
    history = commits.history(project.mirror, project.head)
    step = max(1, len(history) // _COMMITS)
    trees_of = [commit.tree for commit in reversed(history[::step])]
    found = {each.path: ([each.path], dict[str, list[str]]()) for each in proposals}
    with closing(GitTrees(project.mirror)) as trees:
        definitions = Definitions(trees, project.target.roots)
        names = {each.signature.name for each in proposals}
        defining = _defining(trees, names)
        for tree in trees_of:
            try:
                places = _places(definitions, tree, defining)
            except GitError:  # a shallow or partial mirror
                break
            for proposal in proposals:
                paths, earlier = found[proposal.path]
                definition = next(filter(None, (definitions.find(tree, path) for path in paths)), None)
                if definition is None or definition.name.kind != "function":
                    own = proposal.path.removeprefix(f"{proposal.signature.module}.")
                    there = [f"{project.target.module_of(file)}.{own}" for file in places.get(own, ())]
                    if len(there) == 1:
                        paths.append(there[0])
                        definition = definitions.find(tree, there[0])
                if definition is not None:
                    _note(proposal, contracts[proposal.contract], definition.name.parameters, earlier)
    return [
        replace(
            each,
            formerly=tuple(found[each.path][0][1:]),
            earlier={name: tuple(several) for name, several in found[each.path][1].items()},
        )
        for each in proposals
    ]


def _defining(trees: GitTrees, names: set[str]) -> object:
    """Return a function that finds in a file, given by its hash, the functions with one of these ``names``."""
    pattern = re.compile(rb"def (%s)\b" % b"|".join(name.encode() for name in sorted(names)))

    @cache
    def defining(blob: str) -> frozenset[str]:
        content = trees.blob(blob)
        if not pattern.search(content):
            return frozenset()
        text, found, owner = content.decode("utf-8", "replace"), set(), ""
        for line in re.finditer(r"^(\s*)(?:async )?(class|def) (\w+)", text, re.M):
            if line[2] == "class" and not line[1]:
                owner = f"{line[3]}."
            elif line[3] in names and line[2] == "def":
                found.add(f"{owner}{line[3]}" if line[1] else line[3])
        return frozenset(found)

    return defining


def _places(definitions: Definitions, tree: str, defining: object) -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}
    for file, blob in definitions.sources(tree):
        if any(part.startswith("test") for part in PurePosixPath(file).parts):
            continue
        for name in defining(blob):  # type: ignore[operator]
            places.setdefault(name, []).append(file)
    return places


def _note(proposal: Proposal, contract: Contract, then: frozenset[str], earlier: dict[str, list[str]]) -> None:
    """Add the former names of renamed parameters to ``earlier``: input of the contract -> former names.

    :param then: the names of the function's parameters at the former commit.
    """
    lost = {name: proposal.arguments.get(name, name) for name in proposal.takes}
    lost = {name: today for name, today in lost.items() if today not in then}
    if not lost:
        return
    today = {parameter.name for parameter in proposal.signature.parameters}
    match = match_names(
        contract, sorted(then - today), known=set(contract.lacking()) | (set(proposal.takes) - set(lost))
    )
    for name in lost:
        if name in match.names and match.names[name] not in earlier.get(name, ()):
            earlier.setdefault(name, []).append(match.names[name])
