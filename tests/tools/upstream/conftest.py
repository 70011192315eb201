"""Fixtures: a recipe of the demo framework, exported from two trees."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from demo_kit import write_recipe

from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.tools.upstream.exporting import Bundle, Exporter
from sentinel.worker.client import Options, Preloader

Export = Callable[..., Bundle]


@pytest.fixture
def export(warm_runs: Preloader, tmp_path: Path) -> Iterator[Export]:
    """Return ``export(recipe document, base tree, head tree or None, check=False, **changes)``."""
    catalog = bundled_catalog()
    exporter = Exporter(
        catalog,
        lambda target, ref, pull: open_checkout(target, ref, store=MirrorStore(), pull=pull),
        Options(timeout=30),
        lambda message: None,
    )

    def run(document: Any, base: Path, head: Path | None = None, *, check: bool = False, **changes: Any) -> Bundle:
        recipe = load_recipe(write_recipe(tmp_path / "recipes", document, **changes), catalog)
        refs = [None if tree is None else Ref("path", str(tree)) for tree in (base, head)]
        assert refs[0] is not None
        return exporter.export(recipe, refs[0], refs[1], check=check)

    yield run
    exporter.close()
