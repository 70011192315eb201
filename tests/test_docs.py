import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.cli import _parser

ROOT = Path(__file__).resolve().parents[1]


def test_the_pages_build_without_a_dead_link(tmp_path):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "interpreting" / "index.html").is_file()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_of_the_top_level_pages_resolves(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}, target


#: A command at the beginning of a line or of a quoted word.
COMMAND = re.compile(r"(?:^\s*(?:\$ |run: )?|`|; )sentinel ([a-z]+)(?: ([a-z]+)\b(?![-./=]))?", re.MULTILINE)


@pytest.mark.parametrize("pages", ["*.md", "docs/*.md", ".github/workflows/*.yml", "action.yml", "sentinel/**/*.py"])
def test_every_command_in_the_docs_exists(pages):
    def kinds(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
        return next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})

    commands = kinds(_parser())
    below = {name: kinds(parser) for name, parser in commands.items()}
    for page in ROOT.glob(pages):
        for name, kind in COMMAND.findall(page.read_text(encoding="utf-8")):
            assert name in commands, f"{page}: sentinel {name}"
            assert not kind or not below[name] or kind in below[name], f"{page}: sentinel {name} {kind}"
