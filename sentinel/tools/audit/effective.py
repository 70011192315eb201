"""What a training run has for a setting: what its configuration says, else the default of the copy it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sentinel.tools.audit.options import Options

#: ``${actor.path}``, ``${oc.select:actor.path,1}``: the value of another setting. A relative one (``${.path}``) is not.
_REFERENCE = re.compile(r"\$\{(?:oc\.select: *)?([A-Za-z_][\w.]*) *(?:, *([^${}]*))?\}")


#: Settings that are compared with all options of a trainer.
_MOST = 30


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
    :ivar added: settings that the command adds, and that need not be options.
    :ivar doubtful: options whose defaults are not relied on: something that was not read may set them. A section ends
        with a dot, and the empty name stands for all.
    """

    configuration: Mapping[str, str]
    options: Options | None = None
    others: tuple[Options, ...] = ()
    added: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()

    def unknown(self) -> list[str]:
        """Return the settings that this trainer certainly does not have; of a whole unknown section, its name."""
        options = self.options
        if options is None:
            return []
        found: dict[str, None] = {}
        for name in self.configuration:
            if name in self.added:
                continue
            parts = name.split(".")
            above = (".".join(parts[: size + 1]) for size in range(len(parts)))
            first = next((part for part in above if options.closed(part)), None)
            if first is not None:
                found[first] = None
        return list(found)

    def unread(self) -> list[str]:
        """Return the settings that something else than the options that were read may declare."""
        options = self.options
        if options is None:
            return list(self.configuration)
        return [name for name in self.configuration if name not in options and options.may_declare(name)]

    @cached_property
    def invalid(self) -> Mapping[str, str]:
        """Map settings whose values their options do not take to what they take; they count as not known."""
        known = self.options.options if self.options is not None else {}
        expected = {name: known[name].expects(text) for name, text in self.configuration.items() if name in known}
        return {name: text for name, text in expected.items() if text}

    def is_unread(self, name: str) -> bool:
        """Return True if a setting is not known because what the user gives for it could not be read."""
        setting = self.setting(name)
        given = setting is not None and (setting.name in self.configuration or self._doubtful(name))
        return setting is not None and given and setting.value is None

    def _doubtful(self, name: str) -> bool:
        return any(name == item or (item[-1:] in ("", ".") and name.startswith(item)) for item in self.doubtful)

    def meant(self) -> dict[str, str]:
        """Map settings that this trainer does not have, or may not have, to the options that they may mean."""
        options = self.options
        if options is None:
            return {}
        unread = {name: options.closest(name, 0.85) for name in self.unread()[:_MOST]}
        return {
            **{name: options.closest(name) for name in self.unknown()[:_MOST]},
            **{name: option for name, option in unread.items() if option},
        }

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
            return Setting(name, None if name in self.invalid else self.configuration[name])
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
                return Setting(section, None if self._doubtful(name) else "null", default=True)
        option = self.options.options.get(name)
        if self._doubtful(name):
            return Setting(name, None, default=True)
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


def training(
    configuration: Mapping[str, str],
    trainers: Sequence[Options],
    made_by: str = "",
    added: frozenset[str] = frozenset(),
    typed: frozenset[str] = frozenset(),
    hidden: frozenset[str] = frozenset(),
) -> Training:
    """Return the run that a configuration is for.

    :param made_by: the class that a script makes the configuration with. If it is empty, or no trainer's, the trainer
        is the one that knows most of the settings, the first of several.
    :param added: settings that need not be options of the trainer.
    :param typed: settings that are options of a command line; a flag's name need not be that of what it sets.
    :param hidden: what something that was not read may set, as in :attr:`Training.doubtful`.
    """
    meanings = [trainer.meaning(configuration, typed) for trainer in trainers]
    made = [bool(made_by) and trainer.made_by == made_by for trainer in trainers]
    counts = [sum(name in trainer for name in meaning) for trainer, meaning in zip(trainers, meanings)]
    best = max(range(len(trainers)), key=lambda place: (made[place], counts[place], -place), default=None)
    if best is None:
        return Training(configuration)
    run = Training(meanings[best], trainers[best], (*trainers[:best], *trainers[best + 1 :]), added)
    return replace(run, doubtful=hidden | frozenset(filter(None, run.meant().values())))
