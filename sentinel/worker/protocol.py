"""Frames between the controller and its worker processes: JSON for structure, raw bytes for tensors.

Nothing is ever unpickled: what arrives from a process that ran a stranger's code is data and stays data.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from sentinel.values import Array, Attribute, Device, Namespace, New, Tensor, Tuple

#: A frame is this header (length of the JSON part, length of the bytes part) and the two parts.
_HEADER = struct.Struct(">QQ")

#: A thousand times what any shipped recipe observes; a longer frame is refused before it is read. As evidence, which is
#: text, the numbers of such a frame take half a gigabyte of the controller's memory and half a minute.
MAX_FRAME = 8 * 1024 * 1024

#: Of that, structure: as objects it takes fifty times the room that it takes as text.
MAX_TEXT = 4 * 1024 * 1024

_TAG = "$"


class ProtocolError(Exception):
    """The other end sent something that is no frame."""


def encode(value: Any) -> bytes:
    """Encode scalars, lists, string-keyed mappings and the literals of :mod:`sentinel.values` as one frame.

    :raises TypeError: for anything else, naming its type.
    """
    blobs: list[bytes] = []
    text = json.dumps(_encode(value, blobs), separators=(",", ":")).encode()
    body = b"".join(blobs)
    return _HEADER.pack(len(text), len(body)) + text + body


def decode(frame: bytes) -> Any:
    """The inverse of :func:`encode`.

    :raises ProtocolError: where the bytes are no frame.
    """
    try:
        text_length, body_length = _HEADER.unpack_from(frame)
        if text_length > MAX_TEXT:
            raise ProtocolError("a frame with more structure than any answer has")
        start = _HEADER.size + text_length
        if start + body_length != len(frame):
            raise ProtocolError("a frame of the wrong length")
        at = [0]
        value = _decode(json.loads(frame[_HEADER.size : start]), frame[start:], at)
        if at[0] != body_length:
            raise ProtocolError("bytes that belong to no tensor")
        return value
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"not a frame: {error}") from None


def frame_length(start: bytes | bytearray) -> int | None:
    """The whole length of the frame that begins with these bytes; None while its header is not complete."""
    if len(start) < _HEADER.size:
        return None
    text_length, body_length = _HEADER.unpack_from(start)
    return int(_HEADER.size + text_length + body_length)


def fits(frame: bytes) -> bool:
    """Whether whoever receives an encoded frame will read it."""
    return len(frame) <= MAX_FRAME and int(_HEADER.unpack_from(frame)[0]) <= MAX_TEXT


def send(channel: socket.socket, value: Any) -> None:
    channel.sendall(encode(value))


def receive(channel: socket.socket) -> Any:
    """Read one frame.

    :raises EOFError: where the other end is gone.
    :raises ProtocolError: where it sent no frame.
    """
    header = _read(channel, _HEADER.size)
    text_length, body_length = _HEADER.unpack(header)
    if text_length + body_length > MAX_FRAME or text_length > MAX_TEXT:
        raise ProtocolError("a frame over the size limit")
    return decode(header + _read(channel, text_length + body_length))


def _read(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other end is gone")
        parts += part
    return bytes(parts)


def _encode(value: Any, blobs: list[bytes]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
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
    if isinstance(value, Array):
        return {_TAG: "array", "v": [_encode(item, blobs) for item in value.values], "d": value.dtype}
    if isinstance(value, Tuple):
        return {_TAG: "tuple", "v": [_encode(item, blobs) for item in value.items]}
    if isinstance(value, Namespace):
        return {_TAG: "namespace", "v": _encode(dict(value.attributes), blobs)}
    if isinstance(value, New):
        return {_TAG: "new", "p": value.path, "v": _encode(dict(value.arguments), blobs)}
    if isinstance(value, Attribute):
        return {_TAG: "attribute", "p": value.path}
    if isinstance(value, Device):
        return {_TAG: "device", "p": value.name}
    if hasattr(value, "items"):
        return _encoded_mapping(value, blobs)
    raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be sent")


def _encoded_mapping(value: Any, blobs: list[bytes]) -> dict[str, Any]:
    pairs = [[key, _encode(item, blobs)] for key, item in value.items()]
    if not all(isinstance(key, str) for key, _ in pairs):
        raise TypeError("a mapping with keys that are no strings cannot be sent")
    return {_TAG: "map", "v": pairs}


def _decode(node: Any, body: bytes, at: list[int]) -> Any:
    # Tensors lie in the body in the order in which the JSON names them, so a running offset is enough.
    if isinstance(node, list):
        return [_decode(item, body, at) for item in node]
    if not isinstance(node, dict):
        return node
    tag = node[_TAG]
    if tag == "tensor":
        size = _natural(node["n"])
        data = body[at[0] : at[0] + size]
        at[0] += size
        shape = tuple(_natural(n) for n in node["s"])
        return _tensor(Tensor(str(node["d"]), shape, data, bool(node["g"]), bool(node.get("c", True))))
    if tag == "map":
        return {str(key): _decode(item, body, at) for key, item in node["v"]}
    if tag == "array":
        return Array(tuple(_decode(node["v"], body, at)), str(node["d"]))
    if tag == "tuple":
        return Tuple(tuple(_decode(node["v"], body, at)))
    if tag == "namespace":
        return Namespace(_mapping(node["v"], body, at))
    if tag == "new":
        return New(str(node["p"]), _mapping(node["v"], body, at))
    if tag == "attribute":
        return Attribute(str(node["p"]))
    if tag == "device":
        return Device(str(node["p"]))
    raise ProtocolError(f"an unknown tag {tag!r}")


def _mapping(node: Any, body: bytes, at: list[int]) -> dict[str, Any]:
    value = _decode(node, body, at)
    if not isinstance(value, dict):
        raise ProtocolError("attributes that are no mapping")
    return value


def _natural(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ProtocolError(f"{number!r} is no size")
    return number


def _tensor(value: Tensor) -> Tensor:
    try:
        value.array()  # shape, dtype and bytes must agree, or the frame is a forgery
    except (ValueError, KeyError) as error:
        raise ProtocolError(f"a tensor that is none: {error}") from None
    return value
