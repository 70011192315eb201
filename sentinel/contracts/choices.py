"""Make random choices by reading bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Choices:
    """Implements :class:`~sentinel.contracts.contract.Choose`: each choice uses the next byte, or 0 after the last one.

    A search draws all bytes at once, which is cheap. Its later draws then do not depend on the number of choices that a
    law makes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def integer(self, low: int, high: int) -> int:
        assert high - low < 256
        return low if low == high else low + self._byte() % (high - low + 1)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def integers(self, count: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def permutation(self, count: int) -> list[int]:
        left = list(range(count))
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(count)]
