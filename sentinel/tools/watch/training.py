"""Observe the steps of a training run in torch and in transformers' Trainer.

This module runs inside the training. It registers hooks for all optimizers, and wraps methods that every trainer
inherits. The data of some steps are sent to the checker, where :mod:`sentinel.tools.watch.invariants` checks them.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import inspect
import json
import math
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from sentinel.contracts.contract import DoesNotApply
from sentinel.targets import Steps
from sentinel.tools.watch.facts import (
    SHARDED,
    active_dropout,
    arguments_of,
    attributes_of,
    class_of,
    facts_of,
    is_optimizer_of,
    is_plain_module,
    is_undisturbed_by_calls,
    plain,
)
from sentinel.tools.watch.rows import compare_prompts, compare_rewarded, compare_tokens, frozen, tokens_of
from sentinel.tools.watch.values import LARGEST, Copier
from sentinel.tools.watch.wrapping import Made, Watcher, function_at

#: Number of parameters that are observed in one step, and number of observed elements of each parameter.
_PARAMETERS, _ELEMENTS = 8, 4096
#: Maximum number of logits that are recomputed to check a loss: for all tokens, and for a sample of the tokens.
_LOGITS, _FEW_LOGITS = 1 << 24, 1 << 20
#: Generation options that have the same name in the trainer's configuration.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Model options that change the logits after the last layer.
_SCALES = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
#: Fields of a model's output that a loss may use.
_REPORTED = ("log_probs", "entropy", "log_sum_sq_probs", "aux_loss")
#: Exponents that stand for the policy at other temperatures, to test whether tokens are samples of the policy.
TILTS = (-0.5, -0.2, 0.2, 0.5, 1.0)
#: Maximum number of observed batches for each evaluation.
_EVALUATED = 2
#: Maximum number of rows of an epoch. The rows that a longer epoch loads are not counted.
_PLANNED = 1 << 19
#: This many first synchronizations of the reference are observed even if their steps are not.
_SYNCHRONIZED = 4
#: In one of this many observed steps, a forward pass is repeated with other padding tokens, which must have no effect.
_DISTURBED = 16
#: A forward pass is repeated only if all its tensor arguments have these names.
_INPUTS = {"input_ids", "attention_mask", "position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k"}
#: The state and options of an optimizer that determine its update.
_STATE = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


class Event(NamedTuple):
    """One observation of the training run, which is sent to the checker."""

    kind: str
    step: int
    moment: int
    values: dict[str, Any]


class _Guard:
    """Measures the time of an observation, and records an exception instead of raising it.

    Each step uses about 20, and ``contextlib.contextmanager`` would be several times slower.
    """

    __slots__ = ("_began", "_watcher")

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        if isinstance(error, Exception):
            self._watcher.note(error)
        self._watcher.budget.spent += time.perf_counter() - self._began
        return kind is not None and issubclass(kind, Exception)


class Training:
    """Observes the steps, batches and evaluations of a training run, and queues them as events for the checker.

    :param watcher: provides the budget and the queue, and replaces functions.
    :param packages: the framework's packages; code outside of them counts as the user's.
    :param steps: the adapter's declarations for the framework's trainers.
    """

    def __init__(self, watcher: Watcher, packages: Sequence[str] = (), steps: Sequence[Steps] = ()) -> None:
        self._watcher, self._packages, self._steps = watcher, packages, steps
        self._trainer: Any = lambda: None
        self._attached: set[str] = set()
        self._attaching = threading.Lock()
        self._handles: list[Any] = []
        self._look = True
        self._micro: list[Any] = []
        self._before: list[tuple[str, Any, Any, Any, Any, dict[str, Any]]] = []
        self._first: dict[str, Any] = {}
        self._sampling: dict[str, Any] = {}
        self._numbers: dict[str, float] = {}
        self._cost = 0.0  # seconds that observing the last checked step took
        self._spent = self._ended = 0.0  # at the end of the last step: seconds spent so far, and the clock
        self._held: list[tuple[str, Any, int | None]] | None = None
        self._settings = tuple(dict.fromkeys(path for one in steps for path in one.settings))
        self._given: dict[int, dict[str, Any]] = {}
        self._notes: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._created: dict[str, bool] = {}
        self._training_step = self._inside = False
        self._producing = ""  # the purpose of the batch that is being produced: training, or an evaluation
        self._evaluation: dict[str, Any] | None = None  # the evaluation that is running
        self._evaluations = 0
        self._disturb, self._disturbing, self._random, self._compiled = True, False, True, False
        self._resumed = False
        self._looks = self._age = 0  # ``_age``: number of micro-batches that have used the last rollout
        self._raw: Any = None
        self._answer: Event | None = None  # the event of the loss that is being differentiated
        self._slopes: list[dict[str, Any]] = []  # gradients: of this loss, then of each forward pass's outputs
        self._scored: list[dict[str, Any]] = []  # forward passes that report log-probs while a batch is produced
        self._scoring: list[Any] = []
        self._collated: tuple[str, str] | None = None  # a collated batch's fault, and why it was not compared
        self._returned: list[tuple[Any, ...]] = []
        self._rewards: list[tuple[int, Any]] = []
        self._documented: Steps | None = None  # the declarations for the observed trainer
        self._rows: list[Any] = []  # the dataset's rows for the batch that is being produced
        self._rewarded: list[tuple[int, dict[str, Any]]] = []
        self._conditioned: list[list[int]] = []  # the prompt tokens from which this batch's completions are generated
        self._rewarding = contextvars.ContextVar("rewarding", default=0)
        #: path of a collator's method -> the function that is wrapped; None if it is not a plain function
        self._collating: dict[str, FunctionType | None] = {}
        self._loads = False  # whether the data loader that is being made is for training
        self._resuming: dict[str, Any] = {}  # the notes about the training that is being resumed
        self._synchronized = 0
        self._before_synchronizing: dict[str, Any] | None = None
        self._sums: dict[str, Any] = {}
        self._summed: list[Any] = []
        self._wrapped: set[FunctionType] = set()

    def attach(self, producers: tuple[tuple[str, str], ...] = ()) -> None:
        """Wrap the functions to observe, in all modules that have been imported so far.

        The advantage methods of the trainers that the adapter documents are always wrapped.

        :param producers: further functions to wrap, as (module, qualified name). Each returns the rows of a batch as a
            mapping.
        """
        with self._attaching:  # an import and the sending thread may call this at the same time
            self._attach(producers)

    def _attach(self, producers: tuple[tuple[str, str], ...]) -> None:
        optimiser: Any = sys.modules.get("torch.optim.optimizer")
        if "torch" not in self._attached and hasattr(optimiser, "register_optimizer_step_post_hook"):
            self._attached.add("torch")
            self._handles += [
                optimiser.register_optimizer_step_pre_hook(self._guarded(self._stepping)),
                optimiser.register_optimizer_step_post_hook(self._guarded(self._stepped)),
            ]
        places: list[tuple[str, str, Made]] = [
            ("transformers.trainer", "Trainer.training_step", self._around(self._begin, self._count_loss)),
            (
                "transformers.trainer",
                "Trainer.create_optimizer",
                self._around(self._creating, self._note_parameter_groups),
            ),
            ("transformers.trainer", "Trainer._inner_training_loop", self._around(self._note_checkpoint)),
            (
                "transformers.trainer",
                "Trainer.evaluation_loop",
                self._around(self._begin_evaluation, self._end_evaluation),
            ),
            ("transformers.trainer", "Trainer._load_rng_state", self._around(after=self._compare_random_state)),
            ("transformers.trainer", "Trainer._get_dataloader", self._around(self._loading, self._load)),
            ("accelerate.data_loader", "skip_first_batches", self._around(self._note_skipped_batches)),
            ("transformers.generation.utils", "GenerationMixin.generate", self._around(self._look_at_sampling)),
            *((module, name, self._around(self._produce, self._hold)) for module, name in producers),
        ]
        for one in self._steps:
            module, _, kind = one.trainer.rpartition(".")
            constructor = function_at(module, f"{kind}.__init__")
            if constructor is not None and f"{one.trainer}.__init__" not in self._attached:
                names = tuple(inspect.signature(constructor).parameters)
                places.append((module, f"{kind}.__init__", self._around(self._making(names), self._note_new_trainer)))
            self._wrap_collators(one)
            makes = one.methods.get("advantages", ())[:1]
            places += [(module, f"{kind}.{name}", self._around(self._produce, self._hold)) for name in makes]
        for module, name, wrapper in places:
            path = f"{module}.{name}"  # classes in different modules may have the same name
            if path not in self._attached and self._watcher.replace(module, name, wrapper):
                self._attached.add(path)

    def stop(self) -> None:
        for handles in (self._handles, self._summed):
            while handles:
                handles.pop().remove()

    # -- a new trainer -------------------------------------------------------------------------------------------------

    def _making(self, names: tuple[str, ...]) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
        def making(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._given[id(args[0])] = arguments_of({**dict(zip(names, args)), **kwargs})

        return making

    def _note_new_trainer(self, args: tuple[Any, ...], _: Any) -> None:
        trainer, given = args[0], self._given.pop(id(args[0]), None)
        if given is not None:
            tokens = self._compare_tokens(trainer, given)
            self._notes[trainer] = {"given": given, "made": attributes_of(trainer, self._settings), "tokens": tokens}

    def _note_checkpoint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        checkpoint = kwargs.get("resume_from_checkpoint")
        self._resuming = {}
        if isinstance(checkpoint, str):
            self._resuming = self._notes.setdefault(args[0], {})
            self._resuming |= {"checkpoint": checkpoint, "skipped": 0}

    def _note_skipped_batches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._resuming["skipped"] = kwargs.get("num_batches", args[1] if len(args) > 1 else 0)

    def _wrap_collators(self, steps: Steps) -> None:
        """Wrap the collators' methods. A method that the run has replaced since the last call is wrapped again."""
        for path, compare in steps.collators.items():
            function = function_at(*_split_method_path(path))
            if function is not self._collating.get(path):
                self._collating[path] = function
                if function is not None:
                    collate = partial(self._collate, path, function, compare)
                    self._watcher.replace_function(function, self._around(after=collate))

    def _loading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for steps in self._steps:
            self._wrap_collators(steps)
        self._loads = bool(kwargs.get("is_training"))

    def _load(self, args: tuple[Any, ...], loader: Any) -> None:
        """Store how often this process will load each row in an epoch."""
        if self._loads:
            plan: dict[str, Any] = {}
            with contextlib.suppress(TypeError):  # a stream has no length
                plan["batches"] = len(loader)
            try:
                plan["counts"], plan["size"], plan["repeats"] = _planned(
                    loader, {"torch", "accelerate", "transformers", *self._packages}
                )
            except DoesNotApply as why:
                plan["why"] = str(why)
            self._notes.setdefault(args[0], {})["epoch"] = {**plan, **_ranks(args[0])}

    def _compare_random_state(self, args: tuple[Any, ...], _: Any) -> None:
        note = self._notes.get(args[0], {})
        if note.get("checkpoint"):
            note["random_state"] = _is_saved_state(args[0], note["checkpoint"])

    def _resumed_at(self, trainer: Any) -> None:
        note = self._notes.get(trainer, {})
        if not note.get("checkpoint") or "first_step" in note:
            return
        note["first_step"], known = trainer.state.global_step, note.get("random_state")
        # If training resumes within an epoch, the random state can be compared, because only callbacks draw random
        # numbers after the state was loaded.
        if known is None or (known and note["skipped"]):
            note["random_state"] = _is_saved_state(trainer, note["checkpoint"])
        with contextlib.suppress(OSError, ValueError, KeyError):
            state = json.loads(Path(f"{note['checkpoint']}/trainer_state.json").read_text(encoding="utf-8"))
            note["saved_step"] = state["global_step"]

    def _collate(
        self,
        path: str,
        function: FunctionType,
        compare: Callable[[Any, Any, Any], str],
        args: tuple[Any, ...],
        batch: Any,
    ) -> None:
        """Compare a collated batch with its rows. The result is sent with the next micro-batch, because the first
        batches are loaded before the trainer is known."""
        if function is not self._collating[path]:
            return  # the method that replaced it may call it, and change the batch
        compared = self._collated is not None and not self._collated[1]
        if self._look and not compared and len(args) > 1:
            kind = type(args[0])
            place = f" (made by {kind.__qualname__} in {kind.__module__.replace('.', '/')}.py)"
            try:
                fault = compare(args[0], args[1], batch)
                self._collated = fault and fault + place, ""
            except DoesNotApply as why:
                self._collated = "", str(why)

    def _creating(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._created = {"new": getattr(args[0], "optimizer", None) is None}

    def _note_parameter_groups(self, args: tuple[Any, ...], optimizer: Any) -> None:
        trainer, torch = args[0], sys.modules["torch"]
        usual = getattr(trainer, "optimizer_cls_and_kwargs", None) is None
        if self._created.pop("new", False) and usual and hasattr(optimizer, "param_groups"):
            name_of = {id(one): name for name, one in trainer.model.named_parameters()}
            groups = [
                {**plain(group), "names": [name_of.get(id(one), "") for one in group["params"]]}
                for group in optimizer.param_groups
            ]
            modules = list(trainer.model.named_modules())
            linear = [f"{name}.weight" for name, one in modules if type(one) is torch.nn.Linear and "norm" not in name]
            norms = [
                f"{name}.weight" for name, one in modules if type(one) is torch.nn.LayerNorm or _is_norm(name, one)
            ]
            self._notes.setdefault(trainer, {})["created"] = {"groups": groups, "linear": linear, "norms": norms}

    # -- one micro-batch -----------------------------------------------------------------------------------------------

    def _begin(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        trainer = args[0]
        if not self._watcher.on:
            return
        self._training_step, self._evaluation = True, None
        self._age += 1
        self._send_synchronization(trainer)
        if self._trainer() is not trainer:
            self._resumed_at(trainer)
            methods = [name for one in self._steps for several in one.methods.values() for name in several]
            facts = {**facts_of(trainer, self._packages, methods), **self._notes.get(trainer, {})}
            if not self._send("facts", {}, facts):  # a trainer is not checked before its facts are sent
                return
            self._compiled, self._resumed = bool(facts["compiled"]), bool(facts.get("checkpoint"))
            self._random = facts["random"] or facts["distributed"] in SHARDED
            self._documented = next((one for one in self._steps if one.trainer == facts["class"]), None)
            self._trainer = weakref.ref(trainer)
            self._forget_trainer()
            self._notes.pop(trainer, None)
            self._send("configuration", {}, configuration_of(trainer.args))
            for name, found in facts.get("tokens", {}).items():
                self._send("tokens", {}, {"tokens": found, "evaluating": name == "eval_dataset"})
            function = inspect.getattr_static(type(trainer), "compute_loss", None)
            if isinstance(function, FunctionType):
                self._wrap(function, self._computing)
            for one in getattr(trainer, "reward_funcs", None) or ():
                self._listen_to_reward(one)
        if self._collated is not None:
            self._send("collated", {}, {"rows": self._collated})
            self._collated = None
        if self._look and not self._micro and not self._summed:
            for name, one, _ in self._sampled(trainer, getattr(trainer, "optimizer", None)):
                self._summed.append(one.register_hook(lambda gradient, name=name: self._add(name, gradient)))

    def _compare_tokens(self, trainer: Any, given: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Compare the tokens of a new trainer's datasets with their texts, before the user replaces a dataset.

        For each dataset, return two strings: a difference, and the reason if nothing was compared. Either may be empty.
        """
        kind, found = class_of(trainer, self._packages), {}
        steps = next((one for one in self._steps if one.trainer == kind), None)
        for name in ("train_dataset", "eval_dataset"):
            if steps is not None and getattr(trainer, name, None) is not None:
                try:
                    found[name] = compare_tokens(steps, trainer, name, given), ""
                except DoesNotApply as why:
                    found[name] = "", str(why)
                except Exception as error:  # only the type is reported, because the message may contain a text
                    found[name] = "", f"the rows of {name} cannot be tokenized again: {type(error).__name__}"
        return found

    def _forget_trainer(self) -> None:
        while self._summed:
            self._summed.pop().remove()
        self._first, self._sums, self._held, self._sampling = {}, {}, None, {}
        self._synchronized, self._before_synchronizing = 0, None
        self._micro, self._before, self._returned, self._rows = [], [], [], []
        self._watcher.generated, self._age = -1, 1

    def _add(self, name: str, gradient: Any) -> None:
        with self._guard():
            piece = _piece(gradient).float()
            total, size = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + piece, size + piece.abs()

    def _count_loss(self, args: tuple[Any, ...], loss: Any) -> None:
        trainer, self._training_step = args[0], False
        self._micro.append(loss.detach())
        if self._look and self._raw is not None:
            raw, items = self._raw
            scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
            if scaled is None:
                scaled = bool(getattr(trainer, "model_accepts_loss_kwargs", False) and items is not None)
                scaled = scaled or getattr(trainer, "compute_loss_func", None) is not None
            steps = getattr(trainer, "current_gradient_accumulation_steps", None)
            self._returned.append((raw, loss.detach(), 1 if scaled else steps))
        self._raw = None
        if self._answer is not None:
            kept = Copier().copy({"slope": self._slopes[0].get("loss"), "slopes": self._slopes[1:]})
            self._put(self._answer._replace(values={**self._answer.values, **kept}))
            self._answer = None

    def _wrap(self, function: FunctionType, wrapper: Made) -> None:
        if function not in self._wrapped:
            self._wrapped.add(function)
            self._watcher.replace_function(function, wrapper)

    def _listen_to_reward(self, function: Any) -> None:
        if isinstance(function, sys.modules["torch"].nn.Module):  # all modules share one __call__
            return
        direct = isinstance(function, (FunctionType, MethodType))
        kind = function if direct else inspect.getattr_static(type(function), "__call__", None)
        plain_function = getattr(kind, "__func__", kind)
        if not isinstance(plain_function, FunctionType):
            return

        def places_of(args: tuple[Any, ...]) -> list[int]:
            if self._rewarding.get() or not self._producing:  # another reward function may call this one
                return []
            functions = list(getattr(self._trainer(), "reward_funcs", None) or ())
            return [place for place, one in enumerate(functions) if one == (function if direct else args[0])]

        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            places = places_of(args) if self._rows else []
            self._rewarding.set(self._rewarding.get() + 1)
            if places:
                given = {name: one for name, one in kwargs.items() if isinstance(one, list)}
                self._rewarded.append((places[0], frozen(given)))

        def returned(args: tuple[Any, ...], result: Any) -> None:
            self._rewarding.set(self._rewarding.get() - 1)
            places = places_of(args)
            if not places:
                return
            if hasattr(result, "__getitem__"):  # observing an iterator would exhaust it
                self._rewards.append((places[0], [None if one is None else float(one) for one in result]))

        awaited = inspect.iscoroutinefunction(plain_function)
        self._wrap(plain_function, (self._around_awaited if awaited else self._around)(called, returned))

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watcher, trainer = self._watcher, args[0]
            if self._inside:  # a method of a base class, called by the method that overrides it
                return original(*args, **kwargs)
            watcher.moment += 1
            evaluation = self._evaluation if trainer is self._trainer() else None
            looks = self._observes and (self._training_step or evaluation is not None)
            if not looks or not watcher.on or trainer is not self._trainer():
                self._inside = evaluation is not None
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._inside = False
                if evaluation is not None:
                    with self._guard():
                        evaluation["losses"].append(_loss_of(result))
                return result
            batch: Any = None
            forwards: list[dict[str, Any]] = []
            handles: list[Any] = []
            self._answer, self._slopes = None, [{}]
            with self._guard():
                batch = args[2] if len(args) > 2 else kwargs.get("inputs")
                batch = dict(batch) if isinstance(batch, Mapping) else {}
                some = "advantages" in _rows(batch) if evaluation is not None else self._consumed(batch)
                # In a step with advantages, only the first micro-batch's calls are copied regardless of the budget:
                # one micro-batch shows how the loss gets its log-probs.
                watcher.forced = evaluation is None and not (some and self._micro)
                handles = list(self._listen_to_outputs(trainer, forwards, batch, some))
            self._inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = watcher.forced = False
                for handle in handles:
                    handle.remove()
            with self._guard():
                items = kwargs.get("num_items_in_batch", args[4] if len(args) > 4 else None)
                if evaluation is not None:
                    evaluation["losses"].append(_loss_of(result))
                    evaluation["dropout"] = evaluation["dropout"] or active_dropout(trainer.model)
                self._answered(trainer, batch, forwards, result, items)
            return result

        return called

    def _listen_to_outputs(
        self, trainer: Any, forwards: list[dict[str, Any]], batch: Mapping[str, Any], some: bool
    ) -> Iterator[Any]:
        prompt = batch.get("prompt_ids")
        first = prompt.shape[1] - 1 if some and prompt is not None else 0
        if self._compiled:  # torch.compile would ignore the hooks, or compile other code because of them
            return
        mixed = bool(getattr(trainer.args, "bf16", False) or getattr(trainer.args, "fp16", False))
        for name, model in (("trained", trainer.model), *_references(trainer)):
            causal = model.get_base_model() if hasattr(model, "get_base_model") else model
            hidden: list[Any] = []

            def kept(module: Any, args: Any, kwargs: Any, output: Any, name: str = name, hidden: Any = hidden) -> None:
                if not self._disturbing:
                    hidden[:] = [getattr(output, "last_hidden_state", None)]
                    if self._disturb and name == "trained" and not args:
                        with self._guard():
                            self._disturbed(module, kwargs, hidden[0], batch, mixed)

            def heard(
                module: Any, args: Any, kwargs: Any, output: Any, name: str = name, hidden: Any = hidden,
                causal: Any = causal,
            ) -> None:  # fmt: skip
                with self._guard():
                    ids = kwargs.get("input_ids", args[0] if args else None)
                    temperature = getattr(trainer.args, "temperature", None) or 1.0
                    whole = not (some and self._micro)  # for other micro-batches, reported log-probs suffice
                    state = hidden.pop() if hidden and whole else None
                    reported = _reported(output)
                    forwards.append(
                        {
                            "model": name,
                            "ids": ids,
                            **_log_probs(causal, state, ids, temperature, some, first, mixed),
                            "reported": reported,
                            "adapter": _adapter(module),
                        }
                    )
                    if self._differentiates:
                        self._slopes.append(self._listen_to_gradients(reported))

            yield causal.base_model.register_forward_hook(kept, with_kwargs=True)
            yield model.register_forward_hook(heard, with_kwargs=True)

    @property
    def _differentiates(self) -> bool:
        """Return True if the documented loss is known, so that gradients can be compared."""
        return self._documented is not None and self._documented.loss is not None and self._evaluation is None

    def _listen_to_gradients(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Register hooks that record the gradients of outputs. Return a mapping that the backward pass fills: output ->
        its gradient, or None if it has none."""
        slopes: dict[str, Any] = {name: None for name, one in outputs.items() if getattr(one, "requires_grad", False)}

        def keep(name: str, gradient: Any) -> None:
            with self._guard():
                slopes[name] = None if gradient is None else gradient.detach().clone()

        for name in slopes:
            outputs[name].register_hook(partial(keep, name))
        return slopes

    def _answered(
        self, trainer: Any, batch: Mapping[str, Any], forwards: list[dict[str, Any]], result: Any, items: Any
    ) -> None:
        torch, loss = sys.modules["torch"], result[0] if isinstance(result, tuple) else result
        evaluating = self._evaluation is not None
        if not evaluating:
            self._raw = loss.detach(), items
        if self._differentiates:
            self._slopes[0] = self._listen_to_gradients({"loss": loss})
        small = {
            name: value for name, value in batch.items() if isinstance(value, torch.Tensor) and value.dim() in (0, 1, 2)
        }
        answer = self._event(
            "answers",
            {
                "loss": loss,
                "items": items,
                "batch": small,
                "forwards": forwards,
                "fresh": self._watcher.steps == max(self._watcher.generated, 0),
                **_ranks(trainer),
            },
            {"attributes": self._attributes(trainer), "evaluating": evaluating},
        )
        if evaluating:
            self._put(answer)
        else:
            self._answer = answer

    def _attributes(self, trainer: Any) -> dict[str, Any]:
        return attributes_of(trainer, tuple(self._documented.settings) if self._documented else ())

    def _disturbed(
        self, module: Any, kwargs: Mapping[str, Any], state: Any, batch: Mapping[str, Any], mixed: bool
    ) -> None:
        """Repeat a forward pass with other tokens in the padding, or in the first document of each row. Send how much
        the last hidden states of all other tokens change, which must be zero up to rounding.

        The run does not change: the random state is restored, and the repeated pass has copies of the model's buffers,
        the same training modes, and no gradient. It calls the model inside the wrappers of data parallelism, so one
        rank can repeat a pass alone.
        """
        torch, ids = sys.modules["torch"], kwargs.get("input_ids")
        tensors = {name for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        if self._random or state is None or tensors - _INPUTS or kwargs.get("past_key_values") is not None:
            return
        if ids is None or ids.device.type not in ("cpu", "cuda"):
            return
        what, changed, compared = _neighbours(batch, kwargs, ids)
        two: Any = ids[compared].unique()[:2] if what else ()
        if len(two) < 2 or not is_undisturbed_by_calls(module):
            return
        first = bool(((changed.cumsum(-1) > 0) & compared).any())
        if not first and self._looks:  # in a causal model, padding at the end affects no token
            return
        others = torch.where(changed, torch.where(ids == two[0], two[1], two[0]), ids)
        self._disturb, self._disturbing = not first, True
        try:
            with torch.no_grad(), torch.random.fork_rng([ids.device] if ids.device.type == "cuda" else []):
                buffers = {name: one.clone() for name, one in module.named_buffers()}
                again = torch.func.functional_call(module, buffers, (), {**kwargs, "input_ids": others})
        finally:
            self._disturbing = False
        apart = (again.last_hidden_state - state.detach())[compared].float().abs().max()
        values = {"apart": apart, "largest": state.detach()[compared].float().abs().max(), "what": what}
        halves = mixed or state.dtype != torch.float32
        self._send("disturbed", {**values, "tokens": int(changed.sum()), "halves": halves})

    # -- an evaluation -------------------------------------------------------------------------------------------------

    @property
    def _observes(self) -> bool:
        """Return True if the current batch is observed: in an observed step, or one of the first batches of an
        evaluation."""
        one = self._evaluation
        return self._look if one is None else one["looks"] and len(one["losses"]) < _EVALUATED

    def _begin_evaluation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin an evaluation. It is observed if it is the first, or if the next step is observed."""
        trainer = args[0]
        self._evaluation = None
        if self._watcher.on and trainer is self._trainer():
            looks = self._look or not self._evaluations
            self._evaluations += 1
            state = _state_of(trainer) if looks else {}
            name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
            self._evaluation = {"looks": looks, "losses": [], "state": state, "dropout": "", "name": name}
            with contextlib.suppress(TypeError, IndexError):  # a stream has no length
                self._evaluation["batches"] = len(args[1])

    def _end_evaluation(self, args: tuple[Any, ...], output: Any) -> None:
        trainer, evaluation = args[0], self._evaluation
        self._evaluation = None
        if evaluation is None or not evaluation["looks"]:
            return
        state = _state_of(trainer)
        changed = [name for name, one in evaluation["state"].items() if state.get(name, one) != one]
        returned = (getattr(output, "metrics", None) or {}).get(evaluation["name"])
        self._send(
            "evaluated",
            {"losses": evaluation["losses"], **_ranks(trainer)},
            {
                "changed": changed,
                "dropout": evaluation["dropout"],
                "returned": returned,
                "evaluating": True,
                "batches": evaluation.get("batches"),
            },
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _produce(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        model = getattr(args[0], "model", None) if args else None
        # Rows of an evaluation must not replace those of the training.
        self._producing = "training" if getattr(model, "training", True) else ""
        if self._evaluation is not None:
            self._producing = "evaluation"
        self._rewards, self._rewarded, self._conditioned = [], [], []
        self._rewarding.set(0)
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, list) and one]
        self._age = 1 if self._producing == "training" else self._age
        looks = bool(self._producing) and self._observes and self._documented is not None
        # A framework may add fields to the rows, so their mappings are copied.
        self._rows = [dict(one) for one in given[0] if isinstance(one, Mapping)] if looks and given else []
        self._scored = []
        trainer = self._trainer()
        if looks and not self._compiled and args and args[0] is trainer and hasattr(model, "register_forward_hook"):
            for name, one in (("trained", model), *_references(trainer)):
                self._scoring.append(one.register_forward_hook(partial(self._record_log_probs, name)))

    def _record_log_probs(self, name: str, module: Any, _: Any, output: Any) -> None:
        log_probs = getattr(output, "log_probs", None)
        if log_probs is not None:
            with self._guard():
                torch, dtype = sys.modules["torch"], next(module.parameters()).dtype
                mixed = any(getattr(getattr(self._trainer(), "args", None), name, False) for name in ("bf16", "fp16"))
                spacing = torch.finfo(torch.bfloat16 if mixed or dtype != torch.float32 else dtype).eps
                bound = 8 * spacing * (1 + log_probs.detach().abs().max())
                reported = {"log_probs": log_probs.detach()}
                self._scored.append({"model": name, "reported": reported, "bound": bound, "adapter": _adapter(module)})

    def _hold(self, args: tuple[Any, ...], result: Any) -> None:
        """Send the rows of a rollout in an observed step. Otherwise, store them, because a later step may use them."""
        producing, evaluation, self._producing = self._producing, self._evaluation, ""
        while self._scoring:
            self._scoring.pop().remove()
        if not producing:
            return
        rows, trainer = _rows(result), args[0] if args else None
        if rows and self._observes and trainer is self._trainer():
            made = {**rows, **{name: one for name, one in result.items() if getattr(one, "dim", int)() == 0}}
            attributes = {"attributes": self._attributes(trainer), "evaluating": evaluation is not None}
            scored = {"batch": made, "rewards": self._rewards, "forwards": self._scored, **_ranks(trainer)}
            self._send("scored", scored, attributes)
            self._compare_rows(trainer, rows)
        if evaluation is not None:
            return
        small = rows if sum(one.nbytes for one in rows.values()) <= LARGEST else {}
        versions = [(name, one, None if one.is_inference() else one._version) for name, one in small.items()]
        self._held = versions
        if self._look:
            self._produced()

    def _compare_rows(self, trainer: Any, batch: Mapping[str, Any]) -> None:
        """Compare a batch with the dataset and with what reward functions received. Send the differences."""
        steps, found = self._documented, {}
        if steps is None or not self._rows:
            return
        compared = steps, trainer, self._rows, batch
        checks: Mapping[str, Callable[[], str]] = {
            "prompts": lambda: compare_prompts(*compared, self._conditioned),
            "rewarded": lambda: compare_rewarded(*compared, self._rewarded),
        }
        for name, check in checks.items():
            try:
                found[name] = check(), ""
            except DoesNotApply as why:
                found[name] = "", str(why)
        self._rows = []
        self._send("rows", {}, {**found, "evaluating": self._evaluation is not None})

    def _produced(self) -> bool:
        """Send the rows of the last rollout, without fields that were changed in place. Return False if the queue is
        full."""
        if self._held is not None:
            rows = {name: one for name, one, was in self._held if was is None or one._version == was}
            if self._send("produced", {"rows": rows if "advantages" in rows else {}}):
                self._held = None
        return self._held is None

    def _consumed(self, batch: Any) -> bool:
        """Send the rows of a batch that reaches the loss. Return True if it has advantages."""
        rows = _rows(batch)
        if "advantages" in rows and self._produced():
            self._send("consumed", {"rows": rows, "age": self._age})
        return "advantages" in rows

    # -- generation ----------------------------------------------------------------------------------------------------

    def _look_at_sampling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._producing != "training":  # text is generated by another model, or for an evaluation
            return
        self._watcher.generated = self._watcher.steps
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        if self._rows and ids is not None and getattr(mask, "shape", None) == ids.shape:
            self._conditioned += tokens_of(ids, mask)
        options = getattr(self._trainer(), "args", None)
        more = getattr(options, "generation_kwargs", None) or {}
        config = kwargs.get("generation_config", args[2] if len(args) > 2 else None)
        sampling = {
            name: (more.get(name, getattr(options, name)), kwargs.get(name, getattr(config, name, None)))
            for name in _SAMPLING
            if hasattr(options, name) and (config is not None or name in kwargs)
        }
        if sampling and sampling != self._sampling:
            self._sampling = sampling
            self._send("generated", sampling)

    # -- one step of an optimiser --------------------------------------------------------------------------------------

    def _sampled(self, trainer: Any, optimizer: Any) -> list[tuple[str, Any, Any]]:
        name_of = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        mine = [
            (name_of[id(one)], one, group)
            for group in getattr(optimizer, "param_groups", ())
            for one in group["params"]
            if id(one) in name_of and one.requires_grad
        ]
        start = self._watcher.steps * _PARAMETERS % max(len(mine), 1)
        return [*mine, *mine][start : start + min(_PARAMETERS, len(mine))]

    def _stepping(self, optimiser: Any, *_: Any) -> None:
        trainer = self._trainer()
        if trainer is None or not self._look or self._is_other_optimizer(optimiser):
            return
        torch, held = sys.modules["torch"], {id(one) for group in optimiser.param_groups for one in group["params"]}
        self._before = [
            (
                name,
                one,
                group,
                _piece(one),
                None if one.grad is None else _piece(one.grad),
                _optimizer_state(optimiser, one),
            )
            for name, one, group in self._sampled(trainer, optimiser)
            if float(group["lr"]) or self._resumed  # a rate of 0, as in a warm-up, changes no parameter
        ]
        names = [name for name, one in trainer.model.named_parameters() if one.requires_grad and id(one) not in held]
        reference: dict[str, tuple[Any, ...]] = {}
        for model in dict(_references(trainer)).values():
            for label, weight in list(model.named_parameters())[:_PARAMETERS]:
                now = _piece(weight)
                reference[label] = self._first.setdefault(label, now), now, id(weight) in held
        gradients = [one.grad for one in trainer.model.parameters() if one.grad is not None]
        norms = [torch.linalg.vector_norm(one.detach(), dtype=torch.float32) for one in gradients]
        scheduler, scheduled, why = getattr(trainer, "lr_scheduler", None), None, ""
        try:
            scheduled = _scheduled(trainer)
        except DoesNotApply as reason:
            why = str(reason)
        except Exception as error:
            why = f"the configured schedule could not be recreated: {type(error).__name__}: {error}"[:100]
        self._send(
            "stepping",
            {
                "left": names,
                "reference": reference,
                "rates": [one["lr"] for one in optimiser.param_groups if _initial(one) == trainer.args.learning_rate],
                "last": [*map(float, getattr(scheduler, "get_last_lr", list)())],
                "initial": [_initial(one) for one in optimiser.param_groups],
                "theirs": bool(getattr(trainer, "_created_lr_scheduler", False)),
                "scheduled": scheduled,
                "unscheduled": why,
                "losses": list(self._micro),
                "returned": list(self._returned),
                "wanted": getattr(trainer, "current_gradient_accumulation_steps", None),
                "sums": {
                    name: (*self._sums[name], gradient)
                    for name, _, _, _, gradient, _ in self._before
                    if name in self._sums and gradient is not None
                },
                "norm": torch.linalg.vector_norm(torch.stack(norms)) if norms else None,
                **_ranks(trainer),
            },
        )

    def _references_before(self, trainer: Any) -> dict[str, Any] | None:
        """Copy some parameters of reference and policy before a synchronization by a callback. Return None if it is not
        observed."""
        steps = self._documented
        if trainer is None or steps is None or steps.synchronized is None or not _references(trainer):
            return None
        share = steps.synchronized(trainer.args, trainer.state.global_step + 1)
        if share is None or not (self._look or (share and self._synchronized < _SYNCHRONIZED)):
            return None
        policy, (_, reference) = dict(trainer.model.named_parameters()), _references(trainer)[0]
        pairs = [(name, one, policy[name]) for name, one in reference.named_parameters() if name in policy]
        before = {name: (_piece(one), one, _piece(two)) for name, one, two in pairs[:_PARAMETERS]}
        return {"share": share, "step": trainer.state.global_step + 1, "pieces": before}

    def _send_synchronization(self, trainer: Any) -> None:
        noted, self._before_synchronizing = self._before_synchronizing, None
        if noted is not None and trainer is self._trainer() and trainer.state.global_step == noted["step"]:
            self._synchronized += bool(noted["share"])
            pieces = {name: (was, _piece(one), policy) for name, (was, one, policy) in noted["pieces"].items()}
            self._send("synchronized", {"share": noted["share"], "pieces": pieces})

    def _is_other_optimizer(self, optimizer: Any) -> bool:
        trainer = self._trainer()
        return getattr(trainer, "optimizer", None) is not None and not is_optimizer_of(trainer, optimizer)

    def _stepped(self, optimiser: Any, *_: Any) -> None:
        if self._is_other_optimizer(optimiser):
            return
        began = time.perf_counter()
        if self._before:
            kind = f"{type(optimiser).__module__}.{type(optimiser).__qualname__}"
            changed = {
                name: (old, _piece(one), gradient, plain(group), state)
                for name, one, group, old, gradient, state in self._before
            }
            trainer = self._trainer()
            every = [id(one) for group in optimiser.param_groups for one in group["params"]]
            places = {name: every.index(id(one)) for name, one, *_ in self._before} if self._resumed else {}
            more = {"places": places, "global_step": getattr(getattr(trainer, "state", None), "global_step", None)}
            self._resumed = False
            self._send("stepped", {"parameters": changed, "optimizer": kind, **more, **_ranks(trainer)})
        self._before_synchronizing = self._references_before(self._trainer())
        while self._summed:
            self._summed.pop().remove()
        self._sums, self._returned = {}, []
        self._before, self._micro = [], []
        self._watcher.steps += 1
        if self._watcher.numbers != self._numbers:
            self._numbers = dict(self._watcher.numbers)
            _log_numbers(self._trainer(), self._numbers, self._watcher.steps)
        budget = self._watcher.budget
        if self._look:
            self._cost = budget.spent - self._spent
        self._look = self._watcher.steps % budget.every == 0
        self._looks += self._look
        self._disturb = self._disturb or (self._look and self._looks % _DISTURBED == 0)
        if self._look and not budget.allows(self._cost, began - self._ended):
            self._look, self._cost = False, self._cost / 2  # halved, because one slow step may be an outlier
        self._spent, self._ended = budget.spent, began

    # -- limits: never end the run, and never exceed the time budget -----------------------------------------------

    def _around(self, before: Any = lambda args, kwargs: None, after: Any = lambda args, result: None) -> Made:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                with self._guard():
                    before(args, kwargs)
                result = original(*args, **kwargs)
                with self._guard():
                    if self._watcher.on:
                        after(args, result)
                return result

            return called

        return wrapper

    def _around_awaited(self, before: Any, after: Any) -> Made:
        """Like :meth:`_around`, for a coroutine function."""

        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            async def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                with self._guard():
                    before(args, kwargs)
                result = await original(*args, **kwargs)
                with self._guard():
                    if self._watcher.on:
                        after(args, result)
                return result

            return called

        return wrapper

    def _guard(self) -> _Guard:
        return _Guard(self._watcher)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        def called(*args: Any) -> None:
            if self._watcher.on:
                with self._guard():
                    hook(*args)

        return called

    def _send(self, kind: str, values: dict[str, Any], settings: Mapping[str, Any] = {}) -> bool:
        """Queue an event. ``values`` are copied, ``settings`` are not. Return False if the queue is full."""
        return self._put(self._event(kind, values, settings))

    def _event(self, kind: str, values: dict[str, Any], settings: Mapping[str, Any] = {}) -> Event:
        copies = {**Copier().copy(values), **settings}
        return Event(kind, self._watcher.steps, self._watcher.moment, copies)

    def _put(self, event: Event) -> bool:
        try:
            self._watcher.events.put_nowait(event)
        except queue.Full:
            self._watcher.lost += 1
            return False
        return True


def _loss_of(result: Any) -> Any:
    return (result[0] if isinstance(result, tuple) else result).detach()


def _state_of(trainer: Any) -> dict[str, Any]:
    """Return what an evaluation must not change: version counters of parameters and gradients, and learning rates."""
    state: dict[str, Any] = {}
    for name, one in trainer.model.named_parameters():
        if not one.is_inference():
            state[name] = one._version, None if one.grad is None else (id(one.grad), one.grad._version)
    groups = getattr(getattr(trainer, "optimizer", None), "param_groups", ())
    return {**state, "the learning rate": [group["lr"] for group in groups]}


def _reported(output: Any) -> dict[str, Any]:
    """Return the outputs that a loss may use. Logits are included only for a classifier (``scores``), because those of
    a language model are large."""
    logits = getattr(output, "logits", None)
    scores = logits if getattr(logits, "dim", int)() == 2 else None
    return {**{name: getattr(output, name, None) for name in _REPORTED}, "scores": scores}


def _adapter(model: Any) -> Any:
    """Return the names of the active LoRA adapters; empty if they are disabled, None if there are none."""
    modules = model.modules() if hasattr(model, "peft_config") else ()
    layer: Any = next((one for one in modules if isinstance(getattr(one, "disable_adapters", None), bool)), None)
    return None if layer is None else "" if layer.disable_adapters else ",".join(layer.active_adapters)


def _split_method_path(path: str) -> tuple[str, str]:
    module, kind, method = path.rsplit(".", 2)
    return module, f"{kind}.{method}"


def _is_norm(name: str, module: Any) -> bool:
    """Return True for a norm layer that transformers 5 excludes from weight decay because of its name."""
    recent = not sys.modules["transformers"].__version__.startswith(("3.", "4."))
    named = "layernorm" in name or name.rpartition(".")[2] == "norm"
    return recent and named and type(module).__name__.endswith("RMSNorm")


def _log_numbers(trainer: Any, counts: Mapping[str, float], step: int) -> None:
    handler = getattr(trainer, "callback_handler", None)
    reported = False
    for one in getattr(handler, "callbacks", ()):
        if type(one).__module__.startswith("transformers.integrations"):
            one.on_log(trainer.args, trainer.state, trainer.control, logs=dict(counts), model=trainer.model)
            reported = True
    if reported:
        return
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    if getattr(wandb, "run", None) is not None:
        wandb.log(dict(counts), commit=False)  # type: ignore[union-attr]
    elif mlflow is not None and mlflow.active_run() is not None:
        mlflow.log_metrics(dict(counts), step=step)


def _rows(batch: Any) -> dict[str, Any]:
    """Return the tensors of a batch with as many rows as its advantages; empty if it has no advantages."""
    torch = sys.modules["torch"]
    if not isinstance(batch, Mapping) or not isinstance(batch.get("advantages"), torch.Tensor):
        return {}
    count = len(batch["advantages"])
    return {
        name: value
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.dim() in (1, 2) and len(value) == count
    }


def configuration_of(options: Any) -> dict[str, Any]:
    """Return the settings of a run without paths, names and secrets, and the classes that declare them."""
    plain = {
        name: getattr(value, "value", value)
        for name, value in vars(options).items()
        if not name.startswith("_")
        and not any(word in name for word in ("token", "key", "dir", "path", "name", "url"))
        and isinstance(getattr(value, "value", value), (bool, int, float, str, type(None)))
        and not any(mark in str(getattr(value, "value", value)) for mark in "/\\@: ")
    }
    return {"classes": [kind.__name__ for kind in type(options).__mro__[:-1]], "options": plain}


def _ranks(trainer: Any) -> dict[str, Any]:
    """Return ``world``, the number of processes, and ``replicated``: True if each has the whole model."""
    accelerator = getattr(trainer, "accelerator", None)
    kind = str(getattr(getattr(accelerator, "distributed_type", None), "value", ""))
    whole = kind.startswith("MULTI_") and getattr(accelerator, "parallelism_config", None) is None
    return {"world": getattr(accelerator, "num_processes", 1), "replicated": whole}


def _references(trainer: Any) -> list[tuple[str, Any]]:
    torch, model = sys.modules["torch"], getattr(trainer, "ref_model", None)
    return [("reference", model)] if isinstance(model, torch.nn.Module) else []


def _neighbours(batch: Mapping[str, Any], kwargs: Mapping[str, Any], ids: Any) -> tuple[str, Any, Any]:
    """Find tokens of a forward pass that must not affect certain other tokens.

    Return their kind, their mask, and the mask of the other tokens. The kind is ``padding``, which must not affect real
    tokens, or ``document``: the first document of each row, which must not affect later documents. The kind is empty if
    the pass has neither. The padding is read from the batch, because the model may have received a wrong mask.
    """
    torch, rows = sys.modules["torch"], len(ids)
    tokens, mask = batch.get("input_ids"), batch.get("attention_mask")
    if mask is None and all(name in batch for name in ("prompt_mask", "completion_mask")):
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)[:rows]
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)[:rows]
    if mask is not None and mask.shape == ids.shape and torch.equal(tokens, ids):
        return ("padding" if (mask == 0).any() else ""), mask == 0, mask != 0
    places: Any = kwargs.get("position_ids")
    if mask is None and kwargs.get("attention_mask") is None and getattr(places, "shape", None) == ids.shape:
        document = (places == 0).cumsum(-1)
        return ("document" if document.max() > 1 else ""), document == 1, document > 1
    return "", None, None


def _log_probs(
    model: Any, hidden: Any, ids: Any, temperature: float, some: bool, first: int = 0, mixed: bool = False
) -> dict[str, Any]:
    """Compute the log-probs of all tokens but the first from a causal model's last hidden states. Return an empty
    result if the model changes its logits after the last layer.

    ``bound`` is the largest error of a logit from rounding in the model's dtype. For a sample of tokens, the result
    also has the entropy, and the log of the sum of ``p**(1 + t)`` for each ``t`` of :data:`TILTS`.

    :param some: whether to compute only a sample of tokens, because all are expensive. Other tokens get NaN. The sample
        is the first tokens from column ``first`` on, so it does not depend on the values of the tokens.
    :param mixed: whether the run's forward pass is in half precision; the dtype of its output may hide that.
    """
    torch, config = sys.modules["torch"], getattr(model, "config", None)
    head = model.get_output_embeddings()
    if hidden is None or ids is None or head is None or any(getattr(config, name, None) for name in _SCALES):
        return {}
    if hidden.shape[:2] != ids.shape or ids.shape[1] < 2 or not is_plain_module(head):
        return {}
    words, (rows, width) = head.weight.shape[0], ids[:, 1:].shape
    with torch.no_grad():
        chosen = torch.zeros(rows, width, dtype=torch.bool, device=ids.device)
        if not some and rows * width * words <= _LOGITS:
            chosen[:] = True
        else:
            chosen[:, first : first + max(_FEW_LOGITS // words // rows, 1)] = True
        states, labels = hidden[:, :-1][chosen], ids[:, 1:][chosen]
        bias = None if head.bias is None else head.bias.to(head.weight.dtype)
        logits = torch.nn.functional.linear(states.to(head.weight.dtype), head.weight, bias).float() / temperature
        log_probs = logits.log_softmax(-1)
        halves = mixed or states.dtype != torch.float32 or head.weight.dtype != torch.float32
        spacing = torch.finfo(torch.bfloat16 if halves else torch.float32).eps
        of_tokens = {"log_probs": log_probs.gather(-1, labels[:, None])[:, 0]}
        if some:
            of_tokens["entropy"] = -(log_probs.exp() * log_probs).nan_to_num(nan=0.0).sum(-1)
            tilted = [torch.logsumexp((1 + one) * log_probs, -1) for one in TILTS]
            of_tokens |= {f"tilt {one:g}": value for one, value in zip(TILTS, tilted)}
        else:
            of_tokens["mean_log_prob"] = log_probs.mean(-1)
        found = {}
        for name, values in of_tokens.items():
            found[name] = torch.full((rows, width), torch.nan, device=ids.device)
            found[name][chosen] = values
        largest = logits.abs().max() if len(logits) else torch.zeros(())
        return {**found, "bound": 8 * spacing * (1 + largest)}


def _optimizer_state(optimizer: Any, parameter: Any) -> dict[str, Any]:
    state = optimizer.state.get(parameter, {})
    return {
        name: _piece(state[name]) if getattr(state[name], "numel", int)() > 1 else float(state[name])
        for name in _STATE
        if state.get(name) is not None
    }


def _initial(group: Mapping[str, Any]) -> Any:
    return group.get("initial_lr", group["lr"])


def _is_saved_state(trainer: Any, checkpoint: str) -> bool | None:
    """Return True if torch's random state equals the checkpoint's, and None if the checkpoint has none."""
    torch = sys.modules["torch"]
    rank = f"_{trainer.args.process_index}" if trainer.args.world_size > 1 else ""
    file = Path(f"{checkpoint}/rng_state{rank}.pth")
    if not file.is_file():
        return None
    with sys.modules["transformers.trainer"].safe_globals():
        saved = torch.load(file, weights_only=True)["cpu"]
    return bool(torch.equal(saved, torch.get_rng_state()))


#: Minimum number of rows for comparing their orders: two random orders of 10 rows agree once in 3.6 million times.
_SHUFFLED = 10


def _planned(loader: Any, packages: set[str]) -> tuple[Any, int, bool]:
    """Count how often a data loader will load each row in an epoch.

    Return the counts, the size of a batch, and whether the next epoch repeats this epoch's random order. Copies of the
    samplers are iterated, because iterating a sampler may advance its generator or its epoch.

    :param packages: packages whose samplers may be copied.
    :raises DoesNotApply: if the order of rows is not known in advance.
    """
    torch, dataset = sys.modules["torch"], loader.dataset
    batches: Any = getattr(loader, "batch_sampler", None)
    inner: Any = getattr(batches, "batch_sampler", batches)
    sampler = getattr(inner, "sampler", None)
    plain = ("BatchSampler", "BatchSamplerShard")
    # Loaders of other classes, such as accelerate's DataLoaderDispatcher, also load the batches of other ranks.
    plain_loader = type(loader).__name__ in ("DataLoader", "DataLoaderShard")
    if sampler is None or not plain_loader or not {type(batches).__name__, type(inner).__name__} <= {*plain}:
        raise DoesNotApply("the rows are streamed, or the data loader is not a plain one")
    if type(sampler).__module__.partition(".")[0] not in {*packages, "builtins"}:
        raise DoesNotApply(f"{type(sampler).__qualname__} is your own")
    if max(len(dataset), len(sampler)) > _PLANNED:
        raise DoesNotApply(f"an epoch has more than {_PLANNED} rows, too many to count")
    with torch.random.fork_rng([]):
        try:
            copied = copy.deepcopy(batches, {id(dataset): dataset, id(getattr(sampler, "data_source", None)): dataset})
        except TypeError as error:
            raise DoesNotApply(f"the sampler of the training data cannot be copied: {error}") from None
        rows = [row for batch in copied for row in batch]
        following = getattr(copied, "batch_sampler", copied).sampler
        if hasattr(following, "set_epoch"):  # as the training does before each epoch
            following.set_epoch(getattr(following, "epoch", 0) + 1)
        random = rows != sorted(rows) and len({*rows}) >= _SHUFFLED
        repeats = random and rows == [row for batch in copied for row in batch]
    return torch.tensor(rows, dtype=torch.long).bincount(minlength=len(dataset)).int(), inner.batch_size, repeats


def _piece(tensor: Any) -> Any:
    return tensor.detach().reshape(-1)[:_ELEMENTS].clone()


def _scheduled(trainer: Any) -> float:
    """Compute the learning rate of the current step from a new instance of the configured schedule.

    :raises DoesNotApply: if the learning rate depends on more than the configuration and the step.
    """
    optimization = sys.modules.get("transformers.optimization")
    args, torch = trainer.args, sys.modules["torch"]
    rounds = next((kind for kind in type(args).__mro__ if "get_warmup_steps" in vars(kind)), None)
    if optimization is None or trainer.state.max_steps <= 0 or rounds is None:
        raise DoesNotApply("the number of steps is not known")
    if not rounds.__module__.startswith("transformers."):
        raise DoesNotApply(f"{rounds.__qualname__}.get_warmup_steps is your own")
    warmup = args.warmup_steps  # below 1, a share of all steps; until transformers 5, warmup_ratio is this share
    warmup = warmup or getattr(args, "warmup_ratio", None) or 0
    total = trainer.state.max_steps
    alone = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    scheduler = optimization.get_scheduler(
        args.lr_scheduler_type,
        alone,
        num_warmup_steps=int(warmup) if warmup >= 1 else math.ceil(total * warmup),
        num_training_steps=total,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    lambdas = getattr(scheduler, "lr_lambdas", None)
    if not lambdas:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise DoesNotApply(f"the rate of lr_scheduler_type={kind} does not depend on the step alone")
    return float(args.learning_rate * lambdas[0](trainer.state.global_step))
