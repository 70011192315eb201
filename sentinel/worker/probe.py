"""Run one probe: call the framework's function on each variant of a scenario, in a process that ends afterwards."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any

from sentinel.binding.drift import (
    AbsentError,
    DriftError,
    Neutral,
    RanksDisagreeError,
    StandInMissingError,
    StandInNamespace,
    UnknownInputError,
    give_class_attributes,
    use_declared_defaults,
)
from sentinel.contracts.contract import Contract
from sentinel.targets import Binding, Target
from sentinel.targets.loading import load_file
from sentinel.worker import calling, defaults, recording, stubs, tensors, versions
from sentinel.worker.attribution import harness_place, programming_error

SEED = 20260821


@cache
def load_contract(file: str, name: str) -> Contract:
    """Return a contract from a file. Sentinel's own contracts are imported; all other contracts are loaded by path."""
    path = Path(file)
    ours = Path(__file__).resolve().parent.parent / "contracts"
    module = importlib.import_module(f"sentinel.contracts.{path.stem}") if path.parent == ours else load_file(path)
    return next(value for value in vars(module).values() if isinstance(value, Contract) and value.name == name)


def load_binding(adapter: str, boundary: str, contract: str) -> Binding:
    """Return the adapter's binding of a function. If the adapter has none, return a binding that passes the recipe's
    arguments to the function unchanged."""
    target: Target = load_file(Path(adapter)).TARGET
    return target.binding(boundary, contract) or Binding(boundary, contract, call=_plain_call)


def _plain_call(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function with the arguments in a recipe, for the generic contract ``call``."""
    leading = [inputs["self"]] if inputs["self"] is not None else []
    if boundary.owner is not None and type(inputs["self"]) is StandInNamespace:
        give_class_attributes(inputs["self"], boundary.owner)
    positional = [*leading, *inputs["positional"]]
    signature = inspect.signature(boundary.function)
    try:
        signature.bind(*positional, **inputs["arguments"])
    except TypeError as error:
        message = f"{boundary.path}{signature} cannot be called with these arguments: {error}"
        unknown = next((name for name in inputs["arguments"] if name not in signature.parameters), "")
        raise UnknownInputError(message, unknown) from None
    return {"returned": boundary.function(*positional, **inputs["arguments"])}


def reseed(seed: int = SEED) -> None:
    """Seed the global random generators, so that every probe starts from the same state."""
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed initialises every device, which takes 4 ms


def settle(device: str, seed: int = SEED) -> None:
    """Make a probe repeatable: use one thread, fixed seeds and deterministic algorithms."""
    import torch

    torch.set_num_threads(1)
    reseed(seed)
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:  # the same effect, without importing torch's compiler, which takes two seconds
        torch.set_deterministic_debug_mode("warn")
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device).index or 0)  # the function requires a device index
        torch.cuda.manual_seed_all(seed)


@dataclass(frozen=True)
class Preparation:
    """A function that was found in the checkout, and where it is defined.

    :ivar harness: the files of the adapter and the contract.
    """

    boundary: calling.Boundary
    provenance: dict[str, Any]
    harness: tuple[str, str] = ("", "")


def prepare(request: Mapping[str, Any], roots: tuple[str, ...]) -> Preparation:
    """Find the function that a request names, and record where it is defined."""
    binding = load_binding(request["adapter"], request["boundary"], request["contract"])
    boundary = find_boundary(binding, roots, frozenset(request["given"]), request["device"], request.get("at", ""))
    use_declared_defaults(partial(defaults.default_of, load_file(Path(request["adapter"])).TARGET.defaults))
    file, line, signature = calling.source_of(boundary.function)
    return Preparation(
        boundary,
        {
            "boundary": boundary.path,
            "module": boundary.module.__name__,
            "module_file": str(boundary.module.__file__),
            "file": file,
            "line": line,
            "signature": signature,
        },
        (request["adapter"], request["contract_file"]),
    )


def run(request: Mapping[str, Any], roots: tuple[str, ...], recorder: stubs.ImportRecorder | None) -> dict[str, Any]:
    """Run one probe request, and return the observed values or a failure as JSON data."""
    preparation: Preparation | None = None
    try:
        Neutral.recorded.clear()
        settle(request["device"], request.get("seed", SEED))
        contract = load_contract(request["contract_file"], request["contract"])
        for required in request["requires"]:
            if not calling.has(required, roots):
                return failure("not-in-this-version", f"this version has no {required}")
        preparation = prepare(request, roots)
        boundary = preparation.boundary
        stubs.state().probing = True
        observation = {
            variant: observe(contract, boundary, inputs, roots, request["device"], request.get("record", False))
            for variant, inputs in request["variants"].items()
        }
        if stubs.state().used:
            # The result may be wrong, because the target may have caught StubUsedError.
            return stub_failure(preparation.provenance)
        return {
            "observation": observation,
            "provenance": preparation.provenance,
            "ghosts": recorder.stubs_of(boundary.module.__name__) if recorder else [],
            "stand_ins": stand_ins_of(boundary, Neutral.recorded),
        }
    except BaseException as error:  # untrusted code may raise anything, such as SystemExit
        return describe(error, preparation, roots)


def stand_ins_of(boundary: calling.Boundary, neutral_names: Iterable[str]) -> list[list[str]]:
    """Return the stand-ins that replaced objects of the framework in this call, each with the reason for it."""
    neutral = [
        [name, "a counter or logger that the adapter does not define: a neutral value"] for name in neutral_names
    ]
    return [*([item.name, item.reason] for item in boundary.binding.stand_ins), *neutral]


#: Name that the adapter uses -> its path in this checkout, if the controller found that it has moved.
MOVED: dict[str, str] = {}


def find_boundary(
    binding: Binding, roots: tuple[str, ...], scenario_inputs: frozenset[str], device: str, at: str = ""
) -> calling.Boundary:
    """Return the function at the first of the binding's paths that exists in this checkout.

    :param at: a path to try first. It is ignored unless a registry of the framework contains its function or class.
    :raises DriftError: if the checkout has none of the paths, or lacks a module that the adapter needs for the call.
    """
    paths = [*binding.paths, *(MOVED[name] for name in binding.paths if name in MOVED)]
    for path in [at, *paths] if at and calling.is_registered(at, roots) else paths:
        try:
            module, function, owner = calling.resolve(path, roots, near=False)
        except DriftError:
            continue
        if isinstance(function, property):
            function = function.fget
        if not callable(function):
            raise DriftError(f"{path} is not callable")
        imported = {}
        for name in binding.imports:
            names = (*binding.names(name), *filter(None, [MOVED.get(name)]))
            there = next((then for then in names if calling.module_of(then, roots) == then), None)
            if there is None:
                raise DriftError(
                    f"the adapter needs {name} for its calls of {path}, and this checkout does not have it"
                )
            imported[name] = calling.import_whole(there)
        member = None
        if binding.like:
            with contextlib.suppress(DriftError):  # this version may lack the bound function
                member = calling.resolve(binding.like, roots, near=False)[1]
        return calling.Boundary(
            path, module, function, owner, binding, scenario_inputs, device, imported, member=member
        )
    calling.resolve(binding.boundary, roots)  # this call raises DriftError, which names a similar definition
    raise AssertionError(f"{binding.boundary} was not found at first, but was found at a second lookup")


def observe(
    contract: Contract,
    call: Any,
    inputs: Mapping[str, Any],
    roots: tuple[str, ...],
    device: str,
    record: bool = False,
) -> dict[str, Any]:
    """Call the function on one variant, and return the observed values by the contract's keys.

    :param record: if True, return the recorded calls of the boundary's function instead
        (:mod:`sentinel.worker.recording`).
    """

    def resolve(path: str) -> Any:
        return calling.resolve(path, roots)[1]

    def answered(**given: Any) -> Mapping[str, Any]:
        _answer[:] = [answer := call(**given)]
        return answer  # type: ignore[no-any-return]

    _answer.clear()
    live = {name: tensors.build(value, resolve, device) for name, value in inputs.items()}
    with tensors.on_device(device):
        if record:
            return recording.observe_calls(contract.measure, call, live)
        return {key: tensors.observe(value) for key, value in contract.measure(answered, live).items()}


#: The adapter's last return value, quoted in the message of an adapter error.
_answer: list[Any] = []


def run_bare() -> dict[str, Any]:
    """Run one backward pass, to measure the cost of a probe."""
    import torch

    torch.autograd.backward((torch.ones(2, 2, requires_grad=True) * 2).sum())
    return {}


def consult(contract: Contract, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the contract's float64 oracle computes."""
    assert contract.oracle is not None
    reference = contract.oracle

    def refuse(path: str) -> Any:
        raise DriftError(f"the scenario contains the framework's object {path}, which the oracle cannot create")

    def oracle(**values: Any) -> Mapping[str, Any]:
        return reference(values)

    live = {name: _double(tensors.build(item, refuse)) for name, item in inputs.items()}
    return {key: tensors.observe(value) for key, value in contract.measure(oracle, live).items()}


def _double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, list):
        return [_double(item) for item in value]
    return value


def failure(kind: str, reason: str, trace: str = "", provenance: Any = None) -> dict[str, Any]:
    return {"failure": {"kind": kind, "reason": reason, "traceback": trace, "provenance": provenance}}


def _stubs_used() -> list[str]:
    names = sorted(set(stubs.state().used))
    return list(dict.fromkeys(name.partition(".")[0].removesuffix("()") for name in names))


def _stub_reason() -> str:
    names, missing = sorted(set(stubs.state().used)), _stubs_used()
    if stubs.ONLY_WHERE_NAMED.issuperset(missing):  # the package may be installed but hidden from the target
        return (
            f"the code used {', '.join(names)}, which is a stub module here: name {', '.join(missing)} in the target's "
            "`preload`, and install all that it imports in the environment of the probes"
        )
    return (
        f"the code used {', '.join(names)}, which is a stub module here: install {', '.join(missing)} in the "
        "environment of the probes, and name it in the target's `preload` if it is installed"
    )


def stub_failure(provenance: Any = None, trace: str = "") -> dict[str, Any]:
    answer = failure("ghost", _stub_reason(), trace, provenance)
    answer["failure"]["packages"] = _stubs_used()
    return answer


def describe(
    error: BaseException, preparation: Preparation | None, roots: tuple[str, ...], traced: bool = True
) -> dict[str, Any]:
    """Return the failure that describes an exception, as JSON data.

    :param traced: whether to add the traceback. Sessions omit it, because formatting it takes time.
    """
    provenance = preparation.provenance if preparation is not None else None
    text = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-40:]) if traced else ""
    if isinstance(error, DriftError) and error.__cause__ is None:
        trace = ""  # a name was not found; the traceback would show only Sentinel's own lines
    for root in sorted({*roots, *filter(None, sys.path), sys.prefix, _cwd()}, key=len, reverse=True):
        trace = trace.replace(root.rstrip("/") + "/", "")
        text = text.replace(root.rstrip("/") + "/", "")
    if isinstance(error, AbsentError):
        return failure("not-in-this-version", str(error), "", provenance)
    if isinstance(error, RanksDisagreeError):
        return failure("deadlock", f"a training run hangs here: {text.partition(': ')[2]}", trace, provenance)
    if isinstance(error, (DriftError, StandInMissingError)):
        answer = failure("drift", str(error), trace, provenance)
        answer["failure"]["unknown_input"] = getattr(error, "input", "")
        return answer
    if isinstance(error, stubs.StubUsedError) or stubs.state().used:
        return stub_failure(provenance, trace)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return failure("memory", f"out of memory: {text}", trace, provenance)
    if isinstance(error, SystemExit):
        return failure("exit", f"the code called sys.exit({error.code!r})", trace, provenance)
    needed = versions.needed_version(error)
    lacks = "" if provenance else versions.needed_import(error, _place_of(error))
    if needed is not None or lacks:
        package = " or ".join(versions.missing_origins(error, _place_of(error)))
        need = f"{package} ({text}), which is not installed; install it, or name an interpreter that has it with"
        if needed is not None:
            here = f"{sys.version_info[0]}.{sys.version_info[1]}"
            need = f"Python {needed[0]}.{needed[1]} ({text}), and this is Python {here}; name another interpreter with"
        reason = f"its code needs {need} --sentinel-python (--python for a command)"
        answer = failure("python", reason, trace, provenance)
        answer["failure"].update(place=_place_of(error), lacks=lacks)
        return answer
    if preparation is None:
        missing = _missing_packages(error)
        advice = f"; install {' and '.join(missing)}, or name an interpreter that has it" if missing else ""
        answer = failure("import", f"the module does not import: {text}{advice}", trace)
        answer["failure"]["packages"] = missing
        return answer
    if Neutral.recorded:
        names = ", ".join(map(repr, Neutral.recorded))
        older = f"the adapter is older than this revision: it does not define {names}"
        return failure("drift", f"{older}; with neutral values in their place, it raises {text}", trace, provenance)
    place = harness_place(error, roots, preparation.harness)
    if place is not None:
        return failure("adapter", _adapter_error(error, text, place, preparation.boundary.binding), trace, provenance)
    answer = failure("raised", f"the boundary raised {text}", trace, provenance)
    answer["failure"]["programming_error"] = programming_error(error, roots)
    return answer


def _adapter_error(error: BaseException, text: str, place: TracebackType, binding: Binding) -> str:
    """Return the message for an exception in the adapter or contract: the exception or the missing key, what the
    adapter returned, and the place."""
    file, line = place.tb_frame.f_code.co_filename, place.tb_lineno
    where = f"{os.path.basename(os.path.dirname(file))}/{os.path.basename(file)}:{line}"
    answer = _answer[0] if _answer else None
    if isinstance(error, KeyError) and isinstance(answer, Mapping) and error.args and error.args[0] not in answer:
        needs = f"the contract {binding.contract} needs {error.args[0]!r}, which the adapter did not return"
    else:
        needs = f"{text}, in the code for the contract {binding.contract}"
    if isinstance(answer, Mapping):
        answers = (f"{name} (None)" if value is None else str(name) for name, value in answer.items())
        needs = f"{needs}; it returned {', '.join(answers) or 'nothing'}"
    return f"adapter error: {needs} ({where})"


def _place_of(error: BaseException) -> str:
    """Return the file that has the syntax error, or else the file that raised the exception."""
    if isinstance(error, SyntaxError):
        return error.filename or ""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""


def _missing_packages(error: BaseException | None) -> list[str]:
    missing: dict[str, None] = {}
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            missing[error.name if stubs.installed(package) else package] = None
        error = error.__cause__ or error.__context__
    return list(missing)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # the code has removed its scratch folder
        return sys.prefix


def quiet() -> None:
    """Redirect the standard streams to /dev/null. Answers use a socket instead."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.dup2(null, fd)
