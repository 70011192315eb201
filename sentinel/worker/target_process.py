"""Run a target process: it imports a framework at one revision once, and forks a child for each probe."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.targets.loading import load_file
from sentinel.worker import bytecode, calling, codes, limits, probe, processes, protocol, serving, stubs, trace


def serve(channel: socket.socket, spec: Mapping[str, Any]) -> None:
    """Answer ``import`` and ``probe`` requests until the socket is closed.

    :param spec: ``roots`` (import roots), ``packages``, ``package_roots`` (absolute), ``scratch`` (working directory),
        ``pycache``, ``trace`` (the checkout's folder if lookups in it are recorded, otherwise empty). A process without
        roots is an oracle process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    own = os.getpid()
    processes.adopt_orphans()
    probe.quiet()
    os.chdir(spec["scratch"])
    roots = tuple(spec["roots"])
    recorder = None
    compiled: list[str] = []
    if spec.get("trace"):
        trace.begin(spec["trace"])
    if roots:
        compiled = bytecode.use_folder(roots, spec["pycache"])
        sys.path[:0] = roots
        recorder = stubs.ImportRecorder(
            tuple(spec["package_roots"]), tuple(spec["packages"]), spec["versions"], spec["real"]
        )
        recorder.install()
    while True:
        try:
            request = protocol.receive(channel)
        except (EOFError, OSError, protocol.ProtocolError):
            break
        # The nonce shows that an answer was written after this request, and not by a child that was forked before it.
        nonce = request.get("nonce", "")
        if request["op"] == "import":
            probe.load_contract(request["contract_file"], request["contract"])
            probe.MOVED.update(request["moved"])
            at_import = load_file(Path(request["adapter"])).TARGET.at_import
            for name in request["modules"]:
                calling.answer_at_import(at_import, roots)  # repeated for each request, because an import may undo it
                calling.import_quietly(name, roots)
            if os.getpid() != own:
                os._exit(0)  # a module has forked during import, and only the original process may answer
            answer: Any = {"imported": True, "compiled": compiled[:]}
            compiled.clear()
        elif request["op"] == "session":
            answer = _session(channel, roots, recorder)
        else:
            works: dict[str, Callable[[], Any]] = {
                "probe": partial(trace.with_questions, partial(probe.run, request, roots, recorder)),
                "probes": partial(_run_probes, request, roots, recorder),
                "describe": partial(codes.describe, request.get("source", "")),
                "bare": probe.run_bare,
            }
            answer = _fork(channel, works[request["op"]], request["timeout"], nonce)
        if isinstance(answer, bytes):
            channel.sendall(answer)
        else:
            protocol.send(channel, {**answer, "nonce": nonce})
    processes.kill_children()
    os._exit(0)


def _run_probes(
    request: Mapping[str, Any], roots: tuple[str, ...], recorder: stubs.ImportRecorder | None
) -> dict[str, Any]:
    answers = []
    for question in request["questions"]:
        # The next call first imports its module, and importing it may use stub modules.
        stubs.state().probing = False
        stubs.state().used.clear()
        answers.append(probe.run({**question, "device": request["device"]}, roots, recorder))
    return {"answers": answers}


def _session(channel: socket.socket, roots: tuple[str, ...], recorder: stubs.ImportRecorder | None) -> dict[str, Any]:
    """Fork a session that answers on the socket sent with the request."""
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    # This also reaps ended sessions, which would count against the limit of processes.
    processes.kill_children(spare=_living_sessions())
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        try:
            channel.close()
            os.setsid()
            own = socket.socket(fileno=fds[0])
            own.sendall(b"!")  # the kernel reports this process's pid to the controller
            serving.serve(own, roots, recorder)
        finally:
            os._exit(0)
    os.close(fds[0])
    _SESSIONS.add(pid)
    return {"pid": pid}


#: The process ids of sessions. They outlive requests, so they must not be killed when a probe ends.
_SESSIONS: set[int] = set()


def _living_sessions() -> frozenset[int]:
    for pid in list(_SESSIONS):
        if os.waitpid(pid, os.WNOHANG)[0]:
            _SESSIONS.discard(pid)
    return frozenset(_SESSIONS)


def _fork(channel: socket.socket, work: Callable[[], Any], timeout: float, nonce: str) -> Any:
    """Run a function in a forked process, and return its answer, or a failure that says how the process ended."""
    read, write = os.pipe()
    gc.freeze()  # a garbage collection in the fork would copy every page with an object
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            channel.close()
            limits.limit_time(timeout)
            _run_in_fork(work, write, nonce)
        finally:
            os._exit(1)
    os.close(write)
    frame, cut_short = _drain(read, timeout)
    os.close(read)
    whole = protocol.frame_length(frame) == len(frame)
    if cut_short is None and not whole:
        processes.await_end(pid, 1.0)  # so that the status shows how the fork ended, and not the SIGKILL below
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # the fork is the leader of its own session
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # the fork may have ended before it became the leader of a session
    _, status = os.waitpid(pid, 0)
    processes.kill_children(spare=_living_sessions())
    if cut_short is not None:
        return cut_short
    try:
        protocol.decode(frame)
    except protocol.ProtocolError as error:
        return probe.failure("crash", f"the process sent an invalid answer: {error}") if whole else _explain_end(status)
    return frame


def _run_in_fork(work: Callable[[], Any], write: int, nonce: str) -> None:
    pid = os.getpid()
    os.setsid()
    processes.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The parent must see the signal that ended this process, whatever handlers the target installed.
    for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)

    def framed(answer: Mapping[str, Any]) -> bytes:
        return protocol.encode({**answer, "nonce": nonce})

    try:
        frame = framed(work())
    except MemoryError:  # out of memory again while writing the error
        frame = framed(probe.failure("memory", "out of memory"))
    except BaseException as error:
        frame = framed(probe.failure("harness", f"{type(error).__name__}: {error}"))
    if os.getpid() != pid:
        os._exit(0)  # the boundary forked, and this process is the child
    if not protocol.fits(frame):
        frame = framed(_TOO_LONG)
    view = memoryview(frame)
    while view:
        view = view[os.write(write, view[: 1 << 16]) :]
    os._exit(0)


def _drain(read: int, timeout: float) -> tuple[bytes, dict[str, Any] | None]:
    """Read an answer until it is complete or the writer has ended. Return the bytes, and a failure if the answer is
    late or too long."""
    deadline = time.monotonic() + timeout
    parts = bytearray()
    poller = select.poll()
    poller.register(read, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return bytes(parts), probe.failure("timeout", f"no answer within {timeout:g} s")
        if poller.poll(left * 1000):
            part = os.read(read, 1 << 20)
            if not part:
                return bytes(parts), None
            parts += part
            if len(parts) > protocol.MAX_FRAME:
                return b"", _TOO_LONG
            # A child of the fork may keep the pipe open, so the length in the frame marks the end.
            if protocol.frame_length(parts) == len(parts):
                return bytes(parts), None


def _explain_end(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        kind = "memory" if name == "SIGKILL" else "crash"
        return probe.failure(
            kind, f"the process was killed by {name}" + (" (out of memory?)" if kind == "memory" else "")
        )
    return probe.failure("exit", f"the process exited with status {os.WEXITSTATUS(status)} before it answered")


_TOO_LONG = probe.failure(
    "crash",
    f"the answer exceeds a limit: {protocol.MAX_FRAME >> 20} MiB, {protocol.MAX_TEXT >> 20} MiB without tensors, or "
    f"{protocol.MAX_VALUES} values",
)
