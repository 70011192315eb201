"""Whether a training configuration reaches a bug, as far as the recipe's ``affects`` names settings.

A setting that the configuration does not name has the default of the copy that is looked at. What no setting decides
(the data, a caller of one's own) is not looked at: "reached" means that the settings lead there. Prose alone is never
an answer: a person has to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.recipes.affects import Affected, bounding, condition_in_words, holds
from sentinel.tools.audit.effective import Training

ANSWERS = ("reached", "not known", "not reached")


@dataclass(frozen=True)
class Reach:
    """:ivar answer: one of :data:`ANSWERS`.
    :ivar because: the settings that say so; of what is not known, what it takes.
    :ivar where: what beside the settings must be for the bug to bite.
    :ivar settings: whether the recipe names settings; else ``where`` says what it is about.
    """

    answer: str
    because: str
    where: str = ""
    settings: bool = True


def reach(affects: Sequence[Affected], run: Training) -> Reach:
    """Say whether a run's settings reach a bug; one entry of ``affects`` is enough."""
    answers = [_entry(entry, run) for entry in affects]
    nothing = Reach("not known", "the recipe names no setting")
    return min(answers, key=lambda answer: ANSWERS.index(answer.answer), default=nothing)


def _entry(entry: Affected, run: Training) -> Reach:
    if not entry.when:
        return Reach("not known", "no setting decides it", entry.where, settings=False)
    met, unknown = [], []
    for name, condition in entry.when.items():
        setting = run.setting(name)
        other = run.elsewhere(name) if setting is None else None
        if other is not None:
            return Reach("not reached", f"{name} is an option of {other}")
        if setting is None and condition == "unset" and run.absent(name):
            met.append(f"there is no {name}")
            continue
        if setting is None or setting.value is None:
            unknown.append(condition_in_words(name, condition))
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
        if not holds(condition, setting.value):
            return Reach("not reached", text)
        met.append(text)
    if unknown:
        return Reach("not known", f"it takes {', '.join(unknown)}", entry.where)
    return Reach("reached", ", ".join(met), entry.where)
