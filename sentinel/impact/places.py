"""Where a boundary is called: at a revision, through the worker; or, where no revision is right, the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.catalog import Catalog
from sentinel.errors import SentinelError, Unavailable
from sentinel.impact.scenes import entered
from sentinel.impact.training import Observe
from sentinel.invariants.invariant import Inputs
from sentinel.recipes import Recipe
from sentinel.refs import Ref
from sentinel.runner import Runner
from sentinel.search.bench import Bench, Subject, Undecidable
from sentinel.search.examples import example
from sentinel.search.scenarios import with_dialects

#: What ``--head`` calls it.
REFERENCE = "reference"


class NotTakenError(SentinelError):
    """A boundary, or a reference, has no answer for a batch of training."""


@dataclass(frozen=True)
class Place:
    """Base, or head.

    :ivar ref: as the user writes it; :data:`REFERENCE` for the contract's own.
    :ivar short: as it is shown.
    :ivar revision: the commit, version or digest of the tree; empty for the reference.
    :ivar observe: calls the boundary there.
    """

    ref: str
    short: str
    revision: str
    observe: Observe
    bench: Bench


def subject_of(recipe: Recipe, catalog: Catalog) -> Subject:
    """:raises SentinelError: where the recipe's boundary is not in the adapter's table."""
    adapter, contract = catalog.adapters[recipe.target], catalog.contracts[recipe.contract]
    binding = adapter.target.binding(recipe.boundary, recipe.contract)
    if binding is None:
        raise SentinelError(f"{recipe.boundary} is not bound to {recipe.contract} in the adapter {recipe.target}")
    return Subject(binding, contract, (), str(adapter.file), recipe.boundary)


def variants_of(recipe: Recipe, subject: Subject, reference: bool) -> Mapping[str, Inputs]:
    """The recipe's, with those of the adapter's dialects by which the contract measures the boundary.

    :param reference: whether head is the contract's. It is told all, as in a search; so is the boundary then.
    """
    if reference:
        return example(subject, recipe).variants
    measured = entered(recipe, subject.contract).dialects
    binding = replace(
        subject.binding, dialects=tuple(item for item in subject.binding.dialects if item.name in measured)
    )
    return {name: with_dialects(subject.contract, binding, dict(inputs)) for name, inputs in recipe.variants.items()}


def at_revision(runner: Runner, subject: Subject, recipe: Recipe, ref: Ref) -> Place:
    """:raises SentinelError: where the revision cannot be had."""
    try:
        ground = runner.ground(recipe.target, ref, [subject.binding])
    except Unavailable as error:
        raise SentinelError(f"{ref.short}: {error.reason}") from error
    given = recipe.given(subject.contract, subject.binding.fixed)

    def ask(calls: Mapping[str, Inputs]) -> Mapping[str, Any]:
        return ground.bench.observe(subject, calls, given)

    checkout = ground.checkout
    revision = checkout.commit or checkout.version or checkout.tree
    refused = f"{subject.name} at {ref.short} does not take a batch of training"
    return Place(str(ref), ref.short, revision, _told(ask, refused), ground.bench)


def at_reference(subject: Subject, bench: Bench) -> Place:
    """:raises SentinelError: where the contract has none."""
    if subject.contract.oracle is None:
        raise SentinelError(f"the contract {subject.contract.name} has no reference; name a revision with --head REF")

    def ask(calls: Mapping[str, Inputs]) -> Mapping[str, Any]:
        return bench.consult(subject, calls)

    silent = "the contract's reference has no answer for a batch of training (name a revision with --head REF)"
    return Place(REFERENCE, "the contract's reference", "", _told(ask, silent), bench)


def _told(ask: Callable[[Mapping[str, Inputs]], Mapping[str, Any]], otherwise: str) -> Observe:
    def observe(calls: Mapping[str, Inputs]) -> Mapping[str, Any]:
        try:
            return ask(calls)
        except Undecidable as error:
            raise NotTakenError(f"{otherwise}: {error}") from error

    return observe
