"""Define refs, which name one revision of a framework: ``git:NAME``, ``pypi:VERSION``, ``path:DIR``, ``installed``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, cast

from sentinel.errors import SentinelError

SourceKind = Literal["git", "pypi", "path", "installed"]

_FULL_SHA = re.compile(r"[0-9a-f]{40}")
_HEX = re.compile(r"[0-9a-f]{7,40}")
_GIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+@-]*")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.!+_-]*")
_UNSAFE_IN_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Ref:
    """A revision of a framework.

    :ivar kind: the source.
    :ivar name: a sha, tag, branch or ``pull/N/head`` (git), a version or ``latest`` (pypi),
        a directory (path), or empty (installed).
    :ivar clone: the git directory that contains the commit ``name``; empty for the mirror.
    :ivar folder: the folder of the clone that contains the code; empty for the top folder. If the commit lacks the
        folder, the top folder is used.
    """

    kind: SourceKind
    name: str = ""
    clone: str = field(default="", compare=False)
    folder: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Parse ``git:NAME``, ``pypi:VERSION``, ``path:DIR`` or ``installed``."""
        if text == "installed":
            return cls("installed")
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("git", "pypi", "path"):
            raise SentinelError(
                f"not a ref: {text!r}; write git:<sha|tag|branch|pull/N/head>, pypi:<version|latest>, "
                "path:<directory> or installed"
            )
        problem = _problem(kind, name)
        if problem:
            raise SentinelError(f"not a ref: {text!r}: {problem}")
        return cls(cast(SourceKind, kind), name)

    def __str__(self) -> str:
        return self.kind if self.kind == "installed" else f"{self.kind}:{self.name}"

    @property
    def short(self) -> str:
        """Return the ref as text, with a full hash shortened to seven digits."""
        if self.kind == "git" and _FULL_SHA.fullmatch(self.name):
            return f"git:{self.name[:7]}"
        return str(self)

    @property
    def immutable(self) -> bool:
        """Return True if the ref always names the same code: a full commit hash or a release number."""
        if self.kind == "git":
            return _FULL_SHA.fullmatch(self.name) is not None
        return self.kind == "pypi" and self.name != "latest"

    @property
    def is_sha(self) -> bool:
        """Return True if a git ref is a commit hash, possibly shortened."""
        return self.kind == "git" and _HEX.fullmatch(self.name) is not None

    @property
    def is_branch(self) -> bool:
        """Return True if a run compares the ref with its base: a working tree or the head of a pull request."""
        return self.kind == "path" or (self.kind == "git" and self.name.removeprefix("refs/").startswith("pull/"))

    def key(self, tree: str) -> str:
        """Return the file name, without suffix, of evidence for this ref. ``tree`` is the hash of the checkout."""
        if self.kind == "git":
            return f"git-{self.name[:12]}" if self.immutable else f"git-{_file_name(self.name)}"
        if self.kind == "pypi":
            return f"pypi-{_file_name(self.name)}"
        return f"{self.kind}-{tree[:12]}"


def _file_name(text: str) -> str:
    return _UNSAFE_IN_FILE_NAME.sub("-", text).lstrip(".-") or "unnamed"


def _problem(kind: str, name: str) -> str | None:
    if not name:
        return "the part after the colon is empty"
    if "\0" in name or "\n" in name:
        return "it contains a control character"
    if kind == "git":
        if name.startswith("-"):
            return "a git name cannot begin with '-'"
        if not _GIT_NAME.fullmatch(name) or ".." in name or "@{" in name or name.endswith((".lock", "/")):
            return "that is not a git name (letters, digits and . _ / + @ - only, no '..')"
    if kind == "pypi" and name != "latest" and not _VERSION.fullmatch(name):
        return "write a version such as pypi:0.9.1, or pypi:latest"
    return None
