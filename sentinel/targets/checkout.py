"""Define a checkout: a target's packages at one revision, on disk, verified by hashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sentinel.targets.refs import Ref


@dataclass(frozen=True)
class LeftOut:
    """A file of the revision that a checkout omits: a large file that is not source code, or missing in the mirror."""

    path: str
    size: int | None
    reason: str


@dataclass(frozen=True)
class Checkout:
    """A target's packages at one ref, on disk.

    :ivar path: the read-only directory with the package roots at their repository paths.
    :ivar import_roots: absolute directories for ``sys.path``, in order.
    :ivar tree: sha256 over the contents of the package roots. It is the same for every kind of source.
    :ivar digest: ``sha256:<hex>`` of the wheel, if the source is pypi.
    :ivar source: the git directory or folder from which the code was read; None for a PyPI release.
    :ivar patched: ``sha256:<hex>`` of the fix that was applied to the commit, if any.
    """

    target: str
    ref: Ref
    path: Path
    roots: tuple[str, ...]
    import_roots: tuple[Path, ...]
    tree: str
    commit: str | None = None
    version: str | None = None
    digest: str | None = None
    dirty: bool = False
    patched: str | None = None
    left_out: tuple[LeftOut, ...] = field(default=())
    source: Path | None = field(default=None, compare=False)

    @property
    def key(self) -> str:
        return self.ref.key(self.tree)
