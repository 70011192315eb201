"""Small files, written whole or not at all: a reader sees the old content or the new, never a part.

A writer holds a lock on its temporary file as long as it lives. So whoever writes into the same folder next knows
without a clock which temporary files belong to writers that were killed, and takes them away.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from sentinel.sources.locks import hold, lock

_TEMPORARY = re.compile(r"\..*-[0-9a-f]{12}\.tmp")


def replace(file: Path, text: str) -> None:
    """Write a file in the place of what is there; an error or an interruption leaves what is there.

    :raises OSError: where it cannot be written.
    """
    remove_leftovers(file.parent)
    temporary, handle = _own(file)
    try:
        # Closed only when it has its name: the lock goes with it.
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    with suppress(OSError), os.scandir(folder) as listed:
        for name in [item.name for item in listed if _TEMPORARY.fullmatch(item.name)]:
            with suppress(OSError):  # its writer is alive, or was faster; or the folder cannot be written
                handle = hold(folder / name, wait=False)
                try:
                    (folder / name).unlink()
                finally:
                    os.close(handle)


def _own(file: Path) -> tuple[Path, int]:
    """A temporary file beside a file, and its locked descriptor."""
    while True:
        # A name of its own for each writer: two runs may write one file at once.
        temporary = file.with_name(f".{file.stem[:40]}-{secrets.token_hex(6)}.tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with suppress(OSError):  # a file system without locks, where nobody takes it for a leftover either
            lock(handle)
        if os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)  # before it was locked, somebody took it for a leftover
