"""What a training run has for a setting: what its configuration says, else the default of the copy it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sentinel.configuration.options import Options

#: ``${actor.path}``, ``${oc.select:actor.path,1}``: the value of another setting. A relative one (``${.path}``) is not.
_REFERENCE = re.compile(r"\$\{(?:oc\.select: *)?([A-Za-z_][\w.]*) *(?:, *([^${}]*))?\}")


@dataclass(frozen=True)
class Setting:
    """:ivar name: the setting, or the section above it that says that it is not there.
    :ivar value: its text, None where it cannot be known.
    :ivar default: whether the configuration is silent, and this is the copy's default.
    """

    name: str
    value: str | None
    default: bool = False


@dataclass(frozen=True)
class Training:
    """:ivar given: setting -> text, as the configuration has it.
    :ivar options: what the trainer takes that the configuration is for; None where nothing is known of it.
    :ivar others: what the copy's other trainers take.
    """

    given: Mapping[str, str]
    options: Options | None = None
    others: tuple[Options, ...] = ()

    def setting(self, name: str) -> Setting | None:
        """What a run has for it, None where neither the configuration nor the copy knows the name."""
        return self._resolved(self._found(name), 8)

    def absent(self, name: str) -> bool:
        """Say whether the copy's options are known, and this is none of them."""
        return self.options is not None and self._found(name) is None

    def elsewhere(self, name: str) -> str | None:
        """Give the other trainer that alone has this option."""
        return next((other.name for other in self.others if name in other), None)

    def _found(self, name: str) -> Setting | None:
        if name in self.given:
            return Setting(name, self.given[name])
        if self._written(name):
            return Setting(name, "{…}")
        parts = name.split(".")
        above = [".".join(parts[:size]) for size in range(1, len(parts))]
        for section in above:
            if self.given.get(section):  # given as null, or as one value: it has no members
                return Setting(section, "null" if self.given[section] == "null" else None)
        return self._default(name, above)

    def _default(self, name: str, above: Sequence[str]) -> Setting | None:
        if self.options is None or name not in self.options:
            return None
        for section in above:
            option = self.options.options.get(section)
            if option is not None and option.default == "null" and not self._written(section):
                return Setting(section, "null", default=True)
        option = self.options.options.get(name)
        return Setting(name, option.default if option else "{…}", default=True)

    def _written(self, section: str) -> bool:
        """Whether the configuration says something of a member of it."""
        return any(other.startswith(f"{section}.") for other in self.given)

    def _resolved(self, found: Setting | None, steps: int) -> Setting | None:
        if found is None or found.value is None or "${" not in found.value:
            return found
        reference = _REFERENCE.fullmatch(found.value)
        if reference is None or not steps:
            return Setting(found.name, None, found.default)
        other = self._resolved(self._found(reference[1]), steps - 1)
        value = other.value if other is not None else reference[2]
        return Setting(found.name, value, found.default and (other is None or other.default))


def training(given: Mapping[str, str], trainers: Sequence[Options]) -> Training:
    """The run that a configuration is for: on the trainer that knows most of its settings, the first of several."""
    known = [sum(name in trainer for name in given) for trainer in trainers]
    best = max(range(len(trainers)), key=lambda place: (known[place], -place), default=None)
    if best is None:
        return Training(given)
    return Training(given, trainers[best], (*trainers[:best], *trainers[best + 1 :]))
