"""The example of docs/own.md, run in an empty folder, prints the output that the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import KINDS

from sentinel.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")


GRPO = """
import torch


def loss(lp_new, lp_behav, lp_ref, A, resp_mask, clip_eps=0.2, beta=0.04):
    keep = resp_mask.bool()
    ratio = torch.exp(torch.where(keep, lp_new - lp_behav, 0.0))
    surrogate = torch.min(ratio * A[:, None], ratio.clamp(1 - clip_eps, 1 + clip_eps) * A[:, None])
    delta = torch.where(keep, lp_ref - lp_new, 0.0)
    losses = beta * (delta.exp() - delta - 1) - surrogate
    return torch.where(keep, losses, 0.0).sum() / keep.sum().clamp(min=1)
"""


def write_page(folder):
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        file = folder / re.match(r"# (\S+)", block)[1]
        file.parent.mkdir(exist_ok=True)
        file.write_text(block, encoding="utf-8")


def run_page(folder, command):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_documented_options_check_a_grpo_loss(tmp_path):
    (options,) = re.findall(r"GRPO's: .*? \| `(.*?)`;", PAGE)
    test = f'@parametrize_with_laws(loss, "policy_loss", {options})\ndef test_loss(check):\n    check()\n'
    imports = "from sentinel.testing import parametrize_with_laws\nfrom grpo import loss\n\n\n"
    (tmp_path / "test_grpo.py").write_text(imports + test, encoding="utf-8")
    (tmp_path / "grpo.py").write_text(GRPO, encoding="utf-8")
    ran = run_page(tmp_path, "python -m pytest -q test_grpo.py")
    assert "1 failed, 9 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "breaks finite_in_finite_out only with NaN or infinity (hardening)" in ran.stdout

    (tmp_path / "grpo.py").write_text(GRPO.replace("lp_ref - lp_new", "lp_new - lp_ref"), encoding="utf-8")
    ran = run_page(tmp_path, "python -m pytest -q test_grpo.py -k oracle")
    assert "Probable cause: the opposite sign of the log-ratio of lp_new and lp_ref" in ran.stdout


@pytest.mark.slow
def test_the_example_gives_the_output_of_the_page(tmp_path):
    write_page(tmp_path)
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    command, _, output = console.partition("\n")
    ran = run_page(tmp_path, command.removeprefix("$ "))

    printed = iter(line.rstrip() for line in ran.stdout.splitlines() if line.startswith("E"))
    assert all(line in printed for line in output.splitlines()), ran.stdout + ran.stderr  # in this order
    assert "1 failed" in ran.stdout
    assert len(PAGE.splitlines()) < 70  # one screen of a browser


def test_the_page_and_the_list_show_every_kind_of_function(capsys):
    assert main(["list", "contracts"]) == 0
    listed = capsys.readouterr().out
    for name in {kind.contract for kind in KINDS} | {"explained_variance"}:
        assert f"`{name}`" in PAGE
        lines = listed.partition(f"{name}: ")[2].splitlines()
        assert lines[1].startswith("    def f(")
        assert f'@parametrize_with_laws(f, "{name}"' in lines[2]
    assert 'parametrize_with_laws(f, "call"' not in listed  # it has no laws


LABELS = """
def build_labels(tokenizer, messages, max_length):
    ids, labels = [], []
    for place, message in enumerate(messages):
        answers = message["role"] == "assistant"
        prompt = tokenizer.apply_chat_template(messages[:place], add_generation_prompt=True) if answers else []
        ids = tokenizer.apply_chat_template(messages[: place + 1])
        labels += [-100] * (max(len(prompt), 0 if answers else len(ids)) - len(labels))
        labels += [*ids[len(labels) : -1], -100] if answers else []  # the template ends a message with a new line
    return ids[:max_length], labels[:max_length]
"""


@pytest.mark.parametrize(("changed", "right"), [("", True), ("len(labels) : -2], -100, -100]", False)])
def test_the_labels_of_a_chat_are_checked_as_documented(tmp_path, changed, right):
    page = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(# test_labels.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "mylab").mkdir()
    source = LABELS.replace("len(labels) : -1], -100]", changed) if changed else LABELS
    (tmp_path / "mylab" / "chats.py").write_text(source, encoding="utf-8")
    (tmp_path / "test_labels.py").write_text(block, encoding="utf-8")
    ran = run_page(tmp_path, "python -m pytest -q test_labels.py -k oracle")
    assert (ran.returncode == 0) == right, ran.stdout + ran.stderr
    if not right:  # the end token of the first answer is left out
        assert re.search(r"trained\[\d+\]: observed 0, expected 1", ran.stdout), ran.stdout
