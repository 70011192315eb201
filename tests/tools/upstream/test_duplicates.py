"""Searches for a known bug: similar recipes, history, pull requests; what was not searched is reported."""

from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, Repository, write_recipe

from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.sources import Home, MirrorStore
from sentinel.tools.upstream.duplicates import Source, duplicates
from sentinel.tools.upstream.heads import verdict_at
from sentinel.tools.upstream.history import files_of


def recipe_of(folder: Path, document: Any, **changes: Any) -> Recipe:
    return load_recipe(write_recipe(folder, document, **changes), bundled_catalog())


@pytest.fixture
def recipe(tmp_path: Path, demo_repository: Repository) -> Recipe:
    pins = [{"ref": f"git:{demo_repository.commits['broken']}", "expect": "reproduced"}]
    return recipe_of(tmp_path, MASKED_TOKENS, pins=pins)


@pytest.fixture
def upstream(demo_repository: Repository, tmp_path: Path) -> Repository:
    """The demo repository with two pull requests: one changes the boundary, one another function."""
    copy = Repository(tmp_path / "upstream")
    demo_repository.git("clone", "--quiet", str(demo_repository.path), str(copy.path))
    copy.git("checkout", "--quiet", "--detach", demo_repository.commits["broken"])
    losses = (copy.path / "demo_rl" / "losses.py").read_text()
    copy.commit("mend the mean", {"demo_rl/losses.py": losses.replace("loss_mat", "losses")})
    copy.git("update-ref", "refs/pull/3/head", "HEAD")
    copy.git("checkout", "--quiet", "--detach", demo_repository.commits["broken"])
    copy.commit("another matter", {"demo_rl/losses.py": losses + "\n\ndef other():\n    return 1\n"})
    copy.git("update-ref", "refs/pull/4/head", "HEAD")
    copy.git("checkout", "--quiet", "main")
    return copy


@pytest.fixture
def store(upstream: Repository, tmp_path: Path) -> MirrorStore:
    mirrors = MirrorStore(Home(tmp_path / "home"))
    mirrors.add(bundled_catalog().targets["demo"], str(upstream.path))
    return mirrors


def sources_of(recipe: Recipe, store: MirrorStore) -> dict[str, Source]:
    target = bundled_catalog().targets["demo"]
    return {item.name: item for item in duplicates(recipe, (), target, store)}


def test_history_and_pulls_that_touch_the_boundary_are_found(recipe, store):
    found = sources_of(recipe, store)
    assert [item.why for item in found["upstream history"].found] == ["fixed"]
    pulls = {item.what for item in found["pull requests of the mirror"].found}
    assert "#3" in pulls
    assert "#4" not in pulls


def test_pull_requests_with_the_bugs_names_are_found_in_every_state(recipe, store, upstream):
    """#5 names the function in its subject without changing it; #3 and #4 do not name it."""
    upstream.git("checkout", "--quiet", "--detach", "refs/pull/4/head")
    upstream.commit("speed up agg_loss", {"README.md": "fast\n"})
    upstream.git("update-ref", "refs/pull/5/head", "HEAD")
    upstream.git("update-ref", "refs/pull/5/merge", "HEAD")
    store.add(bundled_catalog().targets["demo"], str(upstream.path))
    source = sources_of(recipe, store)["pull requests that name it"]
    assert [(item.what, item.why) for item in source.found][:1] == [("#5", "open, agg_loss: speed up agg_loss")]


def test_each_unsearched_source_has_a_reason(recipe, tmp_path):
    found = sources_of(recipe, MirrorStore(Home(tmp_path / "empty")))
    assert found["recipes"].searched
    assert "mirror add" in found["upstream history"].note
    assert [item.searched for item in found.values()] == [True, False, False, False]


def test_files_follow_the_package_roots_and_former_paths():
    targets = bundled_catalog().targets
    assert "demo_rl/losses.py" in files_of(targets["demo"], "demo_rl.losses.agg_loss")
    assert "skyrl-gym/skyrl_gym/envs/x.py" in files_of(targets["skyrl"], "skyrl_gym.envs.x.f")
    files = files_of(targets["skyrl"], "skyrl.train.trainer.f")  # a package that has moved
    assert {"skyrl/train/trainer.py", "skyrl/skyrl/train/trainer.py"} <= set(files)


REPRODUCED, FIXED = (ClosureVerdict("", "", verdict, boundary="m.f") for verdict in ("reproduced", "fixed"))
ABSENT = ClosureVerdict("", "", "inconclusive", "drift", "m has no 'f' in this checkout")
RAISED = ClosureVerdict("", "", "inconclusive", "raised", "the boundary raised KeyError: 'x'", boundary="m.f")


@pytest.mark.parametrize(
    ("head", "began", "verdict", "reason"),
    [
        (REPRODUCED, RAISED, "reproduced", ""),
        (FIXED, REPRODUCED, "fixes", ""),
        (FIXED, FIXED, "absent", ""),
        (RAISED, FIXED, "absent", ""),
        (ABSENT, ABSENT, "absent", ""),
        (RAISED, ABSENT, "absent", ""),
        (RAISED, REPRODUCED, "inconclusive", "the boundary raised KeyError: 'x'"),
        (ABSENT, REPRODUCED, "inconclusive", "m has no 'f' in this checkout"),
        (FIXED, RAISED, "inconclusive", "at its base: the boundary raised KeyError: 'x'"),
    ],
)
def test_a_head_counts_only_when_its_base_has_the_bug(head, began, verdict, reason):
    assert verdict_at(head, began) == (verdict, reason)
