from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.deciding.runner import Runner
from sentinel.recipes.catalog import Catalog
from sentinel.reports.baseline import difference
from sentinel.reports.evidence import evidence
from sentinel.reports.store import evidence_path, load, write
from sentinel.search.survey import LEVELS, LawJob, Survey, law_jobs
from sentinel.sources import open_checkout
from sentinel.targets.refs import Ref
from sentinel.worker.client import Options, Preloader, WorkerError


@pytest.fixture
def runner(catalog: Catalog, warm_runs: Preloader) -> Iterator[Runner]:
    runner = Runner(catalog, lambda target, ref, pull: open_checkout(target, ref), Options())
    yield runner
    runner.close()


def jobs_of(catalog: Catalog, *trees: Path) -> list[LawJob]:
    return law_jobs(catalog, "demo", [Ref("path", str(tree)) for tree in trees])


@pytest.mark.nightly
def test_the_number_of_searchers_does_not_change_the_result(catalog, runner, broken_tree, fixed_tree):
    jobs = jobs_of(catalog, broken_tree, fixed_tree)
    told = []
    for searchers in (1, 3):
        survey = Survey(catalog, runner, "quick", searchers=searchers)
        survey.plan(jobs)
        told.append([(job, survey.decide(job).verdict, survey.decide(job).measurement) for job in jobs])
        survey.close()
    assert told[0] == told[1]
    assert {verdict.name for _, verdict, _ in told[0]} >= {"reproduced", "fixed"}


@pytest.mark.slow
@pytest.mark.parametrize("seen_before", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_recorded_violation_is_always_found_again(seen_before, catalog, runner, broken_tree, tmp_path, monkeypatch):
    survey = Survey(catalog, runner, "quick")
    jobs = [job for job in jobs_of(catalog, broken_tree) if job.boundary == "demo_rl.losses.agg_loss"]
    first = {job: survey.decide(job) for job in jobs}
    survey.close()
    for decision in first.values():
        write(tmp_path, decision)
    monkeypatch.setitem(LEVELS, "quick", (0, 0))  # no scenario is drawn
    again = Survey(catalog, runner, "quick", baseline=tmp_path if seen_before else None)
    broken = [job for job, decision in first.items() if decision.verdict.name == "reproduced"]
    assert broken
    for job in broken:
        if not seen_before:
            assert again.decide(job).verdict.name == "unavailable"
        else:
            assert difference(load(tmp_path / evidence_path(first[job])), evidence(again.decide(job))) == []
    again.close()


@pytest.mark.slow
def test_a_law_requested_after_the_search_is_decided_too(catalog, runner, fixed_tree):
    first, second = jobs_of(catalog, fixed_tree)[:2]
    assert first.boundary == second.boundary
    survey = Survey(catalog, runner, "quick", searchers=2)
    assert survey.decide(first).law == first.law
    assert survey.decide(second).law == second.law
    survey.close()


def test_an_error_of_a_search_is_raised_to_its_caller(catalog, runner, fixed_tree):
    runner.close()
    survey = Survey(catalog, runner, "quick", searchers=2)
    jobs = jobs_of(catalog, fixed_tree)
    survey.plan(jobs)
    with pytest.raises(WorkerError, match="the run has ended"):
        survey.decide(jobs[0])
    survey.close()


def test_the_end_of_the_recipes_does_not_end_a_search(catalog, runner, fixed_tree):
    """Recipes and searches share one process. The end of the recipes does not end it while a search uses it."""
    ref = Ref("path", str(fixed_tree))
    bindings = catalog.adapters["demo"].target.bindings
    open_target = runner.open_target("demo", ref, bindings)
    runner._processes.discard("demo", ref)
    assert runner.open_target("demo", ref, bindings).law_session._target() is open_target.law_session._target()
    assert open_target.law_session._target().dead is None
    open_target.law_session._target().session().close()
