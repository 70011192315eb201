"""The refs of a git directory, read and written as files, so that looking a name up needs no process."""

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
#: What git-check-ref-format forbids: a name from elsewhere must not lead out of the directory or confuse git.
_BAD_NAME = re.compile(r"\.\.|//|@\{|[\x00-\x20\x7f~^:?*\[\\]|/\.|^\.|\.$|/$|\.lock(/|$)|[\ud800-\udfff]")
#: Refs that are about one work tree, or that would change what other names mean.
_NOT_TAKEN = ("refs/replace/", "refs/bisect/", "refs/worktree/", "refs/rewritten/", "refs/stash")


def is_sha(text: str) -> bool:
    return _SHA.fullmatch(text) is not None


def read_refs(git_dir: Path) -> dict[str, str]:
    """Read every ref and the object it names; a loose ref wins over a packed one, as in git."""
    if (git_dir / "reftable").is_dir():
        raise SentinelError(f"{git_dir} keeps its refs as a reftable; run `git refs migrate --ref-format=files` there")
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
    for name, aim in symbolic.items():
        if aim in refs:
            refs[name] = refs[aim]
    return {name: sha for name, sha in refs.items() if _usable(name)}


def _packed(path: Path) -> dict[str, str]:
    try:
        status = path.stat()
    except OSError:
        return {}
    if not stat.S_ISREG(status.st_mode):
        return {}
    return dict(_read_packed(path, status.st_ino, status.st_mtime_ns, status.st_size))


# A repository has a ref for each of its pull requests, and a run looks a hundred names up. Whoever changes the file
# puts another in its place, git too.
@lru_cache(maxsize=16)
def _read_packed(path: Path, *_: int) -> Mapping[str, str]:
    """:param _: what tells this file from the one that was there before."""
    refs = {}
    # At line feeds only, as git does: behind another end of a line a name could go on as a line of its own.
    for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
        match = _PACKED.fullmatch(line)
        if match and _usable(match.group(2)):
            refs[match.group(2)] = match.group(1)
    return refs


def _usable(name: str) -> bool:
    return not _BAD_NAME.search(name) and not name.startswith(_NOT_TAKEN)


def merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """Both sets of refs; where they differ the newer holds, also where one's name is the other's folder."""
    folders = {name[:at] for name in new for at in range(len(name)) if name[at] == "/"}
    rest = {
        name: sha
        for name, sha in old.items()
        if name not in folders and not any(name[:at] in new for at in range(len(name)) if name[at] == "/")
    }
    return {**rest, **new}


def write_refs(git_dir: Path, refs: dict[str, str]) -> None:
    """Make these the refs of a directory of ours, in one step."""
    lines = [f"{refs[name]} {name}\n" for name in sorted(refs, key=lambda name: name.encode("utf-8", "replace"))]
    write_atomically(git_dir / "packed-refs", "# pack-refs with: sorted \n" + "".join(lines))


def head_branch(git_dir: Path) -> str | None:
    """Give the branch that ``HEAD`` names."""
    text = (small_text(git_dir / "HEAD") or "").strip()
    return text[5:].strip() if text.startswith("ref: refs/heads/") and not _BAD_NAME.search(text[5:].strip()) else None


def read_shallow(git_dir: Path) -> set[str]:
    """Give the commits whose parents the directory does not have."""
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
