"""What a test of ``sentinel impact`` gets back."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.values.literals import Tensor, from_array


@dataclass(frozen=True)
class Told:
    """:ivar document: ``impact.json``, where it was written."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def document(self) -> Any:
        return json.loads((self.folder / "impact.json").read_text())


#: ``impact(recipe document, *arguments, **changes of the recipe)``.
Impact = Callable[..., Told]


def float64(values: Any) -> Tensor:
    """What a boundary observes, of numbers."""
    return from_array(np.asarray(values, dtype=np.float64), "float64")
