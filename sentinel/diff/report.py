"""What a comparison came to, in words and as data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.diff.comparing import BoundaryDiff, Broken, Comparison, Difference
from sentinel.diff.pairs import AFTER, BEFORE, SIDES
from sentinel.errors import SentinelError
from sentinel.history.chronicle import plain_commit
from sentinel.laws.agreement import numbers
from sentinel.reports.escaping import message
from sentinel.reports.explain import distinct, scenario_lines
from sentinel.reports.markdown import escaped
from sentinel.reports.store import write_atomically
from sentinel.sources.home import read_json
from sentinel.targets.checkout import Checkout
from sentinel.values.literals import Tensor, typed


def sentence(compared: BoundaryDiff) -> str:
    """Say what has changed, in one sentence."""
    if compared.lost:
        return compared.lost
    parts = [f"mends {', '.join(bugs)}" for bugs in [compared.bugs.get(BEFORE)] if bugs]
    parts += [f"brings {', '.join(bugs)}" for bugs in [compared.bugs.get(AFTER)] if bugs]
    lead = "it is new, and not so that" if compared.state == "new" else "it is no longer so that"
    for item in _first(compared.broken.get(AFTER, ())):
        parts.append(f"{'of an option or choice that came it is not so that' if item.came else lead} {item.statement}")
    parts += [f"now {item.statement}" for item in _first(compared.broken.get(BEFORE, ()))]
    parts += [of_difference(item) for item in compared.differences[:1]]
    parts += [message(compared.reason)] if compared.state == "differs" and compared.reason else []
    return "; ".join(parts)


def _first(broken: Sequence[Broken]) -> list[Broken]:
    return list({item.law: item for item in broken}.values())[:2]


def of_difference(difference: Difference) -> str:
    """Say how the answers of a scenario differ, in words."""
    before, after = (difference.answers[side] for side in SIDES)
    if isinstance(after, str) or isinstance(before, str):
        return f"it now raises: {message(after)}" if isinstance(after, str) else f"it raised: {message(str(before))}"
    for key in difference.details:
        one, other = numbers(before.get(key)), numbers(after.get(key))
        if one is None or other is None:
            was, is_ = distinct(before.get(key), after.get(key))
            return f"{message(key)} is {is_}, and was {was}"
        if difference.symptom == "dtype":
            return f"{message(key)} has the same numbers in {other[1]}, and had them in {one[1]}"
        if one[0].shape != other[0].shape:
            return f"{message(key)}: {difference.details[key]}"
        where = ", only where the mask is 0" if difference.symptom == "masked" else ""
        return f"{message(key)} {_moved(one[0], other[0])}{where}"
    return difference.symptom


def _moved(one: Any, other: Any) -> str:
    """Find the simplest words for how numbers have moved."""
    finite = np.isfinite(one) & np.isfinite(other)
    if (np.isfinite(one) != np.isfinite(other)).any():
        return "is now finite" if np.isfinite(other).all() else "is no longer finite"
    moved = finite & (one != other)
    left, right = one[moved], other[moved]
    if not left.size:
        return "is another"
    if (right == 0).all():
        return "is now 0 where it was not" if moved.size > 1 else "is now 0"
    if (left == 0).all():
        return "was 0 where it is not" if moved.size > 1 else "was 0"
    if np.allclose(left, -right, rtol=1e-4, atol=0):
        return "has the other sign"
    ratio = right / np.where(left == 0, np.nan, left)
    if np.isfinite(ratio).all() and np.allclose(ratio, ratio.flat[0], rtol=1e-4):
        return f"is {ratio.flat[0]:.6g} times what it was"
    if left.size > 1 and np.allclose(right - left, (right - left).flat[0], rtol=1e-4):
        return f"is {(right - left).flat[0]:+.6g} of what it was"
    return f"is up to {np.abs(right - left).max():.3g} away from what it was"


def revision(checkout: Checkout) -> str:
    """Give a ref, with what it resolved to."""
    what = checkout.commit[:12] if checkout.commit else checkout.version or checkout.tree[:12]
    dirty = ", with uncommitted changes" if checkout.dirty else ""
    return f"{checkout.ref.short} ({what}{dirty})"


def headline(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> str:
    """Give one sentence that a maintainer can quote."""
    states = Counter(item.state for item in results)
    judged = Counter(item.judgement for item in results if item.state == "differs")
    scenarios = sum(item.scenarios for item in results)
    where = f"{comparison.target.name} from {revision(comparison.checkouts[BEFORE])} to "
    where += revision(comparison.checkouts[AFTER])
    count = states["differs"] + states["same numbers"]
    if not count:
        text = "none of its boundaries reaches code that has changed" if states["same code"] else "nothing is compared"
        if interrupted:
            text = "none of the boundaries that reach changed code was asked"
        elif states["not compared"]:
            text = "none of the boundaries that reach changed code could be compared"
    else:
        judgements = ", ".join(f"{times} {word}" for word, times in judged.items())
        differ = f"{states['differs']} of {count} boundaries that reach changed code differ ({judgements})"
        same = f"no difference at the {count} boundaries that reach changed code"
        same = "no difference at the one boundary that reaches changed code" if count == 1 else same
        text = f"{differ if states['differs'] else same}, in {scenarios} scenarios"
    same = f"; {states['same code']} reach none" if states["same code"] and count else ""
    bad = sum(item.state == "new" and bool(item.judgement) for item in results)
    suffixes = {"new": f" ({bad} worse)" if bad else ""}
    kinds = ("new", "gone", "not compared")
    others = "".join(f"; {states[name]} {name}{suffixes.get(name, '')}" for name in kinds if states[name])
    return f"{where}: {text}{same}{others}{'; interrupted' if interrupted else ''}"


def lines(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> Iterator[str]:
    """Write lines for a terminal."""
    number = 0
    for item in results:
        if item.state == "differs":
            number += 1
            yield from described(comparison, item, number)
    for item in results:
        if item.state in ("new", "gone", "not compared"):
            place = next(iter(item.places.values()), item.name)
            yield f"{item.state}: {place}{f': {message(item.reason)}' if item.reason else ''}"
            yield from (f"  perhaps {message(name)}" for name in item.renamed)
            yield from (f"  breaks {each.law}: {message(each.detail)}" for each in item.broken.get(AFTER, ()))
        elif item.state == "same numbers":
            rounding = f"; rounding up to {item.rounding:.2g}" if item.rounding else ""
            yield f"same numbers: {item.name}: {item.scenarios} scenarios{rounding}"
            yield from (f"  not reached: {message(name)}" for name in item.unreached)
    yield from (f"not compared: {name}: {message(why)}" for name, why in comparison.left_out.items())
    yield ""
    yield headline(comparison, results, interrupted)


def described(comparison: Comparison, item: BoundaryDiff, number: int = 1) -> Iterator[str]:
    """Give all that is known of a boundary that differs."""
    contract = comparison.catalog.contracts[item.contract]
    unsaid = {each.name for each in contract.inputs if each.dialect}  # they are for the oracle alone
    yield f"{number}. {item.name}: {item.judgement}"
    yield f"   {sentence(item)}"
    for side in SIDES:
        yield f"   {side:<7}{item.places.get(side, '')}"
    if item.parameters:
        removed, new = (sorted({*item.parameters[a]} - {*item.parameters[b]}) for a, b in (SIDES, SIDES[::-1]))
        yield f"   parameters: {', '.join([*(f'-{name}' for name in removed), *(f'+{name}' for name in new)])}"
    if item.commit is not None:
        yield f"   since  {item.commit.sha[:12]} {item.commit.date[:10]} {message(item.commit.subject)}"
    elif item.no_commit:
        yield f"   since  unknown: {message(item.no_commit)}"
    for difference in item.differences:
        yield from (f"   {line}" for line in _difference(difference, unsaid))
    for side, word in ((AFTER, "breaks now"), (BEFORE, "broke before, and keeps now")):
        for broken in item.broken.get(side, ()):
            yield f"   {word}: {broken.law}: {message(broken.detail)}"
    yield from (f"   not reached: {message(name)}" for name in item.unreached)
    yield ""


def _difference(difference: Difference, unsaid: Collection[str]) -> Iterator[str]:
    whose = f" of {', '.join(difference.recipes)}" if difference.recipes else ""
    yield f"scenario{whose}:"
    yield from (f"  {line}" for line in scenario_lines({"scenario": _stated(difference.inputs, unsaid)}))
    before, after = (difference.answers[side] for side in SIDES)
    if isinstance(before, str) or isinstance(after, str):
        for side in SIDES:
            answer = difference.answers[side]
            yield f"{side}: {message(f'raises {answer}') if isinstance(answer, str) else 'answers'}"
        return
    for key, detail in difference.details.items():
        cells = distinct(before.get(key), after.get(key))
        yield f"{key}: {cells[0]} before, {cells[1]} after" if detail == "" else f"{key}: {message(detail)}"
        if cells[0] != cells[1] and isinstance(before.get(key), Tensor):
            yield from (f"  {side:<7}{cell}" for side, cell in zip(SIDES, cells))
    if difference.double:
        yield "the same in float64"


def _stated(inputs: Mapping[str, Any], unsaid: Collection[str]) -> dict[str, Any]:
    """Give a scenario as a recipe would state it; what is left out is left out."""
    return {
        name: {"tensor": value.nested(), "dtype": value.dtype} if isinstance(value, Tensor) else typed(value)
        for name, value in inputs.items()
        if value is not None and name not in unsaid
    }


def document(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> dict[str, Any]:
    """Make data for programs."""
    sides = {}
    for side, checkout in comparison.checkouts.items():
        sides[side] = {"ref": str(checkout.ref), "commit": checkout.commit, "version": checkout.version}
    return {
        "target": comparison.target.name,
        **sides,
        "headline": headline(comparison, results, interrupted),
        "interrupted": interrupted,
        "boundaries": [_plain(item) for item in results],
        "left_out": {name: message(why) for name, why in comparison.left_out.items()},
    }


def _plain(item: BoundaryDiff) -> dict[str, Any]:
    return {
        "boundary": item.name,
        "contract": item.contract,
        "state": item.state,
        "judgement": item.judgement,
        "sentence": sentence(item),
        "reason": message(item.reason),
        "places": dict(item.places),
        "parameters": {side: list(names) for side, names in item.parameters.items()},
        "renamed": list(item.renamed),
        "changed": list(item.changed),
        "unreached": list(item.unreached),
        "scenarios": item.scenarios,
        "rounding": item.rounding,
        "bugs": {side: list(bugs) for side, bugs in item.bugs.items()},
        "commit": plain_commit(item.commit) if item.commit else None,
        "no_commit": message(item.no_commit),
        "differences": [
            {
                "symptom": each.symptom,
                "scenario": typed(each.inputs),
                **{side: typed(each.answers[side]) for side in SIDES},
                "detail": dict(each.details),
                "float64": typed(each.double) if each.double else None,
                "recipes": list(each.recipes),
            }
            for each in item.differences
        ],
        "laws": {
            side: [
                {
                    "law": each.law,
                    "symptom": each.symptom,
                    "detail": message(each.detail),
                    "scenario": typed(each.variants),
                }
                for each in broken
            ]
            for side, broken in item.broken.items()
        },
    }


def brief(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> dict[str, Any]:
    """Give what a page or release notes say: one sentence for all, and a row for each boundary that differs, or is
    new and breaks a law."""
    rows = []
    for item in (each for each in results if each.judgement):
        details = [pair for each in item.differences for pair in each.details.items() if pair[1]]
        texts = [f"{key}: {detail}" if key else detail for key, detail in details]
        texts += [each.detail for side in (AFTER, BEFORE) for each in item.broken.get(side, ())]
        rows.append(
            {
                "boundary": item.places.get(AFTER, item.name),
                "is": item.judgement,
                "changes": message(sentence(item)),
                "numbers": message("; ".join(texts[:2])),
                "commit": message(f"{item.commit.sha[:9]} {item.commit.subject}" if item.commit else item.no_commit),
            }
        )
    stopped = {"interrupted": True} if interrupted else {}
    return {"headline": headline(comparison, results, interrupted), "rows": rows, **stopped}


def markdown(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> str:
    """Write a row for each boundary that differs, and the rest in one sentence, for a page or a pull request."""
    page = brief(comparison, results, interrupted)
    parts = [f"## What changes in {escaped(comparison.target.name)}", "", f"{escaped(page['headline'])}."]
    if page["rows"]:
        parts += ["", "| boundary | is | what changes | before and after | commit |", "|" + " --- |" * 5]
    parts += [f"| {' | '.join(map(escaped, row.values()))} |" for row in page["rows"]]
    return "\n".join(parts) + "\n"


def save(file: Path, kind: str, target: str, entries: Mapping[str, Any]) -> None:
    """Put what was found into a file that holds more of it, for pages: by kind, target and name.

    :raises SentinelError: where the file is another one, or cannot be written.
    """
    content = read_json(file) if file.exists() else {}
    if content is None or not content.keys() <= set(KINDS):
        raise SentinelError(f"{file} holds something else; name another file")
    there = content.setdefault(kind, {}).setdefault(target, {})
    # What was stopped says less than what stands there of the same pair and came to its end.
    there.update({name: each for name, each in entries.items() if name not in there or not _stopped(each)})
    write_atomically(file, json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def _stopped(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool(entry.get("interrupted"))


#: What a file of :func:`save` holds.
KINDS = ("coverage", "pulls", "revisions")
