"""The first process of a run starts the checker, the others connect to it, and none waits at a closed socket."""

import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sentinel.tools.watch import meeting


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ("a temporary folder may be anywhere" * 4)  # longer than a socket's path may be
    folder.mkdir()
    monkeypatch.setattr(meeting.tempfile, "gettempdir", lambda: str(folder))
    return meeting.address(["demo", "events.jsonl"], ["json"])


def test_one_checker_is_launched_and_other_processes_join(place):
    launched: list[socket.socket] = []
    run = [meeting.joined(place, lambda listening: launched.append(listening.dup())) for _ in range(2)]
    assert len(launched) == 1
    checker = [meeting.accepted(launched[0]) for _ in run]
    run[1].send("here")
    assert checker[1].recv() == "here"
    late = meeting.joined(place, lambda _: pytest.fail("there is one"))
    waiting = meeting.last_call(launched[0], place)
    assert isinstance(waiting, Connection)
    late.send("late")
    assert waiting.recv() == "late"
    assert meeting.last_call(launched[0], place) is None
    assert not place.exists()
    for one in (*run, *checker, late, waiting, *launched):
        one.close()


def test_a_killed_checker_is_replaced(place):
    launched: list[int] = []
    for _ in range(2):  # `joined` closes the socket after launching, but leaves the socket's file
        meeting.joined(place, lambda _: launched.append(1)).close()
    assert len(launched) == 2


def test_each_copy_of_the_framework_has_its_own_checker(place):
    assert meeting.address(["demo", "events.jsonl"], ["logging"]) == place, "of the same folder"
    assert meeting.address(["demo", "events.jsonl"], ["numpy"]) != place
    assert meeting.address(["demo", "other.jsonl"], ["json"]) != place


def test_a_folder_that_others_can_enter_is_not_used(place):
    place.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="must belong to you"):
        meeting.address(["demo"], [])
