"""Byte code is written next to its checkout, and nowhere else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from demo_kit import gone, returned

from sentinel.sources.checkouts import files
from sentinel.sources.trees import FILE, Entry, blob_id, tree_hash
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref

SCRIPT = """
import sys
from sentinel.worker.bytecode import use_folder
use_folder(({root!r},), {cache!r})
sys.path[:0] = [{root!r}, {elsewhere!r}]
import inside.part, outside
print(inside.part.VALUE, outside.VALUE)
"""


def test_only_byte_code_of_the_checkout_is_moved(tmp_path):
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


def listed(tree: Path) -> str:
    """Write the list of a tree's files next to it, as for a checkout, and return the tree's hash."""
    files = sorted(file for file in tree.rglob("*") if file.is_file())
    entries = [
        Entry(file.relative_to(tree).as_posix(), FILE, blob_id(content := file.read_bytes()), len(content))
        for file in files
    ]
    rows = [[entry.path, entry.mode, entry.blob, entry.size] for entry in entries]
    (tree.parent / "files.json").write_text(json.dumps({"version": 1, "files": rows}))
    return tree_hash(entries)


@pytest.mark.slow
def test_a_contained_process_uses_byte_code_that_others_compiled(lab, offered):
    lab.sandbox = offered("strict")
    tree = lab.write({"mod.py": "def f():\n    return 7\n", "broken.py": "def f(:\n", "unasked.py": ""})
    checkout = Checkout("demo", Ref("path", str(tree)), tree, ("pkg",), (tree,), listed(tree))
    first = lab.open(tree)
    compiled = lab.load(first, "pkg.mod.f")
    beside = tree.parent / "tree.pycache"
    assert [Path(file).name for file in compiled] == ["__init__.py", "mod.py"]
    assert not beside.exists()  # it could not write it
    lies = [
        str(tree / "pkg" / "broken.py"),
        "/etc/passwd",
        __file__,
        f"{tree}/pkg/../pkg/unasked.py",
        "",
        "\0",
        "mod.py",
    ]
    compiler = lab.preloader.compile(checkout, files(checkout), [*compiled, *lies])
    assert compiler is not None
    assert gone(compiler)
    assert {file.name.partition(".")[0] for file in beside.rglob("*.pyc")} == {"__init__", "mod"}
    again = lab.open(tree)
    assert lab.load(again, "pkg.mod.f") == []
    assert returned(lab.probe(again, "pkg.mod.f")) == 7


def test_byte_code_is_matched_by_content_not_time(tmp_path):
    """A working copy may move while a process compiles, so byte code is stamped afterwards."""
    root, cache = tmp_path / "root", tmp_path / "cache"
    part = root / "part.py"
    root.mkdir()

    def said(script: str) -> str:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    part.write_text("VALUE = 1\n")
    os.utime(part, (5, 5))
    said(
        "from sentinel.worker.bytecode import write_byte_code\n"
        f"write_byte_code({str(root)!r}, ['part.py'], {str(cache)!r}, lambda first: None)"
    )
    assert list(cache.rglob("part.*.pyc"))
    look = f"import sys\nfrom sentinel.worker.bytecode import use_folder\nuse_folder(({str(root)!r},), {str(cache)!r})"
    look += f"\nsys.path.insert(0, {str(root)!r})\nimport part\nprint(part.VALUE)"
    assert said(look) == "1"
    part.write_text("VALUE = 2\n")
    os.utime(part, (5, 5))
    assert said(look) == "2"


def test_truncated_byte_code_is_compiled_again(lab, offered):
    lab.sandbox = offered("basic")
    tree = lab.write({"mod.py": "def f():\n    return 7\n"})
    assert len(lab.load(lab.open(tree), "pkg.mod.f")) == 2
    (kept,) = (tree.parent / "tree.pycache").rglob("mod.*.pyc")
    kept.write_bytes(kept.read_bytes()[:40])
    again = lab.open(tree)
    assert [Path(file).name for file in lab.load(again, "pkg.mod.f")] == ["mod.py"]
    assert returned(lab.probe(again, "pkg.mod.f")) == 7
