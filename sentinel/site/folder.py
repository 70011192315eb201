"""A site on disk. A folder that is not a site of ours is never written to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from sentinel.errors import SentinelError
from sentinel.reports.escaping import visible
from sentinel.reports.store import own, write_atomically

#: What says that a folder is a site of ours, and which of its files are.
MARKER = ".sentinel-site"

_OTHERWISE = "name another folder with --out"


def check(folder: Path) -> None:
    """:raises SentinelError: where the folder holds something that is not a site of ours."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise SentinelError(f"{folder} is not a folder; {_OTHERWISE}")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise SentinelError(
            f"{folder} is not empty and was not made by sentinel report site; nothing in it is touched: {_OTHERWISE}"
        )


def write(folder: Path, files: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Write a site, and remove what an earlier build left and this one has not. What is the same stays as it is.

    :returns: each file's size in bytes.
    :raises SentinelError: as :func:`check`, or where the folder cannot be written.
    """
    check(folder)
    before = _listed(folder)
    made = dict(files)  # everything, before anything is written: an error or Ctrl-C leaves the old site whole
    if outside := [name for name in made if not _inside(name)]:
        raise SentinelError(f"{visible(outside[0])} would lie outside the site; nothing was written")
    write_atomically(folder / MARKER, _marker({*before, *made}), _OTHERWISE)
    for name, text in made.items():
        file = own(folder, PurePosixPath(name))
        if not file.is_file() or file.read_bytes() != text.encode():
            write_atomically(file, text, _OTHERWISE)
    for name in before - made.keys():
        _remove(folder, name)
    write_atomically(folder / MARKER, _marker(made), _OTHERWISE)
    return {name: len(text.encode()) for name, text in made.items()}


def _marker(names: Iterable[str]) -> str:
    return json.dumps({"made_by": "sentinel site", "files": sorted(names)}, indent=0) + "\n"


def _listed(folder: Path) -> set[str]:
    try:
        names = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
        return {str(name) for name in names if _inside(str(name))}
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # a marker that cannot be read lists nothing to remove


def _inside(name: str) -> bool:
    place = PurePosixPath(name)
    return not place.is_absolute() and ".." not in place.parts and bool(place.parts)


def _remove(folder: Path, name: str) -> None:
    file = folder / name
    if any(parent.is_symlink() for parent in file.parents if parent != folder and folder in parent.parents):
        return
    file.unlink(missing_ok=True)
    for parent in file.parents:
        if parent == folder:
            break
        with suppress(FileNotFoundError):  # a build that was killed had come that far
            if any(parent.iterdir()):
                break
            parent.rmdir()
