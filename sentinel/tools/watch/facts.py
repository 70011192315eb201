"""Read those facts about a trainer that decide which invariants apply: its settings, model and user code.

This module runs inside the training process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import FunctionType
from typing import Any

#: Stands for a value that is not copied, such as an object: see :func:`plain`.
SET = "set"
#: Maximum length of a string or list that is copied as a setting. A longer string may be a text of the training data.
_LONGEST = 64
#: Parts of the names of generation options that a trainer sets itself, or that do not change the policy.
_HARMLESS = (
    *("_token_id", "max_", "version", "_from_model_config", "cache", "output_", "return_", "compile"),
    *("do_sample", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
)
#: Kinds of distributed training in which a process has only a part of each parameter.
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")
#: Methods that every trainer has. Messages name the file and line of these methods.
_METHODS = (
    "compute_loss",
    "evaluation_loop",
    "training_step",
    "create_optimizer",
    "create_scheduler",
    "_clip_grad_norm",
    "__init__",
    "_get_num_items_in_batch",
    "_get_train_sampler",
)
#: Methods that a trainer calls on its callbacks within a step.
_STEP_CALLBACKS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end")


def facts_of(trainer: Any, packages: Sequence[str], methods: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts about a trainer that decide which invariants apply, among them:

    * ``class``: the first class in the trainer's MRO that the user did not write
    * ``own``: the methods that the user has overridden, each with the overriding class
    * ``callbacks``: the methods of the user's callbacks that are called within a step
    * ``options``: the configuration; ``changed``: the framework's options that are not at their defaults
    * ``random``: the reasons why two forward passes may differ
    * ``places``: the files and lines of the trainer's methods
    """
    theirs, kinds = {*packages, "transformers"}, type(trainer).__mro__
    users = kinds[: next((place for place, one in enumerate(kinds) if _root(one) in theirs), len(kinds))]
    own = {
        name: f"{one.__name__}.{name}"
        for one in reversed(users)
        for name, value in vars(one).items()
        if isinstance(value, (FunctionType, staticmethod, classmethod, property)) and name != "__init__"
    }
    own |= {
        name: f"trainer.{name}, which was replaced on the object"
        for name, value in vars(trainer).items()
        if callable(value) and isinstance(getattr(type(trainer), name, None), FunctionType)
    }
    callbacks = list(getattr(getattr(trainer, "callback_handler", None), "callbacks", ()))
    accelerator, options = getattr(trainer, "accelerator", None), trainer.args
    return {
        "class": class_of(trainer, packages),
        "own": own,
        "callbacks": {
            name: type(one).__name__
            for one in callbacks
            for name in _STEP_CALLBACKS
            if _root(type(one)) not in theirs and any(name in vars(kind) for kind in type(one).__mro__[:-2])
        },
        "collator": _place(getattr(trainer, "data_collator", None), theirs),
        "options": plain(vars(options)),
        "changed": sorted(_changed_options(options, {*packages})),
        "places": dict(_places(type(trainer), (*_METHODS, *methods))),
        "random": list(_reasons_for_randomness(trainer)),
        "compiled": bool(getattr(options, "torch_compile", False))
        or any(getattr(trainer.model, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl")),
        "streams": not hasattr(getattr(trainer, "train_dataset", ()), "__len__"),
        "device": str(getattr(getattr(options, "device", None), "type", "")),
        "scaler": getattr(accelerator, "scaler", None) is not None,
        "distributed": str(getattr(getattr(accelerator, "distributed_type", None), "value", "NO")),
        "generation": _generation(trainer.model),
        "loss_function": callable(
            getattr(trainer, "compute_loss_func", None)
            # A string does not count: TRL sets one here, to skip a division.
        ),
        "smoothing": getattr(trainer, "label_smoother", None) is not None,
        "ends": getattr(getattr(trainer, "processing_class", None), "eos_token_id", None),
        "pads": getattr(getattr(trainer, "processing_class", None), "pad_token_id", None),
        "started": _started(trainer.model),
        "evaluates": getattr(trainer, "eval_dataset", None) is not None,
        "reference": getattr(trainer, "ref_model", None) is not None,
        "weights_swap": hasattr(_optimizer_of(trainer), "eval"),
        **plain({"first_step": trainer.state.global_step, "adapters": hasattr(trainer.model, "peft_config")}),
    }


def class_of(trainer: Any, packages: Sequence[str]) -> str:
    """Return the dotted path of the first class in a trainer's MRO that the user did not write; "" if there is none."""
    theirs = {*packages, "transformers"}
    return next((f"{one.__module__}.{one.__qualname__}" for one in type(trainer).__mro__ if _root(one) in theirs), "")


def _started(model: Any) -> str:
    """Return the LoRA setting with which a new, untrained adapter changes the model's outputs; empty if none does."""
    for one in getattr(model, "peft_config", {}).values():
        if getattr(one, "init_lora_weights", True) not in (True, "gaussian"):
            return f"init_lora_weights={one.init_lora_weights!r}"
    return ""


def _places(kind: type, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in dict.fromkeys(names):
        owner = next((one for one in kind.__mro__ if name in vars(one)), None)
        function = inspect.unwrap(getattr(vars(owner)[name], "__func__", vars(owner)[name])) if owner else None
        if isinstance(function, FunctionType):
            code, file = function.__code__, f"{str(owner.__module__).replace('.', '/')}.py" if owner else ""
            file = file if code.co_filename.endswith(file) else code.co_filename  # the run has replaced the method
            yield name, f"{owner.__name__ if owner else ''}.{name} ({file}:{code.co_firstlineno})"


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a mapping of settings: numbers, short strings and short lists. Any other value becomes ``"set"``."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else SET
    if not isinstance(value, (list, tuple)) or len(value) > _LONGEST:
        return SET
    several = [_plain(one) for one in value]
    return SET if any(isinstance(one, list) or one is SET for one in several) else several


def attributes_of(trainer: Any, settings: Sequence[str]) -> dict[str, Any]:
    """Copy a trainer's attributes, and the values at the dotted paths ``settings``, as :func:`plain` does."""
    found = dict(vars(trainer))
    for path in settings:
        value = trainer
        for name in path.split("."):
            value = getattr(value, name, None)
        found[path] = value.tolist() if hasattr(value, "tolist") else value
    found = plain(found)
    steps = getattr(trainer, "current_gradient_accumulation_steps", None)
    return {**found, "current_gradient_accumulation_steps": steps, "global_step": trainer.state.global_step}


def arguments_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the arguments of a trainer's constructor: their names, the types of the training dataset's columns, and
    which columns of the user's datasets contain tokens."""
    given: dict[str, Any] = {name: True for name, value in arguments.items() if value not in (None, (None, None))}
    rows: Any = arguments.get("train_dataset")
    several = [rows, arguments.get("eval_dataset")]
    datasets = [one for each in several for one in (each.values() if isinstance(each, dict) else [each])]
    columns = {name for one in datasets for name in getattr(one, "column_names", None) or ()}
    given["tokens"] = sorted(name for name in columns if name.endswith("_ids") or name == "labels")
    if isinstance(getattr(rows, "column_names", None), list):
        with contextlib.suppress(Exception):  # a streamed dataset has no first row
            given["columns"] = {name: type(value).__name__ for name, value in dict(rows[0]).items()}
    return given


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _place(one: Any, theirs: set[str]) -> str:
    """Return the name of a function, or of an object's class, if it is the user's own; otherwise ""."""
    kind = one if isinstance(one, FunctionType) else type(one)
    return "" if one is None or str(kind.__module__).partition(".")[0] in theirs else kind.__qualname__


def _changed_options(options: Any, packages: set[str]) -> Iterator[str]:
    for kind in type(options).__mro__:
        if _root(kind) in packages:
            for one in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
                default, value = one.default, getattr(options, one.name, None)
                default = None if default is dataclasses.MISSING or default == "auto" else default
                if one.name in vars(kind).get("__annotations__", {}) and value != default:
                    yield one.name


def _reasons_for_randomness(trainer: Any) -> Iterator[str]:
    rates = {
        (name, value)
        for module in trainer.model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and value and ("drop" in name or (name == "p" and "Drop" in type(module).__name__))
    }
    yield from (f"dropout ({name} {value:g})" for name, value in sorted(rates)[:1])
    if getattr(trainer.args, "neftune_noise_alpha", None):
        yield "noise on the embeddings (neftune_noise_alpha)"
    if getattr(getattr(trainer.model, "config", None), "router_jitter_noise", None):
        yield "noise of the router (router_jitter_noise)"


def active_dropout(model: Any) -> str:
    """Return the name and rate of a dropout module that is active, or "" if there is none."""
    for name, module in model.named_modules() if model.training else ():
        rate = getattr(module, "p", 0.0) if "Dropout" in type(module).__name__ else 0.0
        if module.training and isinstance(rate, float) and rate:
            return f"{name} ({rate:g})"
    return ""


def _generation(model: Any) -> list[str]:
    """Return the generation options of a model's own configuration that may change what it samples."""
    config: Any = getattr(model, "generation_config", None)
    difference = config.to_diff_dict() if hasattr(config, "to_diff_dict") else {}
    return sorted(name for name, value in difference.items() if value and not any(part in name for part in _HARMLESS))


def is_optimizer_of(trainer: Any, optimizer: Any) -> bool:
    """Return True if an optimizer is the trainer's, or is wrapped by the trainer's."""
    own = getattr(trainer, "optimizer", None)
    while own is not None and own is not optimizer:
        own = getattr(own, "optimizer", None)
    return own is not None


def _optimizer_of(trainer: Any) -> Any:
    own: Any = getattr(trainer, "optimizer", None)
    while hasattr(own, "optimizer"):
        own = own.optimizer
    return own


def is_plain_module(head: Any) -> bool:
    """Return True if a layer is exactly ``nn.Linear``, so that only its weight and bias determine its output."""
    return type(head) is sys.modules["torch"].nn.Linear


def is_undisturbed_by_calls(model: Any) -> bool:
    """Return True for a transformers model of which one more forward pass has no known side effects.

    A hook of a module may count calls or move weights, and the scale of a quantized model may depend on all tokens.
    """
    hooks = (
        hook
        for one in model.modules()
        if one is not model
        for several in (one._forward_hooks, one._forward_pre_hooks)
        for hook in several.values()
    )
    # Hooks of transformers itself are harmless: they record hidden states that the caller requests, or make embeddings
    # require a gradient.
    theirs = all(str(getattr(hook, "__module__", "")).partition(".")[0] == "transformers" for hook in hooks)
    plain_code = _root(type(model)) == "transformers" and not getattr(model, "is_quantized", False)
    return plain_code and theirs and not sys.modules["torch"].compiler.is_compiling()
