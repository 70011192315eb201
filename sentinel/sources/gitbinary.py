"""Running git: one place that fixes its environment, so that nothing of the user's or of upstream's configuration
runs a command, prompts, or reads the network when it was not asked to.

A mirror's own ``config`` never names a remote. That is what makes a lazy fetch impossible: ``GIT_NO_LAZY_FETCH`` is
known to git 2.45 and newer only, while a repository without a promisor remote has nothing to fetch from in any version.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import sentinel
from sentinel.errors import SentinelError
from sentinel.sources.home import MORE_ROOM, Progress, small_text
from sentinel.sources.urls import redacted

_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.quotePath": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.unpackLimit": "1",
    "fetch.writeCommitGraph": "false",
    "credential.helper": "",
}
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_NO_LAZY_FETCH": "1",
    # None, whatever a repository's own configuration allows: a working tree of a stranger's may name a remote, and a
    # program to be run for it. What fetches names the one protocol that its URL has.
    "GIT_ALLOW_PROTOCOL": "",
    # refs/replace of an origin could put other content in place of a commit's.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "60",
}
#: Set by a git hook that runs the tests, these would point our git somewhere else. GitPython can set but not unset.
_NEUTRAL = {
    "GIT_CONFIG_COUNT": "0",
    "GIT_CONFIG_PARAMETERS": "",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES": "",
    "GIT_NAMESPACE": "",
    "GIT_TRACE": "0",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_EXTERNAL_DIFF": "",
    "GIT_PROTOCOL_FROM_USER": "0",
}
_PROGRESS_LINE = re.compile(rb"[\r\n]")

#: Bytes of an object that are read at once if its content is not wanted.
_PIECE = 1 << 20


class GitMissingError(SentinelError):
    """There is no git on this machine."""


class GitError(SentinelError):
    """A git command said no. ``str()`` gives git's own reason in one line."""


class MissingObjectError(GitError):
    """The mirror does not have an object: it is shallow, was made without large files, or is damaged."""


class LargeObjectError(MissingObjectError):
    """An object is larger than the reader's limit. It counts as absent."""

    def __init__(self, name: str, size: int, most: int) -> None:
        super().__init__(f"object {name} is larger than {most} bytes")
        self.size = size


@dataclass(frozen=True)
class Finished:
    """:ivar status: the exit status, 0 for success."""

    status: int
    out: bytes
    err: str

    @property
    def reason(self) -> str:
        return reason(self.err)


def reason(text: str) -> str:
    """Give the line of git's complaint that says why, without its ``fatal:`` and without a password."""
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    full = [line for line in lines if _FULL.search(line)]
    telling = full or [line for line in lines if _TELLING.match(line)] or lines[-1:]
    message = re.sub(r"^(fatal|error|remote): ", "", telling[0]) if telling else "git gave no reason"
    return redacted(f"{message}; {MORE_ROOM}" if full else message)


_TELLING = re.compile(r"(fatal|error|remote: (fatal|error)|ERROR)[: ]")
#: How git says that a disk is full; other lines only tell what did not work without it.
_FULL = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded")


def _git() -> Any:
    try:
        import git
    except ModuleNotFoundError as error:
        raise GitMissingError("GitPython is not installed; run `pip install gitpython`") from error
    except ImportError as error:  # GitPython looks for the binary while it is imported.
        raise GitMissingError(_MISSING) from error
    return git


_MISSING = "git is not installed (or not on PATH); install git 2.30 or newer, or use refs that need none, such as pypi:"


def _command(arguments: Sequence[str], settings: Mapping[str, str] | None = None) -> list[str]:
    options = [part for key, value in {**_SETTINGS, **(settings or {})}.items() for part in ("-c", f"{key}={value}")]
    return [_git().Git.GIT_PYTHON_GIT_EXECUTABLE or "git", "--no-pager", *options, *arguments]


def _environment(git_dir: Path, more: Mapping[str, str]) -> dict[str, str]:
    environment = {**_ENVIRONMENT, **{key: value for key, value in _NEUTRAL.items() if key in os.environ}}
    environment["GIT_DIR"] = str(git_dir)
    # A relative or foreign value of these would be taken from the caller's environment otherwise.
    environment["GIT_COMMON_DIR"] = str(common_dir(git_dir))
    environment["GIT_OBJECT_DIRECTORY"] = str(common_dir(git_dir) / "objects")
    if "GIT_SHALLOW_FILE" in os.environ:
        environment["GIT_SHALLOW_FILE"] = str(common_dir(git_dir) / "shallow")
    if "GIT_SSH_COMMAND" not in os.environ and "GIT_SSH" not in os.environ:
        environment["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes"
    return {**environment, **more}


def git_dir_of(top: Path) -> Path:
    """Say where a work tree has its git directory: at ``.git``, or where a file of that name says."""
    dot = top / ".git"
    if dot.is_dir():
        return dot
    path = (small_text(dot) or "").strip().removeprefix("gitdir:").strip()
    return Path(os.path.normpath(top / path))


def own_commit() -> str:
    """Return the commit of Sentinel's source tree, or its version if it is not in a git repository."""
    top = Path(__file__).resolve().parents[2]
    if (top / ".git").exists():
        with suppress(SentinelError):
            return run_checked(git_dir_of(top), "rev-parse", "HEAD").decode().strip()[:12]
    return sentinel.__version__


def common_dir(git_dir: Path) -> Path:
    """Say where a git directory has its objects and refs: elsewhere, where it is a further work tree's."""
    path = small_text(git_dir / "commondir")
    return git_dir if path is None else Path(os.path.normpath(git_dir / path.strip()))


def _execute(
    git_dir: Path,
    arguments: Sequence[str],
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Execute git by GitPython."""
    git = _git()
    command, settled = _command(arguments, settings), _environment(git_dir, environment or {})
    try:
        try:
            return git.Git().execute(command, env=settled, **options)
        except KeyError:  # GitPython copies os.environ, where pytest's thread adds and removes the current test
            return git.Git().execute(command, env=settled, **options)
    except git.exc.GitCommandNotFound as error:
        raise GitMissingError(_MISSING) from error


@contextmanager
def _process(git_dir: Path, arguments: Sequence[str], **options: Any) -> Iterator[Any]:
    """Run git for as long as the block lasts."""
    process = _execute(git_dir, arguments, as_process=True, **options)
    try:
        yield process
    finally:
        for file in (process.proc.stdin, process.stdout, process.stderr):
            with suppress(OSError):
                if file is not None:
                    file.close()
        process.proc.terminate()
        process.proc.wait()


@contextmanager
def _input(data: bytes | None) -> Iterator[IO[bytes] | None]:
    if data is None:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file


def run(
    git_dir: Path,
    *arguments: str,
    data: bytes | None = None,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> Finished:
    """Run git on a git directory and wait for it; a status that is not zero is the caller's to judge.

    :param seconds: end it after that long, for a directory that nobody vouches for: a pipe in the place of a file
        would keep it for ever.
    """
    with _input(data) as stdin:
        status, out, err = _execute(
            git_dir, arguments, settings, environment, istream=stdin, kill_after_timeout=seconds,
            with_extended_output=True, with_exceptions=False, stdout_as_string=False, strip_newline_in_stdout=False,
        )  # fmt: skip
    return Finished(status, out, err)


def run_checked(git_dir: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Like :func:`run`, for commands that succeed unless something is broken: GitError."""
    process = run(git_dir, *arguments, data=data)
    if process.status:
        raise GitError(process.reason)
    return process.out


def bounded(git_dir: Path, *arguments: str, most: int, seconds: float | None = None) -> bytes:
    """Like :func:`run_checked`, for what a stranger decides the length of: GitError beyond ``most`` bytes."""
    with _process(git_dir, arguments) as process:
        alarm = threading.Timer(seconds or 0, process.proc.kill)
        if seconds is not None:
            alarm.start()
        try:
            out: bytes = process.stdout.read(most + 1)
            if len(out) > most:
                raise GitError(f"git {arguments[0]} lists more than any revision that Sentinel knows has")
            message = process.stderr.read().decode("utf-8", "replace")
            if process.proc.wait():
                raise GitError(reason(message))
            return out
        finally:
            alarm.cancel()


class Objects:
    """Reads objects of a git directory by their names, through one ``git cat-file`` that GitPython keeps running.

    GitPython's ``Repo`` is not used. It reads the repository's configuration and every file that this includes, and it
    follows ``GIT_DIR`` of the caller's environment. Its references reread ``packed-refs`` for each name: 3 s instead
    of 0.03 s for the 5,360 refs of a mirror. Its trees and blobs put no limit on what a stranger's commit contains.
    """

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self._git = _git().Git()
        self._git.set_persistent_git_options(c=[f"{key}={value}" for key, value in _SETTINGS.items()])
        self._git.update_environment(**_environment(git_dir, {}))

    def read(self, name: str, kind: str = "blob", most: int | None = None) -> bytes:
        """Return the content of an object.

        :raises MissingObjectError: if there is no object of this name and kind.
        :raises LargeObjectError: if it has more than ``most`` bytes.
        """
        try:
            try:
                _, found, size, stream = self._git.stream_object_data(name)
            except KeyError:  # GitPython copies os.environ, which pytest's main thread changes meanwhile
                _, found, size, stream = self._git.stream_object_data(name)
        except OSError as error:
            raise GitError(f"git ended while {self._git_dir.name} was read: {error}") from error
        except ValueError as error:
            if "missing" in str(error):
                raise MissingObjectError(f"object {name} is absent from {self._git_dir.name}") from error
            raise GitError(f"git ended while {self._git_dir.name} was read; it may be damaged") from error
        if most is not None and size > most:
            while stream.read(_PIECE):
                pass
            raise LargeObjectError(name, size, most)
        content: bytes = stream.read()
        if found != kind.encode():
            raise MissingObjectError(f"object {name} of {self._git_dir.name} is no {kind}")
        if len(content) != size:
            raise GitError(f"git ended while {self._git_dir.name} was read; it may be damaged")
        return content

    def close(self) -> None:
        """End the process."""
        self._git.clear_cache()


def run_with_progress(
    git_dir: Path,
    *arguments: str,
    data: bytes | None,
    environment: Mapping[str, str],
    progress: Progress | None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run a transfer, and hand each line of its progress on."""
    messages: list[str] = []
    rest = b""
    how = {"settings": settings, "environment": environment, "with_stdout": False}
    with _input(data) as stdin, _process(git_dir, arguments, istream=stdin, **how) as process:
        while chunk := process.stderr.read1(65536):
            *lines, rest = _PROGRESS_LINE.split(rest + chunk)
            for line in lines:
                text = redacted(line.decode("utf-8", "replace").strip())
                if text and progress:
                    progress(text)
                if text and "%" not in text:
                    messages.append(text)
        status = process.proc.wait()
    if status:
        raise GitError(reason("\n".join([*messages, rest.decode("utf-8", "replace")])))
