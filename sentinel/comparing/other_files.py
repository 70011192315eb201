"""List changed files that may affect training and that no boundary reads: settings, scripts and other sources.

Four kinds of files are left out because they cannot change a run: documentation, tests, CI and the packages' metadata.
The packages' Python files are left out because their definitions are compared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Protocol

from sentinel.comparing.units import parse
from sentinel.errors import SentinelError
from sentinel.search.inventory import names_signal
from sentinel.sources import git_objects
from sentinel.sources.checkouts import files
from sentinel.sources.gitbinary import GitError, git_dir_of
from sentinel.sources.trees import LINK, MOST_FILES, SOURCE_LIMIT, blob_id
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.worker.codes import LARGEST_SOURCE, read_source

#: Files that a training run does not read: hidden files, tests, documentation, pictures, CI and package metadata.
_APART = re.compile(
    r"(^|/)(\.|(tests?|docs?|docs?_\w+|ci)/|test_[^/]*$|setup\.py$|pyproject\b|codecov\.yml$"
    r"|(licen[sc]e|notice|readme|changelog|authors|codeowners|manifest|version)\b[^/]*$)|/conftest\.py$"
    r"|\.(md|mdx|rst|html?|css|js|png|jpe?g|gif|svg|ico|webp|pdf|mp4|avi|lock|cff|typed|qls)$",
    re.I,
)

#: Files in which ``#`` begins a comment.
_COMMENTED = re.compile(r"\.(py|ya?ml|toml|sh|bash|sbatch|slurm|ini|cfg|pth)$")

#: Files that run without an import: Python runs some of them at startup, and pytest runs the top folder's
#: ``conftest.py``.
_RUN_UNASKED = re.compile(r"(.*/)?(site|user)customize\.py|conftest\.py|.*\.pth")

#: Time limit in seconds for listing a revision with git.
_PATIENCE = 20.0


def may_matter(path: str) -> bool:
    """Return True if a file with this name may affect a training run."""
    return not _APART.search(path)


class Files(Protocol):
    """The files of a revision that may affect a training run.

    :ivar whole: whether files outside the packages are included. A release does not have them.
    """

    whole: bool

    def blobs(self, also: Iterable[str]) -> dict[str, str]:
        """Return the git blob hash of each file and the commit of each submodule, by path.

        :param also: the paths of the other revision. A working tree includes them even if git ignores them.
        """

    def read(self, path: str) -> bytes | None:
        """Return the content of a file of :meth:`blobs`; None for a submodule or an unreadable file."""


class CommitFiles:
    """The files and submodules of a commit, or of one folder in it."""

    whole = True

    def __init__(self, git_dir: Path, sha: str, folder: str = "") -> None:
        self._git_dir, self._sha, self._folder = git_dir, sha, f"{folder}/" if folder else ""

    @cached_property
    def _files(self) -> tuple[dict[str, str], dict[str, str]]:
        entries, submodules = git_objects.listing(self._git_dir, self._sha, (), _PATIENCE)
        blobs = {entry.path: entry.blob for entry in entries if entry.mode != LINK and may_matter(entry.path)}
        if not any(path.startswith(self._folder) for path in blobs):
            return blobs, submodules
        below, modules = (
            {path.removeprefix(self._folder): blob for path, blob in each.items() if path.startswith(self._folder)}
            for each in (blobs, submodules)
        )
        return below, modules

    def blobs(self, also: Iterable[str]) -> dict[str, str]:
        return self._files[0] | self._files[1]

    def read(self, path: str) -> bytes | None:
        if path in self._files[1]:
            return None
        with suppress(GitError):  # the mirror may lack the blob
            return next(content for _, content in git_objects.contents(self._git_dir, [self._files[0][path]]))
        return None


class _Folder:
    """The files of a release or working tree.

    In a git clone, files that ``.gitignore`` excludes are left out, except modules in the top folder or in a folder
    that contains a package, because Python can import these.
    """

    def __init__(self, checkout: Checkout) -> None:
        self.whole = checkout.source is not None
        self._checkout, self._top = checkout, checkout.source or checkout.path

    def blobs(self, also: Iterable[str]) -> dict[str, str]:
        names, submodules, also = set(files(self._checkout)), dict[str, str](), set(also)
        if self.whole:
            names |= also | set(self._modules())
            try:
                git_dir = git_dir_of(self._top)
                submodules = git_objects.listing(git_dir, "HEAD", (), _PATIENCE)[1]
                paths = git_objects.paths_of_work_tree(self._top, git_dir, _PATIENCE)
                submodules |= {path[:-1]: "untracked" for path in paths if path.endswith("/") and may_matter(path)}
                names.update(paths)
            except SentinelError:  # it is not a clone
                names.update(islice(_walk(self._top), MOST_FILES))
        names = {path for path in names if may_matter(path)}
        # A path that only this revision has counts as changed. Its content is not read, because it may be large.
        blobs = {path: blob_id(b"") for path in names - also if self._inside(path)}
        contents = ((path, self.read(path)) for path in names & also)
        return submodules | blobs | {path: blob_id(content) for path, content in contents if content is not None}

    def read(self, path: str) -> bytes | None:
        return read_source(str(self._top / path), SOURCE_LIMIT) if self._inside(path) else None

    def _inside(self, path: str) -> bool:
        place = self._top / path
        return place.is_file() and not place.is_symlink() and place.resolve().is_relative_to(self._top.resolve())

    def _modules(self) -> Iterator[str]:
        """Yield the paths of modules next to the packages, and of files that run without being imported."""
        roots = {root.relative_to(self._checkout.path).as_posix() for root in self._checkout.import_roots}
        for folder in (self._top / root for root in {".", *roots}):
            for pattern in ("*.py", "*.pth", "*/__init__.py"):
                yield from (path.relative_to(self._top).as_posix() for path in folder.glob(pattern))


def _walk(top: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        here = Path(folder).relative_to(top).as_posix()
        folders[:] = [name for name in folders if may_matter(f"{name}/a.py") and name != "site-packages"]
        yield from (name if here == "." else f"{here}/{name}" for name in names)


def files_of(checkout: Checkout) -> Files:
    """Return the files of a checkout's revision, including files outside the packages."""
    if checkout.ref.kind == "git" and checkout.source is not None and checkout.commit is not None:
        return CommitFiles(checkout.source, checkout.commit, checkout.ref.folder)
    return _Folder(checkout)


def list_changed_files(target: Target, before: Files, after: Files) -> list[str]:
    """Return the paths of changed files that may affect a training run.

    Leave out the packages' Python files, and files in which only comments differ. If one of the two revisions is a
    release, compare only files that both revisions have.
    """
    one = before.blobs(())
    other = after.blobs(one)
    one = before.blobs(other)
    names = one.keys() | other.keys() if before.whole and after.whole else one.keys() & other.keys()
    roots = tuple(f"{root.path}/" for root in target.roots)
    listed: list[str] = []
    scripts: list[str] = []
    for path in sorted(name for name in names if one.get(name) != other.get(name)):
        python = path.endswith(".py")
        if python and path.startswith(roots):
            continue
        texts = [b"" if path not in there else side.read(path) for side, there in ((before, one), (after, other))]
        if None in texts or _without_comments(path, texts[0]) != _without_comments(path, texts[1]):
            uses = not python or bool(_RUN_UNASKED.fullmatch(path))
            uses = uses or any(
                text is None or _imports(text, target.packages) or names_signal(text.decode(errors="replace"))
                for text in texts
            )
            (listed if uses else scripts).append(path)
    # ``scripts`` are Python files outside the packages. A script is listed if a package imports it, or if a program
    # that uses a package imports it.
    if scripts:
        read = ((path, after.read(path) or b"") for path in other if path.endswith(".py"))
        sources = [text for path, text in read if path.startswith(roots) or _imports(text, target.packages)]
        modules = [path.removesuffix(".py").split("/") for path in scripts]
        listed += [path for path, names in zip(scripts, modules) if any(_imports(text, names) for text in sources)]
    return sorted(listed)


def _imports(text: bytes, modules: Iterable[str]) -> bool:
    names = "|".join(re.escape(name) for name in modules if name)
    return re.search(rf"(?m)^\s*(?:from|import)\s+(?:{names})\b".encode(), text) is not None


def _without_comments(path: str, content: bytes | None) -> object:
    content = content or b""
    if path.endswith(".py") and len(content) <= LARGEST_SOURCE:
        module = parse(content)
        return {name: unit.digest for name, unit in module.units.items()}, module.imports, module.stars
    if not _COMMENTED.search(path):
        return content
    lines = (line.split(b" #")[0].strip() for line in content.splitlines())
    return [line for line in lines if line and not line.startswith(b"#")]
