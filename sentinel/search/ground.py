"""Where a search takes place."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.checkout import Checkout
from sentinel.outcomes import Environment
from sentinel.proof import Sources
from sentinel.refs import Ref
from sentinel.search.bench import Bench


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
