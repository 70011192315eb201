"""Exported runners and tests on real checkouts, beside torch, numpy and what they name: they say what evidence says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shipped import MIRRORS, RECIPES

from sentinel.export.exporting import Exporter
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.worker.client import Options

#: The nightly walks try every shipped recipe; those whose revisions cannot be had are skipped with their reason.
ALWAYS = ("ROLL-AGGLOSS-TOKENMEAN-MASK",)  # a function of tensors, and nothing beside torch and numpy
BUGS = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.nightly) for name in RECIPES]


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
    bundle = exporter.export(recipe, *recipe.revisions())
    if any(side.decision.verdict.kind not in ("", "not-in-this-version") for side in bundle.sides):
        pytest.skip(bundle.reason)
    assert bundle.complete, bundle.reason
