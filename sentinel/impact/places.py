"""Call a boundary: at a revision, through the worker; or, where no revision is right, the contract's reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sentinel.contracts.contract import Inputs
from sentinel.deciding.law_session import LawSession, Subject, Undecidable
from sentinel.deciding.outcomes import Observation
from sentinel.deciding.runner import Job, Runner
from sentinel.errors import SentinelError
from sentinel.impact.setup import NotTakenError
from sentinel.impact.training import Observe
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Catalog
from sentinel.search.examples import example
from sentinel.targets.refs import Ref

#: What ``--head`` calls it.
REFERENCE = "reference"


@dataclass(frozen=True)
class Place:
    """Hold base, or head.

    :ivar ref: as the user writes it; :data:`REFERENCE` for the contract's own.
    :ivar short: as it is shown.
    :ivar revision: the commit, version or digest of the tree; empty for the reference.
    :ivar verdict: of the recipe there; empty for the reference, which is no code of upstream's.
    :ivar variants: the recipe's scenario as it was asked there.
    :ivar observation: what was observed on it.
    :ivar observe: calls the boundary on other inputs.
    :ivar law_sessions: the session in which it does, where it has begun to; :meth:`close` ends it.
    """

    ref: str
    short: str
    revision: str
    verdict: str
    variants: Mapping[str, Inputs]
    observation: Observation
    observe: Observe
    law_sessions: list[LawSession]

    def close(self) -> None:
        for law_session in self.law_sessions:
            law_session.close()


def subject_of(recipe: Recipe, catalog: Catalog) -> Subject:
    """:raises SentinelError: where the recipe's boundary is not in the adapter's table."""
    adapter, contract = catalog.adapters[recipe.target], catalog.contracts[recipe.contract]
    binding = adapter.target.binding(recipe.boundary, recipe.contract)
    if binding is None:
        raise SentinelError(f"{recipe.boundary} is not bound to {recipe.contract} in the adapter {recipe.target}")
    return Subject(binding, contract, (), str(adapter.file), recipe.boundary)


def at_revision(runner: Runner, catalog: Catalog, recipe: Recipe, ref: Ref) -> Place:
    """:raises SentinelError: where the recipe cannot be decided at the revision."""
    decision = runner.decide(Job(recipe, ref))
    if decision.measurement is None or decision.checkout is None:
        raise SentinelError(f"{recipe.bug_id} at {ref.short}: {decision.verdict.reason}")
    law_sessions: list[LawSession] = []
    refused = f"{recipe.boundary} at {ref.short} does not take a batch of training"

    def ask(calls: Mapping[str, Inputs]) -> Mapping[str, Any]:
        subject = subject_of(recipe, catalog)
        if not law_sessions:
            law_sessions.append(runner.open_target(recipe.target, ref, [subject.binding]).law_session)
        return law_sessions[0].observe(subject, calls, recipe.given(subject.contract, subject.binding.fixed))

    checkout = decision.checkout
    revision = checkout.commit or checkout.version or checkout.tree
    observation = decision.measurement.observation
    observe = _or_not_taken(ask, refused)
    return Place(
        str(ref), ref.short, revision, decision.verdict.name, recipe.variants, observation, observe, law_sessions
    )


def at_reference(runner: Runner, catalog: Catalog, recipe: Recipe, base: Ref) -> Place:
    """:param base: whose process answers; no code of it runs.
    :raises SentinelError: where the contract has no reference, or that has no answer."""
    subject = subject_of(recipe, catalog)
    if subject.contract.oracle is None:
        raise SentinelError(f"the contract {subject.contract.name} has no reference; name a revision with --head REF")
    law_session = runner.open_target(recipe.target, base, [subject.binding]).law_session
    silent = "the contract's reference has no answer (name a revision with --head REF)"
    observe = _or_not_taken(lambda calls: law_session.consult(subject, calls), silent)
    variants = example(subject, recipe).variants
    return Place(REFERENCE, "the contract's reference", "", "", variants, observe(variants), observe, [law_session])


def _or_not_taken(ask: Callable[[Mapping[str, Inputs]], Mapping[str, Any]], otherwise: str) -> Observe:
    def observe(calls: Mapping[str, Inputs]) -> Mapping[str, Any]:
        try:
            return ask(calls)
        except Undecidable as error:
            raise NotTakenError(f"{otherwise}: {error}") from error

    return observe
