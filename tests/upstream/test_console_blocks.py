"""The commands in console blocks of the README and of docs/ run as written, in a folder with their files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import MIRRORS, skip_in_pack

ROOT = Path(__file__).resolve().parents[2]

#: Commands that other tests run: in a new environment, in an empty package, or in ``.ci/run``.
ELSEWHERE = re.compile(r"-m venv|pytest -n 3 |/bin/python$|sentinel watch|SENTINEL_WATCH|patched/|-k the_oracle_agrees")
#: Commands that need a network, the whole history, or more than a few seconds.
NIGHTLY = re.compile(
    r"pypi:|repo-url|pull/|git:v|git:main|=all|~/src|mirror |pulls |sweep |compare |discover |duplicates|fix check|"
    r"contribute|citations|report (changes|accept|site)|audit (verl|trl)|report history VERL|"
    r"laws/verl|^pytest --sentinel-target=verl$"
)
#: Commands that take more than half an hour (docs/ci.md). They are interrupted, as by a time limit.
HOURS = re.compile(r"^sentinel pulls verl($| --since)")
#: A fork that does not exist.
ABSENT = "--sentinel-repo-url=https://github.com/me/verl"
BUG = "VERL-REJECTED-ROW-GRPO"

BLOCKS = [
    (page.name, block)
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]
COMMANDS = {
    f"{page}: {command}": command
    for page, block in BLOCKS
    for line in re.findall(r"^\$ ((?:.*\\\n)*.*)\n", block, re.MULTILINE)
    for command in [re.split(r"\s+# ", line.replace("\\\n", ""))[0].strip()]
    if not ELSEWHERE.search(command) and ABSENT not in command
}
FILES = {
    "run.yaml": "algorithm: {adv_estimator: grpo}\n",
    "run.sh": "python train.py --advantage-estimator grpo --eps-clip 0.2\n",
    "run-qwen3-4B.sh": "python train.py --advantage-estimator gspo --eps-clip 0.2\n",
    "train.py": "from trl import GRPOConfig, GRPOTrainer\n\nGRPOTrainer(args=GRPOConfig(loss_type='dapo', beta=0.1))\n",
    "rl.toml": "max_steps = 10\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with configurations, records, the evidence of one run, and working trees in src/."""
    if not MIRRORS.has("verl"):
        pytest.skip("no mirror of verl; run `sentinel mirror add verl`")
    made = tmp_path_factory.mktemp("reader")
    for name, text in FILES.items():
        (made / name).write_text(text, encoding="utf-8")
    for name in ("reports", "findings"):
        shutil.copytree(ROOT / name, made / name)
    for target, name in (("verl", "verl"), ("roll", "ROLL")):
        if MIRRORS.has(target):
            clone = ["git", "clone", "--quiet", "--shared", str(MIRRORS.home.mirror(target)), str(made / "src" / name)]
            subprocess.run(clone, capture_output=True)  # a pack has no branch; what needs the tree is skipped there
    for home in ("home", "spare"):  # copies, because a command removes a mirror
        shutil.copytree(MIRRORS.home.mirrors, made / home / "mirrors", copy_function=os.link)
    assert run(made, f"pytest --sentinel-target=verl --sentinel-bug={BUG}").returncode == 0
    return made


def evidence(folder: Path) -> Path:
    return sorted((folder / "sentinel-reports" / "verl" / BUG).glob("*.json"))[0]


def run(folder: Path, command: str, home: str = "home") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    where = {"PATH": path, "HOME": str(folder), "SENTINEL_HOME": str(folder / home), "COLUMNS": "200"}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**kept, **where}, capture_output=True, text=True, timeout=1800
    )


def test_every_block_has_commands():
    assert len(COMMANDS) > 40


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, id=name, marks=pytest.mark.nightly if NIGHTLY.search(each) else ())
        for name, each in COMMANDS.items()
    ],
)
def test_each_documented_command_works(folder, command):
    for target in re.findall(r"audit (\w+)", command):
        skip_in_pack(target)  # needs files outside of the packages
    words = {"FILE": str(evidence(folder)), "contribution/BUG/evidence.json": str(evidence(folder)), "BUG": BUG}
    words["DIR"] = str(MIRRORS.home.mirror("verl"))
    for word, value in words.items():
        command = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", value, command)
    interrupted = 130 if HOURS.search(command) else 0
    if interrupted:
        command = f"timeout --preserve-status 300 {command}"
    ran = run(folder, command, "spare" if command.startswith("sentinel mirror ") else "home")
    not_all_settings_read = "not decided:" in ran.stderr  # `audit` exits with 2, in addition to its result
    assert ran.returncode in (0, 1, interrupted) or not_all_settings_read, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "Traceback" not in ran.stdout + ran.stderr
    assert ran.stdout.strip()
