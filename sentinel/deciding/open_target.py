"""Define a framework at one revision that a search can call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sentinel.deciding.law_session import LawSession
from sentinel.deciding.outcomes import Environment
from sentinel.deciding.proof import Sources
from sentinel.targets import Binding
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Failed


@dataclass(frozen=True)
class OpenTarget:
    """A framework at one revision, imported in a worker, whose boundaries a search can call.

    :ivar adapter: the digest of the adapter.
    :ivar load: a function that imports a binding's modules once, and returns a failure if the import ends the process.
    """

    target: str
    ref: Ref
    checkout: Checkout
    environment: Environment
    adapter: str
    law_session: LawSession
    sources: Sources
    load: Callable[[Binding], Failed | None]
