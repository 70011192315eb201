"""Where another interpreter and its packages lie: read off its files, as none of it may run yet."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from sentinel.worker.containment import holds_sentinel

#: What of a prefix an interpreter needs; a home folder may be one too.
_PARTS = ("bin", "lib", "lib64", "lib32", "pyvenv.cfg")

#: Bytes of a file that tells of an environment.
_LARGEST = 1 << 16


def places_of(python: str) -> Iterator[str]:
    """List where an interpreter and its packages lie, as far as that can be told without starting it."""
    yield from _libraries()
    for place in _hops(python):
        yield place
        prefix = os.path.dirname(os.path.dirname(place))
        packages = glob.glob(f"{glob.escape(prefix)}/lib*/python3*/*-packages")
        if packages or os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
            yield from (os.path.join(prefix, part) for part in _PARTS)
        for folder in packages:
            yield from filter(_is_project, _elsewhere(folder))


def _libraries() -> Iterator[str]:
    """Folders in which the loader looks for shared libraries, beside the usual ones: torch may be built on some."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for file in ("/etc/ld.so.conf", *glob.glob("/etc/ld.so.conf.d/*.conf")):
        folders += [line.strip() for line in _text(file).splitlines()]
    yield from (folder for folder in folders if os.path.isabs(folder) and glob.glob(f"{glob.escape(folder)}/*.so*"))


def _hops(python: str) -> Iterator[str]:
    """Follow an interpreter's links, and go on to that of the environment that it was made from."""
    left, places = [python], set()
    while left:
        place = os.path.normpath(left.pop())
        if place in places:
            continue
        places.add(place)
        yield place
        if os.path.islink(place):
            left.append(os.path.join(os.path.dirname(place), os.readlink(place)))
        left += [os.path.realpath(place)]
        settings = _text(os.path.join(os.path.dirname(os.path.dirname(place)), "pyvenv.cfg"))
        for line in settings.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home" and os.path.isabs(value.strip()):
                left += glob.glob(f"{glob.escape(value.strip())}/python3*")


def _elsewhere(packages: str) -> Iterator[str]:
    """Folders that a folder of packages refers to: what was installed to be edited."""
    for file in glob.glob(f"{glob.escape(packages)}/*.dist-info/direct_url.json"):
        try:
            record = json.loads(_text(file))
            if record["dir_info"]["editable"]:
                yield unquote(urlsplit(record["url"]).path)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    for file in glob.glob(f"{glob.escape(packages)}/*.pth"):
        yield from (line.strip() for line in _text(file).splitlines())


def _is_project(folder: str) -> bool:
    """Whether a folder, or the one above it, holds a project for Python: any release may refer to any folder. Not
    Sentinel's own: recipes and evidence lie in it."""
    if not os.path.isabs(folder) or not os.path.isdir(folder) or holds_sentinel(folder):
        return False
    names = ("pyproject.toml", "setup.py", "setup.cfg")
    return any(os.path.isfile(os.path.join(place, name)) for place in (folder, f"{folder}/..") for name in names)


def _text(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read(_LARGEST).decode(errors="replace")
    except OSError:
        return ""
