"""Kills and full disks at any effect of commands that write evidence, records and pages."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import killing
import pytest
from demo_kit import MASKED_TOKENS, REJECTED_ROW, Decide, Repository, write_recipe
from walking import FULL, Command, listing, load_everything, unwalkable

import sentinel.recipes.catalog
import sentinel.run.questions
import sentinel.run.session
from sentinel.cli import main
from sentinel.deciding.outcomes import Decision
from sentinel.deciding.runner import Job
from sentinel.recipes.catalog import Catalog, bundled_catalog
from sentinel.records.history import load_all
from sentinel.reports import store
from sentinel.search import saving
from sentinel.tools.site import building as site
from sentinel.tools.upstream.contribution import Contribution, documented
from sentinel.tools.upstream.exporting import Bundle, Side
from sentinel.tools.upstream.page import write as write_export

Decided = Mapping[tuple[str, str], Decision]


class Known:
    """A runner whose decisions are known in advance, because this module tests writing, not workers.

    The decision depends on the content of the checkout's file, so an incomplete file has no decision.
    """

    decided: Decided

    def __init__(self, catalog: Catalog, open_checkout: Callable[..., Any], *options: Any, **more: Any) -> None:
        self._open = open_checkout
        self._targets = catalog.targets

    def __getattr__(self, name: str) -> Any:
        assert name in ("start", "plan", "close", "discard", "checkout"), name
        return lambda *arguments: None

    def decide(self, job: Job) -> Decision:
        checkout = self._open(self._targets[job.recipe.target], job.ref, None)
        code = _code(checkout.path)
        usual = self.decided[job.recipe.bug_id, code]
        return replace(usual, recipe=job.recipe, ref=job.ref, expect=job.expect, checkout=checkout)


def _code(tree: Path) -> str:
    return "\n".join(f"{file.name}: {file.read_text()}" for file in sorted((tree / "demo_rl").glob("*.py")))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which effects are disturbed, with two recipes of the demo framework."""
    folder = tmp_path / "here"
    folder.mkdir()
    write_recipe(tmp_path / "mine", MASKED_TOKENS)
    write_recipe(tmp_path / "mine", REJECTED_ROW)
    load_everything(monkeypatch)
    bundled = bundled_catalog()
    catalog = replace(bundled, adapters={"demo": bundled.adapters["demo"]}, recipe_folders=(tmp_path / "mine",))
    for module in (sentinel.recipes.catalog, sentinel.run.questions, sentinel.run.session):
        monkeypatch.setattr(module, "bundled_catalog", lambda: catalog)
    monkeypatch.setattr("sentinel.deciding.runner.Runner", Known)
    monkeypatch.setattr("sentinel.records.executors.Runner", Known)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def decided(
    here: Path, decide: Decide, broken_tree: Path, fixed_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> Decided:
    """Return the decisions of a real worker by bug and code."""
    made = {
        (document["bug_id"], _code(tree)): decide(document, tree, trace=True)
        for document in (MASKED_TOKENS, REJECTED_ROW)
        for tree in (broken_tree, fixed_tree)
    }
    assert sorted({decision.verdict.name for decision in made.values()}) == ["fixed", "reproduced"]
    monkeypatch.setattr(Known, "decided", made, raising=False)
    return made


#: A run with failing items, because of their verdicts or because files could not be written.
RUN = (0, pytest.ExitCode.USAGE_ERROR)


def run_of(*trees: Path, report_dir: str = "sentinel-reports", more: str = "-q") -> Callable[[], int]:
    """Return a command that runs pytest and succeeds even if the run finds known bugs."""
    repos = [f"--sentinel-repo={tree}" for tree in trees]
    options = ["-p", "no:cacheprovider", "--sentinel-target=demo", "--sentinel-laws=off", more]

    def action() -> int:
        status = int(pytest.main([*options, *repos, f"--sentinel-report-dir={report_dir}"]))
        return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else status

    return action


def written(folder: Path) -> Callable[[], Any]:
    """Return the content of a folder; of ``run.json``, only the decisions. Fail if an evidence file is incomplete."""

    def same(name: str, content: bytes) -> Any:
        return json.loads(content)["totals"] if name.endswith(store.RUN) else content

    def outcome() -> Any:
        for file in store.files(folder):
            store.load(file)
        return listing(folder, same)

    return outcome


@pytest.mark.nightly
def test_a_run_survives_kills_and_full_disks(walked, here, decided, broken_tree, fixed_tree):
    act = run_of(broken_tree, fixed_tree, more="--sentinel-sarif=run.sarif")

    def outcome() -> Any:
        return reports(), json.loads((here / "run.sarif").read_bytes())

    reports = written(here / "sentinel-reports")
    assert walked(Command(act, outcome, 8, whole=reports, refusals=RUN), here)


@pytest.mark.slow
@pytest.mark.skipif(bool(unwalkable("without room")), reason=unwalkable("without room") or "room can be taken")
def test_a_run_that_cannot_write_its_summary_shows_its_verdicts(here, decided, broken_tree):
    """The run prints its decisions, although it cannot store them."""
    act = run_of(broken_tree)
    effects = killing.run(act, here).effects
    numbers = [n for n, effect in enumerate(effects) if effect.startswith("open sentinel-reports/.run-")]
    number = numbers[-1]  # the first one is written when the run begins
    shutil.rmtree(here / "sentinel-reports")
    done = killing.run(act, here, number, error=FULL[0])
    assert done.status == pytest.ExitCode.USAGE_ERROR
    assert "2 reproduced" in done.said
    assert "sentinel: cannot write reports to sentinel-reports: No space left on device; make it a" in done.said


@pytest.mark.nightly
def test_a_run_on_other_code_survives_kills_and_full_disks(walked, here, decided, broken_tree, fixed_tree):
    """Evidence of an earlier run stays until this run's evidence is complete."""
    reports = here / "sentinel-reports"
    act = Command(run_of(fixed_tree), written(reports), 5, before=run_of(broken_tree), whole=written(reports))
    assert walked(replace(act, refusals=RUN), here)


@pytest.mark.slow
def test_updating_a_baseline_survives_kills_and_full_disks(walked, here, decided, broken_tree, fixed_tree):
    """One file is new, one stays, and one is removed because it is no longer decided."""

    def ready() -> int:
        return run_of(broken_tree)() or main(["report", "accept"]) or _other(run_of(fixed_tree))

    def _other(run: Callable[[], int]) -> int:
        for file in (here / "sentinel-reports").rglob("DEMO-MASKED-TOKENS/*.json"):
            file.unlink()
        return run()

    act = Command(lambda: main(["report", "accept", "--prune"]), written(here / "reports"), 3, before=ready)
    assert walked(replace(act, whole=written(here / "reports")), here)


@pytest.mark.nightly
def test_recording_findings_survives_kills_and_full_disks(walked, here, decided, broken_tree):
    ready = run_of(broken_tree, report_dir="reports")
    act = Command(lambda: main(["report", "findings"]), lambda: listing(here / "findings"), 5, before=ready)
    assert walked(act, here)


def test_a_new_recipe_survives_kills_and_full_disks(walked, here):
    act = Command(
        lambda: main(["recipe", "new", "MY-BUG", "--target", "demo", "-o", "MY-BUG.yaml"]), lambda: listing(here)
    )
    assert walked(act, here)


@pytest.mark.slow
def test_saving_a_finding_survives_kills_and_full_disks(walked, here):
    def save() -> int:
        saving.save(here / "found", MASKED_TOKENS)
        return 0

    assert walked(Command(save, lambda: listing(here)), here)


@pytest.mark.slow
def test_an_export_survives_kills_and_full_disks(walked, here, decided):
    """Files of an earlier export that are not in this one are removed."""
    sides = [Side(name, decision) for name, decision in zip(("base", "head"), decided.values())]
    bundle = Bundle(sides[0].decision.recipe, tuple(sides), "print('runner')\n", ("torch", "numpy"))
    recipe, catalog = bundle.recipe, sentinel.recipes.catalog.bundled_catalog()
    made = Contribution((recipe,), catalog.targets[recipe.target], None, documented([bundle], None, None, ()))

    def export(runner: str) -> int:
        return 0 if write_export(here / "export", made, [replace(bundle, runner=runner)]) else 1

    assert walked(Command(lambda: export(""), lambda: listing(here), 8, before=lambda: export(bundle.runner)), here)


@pytest.mark.nightly
def test_a_site_survives_kills_and_full_disks(walked, here):
    """Pages are kept, changed, added and removed."""
    first = {"index.html": "1", "bugs/a.html": "a", "bugs/b.html": "b", "evidence/demo/a.json": "{}"}
    then = {"index.html": "2", "bugs/a.html": "a", "bugs/c/c.html": "c" * 20_000}

    def build(files: Mapping[str, str]) -> int:
        site.write(here / "site", files.items())
        return 0

    assert walked(Command(lambda: build(then), lambda: listing(here), 3, before=lambda: build(first)), here)


@pytest.fixture
def swept(
    here: Path, decided: Decided, decide: Decide, demo_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A ``SENTINEL_HOME`` inside the disturbed folder, with a mirror. The decision at every commit is known."""
    home = here / "home"
    monkeypatch.setenv("SENTINEL_HOME", str(home))
    add = ["mirror", "add", "demo", "--from", str(demo_repository.path)]
    assert killing.apart(lambda: main(add)).status == 0
    every = dict(decided)
    for name in ("early", "broken", "fixed"):
        for document in (MASKED_TOKENS, REJECTED_ROW):
            made = decide(document, f"git:{demo_repository.commits[name]}", trace=True)
            every[document["bug_id"], _code(made.checkout.path)] = made
    monkeypatch.setattr(Known, "decided", every)
    return home


def histories(home: Path) -> Callable[[], Any]:
    """Return what a sweep stores: the records, and the lines of verdicts in any order."""

    def same(name: str, content: bytes) -> Any:
        if "/objects/" in name or "mirrors/" in name:
            return None
        return sorted(set(content.splitlines())) if name.endswith(".jsonl") else content

    return lambda: listing(home / "history", same)


def prune() -> int:
    return main(["cache", "prune"])


def sweep() -> int:
    return main(["sweep", "demo", "--jobs", "1"])


@pytest.mark.nightly
def test_a_sweep_survives_kills_and_full_disks(walked, here, swept):
    assert walked(Command(sweep, histories(swept), 25, prune, whole=lambda: _records(swept)), here)


def _records(home: Path) -> None:
    load_all(home / "history")
