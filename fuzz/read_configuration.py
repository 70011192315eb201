"""A training configuration, as ``sentinel audit --config`` reads it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.recipes.affects import Affected
from sentinel.recipes.catalog import Catalog
from sentinel.targets import PackageRoot, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.composing import composed
from sentinel.tools.audit.declared import search_path
from sentinel.tools.audit.effective import training
from sentinel.tools.audit.files import flattened, read_mapping
from sentinel.tools.audit.options import Option, Options
from sentinel.tools.audit.reach import reach

_KEPT = tempfile.TemporaryDirectory()  # until the process ends
FILE = Path(_KEPT.name) / "training.yaml"

_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9)) for name in range(ord("b"), ord("k"))
)
FOUND = (
    _BOMB, b"a: &a {b: *a}\n", b"a: &a [*a]\n", b"a: " + b"[" * 100_000, b"a: 2026-99-99",
    b"a: 9999-12-31T23:59:59-12:00", b"a: !!set {x, y}", b"a: !!binary x",
    b"? [a]\n: b", b"a: 0x" + b"f" * 5000, b"a: " + b"9" * 5000,
    b"a: !!python/object/apply:os.system [x]", b"a: 1:99:99",
)  # fmt: skip

OPTIONS = (Options("toy", "toy.yaml", {"actor.loss_agg_mode": Option("token-mean"), "actor.lr": Option("1e-6")}),)
CATALOG = Catalog({}, {}, {}, ())
TARGET = Target("toy", "https://example.org/toy", (PackageRoot("toy"),))
COPY = Checkout("toy", Ref("installed"), FILE.parent, ("toy",), (FILE.parent,), "0" * 64)
AFFECTS = (Affected({"actor.loss_agg_mode": ["token-mean", "token-sum"], "actor.lr": "> 0"}, "a mask has gaps"),)


def seeds() -> Iterator[bytes]:
    yield from FOUND
    yield b"actor: {loss_agg_mode: token-mean, lr: 1e-6, on: yes, layers: [1, 2], none: ~}\n"
    yield b"defaults: &d {lr: 1.0}\nactor: {<<: *d, name: x}\n"
    yield b"actor: {loss_agg_mode: '${oc.select:algorithm.mode,token-sum}', lr: '${.lr}'}\n"
    yield b"hydra: {searchpath: [pkg://toy.config, 'file://toy', ~, {a: b}]}\ndefaults: [base, {actor: dp}, [x]]\n"
    yield b'{"critic": {"loss_agg_mode": "token-sum"}}'


def one(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        read = read_mapping(FILE)
        settings = flattened(read)
    except SentinelError:
        return
    composed(FILE, read, search_path(read, CATALOG, TARGET, COPY)[0])
    reach(AFFECTS, training(settings, OPTIONS))
