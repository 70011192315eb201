"""Open ``git:`` refs: read a target's packages at a commit from a mirror."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import checkouts, git_objects
from sentinel.sources.gitbinary import GitError, run
from sentinel.sources.gitrefs import is_sha
from sentinel.sources.home import Progress
from sentinel.sources.mirrors import MirrorStore
from sentinel.sources.trees import Entry, is_source, too_large
from sentinel.sources.urls import redact
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref


def open_git(
    target: Target, ref: Ref, store: MirrorStore, pull: int | None = None, progress: Progress | None = None
) -> Checkout:
    """Return the checkout of a commit. If the ref is a full hash and its checkout is stored, do not start git."""
    home = store.home
    if is_sha(ref.name):
        checkout = checkouts.find(home, target, ref, _key(target, ref, ref.name))
        if checkout is not None:
            return checkout
    commit = ref.name if ref.clone else store.resolve(target, ref.name, pull=pull, progress=progress)
    checkout = checkouts.find(home, target, ref, _key(target, ref, commit))
    if checkout is not None:
        return checkout
    if progress:
        progress(f"{target.name} {ref.short}: reading {commit[:12]}")
    try:
        revision = _materialise(target, ref, store, commit, progress)
    except GitError as error:
        raise Unavailable(
            f"{target.name}: {ref} cannot be read from its {'clone' if ref.clone else 'mirror'}: {error}"
        ) from error
    checkouts.remember(home, target, _key(target, ref, commit), revision.tree, {"commit": commit})
    return revision


def _key(target: Target, ref: Ref, commit: str) -> str:
    return checkouts.index_key(target, f"git-{commit}", ref.folder)


def _materialise(target: Target, ref: Ref, store: MirrorStore, commit: str, progress: Progress | None) -> Checkout:
    roots = [root.path for root in target.roots]
    git_dir = Path(ref.clone) if ref.clone else store.path(target.name)
    # The user's clone may have upstream's repository in a folder. In upstream's own commits, the code is at the top.
    inside = f"{commit}:{ref.folder}"
    has_folder = ref.folder and not run(git_dir, "cat-file", "-e", inside).status
    entries, submodules = git_objects.entries(git_dir, inside if has_folder else commit, roots)
    absent = [entry for entry in entries if entry.size is None and is_source(entry.path)]
    if absent and ref.clone:
        raise Unavailable(
            f"{target.name}: the clone lacks {absent[0].path} of {ref.short}; run "
            f"`git -C {git_dir.parent} fetch --refetch --no-filter`"
        )
    if absent:
        sizes = _fetch_sizes(target, ref, store, absent, progress)
        entries = [replace(entry, size=sizes.get(entry.blob, entry.size)) for entry in entries]
    left_out = [LeftOut(path, None, "a submodule") for path in submodules]
    for entry in entries:
        if entry.size is None:
            left_out.append(LeftOut(entry.path, None, "missing in the mirror"))
        elif (reason := too_large(entry.path, entry.size)) is not None:
            left_out.append(LeftOut(entry.path, entry.size, reason))

    def contents(selection: Sequence[Entry]) -> Iterable[tuple[Entry, bytes]]:
        places: dict[str, list[Entry]] = {}
        for entry in selection:
            places.setdefault(entry.blob, []).append(entry)
        for blob, content in git_objects.contents(git_dir, places):
            for entry in places[blob]:
                yield entry, content

    return checkouts.materialise(store.home, target, ref, entries, contents, left_out, commit=commit)


def _fetch_sizes(
    target: Target, ref: Ref, store: MirrorStore, absent: Sequence[Entry], progress: Progress | None
) -> dict[str, int | None]:
    blobs = sorted({entry.blob for entry in absent})
    files = f"{absent[0].path}{f' and {len(absent) - 1} more' if len(absent) > 1 else ''}"
    where = redact(store.url(target.name))
    try:
        store.fetch_blobs(target.name, blobs, progress)
    except SentinelError as error:
        raise Unavailable(
            f"{target.name}: {ref} needs {files}, which the mirror lacks, and fetching from {where} failed: {error}"
        ) from error
    sizes = git_objects.sizes(store.path(target.name), blobs)
    if None in sizes.values():
        raise Unavailable(f"{target.name}: {ref} needs {files}, which is missing in the mirror and at {where}")
    return sizes
