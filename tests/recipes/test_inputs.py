import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.contracts.contract import Input
from sentinel.recipes.addresses import Address, AddressError, parse_address
from sentinel.recipes.inputs import LiteralError, read_any, read_input
from sentinel.values.literals import Array, Attribute, Device, Namespace, New, Tuple, tensor

PACKAGES = ("toy", "toy_plugins")


def spec(kind: str, dtype: str = "float32") -> Input:
    return Input("x", kind, "an input", dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "dtype", "written", "literal"),
    [
        ("tensor", "int64", [[1, 0]], tensor([[1, 0]], "int64")),
        ("tensor", "bool", [1, 0], tensor([True, False], "bool")),
        ("tensor", "float32", 2, tensor(2.0, "float32")),
        ("tensor", "float32", {"tensor": [1.0]}, tensor([1.0], "float32")),
        ("tensor", "float32", {"tensor": [1], "dtype": "int32"}, tensor([1], "int32")),
        ("tensor", "float32", {"tensor": [1.0], "requires_grad": True}, tensor([1.0], "float32", True)),
        ("tensor", "float32", {"full": 0.5, "shape": [2, 1]}, tensor([[0.5], [0.5]], "float32")),
        ("tensor", "int64", {"tensor": [1, 0], "contiguous": False}, tensor([1, 0], "int64", contiguous=False)),
        ("tensor", "bool", {"full": 1, "shape": [2], "contiguous": False}, tensor([1, 1], "bool", contiguous=False)),
        ("tensor", "int64", {"full": 7, "shape": []}, tensor(7, "int64")),
        ("number", "", 3, 3),
        ("number", "", "Infinity", math.inf),
        ("number", "", {"tensor": 2.0}, tensor(2.0, "float32")),
        ("string", "", "NaN", "NaN"),
        ("labels", "", ["p", 1], ["p", 1]),
        ("mapping", "", {"device": "cpu", "tensor": None}, {"device": "cpu", "tensor": None}),
    ],
)
def test_a_value_is_converted_to_its_input_kind(kind, dtype, written, literal):
    assert read_input(spec(kind, dtype), written, PACKAGES) == literal


@pytest.mark.parametrize(
    ("kind", "written", "words", "place"),
    [
        ("tensor", [[1.0], [1.0, 2.0]], "ragged: [1] has length 2, but [0] has length 1", (1,)),
        ("tensor", [1.0, [2.0]], "ragged: [1] has length 1, but [0] is a number", (1,)),
        ("tensor", [[1.0, "a"]], "expected a number, found the string 'a'", (0, 1)),
        ("tensor", [[1.0, None]], "found null", (0, 1)),
        ("tensor", "abc", "expected a tensor", ()),
        ("tensor", {"tensr": [1.0]}, "did you mean 'tensor'?", ()),
        ("tensor", {"tensor": [1.0], "dtyp": "float32"}, "did you mean 'dtype'?", ("dtyp",)),
        ("tensor", {"tensor": [1, 1.5], "dtype": "int64"}, "the number 1.5 does not fit dtype int64", ("tensor", 1)),
        ("tensor", {"tensor": [300], "dtype": "uint8"}, "the number 300 does not fit dtype uint8", ("tensor", 0)),
        ("tensor", {"tensor": [1], "dtype": "int64", "requires_grad": True}, "needs a float dtype", ("requires_grad",)),
        ("tensor", {"tensor": [1.0], "requires_grad": "yes"}, "must be true or false", ("requires_grad",)),
        ("tensor", {"tensor": [1.0], "contiguous": "no"}, "must be true or false", ("contiguous",)),
        ("tensor", {"full": 0.0}, "needs a shape", ()),
        ("tensor", {"full": 0.0, "shape": [10**9, 10**9]}, "more than 1,000,000 elements", ("shape",)),
        ("tensor", {"full": 0.0, "shape": [0, 10**12]}, "more than 1,000,000 elements", ("shape",)),
        ("tensor", {"full": [1.0], "shape": [1]}, "{full: ...} needs a number", ("full",)),
        ("number", True, "expected a number, found the boolean true", ()),
        ("number", "0.1", "expected a number, found the string '0.1'", ()),
        ("integer", 2.0, "expected an integer", ()),
        ("boolean", 1, "expected true or false", ()),
        ("string", 1, "expected a string", ()),
        ("labels", ["p", None], "expected a string or a number at [1]", (1,)),
        ("labels", "ppq", "expected a list", ()),
        ("mapping", [1], "expected a mapping", ()),
        ("any", {"new": "os.system", "arguments": {}}, "outside the target's packages toy, toy_plugins", ("new",)),
        ("any", {"a": [{"attribute": "toy.x.__import__('os')"}]}, "is not a dotted path", ("a", 0, "attribute")),
        ("any", {"new": "toy.A", "argument": {}}, "did you mean 'arguments'?", ("argument",)),
        ("any", {"device": "cpu; rm"}, "is not a device", ("device",)),
        ("any", {"device": "cpu", "n": 1}, "a dictionary that has such keys as {mapping: {...}}", ("n",)),
        ("any", {"tensor": {"tensor": [1.0]}}, "write {mapping: {tensor: ...}}", ("tensor",)),
        ("any", {"tuple": 1}, "tuple takes a list", ("tuple",)),
        ("any", {"array": [1, "x"], "dtype": "int64"}, "expected a number", ("array", 1)),
        ("any", {"array": [1], "dtype": "bfloat16"}, "unknown dtype", ("dtype",)),
        ("any", {"namespace": {"a": {"tensor": [[1], [1, 2]]}}}, "ragged", ("namespace", "a", "tensor", 1)),
    ],
)
def test_an_invalid_value_names_the_expected_kind_and_the_place(kind, written, words, place):
    with pytest.raises(LiteralError) as caught:
        read_input(spec(kind), written, PACKAGES)
    assert words in caught.value.message
    assert caught.value.place == place


def test_typed_literals_can_be_nested():
    written = {
        "data": {"new": "toy.batch.Batch", "arguments": {"mask": {"tensor": [True]}, "n": 2}},
        "config": {"namespace": {"eps": 0.2, "mode": {"attribute": "toy.modes.Mode.MEAN"}}},
        "uid": {"array": ["p", "q"], "dtype": "object"},
        "sizes": {"tuple": [1, {"tensor": [1, 2]}]},
        "where": {"mapping": {"device": {"device": "cuda:0"}}},
        "plain": [1, None, {"k": "v"}],
        "count": {"array": [1, 2], "dtype": "int64"},
    }
    assert read_any(written, PACKAGES) == {
        "data": New("toy.batch.Batch", {"mask": tensor([True], "bool"), "n": 2}),
        "config": Namespace({"eps": 0.2, "mode": Attribute("toy.modes.Mode.MEAN")}),
        "uid": Array(("p", "q")),
        "sizes": Tuple((1, tensor([1, 2], "int64"))),
        "where": {"device": Device("cuda:0")},
        "plain": [1, None, {"k": "v"}],
        "count": Array((1, 2), "int64"),
    }


_words = st.text("abcdefgh_", min_size=1, max_size=6)


@pytest.mark.slow
@given(
    st.lists(
        _words.filter(lambda word: word[0].isalpha() and word != "difference"), min_size=2, unique=True, max_size=4
    ),
    _words,
)
def test_an_address_round_trips(names, key):
    for address in (Address((names[0],), key), Address((names[1], names[0]), key)):
        assert parse_address(str(address), names) == address
    assert parse_address(str(Address(("",), key))) == Address(("",), key)


@pytest.mark.parametrize("key", ["returned.pass@2", "returned.val/reward/mean@4", "returned.0.entropy:mean"])
def test_a_metric_is_addressed_by_its_own_name(key):
    assert parse_address(key, keys=None) == Address(("",), key)
    assert parse_address(f"base.{key}", ("base", "other")) == Address(("base",), key)


@pytest.mark.parametrize(
    ("text", "variants", "words"),
    [
        ("los", ("",), "did you mean 'loss'?"),
        ("loss", ("baseline", "outlier"), "write baseline.loss"),
        ("basline.loss", ("baseline", "outlier"), "did you mean 'baseline'?"),
        ("difference(outlier, basline).loss", ("baseline", "outlier"), "unknown variant 'basline'"),
        ("difference(outlier, outlier).loss", ("baseline", "outlier"), "always zero"),
        ("difference(a, b).loss", ("",), "has no variants"),
        ("baseline.", ("baseline",), "is not an address"),
        ("", ("",), "is not an address"),
        ("a b", ("",), "is not an address"),
        ("__import__('os')", ("",), "is not an address"),
    ],
)
def test_an_invalid_address_is_an_error(text, variants, words):
    with pytest.raises(AddressError) as caught:
        parse_address(text, variants, ("loss",))
    assert words in str(caught.value)
