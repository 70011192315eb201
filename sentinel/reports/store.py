"""Evidence on disk, in two forms that :func:`recorded` reads alike.

A run writes ``<report folder>/<target>/<BUG-ID>/<key>.json``, and ``run.json`` next to the target folders for what
varies from run to run. A baseline has a file ``<folder>/<target>.jsonl`` for each target, with a line for each verdict
(see :mod:`sentinel.reports.lines`). A verdict has the same place in both: the path of the file that a run writes.
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
from sentinel.sources.home import replace_file
from sentinel.values.documents import DocumentError, json_data, read_data
from sentinel.values.files import GENERATED, regular_bytes

RUN = "run.json"

#: The folder of a report folder that has records of histories (see :mod:`sentinel.records.history`), and no evidence.
HISTORY = "history"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 120
_HERE = PurePosixPath()


@dataclass(frozen=True)
class RunItem:
    """One pytest item of a run.

    :ivar outcome: ``passed``, ``failed`` or ``skipped``.
    :ivar evidence: its evidence, relative to the report folder; empty where it left none.
    """

    id: str
    outcome: str
    verdict: str
    duration: float
    evidence: str = ""


def evidence_path(decision: Decision) -> PurePosixPath:
    """Say where a decision's evidence lies in a report folder.

    ``<target>/<BUG-ID>/<key>.json``; for a law without a recipe (an empty ``bug_id``)
    ``<target>/laws/<boundary>/<law>/<key>.json``.
    """
    recipe, checkout = decision.recipe, decision.checkout
    # A working tree or an environment is named by its tree hash.
    absent = "" if decision.ref.kind in ("git", "pypi") else "absent"
    key = checkout.key if checkout is not None else decision.ref.key("") + absent
    if decision.law and not recipe.bug_id:
        return law_folder(recipe.target, decision.subject or recipe.boundary, decision.law) / f"{file_name(key)}.json"
    return PurePosixPath(*map(file_name, (recipe.target, recipe.bug_id)), file_name(key) + ".json")


def law_folder(target: str, boundary: str, law: str) -> PurePosixPath:
    """Say where the evidence of a law without a recipe lies, at whatever ref."""
    return PurePosixPath(*map(file_name, (target, "laws", boundary, law)))


def file_name(text: str) -> str:
    """Give the text as a file name of ``[A-Za-z0-9._-]``; a hash keeps apart what would become one name."""
    safe = _UNSAFE.sub("-", text).lstrip(".-")
    if safe == text and 0 < len(safe) <= _LONGEST_NAME:
        return safe
    return f"{safe[:_LONGEST_NAME] or 'unnamed'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def write(report_dir: Path, decision: Decision, document: Document | None = None) -> Path:
    """Validate and write the evidence of one decision; a file that already has these bytes is left alone."""
    document = evidence(decision) if document is None else document
    validate(document)
    return put(report_dir, evidence_path(decision), dumps(document))


class DamagedEvidence(UserWarning):
    """A file of a report folder was damaged, and has been written anew."""


def put(report_dir: Path, place: PurePosixPath, text: str) -> Path:
    """Put the text of a valid document at its place; warn if what was there is damaged evidence."""
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
                f"{visible(str(file))} is not Sentinel evidence and is not overwritten; move it away, "
                "or choose another --sentinel-report-dir"
            )
    write_atomically(file, text)
    if damaged:
        warnings.warn(f"{visible(str(file))} was cut off or damaged, and has been written anew", DamagedEvidence, 3)
    return file


def _is_damaged(raw: bytes, text: str) -> bool:
    """Return True for evidence that was not written to its end, as a machine leaves it that went down: no JSON, and it
    begins like this text of evidence, or has nothing but zeros."""
    start, written = text[: text.index(":")].encode(), raw.rstrip(b"\0")
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return not written or written.startswith(start) or start.startswith(written)
    return False


def own(folder: Path, place: PurePosixPath) -> Path:
    """Give the file at a place in a folder, where no link on the way leads elsewhere."""
    file = folder / place
    for above in (*reversed(file.parents), file):
        if folder in above.parents and above.is_symlink():
            raise SentinelError(f"{visible(str(above))} is a link, and nothing is written through it; remove the link")
    return file


def write_below(folder: Path, place: str, text: str, otherwise: str) -> Path:
    """:func:`write_atomically` at a place in a user's folder, where no link on the way leads elsewhere."""
    file = own(folder, PurePosixPath(place))
    write_atomically(file, text, otherwise)
    return file


def prepare(report_dir: Path) -> None:
    """Make the report folder where it is not there; a new one ignores itself in git."""
    try:
        if not report_dir.is_dir():
            report_dir.parent.mkdir(parents=True, exist_ok=True)
            _make(report_dir)
    except OSError as error:
        raise _cannot_write(report_dir, error) from error


def _make(report_dir: Path) -> None:
    """Make a folder that has its ``.gitignore`` from the beginning: a run that is killed between the two would leave
    one that looks like the user's own."""
    if os.path.lexists(report_dir):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    part = report_dir.with_name(f".{report_dir.name}.new")  # one for all, so that a leftover is made use of
    if part.is_symlink():
        part.unlink()  # no leftover of ours
    try:
        part.mkdir(exist_ok=True)
        (part / ".gitignore").write_text("# made by Sentinel\n*\n", encoding="utf-8")
        part.rename(report_dir)
    except OSError:
        if not report_dir.is_dir():  # else another process was first
            raise


_CHOOSE = "choose another with --sentinel-report-dir"


def write_atomically(file: Path, text: str, otherwise: str = _CHOOSE) -> None:
    """Write a file so that a reader sees the old bytes or the new ones, and an interruption leaves the old.

    :param otherwise: what else the user can do where the folder cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, text)
    except OSError as error:
        raise _cannot_write(file.parent, error, otherwise) from error


def _cannot_write(folder: Path, error: OSError, otherwise: str = _CHOOSE) -> SentinelError:
    why = error.strerror or type(error).__name__
    return SentinelError(
        f"cannot write reports to {visible(str(folder))}: {why}; make it a writable folder with free space, "
        f"or {otherwise}"
    )


#: What to do about damaged evidence of a run, and of a baseline.
RUN_AGAIN = "run pytest again: a run writes damaged evidence anew"
RESTORE = "restore it from git, or remove it and record it with `sentinel report accept`"


def load(file: Path, advice: str = "") -> Document:
    """Read and validate evidence.

    :param advice: what a user can do if it is damaged.
    :raises SentinelError: if it is no valid evidence; the message begins with the file, and the line if it is no JSON.
    """
    try:
        return _load(file)
    except SentinelError as error:
        raise SentinelError(f"{error}; {advice}" if advice else str(error)) from None


def _load(file: Path) -> Document:
    name = visible(str(file))
    document = parse(file)
    if not isinstance(document, dict) or "schema_version" not in document:
        raise SentinelError(f"{name}: not Sentinel evidence (no schema_version); give a file that a run has written")
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise SentinelError(
            f"{name}: evidence of schema version {message(str(version))[:40]}, and this Sentinel "
            f"({sentinel.__version__}) reads version {SCHEMA_VERSION}; use the release that wrote it"
        )
    try:
        validate(document)
    except SentinelError as error:
        raise SentinelError(f"{name}: {error}") from None
    return document


def parse(file: Path) -> Any:
    """Return the data of a JSON file that nobody vouches for (see :func:`~sentinel.values.documents.read_data`)."""
    try:
        return read_data(file)
    except SentinelError as error:
        raise SentinelError(visible(str(error))) from None


def recorded(
    directory: Path,
    recipes: Recipes | None = None,
    under: PurePosixPath = _HERE,
    advice: str = "",
    complain: Callable[[str], None] | None = None,
) -> dict[PurePosixPath, Document]:
    """Return the evidence of a folder by place, in order.

    :param recipes: what a baseline's lines are expanded with; without it, or if a recipe has changed, their documents
        lack the title, the scenario and the expectations.
    :param under: the place of a target, a bug or one verdict.
    :param advice: what a user can do about damaged evidence.
    :param complain: is told about damaged evidence; the rest is returned.
    :raises SentinelError: if evidence is damaged, and nobody is told.
    """
    found: dict[PurePosixPath, Callable[[], Document]] = {}
    of_lines = set()
    documents = {}
    for file in line_files(directory):
        of_lines.add(file.stem)
        if under.parts[:1] in ((), (file.stem,)):
            for place, facts in facts_in(file, advice).items():
                if under in (_HERE, place) or under in place.parents:
                    found[place] = partial(expanded, file, facts, recipes)
    for file in files(directory, under):
        place = PurePosixPath(file.relative_to(directory).as_posix())
        if place.parts[0] not in of_lines:
            found[place] = partial(load, file, advice)
    for place in sorted(found):
        try:
            documents[place] = found[place]()
        except SentinelError as error:
            if complain is None:
                raise
            complain(str(error))
    return documents


def holds_evidence(directory: Path) -> bool:
    """Return True if there is evidence in a folder, in either form."""
    return bool(line_files(directory)) or any(files(directory))


def line_files(directory: Path) -> list[Path]:
    """Return the files of lines of a baseline."""
    with suppress(OSError):
        return sorted(file for file in directory.glob("*.jsonl") if file.is_file() and not file.is_symlink())
    return []


def facts_in(file: Path, advice: str = "") -> Mapping[PurePosixPath, Facts]:
    """Return the facts of a file of lines by place. They are not to be changed.

    :raises SentinelError: if the file or a line of it cannot be read.
    """
    try:
        status = file.stat()
        return _facts_in(file, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise SentinelError(f"{visible(str(file))}: cannot be read: {error.strerror}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; {advice or RESTORE}") from None


@lru_cache(maxsize=32)
def _facts_in(file: Path, modified: int, size: int) -> Mapping[PurePosixPath, Facts]:
    found: dict[PurePosixPath, Facts] = {}
    for facts in lines.read(file):
        place = _place_of(facts, file.stem)
        if place in found:
            raise SentinelError(f"{visible(str(file))}: two lines for {place}")
        found[place] = facts
    return found


def _place_of(facts: Facts, target: str) -> PurePosixPath:
    if "bug_id" in facts:
        folder = PurePosixPath(*map(file_name, (target, facts["bug_id"])))
    else:
        folder = law_folder(target, str(facts.get("subject") or facts["boundary_name"]), facts["law"])
    return folder / f"{file_name(lines.key_of(facts))}.json"


def expanded(file: Path, facts: Facts, recipes: Recipes | None) -> Document:
    """Return the document of facts.

    :raises SentinelError: if they do not make one.
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
    """Return what a baseline records of a target, by place, in whichever form.

    :raises SentinelError: if evidence is damaged.
    """
    file = directory / f"{file_name(target)}.jsonl"
    if file.is_file():
        return dict(facts_in(file))
    documents = recorded(directory, under=PurePosixPath(file_name(target)), advice=RESTORE)
    return {place: lines.facts_of(document, recipes, subject_of(place)) for place, document in documents.items()}


def subject_of(place: PurePosixPath) -> str:
    """Return what the evidence of a law is filed under; empty for a bug's."""
    return place.parts[2] if place.parts[1] == "laws" else ""


def write_entries(directory: Path, target: str, facts: Mapping[PurePosixPath, Facts]) -> None:
    """Write what a baseline records of a target as lines, and remove its single files."""
    file = own(directory, PurePosixPath(f"{file_name(target)}.jsonl"))
    text = lines.written(facts[place] for place in sorted(facts))
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
    """Return what a folder records about a decision's target, bug and ref, or None."""
    place = evidence_path(decision)
    file = directory / f"{place.parts[0]}.jsonl"
    if file.is_file():
        facts = facts_in(file).get(place)
        return None if facts is None else expanded(file, facts, None)
    file = directory / place
    return load(file, RESTORE) if file.exists() else None


def require_sound(directory: Path, targets: Collection[str]) -> None:
    """Raise an error if a folder's evidence of these targets (none: of all) is damaged."""
    for target in targets or ("",):
        recorded(directory, under=PurePosixPath(file_name(target)) if target else _HERE, advice=RESTORE)


def files(directory: Path, under: PurePosixPath = _HERE) -> Iterator[Path]:
    """Yield every evidence file of a run's folder, in order of path; ``run.json`` and other files are passed over."""
    for file in [directory / under] if under.suffix == ".json" else below(directory, under):
        parts = file.relative_to(directory).parts
        if len(parts) > 1 and parts[0] != HISTORY and not any(part.startswith(".") for part in parts):
            yield file


def below(directory: Path, place: PurePosixPath = _HERE) -> list[Path]:
    """Give the JSON files at a place in a folder and further down, in order of path. What a link leads to is somebody
    else's: in a stranger's folder it may be the whole disk."""
    with suppress(OSError, SentinelError):
        return sorted(file for file in own(directory, place).rglob("*.json") if file.is_file())
    return []


def decided(
    directory: Path, advice: str = "", recipes: Recipes | None = None
) -> dict[PurePosixPath, tuple[Document, str]]:
    """Return the evidence of the items that a folder's last run decided, each with pytest's outcome; of a baseline,
    which no run has ended, all that lies there."""
    if not os.path.lexists(directory / RUN):
        return {place: (document, "") for place, document in recorded(directory, recipes, advice=advice).items()}
    name = visible(str(directory / RUN))
    try:
        listed = {str(item["evidence"]): str(item["outcome"]) for item in parse(directory / RUN)["items"]}
    except (KeyError, TypeError):
        raise SentinelError(f"{name}: not what a run writes; {RUN_AGAIN}") from None
    except SentinelError as error:
        raise SentinelError(f"{error}; {RUN_AGAIN}") from None
    places = {PurePosixPath(file.relative_to(directory).as_posix()): file for file in files(directory)}
    missing = sorted(place for place in listed if place and PurePosixPath(place) not in places)
    if missing:
        raise SentinelError(f"{name}: no such evidence in its folder: {visible(missing[0])}; run again")
    return {place: (load(file, advice), listed[str(place)]) for place, file in places.items() if str(place) in listed}


def day_of(directory: Path) -> str:
    """Return the day on which a folder's last run began, ISO; today if no run has ended there."""
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
    """Return whether a file may be replaced: evidence of any version was written by Sentinel, even if it is invalid."""
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
    """Write ``run.json``: what varies from run to run, and so must not stand in evidence.

    :param command: the command line; credentials in URLs are left out.
    :param undecided: why items decided nothing, and how many.
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
