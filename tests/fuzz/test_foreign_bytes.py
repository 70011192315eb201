"""Readers of untrusted bytes, on seeds and on inputs from Hypothesis. ``fuzz/`` has the long runs."""

import tracemalloc
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.targets.loading import load_file

FUZZ = Path(__file__).parents[2] / "fuzz"
READERS = sorted(file.stem.removeprefix("read_") for file in FUZZ.glob("read_*.py"))
#: The limits for one input. A compressed bomb of a few kilobytes has exceeded them.
MOST = 300 << 20


@cache
def _reader(name: str) -> ModuleType:
    return load_file(FUZZ / f"read_{name}.py")


@cache
def _seeds(name: str) -> tuple[bytes, ...]:
    return tuple(_reader(name).seeds())


@st.composite
def mutations(draw: st.DrawFn, name: str) -> bytes:
    """Draw a seed with some pieces removed, doubled or replaced, or any bytes."""
    seed = draw(st.sampled_from(_seeds(name)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(seed)))
        end = min(len(seed), start + draw(st.integers(0, 40)))
        piece = draw(st.one_of(st.binary(max_size=12), st.just(seed[start:end] * 2), st.sampled_from(_TOKENS)))
        seed = seed[:start] + piece + seed[end:]
    return draw(st.one_of(st.just(seed), st.binary(max_size=200)))


_TOKENS = (
    b"null",
    b"-1",
    b"1e400",
    b'"\\u0000"',
    b"[]",
    b"{}",
    b"\xff" * 8,
    b"\0" * 8,
    b"9" * 30,
    b"\xe2\x80\xa8",
    b"~",
)


@pytest.mark.parametrize("name", READERS)
def test_readers_accept_or_reject_each_seed(name):
    for seed in _seeds(name):
        _reader(name).one(seed)
    tracemalloc.start()  # after all imports
    try:
        for seed in _reader(name).FOUND:
            _reader(name).one(seed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert _seeds(name)
    assert most < MOST


@pytest.mark.parametrize("name", READERS)
def test_readers_accept_or_reject_mutated_bytes(name):
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(mutations(name))
    def tried(data: bytes) -> None:
        _reader(name).one(data)

    tried()


def test_a_broken_reader_is_detected(monkeypatch):
    """The harness allows documented exceptions only."""
    monkeypatch.setattr("sentinel.sources.gitrefs._BAD_NAME", __import__("re").compile("$^"))
    with pytest.raises(UnicodeEncodeError):
        _reader("git").one(_reader("git").FOUND[1])
