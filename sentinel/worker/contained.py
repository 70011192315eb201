"""One command, strictly contained, by the interpreter that is to run it: how to ask for it, and what is then done.

What is done runs in that interpreter, so nothing here needs more than Python's own library.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sentinel.worker import containment, limits, processes, syscalls

#: Seconds: whoever asks for a command has a limit of its own.
_PATIENCE = 600

#: How a command ends that could not be contained, and so was not started.
REFUSED = 125


def contained_command(command: Sequence[str], folder: Path, *readable: Path, memory: int) -> list[str]:
    """Give the command that runs another one strictly contained, with the standard streams and the environment but for
    ``HOME`` and ``TMPDIR``.

    :param command: beginning with the path of a Python interpreter.
    :param folder: a folder of the caller's, which it may read; it works in memory, at ``scratch`` below it.
    :param readable: what else it may read beside that interpreter.
    :param memory: bytes of address space of each of its processes, 0 for no limit.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    for place in (folder, *folder.rglob("*")):  # it may be another user
        place.chmod(0o755 if place.is_dir() else 0o644)
    visible = [str(place) for place in (folder, *readable)]
    settings = {"readable": visible, "scratch": str(scratch), "system_calls": syscalls.hexadecimal(), "memory": memory}
    bootstrap = Path(__file__).resolve().with_name("bootstrap.py")
    return [command[0], str(bootstrap), "--contained", json.dumps(settings), *command]


def run(settings: str, command: Sequence[str]) -> NoReturn:
    """Become a command that sees what :func:`contained_command` names, and nothing else; the caller waits for it."""
    arguments = json.loads(settings)
    memory = arguments.pop("memory")
    try:
        containment.contain(**arguments, hidden=[], ready=lambda pid: None, wait=True)
        processes.die_with_parent()
        limits.limit(memory, True, _PATIENCE)
        os.execv(command[0], list(command))
    except (containment.ContainmentError, OSError) as error:
        print(f"strict containment is not available here: {error}", file=sys.stderr)
        os._exit(REFUSED)
