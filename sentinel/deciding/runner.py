"""From a recipe and a ref to a decision: checkout, worker, observation, verdict. Several refs at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.deciding import verdicts
from sentinel.deciding.absence import Absence, absence
from sentinel.deciding.law_session import LawSession, Subject, Undecidable
from sentinel.deciding.open_target import OpenTarget
from sentinel.deciding.outcomes import Decision, Failure, Measurement, Observation, Verdict
from sentinel.deciding.pool import Loaded, Processes
from sentinel.deciding.proof import read_answer
from sentinel.deciding.repetition import Repetition, same
from sentinel.errors import SentinelError, Unavailable
from sentinel.laws.law import Case, Law
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.settings import Settings
from sentinel.sources import MirrorStore, Progress, open_checkout
from sentinel.targets import Binding, Target
from sentinel.targets.checkout import Checkout
from sentinel.targets.refs import Ref
from sentinel.worker import interpreters
from sentinel.worker.answers import Failed, Measured, Reply
from sentinel.worker.client import Options

#: How a runner gets a checkout; raises :class:`~sentinel.errors.Unavailable`.
OpenCheckout = Callable[[Target, Ref, "int | None"], Checkout]


#: Run in a process of its own: asking torch about CUDA must not happen here, nor in a process that forks.
_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def runner_of(
    catalog: Catalog,
    settings: Settings,
    tell: Progress | None = None,
    store: MirrorStore | None = None,
    opened: OpenCheckout | None = None,
) -> Runner:
    """Make a runner that honours every setting; ``opened`` gives code where not as the settings say."""
    options_for = {name: options_of(settings, name) for name in catalog.adapters}
    return Runner(catalog, opened or opener(settings, tell, store), Options(), options_for)


def opener(
    settings: Settings,
    tell: Progress | None = None,
    store: MirrorStore | None = None,
) -> OpenCheckout:
    """Make the function that has a target's code as the settings say: from which fork, for which interpreter."""
    store = store or MirrorStore()

    def opened(target: Target, ref: Ref, pull: int | None) -> Checkout:
        python, url = settings.python_of(target.name), settings.url_of(target.name)
        return open_checkout(target, ref, store=store, pull=pull, python=python, url=url, progress=tell)

    return opened


def options_of(settings: Settings, target: str) -> Options:
    """Give the options with which probes of a target run, where its device is here."""
    python = settings.python_of(target)
    if settings.device != "cpu":
        _require_gpu(settings.device, python)
    return Options(timeout=settings.timeout, sandbox=settings.sandbox, device=settings.device, python=python)


@cache
def _gpus_of(python: str | None) -> int:
    return int(interpreters.ask(python, "-I", "-c", _GPUS, devices=interpreters.gpus()))


def _require_gpu(device: str, python: str | None) -> None:
    count = _gpus_of(python)
    if int(device.partition(":")[2] or 0) >= count:
        have = f"there {'is' if count == 1 else 'are'} {count} here" if count else "torch finds no CUDA device here"
        raise SentinelError(f"cannot probe on {device}: {have}; leave --sentinel-device out, or write cpu")


@dataclass(frozen=True)
class Job:
    """One question: what is this recipe's verdict at this ref? ``expect`` is what the pin expects, or None."""

    recipe: Recipe
    ref: Ref
    expect: str | None = None


@dataclass(frozen=True)
class _Agreement:
    """An answer that two processes gave, each with other questions before it; ``seconds`` are its share of their
    time."""

    answer: Measured
    reordered: bool
    seconds: float
    checkout: Checkout


#: Questions that one process answers, and seconds for all of them: what hangs is found out when it is asked alone.
_TOGETHER = 32
_ALL_TOGETHER = 20.0

#: Pins whose checkouts are opened to see what a function was that a revision lacks, at most.
_KNOWN = 3


class Runner:
    """Answers jobs. Create one for a run, :meth:`close` it at the end.

    :param options: how probes run; ``options_for`` may give other ones for a target (``--sentinel-python``).
    :param repeat: whether each question is asked twice: see :mod:`sentinel.deciding.repetition`.
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
        self._planned: dict[tuple[str, str, Ref], Future[Decision]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._began: dict[tuple[str, str, Ref], float] = {}
        self._seconds: dict[tuple[str, str, Ref], float] = {}

    def start(self, targets: Iterable[str]) -> None:
        """Begin to load torch and the packages that these targets use; returns at once."""
        for name in targets:
            self._processes.zygote(name, targets).start()

    def plan(self, jobs: Sequence[Job]) -> None:
        """Work on these jobs ahead of :meth:`decide`, one (target, ref) a core, in their order."""
        groups: dict[tuple[str, Ref], list[Job]] = {}
        for job in jobs:
            groups.setdefault((job.recipe.target, job.ref), []).append(job)
        self._pool = ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1), thread_name_prefix="sentinel")
        for group in groups.values():
            promises: list[Future[Decision]] = [Future() for _ in group]
            self._planned.update({_key(job): promise for job, promise in zip(group, promises)})
            self._pool.submit(self._work, group, promises)

    def _work(self, group: Sequence[Job], promises: Sequence[Future[Decision]]) -> None:
        together: dict[tuple[str, str, Ref], _Agreement] = {}
        for index, (job, promise) in enumerate(zip(group, promises)):
            if self._closed or not promise.set_running_or_notify_cancel():
                continue
            try:
                if index % _TOGETHER == 0:
                    together = self._measured_together(group[index : index + _TOGETHER])
                promise.set_result(self._timed(job, together.get(_key(job))))
            except BaseException as error:
                promise.set_exception(error)
        self._processes.discard(group[0].recipe.target, group[0].ref)

    def _measured_together(self, jobs: Sequence[Job]) -> dict[tuple[str, str, Ref], _Agreement]:
        """Measure questions about one checkout in one process, and once more in a second one, in the opposite order and
        with another seed. No question comes before the same other in both, so what one leaves behind shows.

        Where the two disagree, or one of them does not come to its end, there is nothing here, and the question is
        asked in processes of its own.
        """
        agreements: dict[tuple[str, str, Ref], _Agreement] = {}
        if len(jobs) < 2 or not self._repeat:
            return agreements
        adapter = self._catalog.adapters[jobs[0].recipe.target]
        try:
            self._processes.environment(adapter.target.name)
            began = time.monotonic()
            checkout = self._open_checkout(adapter.target, jobs[0].ref, jobs[0].recipe.upstream.get("pull"))
            loaded = self._processes.loaded(adapter.target, jobs[0].ref, checkout)
            alive = [job for job in jobs if loaded.hangs.failure(job.recipe.boundary) is None]
            questions = [
                (job, Repetition(self._request(job.recipe), self._contract(job))) for job in _without_a_middle(alive)
            ]
            first = loaded.probes([self._request(job.recipe) for job, _ in questions], _ALL_TOGETHER)
            if not first:
                return agreements
            order = range(len(questions) - 1, -1, -1)  # what came before a question comes after it
            second = loaded.probes([questions[index][1].request for index in order], _ALL_TOGETHER)
        except SentinelError:  # each question meets it by itself, and says so
            return agreements
        again = dict(zip(order, second))
        share = (time.monotonic() - began) / len(questions)
        for index, (job, repetition) in enumerate(questions):
            one, other = first[index], again.get(index)
            if not isinstance(one, Measured) or not isinstance(other, Measured):
                continue
            if same(one.observation, repetition.made_out(other.observation)):
                reordered = repetition.rows_are_a_set(other.observation, one.observation)
                agreements[_key(job)] = _Agreement(one, reordered, share, checkout)
        return agreements

    def decide(self, job: Job) -> Decision:
        """Give the decision of a job, from the plan where it is there."""
        promise = self._planned.pop(_key(job), None)
        return promise.result() if promise is not None else self._timed(job)

    def calls(self, job: Job) -> Mapping[str, Any]:
        """Return the calls of the boundary's own function, by variant (:mod:`sentinel.worker.recording`).

        Empty if the boundary cannot be called at this revision.
        """
        recipe, adapter = job.recipe, self._catalog.adapters[job.recipe.target]
        checkout = self._open_checkout(adapter.target, job.ref, recipe.upstream.get("pull"))
        loaded = self._processes.loaded(adapter.target, job.ref, checkout)
        answer = loaded.probe(recipe.boundary, {**self._request(recipe), "record": True})
        if isinstance(answer, Failed):
            return {}
        return {variant: observed.get("calls") for variant, observed in answer.observation.items()}

    def seconds(self, job: Job) -> float:
        """Say how long a job took that was decided: without the wait for others, and for torch to be loaded once."""
        return self._seconds[_key(job)]

    def _timed(self, job: Job, twice: _Agreement | None = None) -> Decision:
        self._began[_key(job)] = time.monotonic()
        try:
            return self._decide(job, twice)
        finally:
            before = twice.seconds if twice else 0.0
            self._seconds[_key(job)] = before + time.monotonic() - self._began[_key(job)]

    def close(self) -> None:
        """End every process. Safe in any state, from a signal's aftermath too."""
        self._closed = True
        for promise in self._planned.values():
            promise.cancel()
        self._processes.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def discard(self, target: str, ref: Ref) -> None:
        """End the process of a target at a ref, though a search had it; the next job starts a fresh one."""
        self._processes.release(target, ref)

    def checkout(self, target: str, ref: Ref, pull: int | None = None) -> Checkout:
        """Return a target's code at a ref.

        :param pull: the pull request to fetch if the mirror lacks the commit.
        """
        return self._open_checkout(self._catalog.adapters[target].target, ref, pull)

    def require_python(self, target: str) -> None:
        """Start the interpreter in which a target is probed.

        :raises SentinelError: if it does not start, or lacks torch or numpy.
        """
        self._processes.environment(target)

    def open_target(self, target: str, ref: Ref, bindings: Sequence[Binding]) -> OpenTarget:
        """Open the place of a search: the checkout, and processes that have imported these bindings' modules, and
        import others as they are asked to."""
        adapter = self._catalog.adapters[target]
        checkout = self.checkout(target, ref)
        environment = self._processes.environment(target)
        self._processes.hold(target, ref)  # recipes planned for the same place may end at any moment
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

    # -- one job ------------------------------------------------------------------------------------------------------

    def _decide(self, job: Job, twice: _Agreement | None = None) -> Decision:
        recipe = job.recipe
        adapter = self._catalog.adapters[recipe.target]
        try:
            pull = recipe.upstream.get("pull")
            checkout = twice.checkout if twice else self._open_checkout(adapter.target, job.ref, pull)
        except Unavailable as error:
            failure = Failure(error.kind, error.reason)
            return Decision(recipe, job.ref, verdicts.of_failure(failure), job.expect, failure=failure)
        environment = self._processes.environment(recipe.target)
        self._began[_key(job)] = time.monotonic()
        loaded = self._processes.loaded(adapter.target, job.ref, checkout)
        answer = twice.answer if twice else loaded.probe(recipe.boundary, self._request(recipe))
        lack = self._absence(answer, job, checkout)
        if lack is not None and lack.moved:
            loaded.follow(lack.moved, recipe.contract, self._contract(job).file)
            answer, lack = loaded.probe(recipe.boundary, self._request(recipe)), None
        outcome = read_answer(answer, checkout, self._processes.sources(recipe.target), recipe.requires)
        if lack is not None and isinstance(answer, Failed):
            outcome = Failure("drift", lack.told(answer.reason), absent=True)
        observed = outcome.observation if isinstance(outcome, Measurement) else None
        law = None
        comparisons: Any = ()
        if isinstance(outcome, Failure):
            outcome = self._processes.explain(recipe.target, outcome)
            verdict = verdicts.of_failure(outcome)
        elif recipe.has_values:
            verdict, comparisons = verdicts.by_expectation(recipe, outcome.observation)
        else:
            law = str(recipe.invariant)
            verdict, comparisons, outcome = self._by_law(law, job, checkout, outcome)
        if twice is not None and isinstance(outcome, Measurement):
            outcome = replace(outcome, repeated="same values", reordered=twice.reordered)
        elif self._repeat and observed is not None and isinstance(outcome, Measurement):
            verdict, outcome = self._again(job, loaded, observed, verdict, outcome)
        measured = outcome if isinstance(outcome, Measurement) else None
        failed = outcome if isinstance(outcome, Failure) else None
        decision = Decision(recipe, job.ref, verdict, job.expect, checkout, measured, failed, comparisons, environment)
        return replace(decision, law=law, adapter=adapter.digest)

    def _absence(self, answer: Measured | Failed, job: Job, checkout: Checkout) -> Absence | None:
        """Return what a checkout lacks, where the boundary or an option of it was not found."""
        if isinstance(answer, Measured) or answer.kind != "drift":
            return None
        if answer.provenance is not None and not answer.unknown_input:
            return None
        recipe = job.recipe
        binding = self._catalog.adapters[recipe.target].target.binding(recipe.boundary, recipe.contract)
        binding = binding or Binding(recipe.boundary, recipe.contract)
        binding = replace(binding, requires=recipe.requires)
        return self.absence(
            recipe.target, binding, checkout, self.known(recipe.target, (recipe,)), answer.unknown_input
        )

    def absence(
        self, target: str, binding: Binding, checkout: Checkout, older: Iterable[Checkout], option: str = ""
    ) -> Absence | None:
        """Return what the text of a checkout lacks of a binding.

        :param older: checkouts at which it is known to work.
        :param option: an input that the boundary is said to have no parameter for.
        """
        return absence(binding, checkout, self._processes.sources(target), older, option)

    def known(self, target: str, recipes: Iterable[Recipe]) -> Iterator[Checkout]:
        """Give the checkouts of the last pins of these recipes, as far as they can be had here."""
        refs = (pin.ref for recipe in recipes for pin in recipe.pins[::-1])
        for ref in islice(refs, _KNOWN):
            with suppress(SentinelError):
                yield self.checkout(target, ref)

    def follow(self, target: str, ref: Ref, moved: Mapping[str, str], contract: str) -> None:
        """Look for names that have moved where they are at a ref, in every session from now on."""
        loaded = self._processes.loaded(self._catalog.adapters[target].target, ref, self.checkout(target, ref))
        loaded.follow(moved, contract, self._catalog.contracts[contract].file)

    def _again(
        self, job: Job, loaded: Loaded, observed: Observation, verdict: Verdict, measured: Measurement
    ) -> tuple[Verdict, Measurement]:
        """Ask once more; an answer that leads elsewhere decides nothing."""
        recipe = job.recipe
        repetition = Repetition(self._request(recipe), self._contract(job))
        answer = loaded.probe(recipe.boundary, repetition.request)
        if isinstance(answer, Failed) and repetition.reordered:  # a boundary may honestly refuse another order
            repetition = Repetition(self._request(recipe))
            answer = loaded.probe(recipe.boundary, repetition.request)
        if isinstance(answer, Failed):
            return _unsteady(f"there was no answer: {answer.reason}"), measured
        other = repetition.made_out(answer.observation)
        measured = replace(measured, reordered=repetition.rows_are_a_set(answer.observation, observed))
        if same(observed, other):
            return verdict, replace(measured, repeated="same values")
        again = replace(measured, observation=other)
        if recipe.has_values:
            second = verdicts.by_expectation(recipe, other)[0]
        else:
            invariant = self._catalog.laws[str(recipe.invariant)]
            second = verdicts.by_law(invariant, recipe, again, self._catalog.contracts[recipe.contract])[0]
        if second.name != verdict.name:
            return _unsteady(f"the values were others, and would be {second.name}: {second.reason}"), measured
        return verdict, replace(measured, repeated="same verdict")

    def _by_law(
        self, law: str, job: Job, checkout: Checkout, measured: Measurement
    ) -> tuple[Verdict, Any, Measurement | Failure]:
        recipe, invariant = job.recipe, self._catalog.laws[law]
        contract = self._catalog.contracts[recipe.contract]
        effects: Mapping[str, Mapping[str, Any]] = {}
        if invariant.needs_oracle and contract.oracle is not None:
            oracle = self._consult(recipe)
            if isinstance(oracle, Failure):
                return verdicts.of_failure(oracle), (), oracle
            measured = replace(measured, oracle=oracle)
        if invariant.watches or invariant.twin:
            case = self._in_session(invariant, job, checkout)
            if isinstance(case, Failure):
                return verdicts.of_failure(case), (), case
            effects = case.effects
            measured = replace(measured, observation=case.observation, questions=None)  # sessions do not tell
        verdict, comparisons = verdicts.by_law(invariant, recipe, measured, contract, effects)
        return verdict, comparisons, measured

    def _consult(self, recipe: Recipe) -> Observation | Failure:
        """Ask the contract's reference for the recipe's variants."""
        calls = {name: {"inputs": dict(inputs)} for name, inputs in recipe.variants.items()}
        reply = self._processes.references(recipe.target).consult({**self._request(recipe), "calls": calls})
        answers = {"": Reply(refused=reply)} if isinstance(reply, Failed) else reply.answers
        for answer in answers.values():
            if answer.observation is None:
                failure = answer.refused or Failed("harness", answer.silent)
                return Failure("harness", f"the oracle failed: {failure.reason}", failure.traceback)
        return {name: answers[name].observation or {} for name in calls}

    def _in_session(self, invariant: Law, job: Job, checkout: Checkout) -> Case | Failure:
        """Measure what a probe does not tell: what a call did beside answering, and what the boundary's twin
        answers."""
        recipe, adapter = job.recipe, self._catalog.adapters[job.recipe.target]
        contract = self._catalog.contracts[recipe.contract]
        binding = adapter.target.binding(recipe.boundary, recipe.contract)
        if binding is None or (invariant.twin and not binding.twins):
            return Failure("law", f"the adapter names no twin of {recipe.boundary}")
        subject = Subject(binding, contract, (invariant,), str(adapter.file))
        loaded = self._processes.loaded(adapter.target, job.ref, checkout)
        law_session = LawSession(loaded.alive, self._processes.references(recipe.target), hangs=loaded.hangs)
        try:
            [trial] = law_session.try_(
                subject, [(invariant, recipe.variants)], scenario_inputs=self._request(recipe)["given"]
            )
        except Undecidable as error:
            return Failure(error.failure.kind, str(error), error.failure.traceback)
        finally:
            law_session.close()
        if trial.case is None:
            return Failure("raised" if trial.refused else "law", trial.refused or trial.silent)
        return trial.case

    def _contract(self, job: Job) -> Contract:
        return self._catalog.contracts[job.recipe.contract]

    def _request(self, recipe: Recipe) -> dict[str, Any]:
        adapter, contract = self._catalog.adapters[recipe.target], self._catalog.contracts[recipe.contract]
        binding = adapter.target.binding(recipe.boundary, recipe.contract)
        return {
            "boundary": recipe.boundary,
            "contract": recipe.contract,
            "contract_file": contract.file,
            "adapter": str(adapter.file),
            "requires": list(recipe.requires),
            "given": recipe.scenario_inputs(contract, binding.fixed if binding else ()),
            "variants": {name: dict(inputs) for name, inputs in recipe.variants.items()},
        }


def _without_a_middle(jobs: Sequence[Job]) -> list[Job]:
    """Leave out the middle one of an odd number of questions about one boundary: as many come before it in either
    order, so that a boundary that counts its calls would answer it alike."""
    of_boundary: dict[str, list[Job]] = {}
    for job in jobs:
        of_boundary.setdefault(job.recipe.boundary, []).append(job)
    middles = {id(same[len(same) // 2]) for same in of_boundary.values() if len(same) > 1 and len(same) % 2}
    return [job for job in jobs if id(job) not in middles]


def _unsteady(what: str) -> Verdict:
    reason = f"in a second process, with another seed and the variants in another order, {what}"
    return Verdict("inconclusive", reason, "unsteady")


def _key(job: Job) -> tuple[str, str, Ref]:
    return job.recipe.bug_id, str(job.recipe.path), job.ref
