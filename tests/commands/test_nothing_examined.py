"""Every command exits with 2 if there is nothing to examine, and prints what to do."""

import argparse
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_kit import git

import sentinel.cli

#: Commands that claim nothing about code, each with the reason. Every other command has inputs below.
CLAIM_NOTHING = {
    "cache list": "lists files on this machine",
    "cache prune": "removes files and counts them",
    "doctor": "checks this machine, not a framework",
    "fix show": "prints a patch that is on disk",
    "list contracts": "describes Sentinel's own contracts",
    "list recipes": "lists recipes; a filter that matches none is answered with the number that was searched",
    "list targets": "lists adapters",
    "mirror add": "copies a git history",
    "mirror list": "lists git histories",
    "mirror update": "fetches git histories; without one it exits with 2 as well",
    "mirror remove": "removes a git history",
    "recipe new": "writes a template",
    "recipe schema": "prints a schema",
    "report schema": "prints a schema",
    "show": "prints a recipe",
}


#: A pattern for output that reports an all-clear.
ALL_CLEAR = re.compile(r"no difference|nothing (changed|changes|differs)|\b0 (hit|finding|violation|unexplained)")
#: A command to run, an option to give, or what to name instead.
ADVICE = re.compile(r"`[^`]+`|--\w|\b(run|name|give|write|install|did you mean|there are|looked for)\b")

#: Command -> command lines on inputs with nothing to examine; the files are made by :func:`inputs`.
NOTHING: dict[str, list[str]] = {
    "adapt": ["adapt empty", "adapt other"],
    "audit": [
        "audit tiny",
        "audit tiny --repo empty",
        "audit tiny --repo other",
        "audit tiny --repo no_functions",
        "audit tiny --repo buggy --config empty.yaml",
        "audit tiny --repo buggy -- python train.py",
    ],
    "compare": [
        "compare loss_aggregation --targets tiny --ref path:empty",
        "compare loss_aggregation --targets tiny --ref path:no_functions",
        "compare kl_estimate",
    ],
    "contribute": ["contribute TINY-MEAN", "contribute TINY-MEAN --base path:empty --head path:empty"],
    "coverage": ["coverage tiny", "coverage tiny --ref path:empty", "coverage tiny --ref path:no_functions"],
    "diff": [
        "diff tiny git:main git:main",
        "diff tiny path:empty path:tree",
        "diff tiny path:tree path:no_functions",
        "diff tiny path:tree path:settings",
    ],
    "discover": [
        "discover tiny",
        "discover tiny --ref path:empty",
        "discover tiny --ref path:no_functions --examples 1",
        "discover tiny --ref path:syntax --examples 1",
        "discover tiny --ref path:tree --law no_such_law",
        "discover tiny --ref path:tree --boundary no_such_boundary",
    ],
    "fix check": ["fix check TINY-MEAN", "fix check NO-SUCH-BUG"],
    "list boundaries": ["list boundaries tiny --ref git:main", "list boundaries --ref path:empty"],
    "pulls": ["pulls tiny", "MIRROR pulls tiny", "MIRROR pulls tiny --comment 12"],
    "recipe check": ["recipe check empty"],
    "report accept": ["report accept", "report accept --from empty"],
    "report changes": ["report changes", "report changes --from empty --baseline empty"],
    "report citations": ["report citations"],
    "report duplicates": ["report duplicates TINY-MEAN", "MIRROR report duplicates TINY-MEAN --run"],
    "report findings": ["report findings --from empty", "report findings --from no_such_folder", "report findings"],
    "report history": ["report history", "report history --from empty", "report history NO-SUCH-BUG"],
    "report refresh": ["report refresh", "report refresh --check --baseline empty"],
    "report run": ["report run", "report run --from empty"],
    "report show": ["report show TINY-MEAN --from empty"],
    "report site": ["report site", "report site --reports empty"],
    "sweep": [
        "sweep tiny",
        "MIRROR sweep tiny --since 2027-01-01",
        "MIRROR sweep tiny --tags",
        "sweep tiny --bug NO-SUCH-BUG",
    ],
    "verify": ["verify empty", "verify no_such_file.json"],
    "watch": ["watch --target tiny -- python -c pass"],
    "watch replay": ["watch replay events.jsonl"],
}


@pytest.fixture
def inputs(tiny: Any) -> None:
    """Make the inputs: an empty folder, another project, a package without the bound function, a complete tree, an
    event file without calls, and a configuration without settings.
    """
    for name in ("empty", "other", "no_functions/tiny", "syntax/tiny", "tree/tiny", "buggy/tiny"):
        Path(name).mkdir(parents=True)
    Path("other/train.py").write_text("x = 1\n")
    Path("no_functions/tiny/losses.py").write_text("x = 1\n")
    Path("syntax/tiny/losses.py").write_text("def agg_loss(:\n")
    Path("tree/tiny/losses.py").write_text(git(tiny.upstream, "show", f"{tiny.fixed}:tiny/losses.py"))
    Path("buggy/tiny/losses.py").write_text(git(tiny.upstream, "show", f"{tiny.buggy}:tiny/losses.py"))
    shutil.copytree("tree", "settings")
    Path("settings/train.sh").write_text("python train.py --lr 1\n")
    for name in ("no_functions", "syntax", "tree", "buggy", "settings"):
        Path(name, "tiny", "__init__.py").touch()
    Path("events.jsonl").touch()
    Path("empty.yaml").write_text("{}\n")


@pytest.mark.usefixtures("mirrored")
def test_undecided_evidence_is_not_confirmed(run_sentinel, evidence):
    """`unavailable` in the evidence and `unavailable` now confirm nothing."""
    (file,) = [file for file in evidence.rglob("*.json") if json.loads(file.read_text())["verdict"] == "unavailable"]
    answer = run_sentinel("verify", file)
    assert answer.status == 2
    assert "nothing was examined: the same verdict; there are no numbers to compare; " in answer.err


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Return every command that the parser declares."""
    own = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if words and not any(action.required for action in own):
        yield " ".join(words), parser
    for action in own:
        for name, below in action.choices.items():
            yield from commands(below, *words, name)


COMMANDS = dict(commands(sentinel.cli._parser()))


def test_every_command_is_tested_or_makes_no_claim():
    """A new command needs an input with nothing to examine, or a reason why it makes no claim about code."""
    assert set(NOTHING).isdisjoint(CLAIM_NOTHING)
    assert set(COMMANDS) == {*NOTHING, *CLAIM_NOTHING}


@pytest.fixture
def ask(run_sentinel: Any, request: pytest.FixtureRequest) -> Callable[[str, bool], Any]:
    """Run a command line. If it begins with ``MIRROR``, run it with a mirror of the target."""

    def run(line: str, as_json: bool) -> Any:
        words = line.split()
        if words[0] == "MIRROR":
            request.getfixturevalue("mirrored")
            del words[0]
        place = words.index("--") if "--" in words else len(words)
        return run_sentinel(*words[:place], *["--json"] * as_json, *words[place:])

    return run


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize("line", [line for lines in NOTHING.values() for line in lines])
def test_commands_exit_with_2_when_there_is_nothing_to_examine(line, ask):
    answer = ask(line, False)
    assert answer.status == 2, answer
    sentences = re.findall("^(?:sentinel: )?nothing was examined: (.+)$", answer.out + answer.err, re.MULTILINE)
    assert len(sentences) == 1, answer
    assert ADVICE.search(sentences[0]), "it does not say what to do"
    assert not ALL_CLEAR.search(answer.out), answer.out


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    "line", [line for name in NOTHING if "--json" in COMMANDS[name]._option_string_actions for line in NOTHING[name]]
)
def test_json_output_is_valid_or_empty_when_nothing_was_examined(line, ask):
    answer = ask(line, True)
    assert answer.status == 2, answer
    assert not answer.out or json.loads(answer.out) is not None
