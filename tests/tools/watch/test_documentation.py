"""The example of docs/watch.md, run exactly as written in a new environment, finds the bug and writes a recipe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_SECTION = "## One bug, from a run to a recipe"


def _blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    section = text[text.index(_SECTION) :].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def _typed(block: str) -> str:
    """Return the commands in a console block: the lines after ``$``, with their continuation lines."""
    return "".join(re.findall(r"^\$ ((?:.*\\\n)*.*\n)", block, re.MULTILINE))


def _printed(block: str) -> list[str]:
    """Return the output lines of a console block, each up to its first key or number, which differ in each run."""
    lines = re.sub(r"^\$ (?:.*\\\n)*.*\n", "", block, flags=re.MULTILINE).splitlines()
    return [re.split(r"[-0-9…]|\bloss\b|per_token_gradient", line.strip())[0] for line in lines]


def test_the_example_can_be_copied():
    (script,), (run, replay) = _blocks("python"), _blocks("console")
    compile(script, "train.py", "exec")
    assert [line.split()[0] for line in _typed(run).splitlines()[::2]] == [
        "mkdir",
        "patched/trl/trainer/grpo_trainer.py",
    ]
    assert _typed(replay).startswith("sentinel watch replay sentinel-events.jsonl ")
    assert _printed(run)[0] == "sentinel watch: the_loss_is_the_documented_one does not hold, step "
    assert _printed(run)[1] == (
        "sentinel watch: the_oracle_agrees does not hold: trl.trainer.grpo_trainer.GRPOTrainer._compute_loss, call "
    )


@pytest.mark.nightly
def test_the_example_gives_the_output_of_the_watch_page(tmp_path):
    environment = tmp_path / "environment"
    install = [environment / "bin" / "pip", "install", "-q", "-c", ROOT / "constraints.txt", "trl==1.16.0", ROOT]
    for command in ([sys.executable, "-m", "venv", environment], install):
        subprocess.run(command, check=True, timeout=1500, cwd=tmp_path)
    (script,), blocks = _blocks("python"), _blocks("console")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    path = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
    for block in blocks:
        ran = subprocess.run(
            ["bash", "-c", _typed(block)], capture_output=True, text=True, timeout=1500, cwd=tmp_path,
            env={**kept, "PATH": path},
        )  # fmt: skip
        assert ran.returncode == 1, (ran.stdout, ran.stderr)  # there is a violation
        for line in _printed(block):
            assert line in ran.stdout + ran.stderr, (line, ran.stdout, ran.stderr)
    assert (tmp_path / "mine" / "TRL-COMPUTE-LOSS-THE-ORACLE-AGREES.yaml").is_file()
