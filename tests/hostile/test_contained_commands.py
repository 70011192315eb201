"""A strictly contained command, as used to try exported runners."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.worker.client import Options
from sentinel.worker.interpreters import contained_command

pytestmark = pytest.mark.usefixtures("_strict_is_to_be_had")


def run(folder: Path, program: str, *readable: Path) -> subprocess.CompletedProcess[str]:
    own = folder / "own"
    own.mkdir(mode=0o700)
    (own / "program.py").write_text(program)
    command = contained_command([sys.executable, str(own / "program.py")], own, *readable, memory=Options.memory)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_a_contained_command_keeps_its_output_and_status(tmp_path):
    done = run(tmp_path, "import sys; print('told'); print('said', file=sys.stderr); sys.exit(3)")
    assert (done.stdout, done.stderr, done.returncode) == ("told\n", "said\n", 3)


def test_a_contained_command_sees_only_named_folders(tmp_path):
    secret, named = tmp_path / "secret", tmp_path / "named"
    for file in (secret, named):
        file.write_text("text")
    program = f"""
import os, sys
print(open({str(named)!r}).read(), os.path.exists({str(secret)!r}), os.path.exists("/proc/{os.getpid()}"))
open("notes", "w").write("scratch")
try:
    open({str(tmp_path / "own" / "more")!r}, "w")
except OSError as error:
    print(error.errno)
"""
    done = run(tmp_path, program, named)
    assert done.stdout.split() == ["text", "False", "False", "30"], done.stderr
    assert not (tmp_path / "own" / "scratch" / "notes").exists()


def test_a_contained_command_has_no_network_and_leaves_no_child(tmp_path):
    program = """
import os, socket, time
try:
    socket.create_connection(("127.0.0.1", 1))
except OSError as error:
    print(error.errno)
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
"""
    done = run(tmp_path, program)  # it would wait until the child closes its output
    assert done.stdout == "101\n", done.stderr
