"""What a contract is: the framework-independent meaning of a kind of boundary.

A contract is read by the controller (which never imports torch) and by the worker; functions that touch tensors
import torch inside themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

InputKind = Literal["tensor", "ragged", "number", "integer", "boolean", "string", "labels", "mapping", "any"]


class Required:
    """The default of an input that a scenario must give."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True)
class Input:
    """One canonical input of a contract.

    :ivar name: the field's term for it.
    :ivar kind: ``tensor``; ``ragged`` (a list of one-dimensional tensors); ``labels`` (one string or number a row);
        ``mapping`` (configuration, plain data); ``any`` (a typed literal of the recipe language); or a scalar kind.
    :ivar meaning: one sentence, with the unit.
    :ivar dtype: the dtype that a bare list takes.
    :ivar shape: symbolic dimensions, such as ``("batch", "tokens")``.
    :ivar default: what a scenario that leaves it out gets: a plain value, or a function of the scenario so far (inputs
        are filled in the order of declaration) that returns a literal; evidence lists it as a default.
    :ivar differentiable: whether gradients with respect to it are meaningful.
    """

    name: str
    kind: InputKind
    meaning: str
    dtype: str = "float32"
    shape: tuple[str, ...] = ()
    default: Any = REQUIRED
    differentiable: bool = False


@dataclass(frozen=True)
class Observed:
    """One observation key that a contract declares."""

    key: str
    meaning: str
    shape: tuple[str, ...] = ()


#: ``measure(call, inputs) -> observation``: runs in the worker. ``call(**canonical_inputs)`` is the real boundary
#: behind its adapter and returns the canonical outputs as a mapping.
Measure = Callable[[Callable[..., Mapping[str, Any]], Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Contract:
    """:ivar name: what recipes and adapters call it.
    :ivar summary: one sentence.
    :ivar source: the paper or definition it is written from.
    :ivar observes: every key that :attr:`measure` returns; a recipe that expects another key is wrong.
    :ivar oracle: the reference in float64: canonical inputs to canonical outputs, written from :attr:`source`.
    :ivar law: the name of the invariant that decides a published recipe that has variants but no expected values.
    :ivar open_keys: whether boundaries of this contract may add keys of their own (only the generic ``call``).
    """

    name: str
    summary: str
    source: str
    inputs: tuple[Input, ...]
    observes: tuple[Observed, ...]
    measure: Measure
    oracle: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    law: str | None = None
    open_keys: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def input(self, name: str) -> Input | None:
        return next((item for item in self.inputs if item.name == name), None)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(item.key for item in self.observes)
