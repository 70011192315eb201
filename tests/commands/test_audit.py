"""``sentinel audit`` on working trees of ``tiny``."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sentinel.recipes.catalog
from sentinel.configuration import composing
from sentinel.configuration.composing import HydraMissingError

AFFECTS = """\
severity: high
affects:
  - {when: {actor.loss_agg_mode: token-mean, actor.clip: set}, where: a token is masked}
until: {actor.loss_agg_mode: seq-mean-token-sum}
"""
OPTIONS = """\
[[options]]
name = "PPO"
kind = "tree"
file = "tiny/config.yaml"
"""


def tree(tiny: Any, commit: str, folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(tiny.upstream), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", commit], check=True)
    return folder


def test_it_answers_in_words_first(run_sentinel, mirrored, tiny, tmp_path):
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.buggy, tmp_path / "buggy"))
    assert answer.status == 1
    assert answer.out.startswith(f"1 bug (1 recipe) is in tiny at {tiny.buggy[:12]}.")
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.fixed, tmp_path / "fixed"))
    assert answer.status == 0
    assert answer.out.startswith("0 bugs (0 recipes) are in tiny")


def test_a_configuration_that_names_nothing_is_not_known(run_sentinel, mirrored, tiny, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("actor: {lr: 1}\n")
    buggy = tree(tiny, tiny.buggy, tmp_path / "buggy")
    answer = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config)
    assert answer.status == 0
    assert ": 0 hit you, 1 only if more is so, 0 do not." in answer.out
    (bug,) = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config, "--json").json()["bugs"]
    assert (bug["verdict"], bug["reach"]) == ("reproduced", "not known")


@pytest.fixture
def tree_with_options(tiny: Any, tiny_catalog: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The buggy tree, with defaults; its bug names settings."""
    folder = tmp_path / "recipes"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "TINY-MEAN.yaml").write_text(tiny.recipe.read_text() + AFFECTS)
    (folder / "tiny" / "options.toml").write_text(OPTIONS)
    catalog = replace(tiny_catalog, recipe_folders=(folder,))
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
    buggy = tree(tiny, tiny.buggy, tmp_path / "buggy")
    (buggy / "tiny" / "config.yaml").write_text("actor: {loss_agg_mode: token-mean, clip: null}\n")
    return buggy


def test_what_the_configuration_leaves_out_is_the_default(run_sentinel, mirrored, tree_with_options):
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert answer.status == 1
    first, *others = answer.out.splitlines()
    assert first.startswith("1 bug (1 recipe) is in tiny at ")
    assert first.endswith(": 0 hit you, 1 only if more is so, 0 do not.")
    assert others[:6] == [
        "",
        "hits you only if …",
        "  TINY-MEAN (high)",
        "    masked tokens count",
        "    only if a token is masked",
        "    because actor.loss_agg_mode=token-mean (the default), actor.clip=0.2",
    ]
    assert "    until it is fixed, set actor.loss_agg_mode=seq-mean-token-sum\n" in answer.out
    assert "\ndefaults are those of PPO (tiny/config.yaml)\n" in answer.out
    assert "is no option" not in answer.err
    safe = ("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=None")
    assert run_sentinel(*safe).status == 0
    (bug,) = run_sentinel(*safe, "--json").json()["bugs"]
    assert (bug["reach"], bug["because"]) == ("not reached", "actor.clip=null")
    assert bug["until"] == {"actor.loss_agg_mode": "seq-mean-token-sum"}


def _rewritten(tree: Path, **lines: str) -> None:
    """The recipe beside the tree with these lines at its end."""
    recipe = tree.parent / "recipes" / "tiny" / "TINY-MEAN.yaml"
    text = recipe.read_text().partition("affects:")[0]
    recipe.write_text(text + "".join(f"{name}: {line}\n" for name, line in lines.items()))


def test_what_hits_is_apart_from_what_hits_only_if(run_sentinel, mirrored, tree_with_options, tmp_path):
    audit = ("audit", "tiny", "--repo", tree_with_options, "--sarif", "x.sarif", "--set")
    _rewritten(tree_with_options, affects='[{when: {actor.clip: "> 0.1"}}]')
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "\nhits you\n  TINY-MEAN (high)\n" in answer.out) == (1, True)
    (result,) = json.loads(Path("x.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("TINY-MEAN", "error")
    answer = run_sentinel(*audit, "actor.clip=1e-2")  # below the threshold, however it is written
    assert (answer.status, "0 only if more is so, 1 do not." in answer.out) == (0, True)
    assert json.loads(Path("x.sarif").read_text())["runs"] == []
    reach = "{producer: 'tiny/losses.py:1@0123456789ab', how: a crash, fault: true}"
    _rewritten(tree_with_options, affects='[{when: {actor.clip: "> 0.1"}}]', reach=reach)
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert "hits you only if …\n  TINY-MEAN (high, fault)" in answer.out
    assert "    only if something else fails first\n" in answer.out
    _rewritten(tree_with_options, affects="[runs with odd data]")
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "    only for runs with odd data\n" in answer.out) == (0, True)
    _rewritten(tree_with_options, affects="[]", reach=reach)
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert "    how a run gets there: a crash (tiny/losses.py:1@0123456789ab)\n" in answer.out
    assert "fault    a crash (tiny/losses.py:1" in run_sentinel(*audit[:-3]).out  # where nothing was given, too
    _rewritten(tree_with_options, reach="{producer: none, how: nothing does}")
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "in all 0 bugs (0 recipes) and 1 of hardening (1)" in answer.out) == (0, True)


def test_a_bug_counts_once_by_the_worst_of_its_recipes(run_sentinel, mirrored, tree_with_options):
    _rewritten(tree_with_options, root="tiny-mean", affects='[{when: {actor.clip: "> 0.1"}}]')
    first = tree_with_options.parent / "recipes" / "tiny" / "TINY-MEAN.yaml"
    other = first.read_text().replace("bug_id: TINY-MEAN", "bug_id: TINY-OTHER").replace("> 0.1", "< 0.1")
    first.with_name("TINY-OTHER.yaml").write_text(other)
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert "1 bug (2 recipes) is in tiny at" in answer.out
    assert ": 1 hit you, 0 only if more is so, 0 do not." in answer.out


def test_single_settings_are_read_as_they_are_written_for_a_run(run_sentinel, mirrored, tree_with_options, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("actor: {clip: {low: 0.2}, loss_agg_mode: other}\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config, "--json", "--set")
    told = run_sentinel(*audit, "++actor.loss_agg_mode=[token-mean, x]").json()["bugs"][0]["because"]
    assert told == "actor.loss_agg_mode=token-mean,x, actor.clip={…}"
    answer = run_sentinel(*audit, "actor.clip=null", "--set=--actor.loss-agg-mode=token-mean")
    assert answer.json()["bugs"][0]["because"] == "actor.clip=null"
    answer = run_sentinel(*audit, "actor.loss_agg_mod=token-mean")
    assert (
        "actor.loss_agg_mod is no option of PPO (tiny/config.yaml) — did you mean 'actor.loss_agg_mode'?" in answer.err
    )


def test_the_command_that_starts_the_training_is_read(run_sentinel, mirrored, tree_with_options, tmp_path):
    audit = ("audit", "tiny", "--repo", tree_with_options, "--json")
    command = ("python", "train.py", "actor.clip=0.2", "actor.loss_agg_mode=token-mean")
    assert run_sentinel(*audit, "--", *command).json()["bugs"][0]["reach"] == "reached"
    assert run_sentinel(*audit, "--set", "actor.clip=null", "--", *command).json()["bugs"][0]["reach"] == "not reached"
    script = tmp_path / "run.sh"
    script.write_text(f"MODE=token-mean\n{' '.join(command[:3])} actor.loss_agg_mode=$MODE actor.other=$(date)\n")
    answer = run_sentinel(*audit, "--script", script)
    assert answer.json()["bugs"][0]["reach"] == "reached"
    assert f"{script}:2: 3 settings read" in answer.err
    assert "not known, as only a shell puts them in: actor.other" in answer.err
    script.write_text(script.read_text().replace("token-mean", "$(cat mode)"))
    assert run_sentinel(*audit, "--script", script).json()["bugs"][0]["reach"] == "not known"
    assert "give one of them" in run_sentinel(*audit, "--script", script, "--", *command).err
    assert "no settings after the program" in run_sentinel(*audit, "--", "python", "train.py").err


def test_what_a_configuration_is_composed_of_is_told_where_it_is_not_read(
    run_sentinel, mirrored, tree_with_options, tmp_path, monkeypatch
):
    def without(*_: object) -> None:
        raise HydraMissingError("hydra-core is not installed")

    monkeypatch.setattr(composing, "composed", without)
    config = tmp_path / "run.yaml"
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config)
    config.write_text("defaults: [config, _self_]\nactor: {clip: 0.2}\n")
    assert "defaults list" not in run_sentinel(*audit).err
    config.write_text("defaults:\n  - mine\n  - actor: dp\n  - _self_\nactor: {clip: 0.2}\n")
    answer = run_sentinel(*audit)
    assert answer.status == 1
    assert (
        "what its defaults list names is not read (mine, actor: dp): hydra-core is not installed; "
        "pip install '.[hydra]' in a checkout of Sentinel, or give the composed configuration, which a Hydra program "
        "prints with --cfg job" in answer.err
    )
    config.write_text("defaults: 3\n")
    assert "defaults list" not in run_sentinel(*audit).err


def test_a_configuration_is_composed_first(run_sentinel, mirrored, tree_with_options, tmp_path):
    pytest.importorskip("hydra", reason="the extra `hydra` is not installed; CI has a job for it")
    (tmp_path / "mine.yaml").write_text("actor: {clip: 0.2, other: '???'}\n")
    config = tmp_path / "run.yaml"
    config.write_text("hydra: {searchpath: ['pkg://tiny', 'pkg://yours']}\ndefaults: [config, mine, _self_]\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config)
    answer = run_sentinel(*audit)
    assert answer.status == 1
    assert "because actor.loss_agg_mode=token-mean, actor.clip=0.2\n" in answer.out
    assert "run.yaml: hydra.searchpath: pkg://yours is left out" in answer.err
    assert "defaults list" not in answer.err
    over = run_sentinel(*audit, "--json", "--set", "actor.clip=null").json()["bugs"][0]
    assert (over["reach"], over["because"]) == ("not reached", "actor.clip=null")
    config.write_text("defaults: [config, your, _self_]\nactor: {clip: 0.3}\n")
    answer = run_sentinel(*audit)
    assert "actor.loss_agg_mode=token-mean (the default), actor.clip=0.3\n" in answer.out
    assert (
        "what its defaults list names is not read (config, your): Hydra says: In 'run': Could not load 'your'; mend "
        "it, or give the composed configuration" in answer.err
    )


def test_what_it_takes_is_told_where_it_is_not_known(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "config.yaml").unlink()
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2", "--json").json()
    assert answer["defaults"] is None
    assert answer["bugs"][0]["because"] == "it takes actor.loss_agg_mode=token-mean"
    assert run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip").status == 2


def test_mistakes_are_told(run_sentinel, mirrored, tiny, tmp_path):
    assert run_sentinel("audit", "nothing").status == 2
    answer = run_sentinel("audit", "tiny")
    assert answer.status == 2
    assert "nothing could be decided: tiny is not installed for" in answer.err
    assert run_sentinel("audit", "tiny", "--repo", tmp_path, "--python", "python3").status == 2
    answer = run_sentinel("audit", "tiny", "--repo", tmp_path / "nowhere")
    assert answer.status == 2
    assert "nowhere: no such folder; name a working tree of tiny" in answer.err
