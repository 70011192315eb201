"""docs/own.md in an empty folder: the example is the issue's, and the output is what a reader gets."""

import os
import re
import subprocess
import sys
from pathlib import Path

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
