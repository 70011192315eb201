"""Look up the value of a setting in a training run: the configured value or, without it, the framework's default."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sentinel.errors import nearest
from sentinel.tools.audit.options import Options, is_trainer, with_sections

#: ``${actor.path}``, ``${oc.select:actor.path,1}``: the value of another setting. Relative references (``${.path}``)
#: are not read.
_REFERENCE = re.compile(r"\$\{(?:oc\.select: *)?([A-Za-z_][\w.]*) *(?:, *([^${}]*))?\}")


#: A reference to a setting or section inside a value.
_REFERRED = re.compile(r"\$\{(?:oc\.select: *)?([A-Za-z_][\w.]*)[ ,}]")

_NO_NAMES = ("true", "false", "null", "{…}")

#: Maximum number of unknown settings for which a similar option is looked up.
_MOST = 30

#: Minimum similarity of a suggested value. It is high because all values are listed anyway, and because short values
#: resemble each other: gspo is not a misspelt sapo.
_ALIKE = 0.8


#: Patterns of names whose settings and arguments specify reward functions, environments or data: both must match.
_SUBJECT = re.compile(
    r"(.*[._])?(agent|custom|data|datasets?|env|environment|judge|prompt|rewards?|rm|source|taskset|"
    r"verifier)([._].*)?|.*_function_path"
)
_ENDING = re.compile(
    r"(.*[._])?(cls|class|data|dataset|files?|f(u?n|unc|unction)s?|id|name|paths?|source|url|(rm|reward)[._]type)"
)


def is_reference(name: str) -> bool:
    """Return True if the name of a setting suggests a reward function, an environment or data."""
    return bool(_SUBJECT.fullmatch(name) and _ENDING.fullmatch(name))


@dataclass(frozen=True)
class Setting:
    """The value that a setting has in a training run.

    :ivar name: the name of the setting, or of the section above it if this section is null.
    :ivar value: its text; None if it cannot be known.
    :ivar default: whether the value is the copy's default, because the configuration does not set it.
    """

    name: str
    value: str | None
    default: bool = False


@dataclass(frozen=True)
class Training:
    """A training run, as its configuration and the framework's options determine it.

    :ivar configuration: the text of each setting.
    :ivar options: the options of the configuration's trainer; None if they are unknown.
    :ivar others: the options of the copy's other trainers.
    :ivar fits: the options of all trainers that fit the settings, including ``options``.
    :ivar added: settings that the command adds with ``+``; such settings need not be options.
    :ivar recorded: settings that a running trainer had. They are valid, and may be attributes that are not options.
    :ivar doubtful: options that unread code may set, so that their defaults are not used. A name that ends with a dot
        is a section; the empty name stands for all options.
    :ivar trainers: the names of the trainer classes that the script uses, and of their base classes; empty if unknown.
    :ivar apart: dotted path of a function -> the trainer to which it belongs, for trainers that the run does not use.
    """

    configuration: Mapping[str, str]
    options: Options | None = None
    others: tuple[Options, ...] = ()
    fits: tuple[Options, ...] = ()
    added: frozenset[str] = frozenset()
    recorded: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    trainers: tuple[str, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)

    def unused(self, name: str) -> str:
        """Return the name if it is a trainer class that the run certainly does not use; otherwise ""."""
        return name if self.trainers and is_trainer(name) and name not in self.trainers else ""

    def unknown(self) -> list[str]:
        """Return the settings that are certainly not options of the trainer. Return only the section if it does not
        exist."""
        options = self.options
        if options is None:
            return []
        found: dict[str, None] = {}
        for name in self.configuration:
            if name in self.added | self.recorded or not self._referenced_names.isdisjoint(with_sections(name)):
                continue
            first = next((part for part in with_sections(name) if options.closed(part)), None)
            if first is not None:
                found[first] = None
        return list(found)

    @cached_property
    def _referenced_names(self) -> frozenset[str]:
        referred = {name for text in self.configuration.values() for name in _REFERRED.findall(text)}
        known = self.options if self.options is not None else ()
        first = (next((each for each in with_sections(name) if each not in known), "") for name in referred)
        return frozenset(filter(None, first))

    @cached_property
    def nested(self) -> Mapping[str, str]:
        """Return setting -> option, such as ``run.lr`` -> ``lr``, for settings in a section that does not exist.

        A parser of flat options does not read such settings, but the user's own code may. Settings without such an
        option are left out.
        """
        options = self.options.options if self.options is not None else {}
        found: dict[str, str] = {}
        for name in self.configuration:
            parts, known = name.split("."), {*self._referenced_names, *self.added}
            if not any((self.options and each in self.options) or each in known for each in with_sections(name)):
                tails = (".".join(parts[start:]) for start in range(1, len(parts)))
                found[name] = next(filter(options.__contains__, tails), "")
        return {name: option for name, option in found.items() if option}

    @property
    def references(self) -> dict[str, str]:
        """Return the settings that name reward functions, environments or data, with their values."""
        names = (
            name for name, text in self.configuration.items() if is_reference(name) and re.search(r"[^\W\d]|\?", text)
        )
        values = {name: self.configuration[name] for name in names}
        return {name: text for name, text in values.items() if text not in _NO_NAMES and not _REFERENCE.fullmatch(text)}

    def unread(self) -> list[str]:
        """Return the settings that are not known options, but may be options that unread code declares."""
        options = self.options
        if options is None:
            return list(self.configuration)
        others = (name for name in self.configuration if name not in options and name not in self.recorded)
        return [name for name in others if options.may_declare(name)]

    @cached_property
    def invalid(self) -> Mapping[str, str]:
        """Return setting -> description of the valid values, for each setting with an invalid value."""
        known = self.options.options if self.options is not None else {}
        checked = known.keys() - self.recorded
        expected = {name: known[name].expects(text) for name, text in self.configuration.items() if name in checked}
        return {
            name: text + nearest(self.configuration[name], known[name].choices, alike=_ALIKE)
            for name, text in expected.items()
            if text
        }

    def is_unread(self, name: str) -> bool:
        """Return True if the user sets this option to a value that could not be read."""
        setting = self.setting(name)
        given = setting is not None and (setting.name in self.configuration or self._doubtful(name))
        return setting is not None and given and setting.value is None

    def _doubtful(self, name: str) -> bool:
        return covers(self.doubtful, name)

    def meant(self) -> dict[str, str]:
        """Return misspelled setting -> most similar option."""
        options = self.options
        if options is None:
            return {}
        unread = {name: options.closest(name, 0.85) for name in self.unread()[:_MOST]}
        alike = 0.8 if options.companions else 0.6  # a class of the user's script may declare the name
        return {
            **{
                name: options.closest(name, alike, is_section=name not in self.configuration)
                for name in self.unknown()[:_MOST]
            },
            **{name: option for name, option in unread.items() if option},
        }

    def setting(self, name: str) -> Setting | None:
        """Return the value of a setting in this run, or None if neither the configuration nor the framework has it."""
        return self._resolved(self._lookup(name), 8)

    def absent(self, name: str) -> bool:
        """Return True if the framework's options are known and do not have this name."""
        return self.options is not None and self._lookup(name) is None

    def elsewhere(self, name: str) -> str | None:
        """Return another trainer of the framework that has this option, or None."""
        return next((other.name for other in self.others if name in other), None)

    def _lookup(self, name: str) -> Setting | None:
        if name in self.configuration:
            return Setting(name, None if name in self.invalid else self.configuration[name])
        if self._sets_member_of(name):
            return Setting(name, "{…}")
        for section in with_sections(name)[:-1]:
            if self.configuration.get(section):  # the section is null or a single value, so it has no members
                return Setting(section, "null" if self.configuration[section] == "null" else None)
        return self._default(name)

    def _default(self, name: str) -> Setting | None:
        if self.options is None or name not in self.options:
            return None
        for section in with_sections(name)[:-1]:
            option = self.options.options.get(section)
            if option is not None and option.default == "null" and not self._sets_member_of(section):
                return Setting(section, None if self._doubtful(name) else "null", default=True)
        option = self.options.options.get(name)
        if self._doubtful(name):
            return Setting(name, None, default=True)
        return Setting(name, option.default if option else "{…}", default=True)

    def _sets_member_of(self, section: str) -> bool:
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


def covers(items: Collection[str], name: str) -> bool:
    """Return True if ``items``, which has options and sections, includes this option or one of its sections."""
    return name in items or any(item[-1:] in ("", ".") and name.startswith(item) for item in items)


def training(
    configuration: Mapping[str, str],
    trainers: Sequence[Options],
    made_by: str = "",
    added: frozenset[str] = frozenset(),
    typed: frozenset[str] = frozenset(),
    hidden: frozenset[str] = frozenset(),
    recorded: frozenset[str] = frozenset(),
) -> Training:
    """Create the training run of a configuration. Its trainer is the one whose options fit best.

    :param made_by: the configuration class that a script calls; it determines the trainer. If it is empty or belongs to
        no trainer, the trainer with the most settings among its options is used; of several, the one that accepts the
        most values. Another trainer fits unless the settings that it accepts are a part of those that this one accepts.
    :param added: settings that need not be options of the trainer.
    :param typed: settings from a command line; the name of a flag may differ from the setting that it sets.
    :param hidden: options that unread code may set, as in :attr:`Training.doubtful`.
    :param recorded: settings that a running trainer had, as in :attr:`Training.recorded`.
    """
    runs = [
        Training(trainer.meaning(configuration, typed), trainer, added=added, recorded=recorded) for trainer in trainers
    ]
    made = [bool(made_by) and trainer.made_by == made_by for trainer in trainers]
    known = [{name for name in run.configuration if name in trainer} for run, trainer in zip(runs, trainers)]
    taken = [names.difference(run.invalid) for names, run in zip(known, runs)]
    places = range(len(trainers))
    best = max(places, key=lambda place: (made[place], len(known[place]), len(taken[place]), -place), default=None)
    if best is None:
        return Training(configuration)
    fits = [place for place in places if made[place] or (not made[best] and not taken[place] < taken[best])]
    run = replace(
        runs[best],
        others=(*trainers[:best], *trainers[best + 1 :]),
        fits=tuple(trainers[place] for place in fits),
    )
    unknown = (*run.unknown(), *run.unread())  # argparse accepts abbreviated names of flags
    short = {name for name in trainers[best].options if any(map(name.startswith, unknown))}
    meant = {f"{name}." if trainers[best].section(name) else name for name in run.meant().values() if name}
    return replace(run, doubtful=hidden | meant | {*filter(None, run.nested.values())} | short)
