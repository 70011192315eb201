"""Searches for a known bug: similar recipes, history, pull requests, a fork; what was not searched is reported."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Repository, write_recipe

from sentinel.recipes import Recipe, load_recipe
from sentinel.recipes.catalog import bundled_catalog
from sentinel.records.closure_verdicts import ClosureVerdict
from sentinel.sources import Home, MirrorStore
from sentinel.tools.upstream.duplicates import Source, duplicates, likeness, scenario
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


def sources_of(recipe: Recipe, store: MirrorStore, **more: Any) -> dict[str, Source]:
    target = bundled_catalog().targets["demo"]
    return {item.name: item for item in duplicates(recipe, (), target, store, environ={}, **more)}


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
    assert "--fork" in found["branches of the fork"].note
    assert "GITHUB_TOKEN" in found["GitHub's search"].note
    assert [item.searched for item in found.values()] == [True, False, False, False, False, False]


class GitHub(http.server.BaseHTTPRequestHandler):
    """Answers every search with the server's content."""

    def do_GET(self) -> None:
        asked.append((urllib.parse.unquote(self.path), self.headers["Authorization"]))
        status, content = answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


asked: list[tuple[str, str]] = []
answers: list[tuple[int, bytes]] = []


@pytest.fixture
def search_github(recipe: Recipe, tmp_path: Path) -> Iterator[Callable[..., Source]]:
    """Return a function that searches while GitHub answers with this status and content."""
    server = http.server.HTTPServer(("127.0.0.1", 0), GitHub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    environ = {"GITHUB_TOKEN": "secret", "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}"}
    store = MirrorStore(Home(tmp_path / "empty"))

    def search(status: int, content: bytes, repository: str = "https://github.com/demo/rl.git") -> Source:
        answers[:], asked[:] = [(status, content)], []
        target = replace(bundled_catalog().targets["demo"], repository=repository)
        return {item.name: item for item in duplicates(recipe, (), target, store, environ=environ)}["GitHub's search"]

    yield search
    server.shutdown()
    thread.join()
    server.server_close()


def test_github_is_searched_for_pull_requests_and_issues(search_github):
    items = [{"number": 7, "state": "open", "title": "a \x1b[31mmask"}, {"number": 8, "state": "closed", "title": "x"}]
    found = search_github(200, json.dumps({"items": items}).encode())
    assert found.searched
    assert [item.what for item in found.found] == ["#7", "#8"] * 2
    assert "\x1b" not in found.found[0].why
    assert [path.partition("q=")[2].split()[:2] for path, _ in asked] == [
        ["repo:demo/rl", "is:pull-request"],
        ["repo:demo/rl", "is:issue"],
    ]
    assert {token for _, token in asked} == {"Bearer secret"}


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (403, b'{"message": "rate limit"}'),
        (200, b""),
        (200, b"[]"),
        (200, b"null"),
        (200, b'{"items": 3}'),
        (200, b'{"items": [{"number": 1}]}'),
        (200, b'{"items": ' + b"[" * 100_000),
    ],
)
def test_an_invalid_response_of_github_is_not_a_search(status, content, search_github):
    found = search_github(status, content)
    assert not found.searched
    assert found.note.startswith(("the request to GitHub failed: ", "the response of GitHub is not"))
    assert "secret" not in found.note


def test_row_order_and_group_names_do_not_change_the_scenario(tmp_path):
    one = recipe_of(tmp_path / "a", REJECTED_ROW)
    turned = {
        "token_level_rewards": [[0, 2], [0, 0], [0, 1]],
        "response_mask": [[1, 1], [0, 0], [1, 1]],
        "group": ["g", "g", "g"],
    }
    variants = {"low": {}, "high": {"token_level_rewards": [[0, 2], [0, 9], [0, 1]]}}
    other = recipe_of(tmp_path / "b", REJECTED_ROW, bug_id="DEMO-OTHER", scenario=turned, variants=variants)
    assert scenario(one) == scenario(other)
    assert "same scenario" in likeness(one, other)
    changed = recipe_of(tmp_path / "c", REJECTED_ROW, scenario={**turned, "group": ["g", "h", "g"]}, variants=variants)
    assert scenario(one) != scenario(changed)


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
