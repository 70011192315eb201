"""Encode messages between pytest's process and worker processes: JSON, followed by the bytes of tensors.

Nothing is unpickled: messages come from a process that ran foreign code, so they are parsed only as data.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

from sentinel.values.literals import WRITTEN, Array, Attribute, Device, Namespace, New, Tensor, Tuple

#: A frame is this header (length of the JSON part, length of the bytes part) and the two parts.
_HEADER = struct.Struct(">QQ")

#: Maximum bytes of a frame: a thousand times Sentinel's largest recipe. Longer frames are rejected unread.
MAX_FRAME = 8 * 1024 * 1024

#: Maximum bytes of a frame's JSON part. The parsed objects take fifty times as much memory.
MAX_TEXT = 4 * 1024 * 1024

#: Maximum number of values and containers in a frame; files of evidence may have four times as many. Each row of a
#: tensor counts, because a tensor without elements may have millions of rows.
MAX_VALUES = 1 << 18

#: Maximum depth of nested containers, and maximum number of a tensor's axes.
_DEEPEST = 32

_TAG = "$"
#: Tag of a literal -> the keys of its fields in a frame, in the order of the fields.
_KEYS = {"array": "vd", "tuple": "v", "namespace": "v", "new": "pv", "attribute": "p", "device": "p"}


class ProtocolError(Exception):
    """Raised if another process sent an invalid message."""


def encode(value: Any) -> bytes:
    """Encode scalars, lists, string-keyed mappings and tensor literals as one message (frame).

    :raises TypeError: for anything else.
    """
    blobs: list[bytes] = []
    text = json.dumps(_encode(value, blobs), separators=(",", ":")).encode()
    body = b"".join(blobs)
    return _HEADER.pack(len(text), len(body)) + text + body


def decode(frame: bytes) -> Any:
    """Decode a message that :func:`encode` made.

    :raises ProtocolError: if the bytes are not a valid frame.
    """
    try:
        text_length, body_length = _HEADER.unpack_from(frame)
        if text_length > MAX_TEXT:
            raise ProtocolError("the JSON part of a frame is too large")
        start = _HEADER.size + text_length
        if start + body_length != len(frame):
            raise ProtocolError("a frame has the wrong length")
        # Decoded first, because json.loads accepts lone surrogates in bytes, which no file name can contain.
        node = json.loads(str(frame[_HEADER.size : start], "utf-8"), object_pairs_hook=_object)
        reading = _Reading(frame[start:])
        value = reading.value(node, 0)
        if reading.at != body_length:
            raise ProtocolError("a frame has bytes after its last tensor")
        return value
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"the bytes are not a valid frame: {str(error)[:200]}") from None


def frame_length(start: bytes | bytearray) -> int | None:
    """Return the length of the message that begins with these bytes; None if its header is incomplete."""
    if len(start) < _HEADER.size:
        return None
    text_length, body_length = _HEADER.unpack_from(start)
    return int(_HEADER.size + text_length + body_length)


def fits(frame: bytes) -> bool:
    """Return True if a message is within the receiver's size limits."""
    try:
        decode(frame)
    except ProtocolError:
        return False
    return len(frame) <= MAX_FRAME


def send(channel: socket.socket, value: Any) -> None:
    channel.sendall(encode(value))


def receive(channel: socket.socket, deadline: float | None = None) -> Any:
    """Read one message. ``deadline`` is a time of ``time.monotonic``, or None for no limit.

    :raises EOFError: if the other process has closed the connection.
    :raises TimeoutError: if the frame is incomplete at the deadline.
    :raises ProtocolError: if the frame is invalid.
    """
    header = _read(channel, _HEADER.size, deadline)
    text_length, body_length = _HEADER.unpack(header)
    if text_length + body_length > MAX_FRAME or text_length > MAX_TEXT:
        raise ProtocolError("a frame is larger than the limit")
    return decode(header + _read(channel, text_length + body_length, deadline))


def _read(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other process has ended")
        parts += part
    return bytes(parts)


def _encode(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, str):
        return _sendable(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_encode(item, blobs) for item in value]
    if isinstance(value, dict):
        return _encoded_mapping(value, blobs)
    if isinstance(value, Tensor):
        blobs.append(value.data)
        return {
            _TAG: "tensor",
            "d": value.dtype,
            "s": list(value.shape),
            "n": len(value.data),
            "g": value.requires_grad,
            **({} if value.contiguous else {"c": False}),
        }
    if isinstance(value, bytes):
        blobs.append(value)
        return {_TAG: "bytes", "n": len(value)}
    if type(value) in WRITTEN:
        tag, *_ = WRITTEN[type(value)]
        parts = zip(_KEYS[tag], WRITTEN[type(value)].values())
        return {_TAG: tag, **{key: _encode(getattr(value, name), blobs) for key, name in parts}}
    if hasattr(value, "items"):
        return _encoded_mapping(value, blobs)
    raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be sent")


def _encoded_mapping(value: Any, blobs: list[bytes]) -> dict[str, Any]:
    pairs = [[key, _encode(item, blobs)] for key, item in value.items()]
    if not all(isinstance(key, str) for key, _ in pairs):
        raise TypeError("a mapping whose keys are not all strings cannot be sent")
    return {_TAG: "map", "v": [[_sendable(key), item] for key, item in pairs]}


def _sendable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    node = dict(pairs)
    if len(node) != len(pairs):
        raise ProtocolError("a mapping has a duplicate key")
    return node


class _Reading:
    """Parses the JSON of a message, reads the tensors from the bytes, and counts the values."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.at = 0
        self._left = MAX_VALUES

    def value(self, node: Any, depth: int) -> Any:
        self._count(1)
        if isinstance(node, str):
            return _text(node)
        if isinstance(node, list):
            if depth > _DEEPEST:
                raise ProtocolError(f"containers are nested deeper than {_DEEPEST}")
            return [self.value(item, depth + 1) for item in node]
        if isinstance(node, dict):
            return self._tagged(node, depth)
        if type(node) is int and not -(1 << 63) <= node < 1 << 64:
            raise ProtocolError("an integer has more than 64 bits")
        return node

    def _tagged(self, node: dict[str, Any], depth: int) -> Any:
        tag = node[_TAG]
        if tag == "tensor":
            return self._tensor(node)
        if tag == "map":
            return self._mapping(node["v"], depth + 1)
        if tag == "bytes":
            return self._bytes(node)
        if tag == "array":
            return Array(tuple(self.value(_list(node["v"]), depth + 1)), _text(node["d"]))
        if tag == "tuple":
            return Tuple(tuple(self.value(_list(node["v"]), depth + 1)))
        if tag == "namespace":
            return Namespace(self._attributes(node["v"], depth + 1))
        if tag == "new":
            return New(_text(node["p"]), self._attributes(node["v"], depth + 1))
        if tag == "attribute":
            return Attribute(_text(node["p"]))
        if tag == "device":
            return Device(_text(node["p"]))
        raise ProtocolError("a value has an unknown tag")

    def _mapping(self, pairs: Any, depth: int) -> dict[str, Any]:
        self._count(len(_list(pairs)))
        if depth > _DEEPEST:
            raise ProtocolError(f"containers are nested deeper than {_DEEPEST}")
        value = {_text(key): self.value(item, depth) for key, item in pairs}
        if len(value) != len(pairs):
            raise ProtocolError("a mapping has a duplicate key")
        return value

    def _attributes(self, node: Any, depth: int) -> dict[str, Any]:
        value = self.value(node, depth)
        if not isinstance(value, dict):
            raise ProtocolError("attributes must be a mapping")
        return value

    def _bytes(self, node: dict[str, Any]) -> bytes:
        start, self.at = self.at, self.at + _natural(node["n"])
        return self._body[start : self.at]

    def _tensor(self, node: dict[str, Any]) -> Tensor:
        shape = tuple(_natural(size) for size in _list(node["s"]))
        if len(shape) > _DEEPEST:
            raise ProtocolError(f"a tensor has more than {_DEEPEST} axes")
        rows = 1
        for size in shape:
            rows *= size
            self._count(rows)
        flags = (node["g"], node.get("c", True))
        if not all(isinstance(flag, bool) for flag in flags):
            raise ProtocolError("invalid tensor record: flags must be booleans")
        value = Tensor(_text(node["d"]), shape, self._bytes(node), *flags)
        try:
            value.array()  # shape, dtype and bytes disagree only in a forged frame
        except (ValueError, KeyError) as error:
            raise ProtocolError(f"invalid tensor record: {str(error)[:200]}") from None
        return value

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise ProtocolError(f"a frame has more than {MAX_VALUES} values")


def _text(node: Any) -> str:
    if not isinstance(node, str):
        raise ProtocolError("a value must be a string")
    if not node.isascii():
        node.encode()  # a lone surrogate has no bytes
    return node


def _list(node: Any) -> list[Any]:
    if not isinstance(node, list):
        raise ProtocolError("a value must be a list")
    return node


def _natural(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise ProtocolError("a size must be a non-negative integer")
    return number
