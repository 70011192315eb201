"""Signals that arrive while the garbage collector runs its callbacks, where Python drops exceptions."""

import gc
import os
import signal
import time

import pytest

from sentinel import plugin
from sentinel.cli import _interruptible


@pytest.fixture
def collecting():
    """Let the next collection receive SIGTERM in a callback, as it does when Hypothesis was used."""
    sent = []

    def callback(phase, info):
        if phase == "stop" and not sent:
            sent.append(phase)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    gc.callbacks.append(callback)
    yield sent
    gc.callbacks.remove(callback)


def wait():
    gc.collect()
    time.sleep(30)


def test_a_command_is_interrupted_by_a_signal_during_a_collection(collecting):
    with pytest.raises(KeyboardInterrupt), _interruptible():
        wait()
    assert collecting


def test_a_run_is_interrupted_by_a_signal_during_a_collection(collecting):
    before = signal.signal(signal.SIGTERM, plugin._interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert collecting
