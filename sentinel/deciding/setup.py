"""Convert the user's settings to options of worker processes, and to a function that opens checkouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from sentinel.errors import SentinelError
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, Progress, open_checkout
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker import interpreters
from sentinel.worker.client import Options

#: Returns the checkout of a target at a ref, or raises :class:`~sentinel.errors.Unavailable`. The last argument is the
#: pull request to fetch if the mirror lacks the commit.
OpenCheckout = Callable[[Target, Ref, "int | None"], Checkout]

#: A script that prints the number of GPUs. It runs in its own process, because a process that has used CUDA must not
#: fork.
_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def opener(settings: Settings, notify: Progress | None = None, store: MirrorStore | None = None) -> OpenCheckout:
    """Return a function that opens checkouts according to the user's mirrors, URLs and interpreters."""
    store = store or MirrorStore()

    def opened(target: Target, ref: Ref, pull: int | None) -> Checkout:
        python, url = settings.python_of(target.name), settings.url_of(target.name)
        return open_checkout(target, ref, store=store, pull=pull, python=python, url=url, progress=notify)

    return opened


def options_of(settings: Settings, target: str) -> Options:
    """Return the options for a target's worker processes.

    :raises SentinelError: if the device is not on this machine.
    """
    python = settings.python_of(target)
    if settings.device != "cpu":
        _require_gpu(settings.device, python)
    return Options(timeout=settings.timeout, sandbox=settings.sandbox, device=settings.device, python=python)


@cache
def _gpus_of(python: str | None) -> int:
    return int(interpreters.ask(python, "-I", "-c", _GPUS, devices=interpreters.gpus()))


def _require_gpu(device: str, python: str | None) -> None:
    count = _gpus_of(python)
    if int(device.partition(":")[2] or 0) >= count:
        have = f"this machine has {count}" if count else "torch finds no CUDA device on this machine"
        raise SentinelError(f"cannot probe on {device}: {have}; leave --sentinel-device out, or set it to cpu")
