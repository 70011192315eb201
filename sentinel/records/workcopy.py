"""Change a working copy from one commit to another by writing only the files that differ.

Neighbouring commits differ in a few files, so a move takes a few milliseconds, whereas a whole checkout takes hundreds.
A sweep needs only one copy per lane, whatever the number of commits. A working copy has the same layout and metadata as
a checkout of :mod:`sentinel.sources.checkouts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.sources.checkouts import make_links, stamp
from sentinel.sources.gitbinary import LargeObjectError, MissingObjectError
from sentinel.sources.gittrees import TREE, Folder, GitTrees
from sentinel.sources.home import remove_tree
from sentinel.sources.trees import (
    FILE,
    LINK,
    MOST_BYTES,
    MOST_FILES,
    SUBMODULE,
    Entry,
    check_path,
    is_source,
    too_large,
    tree_hash,
)
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref


class WorkCopy:
    """A working copy of a target that can be changed to another commit.

    Not thread-safe. No process may run in the copy while it moves.

    :param folder: a folder for this copy alone. Existing files in it are removed.
    """

    def __init__(self, folder: Path, target: Target, trees: GitTrees) -> None:
        self._folder = folder
        self._target = target
        self._trees = trees
        self._empty()

    def _empty(self) -> None:
        remove_tree(self._folder)
        self._top = self._folder / "tree"
        self._top.mkdir(parents=True)
        os.chmod(self._top, 0o755)
        self._roots: dict[str, str] = {}
        self._entries: dict[str, Entry] = {}
        self._left_out: dict[str, LeftOut] = {}
        self._links: dict[str, str] = {}
        self._stamp = stamp(self._top)

    def move(self, commit: str, roots: Sequence[tuple[str, str]]) -> Checkout:
        """Change the working copy to a commit, and return its checkout.

        :raises Unavailable: if the commit has none of the package roots, or the mirror lacks a source file.
        """
        if not roots:
            paths = ", ".join(root.path for root in self._target.roots)
            raise Unavailable(f"{self._target.name}: git:{commit} has none of its package roots; looked for {paths}")
        untouched = False
        try:
            with suppress(OSError):  # measured code may have removed the folder
                untouched = stamp(self._top) == self._stamp
            if not untouched:
                self._empty()
            self._write(roots)
        except MissingObjectError as error:
            self._empty()
            raise Unavailable(f"{self._target.name}: git:{commit} cannot be read from the mirror: {error}") from error
        except BaseException:
            self._stamp = ""  # the next move starts from an empty folder
            raise
        return self._checkout(commit)

    def _write(self, roots: Sequence[tuple[str, str]]) -> None:
        for path in self._links:
            (self._top / path).unlink(missing_ok=True)
        self._visited = self._written = 0
        roots_now = dict(roots)
        before, after = _outermost(self._roots), _outermost(roots_now)
        # Remove before adding: a removed path may be the parent of a new path.
        for path in sorted({*before, *after}, key=lambda path: path in after):
            self._sync(path, before.get(path), after.get(path))
        self._roots = roots_now
        self._relink()
        self._stamp = stamp(self._top)

    def _checkout(self, commit: str) -> Checkout:
        files = [[e.path, e.mode, e.blob, e.size] for e in self._entries.values()]
        (self._folder / "files.json").write_text(json.dumps({"version": 1, "files": files}))
        here = [root for root in self._target.roots if root.path in self._roots]
        return Checkout(
            target=self._target.name,
            ref=Ref("git", commit),
            path=self._top,
            roots=tuple(root.path for root in here),
            import_roots=tuple(dict.fromkeys(self._top / r.import_root if r.import_root else self._top for r in here)),
            tree=tree_hash(self._entries.values()),
            commit=commit,
            left_out=tuple(self._left_out[path] for path in sorted(self._left_out)),
        )

    def _sync(self, path: str, old: str | None, new: str | None) -> None:
        if old == new:
            return
        before: Folder = self._trees.folder(old) if old else {}
        after: Folder = self._trees.folder(new) if new else {}
        place = self._top / path
        if new and not old:
            place.mkdir(parents=True, exist_ok=True)
            os.chmod(place, 0o755)  # whatever the umask is, because contained processes run as another user
        for name in {*before, *after}:
            was, now = before.get(name), after.get(name)
            if was == now:
                continue
            inner = check_path(f"{path}/{name}")  # an entry of a git tree may be named ``..``
            self._visited += 1
            if self._visited > MOST_FILES:
                raise Unavailable(f"{self._target.name}: a commit has more than {MOST_FILES} files; it is rejected")
            tree_was = was[1] if was and was[0] == TREE else None
            tree_now = now[1] if now and now[0] == TREE else None
            if was and not tree_was:
                self._left_out.pop(inner, None)
                self._links.pop(inner, None)
                if self._entries.pop(inner, None) is not None:
                    (self._top / inner).unlink(missing_ok=True)
            if tree_was or tree_now:
                self._sync(inner, tree_was, tree_now)
            if now and not tree_now:
                self._put(inner, *now)
        if old and not new:
            remove_tree(place)

    def _put(self, path: str, mode: str, blob: str) -> None:
        if mode == SUBMODULE:
            self._left_out[path] = LeftOut(path, None, "a submodule")
            return
        try:
            content = self._trees.blob(blob)
        except LargeObjectError as error:
            self._entries[path] = Entry(path, mode, blob, error.size)
            self._left_out[path] = LeftOut(path, error.size, too_large(path, error.size) or str(error))
            return
        except MissingObjectError:
            if mode == LINK or is_source(path):
                raise Unavailable(
                    f"{self._target.name}: the mirror lacks {path} of this commit; "
                    f"run `sentinel mirror update {self._target.name}`"
                ) from None
            self._entries[path] = Entry(path, FILE, blob, None)
            self._left_out[path] = LeftOut(path, None, "missing in the mirror")
            return
        self._entries[path] = Entry(path, mode, blob, len(content))
        if mode == LINK:
            self._links[path] = os.fsdecode(content)
        elif (reason := too_large(path, len(content))) is not None:
            self._left_out[path] = LeftOut(path, len(content), reason)
        else:
            self._written += len(content)
            if self._written > MOST_BYTES:
                raise Unavailable(f"{self._target.name}: a commit has more than {MOST_BYTES} bytes; it is rejected")
            place = self._top / path
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(place, 0o444)  # independent of the umask
            # Python detects stale byte code by the source's mtime and size. An mtime derived from the content differs
            # if the content does, even if a copy moves back and forth within a second.
            os.utime(place, (_time(blob), _time(blob)))

    def _relink(self) -> None:
        """Create all symbolic links again, after all files, because a link may lead to a file or to another link."""
        for path in [path for path, omission in self._left_out.items() if omission.reason == _LEADS_OUT]:
            del self._left_out[path]
        for path in make_links(self._top, self._links):
            self._left_out[path] = LeftOut(path, None, _LEADS_OUT)


_LEADS_OUT = "a symbolic link that leads out of the checkout"


def _outermost(roots: Mapping[str, str]) -> dict[str, str]:
    return {path: tree for path, tree in roots.items() if not any(path.startswith(f"{other}/") for other in roots)}


def _time(blob: str) -> int:
    return int(blob[:8], 16) & 0x7FFFFFFF
