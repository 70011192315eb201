"""Bisection finds the commit that introduced or fixed a bug."""

from collections.abc import Callable
from typing import Any

import pytest
from history_kit import BROKEN, BUGGY, FIXED, History

from sentinel.errors import SentinelError
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.records.bisection import Bisection, bisect
from sentinel.records.ledger import Ledger

Find = Callable[..., Bisection]


@pytest.fixture
def find(ledger: Callable[[], Ledger], tiny_catalog: Catalog) -> Find:
    def run(good: str, bad: str, **options: Any) -> Bisection:
        book = ledger()
        with book.decider(find_recipes(tiny_catalog, ("tiny",))) as decide:
            ends = book.commit(good), book.commit(bad)
            return bisect(book.mirror, *ends, lambda commit: decide(commit)["TINY-MEAN"], **options)

    return run


def write(history: History, *texts: str) -> None:
    for number, text in enumerate(texts):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text, "README": str(number)})


@pytest.mark.slow
def test_bisection_finds_the_introducing_commit_in_few_steps(history, find):
    write(history, *[FIXED] * 11, *[BUGGY] * 9)
    found = find(history.commits[0], "main")
    assert found.first.sha == history.commits[11]
    assert len(found.steps) <= 5


def test_commits_that_cannot_be_decided_are_skipped(history, find):
    write(history, FIXED, FIXED, BROKEN, BROKEN, FIXED, BUGGY, BROKEN, BUGGY)
    found = find(history.commits[0], "main")
    assert found.first.sha == history.commits[5]


def test_all_skipped_commits_around_the_change_are_suspects(history, find):
    write(history, FIXED, BROKEN, BROKEN, BUGGY)
    found = find(history.commits[0], "main")
    assert found.first is None
    assert {commit.sha for commit in found.suspects} == set(history.commits[1:])


def test_a_bug_of_a_merged_branch_is_introduced_by_the_merge(history, find):
    write(history, FIXED, FIXED)
    history.git("checkout", "-q", "-b", "side")
    history.commit({"tiny/losses.py": BUGGY})
    history.git("checkout", "-q", "main")
    history.commit({"README": "main goes on"})
    merge = history.merge("side", {"tiny/losses.py": BUGGY})
    history.commit({"README": "and on"})
    line = find(history.commits[0], "main")
    assert line.first.sha == merge


def test_ends_on_two_branches_use_the_merge_base(history, find):
    write(history, FIXED)
    history.git("checkout", "-q", "-b", "release")
    release = history.commit({"README": "released"})
    history.git("checkout", "-q", "main")
    write(history, FIXED, BUGGY)
    found = find(release, "main")
    assert found.first.sha == history.commits[-1]


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (0, 1, "must be reproduced"),
        (1, 0, "must be reproduced"),
        (0, 0, "are the same"),
        (2, 0, "no conclusive verdict"),
    ],
)
def test_invalid_ends_are_rejected(history, find, good, bad, said):
    write(history, FIXED, FIXED + "\n", BROKEN)
    with pytest.raises(SentinelError, match=said):
        find(history.commits[good], history.commits[bad])
