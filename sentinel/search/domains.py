"""What a search draws for a tensor: per domain, the values that it picks from.

Everything shrinks towards the first value of a pool, so the plainest one comes first. ``calm`` values are what a
training step meets every day; ``wild`` ones are what it meets once a month, and still must get right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """:ivar calm: everyday values; they keep their differences small, so that no honest float32 sum loses them.
    :ivar wild: rare but legal ones: extremes, ties that floats cannot represent, log-ratios beyond ±89.
    :ivar meaning: what they are, with the unit.
    """

    meaning: str
    calm: tuple[float, ...]
    wild: tuple[float, ...] = ()


DOMAINS: dict[str, Domain] = {
    "log_prob": Domain(
        "log-prob of a token, in nats, <= 0",
        (-1.0, -0.5, -2.0, -0.75, -1.25, -0.25, -1.5, -0.125, -3.0, -0.625),
        (-1e-6, -20.0, -45.0, -100.0, -120.0),
    ),
    "log_ratio": Domain(
        "difference of two log-probs of one token, in nats",
        (0.0, 0.25, -0.25, 0.5, -0.5, 0.125, 1.0, -1.0, 1.5, -1.5),
        (10.0, -10.0, 25.0, -25.0, 90.0, -90.0, 110.0, -110.0),
    ),
    "reward": Domain(
        "outcome reward of a response",
        (0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -0.5, 0.25),
        (0.1, 0.3, 0.7, 10.0, -10.0, 1000.0),
    ),
    "advantage": Domain(
        "advantage of a token",
        (1.0, -1.0, 0.5, -0.5, 0.25, -0.25, 2.0, -2.0, 0.0, 1.5),
        (1e-6, 10.0, -10.0, 100.0),
    ),
    "value": Domain(
        "a critic's value or return",
        (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 0.25, -2.0, 1.5, 0.75),
        (10.0, -10.0, 1000.0),
    ),
    "loss": Domain(
        "per-token loss",
        (1.0, 2.0, 0.5, -1.0, 3.0, 0.25, -0.5, 4.0, 0.0, 5.0),
        (100.0, -100.0, 1e4),
    ),
    "weight": Domain(
        "importance weight, >= 0",
        (1.0, 0.5, 2.0, 0.25, 1.5, 0.75),
        (0.0, 1e-4, 5.0, 100.0),
    ),
    "entropy": Domain(
        "entropy of the policy at a token, in nats, >= 0", (1.0, 0.5, 2.0, 0.25, 1.5, 0.75), (0.0, 1e-4, 11.0)
    ),
    "token_id": Domain("number of a token in the vocabulary", (1, 2, 3, 4, 5, 6, 7, 0)),
}
