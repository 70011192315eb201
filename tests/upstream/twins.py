"""Copies of pinned checkouts with a few changed lines. Upstream's code is not in this repository."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from shipped import MIRRORS, RECIPES

from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import Unavailable
from sentinel.recipes.catalog import bundled_catalog
from sentinel.sources import Home, MirrorStore, open_checkout
from sentinel.targets import Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options

#: A file, a text that occurs once, and its replacement.
Edit = tuple[str, str, str]

#: name -> the pin to copy, and the edits.
Twins = Mapping[str, tuple[str, tuple[Edit, ...]]]

#: ``decide(bug id, name of the copy)``.
Decide = Callable[[str, str], Decision]


def copied(checkout: Path, place: Path, edits: Iterable[Edit]) -> None:
    """Return an edited copy of a checkout."""
    shutil.copytree(checkout, place)
    for parent, folders, files in os.walk(place):
        for item in (".", *folders, *files):
            os.chmod(os.path.join(parent, item), 0o755)
    for file, old, new in edits:
        text = (place / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
        (place / file).write_text(text.replace(old, new))


def deciding(twins: Twins, folder: Path, pull: int | None = None) -> Iterator[Decide]:
    """Decide recipes at changed copies of their pins; the body of a fixture.

    :param folder: an empty folder for the copies.
    :param pull: the pull request to fetch if the mirror lacks a commit.
    """
    catalog = bundled_catalog()
    own = MirrorStore(Home(folder / "home"))

    def opened(target: Target, ref: Ref, _: int | None) -> Checkout:
        return open_checkout(target, ref, store=own if ref.kind == "path" else MIRRORS, pull=pull)

    def twin(target: str, name: str) -> Path:
        place = folder / name.replace(" ", "-")
        if not place.exists():
            pin, edits = twins[name]
            copied(opened(catalog.targets[target], Ref.parse(pin), None).path, place, edits)
        return place

    runner = Runner(catalog, opened, Options())

    def decide(bug_id: str, name: str) -> Decision:
        recipe = RECIPES[bug_id]
        try:
            ref = Ref("path", str(twin(recipe.target, name)))
        except Unavailable as error:
            pytest.skip(error.reason)
        return runner.decide(Job(recipe, ref))

    yield decide
    runner.close()
