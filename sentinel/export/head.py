"""The head of every exported runner: this file as it stands, with what it imports from the worker beside it.

It needs Python, torch and numpy. ``sentinel.export.script`` appends an adapter's and a contract's own functions
and the case, and calls :func:`main`; nothing here knows about a bug, a framework or a machine.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import importlib.util
import inspect
import json
import math
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sentinel.worker.calling import Boundary, answer_at_import, import_quietly, import_whole, module_of
from sentinel.worker.drift import AbsentError, DriftError, StandInMissingError, StandInNamespace
from sentinel.worker.ghosts import Ghost, ImportRecorder, state

#: Exit statuses; a status that is not named here is 3: nothing was decided.
STATUSES = {"fixed": 0, "reproduced": 1, "changed": 2}


def _broke_down(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Whatever happens, 1 says that the bug is there: Python's own status of an error is another one here."""
    traceback.print_exception(kind, error, trace)
    print(json.dumps({"status": "could not run", "reason": f"{kind.__name__}: {error}", "needs": []}), flush=True)
    os._exit(3)


if __name__ == "__main__":
    sys.excepthook = _broke_down


class CouldNotRun(Exception):
    """Nothing can be decided in this environment; names the packages that it lacks, where it is that."""

    def __init__(self, reason: str, needs: list[str] | None = None, status: str = "could not run") -> None:
        super().__init__(reason)
        self.needs, self.status = needs or [], status


# -- values ------------------------------------------------------------------------------------------------------------


def decoded(value: Any, find: Callable[[str], Any]) -> Any:
    """The object that a value of the case describes: a tensor, an array, an object of the checkout's own, ..."""
    import numpy
    import torch

    if isinstance(value, list):
        return [decoded(item, find) for item in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind == "$tensor":
        made = torch.tensor(value[kind], dtype=getattr(torch, value["dtype"]))
        made = made.reshape(value.get("shape", made.shape))
        if value.get("strided") and made.dim():  # every second element of a tensor whose others nobody may read
            whole = not made.is_floating_point() and made.dtype != torch.bool
            between = torch.full_like(made, torch.iinfo(made.dtype).max if whole else math.nan)
            made = torch.stack([made, between], dim=-1).flatten(-2)[..., ::2]
        return made.requires_grad_() if value.get("requires_grad") else made
    if kind == "$array":
        items = [decoded(item, find) for item in value[kind]]
        array = numpy.empty(len(items), dtype=value["dtype"])
        array[:] = items
        return array
    if kind == "$tuple":
        return tuple(decoded(value[kind], find))
    if kind == "$namespace":
        return StandInNamespace(**decoded(value[kind], find))
    if kind == "$new":
        return find(value[kind])(**decoded(value["arguments"], find))
    if kind == "$attribute":
        return find(value[kind])
    if kind == "$device":
        return torch.device(value[kind])
    return {key: decoded(item, find) for key, item in value.items()}


def observed(value: Any) -> Any:
    """What the boundary answered, as tensors on the CPU, numbers, strings, lists and dictionaries."""
    import numpy
    import torch

    if isinstance(value, Ghost):
        bool(value)  # refused, and recorded
    if isinstance(value, (torch.dtype, torch.device, enum.Enum)):
        return str(value).removeprefix("torch.")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, numpy.generic):
        return observed(value.item())
    if isinstance(value, numpy.ndarray):
        return [observed(v) for v in value.tolist()] if value.dtype == object else torch.from_numpy(value.copy())
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return {str(key): observed(value[key]) for key in list(value.keys())}
    if isinstance(value, (set, frozenset)):
        return [observed(item) for item in sorted(value, key=repr)]
    if isinstance(value, (list, tuple)):
        return [observed(item) for item in value]
    if isinstance(value, SimpleNamespace):
        return observed(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: observed(getattr(value, field.name, None)) for field in dataclasses.fields(value)}
    return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


#: dtype -> (relative, absolute) bound of a difference that is rounding; a bare number is taken for a float32.
BOUNDS = {
    "float64": (1e-9, 1e-12), "float32": (1e-5, 1e-6), "float16": (2.0**-8, 2.0**-10), "bfloat16": (2.0**-5, 2.0**-7),
}  # fmt: skip


def variants_of(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Variant -> canonical input -> value; without variants there is one, without a name."""
    return {name: {**case["scenario"], **own} for name, own in case["variants"].items()}


def is_right(found: Any, wanted: Any, tolerance: Mapping[str, Any]) -> bool:
    """Whether an observed value is the expected one: floats up to rounding, all else exactly; NaN is NaN alone."""
    import torch

    if isinstance(wanted, dict) and "$tensor" in wanted:
        if not isinstance(found, torch.Tensor) or str(found.dtype) != f"torch.{wanted['dtype']}":
            return False
        wanted = decoded(wanted, str).tolist()
    if isinstance(found, torch.Tensor):
        if found.dim() == 0 and found.dtype == torch.bool and isinstance(wanted, bool):
            return bool(found) is wanted
        if isinstance(wanted, bool):
            return False
        try:
            right = torch.tensor(wanted, dtype=torch.float64 if found.is_floating_point() else None)
        except (ValueError, TypeError, RuntimeError):  # no number, or rows of unequal length
            return False
        right = right.reshape(found.shape) if found.numel() == right.numel() == 0 else right
        if found.shape != right.shape or not found.is_floating_point():
            return bool(found.shape == right.shape and (found == right).all())
        relative, absolute = tolerated(str(found.dtype).removeprefix("torch."), tolerance)
        return bool(torch.isclose(found.double(), right, rtol=relative, atol=absolute, equal_nan=True).all())
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(is_right(found[key], wanted[key], tolerance) for key in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(is_right(a, b, tolerance) for a, b in zip(found, wanted))
    if type(found) is float and type(wanted) in (int, float):
        relative, absolute = tolerated("float32", tolerance)
        if math.isfinite(found) and math.isfinite(wanted):
            return bool(abs(found - wanted) <= absolute + relative * abs(wanted))
        return bool(found == wanted or (math.isnan(found) and math.isnan(wanted)))
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def tolerated(dtype: str, tolerance: Mapping[str, Any]) -> tuple[float, float]:
    """(relative, absolute) for an observation of this dtype; zeros where it must agree exactly."""
    if tolerance.get("exact") or dtype not in BOUNDS:
        return 0.0, 0.0
    relative, absolute = BOUNDS[dtype]
    return tolerance.get("relative", relative), tolerance.get("absolute", absolute)


def minus(left: Any, right: Any) -> Any:
    """The difference of two observed values: tensors of one shape, numbers, lists of these."""
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and left.shape == right.shape:
        return left - right if left.is_floating_point() else left.long() - right.long()
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [minus(a, b) for a, b in zip(left, right)]
    if type(left) in (int, float) and type(right) in (int, float):
        return left - right
    raise CouldNotRun(f"{left!r} and {right!r} cannot be subtracted")


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a key, which may reach into what was observed: ``returned.advantages``, ``returned.0``."""
    if key in values:
        return values[key]
    parts = key.split(".")
    for end in range(len(parts) - 1, 0, -1):
        found = values.get(".".join(parts[:end]))
        try:
            for part in parts[end:]:
                found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
            return found
        except (KeyError, IndexError, ValueError, TypeError):
            continue
    raise CouldNotRun(f"the boundary gave no {key!r}, but {', '.join(values) or 'nothing'}")


# -- one run -----------------------------------------------------------------------------------------------------------


def settle() -> None:
    """Make a run repeatable: one thread, fixed seeds, deterministic algorithms, no compiler."""
    import numpy
    import torch

    random.seed(20260821)
    numpy.random.seed(20260821)
    torch.manual_seed(20260821)
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("warn")


def find(path: str, roots: tuple[str, ...]) -> tuple[Any, Any, type | None]:
    """(module, object, class that holds it) of a dotted path.

    :raises DriftError: where the checkout has nothing there.
    """
    name = module_of(path, roots)
    if name is None:
        raise DriftError(f"{path} is not in this checkout")
    module = found = import_whole(name)
    owner = None
    for attribute in path.split(".")[len(name.split(".")) :]:
        owner = found if isinstance(found, type) else None
        if not hasattr(found, attribute):
            raise DriftError(f"{path} is not in this checkout")
        found = getattr(found, attribute)
    return module, found, owner


def has(path: str, roots: tuple[str, ...]) -> bool:
    """Whether a checkout has a module, an attribute, a field of a class, or a parameter: ``pkg.mod.function(name)``."""
    path, _, parameter = path.rstrip(")").partition("(")
    holder, _, last = path.rpartition(".")
    if module_of(path, roots) == path:
        return True
    try:
        if parameter:
            return parameter in inspect.signature(find(path, roots)[1]).parameters
        owner = find(holder, roots)[1]
    except DriftError:
        return False
    tables = (getattr(owner, name, {}) for name in ("__dataclass_fields__", "__annotations__"))
    return hasattr(owner, last) or any(last in table for table in tables)


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def packages(names: Iterable[str]) -> list[str]:
    return sorted({name.partition(".")[0] for name in names})


def boundary_of(case: Mapping[str, Any], roots: tuple[str, ...], call: Callable[..., Any] | None) -> Boundary:
    """The real function, found in the checkout under the first of its paths that is there."""
    paths = case["boundary"]
    for path in paths:
        try:
            module, function, owner = find(path, roots)
        except DriftError:
            continue
        imported = {name: import_whole(name) for name in case["imports"]}
        binding: Any = SimpleNamespace(**case["binding"], call=call)
        return Boundary(path, module, function, owner, binding, frozenset(case["given"]), imported=imported)
    raise DriftError(f"{' or '.join(paths)} is not in this checkout")


def measured(
    case: Mapping[str, Any], measure: Callable[..., Any], call: Callable[..., Any] | None
) -> tuple[Boundary, dict[str, Any], list[str]]:
    """The boundary, what it answers to each variant of the scenario, and the packages that were missing all the same.

    :raises CouldNotRun: where that cannot be said here.
    """
    lacking = [name for name in ("torch", "numpy", *case["needs"]) if not is_installed(name)]
    if lacking:
        raise CouldNotRun("not everything that it needs is installed", lacking)
    checkout = Path(os.environ.get("TARGET_REPO", ".")).resolve()
    roots = tuple(str(checkout / folder) for folder in case["import_roots"] if (checkout / folder).is_dir())
    sys.path[:0] = roots
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name in case["stands_for"]:  # modules of Sentinel's that the functions below import from are this file
        sys.modules[name] = sys.modules[__name__]
    settle()
    for name in filter(is_installed, case["preload"]):
        importlib.import_module(name)
    stubs = ImportRecorder(roots, tuple(case["packages"]), case["stub_versions"], case["preload"])
    stubs.install()
    try:
        for path in (*case["imports"], *case["boundary"]):
            answer_at_import(case["at_import"], roots)  # again: an import may undo the last
            import_quietly(path, roots)
        for path in case["requires"]:
            if not has(path, roots):
                raise CouldNotRun(f"not in this version: the checkout has no {path}", status="unavailable")
        boundary = boundary_of(case, roots, call)
        settle()
        state().probing = True
        found = {}
        for name, inputs in variants_of(case).items():
            live = {key: decoded(item, lambda path: find(path, roots)[1]) for key, item in inputs.items()}
            found[name] = {key: observed(item) for key, item in measure(boundary, live).items()}
        if state().used:  # the checkout may have caught the refusal: what it computed then is not its answer
            raise CouldNotRun(f"{', '.join(state().used)}: used, and not installed", packages(state().used))
        return boundary, found, sorted({name for given in stubs.given.values() for name in given})
    except CouldNotRun:
        raise
    except AbsentError as error:
        raise CouldNotRun(str(error), status="unavailable") from error
    except (DriftError, StandInMissingError) as error:
        raise CouldNotRun(f"the code has moved away from what this file knows: {error}") from error
    except ModuleNotFoundError as error:
        raise CouldNotRun(str(error), [(error.name or "").partition(".")[0]]) from error
    except SyntaxError as error:
        raise CouldNotRun(f"it is not for Python {sys.version.split()[0]}: {error}") from error
    except (Exception, SystemExit) as error:
        # A stub that was asked something while modules were imported said no: what follows from that may show here.
        stubbed = state().used or [name for given in stubs.given.values() for name in given]
        reason = f"{type(error).__name__}: {error}" + ", perhaps for want of a package" * bool(stubbed)
        raise CouldNotRun(reason, packages(stubbed)) from error
    finally:
        state().probing = False
        builtins.__import__ = stubs._import


def judged(case: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(status, value of each address): all right is ``fixed``, all those of the bug ``reproduced``."""
    values, matches = {}, {"bug": [], "right": []}  # type: dict[str, Any], dict[str, list[bool]]
    for address, row in case["expected"].items():
        parts = [value_at(found[name], row["key"]) for name in row["of"]]
        values[address] = parts[0] if len(parts) == 1 else minus(*parts)
        for which, told in matches.items():
            if which in row:
                told.append(is_right(values[address], row[which], row.get(f"{which}_tolerance", {})))
    bug, right = (bool(matches[which]) and all(matches[which]) for which in ("bug", "right"))
    return "ambiguous" if bug and right else "reproduced" if bug else "fixed" if right else "changed", values


def validated(
    case: Mapping[str, Any],
    measure: Callable[..., Any],
    call: Callable[..., Any] | None,
    judge: Callable[..., Any] = judged,
) -> dict[str, Any]:
    """The answer as it is printed: which code was measured, what it answered, and which values these are."""
    answer: dict[str, Any] = {"bug_id": case["bug_id"]}
    try:
        boundary, found, stubbed = measured(case, measure, call)
        status, values = judge(case, found)
    except CouldNotRun as error:
        reason = str(error)
        if error.needs:
            reason += f"; install {', '.join(case['needs'].get(name, name) for name in error.needs)}"
        return {**answer, "status": error.status, "reason": reason, "needs": error.needs, "cause": error}
    checkout = Path(os.environ.get("TARGET_REPO", ".")).resolve()
    commit = None
    with contextlib.suppress(OSError):
        git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or None
    file = Path(str(boundary.module.__file__)).resolve()
    if checkout not in file.parents:
        return {**answer, "status": "could not run", "reason": f"{file} is not in {checkout}", "needs": []}
    answer |= {"boundary": boundary.path, "file": str(file.relative_to(checkout)), "commit": commit}
    return {**answer, "not_installed_and_not_used": stubbed, "observed": values, "status": status}


def printable(value: Any) -> Any:
    """What JSON has no word for: tensors as nested lists, NaN and infinities as words."""
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return printable(value.tolist()) if hasattr(value, "tolist") else value


def laid_out(value: Any, indent: str = "") -> str:
    """JSON with an entry of a table on each line, and lists on one."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    rows = [f"{indent} {json.dumps(key)}: {laid_out(item, indent + ' ')}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def main(*questions: Any) -> None:
    """Print the answer and end with its status; what led to a failure goes to standard error."""
    answer = validated(*questions)
    cause = answer.pop("cause", None)
    if cause is not None and answer["status"] != "unavailable":
        traceback.print_exception(type(cause), cause, cause.__traceback__)
    print(laid_out(printable(answer)))
    sys.exit(STATUSES.get(answer["status"], 3))
