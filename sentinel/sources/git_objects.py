"""Reading a mirror: trees, sizes, contents. Nothing here ever reads anything but the mirror's own files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sentinel.sources.gitbinary import GitError, Objects, bounded, run, run_checked
from sentinel.sources.trees import FILE, LINK, MOST_FILES, SUBMODULE, Entry, blob_id, checked_path, ignored

#: Bytes of a listing: what git says of the most files that a revision may have, with long names.
_MOST_LISTED = MOST_FILES * 200


def commit_of(mirror: Path, name: str) -> str | None:
    """Give the commit that a hexadecimal name (perhaps short, perhaps a tag's) stands for, or None."""
    assert not set(name) - set("0123456789abcdef"), name
    process = run(mirror, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    if process.status:
        if "ambiguous" in process.err:
            raise GitError(f"{name} is the beginning of several commits; write more of it")
        return None
    return process.out.decode("ascii").strip().splitlines()[-1]


def entries(mirror: Path, tree: str, paths: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Give the files under some folders of a commit (all where none is named), with sizes as far as the blobs are
    there; and the paths of its submodules."""
    files, submodules = listing(mirror, tree, paths)
    size = sizes(mirror, [entry.blob for entry in files])
    return [replace(entry, size=size[entry.blob]) for entry in files], submodules


def listing(
    mirror: Path, tree: str, paths: Sequence[str], seconds: float | None = None
) -> tuple[list[Entry], list[str]]:
    """Like :func:`entries`, without looking for the blobs: no size is known."""
    ask = ("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", tree, *(("--", *paths) if paths else ()))
    output = bounded(mirror, *ask, most=_MOST_LISTED, seconds=seconds)
    files: list[Entry] = []
    submodules: list[str] = []
    for record in output.decode("utf-8", "surrogateescape").split("\0"):
        description, tab, path = record.partition("\t")
        if not tab or ignored(path):
            continue
        if description.count(" ") != 2:
            raise GitError(f"git lists {record[:80]!r}, which is no entry of a tree")
        mode, _, blob = description.split(" ")
        if mode == SUBMODULE:
            submodules.append(checked_path(path))
        else:
            files.append(Entry(checked_path(path), LINK if mode == LINK else FILE, blob, None))
    return files, submodules


def sizes(mirror: Path, blobs: Iterable[str]) -> dict[str, int | None]:
    """Say how large each blob is; None for one that the mirror does not have."""
    names = list(dict.fromkeys(blobs))
    if not names:
        return {}
    by_blob: dict[str, int | None] = dict.fromkeys(names)
    for words in _lookup(mirror, names):
        if len(words) == 3 and words[1] == "blob":
            by_blob[words[0]] = int(words[2])
    return by_blob


def _lookup(mirror: Path, names: Iterable[str]) -> list[list[str]]:
    """Ask git for each object's name, kind and size, or its name and ``missing``."""
    lines = "".join(f"{name}\n" for name in names).encode()
    out = run_checked(mirror, "cat-file", "--batch-check", "--buffer", data=lines)
    return [line.split() for line in out.decode("ascii", "replace").splitlines()]


def contents(mirror: Path, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield each blob once with its content, and check that the content has the blob's name."""
    with closing(Objects(mirror)) as objects:
        for blob in dict.fromkeys(blobs):
            content = objects.read(blob)
            if blob_id(content) != blob:
                raise GitError(f"object {blob} in {mirror} is damaged: its content is not what its name says")
            yield blob, content


def was_ever(mirror: Path, paths: Sequence[str]) -> bool:
    """Say whether a commit of any ref has, or had, something under one of some paths."""
    return bool(run_checked(mirror, "log", "--all", "--full-history", "-1", "--format=%H", "--", *paths))


def absent_objects(mirror: Path) -> list[str]:
    """Give every object that some ref needs and the mirror does not have: what was left out when it was made."""
    out = run_checked(mirror, "rev-list", "--objects", "--all", "--missing=print")
    return sorted(line[1:].decode("ascii") for line in out.splitlines() if line.startswith(b"?"))


def whole_refs(mirror: Path, refs: dict[str, str]) -> dict[str, str]:
    """Give the refs whose object is there."""
    here = {words[0] for words in _lookup(mirror, sorted(set(refs.values()))) if words[-1] != "missing"}
    return {name: sha for name, sha in refs.items() if sha in here}


def still_shallow(mirror: Path, commits: set[str]) -> set[str]:
    """Give those of the commits one of whose parents the mirror does not have."""
    parents: dict[str, list[str]] = {}
    for commit in commits:
        process = run(mirror, "cat-file", "commit", commit)
        if process.status == 0:
            header = process.out.split(b"\n\n", 1)[0].decode("utf-8", "replace")
            parents[commit] = [line[7:] for line in header.splitlines() if line.startswith("parent ")]
    every = sorted({parent for several in parents.values() for parent in several})
    if not every:
        return set()
    here = {words[0] for words in _lookup(mirror, every) if words[-1] != "missing"}
    return {commit for commit, several in parents.items() if not here.issuperset(several)}
