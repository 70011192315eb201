"""verl's own configurations, composed as its trainers compose them; needs the extra ``hydra``, and a mirror.

Those of ROLL's and AReaL's examples lie outside of their packages, and are in no checkout.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from shipped import MIRRORS

from sentinel.catalog import bundled_catalog
from sentinel.checkout import Checkout
from sentinel.configuration.composing import composed, named, search_path
from sentinel.configuration.declared import options_of
from sentinel.configuration.files import flattened, read_mapping, settings_of
from sentinel.configuration.training import Training, training
from sentinel.errors import Unavailable
from sentinel.refs import Ref
from sentinel.sources import open_checkout

pytest.importorskip("hydra", reason="the extra `hydra` is not installed; CI has a job for it")

COMMIT = "1dda039b9c6311889a9c9a26040677e1254814f9"
TRAINERS = "verl/trainer/config"
#: What verl generated itself from each of the configurations, by composing it.
GENERATED = {"ppo_trainer": "_generated_ppo_trainer", "ppo_megatron_trainer": "_generated_ppo_megatron_trainer"}
EXPERIMENTS = [
    "fully_async_policy/config/fully_async_ppo_trainer.yaml",
    "fully_async_policy/config/fully_async_ppo_megatron_trainer.yaml",
    "one_step_off_policy/config/one_step_off_ppo_trainer.yaml",
    "one_step_off_policy/config/one_step_off_ppo_megatron_trainer.yaml",
]


@cache
def verl() -> Checkout:
    try:
        return open_checkout(bundled_catalog().targets["verl"], Ref("git", COMMIT), store=MIRRORS)
    except Unavailable as error:
        pytest.skip(error.reason)


def of(file: Path) -> tuple[dict[Any, Any], Training]:
    """A configuration, and the run that it is for."""
    catalog = bundled_catalog()
    target = catalog.targets["verl"]
    folders, left_out = search_path(read_mapping(file), catalog, target, verl())
    assert left_out == []
    data = composed(file, folders)
    return data, training(flattened(settings_of(data)), options_of(catalog, target, verl()))


@pytest.mark.parametrize("name", GENERATED)
def test_it_is_what_verl_made_of_it(name: str) -> None:
    folder = verl().path / TRAINERS
    assert named(read_mapping(folder / f"{name}.yaml"))
    data, _ = of(folder / f"{name}.yaml")
    del data["model_engine"]  # which files to take; verl leaves it out of what it prints
    assert flattened(data) == flattened(read_mapping(folder / f"{GENERATED[name]}.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_its_search_path_is_found_in_the_copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = verl().path / "verl" / "experimental" / name
    data, run = of(file)
    assert run.options is not None
    assert run.options.name == ("PPO on Megatron" if "megatron" in name else "PPO")
    assert flattened(settings_of(read_mapping(file))).items() <= flattened(data).items()
    found = [run.setting(option) for option in run.options.options]
    assert [setting for setting in found if setting is None or setting.default] == []


def test_a_users_own_needs_no_search_path(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    wanted = {"algorithm": {"adv_estimator": "grpo"}, "actor_rollout_ref": {"rollout": {"n": 8}}}
    file.write_text(yaml.safe_dump({"defaults": ["ppo_trainer", "_self_"], **wanted}))
    _, run = of(file)
    for name, value in (("algorithm.adv_estimator", "grpo"), ("actor_rollout_ref.rollout.n", "8"),
                        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean")):  # fmt: skip
        found = run.setting(name)
        assert found is not None
        assert (found.value, found.default) == (value, False)
