"""Manage mirrors: bare git repositories, one per target."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sentinel.errors import SentinelError, Unavailable
from sentinel.sources import git_objects, gitrefs, transfers
from sentinel.sources.adding import copy_objects, open_directory, open_tar
from sentinel.sources.gitbinary import GitError
from sentinel.sources.home import Home, Progress, read_json, remove_tree, safe_name, size_of, write_atomically, writing
from sentinel.sources.locks import free_locks, locked
from sentinel.sources.resolving import resolve
from sentinel.sources.urls import base_name, check_url, is_url, local_path, redact
from sentinel.targets import Target

#: The name of the file that is written last. A mirror without this file is unfinished.
RECORD = "sentinel.json"
#: The file that lists the missing objects, one name per line.
ABSENT = "absent"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = true\n"


@dataclass(frozen=True)
class Mirror:
    """The description of a mirror, as ``sentinel mirror list`` prints it.

    :ivar url: the remote from which missing objects are fetched on request.
    :ivar origins: the sources from which the mirror was made, one line each.
    :ivar whole: False if the run that made the mirror was interrupted. ``mirror add`` then makes the mirror again.
    :ivar absent: the number of objects that were missing when the mirror was made.
    """

    target: str
    path: Path
    url: str = ""
    origins: tuple[str, ...] = ()
    refs: int = 0
    absent: int = 0
    updated: str = ""
    size: int = 0
    whole: bool = True


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_atomically(path / RECORD, json.dumps({**record, "updated": now}, indent=1, sort_keys=True) + "\n")


def is_whole(path: Path) -> bool:
    """Return True if a mirror is complete: the run that made it has finished and written its record."""
    return _read_record(path) is not None


def _read_record(path: Path) -> dict[str, Any] | None:
    record = read_json(path / RECORD) or {}
    kinds = {"url": str, "origins": list, "absent": int, "updated": str}
    sound = "updated" in record and all(isinstance(record.get(name, kind()), kind) for name, kind in kinds.items())
    return record if sound else None


def describe(target: str, path: Path) -> Mirror:
    """Return the description of a mirror for ``mirror list``, even of an unfinished one."""
    record = _read_record(path)
    if record is None:
        return Mirror(target, path, size=size_of(path), whole=False)
    return Mirror(
        target,
        path,
        url=redact(str(record.get("url", ""))),
        origins=tuple(map(str, record.get("origins", ()))),
        refs=len(gitrefs.read_refs(path)),
        absent=int(record.get("absent", 0)),
        updated=str(record.get("updated", "")),
        size=size_of(path),
    )


def make_blank(path: Path) -> None:
    """Create an empty bare git repository without a remote."""
    for folder in ("objects/pack", "objects/info", "refs/heads"):
        (path / folder).mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main\n")
    (path / "config").write_text(_CONFIG)


def remove_half_packs(path: Path) -> None:
    """Remove incomplete packs that interrupted transfers left."""
    packs = path / "objects" / "pack"
    for file in [*path.glob("objects/*/tmp_*"), *packs.glob("pack-*")]:
        if file.suffix == ".keep" or not file.with_suffix(".idx").exists():
            file.unlink(missing_ok=True)


class MirrorStore:
    """The mirrors under one ``SENTINEL_HOME``."""

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home.default()
        self._unreachable: dict[tuple[str, str], str] = {}

    def list(self) -> list[Mirror]:
        """Return every mirror, including unfinished ones."""
        paths = sorted(self.home.mirrors.glob("*.git")) if self.home.mirrors.is_dir() else []
        return [describe(path.name.removesuffix(".git"), path) for path in paths]

    def has(self, target: str) -> bool:
        """Return True if a target has a complete mirror. Only one small file is read."""
        return is_whole(self.home.mirror(target))

    def get(self, target: str) -> Mirror | None:
        """Return the complete mirror of a target; None if there is none."""
        path = self.home.mirror(target)
        return describe(target, path) if is_whole(path) else None

    def path(self, target: str) -> Path:
        """Return the git directory of a target's mirror.

        :raises Unavailable: if the target has no finished mirror.
        """
        path = self.home.mirror(target)
        if not is_whole(path):
            half = " (an unfinished one exists)" if path.exists() else ""
            raise Unavailable(f"no mirror of {target}{half}; run `sentinel mirror add {target}`")
        return path

    def url(self, target: str) -> str:
        return str((_read_record(self.home.mirror(target)) or {}).get("url", ""))

    def add(self, target: Target, origin: str | None = None, *, progress: Progress | None = None) -> Mirror:
        """Create a target's mirror, or add the objects and refs of a second source to it.

        :param origin: a git directory, a clone, a tar of either, or a URL; None for the target's own repository.
        """
        upstream = check_url(origin if origin and is_url(origin) else target.repository)
        if origin is not None and origin.startswith("-"):
            raise SentinelError(f"not a directory, tar or URL: {origin!r} begins with '-' like an option")
        with writing(self.home.path), self._locked(target.name):
            self._sweep(target.name)
            scratch = Path(tempfile.mkdtemp(prefix=f".part-{target.name}-", dir=self.home.mirrors))
            try:
                part = scratch / "mirror.git"
                if origin is None or is_url(origin):
                    head = self._from_url(target.name, part, check_url(origin or upstream), progress)
                    described = redact(origin or upstream)
                else:
                    head = self._from_files(part, local_path(origin), scratch, progress)
                    described = str(local_path(origin))
                self._finish(target, part, head, upstream, described, progress)
            finally:
                remove_tree(scratch)
        return describe(target.name, self.home.mirror(target.name))

    def remove(self, target: str) -> Mirror:
        """Remove a target's mirror and return its description."""
        path = self.home.mirror(target)
        if not path.exists():
            raise SentinelError(
                f"no mirror of {target} in {self.home.mirrors}; `sentinel mirror list` lists the mirrors"
            )
        with writing(self.home.path), self._locked(target):
            mirror = describe(target, path)
            scratch = Path(tempfile.mkdtemp(prefix=f".part-{target}-", dir=self.home.mirrors))
            path.rename(scratch / "mirror.git")  # atomic, so that no reader sees a half-removed mirror
            remove_tree(scratch)
        return mirror

    def update(self, target: Target, *, progress: Progress | None = None) -> Mirror:
        """Fetch new branches and tags, and new commits of the pull requests that the mirror has."""
        try:
            path = self.path(target.name)
        except Unavailable as error:
            raise SentinelError(error.reason) from error
        url = self.url(target.name)
        with writing(self.home.path), self._locked(target.name):
            self._sweep(target.name)
            ours = gitrefs.read_refs(path)
            try:
                theirs, _ = transfers.remote_refs(path, url)
                pulls = [
                    f"+{name}:{name}"
                    for name, sha in theirs.items()
                    if name.startswith("refs/pull/") and ours.get(name, sha) != sha
                ]
                fetched = transfers.fetch(path, url, [*transfers.BRANCHES_AND_TAGS, *pulls], progress)
            except GitError as error:
                where = f"the mirror of {target.name} from {redact(url)}"
                hint = f"`sentinel mirror add {target.name} --from COPY` adds the commits of a newer copy"
                raise SentinelError(f"cannot update {where}: {error}; {hint}") from error
            self._adopt(path, fetched)
        self._unreachable.clear()
        return describe(target.name, self.home.mirror(target.name))

    def fetch(self, target: str, refspecs: Sequence[str], progress: Progress | None = None) -> None:
        """Fetch refs into a mirror. If the same fetch has already failed in this run, only raise its error again.

        :raises GitError: if the fetch fails.
        """
        path, url = self.path(target), self.url(target)
        key = (target, " ".join(refspecs))
        for scope in (key, (target, "")):
            if scope in self._unreachable:
                raise GitError(self._unreachable[scope])
        try:
            with writing(self.home.path), self._locked(target):
                self._adopt(path, transfers.fetch(path, url, refspecs, progress))
        except GitError as error:
            offline = "resolve host" in str(error) or "connect" in str(error).lower()
            self._unreachable[(target, "") if offline else key] = str(error)
            raise

    def fetch_blobs(self, target: str, blobs: Sequence[str], progress: Progress | None = None) -> None:
        """Fetch missing files, given their blob hashes."""
        path, url = self.path(target), self.url(target)
        if (target, "") in self._unreachable:
            raise GitError(self._unreachable[target, ""])
        with writing(self.home.path), self._locked(target):
            transfers.fetch_objects(path, url, blobs, progress)

    def resolve(self, target: Target, name: str, *, pull: int | None = None, progress: Progress | None = None) -> str:
        """Return the full hash of the commit that a name refers to; see :func:`sentinel.sources.resolving.resolve`."""

        def fetch(refspec: str) -> str | None:
            try:
                self.fetch(target.name, [refspec], progress)
            except SentinelError as error:
                name = refspec.split(":")[0].lstrip("+")
                return f"{name} could not be fetched from {redact(self.url(target.name))}: {error}"
            return None

        return resolve(self.path(target.name), target.name, name, pull, fetch)

    def sweep(self) -> None:
        """Remove the leftovers of interrupted runs from the mirrors that no process uses."""
        with writing(self.home.path):
            for lock in free_locks(self.home.mirrors, ".*.lock"):
                self._sweep(lock.name[1:].removesuffix(".lock"))

    def _locked(self, target: str) -> AbstractContextManager[None]:
        return locked(self.home.mirrors / f".{safe_name(target)}.lock")

    def _sweep(self, target: str) -> None:
        """Remove the leftovers of interrupted runs from one mirror. The caller holds the mirror's lock."""
        for pattern in (f".part-{target}-*", f".fetch-{target}.git-*", f".fetch-mirror.git-{target}-*"):
            for leftover in self.home.mirrors.glob(pattern):
                remove_tree(leftover)
        path = self.home.mirror(target)
        remove_half_packs(path)
        if path.exists() and not is_whole(path):
            remove_tree(path)

    def _from_url(self, target: str, part: Path, url: str, progress: Progress | None) -> str | None:
        make_blank(part)
        try:
            _, head = transfers.remote_refs(part, url)
            fetched = transfers.fetch(part, url, transfers.BRANCHES_AND_TAGS, progress)
        except GitError as error:
            raise SentinelError(
                f"cannot mirror {redact(url)}: {error}; to copy a local clone instead, run "
                f"`sentinel mirror add {base_name(target)} --from DIR|TAR`"
            ) from error
        if not fetched:
            raise SentinelError(f"cannot mirror {redact(url)}: it has no branches or tags")
        gitrefs.write_refs(part, fetched)
        return head

    def _from_files(self, part: Path, path: Path, scratch: Path, progress: Progress | None) -> str | None:
        if not path.exists():
            raise SentinelError(f"{path}: no such file or directory")
        if path.is_dir():
            git_dir, objects = open_directory(path)
        else:
            if progress:
                progress(f"unpacking {path}")
            (scratch / "tar").mkdir()
            git_dir, objects = open_tar(path, scratch / "tar")
        make_blank(part)
        if progress:
            progress(f"copying {path}")
        copy_objects(objects, part / "objects")
        gitrefs.write_shallow(part, gitrefs.read_shallow(git_dir))
        refs = git_objects.whole_refs(part, gitrefs.read_refs(git_dir))
        if not refs:
            raise SentinelError(
                f"{path} has no branch or tag whose commit exists; the repository is empty or incomplete"
            )
        gitrefs.write_refs(part, refs)
        return gitrefs.head_branch(git_dir)

    def _finish(
        self, target: Target, part: Path, head: str | None, url: str, described: str, progress: Progress | None
    ) -> None:
        if progress:
            progress("checking that the history is complete")
        try:
            absent = git_objects.absent_objects(part)
            has_roots = git_objects.ever_had(part, [root.path for root in target.roots])
        except GitError as error:
            raise SentinelError(f"{described} is incomplete ({error}); fetch or copy it again") from error
        if not has_roots:
            names = ", ".join(root.path for root in target.roots)
            raise SentinelError(
                f"{described} is not {base_name(target.name)}: no commit has any of its packages ({names}); "
                f"name a copy of {target.repository or 'its repository'}"
            )
        path = self.home.mirror(target.name)
        record: dict[str, Any] = {"version": 1, "target": target.name, "url": url, "origins": []}
        if path.exists():
            record = {**record, **(_read_record(path) or {})}
            record["url"] = url
            copy_objects((part / "objects",), path / "objects")
            both = gitrefs.read_shallow(path) | gitrefs.read_shallow(part)
            gitrefs.write_shallow(path, git_objects.still_shallow(path, both))
            refs = gitrefs.merge(gitrefs.read_refs(path), gitrefs.read_refs(part))
            gitrefs.write_refs(path, git_objects.whole_refs(path, refs))
            absent = git_objects.absent_objects(path)
        else:
            branch = head if head in gitrefs.read_refs(part) else f"refs/heads/{target.branch}"
            (part / "HEAD").write_text(f"ref: {branch}\n")
        place = path if path.exists() else part
        write_atomically(place / ABSENT, "".join(f"{oid}\n" for oid in absent))
        record["origins"] = [*(o for o in record["origins"] if o != described), described]
        write_record(place, {**record, "absent": len(absent)})
        if place == part:
            part.rename(path)

    def _adopt(self, path: Path, fetched: dict[str, str]) -> None:
        gitrefs.write_refs(path, gitrefs.merge(gitrefs.read_refs(path), fetched))
        write_record(path, _read_record(path) or {})
