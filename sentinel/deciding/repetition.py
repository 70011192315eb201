"""Run a recipe again in another process, with changes that must not affect the verdict.

The repetition uses another seed, another order of the variants, and random variant names. If the contract has the law
``order_does_not_matter``, each variant is also tried with its rows in a random order.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from typing import Any

from sentinel.contracts.choices import Choices
from sentinel.contracts.contract import BASELINE, Contract, DoesNotApply, Inputs
from sentinel.deciding.outcomes import Observation
from sentinel.laws.law import Case
from sentinel.laws.row_order import order_does_not_matter
from sentinel.worker import protocol

#: The seed of the repetition. The first run uses :data:`sentinel.worker.probe.SEED`.
SEED = 20260822


class Repetition:
    """A worker request whose variants have random names and a random order, and the mapping to the original names.

    :param contract: the request's contract; None if permuted rows are not tried.
    :ivar reordered: variant -> the two variants that the law ``order_does_not_matter`` compares.
    """

    def __init__(self, request: Mapping[str, Any], contract: Contract | None = None) -> None:
        self._contract = contract
        self._variants: Mapping[str, Inputs] = request["variants"]
        self.reordered = _reordered(contract, self._variants) if contract is not None else {}
        questions = [(name, False) for name in self._variants] + [(name, True) for name in self.reordered]
        random.SystemRandom().shuffle(questions)
        self._names = {secrets.token_hex(8): each for each in questions}
        disguised = {
            made_up: _last(self.reordered[name]) if other_order else self._variants[name]
            for made_up, (name, other_order) in self._names.items()
        }
        self.request = {**request, "variants": disguised, "seed": SEED}

    def restore_names(self, observation: Observation) -> Observation:
        """Return the observation with the recipe's variant names instead of the random names."""
        answers = self._by_name(observation)
        return {name: answers[name, False] for name in self._variants}

    def rows_are_a_set(self, observation: Observation, observed: Observation) -> bool:
        """Return True if permuting the rows of every variant permuted the results in the same way."""
        answers = self._by_name(observation)
        verdicts = []
        for name, variants in self.reordered.items():
            both = dict(zip(variants, (observed[name], answers[name, True])))
            try:
                verdicts.append(not order_does_not_matter.violations(Case(variants, both, None, self._contract)))
            except DoesNotApply:
                continue
        return bool(verdicts) and all(verdicts)

    def _by_name(self, observation: Observation) -> dict[tuple[str, bool], Mapping[str, Any]]:
        return {each: observation[made_up] for made_up, each in self._names.items()}


def _reordered(contract: Contract, variants: Mapping[str, Inputs]) -> dict[str, dict[str, Inputs]]:
    orders: dict[str, dict[str, Inputs]] = {}
    law = order_does_not_matter
    if law.name in contract.laws and law.vary is not None:
        for name, inputs in variants.items():
            try:
                orders[name] = law.vary(contract, inputs, Choices(secrets.token_bytes(256)))
            except DoesNotApply:
                continue
    return orders


def _last(variants: Mapping[str, Inputs]) -> Inputs:
    (other,) = (inputs for name, inputs in variants.items() if name != BASELINE)
    return other


def same(one: Observation, other: Observation) -> bool:
    """Return True if two observations are equal bit by bit; NaN equals NaN."""
    return protocol.encode(one) == protocol.encode(other)
