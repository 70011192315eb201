"""The class for the result of a command. It is not in ``conftest``, because other folders have a ``conftest`` too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def says(self, *sentences: str) -> Answer:
        """Check that the output contains each sentence on one line, and no traceback of Sentinel."""
        for sentence in sentences:
            assert any(sentence in line for line in self.text.splitlines()), self.text
        assert self.text.count("Traceback (most recent call last)") == self.text.count("upstream's traceback:")
        assert "INTERNALERROR" not in self.text
        return self


Run = Callable[..., Answer]
Snapshot = dict[str, bytes | None]
