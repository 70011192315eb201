"""Read the files in a Hydra configuration's ``defaults`` list, and merge them in Hydra's order.

Nothing is imported or executed, and no environment variable is read. An entry that cannot be read is reported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError
from sentinel.tools.audit.files import read_mapping, settings_of
from sentinel.values.files import read_bytes

#: Maximum number of files that are read for one configuration. The largest known configuration has about thirty.
_MOST = 200
_DEEPEST = 12

_ENTRY = re.compile(r"(?:(override|optional) +)?([^@ ]+)(?:@([\w.]*))?")
_PACKAGE = re.compile(rb"\A\s*#\s*@package +(\S+)")


def composed(
    file: Path, data: Mapping[Any, Any], folders: Sequence[Path], chosen: Mapping[str, Any] | None = None
) -> tuple[dict[Any, Any], list[str]]:
    """Merge a configuration with the files in its ``defaults`` list. Return the result and the unreadable entries.

    :param folders: the folders in which these files are looked up after the folder of the configuration.
    :param chosen: the choices of the command line, which override those of the ``defaults`` lists.
    """
    reader = _Reader((file.absolute().parent, *folders))
    reader.choices = {_place(name, "", "", choice)[:2]: choice for name, choice in (chosen or {}).items()}
    return reader.merged(data, "", ""), reader.unread


@dataclass
class _Reader:
    folders: Sequence[Path]
    unread: list[str] = field(default_factory=list)
    choices: dict[tuple[str, str], Any] = field(default_factory=dict)
    left: int = _MOST

    def merged(self, data: Mapping[Any, Any], group: str, package: str, depth: int = 0) -> dict[Any, Any]:
        """Return one configuration file merged with the files in its ``defaults`` list.

        :param group: the file's folder, relative to the folder of the search path that contains it.
        :param package: the dotted section to which its settings belong.
        """
        listed = data.get("defaults")
        entries = list(_entries(listed if isinstance(listed, list) else [] if listed is None else [str(listed)]))
        if not any(name == "_self_" for name, _ in entries):
            entries.append(("_self_", None))
        for name, choice in entries:
            if name.startswith("override "):  # the outermost file's override wins
                self.choices.setdefault(_place(name, group, package, choice)[:2], choice)
        result: dict[Any, Any] = {}
        for name, choice in entries:
            if name == "_self_":
                _merge(result, _below(package, settings_of(data)))
            elif not name.startswith("override "):
                unread = len(self.unread)
                part = self._entry(name, choice, group, package, depth)
                if len(self.unread) > unread:
                    result.clear()  # the unread file may override any earlier setting
                _merge(result, part)
        return result

    def _entry(self, name: str, choice: Any, group: str, package: str, depth: int) -> dict[Any, Any]:
        words = name if choice is _PLAIN else f"{name}: {choice}"
        folder, section, absolute = _place(name, group, package, choice)
        inherits = name.endswith((".yaml", ".yml"))  # not a feature of Hydra: this file inherits from another
        if inherits:
            section, absolute = package, True
        if choice is _PLAIN:
            choice = name.partition("@")[0].removeprefix("optional ").rpartition("/")[2]
        else:
            choice = self.choices.setdefault((folder, section), choice)
        result: dict[Any, Any] = {}
        for item in choice if isinstance(choice, list) else [choice]:
            if item is None:
                continue
            item = os.path.basename(name) if inherits else item
            stem = re.sub(r"\$\{([\w/]+)\}", self._chosen, str(item))
            file = self._find(f"{folder}/{stem}".lstrip("/"))
            self.left -= 1
            if file is None or self.left < 0 or depth > _DEEPEST:
                self.unread += [] if name.startswith("optional ") and file is None else [words]
                continue
            header = _PACKAGE.match(read_bytes(file))
            own = section
            if header is not None and not absolute:
                own = header[1].decode(errors="replace").replace("_group_", section)
                own = own.removeprefix("_global_").strip(".")
            inner = os.path.dirname(f"{folder}/{stem}".lstrip("/"))
            _merge(result, self.merged(read_mapping(file), inner, own, depth + 1))
        return result

    def _chosen(self, reference: re.Match[str]) -> str:
        """Return the choice for the group ``${group}``. If there is none, return the reference itself."""
        return str(self.choices.get((reference[1], reference[1].replace("/", ".")), reference[0]))

    def _find(self, name: str) -> Path | None:
        name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
        names = (folder / name for folder in self.folders if "$" not in name and "\0" not in name)
        return next((file for file in names if file.is_file()), None)


def groups(folders: Sequence[Path]) -> frozenset[str]:
    """Return the config groups that ``defaults`` lists name in any file in these folders, such as ``model_engine``."""
    found: set[str] = set()
    for folder in folders:
        for file in sorted(folder.glob("*.yaml"))[:_MOST]:
            with suppress(SentinelError):
                listed = read_mapping(file).get("defaults")
                entries = _entries(listed if isinstance(listed, list) else [])
                found.update(name.rpartition(" ")[2] for name, choice in entries if choice is not _PLAIN)
    return frozenset(found | {name.partition("@")[0] for name in found})


#: The choice of an entry that is only a file name.
_PLAIN = object()


def _entries(listed: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for entry in listed:
        if isinstance(entry, Mapping):
            yield from ((str(name), choice) for name, choice in entry.items())
        else:
            yield str(entry), _PLAIN


def _place(name: str, group: str, package: str, choice: Any) -> tuple[str, str, bool]:
    """Return the folder and section of an entry in a ``defaults`` list, and whether it names the section
    (``group@section``)."""
    match = _ENTRY.fullmatch(name)
    path, section = (match[2], match[3]) if match else (name, None)
    folder = os.path.dirname(path) if choice is _PLAIN else path
    given = folder.strip("/").replace("../", "").replace("/", ".") if section is None else section
    given = given.replace("_here_", "")
    whole = ".".join(filter(None, [package, given])) if not given.startswith("_global_") else given[8:].strip(".")
    folder = folder.strip("/") if path.startswith("/") else os.path.normpath(f"{group}/{folder}".strip("/") or ".")
    return "" if folder == "." else folder, whole, section is not None


def _below(package: str, data: Mapping[Any, Any]) -> dict[Any, Any]:
    for name in reversed(package.split(".") if package else []):
        data = {name: data}
    return dict(data)


def _merge(into: dict[Any, Any], data: Mapping[Any, Any]) -> None:
    for name, value in data.items():
        if isinstance(value, Mapping) and value.get("_override_") is True:  # the section replaces the inherited one
            into[name] = {key: item for key, item in value.items() if key != "_override_"}
        elif isinstance(value, Mapping):
            into[name] = into[name] if isinstance(into.get(name), dict) else {}
            _merge(into[name], value)
        else:
            into[name] = value
