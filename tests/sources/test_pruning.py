import os
from pathlib import Path

import pytest

from sentinel.sources import MirrorStore, locks, open_checkout, pruning
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

DAY = 86_400.0


@pytest.fixture
def made(store: MirrorStore, target: Target, upstream: Path) -> list[Checkout]:
    store.add(target, str(upstream))
    return [open_checkout(target, Ref.parse(f"git:{name}"), store=store) for name in ("main", "v1")]


def _end_of_this_run() -> None:
    for handle, _ in locks._users.values():
        os.close(handle)
    locks._users.clear()


def test_the_cache_is_listed(home, made):
    wheel = home.wheels / "fake-dist" / "fake_dist-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"12345")
    listed = {(entry.kind, entry.owner, entry.name): entry for entry in pruning.entries(home)}
    assert set(listed) == {("checkout", "fake", c.tree) for c in made} | {("wheel", "fake-dist", wheel.name)}
    assert listed["wheel", "fake-dist", wheel.name].size == 5
    assert all(listed["checkout", "fake", checkout.tree].in_use for checkout in made)
    assert all(listed["checkout", "fake", checkout.tree].size > 50 for checkout in made)


def test_an_empty_home_has_no_entries(home):
    assert pruning.entries(home) == []
    assert pruning.prune(home) == []
    assert not home.path.exists()


def test_entries_of_a_running_process_are_kept(home, made):
    assert pruning.prune(home) == []
    _end_of_this_run()
    assert {entry.name for entry in pruning.prune(home)} == {checkout.tree for checkout in made}
    assert pruning.entries(home) == []
    assert not list(home.checkouts.glob("*/refs/*.json"))
    assert home.mirror("fake").is_dir(), "somebody asked for the mirror"


def test_entries_are_pruned_by_age(home, store, target, made):
    _end_of_this_run()
    record = made[0].path.parent / "checkout.json"
    used = record.stat().st_mtime
    os.utime(record, (used - 10 * DAY, used - 10 * DAY))
    assert pruning.prune(home, older_than=20 * DAY, now=used) == []
    assert [entry.name for entry in pruning.prune(home, older_than=5 * DAY, now=used)] == [made[0].tree]
    assert [entry.name for entry in pruning.entries(home)] == [made[1].tree]
    again = open_checkout(target, made[0].ref, store=store)
    assert again == made[0], "what was pruned is made again"


def test_using_an_entry_updates_its_age(home, store, target, made):
    record = made[0].path.parent / "checkout.json"
    os.utime(record, (0, 0))
    open_checkout(target, made[0].ref, store=store)
    assert record.stat().st_mtime > 0


def test_leftovers_of_interrupted_runs_are_removed(home, made):
    leftover = home.checkouts / "fake" / ".new-killed"
    (leftover / "tree").mkdir(parents=True)
    (leftover / "tree").chmod(0o555)
    mine = home.checkouts / "fake" / ".new-mine"
    mine.mkdir()
    locks.mark_used(home.checkouts, mine)
    assert [entry.name for entry in pruning.prune(home)] == [".new-killed"]
    assert not leftover.exists()
    assert mine.exists()
