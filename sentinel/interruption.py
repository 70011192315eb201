"""Send signals again that Python would lose during garbage collection."""

from __future__ import annotations

import gc
import signal
import threading
from types import FrameType

#: Seconds after which a postponed signal is sent again.
_MOMENT = 0.02


def postpone_in_collection(number: int, frame: FrameType | None) -> bool:
    """Postpone a signal if it interrupted a callback of the garbage collector, such as Hypothesis's.

    Python discards an exception that is raised in such a callback, so a KeyboardInterrupt would be lost.

    :param frame: the interrupted frame, which Python passes to the signal handler.
    :return: True if the signal was postponed; it will be sent again, and the handler must do nothing. False otherwise.
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
