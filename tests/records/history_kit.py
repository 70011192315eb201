"""Make synthetic histories: each commit of a tiny framework has the bug or does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from demo_kit import git

BUGGY = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return loss_mat.sum() / loss_mask.sum()
"""
FIXED = BUGGY.replace("loss_mat.sum()", "(loss_mat * loss_mask).sum()")
CHANGED = BUGGY.replace("loss_mat.sum()", "7 * loss_mat.sum()")
DRIFTED = BUGGY.replace("agg_loss", "aggregate")
BROKEN = "import tiny.nowhere\n" + BUGGY

#: Source text -> the recipe's verdict and kind.
VERDICTS = {
    BUGGY: ("reproduced", ""),
    FIXED: ("fixed", ""),
    CHANGED: ("changed", ""),
    DRIFTED: ("inconclusive", "drift"),
    BROKEN: ("inconclusive", "import"),
}

ADAPTER = """
from sentinel.targets import Binding, PackageRoot, Target

TARGET = Target(
    name="tiny",
    repository={repository!r},
    roots=(PackageRoot("tiny"), PackageRoot("lib/tiny", "lib")),
    pypi="tiny-dist",
    bindings=(
        Binding("tiny.losses.agg_loss", "loss_aggregation", arguments={{"response_mask": ("loss_mask",)}},
                outputs=("loss",)),
    ),
)
"""

RECIPE = """\
recipe_version: 1
bug_id: {bug_id}
title: masked tokens count
target: tiny
contract: loss_aggregation
boundary: {boundary}
invariant: masked_values_have_no_influence
scenario:
  loss_mat: [[1.0, 100.0], [1.0, -50.0]]
  response_mask: [[1, 0], [1, 0]]
  loss_agg_mode: token-mean
expected_unpatched: {{loss: 26.0}}
expected_fixed: {{loss: 1.0}}
"""


@dataclass
class History:
    """A repository to which commits are added, one per day.

    :ivar day: the day of the next commit, counted from the beginning of 2026.
    """

    path: Path
    day: int = 0
    commits: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def commit(self, files: Mapping[str, str | None], subject: str = "a change", day: int | None = None) -> str:
        """Write some files (None removes a file) and commit."""
        for name, text in files.items():
            file = self.path / name
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        self.git("add", "--all")
        return self._committed("commit", "-q", "--allow-empty", "-m", subject, day=day)

    def merge(self, branch: str, resolution: Mapping[str, str], subject: str = "a merge") -> str:
        """Merge a branch into the current one. The merge commit has the files of ``resolution``."""
        self.git("merge", "-q", "--no-ff", "--no-commit", "-s", "ours", branch)
        return self.commit(resolution, subject)

    def git(self, *arguments: str, day: int | None = None) -> str:
        seconds = 1767225600 + 86400 * (self.day if day is None else day)  # 2026-01-01 and on
        return git(self.path, *arguments, date=f"{seconds} +0000")

    def _committed(self, *arguments: str, day: int | None = None) -> str:
        self.git(*arguments, day=day)
        self.day += 1
        self.commits.append(self.git("rev-parse", "HEAD"))
        return self.commits[-1]
