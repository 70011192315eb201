"""Convert a call of a training run to a scenario of the contract.

An adapter converts scenarios to calls. This module derives the inverse from example calls: if a part of the call equals
an input in all examples, the input is read from that part. A call of the run is accepted as a scenario only if the
adapter makes the same call from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import inspect
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import TOKENS, Contract, DoesNotApply, Input
from sentinel.deciding.law_session import Subject
from sentinel.laws.law import Case
from sentinel.search.scenarios import accepts, draw, with_dialects
from sentinel.tools.watch.values import Path, at
from sentinel.tools.watch.wrapping import Plan, gradients_of, members
from sentinel.values.literals import HALVES, Tensor, from_array
from sentinel.worker import probe, stubs, tensors
from sentinel.worker.calling import Boundary

#: Number of example calls from which a reading is derived, and maximum number of scenarios that are drawn for them.
_CALLS, _DRAWN = 24, 400
#: Number of example calls whose parts are changed one by one, to find the parts that have no effect.
_TURNED = 18
#: Roles of the observed keys of a contract that follow from a call's result or gradients. Only these are compared.
_OF_RESULTS = ("output", "gradient", "metric", "decision")
#: A possible value in :attr:`Reading.open`, for an input that only some calls contain: the value in the call.
_SHOWN = object()
#: Stands for any other valid value of the same type when a part of a call is replaced.
_ANOTHER = object()
#: Roles of the keys that scale with the loss.
_SCALED = ("output", "gradient")
#: Maximum number of combinations of values that are tried for the inputs that cannot be read from a call.
_COMBINATIONS = 256
_DEEPEST = 3


class Unreadable(Exception):
    """Raised if a call, or any call of a boundary, cannot be converted to a scenario. The message is the reason."""


class _Heard(BaseException):
    """Raised to end a call when its arguments have been recorded."""


class Listener:
    """Replaces a boundary's function, and records the arguments of the last call by name.

    ``inspect.signature``, ``getsource`` and ``unwrap`` return the real function's values, because adapters call them.

    :param answers: a function that computes the result of a call; if it is None, calls raise :class:`_Heard`.
    """

    def __init__(self, function: Any, answers: Any = None) -> None:
        self._function, self._answers = function, answers
        self.__signature__ = inspect.signature(function)
        self.__wrapped__ = function
        self.arguments: dict[str, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        if self._answers is None:
            raise _Heard
        return self._answers(self.arguments, *args, **kwargs)


@dataclass(frozen=True)
class Reading:
    """How the calls of one boundary are converted to scenarios.

    :ivar sources: for each canonical input, the part of a call from which it is read, and how: ``same``; ``row`` (one
        number per response instead of one per token); ``sum`` (the sum of a response); ``mostly`` (equal in at least
        half of the adapter's calls). If a call has only the difference of two inputs, one is read as ``difference``
        and the other as 0 (``zero``).
    :ivar open: the inputs that cannot be read from any part of a call, or only in some calls; each with its possible
        values.
    :ivar keys: the contract's keys whose values follow from a call's result; empty until these keys are known.
    :ivar idle: parts that are not copied, because they do not affect the results of the adapter's calls.
    :ivar scaling: parts that multiply a loss and its gradients in every scenario, such as the number of micro-batches
        of a step. Their values may differ from those in the adapter's call.
    """

    subject: Subject
    boundary: Boundary
    sources: Mapping[str, tuple[Path, str]]
    open: Mapping[str, tuple[Any, ...]]
    plan: Plan
    keys: frozenset[str] = frozenset()
    scaling: frozenset[Path] = frozenset()
    idle: tuple[Path, ...] = ()

    def read(self, parts: Mapping[Path, Any]) -> dict[str, Any]:
        """Return the inputs of a scenario for which the adapter makes a call with the given parts.

        :raises Unreadable: if there is no such scenario.
        """
        for path in self._required_parts():
            if parts[path] is None:
                return self._read_without(path, parts)
        fewest, why = len(self.plan.paths) + 1, "the adapter cannot make this call from any scenario"
        closest: tuple[dict[str, Any], dict[Path, Any]] | None = None
        contract, binding = self.subject.contract, self.subject.binding
        for choice in itertools.islice(itertools.product(*self.open.values()), _COMBINATIONS):
            inputs = self._inputs(parts, dict(zip(self.open, choice)))
            try:
                made = self._made(inputs)
            except Exception as error:  # this version of the framework does not accept the scenario
                why = f"{why.partition(':')[0]}: {error}"[:200] if fewest > len(self.plan.paths) else why
                continue
            if not all(accepts(contract, binding, item, inputs) for item in contract.inputs if item.domain == "mask"):
                why = "the adapter does not accept a mask with the call's values"
                continue
            other = [p for p in self.plan.paths if p not in self.scaling and not _alike(parts[p], made[p])]
            if not other:
                return inputs
            if len(other) < fewest:
                fewest, closest = len(other), (inputs, {path: parts[path] for path in other})
                why = "; ".join(
                    f"{written(p)} is {_brief(parts[p])}, but {_brief(made[p])} in the adapter's call"
                    for p in other[:3]
                )
        if closest is not None and self._same_with(*closest):
            return closest[0]
        raise Unreadable(why)

    def _same_with(self, inputs: Mapping[str, Any], parts: Mapping[Path, Any]) -> bool:
        """Return True if the result of the adapter's call stays the same with the run's values in these parts.

        Examples of such parts are the prompt of a batch, and values that only an inactive option uses. Parts that are
        not copied from the run must not affect the result either. :func:`_idle` has checked this for the adapter's own
        calls; this method checks it again after the replacement.
        """
        usual = _with(self, inputs, {})
        if usual is None:
            return False
        alone = [{path: _ANOTHER} for path in self.idle]
        together = [dict.fromkeys(self.idle, _ANOTHER)] if len(alone) > 1 else []
        for more in ({}, *alone, *together):
            other = _with(self, inputs, {**parts, **more})
            if other is None or usual.keys() != other.keys():
                return False
            if not all(_same_value(_flat(usual[key]), _flat(other[key]), near=1e-6, least=0.0) for key in usual):
                return False
        return True

    def _required_parts(self) -> list[Path]:
        return [
            self.sources[item.name][0]
            for item in self.subject.contract.inputs
            if item.kind == "tensor" and item.default is not None and item.name not in self.open
            if self.sources.get(item.name, ("", ""))[1] == "same"
        ]

    def _read_without(self, path: Path, parts: Mapping[Path, Any]) -> dict[str, Any]:
        """Read a call that lacks the part for a required input, from another part that the function uses instead.

        For example, the function may use the current log-probs if the call has no log-probs of the rollout.
        """
        for other in self._required_parts():
            if parts[other] is not None:
                with contextlib.suppress(Unreadable):
                    inputs = self.read({**parts, path: parts[other]})
                    if self._same_with(inputs, {path: None}):
                        return inputs
        raise Unreadable(f"{written(path)} is missing")

    def unread(self, options: Sequence[str]) -> list[str]:
        """Return the given options that the function uses and whose values are not copied with a call."""
        compared = {path[-1][1] for path in self.plan.paths if len(path) > 1}
        return sorted({*options} & _names(self.boundary.function) - compared)

    def reads(self, parts: Mapping[Path, Any]) -> bool:
        try:
            return bool(self.read(parts))
        except Unreadable:
            return False

    def observe(self, inputs: Mapping[str, Any], result: Any, gradients: Mapping[Path, Any]) -> dict[str, Any]:
        """Return the contract's observed values for a call with this result and these gradients of its loss."""

        def answers(arguments: dict[str, Any], *_: Any, **__: Any) -> Any:
            methods = {name: answer for _, name, answer in _answered(self.boundary, arguments)}
            parts = {path: (at(arguments, path, methods), gradient) for path, gradient in gradients.items()}
            return _with_gradients(result, parts)

        observed = self._observed(inputs, answers)
        observed = {key: _as_rows(value, inputs.get(self.subject.contract.mask)) for key, value in observed.items()}
        of_gradients = {item.key for item in self.subject.contract.observes if item.role == "gradient"}
        return {key: value for key, value in observed.items() if gradients or key not in of_gradients}

    def _observed(self, inputs: Mapping[str, Any], answers: Any) -> dict[str, Any]:
        """Return the contract's observed values for the adapter's call, with ``answers`` in place of the function."""
        boundary = replace(self.boundary, function=Listener(self.boundary.function, answers))
        return self.of_results(probe.observe(self.subject.contract, boundary, inputs, (), "cpu"))

    def scale(self, inputs: Mapping[str, Any], parts: Mapping[Path, Any]) -> float:
        """Return the ratio of the run's loss to the loss of the adapter's call.

        :raises Unreadable: if the two losses are not proportional.
        """
        if not self.scaling:
            return 1.0
        made = self._made(inputs)
        others = {path: parts[path] for path in made if not _alike(parts[path], made[path])}
        usual, ratios = _with(self, inputs, {}), list[float | None]()
        for more in ({}, dict.fromkeys(self.idle, _ANOTHER)):  # idle parts are not copied, so any value is possible
            scaled = _with(self, inputs, {**others, **more})
            ratios.append(None if usual is None or scaled is None else _ratio(self, usual, scaled))
        ratio = ratios[0]
        if not ratio or ratios[1] is None or not math.isclose(ratio, ratios[1], rel_tol=1e-6):
            raise Unreadable(f"the loss of this call is not proportional to {', '.join(map(written, self.scaling))}")
        return ratio

    def unscaled(self, observed: Mapping[str, Any], scale: float) -> dict[str, Any]:
        """Divide the observed values that scale with the loss by ``scale``."""
        roles = {item.key: item.role for item in self.subject.contract.observes}
        return {
            key: from_array(value.array() / scale, value.dtype)
            if isinstance(value, Tensor) and scale != 1.0 and roles[key] in _SCALED
            else value
            for key, value in observed.items()
        }

    def of_results(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        keys = [item.key for item in self.subject.contract.observes if item.role in _OF_RESULTS]
        return {key: observed[key] for key in keys if key in observed and key in (self.keys or keys)}

    def _made(self, inputs: Mapping[str, Any]) -> dict[Path, Any]:
        """Return the parts of the call that the adapter makes from a scenario."""
        arguments, answers = _heard(self.boundary, inputs)
        return {path: at(arguments, path, answers) for path in self.plan.paths}

    def _inputs(self, parts: Mapping[Path, Any], choice: Mapping[str, Any]) -> dict[str, Any]:
        contract, binding = self.subject.contract, self.subject.binding
        read = {name: parts[path] for name, (path, _) in self.sources.items()}
        for item in contract.inputs:  # packed tokens are read as a single response
            if item.shape == TOKENS and self.sources.get(item.name, ("", "row"))[1] not in ("row", "sum"):
                packed = read[item.name]
                read[item.name] = packed[None] if isinstance(packed, torch.Tensor) and packed.dim() == 1 else packed
        wide = next((value for value in read.values() if isinstance(value, torch.Tensor) and value.dim() == 2), None)
        inputs: dict[str, Any] = {}
        for item in contract.inputs:
            if item.name in read and choice.get(item.name, _SHOWN) is _SHOWN:
                value = read[item.name]
                if self.sources[item.name][1] == "zero" and wide is not None:
                    value = torch.zeros_like(wide)
                elif self.sources[item.name][1] in ("row", "sum") and wide is not None:
                    lengths = (read.get(contract.mask, wide) != 0).sum(-1).clamp(min=1)
                    value = value / lengths if self.sources[item.name][1] == "sum" else value
                    value = value[:, None].expand(-1, wide.shape[1])
                inputs[item.name] = _literal(item, value)
            elif item.name in choice:
                inputs[item.name] = choice[item.name]
            elif item.name == contract.mask and item.kind == "tensor" and wide is not None:
                inputs[item.name] = tensors.from_torch(torch.ones(wide.shape, dtype=torch.int64))
            else:
                inputs[item.name] = item.default(inputs) if callable(item.default) else item.default
        return with_dialects(contract, binding, inputs)


def reading_of(number: int, subject: Subject, boundary: Boundary) -> Reading:
    """Derive how a boundary's calls are converted to scenarios, and test this on the run's own function.

    :raises Unreadable: if there is no reading, or the reading does not reproduce the observation.
    :raises Exception: the most frequent error of the drawn scenarios, if fewer than two led to a call of the function.
    """
    errors: list[Exception] = []
    calls = list(itertools.islice(_calls(subject, boundary, errors), _CALLS))
    if len(calls) < 2:
        often = Counter(map(str, errors))
        raise max(
            errors,
            key=lambda error: often[str(error)],
            default=Unreadable("no scenario could be drawn for this boundary"),
        )
    names = _names(boundary.function)
    parts_of_calls = [dict(_parts(arguments, answers, names)) for _, arguments, answers in calls]
    paths = tuple(
        sorted({path for parts in parts_of_calls for path in parts}, key=lambda path: (len(path), repr(path)))
    )
    sources: dict[str, tuple[Path, str]] = {}
    open_: dict[str, tuple[Any, ...]] = {}
    per_token: list[str] = []
    for item in subject.contract.inputs:
        if item.dialect or item.name in subject.binding.fixed:
            continue
        values = [live[item.name] for live, _, _ in calls]
        if all(_alike(values[0], value) for value in values[1:]):
            continue
        source = _source(values, parts_of_calls, paths)
        if source is not None:
            sources[item.name] = source, "same"
        elif (where_present := _source_where_present(values, parts_of_calls, paths)) is not None:
            sources[item.name] = where_present, "same"
            open_[item.name] = (_SHOWN, None)
        elif (mostly := _source(values, parts_of_calls, _others(paths, sources), len(values) // 2)) is not None:
            sources[item.name] = mostly, "mostly"  # some algorithms do not use this input, and their calls omit it
        elif item.choices and not item.domain:
            open_[item.name] = item.choices
        elif item.kind == "tensor" and item.name != subject.contract.mask and item.default is not None:
            if item.shape != TOKENS:
                raise Unreadable(f"the arguments of a call do not determine the input {item.name}")
            per_token.append(item.name)
    for one, other in itertools.permutations(per_token, 2) if len(per_token) == 2 else ():
        between = _source([live[one] - live[other] for live, _, _ in calls], parts_of_calls, paths)
        if between is not None:
            sources |= {one: (between, "difference"), other: (between, "zero")}
            per_token = []
            break
    shown = {path for path, _ in sources.values()}
    paths = tuple(path for path in paths if path[-1][0] != "[:]" or path in shown)
    owner, name = boundary.module.__name__, boundary.path.removeprefix(f"{boundary.module.__name__}.")
    methods = {step[1] for path in paths for step in path[1:] if step[0] == "()"}
    answering = {method: (owner, f"{name.rpartition('.')[0]}.{method}") for method in sorted(methods)}
    plan = Plan(number, boundary.path, (owner, name), paths, answering)
    reading = Reading(subject, boundary, sources, open_, plan)
    every = [{path: at(arguments, path, answers) for path in paths} for _, arguments, answers in calls]
    reading = _by_row(reading, per_token, every) if per_token else reading
    differentiable = tuple(
        sources[item.name][0]
        for item in subject.contract.inputs
        if item.differentiable and item.name in sources and sources[item.name][1] in ("same", "mostly")
    )
    reading = replace(reading, plan=replace(reading.plan, differentiable=differentiable))
    reading = replace(reading, keys=_tried_out(reading, calls))
    idle, scaling = _idle(reading, calls)
    plan = replace(reading.plan, paths=tuple(path for path in paths if path not in idle))
    return replace(reading, plan=plan, scaling=frozenset(scaling), idle=tuple(path for path in paths if path in idle))


def _idle(reading: Reading, calls: Sequence[tuple[Any, Any, Any]]) -> tuple[set[Path], set[Path]]:
    """Return the parts of a call that have no effect, and the parts that only scale the loss.

    Parts without effect, such as token ids that only a stand-in receives, are neither copied nor compared.
    """
    shown = {path for path, _ in reading.sources.values()}
    idle = {path for path in reading.plan.paths if path not in shown}
    of_adapter = [{path: at(arguments, path, answers) for path in idle} for _, arguments, answers in calls]
    scaling = {path for path in idle if all(_alike(of_adapter[0][path], parts[path]) for parts in of_adapter)}
    differences, count = Counter[Path](), 0
    for live in _of_every_kind(reading, [live for live, _, _ in calls]):
        inputs = {name: tensors.observe(value) for name, value in live.items()}
        usual = _with(reading, inputs, {})
        if usual is None or count == _TURNED:
            continue
        count += 1
        for path in sorted(idle | scaling, key=repr):
            other = _with(reading, inputs, {path: _ANOTHER})
            if other is None or not all(_same_value(usual[key], other[key]) for key in reading.keys):
                idle.discard(path)
                ratio = None if other is None else _ratio(reading, usual, other)
                if not ratio:
                    scaling.discard(path)
                differences[path] += 1
        together: dict[Path, Any] = {}
        # Parts that have no effect when one of them is changed may have an effect when several are changed, such as a
        # coefficient and its factor.
        for path in sorted(idle, key=repr):
            other = _with(reading, inputs, {**together, path: _ANOTHER})
            if other is not None and all(_same_value(usual[key], other[key]) for key in reading.keys):
                together[path] = _ANOTHER
        idle &= together.keys()
    return (idle, {path for path in scaling - idle if differences[path]}) if count else (set(), set())


def _ratio(reading: Reading, one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the common factor between the losses and gradients of two observations, or None."""
    roles = {item.key: item.role for item in reading.subject.contract.observes}
    ratios: list[float] = []
    for key in reading.keys:
        values = one.get(key), other.get(key)
        if roles[key] not in _SCALED or not all(isinstance(value, Tensor) for value in values):
            if not _same_value(*values):
                return None
            continue
        before, after = (value.array().astype(np.float64).reshape(-1) for value in values if isinstance(value, Tensor))
        moved = np.isfinite(before) & (np.abs(before) > 1e-7)
        if before.shape != after.shape or not np.allclose(after[~moved], before[~moved], atol=1e-6, equal_nan=True):
            return None
        ratios += (after[moved] / before[moved]).tolist()
    return 1.0 if not ratios else ratios[0] if np.allclose(ratios, ratios[0], rtol=2e-2) else None


def _of_every_kind(reading: Reading, scenarios: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort scenarios so that each combination of choices occurs once before any occurs again."""
    first: dict[Any, Mapping[str, Any]] = {}
    for live in scenarios:
        choice = [live[name] is None if _SHOWN in may else live[name] for name, may in reading.open.items()]
        first.setdefault(repr(choice), live)
    return [*first.values(), *(live for live in scenarios if all(live is not other for other in first.values()))]


def _with(reading: Reading, inputs: Mapping[str, Any], changed: Mapping[Path, Any]) -> dict[str, Any] | None:
    """Return the observed values of the adapter's call after some of its parts were replaced.

    Return None if this call raises, or if ``_ANOTHER`` replaces a part of which no other valid value is known.
    """
    function = reading.boundary.function

    def called(arguments: dict[str, Any], *_: Any, **__: Any) -> Any:
        for path, value in changed.items():
            _put(arguments, path, _laid_out(at(arguments, path, {}), value))
        bound = inspect.signature(function).bind_partial()
        bound.arguments.update(arguments)
        return function(*bound.args, **bound.kwargs)

    try:
        return reading._observed(inputs, called)
    except Exception:
        return None


def _laid_out(of_adapter: Any, of_run: Any) -> Any:
    """Return the run's value. If only its shape differs, return the adapter's value, which has the gradient, in that
    shape."""
    tensors_ = isinstance(of_adapter, torch.Tensor) and isinstance(of_run, torch.Tensor)
    if tensors_ and of_adapter.shape != of_run.shape and _alike(of_adapter.flatten(), of_run.flatten()):
        return of_adapter.reshape(of_run.shape)
    return of_run


def _flat(value: Any) -> Any:
    return from_array(value.array().reshape(-1), value.dtype) if isinstance(value, Tensor) else value


def _as_rows(value: Any, mask: Any) -> Any:
    """Add a first dimension to observed values of packed tokens, which are read as a single response."""
    packed = isinstance(value, Tensor) and isinstance(mask, Tensor) and (1, *value.shape) == mask.shape
    return from_array(value.array()[None], value.dtype) if packed else value


def _other_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
        return torch.cat([value, 1 - value], 1)
    if isinstance(value, (torch.Tensor, float)):
        return value + 1
    if isinstance(value, int):
        return not value if isinstance(value, bool) else value + 1
    raise Unreadable("a part of the call has a type for which no second value is known")


def _put(arguments: dict[str, Any], path: Path, replacement: Any = _ANOTHER) -> None:
    """Replace a part of a call. The part may be the result of a stand-in's method."""
    method = next((place for place, step in enumerate(path) if place and step[0] == "()"), None)
    if method is not None:
        owner = at(arguments, path[:method], {})
        answer = getattr(owner, path[method][1])()
        answer = list(answer) if isinstance(answer, tuple) else answer
        if len(path) > method + 1:
            answer[path[-1][1]] = _other_value(answer[path[-1][1]])
        else:
            answer = _other_value(answer)
        answer = tuple(answer) if isinstance(answer, list) else answer
        object.__setattr__(owner, path[method][1], lambda *_, **__: answer)
        return
    value = _other_value(at(arguments, path, {})) if replacement is _ANOTHER else replacement
    if path[-1][0] == "[:]":
        first = at(arguments, path[:-1], {})[:, : path[-1][1]]
        _put(arguments, path[:-1], torch.cat([first, value.to(first)], 1))
        return
    if len(path) == 1:
        arguments[path[0]] = value
        return
    owner = at(arguments, path[:-1], {})
    if path[-1][0] == "." or dataclasses.is_dataclass(owner):  # the object may be frozen, or readable like a mapping
        object.__setattr__(owner, path[-1][1], value)
    else:
        owner[path[-1][1]] = value


def _by_row(reading: Reading, names: Sequence[str], calls: Sequence[Mapping[Path, Any]]) -> Reading:
    """Extend a reading by inputs that a call has as one number per response instead of per token.

    :param names: the inputs.
    :raises Unreadable: if no parts of a call have these numbers.
    """
    rows = [
        path
        for path in reading.plan.paths
        if all(isinstance(parts[path], torch.Tensor) and parts[path].dim() == 1 for parts in calls)
    ]
    ways = itertools.product(itertools.product(rows, ("row", "sum")), repeat=len(names))
    for way in itertools.islice(ways, _COMBINATIONS):
        attempt = replace(reading, sources={**reading.sources, **dict(zip(names, way))})
        if attempt.reads(calls[0]) + attempt.reads(calls[1]) and sum(map(attempt.reads, calls)) * 2 > len(calls):
            return attempt
    raise Unreadable(f"the arguments of a call do not determine the inputs {' and '.join(names)}")


def _tried_out(reading: Reading, calls: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]) -> frozenset[str]:
    """Test a reading on example calls. Return the observed keys that a call's result determines.

    :param calls: for each example, the scenario, the arguments of its call, and the results of stand-ins' methods.
    :raises Unreadable: if no example can be read, or if a scenario that was read from a call has another meaning than
        the original.
    """
    keys = {item.key for item in reading.subject.contract.observes if item.role in _OF_RESULTS}
    contract, read, another = reading.subject.contract, 0, False
    refused = "example scenarios cannot be recovered from the calls that the adapter makes from them"
    for live, call, answers in calls:
        parts = {path: at(call, path, answers) for path in reading.plan.paths}
        try:
            inputs = reading.read(parts)
        except Unreadable:
            continue
        written_ = {name: tensors.observe(value) for name, value in live.items()}
        results: list[tuple[Any, dict[Path, Any]]] = []

        def answering(arguments: dict[str, Any], *args: Any, results: Any = results, **kwargs: Any) -> Any:
            result = reading.boundary.function(*args, **kwargs)
            methods = {name: answer for _, name, answer in _answered(reading.boundary, arguments)}
            parts = {path: at(arguments, path, methods) for path in reading.plan.differentiable}
            results.append((result, gradients_of(result, parts)))
            return result

        try:
            real = reading._observed(inputs, answering)
        except Exception as error:  # the function rejects this scenario
            refused = f"the function cannot be called in the checker: {type(error).__name__}: {error}"
            continue
        replayed = reading.observe(inputs, *results[-1]) if results else {}
        keys = {key for key in keys & replayed.keys() if _same_value(real[key], replayed[key])}
        if contract.oracle is not None:
            meaning = _of_same_meaning(reading, written_, inputs)
            keys, another = keys & meaning, another or not keys <= meaning
        read += 1
    if not read:
        raise Unreadable(refused)
    if not any(item.role != "metric" for item in contract.observes if item.key in keys):
        many = "two scenarios with different meanings make the same call"
        raise Unreadable(many if another else "the result of the call does not determine what the contract observes")
    return frozenset(keys)


def _of_same_meaning(reading: Reading, drawn: Mapping[str, Any], inputs: Mapping[str, Any]) -> set[str]:
    """Return the keys for which the oracle returns equal values for a scenario and for its copy, read from a call."""
    contract = reading.subject.contract
    every = {item.key for item in contract.observes}
    if any(isinstance(value, Tensor) and value.dtype in HALVES for value in drawn.values()):
        return every  # a mean in the call may be rounded to half precision, so only float32 scenarios are compared
    try:
        literals = ({each.name: item[each.name] for each in contract.inputs} for item in (drawn, inputs))
        one, two = (reading.of_results(probe.consult(contract, each)) for each in literals)
    except DoesNotApply:
        return every
    mask = drawn.get(contract.mask)
    return {key for key in every if (key in one) == (key in two) and _same_value(one.get(key), two.get(key), mask)}


def _calls(
    subject: Subject, boundary: Boundary, errors: list[Exception]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Draw scenarios. Yield each with the arguments of its call and the results of its stand-ins' methods.

    If a scenario raises an exception, append the exception to ``errors`` and continue with the next scenario.
    """
    for place in range(_DRAWN):
        data = hashlib.shake_256(f"{subject.name} {place}".encode()).digest(4096)
        try:
            inputs = draw(subject.contract, subject.binding, Choices(data))
            arguments, answers = _heard(boundary, inputs)
        except Unreadable:
            raise
        except Exception as error:  # the scenario is invalid, or this version of the framework does not accept it
            if stubs.state().used:
                raise Unreadable(
                    f"the function's code calls {stubs.state().used[0]}, which the checker leaves out to save memory"
                ) from None
            if isinstance(error, KeyError) and error.args[0] in _computed(subject.contract, inputs):
                raise Unreadable(
                    f"scenarios cannot be recovered from calls, because the contract {subject.contract.name} computes "
                    f"{error.args[0]} from them"
                ) from None
            errors.append(error)
            continue
        yield {name: tensors.build(value, _no_object) for name, value in inputs.items()}, arguments, answers


def _computed(contract: Contract, inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of values that a contract computes from the inputs before the adapter's call."""
    names: list[str] = []

    def call(**given: Any) -> dict[str, Any]:
        names.extend(given)
        raise _Heard

    with contextlib.suppress(_Heard, Exception):  # a contract may refuse the scenario
        probe.observe(contract, call, inputs, (), "cpu")
    return [name for name in names if name not in inputs]


def _heard(boundary: Boundary, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the adapter's call for a scenario, and the results of stand-ins' methods."""
    listener = Listener(boundary.function)
    with contextlib.suppress(_Heard):
        replace(boundary, function=listener)(**{name: tensors.build(item, _no_object) for name, item in inputs.items()})
    if listener.arguments is None:
        raise Unreadable("the adapter does not call the function directly")
    return listener.arguments, {name: answer for _, name, answer in _answered(boundary, listener.arguments)}


def _answered(boundary: Boundary, arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Call the methods of stand-ins. Yield (argument that is the stand-in, method, result)."""
    for stand_in in boundary.binding.stand_ins:
        for owner, value in arguments.items():
            method = vars(value).get(stand_in.name) if hasattr(value, "__dict__") else None
            if callable(method) and not isinstance(method, type):
                with contextlib.suppress(Exception):  # the method needs arguments
                    yield owner, stand_in.name, method()


def _with_gradients(result: Any, parts: Mapping[Path, tuple[Any, Any]]) -> Any:
    """Replace the loss in a result by a loss whose backward pass gives recorded gradients.

    :param parts: part of the call -> (its value, the gradient).
    """
    loss = next((one for one in members(result) if isinstance(one, torch.Tensor) and one.dim() == 0), None)
    if loss is None or not parts:
        return result
    moved = loss.detach()
    for part, gradient in parts.values():
        if isinstance(part, torch.Tensor) and part.numel() == gradient.numel():
            moved = _LossWithGradient.apply(moved, part, gradient.reshape(part.shape))  # type: ignore[no-untyped-call]
    if isinstance(result, dict):
        return {name: moved if one is loss else one for name, one in result.items()}
    return type(result)(moved if one is loss else one for one in result) if result is not loss else moved


class _LossWithGradient(torch.autograd.Function):
    """A loss whose backward pass gives the gradients that were recorded in the run."""

    @staticmethod
    def forward(ctx: Any, loss: Any, part: Any, gradient: Any) -> Any:
        ctx.gradient = gradient.to(part)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, outer: Any) -> Any:
        return outer, outer * ctx.gradient, None


def _no_object(path: str) -> Any:
    raise Unreadable(f"a scenario needs the framework's object {path}, which the checker does not build")


# -- parts of a call ---------------------------------------------------------------------------------------------------


def _parts(
    arguments: Mapping[str, Any], answers: Mapping[str, Any], names: frozenset[str]
) -> Iterator[tuple[Path, Any]]:
    for name, value in arguments.items():
        yield from _leaves((name,), value, names)
    for name, value in answers.items():
        owner = next(key for key, item in arguments.items() if name in getattr(item, "__dict__", {}))
        yield from _leaves((owner, ("()", name)), value, names)


def _leaves(path: Path, value: Any, names: frozenset[str]) -> Iterator[tuple[Path, Any]]:
    """Yield the plain values in an argument (tensors, numbers, strings, lists of these), with their paths.

    :param names: the names in the function's code; attributes and keys with other names are not followed.
    """
    if value is None or isinstance(value, (bool, int, float, str, torch.Tensor, np.ndarray, np.generic)):
        yield path, value
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            yield (*path, ("[:]", 1)), value[:, 1:]  # the first column may belong to the token before the response
    elif isinstance(value, enum.Enum):
        yield (*path, (".", "name")), value.name
    elif isinstance(value, (tuple, dict)) and not value and len(path) == 1:
        yield path, value  # takes the place of ``*args`` or ``**kwargs``
    elif isinstance(value, (list, tuple)):
        if all(item is None or isinstance(item, (bool, int, float, str, torch.Tensor)) for item in value):
            if path[-1][0] == "()":
                for place, item in enumerate(value):
                    yield (*path, ("[]", place)), item
            else:
                yield path, value
    elif len(path) <= _DEEPEST:
        for step, item in _inside(value):
            if step[1] in names:
                yield from _leaves((*path, step), item, names)


def _inside(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    kind = type(value)
    if isinstance(value, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__")):
        yield from ((("[]", key), value[key]) for key in list(value.keys()) if isinstance(key, str))
    elif isinstance(value, (type, ModuleType, FunctionType)):
        return
    elif dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        yield from (((".", name), getattr(value, name, None)) for name in fields)
    else:
        yield from (((".", name), item) for name, item in getattr(value, "__dict__", {}).items())


def _names(function: Any) -> frozenset[str]:
    """Return the names and strings in the code of a function, and of functions that it calls in its package."""
    words: set[str] = set()
    functions: set[int] = set()
    waiting = [(inspect.unwrap(function), 0)]
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    while waiting:
        one, depth = waiting.pop()
        one = getattr(one, "__func__", one)
        if not isinstance(one, FunctionType) or id(one) in functions:
            continue
        functions.add(id(one))
        names = set(_of_code(one.__code__))
        words |= names
        called = (one.__globals__.get(name) for name in names) if depth < _DEEPEST else ()
        waiting += [
            (inspect.unwrap(other), depth + 1)
            for other in called
            if isinstance(other, FunctionType) and str(other.__module__).partition(".")[0] == package
        ]
    return frozenset(words)


def _of_code(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (item for item in constant if isinstance(item, str))
        elif isinstance(constant, CodeType):
            yield from _of_code(constant)


# -- values ------------------------------------------------------------------------------------------------------------


def _others(paths: tuple[Path, ...], sources: Mapping[str, tuple[Path, str]]) -> tuple[Path, ...]:
    """Return the parts from which no input is read yet.

    Before the first update, rollout log-probs equal the current ones, so one part could be taken for both inputs.
    """
    shown = {path for path, _ in sources.values()}
    return tuple(path for path in paths if path not in shown)


def _source(
    values: list[Any], parts_of_calls: list[dict[Path, Any]], paths: tuple[Path, ...], least: int | None = None
) -> Path | None:
    """Return the part that equals an input in all calls, or in at least ``least`` calls; otherwise None."""
    for path in paths:
        parts = [of_call.get(path) for of_call in parts_of_calls]
        equal = [value for value, part in zip(values, parts) if part is not None and _alike(value, part)]
        if least is None and equal and all(map(_alike, values, parts)):
            return path
        if least is not None and len(equal) >= least and isinstance(equal[0], torch.Tensor) and equal[0].dim() == 2:
            return path
    return None


def _source_where_present(
    values: list[Any], parts_of_calls: list[dict[Path, Any]], paths: tuple[Path, ...]
) -> Path | None:
    """Like :func:`_source`, for calls in which the input is not None. In other calls, the part may have any value."""
    calls = [(value, parts) for value, parts in zip(values, parts_of_calls) if value is not None]
    present = [value for value, _ in calls]
    if len(calls) == len(values) or all(_alike(present[0], value) for value in present[1:]):
        return None
    return _source(present, [parts for _, parts in calls], paths)


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.allclose(
            one.detach().double(), other.detach().double(), rtol=1e-6, atol=0.0, equal_nan=True
        )
    if isinstance(one, (np.ndarray, list, tuple)) and isinstance(other, (np.ndarray, list, tuple)):
        if len(one) != len(other):
            return False
        if all(isinstance(item, str) for item in (*one, *other)):
            return _as_labels(one) == _as_labels(other)
        return all(_alike(x, y) for x, y in zip(one, other))
    if isinstance(one, torch.Tensor) and one.numel() == 1 and isinstance(other, (int, float)):
        return float(one) == other
    if isinstance(other, torch.Tensor) and other.numel() == 1 and isinstance(one, (int, float)):
        return float(other) == one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    numbers = isinstance(one, (int, float, np.generic)) and isinstance(other, (int, float, np.generic))
    plain = numbers or (type(one) is type(other) and isinstance(one, (str, bool, type(None))))
    return one is other or bool(plain and one == other)


def _as_labels(values: Any) -> list[int]:
    """Number labels in order of first occurrence, so that equal groupings are equal."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _same_value(one: Any, other: Any, mask: Any = None, near: float = 1e-4, least: float = 1e-6) -> bool:
    """Return True if two values are equal up to rounding.

    :param mask: positions to compare in tensors of its shape.
    :param near: relative tolerance; ``least``: absolute tolerance near 0.
    """

    def live(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        array = value.array().astype(np.float64)
        masked = isinstance(mask, Tensor) and value.shape == mask.shape
        return torch.from_numpy(array[mask.array() != 0] if masked else array)

    left, right = live(one), live(other)
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape:
        return torch.allclose(left, right, rtol=near, atol=least, equal_nan=True) or _alike(left, right)
    numbers = isinstance(left, float) and isinstance(right, float)
    return (numbers and math.isclose(left, right, rel_tol=near, abs_tol=least)) or _alike(left, right)


def _literal(item: Input, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and item.kind in ("number", "integer", "boolean"):
        value = value.item()
    if isinstance(value, torch.Tensor):
        return tensors.from_torch(value)
    if item.kind == "labels":
        return [str(label) for label in value]
    return tensors.observe(value)


def written(path: Path) -> str:
    """Format the path of a part as a Python expression, for messages."""
    return str(path[0]) + "".join(
        {".": f".{name}", "()": f".{name}()", "[:]": f"[:, {name}:]"}.get(kind, f"[{name!r}]")
        for kind, name in path[1:]
    )


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)}"
    return repr(value)[:60]


def case_of(reading: Reading, inputs: Mapping[str, Any], observed: Mapping[str, Any]) -> Case:
    """Return a :class:`Case` with only the run's own call, for laws that check a single call."""
    oracle = None
    if reading.subject.contract.oracle is not None:
        oracle = {"": reading.of_results(probe.consult(reading.subject.contract, inputs))}
    return Case({"": inputs}, {"": observed}, oracle, reading.subject.contract)
