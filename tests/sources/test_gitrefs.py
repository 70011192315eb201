import gc
import os
import sys

import pytest
from git import Git

from sentinel.sources.gitbinary import GitError, Objects, run
from sentinel.sources.gitrefs import read_refs, write_refs

_ONE, _OTHER = "1" * 40, "2" * 40


def test_newly_written_refs_are_read(tmp_path):
    for sha in (_ONE, _OTHER, _ONE):  # the same size each time
        write_refs(tmp_path, {"refs/heads/main": sha})
        assert read_refs(tmp_path) == {"refs/heads/main": sha}


def test_callers_cannot_change_the_cached_refs(tmp_path):
    write_refs(tmp_path, {"refs/heads/main": _ONE})
    read_refs(tmp_path).clear()
    assert read_refs(tmp_path) == {"refs/heads/main": _ONE}


def test_loose_refs_take_precedence_and_forbidden_names_are_ignored(tmp_path):
    write_refs(tmp_path, {"refs/heads/main": _ONE, "refs/heads/../../x": _ONE, "refs/replace/x": _ONE})
    (tmp_path / "refs/heads").mkdir(parents=True)
    (tmp_path / "refs/heads/main").write_text(f"{_OTHER}\n")
    (tmp_path / "refs/heads/HEAD").write_text("ref: refs/heads/main\n")
    assert read_refs(tmp_path) == {"refs/heads/main": _OTHER, "refs/heads/HEAD": _OTHER}


def test_a_directory_without_packed_refs_is_read(tmp_path):
    assert read_refs(tmp_path) == {}
    (tmp_path / "packed-refs").mkdir()
    assert read_refs(tmp_path) == {}


def test_the_environment_may_change_in_another_thread(upstream, monkeypatch):
    """pytest sets an environment variable for each test while other threads work."""
    assert run(upstream / ".git", "rev-parse", "HEAD").status == 0  # GitPython runs git during its import
    copied = [KeyError("PYTEST_CURRENT_TEST")]

    def copy(environment: os._Environ[str]) -> dict[str, str]:
        if copied:
            raise copied.pop()
        return dict(environment)

    monkeypatch.setattr(type(os.environ), "copy", copy)
    assert run(upstream / ".git", "rev-parse", "HEAD").status == 0
    assert not copied


def test_a_killed_reader_is_started_again(upstream, git):
    objects, name = Objects(upstream / ".git"), git(upstream, "rev-parse", "HEAD")
    content = objects.read(name, "commit")
    objects._git.cat_file_all.proc.kill()
    objects._git.cat_file_all.proc.wait()
    with pytest.raises(GitError, match="git exited while it read"):
        objects.read(name, "commit")
    assert objects.read(name, "commit") == content
    objects.close()


def test_an_interrupted_reader_is_started_again_and_prints_nothing(upstream, git, monkeypatch):
    stream = Git.CatFileContentStream
    objects, name = Objects(upstream / ".git"), git(upstream, "rev-parse", "HEAD")
    content, read, unraisable = objects.read(name, "commit"), stream.read, []

    def interrupted(self: object, size: int = -1) -> bytes:
        monkeypatch.setattr(stream, "read", read)
        read(self, 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(stream, "read", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        objects.read(name, "commit")
    assert objects.read(name, "commit") == content
    objects.close()
    del raised  # its traceback holds the stream
    gc.collect()
    assert not unraisable
