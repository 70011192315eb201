"""Read a regular file of limited size that a user names, as bytes or as UTF-8 text."""

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

    :raises OSError: if it cannot be opened, is not a regular file, or has more than `most` bytes.
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
    """Return the content of a regular file, with the file's name in error messages.

    :raises SentinelError: if :func:`regular_bytes` raises OSError.
    """
    try:
        return regular_bytes(file, most)
    except OSError as error:
        raise SentinelError(f"{file}: cannot be read: {error.strerror or type(error).__name__}") from None


def read_text(file: Path, most: int = WRITTEN) -> str:
    """Return the text of a regular file.

    :raises SentinelError: if :func:`read_bytes` raises it, or if the bytes are not UTF-8.
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
    """Return an error message that names a byte which is not valid UTF-8."""
    return f"not UTF-8: byte 0x{raw[offset]:02x}; save the file as UTF-8"
