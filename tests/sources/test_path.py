import os
import shutil
import sys
import venv
from pathlib import Path

import pytest

from sentinel.errors import Unavailable
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref


def _path(folder: Path) -> Ref:
    return Ref.parse(f"path:{folder}")


def test_a_clean_work_tree_is_its_commit(store, target, upstream, git):
    store.add(target, str(upstream))
    made = open_checkout(target, _path(upstream), store=store)
    assert made.tree == open_checkout(target, Ref.parse("git:main"), store=store).tree
    assert (made.commit, made.dirty) == (git(upstream, "rev-parse", "main"), False)
    assert made.path.is_relative_to(store.home.path)


def test_only_uncommitted_changes_inside_the_roots_count(store, target, upstream):
    clean = open_checkout(target, _path(upstream), store=store)
    (upstream / "README.md").write_text("changed\n")
    (upstream / "fake" / "__pycache__").mkdir()
    (upstream / "fake" / "__pycache__" / "x.pyc").touch()
    assert open_checkout(target, _path(upstream), store=store) == clean
    (upstream / "fake" / "new.py").write_text("NEW = 1\n")
    changed = open_checkout(target, _path(upstream), store=store)
    assert changed.dirty
    assert changed.commit == clean.commit
    assert changed.tree != clean.tree
    assert (changed.path / "fake" / "new.py").read_text() == "NEW = 1\n"
    assert not (clean.path / "fake" / "new.py").exists()


@pytest.mark.parametrize("kind", ["linked", "nested", "plain", "inside another", "no git"])
def test_the_commit_of_a_work_tree_is_read(store, target, upstream, tmp_path, git, kind, monkeypatch):
    main, folder = git(upstream, "rev-parse", "main"), tmp_path / "tree"
    if kind == "linked":
        git(upstream, "worktree", "add", "-q", "--detach", str(folder))
    elif kind == "no git":
        folder = upstream
        for name in [name for name in sys.modules if name == "git" or name.startswith("git.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        outer = tmp_path / "outer"
        folder = folder if kind == "plain" else outer / "vendor"
        shutil.copytree(upstream, folder, ignore=shutil.ignore_patterns(".git"))
        if kind != "plain":
            git(outer, "init", "-q")
            (outer / "x").touch()
            git(outer, "add", "." if kind == "nested" else "x")
            git(outer, "commit", "-qm", "outer")
            main = git(outer, "rev-parse", "HEAD")
    made = open_checkout(target, _path(folder), store=store)
    assert made.commit == (main if kind in ("linked", "nested") else None)
    assert not made.dirty


def test_an_unavailable_working_tree_or_package_is_reported(store, target, tmp_path):
    with pytest.raises(Unavailable, match=r"fake: .*/absent is not a directory"):
        open_checkout(target, _path(tmp_path / "absent"), store=store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unavailable, match="none of its package roots; looked for fake, gym/fake_gym, never/was_here"):
        open_checkout(target, _path(tmp_path / "empty"), store=store)
    os.symlink("/usr", tmp_path / "empty" / "fake")
    with pytest.raises(Unavailable, match="none of its package roots"):
        open_checkout(target, _path(tmp_path / "empty"), store=store)


def test_special_and_large_files_are_left_out(store, target, upstream):
    os.mkfifo(upstream / "fake" / "pipe")
    (upstream / "fake" / "weights.bin").write_bytes(bytes(2 << 20))
    os.symlink("/etc/passwd", upstream / "fake" / "passwd")
    made = open_checkout(target, _path(upstream), store=store)
    assert {gone.path for gone in made.left_out} == {"fake/pipe", "fake/weights.bin", "fake/passwd"}


@pytest.fixture
def environment(tmp_path: Path, upstream: Path) -> Path:
    venv.create(tmp_path / "env", with_pip=False)
    [site] = (tmp_path / "env").glob("lib/python*/site-packages")
    shutil.copytree(upstream / "fake", site / "fake")
    info = site / "fake_dist-4.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 4.5\n")
    return tmp_path / "env"


def test_installed_reads_another_environment(store, target, environment):
    [site] = environment.glob("lib/python*/site-packages")
    (site / "fake" / "__init__.py").write_text("raise SystemExit('imported')\n")
    shutil.move(site / "fake" / "deep" / "loss.py", environment / "cached.py")
    os.symlink(environment / "cached.py", site / "fake" / "deep" / "loss.py")  # As some installers do.
    made = open_checkout(target, Ref.parse("installed"), store=store, python=str(environment / "bin" / "python"))
    assert (made.roots, made.version, made.commit) == (("fake",), "4.5", None)
    assert (made.path / "fake" / "deep" / "loss.py").read_text() == "def loss(): return 1\n"
    assert not (made.path / "fake" / "deep" / "loss.py").is_symlink()


def test_packages_in_the_current_folder_do_not_count_as_installed(store, target, upstream, monkeypatch):
    monkeypatch.chdir(upstream)
    monkeypatch.syspath_prepend(str(upstream))
    with pytest.raises(Unavailable, match=r"fake is not installed for .*; looked for fake, fake_gym, was_here"):
        open_checkout(target, Ref.parse("installed"), store=store)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/bin/echo"])
def test_an_interpreter_that_does_not_run_is_reported(store, target, python):
    with pytest.raises(Unavailable, match=f"cannot run {python}: "):
        open_checkout(target, Ref.parse("installed"), store=store, python=python)
