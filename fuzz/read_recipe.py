"""Recipes and published blobs: YAML and JSON, and every rule of the recipe language."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled, bundled_catalog
from sentinel.recipes.rules import examine_document
from sentinel.values.documents import DocumentError, read_text

CATALOG = bundled_catalog()

FOUND = (
    b"a: &a [x]\nb: [*a, *a]\n", b"? {a: b}\n: c\n", b"!!python/object/apply:os.system [ls]\n", b"--- a\n--- b\n",
    b"[" * 20_000, b"{" * 20_000, b"a: " + b"9" * 5000, b"a: 0x" + b"f" * 5000, b"a: 1e999999999", b"\xff\xfe\x00",
    b"- " * 20_000, b"!" * 1000, b"%YAML 1.1\n---\nno: [no, 1_000, 1:30]\n", b"a: |" + b"\n" * 1000, b"\x00",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """The first byte says which of the two languages follows."""
    for found in FOUND:
        yield b"y" + found
        yield b"j" + found
    for file in sorted(bundled("recipes").glob("*/*.yaml"))[::8]:
        yield b"y" + file.read_bytes()
    yield b"j" + b'{"validation_mode": "x", "bug_id": "X", "hooked_boundary": "demo_rl.losses.agg_loss", "kind": 1}'


def one(data: bytes) -> None:
    try:
        document = read_text(data[1:], "json" if data[:1] == b"j" else "yaml")
    except DocumentError:
        return
    recipe, problems = examine_document(document, Path("x.yaml"), CATALOG)
    assert recipe is not None or problems
    for problem in problems:
        assert problem.line >= 1
        assert problem.column >= 1
        str(problem)


assert load_recipe  # the way in for everybody else; here bytes need no file
