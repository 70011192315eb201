"""Start and stop worker processes from pytest's process, send them requests, and kill workers that hang.

Workers only measure. This module returns the measured values unchanged; other modules compare them and give verdicts.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import math
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sentinel.errors import SentinelError
from sentinel.targets.checkout import Checkout
from sentinel.worker import answers, interpreters, protocol, syscalls
from sentinel.worker.answers import Described, Failed, Measured, Replies, WorkerKind
from sentinel.worker.limits import USERS
from sentinel.worker.processes import Leader

#: Environment variables that may affect results; set for every worker and recorded in the evidence.
FLAGS: dict[str, str] = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TORCHDYNAMO_DISABLE": "1",
}

_Answer = TypeVar("_Answer")

_PACKAGE = Path(__file__).resolve().parent.parent
_BOOTSTRAP = _PACKAGE / "worker" / "bootstrap.py"

#: Seconds to wait for the preloader. Importing torch from a cold disk may take minutes.
_PATIENCE = 600.0

#: A call of a session counts as slow if it takes more than this fraction of the timeout.
_SLOW = 0.1

#: Seconds that a target process has to report a timeout, in addition to the user's timeout.
_GRACE = 5.0


@dataclass(frozen=True)
class Options:
    """Options of worker processes.

    :ivar timeout: seconds for one probe, and for importing the modules of a boundary.
    :ivar memory: maximum bytes of a process's address space; not limited on a GPU or with the sandbox ``off``.
    :ivar sandbox: ``strict`` (namespaces, a root of its own, no network), ``basic`` (clean environment, resource
        limits) or ``off``; empty for the strictest level that this machine supports.
    :ivar python: the interpreter whose environment has the target installed, or None for Sentinel's own.
    :ivar trace: whether answers list the checkout's files that were looked up: see :mod:`sentinel.worker.trace`.
    """

    timeout: float = 60.0
    memory: int = 16 * 1024**3
    sandbox: str = ""
    python: str | None = None
    device: str = "cpu"
    trace: bool = False


@dataclass(frozen=True)
class Places:
    """Folders that contained processes may read, in addition to the interpreter and their checkout.

    :ivar readable: adapters and contracts.
    :ivar hidden: subfolders of ``readable`` that must not be read, such as recipes, because they contain expected
        values.
    :ivar checkouts: folders with checkouts. A target process can read only its own checkout. A preloader can read all
        checkouts if its interpreter is not Sentinel's own.
    :ivar packages: the packages that targets preload. If a package is an editable install, its folder is readable for
        the target processes of targets that preload it, and for a preloader whose interpreter is not Sentinel's own.
    """

    readable: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    checkouts: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


class WorkerError(SentinelError):
    """Raised if a worker cannot run, for example because its interpreter has no torch."""


class Preloader:
    """A process with torch loaded, from which target processes are forked.

    Call :meth:`start` early. It does not wait, so torch is imported while the controller does other work. All other
    methods wait for the import. Several threads may call methods.
    """

    def __init__(self, options: Options, preload: Sequence[str] = (), places: Places = Places()) -> None:
        self.options = options
        self.places = places
        self._preload = list(dict.fromkeys(preload))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._hello: dict[str, Any] | None = None
        self._scratch: str | None = None
        self._folder_lock = -1
        self._is_wrapped = False
        self._log: Any = None
        self._stopped = False

    def start(self) -> None:
        """Start the preloader process, without waiting for its imports."""
        with self._lock:
            if self._process is None:
                self._launch()

    def _launch(self) -> None:
        if self._stopped:
            raise WorkerError("the worker has been stopped")
        with _explain_disk_errors():
            self._scratch, self._folder_lock = _locked_folder()
            self._log = open(os.path.join(self._scratch, "preloader.log"), "wb+")  # noqa: SIM115 - lives as long as the preloader
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                self._wrap([self.options.python or sys.executable, str(_BOOTSTRAP), str(theirs.fileno())]),
                pass_fds=(theirs.fileno(),),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=self._scratch,
                start_new_session=True,
            )
        except interpreters.InterpreterError as error:
            ours.close()
            raise WorkerError(str(error)) from None
        except OSError as error:
            ours.close()
            raise WorkerError(f"cannot start {self.options.python or sys.executable}: {error.strerror}") from None
        finally:
            theirs.close()
        self._channel = ours
        with contextlib.suppress(OSError):  # if the process has already ended, `_greet` reports why
            self._request({"op": "preload", "modules": self._preload})

    def _wrap(self, command: list[str]) -> list[str]:
        """Return a command that runs this command in strict containment.

        Return the command unchanged if it starts Sentinel's own interpreter, or if containment is not strict.
        """
        assert self._scratch is not None
        if self.options.python is None or self.options.sandbox not in ("", "strict"):
            return command
        readable = [*self.places.readable, *self.places.checkouts]
        wrapped = interpreters.wrap(
            command, self._scratch, readable, self.places.hidden, self._devices, self.places.packages
        )
        self._is_wrapped = wrapped != command
        if not self._is_wrapped:
            return command
        # The shell removes the folder, because the contained command cannot, and this process may be killed earlier.
        return ["sh", "-c", '"$@"; status=$?; rm -rf -- "$0"; exit $status', self._scratch, *wrapped]

    @property
    def _devices(self) -> list[str]:
        return [] if self.options.device == "cpu" else interpreters.gpus()

    @property
    def sandbox(self) -> str:
        """Return the level of containment: the user's choice, or the strictest that is available."""
        return self.options.sandbox or ("basic" if self.hello()["uncontained"] else "strict")

    def hello(self) -> Mapping[str, Any]:
        """Return the versions of Python, torch, numpy and packages, and the reason if strict containment is
        impossible."""
        return self.require(())

    def require(self, packages: Sequence[str]) -> Mapping[str, Any]:
        """Import these packages in the preloader, if they are installed, and return the same as :meth:`hello`."""
        self.start()
        with self._lock:
            return self._greet(packages)

    def _greet(self, packages: Sequence[str] = ()) -> dict[str, Any]:
        preload = dict.fromkeys([*self._preload, *packages])
        try:
            hello = self._hello
            if hello is None:
                hello = dict(answers.of_greeting(self._answer()))
                hello["packages"] = answers.of_preload(self._answer())
            missing = [name for name in preload if name not in hello["packages"]]
            if missing:
                versions = answers.of_preload(self._ask({"op": "preload", "modules": missing}))
                hello["packages"] = {**hello["packages"], **versions}
        except (EOFError, OSError, protocol.ProtocolError):
            raise WorkerError(self._clean_up_if_killed()) from None
        self._hello, self._preload = hello, list(preload)
        return hello

    def _clean_up_if_killed(self) -> str:
        """Return the error message for a preloader that did not answer. If a signal killed it, clean up, so that the
        next request starts a new one."""
        killed = self._killed_by()
        message = self._explain_end(killed)
        if killed:
            self._dismantle()
        return message

    @property
    def _open(self) -> socket.socket:
        if self._channel is None:
            raise WorkerError("the worker has been stopped")
        return self._channel

    def _ask(self, message: Mapping[str, Any], *fds: int) -> Any:
        self._request(message, *fds)
        return self._answer()

    def _request(self, message: Mapping[str, Any], *fds: int) -> None:
        # A descriptor can only be sent together with ordinary bytes, so one byte precedes each command.
        self._open.settimeout(_PATIENCE)
        socket.send_fds(self._open, [b"!"], fds)
        protocol.send(self._open, message)

    def _answer(self) -> Any:
        return protocol.receive(self._open, time.monotonic() + _PATIENCE)

    def _explain_end(self, killed: str) -> str:
        if self._stopped:
            return "the worker has been stopped"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        python = self.options.python or sys.executable
        for package in ("torch", "numpy"):
            if any(f"No module named '{package}'" in line for line in lines):
                return (
                    f"{python} has no {package}; install torch and numpy there, or name another interpreter with "
                    "--sentinel-python (--python for a command)"
                )
        what = "ended" if self._hello is not None else "did not start"
        if killed:
            suspicion = " (out of memory?)" if killed == "SIGKILL" else ""
            return f"the worker ({python}) {what}: it was killed by {killed}{suspicion}"
        return f"the worker ({python}) {what}: {lines[-1] if lines else 'it printed nothing'}"

    def _killed_by(self) -> str:
        """Return the name of the signal that ended the preloader; empty if no signal did."""
        if self._process is None or self._stopped:
            return ""
        try:
            status = self._process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:  # the preloader still runs, but does not answer
            os.killpg(self._process.pid, signal.SIGKILL)
            return ""
        if self._is_wrapped and status > 128:  # the exit status by which a shell reports a signal
            status = 128 - status
        return signal.Signals(-status).name if status < 0 else ""

    def _environment(self) -> dict[str, str]:
        return {
            **(dict(os.environ) if self.options.sandbox == "off" else {}),
            **interpreters.environment(),
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            # Fewer and larger heap pages, because copying pages is the main cost of a fork.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            **flags(),
        }

    def target(
        self,
        checkout: Checkout,
        packages: Sequence[str],
        versions: Mapping[str, str] | None = None,
        real: Sequence[str] = (),
    ) -> TargetProcess:
        """Fork a process that imports a target's code from a checkout.

        :param versions: package -> the version that its stub module has.
        :param real: the packages of :data:`~sentinel.worker.stubs.ONLY_WHERE_NAMED` that this target may use, if they
            are installed.
        """
        return self._spawn(
            {
                "roots": [str(root) for root in checkout.import_roots],
                "package_roots": [str(checkout.path / root) + os.sep for root in checkout.roots],
                "packages": list(packages),
                "versions": dict(versions or {}),
                "real": list(real),
                "pycache": _byte_code_of(checkout),
                "trace": str(checkout.path) if self.options.trace else "",
            },
            str(checkout.path),
        )

    def compile(self, checkout: Checkout, made_with: Iterable[str], files: Sequence[str]) -> int | None:
        """Compile a checkout's files to byte code in a background process, and return its id; None if none is started.

        :param made_with: the names of the checkout's files.
        :param files: the files that the importing process reported. Files that are not in the checkout are ignored.
        """
        # Only in strict containment: at the other levels, the importing process has already written the byte code.
        if not files or self.sandbox != "strict" or self._is_wrapped:
            return None
        paths, tree = set(files), str(checkout.path)
        names = [name for name in made_with if name.endswith(".py") and f"{tree}/{name}" in paths]
        if names:
            with self._lock, contextlib.suppress(EOFError, OSError, protocol.ProtocolError):
                with _explain_disk_errors():
                    scratch = tempfile.mkdtemp(prefix="compile-", dir=self._scratch)
                message = {"tree": tree, "names": names, "folder": _byte_code_of(checkout), "scratch": scratch}
                return int(self._ask({"op": "compile", **message, "contain": self._contained([tree])})["pid"])
        return None

    def oracle(self) -> TargetProcess:
        """Fork a process that computes contracts' oracle values and never imports a framework."""
        return self._spawn({"roots": [], "package_roots": [], "packages": [], "pycache": ""})

    def _spawn(self, spec: dict[str, Any], *checkout: str) -> TargetProcess:
        spec = {**spec, "contain": None}
        if self.sandbox == "strict":
            visible = [str(_PACKAGE), *self.places.readable, *checkout, *filter(os.path.isdir, [spec["pycache"]])]
            spec["contain"] = {**self._contained(visible), "devices": self._devices}
        with self._lock:
            for last in (False, True):
                if self._process is None:
                    self._launch()
                self._greet()
                try:
                    return self._fork(spec)
                except (EOFError, OSError, protocol.ProtocolError):
                    # A probe or the kernel killed the preloader; continue with a new one.
                    if last or self._stopped:
                        raise WorkerError(self._explain_end(self._killed_by())) from None
                    self._dismantle()
        raise AssertionError("unreachable: the loop above always returns or raises")

    def _contained(self, visible: Sequence[str]) -> dict[str, Any]:
        return {"readable": visible, "hidden": self.places.hidden, "system_calls": syscalls.hexadecimal()}

    def _fork(self, spec: dict[str, Any]) -> TargetProcess:
        limited = self.options.sandbox != "off"
        memory = self.options.memory if self.options.device == "cpu" and limited else 0
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # set before anything can be sent: see _first_sender
        try:
            with _explain_disk_errors():
                scratch = tempfile.mkdtemp(prefix="target-", dir=self._scratch)
            own = {"scratch": scratch, "memory": memory, "limited": limited, "patience": self.options.timeout}
            birth = self._ask({"op": "spawn", "spec": {**spec, **own}}, theirs.fileno())
            if "refused" in birth:
                raise WorkerError(
                    f"strict containment is not available here: {birth['refused']}; run `sentinel doctor` for "
                    "details, or use --sentinel-sandbox=basic, which does not need it"
                )
            theirs.close()
            try:
                pid = _first_sender(ours, self.options.timeout)
            except (EOFError, OSError):  # the child was killed during the fork; the preloader may still run
                pid = None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return TargetProcess(ours, pid, self.options)

    def stop(self) -> None:
        """End the preloader and all its processes. It is safe to call at any time, and repeatedly."""
        self._stopped = True
        # Done before the lock is taken, because the thread that has the lock may be waiting for data from this socket.
        channel, process = self._channel, self._process
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        if process is not None and self._hello is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the preloader has no processes yet
        with self._lock:
            self._dismantle()

    def _dismantle(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                self._process.wait(timeout=_GRACE)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._log is not None:
            self._log.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os.close(self._folder_lock)
        self._channel = self._process = self._hello = self._log = self._scratch = None


_PREFIX = "sentinel-worker-"


def _locked_folder() -> tuple[str, int]:
    """Create and lock a temporary folder; return its path and descriptor. Remove folders that killed processes left."""
    owners = (os.geteuid(), *(USERS if os.geteuid() == 0 else ()))
    for left in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # the folder is in use, or belongs to another user
            handle = _lock_folder(left, fcntl.LOCK_EX)
            try:
                if os.fstat(handle).st_uid in owners:
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):  # another process removed the folder as abandoned
            return folder, _lock_folder(folder, fcntl.LOCK_SH)


def _lock_folder(folder: str, how: int) -> int:
    """Lock a folder and return its descriptor.

    :raises OSError: if another process has locked it, or it is not a folder.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
        os.stat(folder)
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def _explain_disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkerError(
            f"the worker cannot write its temporary files: {error.strerror or error}; free some space in "
            f"{os.environ.get('TMPDIR') or 'the temporary folder'}, or set TMPDIR to a folder on another disk"
        ) from error


class _Handle:
    """The connection to a worker process. ``pid`` is None if the process ended before its first message."""

    def __init__(self, channel: socket.socket, pid: int | None, options: Options) -> None:
        self._channel = channel
        self._leader = None if pid is None else Leader(pid)
        self._options = options

    def close(self) -> None:
        """End the process and its probes."""
        if self._channel.fileno() < 0:
            return
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        if self._leader is not None:
            self._leader.kill()
        self._channel.close()


class TargetProcess(_Handle):
    """A process that calls a framework's functions at one revision, or computes oracle values. It handles one request
    at a time; other threads wait."""

    def __init__(self, channel: socket.socket, pid: int | None, options: Options) -> None:
        super().__init__(channel, pid, options)
        self._lock = threading.Lock()
        self.dead: Failed | None = None
        if pid is None:
            self._mark_dead("crash", "the target process ended while it was forked")

    def load(
        self,
        paths: Sequence[str],
        adapter: str,
        contract_file: str,
        contract: str,
        moved: Mapping[str, str] | None = None,
    ) -> list[str] | Failed:
        """Import these modules, the adapter and the contract. Return the files that had no cached byte code; return a
        failure if the process ends or does not answer in time.

        :param moved: a name that the adapter uses -> its name in this checkout.
        """
        what = {"adapter": adapter, "contract_file": contract_file, "contract": contract}
        when = "while its modules were imported"
        message = {**what, "op": "import", "modules": list(paths), "moved": dict(moved or {})}
        sources = self._ask(message, self._options.timeout, when, answers.of_import)
        return sources if isinstance(sources, Failed) else list(sources)

    def probe(self, request: Mapping[str, Any]) -> Measured | Failed:
        """Run a recipe's scenario once in a forked process."""
        timeout = float(request.get("timeout") or self._options.timeout)
        message = {**request, "op": request.get("op", "probe"), "timeout": timeout, "device": self._options.device}
        return self._ask(message, timeout, "while a probe ran", partial(answers.of_probe, variants=request["variants"]))

    def probes(self, requests: Sequence[Mapping[str, Any]], timeout: float) -> Sequence[Measured | Failed]:
        """Run several probes in one process. Return an empty tuple if the process ends early or exceeds the time limit.

        :param timeout: seconds for all probes together, if this is less than the time limit of a single probe.
        """
        timeout = min(timeout, self._options.timeout)
        message = {"op": "probes", "questions": list(requests), "timeout": timeout, "device": self._options.device}
        parse = partial(answers.of_probes, requests=requests)
        results = self._ask(message, timeout, "while probes ran", parse)
        return () if isinstance(results, Failed) else results

    def describe(self, source: bytes, timeout: float) -> Described | Failed:
        """Return the names that a source file defines; see :func:`sentinel.worker.codes.describe`."""
        message = {"op": "describe", "source": source, "timeout": timeout}
        return self._ask(message, timeout, "while a source was parsed", answers.of_source)

    def bare(self) -> None:
        """Fork, run one backward pass and exit, to measure the cost of a probe (for benchmarks)."""
        timeout = self._options.timeout
        self._ask({"op": "bare", "timeout": timeout}, timeout, "while it forked", lambda answer: None)

    def session(self) -> Session:
        """Fork a session, which serves many calls in one process."""
        if self.dead is not None:
            raise WorkerError(self.dead.reason)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # set before anything can be sent: see _first_sender

        def forked(_: Any) -> Session:
            theirs.close()  # otherwise this process would not notice a session that ends before its first message
            return Session(ours, _first_sender(ours, self._options.timeout), self._options)

        with theirs:
            when = "while a session was forked"
            session = self._ask({"op": "session"}, self._options.timeout, when, forked, theirs.fileno())
        if isinstance(session, Failed):
            ours.close()
            raise WorkerError(session.reason)
        return session

    def _ask(
        self, message: Mapping[str, Any], timeout: float, when: str, parsed: Callable[[Any], _Answer], fd: int = -1
    ) -> _Answer | Failed:
        """Send a request and return the parsed answer; return a failure if no valid answer arrives in time."""
        if self.dead is not None:
            return self.dead
        nonce = secrets.token_hex(16)
        try:
            with self._lock:
                began = time.monotonic()
                self._channel.settimeout(timeout + _GRACE)
                protocol.send(self._channel, {**message, "nonce": nonce})
                if fd >= 0:
                    socket.send_fds(self._channel, [b"!"], [fd])
                answer = _check_nonce(protocol.receive(self._channel, began + timeout + _GRACE), nonce)
            result = parsed(answer)
            if isinstance(result, Failed) and result.kind == "timeout" and time.monotonic() < began + timeout:
                raise protocol.ProtocolError("the worker reports a timeout before the time limit")
        except TimeoutError:
            return self._mark_dead("timeout", f"the target process did not answer within {timeout:g} s {when}")
        except (EOFError, OSError):
            return self._mark_dead("crash", f"the target process ended {when}")
        except protocol.ProtocolError as error:
            return self._mark_dead("crash", f"the target process sent an invalid answer {when}: {error}")
        return result

    def _mark_dead(self, kind: WorkerKind, reason: str) -> Failed:
        self.dead = Failed(kind, reason)
        self.close()
        return self.dead


class Session(_Handle):
    """A process that serves many calls. Call :meth:`send` and then :meth:`receive`, once for each request.

    :ivar dead: the reason why the session has ended; empty while it runs.
    :ivar hangs: True if the session has ended because a call took longer than the timeout.
    :ivar slowest: the longest time in seconds of a call in the last answer.
    """

    dead = _nonce = ""
    hangs = False
    slowest = 0.0
    _calls: Sequence[str] = ()

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request with several calls. :meth:`receive` returns the answer."""
        if self.dead:
            return
        self._channel.settimeout(self._options.timeout)
        try:
            self._nonce, self._calls = secrets.token_hex(16), list(request["calls"])
            protocol.send(self._channel, {**request, "nonce": self._nonce, "device": self._options.device})
        except OSError:
            self._mark_dead("the session ended")

    def receive(self, limit: float = math.inf) -> Replies | Failed:
        """Return the answer to the last request, or a failure. If the session itself fails, it ends.

        The session reports the end of each call, so each call may take the whole timeout. All slow calls together may
        take one timeout, because a function that waits for a server may be called hundreds of times.

        :param limit: seconds for each call, if this is less than the timeout.
        """
        if not self.dead:
            left = timeout = min(limit, self._options.timeout)
            self.slowest = 0.0
            try:
                for _ in range(len(self._calls) + 1):
                    began = time.monotonic()
                    frame = protocol.receive(self._channel, began + timeout)
                    taken = time.monotonic() - began
                    self.slowest = max(self.slowest, taken)
                    left -= taken if taken > _SLOW * timeout else 0
                    if left < 0:
                        raise TimeoutError
                    answer = _check_nonce(frame, self._nonce)
                    if answer != {"alive": True}:
                        return answers.of_session(answer, self._calls)
                raise protocol.ProtocolError("the worker answered more calls than were requested")
            except TimeoutError:
                self.hangs = True
                slow = f"its calls take more than {_SLOW * timeout:g} s each, and more than {timeout:g} s together"
                self._mark_dead(slow if left < 0 else f"no answer within {timeout:g} s")
            except (EOFError, OSError):
                self._mark_dead("the session ended")
            except protocol.ProtocolError as error:
                self._mark_dead(f"the session sent an invalid answer: {error}")
        return Failed("crash", self.dead)

    def _mark_dead(self, reason: str) -> None:
        self.dead = reason
        self.close()


def _check_nonce(answer: Any, nonce: str) -> Any:
    if not isinstance(answer, dict) or answer.pop("nonce", None) != nonce:
        raise protocol.ProtocolError("the nonce of the answer differs from the request's")
    return answer


def _first_sender(channel: socket.socket, timeout: float) -> int:
    """Receive the first byte, and return the process id of its sender, as the kernel reports it."""
    channel.settimeout(timeout)
    first, notes, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, data in notes:
        if first and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid = int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
            if pid > 1:  # a signal to pid 0 would reach this process's own group
                return pid
    raise EOFError("the other process has ended")


#: struct ucred: process, user and group id.
_CREDENTIALS = struct.Struct("3i")


def _byte_code_of(checkout: Checkout) -> str:
    return str(checkout.path.parent / f"{checkout.path.name}.pycache")


def flags() -> dict[str, str]:
    """Return the environment variables that the worker sets."""
    dynamo = os.environ.get("SENTINEL_TORCHDYNAMO_DISABLE")
    return {**FLAGS, "TORCHDYNAMO_DISABLE": dynamo} if dynamo else dict(FLAGS)
