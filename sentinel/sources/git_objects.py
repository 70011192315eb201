"""Read trees, file sizes and file contents from a git mirror."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sentinel.sources.gitbinary import GitError, Objects, run, run_bounded, run_checked
from sentinel.sources.trees import FILE, LINK, MOST_FILES, SUBMODULE, Entry, blob_id, check_path, is_ignored

#: Maximum bytes of git's listing of a revision: 200 for each of the MOST_FILES files.
_MOST_LISTED = MOST_FILES * 200


def commit_of(mirror: Path, name: str) -> str | None:
    """Return a commit's full hash, given its abbreviated hash or the hash of its tag; None if the mirror lacks it.

    :raises GitError: if the abbreviation is ambiguous.
    """
    assert not set(name) - set("0123456789abcdef"), name
    process = run(mirror, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    if process.status:
        if "ambiguous" in process.err:
            raise GitError(f"{name} is an ambiguous abbreviation of several commits; write more digits")
        return None
    return process.out.decode("ascii").strip().splitlines()[-1]


def commit_named(git_dir: Path, name: str, seconds: float | None = None) -> str:
    """Return the full hash of the commit that a name in a clone refers to; empty if the clone has no such commit."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    found = run(git_dir, *words, seconds=seconds)
    return found.out.decode().strip() if found.status == 0 else ""


def entries(mirror: Path, tree: str, paths: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Return the files below some folders of a commit, and the paths of its submodules.

    :param paths: the folders; empty for the whole tree.
    :returns: the files, with sizes in bytes (None if the blob is missing), and the submodule paths.
    """
    files, submodules = listing(mirror, tree, paths)
    size = sizes(mirror, [entry.blob for entry in files])
    return [replace(entry, size=size[entry.blob]) for entry in files], list(submodules)


def listing(
    mirror: Path, tree: str, paths: Sequence[str], seconds: float | None = None
) -> tuple[list[Entry], dict[str, str]]:
    """List files as :func:`entries` does, but faster, without file sizes, and with the commit of each submodule."""
    command = ("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", tree, *(("--", *paths) if paths else ()))
    output = run_bounded(mirror, *command, most=_MOST_LISTED, seconds=seconds)
    files: list[Entry] = []
    submodules: dict[str, str] = {}
    for record in output.decode("utf-8", "surrogateescape").split("\0"):
        description, tab, path = record.partition("\t")
        if not tab or is_ignored(path):
            continue
        if description.count(" ") != 2:
            raise GitError(f"git printed {record[:80]!r}, which is not a tree entry")
        mode, _, blob = description.split(" ")
        if mode == SUBMODULE:
            submodules[check_path(path)] = blob
        else:
            files.append(Entry(check_path(path), LINK if mode == LINK else FILE, blob, None))
    return files, submodules


def paths_of_work_tree(top: Path, git_dir: Path, seconds: float) -> list[str]:
    """Return the paths of a work tree's files, without the untracked files that a ``.gitignore`` excludes.

    Staged files count as tracked. ``.git/info/exclude`` and the user's ``core.excludesFile`` are not read. The path of
    a nested repository ends with a slash.
    """
    words = ("--work-tree", ".", "ls-files", "-z", "--cached", "--others", "--exclude-per-directory=.gitignore")
    output = run_bounded(git_dir, "-C", str(top), *words, most=_MOST_LISTED, seconds=seconds)
    return [path for path in output.decode("utf-8", "surrogateescape").split("\0") if path and not is_ignored(path)]


def sizes(mirror: Path, blobs: Iterable[str]) -> dict[str, int | None]:
    """Return the size of each blob in bytes; None if the mirror lacks the blob."""
    names = list(dict.fromkeys(blobs))
    if not names:
        return {}
    by_blob: dict[str, int | None] = dict.fromkeys(names)
    for words in _lookup(mirror, names):
        if len(words) == 3 and words[1] == "blob":
            by_blob[words[0]] = int(words[2])
    return by_blob


def _lookup(mirror: Path, names: Iterable[str]) -> list[list[str]]:
    """Return ``[name, kind, size]`` of each object, or ``[name, "missing"]``."""
    lines = "".join(f"{name}\n" for name in names).encode()
    out = run_checked(mirror, "cat-file", "--batch-check", "--buffer", data=lines)
    return [line.split() for line in out.decode("ascii", "replace").splitlines()]


def contents(mirror: Path, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each blob, once.

    :raises GitError: if the content of a blob has another hash.
    """
    with closing(Objects(mirror)) as objects:
        for blob in dict.fromkeys(blobs):
            content = objects.read(blob)
            if blob_id(content) != blob:
                raise GitError(f"object {blob} in {mirror} is damaged: its content has a different hash")
            yield blob, content


def ever_had(mirror: Path, paths: Sequence[str]) -> bool:
    """Return True if any commit of the mirror has a file under one of these paths."""
    return bool(run_checked(mirror, "log", "--all", "--full-history", "-1", "--format=%H", "--", *paths))


def absent_objects(mirror: Path) -> list[str]:
    """Return the names of objects that a ref needs but the mirror lacks, such as large files."""
    out = run_checked(mirror, "rev-list", "--objects", "--all", "--missing=print")
    return sorted(line[1:].decode("ascii") for line in out.splitlines() if line.startswith(b"?"))


def whole_refs(mirror: Path, refs: dict[str, str]) -> dict[str, str]:
    """Return the refs whose objects the mirror has."""
    here = {words[0] for words in _lookup(mirror, sorted(set(refs.values()))) if words[-1] != "missing"}
    return {name: sha for name, sha in refs.items() if sha in here}


def still_shallow(mirror: Path, commits: set[str]) -> set[str]:
    """Return the commits, among the given ones, whose parents the mirror lacks."""
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
