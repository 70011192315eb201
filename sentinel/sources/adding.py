"""Taking a git directory, or a tar of one, into the store: its files, never a reference to it (unless asked for).

Cloning is no way in: ``git clone`` refuses a directory that lacks its largest blobs, and takes branches and tags only.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from sentinel.errors import SentinelError
from sentinel.sources.gitbinary import GitError, common_dir, git_dir_of, run_checked
from sentinel.sources.home import small_text

_PACK = re.compile(r"pack-[0-9a-f]{40,64}\.pack")
_FANOUT = re.compile(r"[0-9a-f]{2}")
_LOOSE = re.compile(r"[0-9a-f]{38}")
_PIECE = 1 << 20
#: What a disk or its owner refuses with; any other complaint is about the tar.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_MAX_TAR_FILES = 200_000
_MAX_TAR_BYTES = 20 << 30


#: Where ``HEAD``, ``objects`` and the refs lie; and the object directories: its own, and those it borrows from.
Origin = tuple[Path, tuple[Path, ...]]


def open_directory(path: Path) -> Origin:
    """Find the git directory of a bare repository, a clone with a work tree, or a linked work tree."""
    git_dir = _git_dir(path)
    if git_dir is None:
        raise SentinelError(
            f"{path} is not a git directory (no HEAD and objects in it, and no .git); "
            "give a clone, a bare repository, or a tar of one"
        )
    if "objectformat" in (small_text(git_dir / "config") or "").lower().replace(" ", ""):
        raise SentinelError(f"{path} is not a sha1 repository; only those are supported")
    return git_dir, tuple(_object_directories(git_dir / "objects"))


def open_tar(path: Path, scratch: Path) -> Origin:
    """Unpack a tar, which is not trusted, into a scratch folder, and find the git directory in it.

    Its pack indexes are made anew, and its loose objects looked into: else one object could have another's name."""
    _extract(path, scratch)
    git_dir = next((folder for folder in _folders(scratch, 3) if _git_dir(folder) == folder), None)
    if git_dir is None:
        raise SentinelError(f"{path} holds no git directory (a folder with HEAD and objects)")
    if (git_dir / "objects" / "info" / "alternates").exists():
        raise SentinelError(
            f"the git directory in {path} borrows objects from another place; run `git repack -a -d` in it first"
        )
    for pack in sorted((git_dir / "objects" / "pack").glob("*.pack")):
        for suffix in (".idx", ".rev", ".bitmap"):
            pack.with_suffix(suffix).unlink(missing_ok=True)
        try:
            run_checked(git_dir, "index-pack", str(pack))
        except GitError as error:
            raise SentinelError(f"{path}: {pack.name} is damaged or cut off: {error}") from error
    for loose in _loose(git_dir / "objects"):
        if not _is_what_its_name_says(loose):
            raise SentinelError(f"{path}: object {loose.parent.name}{loose.name} is damaged: its name is another one's")
    return git_dir, (git_dir / "objects",)


def _git_dir(path: Path) -> Path | None:
    dot = path / ".git"
    if dot.is_dir() or dot.is_file():
        path = common_dir(git_dir_of(path))
    try:
        return path if (path / "HEAD").is_file() and (path / "objects").is_dir() else None
    except OSError:  # a name longer than any file's
        return None


def _object_directories(objects: Path) -> list[Path]:
    """List an object directory and those that it borrows from, each once."""
    directories = [objects]
    for borrower in directories:  # which grows meanwhile
        lines = (small_text(borrower / "info" / "alternates") or "").split("\n")
        for line in lines:
            other = Path(os.path.normpath(borrower / line))
            if not line or line.startswith("#") or other in directories:
                continue
            if not other.is_dir():
                raise SentinelError(f"{borrower.parent} borrows objects from {other}, which is not there")
            directories.append(other)
    return directories


def _folders(path: Path, depth: int) -> Iterator[Path]:
    yield path
    if depth:
        for child in sorted(path.iterdir()):
            if child.is_dir():
                yield from _folders(child, depth - 1)


def _extract(path: Path, scratch: Path) -> None:
    """Write the regular files and folders of a tar; anything else in it, or a name that leads out, is an error.

    Written by hand and not by ``extractall``: the ``data`` filter is not in every Python 3.10, and it allows links.
    """
    total = 0
    try:
        with tarfile.open(path) as tar:
            for number, member in enumerate(tar):
                name = PurePosixPath(member.name)
                total += member.size
                if member.isdir() and name == PurePosixPath("."):
                    continue
                if (
                    not name.parts
                    or name.is_absolute()
                    or {"..", "\0"} & {*name.parts, *member.name}
                    or ("\\" in member.name or ":" in name.parts[0])
                ):
                    raise SentinelError(f"{path}: {member.name!r} leads out of the tar; it is not taken")
                if not member.isreg() and not member.isdir():
                    raise SentinelError(f"{path}: {member.name!r} is a link or a device; a git directory needs none")
                if number >= _MAX_TAR_FILES or total > _MAX_TAR_BYTES:
                    raise SentinelError(f"{path} holds too many files or bytes to be a mirror")
                place = scratch.joinpath(*name.parts)
                if member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with content, place.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except OSError as error:
        if error.errno in _OF_THE_DISK:
            raise
        raise SentinelError(f"{path} is not a whole tar: {error}") from error
    except (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError) as error:
        raise SentinelError(f"{path} is not a whole tar: {error}") from error


def _loose(objects: Path) -> Iterator[Path]:
    """List the loose objects of an object directory."""
    for folder in sorted(objects.iterdir()):
        if _FANOUT.fullmatch(folder.name) and folder.is_dir():
            yield from (file for file in sorted(folder.iterdir()) if _LOOSE.fullmatch(file.name) and file.is_file())


def _is_what_its_name_says(loose: Path) -> bool:
    """Whether a loose object has its own name: git checks packs alone, and reads whatever is in the file of a loose
    one."""
    digest, unpacked = hashlib.sha1(usedforsecurity=False), zlib.decompressobj()
    with loose.open("rb") as file:
        while not unpacked.eof and (piece := unpacked.unconsumed_tail or file.read(_PIECE)):
            try:
                digest.update(unpacked.decompress(piece, _PIECE))
            except zlib.error:
                return False
    return digest.hexdigest() == loose.parent.name + loose.name


def copy_objects(sources: tuple[Path, ...], into: Path) -> None:
    """Copy packs and loose objects into an object directory of ours.

    Every pack is marked as a promisor's: then git takes a blob that was left out for absent, not for lost, when it
    checks what a later fetch brings."""
    (into / "pack").mkdir(parents=True, exist_ok=True)
    for objects in sources:
        for pack in sorted((objects / "pack").glob("*.pack")):
            if _PACK.fullmatch(pack.name) and pack.is_file() and pack.with_suffix(".idx").is_file():
                _check_whole(pack)
                promisor = into / "pack" / pack.with_suffix(".promisor").name
                if not promisor.exists():
                    promisor.touch()
                # The index last, as git does: a pack without one is not there yet.
                for suffix in (".pack", ".rev", ".idx"):
                    if pack.with_suffix(suffix).is_file():
                        _copy(pack.with_suffix(suffix), into / "pack" / pack.with_suffix(suffix).name)
        for loose in _loose(objects):
            (into / loose.parent.name).mkdir(exist_ok=True)
            _copy(loose, into / loose.parent.name / loose.name)


def _check_whole(pack: Path) -> None:
    with pack.open("rb") as data, pack.with_suffix(".idx").open("rb") as index:
        try:
            data.seek(-20, os.SEEK_END)
            index.seek(-40, os.SEEK_END)
        except OSError as error:
            raise SentinelError(f"{pack} is cut off; fetch or copy its repository again") from error
        if data.read(20) != index.read(20):
            raise SentinelError(f"{pack} is cut off or does not fit its index; fetch or copy its repository again")


def _copy(source: Path, place: Path) -> None:
    """Copy a file. Never hard-link it: a link would let whoever writes to the origin change the mirror, and a change of
    mode in the mirror reach the origin."""
    if place.exists():
        return
    temporary = place.with_name(f"tmp_{os.getpid()}_{place.name}")
    temporary.unlink(missing_ok=True)
    shutil.copyfile(source, temporary)
    os.chmod(temporary, 0o444)
    os.replace(temporary, place)
