import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sentinel.recipes.catalog
from sentinel.recipes.affects import RECORDED
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.commands import audit

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


def test_audit_prints_the_answer_in_words_first(run_sentinel, mirrored, tiny, tmp_path):
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.buggy, tmp_path / "buggy"))
    assert answer.status == 1
    assert answer.out.startswith(f"1 bug (1 recipe) is in tiny at {tiny.buggy[:12]}.")
    answer = run_sentinel("audit", "tiny", "--repo", tree(tiny, tiny.fixed, tmp_path / "fixed"))
    assert answer.status == 0
    assert answer.out.startswith("0 bugs (0 recipes) are in tiny")


@pytest.mark.slow
def test_settings_that_no_bug_depends_on_are_not_examined(run_sentinel, mirrored, tiny, tmp_path):
    """This tree declares no options, and its bug names no setting."""
    config = tmp_path / "run.yaml"
    config.write_text("actor: {lr: 1}\n")
    buggy = tree(tiny, tiny.buggy, tmp_path / "buggy")
    answer = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config)
    assert (answer.status, answer.out) == (2, "")
    assert "nothing was examined: the options of tiny" in answer.err
    assert "no known bug depends on any of your 1 setting" in answer.err
    config.write_text("{}\n")
    answer = run_sentinel("audit", "tiny", "--repo", buggy, "--config", config)
    assert (answer.status, "nothing was examined: the configuration sets nothing" in answer.err) == (2, True)
    fixed = tree(tiny, tiny.fixed, tmp_path / "fixed")
    assert run_sentinel("audit", "tiny", "--repo", fixed, "--config", config).status == 2
    config.write_text("actor: {lr: 1}\n")
    assert run_sentinel("audit", "tiny", "--repo", fixed, "--config", config).status == 0, "no bug, whatever it sets"


@pytest.fixture
def tree_with_options(tiny: Any, tiny_catalog: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The buggy tree with declared defaults. Its bug names settings."""
    folder = tmp_path / "recipes"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "TINY-MEAN.yaml").write_text(tiny.recipe.read_text() + AFFECTS)
    (folder / "tiny" / "options.toml").write_text(OPTIONS)
    catalog = replace(tiny_catalog, recipe_folders=(folder,))
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
    buggy = tree(tiny, tiny.buggy, tmp_path / "buggy")
    (buggy / "tiny" / "config.yaml").write_text("actor: {loss_agg_mode: token-mean, clip: null}\n")
    return buggy


def test_audit_uses_the_default_of_a_missing_setting(run_sentinel, mirrored, tree_with_options):
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert answer.status == 1
    first, *others = answer.out.splitlines()
    assert first.startswith("1 bug (1 recipe) of tiny is known. In tiny at ")
    assert first.endswith(": 0 hit you, 1 may hit you, 0 do not.")
    assert others[:6] == [
        "",
        "may hit you",
        "  TINY-MEAN (high)",
        "    masked tokens count",
        "    only if a token is masked",
        "    because actor.loss_agg_mode=token-mean (the default), actor.clip=0.2",
    ]
    assert "    until it is fixed, set actor.loss_agg_mode=seq-mean-token-sum\n" in answer.out
    assert "\ndefaults are those of PPO (tiny/config.yaml)\n" in answer.out
    assert "is not an option" not in answer.out
    safe = ("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=None")
    assert run_sentinel(*safe).status == 0
    (bug,) = run_sentinel(*safe, "--json").json()["bugs"]
    assert (bug["reach"], bug["because"]) == ("not reached", "actor.clip=null")
    assert bug["until"] == {"actor.loss_agg_mode": "seq-mean-token-sum"}


def test_the_code_runs_only_for_bugs_that_the_settings_may_trigger(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "losses.py").write_text("raise RuntimeError('imported')\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--set")
    answer = run_sentinel(*audit, "actor.clip=None")
    assert "0 hit you, 0 may hit you, 1 do not." in answer.out
    assert "imported" not in answer.out + answer.err
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "no known bug could be decided" in answer.err) == (2, True)


def _rewritten(tree: Path, **lines: str) -> None:
    """Append lines to the recipe."""
    recipe = tree.parent / "recipes" / "tiny" / "TINY-MEAN.yaml"
    text = recipe.read_text().partition("affects:")[0]
    recipe.write_text(text + "".join(f"{name}: {line}\n" for name, line in lines.items()))


@pytest.mark.slow
def test_audit_lists_certain_bugs_apart_from_conditional_ones(run_sentinel, mirrored, tree_with_options, tmp_path):
    audit = ("audit", "tiny", "--repo", tree_with_options, "--sarif", "x.sarif", "--set")
    _rewritten(tree_with_options, affects='[{when: {actor.clip: "> 0.1"}}]')
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "\nhits you\n  TINY-MEAN (high)\n" in answer.out) == (1, True)
    (result,) = json.loads(Path("x.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("TINY-MEAN", "error")
    answer = run_sentinel(*audit, "actor.clip=1e-2")  # below the threshold, in any notation
    assert (answer.status, "0 may hit you, 1 do not." in answer.out) == (0, True)
    assert json.loads(Path("x.sarif").read_text())["runs"] == []
    reach = "{producer: 'tiny/losses.py:1@0123456789ab', how: a crash, fault: true}"
    _rewritten(tree_with_options, affects='[{when: {actor.clip: "> 0.1"}}]', reach=reach)
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert "may hit you\n  TINY-MEAN (high, fault)" in answer.out
    assert "    only if another failure comes first\n" in answer.out
    _rewritten(tree_with_options, affects="[runs with odd data]")
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, "    only for runs with odd data\n" in answer.out) == (0, True)
    _rewritten(tree_with_options, affects="[]", reach=reach)
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert "    how a run triggers it: a crash (tiny/losses.py:1@0123456789ab)\n" in answer.out
    assert "fault    a crash (tiny/losses.py:1" in run_sentinel(*audit[:-3]).out  # also without a value
    _rewritten(tree_with_options, reach="{producer: none, how: nothing does}")
    answer = run_sentinel(*audit, "actor.clip=0.2")
    assert (answer.status, answer.out.startswith("0 bugs (0 recipes)")) == (0, True)
    assert "0 bugs (0 recipes) and 1 of hardening (1)" in run_sentinel("audit", "tiny", "--repo", tree_with_options).out


def test_a_bug_with_several_recipes_counts_once_by_the_worst(run_sentinel, mirrored, tree_with_options):
    _rewritten(tree_with_options, root="tiny-mean", affects='[{when: {actor.clip: "> 0.1"}}]')
    first = tree_with_options.parent / "recipes" / "tiny" / "TINY-MEAN.yaml"
    other = first.read_text().replace("bug_id: TINY-MEAN", "bug_id: TINY-OTHER").replace("> 0.1", "< 0.1")
    first.with_name("TINY-OTHER.yaml").write_text(other)
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert "1 bug (2 recipes) of tiny is known" in answer.out
    assert ": 1 hit you, 0 may hit you, 0 do not." in answer.out
    first.with_name("TINY-OTHER.yaml").write_text(other.replace("< 0.1", "> 0.1"))
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert answer.out.count("    because actor.clip=0.2\n") == 1, "a list has as many entries as are counted"
    assert "    the same bug: TINY-OTHER\n" in answer.out


def test_set_accepts_settings_as_a_command_line_writes_them(run_sentinel, mirrored, tree_with_options, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("actor: {clip: {low: 0.2}, loss_agg_mode: other}\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config, "--json", "--set")
    told = run_sentinel(*audit, "++actor.loss_agg_mode=[token-mean, x]").json()["bugs"][0]["because"]
    assert told == "actor.loss_agg_mode=token-mean,x, actor.clip={…}"
    answer = run_sentinel(*audit, "actor.clip=null", "--set=--actor.loss-agg-mode=token-mean")
    assert answer.json()["bugs"][0]["because"] == "actor.clip=null"


UNKNOWN = "is not an option of PPO (tiny/config.yaml) in this version"


def test_unknown_settings_are_named_with_the_closest_option(run_sentinel, mirrored, tree_with_options, tmp_path):
    audit = ("audit", "tiny", "--repo", tree_with_options)
    config = tmp_path / "run.yaml"
    config.write_text("actor: {clip: 0.2, agg_loss_mode: x}\nzzz: {a: 1, b: 2}\n")
    answer = run_sentinel(*audit, "--config", config)
    assert f"\n{config}:1: actor.agg_loss_mode {UNKNOWN}; did you mean actor.loss_agg_mode?\n" in answer.out
    assert f"\n{config}:2: zzz {UNKNOWN}\n" in answer.out
    assert "zzz.a" not in answer.out
    command = "python train.py --actor.clip 0.2 --actor.agg_loss_mode token-sum"
    answer = run_sentinel(*audit, "--json", "--", *command.split())
    assert answer.json()["not_examined"] == [f"actor.agg_loss_mode {UNKNOWN}; did you mean actor.loss_agg_mode?"]
    (bug,) = answer.json()["bugs"]  # the default of the similar option is not used
    assert (bug["reach"], bug["because"]) == ("not known", "it depends on actor.loss_agg_mode=token-mean")


def test_audit_exits_with_2_when_a_bug_depends_on_a_misspelt_option(run_sentinel, mirrored, tree_with_options):
    _rewritten(tree_with_options, affects="[{when: {actor.loss_agg_mode: token-sum}, where: a token is masked}]")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--", "python", "train.py", "--actor.clip", "0.2")
    assert run_sentinel(*audit).status == 0
    answer = run_sentinel(*audit, "--actor.los_agg_mode", "token-sum")
    assert answer.status == 2
    assert f"actor.los_agg_mode {UNKNOWN}; did you mean actor.loss_agg_mode?" in answer.out
    assert "not decided: TINY-MEAN, because these settings were not read: actor.loss_agg_mode" in answer.err


def test_settings_in_an_unknown_section_are_not_read(run_sentinel, mirrored, tree_with_classes, tmp_path):
    """TRL's parser reads top-level options only. The user's own code may read the section."""
    config = tmp_path / "run.yaml"
    config.write_text("lr: 1\nclip: 0.0\ntiny: {loss_agg_mode: seq-mean, other: 1}\n")
    audit = ("audit", "tiny", "--repo", tree_with_classes, "--config", config)
    answer = run_sentinel(*audit)
    assert answer.status == 2
    assert "not read: tiny.loss_agg_mode; PPO (tiny/config.py) has no section tiny" in answer.out
    assert "so these are not known: loss_agg_mode\n" in answer.out
    assert run_sentinel(*audit, "--set", "loss_agg_mode=seq-mean").status == 0


def test_unknown_shell_words_may_set_any_option(run_sentinel, mirrored, tree_with_options, tmp_path):
    _rewritten(tree_with_options, affects="[{when: {actor.loss_agg_mode: token-sum}, where: a token is masked}]")
    (tmp_path / "run.sh").write_text("python train.py --actor.clip 0.2 ${EXTRA_ARGS}\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--json", "--script", tmp_path / "run.sh")
    answer = run_sentinel(*audit)
    (bug,) = answer.json()["bugs"]
    assert (answer.status, bug["reach"]) == (2, "not known")
    assert bug["because"] == "it depends on actor.loss_agg_mode=token-sum"
    assert "not known: further options that may be set by ${EXTRA_ARGS} (line 1)" in answer.json()["not_examined"]
    assert run_sentinel(*audit, "--set", "actor.loss_agg_mode=token-mean").status == 0


def test_an_invalid_value_does_not_count_as_false(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "config.yaml").write_text("actor: {use_opsm: false, clip: 0.1}\n")
    for option, value, condition, takes in (("use_opsm", "tr", "true", "true or false"),
                                            ("clip", "0.2x", "'> 0.1'", "a number")):  # fmt: skip
        _rewritten(tree_with_options, affects=f"[{{when: {{actor.{option}: {condition}}}}}]")
        answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", f"actor.{option}={value}")
        assert answer.status == 2
        assert f"actor.{option}={value}: this option accepts only {takes}\n" in answer.out


PARSER = """\
parser.add_argument("--custom-config-path")
parser.add_argument("--clip", type=float)
parser.add_argument("--no-mean", action="store_false", dest="mean")
"""


@pytest.fixture
def tree_with_parser(tree_with_options: Path) -> Path:
    (tree_with_options / "tiny" / "arguments.py").write_text(PARSER)
    text = OPTIONS.replace("tree", "parser").replace("config.yaml", "arguments.py")
    (tree_with_options.parent / "recipes" / "tiny" / "options.toml").write_text(text)
    _rewritten(tree_with_options, affects='[{when: {clip: "> 0.1", mean: true}}]')
    return tree_with_options


def test_a_flag_that_sets_false_is_read_as_false(run_sentinel, mirrored, tree_with_parser):
    audit = ("audit", "tiny", "--repo", tree_with_parser, "--", "python", "train.py", "--clip", "0.2")
    assert run_sentinel(*audit).status == 1
    answer = run_sentinel(*audit, "--no-mean")
    assert (answer.status, "is not an option" in answer.out) == (0, False)


@pytest.mark.slow
def test_a_settings_file_named_by_an_option_is_read(run_sentinel, mirrored, tree_with_parser, tmp_path):
    script, file = tmp_path / "run.sh", tmp_path / "custom.yaml"
    script.write_text("python train.py --custom-config-path custom.yaml\n")
    audit = ("audit", "tiny", "--repo", tree_with_parser, "--script", script)
    file.write_text("clip: 0.2\n")
    answer = run_sentinel(*audit)
    assert (answer.status, "because clip=0.2, mean=true (the default)" in answer.out) == (1, True)
    assert "custom.yaml: 1 setting read, because --custom_config_path names it" in answer.err
    file.write_text("clip: 0.2\nzero: {stage: 3}\n")  # another kind of file, whose meaning is unknown
    answer = run_sentinel(*audit)
    assert answer.status == 2
    assert f"not read in {file}, the file of --custom_config_path: clip, zero.stage\n" in answer.out
    file.write_text("[\n")
    assert "the file of --custom_config_path was not read: " in run_sentinel(*audit).out
    script.write_text("python train.py --custom-config-path custom.yaml --clip 0.0\n")
    file.write_text("clip: 0.2\n")
    answer = run_sentinel(*audit)
    assert (answer.status, f"settings that the command and {file} both set: clip" in answer.out) == (2, True)


def test_options_that_the_program_assigns_count_as_unknown(run_sentinel, mirrored, tree_with_parser, tmp_path):
    (tmp_path / "train.py").write_text("args = parse()\nargs.clip = 0.3\nargs.other = 1\n")
    audit = ("audit", "tiny", "--repo", tree_with_parser, "--", "python", str(tmp_path / "train.py"), "--clip", "0.0")
    answer = run_sentinel(*audit)
    assert answer.status == 2
    assert f"not known: settings that the program's code assigns: clip ({tmp_path}/train.py:2)\n" in answer.out


def test_audit_examines_nothing_when_no_setting_is_known(run_sentinel, mirrored, tree_with_options):
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "agg_loss_mode=x", "--set", "zzz=1")
    assert (answer.status, answer.out) == (2, "")
    assert f"agg_loss_mode {UNKNOWN}; did you mean actor.loss_agg_mode?" in answer.err
    assert "nothing was examined: none of your 2 settings is an option of PPO in tiny at" in answer.err


def test_each_of_many_unknown_settings_is_named(run_sentinel, mirrored, tree_with_options):
    settings = [f"--set=unknown{number}=1" for number in range(40)]
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2", *settings)
    assert answer.out.count(UNKNOWN) == 10
    named = re.search("also not options of PPO in this version: (.*)", answer.out)
    assert named is not None
    assert named[1].split(", ") == [f"unknown{number}" for number in range(10, 40)]


@pytest.fixture
def tree_with_classes(tree_with_options: Path) -> Path:
    """The tree with a configuration class whose base class is in a missing package."""
    (tree_with_options / "tiny" / "config.py").write_text(
        "from elsewhere import Arguments\n\nclass TinyConfig(Arguments):\n    clip: float | None = None\n"
        "    loss_agg_mode: str = 'token-mean'\n"
    )
    text = OPTIONS.replace("tree", "classes").replace("config.yaml", "config.py") + 'class = "TinyConfig"\n'
    (tree_with_options.parent / "recipes" / "tiny" / "options.toml").write_text(text)
    _rewritten(tree_with_options, affects="[{when: {loss_agg_mode: token-mean, clip: set}}]")
    return tree_with_options


@pytest.mark.slow
def test_a_python_script_is_read(run_sentinel, mirrored, tree_with_classes, tmp_path):
    audit = ("audit", "tiny", "--repo", tree_with_classes)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('executed')\nfrom tiny import TinyConfig as T\nT(clip=0.2, lr=1, clipp=x())\n")
    for way in (("--script", script), ("--", "accelerate", "launch", "--config_file", "z.yaml", str(script))):
        answer = run_sentinel(*audit, *way)
        assert answer.status == 1
        assert "because loss_agg_mode=token-mean (the default), clip=0.2\n" in answer.out
        assert f"{script}:3: 2 settings of TinyConfig read" in answer.err
        assert f"not read: arguments that {script}:3 computes: clipp\n" in answer.out
        assert (
            "not checked, because the options of Arguments of elsewhere were not read: lr, clipp (did you mean clip?); "
            "install elsewhere, or name an environment that has it with --python\n" in answer.out
        )
    script.write_text("from tiny import TinyConfig\nTinyConfig(clip=0.2, loss_agg_mode=mode)\n")
    (bug,) = run_sentinel(*audit, "--json", "--script", script).json()["bugs"]
    assert (bug["reach"], bug["because"]) == ("not known", "it depends on loss_agg_mode=token-mean")
    text = OPTIONS.replace("tree", "classes").replace("config.yaml", "gone.py").replace("PPO", "SFT")
    declared = tree_with_classes.parent / "recipes" / "tiny" / "options.toml"
    declared.write_text(declared.read_text() + text + 'class = "GoneConfig"\n')
    script.write_text("from tiny import GoneConfig\nGoneConfig(clip=None)\n")
    answer = run_sentinel(*audit, "--script", script)
    assert (answer.status, answer.out) == (2, "")
    assert "the options of GoneConfig cannot be read in " in answer.err
    script.write_text("print('no configuration')\n")
    answer = run_sentinel(*audit, "--script", script)
    assert (answer.status, answer.out) == (2, "")
    assert f"nothing was examined: {script}: it calls none of TinyConfig, GoneConfig; give the" in answer.err


TRAINERS = """\
from elsewhere import Trainer

class BaseTrainer(Trainer): ...
class FirstTrainer(BaseTrainer): ...
class OtherTrainer(BaseTrainer): ...
"""
SCRIPT = (
    "from tiny import TinyConfig\nfrom tiny.trainers import {0}\n{1}\n{2}(args=TinyConfig(clip=0.2), reward_funcs=f)\n"
)


@pytest.mark.parametrize(
    ("needs", "script", "says"),
    [
        ("OtherTrainer", ("FirstTrainer", "", "FirstTrainer"), "not used by this script: OtherTrainer\n"),
        ("OtherTrainer", ("FirstTrainer as T", "class Own(T): ...", "Own"), "not used by this script: OtherTrainer\n"),
        ("FirstTrainer", ("FirstTrainer", "class Own(FirstTrainer): ...", "Own"), ": 1 hit you"),
        ("BaseTrainer", ("OtherTrainer", "", "OtherTrainer"), ": 1 hit you"),
        ("OtherTrainer", ("FirstTrainer, OtherTrainer", "", "(OtherTrainer if x else FirstTrainer)"), ": 0 hit you"),
        ("OtherTrainer", ("FirstTrainer", "from ours import MyTrainer", "MyTrainer"), "only if the trainer is OtherT"),
        ("OtherTrainer", ("FirstTrainer", "from near import MyTrainer", "MyTrainer"), ": 1 hit you"),
    ],
)
def test_bugs_of_other_trainers_do_not_concern_a_script(
    run_sentinel, mirrored, tree_with_classes, tmp_path, needs, script, says
):
    (tree_with_classes / "tiny" / "trainers.py").write_text(TRAINERS)
    affected = f"[{{when: {{clip: set}}, trainer: {needs}}}]"
    _rewritten(tree_with_classes, affects=affected, until="{clip: null}")
    (tmp_path / "near.py").write_text("from tiny.trainers import OtherTrainer\nclass MyTrainer(OtherTrainer): ...\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(*script))
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--script", tmp_path / "train.py")
    assert says in answer.out
    assert ("set clip=null" in answer.out) == ("not used" not in answer.out), "advice only for what may hit"
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--set", "clip=0.2")
    assert f"    only if the trainer is {needs}\n" in answer.out, "without a script the trainer is not known"


@pytest.mark.parametrize(("trainer", "script"), [("", ""), ("f = agg_loss", ""), ("", "f = agg_loss")])
def test_a_function_in_a_trainers_module_belongs_to_the_trainer(
    run_sentinel, mirrored, tree_with_classes, tmp_path, trainer, script
):
    """It does not belong to the trainer if the script or another trainer names it, as with a data collator."""
    losses = tree_with_classes / "tiny" / "losses.py"
    losses.write_text(f"{losses.read_text()}\n\nclass OtherTrainer: ...\n")
    trainers = TRAINERS.replace("OtherTrainer", "ThirdTrainer")
    (tree_with_classes / "tiny" / "trainers.py").write_text(f"{trainers}{trainer}\n")
    _rewritten(tree_with_classes, affects='["every run"]')
    (tmp_path / "train.py").write_text(SCRIPT.format("FirstTrainer", script, "FirstTrainer"))
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--script", tmp_path / "train.py")
    named = bool(trainer or script)
    assert ("not used by this script: OtherTrainer\n" not in answer.out) == named
    assert ("1 may hit you" in answer.out) == named


def test_an_entry_point_may_declare_its_own_options(run_sentinel, mirrored, tree_with_classes, tmp_path):
    """The program is a module; its section has a class of its own, and its command line may end with arguments."""
    _rewritten(tree_with_classes, affects="[{when: {loss_agg_mode: token-mean, clip: set}}]")
    folder = tmp_path / "ours" / "dapo"
    folder.mkdir(parents=True)
    (folder / "main_dapo.py").write_text(
        "from tiny.config import TinyConfig, OtherConfig, make_config\n\nclass OwnConfig(OtherConfig):\n"
        "    buffer_len: int = 3\n    seed: int = 3\n\nmake_config(OwnConfig)\n"
    )
    (folder / "run.sh").write_text("python -m ours.dapo.main_dapo clip=0.2 buffer_len=4 bufer=5 $@\n")
    config = tree_with_classes / "tiny" / "config.py"
    config.write_text(config.read_text().replace("(Arguments)", "") + "    seed: int = 0\n")
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--script", folder / "run.sh")
    assert answer.status == 1
    assert "because loss_agg_mode=token-mean (the default), clip=0.2\n" in answer.out
    assert [line for line in answer.out.splitlines() if "option" in line] == [
        "$@ (line 1) was assumed to contain no options; give the script's arguments after --",
        f"{folder / 'run.sh'}:1: bufer is not an option of PPO (tiny/config.py) in this version",
    ]
    assert "not known: the defaults that main_dapo.py declares itself: seed\n" in answer.out


def test_arguments_that_the_configuration_class_rejects_come_first(
    run_sentinel, mirrored, tree_with_classes, tmp_path, monkeypatch
):
    """Inherited options are read from the installed package of the base class, which is not imported."""
    packages = tmp_path / "site-packages"
    (packages / "elsewhere-1.2.dist-info").mkdir(parents=True)
    (packages / "elsewhere.py").write_text(
        "raise SystemExit\nclass Arguments:\n    lr: float = 1e-3\n    seed: int = 0\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    for number, text in enumerate(("old_clip: float = 1.0", "clip: float = 1.0")):
        _tagged(tree_with_classes, f"v0.{number}.0", f"class TinyConfig:\n    {text}\n", tmp_path / "home")
    script = tmp_path / "train.py"
    script.write_text(
        "from tiny import TinyConfig\n\nclass Own(TinyConfig):\n    mine: int = 3\n\n"
        "Own(\n    clip=None,\n    lr=1,\n    mine=4,\n    old_clip=2,\n    sead=1,\n)\n"
    )
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--script", script)
    first, second, *others = answer.out.splitlines()
    where = f"TinyConfig of tiny at {answer.out.partition(' of tiny at ')[2][:12]} has no option"
    assert first == f"{script}:10: {where} old_clip and raises a TypeError; v0.1.0 removed it (v0.0.0 still has it)", (
        "and clip, which is similar, is another option"
    )
    assert second == f"{script}:11: {where} sead and raises a TypeError; did you mean seed?"
    assert "0 hit you" in others[0]
    assert "defaults are those of PPO (tiny/config.py, elsewhere.py)" in answer.out
    assert answer.status == 2, "the script does not start with this version, so nothing is said about its run"
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, "--script", script, "--json")
    assert answer.json()["not_examined"][:2] == [first, second]


@pytest.mark.parametrize(("defaults", "removed"), [("", True), ("defaults: [{part@actor: gone}]\n", False)])
def test_an_option_that_moved_to_another_file_is_not_removed(
    run_sentinel, mirrored, tree_with_options, tmp_path, defaults, removed
):
    for number, text in enumerate(("actor:\n  old_clip: 1\n", f"{defaults}actor:\n  clip: 1\n")):
        _tagged(tree_with_options, f"v0.{number}.0", text, tmp_path / "home", "config.yaml")
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.old_clip=1")
    assert ("v0.1.0 removed it (v0.0.0 still has it)" in answer.out + answer.err) == removed


VALIDATED = """\
from dataclasses import dataclass, field

@dataclass
class TinyConfig:
    clip: float | None = None
    loss_agg_mode: str = 'token-mean'
    batch: int = 8
    group: int = 4
    section: 'Section' = field(default_factory=lambda: Section())

    def __post_init__(self):
        if self.batch * self.world_size % self.group != 0:
            raise ValueError(f"batch ({self.batch * self.world_size}) must be divisible by group ({self.group})")

@dataclass
class Section:
    lr: float = 0.1
"""
MODES = """\
def main(config):
    if config.loss_agg_mode == "token-mean":
        print(1)
    elif config.loss_agg_mode == "seq-mean-token-sum":
        print(2)
    else:
        raise ValueError
"""


@pytest.fixture
def validated(tree_with_classes: Path) -> Path:
    """The tree with a configuration class that checks its values, and with a program that checks a mode."""
    (tree_with_classes / "tiny" / "config.py").write_text(VALIDATED)
    (tree_with_classes / "tiny" / "modes.py").write_text(MODES)
    return tree_with_classes


@pytest.mark.slow
def test_values_that_the_version_rejects_are_named(run_sentinel, mirrored, validated, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("from tiny import TinyConfig\nTinyConfig(clip=0.2, group=7)\n")
    audit = ("audit", "tiny", "--repo", validated, "--script", script)
    answer = run_sentinel(*audit)
    first = answer.out.splitlines()[0]
    assert first.startswith(f"{script}:2: TinyConfig of tiny at ")
    message = (
        "raises a ValueError for group=7 with 1 or 2 or 4 or 8 processes: batch (8) must be divisible by group (7)"
    )
    assert first.endswith(message)
    assert "1 hit you" in answer.out
    assert answer.status == 2, "the script does not start, although its settings trigger a bug"
    launched = ("audit", "tiny", "--repo", validated, "--", "torchrun", "--nproc-per-node", "7", str(script))
    assert run_sentinel(*launched).status == 1, "seven processes make it divisible"
    script.write_text("from tiny import TinyConfig\nTinyConfig(clip=0.2, group=2)\n")
    assert run_sentinel(*audit).status == 1

    script.write_text("from tiny import TinyConfig\nTinyConfig(clip=0.2, loss_agg_mode='token-men')\n")
    accepts = "loss_agg_mode=token-men: this option accepts only token-mean or seq-mean-token-sum"
    assert run_sentinel(*audit).out.startswith(f"{script}:2: {accepts} — did you mean 'token-mean'?\n")
    config = tmp_path / "run.yaml"
    config.write_text("clip: 0.2\nloss_agg_mode: token-men\n")
    answer = run_sentinel("audit", "tiny", "--repo", validated, "--config", config)
    assert answer.out.startswith(f"{config}:2: {accepts} — did you mean 'token-mean'?\n")
    config.write_text("clip: 0.2\nloss_agg_mode: tokens\n")
    answer = run_sentinel("audit", "tiny", "--repo", validated, "--config", config)
    assert f"{accepts.replace('token-men', 'tokens')}\n" in answer.out, "a short name resembles several values"


def test_a_configuration_of_a_running_trainer_is_valid(run_sentinel, mirrored, validated, tmp_path):
    """``sentinel watch`` writes values that the class computed, and attributes that are not options."""
    values = {"batch": 8, "clip": 0.2, "computed": 1, "group": 7, "loss_agg_mode": "mine"}
    config = tmp_path / "sentinel-events.config.json"
    audit = ("audit", "tiny", "--repo", validated, "--config", config)
    config.write_text(json.dumps(values))
    answer = run_sentinel(*audit)
    assert answer.status == 2
    mine = "loss_agg_mode=mine: this option accepts only"
    for rejected in ("raises a ValueError for", "computed is not an option", mine):
        assert rejected in answer.out
    values["loss_agg_mode"] = "token-mean"
    config.write_text(json.dumps({RECORDED: ["MyConfig", "TinyConfig"], **values}))
    answer = run_sentinel(*audit)
    assert answer.out.startswith("1 bug (1 recipe) of tiny is known.")
    assert "computed" not in answer.out + answer.err
    assert RECORDED not in answer.out + answer.err
    assert (answer.status, "1 hit you" in answer.out) == (1, True)
    answer = run_sentinel(*audit, "--set", "clippy=1")
    assert "clippy is not an option" in answer.out, "the settings of the command line are checked"


def test_a_misspelled_attribute_raises_no_error(run_sentinel, mirrored, validated, tmp_path):
    """Python sets an attribute of any name. Only the constructor and ``replace`` reject a wrong one."""
    script = tmp_path / "train.py"
    for code, raises in (
        ("config.bach = 16", False),
        ("setattr(config, 'bach', 16)", False),
        ("config = dataclasses.replace(config, bach=16)", True),
    ):
        script.write_text(f"from tiny import TinyConfig\nconfig = TinyConfig(batch=8)\n{code}\n")
        answer = run_sentinel("audit", "tiny", "--repo", validated, "--script", script)
        assert ("has no option bach and raises a TypeError; did you mean batch?" in answer.out) == raises
        silent = (
            "has no option bach; assigning it raises no error and has no effect on the options; did you mean batch?"
        )
        assert (f"{script}:3: TinyConfig of tiny at " in answer.out, silent in answer.out) == (True, not raises)
        assert answer.status == (2 if raises else 0)


def test_a_release_that_has_the_option_in_another_section_does_not_have_it(run_sentinel, mirrored, validated, tmp_path):
    config = VALIDATED.replace("    lr: float = 0.1\n", "    lr: float = 0.1\n    decay: float = 0.1\n")
    _tagged(validated, "v0.1.0", config, tmp_path / "home")
    audit = ("audit", "tiny", "--repo", validated, "--set", "clip=1", "--set")
    assert "decay is not an option of PPO (tiny/config.py) in this version\n" in run_sentinel(*audit, "decay=1").out
    answer = run_sentinel(*audit, "section.decay=1")
    assert "in this version; the newest release, v0.1.0, has it\n" in answer.out


def test_settings_are_not_recommended_if_the_options_are_unknown(run_sentinel, mirrored, validated):
    (validated.parent / "recipes" / "tiny" / "options.toml").unlink()
    _rewritten(validated, affects="[{when: {clip: set}}]", until="{loss_agg_mode: seq-mean-token-sum}")
    answer = run_sentinel("audit", "tiny", "--repo", validated, "--set", "clip=1")
    assert (answer.status, "until it is fixed" in answer.out) == (1, False)


def test_audit_decides_a_commit_only_once(run_sentinel, mirrored, tiny):
    commit = ("audit", "tiny", "--ref", f"git:{tiny.buggy}")
    first, second = run_sentinel(*commit), run_sentinel(*commit)
    assert (first.status, first.out) == (second.status, second.out) == (1, first.out)
    assert "1 of 1: " in first.err
    assert "1 verdict of tiny at " in second.err
    assert "1 of 1: " not in second.err


def _tagged(tree: Path, tag: str, text: str, home: Path, name: str = "config.py") -> None:
    """Add a release to the mirror."""
    config = tree / "tiny" / name
    before = config.read_text()
    config.write_text(text)
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (
        ("checkout", "--quiet", "--detach"),
        ("add", f"tiny/{name}"),
        (*identity, "commit", "--quiet", "-m", tag),
        ("push", "--quiet", str(home / "mirrors" / "tiny.git"), f"HEAD:refs/tags/{tag}"),
        ("reset", "--quiet", "HEAD~"),
    ):
        subprocess.run(["git", "-C", str(tree), *words], check=True)
    config.write_text(before)


def test_other_classes_that_a_parser_fills_have_their_own_options(run_sentinel, mirrored, tree_with_classes, tmp_path):
    script = tmp_path / "train.py"
    config = tree_with_classes / "tiny" / "config.py"
    config.write_text(config.read_text().replace("(Arguments)", "") + "class ModelConfig:\n    model: str = ''\n")
    script.write_text(
        "from tiny.config import TinyConfig, ModelConfig\nclass Own:\n    size: int = 3\n"
        "TrlParser((Own, TinyConfig, ModelConfig))\n"
    )
    audit = ("audit", "tiny", "--repo", tree_with_classes, "--script", script, "--", "--clip", "0.2", "--sizes", "4")
    answer = run_sentinel(*audit, "--size", "4", "--model", "m")
    assert ": 1 hit you" in answer.out
    assert [line for line in answer.out.splitlines() if "option" in line] == [
        "sizes is not an option of PPO (tiny/config.py) in this version; did you mean size?"
    ]


FILLED = (
    "from tiny.config import TinyConfig, ModelConfig\n\nclass Own:\n    size: int = 3\n\n"
    "parser = TrlParser((Own, TinyConfig, ModelConfig))\nresult = parser.{}\n"
)


@pytest.fixture
def filled(tree_with_classes: Path) -> Path:
    """The tree with two classes that a parser fills, whose options are all known."""
    config = tree_with_classes / "tiny" / "config.py"
    config.write_text(config.read_text().replace("(Arguments)", "") + "class ModelConfig:\n    lora_r: int = 1\n")
    return tree_with_classes


@pytest.mark.parametrize(
    ("call", "words", "raises"),
    [
        ("parse_args_and_config()", "--config run.yaml", ["run.yaml:2: {} clipp,{}; did you mean clip?"]),
        ("parse_args_and_config()", "--sixe 4 --clip 0.2", ["{} sixe,{}; did you mean size?"]),
        ("parse_args_and_config()", "--siz 4 --clip 0.2", []),  # argparse accepts abbreviations
        ("parse_args_and_config(fail_with_unknown_args=False)", "--config run.yaml", []),
        (
            "parse_args_and_config(fail_with_unknown_args=False)",
            "--sixe 4 --clip 0.2",
            ["{} sixe,{}; did you mean size?"],
        ),
        ("parse_args_and_config(return_remaining_strings=True)", "--config run.yaml --sixe 4", []),
        ("parse_args_and_config(**more)", "--config run.yaml --sixe 4", []),
        ("parse_args_into_dataclasses()", "--sixe 4 --clip 0.2", ["{} sixe,{}; did you mean size?"]),
        ("parse_known_args()", "--sixe 4 --clip 0.2", []),
    ],
)
def test_an_option_that_the_scripts_parser_rejects_is_an_error(
    run_sentinel, mirrored, filled, tmp_path, monkeypatch, call, words, raises
):
    """Options of the parser's other classes, and the parser's own keys, are valid."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("clip: 0.2\nclipp: 0.1\nlora_r: 4\nsize: 2\nenv: {A: b}\n")
    Path("train.py").write_text(FILLED.format(call))
    answer = run_sentinel("audit", "tiny", "--repo", filled, "--script", "train.py", "--", *words.split())
    because = "which none of its classes (TinyConfig, Own, ModelConfig) has"
    expected = [line.format("TrlParser raises an error for", f" {because}") for line in raises]
    assert answer.out.splitlines()[: len(raises)] == expected
    assert answer.out.count("raises an error") == len(raises)
    assert (answer.status == 2) == bool(raises)
    assert "env" not in answer.out
    assert "lora_r" not in answer.out


def test_a_parser_that_the_script_defines_may_accept_unknown_options(run_sentinel, mirrored, filled, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"class TrlParser(Base): ...\n\n{FILLED.format('parse_args_and_config()')}")
    answer = run_sentinel("audit", "tiny", "--repo", filled, "--script", script, "--", "--clip", "1", "--sixe", "4")
    assert (answer.status, "raises an error" in answer.out) == (1, False)


def test_a_file_without_a_script_may_have_options_of_other_classes(run_sentinel, mirrored, filled, tmp_path):
    declared = filled.parent / "recipes" / "tiny" / "options.toml"
    declared.write_text(f'{declared.read_text()}\n[[also]]\nfile = "tiny/config.py"\nclass = "ModelConfig"\n')
    config = tmp_path / "run.yaml"
    config.write_text("clip: 0.2\nlora_r: 4\ndata_size: 3\nloss_agg_mod: x\n")
    audit = ("audit", "tiny", "--repo", filled)
    lines = [line for line in run_sentinel(*audit, "--config", config).out.splitlines() if line.startswith(str(config))]
    assert lines == [
        f"{config}:3: data_size is not an option of PPO (tiny/config.py) in this version; a class of your script may "
        "have it: name the script with --script",
        f"{config}:4: loss_agg_mod is not an option of PPO (tiny/config.py) in this version; did you mean "
        "loss_agg_mode?",
    ]
    script = tmp_path / "train.py"
    script.write_text("from tiny.config import TinyConfig\nTinyConfig(clip=1, lora_r=4)\n")
    assert "has no option lora_r and raises a TypeError" in run_sentinel(*audit, "--script", script).out


OTHERS = """\
from tiny.config import OtherConfig, SmallConfig, TinyConfig

class BaseTrainer: ...
class FirstTrainer(BaseTrainer):
    def __init__(self, args: TinyConfig | None = None): ...
class OtherTrainer(BaseTrainer):
    def __init__(self, args: OtherConfig): ...
class SmallTrainer(FirstTrainer):
    def __init__(self, args: SmallConfig): ...
class WrapTrainer(OtherTrainer):
    def __init__(self, *args, **kwargs): ...
class UntypedTrainer:
    def __init__(self, args): ...
"""


@pytest.mark.parametrize(
    ("trainer", "settings", "concerns"),
    [
        ("FirstTrainer", ["clip=0.2", "loss_agg_mode=token-mean"], True),
        ("FirstTrainer", ["clip=0.2"], True),  # every trainer has this option
        ("FirstTrainer", ["clip=0.2", "margin=1"], False),
        ("FirstTrainer", ["clip=0.2", "margin=1", "loss_agg_mode=token-mean"], True),  # no trainer has both
        ("FirstTrainer", ["clip=0.2", "kind=sigmoid"], False),  # this value is only valid for the other trainer
        ("BaseTrainer", ["clip=0.2", "margin=1"], True),
        ("OtherTrainer", ["clip=0.2", "loss_agg_mode=token-mean"], False),
        ("WrapTrainer", ["clip=0.2", "loss_agg_mode=token-mean"], False),
        ("SmallTrainer", ["clip=0.2", "loss_agg_mode=token-mean"], True),  # its class has all options of TinyConfig
        ("UntypedTrainer", ["clip=0.2", "loss_agg_mode=token-mean"], True),
    ],
)
def test_settings_that_only_one_configuration_class_has_rule_out_other_trainers(
    run_sentinel, mirrored, tree_with_classes, trainer, settings, concerns
):
    (tree_with_classes / "tiny" / "config.py").write_text(
        "from typing import Literal\n\nclass TinyConfig:\n    clip: float | None = None\n"
        "    loss_agg_mode: str = 'token-mean'\n    kind: Literal['mean', 'sum'] = 'mean'\n\n"
        "class SmallConfig(TinyConfig): ...\n\nclass OtherConfig:\n    clip: float | None = None\n"
        "    margin: float = 0.5\n    kind: Literal['sigmoid', 'hinge'] = 'sigmoid'\n"
    )
    (tree_with_classes / "tiny" / "trainers.py").write_text(OTHERS)
    declared = tree_with_classes.parent / "recipes" / "tiny" / "options.toml"
    text = declared.read_text()
    declared.write_text(text + text.replace("PPO", "DPO").replace("TinyConfig", "OtherConfig"))
    _rewritten(tree_with_classes, affects=f"[{{when: {{clip: set}}, trainer: {trainer}}}]")
    words = [word for setting in settings for word in ("--set", setting)]
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_classes, *words)
    assert (": 0 hit you, 0 may hit you, 1 do not" not in answer.out) == concerns
    named = f"not made with {'OtherConfig' if 'margin=1' in settings or 'kind=sigmoid' in settings else 'TinyConfig'}: "
    assert (f"{named}{trainer}\n" in answer.out) != concerns


def test_a_misspelled_section_is_named_with_the_nearest_one(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "config.yaml").write_text(
        "actor: {loss_agg_mode: token-mean, clip: null, rollout_correction: {enable: false, level: token}}\n"
    )
    _rewritten(tree_with_options, affects="[{when: {actor.rollout_correction.level: sequence}}]")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=1", "--set")
    answer = run_sentinel(*audit, "actor.rolout_correction.x=1")
    assert f"actor.rolout_correction {UNKNOWN}; did you mean actor.rollout_correction?\n" in answer.out
    assert answer.status == 2, "the section's members are not known, because the user may have set them"
    answer = run_sentinel(*audit, "aktor.rollout_correction.level=token")
    assert f"aktor {UNKNOWN}; did you mean actor?\n" in answer.out


@pytest.mark.parametrize("setting", ["actor.clip=much", "actor.loss_agg_mode=token-men", "actor.clip=0.2"])
def test_a_value_that_the_version_does_not_accept_is_an_error(run_sentinel, mirrored, tree_with_options, setting):
    """The value is an error even if no bug depends on the option."""
    (tree_with_options / "tiny" / "config.yaml").write_text("actor: {loss_agg_mode: token-mean, clip: 0.1, lr: 1}\n")
    (tree_with_options / "tiny" / "modes.py").write_text(MODES)
    _rewritten(tree_with_options, affects="[{when: {actor.lr: '> 0'}}]")
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", setting)
    accepted = setting == "actor.clip=0.2"
    assert answer.out.startswith(f"{setting}: this option accepts only ") != accepted
    assert ": 1 hit you" in answer.out
    assert answer.status == (1 if accepted else 2)


def test_a_program_of_the_framework_is_read(run_sentinel, mirrored, tree_with_classes, monkeypatch):
    """The command names it by its path in the repository. The program determines the trainer and the option classes."""
    (tree_with_classes / "tiny" / "trainers.py").write_text(TRAINERS)
    (tree_with_classes / "tiny" / "run.py").write_text(
        "from tiny.config import TinyConfig, Parser\nfrom tiny.trainers import FirstTrainer\n"
        "def main():\n    types = (TinyConfig,)\n    return FirstTrainer(Parser(types))\n"
    )
    _rewritten(tree_with_classes, affects="[{when: {clip: set}, trainer: OtherTrainer}]")
    opened: list[Ref] = []
    monkeypatch.setattr(
        audit, "opener", lambda *_: lambda target, ref, _: opened.append(ref) or open_checkout(target, ref)
    )
    answer = run_sentinel(
        "audit", "tiny", "--repo", tree_with_classes, "--", *["python", "tiny/run.py", "--clip", "0.2"]
    )
    assert "not used by this script: OtherTrainer\n" in answer.out
    assert [ref.kind for ref in opened].count("path") == 1, "the copy is opened once"


@pytest.mark.slow
def test_audit_decides_a_release_only_once(run_sentinel, mirrored, tiny, tiny_catalog, tmp_path, monkeypatch):
    """A second audit of a release reuses the verdicts if recipe, adapter and code are the same."""

    def opened(target: Any, ref: Ref, pull: Any, **_: Any) -> Any:
        checkout = open_checkout(target, Ref("git", tiny.buggy) if ref.kind == "pypi" else ref, pull=pull)
        return replace(checkout, version="1.2.3", commit=None)

    monkeypatch.setattr(audit, "opener", lambda *_: opened)
    folder = tmp_path / "recipes" / "tiny"
    folder.mkdir(parents=True)
    (folder / "TINY-MEAN.yaml").write_text(tiny.recipe.read_text())
    catalog = replace(tiny_catalog, recipe_folders=(folder.parent,))
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
    release, loaded = ("audit", "tiny", "--ref", "pypi:latest"), "torch" in sys.modules
    first, second = run_sentinel(*release), run_sentinel(*release)
    assert (first.status, first.out) == (second.status, second.out) == (1, first.out)
    assert ("1 of 1: TINY-MEAN" in first.err, "1 of 1: TINY-MEAN" in second.err) == (True, False)
    assert "1 verdict of tiny 1.2.3 from an earlier run" in second.err
    assert "1 of 1: TINY-MEAN" in run_sentinel(*release, "--sarif", "x.sarif").err, "SARIF needs what was observed"
    (folder / "TINY-MEAN.yaml").write_text(tiny.recipe.read_text().replace("100.0", "101.0"))
    assert "1 of 1: TINY-MEAN" in run_sentinel(*release).err
    assert ("torch" in sys.modules) == loaded  # only a worker needs it


def test_a_bug_whose_code_raises_is_tried_again_if_the_packages_changed(
    run_sentinel, mirrored, tiny, tmp_path, monkeypatch
):
    folder, packages = tree(tiny, tiny.buggy, tmp_path / "tree"), tmp_path / "site-packages"
    losses = folder / "tiny" / "losses.py"
    losses.write_text(re.sub(r"(def agg_loss\(.*\n)", r"\1    raise OSError(7)\n", losses.read_text()))

    def opened(target: Any, ref: Ref, pull: Any, **_: Any) -> Any:
        return replace(open_checkout(target, Ref("path", str(folder))), version="1.2.3", commit=None)

    monkeypatch.setattr(audit, "opener", lambda *_: opened)
    (packages / "first-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(packages))
    errors = [run_sentinel("audit", "tiny", "--ref", "pypi:latest").err for _ in range(2)]
    assert all("the boundary raised OSError: 7" in error for error in errors)
    assert ["1 of 1: TINY-MEAN" in error for error in errors] == [True, False]
    (packages / "second-1.0.dist-info").mkdir()
    assert "1 of 1: TINY-MEAN" in run_sentinel("audit", "tiny", "--ref", "pypi:latest").err


@pytest.mark.slow
def test_audit_exits_with_2_when_the_tree_changes_signal_code(run_sentinel, mirrored, tiny, tmp_path):
    folder = tree(tiny, tiny.fixed, tmp_path / "fixed")
    (folder / "README").write_text("no code")
    assert run_sentinel("audit", "tiny", "--repo", folder).status == 0
    losses = folder / "tiny" / "losses.py"
    losses.write_text(losses.read_text() + "\n\ndef kl_penalty(a, b):\n    return b - a\n")
    advice = f"check the changes with `pytest --sentinel-target=tiny --sentinel-repo={folder}`"
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for committed in (False, True):
        if committed:
            subprocess.run(["git", "-C", str(folder), *identity, "commit", "-qam", "a change"], check=True)
        answer = run_sentinel("audit", "tiny", "--repo", folder)
        assert answer.out.splitlines()[0] == (
            "this tree changes 1 function of signal code (kl_penalty); audit finds only known bugs, so " + advice
        )
        assert answer.status == 2
    shutil.rmtree(folder / ".git")
    answer = run_sentinel("audit", "tiny", "--repo", folder)
    assert (answer.status, answer.out.startswith("not known whether this tree changes signal code: ")) == (2, True)


@pytest.mark.slow
def test_a_moved_function_is_decided_at_its_new_path(run_sentinel, mirrored, tiny, tmp_path):
    folder = tree(tiny, tiny.fixed, tmp_path / "fixed")
    (folder / "tiny" / "losses.py").rename(folder / "tiny" / "moved.py")
    answer = run_sentinel("audit", "tiny", "--repo", folder)
    assert ("0 bugs (0 recipes) are in tiny at" in answer.out, "not decided" in answer.out) == (True, False)


def test_a_launcher_without_a_program_is_not_examined(run_sentinel, mirrored, tree_with_options, tmp_path):
    (tmp_path / "train.py").write_text("print('no configuration')\n")
    command = ("accelerate", "launch", "--config_file", "zero3.yaml", str(tmp_path / "train.py"))
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--", *command)
    assert (answer.status, answer.out) == (2, "")
    assert "nothing was examined: " in answer.err


@pytest.mark.slow
def test_only_existing_settings_are_recommended(run_sentinel, mirrored, tree_with_options):
    audit = ("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    reached = '[{when: {actor.clip: "> 0.1"}}]'
    for until in ("{actor.loss_mode: x}", "{actor.clip: null, actor.loss_mode: x}"):
        _rewritten(tree_with_options, affects=reached, until=until)
        answer = run_sentinel(*audit)
        assert (answer.status, "until it is fixed" in answer.out) == (1, False)
        assert run_sentinel(*audit, "--json").json()["bugs"][0]["until"] == {}
        assert run_sentinel(*audit[:-2], "--json").json()["bugs"][0]["until"] == {}
    _rewritten(tree_with_options, affects=reached, until="{actor.clip: null}")
    assert "    until it is fixed, set actor.clip=null\n" in run_sentinel(*audit).out


CALLED = """\
recipe_version: 1
bug_id: TINY-GONE-00
title: a mean of a class
target: tiny
contract: call
boundary: tiny.losses.Gone.mean
scenario: {arguments: {value: 1}}
expected_unpatched: {returned: 1}
expected_fixed: {returned: 2}
affects: [{when: {actor.clip: set}}]
"""


@pytest.mark.slow
def test_bugs_whose_code_is_absent_are_not_undecided(run_sentinel, mirrored, tree_with_options):
    first = tree_with_options.parent / "recipes" / "tiny" / "TINY-MEAN.yaml"
    for number in range(14):
        gone = first.read_text().replace("TINY-MEAN", f"TINY-GONE-{number:02}").replace("boundary: ", "boundary: ")
        gone += "requires: tiny.losses.never\n"
        first.with_name(f"TINY-GONE-{number:02}.yaml").write_text(gone)
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options)
    names = ", ".join(f"TINY-GONE-{number:02}" for number in range(12))
    absent = f"not in this version: the code of 14 bugs (14 recipes): {names} and 2 more\n"
    assert (absent in answer.out, "not decided" in answer.out) == (True, False)
    first.with_name("TINY-GONE-00.yaml").write_text(CALLED)  # no adapter binds this function
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2")
    assert ": 0 hit you, 1 may hit you, 0 do not, 14 not in this version.\n" in answer.out
    assert (absent in answer.out, "not decided" in answer.out) == (True, False)
    first.unlink()
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options)
    assert (answer.status, answer.out) == (2, "")
    assert "nothing was examined: no known bug could be decided: " in answer.err


BOMB = "m0: &m0 {a: 1}\n" + "".join(
    f"m{number}: &m{number} {{<<: [{','.join([f'*m{number - 1}'] * 9)}]}}\n" for number in range(1, 10)
)


@pytest.mark.parametrize(
    ("option", "name", "text", "says"),
    [
        ("--config", "bomb.yaml", BOMB, "bomb.yaml:6:"),
        ("--script", "bomb.sh", "A=xxxxxxxx\n" + "A=$A$A\n" * 40 + "python x.py a=$A\n", "have more than 2 MiB"),
        ("--script", "set.sh", f"python x.py 'a={{{BOMB}}}'\n", ""),
    ],
)
def test_a_file_that_would_exhaust_memory_is_rejected(
    run_sentinel, mirrored, tree_with_options, tmp_path, option, name, text, says
):
    (tmp_path / name).write_text(text)
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, option, tmp_path / name)
    assert answer.status == 2
    assert says in answer.err


@pytest.mark.slow
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
    assert "not known: settings that only a shell can compute: actor.other" in answer.json()["not_examined"]
    script.write_text(script.read_text().replace("actor.other=$(date)", "gone.part.a=1 gone.part.b=2"))
    (unknown,) = [line for line in run_sentinel(*audit, "--script", script).json()["not_examined"] if "gone" in line]
    assert unknown.startswith(f"{script}:2: gone is not an option of ")
    script.write_text(script.read_text().replace("token-mean", "$(cat mode)"))
    assert run_sentinel(*audit, "--script", script).json()["bugs"][0]["reach"] == "not known"
    assert "no settings follow the program" in run_sentinel(*audit, "--", "python", "train.py").err
    assert run_sentinel(*audit, "--", "python", "train.py").status == 2


def test_a_configuration_with_defaults_is_composed_first(run_sentinel, mirrored, tree_with_options, tmp_path):
    (tmp_path / "mine.yaml").write_text("actor: {clip: 0.2, other: '???'}\n")
    config = tmp_path / "run.yaml"
    config.write_text("hydra: {searchpath: ['pkg://tiny', 'pkg://yours']}\ndefaults: [config, mine, _self_]\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config)
    answer = run_sentinel(*audit)
    assert answer.status == 1
    assert "because actor.loss_agg_mode=token-mean, actor.clip=0.2\n" in answer.out
    assert "run.yaml: hydra.searchpath: pkg://yours is left out" in answer.out
    assert "defaults list" not in answer.out
    over = run_sentinel(*audit, "--json", "--set", "actor.clip=null").json()["bugs"][0]
    assert (over["reach"], over["because"]) == ("not reached", "actor.clip=null")


def test_settings_from_a_missing_file_count_as_unknown(run_sentinel, mirrored, tree_with_options, tmp_path):
    """The missing file may set any option that the configuration leaves out."""
    config = tmp_path / "run.yaml"
    audit = ("audit", "tiny", "--repo", tree_with_options, "--config", config)
    config.write_text("defaults: [config, your, actor: dq, _self_]\nactor: {clip: 0.3}\n")
    answer = run_sentinel(*audit)
    assert (answer.status, "0 hit you, 1 may hit you" in answer.out) == (2, True)
    assert "run.yaml: these entries of its defaults list were not read: your, actor: dq; give" in answer.out
    assert "not decided: TINY-MEAN, because these settings were not read: actor.loss_agg_mode" in answer.err
    config.write_text("defaults: 3\nactor: {clip: 0.2}\n")
    answer = run_sentinel(*audit)
    assert (answer.status, "its defaults list were not read: 3; give" in answer.out) == (2, True)


@pytest.mark.slow
def test_a_configuration_named_by_the_command_is_found_in_the_copy(run_sentinel, mirrored, tree_with_options):
    """If the file is neither there nor in the current folder, it may set any option."""
    command = "python -m tiny.main --config-path=config --config-name={} actor.clip=0.2"
    audit = ("audit", "tiny", "--repo", tree_with_options, "--")
    answer = run_sentinel(*audit, *command.format("config").split())
    because = "because actor.loss_agg_mode=token-mean (the default), actor.clip=0.2\n"
    assert (answer.status, because in answer.out) == (1, True)
    answer = run_sentinel(*audit, *command.format("gone").split())
    assert answer.status == 2
    words = "--config_path config, --config_name gone"
    assert f"not read: the configuration of {words}, because there is no such file here\n" in answer.out
    (tree_with_options / "tiny" / "config.yaml").write_text("actor: {clip: null}\n")  # the value in the copy's file
    (tree_with_options / "tiny" / "other.yaml").write_text("actor: {new: 1}\nreward: {fn: a.b}\n")
    answer = run_sentinel(*audit, *command.format("other").split())
    assert "not an option" not in answer.out
    assert "reward.fn" not in answer.out


@pytest.mark.slow
def test_choosing_other_files_makes_defaults_unknown(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "trainer.yaml").write_text("defaults: [engine: dp, actor@a.b: x, _self_]\n")
    audit = ("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2", "--set", "engine=mine")
    answer = run_sentinel(*audit)
    assert answer.status == 2
    assert "not read: other files of the configuration, which engine=mine chooses; give the composed" in answer.out
    assert "not decided: TINY-MEAN, because these settings were not read: actor.loss_agg_mode" in answer.err
    assert run_sentinel(*audit, "--set", "actor.loss_agg_mode=token-mean").status == 1


def test_reward_functions_and_data_are_listed_as_not_examined(run_sentinel, mirrored, tree_with_options):
    settings = ("--set", "actor.clip=0.2", "--set", "data.train_files=[a.parquet]", "--set", "reward.fn=mine.score")
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, *settings)
    assert (
        "not examined (your reward functions and data): data.train_files=a.parquet, reward.fn=mine.score\n"
        in answer.out
    )


def test_audit_prints_the_values_that_would_trigger_an_undecided_bug(run_sentinel, mirrored, tree_with_options):
    (tree_with_options / "tiny" / "config.yaml").unlink()
    answer = run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip=0.2", "--json").json()
    assert answer["defaults"] is None
    assert answer["bugs"][0]["because"] == "it depends on actor.loss_agg_mode=token-mean"
    assert run_sentinel("audit", "tiny", "--repo", tree_with_options, "--set", "actor.clip").status == 2


def test_audit_uses_main_when_the_framework_is_not_installed(
    run_sentinel, mirrored, tiny, tiny_catalog, monkeypatch, tmp_path
):
    """The target has no releases; otherwise the newest release would be read."""
    (tmp_path / "recipes" / "tiny").mkdir(parents=True)
    recipe = re.sub(r"^.*pypi:1.2.3.*\n", "", tiny.recipe.read_text(), flags=re.MULTILINE)
    (tmp_path / "recipes" / "tiny" / "TINY-MEAN.yaml").write_text(recipe)
    adapter = tiny_catalog.adapters["tiny"]
    adapters = {"tiny": replace(adapter, target=replace(adapter.target, pypi=None))}
    catalog = replace(tiny_catalog, adapters=adapters, recipe_folders=(tmp_path / "recipes",))
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
    answer = run_sentinel("audit", "tiny")
    assert answer.status == 0
    assert (
        f"tiny is not installed here, so tiny at {tiny.fixed[:12]} is audited; name your copy with --repo" in answer.err
    )
    assert answer.out.startswith(f"0 bugs (0 recipes) are in tiny at {tiny.fixed[:12]}.")
    answer = run_sentinel("audit", "tiny", "--ref", f"git:{tiny.buggy}")
    assert (answer.status, "not installed" in answer.err) == (1, False)
    assert answer.out.startswith(f"1 bug (1 recipe) is in tiny at {tiny.buggy[:12]}.")


def test_audit_reports_invalid_input(run_sentinel, mirrored, tiny, tmp_path):
    assert run_sentinel("audit", "nothing").status == 2
    answer = run_sentinel("audit", "tiny", "--python", sys.executable)
    assert answer.status == 2
    assert "nothing was examined: no known bug could be decided: tiny is not installed for" in answer.err
    assert run_sentinel("audit", "tiny", "--repo", tmp_path, "--ref", "git:main").status == 2
    assert run_sentinel("audit", "tiny", "--repo", tmp_path, "--python", "python3").status == 2
    answer = run_sentinel("audit", "tiny", "--repo", tmp_path / "nowhere")
    assert answer.status == 2
    assert "nowhere: no such folder; name a working tree of tiny" in answer.err
