"""Run git safely: no configuration, of the user or of upstream, can run a command, prompt, or use the network."""

from __future__ import annotations

import io
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
from sentinel.sources.urls import redact

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
    # No protocol is allowed, because an untrusted working tree may configure a remote with a program to run. A fetch
    # allows only the protocol of its URL.
    "GIT_ALLOW_PROTOCOL": "",
    # Otherwise refs/replace from an origin could replace the content of a commit.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
    "GIT_HTTP_LOW_SPEED_TIME": "60",
}
#: Variables that a git hook sets and that would redirect git if the hook runs the tests. They get neutral values,
#: because GitPython can set variables but not unset them.
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

#: Bytes per read while unwanted content is skipped.
_PIECE = 1 << 20


class GitMissingError(SentinelError):
    """Raised if git is not installed."""


class GitError(SentinelError):
    """Raised if a git command fails. ``str()`` returns git's own message in one line."""


class MissingObjectError(GitError):
    """Raised if the mirror lacks an object, because it is shallow, was made without large files, or is damaged."""


class LargeObjectError(MissingObjectError):
    """Raised if an object exceeds the reader's size limit. Callers treat the object as missing."""

    def __init__(self, name: str, size: int, most: int) -> None:
        super().__init__(f"object {name} is larger than {most} bytes")
        self.size = size


@dataclass(frozen=True)
class Finished:
    """The result of a git command.

    :ivar status: the exit status, 0 for success.
    """

    status: int
    out: bytes
    err: str

    @property
    def reason(self) -> str:
        return reason(self.err)


def reason(text: str) -> str:
    """Return the line of git's error output that gives the reason, without ``fatal:`` and without passwords."""
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]
    full = [line for line in lines if _FULL.search(line)]
    decisive = full or [line for line in lines if _ERROR_LINE.match(line)] or lines[-1:]
    message = re.sub(r"^(fatal|error|remote): ", "", decisive[0]) if decisive else "git gave no reason"
    return redact(f"{message}; {MORE_ROOM}" if full else message)


_ERROR_LINE = re.compile(r"(fatal|error|remote: (fatal|error)|ERROR)[: ]")
#: A pattern for messages about a full disk. If a line matches, all other lines of the output are consequences of it.
_FULL = re.compile(r"No space left on device|Out of diskspace|Disk quota exceeded")


def _git() -> Any:
    try:
        import git
    except ModuleNotFoundError as error:
        raise GitMissingError("GitPython is not installed; run `pip install gitpython`") from error
    except ImportError as error:  # importing GitPython fails if there is no git
        raise GitMissingError(_MISSING) from error
    return git


_MISSING = "git is not installed (or not on PATH); install git 2.30 or newer, or use a ref without git, such as pypi:"


def _command(arguments: Sequence[str], settings: Mapping[str, str] | None = None) -> list[str]:
    options = [part for key, value in {**_SETTINGS, **(settings or {})}.items() for part in ("-c", f"{key}={value}")]
    return [_git().Git.GIT_PYTHON_GIT_EXECUTABLE or "git", "--no-pager", *options, *arguments]


def _environment(git_dir: Path, more: Mapping[str, str]) -> dict[str, str]:
    environment = {**_ENVIRONMENT, **{key: value for key, value in _NEUTRAL.items() if key in os.environ}}
    environment["GIT_DIR"] = str(git_dir)
    # Otherwise git would use the caller's values of these variables.
    environment["GIT_COMMON_DIR"] = str(common_dir(git_dir))
    environment["GIT_OBJECT_DIRECTORY"] = str(common_dir(git_dir) / "objects")
    if "GIT_SHALLOW_FILE" in os.environ:
        environment["GIT_SHALLOW_FILE"] = str(common_dir(git_dir) / "shallow")
    if "GIT_SSH_COMMAND" not in os.environ and "GIT_SSH" not in os.environ:
        environment["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes"
    return {**environment, **more}


def top_of(folder: Path) -> Path | None:
    """Return the top folder of the clone that contains a folder; None if no clone does."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def git_dir_of(top: Path) -> Path:
    """Return the git directory of a work tree: ``.git``, or the folder that a ``.git`` file names."""
    dot = top / ".git"
    if dot.is_dir():
        return dot
    path = (small_text(dot) or "").strip().removeprefix("gitdir:").strip()
    return Path(os.path.normpath(top / path))


def own_commit() -> str:
    """Return the abbreviated commit of Sentinel's source tree; Sentinel's version if it is not in a git repository."""
    top = Path(__file__).resolve().parents[2]
    if (top / ".git").exists():
        with suppress(SentinelError):
            return run_checked(git_dir_of(top), "rev-parse", "HEAD").decode().strip()[:12]
    return sentinel.__version__


def common_dir(git_dir: Path) -> Path:
    """Return the folder that contains a repository's objects and refs; for a linked work tree, the main clone's git
    directory."""
    path = small_text(git_dir / "commondir")
    return git_dir if path is None else Path(os.path.normpath(git_dir / path.strip()))


def _execute(
    git_dir: Path,
    arguments: Sequence[str],
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Run git through GitPython, with settings and variables that make it safe for untrusted repositories."""
    git = _git()
    command, variables = _command(arguments, settings), _environment(git_dir, environment or {})
    try:
        try:
            return git.Git().execute(command, env=variables, **options)
        except KeyError:  # GitPython copies os.environ, which pytest's thread changes meanwhile
            return git.Git().execute(command, env=variables, **options)
    except git.exc.GitCommandNotFound as error:
        raise GitMissingError(_MISSING) from error


@contextmanager
def _process(git_dir: Path, arguments: Sequence[str], **options: Any) -> Iterator[Any]:
    """Run git for the duration of a ``with`` block."""
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
    """Run git on a git directory and wait until it ends. The caller checks the exit status.

    :param seconds: kill git after this time; set it for untrusted folders, where git could block on a named pipe.
    """
    with _input(data) as stdin:
        status, out, err = _execute(
            git_dir, arguments, settings, environment, istream=stdin, kill_after_timeout=seconds,
            with_extended_output=True, with_exceptions=False, stdout_as_string=False, strip_newline_in_stdout=False,
        )  # fmt: skip
    return Finished(status, out, err)


def run_checked(git_dir: Path, *arguments: str, data: bytes | None = None) -> bytes:
    """Run git as :func:`run` does, and return its output; raise an exception if git fails.

    :raises GitError: if the status is not 0.
    """
    process = run(git_dir, *arguments, data=data)
    if process.status:
        raise GitError(process.reason)
    return process.out


def run_bounded(git_dir: Path, *arguments: str, most: int, seconds: float | None = None) -> bytes:
    """Run git as :func:`run_checked` does, but read no more than ``most`` bytes of output.

    :raises GitError: if the status is not 0, or if the output is longer.
    """
    with _process(git_dir, arguments) as process:
        alarm = threading.Timer(seconds or 0, process.proc.kill)
        if seconds is not None:
            alarm.start()
        try:
            out: bytes = process.stdout.read(most + 1)
            if len(out) > most:
                raise GitError(f"git {arguments[0]} printed more than {most} bytes; the repository is rejected")
            message = process.stderr.read().decode("utf-8", "replace")
            if process.proc.wait():
                raise GitError(reason(message))
            return out
        finally:
            alarm.cancel()


class Objects:
    """Reads objects by name through one ``git cat-file`` process that GitPython keeps running.

    GitPython's ``Repo`` is not used: it reads the repository's configuration and every file that the configuration
    includes, and follows the caller's ``GIT_DIR``. Its references reread ``packed-refs`` for each name: 3 s instead of
    0.03 s for the 5,360 refs of a mirror. Its trees and blobs have no size limit.
    """

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self._git = _git().Git()
        self._git.set_persistent_git_options(c=[f"{key}={value}" for key, value in _SETTINGS.items()])
        self._git.update_environment(**_environment(git_dir, {}))

    def read(self, name: str, kind: str = "blob", most: int | None = None) -> bytes:
        """Return the content of an object. If git exited, the next call starts it again.

        :raises GitError: if git exited.
        :raises MissingObjectError: if the repository has no object of this name and kind.
        :raises LargeObjectError: if the object has more than ``most`` bytes.
        """
        try:
            return self._read(name, kind, most)
        except MissingObjectError:
            raise
        except BaseException:  # after an interruption, too, the next answer would be the rest of this one
            self.close()
            raise

    def _read(self, name: str, kind: str, most: int | None) -> bytes:
        try:
            try:
                _, found, size, stream = self._git.stream_object_data(name)
            except KeyError:  # as in _execute
                _, found, size, stream = self._git.stream_object_data(name)
        except OSError as error:
            raise GitError(f"git exited while it read {self._git_dir.name}: {error}") from error
        except ValueError as error:
            if "missing" in str(error):
                raise MissingObjectError(f"object {name} is missing in {self._git_dir.name}") from error
            raise GitError(f"git exited while it read {self._git_dir.name}; the repository may be damaged") from error
        try:
            if most is not None and size > most:
                while stream.read(_PIECE):
                    pass
                raise LargeObjectError(name, size, most)
            content: bytes = stream.read()
        except KeyboardInterrupt:
            stream.__init__(0, io.BytesIO())  # or its destructor would read from the process that `read` ends
            raise
        if found != kind.encode():
            raise MissingObjectError(f"object {name} of {self._git_dir.name} is not a {kind}")
        if len(content) != size:
            raise GitError(f"git exited while it read {self._git_dir.name}; the repository may be damaged")
        return content

    def close(self) -> None:
        """End the git process."""
        self._git.clear_cache()


def run_with_progress(
    git_dir: Path,
    *arguments: str,
    data: bytes | None,
    environment: Mapping[str, str],
    progress: Progress | None,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run a git transfer, and pass each line of its progress to ``progress``."""
    messages: list[str] = []
    rest = b""
    how = {"settings": settings, "environment": environment, "with_stdout": False}
    with _input(data) as stdin, _process(git_dir, arguments, istream=stdin, **how) as process:
        while chunk := process.stderr.read1(65536):
            *lines, rest = _PROGRESS_LINE.split(rest + chunk)
            for line in lines:
                text = redact(line.decode("utf-8", "replace").strip())
                if text and progress:
                    progress(text)
                if text and "%" not in text:
                    messages.append(text)
        status = process.proc.wait()
    if status:
        raise GitError(reason("\n".join([*messages, rest.decode("utf-8", "replace")])))
