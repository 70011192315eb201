"""Functions that harm the process in which they run."""

import contextlib
import ctypes
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy
import torch

CALLS = 0


def segfault() -> None:
    ctypes.string_at(0)


def hang() -> None:
    while True:
        time.sleep(60)


def hang_and_ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hang()


def leave(status: int) -> None:
    os._exit(status)


def exit_politely(status: int) -> None:
    sys.exit(status)


def fail() -> None:
    _deeper()


def _deeper() -> None:
    raise ZeroDivisionError("no valid tokens")


def ask_for_too_much() -> int:
    return len(bytearray(1 << 46))


def ask_torch_for_too_much() -> torch.Tensor:
    return torch.empty(1 << 45, dtype=torch.uint8)


def grow() -> int:
    kept = []
    while True:
        kept.append(numpy.zeros(1 << 28, dtype=numpy.uint8))  # address space only; nothing is written


def grow_in_small_pieces() -> int:
    """Allocate until there is not enough memory to describe the exception."""
    kept: list[object] = []
    for size in (1 << 28, 1 << 24, 1 << 20, 1 << 16, 1 << 12):
        with contextlib.suppress(MemoryError):
            while True:
                kept.append(numpy.zeros(size, dtype=numpy.uint8))
    while True:
        kept.append([None] * 8)


def forge_on_stdout() -> int:
    """Print a forged answer to every output."""
    text = '{"$":"map","v":[["observation",{"$":"map","v":[["",{"$":"map","v":[["returned",42]]}]]}]]}'
    frame = len(text).to_bytes(8, "big") + bytes(8) + text.encode()
    for number in (0, 1, 2):
        os.write(number, frame)
    print(text, flush=True)
    return 7


def garbage_on_every_descriptor() -> int:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(number, b"\xff" * 64)
    return 7


def leave_children(pid_file: str) -> int:
    """Start a child, and a grandchild in its own session. Both outlive the call."""
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.setsid()
        with open(pid_file, "a") as file:
            file.write(f"{os.getpid()}\n")
        hang_and_ignore_signals()
    while not Path(pid_file).exists() or len(Path(pid_file).read_text().split()) < 2:
        time.sleep(0.001)
    return 7


def return_twice() -> int:
    """Fork, and return in both processes."""
    return 1 if os.fork() == 0 else 2


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    hang()


def answer_too_long() -> torch.Tensor:
    return torch.zeros(300 * 1024 * 1024, dtype=torch.uint8)


def change_the_world() -> int:
    """Change all global state that another call could read."""
    global CALLS
    CALLS += 1
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    random.seed(1)
    os.environ["DEMO_RL"] = "changed"
    os.chdir("/")
    sys.modules["json"] = sys.modules["re"]
    sys.path.clear()
    return CALLS


def look_at_the_world() -> dict[str, object]:
    return {
        "calls": CALLS,
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "random": random.random(),
        "normal": torch.randn(2),
        "environment": os.environ.get("DEMO_RL"),
        "json": sys.modules["json"].__name__,
        "threads": torch.get_num_threads(),
        "dynamo": os.environ.get("TORCHDYNAMO_DISABLE"),
        "home": os.environ.get("HOME"),
        "folder": os.getcwd(),
        "secret": os.environ.get("SECRET_TOKEN"),
    }


def write_into_own_package() -> str:
    try:
        with open(Path(__file__).parent / "losses.py", "a") as file:
            file.write("\n")
    except OSError as error:
        return type(error).__name__
    return "written"
