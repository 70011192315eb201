"""Copy some calls of a training run's functions for the checker, without changing any call.

The code of a watched function is replaced in place. The function object stays the same, so calls through existing
references (in a registry, an importing module, a bound method) are watched too.
"""

from __future__ import annotations

import inspect
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from sentinel.tools.watch.values import Copier, NotCopied, Path, at

Made = Callable[[Callable[..., Any]], Callable[..., Any]]

#: Numbers for the wrappers, so that each gets its own global name in the module of its function.
_NUMBERS = itertools.count()
#: Reason why a function is not watched if the checker read it too late, or not at all.
ENDED = "the run ended before the function was read"
#: Seconds that copying may take in a step even if this is more than the step's share.
_UNNOTICED = 0.02
#: Copying may use its share of this many seconds at once, so that calls of a short run are copied too.
_AT_FIRST = 100.0
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class Plan:
    """The parts of a boundary's calls that are copied.

    :ivar function: the module and the qualified name of the function.
    :ivar methods: maps the name of each method whose result is a part of the call to its module and qualified name.
    :ivar differentiable: the parts for which the gradient of the loss is copied too.
    """

    number: int
    boundary: str
    function: tuple[str, str]
    paths: tuple[Path, ...]
    methods: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    differentiable: tuple[Path, ...] = ()


class Call(NamedTuple):
    """A copied call, with its result and the gradients of its loss.

    :ivar number: the number of its boundary. ``call``: its number among the boundary's calls.
    :ivar step: the number of optimizer steps before the call.
    :ivar place: the line that made the call.
    :ivar moment: the number of the loss computation (a call of ``compute_loss``) in which the call was made.
    :ivar fresh: whether no optimizer has stepped since the tokens were generated.
    """

    number: int
    call: int
    parts: dict[Path, Any]
    result: Any
    gradients: dict[Path, Any]
    step: int
    place: str
    moment: int = 0
    fresh: bool = False


@dataclass
class Budget:
    """The limits on the time that copying may take.

    :ivar share: the maximum share of the run's time that copies may take. Copies are always allowed until they have
        taken this share of :data:`_AT_FIRST` seconds. After that, the copies of one step are limited too: to five times
        this share of the step, or to :data:`_UNNOTICED` seconds if that is more.
    :ivar every: copy at most one in this many calls of a boundary.
    :ivar spent, sending: seconds that copying and the sending thread have taken so far.
    :ivar held_back: how often a copy was not allowed.
    """

    share: float = 0.01
    every: int = 100
    spent: float = 0.0
    sending: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    held_back: int = 0

    def allows(self, cost: float = 0.0, step: float = 0.0) -> bool:
        """Return True if the budget allows a copy that takes ``cost`` seconds in a step of ``step`` seconds."""
        total = self.spent + self.sending
        within = total <= self.share * (time.perf_counter() - self.began)
        allowed = total < self.share * _AT_FIRST or (within and cost <= max(5 * self.share * step, _UNNOTICED))
        self.held_back += not allowed
        return allowed


class Watcher:
    """The watched functions of this process, and the queue for copies of their calls.

    :ivar on: whether calls are observed; False in a forked process.
    :ivar numbers: the checker's counts, for the run's logger.
    :ivar steps: the number of optimizer steps so far.
    :ivar generated: the value of ``steps`` when text was last generated.
    :ivar moment: the number of the current loss computation (a call of ``compute_loss``).
    :ivar forced: whether all calls in the current loss computation are copied.
    :ivar lost: number of copies that were dropped because the queue was full.
    :ivar failed: reasons why calls were not copied, with counts.
    :param names: whether groups keep their names in copies.
    """

    def __init__(self, budget: Budget, names: bool = False) -> None:
        self.on = True
        self._names = names
        self.budget = budget
        self.copies: queue.Queue[Call] = queue.Queue(maxsize=8)
        self.events: queue.Queue[Any] = queue.Queue(maxsize=64)
        self.steps = self.moment = 0
        self.generated = -1
        self.numbers: dict[str, float] = {}
        self.forced = False
        self.calls: dict[int, int] = {}
        self.lost = 0
        self.failed: dict[str, int] = {}
        self._local = threading.local()
        self._changed: list[tuple[FunctionType, Any]] = []
        self._listened: list[FunctionType] = []
        os.register_at_fork(after_in_child=self.stop)

    def stop(self) -> None:
        self.on = False

    def watch(self, plan: Plan) -> str:
        """Begin to copy calls of a boundary. Return why this is impossible; otherwise an empty string."""
        function = function_at(*plan.function)
        if function is None:
            return f"{plan.boundary} is missing, or is not a plain function, in this process"
        signature = inspect.signature(function)
        self.replace_function(function, partial(self._sampling, plan, signature))
        for name, place in plan.methods.items():
            method = function_at(*place)
            if method is None:
                return f"{'.'.join(place)} is missing, or is not a plain function, in this process"
            if method not in self._listened:
                self._listened.append(method)
                self.replace_function(method, partial(self._listening, name))
        return ""

    def replace(self, module: str, name: str, wrapper: Made) -> bool:
        """Make a function call ``wrapper`` instead. Return False if there is no plain function of this name."""
        function = function_at(module, name)
        if function is not None:
            self.replace_function(function, wrapper)
        return function is not None

    def restore(self) -> None:
        """Stop watching, and restore the original code of every watched function."""
        self.stop()
        while self._changed:
            function, code = self._changed.pop()
            function.__code__ = code

    def replace_function(self, function: FunctionType, wrapper: Made) -> None:
        code = function.__code__
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        name = f"__sentinel_watches_{code.co_name}_{next(_NUMBERS)}__"
        name = name.replace("<", "").replace(">", "")
        function.__globals__[name] = _Jump(wrapper(original), original)
        if not hasattr(function, "__signature__"):
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        self._changed.append((function, code))
        function.__code__ = _code(name, code)

    def _sampling(self, plan: Plan, signature: inspect.Signature, original: Callable[..., Any]) -> Callable[..., Any]:
        compiling = _compiling()
        counted, due = 0, 1

        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal counted, due
            if compiling():
                return original(*args, **kwargs)
            counted += 1
            if (counted < due and not self.forced) or not self.on:
                return original(*args, **kwargs)
            due = counted + self.budget.every
            self.calls[plan.number] = counted
            if counted > 1 and not self.forced and not self.budget.allows():
                return original(*args, **kwargs)
            return self._copied(plan, counted, signature, original, args, kwargs)

        return called

    def _copied(
        self,
        plan: Plan,
        number: int,
        signature: inspect.Signature,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the original function, and copy its arguments and result. Errors in copying never reach the caller."""
        began = time.perf_counter()
        copier, parts, bound, place = Copier(names=self._names), None, {}, ""
        try:
            if not _capturing():
                signed = signature.bind(*args, **kwargs)
                signed.apply_defaults()
                bound, place = signed.arguments, _place(sys._getframe(3))
                parts = {
                    path: copier.copy(at(bound, path, {})) for path in plan.paths if all(s[0] != "()" for s in path[1:])
                }
        except Exception as error:
            self.note(error)
        answers: dict[str, Any] = {}
        stack = self._local.__dict__.setdefault("stack", [])
        live: dict[str, Any] = {}
        stack.append((copier, answers, live))
        self.budget.spent += time.perf_counter() - began
        try:
            result = original(*args, **kwargs)
        finally:
            stack.pop()
        if parts is None:
            return result
        began = time.perf_counter()
        try:
            for path in plan.paths:
                if path not in parts:
                    parts[path] = at(bound, path, answers)
            differentiable = {path: at(bound, path, live) for path in plan.differentiable}
            gradients = {path: copier.copy(value) for path, value in gradients_of(result, differentiable).items()}
            fresh = self.steps == max(self.generated, 0)
            result_copy = copier.copy(result)
            self.copies.put_nowait(
                Call(plan.number, number, parts, result_copy, gradients, self.steps, place, self.moment, fresh)
            )
        except queue.Full:
            self.lost += 1
        except Exception as error:
            self.note(error)
        self.budget.spent += time.perf_counter() - began
        return result

    def _listening(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        compiling = _compiling()

        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = original(*args, **kwargs)
            if compiling():
                return result
            stack = getattr(self._local, "stack", None)
            if stack and self.on:
                copier, answers, live = stack[-1]
                began = time.perf_counter()
                try:
                    if name not in answers:
                        answers[name], live[name] = copier.copy(result), result
                except Exception as error:
                    self.note(error)
                self.budget.spent += time.perf_counter() - began
            return result

        return called

    def note(self, error: BaseException) -> None:
        reason = str(error) if isinstance(error, NotCopied) else f"{type(error).__name__}: {error}"[:200]
        self.failed[reason] = self.failed.get(reason, 0) + 1


class _Jump:
    """Receives the arguments of a watched function, whose code is replaced by a call of this object.

    Ray pickles a script's functions by value. The copy that another process unpickles is not watched.
    """

    __slots__ = ("_called", "_original")

    def __init__(self, called: Callable[[tuple[Any, ...], dict[str, Any]], Any], original: FunctionType) -> None:
        self._called, self._original = called, original

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._called(args, kwargs)

    def __reduce__(self) -> Any:
        return _plain, (self._original,)


def _plain(original: FunctionType) -> _Jump:
    return _Jump(lambda args, kwargs: original(*args, **kwargs), original)


def gradients_of(result: Any, parts: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the gradients of a call's loss with respect to parts of the call; empty if there is no loss."""
    torch = sys.modules.get("torch")
    loss = next((one for one in members(result) if getattr(one, "requires_grad", False) and one.dim() == 0), None)
    live = {path: part for path, part in parts.items() if getattr(part, "requires_grad", False)}
    if torch is None or loss is None or not live:
        return {}
    gradients = torch.autograd.grad(loss, list(live.values()), retain_graph=True, allow_unused=True)
    return {path: gradient for path, gradient in zip(live, gradients) if gradient is not None}


def members(result: Any) -> list[Any]:
    """Return the items of a tuple or list, or the values of a dictionary. Return any other result as a list of one."""
    inside = result if isinstance(result, (list, tuple)) else result.values() if isinstance(result, dict) else [result]
    return [*inside]


def _place(frame: FrameType | None) -> str:
    caller = frame.f_back if frame is not None else None
    if caller is None:
        return ""
    return f"{caller.f_globals.get('__name__', '').replace('.', '/')}.py:{caller.f_lineno}"


def _compiling() -> Callable[[], bool]:
    """Return a function that returns True during torch.compile, when wrappers must only make a plain call."""
    torch = sys.modules.get("torch")
    return torch.compiler.is_compiling if torch is not None else bool


def _capturing() -> bool:
    """Return True while a CUDA graph is captured, which would contain any copies."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def function_at(module: str, name: str) -> FunctionType | None:
    """Return the Python function of this name in a loaded module, without static or class method around it.

    Return None if there is no such function, or if it is a coroutine or a generator.
    """
    current: Any = sys.modules.get(module)
    for part in name.split("."):
        try:
            current = inspect.getattr_static(current, part)
        except AttributeError:
            return None
    current = getattr(current, "__func__", current)
    return current if isinstance(current, FunctionType) and not current.__code__.co_flags & _GENERATORS else None


def _code(name: str, like: Any) -> Any:
    """Return a code object that passes its arguments to the global ``name``.

    The code has the free variables, the file and the line of ``like``, which it replaces. If ``like`` is the code of a
    coroutine function, so is the result.
    """
    free = [f"v{place}" for place, _ in enumerate(like.co_freevars)]
    awaited = bool(like.co_flags & inspect.CO_COROUTINE)
    lines = [
        f"def outer({', '.join(free)}):",
        f"    {'async ' * awaited}def inner(*args, **kwargs):",
        *[f"        if 0: {variable}" for variable in free],
        f"        return {'await ' * awaited}{name}(args, kwargs)",
        "    return inner",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    code = scope["outer"](*free).__code__
    return code.replace(co_name=like.co_name, co_filename=like.co_filename, co_firstlineno=like.co_firstlineno)
