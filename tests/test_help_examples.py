"""Examples in the commands' help and in the docs are valid; cheap ones are run, without a network."""

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from sentinel import cli
from sentinel.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
#: Commands whose examples run here, if they name files of the repository.
RUN = ("list targets", "list recipes", "list contracts", "show", "recipe schema", "report schema",
       "mirror list", "cache list", "cache prune")  # fmt: skip
OWN = ("MY-BUG", "introduced-by")  # an example of the user's; needs a sweep


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    kinds = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not kinds or (parser.epilog and path):
        yield path, parser
    for action in kinds:
        for name, child in action.choices.items():
            yield from leaves(child, f"{path} {name}".strip())


COMMANDS = dict(leaves(cli._parser()))
EXAMPLES = [
    (path, text.strip())
    for path, parser in COMMANDS.items()
    for line in (parser.epilog or "").splitlines()
    if re.match("  (sentinel|pytest) ", line)
    for text in re.split(r"\s{2,}|$", line.strip())[0].split("; ")
]
#: The lines of console blocks: page, command.
BLOCKS = [
    (page.name, text)
    for page in sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for line in re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE)
    for text in re.split(r"\s{2,}#|$", line)[0].strip().split("; ")
    if re.match(r"(sentinel|pytest .*--sentinel)", text)
]
CHEAP = [text for path, text in EXAMPLES if path in RUN and not any(own in text for own in OWN)]


def words_of(text: str) -> list[str]:
    """Return the words of an example, without redirections of its output."""
    return shlex.split(re.split(r" (?:\||>>?) ", text)[0])


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_each_command_has_an_example(path):
    assert COMMANDS[path].epilog is not None
    assert any(path == own for own, _ in EXAMPLES), f"no example in: {path}"


@pytest.mark.parametrize(("path", "text"), EXAMPLES, ids=[text for _, text in EXAMPLES])
def test_every_example_is_a_valid_command(path, text):
    program, *words = words_of(text)
    if program == "pytest":
        known = {f"--sentinel-{field.metadata['option'].name}" for field in fields(Settings)}
        assert {word.partition("=")[0] for word in words if word.startswith("--sentinel-")} <= known
        return
    words = cli._with_kind(words)
    parser = cli._parser(words[:1])
    words, _ = cli._cut(parser, words)
    arguments, unknown = parser.parse_known_args(words)
    assert (unknown, arguments.run is not None) == ([], True)


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[f"{page}: {text}" for page, text in BLOCKS])
def test_every_console_block_of_the_docs_has_valid_commands(page, text):
    test_every_example_is_a_valid_command(page, text)


@pytest.mark.parametrize("text", CHEAP)
def test_a_cheap_example_works_offline(text, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    assert cli.main(words_of(text)[1:]) == 0
    assert capsys.readouterr().out
