"""One command, strictly contained, by the interpreter that is to run it; see :mod:`sentinel.worker.bootstrap`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from sentinel.worker import containment, limits, processes

#: How a command ends that could not be contained, and so was not started.
REFUSED = 125


def run(settings: str, command: Sequence[str]) -> NoReturn:
    """Become a command that sees what is named, and nothing else; the caller's process waits for it.

    :param settings: JSON: ``readable``, ``scratch``, ``system_calls``, as :func:`~sentinel.worker.containment.contain`
        has them, and ``memory`` (bytes).
    """
    wanted = json.loads(settings)
    memory = wanted.pop("memory")
    try:
        containment.contain(**wanted, hidden=[], ready=lambda pid: None, wait=True)
        processes.die_with_parent()
        limits.limit(memory, True)
        os.execv(command[0], list(command))
    except (containment.ContainmentError, OSError) as error:
        print(f"strict containment is not to be had here: {error}", file=sys.stderr)
        os._exit(REFUSED)
