"""Open ``pypi:`` refs: download a release with pip, which uses the user's index settings, and unpack it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from sentinel.errors import Unavailable
from sentinel.sources import checkouts
from sentinel.sources.home import Home, Progress, remove_tree, safe_name, writing
from sentinel.sources.trees import (
    FILE,
    MOST_BYTES,
    MOST_FILES,
    Entry,
    check_path,
    is_ignored,
    streamed_blob_id,
    too_large,
)
from sentinel.sources.urls import redact
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout, LeftOut
from sentinel.targets.refs import Ref

#: Exceptions that zipfile raises for a file that is not a zip archive, or for a hostile archive.
_DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, LookupError, ValueError, OverflowError)
#: The folders of a wheel that an installer copies into site-packages (PEP 427).
_IN_SITE_PACKAGES = re.compile(r"^[^/]+\.data/(purelib|platlib)/")

#: The compression methods of wheels. Python's reader cannot limit the output of other methods.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONGEST_METADATA = 1 << 20
_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--ignore-requires-python",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)
#: Timeout in seconds. pip closes a silent connection, but not one that occasionally sends a byte.
_PATIENCE = 3600.0
#: pip's results in this run: (distribution, version, home) -> the wheel, or why it cannot be downloaded. So all recipes
#: of a release query the index only once.
_answers: dict[tuple[str, str, Path], Path | str] = {}


def open_pypi(target: Target, ref: Ref, home: Home, progress: Progress | None = None) -> Checkout:
    """Return the checkout of a release. A stored version needs no network; ``latest`` always queries the package index.

    :raises Unavailable: if pip cannot download the release, or its wheel is invalid.
    """
    if target.pypi is None:
        raise Unavailable(f"{target.name} has no releases on PyPI; use git:, path: or installed")
    key = checkouts.index_key(target, f"pypi-{safe_name(target.pypi)}-{re.sub('[^A-Za-z0-9._-]', '_', ref.name)}")
    if ref.name != "latest":
        checkout = checkouts.find(home, target, ref, key)
        if checkout is not None:
            return checkout
    wheel = _wheel(target.pypi, ref.name, home, progress)
    try:
        release = _unpack(target, ref, home, wheel)
    except (*_DAMAGE, OSError) as error:
        # EINVAL is damage too: the archive made zipfile seek to a position before the start of the file.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        wheel.unlink(missing_ok=True)
        raise Unavailable(f"{target.name}: {wheel.name} is not a complete wheel ({error}); run again") from error
    if ref.name != "latest":
        checkouts.remember(home, target, key, release.tree, {"version": release.version, "digest": release.digest})
    return release


def contents(
    distribution: str, version: str, home: Home, progress: Progress | None = None
) -> tuple[list[str], str, str]:
    """Return the paths of the files in a release's wheel, the content of its METADATA file, and its version.

    :raises Unavailable: if pip cannot download the release, or its wheel is invalid.
    """
    wheel = _wheel(distribution, version, home, progress)
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [_IN_SITE_PACKAGES.sub("", info.filename) for info in archive.infolist() if not info.is_dir()]
            return files, _metadata(archive), _version(archive, wheel)
    except _DAMAGE as error:
        raise Unavailable(f"{wheel.name} is not a complete wheel ({error}); run again") from error


def _wheel(distribution: str, version: str, home: Home, progress: Progress | None) -> Path:
    folder = home.wheels / safe_name(distribution)
    for path in sorted(folder.glob("*.whl")) if version != "latest" else ():
        if path.name.split("-")[1] == version.lower():
            with suppress(OSError):  # `sentinel cache prune` uses this time; the store may be read-only
                os.utime(path)
            return path
    question = (distribution, version, home.path)
    answer = _answers.get(question)
    if isinstance(answer, str):
        raise Unavailable(answer)
    if answer is not None and answer.is_file():
        return answer
    if progress:
        again = version == "latest" and any(folder.glob("*.whl"))
        progress(f"looking for a newer {distribution}" if again else f"downloading {distribution} {version}")
    try:
        with writing(home.path):
            _answers[question] = path = _download(distribution, version, folder)
    except Unavailable as error:
        _answers[question] = error.reason
        raise
    return path


def _download(distribution: str, version: str, folder: Path) -> Path:
    requirement = distribution if version == "latest" else f"{distribution}=={version}"
    folder.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        process = subprocess.run(
            [sys.executable, "-m", "pip", "download", *_OPTIONS, "--dest", str(part), "--", requirement],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            cwd=part,  # ``-m`` searches the current folder first, which must not contain a pip.py
            env={**os.environ, "TMPDIR": str(part)},  # so that temporary files of a killed pip are removed below
            text=True,
            errors="replace",
            check=False,
            timeout=_PATIENCE,
        )
        wheels = list(part.glob("*.whl"))
        if process.returncode or len(wheels) != 1:
            raise Unavailable(f"pypi:{version} of {distribution} cannot be downloaded: {_complaint(process.stderr)}")
        place = folder / wheels[0].name
        os.replace(wheels[0], place)
        return place
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"pypi:{version} of {distribution} cannot be downloaded: pip did not finish within {_PATIENCE:g} s"
        ) from error
    finally:
        remove_tree(part)


def _complaint(output: str) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"this environment has no pip; run `{Path(sys.executable).name} -m ensurepip`"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if not errors or errors[-1] == "Exception:":  # an internal error of pip; the last line of its traceback names it
        errors = lines[-1:]
    reason = errors[-1] if errors else "pip gave no reason"
    if any("Retrying (" in line or "connection" in line.lower() for line in lines):
        reason += " (the package index is unreachable)"
    elif any("(from versions: none)" in line for line in lines):
        reason += " (the index has no release of this package, or is unreachable)"
    return redact(reason)


def _unpack(target: Target, ref: Ref, home: Home, wheel: Path) -> Checkout:
    # A wheel has the packages at its top; the checkout has them at their repository paths.
    places = {root.package: root.path for root in target.roots}
    entries: list[Entry] = []
    left_out: list[LeftOut] = []
    members: dict[str, zipfile.ZipInfo] = {}
    with zipfile.ZipFile(wheel) as archive:
        if sum(info.file_size for info in archive.infolist()) > MOST_BYTES:
            raise Unavailable(f"{target.name}: {wheel.name} unpacks to more than {MOST_BYTES} bytes; it is rejected")
        if len(archive.infolist()) > MOST_FILES:
            raise Unavailable(f"{target.name}: {wheel.name} contains more than {MOST_FILES} files; it is rejected")
        for info in archive.infolist():
            if info.compress_type not in _COMPRESSIONS:
                raise Unavailable(f"{target.name}: {info.filename!r} in {wheel.name} uses an unknown compression")
            check_path(info.orig_filename.rstrip("/"))  # the original name: Python's reader truncates it at a NUL
            top, _, rest = _IN_SITE_PACKAGES.sub("", info.filename).partition("/")
            if info.is_dir() or top not in places or not rest:
                continue
            path = check_path(f"{places[top]}/{rest}")
            if is_ignored(path):
                continue
            if path in members:
                raise Unavailable(f"{target.name}: {wheel.name} contains {info.filename!r} twice; it is rejected")
            if stat.S_ISLNK(info.external_attr >> 16):
                left_out.append(LeftOut(path, None, "a symbolic link in a wheel"))
                continue
            members[path] = info
            with archive.open(info) as file:
                entries.append(Entry(path, FILE, streamed_blob_id(file, info.file_size), info.file_size))
            if (reason := too_large(path, info.file_size)) is not None:
                left_out.append(LeftOut(path, info.file_size, reason))

        def contents(selection: Sequence[Entry]) -> Iterable[tuple[Entry, bytes]]:
            return ((entry, _content(archive, members[entry.path])) for entry in selection)

        return checkouts.materialise(
            home, target, ref, entries, contents, left_out, version=_version(archive, wheel), digest=_digest(wheel)
        )


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the content of a file in a wheel. Its declared size may be forged, so read at most one byte more."""
    with archive.open(info) as file:
        return file.read(info.file_size + 1)


def _version(archive: zipfile.ZipFile, wheel: Path) -> str:
    match = re.search(r"^Version: *(\S+)", _metadata(archive), re.MULTILINE)
    return match.group(1) if match else wheel.name.split("-")[1]


def _metadata(archive: zipfile.ZipFile) -> str:
    for name in archive.namelist():
        if re.fullmatch(r"[^/]+\.dist-info/METADATA", name):
            with archive.open(name) as file:
                return file.read(_LONGEST_METADATA).decode("utf-8", "replace")
    return ""


def _digest(wheel: Path) -> str:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
