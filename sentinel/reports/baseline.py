"""Compare new evidence with recorded evidence, and classify the change: newly broken, newly fixed, drifted.

The verdict, the kind of reason and the observation are compared. Numbers may differ by a tolerance that depends on the
dtype, because another CPU or torch version may sum in another order. Differences of the environment are reported
separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.deciding.outcomes import UNDECIDED
from sentinel.deciding.verdicts import NOT_HERE
from sentinel.errors import NothingExamined
from sentinel.reports import store
from sentinel.reports.escaping import message
from sentinel.reports.evidence import Document, flat, is_tensor
from sentinel.reports.lines import Facts, Recipes, document_of, facts_of
from sentinel.sources.gitbinary import own_commit
from sentinel.values.closeness import BARE, bounds
from sentinel.values.literals import TAGGED
from sentinel.values.tolerance import Tolerance


@dataclass(frozen=True)
class Difference:
    """An element that differs between two evidence documents; ``within`` is True if it is within the tolerance."""

    where: str
    recorded: str
    now: str
    note: str = ""
    within: bool = False

    @property
    def brief(self) -> str:
        return f"{self.recorded} recorded, {self.now} now" + (f" ({self.note})" if self.note else "")

    def __str__(self) -> str:
        return f"{message(self.where)}: {self.brief}"


def compare(recorded: Any, now: Any, where: str, tolerance: Tolerance, dtype: str = BARE) -> Iterator[Difference]:
    """Yield a :class:`Difference` for each element of two values that differs, even within the tolerance."""
    if is_tensor(recorded) and is_tensor(now):
        for part in ("dtype", "shape"):
            if recorded[part] != now[part]:
                yield Difference(f"{where} ({part})", _show(recorded[part]), _show(now[part]))
                return
        yield from compare(recorded["tensor"], now["tensor"], where, tolerance, recorded["dtype"])
    elif isinstance(recorded, dict) and isinstance(now, dict) and set(recorded) == set(now):
        for key in sorted(recorded):
            yield from compare(recorded[key], now[key], f"{where}.{key}", tolerance, dtype)
    elif isinstance(recorded, list) and isinstance(now, list) and len(recorded) == len(now):
        for index, (one, other) in enumerate(zip(recorded, now, strict=True)):
            yield from compare(one, other, f"{where}[{index}]", tolerance, dtype)
    elif type(recorded) is not type(now) or recorded != now:
        yield _leaf(recorded, now, where, tolerance, dtype)


def _leaf(recorded: Any, now: Any, where: str, tolerance: Tolerance, dtype: str) -> Difference:
    left, right = number(recorded), number(now)
    shown = _show(recorded), _show(now)
    if left is None or right is None:
        return Difference(where, *shown)
    relative, absolute = bounds(dtype, tolerance)
    apart = abs(left - right)
    within = math.isfinite(apart) and apart <= absolute + relative * abs(left)
    note = ""
    if math.isfinite(apart):
        note = f"difference {apart:.3g}; tolerance {relative:g} relative, {absolute:g} absolute"
    return Difference(where, *shown, note, within)


def number(value: Any) -> float | None:
    """Return a float of an evidence document, including NaN and infinity. Return None for any other value."""
    if isinstance(value, float):
        return value
    return float(value) if isinstance(value, str) and value in TAGGED else None


def _show(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    text = message(str(value) if isinstance(value, (str, int)) else repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


Recorded = Mapping[str, Any]

#: Facts whose change updates an entry even if its verdict and numbers are unchanged.
_SUBJECT = ("refs", "recipe", "binding", "contract", "boundary", "checkout", "scenario", "variants")
_SHOWN = 3


def difference(recorded: Recorded, now: Recorded) -> list[str]:
    """Return the differences between recorded and new evidence as sentences; empty if they agree."""
    if (recorded["target"], recorded["bug_id"]) != (now["target"], now["bug_id"]):
        one, other = (message(f"{document['target']} {document['bug_id']}") for document in (recorded, now))
        return [f"different bugs: {one} in the recorded evidence, {other} in the new evidence"]
    lines = _verdict_difference(recorded, now)
    if recorded["observation"] is None and now["observation"] is None:
        return lines
    if recorded["observation"] is None or now["observation"] is None:
        # Reported only if the verdicts agree, because different verdicts already explain the missing measurement.
        return lines or [
            "drifted: values were measured now, but not when the entry was recorded"
            if now["observation"]
            else "drifted: values were measured when the entry was recorded, but not now"
        ]
    return lines + _drift(recorded, now)


def is_unavailable_here(recorded: Recorded, now: Recorded) -> bool:
    """Return True if this machine lacks the revision or the Python version that the recorded verdict needs.

    The new verdict then reports nothing about the code. Return False if the verdict was recorded with the same Python
    version, because the code itself then requires another version now.
    """
    then, here = (str((side["environment"] or {}).get("python")).rpartition(".")[0] for side in (recorded, now))
    return now["kind"] == "ref" or (now["kind"] == "python" and then != here)


def circumstances(recorded: Recorded, now: Recorded) -> list[str]:
    """Return, as sentences, the differences that do not affect the verdict: environment, code, and the versions of
    Sentinel, recipe and adapter."""
    there, here = _circumstances(recorded), _circumstances(now)
    names = sorted(set(there) | set(here))
    return [
        f"{message(name)}: {_brief(there.get(name))} recorded, {_brief(here.get(name))} now"
        for name in names
        if there.get(name) != here.get(name)
    ]


def _verdict_difference(recorded: Recorded, now: Recorded) -> list[str]:
    before, after = recorded["verdict"], now["verdict"]
    if before != after:
        reason = f": {message(now['reason'])}" if now["reason"] and after in UNDECIDED else ""
        return [f"{direction(recorded, now)}: {verdict_text(recorded)} -> {verdict_text(now)}{reason}"]
    if recorded["kind"] != now["kind"]:
        return [f"other reason: {verdict_text(recorded)} -> {verdict_text(now)}: {message(now['reason'])}"]
    return []


def direction(recorded: Recorded, now: Recorded) -> str:
    """Return how the verdict changed: ``newly broken``, ``newly fixed``, ``newly inconclusive`` or ``no longer
    available``. If only values or the code's interface changed, return ``drifted``."""
    if recorded["verdict"] == now["verdict"] or now["verdict"] == "changed":
        return "drifted"
    if now["kind"] == "drift":
        return "drifted"
    if now["verdict"] == "inconclusive":
        return "newly inconclusive"
    return {"reproduced": "newly broken", "fixed": "newly fixed"}.get(now["verdict"], "no longer available")


def verdict_text(document: Recorded) -> str:
    """Return the verdict of a document as text, such as ``inconclusive (drift)``."""
    return f"{document['verdict']} ({message(document['kind'])})" if document["kind"] else str(document["verdict"])


def _drift(recorded: Recorded, now: Recorded) -> list[str]:
    lines = []
    for key, differences in _compare_keys(recorded, now):
        judged = [item for item in differences if not item.within]
        lines += [f"drifted: {item}" for item in judged[:_SHOWN]]
        if len(judged) > _SHOWN:
            lines.append(f"drifted: {key}: {len(judged) - _SHOWN} more elements differ")
    return lines


def _compare_keys(recorded: Recorded, now: Recorded) -> Iterator[tuple[str, list[Difference]]]:
    there, here = flat(recorded["observation"]), flat(now["observation"])
    for key in sorted(set(there) | set(here)):
        if key not in here or key not in there:
            words = ("there", "absent") if key in there else ("absent", "there")
            yield key, [Difference(key, *words)]
        else:
            yield key, list(compare(there[key], here[key], key, _tolerance_of_key(now, key)))


def _tolerance_of_key(now: Recorded, key: str) -> Tolerance:
    expectation = now["expectation"]
    chosen = expectation["tolerance"]
    for side in ("unpatched", "fixed"):
        own = expectation[side].get(key, {}).get("tolerance", {})
        if any(own.values()):
            chosen = own
    return Tolerance(chosen["relative"], chosen["absolute"], chosen["exact"])


def _circumstances(document: Recorded) -> dict[str, Any]:
    environment = dict(document["environment"])
    details = {f"flag {name}": value for name, value in environment.pop("flags").items()}
    details.update({f"package {name}": value for name, value in environment.pop("packages").items()})
    details["ghosts"] = ", ".join(environment.pop("ghosts"))
    details["stand-ins"] = ", ".join(item["name"] for item in environment.pop("stand_ins"))
    checkout, boundary = document["checkout"] or {}, document["boundary"]
    return {
        **environment,
        **details,
        "sentinel": document["sentinel_version"],
        "recipe": document["recipe"]["digest"],
        "adapter": document["adapter"],
        "commit": checkout.get("commit"),
        "tree": checkout.get("tree"),
        "boundary": boundary["found"],
        "file": boundary["file"],
        "blob": boundary["blob"],
    }


def _brief(value: Any) -> str:
    return "none" if value in (None, "") else message(str(value))


@dataclass(frozen=True)
class Agreement:
    """How the recorded and the new values of one observation key compare.

    :ivar outcome: ``identical``, ``within tolerance`` or ``different``.
    """

    key: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """The comparison of recorded evidence with a new decision, key by key."""

    agreements: tuple[Agreement, ...]
    differences: tuple[str, ...]
    circumstances: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        width = max((len(item.key) for item in self.agreements), default=0)
        lines = [f"  {item.key:<{width}}  {item.outcome}  {item.detail}".rstrip() for item in self.agreements]
        lines += [f"  ! {line}" for line in self.differences]
        if self.circumstances:
            lines += ["  differences that do not count:", *(f"    {line}" for line in self.circumstances)]
        return "\n".join([self.conclusion, *lines])

    @property
    def conclusion(self) -> str:
        if self.differences:
            return "NOT the same"
        if not self.agreements:
            return "the same verdict; there are no numbers to compare"
        exact = all(item.outcome == "identical" for item in self.agreements)
        return "the same: every number is identical" if exact else "the same: every number agrees within its tolerance"


def verify_report(recorded: Recorded, now: Recorded) -> Verification:
    """Compare recorded evidence with new evidence of the same recipe, key by key."""
    agreements = []
    for key, differences in _compare_keys(recorded, now):
        outcome = (
            "identical"
            if not differences
            else "within tolerance"
            if all(i.within for i in differences)
            else "different"
        )
        detail = "; ".join(item.brief for item in differences[:_SHOWN])
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        agreements.append(Agreement(message(key), outcome, detail + more))
    return Verification(tuple(agreements), tuple(difference(recorded, now)), tuple(circumstances(recorded, now)))


@dataclass(frozen=True)
class Update:
    """The changes that were made to a baseline by :func:`update`.

    :ivar changed: one line per written or removed entry, ``<place>: <change>``.
    :ivar kept: one line ``<place>: <verdict>; <reason>`` per recorded verdict that this machine cannot repeat, because
        the mirror lacks the commit or Python has another version. Such entries are not changed.
    :ivar examined: the number of compared verdicts.
    """

    changed: tuple[str, ...]
    kept: tuple[str, ...] = ()
    examined: int = 0


def update(report_dir: Path, baseline_dir: Path, recipes: Recipes, prune: bool = False) -> Update:
    """Write the verdicts of a folder's last run into a baseline. The lines of unchanged entries are not modified.

    If the baseline stores a target of the run as single files, these are converted to lines.

    :param prune: remove the entries of the run's targets for which the run has no verdict.
    :raises NothingExamined: if the run has no evidence.
    :raises SentinelError: if a file is not valid evidence, or the baseline is not writable. All files are read before
        the first is written.
    """
    fresh = {place: document for place, (document, _) in store.decided(report_dir, store.RUN_AGAIN).items()}
    if not fresh:
        raise NothingExamined(f"{report_dir} contains no evidence; run pytest with --sentinel-target first")
    decided_with = {"date": store.day_of(report_dir), "sentinel": own_commit()}
    changed, kept, files = [], [], {}
    for target in sorted({place.parts[0] for place in fresh}):
        before = store.entries(baseline_dir, target, recipes)
        after = dict(before)
        for place, document in fresh.items():
            if place.parts[0] != target:
                continue
            # A baseline contains the findings of searches, but not the thousands of laws that hold or do not apply.
            if place not in before and not document["bug_id"] and document["verdict"] in ("fixed", "unavailable"):
                continue
            facts = {**facts_of(document, recipes, store.subject_of(place)), **decided_with}
            changes = _changes(before.get(place), facts, document)
            if changes and place in before and _is_unreachable_here(before[place], document):
                kept.append(f"{place}: {before[place]['verdict']}; {document['reason']}")
            elif changes:
                after[place] = facts
                changed.append(f"{place}: {'; '.join(changes)}")
        for place in before.keys() - fresh.keys() if prune else ():
            del after[place]
            changed.append(f"{place}: removed")
        files[target] = after
    for target, after in files.items():
        store.write_entries(baseline_dir, target, after)
    return Update(tuple(changed), tuple(kept), len(fresh))


def _is_unreachable_here(recorded: Recorded, document: Document) -> bool:
    """Return True if the recorded verdict must be kept, because only this machine makes the new verdict unavailable."""
    if document["verdict"] != "unavailable" or document["kind"] not in NOT_HERE:
        return False
    return recorded["verdict"] not in UNDECIDED or (document["kind"] == "ref" != recorded.get("kind"))


def _changes(recorded: Facts | None, facts: Facts, document: Document) -> list[str]:
    if recorded is None:
        return [f"new: {verdict_text(document)}"]
    changed = [name for name in _SUBJECT if recorded.get(name) != facts.get(name)]
    before = document_of(recorded, str(document["target"]))
    return difference(before, document) + ([f"other {', '.join(changed)}"] if changed else [])
