"""A fork instead of upstream: the same target from another repository, with a mirror of its own."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from sentinel.sources.urls import checked_url
from sentinel.targets import Target

_MARK = ".fork-"


def base_name(name: str) -> str:
    """The target's name, of its own mirror's name or of a fork's."""
    return name.partition(_MARK)[0]


def fork(target: Target, url: str | None) -> Target:
    """The target as a fork has it; the target itself where there is no URL or it is upstream's own.

    A fork's branches are not upstream's, so it never shares a mirror with it: ``verl.fork-1a2b3c4d``.

    :raises SentinelError: where the URL is none that git may be given.
    """
    if url is None or checked_url(url) == target.repository:
        return target
    return replace(target, name=f"{target.name}{_MARK}{hashlib.sha256(url.encode()).hexdigest()[:8]}", repository=url)
