"""Run the preloader: a process that imports torch once and then forks worker processes on request.

The preloader computes nothing, because an OpenMP thread pool does not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import platform
import shutil
import signal
import socket
from typing import Any

from sentinel.worker import bytecode, containment, limits, processes, protocol
from sentinel.worker.cgroups import Groups


def serve(fd: int) -> None:
    """Answer requests on the inherited socket until it closes, then end all processes.

    There are three requests: ``preload`` imports packages once for all targets, ``spawn`` forks a target process that
    uses the socket sent with the request, and ``compile`` forks a process that writes byte code next to a checkout.
    """
    channel = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller handles Ctrl-C
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # target processes are reaped by the kernel
    processes.adopt_orphans()
    groups = Groups()
    try:
        uncontained = containment.reason_against()  # done early, because this call forks
        limits.tasks()  # counted once, for all forked processes
        import numpy
        import numpy.random  # otherwise numpy would import its generator in each probe
        import torch

        importlib.import_module("sentinel.worker.target_process")  # once, for all forked processes
        protocol.send(
            channel,
            {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": numpy.__version__,
                "platform": f"{platform.system()}-{platform.machine()}",
                "pid": os.getpid(),
                "uncontained": uncontained,
            },
        )
        while True:
            try:
                message, fds = _receive_with_fd(channel)
            except (EOFError, OSError, protocol.ProtocolError):
                break
            if message["op"] == "preload":
                protocol.send(channel, _preload(message["modules"]))
            elif message["op"] == "spawn":
                _spawn(channel, message, fds, groups)
            elif message["op"] == "compile":
                _compile(channel, message)
    finally:  # also if `send` raised, because the controller was killed
        processes.kill_children()
        groups.remove()
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # done here, because a killed controller cannot do it
    os._exit(0)


def _receive_with_fd(channel: socket.socket) -> tuple[Any, list[int]]:
    # The descriptor arrives with a single byte before the frame; see the client.
    marker, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not marker:
        raise EOFError
    return protocol.receive(channel), list(fds)


def _preload(modules: list[str]) -> dict[str, str | None]:
    """Import each module that is installed, and return the versions; None for missing modules."""
    versions: dict[str, str | None] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception:  # a package that does not import counts as missing
            versions[name] = None
        else:
            versions[name] = str(getattr(module, "__version__", ""))
    return versions


def _spawn(channel: socket.socket, message: dict[str, Any], fds: list[int], groups: Groups) -> None:
    if len(fds) != 1:
        raise protocol.ProtocolError("spawn without its socket")
    gc.freeze()  # a garbage collection in a fork would copy every page with an object
    spec = message["spec"]
    os.makedirs(spec["scratch"], exist_ok=True)  # a contained preloader has no such folder yet
    group = groups.make(limits.MOST_PROCESSES, spec["memory"]) if spec["contain"] else None
    report, tell = os.pipe()
    adopted, adopt = os.pipe()
    pid, first = containment.fork() if spec["contain"] else (os.fork(), False)
    if pid:
        os.close(fds[0])
        os.close(tell)
        os.close(adopted)
        birth = _birth_of(pid, report)
        if birth["pid"] != pid:
            processes.await_end(pid)
        if group is not None:
            group.add(birth["pid"])
        os.close(adopt)
        protocol.send(channel, birth)
        return
    try:
        channel.close()
        os.close(report)
        os.close(adopt)
        if group is not None:
            _contain(spec, first, tell)
        if spec["limited"]:
            limits.limit(spec["memory"], group is not None, spec["patience"])
        os.close(tell)
        # Wait until the preloader is this process's parent. During containment the parent may be another process. If
        # that process exited after the call of `die_with_parent`, the kernel would kill this process.
        os.read(adopted, 1)
        os.close(adopted)
        processes.die_with_parent()
        own = socket.socket(fileno=fds[0])
        own.send(b"!")  # the controller reads the sender's pid: see its _first_sender
        from sentinel.worker.target_process import serve as serve_target

        serve_target(own, spec)
    finally:
        with contextlib.suppress(OSError):
            os._exit(1)


def _compile(channel: socket.socket, message: dict[str, Any]) -> None:
    """Start to compile a checkout's files in a separate process, for the next run."""

    def contain(first: bool) -> None:
        _contain(message, first, os.open(os.devnull, os.O_WRONLY))
        processes.die_with_parent()

    pid = os.fork()
    if pid == 0:
        try:
            channel.close()
            processes.die_with_parent()
            bytecode.write_byte_code(message["tree"], message["names"], message["folder"], contain)
        finally:
            os._exit(0)
    protocol.send(channel, {"pid": pid})


def _contain(spec: dict[str, Any], first: bool, tell: int) -> None:
    """Contain this process, and write to the pipe ``tell`` the id of the process that continues, or why this failed."""
    wanted = dict(spec["contain"])
    wanted["readable"] = [*wanted["readable"], *containment.folders_of(spec.get("real", ()))]
    try:
        containment.contain(**wanted, scratch=spec["scratch"], first=first, ready=lambda pid: _tell(tell, pid=pid))
    except (containment.ContainmentError, OSError) as error:
        _tell(tell, refused=str(error))
        os._exit(1)


def _tell(tell: int, **facts: Any) -> None:
    os.write(tell, json.dumps(facts).encode() + b"\n")


def _birth_of(pid: int, report: int) -> dict[str, Any]:
    """Return the id of the forked process after its containment, or ``refused``: why it could not be contained."""
    birth: dict[str, Any] = {"pid": pid}
    with open(report, encoding="utf-8") as lines:
        for line in lines:
            birth.update(json.loads(line))
    return birth
