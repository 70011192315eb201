"""docs/own.md in an empty folder: the example is the issue's, and the output is what a reader gets."""

import os
import re
import subprocess
import sys
from pathlib import Path

from kinds import KINDS

from sentinel.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")


def test_the_example_gives_the_output_of_the_page(tmp_path):
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        file = tmp_path / re.match(r"# (\S+)", block)[1]
        file.parent.mkdir(exist_ok=True)
        file.write_text(block, encoding="utf-8")
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    command, _, output = console.partition("\n")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTEST_ADDOPTS", None)
    ran = subprocess.run(
        ["bash", "-c", command.removeprefix("$ ")], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    printed = [line.rstrip() for line in ran.stdout.splitlines() if line.startswith("E")]
    assert printed == output.splitlines(), ran.stdout + ran.stderr
    assert "1 failed" in ran.stdout
    assert len(PAGE.splitlines()) < 90  # one screen of a browser


def test_the_page_names_the_kinds_and_the_list_shows_two_lines_of_each(capsys):
    assert main(["list", "contracts"]) == 0
    listed = capsys.readouterr().out
    for name in {kind.contract for kind in KINDS} | {"explained_variance"}:
        assert f"`{name}`" in PAGE
        lines = listed.partition(f"{name}: ")[2].splitlines()
        assert lines[1].startswith("    def f(")
        assert f'@parametrize_with_laws(f, "{name}"' in lines[2]
    assert 'parametrize_with_laws(f, "call"' not in listed  # it has no laws
