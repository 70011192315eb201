"""Find settings of a contract with which the oracle agrees with a function.

If there are such settings, the function may differ from the default definition by intent, not because of a bug.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any

from sentinel.contracts.contract import REQUIRED, Contract, DoesNotApply
from sentinel.recipes.catalog import bundled_catalog
from sentinel.search.scenarios import declared, distinct
from sentinel.targets import Target
from sentinel.testing.binding import Bound
from sentinel.testing.forms import concerns

if TYPE_CHECKING:
    from sentinel.deciding.law_session import LawSession
    from sentinel.search.boundary_search import Finding

#: Maximum number of pairs of settings that are tried.
_PAIRS = 300


def other_settings(
    contract: Contract,
    targets: Iterable[Target],
    now: Mapping[str, Any],
    skip: Collection[str] = (),
    numbers: Sequence[float] = (),
    more: Mapping[str, Sequence[Any]] | None = None,
) -> list[dict[str, Any]]:
    """Return settings to try, such as ``{"epsilon": 1e-5}``. Each changes the value of one input.

    The values for an input are its default, its choices and the values that adapters declare for it. For numbers,
    they also include ``numbers``.

    :param now: input -> the current value, for inputs that do not have their default.
    :param skip: inputs whose value is not changed.
    :param more: input -> additional values, which come first.
    """
    targets, found = list(targets), []
    for item in contract.inputs:
        if item.name in skip or not (item.dialect or item.knob or item.choices) or callable(item.default):
            continue
        current = now.get(item.name, item.default)
        several = [*(more or {}).get(item.name, ()), *(numbers if item.kind == "number" else ())]
        several += [item.default, *item.choices, *declared(targets, contract, item.name)]
        several += [not current] if isinstance(current, bool) else []
        known = [value for value in several if not isinstance(value, str) or value in item.meaning or item.choices]
        found += [{item.name: value} for value in distinct(known) if value != current and value != REQUIRED]
    return found


def candidates(contract: Contract, bound: Bound, chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return settings to try for a function. Each changes the value of one input. The values for numbers include the
    constants in the function's code."""
    skip = [item.name for item in contract.inputs if not concerns(contract, item, chosen)]
    skip += [*chosen, *bound.names]
    targets = bundled_catalog().targets.values()
    return other_settings(contract, targets, bound.binding.fixed, skip, _constants(bound.function.f))


def explaining(
    session: LawSession, finding: Finding, several: Sequence[Mapping[str, Any]], pairs: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield those of the given settings with which the oracle agrees with the function in the finding's scenario.

    :param several: the settings to try.
    :param pairs: whether to try pairs of these settings too. At least one setting of a pair must change the oracle's
        result on its own.
    """
    case, inputs = finding.trial.case, next(iter(finding.trial.variants.values()))
    assert case is not None
    changed = {str(place): {**inputs, **alternative} for place, alternative in enumerate([{}, *several])}
    replies = session.references(finding.subject, changed).answers
    before = replies["0"].observation
    effective = []
    for place, alternative in enumerate(several, 1):
        right = replies[str(place)].observation
        if right is not None and right != before:
            effective.append(alternative)
        with contextlib.suppress(DoesNotApply):  # the oracle overflows with the alternative
            if right and not finding.law.violations(replace(case, inputs={"": inputs}, oracle={"": right})):
                yield dict(alternative)
    if pairs:
        both = ({**one, **other} for one in effective for other in several if not one.keys() & other.keys())
        order = [item.name for item in finding.subject.contract.inputs]
        ordered = (dict(sorted(one.items(), key=lambda pair: order.index(pair[0]))) for one in both)
        yield from explaining(session, finding, list(islice(ordered, _PAIRS)))


def _constants(f: Any) -> list[float]:
    """Return the numbers in the code of a function and its nested functions, and in the defaults of its parameters."""
    f = getattr(f, "func", f)
    inner = getattr(f, "forward", f)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    defaults = [*(getattr(inner, "__defaults__", None) or ()), *(getattr(inner, "__kwdefaults__", None) or {}).values()]
    found: list[float] = [each for each in defaults if type(each) in (int, float)]
    stack = [code] if isinstance(code, CodeType) else []
    while stack:
        for constant in stack.pop().co_consts:
            if isinstance(constant, CodeType):
                stack.append(constant)
            elif isinstance(constant, (int, float)) and not isinstance(constant, bool):
                found.append(constant)
    return found
