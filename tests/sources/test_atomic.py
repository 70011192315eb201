"""Small files are written completely or not at all, even if writers are killed."""

import os
import signal
from pathlib import Path

import pytest

from sentinel.sources import home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def killed_writer(file: Path) -> None:
    """A writer that is killed after it has created its temporary file."""
    pid = os.fork()
    if not pid:
        home._create_temporary(file)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_next_writer_removes_files_of_a_killed_one(folder):
    killed_writer(folder / "a.json")
    assert len(list(folder.iterdir())) == 1
    home.write_atomically(folder / "b.json", "b")
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("b.json", "b")]


def test_files_of_a_running_writer_are_kept(folder):
    temporary, handle = home._create_temporary(folder / "a.json")
    home.write_atomically(folder / "b.json", "b")
    assert temporary.exists()
    os.close(handle)
    home.remove_leftovers(folder)
    assert not temporary.exists()


def test_a_writer_whose_file_was_removed_starts_again(folder, monkeypatch):
    """After the writer has created its file and before it locks it, the file looks like a leftover."""
    usual, taken = home.lock, []

    def lock(handle: int) -> None:
        if not taken:
            taken.extend(folder.iterdir())
            taken[0].unlink()
        usual(handle)

    monkeypatch.setattr(home, "lock", lock)
    home.write_atomically(folder / "a.json", "a")
    assert [file.name for file in folder.iterdir()] == ["a.json"]
    assert len(taken) == 1


def test_unrelated_files_are_kept(folder):
    for name in (".mine.tmp", "mine-0123456789ab.tmp", ".mine-0123456789ab.json"):
        (folder / name).touch()
    home.write_atomically(folder / "a.json", "a")
    assert len(list(folder.iterdir())) == 4
