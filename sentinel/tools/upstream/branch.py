"""Create a branch with the fix and its test in a clone of upstream, without pushing it."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import SentinelError
from sentinel.recipes.fixes import Fix, apply_edits
from sentinel.sources import git_objects
from sentinel.sources.gitbinary import GitError, git_dir_of, run, run_checked


@dataclass(frozen=True)
class Branch:
    """The created branch.

    :ivar ahead: whether the branch starts at the newest main of the clone, not at the commit at which the fix was
        tested.
    """

    name: str
    commit: str
    base: str
    ahead: bool


def contribute(clone: Path, fix: Fix, main: str) -> Branch:
    """Create a branch with the fix as one commit by the user of the clone. The work tree and its index do not change.

    The commit's parent is the clone's newest main if the edited files have not changed since the fix was tested;
    otherwise it is the commit at which the fix was tested.
    """
    if not (clone / ".git").exists():
        raise SentinelError(f"{clone} is not a clone; `git clone` upstream's repository there first")
    git_dir = git_dir_of(clone).absolute()
    name = "fix/" + re.sub(r"[^a-z0-9]+", "-", fix.bugs[0].lower()).strip("-")
    if run(git_dir, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}").status == 0:
        raise SentinelError(f"{clone} already has a branch {name}; use it, or delete it with `git branch -D {name}`")
    if git_objects.commit_of(git_dir, fix.commit) is None:
        raise SentinelError(f"{clone} lacks the commit {fix.commit}, at which the fix was tested; fetch upstream")
    try:
        if fix.head:
            return _of_upstream(git_dir, fix, name)
        base = fix.commit
        for ref in (f"refs/remotes/upstream/{main}", f"refs/remotes/origin/{main}", f"refs/heads/{main}"):
            tip = run(git_dir, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
            if tip.status == 0:
                newest = tip.out.decode().strip()
                base = newest if _blobs(git_dir, newest, fix) == _blobs(git_dir, fix.commit, fix) else base
                break
        there = _blobs(git_dir, base, fix)
        files = apply_edits(
            fix, lambda file: there.get(file, ""), lambda blob: run_checked(git_dir, "cat-file", "blob", blob)
        )
        commit = _committed(git_dir, base, {file: after for file, (_, after) in files.items()}, message(fix))
        run_checked(git_dir, "update-ref", f"refs/heads/{name}", commit, "")
    except GitError as error:
        raise SentinelError(f"{clone}: {error}") from error
    return Branch(name, commit, base, base != fix.commit)


def message(fix: Fix) -> str:
    """Return the commit message: the subject in the repository's style, the error, and why the change fixes it."""
    paragraphs = [textwrap.fill(text.replace("`", ""), 72, break_long_words=False, break_on_hyphens=False)
                  for text in (fix.wrong, fix.fix)]  # fmt: skip
    return "\n\n".join([fix.subject, *paragraphs]) + "\n"


def changed_by(git_dir: Path, fix: Fix) -> list[str]:
    """Return the files that upstream's own fix changes."""
    out = run_checked(git_dir, "diff", "--name-only", "--no-renames", fix.commit, fix.head, "--")
    return out.decode().split("\n")[:-1]


def mailed(fix: Fix, diff: str) -> str:
    """Return the fix as a message for ``git am``. The sender takes authorship with ``git commit --amend
    --reset-author``.
    """
    subject, _, body = message(fix).partition("\n\n")
    header = f"From {fix.commit} Mon Sep 17 00:00:00 2001\nFrom: Sentinel <sentinel@example.invalid>\n"
    header += f"Subject: [PATCH] {subject}\nContent-Type: text/plain; charset=UTF-8\n"
    return f"{header}\n{body}---\n\n{diff}-- \nSentinel\n"


def _of_upstream(git_dir: Path, fix: Fix, name: str) -> Branch:
    """Create a branch at the commit of upstream's own fix."""
    if git_objects.commit_of(git_dir, fix.head) is None:
        raise SentinelError(f"the clone lacks the fix, {fix.head}; fetch its pull request's head")
    run_checked(git_dir, "update-ref", f"refs/heads/{name}", fix.head, "")
    return Branch(name, fix.head, fix.commit, False)


def _blobs(git_dir: Path, commit: str, fix: Fix) -> dict[str, str]:
    return {entry.path: entry.blob for entry in git_objects.listing(git_dir, commit, fix.files)[0]}


def _committed(git_dir: Path, base: str, files: Mapping[str, bytes], text: str) -> str:
    """Commit these files on top of a commit, without using the work tree or its index."""
    with tempfile.TemporaryDirectory(prefix="sentinel-") as folder:
        own = {"GIT_INDEX_FILE": str(Path(folder, "index"))}

        def git(*arguments: str, data: bytes | None = None) -> str:
            done = run(git_dir, *arguments, data=data, environment={**own, **_who(git_dir)})
            if done.status:
                raise GitError(done.reason)
            return done.out.decode().strip()

        git("read-tree", base)
        for file, content in files.items():
            mode = run_checked(git_dir, "ls-tree", base, "--", file).decode().partition(" ")[0] or "100644"
            blob = git("hash-object", "-w", "--stdin", data=content)
            git("update-index", "--add", "--cacheinfo", f"{mode},{blob},{file}")
        return git("commit-tree", git("write-tree"), "-p", base, "-F", "-", data=text.encode())


def _who(git_dir: Path) -> dict[str, str]:
    """Return the committer from the user's git configuration. Sentinel's own git calls do not read it."""
    identity: dict[str, str] = {}
    for name, setting in (("NAME", "user.name"), ("EMAIL", "user.email")):
        value = run(git_dir, "config", setting, environment={"GIT_CONFIG_GLOBAL": os.path.expanduser("~/.gitconfig")})
        if value.status:
            raise SentinelError(f"git has no committer; set it with `git config --global {setting} ...`")
        identity |= dict.fromkeys((f"GIT_AUTHOR_{name}", f"GIT_COMMITTER_{name}"), value.out.decode().strip())
    return identity
