"""Send recipes to a worker for one checkout. Each recipe runs in two processes, under different conditions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sentinel.contracts.contract import Contract
from sentinel.deciding.outcomes import Observation
from sentinel.deciding.pool import Loaded
from sentinel.deciding.repetition import Repetition, same
from sentinel.laws.law import Law
from sentinel.recipes import Recipe
from sentinel.recipes.catalog import Adapter, Catalog
from sentinel.targets import Binding
from sentinel.worker.answers import Failed, Measured

#: Time limit in seconds for one process that runs many recipes. After a timeout, each recipe runs in its own process.
_ALL_TOGETHER = 20.0


@dataclass(frozen=True)
class Question:
    """A recipe to run, with its adapter and contract. Without expected values, ``law`` determines the verdict."""

    recipe: Recipe
    adapter: Adapter
    contract: Contract
    law: Law | None = None

    @classmethod
    def about(cls, recipe: Recipe, catalog: Catalog) -> Question:
        law = None if recipe.has_values else catalog.laws[str(recipe.invariant)]
        return cls(recipe, catalog.adapters[recipe.target], catalog.contracts[recipe.contract], law)

    @property
    def pull(self) -> int | None:
        """Return the number of the pull request to fetch if the mirror lacks the commit; None if there is none."""
        return self.recipe.upstream.get("pull")

    @cached_property
    def binding(self) -> Binding | None:
        return self.adapter.target.binding(self.recipe.boundary, self.recipe.contract)

    @cached_property
    def request(self) -> Mapping[str, Any]:
        """Return the request for the worker, as a JSON object."""
        recipe, contract = self.recipe, self.contract
        return {
            "boundary": recipe.boundary,
            "contract": recipe.contract,
            "contract_file": contract.file,
            "adapter": str(self.adapter.file),
            "requires": list(recipe.requires),
            "given": recipe.scenario_inputs(contract, self.binding.fixed if self.binding else ()),
            "variants": {name: dict(inputs) for name, inputs in recipe.variants.items()},
        }


@dataclass(frozen=True)
class Answers:
    """The results of the two processes that ran a recipe.

    :ivar first: the first process's result, from which the verdict is determined.
    :ivar second: the second process's observation, with the recipe's variant names; None if there is none.
    :ivar agree: whether both observations are equal bit by bit.
    :ivar refusal: why the second process returned no observation; empty if it returned one, or if there was no second
        process.
    :ivar reordered: True if permuting the rows in the second process permuted its results in the same way.
    :ivar seconds: the time that the processes took; if they ran several recipes, an equal share of this time.
    """

    first: Measured | Failed
    second: Observation | None = None
    agree: bool = False
    refusal: str = ""
    reordered: bool = False
    seconds: float = 0.0


def ask(loaded: Loaded, question: Question, repeat: bool = True) -> Answers:
    """Run a recipe in a new process, and again in a second process if the first returns values and ``repeat`` is
    true."""
    boundary = question.recipe.boundary
    first = loaded.probe(boundary, question.request)
    if not repeat or isinstance(first, Failed):
        return Answers(first)
    repetition = Repetition(question.request, question.contract)
    second = loaded.probe(boundary, repetition.request)
    if isinstance(second, Failed) and repetition.reordered:  # the function may reject permuted rows
        repetition = Repetition(question.request)
        second = loaded.probe(boundary, repetition.request)
    if isinstance(second, Failed):
        return Answers(first, refusal=second.reason)
    return _compare(first, second, repetition)


def ask_together(loaded: Loaded, questions: Sequence[Question]) -> list[Answers | None]:
    """Run many recipes in one process, and again in a second process, in the opposite order and with a different seed.

    In the opposite order, each recipe has other predecessors. So if an earlier recipe affects it, its two results
    differ. If they differ, or if a process ended early, the recipe's entry in the returned list is None. The caller
    must then run this recipe again, alone.
    """
    began = time.monotonic()
    results: list[Answers | None] = [None] * len(questions)
    indices = _drop_middles(
        [i for i, question in enumerate(questions) if loaded.hangs.failure(question.recipe.boundary) is None], questions
    )
    repetitions = [Repetition(questions[i].request, questions[i].contract) for i in indices]
    first = loaded.probes([questions[i].request for i in indices], _ALL_TOGETHER)
    if not first:
        return results
    second = loaded.probes([repetition.request for repetition in repetitions[::-1]], _ALL_TOGETHER)[::-1]
    share = (time.monotonic() - began) / len(indices)
    for i, one, other, repetition in zip(indices, first, second, repetitions):
        if isinstance(one, Measured) and isinstance(other, Measured):
            answers = _compare(one, other, repetition)
            results[i] = replace(answers, seconds=share) if answers.agree else None
    return results


def _compare(first: Measured, second: Measured, repetition: Repetition) -> Answers:
    restored = repetition.restore_names(second.observation)
    reordered = repetition.rows_are_a_set(second.observation, first.observation)
    return Answers(first, restored, same(first.observation, restored), reordered=reordered)


def _drop_middles(indices: Sequence[int], questions: Sequence[Question]) -> list[int]:
    """Drop the middle recipe of each boundary that has an odd number of recipes.

    The middle recipe has the same number of predecessors in both orders. If the boundary's result depends on the number
    of earlier calls, both runs would return the same wrong result, so the dependence would go unnoticed.
    """
    of_boundary: dict[str, list[int]] = {}
    for index in indices:
        of_boundary.setdefault(questions[index].recipe.boundary, []).append(index)
    middles = {same[len(same) // 2] for same in of_boundary.values() if len(same) > 1 and len(same) % 2}
    return [index for index in indices if index not in middles]
