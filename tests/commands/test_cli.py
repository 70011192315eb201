import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel import cli
from sentinel.commands.console import command, progress
from sentinel.commands.discovery import Found, find_commands
from sentinel.sources import mirrors


def test_the_help_names_about_a_dozen_commands_on_one_screen(run_sentinel):
    lines = run_sentinel("--help").out.splitlines()
    assert len(lines) <= 29
    assert max(map(len, lines)) <= 80
    assert len(find_commands()) <= 20


def test_without_arguments_the_commands_are_listed_by_topic(run_sentinel):
    answer = run_sentinel()
    headings = [line[:12].strip() for line in answer.out.splitlines() if re.match(r"[a-z]", line)]
    assert (answer.status, headings[1:4]) == (0, ["my branch", "my own loss", "my run"])
    assert re.search(r"^my branch   pytest .*--sentinel-repo=.*\n +diff ", answer.out, re.MULTILINE)
    assert re.search(r"^my own loss sentinel.testing .*docs/own.md\n", answer.out, re.MULTILINE)
    assert re.search(r"^my run      audit .*\n +watch ", answer.out, re.MULTILINE)


def test_help_imports_neither_torch_nor_pytest_nor_a_recipe_reader():
    code = (
        "import sys, sentinel.cli\n"
        "try: sentinel.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pytest', 'yaml', 'git', 'jsonschema_rs', 'rich'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stderr.strip() == "set()"


def test_the_command_line_imports_no_command_module():
    code = "import sys, sentinel.cli; print(*(name for name in sys.modules if name.startswith('sentinel.')))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in finished.stdout.split()}
    assert "commands" in loaded
    assert not loaded & {"recipes", "tools", "reports", "records", "worker", "search"}


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["mirror"], ["list", "bugs"], ["cache", "prune", "--older-than", "x"]]
)
def test_an_invalid_command_line_exits_with_2_and_lists_the_choices(run_sentinel, arguments):
    answer = run_sentinel(*arguments)
    assert answer.status == 2
    assert "error:" in answer.err


def test_an_error_is_one_line_with_the_nearest_name(run_sentinel):
    answer = run_sentinel("mirror", "add", "tinny")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "sentinel: unknown target 'tinny' — did you mean 'tiny'?; known: tiny\n"


def test_interruption_leaves_nothing_half_written(run_sentinel, tiny, tmp_path, monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mirrors, "copy_objects", interrupted)
    answer = run_sentinel("mirror", "add", "tiny", "--from", tiny.upstream)
    assert answer.status == 130
    assert answer.err.endswith("sentinel: interrupted\n")
    assert [path for path in (tmp_path / "home" / "mirrors").iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.slow
def test_a_closed_output_pipe_gives_the_shells_exit_status():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sentinel.cli", "report", "schema"]
    finished = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (141, b"")


def test_an_unexpected_disk_error_is_one_line(run_sentinel, monkeypatch, tiny):
    monkeypatch.setenv("SENTINEL_HOME", "/proc/nothing/here")
    answer = run_sentinel("mirror", "add", "tiny", "--from", tiny.upstream)
    assert answer.status == 2
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("sentinel: ")


def test_commands_use_the_settings_of_the_folder(run_sentinel):
    Path("sentinel.toml").write_text('taget = "tiny"\n')
    answer = run_sentinel("list")
    assert (answer.status, "did you mean 'target'?" in answer.err) == (2, True)


PYTHON = ('python = "tiny=/bin/false"', "/bin/false")
FORK = ('repo-url = "https://host.invalid/me/tiny"', "--repo-url")
DEVICE = ('device = "cuda:99"', "cannot probe on cuda:99: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (("audit", "tiny"), PYTHON),
        (("audit", "tiny"), DEVICE),
        (("contribute", "TINY-MEAN"), FORK),
        (("contribute", "TINY-MEAN"), PYTHON),
        (("discover", "tiny"), PYTHON),
        (("sweep", "tiny"), FORK),
    ],
)
def test_every_command_that_probes_uses_the_settings_of_the_folder(run_sentinel, mirrored, command, setting):
    option, said = setting
    Path("sentinel.toml").write_text(option)
    answer = run_sentinel(*command)
    assert answer.status
    assert said in answer.out + answer.err
    Path("sentinel.toml").unlink()  # the command line has the same options
    name, _, value = option.replace('"', "").partition(" = ")
    answer = run_sentinel(*command, f"--{name}={value}")
    assert answer.status
    assert said in answer.out + answer.err


def test_a_plugin_that_requires_sentinel_adds_its_targets(run_sentinel, tiny, tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "more_targets-1.0.dist-info").mkdir(parents=True)
    (site / "more_targets-1.0.dist-info" / "METADATA").write_text(
        "Name: more-targets\nVersion: 1.0\nRequires-Dist: RL_Sentinel>=0\n"
    )
    (site / "more_targets-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\nmore = more_targets\n")
    adapter = tiny.recipe.parents[2] / "adapters" / "tiny.py"
    (site / "other.py").write_text(adapter.read_text().replace('name="tiny"', 'name="other"'))
    (site / "more_targets.py").write_text(
        "from pathlib import Path\ndef pytest_sentinel_adapters():\n    return [Path(__file__).parent / 'other.py']\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert [row["target"] for row in run_sentinel("list", "--json").json()] == ["other", "tiny"]


def test_list_contracts_shows_inputs_and_choices(run_sentinel):
    answer = run_sentinel("list", "contracts", "loss_aggregation")
    assert "loss_agg_mode" in answer.out
    assert "seq-mean-token-sum" in answer.out
    assert '@parametrize_with_laws(f, "loss_aggregation", loss_agg_mode=' in answer.out
    (contract,) = run_sentinel("list", "contracts", "loss_aggregation", "--json").json()
    assert "token-mean" in {item["input"]: item["choices"] for item in contract["inputs"]}["loss_agg_mode"]
    every = run_sentinel("list", "contracts").out
    assert (
        "policy_loss: the policy loss of tokens that another policy generated\n    def f(log_probs, old_log_probs"
        in every
    )
    assert "did you mean 'loss_aggregation'" in run_sentinel("list", "contracts", "loss_agregation").err


def test_a_filter_without_a_match_lists_the_choices(run_sentinel):
    answer = run_sentinel("list", "recipes", "--law", "masked_values_have_no_influenc")
    assert answer.out.startswith("no recipe has law 'masked_values_have_no_influenc'")


def test_an_unexpected_argument_is_reported_by_its_command(run_sentinel):
    answer = run_sentinel("list", "recipes", "--target", "tiny")
    assert answer.status == 2
    assert answer.err.startswith("usage: sentinel list recipes ")
    said = "unrecognized arguments: --target; write TARGET without --target"
    assert answer.err.endswith(f"sentinel list recipes: error: {said}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [(("dif", "verl"), "'diff'"), (("list", "recipes", "--lw", "x"), "'--law'")],
    ids=["command", "option"],
)
def test_a_misspelled_word_gets_a_suggestion(words, hint, run_sentinel):
    answer = run_sentinel(*words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.endswith(f"did you mean {hint}?\n")


def test_words_after_two_dashes_are_passed_to_commands_that_accept_them(monkeypatch):
    heard: list[Any] = []

    def run(told: Any) -> int:
        heard.append(told)
        return 0

    def declare(commands: Any) -> None:
        for name, takes in (("takes", True), ("leaves", False)):
            parser = command(commands, name, run, "do", "", takes_words=takes)
            parser.add_argument("words", nargs="*")
            parser.add_argument("--flag", action="store_true")

    found = {name: Found(name, "some", "do", "some.module") for name in ("takes", "leaves")}
    monkeypatch.setattr(cli, "find_command", found.get)
    monkeypatch.setitem(sys.modules, "some.module", SimpleNamespace(declare=declare))
    assert cli.main(["takes", "a", "--flag", "--", "python", "--lr=1"]) == 0
    assert (heard[-1].words, heard[-1].flag, heard[-1].own_command) == (["a"], True, ["python", "--lr=1"])
    assert cli.main(["leaves", "--", "--a"]) == 0
    assert (heard[-1].words, heard[-1].own_command) == (["--a"], [])


_FOREIGN = """
from sentinel.commands.console import command, echo
GROUP = "check"
SUMMARY = "greet"
def declare(commands):
    command(commands, "greet", lambda arguments: echo("hello") or 0, SUMMARY, "  sentinel greet")
"""


def _installed(folder: Path, text: str) -> dict[str, str]:
    """Install a distribution that adds a command, and return the environment that finds it."""
    (folder / "greeting.py").write_text(text)
    information = folder / "greeting-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[sentinel.commands]\ngreet = greeting\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_another_package_adds_a_command(tmp_path: Path):
    environment = _installed(tmp_path, _FOREIGN)
    ask = partial(subprocess.run, capture_output=True, text=True, env=environment)
    assert "greet      greet" in ask([sys.executable, "-m", "sentinel.cli", "--help"]).stdout
    done = ask([sys.executable, "-m", "sentinel.cli", "greet"])
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere_at_all", "the command greet (greeting) cannot be imported: No module named 'nowhere_at_all'"),
        ("GROUP = 'check'", "the command greet (greeting) does not define SUMMARY"),
        ("1 / 0", "the command greet (greeting) cannot be imported: division by zero"),
    ],
)
def test_a_broken_foreign_command_does_not_break_other_commands(tmp_path: Path, text: str, reason: str):
    environment = _installed(tmp_path, text)

    def run(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sentinel.cli", word]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    greeted, helped, listed = map(run, ("greet", "--help", "list"))
    assert (greeted.returncode, reason in greeted.stderr) == (2, True), greeted.stderr
    assert (helped.returncode, reason in helped.stderr, "diff" in helped.stdout) == (0, True, True), helped.stderr
    assert (listed.returncode, listed.stderr) == (0, "")


def test_counted_progress_is_printed_in_quarters_outside_a_terminal(capsys):
    with progress() as notify:
        notify("downloading")
        for number in range(1, 52):
            notify(f"{number} of 51: a bug")
        notify("tiny: 1 of 2 commits")
        notify("receiving: 7%")
    lines = capsys.readouterr().err.splitlines()
    counted = [line.partition(" of ")[0] for line in lines if " of 51" in line]
    assert counted == [f"sentinel: {number}" for number in (1, 13, 26, 39, 51)]
    assert [line for line in lines if " of 51" not in line] == [
        "sentinel: downloading",
        "sentinel: tiny: 1 of 2 commits",
    ]
