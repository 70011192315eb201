"""Published launch scripts and configurations are read as their programs read them; needs mirrors.

Two of each framework and two more, chosen by seed from all examples at these commits.
"""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from shipped import MIRRORS, skip_in_pack

from sentinel import cli
from sentinel.deciding.outcomes import Decision, Verdict
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.tools.audit.commands import audit

COMMITS = {
    "areal": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "nemorl": "7ea279abfbeb698b092856d0dab61e7cf39bc909",
    "openrlhf": "3c3be6234e0cb353e76bb8019947db9dfe99fca7",
    "primerl": "559b44772e471d1538537b8805cc77f3824a5e64",
    "roll": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "skyrl": "a9564572eb8e91076be43c1bd5e4615e3de17265",
    "slime": "624b824a898ab0ec1fcb4d373004c7f3852bf515",
    "trl": "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
    "verl": "1dda039b9c6311889a9c9a26040677e1254814f9",
}
#: Target, file, trainer, number of settings, number of unknown values among them, and reported words.
LAUNCHES = [
    ("areal", "examples/tir/tir_math_config.yaml", "PPO", 136, 0,
     "tir is not an option of PPO"),
    ("nemorl", "examples/configs/grpo_math_8B_megatron_nixl.yaml", "GRPO", 325, 0,
     "data.train.dataset_name=OpenMathInstruct-2"),
    ("openrlhf", "examples/scripts/train_vlm_math_hybrid_engine.sh", "PPO", 44, 3,
     "reward.remote_url"),
    ("primerl", "examples/advanced/glm-4.5-air/search.toml", "RL", 51, 0,
     "orchestrator.train.source={'name': 'openseeker'"),
    ("roll", "examples/qwen3-omni/audio_test_80G.yaml", "RLVR", 94, 0,
     "did you mean actor_train.model_args.attn_implementation?"),
    ("skyrl", "examples/train/callbacks/run_sft_with_callbacks.sh", "SFT", 28, 0,
     "dataset_name=yahma/alpaca-cleaned"),
    ("slime", "scripts/run-glm4-9B.sh", "slime", 77, 0,
     "prompt_data=/root/dapo-math-17k/dapo-math-17k.jsonl"),
    ("trl", "examples/scripts/sft_gemma3.py", "SFT", 8, 0,
     "load_dataset('open-r1/codeforces-cots')"),
    ("verl", "examples/otb_trainer/run_qwen3_8b_fsdp.sh", "PPO", 41, 3,
     "\"$@\" (line"),
    ("skyrl", "examples/train/fully_async/sim_trainer/run_serve_qwen1.5b.sh", "RL", 8, 0,
     "\"$@\" (line"),
    ("areal", "examples/tau2/config_30b_moe_airline.yaml", "PPO", 185, 0,
     "econfig is not an option of PPO"),
    ("nemorl", "examples/configs/recipes/llm/distillation-xtoken-off-policy-multiteacher-qwen3-4b-llama3.2-3b"
     "-to-llama3.2-1b-1n8g-dtensor-tp4cp2.yaml", "distillation across tokenizers", 219, 0,
     "data.train.dataset_name=arrow_text"),
    ("openrlhf", "examples/scripts/train_ppo_ray_hybrid_engine.sh", "PPO", 41, 0,
     "reward.model_name_or_path=OpenRLHF/Llama-3-8b-rm-700k"),
    ("primerl", "configs/debug/algo/grpo.toml", "RL", 18, 0,
     "orchestrator.train.source={'name': 'reverse-text'"),
    ("roll", "examples/qwen2.5-7B-distill_megatron/distill_megatron.yaml", "distillation", 60, 0,
     "validation.data_args.file_name=data/GSM8K_zh.json"),
    ("skyrl", "examples/train/text_to_sql/run_skyrl_sql_conversation_format.sh", "RL", 51, 4,
     "data.train_data"),
    ("slime", "scripts/low_precision/run-kimi-k2-Thinking-int4.sh", "slime", 110, 1,
     "prompt_data=/root/dapo-math-17k/dapo-math-17k.jsonl"),
    ("trl", "examples/scripts/grpo_continuous_batching.py", "", 0, 0,
     "it fills GRPOConfig from its command line"),
    ("verl", "examples/router_replay/run_qwen3_5_35b_a3b_veomni.sh", "PPO", 62, 4,
     "only a shell can compute: data.train_files=…/data/geo3k/train.parquet, data.val_files=…/data"),
    ("primerl", "configs/debug/fake/sft.toml", "SFT", 6, 0,
     ""),
]  # fmt: skip


@cache
def repository(target: str, folder: Path) -> Path:
    """A working tree with the text files of a framework's repository."""
    mirror = MIRRORS.home.mirror(target)
    git = ["git", "-C", str(mirror)]
    listed = subprocess.run([*git, "ls-tree", "-rz", COMMITS[target]], capture_output=True)
    if listed.returncode:
        pytest.skip(f"no mirror of {target} with {COMMITS[target][:9]}")
    ends = (".py", ".sh", ".yaml", ".yml", ".toml", ".json")
    entries = [entry.split("\t", 1) for entry in listed.stdout.decode().split("\0") if entry.endswith(ends)]
    blobs = [(meta.split()[2], name) for meta, name in entries if meta.startswith("100")]
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    asked = "\n".join(blob for blob, _ in blobs).encode()
    text = subprocess.run([*git, "cat-file", "--batch"], input=asked, capture_output=True, env=environment).stdout
    for _, name in blobs:
        head, _, text = text.partition(b"\n")
        if not head.endswith(b" missing"):
            size = int(head.split()[2])
            file = folder / target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text[:size])
            text = text[size + 1 :]
    return folder / target


@pytest.mark.parametrize(
    ("target", "name", "trainer", "count", "unknown", "said"), LAUNCHES, ids=[row[1] for row in LAUNCHES]
)
def test_a_published_launch_is_read(target, name, trainer, count, unknown, said, tmp_path_factory, monkeypatch, capsys):
    folder = tmp_path_factory.getbasetemp() / "repositories"
    skip_in_pack(target)
    monkeypatch.chdir(repository(target, folder))
    checkout = open_checkout(bundled_catalog().targets[target], Ref("path", "."), store=MIRRORS)

    def decided(*_: Any, **__: Any) -> Any:
        """Treat every known bug as present; no framework code runs."""
        recipes = find_recipes(bundled_catalog(), [target])
        found = [Decision(recipe, checkout.ref, Verdict("reproduced"), checkout=checkout) for recipe in recipes]
        return found, []

    monkeypatch.setattr(audit, "_decide", decided)
    option = "--script" if name.endswith((".sh", ".py")) else "--config"
    status = cli.main(["audit", target, "--repo", ".", "--json", option, name])
    out, err = capsys.readouterr()
    if not trainer:
        assert (status, said in err) == (2, True)
        return
    document = json.loads(out)
    settings = document["settings"]
    assert document["defaults"]["trainer"] == trainer
    assert (len(settings), sum(value is None for value in settings.values())) == (count, unknown)
    assert said in "\n".join(document["not_examined"])
