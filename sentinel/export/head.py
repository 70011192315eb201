"""The head of every exported runner: this file as it stands, with what it imports from Sentinel beside it.

It needs Python, torch and numpy. ``sentinel.export.script`` appends an adapter's and a contract's own functions
and the case, and calls :func:`main`; nothing here knows about a bug, a framework or a machine.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sentinel.deciding.verdicts import by_expectation
from sentinel.recipes.recipe import Expected
from sentinel.values.literals import plain
from sentinel.values.tolerance import Tolerance
from sentinel.worker.calling import Boundary, answer_at_import, import_quietly, import_whole, module_of
from sentinel.worker.drift import AbsentError, DriftError, StandInMissingError
from sentinel.worker.ghosts import ImportRecorder, state
from sentinel.worker.probe import settle
from sentinel.worker.tensors import build, observe

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


# -- one run -----------------------------------------------------------------------------------------------------------


def variants_of(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Variant -> canonical input -> value; without variants there is one, without a name."""
    return {name: {**case["scenario"], **own} for name, own in case["variants"].items()}


def find(path: str, roots: tuple[str, ...]) -> tuple[Any, Any, type | None]:
    """Find a dotted path in the checkout: (module, object, class that holds it)."""
    name = module_of(path, roots)
    if name is None:
        raise DriftError(f"{path} is not in this checkout")
    module = value = import_whole(name)
    owner = None
    for attribute in path.split(".")[len(name.split(".")) :]:
        owner = value if isinstance(value, type) else None
        if not hasattr(value, attribute):
            raise DriftError(f"{path} is not in this checkout")
        value = getattr(value, attribute)
    return module, value, owner


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
    """Find the real function in the checkout, under the first of its paths that is there."""
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
    """Call the boundary on each variant: (boundary, observation of each, packages that were stubbed)."""
    lacking = [name for name in case["needs"] if not is_installed(name)]
    if lacking:
        raise CouldNotRun("not everything that it needs is installed", lacking)
    checkout = Path(os.environ.get("TARGET_REPO", ".")).resolve()
    roots = tuple(str(checkout / folder) for folder in case["import_roots"] if (checkout / folder).is_dir())
    sys.path[:0] = roots
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    for name in case["stands_for"]:  # modules of Sentinel's that the functions below import from are this file
        sys.modules[name] = sys.modules[__name__]
    settle("cpu")
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
        settle("cpu")
        state().probing = True
        observation = {}
        for name, inputs in variants_of(case).items():
            live = {key: build(item, lambda path: find(path, roots)[1]) for key, item in inputs.items()}
            observation[name] = {key: observe(item) for key, item in measure(boundary, live).items()}
        if state().used:  # the checkout may have caught the refusal: what it computed then is not its answer
            raise CouldNotRun(f"{', '.join(state().used)}: used, and not installed", packages(state().used))
        return boundary, observation, sorted({name for names in stubs.missing.values() for name in names})
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
        stubbed = state().used or [name for names in stubs.missing.values() for name in names]
        reason = f"{type(error).__name__}: {error}" + ", perhaps for want of a package" * bool(stubbed)
        raise CouldNotRun(reason, packages(stubbed)) from error
    finally:
        state().probing = False
        builtins.__import__ = stubs._import


def judged(case: Mapping[str, Any], observation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Judge by expected values: (status, value of each address).

    :raises CouldNotRun: where the boundary does not give what is expected of it, or gives what is both.
    """

    expected: Any = SimpleNamespace(tolerance=Tolerance(**case["tolerance"]))
    for side in ("expected_unpatched", "expected_fixed"):
        values = {key: Expected(row["value"], Tolerance(**row.get("tolerance", {}))) for key, row in case[side].items()}
        setattr(expected, side, values)
    verdict, comparisons = by_expectation(expected, observation)
    if verdict.name == "inconclusive":
        raise CouldNotRun(verdict.reason)
    return verdict.name, {item.key: item.observed for item in comparisons}


def validated(
    case: Mapping[str, Any],
    measure: Callable[..., Any],
    call: Callable[..., Any] | None,
    judge: Callable[..., Any] = judged,
) -> dict[str, Any]:
    """Give the answer that is printed: which code was measured, its values, and whose these are."""
    answer: dict[str, Any] = {"bug_id": case["bug_id"]}
    try:
        boundary, observation, stubbed = measured(case, measure, call)
        status, values = judge(case, observation)
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
    print(laid_out(plain(answer)))
    sys.exit(STATUSES.get(answer["status"], 3))
