"""Exported runners and prepared pages agree with the evidence on real checkouts, in an environment with torch and
numpy.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from shipped import MIRRORS, RECIPES, skip_in_pack

from sentinel.cli import main
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import open_checkout
from sentinel.sources.gitbinary import GitError
from sentinel.tools.upstream.checking import Environment
from sentinel.tools.upstream.contribution import Contribution, contribution, is_logged, load_contribution
from sentinel.tools.upstream.exporting import Exporter
from sentinel.tools.upstream.page import MOST_WORDS, count_words, pages
from sentinel.tools.upstream.trying import opening
from sentinel.worker.client import Options

#: Tried in every run: a function of tensors that needs only torch and numpy, and a target with one page. Nightly runs
#: try all; if a revision is not available, the test is skipped with the reason.
ALWAYS = ("ROLL-AGGLOSS-TOKENMEAN-MASK", "slime")

#: Every prepared pull request.
ROOT = Path(__file__).resolve().parents[2]
PREPARED = sorted((ROOT / "findings").glob("*/*/evidence.json"))


def walked(values: Iterable[Any], name: Callable[[Any], str] = str) -> list[Any]:
    """Return parameters: some for every run, the others for nightly runs."""
    marks = {True: (), False: pytest.mark.nightly}
    return [pytest.param(value, id=name(value), marks=marks[name(value) in ALWAYS]) for value in values]


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


@pytest.mark.parametrize("bug", walked(RECIPES))
def test_a_runner_agrees_with_the_evidence(bug, exporter):
    recipe = RECIPES[bug]
    bundle = exporter.export(recipe, *recipe.revisions())
    if not bundle.runner:
        pytest.skip(bundle.reason)
    assert [side.tried.status for side in bundle.sides] == [side.decision.verdict.name for side in bundle.sides]


def test_the_named_bug_has_a_runner(exporter):
    recipe = RECIPES[ALWAYS[0]]
    bundle = exporter.export(recipe, *recipe.revisions())
    if "no mirror of" in bundle.reason:
        pytest.skip(bundle.reason)
    assert "agg_loss(**CALL)" in bundle.runner


def prepared(file: Path) -> Contribution:
    document = load_contribution(file)
    assert document is not None
    try:
        return contribution(document, bundled_catalog(), MIRRORS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    except GitError:
        skip_in_pack(file.parent.parent.name)
        raise


@pytest.mark.parametrize("file", PREPARED, ids=lambda file: file.parent.name)
def test_a_prepared_page_agrees_with_its_evidence(file):
    made = prepared(file)
    if any("newer than the mirror" in each for each in made.unknown):
        skip_in_pack(file.parent.parent.name)  # it has only the pull requests that recipes name
    texts = pages(replace(made, logged=is_logged(file.parent, made.fix)))
    assert {name: file.with_name(name).read_text() for name in texts} == texts
    text = texts.get("PULL_REQUEST.md", texts.get("SENDER.md", ""))  # a comment at a pull request has no page
    assert ("PULL_REQUEST.md" in texts) == file.with_name("PULL_REQUEST.md").exists()
    assert count_words(text) <= (MOST_WORDS if "PULL_REQUEST.md" in texts else 2 * MOST_WORDS)
    assert not {"TODO", "FIXME", "by a person"} & set(text.split())
    if made.fix and made.fix.edits:  # the page describes the objections to upstream's own fix
        assert (made.document["tried"] or {"problems": []})["problems"] == []
    runner = made.document["runner"]
    assert runner is None or set(runner["sides"].items()) == {("base", "reproduced"), ("head", "fixed")}


@pytest.mark.parametrize(
    "file", [file for file in PREPARED if file.with_name("fix.patch").exists()], ids=lambda file: file.parent.name
)
def test_git_am_accepts_a_prepared_patch(file, tmp_path):
    """In a clone of the mirror, whose work tree has only the changed files."""
    fix = prepared(file).fix
    assert fix
    skip_in_pack(fix.target)
    patch = file.with_name("fix.patch")
    own = list(re.findall(r"(?m)^--- a/(.*)$", patch.read_text()))
    who = {f"GIT_{role}_{key}": "ada@example.invalid" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, env={**os.environ, **who}, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    objects = MIRRORS.path(fix.target) / "objects"
    (tmp_path / ".git" / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    git("update-ref", "HEAD", fix.commit)
    git("read-tree", "HEAD")
    git("checkout-index", "--", *own)
    git("am", str(patch))
    assert git("rev-parse", "HEAD^").strip() == fix.commit


@pytest.fixture(scope="module")
def empty() -> Iterator[Environment]:
    """An environment with torch, numpy and the packages that a page names, without Sentinel."""
    environment = Environment()
    yield environment
    environment.close()


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("file", walked(PREPARED, lambda file: file.parent.name))
def test_a_prepared_runner_agrees_with_its_page_in_an_empty_environment(file, empty):
    made = prepared(file)
    if made.document["runner"] is None or made.fix is None or made.fix.comment:
        pytest.skip(made.document["reason"])
    absent = [name for name in made.document["runner"]["packages"] if not _installed(name)]
    if absent:
        pytest.skip(f"not installed here: {', '.join(absent)}")
    opened = opening([made.fix], lambda target, ref, pull: open_checkout(target, ref, store=MIRRORS), MIRRORS)
    checkouts = [opened(made.target, ref, None).path for ref in (made.fix.base, made.fix.patched)]
    text = file.with_name("run_validation.py").read_text()
    answers = empty.run(text, checkouts, made.document["runner"]["packages"], True)
    assert [tried.status for tried in answers] == ["reproduced", "fixed"], [tried.problem for tried in answers]


@pytest.mark.parametrize("target", walked(sorted({file.parents[1].name for file in PREPARED})))
def test_the_numbers_of_prepared_pages_are_reproduced(target, monkeypatch):
    """This decides every page again; the tests above try the runners."""
    monkeypatch.setenv("SENTINEL_HOME", str(MIRRORS.home.path))
    files = [file for file in PREPARED if file.parents[1].name == target]
    for file in files:
        prepared(file)
    assert main(["verify", *map(str, files)]) == 0
