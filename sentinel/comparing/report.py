"""Write the result of a comparison as text, as Markdown and as JSON data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.comparing.comparison import Comparison
from sentinel.comparing.observations import AFTER, BEFORE, SIDES
from sentinel.comparing.patch import NO_EFFECT, PARTS, Unexamined, coverage
from sentinel.comparing.results import ANSWERED, BoundaryDiff, Broken, Difference
from sentinel.contracts.formulas import formula_of
from sentinel.deciding.law_session import SETTINGS
from sentinel.errors import SentinelError
from sentinel.laws.agreement import numbers
from sentinel.reports.escaping import message
from sentinel.reports.explain import distinct, scenario_lines
from sentinel.reports.markdown import escaped
from sentinel.reports.store import write_atomically
from sentinel.reports.summary import causes
from sentinel.search.scenarios import MOST_ROWS, MOST_TOKENS
from sentinel.sources.home import read_json
from sentinel.targets.checkout import Checkout
from sentinel.values.literals import Tensor, typed
from sentinel.worker.answers import GRADIENT


def summarise(compared: BoundaryDiff) -> str:
    """Return a sentence that describes how a boundary differs between the two revisions."""
    if compared.lost:
        return compared.lost
    brought = [f"introduces {', '.join(bugs)}" for bugs in [compared.bugs.get(AFTER)] if bugs]
    parts: list[str] = []
    newly, further = split_by_law(compared.broken.get(AFTER, ()))
    for item in [*newly, *further][:_LAWS]:
        new = "new, and " if compared.state == "new" else "a new option or choice: " if item.came else ""
        fails = f"it can no longer be called: {message(item.detail)}"
        breaks = f"breaks {item.law} more than before" if item in further else f"{new}breaks {item.law}"
        parts.append(fails if item.law == ANSWERED else f'{breaks} ("{item.statement}")')
        parts += [f"the results are now those of the definition with {message(item.choice)}"] if item.choice else []
    function = compared.name.rpartition(".")[2]
    moved = [describe_difference(item, function) + _describe_settings(item) for item in compared.differences[:1]]
    numbers_first = all(isinstance(item.answers[AFTER], Mapping) for item in compared.differences[:1])
    if brought or parts:
        parts = [*brought, *moved, *parts] if numbers_first else [*brought, *parts, *moved]
    mended = [f"fixes {', '.join(bugs)}" for bugs in [compared.bugs.get(BEFORE)] if bugs]
    # A law may be broken at both revisions, in different scenarios.
    broken = {item.law for item in compared.broken.get(AFTER, ())}
    mended_laws = [item for item in compared.broken.get(BEFORE, ()) if item.law not in broken]
    for item in list({item.law: item for item in mended_laws}.values())[:_LAWS]:
        returns = f"it can be called now; it failed with: {message(item.detail)}"
        mended.append(returns if item.law == ANSWERED else f'now keeps {item.law} ("{item.statement}")')
    parts += mended if parts else [*mended, *moved]
    parts += [message(compared.reason)] if compared.state == "differs" and compared.reason else []
    if compared.state == "new" and not parts:
        held = [f"no law of its contract breaks in {compared.scenarios} scenarios"] if compared.scenarios else []
        parts = [*held, *filter(None, [message(compared.reason)])]
    parts = [message(compared.lookup), *parts] if compared.lookup and parts else parts
    return "; ".join(parts)


def _describe_settings(difference: Difference) -> str:
    """Return the settings under which a difference appears, as the end of a sentence; empty if all settings show it.

    The text names the options that must have the given values, and option values for which there is no difference. It
    also names options and conditions that perhaps only Sentinel sets, to make changed lines run.
    """
    settings = difference.inputs.get(SETTINGS, {})
    options = {name: difference.inputs[name] for name in sorted(difference.decides)} | settings
    texts = [
        name if name.endswith((" is true", " is false")) else f"{name} = {_shorten(value)}"
        for name, value in options.items()
    ]
    others = [
        f"{name} = {' or '.join(map(_shorten, values))}"
        for name, values in sorted(difference.unless.items())
        if name not in settings
    ]
    condition = f", if {message(', '.join(texts))}" if texts else ""
    return condition + (f", unless {message(' or '.join(others))}" if others else "")


def _shorten(value: object) -> str:
    if isinstance(value, str) and len(value) > _LONG:
        return f"{value[:_LONG]!r}... ({len(value)} characters)"
    return repr(value)


#: Prefix of a failure's reason if the adapter's code raised the exception.
_ADAPTER = "adapter error: "

#: Maximum number of characters of a string in a report. Longer strings are cut.
_LONG = 60

#: Maximum number of laws in one sentence.
_LAWS = 2


def split_by_law(broken: Sequence[Broken]) -> tuple[list[Broken], list[Broken]]:
    """Split the laws that a revision breaks into two lists, each with one violation per law.

    The first list has the laws that only this revision breaks. The second list has the laws that both revisions break
    and from which this revision deviates more.
    """
    newly = {item.law: item for item in reversed(broken) if not item.already}
    further = {item.law: item for item in reversed(broken) if item.law not in newly}
    order = [item.law for item in broken]
    return sorted(newly.values(), key=lambda item: order.index(item.law)), list(further.values())[::-1]


#: Suffix of a key whose value is the number of values in a part of the result.
_COUNT = " has"


def _describe_count(key: str, now: int, before: int, function: str) -> str:
    label, _, path = key.removesuffix(_COUNT).rpartition(": ")
    if path == "returned":
        name = label.partition("(")[0].rpartition(".")[2] or function
        return f"`{message(name)}` returns {now} value{'' if now == 1 else 's'}; it returned {before}"
    return f"{_name_part(key.removesuffix(_COUNT))} has {now} values; it had {before}"


def _name_part(key: str) -> str:
    """Return the name of a part of a result, preceded by the function that returned it, unless this is the boundary."""
    label, _, path = key.rpartition(": ")
    # The label of the boundary's own result is empty in the first call; later, it is the number of the call.
    if not label or label.isdecimal():
        return message(path)
    if "(" in label:  # the label is a function's name with a digest of its arguments
        return f"`{message(label.rpartition('(')[0].rpartition('.')[2])}` {message(path)}"
    return f"the argument {message(path.removeprefix('given.'))} of a stand-in"


def _describe_failure(reason: str, raises: str, fails: str) -> str:
    return f"{fails if reason.startswith(_ADAPTER) else raises}: {message(reason.removeprefix(_ADAPTER))}"


def describe_difference(difference: Difference, function: str = "it") -> str:
    """Return a sentence that says how the two results on a scenario differ.

    :param function: the boundary's name, without its module.
    """
    before, after = (difference.answers[side] for side in SIDES)
    if isinstance(after, str):
        return _describe_failure(after, "it now raises", "the adapter now fails")
    if isinstance(before, str):
        return _describe_failure(before, "it raised", "the adapter failed")
    for key in difference.details:
        one, other = numbers(before.get(key)), numbers(after.get(key))
        if (one is None or other is None) and GRADIENT in key:
            now = "now have a gradient" if one is None else "no longer have a gradient"
            return f"the results {now} with respect to {message(key.rpartition(GRADIENT)[2])}"
        if one is None or other is None:
            was, is_ = distinct(before.get(key), after.get(key))
            return f"{_name_part(key)} is {is_}; it was {was}"
        if key.endswith(_COUNT):
            return _describe_count(key, int(other[0]), int(one[0]), function)
        if difference.symptom == "dtype":
            return f"{_name_part(key)} has the same numbers with dtype {other[1]}; it was {one[1]}"
        if one[0].shape != other[0].shape:
            return f"{_name_part(key)}: {difference.details[key]}"
        where = ", only where the mask is 0" if difference.symptom == "masked" else ""
        return f"{_name_part(key)} {_describe_move(one[0], other[0])}{where}"
    return difference.symptom


def _describe_move(one: Any, other: Any) -> str:
    """Return the simplest true statement about how numbers changed, such as ``is 2 times the previous value``."""
    finite = np.isfinite(one) & np.isfinite(other)
    if (np.isfinite(one) != np.isfinite(other)).any():
        return "is now finite" if np.isfinite(other).all() else "is no longer finite"
    moved = finite & (one != other)
    left, right = one[moved], other[moved]
    if not left.size:
        return "is different"
    if (right == 0).all():
        return f"is 0; it was {left[0]:.6g}" if moved.size == 1 else "is now 0 in the elements that changed"
    if (left == 0).all():
        return f"is {right[0]:.6g}; it was 0" if moved.size == 1 else "is no longer 0 in the elements that changed"
    if np.allclose(left, -right, rtol=1e-4, atol=0):
        return "has the opposite sign"
    ratio = right / np.where(left == 0, np.nan, left)
    if moved.size == 1 and not _is_simple(float(ratio.flat[0])):
        return f"is {right.flat[0]:.6g}; it was {left.flat[0]:.6g}"
    if np.isfinite(ratio).all() and np.allclose(ratio, ratio.flat[0], rtol=1e-4):
        return f"is {ratio.flat[0]:.6g} times the previous value"
    if left.size > 1 and np.allclose(right - left, (right - left).flat[0], rtol=1e-4):
        return f"is the previous value {(right - left).flat[0]:+.6g}"
    return f"differs from the previous value by up to {np.abs(right - left).max():.3g}"


def _is_simple(ratio: float) -> bool:
    """Return True if a ratio, or its inverse, is a multiple of 0.5.

    If only one number changed, any other ratio is less informative than the numbers before and after.
    """
    doubled = 2 * max(abs(ratio), 1 / abs(ratio))
    return abs(doubled - round(doubled)) < 1e-4 * doubled


def name_revision(checkout: Checkout) -> str:
    """Return a ref together with the commit, version or tree that it refers to."""
    what = checkout.commit[:12] if checkout.commit else checkout.version or checkout.tree[:12]
    dirty = ", with uncommitted changes" if checkout.dirty else ""
    return f"{checkout.ref.short} ({what}{dirty})"


_SAME = "no code that carries training signal differs (by the inventory's rule)"


def write_headline(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> str:
    """Return one sentence that summarises a comparison, for a maintainer to quote."""
    states = Counter(item.state for item in results)
    judged = Counter(item.judgement for item in results if item.state == "differs")
    patch, scope = comparison.selection.patch, ", ".join(comparison.selection.boundaries)
    where = f"{comparison.target.name} from {name_revision(comparison.checkouts[BEFORE])} to "
    where += name_revision(comparison.checkouts[AFTER])
    same, partly = states["same numbers"], states["not examined"]
    parts = []
    if is_proven(comparison, results):
        claim = f"no code that {message(scope)} reaches differs" if scope else _SAME
        roots = ", ".join(root.path for root in comparison.target.roots)
        outside = "" if comparison.selection.whole else f"; files outside of {message(roots)} were not compared"
        rest = "; other code was not compared" if scope else outside
        parts.append(f"{claim}; this follows from the source text alone, so nothing was run{rest}")
    elif states["differs"]:
        judgements = ", ".join(f"{times} {word}" for word, times in judged.items())
        count = f"{states['differs']} of {states['differs'] + same + partly} boundaries that reach changed code"
        parts.append(f"{count} differ ({judgements})")
    elif same:
        parts.append(f"no difference at the {_count_boundaries(same)} whose changed lines all ran")
    elif not partly:
        parts.append("nothing was compared")
    if partly:
        parts.append(f"{_count_boundaries(partly)} not examined")
    if patch.count:
        scenarios = sum(item.scenarios for item in results)
        parts.append(f"{patch.count_examined()} of {patch.count} changed statements ran, in {scenarios} scenarios")
    if patch.unbound:
        count_unbound = len(patch.unbound)
        parts.append(f"{count_unbound} changed signal function{'' if count_unbound == 1 else 's'} not bound")
    if comparison.selection.unread:
        parts.append(f"{count_changes(comparison.selection.unread)} outside of all boundaries not examined")
    bad = sum(item.state == "new" and bool(item.judgement) for item in results)
    suffixes = {"new": f" ({bad} worse)" if bad else ""}
    kinds = ("new", "gone", "not compared")
    parts += [f"{states[name]} {name}{suffixes.get(name, '')}" for name in kinds if states[name]]
    return f"{where}: {'; '.join(parts)}{'; interrupted' if interrupted else ''}"


def _count_boundaries(count: int) -> str:
    return "one boundary" if count == 1 else f"{count} boundaries"


def is_proven(comparison: Comparison, results: Sequence[BoundaryDiff]) -> bool:
    """Return True if the text of both trees proves that no signal code differs."""
    apart = any(item.state in ("differs", "new", "gone", "not compared") for item in results)
    return not apart and comparison.selection.proves_equality()


def why_nothing_examined(comparison: Comparison, results: Sequence[BoundaryDiff]) -> str:
    """Return why nothing was examined, and what the user can do. Return an empty string if something was examined."""
    states = {item.state for item in results}
    answered_new = any(item.state == "new" and item.scenarios for item in results)
    if states & {"differs", "same numbers"} or answered_new or is_proven(comparison, results):
        return ""
    if "not examined" in states:
        return (
            "every boundary has changed lines that did not run; they are listed above. Try more scenarios "
            "(--examples), or write a recipe whose scenario runs them"
        )
    undecided = [item.reason for item in results if item.state == "not compared"]
    if undecided:
        why = "; ".join(causes(map(message, undecided)))
        return f"no boundary that reaches changed code could be compared: {why}; name other revisions"
    effects = comparison.selection.effects
    if effects and not comparison.selection.patch.count:
        return (
            f"module-level code that may change other functions differs ({join_names(effects)}), and its effect cannot "
            "be read from the source; run the laws at the head (pytest --sentinel-laws=quick)"
        )
    if comparison.selection.unread and not comparison.selection.patch.count:
        return (
            f"no boundary reads what has changed: {join_names(comparison.selection.unread)}; review these changes "
            "(`sentinel audit` compares settings with known bugs)"
        )
    if comparison.selection.patch.unbound:
        return "no boundary reaches the changed signal functions; bind them in the adapter (docs/adapters.md)"
    return "the two revisions have no boundary in common: all are new or gone; name other revisions"


#: Limits of a list of unexamined code: number of files, and number of entries per file.
_FILES, _ENTRIES = 12, 6


def list_unexamined(
    comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False
) -> Iterator[str]:
    """Yield lines about changed code that was not examined.

    The lines list the changed lines that did not run, by file; the boundaries that were not compared, by reason; and
    the parts of results that could not be compared, because they were NaN or infinite at both revisions.
    """
    idle = comparison.selection.patch.find_unexamined()
    by_file: dict[str, list[Unexamined]] = {}
    for item in idle:
        by_file.setdefault(item.file, []).append(item)
    if idle:
        yield "not examined:"
    for file, items in list(by_file.items())[:_FILES]:
        ranges = [format_lines(item).removeprefix(f"{message(file)}:") for item in items[:_ENTRIES]]
        ranges += [f"and {len(items) - _ENTRIES} more"] if len(items) > _ENTRIES else []
        yield f"  {message(file)}:{', '.join(ranges)}"
    if len(by_file) > _FILES:
        yield f"  {len(by_file) - _FILES} more files"
    effects = comparison.selection.effects
    if effects:
        yield f"not examined: module-level code that may change other functions: {join_names(effects)}"
    yield from list_others(comparison.selection.unread, comparison.selection.harmless)
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in results:
        why = each.reason or each.share
        if each.state == "not compared" or (each.state == "not examined" and why):
            reasons.setdefault((each.state, why), []).append(each.name)
    for name, why in comparison.selection.left_out.items():
        reasons.setdefault(("not compared", why), []).append(name)
    asked = {item.name for item in results}
    if interrupted:
        reasons["not compared", "interrupted before its turn"] = [
            name for name in comparison.selection.candidates if name not in asked
        ]
    for (state, why), names in list(reasons.items())[:_FILES]:
        if names:
            yield f"{state}: {join_names(names)}: {message(why)}"
    if len(reasons) > _FILES:
        count_left = sum(len(names) for names in list(reasons.values())[_FILES:])
        yield f"not compared: {count_left} more boundaries, for {len(reasons) - _FILES} other reasons"
    undecided = [each for each in results if each.blind]
    for each in undecided[:_FILES]:
        counts = ", ".join(f"{message(key)} ({each.undecided[key]} of {each.answered} calls)" for key in each.blind)
        yield f"undecided: {each.name}: NaN or infinity at both revisions in {counts}"
    if len(undecided) > _FILES:
        yield f"undecided: {len(undecided) - _FILES} more boundaries"


def list_others(unread: Sequence[str], harmless: Sequence[str]) -> Iterator[str]:
    """Yield a line about further changes that may affect training, and a line about changed functions that do not."""
    if unread:
        yield f"not examined: {count_changes(unread)} that no boundary reads: {join_names(unread)}"
    if harmless:
        count = f"{len(harmless)} changed function{'' if len(harmless) == 1 else 's'}"
        yield f"not examined: {count} without training signal by the inventory's rule: {join_names(harmless)}"


#: The limits of all scenarios, as a sentence for the end of a report.
SIZES = (
    f"scenarios have at most {MOST_ROWS} rows and {MOST_TOKENS} tokens, short texts, small vocabularies and few "
    "dtypes, and run on the CPU, in one process: a change that matters only beyond these limits is not detected"
)


def count_changes(changes: Sequence[str]) -> str:
    return f"{len(changes)} change{'' if len(changes) == 1 else 's'}"


def join_names(names: Sequence[str]) -> str:
    """Join the first names with commas, and add how many names were left out."""
    more = f" and {len(names) - _ENTRIES} more" if len(names) > _ENTRIES else ""
    return f"{', '.join(map(message, names[:_ENTRIES]))}{more}"


def format_lines(item: Unexamined) -> str:
    """Format changed lines that were not examined as ``file:first-last function (why)``."""
    first, last = item.lines
    why = "no boundary reaches it" if not item.bound else explain_guard(item.guard)
    why = why or ("" if item.called else "never ran")
    texts = [why] if why else []
    texts += ["deleted"] if item.side == BEFORE else []
    joined = "; ".join(texts)
    span = f"{first}-{last}" if last > first else f"{first}"
    return message(f"{item.file}:{span} {item.name or 'the module'}{f' ({joined})' if texts else ''}")


def explain_guard(guard: str) -> str:
    """Return the reason, in the words of a report, why a changed line was not examined."""
    return guard if guard in ("", NO_EFFECT, *PARTS) else f"guarded by {guard}"


def list_beyond(comparison: Comparison) -> Iterator[str]:
    """Yield at most four lines about the changed code that no boundary can examine."""
    idle = [item for item in comparison.selection.patch.find_unexamined() if not item.bound]
    if idle:
        yield f"signal functions that no boundary reaches: {join_names([format_lines(item) for item in idle])}"
    if comparison.selection.effects:
        yield f"module-level code that may change other functions: {join_names(comparison.selection.effects)}"
    if comparison.selection.unread:
        yield f"changes that no boundary reads: {join_names(comparison.selection.unread)}"
    gone = [name for name, each in comparison.selection.candidates.items() if each.result.state == "gone"]
    if gone:
        yield f"gone: {join_names(gone)}"


def write_result(comparison: Comparison, item: BoundaryDiff, number: int = 1) -> Iterator[str]:
    """Yield the report's lines about one boundary. :func:`list_unexamined` lists boundaries that were not compared."""
    if item.state == "differs":
        yield from write_difference(comparison, item, number)
    elif item.state in ("new", "gone"):
        place = next(iter(item.places.values()), item.name)
        why = summarise(item) if item.state == "new" and not item.judgement else message(item.reason)
        yield f"{item.state}: {place}{f': {why}' if why else ''}"
        yield from (f"  perhaps renamed to {message(name)}" for name in item.renamed)
        yield from (f"  breaks {each.law}: {message(each.detail)}" for each in item.broken.get(AFTER, ()))
    elif item.state == "same numbers":
        share = f"; {item.share}" if item.share else ""
        yield f"same numbers: {item.name}: {item.scenarios} scenarios{_note_rounding(item)}{share}"
    elif item.state == "not examined" and not (item.reason or item.share):
        count = len({(each.file, each.name) for each in item.unreached})
        why = f"changed lines were not examined, in {count} function{'' if count == 1 else 's'}"
        yield f"not examined: {item.name}: {why} ({item.scenarios} scenarios{_note_rounding(item)})"


def _note_rounding(item: BoundaryDiff) -> str:
    return f"; rounding up to {item.rounding:.2g}" if item.rounding else ""


def write_ending(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> Iterator[str]:
    """Yield the last lines of a report: the code that was not examined, and the headline."""
    yield from list_unexamined(comparison, results, interrupted)
    if any(each.state in ("differs", "same numbers", "not examined") for each in results):
        yield SIZES
    yield ""
    yield write_headline(comparison, results, interrupted)


def write_difference(comparison: Comparison, item: BoundaryDiff, number: int = 1) -> Iterator[str]:
    """Yield the report's lines about a boundary that differs."""
    yield f"{number}. {item.name}: {item.judgement}"
    yield f"   {summarise(item)}"
    cause = comparison.cause_of(item.name)
    if cause:
        yield f"   because it calls {cause} (see above)"
        yield ""
        return
    contract = comparison.catalog.contracts[item.contract]
    unsaid = {each.name for each in contract.inputs if each.dialect}  # inputs that only the oracle reads
    for side in SIDES:
        yield f"   {side:<7}{item.places.get(side, '')}"
    if item.parameters:
        removed, new = (sorted({*item.parameters[a]} - {*item.parameters[b]}) for a, b in (SIDES, SIDES[::-1]))
        yield f"   parameters: {', '.join([*(f'-{name}' for name in removed), *(f'+{name}' for name in new)])}"
    scenario: Mapping[str, Any] | None = None
    shown: list[Mapping[str, Any]] = []
    for difference in item.differences:
        hidden = {*unsaid, *difference.idle}
        inputs, function = _state(difference.inputs, hidden), item.name.rpartition(".")[2]
        yield from (f"   {line}" for line in write_scenario(difference, hidden, function, inputs == scenario))
        scenario = inputs
        shown.append(difference.inputs)
    options = item.differences[0].inputs if item.differences else {}
    yield f"   definition: {formula_of(contract, options) or ' '.join(contract.source.split())}"
    yield from (f"   {line}" for line in _list_laws(item, shown, unsaid))
    yield ""


def list_scenario(comparison: Comparison, item: BoundaryDiff) -> Iterator[str]:
    """Yield, line by line, the scenario of the difference that :func:`summarise` describes."""
    unsaid = {each.name for each in comparison.catalog.contracts[item.contract].inputs if each.dialect}
    for difference in item.differences[:1]:
        inputs = _state(difference.inputs, {*unsaid, *difference.idle})
        yield from ("scenario:", *(f"  {line}" for line in scenario_lines({"scenario": inputs})))


def _list_laws(item: BoundaryDiff, shown: Sequence[Mapping[str, Any]], unsaid: Collection[str]) -> Iterator[str]:
    """Yield lines about the violations that only one revision has, and about the laws that both revisions break.

    :param shown: the scenarios that are already in the report. Of the violations on other scenarios, the first is
        listed with its scenario; for the rest, only the laws are named.
    :param unsaid: inputs to leave out.
    """
    broken = {side: [each for each in item.broken.get(side, ()) if each.law != ANSWERED] for side in SIDES}
    new = [each for each in broken[AFTER] if not each.already]
    _, further = split_by_law(broken[AFTER])
    worse = {each.law for each in broken[AFTER]}
    fixed = [each for each in broken[BEFORE] if each.law not in worse]
    labelled = [*(("breaks now", each) for each in new), *(("broke before, holds now", each) for each in fixed)]
    elsewhere: dict[str, list[Broken]] = {}
    for label, each in labelled:
        if any(inputs in shown for inputs in each.variants.values()):
            yield f"{label}: {each.law}: {message(each.detail)}"
        else:
            elsewhere.setdefault(label, []).append(each)
    for label, several in elsewhere.items():
        first, *others = several
        yield f"{label}, in another scenario: {first.law}: {message(first.detail)}"
        variants = {name: _state(inputs, unsaid) for name, inputs in first.variants.items()}
        base = next(iter(variants.values()), {})
        changed = {
            name: {key: each[key] for key in each if base.get(key) != each[key]} for name, each in variants.items()
        }
        yield from (f"  {line}" for line in scenario_lines({"scenario": base, "variants": changed}))
        if others:
            yield f"{label}, in further scenarios: {', '.join(dict.fromkeys(each.law for each in others))}"
    if further:
        names = ", ".join(each.law for each in further)
        yield f"broken at both revisions, with larger errors at the head: {names}"
    closer = dict.fromkeys(each.law for each in broken[BEFORE] if each.law in worse)
    if closer:
        yield f"in other scenarios, the head breaks these laws by less than the base: {', '.join(closer)}"


def write_scenario(
    difference: Difference, unsaid: Collection[str], function: str, again: bool = False
) -> Iterator[str]:
    """Yield the lines about a difference: its scenario, and the values before and after.

    :param unsaid: inputs to leave out.
    :param again: True to leave out the scenario, because it is the same as that of the previous difference.
    """
    whose = f" of {', '.join(difference.recipes)}" if difference.recipes else ""
    if not again:
        inputs = _state(difference.inputs, unsaid)
        yield f"scenario{whose}:"
        yield from (f"  {line}" for line in scenario_lines({"scenario": inputs}))
    before, after = (difference.answers[side] for side in SIDES)
    if isinstance(before, str) or isinstance(after, str):
        for side in SIDES:
            answer = difference.answers[side]
            yield f"{side}: {message(f'raises {answer}') if isinstance(answer, str) else 'returns'}"
        return
    if len(difference.details) > _ENTRIES:
        details = dict(list(difference.details.items())[:_ENTRIES])
        more = f"{len(difference.details) - _ENTRIES} more parts differ"
    else:
        details, more = dict(difference.details), ""
    shown: dict[str, list[str]] = {}  # a part may have the same name in several calls
    for key, detail in details.items():
        if key.endswith(_COUNT):
            shown.setdefault(_describe_count(key, int(after.get(key) or 0), int(before.get(key) or 0), function), [])
            continue
        cells = distinct(before.get(key), after.get(key))
        name = _name_part(key)
        line = f"{name}: {cells[0]} before, {cells[1]} after" if detail == "" else f"{name}: {message(detail)}"
        value = before.get(key)
        tensors = cells[0] != cells[1] and isinstance(value, Tensor) and bool(value.shape)
        shown.setdefault(line, [f"  {side:<7}{cell}" for side, cell in zip(SIDES, cells)] if tensors else [])
    for line, values in shown.items():
        yield line
        yield from values
    if more:
        yield more


def _state(inputs: Mapping[str, Any], unsaid: Collection[str]) -> dict[str, Any]:
    """Return a scenario as recipes write it, without inputs that are None or in ``unsaid``."""
    return {
        name: {"tensor": value.nested(), "dtype": value.dtype} if isinstance(value, Tensor) else typed(value)
        for name, value in inputs.items()
        if value is not None and name not in unsaid
    }


def to_document(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> dict[str, Any]:
    """Return a comparison as JSON data for programs."""
    sides = {}
    for side, checkout in comparison.checkouts.items():
        sides[side] = {"ref": str(checkout.ref), "commit": checkout.commit, "version": checkout.version}
    return {
        "target": comparison.target.name,
        **sides,
        "headline": write_headline(comparison, results, interrupted),
        "interrupted": interrupted,
        "changed_statements": comparison.selection.patch.count,
        "examined_statements": comparison.selection.patch.count_examined(),
        "patch": coverage(comparison.selection.patch.lines()),
        "not_examined": [_idle_to_data(item) for item in comparison.selection.patch.find_unexamined()],
        "unread": list(map(message, comparison.selection.unread)),
        "boundaries": [_to_data(item) for item in results],
        "left_out": {name: message(why) for name, why in comparison.selection.left_out.items()},
    }


def _idle_to_data(item: Unexamined) -> dict[str, Any]:
    return {
        "function": item.name,
        "file": item.file,
        "lines": list(item.lines),
        "side": item.side,
        "guard": item.guard,
        "called": item.called,
        "bound": item.bound,
    }


def _to_data(item: BoundaryDiff) -> dict[str, Any]:
    return {
        "boundary": item.name,
        "contract": item.contract,
        "state": item.state,
        "judgement": item.judgement,
        "sentence": summarise(item),
        "reason": message(item.reason or item.share),
        "places": dict(item.places),
        "parameters": {side: list(names) for side, names in item.parameters.items()},
        "renamed": list(item.renamed),
        "changed": list(item.changed),
        "unreached": [_idle_to_data(each) for each in item.unreached],
        "undecided": dict(item.undecided),
        "scenarios": item.scenarios,
        "rounding": item.rounding,
        "bugs": {side: list(bugs) for side, bugs in item.bugs.items()},
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


def to_page(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> dict[str, Any]:
    """Return a comparison as data for a web page: a headline, a table, and a list of code that was not examined.

    The table has a row for each boundary that differs, and for each new boundary that breaks a law.
    """
    rows = []
    for item in (each for each in results if each.judgement):
        details = [pair for each in item.differences for pair in each.details.items() if pair[1]]
        texts = [f"{key}: {detail}" if key else detail for key, detail in details]
        texts += [each.detail for side in (AFTER, BEFORE) for each in item.broken.get(side, ())]
        rows.append(
            {
                "boundary": item.places.get(AFTER, item.name),
                "is": item.judgement,
                "changes": message(summarise(item)),
                "numbers": message("; ".join(texts[:2])),
            }
        )
    stopped = {"interrupted": True} if interrupted else {}
    rest = [*list_unexamined(comparison, results, interrupted)]
    return {"headline": write_headline(comparison, results, interrupted), "rows": rows, "not_examined": rest, **stopped}


def to_markdown(comparison: Comparison, results: Sequence[BoundaryDiff], interrupted: bool = False) -> str:
    """Return the differing boundaries as a Markdown table, followed by the code that was not examined."""
    page = to_page(comparison, results, interrupted)
    parts = [f"## What changes in {escaped(comparison.target.name)}", "", f"{escaped(page['headline'])}."]
    if page["rows"]:
        parts += ["", "| boundary | is | what changes | before and after |", "|" + " --- |" * 4]
    parts += [f"| {' | '.join(map(escaped, row.values()))} |" for row in page["rows"]]
    if page["not_examined"]:
        parts += ["", *(f"* {escaped(line.strip())}" for line in page["not_examined"] if line != "not examined:")]
    return "\n".join(parts) + "\n"


def save(file: Path, kind: str, target: str, entries: Mapping[str, Any]) -> None:
    """Add entries to a JSON file, nested by kind, target and name.

    :raises SentinelError: if the existing file was not written by this function, or if it cannot be written.
    """
    content = read_json(file) if file.exists() else {}
    if content is None or not content.keys() <= set(KINDS):
        raise SentinelError(f"{file} was not written by Sentinel, so it was not overwritten; name another file")
    there = content.setdefault(kind, {}).setdefault(target, {})
    # An interrupted comparison does not replace a complete one of the same two revisions.
    there.update({name: each for name, each in entries.items() if name not in there or not _is_interrupted(each)})
    write_atomically(file, json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def _is_interrupted(entry: Any) -> bool:
    return isinstance(entry, Mapping) and bool(entry.get("interrupted"))


#: The kinds of entries in a file of :func:`save`.
KINDS = ("coverage", "pulls", "revisions")
