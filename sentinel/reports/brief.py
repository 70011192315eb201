"""Summarise one verdict: title, severity, place in the code, one wrong number, and a command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.grades import grade, order
from sentinel.reports.escaping import message
from sentinel.reports.numbers import one_number
from sentinel.targets.refs import Ref


@dataclass(frozen=True)
class Brief:
    """The summary of a verdict. Every field is safe to print on a terminal.

    :ivar rank: a sort key. It is 0 for the highest severity, and largest for verdicts without a severity.
    :ivar grade: severity and realism of the recipe, such as ``high, default``; for a law, its rank.
    :ivar number: one wrong number with the right one; empty if there is none.
    """

    rank: int
    title: str
    grade: str
    where: str
    number: str
    command: str

    @property
    def lines(self) -> list[str]:
        return [line for line in (self.title, self.where, self.number, self.command) if line]


def brief(document: Mapping[str, Any]) -> Brief:
    """Return the summary of an evidence document."""
    recipe, boundary = document["recipe"]["document"], document["boundary"]
    rank = None if document["bug_id"] else _ranks().get(str(document["law"]))
    return Brief(
        order(recipe)[0],
        message(document["title"]),
        message(grade(recipe) or (f"rank {rank}" if rank else "")),
        message(f"{boundary['file']}:{boundary['line']}" if boundary["file"] else boundary["written"]),
        one_number(document) if document["verdict"] == "reproduced" else "",
        message(command(document)),
    )


@cache
def _ranks() -> Mapping[str, int]:
    return {law.name: law.rank for law in bundled_catalog().laws.values()}


def command(document: Mapping[str, Any]) -> str:
    """Return the command that repeats the verdict of an evidence document."""
    kind, _, name = str(document["ref"]).partition(":")
    ref = Ref("git", name).short if kind == "git" else str(document["ref"])
    option = "--sentinel-repo=." if kind == "path" else f"--sentinel-ref={shlex.quote(ref)}"
    target, bug = str(document["target"]), str(document["bug_id"])
    if not bug:
        law = f"laws/{target}/{document['boundary']['written']}::{document['law']}[{ref}]"
        return f"pytest {shlex.quote(law)} {option}"
    if document["expect"] is not None and kind in ("git", "pypi"):
        return f"pytest {shlex.quote(f'recipes/{target}/{bug}.yaml::{ref}')}"
    return f"pytest --sentinel-target={shlex.quote(target)} --sentinel-bug={shlex.quote(bug)} {option}"
