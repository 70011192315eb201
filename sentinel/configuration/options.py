"""The options that a copy of a framework has, each with its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """:ivar name: of the trainer whose options they are.
    :ivar file: where they are declared, as a path in the repository.
    :ivar options: dotted name -> option. Below an option that is a section and null by default stand the defaults that
        its members have as soon as somebody writes the section.
    """

    name: str
    file: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.options or self.section(name)

    def closed(self, name: str) -> bool:
        """Whether it is certain that there is no such option: no section above it may have members of any name."""
        parts = name.split(".")
        above = [self.options.get(".".join(parts[:size])) for size in range(1, len(parts))]
        return name not in self and not any(option is not None for option in above)

    def section(self, name: str) -> bool:
        """Whether it is no option itself, but the beginning of some."""
        return name not in self.options and any(other.startswith(f"{name}.") for other in self.options)
