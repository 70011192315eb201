"""Run recipes at the PyPI releases of a target. No git mirror is needed."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing

from packaging.version import InvalidVersion, Version

from sentinel.deciding.runner import Job, runner_of
from sentinel.errors import Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.records.closure_verdicts import ClosureVerdict, ClosureVerdictStore, ReleaseVerdicts
from sentinel.records.history import Selection, history_of, save
from sentinel.records.ledger import Account
from sentinel.settings import Settings
from sentinel.sources import Progress
from sentinel.sources.commits import Commit, Tag
from sentinel.targets import Target
from sentinel.targets.refs import Ref


def versions(target: Target) -> list[str]:
    """Return the releases of a target on PyPI, the oldest first.

    They are listed with pip, so that the user's pip settings apply, such as another index.

    :raises Unavailable: if the target has no releases, or the index is unreachable.
    """
    if target.pypi is None:
        raise Unavailable(f"{target.name} has no releases on PyPI; sweep its tags instead: --tags")
    with tempfile.TemporaryDirectory() as empty:  # ``-m`` would import a module named pip from the current folder
        listing = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", "--ignore-requires-python", "--pre", target.pypi],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=empty,
            check=False,
        )
    match = re.search(r"^Available versions: (.+)$", listing.stdout, re.MULTILINE)
    if listing.returncode or match is None:
        lines = [line for line in listing.stderr.splitlines() if line.startswith("ERROR")] or ["pip printed no list"]
        raise Unavailable(f"the releases of {target.pypi} cannot be listed: {lines[-1].removeprefix('ERROR: ')}")
    return sorted((text.strip() for text in match[1].split(",")), key=_order)


def _order(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def sweep_releases(
    catalog: Catalog, settings: Settings, target: Target, recipes: Sequence[Recipe], notify: Progress | None = None
) -> Account:
    """Run each recipe at each release, and save the histories. Stored verdicts are reused."""
    store, releases = ClosureVerdictStore(), versions(target)
    verdicts = ReleaseVerdicts(catalog, settings, target, recipes, store)
    probed = 0
    decided: dict[str, dict[str, ClosureVerdict]] = {recipe.bug_id: {} for recipe in recipes}
    with closing(runner_of(catalog, settings, notify)) as runner:
        for number, version in enumerate(releases):
            if notify:
                notify(f"{target.name}: release {version}, {number + 1} of {len(releases)}")
            ref = Ref("pypi", version)
            for recipe in recipes:
                entry = verdicts.find(recipe, ref)
                if entry is None:
                    entry = verdicts.add(runner.decide(Job(recipe, ref)))
                    probed += 1
                decided[recipe.bug_id][str(ref)] = entry
            runner.discard(target.name, ref)
    commits = [Commit(f"pypi:{version}", "", (), "", f"{target.pypi} {version}") for version in releases]
    tags = [Tag(version, commit) for version, commit in zip(releases, commits)]
    selected = Selection(target.pypi or "", walk="releases", kind="pypi"), commits, tags
    documents = (history_of(r, verdicts.of[r.bug_id].basis, *selected, decided[r.bug_id]) for r in recipes)
    return Account(save(store.folder, documents), probed)
