"""Networks that are slow, truncate or lie: a clear sentence, nothing half-made, and all is well when they are."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import misbehaving
import pytest
from demo_kit import Repository, few
from misbehaving import Site, Way
from wheels import wheel

from sentinel.cli import main
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import Home, MirrorStore, gitbinary, open_checkout, pypi
from sentinel.targets import Target
from sentinel.targets.refs import Ref

PAGE, FILE = "/simple/demo-dist/", "/files/demo_dist-1.0-py3-none-any.whl"


@pytest.fixture
def site() -> Iterator[Site]:
    with misbehaving.serving() as served:
        yield served


@pytest.fixture
def target() -> Target:
    return replace(bundled_catalog().targets["demo"], pypi="demo-dist")


@pytest.fixture
def store(tmp_path: Path) -> MirrorStore:
    return MirrorStore(Home(tmp_path / "home"))


# -- a package index --------------------------------------------------------------------------------------------------


@pytest.fixture
def index(site: Site, fixed_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A package index that has one release, and settings of pip's own."""
    content = wheel(tmp_path, fixed_tree).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    site.files = {FILE: content, PAGE: f'<a href="{FILE}#sha256={digest}">demo_dist-1.0-py3-none-any.whl</a>'.encode()}
    settings = {"INDEX_URL": f"{site.url}/simple", "CONFIG_FILE": os.devnull, "RETRIES": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(pypi, "_answers", {})
    return site


def has(site: Site, store: MirrorStore, target: Target) -> None:
    """The release is available, and is the right one."""
    pypi._answers.clear()  # another run
    made = open_checkout(target, Ref.parse("pypi:1.0"), store=store)
    assert made.version == "1.0"
    assert "agg_loss" in (made.path / "demo_rl" / "losses.py").read_text()


#: what -> (of which file, the way, words of the reason)
INDEXES: dict[str, tuple[str, Way, str]] = {
    "a file that ends early": (FILE, misbehaving.closes_early, "DO NOT MATCH THE HASHES|IncompleteRead|bytes missing"),
    "a file whose length is a lie": (FILE, misbehaving.says_too_little, "DO NOT MATCH THE HASHES"),
    "a file that is another": (FILE, misbehaving.is_damaged, "DO NOT MATCH THE HASHES"),
    "a page that redirects for ever": (PAGE, misbehaving.redirects_for_ever, "redirects|could not be reached"),
    "a file that redirects for ever": (FILE, misbehaving.redirects_for_ever, "redirects|could not be reached"),
    "a page that fails": (PAGE, misbehaving.fails, "no release of it, or could not be reached"),
    "a file that hangs after its headers": (FILE, misbehaving.hangs, "timed out"),
    "a page of garbage": (PAGE, misbehaving.is_garbage, "JSON|codec"),
    "a page of thirty megabytes": (PAGE, misbehaving.is_huge, "JSON"),
    "a page that drips": (PAGE, misbehaving.drips, "pip did not end within 4 s"),
    "a file that is reset": (FILE, misbehaving.resets, "reset|could not be reached|Connection"),
}


@pytest.mark.parametrize(("path", "way", "says"), few(INDEXES, 3))
def test_a_package_index(path, way, says, index, store, target, monkeypatch):
    if way is misbehaving.drips:
        monkeypatch.setattr(pypi, "_PATIENCE", 4.0)
    if way is misbehaving.hangs:
        monkeypatch.setenv("PIP_TIMEOUT", "1")
    index.ways[path] = way
    with pytest.raises(Unavailable, match=f"pypi:1.0 of demo-dist cannot be had: .*({says})") as refusal:
        open_checkout(target, Ref.parse("pypi:1.0"), store=store)
    assert "\n" not in refusal.value.reason
    left = [place for place in store.home.path.rglob("*") if place.is_file() or place.name.startswith(".")]
    assert left == []


def test_a_package_index_that_fails_once(index, store, target, monkeypatch):
    """Whether pip asks again is the user's setting, and pip's own by default. What is had after an error is right."""
    monkeypatch.setenv("PIP_RETRIES", "2")
    index.ways[FILE] = misbehaving.fails_once
    has(index, store, target)
    assert index.asked.count(FILE) == 2


# -- git over http ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hosted(site: Site, demo_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The demo framework's repository on a git server."""
    bare = tmp_path / "demo.git"
    command = ["git", "clone", "-q", "--bare", "--no-local", str(demo_repository.path), str(bare)]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)
    site.repositories = tmp_path
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    return site


REFS, PACK = "/demo.git/info/refs", "/demo.git/git-upload-pack"
REPOSITORIES: dict[str, tuple[str, Way]] = {
    "refs that end early": (REFS, misbehaving.closes_early),
    "refs that redirect for ever": (REFS, misbehaving.redirects_for_ever),
    "refs that fail": (REFS, misbehaving.fails),
    "refs that hang": (REFS, misbehaving.hangs),
    "refs of garbage": (REFS, misbehaving.is_garbage),
    "refs that drip": (REFS, misbehaving.drips),
    "a pack that ends early": (PACK, misbehaving.closes_early),
    "a pack whose length is a lie": (PACK, misbehaving.says_too_little),
    "a pack that is damaged": (PACK, misbehaving.is_damaged),
    "a pack that is reset": (PACK, misbehaving.resets),
    "a pack that hangs": (PACK, misbehaving.hangs),
    "a pack of garbage": (PACK, misbehaving.is_garbage),
}


@pytest.mark.parametrize(("path", "way"), few(REPOSITORIES, 3))
def test_a_git_server(path, way, hosted, store, target, capsys):
    hosted.ways[path] = way
    with pytest.MonkeyPatch.context() as patch:
        if way in (misbehaving.hangs, misbehaving.drips):  # who answers may take longer, on a busy machine
            patch.setitem(gitbinary._ENVIRONMENT, "GIT_HTTP_LOW_SPEED_TIME", "1")
        refused(hosted, store, target, capsys)
    hosted.ways.clear()
    assert main(["mirror", "add", "demo", "--from", f"{hosted.url}/demo.git"]) == 0
    assert open_checkout(target, Ref.parse("git:main"), store=store).roots == ("demo_rl",)


def test_a_server_of_plain_files(hosted, store, target, capsys, tmp_path):
    """Without a word for it, git would start git for each object that is not here yet, without end."""
    bare = tmp_path / "demo.git"
    hosted.repositories = None
    hosted.files = {f"/demo.git/{f.relative_to(bare)}": f.read_bytes() for f in bare.rglob("*") if f.is_file()}
    assert "does not speak git's protocol" in refused(hosted, store, target, capsys)
    assert not [path for path in hosted.asked if "/objects/" in path]


def refused(hosted: Site, store: MirrorStore, target: Target, capsys: pytest.CaptureFixture[str]) -> str:
    """Nothing of a mirror is there, and the last line says why."""
    assert main(["mirror", "add", "demo", "--from", f"{hosted.url}/demo.git"]) == 2
    (last,) = capsys.readouterr().err.splitlines()[-1:]
    assert last.startswith(f"sentinel: cannot mirror {hosted.url}/demo.git: ")
    assert [place.name for place in store.home.mirrors.iterdir()] == [".demo.lock"]
    with pytest.raises(Unavailable, match="no mirror of demo; run"):
        open_checkout(target, Ref.parse("git:main"), store=store)
    return last
