"""Find the commands of ``sentinel`` in the ``commands`` folders and in the entry points of other packages.

A command is a module with two constants, ``GROUP`` and ``SUMMARY``, and a function ``declare(commands)`` that adds its
parser. A module named ``report_KIND`` is a kind of ``sentinel report`` and needs only ``declare``. Modules are in
``sentinel/commands`` and in the folder ``commands`` of each tool. Other packages register a module under the entry
point ``sentinel.commands``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

from sentinel.errors import SentinelError

_ROOT = Path(__file__).resolve().parents[1]
_REPORT = "report_"
_ENTRIES = "sentinel.commands"

#: The headings of ``sentinel --help``, in order. ``ENTRIES`` are the three main uses. Groups of other packages come
#: last.
ENTRIES = ("my branch", "my own loss", "my run")
HEADINGS = (*ENTRIES, "begin", "search", "publish", "tidy")


@dataclass(frozen=True)
class Found:
    """A command that was found and whose module is not imported yet.

    :ivar module: the module to import.
    """

    name: str
    group: str
    summary: str
    module: str

    def load(self) -> ModuleType:
        """Import the command's module.

        :raises SentinelError: if a module of another package cannot be imported.
        """
        try:
            return import_module(self.module)
        except Exception as error:
            if self.module.startswith("sentinel."):
                raise
            raise SentinelError(f"the command {self.name} ({self.module}) cannot be imported: {error}") from error


def find_command(name: str) -> Found | None:
    """Return the command with this name, or None, without importing other commands.

    :raises SentinelError: if the command belongs to another package, and its module cannot be imported or is
        incomplete.
    """
    for file in _files():
        if file.stem == name and not name.startswith(_REPORT) and (found := _described(file)) is not None:
            return found
    return next((_foreign(entry) for entry in metadata.entry_points(group=_ENTRIES, name=name)), None)


def find_commands(notify: Callable[[str], None] = lambda line: None) -> dict[str, Found]:
    """Return all commands by name, in the order of the headings in the help.

    :param notify: called with the reason why a command of another package is left out.
    """
    found = [_described(file) for file in _files() if not file.stem.startswith(_REPORT)]
    commands = [command for command in found if command is not None]
    for entry in metadata.entry_points(group=_ENTRIES):
        try:
            commands.append(_foreign(entry))
        except SentinelError as error:
            notify(str(error))
    order = {heading: place for place, heading in enumerate(HEADINGS)}
    commands.sort(key=lambda command: (order.get(command.group, len(order)), command.group, command.name))
    return {command.name: command for command in commands}


def _foreign(entry: metadata.EntryPoint) -> Found:
    module = Found(entry.name, "", "", entry.value).load()
    for name in ("GROUP", "SUMMARY", "declare"):
        if not hasattr(module, name):
            raise SentinelError(f"the command {entry.name} ({entry.value}) does not define {name}")
    return Found(entry.name, module.GROUP, module.SUMMARY, entry.value)


def report_kinds() -> list[ModuleType]:
    """Import and return the modules of ``sentinel report KIND``."""
    return [import_module(_module(file)) for file in _files() if file.stem.startswith(_REPORT)]


def _files() -> Iterator[Path]:
    for folder in (_ROOT / "commands", *sorted(_ROOT.glob("tools/*/commands"))):
        yield from sorted(folder.glob("*.py"))


def _module(file: Path) -> str:
    return ".".join(("sentinel", *file.relative_to(_ROOT).with_suffix("").parts))


def _described(file: Path) -> Found | None:
    """Return the command that a module defines, or None. Importing all commands takes half a second, so only the source
    is read."""
    constants = {
        node.targets[0].id: node.value.value
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    if not {"GROUP", "SUMMARY"} <= constants.keys():
        return None
    return Found(file.stem, str(constants["GROUP"]), str(constants["SUMMARY"]), _module(file))
