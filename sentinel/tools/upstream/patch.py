"""Write the commit message of a fix, and the whole fix in the format that ``git am`` reads."""

from __future__ import annotations

import textwrap
from pathlib import Path

from sentinel.recipes.fixes import Fix
from sentinel.sources.gitbinary import run_checked


def message(fix: Fix) -> str:
    """Return the commit message of a fix: subject, what is wrong, and why the change fixes it."""
    paragraphs = [textwrap.fill(text.replace("`", ""), 72, break_long_words=False, break_on_hyphens=False)
                  for text in (fix.wrong, fix.fix)]  # fmt: skip
    return "\n\n".join([fix.subject, *paragraphs]) + "\n"


def changed_by(git_dir: Path, fix: Fix) -> list[str]:
    """Return the files that upstream's own fix changes."""
    out = run_checked(git_dir, "diff", "--name-only", "--no-renames", fix.commit, fix.head, "--")
    return out.decode().split("\n")[:-1]


def mailed(fix: Fix, diff: str) -> str:
    """Return the fix in the format that ``git am`` reads. The sender replaces the author with ``git commit --amend
    --reset-author``."""
    subject, _, body = message(fix).partition("\n\n")
    header = f"From {fix.commit} Mon Sep 17 00:00:00 2001\nFrom: Sentinel <sentinel@example.invalid>\n"
    header += f"Subject: [PATCH] {subject}\nContent-Type: text/plain; charset=UTF-8\n"
    return f"{header}\n{body}---\n\n{diff}-- \nSentinel\n"
