from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from history_kit import BROKEN, BUGGY, CHANGED, DRIFTED, FIXED, History

from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog
from sentinel.records.ledger import Ledger
from sentinel.records.nightly import Change, changes, with_commits
from sentinel.reports import store as reports
from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options


@pytest.fixture
def decide_main(ledger: Callable[[], Ledger], tiny_catalog: Catalog, store: MirrorStore) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        ledger()
        runner = Runner(tiny_catalog, lambda t, r, p: open_checkout(t, r, store=store), Options(timeout=30))
        try:
            reports.write(folder, runner.decide(Job(find_recipes(tiny_catalog, ("tiny",))[0], Ref("git", "main"))))
        finally:
            runner.close()

    return run


@pytest.fixture
def night(
    history: History, decide_main: Any, ledger: Callable[[], Ledger], tiny_catalog: Catalog, tmp_path: Path
) -> Callable[..., list[Change]]:
    """Return the changes after this history of texts; the first one was recorded."""

    def run(before: str, *after: str) -> list[Change]:
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": before})
        decide_main(tmp_path / "recorded")
        for number, text in enumerate(after):
            history.commit({"tiny/losses.py": text, "README": str(number)}, f"tonight {number}")
        decide_main(tmp_path / "tonight")
        found = changes(tmp_path / "tonight", tmp_path / "recorded")
        recipes = {recipe.bug_id: recipe for recipe in find_recipes(tiny_catalog, ("tiny",))}
        book = ledger()
        return list(with_commits(found, recipes, lambda target: book))

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "what"), [(BUGGY, FIXED, "newly fixed"), (FIXED, BUGGY, "newly broken")])
def test_a_new_or_fixed_bug_is_listed_with_its_commit(history, night, before, after, what):
    (change,) = night(before, before, before, after, after)
    assert (change.what, change.subject) == (what, "TINY-MEAN")
    assert [commit["sha"] for commit in change.commits] == [history.commits[3]]


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (BUGGY, CHANGED, "drifted"),
        (BUGGY, DRIFTED, "drifted"),
        (BUGGY, BROKEN, "newly inconclusive"),
        (CHANGED, CHANGED.replace("7", "8"), "drifted"),
    ],
)
def test_verdicts_that_became_undecided_or_changed_are_listed(night, before, after, what):
    (change,) = night(before, after)
    assert (change.what, change.commits) == (what, ())


def test_unrecorded_verdicts_are_listed(history, decide_main, tmp_path):
    history.commit({"tiny/__init__.py": "", "tiny/losses.py": BUGGY})
    decide_main(tmp_path / "tonight")
    (tmp_path / "recorded").mkdir()
    assert [change.what for change in changes(tmp_path / "tonight", tmp_path / "recorded")] == ["not recorded"]
