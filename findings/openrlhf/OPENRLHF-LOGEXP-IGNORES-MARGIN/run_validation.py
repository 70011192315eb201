#!/usr/bin/env python3
"""openrlhf: the log-exp reward-model loss ignores its margin.

    TARGET_REPO=/path/to/openrlhf python run_validation.py

Needs torch, numpy; no GPU.

Calls openrlhf.models.loss.LogExpLoss.forward of the checkout, once for each case below.
Expected values follow from: the boundary's own documentation
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
    "deepspeed", "flash_attn", "peft", "pylatexenc", "transformers",
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
    found = {"bug_id": "OPENRLHF-LOGEXP-IGNORES-MARGIN", "status": status, "commit": commit, **more}
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
    from openrlhf.models.loss import LogExpLoss

    file = Path(sys.modules["openrlhf.models.loss"].__file__).resolve()
    assert file.is_relative_to(REPO), f"{file} is not in {REPO}"
except Exception as error:
    answer("unavailable", reason=f"{type(error).__name__}: {error}")


def instance(kind, **attributes):
    """An instance with these attributes; its constructor does not run."""
    made = object.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    vars(made).update(attributes)
    return made


CALL = {
    "self": instance(LogExpLoss, ),
    "chosen_reward": torch.tensor([1.0]),
    "reject_reward": torch.tensor([0.0]),
    "margin": torch.tensor([2.0]),
}

result = LogExpLoss.forward(**CALL)
observed = {
    "returned": result,
}
EXPECTED = {  # name: (right, with the bug)
    "returned": (1.3132616877, 0.3132616877),
}

status = "changed"  # neither the right values nor those of the bug
for place, side in enumerate(("fixed", "reproduced")):
    if all(close(observed[name], values[place]) for name, values in EXPECTED.items()):
        status = side
shown = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in observed.items()}
right = {name: values[0] for name, values in EXPECTED.items()}
answer(status, file=str(file.relative_to(REPO)), observed=shown, expected=right)
