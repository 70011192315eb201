"""Signals that must not be lost."""

from __future__ import annotations

import gc
import signal
import threading
from types import FrameType

#: Seconds after which a postponed signal is sent again.
_MOMENT = 0.02


def postpone_in_collection(number: int, frame: FrameType | None) -> bool:
    """Send a signal again a moment later if it arrived in a callback of the garbage collector.

    Python drops an exception that is raised in such a callback, and so a KeyboardInterrupt would be lost. Hypothesis
    installs a callback, in which signals that arrive during a collection are handled.

    :param frame: the interrupted frame, as a signal handler gets it.
    :return: True if the signal was postponed, so that the handler must do nothing.
    """
    callbacks = {getattr(each, "__code__", None) for each in gc.callbacks}
    while frame is not None and frame.f_code not in callbacks:
        frame = frame.f_back
    main = threading.main_thread().ident
    if frame is None or main is None:
        return False
    again = threading.Timer(_MOMENT, signal.pthread_kill, (main, number))
    again.daemon = True
    again.start()
    return True
