"""Bindings for ROLL's remote batches, whose rows or columns are in a key-value store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sentinel import Binding, StandIn
from sentinel.binding import kit
from sentinel.binding.families import LAYOUTS, Container
from sentinel.binding.kit import torch

from .containers import CONTAINER, PROTOCOL

_REMOTES, _BACKEND = "roll.distributed.scheduler.remote_protocol", "roll.distributed.scheduler.transfer_backend"
_TIMER = StandIn("Timer", "measures the time of a transfer; its package is not needed")
#: Columns of ROLL's remote batches have one text or dictionary per row, and no lists of numbers.
_LAYOUTS = {"layouts": {name: layout for name, layout in LAYOUTS.items() if name != "prompt"}}
_STORE = StandIn("transfer_backend", "a dictionary in this process holds the rows and columns")


class _Store:
    """A key-value store of rows or of columns, which makes remote batches.

    :param kept: fields that a remote batch has in its cache; it fetches all others from the store.
    """

    def __init__(self, boundary: Any, fields: Mapping[str, Any], kept: Sequence[str]) -> None:
        self._pack, self._kept = boundary.imported[_BACKEND].create_tensordict, kept
        self._columns = {name: _as_column(column) for name, column in fields.items()}
        self._rows = {f"row {place}": place for place in range(len(fields["number"]))}
        self._module = boundary.imported[_REMOTES]

    def batch(self, owner: str, places: range | None = None, names: Sequence[str] | None = None) -> Any:
        """Make a remote batch of the rows at these places, with these columns. By default, it has all of them."""
        whole, chosen = places or range(len(self._rows)), names or [*self._columns]
        own = slice(whole.start, whole.stop)
        cached = {name: self._columns[name][own] for name in chosen if name in self._kept}
        cache = self._pack(cached) if cached else None
        if owner == "RowRemoteBatch":
            return self._module.RowRemoteBatch("train", None, chosen, [*self._rows][own], cache)
        keys = {name: f"{name} {whole.start}:{whole.stop}" for name in chosen}
        return self._module.ColumnRemoteBatch("train", None, keys, False, cache, len(whole))

    def put(self, _: str, keys: Sequence[str], columns: Mapping[str, Any], count: int) -> Any:
        """Store columns [rows] under the keys of their rows, and return a remote batch of them."""
        self._rows = {key: place for place, key in enumerate(keys)}
        self._columns |= columns
        return self.batch("RowRemoteBatch", range(count), [*columns])

    def get(self, partition: str, keys: Sequence[str], fields: Sequence[str]) -> Any:
        """Return rows (``keys``) of columns (``fields``), or columns (``keys``) that are stored as ``fields``."""
        if all(key in self._rows for key in keys):
            places = [self._rows[key] for key in keys]
            return self._pack({name: self._columns[name][places] for name in fields})
        stored = (field.split(" ") for field in fields)
        return self._pack(
            {key: self._columns[name][slice(*map(int, cut.split(":")))] for key, (name, cut) in zip(keys, stored)}
        )


def _as_column(column: Any) -> Any:
    import numpy

    if isinstance(column, torch.Tensor):
        return column
    made = numpy.empty(len(column), dtype=object)
    made[:] = column
    return made


def _operate(do: Callable[..., Sequence[Any]], boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run an operation on remote batches, and read the rows of each resulting batch.

    For an odd number of rows, the cache has every second column; otherwise, it is empty.
    """
    fields = inputs["fields"]
    store = _Store(boundary, fields, [*fields][:: 2 if len(fields["number"]) % 2 else len(fields)][: len(fields) // 2])
    stands = {"transfer_backend": kit.stand_in(get=store.get), "Timer": _time_nothing}
    with kit.swap_all(boundary.imported[_REMOTES], **stands):
        parts = [_read(part.materialize()) for part in do(boundary, inputs, store)]
    return {"parts": parts, "metas": [inputs["meta"]] * len(parts)}


def _time_nothing(**_: Any) -> Any:
    return contextlib.nullcontext(kit.bookkeeping(last=0.0))


def _read(data: Any) -> dict[str, Any]:
    columns = {name: data[name] for name in data.keys()}  # noqa: SIM118
    return {name: column if isinstance(column, torch.Tensor) else [*column] for name, column in columns.items()}


def _owner(boundary: Any) -> str:
    name: str = boundary.owner.__name__
    return name if name != "RemoteBatch" else "RowRemoteBatch"


def _chunked(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    batch, count = store.batch(_owner(boundary)), inputs["count"]
    parts: Sequence[Any] = boundary.function(batch, [min(count, len(batch) - at) for at in range(0, len(batch), count)])
    return parts


def _repeated(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    return [boundary.function(store.batch(_owner(boundary)), inputs["count"], inputs["surgery"] == "repeat")]


def _selected(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    order = torch.tensor(inputs["order"])
    forms = (order, order.numpy(), order.tolist())
    return [boundary.function(store.batch(_owner(boundary)), forms[len(order) % 3])]


def _united(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    """Unite two remote batches with the same rows. They have one column in common."""
    names = [*inputs["fields"]]
    one, other = names[:4], names[3:]
    return [boundary.function(*(store.batch(_owner(boundary), names=each) for each in (one, other)))]


def _cloned(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    return [boundary.function(store.batch(_owner(boundary)))]


def _joined(boundary: Any, inputs: Mapping[str, Any], store: _Store) -> Sequence[Any]:
    parts, start = [], 0
    for size in inputs["sizes"]:
        parts.append(store.batch(_owner(boundary), range(start, start + size)))
        start += size
    return [boundary.function(parts)]


def _sent(boundary: Any, inputs: Mapping[str, Any], data: Any) -> Sequence[Any]:
    """Send a container's columns to the store with ROLL in two steps, fetch them, and return them as a container."""
    first, second = data.select(["number", "tokens"], ["label"]), data.select(["weights", "flags"], [])
    store = _Store(boundary, inputs["fields"], ())
    backend = kit.stand_in(get=store.get, put=store.put)
    stands = {"transfer_backend": backend, "Timer": _time_nothing}
    with kit.swap_all(boundary.module, **stands), kit.swap_all(boundary.imported[_REMOTES], **stands):
        sent = boundary.owner.to_remote(first)
        both = sent.union(boundary.owner.to_remote(second, ref_data=sent))
        boundary.owner.prefetch(both)
        fetched = _read(both._remote_batch.materialize())
    return [CONTAINER(boundary, fetched, both.meta_info)]


_KINDS: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "chunk": (_chunked, ("split",)), "repeat": (_repeated, ("repeat", "tile")),
    "select_idxs": (_selected, ("reorder",)),
    "union": (_united, ("repeat",)), "clone": (_cloned, ("repeat",)), "_cat": (_joined, ("join",)),
    "cat": (_joined, ("join",)),
}  # fmt: skip


def _remote(owner: str, method: str) -> Binding:
    do, surgeries = _KINDS[method]
    fixed = {**_LAYOUTS, "remainder": 0, **({"count": 1} if method in ("union", "clone") else {})}
    one = {"surgery": surgeries[0]} if len(surgeries) == 1 else {}
    return Binding(
        f"{_REMOTES}.{owner}.{method}", "row_surgery", call=partial(_operate, do), imports=(_REMOTES, _BACKEND),
        stand_ins=(_STORE, _TIMER), fixed={**fixed, **one}, accepts={} if one else {"surgery": surgeries},
        requires=(_REMOTES,),
    )  # fmt: skip


_SENDING = Container(
    CONTAINER, common={"imports": (PROTOCOL, _REMOTES, _BACKEND), "stand_ins": (_STORE, _TIMER)}
)  # fmt: skip
BINDINGS = (
    *(_remote("RowRemoteBatch", name) for name in ("chunk", "repeat", "select_idxs", "union", "_cat")),
    *(_remote("ColumnRemoteBatch", name) for name in ("chunk", "select_idxs", "union", "clone", "_cat")),
    _remote("RemoteBatch", "cat"),
    *(
        _SENDING.surgery(
            f"{PROTOCOL}.DataProto.{name}", "repeat", _sent, fixed={"count": 1, **_LAYOUTS},
            requires=(f"{PROTOCOL}.DataProto.to_remote",),
        )
        for name in ("to_remote", "prefetch")
    ),
)  # fmt: skip
