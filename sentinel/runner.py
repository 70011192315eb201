"""From a recipe and a ref to a decision: checkout, worker, observation, verdict. Several refs at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from sentinel import verdicts
from sentinel.catalog import Catalog
from sentinel.checkout import Checkout
from sentinel.errors import Unavailable
from sentinel.invariants.invariant import Case, Invariant
from sentinel.outcomes import Decision, Environment, Failure, Measurement, Provenance, Verdict
from sentinel.recipes import Recipe
from sentinel.refs import Ref
from sentinel.search.bench import Bench, Subject, Undecidable
from sentinel.targets import Binding, StandIn, Target
from sentinel.worker.client import Options, TargetProcess, WorkerError, Zygote, flags

#: How a runner gets a checkout; raises :class:`~sentinel.errors.Unavailable`.
OpenCheckout = Callable[[Target, Ref, "int | None"], Checkout]


@dataclass(frozen=True)
class Job:
    """One question: what is this recipe's verdict at this ref?

    :ivar expect: what the pin expects, or None.
    """

    recipe: Recipe
    ref: Ref
    expect: str | None = None


@dataclass(frozen=True)
class Ground:
    """One target at one ref, ready for a search.

    :ivar adapter: the digest of the adapter file.
    """

    target: str
    ref: Ref
    checkout: Checkout
    environment: Environment
    adapter: str
    bench: Bench


class Runner:
    """Answers jobs. Create one for a run, :meth:`close` it at the end.

    :param open_checkout: how code is had.
    :param options: how probes run; ``options_for`` may give other ones for a target (``--sentinel-python``).
    """

    def __init__(
        self,
        catalog: Catalog,
        open_checkout: OpenCheckout,
        options: Options,
        options_for: Mapping[str, Options] | None = None,
    ) -> None:
        self._catalog = catalog
        self._open_checkout = open_checkout
        self._options = options
        self._options_for = dict(options_for or {})
        self._zygotes: dict[str | None, Zygote] = {}
        self._lock = Lock()
        self._processes: dict[tuple[str, Ref], _Loaded] = {}
        self._planned: dict[tuple[str, str, Ref], Future[Decision]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._oracles: dict[str, TargetProcess] = {}
        self._closed = False

    def start(self, targets: Iterable[str]) -> None:
        """Begin to load torch and the packages that these targets use; returns at once."""
        for name in targets:
            self._zygote(name, targets).start()

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
        for job, promise in zip(group, promises):
            if self._closed or not promise.set_running_or_notify_cancel():
                continue
            try:
                promise.set_result(self._decide(job))
            except BaseException as error:
                promise.set_exception(error)
        self._discard(group[0].recipe.target, group[0].ref)

    def decide(self, job: Job) -> Decision:
        """The decision of a job, from the plan where it is there.

        :raises WorkerError: where the worker itself does not run.
        """
        promise = self._planned.pop(_key(job), None)
        return promise.result() if promise is not None else self._decide(job)

    def close(self) -> None:
        """End every process. Safe in any state, from a signal's aftermath too."""
        self._closed = True
        for promise in self._planned.values():
            promise.cancel()
        with self._lock:
            loaded, self._processes = list(self._processes.values()), {}
            oracles, self._oracles = list(self._oracles.values()), {}
            zygotes, self._zygotes = list(self._zygotes.values()), {}
        for process in (*(item.process for item in loaded), *oracles):
            process.close()
        for zygote in zygotes:
            zygote.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def ground(self, target: str, ref: Ref, bindings: Sequence[Binding]) -> Ground:
        """Where a search can take place: the checkout, and processes that have imported these bindings' modules.

        :raises Unavailable: where the ref cannot be had.
        :raises WorkerError: where the worker itself does not run.
        """
        adapter = self._catalog.adapters[target]
        checkout = self._open_checkout(adapter.target, ref, None)
        environment = self._environment(target)
        loaded = self._loaded(adapter.target, ref, checkout)
        for binding in bindings:
            loaded.load(binding.boundary, binding.contract, self._contract_file(binding.contract))

        def consulted() -> TargetProcess:
            with self._lock:
                process = self._oracles.get(target)
            if process is None or process.dead is not None:
                process = self._zygote(target, [target]).oracle()
                with self._lock:
                    self._oracles[target] = process
            return process

        return Ground(target, ref, checkout, environment, adapter.digest, Bench(loaded.alive, consulted))

    def _contract_file(self, name: str) -> str:
        return self._catalog.contracts[name].measure.__code__.co_filename

    # -- one job ------------------------------------------------------------------------------------------------------

    def _decide(self, job: Job) -> Decision:
        recipe = job.recipe
        adapter = self._catalog.adapters[recipe.target]
        try:
            checkout = self._open_checkout(adapter.target, job.ref, recipe.upstream.get("pull"))
        except Unavailable as error:
            failure = Failure(error.kind, error.reason)
            return Decision(recipe, job.ref, verdicts.of_failure(failure), job.expect, failure=failure)
        environment = self._environment(recipe.target)
        answer = self._loaded(adapter.target, job.ref, checkout).probe(recipe.boundary, self._request(recipe))
        outcome = read_answer(answer, checkout)
        law = None
        comparisons: Any = ()
        if isinstance(outcome, Failure):
            verdict = verdicts.of_failure(outcome)
        elif recipe.expected_unpatched or recipe.expected_fixed:
            verdict, comparisons = verdicts.by_expectation(recipe, outcome.observation)
        else:
            law = str(recipe.invariant)
            verdict, comparisons, outcome = self._by_law(law, job, checkout, outcome)
        return Decision(
            recipe,
            job.ref,
            verdict,
            job.expect,
            checkout,
            outcome if isinstance(outcome, Measurement) else None,
            outcome if isinstance(outcome, Failure) else None,
            comparisons,
            environment,
            law,
            adapter.digest,
        )

    def _by_law(
        self, law: str, job: Job, checkout: Checkout, measured: Measurement
    ) -> tuple[Verdict, Any, Measurement | Failure]:
        recipe, invariant = job.recipe, self._catalog.invariants[law]
        contract = self._catalog.contracts[recipe.contract]
        effects: Mapping[str, Mapping[str, Any]] = {}
        if invariant.needs_oracle and contract.oracle is not None:
            process = self._zygote(recipe.target, [recipe.target]).oracle()
            try:
                answer = process.probe({**self._request(recipe), "op": "oracle"})
            finally:
                process.close()
            if "failure" in answer:
                failure = Failure(
                    "harness", f"the oracle failed: {answer['failure']['reason']}", answer["failure"]["traceback"]
                )
                return verdicts.of_failure(failure), (), failure
            measured = replace(measured, oracle=answer["observation"])
        if invariant.watches or invariant.twin:
            found = self._in_session(invariant, job, checkout)
            if isinstance(found, Failure):
                return verdicts.of_failure(found), (), found
            effects = found.effects
            measured = replace(measured, observation=found.observation)
        verdict, comparisons = verdicts.by_law(invariant, recipe, measured, contract, effects)
        return verdict, comparisons, measured

    def _in_session(self, invariant: Invariant, job: Job, checkout: Checkout) -> Case | Failure:
        """What a probe does not tell: what a call did beside answering, and what the boundary's twin answers."""
        recipe, adapter = job.recipe, self._catalog.adapters[job.recipe.target]
        contract = self._catalog.contracts[recipe.contract]
        binding = adapter.target.binding(recipe.boundary, recipe.contract)
        if binding is None or (invariant.twin and not binding.twins):
            return Failure("law", f"the adapter names no twin of {recipe.boundary}")
        subject = Subject(binding, contract, (invariant,), self._contract_file(recipe.contract), str(adapter.file))
        loaded = self._loaded(adapter.target, job.ref, checkout)
        zygote = self._zygote(recipe.target, [recipe.target])
        bench = Bench(loaded.alive, zygote.oracle)
        try:
            trial = bench.try_(subject, {invariant: recipe.variants})[invariant]
        except Undecidable as error:
            return Failure(str(error.failure["kind"]), str(error), str(error.failure["traceback"]))
        finally:
            bench.close()
        if trial.case is None:
            return Failure("raised" if trial.refused else "law", trial.refused or trial.silent)
        return trial.case

    def _request(self, recipe: Recipe) -> dict[str, Any]:
        adapter, contract = self._catalog.adapters[recipe.target], self._catalog.contracts[recipe.contract]
        binding = adapter.target.binding(recipe.boundary, recipe.contract)
        given = {name for inputs in recipe.variants.values() for name in inputs} - set(recipe.defaulted)
        # What says which boundary it is, or how it differs, is for the oracle: the boundary needs no parameter for it.
        given -= {item.name for item in contract.inputs if item.dialect} | set(binding.fixed if binding else ())
        return {
            "boundary": recipe.boundary,
            "contract": recipe.contract,
            "contract_file": self._contract_file(recipe.contract),
            "adapter": str(adapter.file),
            "requires": list(recipe.requires),
            "given": sorted(given),
            "variants": {name: dict(inputs) for name, inputs in recipe.variants.items()},
        }

    # -- processes ----------------------------------------------------------------------------------------------------

    def _zygote(self, target: str, targets: Iterable[str]) -> Zygote:
        options = self._options_for.get(target, self._options)
        with self._lock:
            if self._closed:
                raise WorkerError("the run has ended")  # else a job under way would start another worker
            if options.python not in self._zygotes:
                names = dict.fromkeys([*targets, target])
                preload = [name for item in names for name in self._catalog.adapters[item].target.preload]
                self._zygotes[options.python] = Zygote(options, preload)
            return self._zygotes[options.python]

    def _environment(self, target: str) -> Environment:
        options = self._options_for.get(target, self._options)
        wanted = self._catalog.adapters[target].target.preload
        hello = self._zygote(target, [target]).require(wanted)
        return Environment(
            python=hello["python"],
            torch=hello["torch"],
            numpy=hello["numpy"],
            platform=hello["platform"],
            device=options.device,
            sandbox=options.sandbox,
            flags=flags(),
            packages={name: hello["packages"][name] for name in wanted if hello["packages"].get(name)},
        )

    def _loaded(self, target: Target, ref: Ref, checkout: Checkout) -> _Loaded:
        with self._lock:
            loaded = self._processes.get((target.name, ref))
        if loaded is None:
            zygote = self._zygote(target.name, [target.name])
            # A package that this checkout lacks (a release ships it apart) is a third party's, and may be a ghost.
            packages = [root.package for root in target.roots if root.path in checkout.roots]
            loaded = _Loaded(lambda: zygote.target(checkout, packages), target, self._catalog)
            with self._lock:
                self._processes[target.name, ref] = loaded
        return loaded

    def _discard(self, target: str, ref: Ref) -> None:
        with self._lock:
            loaded = self._processes.pop((target, ref), None)
        if loaded is not None:
            loaded.process.close()


def _key(job: Job) -> tuple[str, str, Ref]:
    return job.recipe.bug_id, str(job.recipe.path), job.ref


class _Loaded:
    """A target process and what it has imported so far; replaced where an import brought it down."""

    def __init__(self, fork: Callable[[], TargetProcess], target: Target, catalog: Catalog) -> None:
        self._fork = fork
        self._target = target
        self._adapter = str(catalog.adapters[target.name].file)
        self._seen: set[tuple[str, str]] = set()
        self.process = fork()

    def load(self, boundary: str, contract: str, contract_file: str) -> None:
        """Import what a boundary needs, once."""
        if (boundary, contract) not in self._seen:
            self._seen.add((boundary, contract))
            binding = self._target.binding(boundary, contract)
            paths = [*binding.paths, *binding.imports] if binding else [boundary]
            self.alive().load(paths, self._adapter, contract_file, contract)

    def alive(self) -> TargetProcess:
        """The process, or another one where it was brought down.

        What brought it down is met again inside a probe, where it harms nobody else and is described.
        """
        if self.process.dead is not None:
            self.process = self._fork()
        return self.process

    def probe(self, boundary: str, request: Mapping[str, Any]) -> dict[str, Any]:
        self.load(boundary, request["contract"], request["contract_file"])
        answer = self.alive().probe(request)
        if self.process.dead is not None and answer["failure"]["kind"] == "crash":
            # Another ref's code may have killed the zygote, and this process with it; what falls twice fell by itself.
            self.process = self._fork()
            answer = self.process.probe(request)
        return answer


def read_answer(answer: Mapping[str, Any], checkout: Checkout) -> Measurement | Failure:
    """A worker's answer as a measurement whose provenance was proven here, or as a failure."""
    try:
        if "failure" in answer:
            failure = answer["failure"]
            proven = failure.get("provenance")
            return Failure(
                str(failure["kind"]),
                str(failure["reason"]),
                str(failure["traceback"]),
                prove(proven, checkout) if proven else None,
            )
        return Measurement(
            {str(variant): dict(values) for variant, values in answer["observation"].items()},
            prove(answer["provenance"], checkout),
            tuple(map(str, answer["ghosts"])),
            tuple(StandIn(str(name), str(reason)) for name, reason in answer["stand_ins"]),
        )
    except NotProvenError as error:
        return Failure("drift", str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Failure("crash", f"the probe's answer has not the form of one: {error!r}")


class NotProvenError(Exception):
    """What was measured is not the checkout's code."""


def prove(claim: Mapping[str, Any], checkout: Checkout) -> Provenance:
    """Check that the measured code lies in the checkout, as it was put there, and take its blob id from the file."""
    from sentinel.sources.checkouts import files as made_with
    from sentinel.sources.trees import blob_id

    base = checkout.path.resolve()
    files = [Path(str(claim[name])).resolve() for name in ("module_file", "file")]
    for file in files:
        if not file.is_relative_to(base) or not file.is_file():
            raise NotProvenError(f"{claim['boundary']} was not loaded from the checkout but from {file.name}")
    content = files[1].read_bytes()
    blob = blob_id(content)
    name = files[1].relative_to(base).as_posix()
    if blob != made_with(checkout).get(name):
        raise NotProvenError(f"{name} is not what the checkout was made with; code that ran in it changed the file")
    return Provenance(
        boundary=str(claim["boundary"]),
        module=str(claim["module"]),
        file=name,
        line=int(claim["line"]),
        blob=blob,
        signature=str(claim["signature"]),
    )
