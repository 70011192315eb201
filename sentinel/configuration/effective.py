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
    """:ivar configuration: setting -> text, as the configuration has it.
    :ivar options: what the trainer takes that the configuration is for; None where nothing is known of it.
    :ivar others: what the copy's other trainers take.
    """

    configuration: Mapping[str, str]
    options: Options | None = None
    others: tuple[Options, ...] = ()

    def setting(self, name: str) -> Setting | None:
        """Give a run's value; None where neither the configuration nor the copy knows the name."""
        return self._resolved(self._lookup(name), 8)

    def absent(self, name: str) -> bool:
        """Say whether the copy's options are known, and this is none of them."""
        return self.options is not None and self._lookup(name) is None

    def elsewhere(self, name: str) -> str | None:
        """Give the other trainer that alone has this option."""
        return next((other.name for other in self.others if name in other), None)

    def _lookup(self, name: str) -> Setting | None:
        if name in self.configuration:
            return Setting(name, self.configuration[name])
        if self._written(name):
            return Setting(name, "{…}")
        parts = name.split(".")
        above = [".".join(parts[:size]) for size in range(1, len(parts))]
        for section in above:
            if self.configuration.get(section):  # written as null, or as one value: it has no members
                return Setting(section, "null" if self.configuration[section] == "null" else None)
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
        """Say whether the configuration sets a member of it."""
        return any(other.startswith(f"{section}.") for other in self.configuration)

    def _resolved(self, setting: Setting | None, steps: int) -> Setting | None:
        if setting is None or setting.value is None or "${" not in setting.value:
            return setting
        reference = _REFERENCE.fullmatch(setting.value)
        if reference is None or not steps:
            return Setting(setting.name, None, setting.default)
        other = self._resolved(self._lookup(reference[1]), steps - 1)
        value = other.value if other is not None else reference[2]
        return Setting(setting.name, value, setting.default and (other is None or other.default))


def training(configuration: Mapping[str, str], trainers: Sequence[Options]) -> Training:
    """The run that a configuration is for: on the trainer that knows most of its settings, the first of several."""
    counts = [sum(name in trainer for name in configuration) for trainer in trainers]
    best = max(range(len(trainers)), key=lambda place: (counts[place], -place), default=None)
    if best is None:
        return Training(configuration)
    return Training(configuration, trainers[best], (*trainers[:best], *trainers[best + 1 :]))
