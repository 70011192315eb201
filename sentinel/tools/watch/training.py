"""Observe the steps of a training through torch and transformers' Trainer.

This runs inside the training: hooks of every optimizer, and methods that every trainer inherits. Some steps are
observed; their data are sent like calls, and :mod:`sentinel.tools.watch.invariants` checks them.
"""

from __future__ import annotations

import contextlib
import inspect
import queue
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from sentinel.tools.watch.values import LARGEST, Copier
from sentinel.tools.watch.wrapping import Made, Watcher

#: Parameters that are observed in one step, and elements of each.
_PARAMETERS, _ELEMENTS = 8, 4096
#: Maximum number of logits that are recomputed to check a loss: for all tokens, and for a sample.
_LOGITS, _FEW_LOGITS = 1 << 24, 1 << 20
#: Generation options with the same name in the trainer's configuration.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Model options that transform logits other than by a factor.
_SCALES = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
#: Options of a preference loss.
_KNOBS = ("beta", "loss_type", "ld_alpha", "label_smoothing")


class Event(NamedTuple):
    """An observed event of the training."""

    kind: str
    step: int
    moment: int
    values: dict[str, Any]


class Training:
    """Observes a training.

    :param watcher: the functions, budget and queue to use.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._trainer: Any = lambda: None
        self._attached: set[str] = set()
        self._handles: list[Any] = []
        self._look = True
        self._micro: list[Any] = []
        self._before: list[tuple[str, Any, Any, Any]] = []
        self._first: dict[str, Any] = {}
        self._sampling: dict[str, Any] = {}
        self._numbers: dict[str, float] = {}
        self._cost = self._spent = self._ended = 0.0  # at the last observation; at the end of the last step; its time
        self._held: tuple[list[tuple[str, Any, int | None]], Any] | None = None

    def attach(self, producers: tuple[tuple[str, str], ...] = ()) -> None:
        """Attach to the modules that are imported now.

        :param producers: functions that return the rows of a batch as a mapping: module and qualified name.
        """
        optimiser: Any = sys.modules.get("torch.optim.optimizer")
        if "torch" not in self._attached and hasattr(optimiser, "register_optimizer_step_post_hook"):
            self._attached.add("torch")
            self._handles += [
                optimiser.register_optimizer_step_pre_hook(self._guarded(self._stepping)),
                optimiser.register_optimizer_step_post_hook(self._guarded(self._stepped)),
            ]
        places: list[tuple[str, str, Made]] = [
            ("transformers.trainer", "Trainer.training_step", self._around(self._begin, self._count_loss)),
            ("transformers.generation.utils", "GenerationMixin.generate", self._around(self._look_at_sampling)),
            *((module, name, self._around(after=self._hold)) for module, name in producers),
        ]
        for module, name, wrapper in places:
            if name not in self._attached and self._watcher.replace(module, name, wrapper):
                self._attached.add(name)

    def stop(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    # -- one micro-batch -----------------------------------------------------------------------------------------------

    def _begin(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        trainer = args[0]
        if self._trainer() is trainer or not self._watcher.on:
            return
        self._trainer = weakref.ref(trainer)
        self._send("configuration", _plain_options(trainer.args))
        function = inspect.getattr_static(type(trainer), "compute_loss", None)
        if isinstance(function, FunctionType):
            self._watcher.replace_function(function, self._computing)

    def _count_loss(self, _: tuple[Any, ...], loss: Any) -> None:
        self._micro.append(loss.detach())

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watcher, trainer = self._watcher, args[0]
            watcher.moment += 1
            if not self._look or not watcher.on or trainer is not self._trainer():
                return original(*args, **kwargs)
            batch: Any = None
            answers: dict[str, Any] = {}
            handles: list[Any] = []
            with self._guard():
                batch = args[2] if len(args) > 2 else kwargs.get("inputs")
                some = self._consumed(batch)
                if not (some and self._micro):  # one micro-batch shows how the loss receives its log-probs
                    watcher.forced = True
                    handles = list(self._listened(trainer, answers, some))
            try:
                result = original(*args, **kwargs)
            finally:
                watcher.forced = False
                for handle in handles:
                    handle.remove()
            with self._guard():
                items = kwargs.get("num_items_in_batch", args[4] if len(args) > 4 else None)
                self._answered(trainer, batch, answers, result, items)
            return result

        return called

    def _listened(self, trainer: Any, answers: dict[str, Any], some: bool) -> Iterator[Any]:
        """Return hooks that record the outputs of the trained model and the reference."""
        for name, model in (("trained", trainer.model), *_references(trainer)):
            hidden: list[Any] = []
            yield model.base_model.register_forward_hook(
                lambda _, __, output, hidden=hidden: hidden.append(getattr(output, "last_hidden_state", None))
            )

            def heard(module: Any, args: Any, kwargs: Any, output: Any, name: str = name, hidden: Any = hidden) -> None:
                with self._guard():
                    ids = kwargs.get("input_ids", args[0] if args else None)
                    temperature = getattr(trainer.args, "temperature", None) or 1.0
                    log_probs = _log_probs(module, hidden.pop() if hidden else None, ids, temperature, some)
                    if log_probs is not None and name not in answers:
                        answers[name] = log_probs, ids

            yield model.register_forward_hook(heard, with_kwargs=True)

    def _answered(self, trainer: Any, batch: Any, answers: dict[str, Any], result: Any, items: Any) -> None:
        loss = result[0] if isinstance(result, tuple) else result
        if "trained" not in answers:
            return
        log_probs, ids = answers["trained"]
        values = {"loss": loss, "log_probs": log_probs, "ids": ids, "items": items}
        if "reference" in answers:
            values["ref_log_probs"] = answers["reference"][0]
        masks = ("labels", "completion_mask", "attention_mask")
        values |= {name: batch[name] for name in masks if batch.get(name) is not None}
        values |= _ranks(trainer)
        values["partly"] = any(
            getattr(one, f"{part}_only_loss", None) is True
            for one in (trainer, trainer.args)
            for part in ("completion", "assistant")
        )
        knobs = {name: getattr(trainer.args, name, None) for name in _KNOBS}
        values |= {
            name: "+".join(map(str, one)) if isinstance(one, (list, tuple)) else one for name, one in knobs.items()
        }
        self._send("answers", values)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _hold(self, args: tuple[Any, ...], result: Any) -> None:
        """Copy the rows of an observed step, and remember the rows of other steps, which may be observed later."""
        rows, options = _rows(result), getattr(args[0], "args", None) if args else None
        small = rows if sum(one.nbytes for one in rows.values()) <= LARGEST else {}
        versions = [(name, one, None if one.is_inference() else one._version) for name, one in small.items()]
        self._held = versions, getattr(options, "num_generations", None)
        if self._look:
            self._produced()

    def _produced(self) -> bool:
        """Send the rows that were produced last, without fields changed in place since; return True if they were
        sent."""
        if self._held is not None:
            rows_held, peers = self._held
            rows = {name: one for name, one, was in rows_held if was is None or one._version == was}
            if self._send("produced", {"rows": rows if "advantages" in rows else {}, "peers": peers}):
                self._held = None
        return self._held is None

    def _consumed(self, batch: Any) -> bool:
        """Send the rows that reach a loss, and return True if they have advantages."""
        rows = _rows(batch)
        if "advantages" in rows and self._produced():
            self._send("consumed", {"rows": rows})
        return "advantages" in rows

    # -- generation ----------------------------------------------------------------------------------------------------

    def _look_at_sampling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._watcher.generated = self._watcher.steps
        options = getattr(self._trainer(), "args", None)
        config = kwargs.get("generation_config", args[2] if len(args) > 2 else None)
        sampling = {
            name: (getattr(options, name), kwargs.get(name, getattr(config, name, None)))
            for name in _SAMPLING
            if hasattr(options, name) and (config is not None or name in kwargs)
        }
        if sampling and sampling != self._sampling:
            self._sampling = sampling
            self._send("generated", sampling)

    # -- one step of an optimiser --------------------------------------------------------------------------------------

    def _stepping(self, optimiser: Any, *_: Any) -> None:
        trainer = self._trainer()
        if trainer is None or not self._look:
            return
        name_of = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        groups = {
            id(parameter): (parameter, group) for group in optimiser.param_groups for parameter in group["params"]
        }
        moving = [
            one for place, (one, group) in groups.items() if place in name_of and float(group["lr"])
        ]  # no warm-up
        mine = [(name_of[id(parameter)], parameter) for parameter in moving]
        start = self._watcher.steps * _PARAMETERS % max(len(mine), 1)
        sample = [*mine, *mine][start : start + min(_PARAMETERS, len(mine))]
        self._before = [
            (name, parameter, _piece(parameter), None if parameter.grad is None else _piece(parameter.grad))
            for name, parameter in sample
        ]
        names = [name for name, one in trainer.model.named_parameters() if one.requires_grad and id(one) not in groups]
        reference: dict[str, tuple[Any, ...]] = {}
        for model in dict(_references(trainer)).values():
            for label, weight in list(model.named_parameters())[:_PARAMETERS]:
                now = _piece(weight)
                reference[label] = self._first.setdefault(label, now), now, id(weight) in groups
        rates = [
            group["lr"] for group in optimiser.param_groups if group.get("initial_lr") == trainer.args.learning_rate
        ]
        self._send(
            "stepping",
            {
                "left": names,
                "reference": {} if getattr(trainer.args, "sync_ref_model", False) else reference,
                "rates": rates,
                "scheduled": _scheduled(trainer, self._watcher.steps),
                "losses": list(self._micro),
                "wanted": getattr(trainer, "current_gradient_accumulation_steps", None),
                **_ranks(trainer),
            },
        )

    def _stepped(self, *_: Any) -> None:
        began = time.perf_counter()
        if self._before:
            changed = {name: (old, _piece(one), gradient) for name, one, old, gradient in self._before}
            self._send("stepped", {"parameters": changed, **_ranks(self._trainer())})
        self._before, self._micro = [], []
        self._watcher.steps += 1
        if self._watcher.numbers != self._numbers:
            self._numbers = dict(self._watcher.numbers)
            _tell_logger(self._trainer(), self._numbers, self._watcher.steps)
        budget = self._watcher.budget
        if self._look:
            self._cost = budget.spent - self._spent
        self._look = self._watcher.steps % budget.every == 0
        if self._look and not budget.allows(self._cost, began - self._ended):
            self._look, self._cost = False, self._cost / 2  # a single slow step may be an outlier
        self._spent, self._ended = budget.spent, began

    # -- limits: never end the run, and never exceed the measured time ---------------------------------------------

    def _around(self, before: Any = lambda args, kwargs: None, after: Any = lambda args, result: None) -> Made:
        """Return a wrapper that observes the arguments and the result of each call."""

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

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            self._watcher.note(error)
        self._watcher.budget.spent += time.perf_counter() - began

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        def called(*args: Any) -> None:
            if self._watcher.on:
                with self._guard():
                    hook(*args)

        return called

    def _send(self, kind: str, values: dict[str, Any]) -> bool:
        watcher = self._watcher
        event = Event(kind, watcher.steps, watcher.moment, Copier().copy(values))
        try:
            watcher.events.put_nowait(event)
        except queue.Full:
            watcher.lost += 1
            return False
        return True


def _tell_logger(trainer: Any, counts: Mapping[str, float], step: int) -> None:
    """Log numbers to the trainer's callbacks, or to the open run of a tracker."""
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
    """Return the tensors of a mapping with as many rows as its advantages."""
    torch = sys.modules["torch"]
    if not isinstance(batch, Mapping) or not isinstance(batch.get("advantages"), torch.Tensor):
        return {}
    count = len(batch["advantages"])
    return {
        name: value
        for name, value in batch.items()
        if isinstance(value, torch.Tensor) and value.dim() in (1, 2) and len(value) == count
    }


def _plain_options(options: Any) -> dict[str, Any]:
    """Return the run's settings without paths, names and secrets."""
    return {
        name: getattr(value, "value", value)
        for name, value in vars(options).items()
        if not name.startswith("_")
        and not any(word in name for word in ("token", "key", "dir", "path", "name", "url"))
        and isinstance(getattr(value, "value", value), (bool, int, float, str, type(None)))
        and not any(mark in str(getattr(value, "value", value)) for mark in "/\\@: ")
    }


def _ranks(trainer: Any) -> dict[str, Any]:
    """Return the number of training processes, and whether each has the whole model."""
    accelerator = getattr(trainer, "accelerator", None)
    kind = str(getattr(getattr(accelerator, "distributed_type", None), "value", ""))
    whole = kind.startswith("MULTI_") and getattr(accelerator, "parallelism_config", None) is None
    return {"world": getattr(accelerator, "num_processes", 1), "replicated": whole}


def _references(trainer: Any) -> list[tuple[str, Any]]:
    """Return the trainer's reference model."""
    torch, model = sys.modules["torch"], getattr(trainer, "ref_model", None)
    return [("reference", model)] if isinstance(model, torch.nn.Module) else []


def _log_probs(model: Any, hidden: Any, ids: Any, temperature: float, some: bool) -> Any:
    """Compute a causal model's log-probs of all tokens but the first from its last layer; None if the model transforms
    logits further.

    :param some: whether a sample of tokens is enough, because all are expensive; the others are NaN.
    """
    torch, config = sys.modules["torch"], getattr(model, "config", None)
    head = model.get_output_embeddings()
    if hidden is None or ids is None or head is None or any(getattr(config, name, None) for name in _SCALES):
        return None
    if hidden.shape[:2] != ids.shape or ids.shape[1] < 2:
        return None
    words, count = head.weight.shape[0], ids[:, 1:].numel()
    most = count if not some and count * words <= _LOGITS else min(count, _FEW_LOGITS // words or 1)
    with torch.no_grad():
        places = torch.linspace(0, count - 1, most, device=ids.device, dtype=torch.float64).round().long()
        states = hidden[:, :-1].flatten(0, 1)[places]
        logits = torch.nn.functional.linear(states, head.weight, getattr(head, "bias", None)).float()
        whole = torch.full((count,), torch.nan, device=ids.device)
        log_probs = (logits / temperature).log_softmax(-1)
        whole[places] = log_probs.gather(-1, ids[:, 1:].reshape(-1)[places][:, None])[:, 0]
        return whole.view(ids.shape[0], -1)


def _piece(tensor: Any) -> Any:
    return tensor.detach().reshape(-1)[:_ELEMENTS].clone()


def _scheduled(trainer: Any, step: int) -> float | None:
    """Compute the learning rate of a step with a new instance of the configured schedule."""
    optimization = sys.modules.get("transformers.optimization")
    args, torch = trainer.args, sys.modules["torch"]
    if optimization is None or trainer.state.max_steps <= 0 or trainer.state.global_step != step:
        return None
    alone = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    scheduler = optimization.get_scheduler(
        args.lr_scheduler_type,
        alone,
        num_warmup_steps=args.get_warmup_steps(trainer.state.max_steps),
        num_training_steps=trainer.state.max_steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    lambdas = getattr(scheduler, "lr_lambdas", None)
    return args.learning_rate * lambdas[0](step) if lambdas else None
