"""Fixes: ``<BUG-ID>.fix.yaml`` beside a recipe says how its bug is mended, without a line of upstream's.

An edit names a file, the git blob that it was written for and a range of its lines, and gives the lines that stand
there afterwards; or the fix is a commit of upstream's own (``head``).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.errors import RecipeError, SentinelError
from sentinel.recipes.catalog import Catalog
from sentinel.recipes.json_schema import JsonSchema
from sentinel.targets.refs import Ref
from sentinel.values.documents import DocumentError, read

#: How the files are called; whatever else is in a folder of recipes is a recipe.
SUFFIX = ".fix.yaml"

_SCHEMA = JsonSchema("fix")

#: path in the repository -> its content; None where it is not there.
Files = Mapping[str, "bytes | None"]


@dataclass(frozen=True)
class Edit:
    """One range of lines and what takes its place.

    :ivar blob: the git blob id of the file that the lines are of; empty where the file is new.
    :ivar first, last: the lines that go; where the last is the one before the first, none goes.
    :ivar place: ``file:line:column`` of the edit itself.
    """

    file: str
    blob: str
    first: int
    last: int
    new: str
    place: str


@dataclass(frozen=True)
class Fix:
    """A fix that can be tried.

    :ivar bugs: the bug ids of one root, that of the file's name first.
    :ivar commit: upstream's commit that has the bug, and that the edits are of.
    :ivar head: upstream's own fix; then there are no edits.
    :ivar wrong, cause, fix, reach, limits, related: what the page says, in prose.
    :ivar guilty: file, first and last line at :attr:`commit`.
    :ivar digest: ``sha256:<hex>`` of what is tried: the prose may be mended without trying it anew.
    """

    path: Path
    digest: str
    target: str
    bugs: tuple[str, ...]
    commit: str
    head: str
    subject: str
    wrong: str
    cause: str
    fix: str
    reach: str
    limits: tuple[str, ...]
    related: tuple[str, ...]
    guilty: tuple[tuple[str, int, int], ...]
    edits: tuple[Edit, ...]
    regression: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it edits or adds."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    @property
    def tests(self) -> tuple[Edit, ...]:
        """Those of its edits that are of tests."""
        return tuple(edit for edit in self.edits if re.search(r"(^|/)tests?/", edit.file))

    @property
    def base(self) -> Ref:
        return Ref("git", self.commit)

    @property
    def patched(self) -> Ref:
        """Stands for the mended code: upstream's commit, or the one with the bug once the edits are made."""
        return Ref("git", self.head) if self.head else Ref("path", str(self.path))


def load_fix(path: Path) -> Fix:
    """Load one fix."""
    try:
        document = read(path)
    except (DocumentError, OSError) as error:
        raise RecipeError(f"{path}: {error}") from None
    data = document.data

    def place(*keys: Any) -> str:
        line, column = document.at(keys)
        return f"{path}:{line}:{column}"

    for wrong in _SCHEMA.errors(data):
        raise RecipeError(f"{place(*wrong.instance_path)}: {wrong.message}; docs/recipes.md says what a fix has")
    if ("head" in data) == ("edits" in data):
        raise RecipeError(f"{place()}: a fix has either `edits` or upstream's own `head`")
    if path.name != f"{data['bugs'][0]}{SUFFIX}":
        raise RecipeError(f"{place('bugs', 0)}: call the file {data['bugs'][0]}{SUFFIX}")
    edits = []
    for number, edit in enumerate(data.get("edits", ())):
        if ("blob" in edit) != ("lines" in edit):
            raise RecipeError(f"{place('edits', number)}: `blob` and `lines` go together; a new file has neither")
        first, last = edit.get("lines", (1, 0))
        if not 0 < first <= last + 1:
            raise RecipeError(f"{place('edits', number, 'lines')}: lines {first} to {last} are no range")
        edits.append(Edit(edit["file"], edit.get("blob", ""), first, last, edit["new"], place("edits", number)))
    prose = {name: " ".join(data[name].split()) for name in ("wrong", "cause", "fix", "reach")}
    tried = [data.get(name) for name in ("bugs", "commit", "head", "edits", "regression")]
    return Fix(
        path=path,
        digest=f"sha256:{hashlib.sha256(json.dumps(tried, sort_keys=True).encode()).hexdigest()}",
        target=path.parent.name,
        bugs=tuple(data["bugs"]),
        commit=data["commit"],
        head=data.get("head", ""),
        subject=data["subject"],
        limits=tuple(data["limits"]),
        related=tuple(data.get("related", ())),
        guilty=tuple((item["file"], *item["lines"]) for item in data["guilty"]),
        edits=tuple(edits),
        regression=tuple(data.get("regression", ())),
        **prose,
    )


def find_fixes(catalog: Catalog, target: str) -> list[Fix]:
    """Give the fixes beside a target's recipes."""
    folders = dict.fromkeys(folder / target for folder in catalog.recipe_folders)
    return [load_fix(path) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def fix_of(catalog: Catalog, target: str, bug_id: str) -> Fix | None:
    """Give the fix of a bug, under its own name or as one of a root."""
    return next((fix for fix in find_fixes(catalog, target) if bug_id in fix.bugs), None)


def edited(fix: Fix, blob_of: Callable[[str], str], content: Callable[[str], bytes]) -> dict[str, tuple[bytes, bytes]]:
    """Give each file that a fix changes: what was there, and what is there afterwards.

    :param blob_of: path -> its blob id at the commit; empty where there is no such file.
    :param content: blob id -> its content.
    """
    files = {}
    for file in fix.files:
        edits = sorted((edit for edit in fix.edits if edit.file == file), key=lambda edit: edit.first)
        there = blob_of(file)
        for edit in edits:
            if edit.blob != there:
                was = f"is blob {there[:12]}" if there else "is not there"
                meant = f"the edit is of blob {edit.blob[:12]}" if edit.blob else "the edit makes it anew"
                raise SentinelError(f"{edit.place}: {file} {was} at {fix.commit[:12]}, and {meant}")
        before = content(there) if there else b""
        files[file] = before, _with(before, edits)
    return files


def _with(before: bytes, edits: Iterable[Edit]) -> bytes:
    lines = before.decode("utf-8").splitlines(keepends=True)
    made: list[str] = []
    done = 0
    for edit in edits:
        if edit.first <= done or edit.last > len(lines):
            problem = f"has {len(lines)} lines" if edit.last > len(lines) else f"is edited up to line {done} already"
            raise SentinelError(f"{edit.place}: lines {edit.first} to {edit.last}: {edit.file} {problem}")
        made += [*lines[done : edit.first - 1], edit.new]
        done = max(edit.last, edit.first - 1)
    return "".join([*made, *lines[done:]]).encode()


def diff(files: Mapping[str, tuple[bytes, bytes]], context: int = 3) -> str:
    """Give an ordinary diff, which ``git apply`` takes."""
    parts = []
    for file, (before, after) in files.items():
        old, new = (text.decode("utf-8").splitlines(keepends=True) for text in (before, after))
        name = f"a/{file}" if before else "/dev/null"
        parts.append(f"diff --git a/{file} b/{file}\n")
        parts += ["new file mode 100644\n"] if not before else []
        for line in difflib.unified_diff(old, new, name, f"b/{file}", n=context):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
