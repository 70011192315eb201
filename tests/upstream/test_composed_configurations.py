"""verl's and SkyRL's own configurations, composed as their trainers do; needs mirrors.

The example configurations of ROLL and AReaL are outside their packages, so checkouts do not have them.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from shipped import MIRRORS

from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.composing import composed
from sentinel.tools.audit.declared import options_of, search_path
from sentinel.tools.audit.effective import Setting, Training, training
from sentinel.tools.audit.files import flattened, read_mapping, settings_of

VERL = ("verl", "1dda039b9c6311889a9c9a26040677e1254814f9")
SKYRL = ("skyrl", "6ecf87862b8b0694d4c2475a17c1a2ec7a9cc4f5")  # before there were dataclasses
TRAINERS = "verl/trainer/config"
#: verl's own generated file of each composed configuration.
GENERATED = {"ppo_trainer": "_generated_ppo_trainer", "ppo_megatron_trainer": "_generated_ppo_megatron_trainer"}
EXPERIMENTS = [
    "fully_async_policy/config/fully_async_ppo_trainer.yaml",
    "fully_async_policy/config/fully_async_ppo_megatron_trainer.yaml",
    "one_step_off_policy/config/one_step_off_ppo_trainer.yaml",
    "one_step_off_policy/config/one_step_off_ppo_megatron_trainer.yaml",
]


@cache
def copy(target: str, commit: str) -> Checkout:
    try:
        return open_checkout(bundled_catalog().targets[target], Ref("git", commit), store=MIRRORS)
    except Unavailable as error:
        pytest.skip(error.reason)


def of(file: Path, checkout: Checkout) -> tuple[dict[Any, Any], Training]:
    """Return the composed configuration of a file, and the training that it describes."""
    catalog = bundled_catalog()
    target = catalog.targets[checkout.target]
    folders, left_out = search_path(read_mapping(file), catalog, target, checkout)
    data, unread = composed(file, read_mapping(file), folders)
    assert (left_out, unread) == ([], [])
    return data, training(flattened(settings_of(data)), options_of(catalog, target, checkout))


@pytest.mark.parametrize("name", GENERATED)
def test_verls_composed_configuration_equals_verls_own(name):
    checkout = copy(*VERL)
    folder = checkout.path / TRAINERS
    data, _ = of(folder / f"{name}.yaml", checkout)
    del data["model_engine"]  # the list of files, which verl's output omits
    ours = {key: text.replace("100_000", "100000") for key, text in flattened(data).items()}  # in YAML 1.1
    assert ours == flattened(read_mapping(folder / f"{GENERATED[name]}.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_search_path_is_found_in_the_copy(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkout = copy(*VERL)
    file = checkout.path / "verl" / "experimental" / name
    data, run = of(file, checkout)
    assert run.options.name == ("PPO on Megatron" if "megatron" in name else "PPO")
    assert flattened(settings_of(read_mapping(file))).items() <= flattened(data).items()
    whole = GENERATED["ppo_megatron_trainer" if "megatron" in name else "ppo_trainer"]
    found = [run.setting(option) for option in flattened(read_mapping(checkout.path / TRAINERS / f"{whole}.yaml"))]
    assert [setting for setting in found if setting is None or setting.default] == []


@pytest.mark.parametrize(
    ("of_copy", "text", "settings"),
    [(VERL, "defaults: [ppo_trainer, _self_]\nactor_rollout_ref: {rollout: {n: 8}}\n",
      {"actor_rollout_ref.rollout.n": "8", "actor_rollout_ref.actor.loss_agg_mode": "token-mean"}),
     (SKYRL, "defaults: [ppo_base_config, _self_]\ngenerator: {n_samples_per_prompt: 8}\n",
      {"generator.n_samples_per_prompt": "8", "trainer.policy.megatron_config.tensor_model_parallel_size": "1"})],
    ids=["verl", "skyrl"],
)  # fmt: skip
def test_a_users_configuration_needs_no_search_path(of_copy, text, settings, tmp_path):
    """The second setting of each is in a file that its base composes."""
    file = tmp_path / "run.yaml"
    file.write_text(text)
    _, run = of(file, copy(*of_copy))
    for name, value in settings.items():
        assert run.setting(name) == Setting(name, value)
