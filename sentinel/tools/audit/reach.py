"""Decide whether a training configuration triggers a bug, by the settings in the recipe's ``affects``.

A setting that the configuration does not set has the copy's default. "Reached" means that the settings lead to the
buggy code; other conditions, such as the data or the user's own code, are not checked. If ``affects`` is only prose,
the answer is "not known", and the user has to read the prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.recipes.affects import Affected, bounding, condition_in_words, holds, is_undecidable
from sentinel.tools.audit.effective import Training

ANSWERS = ("reached", "not known", "not reached")


@dataclass(frozen=True)
class Reach:
    """Whether a training run triggers a bug, and the reason.

    :ivar answer: one of :data:`ANSWERS`.
    :ivar because: the settings that determine the answer; if the answer is "not known", the values of unknown settings
        with which the bug is reached.
    :ivar where: the condition that must hold in addition to the settings.
    :ivar settings: whether the recipe names settings; otherwise ``where`` describes the runs that are affected.
    :ivar unread: settings on which the answer depends, and which the user sets to values that could not be read.
    :ivar unused: the trainer class that has the bug, if the run does not use this class; otherwise empty.
    """

    answer: str
    because: str
    where: str = ""
    settings: bool = True
    unread: tuple[str, ...] = ()
    unused: str = ""


def reach(affects: Sequence[Affected], run: Training, boundary: str = "") -> Reach:
    """Decide whether a run's settings trigger a bug: they must meet at least one entry of its ``affects``.

    :param boundary: the dotted path of the function that has the bug. If it belongs to a trainer that the run does not
        use, the answer is "not reached".
    """
    if unused := run.unused(boundary.rpartition(".")[0].rpartition(".")[2]) or run.apart.get(boundary, ""):
        return Reach("not reached", f"the run does not use {unused}", unused=unused)
    answers = [_entry(entry, run) for entry in affects]
    nothing = Reach("not known", "the recipe does not name a setting")
    return min(answers, key=lambda answer: ANSWERS.index(answer.answer), default=nothing)


def _entry(entry: Affected, run: Training) -> Reach:
    if run.unused(entry.trainer):
        return Reach("not reached", f"the run does not use {entry.trainer}", unused=entry.trainer)
    where = entry.where if run.trainers else entry.besides
    if not entry.when:
        return Reach("not known", "it does not depend on settings", where, settings=False)
    met, unknown = [], []
    for name, condition in entry.when.items():
        setting = run.setting(name)
        other = run.elsewhere(name) if setting is None else None
        if other is not None:
            return Reach("not reached", f"{name} is an option of {other}")
        if setting is None and condition == "unset" and run.absent(name):
            met.append(f"{name} does not exist in this version")
            continue
        if setting is None or setting.value is None:
            gone = " (this version has no such option)" if run.absent(name) else ""
            unknown.append(f"{condition_in_words(name, condition)}{gone}")
            continue
        text = f"{setting.name}={setting.value}" + (" (the default)" if setting.default else "")
        bound = bounding(condition)
        if bound:
            limit = run.setting(bound)
            if limit is None or limit.value is None:
                unknown.append(condition_in_words(name, condition))
                continue
            text += f", {bound}={limit.value}"
            condition = str(condition).replace(bound, limit.value)
        if is_undecidable(condition, setting.value):
            unknown.append(condition_in_words(name, condition))
            continue
        if not holds(condition, setting.value):
            return Reach("not reached", text)
        met.append(text)
    if unknown:
        unread = tuple(name for name in entry.when if run.is_unread(name))
        return Reach("not known", f"it depends on {', '.join(unknown)}", where, unread=unread)
    return Reach("reached", ", ".join(met), where)
