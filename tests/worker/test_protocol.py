"""Frames arrive unchanged; invalid frames are rejected."""

import contextlib
import json
import math
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.values.literals import STORAGE, Array, Attribute, Device, Namespace, New, Tensor, Tuple
from sentinel.worker import protocol

_ITEM = {dtype: int(storage[-1]) for dtype, storage in STORAGE.items()}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(sorted(STORAGE)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = math.prod(shape) * _ITEM[dtype]
    data = draw(st.binary(min_size=size, max_size=size))
    return Tensor(dtype, shape, data, draw(st.booleans()), draw(st.booleans()))


_SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS | tensors() | st.builds(Attribute, st.text()) | st.builds(Device, st.text()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.builds(Tuple, st.lists(inner, max_size=3).map(tuple))
        | st.builds(Array, st.lists(_SCALARS, max_size=3).map(tuple))
        | st.builds(Namespace, st.dictionaries(st.text(), inner, max_size=2))
        | st.builds(New, st.text(), st.dictionaries(st.text(), inner, max_size=2))
    ),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_round_trips(value):
    frame = protocol.encode(value)
    assert protocol.decode(frame) == value
    assert protocol.frame_length(frame) == len(frame)


def test_nan_and_infinity_round_trip():
    back = protocol.decode(protocol.encode([math.nan, math.inf, -math.inf, -0.0]))
    assert math.isnan(back[0])
    assert back[1:3] == [math.inf, -math.inf]
    assert math.copysign(1, back[3]) == -1


@given(VALUES, st.data())
def test_a_truncated_frame_is_rejected(value, data):
    frame = protocol.encode(value)
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(frame[: data.draw(st.integers(0, len(frame) - 1))])


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_an_error(noise):
    _refused_or_read(noise)


@given(VALUES, st.data())
def test_a_changed_frame_gives_a_value_or_an_error(value, data):
    frame = bytearray(protocol.encode(value))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    _refused_or_read(bytes(frame))


def _refused_or_read(frame: bytes) -> None:
    with contextlib.suppress(protocol.ProtocolError):
        protocol.decode(frame)


def _frame(node: Any, body: bytes = b"") -> bytes:
    text = json.dumps(node).encode()
    return struct.pack(">QQ", len(text), len(body)) + text + body


def _tensor(**changes: Any) -> dict[str, Any]:
    return {"$": "tensor", "d": "float32", "s": [2], "n": 8, "g": False, **changes}


@pytest.mark.parametrize(
    ("node", "body"),
    [
        (_tensor(), b"short"),
        (_tensor(s=[3]), bytes(8)),
        (_tensor(s=[-1]), bytes(8)),
        (_tensor(s=[-1, -2]), bytes(8)),
        (_tensor(s=[2.5]), bytes(8)),
        (_tensor(s=[math.inf]), bytes(8)),
        (_tensor(s=[1 << 80]), bytes(8)),
        (_tensor(d="complex64"), bytes(8)),
        (_tensor(d=None), bytes(8)),
        (_tensor(n=-8), bytes(8)),
        (_tensor(n=0, s=[0]), bytes(8)),
        (_tensor(n=0, s=[15_000_000, 0]), b""),
        (_tensor(n=4, s=[1] * 33), bytes(4)),
        (_tensor(g=1), bytes(8)),
        ([0] * (protocol.MAX_VALUES + 1), b""),
        (1 << 64, b""),
        ("\ud800", b""),
        ({"$": "map", "v": [["a", 1], ["a", 2]]}, b""),
        ([_tensor(), _tensor()], bytes(8)),
        ({"$": "pickle", "v": "cos\nsystem\n"}, b""),
        ({"v": []}, b""),
        ({"$": ["map"], "v": []}, b""),
        ({"$": "map", "v": [["only a key"]]}, b""),
        ({"$": "namespace", "v": 3}, b""),
        ({"$": "tuple", "v": 3}, b""),
    ],
    ids=str,
)
def test_a_forged_frame_is_rejected(node, body):
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(_frame(node, body))


def test_a_deeply_nested_frame_is_rejected():
    text = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(protocol.ProtocolError):
        protocol.decode(struct.pack(">QQ", len(text), 0) + text)


@pytest.mark.parametrize("value", [{1: 2}, {None: 1}, object, {"a": {3}}, bytearray(), 1j], ids=repr)
def test_a_value_that_cannot_be_sent_is_named(value):
    with pytest.raises(TypeError, match="cannot be sent"):
        protocol.encode(value)


def test_frames_are_sent_over_a_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        protocol.send(ours, {"a": Tensor("float32", (1,), bytes(4))})
        protocol.send(ours, 2)
        assert protocol.receive(theirs) == {"a": Tensor("float32", (1,), bytes(4))}
        assert protocol.receive(theirs) == 2
        ours.sendall(struct.pack(">QQ", 10, 0) + b"[")
        ours.close()
        with pytest.raises(EOFError):
            protocol.receive(theirs)


def test_a_frame_has_one_deadline(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(protocol.time, "monotonic", lambda: float(next(clock)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\0" * 16)
        monkeypatch.setattr(protocol, "_read", lambda *_, whole=protocol._read: _by_bytes(whole, *_))
        with pytest.raises(TimeoutError):
            protocol.receive(theirs, 8.0)


def _by_bytes(whole: Any, channel: socket.socket, size: int, deadline: float | None) -> bytes:
    return b"".join(whole(channel, 1, deadline) for _ in range(size))


def test_an_oversized_frame_is_rejected_before_it_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack(">QQ", protocol.MAX_FRAME, 1))
        with pytest.raises(protocol.ProtocolError, match="larger than the limit"):
            protocol.receive(theirs)


def test_the_size_of_the_structure_is_limited():
    """Nested lists take fifty times the memory of their text. Tensors may still be large."""
    assert protocol.fits(protocol.encode(Tensor("float64", (1 << 17,), bytes(1 << 20))))
    bomb = b"[" + b"[]," * (protocol.MAX_TEXT // 3) + b"[]]"
    frame = struct.pack(">QQ", len(bomb), 0) + bomb
    assert not protocol.fits(frame)
    with pytest.raises(protocol.ProtocolError, match="JSON part of a frame is too large"):
        protocol.decode(frame)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame[:16])
        with pytest.raises(protocol.ProtocolError, match="larger than the limit"):
            protocol.receive(theirs)
