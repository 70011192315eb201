"""Values in both processes: numpy literals in the controller, torch objects in the worker."""

import math
from dataclasses import replace

import pytest
import torch
from demo_kit import returned
from hypothesis import given
from hypothesis import strategies as st

from sentinel.targets.loading import load_file
from sentinel.values.literals import (
    FLOATS,
    STORAGE,
    Array,
    Attribute,
    Device,
    Namespace,
    New,
    Tensor,
    Tuple,
    plain,
    tensor,
    typed,
)
from sentinel.worker import probe, tensors

ECHO = {
    "mod.py": """
import dataclasses, enum
import numpy, torch

class Colour(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Options:
    clip: float
    parts: list

class Odd:
    pass

def echo(value):
    return value

def kind(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"

def attribute(value, name):
    return getattr(value, name)

def zoo():
    return {
        "enum": Colour.RED, "options": Options(0.5, [1]), "odd": Odd(), "dtype": torch.float32,
        "device": torch.device("cpu"), "scalar": numpy.float32(0.5), "array": numpy.arange(2, dtype=numpy.int32),
        "objects": numpy.array(["a", None], dtype=object), "tuple": (1, True, None), "set": {3, 1},
        "half": torch.tensor([1.5], dtype=torch.bfloat16), "empty": torch.zeros(0, 2), "bool": torch.tensor(True),
    }

def layout(value):
    return value.is_contiguous(), list(value.stride()), value.is_leaf, value.requires_grad

def between(value):
    whole = value.as_strided(value.shape, value.stride(), value.storage_offset() + 1)
    return whole.isnan().all().item() if value.is_floating_point() else (whole != 0).all().item()

def strided():
    return torch.arange(6.0).reshape(2, 3).t()

def meta():
    return torch.empty(2, device="meta")

def sparse():
    return torch.zeros(2, 2).to_sparse()

def complex_numbers():
    return torch.zeros(1, dtype=torch.complex64)

def itself():
    loop = []
    loop.append(loop)
    return loop
"""
}


@pytest.mark.parametrize("dtype", sorted(STORAGE))
def test_every_dtype_goes_to_torch_and_back(dtype, lab):
    value = tensor([[0, 1], [1, 0]], dtype)
    assert lab.returned(ECHO, "pkg.mod.echo", value=value) == value


def test_special_floats_round_trip_bit_by_bit(lab):
    value = tensor([math.nan, math.inf, -math.inf, -0.0, 1e-40], "float32")
    assert lab.returned(ECHO, "pkg.mod.echo", value=value).data == value.data


def test_literals_are_converted_to_objects(lab):
    process = lab.open(lab.write(ECHO))
    kinds = {
        "torch.Tensor": tensor([1.0], "float32"),
        "numpy.ndarray": Array(("a", 1)),
        "builtins.tuple": Tuple((1,)),
        "torch.device": Device("cpu"),
        "pkg.mod.Options": New("pkg.mod.Options", {"clip": 0.5, "parts": [tensor([1.0], "float32")]}),
        "pkg.mod.Colour": Attribute("pkg.mod.Colour.RED"),
        "builtins.function": Attribute("pkg.mod.echo"),
        "builtins.dict": {"a": {"b": 1}},
    }
    for kind, literal in kinds.items():
        assert returned(lab.probe(process, "pkg.mod.kind", value=literal)) == kind
    assert returned(lab.probe(process, "pkg.mod.attribute", value=Namespace({"x": [1, 2]}), name="x")) == [1, 2]


def test_a_missing_attribute_of_a_namespace_is_drift(lab):
    answer = lab.call(ECHO, "pkg.mod.attribute", value=Namespace({"x": 1}), name="gae_timestep_unit")
    assert answer.kind == "drift"
    assert "'gae_timestep_unit'" in answer.reason


def test_results_are_converted_to_data(lab):
    found = lab.returned(ECHO, "pkg.mod.zoo")
    assert found == {
        "enum": "Colour.RED",
        "options": {"clip": 0.5, "parts": [1]},
        "odd": {"type": "pkg.mod.Odd"},
        "dtype": "float32",
        "device": "cpu",
        "scalar": 0.5,
        "array": tensor([0, 1], "int32"),
        "objects": ["a", None],
        "tuple": [1, True, None],
        "set": [1, 3],
        "half": tensor([1.5], "bfloat16"),
        "empty": Tensor("float32", (0, 2), b""),
        "bool": tensor(True, "bool"),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 1), (2, 0), ()])
def test_a_non_contiguous_tensor_has_other_values_in_between(dtype, shape, lab):
    count = math.prod(shape)
    value = Tensor(dtype, shape, tensor([0, 1, 1, 0, 1, 0][:count], dtype).data, contiguous=False)
    process = lab.open(lab.write(ECHO))
    assert returned(lab.probe(process, "pkg.mod.echo", value=value)) == replace(value, contiguous=True)
    apart = count > 1
    assert returned(lab.probe(process, "pkg.mod.layout", value=value))[0] is not apart
    if apart:
        assert returned(lab.probe(process, "pkg.mod.between", value=value)) is True


@pytest.mark.parametrize(
    ("name", "word"),
    [("meta", "meta"), ("sparse", "sparse"), ("complex_numbers", "complex64"), ("itself", "Recursion")],
)
def test_a_result_that_is_not_data_is_named(name, word, lab):
    answer = lab.call(ECHO, f"pkg.mod.{name}")
    assert answer.kind == "raised"
    assert word in answer.reason


@given(st.lists(st.floats(width=16, allow_nan=False)))
def test_bfloat16_rounds_to_nearest_even(values):
    for value, rounded in zip(values, tensor(values, "bfloat16").nested(), strict=True):
        if math.isinf(value) or math.isinf(rounded):
            assert abs(value) > 3.3e38
        else:
            assert abs(value - rounded) <= abs(value) * 2.0**-8


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1], [1, 2]], "float32"),
        (["1"], "float32"),
        ([None], "float32"),
        ([0.5], "int64"),
        ([300], "uint8"),
        ([-1], "uint8"),
        ([2], "bool"),
        ([1 << 64], "int64"),
        ([math.nan], "int64"),
        ([2.0**63], "int64"),
        ([1], "float8"),
    ],
    ids=str,
)
def test_an_invalid_tensor_record_is_rejected(values, dtype):
    with pytest.raises(ValueError, match=r".+"):
        tensor(values, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_numbers_are_tagged(dtype):
    made = tensor([math.nan, math.inf, -math.inf, 1.0], dtype, requires_grad=True)
    assert plain(made) == ["NaN", "Infinity", "-Infinity", 1.0]
    assert typed({"x": made}) == {"x": {"dtype": dtype, "shape": [4], "tensor": plain(made), "requires_grad": True}}
    assert typed(replace(made, contiguous=False))["contiguous"] is False


def test_an_adapter_creates_tensors_on_the_scenarios_device(tmp_path):
    made = "def made():\n    return torch.arange(3), torch.ones(1, device='cpu')\n"
    (tmp_path / "adapter.py").write_text(f"import torch\n{made}")
    adapter = load_file(tmp_path / "adapter.py")
    with tensors.on_device("meta"):
        assert [str(value.device) for value in adapter.made()] == ["meta", "cpu"]
        assert str(torch.arange(3).device) == "cpu"  # the framework's own call


def test_a_gpu_is_selected_by_its_number(monkeypatch):
    """PyTorch rejects ``cuda`` without a number there."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
    for switch in ("set_num_threads", "set_deterministic_debug_mode"):  # this process runs other tests too
        monkeypatch.setattr(torch, switch, lambda value: None)
    probe.settle("cuda")
    probe.settle("cuda:1")
    assert chosen == [0, 1]
