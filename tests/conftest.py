"""Fixtures for all tests: an empty home, the demo framework as trees and as a git repository, and one preloader."""

import concurrent.futures.process  # noqa: F401
import importlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs  # noqa: F401
import numpy  # noqa: F401 - with concurrent.futures above: as _LOADED
import pytest
from demo_kit import (
    FRAMEWORK,
    MASKED_TOKENS,
    SECRETS,
    Consult,
    Decide,
    Lab,
    Repository,
    borrowing,
    copy_demo,
    write_recipe,
)
from hypothesis import settings

from sentinel.deciding.law_session import References
from sentinel.deciding.outcomes import Decision
from sentinel.deciding.pool import contained_places
from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Replies
from sentinel.worker.client import Options, Preloader, TargetProcess

pytest_plugins = ["pytester"]

#: Modules that runs import on demand. Otherwise pytester would remove them after each run, and the next run would
#: import them again.
_LOADED = (
    "recipes.rules",
    "reports.github",
    "reports.markdown",
    "run.differences",
    "run.gate",
    "run.items",
    "run.session",
    "search.discovery",
    "search.drawing",
    "search.saving",
)
for _name in _LOADED:
    importlib.import_module(f"sentinel.{_name}")

#: The tests of `pytest -m smoke`: the logic, and one framework from recipe to verdict.
SMOKE = ("contracts", "laws", "recipes", "settings", "test_demo.py", "values")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = os.path.relpath(item.path, Path(__file__).parent).partition(os.sep)[0]
        if place in SMOKE and not any(map(item.get_closest_marker, ("nightly", "slow"))):
            item.add_marker("smoke")


settings.register_profile("sentinel", deadline=None)  # a busy machine must not fail a test
settings.load_profile("sentinel")


@pytest.fixture(autouse=True)
def obeying_ctrl_c() -> None:
    """Let tests start processes that react to SIGINT, which background jobs and ``nohup`` ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's settings, cache and git identity."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "SENTINEL_", "PYTEST_ADDOPTS"))]:
        monkeypatch.delenv(name)
    for name in ("TARGET_REPO", "OUTPUT_DIR", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "sentinel-home"))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def broken_tree(tmp_path: Path) -> Path:
    return copy_demo(tmp_path / "broken")


@pytest.fixture
def fixed_tree(tmp_path: Path) -> Path:
    return copy_demo(tmp_path / "fixed", "fixed")


@pytest.fixture(scope="session")
def demo_repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The history of demo_rl: ``early`` (other path), ``broken``, ``fixed``, ``drifted`` (renamed), ``syntax``."""
    repository = Repository(tmp_path_factory.mktemp("demo") / "demo_rl")
    repository.path.mkdir()
    repository.git("init", "--quiet", "--initial-branch=main")
    losses = (FRAMEWORK / "broken" / "demo_rl" / "losses.py").read_text()
    early = losses.replace("loss_mask", "mask")
    copy_demo(repository.path)
    (repository.path / "demo_rl" / "losses.py").unlink()
    repository.commit("early", {"demo_rl/core.py": early})
    repository.commit("broken", {"demo_rl/core.py": None, "demo_rl/losses.py": losses})
    repository.commit("fixed", FRAMEWORK / "fixed")
    repository.commit("drifted", {"demo_rl/losses.py": losses.replace("def agg_loss(", "def agg_losses(")})
    repository.commit("syntax", {"demo_rl/losses.py": "def agg_loss(loss_mat, loss_mask) = nothing yet\n"})
    repository.git("checkout", "--quiet", "-B", "main", repository.commits["fixed"])
    return repository


@pytest.fixture(scope="session")
def _demo_home(demo_repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("demo-home")
    target = bundled_catalog().targets["demo"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        MirrorStore(Home(home)).add(target, str(demo_repository.path))
    return home


@pytest.fixture
def refs(demo_repository: Repository) -> dict[str, str]:
    return {name: f"git:{sha}" for name, sha in demo_repository.commits.items()}


@pytest.fixture
def demo_home(_demo_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``SENTINEL_HOME`` with the demo framework's mirror, which tests share."""
    monkeypatch.setenv("SENTINEL_HOME", str(_demo_home))
    return _demo_home


@pytest.fixture(scope="session")
def preloader() -> Iterator[Preloader]:
    """One preloader for the session, so that torch is loaded once. Its environment contains (fake) secrets."""
    warm = Preloader(Options(timeout=30), [], contained_places(bundled_catalog()))
    with pytest.MonkeyPatch.context() as patch:
        for name in SECRETS:
            patch.setenv(name, "secret")
        warm.start()
    yield warm
    warm.stop()


@pytest.fixture(scope="session")
def consult(preloader: Preloader) -> Iterator[Consult]:
    """Return a function that computes a contract's reference values in an oracle process."""
    processes: list[TargetProcess] = []

    def oracle() -> TargetProcess:
        if not processes or processes[-1].dead:
            processes.append(preloader.oracle())
        return processes[-1]

    references = References(oracle)

    def ask(name: str, variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        file = bundled_catalog().contracts[name].file
        calls = {variant: {"inputs": dict(inputs)} for variant, inputs in variants.items()}
        answer = references.consult({"contract": name, "contract_file": file, "calls": calls})
        assert isinstance(answer, Replies), answer
        assert all(part.observation is not None for part in answer.answers.values()), answer
        return {variant: dict(part.observation or {}) for variant, part in answer.answers.items()}

    yield ask
    references.close()
    for process in processes:
        process.close()


@pytest.fixture
def offered(preloader: Preloader) -> Callable[[str], str]:
    """Return a function that skips the test if this machine does not have a level of containment."""

    def level(name: str) -> str:
        reason = preloader.hello()["uncontained"]
        if name == "strict" and reason:
            pytest.skip(f"strict containment is not available here: {reason}")
        return name

    return level


@pytest.fixture
def warm_runs(preloader: Preloader, monkeypatch: pytest.MonkeyPatch) -> Preloader:
    """Let every runner in this process, including pytester's, use the session's preloader."""
    monkeypatch.setattr("sentinel.deciding.pool.Preloader", borrowing(preloader))
    return preloader


@pytest.fixture
def decide(warm_runs: Preloader, tmp_path: Path) -> Iterator[Decide]:
    """Return a function that decides a recipe (document or file) at a ref, as a run does."""
    runners: list[Runner] = []

    def run(recipe: Mapping[str, Any] | Path, ref: str | Path, expect: str | None = None, **options: Any) -> Decision:
        catalog = options.pop("catalog", None) or bundled_catalog()
        file = recipe if isinstance(recipe, Path) else write_recipe(tmp_path / "recipes", recipe)
        where = Ref("path", str(ref)) if isinstance(ref, Path) else Ref.parse(ref)
        runner = Runner(catalog, _checkout, Options(**{"timeout": 30.0, **options}))
        runners.append(runner)
        return runner.decide(Job(load_recipe(file, catalog), where, expect))

    yield run
    for runner in runners:
        runner.close()


def _checkout(target: Any, ref: Ref, pull: int | None) -> Checkout:
    return open_checkout(target, ref, store=MirrorStore(), pull=pull)


@pytest.fixture
def lab(preloader: Preloader, tmp_path: Path) -> Iterator[Lab]:
    laboratory = Lab(preloader, tmp_path)
    yield laboratory
    for process in laboratory.processes:
        process.close()


@pytest.fixture
def catalog() -> Catalog:
    return bundled_catalog()


@pytest.fixture
def loaded_recipe(tmp_path: Path) -> Recipe:
    return load_recipe(write_recipe(tmp_path / "loaded", MASKED_TOKENS), bundled_catalog())
