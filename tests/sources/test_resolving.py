import hashlib
import shutil

import pytest

from sentinel.errors import Unavailable
from sentinel.sources import gitrefs, open_checkout
from sentinel.targets.refs import Ref


def test_a_missing_mirror_names_the_command(store, target):
    with pytest.raises(Unavailable, match=r"^no mirror of fake; run `sentinel mirror add fake`$") as error:
        open_checkout(target, Ref.parse("git:main"), store=store)
    assert error.value.kind == "ref"
    assert not store.home.path.exists(), "nothing is cloned, nothing is made"


def test_a_branch_is_preferred_to_a_remote_branch_and_that_to_a_tag(store, target, upstream, git):
    one, two = git(upstream, "rev-parse", "v1^{commit}"), git(upstream, "rev-parse", "main")
    seven = git(upstream, "rev-parse", "refs/pull/7/head")
    git(upstream, "tag", "topic", one)
    store.add(target, str(upstream))
    assert store.resolve(target, "topic") == one
    git(upstream, "update-ref", "refs/remotes/origin/topic", seven)
    store.add(target, str(upstream))
    assert store.resolve(target, "topic") == seven
    assert store.resolve(target, "origin/topic") == seven
    git(upstream, "branch", "topic", two)
    store.add(target, str(upstream))
    assert store.resolve(target, "topic") == two


def test_pull_heads_are_fetched_on_demand(store, target, upstream, git):
    store.add(target)
    assert "refs/pull/7/head" not in gitrefs.read_refs(store.path("fake"))
    seven = git(upstream, "rev-parse", "refs/pull/7/head")
    said: list[str] = []
    made = open_checkout(target, Ref.parse("git:pull/7/head"), store=store, progress=said.append)
    assert made.commit == seven
    assert any(line.startswith("fetching from file://") for line in said)
    shutil.rmtree(upstream)
    assert store.resolve(target, "pull/7/head") == seven, "it is kept"


def test_a_missing_pin_is_fetched_from_its_pull_request(store, target, upstream, git):
    store.add(target)
    seven = git(upstream, "rev-parse", "refs/pull/7/head")
    with pytest.raises(Unavailable, match=f"commit {seven} is not in the mirror; run `sentinel mirror update fake`"):
        open_checkout(target, Ref.parse(f"git:{seven}"), store=store)
    assert open_checkout(target, Ref.parse(f"git:{seven}"), store=store, pull=7).commit == seven


def test_a_pin_of_a_rebased_pull_request_is_fetched_by_hash(store, target, upstream, git):
    store.add(target)
    seven = git(upstream, "rev-parse", "refs/pull/7/head")
    git(upstream, "update-ref", "refs/pull/7/head", "main")
    assert store.resolve(target, seven, pull=7) == seven


def test_a_network_failure_is_reported_and_not_repeated(store, target, upstream, monkeypatch):
    store.add(target, str(upstream))
    shutil.rmtree(upstream)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"could not be fetched from file://.*upstream") as error:
            store.resolve(target, "a" * 40, pull=9)
        monkeypatch.setattr("sentinel.sources.transfers.fetch", None)
    assert "\n" not in error.value.reason


@pytest.mark.parametrize("name", ["mian", "deadbee", "v2", "refs/heads/mian", "nothing/like/it"])
def test_an_unknown_name_suggests_similar_ones(store, target, upstream, name):
    store.add(target, str(upstream))
    with pytest.raises(Unavailable, match=f"no branch, tag or commit '{name}'") as error:
        store.resolve(target, name)
    if name == "mian":
        assert "the nearest names are main" in error.value.reason


def test_an_ambiguous_short_sha_is_an_error(store, target, upstream, git):
    tree = git(upstream, "rev-parse", "main^{tree}")
    seen: dict[str, bytes] = {}
    for number in range(1 << 16):
        content = f"tree {tree}\nauthor A <a@b> {number} +0000\ncommitter A <a@b> 0 +0000\n\nx\n".encode()
        start = hashlib.sha1(b"commit %d\0" % len(content) + content).hexdigest()[:4]
        if start in seen:
            break
        seen[start] = content
    for branch, commit in (("first", seen[start]), ("second", content)):
        (upstream / "commit").write_bytes(commit)
        git(upstream, "branch", branch, git(upstream, "hash-object", "-t", "commit", "-w", "commit"))
    store.add(target, str(upstream))
    with pytest.raises(Unavailable, match="is an ambiguous abbreviation"):
        store.resolve(target, start)
