"""Run jobs: open the checkout, call the function in a worker, and judge the result. Jobs of several checkouts run in
parallel."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from sentinel.deciding import verdicts
from sentinel.deciding.absence import Absence, absence
from sentinel.deciding.asking import Answers, Question, ask, ask_together
from sentinel.deciding.judging import confirm, judge
from sentinel.deciding.law_session import LawSession
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.outcomes import Decision, Failure, Measurement
from sentinel.deciding.pool import Processes
from sentinel.deciding.proof import read_answer
from sentinel.deciding.setup import OpenCheckout, opener, options_of
from sentinel.errors import SentinelError, Unavailable
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, Progress
from sentinel.targets import Binding
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker.answers import Failed, Measured
from sentinel.worker.client import Options


def runner_of(
    catalog: Catalog,
    settings: Settings,
    notify: Progress | None = None,
    store: MirrorStore | None = None,
    opened: OpenCheckout | None = None,
) -> Runner:
    """Return a runner with the user's settings.

    :param store: the mirrors; None for the default store.
    :param opened: opens checkouts; None for the function that the settings describe.
    """
    options_for = {name: options_of(settings, name) for name in catalog.adapters}
    return Runner(catalog, opened or opener(settings, notify, store), Options(), options_for)


@dataclass(frozen=True)
class Job:
    """A recipe to run at a ref. ``expect`` is the verdict that the recipe's pin expects, if any."""

    recipe: Recipe
    ref: Ref
    expect: str | None = None


#: The identity of a job in a run: bug id, file, ref.
_Key = tuple[str, str, Ref]

#: Maximum number of recipes that one process runs.
_TOGETHER = 32

#: If a revision lacks a function, the function's former code is read at this many pins at most.
_KNOWN = 3


class Runner:
    """Runs jobs and returns their verdicts. Create one runner per run and :meth:`close` it at the end.

    :param options: the options of worker processes. ``options_for`` maps a target to its own options
        (``--sentinel-python``).
    :param repeat: whether each recipe is run again in a second process: see :mod:`sentinel.deciding.repetition`.
    """

    def __init__(
        self,
        catalog: Catalog,
        open_checkout: OpenCheckout,
        options: Options,
        options_for: Mapping[str, Options] | None = None,
        repeat: bool = True,
    ) -> None:
        self._catalog = catalog
        self._repeat = repeat
        self._open_checkout = open_checkout
        self._processes = Processes(catalog, options, options_for)
        self._planned: dict[_Key, Future[Decision]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def start(self, targets: Iterable[str]) -> None:
        """Start to import torch and the packages of these targets in the background."""
        for name in targets:
            self._processes.preloader(name, targets).start()

    # -- recipes ------------------------------------------------------------------------------------------------------

    def plan(self, jobs: Sequence[Job]) -> None:
        """Start to run these jobs in the background, in their order.

        All jobs of a checkout run in one thread. There is at most one thread per core.
        """
        groups: dict[tuple[str, Ref], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.recipe.target, job.ref), []).append(job)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1), thread_name_prefix="sentinel")
        for group in groups.values():
            promises: list[Future[Decision]] = [Future() for _ in group]
            self._planned.update({_key(job): promise for job, promise in zip(group, promises)})
            self._pool.submit(self._decide_group, group, promises)

    def decide(self, job: Job) -> Decision:
        """Return a job's decision. If the job was given to :meth:`plan`, wait for it; otherwise run the job now."""
        promise = self._planned.pop(_key(job), None)
        return promise.result() if promise is not None else self._decide(job)

    def _decide_group(self, group: Sequence[Job], promises: Sequence[Future[Decision]]) -> None:
        together: dict[_Key, tuple[Checkout, Answers]] = {}
        for index, (job, promise) in enumerate(zip(group, promises)):
            if self._closed or not promise.set_running_or_notify_cancel():
                continue
            try:
                if index % _TOGETHER == 0:
                    together = self._ask_together(group[index : index + _TOGETHER])
                promise.set_result(self._decide(job, *together.get(_key(job), ())))
            except BaseException as error:
                promise.set_exception(error)
        self._processes.discard(group[0].recipe.target, group[0].ref)

    def _ask_together(self, jobs: Sequence[Job]) -> dict[_Key, tuple[Checkout, Answers]]:
        if len(jobs) < 2 or not self._repeat:
            return {}
        try:
            questions = [Question.about(job.recipe, self._catalog) for job in jobs]
            target, ref = questions[0].adapter.target, jobs[0].ref
            self._processes.environment(target.name)
            checkout = self._open_checkout(target, ref, questions[0].pull)
            answers = ask_together(self._processes.loaded(target, ref, checkout), questions)
        except SentinelError:  # each job raises the error again when it is run alone
            return {}
        return {_key(job): (checkout, each) for job, each in zip(jobs, answers) if each is not None}

    def _decide(self, job: Job, checkout: Checkout | None = None, answers: Answers | None = None) -> Decision:
        question = Question.about(job.recipe, self._catalog)
        target = question.adapter.target
        began = time.monotonic()
        try:
            checkout = checkout or self._open_checkout(target, job.ref, question.pull)
        except Unavailable as error:
            failure = Failure(error.kind, error.reason)
            return Decision(
                job.recipe,
                job.ref,
                verdicts.of_failure(failure),
                job.expect,
                failure=failure,
                seconds=time.monotonic() - began,
            )
        environment = self._processes.environment(target.name)
        began = time.monotonic()
        loaded = self._processes.loaded(target, job.ref, checkout)
        answers = answers or ask(loaded, question, self._repeat)
        lack = self._absence(question, answers.first, checkout)
        if lack is not None and lack.moved:
            loaded.follow(lack.moved, question.contract.name, question.contract.file)
            answers, lack = ask(loaded, question, self._repeat), None
        outcome = self._read(question, answers.first, checkout, lack)
        judgement = judge(question, outcome, loaded, self._processes.references(target.name))
        judgement = confirm(question, judgement, answers)
        return Decision(
            job.recipe,
            job.ref,
            judgement.verdict,
            job.expect,
            checkout,
            measurement=judgement.outcome if isinstance(judgement.outcome, Measurement) else None,
            failure=judgement.outcome if isinstance(judgement.outcome, Failure) else None,
            comparisons=judgement.comparisons,
            environment=environment,
            law=question.law.name if question.law and isinstance(outcome, Measurement) else None,
            adapter=question.adapter.digest,
            seconds=answers.seconds + time.monotonic() - began,
        )

    def _read(
        self, question: Question, answer: Measured | Failed, checkout: Checkout, lack: Absence | None
    ) -> Measurement | Failure:
        """Check that a worker's result comes from the checkout's code, and return it as a measurement or a failure."""
        target = question.recipe.target
        outcome = read_answer(answer, checkout, self._processes.sources(target), question.recipe.requires)
        if lack is not None and isinstance(answer, Failed):
            outcome = Failure("drift", lack.describe(answer.reason), absent=True)
        return self._processes.explain(target, outcome) if isinstance(outcome, Failure) else outcome

    def calls(self, job: Job) -> Mapping[str, Any]:
        """Return the recorded calls of a job's boundary: variant -> calls (:mod:`sentinel.worker.recording`).

        The result is empty if the boundary cannot be called at this revision.
        """
        question = Question.about(job.recipe, self._catalog)
        target = question.adapter.target
        checkout = self._open_checkout(target, job.ref, question.pull)
        loaded = self._processes.loaded(target, job.ref, checkout)
        answer = loaded.probe(job.recipe.boundary, {**question.request, "record": True})
        if isinstance(answer, Failed):
            return {}
        return {variant: observed.get("calls") for variant, observed in answer.observation.items()}

    # -- checkouts, for searches too ----------------------------------------------------------------------------------

    def checkout(self, target: str, ref: Ref, pull: int | None = None) -> Checkout:
        """Return a target's code at a ref.

        :param pull: the pull request to fetch if the mirror lacks the commit.
        """
        return self._open_checkout(self._catalog.adapters[target].target, ref, pull)

    def require_python(self, target: str) -> None:
        """Start the Python interpreter in which a target is called.

        :raises SentinelError: if the interpreter does not start, or lacks torch or numpy.
        """
        self._processes.environment(target)

    def open_target(self, target: str, ref: Ref, bindings: Sequence[Binding]) -> OpenTarget:
        """Import the modules of these bindings at a ref, and return the target, ready for a search."""
        adapter = self._catalog.adapters[target]
        checkout = self.checkout(target, ref)
        environment = self._processes.environment(target)
        # otherwise the process would end as soon as the planned recipes of this checkout have run
        self._processes.hold(target, ref)
        loaded = self._processes.loaded(adapter.target, ref, checkout)

        def load(binding: Binding) -> Failed | None:
            return loaded.load(binding.boundary, binding.contract, self._catalog.contracts[binding.contract].file)

        for binding in bindings:
            load(binding)
        law_session = LawSession(
            loaded.alive, self._processes.references(target), partial(self._processes.explain, target), loaded.hangs
        )
        return OpenTarget(
            target, ref, checkout, environment, adapter.digest, law_session, self._processes.sources(target), load
        )

    # -- names that a checkout lacks ----------------------------------------------------------------------------------

    def _absence(self, question: Question, answer: Measured | Failed, checkout: Checkout) -> Absence | None:
        """Return the dotted path that the checkout lacks, if the worker did not find a boundary or an option; otherwise
        None."""
        if isinstance(answer, Measured) or answer.kind != "drift":
            return None
        if answer.provenance is not None and not answer.unknown_input:
            return None
        recipe = question.recipe
        binding = question.binding or Binding(recipe.boundary, recipe.contract)
        binding = replace(binding, requires=recipe.requires)
        older = self.checkouts_of_pins(recipe.target, (recipe,))
        return self.absence(recipe.target, binding, checkout, older, answer.unknown_input)

    def absence(
        self, target: str, binding: Binding, checkout: Checkout, older: Iterable[Checkout], option: str = ""
    ) -> Absence | None:
        """Return the first dotted path that a binding uses and the checkout's source does not define; None if there is
        none.

        :param older: checkouts at which the binding is known to work.
        :param option: an input for which the worker found no parameter.
        """
        return absence(binding, checkout, self._processes.sources(target), older, option)

    def checkouts_of_pins(self, target: str, recipes: Iterable[Recipe]) -> Iterator[Checkout]:
        """Yield the checkouts of these recipes' last pins, if they are available."""
        refs = (pin.ref for recipe in recipes for pin in recipe.pins[::-1])
        for ref in islice(refs, _KNOWN):
            with suppress(SentinelError):
                yield self.checkout(target, ref)

    def follow(self, target: str, ref: Ref, moved: Mapping[str, str], contract: str) -> None:
        """Make later calls at a ref use the new dotted paths of functions and modules that have moved."""
        loaded = self._processes.loaded(self._catalog.adapters[target].target, ref, self.checkout(target, ref))
        loaded.follow(moved, contract, self._catalog.contracts[contract].file)

    # -- the end ------------------------------------------------------------------------------------------------------

    def discard(self, target: str, ref: Ref) -> None:
        """End the process of a target at a ref, even if a search used it. The next job starts a new one."""
        self._processes.release(target, ref)

    def close(self) -> None:
        """End every process. It is safe to call at any time, even after a signal."""
        self._closed = True
        for promise in self._planned.values():
            promise.cancel()
        self._processes.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _key(job: Job) -> _Key:
    return job.recipe.bug_id, str(job.recipe.path), job.ref
