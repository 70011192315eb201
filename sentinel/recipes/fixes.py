"""Read a bug's fix from the file ``<BUG-ID>.fix.yaml`` next to its recipe.

A fix is a list of edits, or an upstream commit (``head``). An edit names a file, its git blob id and a range of lines,
and contains the new lines, so the fix does not quote upstream's code.
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

#: The suffix of fixes. All other YAML files in a recipe folder are recipes.
SUFFIX = ".fix.yaml"

_SCHEMA = JsonSchema("fix")

#: Path in the repository -> content of the file; None if there is no such file.
Files = Mapping[str, "bytes | None"]


@dataclass(frozen=True)
class Edit:
    """One edit of a fix: a range of lines in a file, and the lines that replace them.

    :ivar blob: the git blob id of the file that the lines belong to; empty for a new file.
    :ivar first, last: the lines to remove, counted from 1; ``last == first - 1`` removes none.
    :ivar place: ``file:line:column`` of the edit in the fix.
    """

    file: str
    blob: str
    first: int
    last: int
    new: str
    place: str


@dataclass(frozen=True)
class Fix:
    """A fix of one or more bugs, as edits or as an upstream commit.

    :ivar bugs: ids of the bugs that it fixes; the first is also the file's name.
    :ivar commit: the upstream commit with the bug, to which the edits apply.
    :ivar head: the upstream commit that fixes the bug; empty if the fix consists of edits.
    :ivar wrong, cause, fix, reach, limits, related: prose for the pull request page.
    :ivar comment: a comment on an existing pull request, to be posted instead of the page.
    :ivar numbers: observed key -> its name in the table of numbers on the page, in upstream's terms.
    :ivar guilty: (file, first line, last line) of the faulty code at :attr:`commit`.
    :ivar changes: further boundaries whose results the fix is meant to change, because they run the code that it edits.
    :ivar digest: ``sha256:<hex>`` of everything except prose. If only prose changes, no new trial is needed.
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
    comment: str
    numbers: tuple[tuple[str, str], ...]
    guilty: tuple[tuple[str, int, int], ...]
    edits: tuple[Edit, ...]
    regression: tuple[str, ...]
    changes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files that the fix edits or adds."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    @property
    def tests(self) -> tuple[Edit, ...]:
        """Return the edits in ``test`` or ``tests`` folders."""
        return tuple(edit for edit in self.edits if is_test(edit.file))

    @property
    def base(self) -> Ref:
        return Ref("git", self.commit)

    @property
    def patched(self) -> Ref:
        """Return the ref of the fixed code: upstream's own ``head``, or the commit with the edits applied."""
        return Ref("git", self.head) if self.head else Ref("path", str(self.path))


def is_test(file: str) -> bool:
    """Return True if a file is in a folder named ``test`` or ``tests``."""
    return bool(re.search(r"(^|/)tests?/", file))


def load_fix(path: Path) -> Fix:
    """Load one fix from its file.

    :raises RecipeError: if the file cannot be read or is invalid.
    """
    try:
        document = read(path)
    except (DocumentError, OSError) as error:
        raise RecipeError(f"{path}: {error}") from None
    data = document.data

    def place(*keys: Any) -> str:
        line, column = document.at(keys)
        return f"{path}:{line}:{column}"

    for wrong in _SCHEMA.errors(data):
        raise RecipeError(f"{place(*wrong.instance_path)}: {wrong.message}; docs/recipes.md lists the keys of a fix")
    if ("head" in data) == ("edits" in data):
        raise RecipeError(f"{place()}: write either `edits` or upstream's own `head`")
    if path.name != f"{data['bugs'][0]}{SUFFIX}":
        raise RecipeError(f"{place('bugs', 0)}: rename the file to {data['bugs'][0]}{SUFFIX}, like its first bug")
    edits = []
    for number, edit in enumerate(data.get("edits", ())):
        if ("blob" in edit) != ("lines" in edit):
            raise RecipeError(f"{place('edits', number)}: write both `blob` and `lines`, or neither for a new file")
        first, last = edit.get("lines", (1, 0))
        if not 0 < first <= last + 1:
            raise RecipeError(f"{place('edits', number, 'lines')}: lines {first} to {last} are not a range")
        edits.append(Edit(edit["file"], edit.get("blob", ""), first, last, edit["new"], place("edits", number)))
    prose = {name: " ".join(data[name].split()) for name in ("wrong", "cause", "fix", "reach")}
    tried = [data.get(name) for name in ("bugs", "commit", "head", "edits", "regression")]
    tried += [data["changes"]] if "changes" in data else []  # so that digests in older evidence stay valid
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
        comment=" ".join(data.get("comment", "").split()),
        numbers=tuple(data.get("numbers", {}).items()),
        guilty=tuple((item["file"], *item["lines"]) for item in data["guilty"]),
        edits=tuple(edits),
        regression=tuple(data.get("regression", ())),
        changes=tuple(data.get("changes", ())),
        **prose,
    )


def find_fixes(catalog: Catalog, target: str) -> list[Fix]:
    """Return all fixes of a target."""
    folders = dict.fromkeys(folder / target for folder in catalog.recipe_folders)
    return [load_fix(path) for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]


def fix_of(catalog: Catalog, target: str, bug_id: str) -> Fix | None:
    """Return the fix whose list of bugs has this bug, or None."""
    return next((fix for fix in find_fixes(catalog, target) if bug_id in fix.bugs), None)


def apply_edits(
    fix: Fix, blob_of: Callable[[str], str], content: Callable[[str], bytes]
) -> dict[str, tuple[bytes, bytes]]:
    """Return the content of each file that a fix changes: path -> (before, after).

    :param blob_of: returns a path's blob id at the commit, or "" if the file does not exist.
    :param content: returns a blob's content.
    :raises SentinelError: if an edit was written for another blob, or its lines overlap or do not exist.
    """
    files = {}
    for file in fix.files:
        edits = sorted((edit for edit in fix.edits if edit.file == file), key=lambda edit: edit.first)
        there = blob_of(file)
        for edit in edits:
            if edit.blob != there:
                was = f"is blob {there[:12]}" if there else "does not exist"
                meant = f"the edit was written for blob {edit.blob[:12]}" if edit.blob else "the edit creates it"
                raise SentinelError(f"{edit.place}: {file} {was} at {fix.commit[:12]}, but {meant}")
        before = content(there) if there else b""
        files[file] = before, _with(before, edits)
    return files


def _with(before: bytes, edits: Iterable[Edit]) -> bytes:
    lines = before.decode("utf-8").splitlines(keepends=True)
    made: list[str] = []
    done = 0
    for edit in edits:
        if edit.first <= done or edit.last > len(lines):
            problem = f"has {len(lines)} lines" if edit.last > len(lines) else f"has another edit up to line {done}"
            raise SentinelError(f"{edit.place}: lines {edit.first} to {edit.last}: {edit.file} {problem}")
        made += [*lines[done : edit.first - 1], edit.new]
        done = max(edit.last, edit.first - 1)
    return "".join([*made, *lines[done:]]).encode()


def diff(files: Mapping[str, tuple[bytes, bytes]], context: int = 3) -> str:
    """Return a unified diff that ``git apply`` accepts.

    :param files: path -> (content before, content after); an empty content before means a new file.
    """
    parts = []
    for file, (before, after) in files.items():
        old, new = (text.decode("utf-8").splitlines(keepends=True) for text in (before, after))
        name = f"a/{file}" if before else "/dev/null"
        parts.append(f"diff --git a/{file} b/{file}\n")
        parts += ["new file mode 100644\n"] if not before else []
        for line in difflib.unified_diff(old, new, name, f"b/{file}", n=context):
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
