"""Read a user's file as bytes or as UTF-8 text. Only regular files of limited size are read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sentinel.errors import SentinelError

MIB = 1 << 20

#: Maximum bytes of a file that a person writes: a configuration, a script, a recipe.
WRITTEN = MIB

#: Maximum bytes of a file that a program writes: evidence, a report, the events of a run.
GENERATED = 32 * MIB


def regular_bytes(file: Path, most: int = WRITTEN) -> bytes:
    """Return the content of a regular file of limited size.

    The file is opened in non-blocking mode, because opening a named pipe would wait for a writer.

    :raises OSError: if it cannot be opened, is not a regular file, or has more than ``most`` bytes.
    """
    try:
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a NUL in the path
        raise OSError(errno.EINVAL, "not a valid path") from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, "a directory, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(handle, "rb", closefd=False) as stream:
            content = b"" if status.st_size > most else stream.read(most + 1)
    finally:
        os.close(handle)
    size = max(status.st_size, len(content))
    if size > most:
        raise OSError(errno.EFBIG, f"the file has {size:,} bytes; at most {most // MIB} MiB are read")
    return content


def read_bytes(file: Path, most: int = WRITTEN) -> bytes:
    """Return the content of a regular file, as :func:`regular_bytes` does.

    :raises SentinelError: instead of OSError. The message names the file.
    """
    try:
        return regular_bytes(file, most)
    except OSError as error:
        raise SentinelError(f"{file}: cannot be read: {error.strerror or type(error).__name__}") from None


def read_text(file: Path, most: int = WRITTEN) -> str:
    """Return the text of a regular UTF-8 file.

    :raises SentinelError: if the file cannot be read (:func:`read_bytes`) or is not UTF-8.
    """
    raw = read_bytes(file, most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = position(raw, error.start)
        raise SentinelError(f"{file}:{line}:{column}: {not_utf8(raw, error.start)}") from None


def position(raw: bytes, offset: int) -> tuple[int, int]:
    """Return the line and column of a byte, counted from one."""
    return raw.count(b"\n", 0, offset) + 1, offset - raw.rfind(b"\n", 0, offset)


def not_utf8(raw: bytes, offset: int) -> str:
    """Return the error message for a byte that is not valid UTF-8."""
    return f"not UTF-8: byte 0x{raw[offset]:02x}; save the file as UTF-8"
