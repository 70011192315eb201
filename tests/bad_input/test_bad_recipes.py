"""Invalid recipes are rejected with file, line and column, in each of the three ways to load a recipe."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_kit import MASKED_TOKENS, write_recipe


def _written(**changes: Any) -> str:
    return yaml.safe_dump({**MASKED_TOKENS, **changes}, sort_keys=False)


#: text -> the error message after the file's name. ``tests/recipes`` has the other mistakes.
BAD = {
    "broken YAML": ("recipe_version: 1\nbug_id: [a\ntitle: x\n", r"3:6: not YAML: "),
    "not UTF-8": ("recipe_version: 1\nbug_id: \udcff\n", r"2:9: not UTF-8: byte 0xff"),
    "an unknown key": (_written(scenaro={}), r"26:1: unknown key 'scenaro' — did you mean 'scenario'\?"),
    "an object of Python's": (_written() + "story: !!python/object/apply:os.system [touch pwned]\n", r"26:8: .*tag"),
}


@pytest.fixture
def bad(here: Path, request: pytest.FixtureRequest) -> Path:
    file = here / "bad" / "demo" / "BAD.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(request.param.encode("utf-8", "surrogateescape"))
    return file


EACH = pytest.mark.parametrize(
    ("bad", "says"), [pytest.param(*case, id=name) for name, case in BAD.items()], indirect=["bad"]
)


@EACH
def test_an_invalid_recipe_in_a_folder_is_rejected(bad, says, run_pytest, snapshot):
    before = snapshot()
    answer = run_pytest("--sentinel-target=demo", "--sentinel-recipes=bad", "--sentinel-recipes=good")
    assert answer.status == pytest.ExitCode.USAGE_ERROR
    lines = answer.says().err.split("\n\n")[0].splitlines()
    assert re.match(rf"ERROR: sentinel: bad/demo/BAD.yaml:.*{says}", lines[0]), lines
    assert all(re.match(r"(ERROR: sentinel: )?bad/demo/BAD.yaml:\d+:\d+: ", line) for line in lines)
    assert snapshot() == before


@EACH
def test_an_invalid_recipe_named_by_its_path_is_rejected(bad, says, run_pytest, snapshot):
    before = snapshot()
    answer = run_pytest("bad/demo/BAD.yaml").says("collected 0 items / 1 error")
    assert answer.status == pytest.ExitCode.INTERRUPTED
    assert re.search(rf"^bad/demo/BAD.yaml:.*{says}", answer.out, re.MULTILINE), answer.out
    assert snapshot() == before


@EACH
def test_recipe_check_rejects_an_invalid_recipe(bad, says, run_sentinel, snapshot):
    before = snapshot()
    answer = run_sentinel("recipe", "check", "bad/demo/BAD.yaml").says()
    assert answer.status == 1
    assert re.match(rf"bad/demo/BAD.yaml:.*{says}", answer.out), answer.out
    assert snapshot() == before


@pytest.mark.slow
def test_two_files_with_one_bug_id_are_rejected(run_pytest, run_sentinel, here, broken_tree):
    """This also holds for files that are named by path, because both would write the same evidence."""
    first = write_recipe(here / "twice", MASKED_TOKENS)
    second = write_recipe(here / "twice", MASKED_TOKENS, bug_id="demo-masked-tokens")
    assert first != second
    says = "duplicate bug id 'demo-masked-tokens'; it is also in twice/demo/DEMO-MASKED-TOKENS.yaml"
    where = f"twice/demo/demo-masked-tokens.yaml:2:9: {says}"
    folder = run_pytest("--sentinel-target=demo", "--sentinel-recipes=twice").says(f"ERROR: sentinel: {where}")
    assert folder.status == pytest.ExitCode.USAGE_ERROR
    paths = run_pytest(first, second, f"--sentinel-repo={broken_tree}").says(where, "Interrupted: 1 error")
    assert paths.status == pytest.ExitCode.INTERRUPTED
    assert run_sentinel("recipe", "check", "twice").says(where).status == 1
    assert not (here / "sentinel-reports").exists()
