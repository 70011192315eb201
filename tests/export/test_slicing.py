"""What cannot be traced, cut out of an adapter: the code that the probe ran, without what it did not."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW

from sentinel.export import checking, runner
from sentinel.export.exporting import Exporter
from sentinel.export.program import ProgramError
from sentinel.export.slicing import Followed, Slicer
from sentinel.loading import load_file
from sentinel.targets import Binding

ADAPTER = '''\
"""An adapter: nothing of it is a straight line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

_TIMES = 3
_TABLE = {"first": "a value that is too long to be written where it is used", "second": 2}


class _Engine(dict[str, Any]):
    """A stand-in engine: it answers late. It is asked once."""

    kinds = ("a", "b")

    async def answer(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value * _TIMES

    def nothing(self) -> "_Engine":
        """Does nothing."""

    close = nothing

    def never(self) -> None:
        raise RuntimeError("nobody calls it")


@contextlib.contextmanager
def _swapped(owner: Any, name: str, value: Any) -> Any:
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


def pick(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: inputs[name] for name in names}


def binding(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the engine."""
    from sentinel.worker.drift import AbsentError, StandInNamespace

    checked = list(inputs)
    if inputs["value"] < 0:
        raise AbsentError(f"{checked} is nothing that {boundary.path} could be asked")
    holder = StandInNamespace(inner=0)
    with _swapped(holder, "inner", 1):
        late = asyncio.run(_Engine().answer(boundary.function(inputs["value"])))
    _Engine().close()
    return {"late": late, "kinds": [_Engine.kinds[n] for n in range(2)], "told": _TABLE["second"]}


def measure(call: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    found = call(**inputs)
    return {"late": found["late"], "kinds": found["kinds"]}


def direct(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"late": boundary.invoke(pick(inputs, "value"), offset=1, unknown=2)}


_SWAPPED = mock.patch.object


def by_parameters(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    holder = SimpleNamespace(inner=0, outer=0)
    with _SWAPPED(holder, "inner", 1), _SWAPPED(holder, "outer", 2):
        called = getattr(boundary, "function")(inputs["value"])
    return {"late": called if "offset" in boundary.parameters else 0}


def handed_on(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    held = [boundary]
    return {"late": held[0].function(inputs["value"])}
'''


class Boundary:
    """What stands for :class:`sentinel.worker.boundaries.Boundary` here."""

    path = "json.dumps"

    def __init__(self, function: Any = None) -> None:
        self.function = function or (lambda value: value + 1)


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "made_up.py"
    file.write_text(ADAPTER)
    module = load_file(file)
    yield module
    del sys.modules[module.__name__]


def follow(module: ModuleType, binding: Callable[..., Any], inputs: Mapping[str, Any], **more: Any) -> Followed:
    """What ran of the module while the binding was called, as the worker would tell it."""
    file, lines = str(module.__file__), set[int]()

    def step(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == file:
            lines.add(frame.f_lineno)
            return step
        return None

    before = sys.gettrace()
    sys.settrace(step)
    try:
        module.measure(lambda **given: binding(Boundary(), given), inputs)
    finally:
        sys.settrace(before)
    seen: dict[str, Any] = {"parameters": (frozenset({"obj", "offset"}),), "answer": "mapping", **more}
    return Followed("json.dumps", "json", lines={file: frozenset(lines)}, **seen)


def cut(
    module: ModuleType, call: Callable[..., Any], seen: Followed, told: bool = True, special: bool = False
) -> tuple[str, Slicer]:
    """The whole of a slice as text."""
    bound = Binding("json.dumps", "call", arguments={"value": ("item", "obj")}, call=call)
    slicer = Slicer(seen, bound, ["value"], [{"value": 2}], ["json"], told, special)
    lines = slicer.observe(module.measure, {"value": "2", "other": "3"}, varied=[])
    parts = [*sorted(slicer.slice.standard), *slicer.slice.imports.lines(), *slicer.slice.definitions.values()]
    return "\n\n".join([*parts, "\n".join(lines)]), slicer


def test_a_slice_answers_what_the_adapter_answers(adapter: ModuleType) -> None:
    text, _ = cut(adapter, adapter.binding, follow(adapter, adapter.binding, {"value": 2}))
    names: dict[str, Any] = {}
    exec(compile(text.replace("from json import dumps", "dumps = lambda value: value + 1"), "slice", "exec"), names)
    assert names["observe"]() == {"late": 9, "kinds": ["a", "b"]}


def test_what_did_not_run_and_what_only_the_adapter_needs_is_left_out(adapter: ModuleType) -> None:
    text, _ = cut(adapter, adapter.binding, follow(adapter, adapter.binding, {"value": 2}))
    assert "sentinel" not in text
    assert "never" not in text
    assert "AbsentError" not in text
    assert "checked" not in text  # it was read by a branch that is gone
    assert "boundary" not in text
    assert "Any" not in text
    assert "other" not in text  # an input that nothing reads
    assert '"""A stand-in engine: it answers late."""' in text
    assert "SimpleNamespace(inner=0)" in text
    assert '"""' not in cut(adapter, adapter.binding, follow(adapter, adapter.binding, {"value": 2}), told=False)[0]


def test_a_branch_that_ran_stays(adapter: ModuleType) -> None:
    """The test that the one before can fail."""
    seen = follow(adapter, adapter.binding, {"value": 2})
    every = frozenset(range(1, ADAPTER.count("\n") + 1))
    with pytest.raises(ProgramError, match="AbsentError"):
        cut(adapter, adapter.binding, Followed(**{**vars(seen), "lines": dict.fromkeys(seen.lines, every)}))


def test_the_boundary_is_called_by_the_names_that_it_has_at_every_revision(adapter: ModuleType) -> None:
    def no_call(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"late": 0, "kinds": []}

    lines = follow(adapter, no_call, {"value": 2}).lines
    (file,) = lines
    first = ADAPTER[: ADAPTER.index("def direct")].count("\n") + 1
    lines = {file: lines[file] | {first, first + 1}}
    same = Followed("json.dumps", "json", (frozenset({"obj", "offset"}),), lines, "mapping")
    assert 'dumps(obj=inputs["value"], offset=1)' in cut(adapter, adapter.direct, same)[0]
    both = (frozenset({"obj", "offset"}), frozenset({"item"}))
    text, slicer = cut(adapter, adapter.direct, Followed("json.dumps", "json", both, lines, "mapping"))
    assert "invoke(pick(inputs, " in text
    assert "inspect.signature(dumps).parameters" in slicer.slice.definitions["invoke"]


def test_what_the_boundary_can_take_is_asked_or_known(adapter: ModuleType) -> None:
    """Where one scenario at known revisions is all that a runner is for, it need not ask."""
    seen = follow(adapter, lambda boundary, inputs: {"late": 0, "kinds": []}, {"value": 2})
    every = frozenset(range(1, ADAPTER.count("\n") + 1))
    seen = Followed(**{**vars(seen), "lines": dict.fromkeys(seen.lines, every)})
    text, _ = cut(adapter, adapter.by_parameters, seen)
    assert '"offset" in inspect.signature(dumps).parameters' in text
    assert "_SWAPPED = unittest.mock.patch.object" in text
    assert 'dumps(inputs["value"])' in text
    assert "called if True else 0" in cut(adapter, adapter.by_parameters, seen, special=True)[0]


def test_a_binding_that_hands_the_boundary_on_cannot_be_cut(adapter: ModuleType) -> None:
    seen = follow(adapter, lambda boundary, inputs: {"late": 0, "kinds": []}, {"value": 2})
    every = frozenset(range(1, ADAPTER.count("\n") + 1))
    with pytest.raises(ProgramError, match="hands the boundary on"):
        cut(adapter, adapter.handed_on, Followed(**{**vars(seen), "lines": dict.fromkeys(seen.lines, every)}))


REJECTION: dict[str, Any] = {
    **MASKED_TOKENS,
    "bug_id": "DEMO-REJECTION",
    "contract": "sequence_rejection",
    "boundary": "demo_rl.rejection.reject_sequences",
    "invariant": None,
    "scenario": {
        "log_probs": [[-3.0, -3.0]],
        "old_log_probs": [[-1.0, -1.0]],
        "advantages": [[1.0, -1.0]],
        "response_mask": [[1, 1]],
        "opsm_delta": 0.5,
    },
    "expected_unpatched": {"opsm_mask": [[1.0, 0.0]]},
    "expected_fixed": {"opsm_mask": [[1.0, 1.0]]},
}

GROUPS: dict[str, Any] = {
    **REJECTED_ROW,
    "invariant": None,
    "expected_unpatched": {"difference(reward_9, reward_0).advantages": [[0, 0], [-3, -3], [-3, -3]]},
    "expected_fixed": {"difference(reward_9, reward_0).advantages": [[0, 0], [0, 0], [0, 0]]},
}


@pytest.fixture
def untraceable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ProgramError("nothing is traced here")

    monkeypatch.setattr(Exporter, "_traced", refuse)


@pytest.mark.usefixtures("untraceable")
def test_a_runner_that_is_cut_says_what_the_evidence_says(export: Any, broken_tree: Path, fixed_tree: Path) -> None:
    bundle = export(GROUPS, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert [side.tried.status for side in bundle.sides] == ["reproduced", "fixed"]
    assert [side.tested.status for side in bundle.sides] == ["failed", "passed"]


@pytest.mark.usefixtures("untraceable")
@pytest.mark.parametrize("document", [REJECTION, GROUPS], ids=lambda document: str(document["bug_id"]))
def test_a_runner_for_one_scenario_says_what_the_evidence_says(
    document: Any, export: Any, broken_tree: Path, fixed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_only = export(document, broken_tree, fixed_tree)
    monkeypatch.setattr(runner, "LONGEST", cut_only.script.count("\n"))
    bundle = export(document, broken_tree, fixed_tree, check=True)
    assert bundle.complete, bundle.reason
    assert [side.tried.status for side in bundle.sides] == [side.decision.verdict.name for side in bundle.sides]


@pytest.mark.usefixtures("untraceable")
def test_a_runner_that_is_cut_sees_a_third_answer(export: Any, broken_tree: Path) -> None:
    """Nothing that it prints was copied: another implementation is another answer."""
    bundle = export(REJECTION, broken_tree)
    assert bundle.agrees, bundle.reason
    imported = [node for node in ast.walk(ast.parse(bundle.script)) if isinstance(node, ast.ImportFrom)]
    assert not any(str(node.module).startswith("sentinel") for node in imported)
    assert checking.run(bundle.script, bundle.base.decision.checkout).status == "reproduced"
    losses = broken_tree / "demo_rl" / "rejection.py"
    losses.write_text(losses.read_text().replace("(~reject).float()", "(~reject).float() * 7"))
    checkout = bundle.base.decision.checkout
    changed = type(checkout)(**{**vars(checkout), "path": broken_tree})
    assert checking.run(bundle.script, changed).status == "changed"
