"""What a test of ``sentinel impact`` gets back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
