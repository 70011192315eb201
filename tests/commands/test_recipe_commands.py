import json
import re
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
import yaml

from sentinel.contracts.contract import REQUIRED
from sentinel.recipes.catalog import bundled_catalog
from sentinel.recipes.template import template


def test_check_accepts_a_valid_recipe(run_sentinel, tiny):
    answer = run_sentinel("recipe", "check", tiny.recipe)
    assert (answer.status, answer.out, answer.err) == (0, "", "1 file: 0 errors, 0 warnings\n")


def test_check_names_file_line_and_column(run_sentinel, tiny):
    Path("BAD.yaml").write_text(tiny.recipe.read_text().replace("agg_loss", "agg_los"))
    answer = run_sentinel("recipe", "check", "BAD.yaml", tiny.recipe.parent)
    assert answer.status == 1
    assert "BAD.yaml:6:11: unknown boundary 'tiny.losses.agg_los' — did you mean 'agg_loss'?" in answer.out
    assert answer.err == "2 files: 1 error, 0 warnings\n"


@pytest.mark.parametrize("named", ["folder", "recipe", "fix"])
def test_check_reads_the_fix_of_a_recipe_too(run_sentinel, tiny, named):
    Path("bugs").mkdir()
    recipe, fix = Path("bugs/TINY-MEAN.yaml"), Path("bugs/TINY-MEAN.fix.yaml")
    recipe.write_text(tiny.recipe.read_text())
    fix.write_text("bugs: [TINY-MEAN]\ncommit: zzz\n")
    answer = run_sentinel("recipe", "check", {"folder": "bugs", "recipe": recipe, "fix": fix}[named])
    assert answer.status == 1
    assert answer.out.startswith("bugs/TINY-MEAN.fix.yaml:")
    assert answer.err == f"{'1 file' if named == 'fix' else '2 files'}: 1 error, 0 warnings\n"


def test_check_of_a_missing_file_is_a_usage_error(run_sentinel, tiny):
    answer = run_sentinel("recipe", "check", tiny.recipe, "missing.yaml")
    assert (answer.status, answer.out) == (2, "")
    assert "missing.yaml: no such file; name a recipe, or a folder" in answer.err


def test_a_template_suggests_values_that_the_contract_accepts(tiny_catalog):
    """For every required input: one of its choices, or a tensor of its shape and dtype."""
    for contract in bundled_catalog().contracts.values():
        text = template("MY-BUG", "tiny", "tiny.losses.agg_loss", contract)
        for item in (each for each in contract.inputs if each.default is REQUIRED):
            [example] = re.findall(rf"^  {item.name}: TODO  # .*, such as (.*)$", text, re.MULTILINE)
            value = yaml.safe_load(example)
            if item.choices and item.choices[0] is not None:
                assert value == json.loads(json.dumps(item.choices[0], default=str)), (contract.name, item.name)
            elif item.kind == "tensor":
                array = np.array(value)
                assert array.ndim == len(item.shape), (contract.name, item.name)
                assert (array <= 0).all() or not item.domain.startswith("log_prob")
                assert array.dtype.kind == {"b": "b", "i": "i"}.get(item.dtype[0], "f")


def test_new_uses_the_contract_of_the_boundary(run_sentinel):
    new = ("recipe", "new", "MY-BUG", "--target", "tiny", "--boundary", "tiny.losses.agg_loss")
    answer = run_sentinel(*new)
    assert (answer.status, list(Path().iterdir())) == (0, [])
    assert run_sentinel(*new, "-o", "MY-BUG.yaml").status == 0
    text = Path("MY-BUG.yaml").read_text()
    assert text == answer.out
    assert "contract: loss_aggregation" in text
    assert "loss_mat: TODO" in text
    assert run_sentinel("recipe", "check", "MY-BUG.yaml").status == 1  # placeholders are left


def test_new_does_not_overwrite_a_file(run_sentinel):
    Path("MINE.yaml").write_text("precious")
    answer = run_sentinel("recipe", "new", "MY-BUG", "--target", "tiny", "-o", "MINE.yaml")
    assert answer.status == 2
    assert "MINE.yaml already exists" in answer.err
    assert Path("MINE.yaml").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["A B", "--target", "tiny"], "is not a valid bug id"),
        (["../../etc/x", "--target", "tiny"], "is not a valid bug id"),
        (["X", "--target", "nope"], "unknown target 'nope'"),
        (["X", "--target", "tiny", "--contract", "cal"], "did you mean 'call'?"),
        (["X", "--target", "tiny", "--boundary", "os.system"], "outside the target's package"),
        (
            ["X", "--target", "tiny", "--boundary", "tiny.losses.agg_los"],
            "the nearest bound function is tiny.losses.agg_loss",
        ),
        (["X", "--target", "tiny", "-o", "no/such/folder/X.yaml"], "cannot write"),
    ],
)
def test_new_rejects_invalid_input(run_sentinel, arguments, reason):
    answer = run_sentinel("recipe", "new", *arguments)
    assert answer.status == 2
    assert reason in answer.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("what", ["recipe", "report"])
def test_schema_prints_a_valid_json_schema(run_sentinel, what):
    jsonschema_rs.meta.validate(run_sentinel(what, "schema").json())


def test_list_targets_shows_every_target(run_sentinel, tiny):
    (row,) = run_sentinel("list", "--json").json()
    assert row == {
        "target": "tiny",
        "recipes": 1,
        "boundaries": 1,
        "packages": ["tiny"],
        "pypi": "tiny-dist",
        "repository": f"file://{tiny.upstream}",
        "mirror": "none",
    }
    assert run_sentinel("list", "targets", "tiny").out.splitlines()[1].split()[:2] == ["tiny", "1"]


def test_list_shows_recipes_and_boundaries(run_sentinel):
    assert "TINY-MEAN" in run_sentinel("list", "recipes").out
    text = run_sentinel("list", "boundaries", "tiny").out
    assert "tiny.losses.agg_loss" in text
    assert "loss_aggregation" in text
    (row,) = run_sentinel("list", "boundaries", "--json").json()["boundaries"]
    assert (row["contract"], row["there"]) == ("loss_aggregation", "")
    assert {"loss_mat", "response_mask"} < set(row["inputs"])
    assert "per_token_gradient" in row["observes"]


def test_list_reads_recipes_of_a_folder_and_of_the_settings(run_sentinel, tiny):
    Path("own").mkdir()
    Path("own/MINE.yaml").write_text(tiny.recipe.read_text().replace("TINY-MEAN", "MINE"))
    assert [row["bug"] for row in run_sentinel("list", "recipes", "--recipes", "own", "--json").json()] == [
        "MINE",
        "TINY-MEAN",
    ]
    Path("sentinel.toml").write_text('recipes = ["own"]\n')
    assert "MINE" in run_sentinel("list", "recipes").out


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--contract", "loss_*"), True),
        (("--contract", "policy_loss"), False),
        (("--status", "open", "--boundary", "*.agg_loss"), True),
        (("--pull", "7"), True),
        (("--pull", "70"), False),
        (("--affects", "nothing"), False),
        (("--introduced-by", "#6"), True),
        (("--introduced-by", "#7"), False),
        (("--fixed-by", "2026-01-02"), True),
        (("--fixed-by", "#6"), False),
        (("--severity", "high"), False),
        (("--signal", "advantage"), False),
    ],
)
def test_recipes_are_filtered_by_their_fields(run_sentinel, arguments, found):
    rows = run_sentinel("list", "recipes", *arguments, "--json").json()
    assert [row["bug"] for row in rows] == (["TINY-MEAN"] if found else [])


def test_list_recipes_writes_the_index(run_sentinel):
    text = run_sentinel("list", "recipes", "--markdown").out
    assert "\n1 bug (1 recipe):\n\n* tiny: 1 bug (1 recipe)\n" in text
    assert "## decided by expected values (1)" in text
    assert "| [TINY-MEAN](tiny/TINY-MEAN.yaml) | masked tokens count |  |  |  | #7 open |" in text


def test_show_prints_a_bug_in_full(run_sentinel, tiny):
    text = run_sentinel("show", "TINY-MEAN").out
    assert "\n  response_mask = [[1, 0], [1, 0]]\n" in text
    assert "  by default: batch_num_tokens, " in text
    assert [line.split() for line in text.splitlines() if line.startswith("loss ")] == [["loss", "26.0", "1.0"]]
    assert f"git:{tiny.buggy}  reproduced  before" in text
    assert "git:main" in text
    assert "pull #7, open" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("number", ["7", "#7"])
def test_show_finds_a_recipe_by_the_number_of_its_pull_request(run_sentinel, tiny, number):
    assert run_sentinel("show", number).out == run_sentinel("show", "TINY-MEAN").out
    Path("own").mkdir()
    Path("own/MINE.yaml").write_text(tiny.recipe.read_text().replace("TINY-MEAN", "MINE"))
    lines = run_sentinel("show", number, "--recipes", "own").out.splitlines()
    assert lines[0] == "2 recipes are about #7; name one of them"
    assert [line.split()[0] for line in lines[2:]] == ["MINE", "TINY-MEAN"]
    text = Path("own/MINE.yaml").read_text()
    Path("own/MINE.yaml").write_text(text.replace("pull: 7", "issue: 8"))
    assert run_sentinel("show", "8", "--recipes", "own").out.startswith("MINE\n")


def test_show_of_an_unknown_number_is_an_error(run_sentinel):
    answer = run_sentinel("show", "#99")
    assert (answer.status, answer.out) == (2, "")
    assert "no recipe is about pull request or issue #99" in answer.err
