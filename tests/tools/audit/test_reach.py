"""A configuration reaches a bug by the settings that the recipe names, and by defaults."""

from dataclasses import replace
from typing import Any

import pytest

from sentinel.recipes.affects import read_affected
from sentinel.tools.audit.effective import Training, training
from sentinel.tools.audit.files import flattened
from sentinel.tools.audit.options import Option, Options
from sentinel.tools.audit.reach import reach

PPO = Options("PPO", "ppo.yaml", {"actor.loss": Option("ppo"), "actor.clip": Option("null"), "n": Option()})
SFT = Options("SFT", "sft.yaml", {"data.packing": Option("true")})


def answer(when: dict[str, Any], given: Any, where: str = "") -> tuple[str, str]:
    found = reach([read_affected({"when": when, "where": where})], training(flattened(given), [PPO, SFT]))
    return found.answer, found.because


GONE = " (this version has no such option)"


@pytest.mark.parametrize(
    ("when", "given", "expected"),
    [
        ({"actor.loss": "sapo"}, {"actor": {"loss": "sapo"}}, ("reached", "actor.loss=sapo")),
        ({"actor.loss": ["ppo", "sapo"]}, {}, ("reached", "actor.loss=ppo (the default)")),
        ({"actor.loss": "sapo"}, {}, ("not reached", "actor.loss=ppo (the default)")),
        ({"actor.clip": "set", "actor.loss": "ppo"}, {"actor": {"loss": "ppo"}}, ("not reached", "actor.clip=null")),
        ({"n": "> 1"}, {}, ("not known", "it depends on n > 1")),
        ({"n": "> 1", "actor.loss": "sapo"}, {}, ("not reached", "actor.loss=ppo (the default)")),
        ({"n": "> 1"}, {"n": 8}, ("reached", "n=8")),
        ({"n": "< m"}, {"n": 1, "m": "1e1"}, ("reached", "n=1, m=1e1")),
        ({"n": "< m"}, {"n": 10, "m": 10}, ("not reached", "n=10, m=10")),
        ({"n": "< m"}, {"n": 10}, ("not known", "it depends on n < m")),
        ({"never.heard.of": "unset"}, {}, ("reached", "never.heard.of does not exist in this version")),
        ({"never.heard.of": True}, {}, ("not known", f"it depends on never.heard.of=true{GONE}")),
        ({"data.packing": True}, {"actor": {"clip": 1}}, ("not reached", "data.packing is an option of SFT")),
        ({"data.packing": True}, {"data": {"packing": True}}, ("reached", "data.packing=true")),
    ],
)
def test_an_entry_is_reached_when_its_settings_match(when, given, expected):
    found = answer(when, given)
    assert (found[0], found[1].removesuffix(" (the default)")) == (
        expected[0],
        expected[1].removesuffix(" (the default)"),
    )
    assert ("(the default)" in found[1]) == ("(the default)" in expected[1] or expected[1] == "actor.clip=null")


def test_one_matching_entry_suffices_and_prose_decides_nothing():
    entries = [read_affected({"when": {"a": 1}}), read_affected({"when": {"b": 1}, "where": "the moon is full"})]
    assert reach(entries, Training({"a": "2", "b": "1"})).where == "the moon is full"
    assert reach(entries, Training({"a": "2", "b": "2"})).answer == "not reached"
    assert reach([*entries, read_affected("everybody")], Training({"a": "2", "b": "2"})).answer == "not known"
    assert reach([], Training({})).answer == "not known"


def test_a_method_of_a_trainer_that_the_script_does_not_use_is_not_reached():
    affects = [read_affected("every run"), read_affected({"when": {"actor.loss": "ppo"}, "trainer": "SecondTrainer"})]
    run = training(flattened({"actor": {"loss": "ppo"}}), [PPO, SFT])
    assert reach(affects, run, "a.b.SecondTrainer.step").where == "the trainer is SecondTrainer"
    run = replace(run, trainers=("FirstTrainer", "Trainer"))
    found = reach(affects, run, "a.b.SecondTrainer.step")
    assert (found.answer, found.unused) == ("not reached", "SecondTrainer")
    assert reach(affects[1:], run, "a.b.Collator.__call__").unused == "SecondTrainer"
    for boundary in ("a.b.Trainer.step", "a.b.Collator.__call__", "a.b.function"):
        assert reach(affects[:1], run, boundary).answer == "not known"
    run = replace(run, trainers=("SecondTrainer",))
    assert (reach(affects, run, "a.b.SecondTrainer.step").answer, run.trainers) == ("reached", ("SecondTrainer",))
