"""A ground of toy functions: right and wrong ones, whose faults are known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo_kit import Lab

sys.path.insert(0, str(Path(__file__).parent))

from toy import TOY

from sentinel.catalog import Catalog
from sentinel.checkout import Checkout
from sentinel.refs import Ref
from sentinel.runner import Ground, Runner
from sentinel.search.bench import Subject
from sentinel.search.checks import subjects
from sentinel.sources import open_checkout
from sentinel.worker.client import Options, Zygote

TOYS = """
import torch

def right(values, response_mask, scale):
    return scale * torch.where(response_mask != 0, values, 0.0).sum(-1)

def unmasked(values, response_mask, scale):
    return scale * values.sum(-1)

def calls_unmasked(values, response_mask, scale):
    return unmasked(values, response_mask, scale)

def rough(values, response_mask, scale):
    # right, but for a rounding that float64 does not have
    huge = 1e9 if values.dtype != torch.float64 else 0.0
    return ((scale * (values * response_mask)).sum(-1) + huge) - huge

def refuses(values, response_mask, scale):
    raise NotImplementedError("not on this machine")

STATE = []

def remembers(values, response_mask, scale):
    # wrong after the first calls: a fresh process does not show it
    STATE.append(1)
    return right(values, response_mask, scale) + (1.0 if len(STATE) > 30 else 0.0)

def shifted(values, response_mask, scale):
    return right(values, response_mask, scale) + 1

def meant(values, response_mask, scale):
    return right(values, response_mask, scale) + 1

def stale(values, response_mask, scale):
    return right(values, response_mask, scale)
"""

#: ``ground(functions)``: where a search can take place, and the subjects of these functions.
OpenGround = Callable[..., tuple[Ground, dict[str, Subject]]]


@pytest.fixture
def toys(catalog: Catalog) -> Catalog:
    return catalog.with_(adapters=[Path(__file__).parent / "toy_adapter.py"], contracts=[TOY])


@pytest.fixture
def open_ground(toys: Catalog, lab: Lab, warm_runs: Zygote, tmp_path: Path) -> Iterator[OpenGround]:
    runners: list[Runner] = []

    def opened(*names: str, code: str = TOYS, **options: float) -> tuple[Ground, dict[str, Subject]]:
        tree = lab.write({"toys.py": code})

        def checkout(target: object, ref: Ref, pull: int | None) -> Checkout:
            return open_checkout(toys.adapters["toys"].target, ref)

        runner = Runner(toys, checkout, Options(**{"timeout": 20.0, **options}))
        runners.append(runner)
        found = {item.boundary.rpartition(".")[2]: item for item in subjects(toys, "toys")[0]}
        wanted = {name: found[name] for name in names} if names else found
        ground = runner.ground("toys", Ref("path", str(tree)), [item.binding for item in wanted.values()])
        return ground, wanted

    yield opened
    for runner in runners:
        runner.close()
