"""Find those settings of a run that the framework's own code rejects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.tools.audit.accepted import accepted_values
from sentinel.tools.audit.checks import UNKNOWN, Raised, class_values, raised_by
from sentinel.tools.audit.declared import places
from sentinel.tools.audit.effective import Training
from sentinel.tools.audit.option_classes import Checked, Find, checks_of_class
from sentinel.tools.audit.options import Options

#: Numbers of processes to try if the number of a run's processes is unknown.
_PROCESSES = (1, 2, 4, 8)
#: The field of a configuration with the number of processes.
_WORLD_SIZE = "world_size"

_WORDS = {"true": True, "false": False, "null": None, "none": None}


def with_accepted(options: Options, configuration: Mapping[str, str], target: Target, checkout: Checkout) -> Options:
    """Add the accepted values, as the framework's code checks them, to options that the configuration changes."""
    asked = {
        name: option.default
        for name, option in options.options.items()
        if not option.choices and option.default and name in configuration
        if _can_be_choice(option.default)
        and _can_be_choice(configuration[name])
        and configuration[name] != option.default
    }
    if not asked:
        return options
    folders = [root / name for root in checkout.import_roots for name in target.packages if (root / name).is_dir()]
    found = accepted_values(folders, asked)
    more = {name: replace(options.options[name], choices=values) for name, values in found.items()}
    return replace(options, options={**options.options, **more}) if more else options


def _can_be_choice(text: str) -> bool:
    return text.replace("-", "_").replace(".", "_").isidentifier() and text.lower() not in _WORDS


@dataclass(frozen=True)
class Rejection:
    """An exception that a configuration class certainly raises for a run.

    :ivar names: the run's settings on which the exception depends, by their dotted names.
    :ivar processes: the numbers of processes for which it is raised, if it depends on them; otherwise empty.
    """

    raised: Raised
    names: tuple[str, ...]
    processes: tuple[int, ...] = ()


def rejections(
    run: Training, target: Target, checkout: Checkout, find: Find, processes: int | None = None
) -> list[Rejection]:
    """Return the exceptions that a run's settings cause in its configuration class, and the defaults do not.

    :param processes: the number of processes of the run; None if it is not known.
    """
    options = run.options
    file = next(filter(Path.is_file, places(target, checkout, options.file)), None) if options else None
    if options is None or not options.made_by or file is None:
        return []
    found = []
    for prefix, checked in checks_of_class(file, options.made_by, find).items():
        given = {name for name in run.configuration if name.startswith(prefix)}
        if not checked.starts or not given:
            continue
        sizes = _PROCESSES if processes is None else (processes,)
        raised = [_raised(checked, _values(options, prefix, run), size) for size in sizes]
        first = raised[0]
        if first is None or any(each is None or each.kind != first.kind for each in raised):
            continue
        if _raised(checked, _values(options, prefix, None), sizes[0]) is not None:
            continue  # the defaults raise it too, so the class must accept them for a reason that was not read
        depends = len({each.message for each in raised if each}) > 1
        names = tuple(name for name in (f"{prefix}{each}" for each in first.names) if name in given)
        found.append(Rejection(first, names, sizes if depends else ()))
    return found


def _raised(checked: Checked, values: Mapping[str, Any], processes: int) -> Raised | None:
    fields = {**class_values(checked.attributes), **values, _WORLD_SIZE: processes}
    return raised_by(checked.methods, fields, checked.constants, checked.starts)


def _values(options: Options, prefix: str, run: Training | None) -> dict[str, Any]:
    """Return the values of a section's fields in a run or, if ``run`` is None, their defaults."""
    values = {}
    for name, option in options.options.items():
        last = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in last:
            setting = run.setting(name) if run is not None else None
            values[last] = _value(setting.value if setting is not None else option.default if run is None else None)
    return values


def _value(text: str | None) -> Any:
    """Convert a setting's text to a Python value. It is UNKNOWN if the text may have several meanings."""
    if text is None or text == "" or not {*text}.isdisjoint(",[{$"):
        return UNKNOWN
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
