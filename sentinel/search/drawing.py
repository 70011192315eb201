"""Draw scenarios and the random choices of laws with Hypothesis.

Import this module only for drawing, because importing Hypothesis takes a third of a second.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity, configuration, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from sentinel.contracts.contract import Choose, DoesNotApply
from sentinel.sources.home import Home

Made = TypeVar("Made")


def run(
    make: Callable[[Choose], Made],
    body: Callable[[Made, bytes], None],
    seed: int,
    examples: int,
    shrink: bool,
    size: int,
    ends: Sequence[type[BaseException]],
) -> None:
    """Draw up to ``examples`` values with ``make``, and call ``body`` with each value and with random bytes for laws.

    :param make: builds one value from draws. If it raises :class:`DoesNotApply`, another value is drawn.
    :param shrink: whether to shrink a value for which ``body`` raises.
    :param ends: exceptions with which ``body`` ends the run or marks an example as failing.
    """

    @st.composite
    def drawn(draw: Any) -> tuple[Made, bytes]:
        try:
            made = make(Draws(draw))
        except DoesNotApply:
            hypothesis.reject()
        return made, bytes(draw(_bytes(size)))

    test = given(drawn())(lambda both: body(*both))
    test = hypothesis.seed(seed)(test)
    test = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )(test)
    # Unsatisfiable: every draw was rejected. Flaky: a crash did not occur again during shrinking.
    with _isolate_hypothesis(), contextlib.suppress(*ends, hypothesis.errors.Unsatisfiable, hypothesis.errors.Flaky):
        test()


_LOCK = threading.Lock()
_runs = 0
_before: tuple[Any, Any] = (None, None)


@contextlib.contextmanager
def _isolate_hypothesis() -> Iterator[None]:
    """Prevent Hypothesis from using the working directory and the imported modules.

    By default, Hypothesis stores files in ``.hypothesis`` in the working directory, which may be the checkout under
    test. During the block, it stores them below ``SENTINEL_HOME``. By default, Hypothesis also draws constants that it
    finds in local modules. During the block, it does not, because this takes up to a second and makes draws depend on
    the installation.
    """
    global _runs, _before
    with _LOCK:
        if not _runs:
            _before = vars(configuration).get("__hypothesis_home_directory"), vars(providers).get(_CONSTANTS)
            configuration.set_hypothesis_home_dir(Home.default().path / "hypothesis")
            setattr(providers, _CONSTANTS, Constants)
        _runs += 1
    try:
        yield
    finally:
        with _LOCK:
            _runs -= 1
            if not _runs:
                configuration.set_hypothesis_home_dir(_before[0])
                setattr(providers, _CONSTANTS, _before[1])


#: The function of Hypothesis that returns the constants of local modules.
_CONSTANTS = "_get_local_constants"


class Draws:
    """Draws the choices of contracts and laws from Hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return low if low == high else int(self._draw(_integer(low, high)))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def integers(self, count: int, low: int, high: int) -> list[int]:
        if not count:
            return []
        # One draw of bytes is several times faster than one draw per number, and shrinks equally well.
        span = high - low + 1
        assert span <= 256
        return [low + byte % span for byte in self._draw(_bytes(count))]

    def permutation(self, count: int) -> list[int]:
        return list(self._draw(_permutation(count)))


# Cached, because building a strategy takes longer than drawing from it.
@lru_cache(maxsize=1024)
def _integer(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=256)
def _bytes(count: int) -> st.SearchStrategy[bytes]:
    return st.text(_LETTERS, min_size=count, max_size=count).map(_as_bytes)


# Bytes are drawn as letters, because `st.binary` would draw other scenarios than those of the recorded verdicts.
_FIRST_LETTER = 0xF0000
_LETTERS = st.characters(min_codepoint=_FIRST_LETTER, max_codepoint=_FIRST_LETTER + 255)


def _as_bytes(text: str) -> bytes:
    return bytes(ord(letter) - _FIRST_LETTER for letter in text)


@lru_cache(maxsize=64)
def _permutation(count: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(count))
