"""Read and write evidence on disk: the JSON files of a run, or the ``.jsonl`` files of a baseline.

A run writes ``<report folder>/<target>/<BUG-ID>/<key>.json``, and ``<report folder>/run.json`` with the data that vary
from run to run. A baseline has one file ``<folder>/<target>.jsonl`` per target, with one line per verdict (see
:mod:`sentinel.reports.lines`). The *place* of a verdict is the relative path of the file that a run writes; a line of a
baseline has the same place. :func:`recorded` reads both forms.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import sentinel
from sentinel.deciding.outcomes import Decision
from sentinel.errors import SentinelError
from sentinel.reports import lines
from sentinel.reports.escaping import message, visible
from sentinel.reports.evidence import SCHEMA_VERSION, Document, dumps, evidence, validate
from sentinel.reports.lines import Facts, Recipes
from sentinel.sources import home
from sentinel.values.documents import DocumentError, json_data, read_data
from sentinel.values.files import GENERATED, regular_bytes

RUN = "run.json"

#: The subfolder for histories (see :mod:`sentinel.records.history`). It contains no evidence.
HISTORY = "history"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 120
_HERE = PurePosixPath()


@dataclass(frozen=True)
class RunItem:
    """One pytest item of a run, as ``run.json`` stores it.

    :ivar outcome: ``passed``, ``failed``, ``skipped`` or ``xfailed``.
    :ivar duration: seconds.
    :ivar evidence: the path of its evidence, relative to the report folder; empty if it has none.
    """

    id: str
    outcome: str
    verdict: str
    duration: float
    evidence: str = ""


def evidence_path(decision: Decision) -> PurePosixPath:
    """Return the path of a decision's evidence, relative to the report folder.

    It is ``<target>/<BUG-ID>/<key>.json``, or ``<target>/laws/<boundary>/<law>/<key>.json`` for a law without a recipe.
    """
    recipe, checkout = decision.recipe, decision.checkout
    # A working tree or an environment is identified by its tree hash, which is missing if there is no checkout.
    absent = "" if decision.ref.kind in ("git", "pypi") else "absent"
    key = checkout.key if checkout is not None else decision.ref.key("") + absent
    if decision.law and not recipe.bug_id:
        return law_folder(recipe.target, decision.subject or recipe.boundary, decision.law) / f"{file_name(key)}.json"
    return PurePosixPath(*map(file_name, (recipe.target, recipe.bug_id)), file_name(key) + ".json")


def law_folder(target: str, boundary: str, law: str) -> PurePosixPath:
    """Return the folder for the evidence of a law, relative to the report folder."""
    return PurePosixPath(*map(file_name, (target, "laws", boundary, law)))


def file_name(text: str) -> str:
    """Convert a string to a file name of the characters ``[A-Za-z0-9._-]``. If characters are replaced or removed, a
    hash is appended, so that different strings have different names."""
    safe = _UNSAFE.sub("-", text).lstrip(".-")
    if safe == text and 0 < len(safe) <= _LONGEST_NAME:
        return safe
    return f"{safe[:_LONGEST_NAME] or 'unnamed'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def write(report_dir: Path, decision: Decision, document: Document | None = None) -> Path:
    """Validate a decision's evidence, and write it unless the file already has the same bytes."""
    document = evidence(decision) if document is None else document
    validate(document)
    return put(report_dir, evidence_path(decision), dumps(document))


class DamagedEvidence(UserWarning):
    """Warns that a damaged file in a report folder was overwritten."""


def put(report_dir: Path, place: PurePosixPath, text: str) -> Path:
    """Write evidence to its path in the report folder. Warn if this replaces a damaged file.

    :raises SentinelError: if the existing file is not evidence, or the folder is not writable.
    """
    prepare(report_dir)
    file = own(report_dir, place)
    before = _present(file)
    damaged = False
    if before is not None:
        if before == text.encode():
            return file
        damaged = _is_damaged(before, text)
        if not damaged and not _looks_like_evidence(before):
            raise SentinelError(
                f"{visible(str(file))} is not Sentinel evidence, so it is not overwritten; move it, "
                "or choose another --sentinel-report-dir"
            )
    write_atomically(file, text)
    if damaged:
        warnings.warn(f"{visible(str(file))} was damaged and has been overwritten", DamagedEvidence, 3)
    return file


def _is_damaged(raw: bytes, text: str) -> bool:
    """Return True if a power failure left the file incomplete: only zeros, or the beginning of evidence."""
    start, written = text[: text.index(":")].encode(), raw.rstrip(b"\0")
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return not written or written.startswith(start) or start.startswith(written)
    return False


def own(folder: Path, place: PurePosixPath) -> Path:
    """Return ``folder / place``, and reject symbolic links below the folder.

    :raises SentinelError: if a part of the path is a symbolic link.
    """
    file = folder / place
    for above in (*reversed(file.parents), file):
        if folder in above.parents and above.is_symlink():
            raise SentinelError(f"{visible(str(above))} is a symbolic link, which is not followed; remove it")
    return file


def write_below(folder: Path, place: str, text: str, otherwise: str) -> Path:
    """Write a file atomically into a folder that the user named. Raise SentinelError if the path contains a symbolic
    link."""
    file = own(folder, PurePosixPath(place))
    write_atomically(file, text, otherwise)
    return file


def prepare(report_dir: Path) -> None:
    """Create the report folder if it does not exist, with a ``.gitignore`` that excludes it from git."""
    try:
        if not report_dir.is_dir():
            report_dir.parent.mkdir(parents=True, exist_ok=True)
            _make(report_dir)
    except OSError as error:
        raise _cannot_write(report_dir, error) from error


def _make(report_dir: Path) -> None:
    """Create a folder and its ``.gitignore`` in one step, so that a killed run never leaves only the folder."""
    if os.path.lexists(report_dir):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = report_dir.with_name(f".{report_dir.name}.new")  # all runs use one name, so that a leftover is reused
    if part.is_symlink():
        part.unlink()  # Sentinel never creates a link here, so this one is foreign
    try:
        part.mkdir(exist_ok=True)
        (part / ".gitignore").write_text("# made by Sentinel\n*\n", encoding="utf-8")
        part.rename(report_dir)
    except OSError:
        if not report_dir.is_dir():  # otherwise another process has created it first
            raise


_CHOOSE = "choose another with --sentinel-report-dir"


def write_atomically(file: Path, text: str, otherwise: str = _CHOOSE) -> None:
    """Write a file atomically, so that a reader gets either the old or the new content.

    :param otherwise: the advice in the error message if the folder is not writable.
    :raises SentinelError: if the folder is not writable.
    """
    try:
        home.write_atomically(file, text)
    except OSError as error:
        raise _cannot_write(file.parent, error, otherwise) from error


def _cannot_write(folder: Path, error: OSError, otherwise: str = _CHOOSE) -> SentinelError:
    why = error.strerror or type(error).__name__
    return SentinelError(
        f"cannot write reports to {visible(str(folder))}: {why}; make it a writable folder with free space, "
        f"or {otherwise}"
    )


#: Advice for damaged evidence of a run, and of a baseline.
RUN_AGAIN = "run pytest again, which replaces damaged evidence"
RESTORE = "restore it from git, or remove it and record it with `sentinel report accept`"


def load(file: Path, advice: str = "") -> Document:
    """Read an evidence document from a file, and validate it.

    :param advice: the end of the error message.
    :raises SentinelError: if it is not valid evidence. The message begins with the file, and for invalid JSON with the
        file and line.
    """
    try:
        return _load(file)
    except SentinelError as error:
        raise SentinelError(f"{error}; {advice}" if advice else str(error)) from None


def _load(file: Path) -> Document:
    name = visible(str(file))
    document = parse(file)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise SentinelError(f"{name}: not Sentinel evidence (no schema_version); name a file that a run wrote")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise SentinelError(
            f"{name}: schema version {message(str(version))[:40]}; this Sentinel "
            f"({sentinel.__version__}) reads version {SCHEMA_VERSION}; use the release that wrote the file"
        )
    try:
        validate(document)
    except SentinelError as error:
        raise SentinelError(f"{name}: {error}") from None
    return document


def parse(file: Path) -> Any:
    """Return the data of a JSON file, which may be damaged or hostile."""
    try:
        return read_data(file)
    except SentinelError as error:
        raise SentinelError(visible(str(error))) from None


def recorded(
    directory: Path,
    recipes: Recipes | None = None,
    under: PurePosixPath = _HERE,
    advice: str = "",
    on_error: Callable[[str], None] | None = None,
) -> dict[PurePosixPath, Document]:
    """Read the evidence in a folder, sorted by place: place -> document.

    :param recipes: the recipes for expanding the lines of a baseline. Without them, and for changed recipes, documents
        lack the title, scenario and expectations.
    :param under: the place of the evidence to read: that of a target, of a bug, or of one verdict; by default, of all.
    :param advice: the end of the error message for damaged evidence.
    :param on_error: called with the error message for each damaged document, which is then left out of the result.
    :raises SentinelError: if evidence is damaged and ``on_error`` is None.
    """
    readers: dict[PurePosixPath, Callable[[], Document]] = {}
    of_lines = set()
    documents = {}
    for file in line_files(directory):
        of_lines.add(file.stem)
        if under.parts[:1] in ((), (file.stem,)):
            for place, facts in facts_in(file, advice).items():
                if under in (_HERE, place) or under in place.parents:
                    readers[place] = partial(expand, file, facts, recipes)
    for file in files(directory, under):
        place = PurePosixPath(file.relative_to(directory).as_posix())
        if place.parts[0] not in of_lines:
            readers[place] = partial(load, file, advice)
    for place in sorted(readers):
        try:
            documents[place] = readers[place]()
        except SentinelError as error:
            if on_error is None:
                raise
            on_error(str(error))
    return documents


def holds_evidence(directory: Path) -> bool:
    """Return True if a folder contains evidence: JSON files of a run, or a baseline."""
    return bool(line_files(directory)) or any(files(directory))


def line_files(directory: Path) -> list[Path]:
    """Return the ``.jsonl`` files of a baseline."""
    with suppress(OSError):
        return sorted(file for file in directory.glob("*.jsonl") if file.is_file() and not file.is_symlink())
    return []


def facts_in(file: Path, advice: str = "") -> Mapping[PurePosixPath, Facts]:
    """Read the facts of each line of a baseline file: place -> facts. The result is cached, so callers must not modify
    it.

    :raises SentinelError: if the file or a line is unreadable.
    """
    try:
        status = file.stat()
        return _facts_in(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise SentinelError(f"{visible(str(file))}: cannot be read: {error.strerror}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; {advice or RESTORE}") from None


@lru_cache(maxsize=32)
def _facts_in(file: Path, *_: int) -> Mapping[PurePosixPath, Facts]:
    found: dict[PurePosixPath, Facts] = {}
    for facts in lines.read(file):
        place = _place_of(facts, file.stem)
        if place in found:
            raise SentinelError(f"{visible(str(file))}: two lines for {place}; remove one of them")
        found[place] = facts
    return found


def _place_of(facts: Facts, target: str) -> PurePosixPath:
    if "bug_id" in facts:
        folder = PurePosixPath(*map(file_name, (target, facts["bug_id"])))
    else:
        folder = law_folder(target, str(facts.get("subject") or facts["boundary_name"]), facts["law"])
    return folder / f"{file_name(lines.key_of(facts))}.json"


def expand(file: Path, facts: Facts, recipes: Recipes | None) -> Document:
    """Expand a baseline entry to the full evidence document.

    :raises SentinelError: if the entry is invalid.
    """
    recipe = lines.recipe_for(facts, file.stem, recipes)[0] if recipes is not None else None
    try:
        document = lines.document_of(facts, file.stem, recipe)
        validate(document)
        if why := lines.contradiction(document, recipe):
            raise SentinelError(why)
    except (SentinelError, KeyError, TypeError, AttributeError, ValueError) as error:
        subject = visible(str(facts.get("bug_id") or facts.get("law")))
        raise SentinelError(
            f"{visible(str(file))}: the line of {subject} is not evidence: {error}; {RESTORE}"
        ) from None
    return document


def entries(directory: Path, target: str, recipes: Recipes) -> dict[PurePosixPath, Facts]:
    """Read the facts of all recorded verdicts of a target, from baseline lines or JSON files: place -> facts.

    :raises SentinelError: if evidence is damaged.
    """
    file = directory / f"{file_name(target)}.jsonl"
    if file.is_file():
        return dict(facts_in(file))
    documents = recorded(directory, under=PurePosixPath(file_name(target)), advice=RESTORE)
    return {place: lines.facts_of(document, recipes, subject_of(place)) for place, document in documents.items()}


def subject_of(place: PurePosixPath) -> str:
    """Return the boundary from the place of a law's evidence. Return an empty string for a bug's evidence."""
    return place.parts[2] if place.parts[1] == "laws" else ""


def write_entries(directory: Path, target: str, facts: Mapping[PurePosixPath, Facts]) -> None:
    """Write the recorded verdicts of a target as baseline lines, and remove the JSON files that they replace."""
    file = own(directory, PurePosixPath(f"{file_name(target)}.jsonl"))
    text = lines.to_text(facts[place] for place in sorted(facts))
    if _present(file) != text.encode():
        write_atomically(file, text, "name another baseline folder")
    try:
        for old in list(files(directory, PurePosixPath(file_name(target)))):
            old.unlink()
            for folder in old.parents:
                if folder == directory or any(folder.iterdir()):
                    break
                folder.rmdir()
    except OSError as error:
        raise SentinelError(f"cannot remove {old}: {error.strerror}; make the folder writable") from error


def find(directory: Path, decision: Decision) -> Document | None:
    """Return the recorded evidence with the same place as a decision, or None."""
    place = evidence_path(decision)
    file = directory / f"{place.parts[0]}.jsonl"
    if file.is_file():
        facts = facts_in(file).get(place)
        return None if facts is None else expand(file, facts, None)
    file = directory / place
    return load(file, RESTORE) if file.exists() else None


def require_sound(directory: Path, targets: Collection[str]) -> None:
    """Raise SentinelError if evidence of these targets is damaged. Without targets, check all evidence."""
    for target in targets or ("",):
        recorded(directory, under=PurePosixPath(file_name(target)) if target else _HERE, advice=RESTORE)


def files(directory: Path, under: PurePosixPath = _HERE) -> Iterator[Path]:
    """Yield every evidence file in a report folder, sorted by path, without ``run.json`` and other files."""
    for file in [directory / under] if under.suffix == ".json" else below(directory, under):
        parts = file.relative_to(directory).parts
        if len(parts) > 1 and parts[0] != HISTORY and not any(part.startswith(".") for part in parts):
            yield file


def below(directory: Path, place: PurePosixPath = _HERE) -> list[Path]:
    """Return the JSON files below a folder, sorted by path. Symbolic links are not followed."""
    with suppress(OSError, SentinelError):
        return sorted(file for file in own(directory, place).rglob("*.json") if file.is_file())
    return []


def decided(
    directory: Path, advice: str = "", recipes: Recipes | None = None
) -> dict[PurePosixPath, tuple[Document, str]]:
    """Return the evidence of a folder's last run: place -> (document, pytest's outcome).

    A baseline has no run, so all of its evidence is returned, with empty outcomes.

    A baseline has no ``run.json``. For a baseline, return all evidence, with empty outcomes.
    """
    if not os.path.lexists(directory / RUN):
        return {place: (document, "") for place, document in recorded(directory, recipes, advice=advice).items()}
    name = visible(str(directory / RUN))
    try:
        listed = {str(item["evidence"]): str(item["outcome"]) for item in parse(directory / RUN)["items"]}
    except (KeyError, TypeError):
        raise SentinelError(f"{name}: not the run.json of a run; {RUN_AGAIN}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; {RUN_AGAIN}") from None
    places = {PurePosixPath(file.relative_to(directory).as_posix()): file for file in files(directory)}
    missing = sorted(place for place in listed if place and PurePosixPath(place) not in places)
    if missing:
        raise SentinelError(f"{name}: the evidence {visible(missing[0])} is missing from the folder; run pytest again")
    return {place: (load(file, advice), listed[str(place)]) for place, file in places.items() if str(place) in listed}


def day_of(directory: Path) -> str:
    """Return the ISO date on which a folder's last run began."""
    started = parse(directory / RUN).get("started", "") if (directory / RUN).is_file() else ""
    return str(started)[:10] or datetime.now(timezone.utc).date().isoformat()


def _present(file: Path) -> bytes | None:
    try:
        return regular_bytes(file, GENERATED)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_write(file.parent, error) from error


def _looks_like_evidence(raw: bytes) -> bool:
    """Return True if Sentinel wrote the file, even if another version did or the evidence is invalid."""
    try:
        document = json_data(raw)
    except DocumentError:
        return False
    return isinstance(document, dict) and {"schema_version", "bug_id", "verdict"} <= set(document)


def write_run(
    report_dir: Path,
    items: Iterable[RunItem],
    *,
    started: datetime,
    duration: float,
    command: Sequence[str],
    undecided: Mapping[str, int] | None = None,
) -> Path:
    """Write ``run.json``: times, outcomes and the command line, which vary from run to run and do not belong in
    evidence.

    :param duration: seconds.
    :param command: the command line; credentials in URLs are removed.
    :param undecided: reason -> the number of items without a conclusive verdict for this reason.
    """
    listed = sorted(items, key=lambda item: item.id)
    run = {
        "sentinel_version": sentinel.__version__,
        "started": started.astimezone(timezone.utc).isoformat(timespec="milliseconds"),
        "duration": round(duration, 3),
        "host": platform.node(),
        "command": re.sub(r"(?<=://)[^\s/@]+@", "", shlex.join(command)),
        "totals": {
            "items": len(listed),
            "outcomes": dict(Counter(item.outcome for item in listed)),
            "verdicts": dict(Counter(item.verdict for item in listed if item.verdict)),
            "undecided": dict(undecided or {}),
        },
        "items": [{**asdict(item), "duration": round(item.duration, 4)} for item in listed],
    }
    prepare(report_dir)
    file = report_dir / RUN
    write_atomically(file, json.dumps(run, indent=1, sort_keys=True) + "\n")
    return file
