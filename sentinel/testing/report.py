"""Describe the result of a check: one result per law, with the smallest failing scenario as code to paste."""

from __future__ import annotations

import dataclasses
import re
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from sentinel.contracts.contract import REQUIRED, Contract
from sentinel.contracts.formulas import formula_of
from sentinel.laws.agreement import counted, numbers
from sentinel.testing.binding import Bound, Function
from sentinel.testing.errors import LawBroken
from sentinel.testing.session import call_once
from sentinel.values.literals import HALVES

if TYPE_CHECKING:
    from sentinel.search.boundary_search import BoundarySearch, Finding, LawOutcome

#: Maximum number of differing elements and of calls in the text of a failure. Three calls are enough for a law that
#: compares a batch with its two parts.
_ELEMENTS, _CALLS = 6, 3

_WIDTH = 100

_EVERY_CALL = "every call raised"


@dataclass(frozen=True)
class Result:
    """The result of one law.

    :ivar judged: the number of scenarios that the law judged.
    :ivar broken: whether one of these scenarios breaks the law, or every call raised.
    :ivar edge: a short description of the violation if all wrong numbers are NaN or infinite; otherwise empty.
    :ivar text: the description of the failure; if no scenario was judged, the reason.
    :ivar expected: the reason why the function is meant to break the law; empty if it must satisfy the law.
    :ivar cause: the function's exception if every call raised; otherwise None.
    """

    law: str
    judged: int
    broken: bool = False
    text: str = ""
    expected: str = ""
    cause: BaseException | None = None
    edge: str = ""

    def require(self) -> None:
        """Raise :class:`LawBroken` if the law is broken, and ``unittest.SkipTest`` if it applies to no scenario."""
        __tracebackhide__ = True
        if self.broken:
            raise LawBroken(self.text) from self.cause
        if not self.judged and self.expected:
            raise TypeError(f"{self.law} is in expected_failed_laws, but was not checked: {self.text}")
        if not self.judged:
            raise unittest.SkipTest(self.text)

    @property
    def word(self) -> str:
        if not self.judged and not self.broken:
            return "not checked"
        if self.expected:
            return "fails as expected" if self.broken else "holds, but is expected to fail"
        return "broken" if self.broken else "holds"


@dataclass(frozen=True)
class Report:
    """The results of all laws. Its ``str`` is a text for the terminal.

    :ivar raised: text of an exception of the function -> number of scenarios in which it was raised.
    :ivar left: parameter to which no call passed a value -> its default.
    :ivar off: parameter that was None, False or 0 in every call -> this value.
    :ivar masks: mask whose styles are restricted -> the styles that were drawn.
    :ivar given: parameter to which every call passed a value -> its default, which was never used.
    :ivar inputs_of: parameter of ``given`` -> the inputs that are passed to it.
    :ivar dtypes: the dtypes of float tensors; empty for all.
    :ivar scenarios: the number of scenarios.
    :ivar sizes: dimension of the input tensors -> its largest size in a call.
    :ivar binding: lines that list which input each parameter receives, and which inputs are never read.
    :ivar unread: entries that the function returned by name, but that no law compares.
    :ivar same: computed parameter that had the same value in every call -> this value.
    """

    function: str
    contract: str
    laws: Mapping[str, Result]
    raised: Mapping[str, int]
    binding: Sequence[str] = ()
    left: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    scenarios: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs_of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    masks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: Sequence[str] = ()
    same: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tried(self) -> str:
        """Return one line for pytest's summary: what the check tried, and what it did not try."""
        parts = [f"{self.scenarios} scenarios{f' of at most {self._most}' if self.sizes else ''}"]
        parts += [_left(self.left)] if self.left else []
        parts += [self._given] if self.given else []
        parts += [self._unread] if self.unread else []
        return f"{self.function} as {self.contract}: {'; '.join([*parts, self._not_tried])}"

    @property
    def _given(self) -> str:
        defaults = in_words(self.given)
        return f"no call left out an argument, so these defaults of the function were not tried: {defaults}"

    @property
    def _unread(self) -> str:
        return f"returned, but not compared: {', '.join(self.unread)}"

    @property
    def _most(self) -> str:
        words = {"batch": "rows"}
        return ", ".join(f"{size} {words.get(name, name)}" for name, size in self.sizes.items())

    @property
    def _not_tried(self) -> str:
        halves = [each for each in HALVES if self.dtypes and each not in self.dtypes]
        half = f"{' or '.join(halves)} (pass dtypes=()), " if halves else ""
        more = f"more than {' or '.join(self._most.split(', '))}, " if self.sizes else ""
        more += f"code that {in_words(self.off)} turn{'s' * (len(self.off) == 1)} off, " if self.off else ""
        more += f"values other than {in_words(self.same)}, " if self.same else ""
        masks = {name: [style for style in styles if style is not None] for name, styles in self.masks.items()}
        styles = [f"{name} other than {' or '.join(each)}, " for name, each in masks.items() if each]
        return f"not tried: {more}{half}{''.join(styles)}values outside the drawn ranges, other machine settings"

    @property
    def ok(self) -> bool:
        """Return True if at least one law was checked, and every law holds unless it is expected to fail."""
        results = self.laws.values()
        return any(each.judged for each in results) and not any(
            each.broken != bool(each.expected) for each in results if each.judged or each.broken or each.expected
        )

    @property
    def broken(self) -> list[str]:
        """Return the laws that are broken and not expected to be."""
        return [name for name, each in self.laws.items() if each.broken and not each.expected]

    def __str__(self) -> str:
        lines = [f"{self.function} as {self.contract}:", *self.binding]
        for name, each in self.laws.items():
            number = f"{each.judged} scenarios" if each.judged else _EVERY_CALL if each.broken else each.text
            lines.append(f"  {each.word:<18} {name}  ({each.expected or number})")
        judged = any(each.judged for each in self.laws.values())
        lines += [f"  {count} scenarios raised {what}" for what, count in self.raised.items() if judged]
        if self.left:
            lines.append(f"  {_sentence(_left(self.left))}")
        if self.given:
            name, value = next(iter(self.given.items()))
            inputs = self.inputs_of[name]
            names, values = dict.fromkeys(inputs), in_words(dict.fromkeys(inputs, value))
            lines.append(f"  {_sentence(self._given)}. To try the default: names={names!r}, {values}")
        lines += [f"  {_sentence(self._unread)}"] if self.unread else []
        lines.append(f"  {_sentence(self._not_tried)}.")
        broken = [self.laws[name] for name in self.broken]
        texts = [*dict.fromkeys(each.text for each in broken if not each.edge)]
        edges = [f"  {each.law}: {each.edge}" for each in broken if each.edge]
        if edges:
            title = "Hardening: NaN or infinity in edge cases. report.laws[name].text shows the scenario."
            texts.append("\n".join([title, *edges]))
        return "\n\n".join(["\n".join(lines), *texts])


def _left(left: Mapping[str, Any]) -> str:
    return f"left at the default: {in_words(left)}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def in_words(values: Mapping[str, Any]) -> str:
    """Format settings as text: ``eps=0.2, beta=0.0``."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


@dataclass(frozen=True)
class Asked:
    """The options of a check that its report needs; :class:`sentinel.testing.checking.Check` documents them.

    :ivar unread: input that changes the oracle's result but is never passed to the function -> the oracle's value.
    """

    contract: Contract
    choices: Mapping[str, Any]
    expected: Mapping[str, str]
    device: str
    unread: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanations:
    """Functions that search for the explanation of a finding. Each returns an empty value if it finds none.

    :ivar agreeing: takes a finding; returns settings with which the oracle agrees with the user's function.
    :ivar slip: takes a finding; returns a description of the slip that makes the oracle agree with the user's function.
    :ivar still_broken: takes additional settings; returns the laws that the user's function breaks with them.
    :ivar padding: takes a finding; returns the side of padding with which the user's function satisfies the law.
    """

    agreeing: Callable[[Finding], Mapping[str, Any]]
    slip: Callable[[Finding], str]
    still_broken: Callable[[Mapping[str, Any]], Sequence[str]]
    padding: Callable[[Finding], Mapping[str, Any]]


def make_report(check: Asked, bound: Bound, search: BoundarySearch, explain: Explanations) -> Report:
    """Return the report of a finished search."""
    raised: dict[str, int] = {}
    for outcome in search.outcomes.values():
        for what, count in outcome.refused.items():
            text = _exception(bound, what)[0]
            raised[text] = max(count, raised.get(text, 0))
    answered = any(outcome.answered for outcome in search.outcomes.values())
    laws = {}
    for law, outcome in search.outcomes.items():
        expected = check.expected.get(law.name, "")
        if outcome.findings:
            text = _failure(check, bound, search, explain, outcome.findings[0])
            edge = _edge(outcome.findings[0])
            laws[law.name] = Result(law.name, max(outcome.judged, 1), True, text, expected, edge=edge)
        elif outcome.refused and (not answered or not (outcome.judged or outcome.not_judged)):
            text, cause = _exception(bound, outcome.refused.most_common(1)[0][0])
            laws[law.name] = Result(law.name, 0, True, f"{_EVERY_CALL}: {text}", expected, cause)
        else:
            laws[law.name] = Result(law.name, outcome.judged, text=_why_not_judged(outcome), expected=expected)
    return Report(
        bound.function.name,
        check.contract.name,
        laws,
        raised,
        _binding(check, bound),
        bound.left,
        bound.given,
        bound.binding.dtypes or (),
        search.tried,
        bound.sizes,
        {parameter: [one for one, other in bound.names.items() if other == parameter] for parameter in bound.given},
        bound.off,
        {item.name: _styles(bound, item.name) for item in check.contract.inputs if _styles(bound, item.name)},
        tuple(bound.unread),
        bound.same,
    )


def _styles(bound: Bound, name: str) -> Sequence[str]:
    """Return the mask styles to which a mask is restricted; empty if it may have all, or if the input is not a mask."""
    item = bound.contract.input(name)
    return bound.binding.accepts.get(name, ()) if item is not None and item.domain == "mask" else ()


def _binding(check: Asked, bound: Bound) -> list[str]:
    """Return lines that list which input each parameter receives, and which inputs change the oracle's result but are
    never read.
    """
    of: dict[str, list[str]] = {} if bound.call else {name: [] for name in bound.function.__signature__.parameters}
    for name, parameter in bound.names.items():
        of.setdefault(parameter, []).append(name)
    if bound.call:
        lines = _wrapped(f"call= ({bound.call}) reads: {', '.join(of)}")
    else:
        of |= {parameter: [f"from {name}"] for parameter, name in bound.derived.items()}
        matched = (f"{parameter} = {' and '.join(several)}" for parameter, several in of.items() if several)
        lines = _wrapped(f"Parameters: {', '.join(matched)}")
    for name, value in check.unread.items():
        uses = "" if value is REQUIRED else f"; the reference uses {value!r}"
        lines += _wrapped(f"Never read: {name}{uses}")
    return lines


def _edge(finding: Finding) -> str:
    """Return a line with the first wrong value if all wrong values are NaN or infinite; otherwise an empty string."""
    violation = finding.violations[0]
    if finding.symptom != "non-finite":
        return ""
    return f"{_values(finding.trial.case, violation, violation.key.rpartition('.')[2])[0]}"


def _exception(bound: Bound, what: str) -> tuple[str, BaseException | None]:
    """Return the exception of a failed call, as text and as an object. The object is None if it was not recorded.

    :param what: the reason of the failure, which contains the text of the exception.
    """
    for text, error in bound.of_call.items():
        if text in what:
            return f"call= ({bound.call}) raised {text}", error
    for text, error in bound.function.errors.items():
        if text in what:
            return text, error
    return what.removeprefix("the boundary raised ").removeprefix("adapter error: "), None


def _why_not_judged(outcome: LawOutcome) -> str:
    whys = outcome.not_judged or outcome.refused
    return "" if outcome.judged else whys.most_common(1)[0][0] if whys else "no scenario could be drawn"


def _failure(check: Asked, bound: Bound, search: BoundarySearch, explain: Explanations, finding: Finding) -> str:
    case, law = finding.trial.case, finding.law
    assert case is not None
    violation = finding.violations[0]
    key = violation.key.rpartition(".")[2]
    observed = {item.key: item for item in check.contract.observes}.get(key)
    edge = " only with NaN or infinity (hardening)" if _edge(finding) else ""
    lines = [
        f"{bound.function.name} breaks {law.name}{edge}:",
        f"  {law.statement.replace('the framework', 'the function')}",
        "",
    ]
    of_gradient = observed is not None and observed.role == "gradient"
    first, variant = _compared(case, violation, key)
    calls = {name: finding.trial.variants[name] for name in dict.fromkeys((first, variant))}
    if violation.demanded is None and not _was_returned(case, variant, key, violation):
        calls = dict(finding.trial.variants)
    code, made = code_to_paste(bound, calls, check.device, of_gradient)
    lines += [f"    {line}".rstrip() for line in code]
    lines += ["", *(f"  {line}" for line in _values(case, violation, key)), ""]
    if made:
        lines.append(f"  call= ({bound.call}) computed NaN or infinity and passed it to {bound.function.name}.")
    if observed is not None:
        meaning = re.sub(r"\w+", lambda word: bound.names.get(word[0], word[0]), " ".join(observed.meaning.split()))
        lines.append(f"  {key}: {meaning}")
    padding = explain.padding(finding)
    if padding:
        side = next(iter(padding.values()))
        lines.append(
            f"  It holds if masks have no holes and are padded only on the {side}; if all your masks are like this, "
            f"pass {in_words(padding)}."
        )
    if law.name == "the_oracle_agrees":
        if bound.left:
            lines.append(f"  {_sentence(_left(bound.left))}")
        other = {} if padding else explain.agreeing(finding)
        if other:
            # This line is not wrapped, so that the option can be copied.
            lines.append(f"  It agrees with {in_words(other)}; if that is intended, pass dialects={other!r}.")
            stated = [each for each in map(check.contract.input, other) if each is not None and each.dialect]
            if stated:
                lines += _wrapped("All laws then use that definition, so they accept what it allows.")
            for each in stated:
                lines += _wrapped(f"{each.name}: {each.meaning}.")
            if left := explain.still_broken(other):
                lines += _wrapped(f"Laws that are still broken with these dialects: {', '.join(left)}.")
        cause = "" if other or padding or _edge(finding) else explain.slip(finding)
        if cause:
            lines += _wrapped(f"Probable cause: {cause}. The reference with this change agrees.")
        lines += _binding(check, bound)
    lines += _wrapped(f"Definition: {formula_of(check.contract, check.choices) or _source(check)}")
    outcome = search.outcomes[law]
    judged = f"{outcome.judged} of {search.tried} scenarios judged"
    if outcome.not_judged and outcome.judged < search.tried:
        judged += f" (the others were not judged, most often because: {outcome.not_judged.most_common(1)[0][0]})"
    stored = "Hypothesis stores the scenario and tries it first in the next run"
    lines += _wrapped(f"Seed {search.seed}, {judged}. {stored}.")
    return "\n".join(lines)


def _source(check: Asked) -> str:
    """Return the papers that the contract cites. If the citation names the chosen algorithm, return only the papers
    about this algorithm."""
    words = [value.lower().replace("_", "-") for value in check.choices.values() if isinstance(value, str)]
    parts = re.split(r"[,;] (?=[A-Z])", check.contract.source)
    return (
        "; ".join(part for part in parts if any(re.search(rf"\b{re.escape(word)}\b", part.lower()) for word in words))
        or check.contract.source
    )


def _wrapped(text: str) -> list[str]:
    lines = wrap(" ".join(text.split()), _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines if len(lines) < 4 else [*lines[:3], "    …"]


def _compared(case: Any, violation: Any, key: str) -> tuple[str, str]:
    """Return the names of two calls of a case: the first call, and the call in which ``key`` is wrong. They may be the
    same."""
    first = next(iter(case.observation))
    return first, next((name for name in case.observation if name and violation.key == f"{name}.{key}"), first)


def _was_returned(case: Any, variant: str, key: str, violation: Any) -> bool:
    """Return True if the violation's value is the value that the call returned, or if the two cannot be compared.
    Otherwise, the law has computed the value from several calls, for example as a sum.
    """
    pair = numbers(violation.observed), numbers(case.observation[variant].get(key))
    return pair[0] is None or pair[1] is None or np.array_equal(pair[0][0], pair[1][0], equal_nan=True)


def _values(case: Any, violation: Any, key: str) -> list[str]:
    """Return one line per differing element, with its observed and its expected value, or with its values in two calls
    that must agree."""
    first, variant = _compared(case, violation, key)
    if violation.demanded is None and not _was_returned(case, variant, key, violation):
        return [f"{key}: {violation.detail}"]
    item = next((item for item in case.contract.observes if item.key == key), None)
    observed, right, labels = case.observation[variant].get(key), violation.demanded, ("observed", "expected")
    if right is None and variant != first and case.observation[first].get(key) is not None:
        right, labels = case.observation[first][key], (f"in the second call ({variant})", "in the first")
    of_observed, of_right = numbers(observed), numbers(right)
    if of_observed is None or of_right is None or of_observed[0].shape != of_right[0].shape:
        return [f"{key}: {violation.detail}"]
    left, expected = of_observed[0], of_right[0]
    counts = None if item is None else counted(case.contract, case.inputs[variant], item)
    off = np.abs(left - expected) > 1e-4 * np.maximum(np.abs(expected), np.abs(expected).max(initial=0.0) * 1e-3)
    off |= np.isfinite(left) != np.isfinite(expected)
    off &= True if counts is None else np.broadcast_to(counts, off.shape)
    if violation.symptom == "non-finite" and (off & ~np.isfinite(left)).any():
        off &= ~np.isfinite(left)  # leave out wrong finite numbers, which are another failure
    if not off.any():
        return [f"{key}: {violation.detail}"]
    places = np.argwhere(off)
    lines = [
        f"{key}{list(map(int, place)) if len(place) else ''}: {labels[0]} {_number(left[tuple(place)])}, "
        f"{labels[1]} {_number(expected[tuple(place)])}"
        for place in places[:_ELEMENTS]
    ]
    if len(places) > _ELEMENTS:
        lines.append(f"and {len(places) - _ELEMENTS} more elements of {off.size}")
    return lines


def _number(value: Any) -> str:
    return f"{float(value):.7g}"


# -- code to paste -----------------------------------------------------------------------------------------------------


def code_to_paste(bound: Bound, variants: Mapping[str, Any], device: str, of_gradient: bool) -> tuple[list[str], bool]:
    """Return the lines of a script that repeats the function's calls in a scenario.

    The second value is True if the user's ``call`` computed NaN or infinity and passed it to the function.
    """
    function, calls, made, kinds = bound.function, list[str](), list[bool](), list[type]()
    for inputs in variants.values():
        texts: list[str] = []

        def record(positional: Sequence[Any], named: Mapping[str, Any], texts: list[str] = texts) -> None:
            texts.append(_call(function, positional, named, of_gradient))
            made.append(bool(bound.call) and _computes_non_finite(function.inputs, (positional, named)))
            kinds.extend(_classes_with_fields((positional, named)))

        function.record = record
        try:
            call_once(bound, inputs, device)
        finally:
            function.record = None
        calls += [text for text in texts if text not in calls]
    lines = ["import torch", *dict.fromkeys(line for each in (function.f, *kinds) for line in _imports(each))]
    if any("np.array(" in text for text in calls):
        lines.insert(0, "import numpy as np")
    for text in calls[:_CALLS]:
        lines += ["", *text.splitlines()]
    return lines, any(made)


def _computes_non_finite(inputs: Mapping[str, Any], arguments: Any) -> bool:
    """Return True if the arguments contain a tensor with NaN or infinity that is not an input tensor or a view of
    one."""
    import torch

    if isinstance(arguments, torch.Tensor):
        own = {value.untyped_storage().data_ptr() for value in inputs.values() if isinstance(value, torch.Tensor)}
        return not bool(arguments.isfinite().all()) and arguments.untyped_storage().data_ptr() not in own
    return any(_computes_non_finite(inputs, each) for each in _parts(arguments))


def _fields(value: Any) -> Mapping[str, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    return vars(value) if type(value) is SimpleNamespace else None


def _parts(value: Any) -> Sequence[Any]:
    fields = value if isinstance(value, Mapping) else _fields(value)
    return list(fields.values()) if fields is not None else value if isinstance(value, (list, tuple)) else ()


def _classes_with_fields(value: Any) -> Iterator[type]:
    if _fields(value) is not None:
        yield type(value)
    for each in _parts(value):
        yield from _classes_with_fields(each)


def _imports(value: Any) -> list[str]:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier() or not hasattr(sys.modules.get(module), name):
        return []
    return [f"from {module} import {name}"]


def _call(function: Function, positional: Sequence[Any], named: Mapping[str, Any], of_gradient: bool) -> str:
    arguments = [*(written(value, of_gradient) for value in positional)]
    arguments += [f"{name}={written(value, of_gradient)}" for name, value in named.items()]
    whole = f"{function.name}({', '.join(arguments)})"
    if len(whole) <= _WIDTH:
        return whole
    return "\n".join([f"{function.name}(", *(f"    {argument}," for argument in arguments), ")"])


def written(value: Any, of_gradient: bool = False) -> str:
    """Return Python code that creates the value.

    :param of_gradient: whether tensors keep ``requires_grad``.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value, of_gradient)
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()!r})"
    if isinstance(value, float):
        return repr(value) if np.isfinite(value) else f"float('{value}')"
    fields = _fields(value)
    if fields is not None:
        items = ", ".join(f"{name}={written(item, of_gradient)}" for name, item in fields.items())
        return f"{type(value).__qualname__}({items})"
    if type(value) in (list, tuple):
        items = ", ".join(written(item, of_gradient) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        items = ", ".join(f"{key!r}: {written(item, of_gradient)}" for key, item in value.items())
        return f"{{{items}}}" if type(value) is dict else f"{type(value).__name__}({{{items}}})"
    return repr(value)


def _tensor(value: Any, of_gradient: bool) -> str:
    import torch

    plain = value.detach().cpu()
    options = "" if plain.dtype in (torch.float32, torch.int64, torch.bool) else f", dtype={plain.dtype}"
    if plain.numel() == 0:
        return f"torch.empty({tuple(plain.shape)}, dtype={plain.dtype})"
    if plain.is_floating_point():
        text, infinite = _nested(plain.float() if plain.dtype != torch.float64 else plain), not plain.isfinite().all()
        text = text.replace("nan", "float('nan')").replace("inf", "float('inf')") if infinite else text
    else:
        text = repr(plain.tolist())
    options += f", device={str(value.device)!r}" if value.device.type != "cpu" else ""
    options += ", requires_grad=True" if of_gradient and value.requires_grad else ""
    written = f"torch.tensor({text}{options})"
    if not value.is_contiguous() and value.dim() > 1:
        written += ".mT.contiguous().mT"  # the same values in another memory layout
    return written


def _nested(value: Any) -> str:
    array = value.numpy()
    if array.ndim == 0:
        return str(array[()])
    return f"[{', '.join(_nested(part) if array.ndim > 1 else str(part.numpy()[()]) for part in value)}]"
