"""Find the commit at which a branch left upstream's main, in the clone or the mirror, or print how to fetch it."""

import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest

from sentinel.errors import SentinelError
from sentinel.sources import open_checkout
from sentinel.sources.bases import find_base, in_clone
from sentinel.targets.refs import Ref


@pytest.fixture
def clone(upstream, tmp_path, git):
    """A clone with a branch of one commit, and an uncommitted change."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(upstream), str(folder)], check=True)
    git(folder, "checkout", "-q", "-b", "topic", "origin/main")
    (folder / "fake" / "new.py").write_text("NEW = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "topic")
    (folder / "fake" / "newer.py").write_text("NEWER = 1\n")
    return folder


def test_the_base_is_found_in_the_clone(clone, upstream, target, store, git):
    here = replace(target, repository=str(upstream))
    git(upstream, "commit", "-q", "--allow-empty", "-m", "main goes on")
    git(clone, "fetch", "-q")
    base = find_base(here, Ref("path", str(clone)), store)  # without any mirror
    assert base == Ref("git", git(clone, "rev-parse", "topic~1"))
    code = open_checkout(here, base, store=store)
    assert not (code.path / "fake" / "new.py").exists()
    assert (code.path / "fake").is_dir()


def test_the_base_of_a_fork_is_found_in_the_mirror(clone, upstream, target, store, git):
    store.add(target, str(upstream))
    git(clone, "update-ref", "refs/remotes/origin/main", "topic")
    git(clone, "remote", "set-url", "origin", "git@example.invalid:me/fork.git")  # whose main is ahead
    assert find_base(target, Ref("path", str(clone)), store).name == git(clone, "rev-parse", "topic~1")


def test_the_base_of_a_pull_request_is_found_in_the_mirror(upstream, target, store, git):
    main = git(upstream, "rev-parse", "main")
    git(upstream, "commit", "-q", "--allow-empty", "-m", "main goes on")
    store.add(target, str(upstream))
    assert find_base(target, Ref.parse("git:pull/7/head"), store) == Ref("git", main)


def test_the_suggested_command_fetches_the_base(clone, upstream, target, store, tmp_path, git):
    here, shallow = replace(target, repository=f"file://{upstream}"), tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", "-b", "topic", f"file://{clone}", str(shallow)], check=True)
    with pytest.raises(SentinelError, match="no commit in common with upstream's main") as error:
        find_base(here, Ref("path", str(shallow)), store)
    command = str(error.value).split("`")[1]
    assert "--unshallow" in command
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    git(shallow, "fetch", "-q", "--unshallow", str(clone), "topic")
    assert find_base(here, Ref("path", str(shallow)), store).name == git(clone, "rev-parse", "topic~1")


def test_a_folder_outside_a_clone_has_no_base(clone, target, store):
    shutil.rmtree(clone / ".git")
    with pytest.raises(SentinelError, match="is not in a git clone"):
        find_base(target, Ref("path", str(clone)), store)


def test_a_name_that_the_mirror_lacks_is_looked_up_in_the_clone(clone, git):
    tree = Ref("path", str(clone))
    assert in_clone(Ref.parse("git:topic"), tree) == Ref("git", git(clone, "rev-parse", "topic"))
    assert in_clone(Ref.parse("git:nothing"), tree) is None
    assert in_clone(Ref.parse("pypi:1.0"), tree) is None
