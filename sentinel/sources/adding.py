"""Copy the objects of a local git directory, or of a tar archive of one, into the store of mirrors.

``git clone`` cannot be used: it rejects a partial clone that lacks large blobs, and it fetches only branches and tags.
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
#: Errors of the disk or its permissions. Every other OSError means that the tar is invalid.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_MAX_TAR_FILES = 200_000
_MAX_TAR_BYTES = 20 << 30


#: The git directory (``HEAD`` and refs), and the object directories: its own and its alternates.
Origin = tuple[Path, tuple[Path, ...]]


def open_directory(path: Path) -> Origin:
    """Locate the git directory and the object directories of a bare repository, a clone or a linked work tree."""
    git_dir = _git_dir(path)
    if git_dir is None:
        raise SentinelError(
            f"{path} is not a git directory (no HEAD and objects in it, and no .git); "
            "name a clone, a bare repository, or a tar of one"
        )
    if "objectformat" in (small_text(git_dir / "config") or "").lower().replace(" ", ""):
        raise SentinelError(f"{path} uses a hash other than SHA-1, which is not supported")
    return git_dir, tuple(_object_directories(git_dir / "objects"))


def open_tar(path: Path, scratch: Path) -> Origin:
    """Unpack an untrusted tar into a scratch folder and locate the git directory in it.

    The pack indexes are rebuilt and the loose objects are hashed, because a forged archive may contain objects with
    names that are not their hashes.
    """
    _extract(path, scratch)
    below = (folder for depth in (1, 2, 3) for folder in sorted(scratch.glob("/".join("*" * depth))))
    folders = [scratch, *(folder for folder in below if folder.is_dir())]
    git_dir = next((folder for folder in folders if _git_dir(folder) == folder), None)
    if git_dir is None:
        raise SentinelError(f"{path} does not contain a git directory (a folder with HEAD and objects)")
    if (git_dir / "objects" / "info" / "alternates").exists():
        raise SentinelError(
            f"the git directory in {path} borrows objects (objects/info/alternates); run `git repack -a -d` in it first"
        )
    for pack in sorted((git_dir / "objects" / "pack").glob("*.pack")):
        for suffix in (".idx", ".rev", ".bitmap"):
            pack.with_suffix(suffix).unlink(missing_ok=True)
        try:
            run_checked(git_dir, "index-pack", str(pack))
        except GitError as error:
            raise SentinelError(f"{path}: {pack.name} is damaged or truncated: {error}") from error
    for loose in _loose(git_dir / "objects"):
        if not _has_its_hash(loose):
            raise SentinelError(f"{path}: object {loose.parent.name}{loose.name} is damaged: its hash is wrong")
    return git_dir, (git_dir / "objects",)


def _git_dir(path: Path) -> Path | None:
    dot = path / ".git"
    if dot.is_dir() or dot.is_file():
        path = common_dir(git_dir_of(path))
    try:
        return path if (path / "HEAD").is_file() and (path / "objects").is_dir() else None
    except OSError:  # such as a name that is too long
        return None


def _object_directories(objects: Path) -> list[Path]:
    directories = [objects]
    for borrower in directories:  # the loop appends to this list
        lines = (small_text(borrower / "info" / "alternates") or "").split("\n")
        for line in lines:
            other = Path(os.path.normpath(borrower / line))
            if not line or line.startswith("#") or other in directories:
                continue
            if not other.is_dir():
                raise SentinelError(f"{borrower.parent} borrows objects from {other}, which does not exist")
            directories.append(other)
    return directories


def _extract(path: Path, scratch: Path) -> None:
    """Extract the regular files and folders of a tar archive. Reject links, devices, and paths outside the folder.

    ``extractall`` cannot be used: some Python 3.10 releases lack the ``data`` filter, and the filter allows links.
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
                    raise SentinelError(f"{path}: {member.name!r} leads out of the folder; the tar is rejected")
                if not member.isreg() and not member.isdir():
                    raise SentinelError(f"{path}: {member.name!r} is a link or a device; the tar is rejected")
                if number >= _MAX_TAR_FILES or total > _MAX_TAR_BYTES:
                    raise SentinelError(
                        f"{path} contains more than {_MAX_TAR_FILES} files or {_MAX_TAR_BYTES} bytes; it is rejected"
                    )
                place = scratch.joinpath(*name.parts)
                if member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with content, place.open("xb") as file:
                    shutil.copyfileobj(content, file)
    except (OSError, tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise
        raise SentinelError(f"{path} is not a complete tar: {error}") from error


def _loose(objects: Path) -> Iterator[Path]:
    for folder in sorted(objects.iterdir()):
        if _FANOUT.fullmatch(folder.name) and folder.is_dir():
            yield from (file for file in sorted(folder.iterdir()) if _LOOSE.fullmatch(file.name) and file.is_file())


def _has_its_hash(loose: Path) -> bool:
    """Return True if a loose object's content has the hash in its name. Git itself verifies only packs."""
    digest, unpacked = hashlib.sha1(usedforsecurity=False), zlib.decompressobj()
    with loose.open("rb") as file:
        while not unpacked.eof and (piece := unpacked.unconsumed_tail or file.read(_PIECE)):
            try:
                digest.update(unpacked.decompress(piece, _PIECE))
            except zlib.error:
                return False
    return digest.hexdigest() == loose.parent.name + loose.name


def copy_objects(sources: tuple[Path, ...], into: Path) -> None:
    """Copy packs and loose objects into an object directory of the store.

    Each pack is marked as a promisor pack. When git checks the objects of a later fetch, it then accepts that blobs are
    missing.
    """
    (into / "pack").mkdir(parents=True, exist_ok=True)
    for objects in sources:
        for pack in sorted((objects / "pack").glob("*.pack")):
            if _PACK.fullmatch(pack.name) and pack.is_file() and pack.with_suffix(".idx").is_file():
                _check_whole(pack)
                promisor = into / "pack" / pack.with_suffix(".promisor").name
                if not promisor.exists():
                    promisor.touch()
                # Copy the index last, as git does: git ignores a pack without an index.
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
            raise SentinelError(f"{pack} is truncated; fetch or copy its repository again") from error
        if data.read(20) != index.read(20):
            raise SentinelError(f"{pack} is truncated or does not match its index; fetch or copy its repository again")


def _copy(source: Path, place: Path) -> None:
    """Copy a file; do not create a hard link, because a later change of the original would change the mirror."""
    if place.exists():
        return
    temporary = place.with_name(f"tmp_{os.getpid()}_{place.name}")
    temporary.unlink(missing_ok=True)
    shutil.copyfile(source, temporary)
    os.chmod(temporary, 0o444)
    os.replace(temporary, place)
