import sys
import time
from pathlib import Path

import pytest

from sentinel.reports.escaping import LONGEST, passage, portable, visible


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
def test_machine_specific_text_is_removed(text, expected):
    assert portable(text, [("/cache/ab", "<checkout>")]) == expected


def test_local_folders_are_replaced_by_their_names(tmp_path):
    import sentinel

    assert portable(f"{Path(sentinel.__file__).parent}/plugin.py") == "<sentinel>/plugin.py"
    assert str(tmp_path) not in portable(f"at {tmp_path}/x")
    assert portable(f"{sys.prefix}/bin/x").startswith("<python>/")


def test_a_very_long_text_keeps_its_beginning_and_its_end():
    text = passage("begin\n" + "x" * (5 * LONGEST) + "\nend")
    assert len(text) < LONGEST + 100
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "characters left out" in text


def test_runner_commands_are_escaped():
    assert visible("::error::x") == "\\x3a:error::x"
    assert visible("a\n \t::add-mask::x", lines=True) == "a\n \t\\x3a:add-mask::x"
    assert visible("a ##[error]x ###[group]") == "a \\x23#[error]x #\\x23#[group]"
    assert visible("a::b [::2] # [x]") == "a::b [::2] # [x]", "and nothing else"


@pytest.mark.parametrize("unit", ["/#", "/a", "a/", "//", "C:\\", "://a@", "0x1", "\x1b", " /a/", "/" + "a" * 50])
def test_escaping_takes_linear_time(unit):
    started = time.process_time()
    passage(unit * 1_000_000)
    assert time.process_time() - started < 2
