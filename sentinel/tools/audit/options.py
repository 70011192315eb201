"""Represent a framework's options with their defaults, and read literals from its source."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import islice
from pathlib import Path

from sentinel.recipes.affects import holds, in_text
from sentinel.values.files import regular_bytes


@dataclass(frozen=True)
class Option:
    """An option of a trainer.

    :ivar default: the default's text (see :func:`~sentinel.recipes.affects.in_text`); None if there is no default, or
        if code computes it.
    :ivar choices: the values that the option's declaration allows; empty if it does not list them.
    """

    default: str | None = None
    choices: tuple[str, ...] = ()

    def expects(self, text: str) -> str:
        """Return a description of the valid values if ``text`` is not one of them; otherwise ""."""
        if text in ("", "null") or "${" in text:
            return ""
        if self.choices:
            taken = all(holds(list(self.choices), part.strip()) for part in text.split(","))
            return "" if taken or text in self.choices else " or ".join(self.choices)
        if self.default in ("true", "false"):
            return "" if any(holds(side, text.lower()) for side in (True, False)) else "true or false"
        numeric = _is_number(self.default or "") and text not in ("true", "false") and "," not in text
        return "a number" if numeric and not _is_number(text) else ""


@dataclass(frozen=True)
class Options:
    """The options that one trainer of a framework has.

    :ivar options: dotted name -> option. If a section is null by default, its members have the defaults that they get
        when a configuration sets the section.
    :ivar made_by: the configuration class that a Python script calls; empty if there is none.
    :ivar flags: flag of the command line -> the setting that it sets, and the value if the flag takes none. Only flags
        are listed that do not have their setting's name, or that set it to false.
    :ivar open: dotted prefix -> unread code that may declare more options with this prefix, such as a base class of
        another package. The empty prefix stands for all options.
    :ivar packages: name and version of each other package whose classes were read.
    :ivar companions: options of other classes that the framework's own scripts fill from the same configuration; empty
        if the user's script is known.
    :ivar former: name of an option that a later version renamed -> its later name, which is in ``options`` too.
    """

    name: str
    file: str
    options: Mapping[str, Option] = field(default_factory=dict)
    made_by: str = ""
    open: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    former: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, Option] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Return the file and the packages that declare the options, as text."""
        return ", ".join([self.file, *self.packages])

    def __contains__(self, name: str) -> bool:
        return name in self.options or self.section(name)

    def meaning(self, configuration: Mapping[str, str], typed: Collection[str]) -> dict[str, str]:
        """Replace each command-line flag in a configuration by the setting that the flag sets.

        :param typed: the names in the configuration that come from the command line.
        """
        meant = {}
        for name, text in configuration.items():
            setting, value = self.flags.get(name, (name, None)) if name in typed else (name, None)
            meant[self.former.get(setting, setting)] = text if value is None else value
        return meant

    def spelling(self, name: str) -> str:
        """Return the name that an option has in this version."""
        return next((old for old, new in self.former.items() if new == name), name)

    def closed(self, name: str) -> bool:
        """Return True if there is certainly no option with this name. Return False if unread code or a free-form
        section may have it."""
        above = self.options.keys() & with_sections(name)[:-1]
        return name not in self and not above and not self.may_declare(name)

    def may_declare(self, name: str) -> str:
        """Return the unread code that may declare this option, or "" if there is none."""
        return next((why for prefix, why in self.open.items() if f"{name}.".startswith(prefix)), "")

    def closest(self, name: str, alike: float = 0.6, is_section: bool = False) -> str:
        """Return the known option that is most similar to an unknown name, or "".

        :param is_section: whether the name is a section. It is then compared with known sections, too.
        """
        section, _, last = name.rpartition(".")
        sections = {part: None for option in self.options for part in with_sections(option)[:-1]} if is_section else {}
        known_names = {**sections, **self.options}
        whole, ending = SequenceMatcher(None, "", name), SequenceMatcher(None, "", last)
        best = (alike, 0.0, "")
        for other in islice(known_names, _MOST):
            parent, _, end = other.rpartition(".")
            same = parent == section  # then only the last names are compared
            words, known = _split_words(last if same else name), _split_words(end if same else other)
            common = 2 * len(words & known) / (len(words) + len(known) or 1)
            whole.set_seq1(other)
            ending.set_seq1(end)
            matchers = [ending] if same else [whole, ending]
            # The quick ratios are upper bounds, so the ratio is computed only if they are high enough.
            quick = common < best[0] and any(
                matcher.real_quick_ratio() < best[0] or matcher.quick_ratio() < best[0] for matcher in matchers
            )
            if not quick:
                letters = min(matcher.ratio() for matcher in matchers)
                best = max(best, (max(letters, common), letters, other))
        near = f"{section}.{best[2].rpartition('.')[2]}"
        return near if near in known_names else best[2]

    def section(self, name: str) -> bool:
        """Return True if the name is that of a section with options, such as ``actor.optim``."""
        return name not in self.options and any(other.startswith(f"{name}.") for other in self.options)


#: Reject files larger than this, in bytes: nobody writes so much Python by hand.
_LARGEST = 4_000_000

#: Maximum number of options with which an unknown name is compared. The largest trainer has about 2,000.
_MOST = 5000


def with_sections(name: str) -> list[str]:
    """Return the sections of a setting, from the outermost, and then the setting: ``a``, ``a.b``, ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:size]) for size in range(1, len(parts) + 1)]


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None
    except ValueError:
        return False


def _split_words(name: str) -> set[str]:
    return {word.lower().rstrip("s") for word in re.split(r"[._-]+", name) if word}


def assigned_in(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Return name -> value for the assignments directly in the body of a module or class."""
    return {
        target.id: node.value
        for node in body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def parsed(file: Path) -> ast.Module:
    """Parse a Python file without printing syntax warnings. The result is cached until the file changes."""
    status = file.stat()
    return _parsed(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _parsed(file: Path, changed: int, size: int) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(regular_bytes(file, _LARGEST))


def name_of(node: ast.expr) -> str:
    """Return ``c`` for the expression ``a.b.c``, and "" for an expression that is not a name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_trainer(name: str) -> bool:
    """Return True if a class name ends with ``Trainer``."""
    return name.endswith("Trainer")


def called(call: ast.Call) -> str:
    return name_of(call.func)


def text_of(node: ast.expr | None) -> str | None:
    """Return the text of a literal, or None if code computes the value."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, (dict, set, bytes)):
        return "" if not value else None
    return in_text(value)


def choices_of(node: ast.expr | None) -> tuple[str, ...]:
    """Return the values in a literal list or in ``Literal[...]``, or none if code computes one of them."""
    if isinstance(node, ast.Subscript):
        node = node.slice
    members = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node] if node is not None else []
    texts = [text_of(member) for member in members]
    return tuple(text for text in texts if text is not None) if None not in texts else ()
