"""Failures during a sweep: each is reported, and no earlier result is lost."""

import errno
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from history_kit import BUGGY, FIXED, History

from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes import find_recipes
from sentinel.records import timelines
from sentinel.records.closure_verdicts import ClosureVerdictStore
from sentinel.records.executors import Executor
from sentinel.records.history import Selection
from sentinel.records.ledger import Ledger
from sentinel.sources import Home
from sentinel.sources.gitbinary import MissingObjectError
from sentinel.sources.gittrees import GitTrees


def write(history: History, *texts: str) -> None:
    for number, text in enumerate(texts):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text, "README": str(number)})


def verdicts(record: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(run["verdict"], run["kind"], run["commits"]) for run in record["runs"]]


@pytest.mark.slow
def test_a_force_pushed_main_is_swept_again_without_probing_equal_code(history, swept):
    write(history, BUGGY, BUGGY, FIXED)
    assert verdicts(swept()) == [("reproduced", "", 2), ("fixed", "", 1)]
    history.git("reset", "-q", "--hard", history.commits[0])
    history.commit({"README": "another history"})
    after = swept()
    assert verdicts(after) == [("reproduced", "", 2)]
    assert (after["probed"], after["source"]["head"]) == (0, history.commits[-1])


def test_a_deleted_ref_is_kept_and_an_unknown_one_is_reported(history, swept):
    write(history, BUGGY)
    history.git("branch", "release")
    assert verdicts(swept(ref="release")) == [("reproduced", "", 1)]
    history.git("branch", "-D", "release")
    assert verdicts(swept(ref="release")) == [("reproduced", "", 1)]
    with pytest.raises(Unavailable, match="nonsense"):
        swept(ref="nonsense")


def test_a_shallow_mirror_reports_the_start_of_its_history(history, tiny_catalog, store, swept, ledger, tmp_path):
    write(history, FIXED, BUGGY, BUGGY)
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth=2", f"file://{history.path}", str(shallow)], check=True, capture_output=True
    )
    store.add(tiny_catalog.targets["tiny"], str(shallow))
    book = Ledger(tiny_catalog, ledger_settings(), tiny_catalog.targets["tiny"], store)
    account = book.sweep(find_recipes(tiny_catalog, ("tiny",)), Selection("main"))
    record = account.records[0]
    assert verdicts(record) == [("reproduced", "", 2)]
    assert record["source"]["begins"] == [history.commits[1]]
    assert "shallow" in "\n".join(timelines.story(record))


def ledger_settings() -> Any:
    from sentinel.settings import Settings

    return Settings(timeout=30)


def test_a_commit_with_missing_files_is_unavailable_until_they_are_fetched(history, swept, monkeypatch):
    write(history, BUGGY, FIXED)
    whole = GitTrees.blob
    absent = history.git("rev-parse", f"{history.commits[1]}:tiny/losses.py")

    def blob(self: GitTrees, name: str) -> bytes:
        if name == absent:
            raise MissingObjectError("absent")
        return whole(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(GitTrees, "blob", blob)
        record = swept()
    assert verdicts(record) == [("reproduced", "", 1), ("unavailable", "ref", 1)]
    assert "mirror update tiny" in record["runs"][1]["reason"]
    assert verdicts(swept()) == [("reproduced", "", 1), ("fixed", "", 1)]


def test_code_that_changes_its_working_copy_affects_no_other_commit(history, swept):
    vandal = "import os\nos.chmod(__file__, 0o644)\nopen(__file__, 'a').write('#')\nos.mkdir(__file__[:-9] + 'more')\n"
    write(history, BUGGY + vandal)
    history.commit({"tiny/losses.py": FIXED, "tiny/more": "now a file"})
    history.commit({"tiny/losses.py": BUGGY, "tiny/__init__.py": "x = 1"})
    assert verdicts(swept())[-2:] == [("fixed", "", 1), ("reproduced", "", 1)]


def test_crashing_code_is_probed_at_each_tree(history, swept):
    crash = BUGGY.replace("return", "import os; os.abort(); return")
    write(history, crash)
    history.commit({"tiny/other.py": "x = 1"})
    history.commit({"README": "nothing of the package"})
    record = swept()
    assert verdicts(record) == [("inconclusive", "crash", 3)]
    assert record["closures"] == 2


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep_and_keeps_its_verdicts(history, swept, monkeypatch):
    write(history, BUGGY, FIXED, BUGGY + "\n", FIXED + "\n")
    written: list[int] = []
    usual = os.write

    def full(handle: int, data: bytes) -> int:
        if data.lstrip().startswith(b"{") and b'"verdict"' in data:
            written.append(handle)
            if len(written) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")
        return usual(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(SentinelError, match="no space left"):
            swept()
    record = swept()
    assert verdicts(record) == [("reproduced", "", 1), ("fixed", "", 1), ("reproduced", "", 1), ("fixed", "", 1)]
    assert record["probed"] == 2


def test_an_interrupt_keeps_the_verdicts(history, ledger, tiny_catalog, monkeypatch):
    write(history, BUGGY, FIXED, BUGGY + "\n", FIXED + "\n")
    book, recipes = ledger(), find_recipes(tiny_catalog, ("tiny",))
    done: list[Any] = []
    usual = Executor._perform

    def perform(self: Executor, *work: Any) -> Any:
        done.append(work)
        if len(done) == 3:
            raise KeyboardInterrupt
        return usual(self, *work)

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_perform", perform)
        with pytest.raises(KeyboardInterrupt):
            book.sweep(recipes, Selection("main"), 1)
    assert not list((book.entries.folder / "copies").iterdir())
    account = book.sweep(recipes, Selection("main"), 1)
    assert (account.probed, len(account.records[0]["runs"])) == (2, 4)


def test_leftovers_of_a_killed_sweep_are_removed(history, swept, store):
    write(history, BUGGY)
    swept()
    folder = store.home.path / "history"
    (folder / "copies" / "killed").mkdir(parents=True)
    (folder / "copies" / "killed.lock").touch()
    for file in folder.glob("tiny/TINY-MEAN/*.jsonl"):
        with file.open("a") as stream:
            stream.write('{"closure": "cut off in the mid')
    write(history, FIXED)
    record = swept()
    assert (verdicts(record), record["probed"]) == ([("reproduced", "", 1), ("fixed", "", 1)], 1)
    assert not list((folder / "copies").iterdir())


@pytest.mark.parametrize("left", ["", "x" * 10_000, '{"basis": {}}\n', '{"basis": {}}\n' + "x" * 10_000])
def test_a_partial_line_is_removed_before_the_next_one(left, tmp_path):
    file = tmp_path / "history" / "entries.jsonl"
    file.parent.mkdir()
    file.write_text(left)
    store = ClosureVerdictStore(Home(tmp_path))
    for number in range(2):
        store.append(file, {"basis": {}}, {"number": number})
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"basis": {}}, {"number": 0}, {"number": 1}]


@pytest.mark.slow
def test_two_concurrent_sweeps_agree(history, ledger, tiny_catalog, swept):
    write(history, *(text + "\n" * number for number in range(4) for text in (BUGGY, FIXED)))
    book, recipes = ledger(), find_recipes(tiny_catalog, ("tiny",))

    def sweep(_: int) -> list[dict[str, Any]]:
        return book.sweep(recipes, Selection("main"), 1).records

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(sweep, range(2))
    assert one == other
    assert len(one[0]["runs"]) == 8
    for file in book.entries.folder.glob("tiny/TINY-MEAN/*.jsonl"):
        assert all(json.loads(line) for line in file.read_text().splitlines())
    assert swept()["probed"] == 0


def test_dates_that_go_backwards_change_no_order(history, swept):
    for text, day in ((FIXED, 9), (BUGGY, 20), (BUGGY, 3), (FIXED, 5)):
        history.commit({"tiny/__init__.py": "", "tiny/losses.py": text}, day=day)
    record = swept()
    assert verdicts(record) == [("fixed", "", 1), ("reproduced", "", 2), ("fixed", "", 1)]
    assert (record["spells"][0]["days"], record["spells"][0]["clock_went_backwards"]) == (0, True)
    assert swept(since=history.commits[1])["commits"] == 3
    assert swept(since="2026-01-15")["commits"] == 3  # all commits from that day on
    assert swept(until="2026-01-10")["commits"] == 4


def test_a_damaged_closure_or_line_counts_as_missing(history, swept, store):
    write(history, BUGGY)
    swept()
    folder = store.home.path / "history"
    (folder / "tiny.jsonl").unlink()
    for file in folder.glob("tiny/closures/*.json"):
        file.write_text("{}")
    assert (swept()["probed"], swept()["probed"]) == (1, 0)
