"""Configuration."""

from dataclasses import dataclass, field
from typing import TypedDict


@dataclass
class LossSettings:
    clip: float = 0.2
    groups: list[str] = field(default_factory=list)


class Row(TypedDict):
    tokens: list[int]
