"""Exported runners and tests on real checkouts, in processes without Sentinel: they say what the evidence says."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from shipped import MIRRORS, RECIPES

from sentinel.catalog import bundled_catalog
from sentinel.export.exporting import Exporter, revisions
from sentinel.sources import open_checkout
from sentinel.worker.client import Options

#: One of each family whose boundary is reached in another way. ``SENTINEL_ALL_EXPORTS=1`` tries every shipped recipe,
#: which takes an hour; those whose revisions cannot be had are skipped with their reason.
FAMILIES = (
    "ROLL-AGGLOSS-TOKENMEAN-MASK",  # a function of tensors
    "VERL-REJECTED-ROW-GRPO",  # variants, a numpy array
    "SLIME-OPSM-MIXED-ADVANTAGE-LEAK",  # a parameter is renamed by the fix
    "AREAL-REWARD-NORM-NO-EOS-LEAK",  # an object of the target's own; packages that are not installed
    "SKYRL-KL-MASKED-NAN",  # NaN
    "SLIME-ASYNC-SURPLUS-GROUPS-LOST",  # a coroutine: cut out of the adapter
    "SLIME-DUAL-CLIP-OPTION-IGNORED",  # variants: cut out, and written for them alone
    "SKYRL-POLICY-KL-UNEVEN-MICROBATCHES",  # a step of a worker, the same
    "SKYRL-ROLLOUT-KL-FSDP",  # a law decides without values, and the base lacks the option
)
#: What is said of them is right, and takes more lines: a router, a schedule and a worker of Megatron's stand in there.
LONG = (
    "SKYRL-ROLLOUT-KL-MEGATRON",
    "SKYRL-ROUTER-REPLAY-STALE-LOG-PROBS",
    "SKYRL-ROUTER-REPLAY-STALE-TRAINING",
)
BUGS = tuple(RECIPES) if os.environ.get("SENTINEL_ALL_EXPORTS") else FAMILIES


@pytest.fixture(scope="module")
def exporter() -> Iterator[Exporter]:
    warm = Exporter(
        bundled_catalog(),
        lambda target, ref, pull: open_checkout(target, ref, store=MIRRORS),
        Options(),
        lambda _: None,
    )
    yield warm
    warm.close()


@pytest.mark.parametrize("bug", BUGS)
def test_runner_and_test_agree_with_the_evidence(bug: str, exporter: Exporter) -> None:
    recipe = RECIPES[bug]
    bundle = exporter.export(recipe, *revisions(recipe))
    if any(side.decision.verdict.kind not in ("", "not-in-this-version") for side in bundle.sides):
        pytest.skip(bundle.reason)
    assert bundle.agrees if bug in LONG else bundle.complete, bundle.reason
