"""A head's own declarations of its training options, as ``sentinel audit`` reads their defaults."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.tools.audit.declared import options_of_parser, options_of_tree
from sentinel.tools.audit.option_classes import options_of_class

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FILE = Path(_KEPT.name) / "options"

#: What says that a copy is broken there.
_REFUSED = (SyntaxError, ValueError, OSError, RecursionError, MemoryError, SentinelError)

FOUND = (
    b"class Train(Train):\n    a: Train = Train(a=Train())\n",
    b"class Train:\n    a: 'Train | None' = field(default_factory=lambda: Train(a=1))\n",
    b"class Train(" + b",".join([b"Train"] * 8) + b"):\n    a: int = 1\n",
    b"".join(b"class C%d(%s):\n    a: int = 1\n" % (n, b",".join([b"C%d" % (n + 1)] * 8)) for n in range(30))
    + b"class Train(C0):\n    b: int = 1\n",
    b"class Train:\n" + b"".join(b"    f%d: Train = None\n" % n for n in range(12)),
    b"class Train:\n    a: int = " + b"-" * 5000 + b"1\n",
    b"class Train:\n    a: int = " + b"(" * 150 + b")" * 150 + b"\n",
    b"x = " + b"9" * 5000 + b"\nclass Train:\n    a: int = x\n",
    b"from options import Train\n",
)


def seeds() -> Iterator[bytes]:
    yield from FOUND
    yield b"class Part:\n    n: int = 1\n\nclass Train:\n    part: Part = field(default_factory=Part)\n"
    yield b"class Train:\n    mode: Literal['a', 'b'] = 'a'\n    on: bool = field(default=True, metadata={'x': [1]})\n"
    yield b"parser.add_argument('--eps-clip', '-e', type=float, default=0.2, choices=[0.1, 0.2])\n"
    yield b"add('--on', action='store_true', dest='enabled')\nadd('--must', required=True)\n"
    yield b"actor: {lr: 1e-6, mode: '???'}\ndefaults: [x]\n"


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    for read in (options_of_parser, options_of_tree, lambda file: options_of_class(file, "Train", lambda module: file)):
        try:
            read(FILE)
        except _REFUSED:
            continue
