"""Open ``path:`` and ``installed`` refs: copy local files into the store, from which workers import them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import checkouts, git_objects
from sentinel.sources.gitbinary import git_dir_of, top_of
from sentinel.sources.home import Home
from sentinel.sources.trees import (
    FILE,
    LINK,
    Entry,
    blob_id,
    check_path,
    is_ignored,
    streamed_blob_id,
    too_large,
    tree_hash,
)
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref
from sentinel.worker import interpreters

#: Seconds that git may take to read the commit of a work tree.
_PATIENCE = 20.0

#: A script for the interpreter whose packages are opened. It locates each package without importing it.
_FIND = """
import importlib.util, json, os, sys
from importlib import metadata
found = {}
for name in sys.argv[2:]:
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if os.path.isdir(folder):
            found[name] = os.path.abspath(folder)
            break
try:
    version = metadata.version(sys.argv[1])
except metadata.PackageNotFoundError:
    version = None
print(json.dumps({"found": found, "version": version}))
"""


def open_path(target: Target, ref: Ref, home: Home) -> Checkout:
    """Return the checkout of a working tree, including uncommitted changes.

    :raises Unavailable: if the folder has none of the package roots.
    """
    top = Path(os.path.expanduser(ref.name)).absolute()
    if not top.is_dir():
        raise Unavailable(f"{target.name}: {top} is not a directory")
    places = {root.path: top / root.path for root in target.roots}
    # Exclude roots that are a link out of the directory, or that are reached through one.
    inside = (name for name, path in places.items() if path.is_dir() and path.resolve().is_relative_to(top.resolve()))
    roots = {name: places[name] for name in inside}
    if not roots:
        names = ", ".join(root.path for root in target.roots)
        raise Unavailable(f"{target.name}: {top} has none of its package roots; looked for {names}")
    tree = _Files(roots)
    commit, head_tree = _head(target, top)
    dirty = commit is not None and tree_hash(tree.entries) != head_tree
    return checkouts.materialise(
        home, target, ref, tree.entries, tree.contents, tree.left_out, commit=commit, dirty=dirty
    )


def open_installed(target: Target, ref: Ref, home: Home, python: str | None = None) -> Checkout:
    """Return the checkout of a target that is installed in an interpreter's environment.

    :param python: the interpreter; None for the running one.
    :raises Unavailable: if the interpreter does not run, or the target is not installed there.
    """
    try:
        # With -I, packages in the current folder and in PYTHONPATH do not count as installed.
        names = (target.pypi or target.name, *target.packages)
        answer = interpreters.ask(python, "-I", "-c", _FIND, *names, packages=target.packages)
    except interpreters.InterpreterError as error:
        raise Unavailable(f"{target.name}: {error}") from None
    folders = {
        root.path: Path(answer["found"][root.package]) for root in target.roots if root.package in answer["found"]
    }
    if not folders:
        looked_for = ", ".join(target.packages)
        raise Unavailable(f"{target.name} is not installed for {python or sys.executable}; looked for {looked_for}")
    tree = _Files(folders, follow=True)
    return checkouts.materialise(
        home, target, ref, tree.entries, tree.contents, tree.left_out, version=answer["version"]
    )


class _Files:
    """The files in some folders. Each file is read only once, so that its hash and its copy have the same content."""

    def __init__(self, roots: dict[str, Path], follow: bool = False) -> None:
        """Read all files in the folders ``roots``. Follow links if ``follow`` is true, because installers such as uv
        link into their cache."""
        self.entries: list[Entry] = []
        self.left_out: list[LeftOut] = []
        self._content: dict[str, bytes] = {}
        for root, folder in roots.items():
            for name, path in _walk(folder, root, follow):
                try:
                    self._read(name, path, follow)
                except OSError as error:
                    raise Unavailable(f"{path} cannot be read: {error.strerror}") from error

    def contents(self, selection: Sequence[Entry]) -> Iterable[tuple[Entry, bytes]]:
        return ((entry, self._content[entry.path]) for entry in selection)

    def _read(self, name: str, path: Path, follow: bool) -> None:
        status = path.stat() if follow else path.lstat()
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
            self.entries.append(Entry(name, LINK, blob_id(content), len(content)))
            self._content[name] = content
        elif not stat.S_ISREG(status.st_mode):
            self.left_out.append(LeftOut(name, None, "neither a file nor a link"))
        elif (reason := too_large(name, status.st_size)) is not None:
            with path.open("rb") as file:
                blob = streamed_blob_id(file, status.st_size)
            self.entries.append(Entry(name, FILE, blob, status.st_size))
            self.left_out.append(LeftOut(name, status.st_size, reason))
        else:
            content = path.read_bytes()
            self.entries.append(Entry(name, FILE, blob_id(content), len(content)))
            self._content[name] = content


def _walk(folder: Path, name: str, follow: bool) -> Iterator[tuple[str, Path]]:
    with os.scandir(folder) as entries:
        items = sorted(entries, key=lambda item: item.name)
    for item in items:
        path = f"{name}/{item.name}"
        if is_ignored(path):
            continue
        if item.is_dir(follow_symlinks=False):
            if not (Path(item.path) / ".git").exists():  # the files of a submodule are not in its parent's commit
                yield from _walk(Path(item.path), path, follow)
        elif not follow or item.is_file():
            yield check_path(path), Path(item.path)


def _head(target: Target, top: Path) -> tuple[str | None, str | None]:
    """Return a working tree's commit and the tree hash of its packages in this commit; (None, None) if git cannot read
    them. The working tree is dirty if its files have another tree hash."""
    clone = top_of(top)
    if clone is None:
        return None, None
    try:
        git_dir = git_dir_of(clone)
        commit = git_objects.commit_named(git_dir, "HEAD", _PATIENCE)
        if not commit:
            return None, None
        prefix = top.relative_to(clone).as_posix()
        tree = commit if prefix == "." else f"{commit}:{prefix}"
        entries, _ = git_objects.listing(git_dir, tree, [root.path for root in target.roots], _PATIENCE)
    except (SentinelError, OSError, ValueError):
        return None, None
    return (commit, tree_hash(entries)) if entries else (None, None)
