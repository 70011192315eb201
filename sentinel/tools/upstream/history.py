"""Find the commits in a mirror that change a function, on the default branch or in a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.sources import gitbinary
from sentinel.targets import Target

#: Makes git put methods into hunk headers. By default, git puts only unindented definitions there.
_PYTHON = {"diff.default.xfuncname": r"^[ \t]*((class|(async[ \t]+)?def)[ \t].*)$"}
_PULL = re.compile(r"refs/pull/(\d+)/head")


@dataclass(frozen=True)
class Touch:
    """A commit that changes lines of a function.

    :ivar ref: the ref through which git found the commit.
    """

    commit: str
    ref: str
    subject: str

    @property
    def pull(self) -> int:
        """Return the number of the pull request in which the commit is, or 0 if it is in none."""
        match = _PULL.fullmatch(self.ref)
        return int(match.group(1)) if match else 0


def files_of(target: Target, boundary: str) -> list[str]:
    """Return the paths of files that may define a boundary, under its present or a former dotted path."""
    binding = target.binding(boundary)
    files: dict[str, None] = {}
    for path in binding.paths if binding else (boundary,):
        parts = path.split(".")
        # a package may have moved, so each former place is searched
        for base in [root.path for root in target.roots if root.package == parts[0]] or [parts[0]]:
            for end in range(2, len(parts)):
                files[f"{'/'.join([base, *parts[1:end]])}.py"] = None
            files[f"{'/'.join([base, *parts[1:-1]])}/__init__.py"] = None
    return list(files)


def name_of(recipe: Recipe) -> str:
    """Return the name to look for in diffs: that of the function, or of the class for methods such as ``__call__``."""
    parts = recipe.boundary.split(".")
    return parts[-1] if not parts[-1].startswith("__") else parts[-2]


def touching(git_dir: Path, target: Target, recipe: Recipe, revisions: Sequence[str]) -> list[Touch]:
    """Return the commits that change lines of the recipe's function, the newest first.

    :param revisions: arguments of ``git log``, such as ``base..branch``, ``--glob=...`` and ``--not``.
    """
    log = _log(git_dir, ["-p", "-U0", "--no-renames", *revisions, "--", *files_of(target, recipe.boundary)])
    return list(_touched(log.split("\n"), re.compile(rf"\b{re.escape(name_of(recipe))}\b")))


def touching_pulls(git_dir: Path, target: Target, recipe: Recipe) -> list[Touch]:
    """Return the commits that change lines of the recipe's function and are only in pull requests, not on the default
    branch."""
    outside = ["--glob=refs/pull/*/head", "--not", f"refs/heads/{target.branch}"]
    return [touch for touch in touching(git_dir, target, recipe, outside) if touch.pull]


def _log(git_dir: Path, arguments: Sequence[str]) -> str:
    done = gitbinary.run(git_dir, "log", "--format=%x01%H%x09%S%x09%s", "--no-ext-diff", *arguments, settings=_PYTHON)
    if done.status:
        raise Unavailable(done.reason)
    return done.out.decode("utf-8", "replace")  # split only at "\n", because a patch may contain other line ends


def _commit(line: str) -> Touch:
    commit, _, rest = line[1:].partition("\t")
    ref, _, subject = rest.partition("\t")
    return Touch(commit, ref, subject)


def _touched(lines: Iterable[str], name: re.Pattern[str]) -> Iterator[Touch]:
    """Yield the commits in the output of ``git log -p`` that change lines of a function.

    A hunk is inside the function if the hunk's header contains the function's name. An added line that is not indented
    ends the function, although the header still contains the name.
    """
    current: Touch | None = None
    inside = False
    for line in lines:
        if line.startswith("\x01"):
            current, inside = _commit(line), False
        elif current is None or line.startswith(("+++", "---")):
            continue
        elif line.startswith("@@"):
            inside = bool(name.search(line.rpartition("@@")[2]))
        elif line[:1] in ("+", "-"):
            defines = re.match(r"[+-]\s*(async\s+)?def\s", line) and name.search(line)
            if line[0] == "+" and line[1:2].strip():
                inside = False
            if defines or (inside and line[1:].strip()):
                yield current
                current = None
