import os
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import Home, MirrorStore, git_objects, gitbinary, gitrefs, mirrors, open_checkout
from sentinel.sources.gitbinary import GitError
from sentinel.targets.refs import Ref


@pytest.fixture(params=["clone", "bare", "bare without config", "tar", "linked work tree", "url"])
def origin(request: pytest.FixtureRequest, tmp_path: Path, upstream: Path, git) -> str:
    kind = request.param
    bare = tmp_path / "bare.git"
    if kind == "clone":
        return str(upstream)
    if kind == "url":
        return f"file://{upstream}"
    if kind == "linked work tree":
        git(upstream, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
        return str(tmp_path / "linked")
    git(tmp_path, "clone", "-q", "--mirror", str(upstream), str(bare))
    if kind == "bare without config":
        for name in ("config", "description", "hooks", "info", "branches"):
            path = bare / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if kind != "tar":
        return str(bare)
    with tarfile.open(tmp_path / "bare.tar", "w") as tar:
        tar.add(bare, "fake.git")
    return str(tmp_path / "bare.tar")


def test_add_accepts_every_kind_of_origin(store, target, origin, upstream, git):
    mirror = store.add(target, origin)
    assert mirror.whole
    assert mirror.url == f"file://{upstream}"
    main = git(upstream, "rev-parse", "main")
    assert store.resolve(target, "main") == main
    assert store.resolve(target, "HEAD") == main
    assert store.resolve(target, main[:9]) == main
    assert store.resolve(target, "v1") == git(upstream, "rev-parse", "v1^{commit}")
    if not origin.startswith("file:"):
        refs = gitrefs.read_refs(mirror.path)
        assert refs["refs/pins/one"] == store.resolve(target, "v1")
        assert refs["refs/pull/7/head"] == git(upstream, "rev-parse", "refs/pull/7/head")
    if not origin.startswith("file:"):
        assert store.resolve(target, "pull/7/head") == git(upstream, "rev-parse", "refs/pull/7/head")
        # The store is independent of its origin, which may be removed.
        shutil.rmtree(upstream)
        for path in (Path(origin), store.home.path.parent / "bare.git"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        assert open_checkout(target, Ref.parse("git:main"), store=store).commit == main


def test_a_mirror_shares_no_file_with_its_origin(store, target, origin):
    """A later change of a file in the origin does not change the mirror. A second origin is copied too."""
    for _ in range(2):
        mirror = store.add(target, origin)
        assert {path.lstat().st_nlink for path in mirror.path.rglob("*") if path.is_file()} == {1}


def test_adding_does_not_change_the_origin(store, target, upstream):
    def snapshot() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.lstat().st_size, p.lstat().st_mtime_ns) for p in upstream.rglob("*"))

    before = snapshot()
    store.add(target, str(upstream))
    open_checkout(target, Ref.parse("git:main"), store=store)
    assert snapshot() == before


def test_a_second_origin_is_merged(store, target, upstream, tmp_path, git):
    shallow = tmp_path / "shallow.git"
    git(tmp_path, "clone", "-q", "--bare", "--depth=1", f"file://{upstream}", str(shallow))
    git(shallow, "update-ref", "refs/pins/kept", "main")
    first = git(upstream, "rev-parse", "main~1")
    store.add(target, str(shallow))
    path = store.path("fake")
    assert gitrefs.read_shallow(path)
    with pytest.raises(Unavailable, match=f"commit {first} is not in the mirror"):
        store.resolve(target, first)
    mirror = store.add(target, str(upstream))
    assert store.resolve(target, first) == first
    assert {"refs/pins/kept", "refs/pins/one"} <= set(gitrefs.read_refs(path))
    assert not gitrefs.read_shallow(path), "the history is whole now"
    assert mirror.origins == (str(shallow), str(upstream))


def test_a_partial_origin_stays_partial(store, target, with_large_files, tmp_path, git):
    bare = tmp_path / "partial.git"
    git(tmp_path, "clone", "-q", "--bare", "--filter=blob:limit=1m", f"file://{with_large_files}", str(bare))
    (bare / "config").unlink()
    mirror = store.add(target, str(bare))
    assert mirror.absent == 2
    packs = list(mirror.path.glob("objects/pack/*.pack"))
    assert packs
    assert all(pack.with_suffix(".promisor").exists() for pack in packs)
    blob = git(with_large_files, "rev-parse", "main:fake/asset.bin")
    assert blob in (mirror.path / "absent").read_text().split()


def test_a_missing_blob_is_an_error_without_network_access(store, target, with_large_files, git, monkeypatch, tmp_path):
    """The remote is reachable, so a lazy fetch would succeed here."""
    store.add(target)
    blob = git(with_large_files, "rev-parse", "main:fake/asset.bin")
    mirror = store.path("fake")
    trace = tmp_path / "trace"
    monkeypatch.setitem(gitbinary._ENVIRONMENT, "GIT_TRACE", str(trace))
    monkeypatch.delitem(gitbinary._ENVIRONMENT, "GIT_NO_LAZY_FETCH")  # Like git before 2.45.
    assert git_objects.sizes(mirror, [blob]) == {blob: None}
    with pytest.raises(GitError, match=f"object {blob} is missing"):
        list(git_objects.contents(mirror, [blob]))
    assert gitbinary.run(mirror, "cat-file", "-p", blob).status != 0
    assert gitbinary.run(mirror, "archive", "main").status != 0
    assert "cat-file" in trace.read_text()
    assert "fetch" not in trace.read_text()
    assert "remote" not in (mirror / "config").read_text()


def test_update_fetches_new_commits(store, target, upstream, git):
    store.add(target, str(upstream))
    (upstream / "fake" / "__init__.py").write_text("VALUE = 3\n")
    git(upstream, "commit", "-qam", "three")
    git(upstream, "update-ref", "refs/pull/7/head", "main")
    git(upstream, "update-ref", "refs/pull/8/head", "main")
    main = git(upstream, "rev-parse", "main")
    store.update(target)
    assert store.resolve(target, "main") == main
    assert store.resolve(target, "pull/7/head") == main
    assert "refs/pull/8/head" not in gitrefs.read_refs(store.path("fake")), "nobody asked for it yet"
    assert "remote" not in (store.path("fake") / "config").read_text()


def test_update_without_a_mirror_or_network_is_an_error(store, target, upstream):
    with pytest.raises(SentinelError, match="no mirror of fake; run `sentinel mirror add fake`"):
        store.update(target)
    store.add(target, str(upstream))
    shutil.rmtree(upstream)
    with pytest.raises(SentinelError, match="cannot update the mirror of fake from file://"):
        store.update(target)
    assert store.resolve(target, "main")


def test_a_fork_replaces_upstream(store, target, upstream, tmp_path, git):
    fork = tmp_path / "fork"
    git(tmp_path, "clone", "-q", str(upstream), str(fork))
    (fork / "fake" / "__init__.py").write_text("VALUE = 9\n")
    git(fork, "commit", "-qam", "nine")
    assert store.add(replace(target, repository=f"file://{fork}")).url == f"file://{fork}"
    assert store.resolve(target, "main") == git(fork, "rev-parse", "main")


def test_a_password_in_a_url_is_not_shown(store, target, upstream):
    mirror = store.add(replace(target, repository="https://me:secret@localhost:1/x"), str(upstream))
    assert mirror.url == "https://localhost:1/x"
    with pytest.raises(SentinelError) as error:
        store.update(target)
    assert "secret" not in str(error.value)


def test_an_unusable_origin_is_rejected(store, target, tmp_path, git):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no tar")
    git(tmp_path, "init", "-q", "--bare", "nothing.git")
    for origin, says in [
        ("absent", "no such file or directory"),
        ("empty", "is not a git directory"),
        ("file", "is not a complete tar"),
        ("nothing.git", "no branch or tag whose commit exists"),
    ]:
        with pytest.raises(SentinelError, match=says):
            store.add(target, str(tmp_path / origin))
    with pytest.raises(SentinelError, match="cannot mirror file://"):
        store.add(target, f"file://{tmp_path}/absent")
    assert store.list() == []
    assert [path.name for path in store.home.mirrors.iterdir()] == [".fake.lock"]


def test_an_incomplete_history_is_rejected(store, target, upstream, git):
    first = git(upstream, "rev-parse", "main~1")
    (upstream / ".git" / "objects" / first[:2] / first[2:]).unlink()
    with pytest.raises(SentinelError, match="is incomplete"):
        store.add(target, str(upstream))
    assert store.list() == []


def test_a_killed_add_leaves_no_usable_mirror(store, target, upstream, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mirrors, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            store.add(target, str(upstream))
    assert store.list() == []
    assert store.add(target, str(upstream)).whole


def test_add_without_git_is_an_error(store, target, upstream, monkeypatch):
    store.add(target, str(upstream))
    for name in [name for name in sys.modules if name == "git" or name.startswith("git.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("PATH", str(upstream))
    with pytest.raises(SentinelError, match="git is not installed"):
        store.add(target, str(upstream))
    with pytest.raises(Unavailable, match="git is not installed"):
        open_checkout(target, Ref.parse("git:main"), store=store)


def test_an_unwritable_home_is_reported(target, upstream, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SentinelError, match=r"cannot write to .*file.*; set SENTINEL_HOME"):
        MirrorStore(Home(tmp_path / "file")).add(target, str(upstream))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("place", ["/proc", "/proc/nothing", "x" * 300])
def test_a_home_that_cannot_be_created_is_reported(place, target, upstream, tmp_path):
    home = Home(tmp_path / place)
    with pytest.raises(SentinelError, match=r"cannot write to .*; set SENTINEL_HOME to a writable folder"):
        MirrorStore(home).add(target, str(upstream))
    with pytest.raises(SentinelError, match=r"cannot write to .*; set SENTINEL_HOME to a writable folder"):
        open_checkout(target, Ref("path", str(upstream)), store=MirrorStore(home))


def test_add_on_a_full_disk_is_an_error(store, target, upstream, monkeypatch):
    def full(*_: object, **__: object) -> None:
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 100_000)

    monkeypatch.setattr("sentinel.sources.adding.shutil.copyfile", full)
    with pytest.raises(SentinelError, match=r"no space left on the disk that holds .*sentinel cache prune"):
        store.add(target, str(upstream))
    assert store.list() == []
