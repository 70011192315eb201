from typing import Any

import pytest
from history_kit import BUGGY, History

from sentinel.records import timelines
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.records.origins import Origin, origin
from sentinel.sources.commits import commit
from sentinel.sources.gittrees import GitTrees

#: Lines that git recognises as a copy, because they are as distinctive as those of real functions.
BODY = """    weighted_sum_of_losses = (loss_mat * 1.0).sum()
    number_of_tokens_that_count = loss_mask.sum()
    return weighted_sum_of_losses / number_of_tokens_that_count
"""
AGGREGATE = f'def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):\n{BODY}'


def of_the_last(history: History, entry: ClosureVerdict) -> Origin | None:
    mirror = history.path / ".git"
    now = commit(mirror, history.commits[-1])
    trees = GitTrees(mirror)
    try:
        return origin(trees, entry, now.tree, commit(mirror, now.parents[0]).tree)
    finally:
        trees.close()


def begun(record: dict[str, Any]) -> dict[str, Any]:
    return dict(record["changes"][0])


def test_new_code_introduced_its_bug(history, swept):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": "A_CONSTANT = 1\n"})
    history.commit({"tiny/losses.py": f"A_CONSTANT = 1\n\n\n{AGGREGATE}"}, "aggregation (#2)")
    record = swept()
    change = begun(record)
    assert (change["what"], change["undecided"], change["why"]) == ("present", 1, "drift")
    assert change["origin"] == {"lines": 4, "older": 0}
    assert timelines.row(record)[2] == "+2026-01-02 #2"


@pytest.mark.parametrize(
    "before",
    [
        {"tiny/old_losses.py": AGGREGATE, "tiny/losses.py": ""},
        {"tiny/losses.py": AGGREGATE.replace("agg_loss", "aggregate")},
    ],
    ids=["moved", "renamed"],
)
def test_moved_code_does_not_show_the_earlier_state(history, swept, before):
    history.commit({"tiny/__init__.py": "", **before})
    moved = {name: None for name in before if name != "tiny/losses.py"}
    history.commit({**moved, "tiny/losses.py": AGGREGATE}, "a refactoring (#2)")
    record = swept()
    change = begun(record)
    assert change["what"] == "present"  # and not "introduced"
    assert change["origin"]["older"] >= 3
    assert timelines.row(record)[2] == "~2026-01-02 #2"
    assert "of the 4 lines of its code are older" in timelines.change_text(change)


def test_the_first_commit_has_no_older_code(history, swept):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY}, "the first (#1)")
    record = swept()
    assert begun(record)["origin"] is None
    assert timelines.row(record)[2] == "≤2026-01-01 #1"


@pytest.mark.parametrize(
    ("file", "line"),
    [("", 0), ("tiny/nowhere.py", 1), ("tiny/losses.py", 2), ("tiny/broken.py", 1)],
    ids=["not found", "no such file", "no definition begins there", "not Python"],
)
def test_an_unknown_origin_is_none(history, file, line):
    history.commit({"README": ""})
    history.commit({"tiny/losses.py": AGGREGATE, "tiny/broken.py": "def ("})
    assert of_the_last(history, ClosureVerdict("", "", "reproduced", file=file, line=line)) is None


def test_a_method_turned_into_a_function_is_older_code(history):
    method = AGGREGATE.replace("\n", "\n    ")
    history.commit({"tiny/other.py": f"class Losses:\n    {method.rstrip()}\n"})
    history.commit({"tiny/losses.py": AGGREGATE, "tiny/other.py": "class Losses:\n    pass\n"})
    assert of_the_last(history, ClosureVerdict("", "", "reproduced", file="tiny/losses.py", line=1)) == Origin(4, 4)


def test_copied_code_counts_as_new(history):
    history.commit({"tiny/other.py": AGGREGATE})
    history.commit({"tiny/losses.py": AGGREGATE})
    assert of_the_last(history, ClosureVerdict("", "", "reproduced", file="tiny/losses.py", line=1)) == Origin(4, 0)
