import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import Home, MirrorStore, checkouts, gitbinary, open_checkout
from sentinel.sources.trees import FILE, Entry, blob_id, tree_hash
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

MAIN = Ref.parse("git:main")


def _full(upstream: Path, git, name: str = "main") -> Ref:
    return Ref.parse(f"git:{git(upstream, 'rev-parse', name + '^{commit}')}")


def test_package_roots_keep_their_repository_paths(store, target, upstream, git):
    store.add(target, str(upstream))
    made = open_checkout(target, MAIN, store=store)
    assert made.roots == ("fake", "gym/fake_gym")
    assert made.import_roots == (made.path, made.path / "gym")
    assert made.commit == git(upstream, "rev-parse", "main")
    assert made.left_out == ()
    found = sorted(path.relative_to(made.path).as_posix() for path in made.path.rglob("*") if path.is_file())
    assert found == ["fake/__init__.py", "fake/deep/loss.py", "fake/deep/run.sh", "gym/fake_gym/__init__.py"]
    assert checkouts.files(made)["fake/__init__.py"] == git(upstream, "rev-parse", "main:fake/__init__.py")
    code = "import fake, fake_gym; print(fake.VALUE, fake_gym.GYM)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, made.import_roots))}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == "2 True"


def test_package_roots_are_found_in_the_tree(store, target, upstream, git):
    git(upstream, "mv", "gym", "moved")
    git(upstream, "commit", "-qm", "moved")
    store.add(target, str(upstream))
    assert open_checkout(target, MAIN, store=store).roots == ("fake",)
    assert open_checkout(target, Ref.parse("git:v1"), store=store).roots == ("fake", "gym/fake_gym")
    nothing = Target("fake", target.repository, (PackageRoot("no/such"),))
    with pytest.raises(Unavailable, match="git:main has none of its package roots; looked for no/such"):
        open_checkout(nothing, MAIN, store=store)


def test_files_of_a_checkout_are_read_only(store, target, upstream):
    store.add(target, str(upstream))
    made = open_checkout(target, MAIN, store=store)
    for path in (made.path, *made.path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o555 if path.is_dir() else 0o444), path


def test_equal_files_share_a_checkout(store, target, upstream, git):
    (upstream / "README.md").write_text("changed outside of the roots\n")
    git(upstream, "commit", "-qam", "doc")
    store.add(target, str(upstream))
    first, second = (open_checkout(target, Ref.parse(f"git:{name}"), store=store) for name in ("main", "main~1"[:4]))
    before = open_checkout(target, _full(upstream, git, "main~1"), store=store)
    assert first.tree == second.tree == before.tree
    assert first.path == before.path
    assert first.commit != before.commit


def test_a_warm_checkout_of_a_full_sha_runs_no_git(store, target, upstream, git, monkeypatch):
    store.add(target, str(upstream))
    ref = _full(upstream, git)
    made = open_checkout(target, ref, store=store)
    shutil.rmtree(store.home.mirrors)
    monkeypatch.setattr(gitbinary, "_git", None)
    assert open_checkout(target, ref, store=store) == made


def test_different_package_roots_give_another_checkout(store, target, upstream, git):
    """If an adapter gains a package root, an older checkout is not reused."""
    store.add(target, str(upstream))
    fewer = Target("fake", target.repository, target.roots[:1])
    ref = _full(upstream, git)
    assert open_checkout(fewer, ref, store=store).roots == ("fake",)
    assert open_checkout(target, ref, store=store).roots == ("fake", "gym/fake_gym")


def test_large_files_are_left_out(store, target, with_large_files, git):
    """A complete mirror has both files. The asset is left out all the same, so every mirror gives the same checkout."""
    store.add(target, str(with_large_files))
    made = open_checkout(target, MAIN, store=store)
    [gone] = made.left_out
    assert (gone.path, gone.size) == ("fake/asset.bin", 3 << 20)
    assert not (made.path / "fake" / "asset.bin").exists()
    assert (made.path / "fake" / "tables.py").stat().st_size > 6 << 20
    assert checkouts.files(made)["fake/asset.bin"] == git(with_large_files, "rev-parse", "main:fake/asset.bin")


@pytest.mark.slow
def test_a_missing_source_file_is_fetched(store, home, target, with_large_files):
    store.add(target)
    said: list[str] = []
    made = open_checkout(target, MAIN, store=store, progress=said.append)
    assert "fetching 1 file from file://" in " ".join(said)
    assert (made.path / "fake" / "tables.py").read_bytes().endswith(b"TABLE = 3\n")
    assert [(gone.path, gone.reason) for gone in made.left_out] == [("fake/asset.bin", "missing in the mirror")]
    assert "remote" not in (store.path("fake") / "config").read_text()
    other = MirrorStore(Home(home.path.parent / "other"))
    other.add(target, str(with_large_files))
    assert open_checkout(target, MAIN, store=other).tree == made.tree


def test_a_missing_source_file_that_cannot_be_fetched_is_reported(store, target, with_large_files):
    store.add(target)
    shutil.rmtree(with_large_files)
    with pytest.raises(Unavailable, match=r"git:main needs fake/tables.py, .* fetching from file://.* failed"):
        open_checkout(target, MAIN, store=store)
    assert not list(store.home.checkouts.glob("*/*/checkout.json"))


def _entry(path: str, content: bytes, mode: str = FILE) -> tuple[Entry, bytes]:
    return Entry(path, mode, blob_id(content), len(content)), content


def test_a_submodule_is_listed(store, target, upstream, git):
    commit = git(upstream, "rev-parse", "main")
    git(upstream, "update-index", "--add", "--cacheinfo", f"160000,{commit},fake/vendored")
    git(upstream, "commit", "-qm", "submodule")
    store.add(target, str(upstream))
    [gone] = open_checkout(target, MAIN, store=store).left_out
    assert (gone.path, gone.reason) == ("fake/vendored", "a submodule")


def test_generated_files_are_ignored(store, target, upstream, git):
    store.add(target, str(upstream))
    clean = open_checkout(target, MAIN, store=store)
    (upstream / "fake" / "__pycache__").mkdir()
    (upstream / "fake" / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    git(upstream, "add", "-f", ".")
    git(upstream, "commit", "-qm", "pyc")
    store.add(target, str(upstream))
    again = open_checkout(target, MAIN, store=store)
    assert again.commit != clean.commit
    assert again.tree == clean.tree


def test_concurrent_runs_share_one_checkout(home, target):
    files = [_entry("fake/__init__.py", b"VALUE = 1\n")]
    entries = [entry for entry, _ in files]
    winners: list[Checkout] = []

    def slow(asked: object) -> list[tuple[Entry, bytes]]:
        if not winners:
            winners.append(checkouts.materialise(home, target, MAIN, entries, lambda _: files))
        return files

    assert checkouts.materialise(home, target, MAIN, entries, slow) == winners[0]
    assert sorted(path.name for path in (home.checkouts / "fake").iterdir()) == [tree_hash(entries)]


def test_an_interrupted_run_leaves_no_checkout(home, target):
    entry, content = _entry("fake/__init__.py", b"VALUE = 1\n")

    def killed(asked: object):
        yield entry, content
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkouts.materialise(home, target, MAIN, [entry], killed)
    assert list((home.checkouts / "fake").iterdir()) == []


def test_a_full_disk_leaves_no_checkout(store, target, upstream, monkeypatch):
    store.add(target, str(upstream))

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sentinel.sources.checkouts.os.fdopen", full)
    with pytest.raises(SentinelError, match="no space left on the disk"):
        open_checkout(target, MAIN, store=store)
    monkeypatch.undo()
    assert not list(store.home.checkouts.glob("*/*/checkout.json"))
