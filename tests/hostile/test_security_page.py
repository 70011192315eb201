"""SECURITY.md names an existing test for each promise."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_named_by_the_page_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "SECURITY.md").read_text()))
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", file.read_text())
    }
    assert named
    assert named <= there
