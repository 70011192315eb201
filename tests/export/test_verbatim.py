"""The rule of adapters and contracts: what calls and measures a boundary is self-contained."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sentinel.export.script import Question, functions
from sentinel.export.verbatim import NotSelfContained, Verbatim
from sentinel.recipes.catalog import bundled_catalog
from sentinel.targets import Binding
from sentinel.targets.loading import load_file

CATALOG = bundled_catalog()


@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=() if name in ("demo", "trl") else pytest.mark.nightly) for name in CATALOG.targets],
)
def test_every_binding_can_be_written_into_a_file_of_its_own(target, loaded_recipe):
    """What breaks the rule is named; the message says what to do."""
    for binding in CATALOG.targets[target].bindings:
        question = Question(loaded_recipe, CATALOG.targets[target], CATALOG.contracts[binding.contract], binding, ("",))
        functions(question)


ADAPTER = '''\
"""An adapter."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from sentinel.targets import StandIn
from sentinel.worker.drift import DriftError as Moved

from . import other
from .other import SHARED, helper as helping

_TABLE = {SHARED: "in a table"}
_UNUSED = object()


class _Engine:
    """A stand-in."""

    def answer(self) -> Any:
        local = _TABLE
        return [local[key] for key in local]


@contextlib.contextmanager
def _swapped() -> Any:
    yield


def call(boundary: Any, inputs: Any) -> Any:
    """Calls."""
    from sentinel.worker.drift import AbsentError

    _UNUSED = 1
    with _swapped():
        return helping(_Engine().answer(), AbsentError, Moved, _UNUSED)


def factory(kind: str) -> Any:
    def made(boundary: Any, inputs: Any) -> Any:
        return kind

    return made


def by_namespace(boundary: Any, inputs: Any) -> Any:
    return other.helper(inputs)


def by_relative_import(boundary: Any, inputs: Any) -> Any:
    from .other import helper

    return helper(inputs)


def of_two_meanings(boundary: Any, inputs: Any) -> Any:
    return call(boundary, inputs), other_engine()


from .other import other_engine  # noqa: E402

CLOSURE = factory("closure")
LAMBDA = lambda boundary, inputs: inputs  # noqa: E731
PARTIAL = partial(call, {"plain": [1.5, None]})
'''

OTHER = '''\
SHARED = "shared"


class _Engine:
    """Another one."""


def other_engine():
    return _Engine()


def helper(*values):
    return values
'''


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[ModuleType]:
    package = tmp_path / "made_up"
    package.mkdir()
    (package / "__init__.py").write_text(ADAPTER)
    (package / "other.py").write_text(OTHER)
    module = load_file(package / "__init__.py")
    yield module
    for name in [name for name in sys.modules if name.startswith(module.__name__)]:
        del sys.modules[name]


def text_of(found: Verbatim) -> str:
    return "\n\n\n".join(text for _, text in found.sections())


def test_a_function_comes_with_all_that_it_names_and_no_more(adapter):
    found = Verbatim()
    assert found.add(adapter.call) == "call"
    names = {name for names in found.modules.values() for name in names}
    assert names == {"call", "_swapped", "_Engine", "_TABLE", "SHARED", "helper", "AbsentError", "DriftError"}
    assert {name: meant for name, (_, meant) in found.renamed.items()} == {"helping": "helper", "Moved": "DriftError"}
    assert found.imports == {"import contextlib", "from typing import Any"}
    assert found.stands_for == {"sentinel.worker.drift"}


def test_it_is_taken_as_it_stands_there(adapter):
    found = Verbatim()
    found.add(adapter.call)
    for piece in text_of(found).split("\n\n\n"):
        assert piece in ADAPTER + OTHER or any(name in piece for name in ("DriftError", "AbsentError", "helping ="))
    assert '    """Calls."""\n    from sentinel.worker.drift import AbsentError\n' in text_of(found)
    assert "@contextlib.contextmanager\ndef _swapped()" in text_of(found)


def test_a_partial_is_a_function_and_plain_values(adapter):
    assert Verbatim().add(adapter.PARTIAL) == "functools.partial(call, {'plain': [1.5, None]})"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CLOSURE", "made while the adapter is loaded"),
        ("LAMBDA", "made while the adapter is loaded"),
        ("by_namespace", "uses the module other as a namespace"),
        ("by_relative_import", "import it at the top"),
        ("of_two_meanings", "_Engine is in"),
    ],
)
def test_what_is_not_self_contained_is_refused(adapter, name, told):
    with pytest.raises(NotSelfContained, match=told):
        Verbatim().add(getattr(adapter, name))


def test_a_name_of_the_head_cannot_mean_another_thing_too(tmp_path, loaded_recipe):
    file = tmp_path / "clashing.py"
    file.write_text("def measured(boundary, inputs):\n    return inputs\n")
    binding = Binding("a.b", "loss_aggregation", call=load_file(file).measured)
    target, contract = CATALOG.targets[loaded_recipe.target], CATALOG.contracts["loss_aggregation"]
    with pytest.raises(NotSelfContained, match="measured is also in the head"):
        functions(Question(loaded_recipe, target, contract, binding, ("",)))
