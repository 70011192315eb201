"""Fixtures: a target ``tiny`` with a history that the test writes, and its mirror."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history_kit import ADAPTER, RECIPE, History

import sentinel.recipes.catalog
from sentinel.recipes import find_recipes
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.records.history import Selection
from sentinel.records.ledger import Ledger
from sentinel.settings import Settings
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.worker.client import Preloader

Swept = Callable[..., dict[str, Any]]


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "upstream")
    made.begin()
    return made


@pytest.fixture
def tiny_catalog(tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The bundled contracts and laws, with ``tiny`` as the only target, and one recipe."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "tiny.py").write_text(ADAPTER.format(repository=f"file://{history.path}"))
    recipes = tmp_path / "recipes" / "tiny"
    recipes.mkdir(parents=True)
    (recipes / "TINY-MEAN.yaml").write_text(RECIPE.format(bug_id="TINY-MEAN", boundary="tiny.losses.agg_loss"))
    bare = replace(bundled_catalog(), adapters={}, recipe_folders=())
    catalog = bare.with_(adapters=[tmp_path / "adapters" / "tiny.py"], recipe_folders=[tmp_path / "recipes"])
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: catalog)
    return catalog


@pytest.fixture
def store(tmp_path: Path) -> MirrorStore:
    return MirrorStore(Home(tmp_path / "sentinel-home"))


@pytest.fixture
def ledger(tiny_catalog: Catalog, history: History, store: MirrorStore, warm_runs: Preloader) -> Callable[[], Ledger]:
    """Return the ledger of the current history."""

    def make() -> Ledger:
        store.add(tiny_catalog.targets["tiny"], str(history.path))
        return Ledger(tiny_catalog, Settings(timeout=30), tiny_catalog.targets["tiny"], store)

    return make


@pytest.fixture
def swept(ledger: Callable[[], Ledger], tiny_catalog: Catalog) -> Swept:
    """Sweep the current history. Return the record of TINY-MEAN with the number of probes."""

    def run(**selection: Any) -> dict[str, Any]:
        book = ledger()
        recipes = find_recipes(tiny_catalog, ("tiny",))
        account = book.sweep(recipes, Selection(**{"ref": "main", **selection}), 2)
        return {**account.records[0], "probed": account.probed}

    return run


@pytest.fixture
def brute_force(
    ledger: Callable[[], Ledger], tiny_catalog: Catalog, store: MirrorStore
) -> Callable[[Sequence[str]], dict[str, tuple[str, str]]]:
    """Decide each commit alone: a checkout, a process and a probe, without a cache."""
    from sentinel.deciding.runner import Job, Runner
    from sentinel.targets.refs import Ref
    from sentinel.worker.client import Options

    def run(commits: Sequence[str]) -> dict[str, tuple[str, str]]:
        ledger()
        recipe = find_recipes(tiny_catalog, ("tiny",))[0]
        runner = Runner(tiny_catalog, lambda t, r, p: open_checkout(t, r, store=store), Options(timeout=30))
        try:
            found = {}
            for sha in commits:
                verdict = runner.decide(Job(recipe, Ref("git", sha))).verdict
                found[sha] = (verdict.name, verdict.kind)
                runner.discard("tiny", Ref("git", sha))
            return found
        finally:
            runner.close()

    return run
