"""Convert a configuration to settings, and determine the values that a run uses."""

import pytest

from sentinel.errors import SentinelError
from sentinel.tools.audit.effective import Setting, Training, training
from sentinel.tools.audit.files import read_mapping
from sentinel.tools.audit.options import Option, Options

OPTIONS = Options(
    "PPO",
    "config.py",
    {
        "actor.norm": Option("null"),
        "actor.norm.level": Option("batch"),
        "actor.clip.low": Option("0.2"),
        "rollout.n": Option("1"),
        "actor.n": Option("${rollout.n}"),
        "actor.m": Option("${oc.select:rollout.m,4}"),
        "actor.k": Option("${.n}"),
        "computed": Option(None),
    },
)


def test_a_given_setting_overrides_the_default():
    run = Training({"rollout.n": "8"}, OPTIONS)
    assert run.setting("rollout.n") == Setting("rollout.n", "8")
    assert run.setting("actor.clip.low") == Setting("actor.clip.low", "0.2", default=True)
    assert run.setting("computed") == Setting("computed", None, default=True)
    assert run.setting("actor.clip") == Setting("actor.clip", "{…}", default=True)
    assert run.setting("no.such") is None
    assert Training({}).setting("rollout.n") is None


def test_a_null_section_has_no_members_until_one_is_set():
    silent = Setting("actor.norm", "null", default=True)
    assert Training({}, OPTIONS).setting("actor.norm.level") == silent
    assert Training({"actor.clip.low": "1"}, OPTIONS).setting("actor.norm.level") == silent
    written = Training({"actor.norm.eps": "1"}, OPTIONS)
    assert written.setting("actor.norm.level") == Setting("actor.norm.level", "batch", default=True)
    assert written.setting("actor.norm") == Setting("actor.norm", "{…}")
    assert Training({"actor.norm": "null"}, OPTIONS).setting("actor.norm.level") == Setting("actor.norm", "null")
    assert Training({"actor": ""}, OPTIONS).setting("actor.clip.low") == Setting("actor.clip.low", "0.2", default=True)


def test_an_abbreviated_name_may_set_the_option():
    options = Options(
        "GRPO", "config.py", {"num_iterations": Option("1"), "beta": Option("0.0")}, open={"": "TrainingArguments"}
    )
    run = training({"num": "4", "output_dir": "x"}, [options])
    assert run.setting("num_iterations") == Setting("num_iterations", None, default=True)
    assert run.setting("beta") == Setting("beta", "0.0", default=True)


def test_references_to_other_settings_are_followed():
    assert Training({}, OPTIONS).setting("actor.n") == Setting("actor.n", "1", default=True)
    assert Training({"rollout.n": "8"}, OPTIONS).setting("actor.n") == Setting("actor.n", "8", default=False)
    assert Training({}, OPTIONS).setting("actor.m") == Setting("actor.m", "4", default=True)
    assert Training({}, OPTIONS).setting("actor.k") == Setting("actor.k", None, default=True)
    around = Training({"a": "${b}", "b": "${a}"})
    assert around.setting("a") == Setting("a", None)


def test_the_trainer_with_the_most_known_settings_is_used():
    other = Options("SFT", "sft.py", {"packing": Option("true"), "rollout.n": Option("2")})
    assert training({"packing": "true"}, [OPTIONS, other]).options is other
    assert training({}, [OPTIONS, other]).options is OPTIONS
    assert training({"rollout.n": "1"}, [OPTIONS, other]).options is OPTIONS
    assert training({"rollout.n": "1"}, []).options is None


def test_a_file_that_is_not_a_configuration_is_reported(tmp_path):
    file = tmp_path / "run.yaml"
    for text in ("- 1", "a: [", "just words"):
        file.write_text(text)
        with pytest.raises(SentinelError, match=r"run\.yaml"):
            read_mapping(file)
    with pytest.raises(SentinelError, match="No such file"):
        read_mapping(tmp_path / "gone.yaml")
    file = tmp_path / "run.toml"
    file.write_text("a: [")
    with pytest.raises(SentinelError, match=r"run\.toml:1:2: not TOML"):
        read_mapping(file)
    file.write_text("[a]\nb = true\n")
    assert read_mapping(file) == {"a": {"b": True}}


def test_settings_that_name_reward_functions_and_data_are_listed():
    named = {"data.train_files": "a.parquet,b.parquet", "rm_type": "deepscaler", "reward.remote_url": "reward.py",
             "custom_reward_function.path": "mine.py", "rewards.math.worker_cls": "a.b.Worker",
             "train_dataset.path": "/x", "dataset_name": "a/b", "eval_prompt_data": "aime,x.jsonl"}  # fmt: skip
    others = {"data.train_batch_size": "8", "reward.clip_range": "1", "actor.path": "a/b", "data.shuffle": "true",
              "dataset_num_proc": "4", "custom_reward_function.name": "null", "reward.kl.type": "k1"}  # fmt: skip
    assert Training({**named, **others}).references == named


def test_settings_that_other_settings_refer_to_need_not_be_options():
    run = training(
        {"size": "4", "mine.a.b": "1", "rollout.n": "${size}", "actor.clip.low": "${mine.a}", "c": "1"}, [OPTIONS]
    )
    assert (run.unknown(), run.nested) == (["c"], {})
    run = training({"actor.clip.hi": "1", "rollout.n": "${actor.clip.hi}", "actor.clip.max": "1"}, [OPTIONS])
    assert run.unknown() == ["actor.clip.max"]
    assert Training({"dataset_name": "${mine.name}"}).references == {}, "the setting that it refers to is named"
