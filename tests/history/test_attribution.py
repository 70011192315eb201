"""Which commits a recipe may name as those that brought its bug and mended it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attribution import fixed_by, introduced_by
from history_kit import BROKEN, BUGGY, CHANGED, FIXED, History

Swept = Callable[..., dict[str, Any]]

#: The bug in lines enough to know them again elsewhere.
AGGREGATE = """def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    weighted_sum_of_losses = (loss_mat * 1.0).sum()
    number_of_tokens_that_count = loss_mask.sum()
    return weighted_sum_of_losses / number_of_tokens_that_count
"""


def told(history: History, swept: Swept, *texts: str) -> tuple[str, str]:
    """What is said of commits #1, #2, … with these texts; the first of them has nothing else."""
    for number, text in enumerate(texts, 1):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text}, f"a change (#{number})")
    record = swept()
    return introduced_by(record), fixed_by(record)


def named(history: History, number: int) -> str:
    return f"{history.commits[number - 1][:9]} (#{number}, 2026-01-{number:02})"


def test_each_time_that_it_came_and_went(history, swept):
    found = told(history, swept, FIXED, BUGGY, FIXED, BUGGY)
    assert found == (f"{named(history, 2)}; {named(history, 4)}", named(history, 3))


def test_what_was_published_so_came_with_the_first_commit(history, swept):
    assert told(history, swept, BUGGY, FIXED) == (named(history, 1), named(history, 2))


def test_behind_commits_that_decide_nothing_nobody_knows(history, swept):
    assert told(history, swept, FIXED, BROKEN, BUGGY, BROKEN, FIXED) == ("", "")


def test_a_time_that_is_not_known_keeps_its_place(history, swept):
    found = told(history, swept, FIXED, BROKEN, BUGGY, FIXED, BUGGY)
    assert found == (f"not known; {named(history, 5)}", named(history, 4))


def test_what_is_neither_is_no_fix(history, swept):
    assert told(history, swept, BUGGY, CHANGED) == (named(history, 1), "")


def test_code_from_elsewhere_may_have_brought_its_bug_along(history, swept):
    history.commit({"tiny/__init__.py": "", "tiny/old.py": AGGREGATE})
    history.commit({"tiny/old.py": None, "tiny/losses.py": AGGREGATE})
    assert introduced_by(swept()) == ""


def test_part_of_a_history_does_not_begin_with_the_bug(history, swept):
    for number in range(3):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": f"{AGGREGATE}# {number}\n"})
    assert introduced_by(swept()).startswith(history.commits[0][:9])
    assert introduced_by(swept(since=history.commits[1])) == ""
