"""What is drawn depends on the seed alone: not on which modules happen to be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

#: Of every length that a draw may have; Hypothesis would draw each of these now and then.
CONSTANTS = "KNOWN = [" + ", ".join(repr(bytes(range(40, 40 + size))) for size in range(1, 33)) + "]\n"

DRAWN = """
import sys

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st

from sentinel.search.drawing import Draws, _bytes

if sys.argv[1] == "beside":
    import beside

@hypothesis.seed(7)
@settings(max_examples=300, database=None, deadline=None)
@hypothesis.given(st.data())
def draw(data):
    choose = Draws(data.draw)
    own = [choose.integers(8, 0, 6), choose.integer(0, 40), choose.permutation(3), list(data.draw(_bytes(16)))]
    print(list(data.draw(st.binary(min_size=16, max_size=16))) if sys.argv[2] == "bare" else own)

draw()
"""


def drawn(folder: Path, company: str, how: str) -> str:
    (folder / "beside.py").write_text(CONSTANTS)
    (folder / "draws.py").write_text(DRAWN)
    command = [sys.executable, str(folder / "draws.py"), company, how]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout


@pytest.mark.parametrize(("how", "same"), [("as we do", True), pytest.param("bare", False, marks=pytest.mark.nightly)])
def test_the_constants_of_another_module_are_not_drawn(how, same, tmp_path):
    assert (drawn(tmp_path, "alone", how) == drawn(tmp_path, "beside", how)) is same
