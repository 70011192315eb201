"""Fixtures: a target ``tiny`` with a git repository, an adapter and a recipe."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from demo_kit import git

import sentinel.recipes.catalog
from sentinel.cli import main
from sentinel.deciding.runner import Job, Runner
from sentinel.recipes import load_recipe
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.reports import store
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader

BUGGY = """
def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean"):
    return loss_mat.sum() / loss_mask.sum()
"""
FIXED = BUGGY.replace("loss_mat.sum()", "(loss_mat * loss_mask).sum()")

ADAPTER = """
from sentinel.targets import Binding, PackageRoot, Registry, Target

TARGET = Target(
    name="tiny",
    registries=(Registry("registered", like="tiny.losses.agg_loss"),),
    repository={repository!r},
    roots=(PackageRoot("tiny"),),
    pypi="tiny-dist",
    bindings=(
        Binding("tiny.losses.agg_loss", "loss_aggregation", arguments={{"response_mask": ("loss_mask",)}},
                outputs=("loss",), accepts={{"loss_agg_mode": ("token-mean",), "weights": (None,), "dp_size": (None,),
                "batch_num_tokens": (None,), "global_batch_size": (None,), "loss_scale_factor": (None,)}}),
    ),
)
"""

RECIPE = """\
recipe_version: 1
bug_id: TINY-MEAN
title: masked tokens count
target: tiny
contract: loss_aggregation
boundary: tiny.losses.agg_loss
story: |
  The loss of \\x1b[31m masked tokens is summed.
upstream: {{pull: 7, status: open}}
introduced_by: 012345678 (#6, 2026-01-01)
fixed_by: 987654321 (2026-01-02)
scenario:
  loss_mat: {{tensor: [[1.0, 100.0], [1.0, -50.0]], dtype: float32, requires_grad: true, contiguous: false}}
  response_mask: [[1, 0], [1, 0]]
  loss_agg_mode: token-mean
expected_unpatched: {{loss: 26.0}}
expected_fixed: {{loss: 1.0}}
pins:
  - {{ref: "git:{buggy}", expect: reproduced, note: before}}
  - {{ref: "git:{fixed}", expect: fixed}}
  - {{ref: "pypi:1.2.3", expect: fixed}}
watch: ["git:main", "git:pull/7/head"]
"""


@dataclass(frozen=True)
class Tiny:
    """The target and its repository.

    :ivar upstream: the clone. ``buggy`` and ``fixed`` are its two commits; the second is on main.
    """

    upstream: Path
    buggy: str
    fixed: str
    recipe: Path


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Sentinel = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder outside the repository, without the user's settings."""
    for name in [name for name in os.environ if name.startswith(("GIT_", "SENTINEL_"))]:
        monkeypatch.delenv(name)
    for name in ("user", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def run_sentinel(capsys: pytest.CaptureFixture[str], warm_runs: Preloader) -> Sentinel:
    """Run a command with the session's preloader. Return its exit status and output."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Answer(status, out, err)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    upstream = folder / "upstream"
    (upstream / "tiny").mkdir(parents=True)
    (upstream / "tiny" / "__init__.py").touch()
    commits = []
    run = partial(git, upstream, date="2026-01-01T00:00:00Z")
    run("init", "-q", "-b", "main")
    for text in (BUGGY, FIXED):
        (upstream / "tiny" / "losses.py").write_text(text)
        run("add", ".")
        run("commit", "-qm", "a change")
        commits.append(run("rev-parse", "HEAD"))
    (folder / "adapters").mkdir()
    (folder / "adapters" / "tiny.py").write_text(ADAPTER.format(repository=f"file://{upstream}"))
    recipe = folder / "recipes" / "tiny" / "TINY-MEAN.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(RECIPE.format(buggy=commits[0], fixed=commits[1]))
    return Tiny(upstream, commits[0], commits[1], recipe)


@pytest.fixture(scope="session")
def tiny_catalog(tiny: Tiny) -> Catalog:
    """The bundled contracts and laws, with ``tiny`` as the only target."""
    bare = replace(bundled_catalog(), adapters={}, recipe_folders=())
    folder = tiny.recipe.parent.parent
    return bare.with_(adapters=[folder.parent / "adapters" / "tiny.py"], recipe_folders=[folder])


@pytest.fixture(autouse=True)
def catalog(tiny_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr(sentinel.recipes.catalog, "bundled_catalog", lambda: tiny_catalog)
    return tiny_catalog


@pytest.fixture(scope="session")
def _tiny_home(tiny: Tiny, tiny_catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tiny-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        MirrorStore(Home(home)).add(tiny_catalog.targets["tiny"], str(tiny.upstream))
    return home


@pytest.fixture
def mirrored(_tiny_home: Path, tmp_path: Path) -> None:
    """A ``SENTINEL_HOME`` with a mirror of ``tiny``."""
    shutil.copytree(_tiny_home / "mirrors", tmp_path / "home" / "mirrors")  # a copy, because tests change it


@pytest.fixture(scope="session")
def evidence(tiny: Tiny, tiny_catalog: Catalog, _tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report folder with evidence of both commits, of ``git:main``, and of a pull request that is not available."""
    folder = tmp_path_factory.mktemp("evidence")
    recipe, mirrors = load_recipe(tiny.recipe, tiny_catalog), MirrorStore(Home(_tiny_home))
    runner = Runner(tiny_catalog, lambda t, ref, pull: open_checkout(t, ref, store=mirrors, pull=pull), Options())
    try:
        for ref, expect in ((tiny.buggy, "reproduced"), (tiny.fixed, "fixed"), ("main", None), ("pull/9/head", None)):
            store.write(folder, runner.decide(Job(recipe, Ref("git", ref), expect)))
    finally:
        runner.close()
    return folder
