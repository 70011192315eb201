"""The options that a copy of a framework has, each with its default, as its code says: that is read and not run."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path

from sentinel.recipes.affects import in_text
from sentinel.values.files import regular_bytes


@dataclass(frozen=True)
class Option:
    """:ivar default: its text (see :func:`~sentinel.recipes.affects.in_text`), or None where it cannot be read off the
        code: there is none, or a function computes it.
    :ivar choices: the values that its declaration allows; empty where that does not say.
    """

    default: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """The options of one trainer.

    :ivar options: dotted name -> option. Below an option that is a section and null by default stand the defaults that
        its members have as soon as somebody writes the section.
    :ivar made_by: the class that a Python script calls to set them; empty if there is none.
    :ivar open: dotted prefix -> what may declare more options below it than were read, such as a base class of another
        package. The empty prefix stands for all options.
    """

    name: str
    file: str
    options: Mapping[str, Option] = field(default_factory=dict)
    made_by: str = ""
    open: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.options or self.section(name)

    def closed(self, name: str) -> bool:
        """Return True if there is certainly no such option: no section above it may have members of any name."""
        parts = name.split(".")
        above = [self.options.get(".".join(parts[:size])) for size in range(1, len(parts))]
        return name not in self and not any(option is not None for option in above) and not self.may_declare(name)

    def may_declare(self, name: str) -> str:
        """Return what may declare an option that was not read; empty if nothing may."""
        return next((why for prefix, why in self.open.items() if f"{name}.".startswith(prefix)), "")

    def closest(self, name: str, alike: float = 0.6) -> str:
        """Return the option whose name is most like a wrong one, by its letters or by its words; empty if none is."""
        words, matcher = _words(name), SequenceMatcher(None, "", name)
        best = (alike, 0.0, "")
        for other in islice(self.options, _MOST):
            known = _words(other)
            common = 2 * len(words & known) / (len(words) + len(known) or 1)
            matcher.set_seq1(other)
            # The quick ratios are upper bounds of the ratio.
            quick = common < best[0] and (matcher.real_quick_ratio() < best[0] or matcher.quick_ratio() < best[0])
            if not quick:
                letters = matcher.ratio()
                best = max(best, (max(letters, common), letters, other))
        return best[2]

    def section(self, name: str) -> bool:
        """Say whether it is no option itself, but the beginning of some."""
        return name not in self.options and any(other.startswith(f"{name}.") for other in self.options)


#: Bytes; a file that is larger was not written by hand.
_LARGEST = 4_000_000

#: Options that a wrong name is compared with; the largest trainer has some two thousand.
_MOST = 5000


def _words(name: str) -> set[str]:
    """Return the words of an option's name, without plurals: ``algo.kl.init_coef`` has four."""
    return {word.lower().rstrip("s") for word in re.split(r"[._-]+", name) if word}


def parsed(file: Path) -> ast.Module:
    """Give the syntax of a file. What the compiler has to say about its style is for whoever wrote it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(regular_bytes(file, _LARGEST))


def text_of(node: ast.expr | None) -> str | None:
    """Give the text of a literal, None where the value is computed."""
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
    """Give the members of a literal list, or of ``Literal[...]``; nothing where one of them is computed."""
    if isinstance(node, ast.Subscript):
        node = node.slice
    members = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node] if node is not None else []
    texts = [text_of(member) for member in members]
    return tuple(text for text in texts if text is not None) if None not in texts else ()
