"""Changing the value of one expression while the code runs."""

import enum
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sentinel.worker.altering import Altering, alter
from sentinel.worker.answers import READ, WAYS
from sentinel.worker.side_effects import Recorder

CODE = """
class Loss:
    def loss(self, x, scale):
        return [self.double(each) * scale for each in x]

    @staticmethod
    def double(x):
        return x * 2

    def half(self, x):
        if x > 9:
            return x / 2
        return x
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    file = tmp_path / "tiny" / "losses.py"
    file.parent.mkdir()
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("tiny_losses", file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.slow
def test_one_expression_has_another_value_until_the_next_request(module, tmp_path):
    altering = Altering([f"{tmp_path}/"])
    loss = module.Loss()
    request = {"file": "tiny/losses.py", "way": 0, "keep": [], "inner": []}
    altering.set({**request, "span": [4, 36, 4, 41]})
    assert loss.loss([1, 2], 3) == [8, 16], "the scale is 4"
    altering.set({**request, "span": [8, 15, 8, 16]})
    assert loss.loss([1, 2], 3) == [12, 18], "the scale is 3 again, and x is one more"
    altering.set({**request, "span": [8, 15, 8, 16], "keep": [2]})
    assert loss.loss([1, 2], 3) == [12, 12], "2 stays"
    altering.set({**request, "span": [8, 15, 8, 20], "inner": [8, 15, 8, 16]})
    assert loss.loss([0, 2], 3) == [0, 15], "0 * 2 is 0, so it stays"
    altering.set(None)
    assert loss.loss([1, 2], 3) == [6, 12]


def test_conditions_get_the_value_that_a_request_names(module, tmp_path):
    altering, loss = Altering([f"{tmp_path}/"]), module.Loss()
    altering.set({"conditions": [["tiny/losses.py", [11, 11, 11, 16], True]]})
    assert loss.half(3) == 1.5
    altering.set(None)
    assert loss.half(3) == 3


def test_values_are_recorded_and_those_of_parts_only_if_the_whole_has_none(module, tmp_path):
    recorder = Recorder((f"{tmp_path}/",))
    altering, loss = Altering([f"{tmp_path}/"], recorder.record), module.Loss()
    values = [["tiny/losses.py", [4, 16, 4, 41], "loss", "doubled", ""]]
    values += [["tiny/losses.py", [4, 28, 4, 32], "loss", "doubled", "each"]]
    altering.set({"conditions": [], "values": values})
    loss.loss([1, 2], 3)
    assert recorder.recorded() == {"loss(1): local.doubled": 6, "loss(2): local.doubled": 12}
    recorder.begin()
    with pytest.raises(TypeError):
        loss.loss([None], 3)
    assert recorder.recorded() == {"loss(1): local.each": None}


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


@pytest.mark.parametrize("way", range(WAYS))
@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.0, "mean", Mode.SUM, torch.float32, torch.bool, [1.0, 2], (3,), {"a": 1}, {1, 2},
        torch.tensor([0.5, 0.5]), torch.tensor([3, 4]), torch.tensor([True, True]),
    ],
)  # fmt: skip
def test_every_value_becomes_another_one_of_its_kind(value: Any, way: int):
    other = alter(value, way)
    assert isinstance(other, type(value)) or value is None
    assert str(other) != str(value)
    if isinstance(value, torch.Tensor):
        assert (other.shape, other.dtype) == (value.shape, value.dtype)


def test_a_normalisation_does_not_undo_the_change():
    values = torch.tensor([1.0, 2.0, 4.0])
    for way in range(WAYS):
        one, other = ((each - each.mean()) / each.std() for each in (values, alter(values, way)))
        assert not torch.allclose(one, other)


@pytest.mark.parametrize("value", [object(), [], {}])
def test_an_object_of_an_unknown_kind_raises_if_it_is_read(value: Any):
    other = alter(value, 0)
    with pytest.raises(RuntimeError, match=READ):
        _ = other.rows
    with pytest.raises(RuntimeError, match=READ):
        other["rows"]
