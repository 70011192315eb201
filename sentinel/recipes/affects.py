"""Determine whether a training configuration has the settings under which a bug occurs (a recipe's ``affects``).

``affects`` is a list, of which one entry that applies is enough. An entry is a sentence, or ``{when: {setting:
condition}, trainer: class, where: sentence}``. For the second form, all conditions must hold, the run must use this
trainer class or a subclass of it, and ``where`` states a further condition on data or hardware. A condition is

* a value (``grpo``, ``true``, ``1``), or a list of values of which one suffices;
* ``set`` (anything but null, false and an empty text) or ``unset``;
* a bound: ``"> 1"``, ``">= 1"``, ``"< 1"`` or ``"<= 1"``, in which a setting's name may replace the number;
* ``"!= 1"``, or ``"!= k1,k2"`` for any value except these two.

``reach.when`` has conditions of the same form: those under which the framework produces the value that shows the bug.
Each entry with settings must name the settings of ``reach.when`` too, so that a configuration can meet both.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Values of a setting that mean it is off.
OFF = ("null", "false", "")
#: Key of a configuration file that ``sentinel watch`` wrote. Its value is a list of names: the class of the run's
#: configuration, and the base classes of this class. The other keys are the settings that the running trainer had.
RECORDED = "sentinel_watch"

_BOUND = re.compile(r"(>=|<=|!=|>|<) (\S+)")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True)
class Affected:
    """One entry of a recipe's ``affects``: settings under which the bug occurs.

    :ivar when: setting -> condition, as written in the recipe; empty if the entry is prose.
    :ivar where: a further condition in words, or the whole entry if it is prose.
    :ivar trainer: the trainer class that the run must use; empty if any class will do.
    """

    when: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    trainer: str = ""

    def __str__(self) -> str:
        settings = ", ".join(condition_in_words(name, condition) for name, condition in self.when.items())
        return f"{settings}, if {self.besides}" if settings and self.besides else settings or self.besides

    @property
    def besides(self) -> str:
        """Return as text the conditions that are not settings: the trainer class and ``where``."""
        trainer = f"the trainer is {self.trainer}" if self.trainer else ""
        return ", and ".join(filter(None, [trainer, self.where]))


def read_affected(entry: Any) -> Affected:
    """Convert one entry of a recipe's ``affects``, which has been read from YAML.

    An invalid entry is read as a sentence, so that evidence from other people can still be printed.
    """
    if not isinstance(entry, Mapping) or not isinstance(entry.get("when"), Mapping):
        return Affected(where=str(entry))
    return Affected(dict(entry["when"]), str(entry.get("where", "")).strip(), str(entry.get("trainer", "")))


def in_text(value: Any) -> str:
    """Format a value as configuration files write it: ``true``, ``null``, ``0.5``, or a list separated by commas."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(in_text, value)) if isinstance(value, (list, tuple)) else str(value)


def condition_in_words(name: str, condition: Any) -> str:
    """Format a condition for a report: ``a=1``, ``a=1 or 2``, ``a set``, ``a not set``, ``a > 1``."""
    if isinstance(condition, (list, tuple)):
        return f"{name}={' or '.join(map(in_text, condition))}"
    text = in_text(condition)
    if text in ("set", "unset"):
        return f"{name} {'set' if text == 'set' else 'not set'}"
    return f"{name} {text}" if _BOUND.fullmatch(text) else f"{name}={text}"


#: Further spellings of booleans in configurations and on command lines.
_SWITCHES = {True: ("1", "yes", "on", "y", "t"), False: ("0", "no", "off", "n", "f")}


def holds(condition: Any, value: str) -> bool:
    """Return True if a setting's value meets a condition.

    If the condition is a list, or the value is a text with commas, one member that matches is enough.

    :param value: the value as :func:`in_text` writes it.
    """
    if isinstance(condition, (list, tuple)):
        return any(holds(item, value) for item in condition)
    if isinstance(condition, bool) and value.lower() in _SWITCHES[condition]:
        return True
    text = in_text(condition)
    if text in ("set", "unset"):
        return (value not in OFF) == (text == "set")
    bound = _BOUND.fullmatch(text)
    if bound is None:
        return any(_same(text, item.strip()) for item in (value, *value.split(",")))
    if bound[1] == "!=":
        return not any(_same(other, value) for other in bound[2].split(","))
    one, other = _number(value), _number(bound[2])
    return one is not None and other is not None and _COMPARE[bound[1]](one, other)


def is_undecidable(condition: Any, value: str) -> bool:
    """Return True if a condition is a numeric bound, and the value is text that cannot be compared with it."""
    bound = _BOUND.fullmatch(in_text(condition))
    return bound is not None and bound[1] != "!=" and value.lower() not in (*OFF, "true") and _number(value) is None


def can_both_hold(one: Any, other: Any) -> bool:
    """Return True if a setting can have a value that meets both conditions. This is assumed if a condition refers to
    another setting."""
    if bounding(one) or bounding(other):
        return True
    values = {value for condition in (one, other) for value in _samples(condition)}
    return any(holds(one, value) and holds(other, value) for value in values)


def _samples(condition: Any) -> Iterator[str]:
    """Yield values with which to test a condition: its own, numbers on both sides of its bound, and some fixed ones."""
    yield from (*OFF, "true", "another value")
    for item in condition if isinstance(condition, (list, tuple)) else [condition]:
        bound = _BOUND.fullmatch(in_text(item))
        for text in bound[2].split(",") if bound else [in_text(item)]:
            yield text
            number = _number(text)
            if number is not None:
                yield from (repr(number - 1e-9), repr(number + 1e-9))


def bounding(condition: Any) -> str:
    """Return the setting to which a bound refers, such as ``other.setting`` for ``< other.setting``. Return "" if there
    is none."""
    bound = _BOUND.fullmatch(in_text(condition))
    return bound[2] if bound and bound[1] != "!=" and _number(bound[2]) is None else ""


def _same(one: str, other: str) -> bool:
    first, second = _number(one), _number(other)
    return one == other if first is None or second is None else first == second


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def settings_in_words(settings: Mapping[str, str]) -> str:
    """Format settings for a report: ``a=1, b=null``."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())
