"""Fuzz one reader with atheris: ``python fuzz/run.py READER [options of libFuzzer]``; ``--list`` names the readers."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
READERS = sorted(file.stem.removeprefix("read_") for file in HERE.glob("read_*.py"))


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        print("\n".join(READERS))
        return 0
    if not arguments or arguments[0] not in READERS:
        print(f"usage: python fuzz/run.py {{{','.join(READERS)}}} [options of libFuzzer]", file=sys.stderr)
        return 2
    import atheris

    with atheris.instrument_imports(include=["sentinel", "yaml", "tomllib", "zipfile", "tarfile"]):
        reader = importlib.import_module(f"read_{arguments[0]}")
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(reader.seeds()):
            Path(corpus, f"{number:04d}").write_bytes(seed)
        given = any(not option.startswith("-") for option in arguments[1:])  # files to repeat, or a corpus to keep
        options = ["-timeout=20", "-rss_limit_mb=4096", *arguments[1:], *([] if given else [corpus])]
        atheris.Setup([sys.argv[0], *options], reader.one)
        with contextlib.suppress(KeyboardInterrupt):
            atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(HERE))
    sys.exit(main(sys.argv[1:]))
