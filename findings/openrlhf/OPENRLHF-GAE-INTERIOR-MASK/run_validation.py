#!/usr/bin/env python3
"""openrlhf: observations between turns decay the advantages before them.

    TARGET_REPO=/path/to/openrlhf python run_validation.py

Needs torch, numpy; no GPU.

Calls openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker.get_advantages_and_returns of the
checkout, once for each case below.
Expected values follow from: GAE (arXiv:1506.02438), equation 16, for an episode that ends with the last valid
token
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
NOT_NEEDED = {
    "aiohttp", "deepspeed", "flash_attn", "packaging", "peft", "pylatexenc", "ray", "torchdata", "tqdm",
    "transformers", "vllm",
}  # imported by the package, not used by the function


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
    found = {"bug_id": "OPENRLHF-GAE-INTERIOR-MASK", "status": status, "commit": commit, **more}
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
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    file = Path(sys.modules["openrlhf.trainer.ppo_utils.experience_maker"].__file__).resolve()
    assert file.is_relative_to(REPO), f"{file} is not in {REPO}"
except Exception as error:
    answer("unavailable", reason=f"{type(error).__name__}: {error}")

CALL = {
    "self": object.__new__(RemoteExperienceMaker),
    "values": torch.tensor([[0.5, 0.0, 0.5]]),
    "rewards": torch.tensor([[0.0, 0.0, 1.0]]),
    "action_mask": torch.tensor([[1.0, 0.0, 1.0]]),
    "gamma": 1.0,
    "lambd": 0.5,
}

result = RemoteExperienceMaker.get_advantages_and_returns(**CALL)
observed = {
    "advantages": torch.where(CALL["action_mask"].bool(), result[0], 0.0),
}
EXPECTED = {  # name: (right, with the bug)
    "advantages": ([[0.25, 0.0, 0.5]], [[-0.125, 0.0, 0.5]]),
}

status = "changed"  # neither the right values nor those of the bug
for place, side in enumerate(("fixed", "reproduced")):
    if all(close(observed[name], values[place]) for name, values in EXPECTED.items()):
        status = side
shown = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in observed.items()}
right = {name: values[0] for name, values in EXPECTED.items()}
answer(status, file=str(file.relative_to(REPO)), observed=shown, expected=right)
