"""A checkout's byte code goes beside it, and nobody else's does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from sentinel.worker.bytecode import keep_beside
keep_beside(({root!r},), {cache!r})
sys.path[:0] = [{root!r}, {elsewhere!r}]
import inside.part, outside
print(inside.part.VALUE, outside.VALUE)
"""


def test_byte_code_of_the_checkout_alone_is_moved(tmp_path: Path) -> None:
    root, elsewhere, cache = tmp_path / "root", tmp_path / "elsewhere", tmp_path / "cache"
    (root / "inside").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "inside" / "__init__.py").touch()
    (root / "inside" / "part.py").write_text("VALUE = 1\n")
    (elsewhere / "outside.py").write_text("VALUE = 2\n")
    script = SCRIPT.format(root=str(root), elsewhere=str(elsewhere), cache=str(cache))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for _ in range(2):  # compiled, then read
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["1", "2"]
    assert {file.name.partition(".")[0] for file in cache.rglob("*.pyc")} == {"__init__", "part"}
    assert not list(root.rglob("*.pyc"))
    assert [file.name.partition(".")[0] for file in elsewhere.rglob("*.pyc")] == ["outside"]
