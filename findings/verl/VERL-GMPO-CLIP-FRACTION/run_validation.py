#!/usr/bin/env python3
"""verl: GMPO's clip fractions count tokens that are not clipped.

    TARGET_REPO=/path/to/verl python run_validation.py

Needs torch, numpy, omegaconf, packaging, tensordict, transformers; no GPU.

Calls verl.trainer.ppo.core_algos.compute_policy_loss_geo_mean of the checkout, once for each case below.
Expected values follow from: PPO (arXiv:1707.06347), dual clip (arXiv:1912.09729), GSPO (arXiv:2507.18071),
CISPO (arXiv:2506.13585), SAPO (arXiv:2511.20347), GPG (arXiv:2504.02546), GMPO (arXiv:2507.20673), DPPO
(arXiv:2602.04879), Kimi k1.5 (arXiv:2501.12599), TOPR (arXiv:2503.14286), Clip-Cov and KL-Cov
(arXiv:2505.22617); aggregation as in loss_aggregation
Exit status: 0 fixed, 1 reproduced, 3 neither, or the function could not be called.
"""
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from unittest.mock import MagicMock

import torch

REPO = Path(os.environ["TARGET_REPO"]).resolve()
NOT_NEEDED = {"codetiming", "orjson", "ray"}  # imported by the package, not used by the function


class Stub(MagicMock):
    """Anything from a package of NOT_NEEDED; as a decorator it returns what it decorates."""

    def __call__(self, *positional, **named):
        decorates = len(positional) == 1 and isinstance(positional[0], (type, FunctionType)) and not named
        return positional[0] if decorates else super().__call__(*positional, **named)


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty module for each package of NOT_NEEDED that is not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NOT_NEEDED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda attribute: Stub(name=f"{spec.name}.{attribute}")
        return module

    def exec_module(self, module):
        pass


def answer(status, **more):
    git = subprocess.run(["git", "-C", str(REPO), "rev-parse", "HEAD"], capture_output=True, text=True)
    commit = git.stdout.strip() or None
    found = {"bug_id": "VERL-GMPO-CLIP-FRACTION", "status": status, "commit": commit, **more}
    print(json.dumps(found, indent=1))
    sys.exit({"fixed": 0, "reproduced": 1}.get(status, 3))


def close(found, expected):
    if expected is None or isinstance(expected, (str, dict)):
        return found == expected
    found, expected = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (found, expected))
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-05, atol=1e-06, equal_nan=True)


sys.meta_path.append(Stubs())  # last: installed packages come first
sys.path[:0] = [str(REPO / root) for root in ["."]]
try:
    from verl.trainer.ppo.core_algos import compute_policy_loss_geo_mean
    from verl.workers.config.actor import ActorConfig

    file = Path(sys.modules["verl.trainer.ppo.core_algos"].__file__).resolve()
    assert file.is_relative_to(REPO), f"{file} is not in {REPO}"
except Exception as error:
    answer("unavailable", reason=f"{type(error).__name__}: {error}")

COMMON = {
    "old_log_prob": torch.tensor([[-1.25, -1.25, -1.25]]),
    "log_prob": torch.tensor([[-1.0, -1.25, -1.5]], requires_grad=True),
    "response_mask": torch.tensor([[1.0, 1.0, 1.0]]),
    "loss_agg_mode": "seq-mean-token-mean",
    "config": ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1),
}
CALLS = {
    "positive": {
        **COMMON,
        "advantages": torch.tensor([[1.0, 1.0, 1.0]]),
    },
    "negative": {
        **COMMON,
        "advantages": torch.tensor([[-1.0, -1.0, -1.0]]),
    },
}

results = {name: compute_policy_loss_geo_mean(**call) for name, call in CALLS.items()}
observed = {
    "positive.clip_fraction": results["positive"][1]["actor/pg_clipfrac"],
    "negative.clip_fraction": results["negative"][1]["actor/pg_clipfrac_lower"],
}
EXPECTED = {  # name: (right, with the bug)
    "positive.clip_fraction": (0.3333333333333333, 0.6666666666666666),
    "negative.clip_fraction": (0.3333333333333333, 0.6666666666666666),
}

status = "changed"  # neither the right values nor those of the bug
for place, side in enumerate(("fixed", "reproduced")):
    if all(close(observed[name], values[place]) for name, values in EXPECTED.items()):
        status = side
shown = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in observed.items()}
right = {name: values[0] for name, values in EXPECTED.items()}
answer(status, file=str(file.relative_to(REPO)), observed=shown, expected=right)
