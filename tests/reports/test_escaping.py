from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.reports.escaping import LONGEST, message, passage, portable, visible


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    assert visible("\x1b[31mred\x1b[0m\x07") == "\\x1b[31mred\\x1b[0m\\x07"
    assert visible("a\u202eb\u200bc\ud800\U000e0041") == "a\\u202eb\\u200bc\\ud800\\U000e0041"
    assert visible("a\r\nb\tc") == "a\\r\\nb\\tc"
    assert visible("a\r\nb\tc\rd", lines=True) == "a\nb\tc\\rd"
    assert visible("GRPO ≠ PPO, größer") == "GRPO ≠ PPO, größer"


@given(st.text())
def test_one_line_stays_one_line_of_printable_text(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/cache/ab/roll/a.py", line 3', 'File "<checkout>/roll/a.py", line 3'),
        ("in /cache/abc/roll", "in <path>/roll"),
        ("/cache/ab", "<checkout>"),
        ('File "/opt/x/lib/python3.11/site-packages/torch/n.py"', 'File "<site-packages>/torch/n.py"'),
        ('File "/usr/lib/python3.11/json/decoder.py"', 'File "<python>/json/decoder.py"'),
        ("no file /home/zoe/x.py", "no file <home>/x.py"),
        ("PYTHONPATH=/srv/zoe/x:/srv/zoe/y", "PYTHONPATH=<path>/x:<path>/y"),
        ("file:///srv/zoe/x", "file://<path>/x"),
        ("C:\\Users\\zoe\\x.py", "<path>/x.py"),
        ("https://zoe:secret@host/a/b", "https://host/a/b"),
        ("<object at 0x7f00deadbeef>", "<object at 0x...>"),
        ("pull/12/head and ./a/b and 1/2", "pull/12/head and ./a/b and 1/2"),
    ],
)
def test_nothing_of_one_machine_is_left(text: str, expected: str) -> None:
    assert portable(text, [("/cache/ab", "<checkout>")]) == expected


def test_the_machines_own_directories_are_named(tmp_path: Path) -> None:
    import sentinel

    assert portable(f"{Path(sentinel.__file__).parent}/plugin.py") == "<sentinel>/plugin.py"
    assert str(tmp_path) not in portable(f"at {tmp_path}/x")
    assert portable(f"{sys.prefix}/bin/x").startswith("<python>/")


def test_a_very_long_text_keeps_its_beginning_and_its_end() -> None:
    text = passage("begin\n" + "x" * (5 * LONGEST) + "\nend")
    assert len(text) < LONGEST + 100
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "characters left out" in text


def test_what_a_hosted_runner_obeys_is_shown() -> None:
    assert visible("::error::x") == "\\x3a:error::x"
    assert visible("a\n \t::add-mask::x", lines=True) == "a\n \t\\x3a:add-mask::x"
    assert visible("a ##[error]x ###[group]") == "a \\x23#[error]x #\\x23#[group]"
    assert visible("a::b [::2] # [x]") == "a::b [::2] # [x]", "and nothing else"


def test_a_message_is_one_line() -> None:
    assert message("  a\nb  ") == "a\\nb"


@pytest.mark.parametrize("unit", ["/#", "/a", "a/", "//", "C:\\", "://a@", "0x1", "\x1b", " /a/", "/" + "a" * 50])
def test_hostile_text_costs_no_more_than_its_length(unit: str) -> None:
    started = time.perf_counter()
    passage(unit * 1_000_000)
    assert time.perf_counter() - started < 2


def test_a_long_text_is_not_cut_inside_a_path() -> None:
    assert "zoe" not in passage(" /srv/zoe/private/x" * 10_000)
