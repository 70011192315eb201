"""Sessions in which contracts' references answer, shared by all searches of a run.

They run no target's code: what one call leaves behind is nobody's concern, and a search needs no session of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.worker.answers import Failed, Sat
from sentinel.worker.client import Session, TargetProcess, WorkerError


class References:
    """As many sessions as are asked at the same time. Safe to use from several threads.

    :param oracle: makes (or gives) the oracle process.
    """

    def __init__(self, oracle: Callable[[], TargetProcess]) -> None:
        self._oracle = oracle
        self._idle: list[Session] = []

    def consult(self, request: Mapping[str, Any]) -> Sat | Failed:
        """The worker's answer to a session's request; see :mod:`sentinel.worker.session`.

        A session's end says nothing of a target, and another one may answer: something on this machine took it away,
        and perhaps the process that it came from. What ends three of them is a failure of kind ``harness``.

        :raises WorkerError: where no oracle process can be had.
        """
        for last in (False, False, True):
            try:
                session = self._taken()
            except WorkerError:
                if last:
                    raise
                continue
            try:
                session.send(request)
                answer = session.receive()
            except BaseException:
                session.close()  # an answer may be on its way still, and would be taken for that of the next call
                raise
            if not session.dead:
                self._idle.append(session)
            if last or not session.dead:
                return replace(answer, kind="harness") if isinstance(answer, Failed) else answer
        raise AssertionError("the loop returns or raises")

    def _taken(self) -> Session:
        try:
            return self._idle.pop()
        except IndexError:
            return self._oracle().session()

    def close(self) -> None:
        """End the sessions that nobody is asking."""
        while self._idle:
            self._idle.pop().close()
