"""Where a search takes place."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.deciding.bench import Bench
from sentinel.deciding.outcomes import Environment
from sentinel.deciding.proof import Sources
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref


@dataclass(frozen=True)
class Ground:
    """One target at one ref, ready for a search.

    :ivar adapter: the digest of the adapter file.
    """

    target: str
    ref: Ref
    checkout: Checkout
    environment: Environment
    adapter: str
    bench: Bench
    sources: Sources
