"""Read and write the refs of a git directory directly, without starting git."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.sources.home import small_text, write_atomically

_SHA = re.compile(r"[0-9a-f]{40}")
_PACKED = re.compile(r"([0-9a-f]{40}) (refs/\S+)")
#: A pattern for names that git-check-ref-format forbids, such as those that lead out of the directory.
_BAD_NAME = re.compile(r"\.\.|//|@\{|[\x00-\x20\x7f~^:?*\[\\]|/\.|^\.|\.$|/$|\.lock(/|$)|[\ud800-\udfff]")
#: Refs that belong to only one work tree, or that change the meaning of other names.
_EXCLUDED = ("refs/replace/", "refs/bisect/", "refs/worktree/", "refs/rewritten/", "refs/stash")


def is_sha(text: str) -> bool:
    return _SHA.fullmatch(text) is not None


def read_refs(git_dir: Path) -> dict[str, str]:
    """Return the object name of every ref. As in git, a loose ref takes precedence over a packed one."""
    if (git_dir / "reftable").is_dir():
        raise SentinelError(f"{git_dir} stores its refs as a reftable; run `git refs migrate --ref-format=files` there")
    refs = _packed(git_dir / "packed-refs")
    symbolic: dict[str, str] = {}
    for folder, _, files in os.walk(git_dir / "refs"):
        for file in files:
            path = Path(folder, file)
            if path.is_symlink() or not path.is_file():
                continue
            name = path.relative_to(git_dir).as_posix()
            text = (small_text(path) or "").strip()
            if is_sha(text):
                refs[name] = text
            elif text.startswith("ref: "):
                symbolic[name] = text[5:].strip()
    for name, target in symbolic.items():
        if target in refs:
            refs[name] = refs[target]
    return {name: sha for name, sha in refs.items() if _usable(name)}


def _packed(path: Path) -> dict[str, str]:
    try:
        status = path.stat()
    except OSError:
        return {}
    if not stat.S_ISREG(status.st_mode):
        return {}
    return dict(_read_packed(path, status.st_ino, status.st_mtime_ns, status.st_size))


# Cached, because a mirror has thousands of refs and a run looks up hundreds. Every writer replaces the whole file.
@lru_cache(maxsize=16)
def _read_packed(path: Path, *_: int) -> Mapping[str, str]:
    """Return the refs of a ``packed-refs`` file.

    :param _: inode, time and size of the file, so that a new file is read again.
    """
    refs = {}
    # Split only at line feeds, as git does. Otherwise a name with another line separator could forge a line.
    for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        match = _PACKED.fullmatch(line)
        if match and _usable(match.group(2)):
            refs[match.group(2)] = match.group(1)
    return refs


def _usable(name: str) -> bool:
    return not _BAD_NAME.search(name) and not name.startswith(_EXCLUDED)


def merge(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """Return the union of two sets of refs. If both contain a ref, use the value in ``new``."""
    folders = {name[:at] for name in new for at in range(len(name)) if name[at] == "/"}
    rest = {
        name: sha
        for name, sha in old.items()
        if name not in folders and not any(name[:at] in new for at in range(len(name)) if name[at] == "/")
    }
    return {**rest, **new}


def write_refs(git_dir: Path, refs: dict[str, str]) -> None:
    """Replace all refs of a stored git directory atomically."""
    lines = [f"{refs[name]} {name}\n" for name in sorted(refs, key=lambda name: name.encode("utf-8", "replace"))]
    write_atomically(git_dir / "packed-refs", "# pack-refs with: sorted \n" + "".join(lines))


def head_branch(git_dir: Path) -> str | None:
    """Return the full name of the branch that ``HEAD`` points to; None if ``HEAD`` is detached or invalid."""
    text = (small_text(git_dir / "HEAD") or "").strip()
    return text[5:].strip() if text.startswith("ref: refs/heads/") and not _BAD_NAME.search(text[5:].strip()) else None


def read_shallow(git_dir: Path) -> set[str]:
    """Return the commits whose parents were not fetched."""
    path = git_dir / "shallow"
    try:
        return {line for line in path.read_text(encoding="ascii").split() if is_sha(line)} if path.is_file() else set()
    except (OSError, UnicodeDecodeError):
        return set()


def write_shallow(git_dir: Path, commits: set[str]) -> None:
    if commits:
        write_atomically(git_dir / "shallow", "".join(f"{commit}\n" for commit in sorted(commits)))
    else:
        (git_dir / "shallow").unlink(missing_ok=True)
