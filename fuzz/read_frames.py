"""What a process that ran a stranger's code sends to the controller."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sentinel.values.literals import Array, Attribute, Device, Namespace, New, Tensor, Tuple
from sentinel.worker import protocol

#: Of a header: more than there is, and more than there can be.
FOUND = (struct.pack(">QQ", 2**60, 2**60), struct.pack(">QQ", 2**64 - 1, 1), b"")


def seeds() -> Iterator[bytes]:
    yield from FOUND
    tensor = Tensor("float32", (2, 1), bytes(8), True)
    for value in (
        {"observation": {"": {"loss": tensor, "fields": ["a", "b"], "n": 3, "nan": float("nan")}}},
        {"failure": {"kind": "crash", "reason": "no", "traceback": "", "provenance": None}},
        [Array((1, "a", None), "object"), Attribute("a.b"), Device("cpu"), Tuple((1, tensor))],
        [Namespace({"a": New("pkg.Class", {"b": True})})],
    ):
        yield protocol.encode(value)
    text = b"[" * 100_000
    yield struct.pack(">QQ", len(text), 0) + text
    text = b'{"$":"tensor","d":"float32","s":[1152921504606846976,4],"n":4,"g":false}'
    yield struct.pack(">QQ", len(text), 4) + text + bytes(4)


def one(data: bytes) -> None:
    length = protocol.frame_length(data)
    assert length is None or length >= 16
    try:
        value = protocol.decode(data)
    except protocol.ProtocolError:
        return
    again = protocol.decode(protocol.encode(value))
    assert repr(again) == repr(value)
