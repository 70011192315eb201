import gzip
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

#: One of every length that Hypothesis may draw.
CONSTANTS = "KNOWN = [" + ", ".join(repr(bytes(range(40, 40 + size))) for size in range(1, 33)) + "]\n"

DRAWN = """
import sys
import unicodedata

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


@pytest.mark.slow
@pytest.mark.parametrize(("how", "same"), [("as we do", True), pytest.param("bare", False, marks=pytest.mark.nightly)])
def test_the_constants_of_another_module_are_not_drawn(how, same, tmp_path):
    assert (drawn(tmp_path, "alone", how) == drawn(tmp_path, "beside", how)) is same


def test_a_table_of_hypothesis_in_the_working_directory_is_not_read(tmp_path):
    """The working directory may be an untrusted checkout. Its table lacks a category, which would end a draw."""
    table = tmp_path / ".hypothesis" / "unicode_data" / unicodedata.unidata_version / "charmap.json.gz"
    table.parent.mkdir(parents=True)
    table.write_bytes(gzip.compress(b'[["Co", [[983040, 983040]]]]'))
    (tmp_path / "draws.py").write_text(
        "from sentinel.search import drawing\n"
        "seen = set()\n"
        "drawing.run(lambda choose: None, lambda made, data: seen.add(data), 0, 20, False, 16, ())\n"
        "print(len(seen))\n"
    )
    command = [sys.executable, str(tmp_path / "draws.py")]
    environment = {**os.environ, "SENTINEL_HOME": str(tmp_path / "home")}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.stdout == "20\n", ran.stderr
    assert [file for file in (tmp_path / ".hypothesis").rglob("*") if file.is_file()] == [table]
